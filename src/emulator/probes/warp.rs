//! Exchange within a warp: `shfl`, `vote`, `match`, `redux`, `elect`, `activemask`, `bar.warp.sync`; by full warps, and by
//! the lanes of a mask while the others are elsewhere.

use super::{Family, Fill, Needs, Pattern, Probe};

/// All lanes of a warp take part.
const ALL: &str = "0xffffffff";

/// Lanes 0 to 19 but 7 and 11 take part alone.
const PARTIAL: &str = "0x000ff77f";

pub(super) fn list(probes: &mut Vec<Probe>) {
    for mode in ["up", "down", "bfly", "idx"] {
        let opcode = format!("shfl.sync.{mode}.b32");
        for width in [32u32, 16, 8, 4, 1] {
            let c = (32 - width) << 8 | if mode == "up" { 0 } else { 31 };
            for flag in ["", " with a predicate"] {
                // Every lane has its own distance or source, of which 5 bits count.
                let (d, keep) = if flag.is_empty() {
                    ("%o0", "")
                } else {
                    ("%o0|%p1", "selp.b32 %o1, 1, 0, %p1;")
                };
                let words = if flag.is_empty() { 1 } else { 2 };
                probes.push(
                    Probe::new(
                        Family::Warp,
                        format!("{opcode} (width {width}{flag})"),
                        words,
                    )
                    .inputs([Fill::Word(Pattern::Noise), Fill::Word(Pattern::Below(40))])
                    .threads(64)
                    .body(format!("{opcode} {d}, %a0, %a1, {c}, {ALL}; {keep}")),
                );
            }
        }
        // A source that is no lane of the mask would be undefined: such lanes have the distance 0, and read their own value.
        let source = match mode {
            "up" => "sub.u32 %r1, %lane, 1;",
            "down" => "add.u32 %r1, %lane, 1;",
            _ => "xor.b32 %r1, %lane, 1;",
        };
        let from = match mode {
            "idx" => "mov.b32 %r2, 5;".to_owned(),
            _ => format!(
                "{source} mov.b32 %r2, {PARTIAL}; shr.u32 %r2, %r2, %r1; and.b32 %r2, %r2, 1;"
            ),
        };
        let c = if mode == "up" { 0 } else { 31 };
        probes.push(partial(&opcode, 1, |opcode| {
            format!("{from} {opcode} %o0, %a0, %r2, {c}, {PARTIAL};")
        }));
    }
    for mode in ["all", "any", "uni"] {
        let opcode = format!("vote.sync.{mode}.pred");
        for limit in [0u32, 1, 16, 255, 256] {
            let name = format!("{opcode} (operands below {limit} of 256)");
            let probe = Probe::new(Family::Warp, name, 1).inputs([Fill::Word(Pattern::Below(256))]);
            probes.push(probe.threads(64).body(format!(
                "setp.lt.u32 %p1, %a0, {limit}; {opcode} %p2, %p1, {ALL}; selp.b32 %o0, 1, 0, %p2;"
            )));
        }
        probes.push(partial(&opcode, 1, |opcode| {
            format!(
                "setp.ne.u32 %p1, %lane, 7; {opcode} %p2, %p1, {PARTIAL}; selp.b32 %o0, 1, 0, %p2;"
            )
        }));
    }
    let ballot = "vote.sync.ballot.b32";
    probes.push(full(
        ballot,
        1,
        "and.b32 %r0, %a0, 1; setp.ne.u32 %p1, %r0, 0; vote.sync.ballot.b32 %o0, %p1, 0xffffffff;",
    ));
    probes.push(full(
        "vote.sync.ballot.b32 (negated)",
        1,
        "and.b32 %r0, %a0, 1; setp.ne.u32 %p1, %r0, 0; vote.sync.ballot.b32 %o0, !%p1, 0xffffffff;",
    ));
    probes.push(partial(ballot, 1, |opcode| {
        format!("and.b32 %r0, %a0, 1; setp.ne.u32 %p1, %r0, 0; {opcode} %o0, %p1, {PARTIAL};")
    }));
    for (ty, value) in [("b32", "%r0"), ("b64", "%rd0")] {
        let prepare =
            "and.b32 %r0, %a0, 3; mul.lo.u32 %r0, %r0, 0x40000001; mov.b64 %rd0, {%z, %r0};";
        let any = format!("match.any.sync.{ty}");
        probes.push(full(
            &any,
            1,
            &format!("{prepare} {any} %o0, {value}, {ALL};"),
        ));
        probes.push(partial(&any, 1, |opcode| {
            format!("{prepare} {opcode} %o0, {value}, {PARTIAL};")
        }));
        let all = format!("match.all.sync.{ty}");
        // All values are equal in the second warp alone.
        let prepare = "shr.u32 %r0, %a0, %t; setp.ge.u32 %p2, %t, 32; selp.b32 %r0, 77, %r0, %p2; mov.b64 %rd0, {%z, %r0};";
        let body = format!("{prepare} {all} %o0|%p1, {value}, {ALL}; selp.b32 %o1, 1, 0, %p1;");
        probes.push(full(&all, 2, &body));
    }
    for (operation, ty) in [
        ("add", "u32"),
        ("add", "s32"),
        ("min", "u32"),
        ("min", "s32"),
        ("max", "u32"),
        ("max", "s32"),
        ("and", "b32"),
        ("or", "b32"),
        ("xor", "b32"),
    ] {
        let opcode = format!("redux.sync.{operation}.{ty}");
        probes.push(full(&opcode, 1, &format!("{opcode} %o0, %a0, {ALL};")));
        probes.push(partial(&opcode, 1, |opcode| {
            format!("{opcode} %o0, %a0, {PARTIAL};")
        }));
    }
    // Which lane is elected is the implementation's choice: that it is one of the mask, the same for all.
    let count = "selp.b32 %r1, 1, 0, %p1; redux.sync.add.u32 %o0, %r1, MASK; shfl.sync.idx.b32 %r2, %r0, LEADER, 31, MASK; setp.eq.u32 %p2, %r0, %r2; selp.b32 %o1, 1, 0, %p2; shr.u32 %r3, MASK, %r0; and.b32 %o2, %r3, 1; setp.eq.u32 %p3, %r0, %lane; selp.b32 %r4, 1, 0, %p3; sub.u32 %o3, %r4, %r1;";
    let elect = |mask: &str| {
        let count = count.replace("MASK", mask).replace("LEADER", "0");
        format!("elect.sync %r0|%p1, {mask}; {count}")
    };
    probes.push(
        full(
            "elect.sync",
            4,
            &elect("%r9").replace("elect.sync", "mov.b32 %r9, -1; elect.sync"),
        )
        .needs(Needs::HOPPER),
    );
    probes.push(
        partial("elect.sync", 4, |_| {
            format!("mov.b32 %r9, {PARTIAL}; {}", elect("%r9"))
        })
        .needs(Needs::HOPPER),
    );
    probes.push(full("activemask.b32", 1, "activemask.b32 %o0;"));
    // A word through shared memory, of all lanes and of some.
    let pass = |mask: &str| {
        format!(
            "shl.b32 %r0, %t, 2; add.u32 %r0, %r0, %s; st.shared.b32 [%r0], %a0; bar.warp.sync {mask}; sub.u32 %r1, %r0, %r2; ld.shared.b32 %o0, [%r1];"
        )
    };
    let all = format!(
        "setp.eq.u32 %p1, %lane, 0; selp.b32 %r2, 0, 4, %p1; {}",
        pass(ALL)
    );
    probes.push(full("bar.warp.sync", 1, &all).shared(256));
    // Lanes 7 and 11 store nothing, so lanes 8 and 12 read their own.
    let some = format!(
        "setp.eq.u32 %p1, %lane, 0; setp.eq.u32 %p2, %lane, 8; setp.eq.u32 %p3, %lane, 12; or.pred %p1, %p1, %p2; or.pred %p1, %p1, %p3; selp.b32 %r2, 0, 4, %p1; {}",
        pass(PARTIAL)
    );
    probes.push(partial("bar.warp.sync", 1, |_| some.clone()).shared(256));
}

/// Two full warps.
fn full(form: &str, words: usize, body: &str) -> Probe {
    let inputs = [Fill::Word(Pattern::Noise)];
    Probe::new(Family::Warp, form, words)
        .inputs(inputs)
        .threads(64)
        .body(body)
}

/// The lanes of [`PARTIAL`] alone; the others' results are zeros.
fn partial(opcode: &str, words: usize, body: impl Fn(&str) -> String) -> Probe {
    let form = format!("{opcode} (some lanes)");
    full(
        &form,
        words,
        &format!(
            "mov.b32 %r90, {PARTIAL}; shr.u32 %r90, %r90, %lane; and.b32 %r90, %r90, 1; setp.eq.u32 %p9, %r90, 0; @%p9 bra AWAY{{n}};\n\
             {}\nAWAY{{n}}: bar.warp.sync 0xffffffff;",
            body(opcode)
        ),
    )
}
