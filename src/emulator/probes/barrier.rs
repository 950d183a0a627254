//! Barriers of a block and of a cluster, mbarriers, and fences. What a barrier orders is shown by words that threads of
//! other warps wrote before it.

use super::{Family, Fill, Needs, Pattern, Probe};

/// Threads of a block.
const THREADS: u32 = 128;

/// Every thread stores its operand in shared memory; behind the barrier it reads that of the thread 33 further on.
const STORE: &str = "shl.b32 %r0, %t, 2; add.u32 %r0, %r0, %s; st.shared.b32 [%r0], %a0;";
const READ: &str = "add.u32 %r1, %t, 33; and.b32 %r1, %r1, 127; shl.b32 %r1, %r1, 2; add.u32 %r1, %r1, %s; ld.shared.b32 %o0, [%r1];";

pub(super) fn list(probes: &mut Vec<Probe>) {
    let word = [Fill::Word(Pattern::Noise)];
    let block = |form: String, words: usize, body: String| {
        let probe = Probe::new(Family::Barrier, form, words).inputs(word);
        probe.threads(THREADS).shared(1024).body(body)
    };
    for (opcode, operands) in [
        ("bar.sync", "0"),
        ("bar.sync", "5, 128"),
        ("bar.sync", "%r9"),
        ("bar.cta.sync", "1"),
        ("barrier.sync", "2"),
        ("barrier.sync", "3, 128"),
        ("barrier.sync.aligned", "4"),
        ("barrier.cta.sync", "6"),
        ("barrier.cta.sync.aligned", "7, 128"),
    ] {
        let form = format!("{opcode} {}", operands.replace("%r9", "register"));
        probes.push(block(
            form,
            1,
            format!("mov.b32 %r9, 9; {STORE} {opcode} {operands}; {READ}"),
        ));
    }
    // Two warps each meet at a barrier of their own.
    let halves = "shr.u32 %r2, %t, 6; add.u32 %r2, %r2, 1; bar.sync %r2, 64; xor.b32 %r1, %t, 32; shl.b32 %r1, %r1, 2; add.u32 %r1, %r1, %s; ld.shared.b32 %o0, [%r1];";
    probes.push(block(
        "bar.sync number, 64".into(),
        1,
        format!("{STORE} {halves}"),
    ));
    // Warps 2 and 3 only arrive; warps 0 and 1 read what they wrote.
    for (arrive, sync) in [
        ("bar.arrive", "bar.sync"),
        ("bar.cta.arrive", "bar.cta.sync"),
        ("barrier.arrive", "barrier.sync"),
        ("barrier.arrive.aligned", "barrier.sync.aligned"),
        ("barrier.cta.arrive", "barrier.cta.sync"),
    ] {
        probes.push(block(
            arrive.into(),
            1,
            format!(
                "{STORE} setp.ge.u32 %p1, %t, 64; @%p1 bra ARRIVE{{n}}; {sync} 1, 128; xor.b32 %r1, %t, 65; shl.b32 %r1, %r1, 2; add.u32 %r1, %r1, %s; ld.shared.b32 %o0, [%r1]; bra END{{n}};\n\
                 ARRIVE{{n}}: {arrive} 1, 128; END{{n}}: bar.sync 0;"
            ),
        ));
    }
    for (operation, d, keep) in [
        ("popc.u32", "%o1", ""),
        ("and.pred", "%p2", "selp.b32 %o1, 1, 0, %p2;"),
        ("or.pred", "%p2", "selp.b32 %o1, 1, 0, %p2;"),
    ] {
        for base in ["bar.red", "bar.cta.red", "barrier.red", "barrier.cta.red"] {
            // In PTX `.aligned` stands between the operation and its type.
            for aligned in [false, true] {
                if aligned && base.starts_with("bar.") {
                    continue;
                }
                let operation = if aligned {
                    operation.replace('.', ".aligned.")
                } else {
                    operation.to_owned()
                };
                let opcode = format!("{base}.{operation}");
                for (name, limit) in [("none", 0u32), ("some", 128), ("all", 256)] {
                    probes.push(block(
                        format!("{opcode} ({name})"),
                        2,
                        format!(
                            "{STORE} and.b32 %r2, %a0, 255; setp.lt.u32 %p1, %r2, {limit}; {opcode} {d}, 1, %p1; {keep} {READ}"
                        ),
                    ));
                }
            }
        }
    }
    // Of two warps' number, with a negated predicate.
    probes.push(block(
        "bar.red.popc.u32 number, 64, !p".into(),
        1,
        "shr.u32 %r2, %t, 6; add.u32 %r2, %r2, 1; and.b32 %r3, %a0, 255; setp.lt.u32 %p1, %r3, 100; bar.red.popc.u32 %o0, %r2, 64, !%p1;".into(),
    ));
    fences(probes);
    cluster(probes);
    mbarriers(probes);
}

