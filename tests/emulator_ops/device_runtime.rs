//! What kernels may expect beside their own instructions: a heap, the barrier of a grid, lanes that wait for each other.

use std::sync::Arc;

use super::harness::{Launch, Memory, checked, kernel, launch, load, run_body};
use neap::emulator::exec::{DeviceHeap, Fault, GRID_WORKSPACE_BYTES};

const ALLOCATING: &str = ".version 8.0\n.target sm_80\n.address_size 64\n\
    .extern .func (.param .b64 pointer) malloc(.param .b64 bytes);\n.extern .func free(.param .b64 pointer);\n\
    .visible .entry k(.param .u64 out, .param .u64 bytes, .param .u64 freed) {\n\
    .reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<12>;\n\
    ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [bytes]; ld.param.u64 %rd7, [freed]; mov.u32 %r1, %tid.x;\n\
    mad.wide.u32 %rd3, %r1, 8, %rd1;\n\
    { .param .b64 a; .param .b64 r; st.param.b64 [a], %rd2; call.uni (r), malloc, (a); ld.param.b64 %rd4, [r]; }\n\
    st.global.u64 [%rd3], %rd4; setp.eq.u64 %p1, %rd4, 0; @%p1 bra DONE;\n\
    cvt.u64.u32 %rd5, %r1; st.u64 [%rd4], %rd5; ld.u64 %rd6, [%rd4]; setp.ne.u64 %p2, %rd5, %rd6; @%p2 trap;\n\
    setp.ge.u64 %p3, %rd5, %rd7; @%p3 bra DONE;\n\
    { .param .b64 a; st.param.b64 [a], %rd4; call.uni free, (a); }\nDONE: ret;\n}\n";

#[test]
fn kernels_allocate_from_a_heap_until_it_is_full() {
    let mut memory = Memory::new(1 << 14);
    let module = load(&mut memory, ALLOCATING).unwrap();
    assert!(module.kernel("k").unwrap().uses_heap);
    let heap_address = memory.alloc(1024);
    let heap = Arc::new(DeviceHeap::new(heap_address, 1024));
    let out = memory.alloc(8 * 64);
    let mut run = |bytes: u64, freed: u64, with_heap: bool| {
        memory.write(out, &[1u64; 64]);
        let params = [out, bytes, freed];
        let mut how = Launch {
            block: [64, 1, 1],
            params: &params,
            ..Launch::default()
        };
        how.options.heap = with_heap.then(|| Arc::clone(&heap));
        launch(&module, "k", &memory, &how).unwrap();
        memory.get::<u64>(out, 64)
    };
    // 64 pieces of 24 bytes take 32 each: 32 fit, all different and aligned.
    let mut got = run(24, 64, true);
    got.retain(|&address| address != 0);
    got.sort_unstable();
    got.dedup();
    assert_eq!(got.len(), 32, "{got:x?}");
    assert!(
        got.iter()
            .all(|a| a % 16 == 0 && (heap_address..heap_address + 1024).contains(a))
    );
    // All was freed: it is there again, this time kept.
    let again = run(16, 0, true);
    assert_eq!(again.iter().filter(|&&address| address != 0).count(), 64);
    assert_eq!(run(16, 0, true), [0; 64], "the heap is full");
    assert_eq!(run(16, 0, false), [0; 64], "without a heap");
}

#[test]
fn what_malloc_did_not_give_cannot_be_freed() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.extern .func free(.param .b64 pointer);\n\
        .visible .entry k(.param .u64 p) { .reg .b64 %rd<4>; ld.param.u64 %rd1, [p];\n\
        { .param .b64 a; st.param.b64 [a], %rd1; call.uni free, (a); }\nret;\n}\n";
    let mut memory = Memory::new(4096);
    let module = load(&mut memory, text).unwrap();
    let how = |params| Launch {
        params,
        ..Launch::default()
    };
    launch(&module, "k", &memory, &how(&[0])).expect("null may be freed");
    let fault = launch(&module, "k", &memory, &how(&[0x1230])).unwrap_err();
    assert!(fault.to_string().contains("free of 0x1230"), "{fault}");
}

