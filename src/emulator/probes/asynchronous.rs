//! Copies, stores and reductions that complete later.
//!
//! Tensor copies (`cp.async.bulk.tensor`) are no probes: they need a map that the driver makes. A probe waits for what it
//! started as PTX demands before it looks.

use super::memory::{IMAGE, POLICY};
use super::{Family, Fill, Needs, Pattern, Probe};

/// `%r0`: the thread's 32 bytes of shared memory.
const OWN: &str = "shl.b32 %r0, %t, 5; add.u32 %r0, %r0, %s;";
/// Eight words at `[%r1]` of shared memory become the results.
const READ: &str = "ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r1]; ld.shared.v4.b32 {%r14, %r15, %r16, %r17}, [%r1+16];\n\
     st.global.v4.b32 [%out], {%r10, %r11, %r12, %r13}; st.global.v4.b32 [%out+16], {%r14, %r15, %r16, %r17};";
/// `%r1`: the 32 bytes of the thread 5 further on, behind the first KiB.
const NEXT: &str = "add.u32 %r1, %t, 5; and.b32 %r1, %r1, 31; shl.b32 %r1, %r1, 5; add.u32 %r1, %r1, %s; add.u32 %r1, %r1, 1024;";
/// The operands into the thread's 32 bytes of the first KiB of shared memory.
const FILL: &str = "st.shared.v4.b32 [%r0], {%a0, %a1, %a2, %a3}; st.shared.v4.b32 [%r0+16], {%a4, %a5, %a6, %a7};";
/// Ones in the thread's 32 bytes, to be seen where nothing is copied to.
pub(super) const ONES: &str = "not.b32 %r9, %z; st.shared.v4.b32 [%r0], {%r9, %r9, %r9, %r9}; st.shared.v4.b32 [%r0+16], {%r9, %r9, %r9, %r9};";
/// Until the first phase of the mbarrier behind the second KiB is over.
const WAIT: &str =
    "WAIT{n}: mbarrier.try_wait.parity.shared.b64 %p2, [%s+2048], 0; @!%p2 bra WAIT{n};";
/// As [`WAIT`], for what another block did.
const WAIT_CLUSTER: &str = "WAIT{n}: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%s+2048], 0; @!%p2 bra WAIT{n};";
pub(super) const MEET: &str = "barrier.cluster.arrive; barrier.cluster.wait;";
/// `%r2`, `%r3`: the first KiB of the other block, and its mbarrier.
const OTHER: &str = "mov.u32 %r5, %cluster_ctarank; xor.b32 %r4, %r5, 1; mapa.shared::cluster.u32 %r2, %s, %r4; add.u32 %r3, %r2, 2048;";

/// Shared memory: two KiB of data, and an mbarrier.
const SHARED_BYTES: u32 = 2080;

fn probe(form: impl Into<String>, inputs: impl Into<Vec<Fill>>, needs: Needs) -> Probe {
    let probe = Probe::new(Family::Asynchronous, form, 0)
        .inputs(inputs)
        .memory(8);
    probe.shared(SHARED_BYTES).needs(needs)
}

pub(super) fn list(probes: &mut Vec<Probe>) {
    copies(probes);
    bulk(probes);
    reductions(probes);
    remote(probes);
}

