//! Addresses of one space in another. No address is a result: what lies there is, and whether two are equal.
//!
//! Whether the address of a constant is also a global one is left out: PTX does not say how those windows lie.

use super::{CONSTANTS, Family, Fill, Needs, Pattern, Probe};

/// Spaces that have a window in the generic one.
const SPACES: [&str; 5] = ["global", "shared", "local", "const", "param"];

/// PTX behind which `%rd0` is an address in `space`: of the thread's operand, or of the word `lane % 8` of the constants or
/// of the kernel's parameter.
fn place(space: &str) -> &'static str {
    match space {
        "global" => "mov.u64 %rd0, %in;",
        "shared" => {
            "shl.b32 %r0, %t, 2; add.u32 %r0, %r0, %s; st.shared.b32 [%r0], %a0; cvt.u64.u32 %rd0, %r0;"
        }
        "local" => {
            ".local .align 16 .b8 place[32]; st.local.b32 [place], %a0; mov.u64 %rd0, place;"
        }
        "const" => {
            "and.b32 %r0, %lane, 7; mov.u64 %rd0, constants{n}; mad.wide.u32 %rd0, %r0, 4, %rd0;"
        }
        _ => "and.b32 %r0, %lane, 7; mov.u64 %rd0, given; mad.wide.u32 %rd0, %r0, 4, %rd0;",
    }
}

/// What a probe of `space` has to have around its body.
fn within(probe: Probe, space: &str) -> Probe {
    let probe = probe.inputs([Fill::Word(Pattern::Noise)]);
    match space {
        "shared" => probe.shared(1024),
        "const" => {
            let list: Vec<String> = CONSTANTS.iter().map(|word| format!("{word:#x}")).collect();
            probe.globals(format!(
                ".const .align 16 .b32 constants{{n}}[16] = {{{}}};\n",
                list.join(", ")
            ))
        }
        _ => probe,
    }
}

pub(super) fn list(probes: &mut Vec<Probe>) {
    for space in SPACES {
        let probe = |form: String, words: usize, body: String| {
            let body = format!("{} cvta.{space}.u64 %rd1, %rd0;\n{body}", place(space));
            within(Probe::new(Family::Space, form, words), space).body(body)
        };
        // What lies there, and whether the next word's address is 4 higher.
        probes.push(probe(
            format!("cvta.{space}.u64"),
            2,
            format!("ld.b32 %o0, [%rd1]; add.u64 %rd2, %rd0, 4; cvta.{space}.u64 %rd2, %rd2; sub.u64 %rd2, %rd2, %rd1; cvt.u32.u64 %o1, %rd2;"),
        ));
        probes.push(probe(
            format!("cvta.to.{space}.u64"),
            2,
            format!("cvta.to.{space}.u64 %rd2, %rd1; ld.{space}.b32 %o0, [%rd2]; setp.eq.u64 %p1, %rd2, %rd0; selp.b32 %o1, 1, 0, %p1;"),
        ));
        for (of, needs) in [
            ("global", Needs::AMPERE),
            ("shared", Needs::AMPERE),
            ("shared::cta", Needs::AMPERE),
            ("shared::cluster", Needs::HOPPER),
            ("local", Needs::AMPERE),
            ("const", Needs::AMPERE),
            ("param", Needs::AMPERE),
            ("param::entry", Needs::AMPERE.ptx(83)),
        ] {
            if space == "const" && of == "global" || space == "global" && of == "const" {
                continue;
            }
            let body =
                format!("isspacep.{of} %p1, %rd1; selp.b32 %o0, 1, 0, %p1; ld.b32 %o1, [%rd1];");
            probes.push(probe(format!("isspacep.{of} ({space})"), 2, body).needs(needs));
        }
        if matches!(space, "global" | "shared" | "local") {
            for (opcode, body) in [
                ("st.b32", "st.b32 [%rd1], %lane;"),
                ("st.u8", "st.u8 [%rd1+1], %lane;"),
                (
                    "atom.add.u32",
                    "atom.add.u32 %r1, [%rd1], %lane; add.u32 %o1, %r1, 1;",
                ),
            ] {
                // PTX has no atomics on local memory.
                if space == "local" && opcode.starts_with("atom") {
                    continue;
                }
                let body = format!("{body} ld.{space}.b32 %o0, [%rd0];");
                probes.push(probe(format!("{opcode} (generic, {space})"), 2, body));
            }
        }
    }
    for (window, needs) in [
        ("shared::cta", Needs::AMPERE),
        ("shared::cluster", Needs::HOPPER),
    ] {
        let body = format!(
            "{} cvta.{window}.u64 %rd1, %rd0; ld.b32 %o0, [%rd1]; cvta.to.{window}.u64 %rd2, %rd1; setp.eq.u64 %p1, %rd2, %rd0; selp.b32 %o1, 1, 0, %p1;",
            place("shared")
        );
        let probe = Probe::new(Family::Space, format!("cvta.{window}.u64"), 2);
        probes.push(within(probe, "shared").needs(needs).body(body));
    }
    cluster(probes);
}