/// Each block adds its number to a cell, waits for the grid, and stores the sum that all of them made, three times over; the
/// barrier is that of CUDA's cooperative groups.
const GRID: &str = "ld.param.u64 %rd1, [p0]; mov.u32 %r1, %envreg1; mov.u32 %r2, %envreg2; mov.b64 %rd2, {%r1, %r2};
    mov.u32 %r3, %ctaid.x; mov.u32 %r4, %nctaid.x; mov.u32 %r5, %tid.x; setp.ne.u32 %p1, %r5, 0; mov.u32 %r20, 0;
    ROUND: @!%p1 red.global.add.u32 [%rd1], %r3;
    bar.sync 0; @%p1 bra ARRIVED; fence.sc.gpu;
    setp.ne.u32 %p2, %r3, 0; sub.u32 %r6, 0x80000001, %r4; selp.b32 %r6, 1, %r6, %p2; atom.add.u32 %r7, [%rd2+4], %r6;
    AGAIN: ld.acquire.gpu.u32 %r8, [%rd2+4]; xor.b32 %r8, %r8, %r7; setp.ge.s32 %p3, %r8, 0; @%p3 bra AGAIN;
    ARRIVED: bar.sync 0; ld.volatile.global.u32 %r9, [%rd1];
    mad.lo.u32 %r10, %r20, %r4, %r3; mad.wide.u32 %rd3, %r10, 4, %rd1; @!%p1 st.global.u32 [%rd3+4], %r9;
    add.s64 %rd2, %rd2, 0; add.u32 %r20, %r20, 1;
    bar.sync 0; @%p1 bra ARRIVED2; setp.ne.u32 %p2, %r3, 0; sub.u32 %r6, 0x80000001, %r4; selp.b32 %r6, 1, %r6, %p2; atom.add.u32 %r7, [%rd2+4], %r6;
    AGAIN2: ld.acquire.gpu.u32 %r8, [%rd2+4]; xor.b32 %r8, %r8, %r7; setp.ge.s32 %p3, %r8, 0; @%p3 bra AGAIN2;
    ARRIVED2: bar.sync 0; setp.lt.u32 %p4, %r20, 3; @%p4 bra ROUND;";

#[test]
fn all_blocks_of_a_cooperative_launch_wait_for_each_other() {
    const BLOCKS: u32 = 40;
    let mut memory = Memory::new(1 << 13);
    let workspace = memory.put(&[0u8; GRID_WORKSPACE_BYTES]);
    let out = memory.put(&vec![0u32; 1 + 3 * BLOCKS as usize]);
    let params = [out];
    let how = Launch {
        grid: [BLOCKS, 1, 1],
        block: [64, 1, 1],
        params: &params,
        cooperative: Some(workspace),
        ..Launch::default()
    };
    let counters = run_body(&mut memory, GRID, &how).unwrap();
    assert_eq!(counters.blocks, u64::from(BLOCKS));
    let all: u32 = (0..BLOCKS).sum();
    let sums = memory.get::<u32>(out + 4, 3 * BLOCKS as usize);
    for round in 0..3 {
        let part = &sums[round * BLOCKS as usize..][..BLOCKS as usize];
        assert!(
            part.iter().all(|&sum| sum == all * (round as u32 + 1)),
            "{part:?}"
        );
    }
}