/// `cp.async`: a thread copies the second half of its operands, or the start of that half.
fn copies(probes: &mut Vec<Probe>) {
    let done = "cp.async.commit_group; cp.async.wait_group 0;";
    let mut add =
        |form: String, needs: Needs, before: &str, opcode: &str, operands: &str, done: &str| {
            probes.push(probe(form, IMAGE, needs).body(format!(
                "{OWN} {ONES} {before}\n{opcode} {operands}; {done}\nmov.b32 %r1, %r0; {READ}"
            )));
        };
    let sizes = [("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)];
    for (cache, bytes) in sizes {
        for window in ["shared", "shared::cta"] {
            let opcode = format!("cp.async.{cache}.{window}.global");
            let operands = format!("[%r0+16], [%in+16], {bytes}");
            add(
                format!("{opcode} {bytes}"),
                Needs::AMPERE,
                "",
                &opcode,
                &operands,
                done,
            );
        }
        let opcode = format!("cp.async.{cache}.shared.global");
        // Bytes of the source: a multiple of 4 that differs between lanes; the others are 0.
        let before = format!(
            "rem.u32 %r2, %lane, {}; shl.b32 %r2, %r2, 2;",
            bytes / 4 + 1
        );
        let operands = format!("[%r0+16], [%in+16], {bytes}, %r2");
        add(
            format!("{opcode} {bytes}, bytes"),
            Needs::AMPERE,
            &before,
            &opcode,
            &operands,
            done,
        );
        let before = "setp.lt.s32 %p1, %a0, 0;";
        let operands = format!("[%r0+16], [%in+16], {bytes}, %p1");
        add(
            format!("{opcode} {bytes}, ignore"),
            Needs::AMPERE.ptx(83),
            before,
            &opcode,
            &operands,
            done,
        );
        for prefetch in ["L2::64B", "L2::128B", "L2::256B"] {
            let opcode = format!("{opcode}.{prefetch}");
            let operands = format!("[%r0+16], [%in+16], {bytes}");
            add(
                format!("{opcode} {bytes}"),
                Needs::AMPERE,
                "",
                &opcode,
                &operands,
                done,
            );
        }
        let hinted = format!("{opcode}.L2::cache_hint");
        let before = POLICY;
        let operands = format!("[%r0+16], [%in+16], {bytes}, %rd2");
        add(
            format!("{hinted} {bytes}"),
            Needs::AMPERE,
            before,
            &hinted,
            &operands,
            done,
        );
        let guarded = format!("@%p1 {opcode}");
        let before = "setp.lt.s32 %p1, %a0, 0;";
        let operands = format!("[%r0+16], [%in+16], {bytes}");
        add(
            format!("@p {opcode} {bytes}"),
            Needs::AMPERE,
            before,
            &guarded,
            &operands,
            done,
        );
        add(
            format!("{opcode} {bytes}, cp.async.wait_all"),
            Needs::AMPERE,
            "",
            &opcode,
            &operands,
            "cp.async.wait_all;",
        );
    }
    // The second group may still be on its way when the first is looked at.
    probes.push(probe("cp.async.wait_group 1", IMAGE, Needs::AMPERE).body(format!(
        "{OWN} {ONES} cp.async.ca.shared.global [%r0], [%in+16], 16; cp.async.commit_group; cp.async.ca.shared.global [%r0+16], [%in], 16; cp.async.commit_group;\n\
         cp.async.wait_group 1; ld.shared.v4.b32 {{%r10, %r11, %r12, %r13}}, [%r0]; st.global.v4.b32 [%out], {{%r10, %r11, %r12, %r13}};\n\
         cp.async.wait_group 0; ld.shared.v4.b32 {{%r10, %r11, %r12, %r13}}, [%r0+16]; st.global.v4.b32 [%out+16], {{%r10, %r11, %r12, %r13}};"
    )));
    // The copies of all lanes arrive; a lane looks at another one's.
    for (opcode, counted) in [
        ("cp.async.mbarrier.arrive.noinc.shared.b64", true),
        ("cp.async.mbarrier.arrive.noinc.shared::cta.b64", true),
        ("cp.async.mbarrier.arrive.noinc.b64", true),
        ("cp.async.mbarrier.arrive.shared.b64", false),
        ("cp.async.mbarrier.arrive.b64", false),
    ] {
        let (before, address) = if opcode.contains("shared") {
            ("", "[%s+2048]")
        } else {
            (
                "cvt.u64.u32 %rd3, %s; add.u64 %rd3, %rd3, 2048; cvta.shared.u64 %rd3, %rd3;",
                "[%rd3]",
            )
        };
        let arrive = if counted {
            ""
        } else {
            "mbarrier.arrive.shared.b64 %rd1, [%s+2048];"
        };
        probes.push(probe(opcode, IMAGE, Needs::AMPERE).body(format!(
            "{OWN} {before} setp.eq.u32 %p1, %t, 0; @%p1 mbarrier.init.shared.b64 [%s+2048], 32; bar.sync 0;\n\
             cp.async.ca.shared.global [%r0+1024], [%in], 16; cp.async.ca.shared.global [%r0+1040], [%in+16], 16; {opcode} {address}; {arrive}\n\
             WAIT{{n}}: mbarrier.test_wait.parity.shared.b64 %p2, [%s+2048], 0; @!%p2 bra WAIT{{n}}; {NEXT} {READ}"
        )));
    }
}

/// Bulk copies of a KiB: the operands of all 32 threads.
fn bulk(probes: &mut Vec<Probe>) {
    let hopper = Needs::HOPPER;
    let init = "setp.eq.u32 %p1, %t, 0; @%p1 mbarrier.init.shared.b64 [%s+2048], 1; fence.proxy.async; bar.sync 0;";
    let expect = "@%p1 mbarrier.arrive.expect_tx.shared.b64 %rd1, [%s+2048], 1024;";
    for (window, hint, needs) in [
        ("shared::cluster", false, hopper),
        ("shared::cluster", true, hopper),
        ("shared::cta", false, hopper.ptx(86)),
    ] {
        let mut opcode = format!("cp.async.bulk.{window}.global.mbarrier::complete_tx::bytes");
        let mut policy = ("", "");
        if hint {
            opcode += ".L2::cache_hint";
            policy = (POLICY, ", %rd2");
        }
        probes.push(probe(&opcode, IMAGE, needs).body(format!(
            "{init} {} {expect} @%p1 {opcode} [%s+1024], [%in], 1024, [%s+2048]{}; {WAIT} {NEXT} {READ}",
            policy.0, policy.1
        )));
    }
    // Every lane copies a part.
    let opcode = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes";
    probes.push(probe(format!("{opcode} (every lane)"), IMAGE, hopper).body(format!(
        "{OWN} {init} {expect} bar.sync 0; {opcode} [%r0+1024], [%in], 32, [%s+2048]; {WAIT} {NEXT} {READ}"
    )));
    for (wait, hint) in [
        ("wait_group", false),
        ("wait_group.read", false),
        ("wait_group", true),
    ] {
        let mut opcode = String::from("cp.async.bulk.global.shared::cta.bulk_group");
        let mut policy = ("", "");
        if hint {
            opcode += ".L2::cache_hint";
            policy = (POLICY, ", %rd2");
        }
        probes.push(probe(format!("{opcode}, cp.async.bulk.{wait}"), IMAGE, hopper).body(format!(
            "{OWN} {FILL} {} fence.proxy.async.shared::cta; bar.sync 0; setp.ne.u32 %p1, %t, 0; @%p1 bra END{{n}}; {opcode} [%out], [%s], 1024{}; cp.async.bulk.commit_group; cp.async.bulk.{wait} 0; END{{n}}: bar.sync 0;",
            policy.0, policy.1
        )));
    }
    // Between two blocks.
    let init = "setp.eq.u32 %p1, %t, 0; @%p1 mbarrier.init.shared.b64 [%s+2048], 1; @%p1 fence.mbarrier_init.release.cluster;";
    let opcode = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes";
    probes.push(probe(opcode, IMAGE, hopper).cluster(2).body(format!(
        "{OWN} {FILL} {init} {expect} fence.proxy.async; {MEET} {OTHER} add.u32 %r2, %r2, 1024; @%p1 {opcode} [%r2], [%s], 1024, [%r3]; {WAIT_CLUSTER} {NEXT} {READ} {MEET}"
    )));
    let opcode =
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster";
    for mask in [1, 2, 3] {
        // Block 0 sends; a block that is not in the mask has zeros.
        probes.push(probe(format!("{opcode} (mask {mask})"), IMAGE, Needs::HOPPER_ONLY).cluster(2).body(format!(
            "{OWN} {init} st.shared.v4.b32 [%r0+1024], {{%z, %z, %z, %z}}; st.shared.v4.b32 [%r0+1040], {{%z, %z, %z, %z}};\n\
             mov.u32 %r5, %cluster_ctarank; mov.b32 %r6, {mask}; shr.u32 %r7, %r6, %r5; and.b32 %r7, %r7, 1; mul.lo.u32 %r7, %r7, 1024; @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd1, [%s+2048], %r7;\n\
             fence.proxy.async; {MEET} cvt.u16.u32 %rs1, %r6; setp.eq.and.u32 %p3, %r5, 0, %p1; @%p3 {opcode} [%s+1024], [%in], 1024, [%s+2048], %rs1; {WAIT_CLUSTER} {NEXT} {READ} {MEET}"
        )));
    }
}

/// Types that each operation of `cp.reduce.async.bulk` to global memory has.
const TO_GLOBAL: [(&str, &[&str]); 8] = [
    ("add", &["u32", "s32", "u64", "f16", "bf16", "f32", "f64"]),
    ("min", &["u32", "s32", "u64", "s64", "f16", "bf16"]),
    ("max", &["u32", "s32", "u64", "s64", "f16", "bf16"]),
    ("inc", &["u32"]),
    ("dec", &["u32"]),
    ("and", &["b32", "b64"]),
    ("or", &["b32", "b64"]),
    ("xor", &["b32", "b64"]),
];

/// The same to another block's shared memory, and of `red.async`.
const TO_SHARED: [(&str, &[&str]); 8] = [
    ("add", &["u32", "s32", "u64"]),
    ("min", &["u32", "s32"]),
    ("max", &["u32", "s32"]),
    ("inc", &["u32"]),
    ("dec", &["u32"]),
    ("and", &["b32"]),
    ("or", &["b32"]),
    ("xor", &["b32"]),
];

/// Sixteen words: eight that are reduced into, and eight of the source.
fn both(ty: &'static str) -> [Fill; 16] {
    [Fill::Word(match ty {
        "f16" | "bf16" | "f32" => Pattern::Small(ty),
        _ => Pattern::Noise,
    }); 16]
}

/// `%a` of the second operand into the thread's 32 bytes of shared memory.
const SOURCE: &str = "st.shared.v4.b32 [%r0], {%a8, %a9, %a10, %a11}; st.shared.v4.b32 [%r0+16], {%a12, %a13, %a14, %a15};";
/// The first operand behind the first KiB.
const TARGET: &str = "st.shared.v4.b32 [%r0+1024], {%a0, %a1, %a2, %a3}; st.shared.v4.b32 [%r0+1040], {%a4, %a5, %a6, %a7};";

fn reductions(probes: &mut Vec<Probe>) {
    let hopper = Needs::HOPPER;
    for (operation, types) in TO_GLOBAL {
        for &ty in types {
            let noftz = if operation == "add" && ty.ends_with("f16") {
                ".noftz"
            } else {
                ""
            };
            let opcode = format!(
                "cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation}{noftz}.{ty}"
            );
            // Of f64, eight bytes are an operand: four of each.
            let (inputs, store) = if ty == "f64" {
                (
                    vec![Fill::Wide(Pattern::Small("f64")); 8],
                    "st.shared.v2.b64 [%r0], {%b4, %b5}; st.shared.v2.b64 [%r0+16], {%b6, %b7}; st.global.v2.b64 [%out], {%b0, %b1}; st.global.v2.b64 [%out+16], {%b2, %b3};".to_owned(),
                )
            } else {
                (
                    both(ty).to_vec(),
                    format!(
                        "{SOURCE} st.global.v4.b32 [%out], {{%a0, %a1, %a2, %a3}}; st.global.v4.b32 [%out+16], {{%a4, %a5, %a6, %a7}};"
                    ),
                )
            };
            probes.push(probe(&opcode, inputs, hopper).floats(ty).body(format!(
                "{OWN} {store} fence.proxy.async; bar.sync 0; setp.ne.u32 %p1, %t, 0; @%p1 bra END{{n}}; {opcode} [%out], [%s], 1024; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; END{{n}}: bar.sync 0;"
            )));
        }
    }
    for (operation, types) in TO_SHARED {
        for &ty in types {
            let opcode = format!(
                "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{operation}.{ty}"
            );
            probes.push(probe(&opcode, both(ty), hopper).cluster(2).body(format!(
                "{OWN} {SOURCE} {TARGET} setp.eq.u32 %p1, %t, 0; @%p1 mbarrier.init.shared.b64 [%s+2048], 1; @%p1 fence.mbarrier_init.release.cluster; @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd1, [%s+2048], 1024;\n\
                 fence.proxy.async; {MEET} {OTHER} add.u32 %r2, %r2, 1024; @%p1 {opcode} [%r2], [%s], 1024, [%r3]; {WAIT_CLUSTER} {NEXT} {READ} {MEET}"
            )));
        }
    }
}

/// `st.async` and `red.async`: every lane stores into the other block, and tells its mbarrier.
fn remote(probes: &mut Vec<Probe>) {
    let hopper = Needs::HOPPER.ptx(81);
    let frame = |bytes: u32, action: &str| {
        format!(
            "{OWN} {TARGET} setp.eq.u32 %p1, %t, 0; @%p1 mbarrier.init.shared.b64 [%s+2048], 1; @%p1 fence.mbarrier_init.release.cluster; @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd1, [%s+2048], {};\n\
             {MEET} {OTHER} shl.b32 %r6, %t, 5; add.u32 %r2, %r2, %r6; mov.b64 %rd4, {{%a8, %a9}}; mov.b64 %rd5, {{%a10, %a11}}; {action} {WAIT_CLUSTER} {NEXT} {READ} {MEET}",
            32 * bytes
        )
    };
    for vector in [1, 2, 4] {
        for (ty, bytes) in [
            ("b32", 4),
            ("u32", 4),
            ("s32", 4),
            ("f32", 4),
            ("b64", 8),
            ("u64", 8),
            ("s64", 8),
            ("f64", 8),
        ] {
            if vector * bytes > 16 {
                continue;
            }
            let name = if vector == 1 {
                String::new()
            } else {
                format!(".v{vector}")
            };
            let register = |number: u32| {
                if bytes == 8 {
                    format!("%rd{}", 4 + number)
                } else {
                    format!("%a{}", 8 + number)
                }
            };
            let list: Vec<String> = (0..vector).map(register).collect();
            let value = if vector == 1 {
                list.concat()
            } else {
                format!("{{{}}}", list.join(", "))
            };
            let opcode =
                format!("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{name}.{ty}");
            let action = format!("{opcode} [%r2+1040], {value}, [%r3];");
            let inputs = [Fill::Word(Pattern::Noise); 16];
            probes.push(
                probe(opcode, inputs, hopper)
                    .cluster(2)
                    .body(frame(vector * bytes, &action)),
            );
        }
    }
    for (operation, types) in TO_SHARED {
        for &ty in types {
            let opcode = format!(
                "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{operation}.{ty}"
            );
            let (bytes, value) = if ty == "u64" { (8, "%rd4") } else { (4, "%a8") };
            let action = format!("{opcode} [%r2+1040], {value}, [%r3];");
            probes.push(
                probe(opcode, both(ty), hopper)
                    .cluster(2)
                    .body(frame(bytes, &action)),
            );
        }
    }
}