/// Two blocks, each of which looks into the other one's shared memory: the word of the same thread there, and ranks.
fn cluster(probes: &mut Vec<Probe>) {
    let meet = "barrier.cluster.arrive; barrier.cluster.wait;";
    let probe = |form: &str, words: usize, body: &str| {
        // %r2 is the other block's rank; addresses of the thread's word: %r0 and %rd0 in the window, %rd1 generic.
        let body = format!(
            "{} cvta.shared.u64 %rd1, %rd0; mov.u32 %r1, %cluster_ctarank; xor.b32 %r2, %r1, 1; {meet}\n{body}\n{meet}",
            place("shared")
        );
        let probe = within(Probe::new(Family::Space, form, words), "shared");
        probe.cluster(2).needs(Needs::HOPPER).body(body)
    };
    for (form, map, load) in [
        (
            "mapa.shared::cluster.u32",
            "mapa.shared::cluster.u32 %r3, %r0, %r2;",
            "ld.shared::cluster.b32 %o0, [%r3];",
        ),
        (
            "mapa.shared::cluster.u64",
            "mapa.shared::cluster.u64 %rd3, %rd0, %r2;",
            "ld.shared::cluster.b32 %o0, [%rd3];",
        ),
        (
            "mapa.u64",
            "mapa.u64 %rd3, %rd1, %r2;",
            "ld.b32 %o0, [%rd3];",
        ),
        (
            "mapa.shared::cluster.u32 (own rank)",
            "mapa.shared::cluster.u32 %r3, %r0, %r1;",
            "ld.shared::cluster.b32 %o0, [%r3];",
        ),
        (
            "mapa.u64 (own rank)",
            "mapa.u64 %rd3, %rd1, %r1;",
            "ld.b32 %o0, [%rd3];",
        ),
        (
            "mapa.shared::cluster.u32 (variable)",
            "mapa.shared::cluster.u32 %r3, mem, %r2; shl.b32 %r4, %t, 2; add.u32 %r3, %r3, %r4;",
            "ld.shared::cluster.b32 %o0, [%r3];",
        ),
        (
            "mapa.shared::cluster.u32 (rank 1)",
            "mapa.shared::cluster.u32 %r3, %r0, 1;",
            "ld.shared::cluster.b32 %o0, [%r3];",
        ),
    ] {
        probes.push(probe(form, 1, &format!("{map} {load}")));
    }
    for (form, map, rank) in [
        (
            "getctarank.shared::cluster.u32",
            "mapa.shared::cluster.u32 %r3, %r0, %r2;",
            "getctarank.shared::cluster.u32 %o0, %r3; getctarank.shared::cluster.u32 %o1, %r0;",
        ),
        (
            "getctarank.shared::cluster.u64",
            "mapa.shared::cluster.u64 %rd3, %rd0, %r2;",
            "getctarank.shared::cluster.u64 %o0, %rd3; getctarank.shared::cluster.u64 %o1, %rd0;",
        ),
        (
            "getctarank.u64",
            "mapa.u64 %rd3, %rd1, %r2;",
            "getctarank.u64 %o0, %rd3; getctarank.u64 %o1, %rd1;",
        ),
    ] {
        probes.push(probe(form, 2, &format!("{map} {rank}")));
    }
    for of in [
        "shared",
        "shared::cta",
        "shared::cluster",
        "global",
        "local",
    ] {
        let body = format!(
            "mapa.u64 %rd3, %rd1, %r2; isspacep.{of} %p1, %rd3; selp.b32 %o0, 1, 0, %p1; isspacep.{of} %p1, %rd1; selp.b32 %o1, 1, 0, %p1;"
        );
        probes.push(probe(
            &format!("isspacep.{of} (the other block's, own)"),
            2,
            &body,
        ));
    }
    for (form, body) in [
        (
            "cvta.shared::cluster.u64 (the other block's)",
            "mapa.shared::cluster.u64 %rd3, %rd0, %r2; cvta.shared::cluster.u64 %rd4, %rd3; ld.b32 %o0, [%rd4];",
        ),
        (
            "cvta.to.shared::cluster.u64 (the other block's)",
            "mapa.u64 %rd3, %rd1, %r2; cvta.to.shared::cluster.u64 %rd4, %rd3; ld.shared::cluster.b32 %o0, [%rd4];",
        ),
    ] {
        probes.push(probe(form, 1, body));
    }
}
