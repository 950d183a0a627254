//! What launches are said to have done, against programs whose counts are known.

use super::harness::{Launch, Memory, run_body};
use neap::emulator::exec::OpcodeTally;
use neap::emulator::{Expectation, InstructionClass};

#[test]
fn executions_by_opcode() {
    let tally = OpcodeTally::default();
    let mut how = Launch {
        block: [64, 1, 1],
        grid: [3, 1, 1],
        ..Launch::default()
    };
    how.options.opcodes = Some(tally.clone());
    let mut memory = Memory::new(1 << 16);
    let out = memory.alloc(256);
    how.params = std::slice::from_ref(&out);
    // Ten turns of a loop; the sum and the range are each joined into one instruction.
    let body = "ld.param.u64 %rd1, [p0]; mov.u32 %r1, %tid.x; mov.u32 %r2, 0; mov.u64 %rd9, 0;
        LOOP: add.u32 %r2, %r2, 1; cvt.u64.u32 %rd2, %r2; add.s64 %rd3, %rd2, %rd9; add.s64 %rd9, %rd3, 5;
        setp.ge.u32 %p1, %r2, 3; setp.lt.u32 %p2, %r2, 7; and.pred %p3, %p1, %p2; @%p3 mul.lo.u32 %r3, %r2, %r1; @!%p3 mul.lo.u32 %r3, %r1, 7;
        st.global.u32 [%rd1], %r3; setp.lt.u32 %p4, %r2, 10; @%p4 bra LOOP; st.global.u64 [%rd1], %rd9;";
    let counters = run_body(&mut memory, body, &how).unwrap_or_else(|fault| panic!("{fault}"));
    let kernels = tally.kernels();
    let counts = &kernels["k"];
    let warps = 3 * 2;
    // What a joined instruction stands for is counted where the last of its parts was.
    for (opcode, times) in [
        ("add.u32", 10),
        ("add.s64", 30),
        ("and.pred", 30),
        ("setp.lt.u32", 10),
        ("mul.lo.u32", 20),
        ("bra", 10),
        ("st.global.u32", 10),
        ("st.global.u64", 1),
        ("ret", 1),
    ] {
        assert_eq!(
            counts.get(opcode),
            Some(&(times * warps)),
            "{opcode} of {counts:?}"
        );
    }
    assert_eq!(counts.values().sum::<u64>(), counters.warp_instructions);
}

/// Products with the same A, which the loader joins in pairs.
#[test]
fn products_side_by_side() {
    const FORM: &str = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32";
    for products in 1..6u64 {
        for a in [0, 0x3f80_3f80u32] {
            let tally = OpcodeTally::default();
            let mut how = Launch::default();
            how.options.opcodes = Some(tally.clone());
            let mut body = format!("mov.u32 %r0, {a}; mov.u32 %r1, 0;");
            for product in 0..products {
                let d: Vec<String> = (0..4)
                    .map(|n| format!("%r{}", 2 + 4 * product + n))
                    .collect();
                body += &format!(
                    "{FORM} {{{}}}, {{%r0,%r1,%r0,%r1}}, {{%r1,%r1}}, {{%r1,%r1,%r1,%r1}};",
                    d.join(",")
                );
            }
            let counters = run_body(&mut Memory::new(1 << 12), &body, &how)
                .unwrap_or_else(|fault| panic!("{fault}"));
            let kernels = tally.kernels();
            assert_eq!(kernels["k"].get(FORM), Some(&products));
            assert_eq!(counters.mma_ops, products);
            assert_eq!(counters.mma_macs, products * 16 * 8 * 16);
            assert_eq!(counters.active_lanes, 32 * counters.warp_instructions);
            assert_eq!(
                kernels["k"].values().sum::<u64>(),
                counters.warp_instructions
            );
        }
    }
}

#[test]
fn classes_of_instructions() {
    use InstructionClass::*;
    for (opcode, class) in [
        ("fma.rn.f32", Float),
        ("setp.lt.f32", Float),
        ("add.f64", Double),
        ("ex2.approx.ftz.f32", Special),
        ("mad.lo.s32", Integer),
        ("setp.ge.u32", Integer),
        ("cvt.rn.bf16x2.f32", Conversion),
        ("selp.b32", Move),
        ("ld.global.nc.v4.u32", Memory),
        ("cp.async.cg.shared.global", Memory),
        ("cp.async.wait_group", Synchronization),
        ("atom.global.add.f32", Atomic),
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
            Matrix,
        ),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", Matrix),
        ("wgmma.wait_group.sync.aligned", Synchronization),
        ("shfl.sync.bfly.b32", Exchange),
        ("bar.sync", Synchronization),
        ("bra.uni", Control),
    ] {
        assert_eq!(InstructionClass::of(opcode), class, "{opcode}");
    }
}