/// Values that 32 lanes store after `body`, which has its lane in %r1 and leaves a value in %r2, 0 at first.
fn lanes(body: &str) -> Result<Vec<u32>, Fault> {
    let mut memory = Memory::new(4096);
    let out = memory.put(&[u32::MAX; 32]);
    let params = [out];
    let how = Launch {
        params: &params,
        shared: 256,
        ..Launch::default()
    };
    let body = format!(
        "ld.param.u64 %rd1, [p0]; mov.u32 %r1, %tid.x; mov.u32 %r2, 0; mov.u32 %r30, dyn; shl.b32 %r31, %r1, 2;\n\
         add.u32 %r31, %r30, %r31; mad.wide.u32 %rd2, %r1, 4, %rd1; st.shared.u32 [%r31], 0;\n{body}\nst.global.u32 [%rd2], %r2;"
    );
    let text = kernel(1, &body);
    let module = load(&mut memory, &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    launch(&module, "k", &memory, &how)?;
    Ok(memory.get(out, 32))
}

/// Asserts what 32 lanes store that meet at different instructions, or without some of them; the checked mode refuses that.
fn assert_apart(body: &str, want: impl Fn(u32) -> u32) {
    match lanes(body) {
        Err(Fault::Divergence { .. }) if checked() => {}
        got if !checked() => assert_eq!(got.unwrap(), (0..32).map(want).collect::<Vec<_>>()),
        got => panic!("the checked mode must report divergence: {got:?}"),
    }
}

#[test]
fn lanes_wait_at_different_bar_warp_syncs_for_each_other() {
    // Each side writes for the other one, waits at an instruction of its own, and reads.
    let exchange = "setp.lt.u32 %p1, %r1, 16; xor.b32 %r3, %r31, 64; @%p1 bra LOW;\n\
        add.u32 %r4, %r1, 100; st.shared.u32 [%r31], %r4; bar.warp.sync -1; ld.shared.u32 %r2, [%r3]; bra END;\n\
        LOW: add.u32 %r4, %r1, 200; st.shared.u32 [%r31], %r4; bar.warp.sync -1; ld.shared.u32 %r2, [%r3];\nEND: add.u32 %r2, %r2, 1;";
    let want = |lane: u32| {
        if lane < 16 {
            lane + 16 + 101
        } else {
            lane - 16 + 201
        }
    };
    assert_apart(exchange, want);
    // Twice, and lanes of three paths.
    let chain = "setp.lt.u32 %p1, %r1, 8; setp.lt.u32 %p2, %r1, 20; @%p1 bra A; @%p2 bra B;\n\
        st.shared.u32 [%r31], 1; bar.warp.sync -1; bar.warp.sync -1; bra END;\n\
        A: st.shared.u32 [%r31], 2; bar.warp.sync -1; bar.warp.sync -1; bra END;\n\
        B: st.shared.u32 [%r31], 3; bar.warp.sync -1; add.u32 %r2, %r2, 10; bar.warp.sync -1;\n\
        END: add.u32 %r3, %r1, 12; and.b32 %r3, %r3, 31; shl.b32 %r3, %r3, 2; add.u32 %r3, %r30, %r3; ld.shared.u32 %r4, [%r3]; add.u32 %r2, %r2, %r4;";
    let side = |lane: u32| match lane {
        0..8 => 2,
        8..20 => 3,
        _ => 1,
    };
    let want = |lane: u32| side((lane + 12) % 32) + if (8..20).contains(&lane) { 10 } else { 0 };
    assert_apart(chain, want);
}

#[test]
fn lanes_that_exit_are_not_waited_for() {
    // Two lanes wait for all; the others never come, and exit.
    let body = "setp.ge.u32 %p1, %r1, 2; @%p1 bra SKIP; bar.warp.sync -1; mov.u32 %r2, 5; SKIP: add.u32 %r2, %r2, 1;";
    let want = |lane: u32| if lane < 2 { 6 } else { 1 };
    assert_apart(body, want);
    // A guarded wait: the lanes without go on.
    let body = "setp.lt.u32 %p1, %r1, 2; @%p1 bar.warp.sync -1; add.u32 %r2, %r2, 3;";
    assert_apart(body, |_| 3);
    // A loop that lanes leave one by one waits for those that are still in it.
    let body = "mov.u32 %r5, 1; LOOP: shl.b32 %r6, %r5, %r1; sub.u32 %r6, %r6, %r5; not.b32 %r6, %r6; bar.warp.sync %r7;\n\
        add.u32 %r2, %r2, 1; setp.le.u32 %p1, %r2, %r1; @%p1 bra LOOP;";
    let masked = body.replace("bar.warp.sync %r7", "activemask.b32 %r7; bar.warp.sync %r7");
    assert_eq!(lanes(&masked).unwrap(), (1..=32).collect::<Vec<_>>());
}

#[test]
fn lanes_that_wait_for_each_other_in_vain_are_reported() {
    // Two sides that wait for different sets of lanes, each of which contains the other side.
    let body = "setp.lt.u32 %p1, %r1, 16; @%p1 bra LOW; bar.warp.sync -1; bra END; LOW: bar.warp.sync 0x1ffff;\nEND: mov.u32 %r2, 1;";
    let fault = lanes(body).unwrap_err();
    assert!(matches!(&fault, Fault::Divergence { .. }), "{fault}");
    // Lanes at a barrier of the block that lanes at a barrier of the warp wait for.
    let body = "setp.lt.u32 %p1, %r1, 8; @!%p1 bra SKIP; bar.warp.sync -1; SKIP: bar.sync 0;";
    let fault = lanes(body).unwrap_err();
    assert!(matches!(&fault, Fault::Divergence { .. }), "{fault}");
    // Lanes that are not named must not come.
    let fault = lanes("bar.warp.sync 0xffff;").unwrap_err();
    assert!(matches!(&fault, Fault::Divergence { .. }), "{fault}");
}