/// A fence orders a flag behind a word: the second warp waits for the flag of the first.
fn fences(probes: &mut Vec<Probe>) {
    let hopper = Needs::HOPPER;
    let ampere = Needs::AMPERE;
    for (opcode, needs) in [
        ("membar.cta", ampere),
        ("membar.gl", ampere),
        ("membar.sys", ampere),
        ("fence.sc.cta", ampere),
        ("fence.sc.gpu", ampere),
        ("fence.sc.sys", ampere),
        ("fence.sc.cluster", hopper),
        ("fence.acq_rel.cta", ampere),
        ("fence.acq_rel.gpu", ampere),
        ("fence.acq_rel.sys", ampere),
        ("fence.acq_rel.cluster", hopper),
        ("fence.acquire.gpu", Needs::new(90, 86)),
        ("fence.release.gpu", Needs::new(90, 86)),
        ("fence.proxy.alias", ampere),
        ("fence.proxy.async", hopper),
        ("fence.proxy.async.global", hopper),
        ("fence.proxy.async.shared::cta", hopper),
        ("fence.proxy.async.shared::cluster", hopper),
        ("fence.mbarrier_init.release.cluster", hopper),
    ] {
        // Fences that order only part of what is at stake stand beside one that orders all of it.
        let strong = if opcode.starts_with("fence.proxy")
            || opcode.starts_with("fence.mbarrier")
            || opcode.contains("acquire")
            || opcode.contains("release")
        {
            "membar.cta;"
        } else {
            ""
        };
        let body = format!(
            "mov.u64 %rd0, cell{{n}}; mov.b32 %r3, 0; setp.lt.u32 %p1, %t, 32; @%p1 bra WRITE{{n}};\n\
             WAIT{{n}}: ld.volatile.global.b32 %r2, [%rd0+4]; setp.eq.u32 %p2, %r2, 0; @%p2 bra WAIT{{n}}; {strong} {opcode}; ld.volatile.global.b32 %o0, [%rd0]; bra END{{n}};\n\
             WRITE{{n}}: setp.ne.u32 %p3, %t, 0; @%p3 bra END{{n}}; st.volatile.global.b32 [%rd0], %a0; {strong} {opcode}; st.volatile.global.b32 [%rd0+4], 1; END{{n}}: bar.sync 0;"
        );
        let probe = Probe::new(Family::Barrier, opcode, 1)
            .inputs([Fill::Word(Pattern::Noise)])
            .threads(64)
            .globals(".global .align 16 .b8 cell{n}[16];\n");
        probes.push(probe.needs(needs).body(body));
    }
}

/// Four blocks read a word of the next one's shared memory.
fn cluster(probes: &mut Vec<Probe>) {
    for (arrive, wait) in [
        ("", ""),
        (".aligned", ".aligned"),
        (".release", ".acquire"),
        (".release.aligned", ".acquire.aligned"),
        (".relaxed", ""),
        (".relaxed.aligned", ".aligned"),
    ] {
        let form = format!("barrier.cluster.arrive{arrive}, barrier.cluster.wait{wait}");
        let fence = if arrive.contains("relaxed") {
            "fence.acq_rel.cluster;"
        } else {
            ""
        };
        let probe = Probe::new(Family::Barrier, form, 1).inputs([Fill::Word(Pattern::Noise)]);
        probes.push(probe.threads(64).shared(1024).cluster(4).needs(Needs::HOPPER).body(format!(
            "shl.b32 %r0, %t, 2; add.u32 %r0, %r0, %s; st.shared.b32 [%r0], %a0; {fence} barrier.cluster.arrive{arrive}; barrier.cluster.wait{wait};\n\
             mov.u32 %r1, %cluster_ctarank; add.u32 %r1, %r1, 1; and.b32 %r1, %r1, 3; mapa.shared::cluster.u32 %r2, %r0, %r1; ld.shared::cluster.b32 %o0, [%r2];\n\
             barrier.cluster.arrive; barrier.cluster.wait;"
        )));
    }
}