#[test]
fn atomics_that_meet() {
    for (lanes_an_address, conflicts) in [(1, 0), (4, 24), (32, 31)] {
        let mut memory = Memory::new(1 << 16);
        let out = memory.put(&[0u32; 32]);
        let mut how = Launch {
            params: &[out],
            ..Launch::default()
        };
        how.options.counters = true;
        let body = format!(
            "ld.param.u64 %rd1, [p0]; mov.u32 %r1, %tid.x; div.u32 %r1, %r1, {lanes_an_address}; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2; red.global.add.u32 [%rd1], 1;"
        );
        let counters = run_body(&mut memory, &body, &how).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(counters.atomics, 32);
        assert_eq!(counters.atomic_conflicts, conflicts);
        assert_eq!(memory.get::<u32>(out, 1), [lanes_an_address]);
        let demanded = Expectation::of("k", &counters)
            .no_atomic_conflicts()
            .check();
        assert_eq!(demanded.is_ok(), conflicts == 0, "{demanded:?}");
    }
}

/// Banks are those of the block that is stored into, whichever of the two lies first.
#[test]
fn wavefronts_in_another_block() {
    for (stride, wavefronts) in [(4u64, 1), (8, 2), (128, 32)] {
        let mut how = Launch {
            grid: [2, 1, 1],
            cluster: [2, 1, 1],
            shared: 8192,
            ..Launch::default()
        };
        how.options.counters = true;
        let body = format!(
            "mov.u32 %r1, %tid.x; mov.u32 %r2, %cluster_ctarank; xor.b32 %r2, %r2, 1; mov.u32 %r3, dyn; mapa.shared::cluster.u32 %r4, %r3, %r2;
             mul.lo.u32 %r5, %r1, {stride}; add.u32 %r4, %r4, %r5; barrier.cluster.arrive; barrier.cluster.wait;
             st.shared::cluster.u32 [%r4], %r1; barrier.cluster.arrive; barrier.cluster.wait;"
        );
        let mut memory = Memory::new(1 << 12);
        let counters = run_body(&mut memory, &body, &how).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(
            counters.shared_wavefronts,
            2 * wavefronts,
            "stride {stride}"
        );
        assert_eq!(counters.shared_ideal_wavefronts, 2);
    }
}

#[test]
fn demands_on_counters_say_what_does_not_hold() {
    let mut memory = Memory::new(1 << 16);
    let input = memory.put(&[1u32; 2048]);
    let mut how = Launch {
        params: &[input],
        shared: 4096,
        ..Launch::default()
    };
    how.options.counters = true;
    // Every second word of memory, and one bank for all lanes.
    let body = "ld.param.u64 %rd1, [p0]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 8; add.s64 %rd1, %rd1, %rd2; ld.global.u32 %r2, [%rd1];
        mov.u32 %r4, dyn; shl.b32 %r3, %r1, 7; add.u32 %r3, %r3, %r4; st.shared.u32 [%r3], %r2; setp.lt.u32 %p1, %r1, 7; @%p1 bra END; st.shared.u32 [%r3], %r1; END: bar.sync 0;";
    let counters = run_body(&mut memory, body, &how).unwrap_or_else(|fault| panic!("{fault}"));
    Expectation::of("k", &counters)
        .no_local_memory()
        .no_atomic_conflicts()
        .sector_efficiency_at_least(0.5)
        .active_lanes_at_least(0.9)
        .sector_bytes_read_at_most(256)
        .mma_ops(0)
        .check()
        .expect("all of this holds");
    let found = Expectation::of("k", &counters)
        .no_bank_conflicts()
        .sector_efficiency_at_least(0.51)
        .active_lanes_at_least(1.0)
        .sector_bytes_read_at_most(255)
        .no_divergence()
        .mma_ops(1)
        .check()
        .expect_err("none of this holds");
    let text = found.to_string();
    for sentence in [
        "k: shared memory took 57 passes over its banks where 2 are enough",
        "k: 50.0 % of the bytes of its sectors were wanted, less than 51.0 %",
        "k: 256 bytes of sectors were read, more than 255",
        "k: 1 branches went both ways",
        "k: 0 tensor-core instructions ran, not 1",
        "of the lanes were active, less than 100.0 %",
    ] {
        assert!(text.contains(sentence), "{sentence} in {text}");
    }
}