/// Thread 0 alone on an mbarrier of 5 arrivals: counts that are pending, phases that are complete, as far as the PTX ISA
/// lets a program see them; and 64 threads that wait for each other.
fn mbarriers(probes: &mut Vec<Probe>) {
    let hopper = Needs::HOPPER;
    // Each `test` appends whether the phase of %rd1 is complete.
    let test = "mbarrier.test_wait.shared.b64 %p2, [%s], %rd1; selp.b32 %oN, 1, 0, %p2;";
    // Only of what `.noComplete` returned is the pending count defined.
    let pending = "mbarrier.pending_count.b64 %oN, %rd1;";
    for (form, parts, needs) in [
        (
            "mbarrier.arrive.shared.b64",
            vec!["mbarrier.arrive.shared.b64 %rd1, [%s];", test],
            Needs::AMPERE,
        ),
        (
            "mbarrier.arrive.shared::cta.b64",
            vec!["mbarrier.arrive.shared::cta.b64 %rd1, [%s];", test],
            hopper,
        ),
        (
            "mbarrier.arrive.release.cta.shared.b64",
            vec!["mbarrier.arrive.release.cta.shared.b64 %rd1, [%s];", test],
            hopper,
        ),
        (
            "mbarrier.arrive.b64",
            vec!["mbarrier.arrive.b64 %rd1, [%rd9];", test],
            Needs::AMPERE,
        ),
        (
            "mbarrier.arrive.shared.b64 count",
            vec![
                "mbarrier.arrive.shared.b64 %rd1, [%s], 3;",
                test,
                "mbarrier.arrive.shared.b64 %rd2, [%s], 2;",
                test,
            ],
            hopper,
        ),
        (
            "mbarrier.arrive.noComplete.shared.b64",
            vec![
                "mbarrier.arrive.noComplete.shared.b64 %rd1, [%s], 2;",
                pending,
                test,
            ],
            Needs::AMPERE,
        ),
        (
            "mbarrier.arrive_drop.shared.b64",
            vec![
                "mbarrier.arrive_drop.shared.b64 %rd1, [%s];",
                test,
                "mbarrier.arrive.shared.b64 %rd2, [%s], 4;",
                test,
                // The next phase has one arrival less.
                "mbarrier.arrive.shared.b64 %rd1, [%s], 3;",
                test,
                "mbarrier.arrive.shared.b64 %rd2, [%s];",
                test,
            ],
            hopper,
        ),
        (
            "mbarrier.arrive_drop.noComplete.shared.b64",
            vec![
                "mbarrier.arrive_drop.noComplete.shared.b64 %rd1, [%s], 2;",
                pending,
                test,
            ],
            Needs::AMPERE,
        ),
        (
            "mbarrier.arrive.expect_tx.shared.b64",
            vec![
                "mbarrier.arrive.shared.b64 %rd2, [%s], 4;",
                "mbarrier.arrive.expect_tx.shared.b64 %rd1, [%s], 96;",
                test,
                "mbarrier.complete_tx.relaxed.cta.shared.b64 [%s], 32;",
                test,
                "mbarrier.complete_tx.relaxed.cta.shared.b64 [%s], 64;",
                test,
            ],
            hopper,
        ),
        (
            "mbarrier.expect_tx.relaxed.cta.shared.b64",
            vec![
                "mbarrier.expect_tx.relaxed.cta.shared.b64 [%s], 40;",
                "mbarrier.arrive.shared.b64 %rd1, [%s], 5;",
                test,
                "mbarrier.complete_tx.relaxed.cta.shared.b64 [%s], 40;",
                test,
            ],
            hopper,
        ),
        (
            "mbarrier.test_wait.parity.shared.b64",
            vec![
                "mbarrier.test_wait.parity.shared.b64 %p2, [%s], 0; selp.b32 %oN, 1, 0, %p2;",
                "mbarrier.test_wait.parity.shared.b64 %p2, [%s], 1; selp.b32 %oN, 1, 0, %p2;",
                "mbarrier.arrive.shared.b64 %rd1, [%s], 5;",
                "mbarrier.test_wait.parity.shared.b64 %p2, [%s], 0; selp.b32 %oN, 1, 0, %p2;",
                "mbarrier.test_wait.parity.shared.b64 %p2, [%s], 1; selp.b32 %oN, 1, 0, %p2;",
            ],
            hopper,
        ),
        (
            "mbarrier.inval.shared.b64",
            vec![
                "mbarrier.inval.shared.b64 [%s];",
                "st.shared.b64 [%s], %rd8;",
                "ld.shared.b64 %rd2, [%s]; cvt.u32.u64 %oN, %rd2;",
            ],
            Needs::AMPERE,
        ),
    ] {
        let mut body = String::from(
            "setp.ne.u32 %p1, %t, 0; mov.b64 %rd8, 77; @%p1 bra END{n}; cvt.u64.u32 %rd9, %s; cvta.shared.u64 %rd9, %rd9; mbarrier.init.shared.b64 [%s], 5;\n",
        );
        let mut word = 0;
        for part in parts {
            if part.contains("%oN") {
                body += &part.replace("%oN", &format!("%o{word}"));
                word += 1;
            } else {
                body += part;
            }
            body.push('\n');
        }
        body += "END{n}: bar.warp.sync 0xffffffff;";
        probes.push(
            Probe::new(Family::Barrier, form, word)
                .shared(1024)
                .needs(needs)
                .body(body),
        );
    }
    // 64 threads, three phases: each adds its operand, and reads the sum of the phase before.
    let test = |instruction: &str, hint: &str| {
        format!(
            "and.b32 %r5, %r4, 1; WAIT{{n}}: {} @!%p2 bra WAIT{{n}};",
            if instruction.contains("parity") {
                format!("{instruction} %p2, [%s], %r5{hint};")
            } else {
                format!("{instruction} %p2, [%s], %rd1{hint};")
            }
        )
    };
    for (instruction, hint, needs) in [
        ("mbarrier.test_wait.shared.b64", "", Needs::AMPERE),
        ("mbarrier.test_wait.parity.shared.b64", "", Needs::AMPERE),
        ("mbarrier.test_wait.parity.shared::cta.b64", "", hopper),
        (
            "mbarrier.test_wait.parity.acquire.cta.shared::cta.b64",
            "",
            hopper,
        ),
        ("mbarrier.try_wait.shared.b64", "", hopper),
        ("mbarrier.try_wait.acquire.cta.shared::cta.b64", "", hopper),
        ("mbarrier.try_wait.parity.shared.b64", "", hopper),
        ("mbarrier.try_wait.parity.shared::cta.b64", ", 1000", hopper),
        (
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64",
            "",
            hopper,
        ),
    ] {
        let body = format!(
            "setp.eq.u32 %p1, %t, 0; @%p1 mbarrier.init.shared.b64 [%s], 64; @%p1 st.shared.b32 [%s+16], 0; @%p1 st.shared.b32 [%s+20], 0; @%p1 st.shared.b32 [%s+24], 0; bar.sync 0; mov.b32 %r4, 0;\n\
             PHASE{{n}}: shl.b32 %r6, %r4, 2; add.u32 %r6, %r6, %s; red.shared.add.u32 [%r6+16], %a0; mbarrier.arrive.shared.b64 %rd1, [%s];\n\
             {}\n\
             ld.shared.b32 %r7, [%r6+16]; mad.lo.u32 %o0, %o0, 3, %r7; add.u32 %r4, %r4, 1; setp.lt.u32 %p3, %r4, 3; @%p3 bra PHASE{{n}};",
            test(instruction, hint)
        );
        let form = format!(
            "{instruction} (64 threads{})",
            if hint.is_empty() { "" } else { ", with a time" }
        );
        let probe = Probe::new(Family::Barrier, form, 1).inputs([Fill::Word(Pattern::Noise)]);
        probes.push(probe.threads(64).shared(1024).needs(needs).body(body));
    }
    // Arrivals at the barrier of another block.
    for (form, arrive) in [
        (
            "mbarrier.arrive.release.cluster.shared::cluster.b64",
            "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2];",
        ),
        (
            "mbarrier.arrive.shared::cluster.b64",
            "fence.acq_rel.cluster; mbarrier.arrive.shared::cluster.b64 _, [%r2];",
        ),
        (
            "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64",
            "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r2], 8; mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r2], 8;",
        ),
    ] {
        let probe = Probe::new(Family::Barrier, form, 1).inputs([Fill::Word(Pattern::Noise)]);
        probes.push(probe.cluster(2).shared(1024).needs(hopper).body(format!(
            "setp.eq.u32 %p1, %t, 0; @%p1 mbarrier.init.shared.b64 [%s], 32; @%p1 fence.mbarrier_init.release.cluster; barrier.cluster.arrive; barrier.cluster.wait;\n\
             mov.u32 %r1, %cluster_ctarank; xor.b32 %r1, %r1, 1; mapa.shared::cluster.u32 %r2, %s, %r1; shl.b32 %r3, %t, 2; add.u32 %r4, %r2, %r3; st.shared::cluster.b32 [%r4+64], %a0;\n\
             {arrive} WAIT{{n}}: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%s], 0; @!%p2 bra WAIT{{n}};\n\
             add.u32 %r3, %r3, %s; ld.shared.b32 %o0, [%r3+64]; barrier.cluster.arrive; barrier.cluster.wait;"
        )));
    }
}
