//! Rare forms of memory access: vector and 128-bit atomics, cache hints, orderings.

use super::harness::{Launch, Memory, run_body};

#[test]
fn vector_atomics_add_element_by_element() {
    let mut memory = Memory::new(8192);
    let cells = memory.put(&[1f32, 2.0, 3.0, 4.0]);
    let out = memory.alloc(32 * 16);
    let params = [cells, out];
    // The destinations are the values of later elements.
    let body = "ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 16; add.u64 %rd2, %rd2, %rd3;\n\
        mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40000000; mov.f32 %f3, 0f40400000; mov.f32 %f4, 0f40800000;\n\
        atom.global.v4.f32.add {%f2, %f3, %f4, %f1}, [%rd1], {%f1, %f2, %f3, %f4};\n\
        st.global.v4.f32 [%rd2], {%f2, %f3, %f4, %f1}; red.relaxed.gpu.global.v2.f32.add [%rd1+8], {%f1, %f1};";
    let body = body
        .replace(".v4.f32.add", ".add.v4.f32")
        .replace(".v2.f32.add", ".add.v2.f32");
    let how = Launch {
        params: &params,
        ..Launch::default()
    };
    run_body(&mut memory, &body, &how).unwrap();
    let old = memory.get::<f32>(out, 128);
    for lane in 0..32 {
        let n = lane as f32;
        let want = [1.0 + n, 2.0 + 2.0 * n, 3.0 + 3.0 * n, 4.0 + 4.0 * n];
        assert_eq!(old[4 * lane..][..4], want, "lane {lane}");
    }
    // The reduction adds each lane's old fourth element to both cells.
    let fourths: f32 = (0..32).map(|n| 4.0 + 4.0 * n as f32).sum();
    let now = memory.get::<f32>(cells, 4);
    assert_eq!(now, [33.0, 66.0, 99.0 + fourths, 132.0 + fourths]);
}

#[test]
fn atomics_of_128_bits() {
    let mut memory = Memory::new(8192);
    let cell = memory.put(&[5u64, 6]);
    let out = memory.alloc(32 * 16);
    let params = [cell, out];
    // Every lane swaps (5 + lane, 6) for (6 + lane, 6): each finds what the one before left.
    let body = "ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 16; add.u64 %rd2, %rd2, %rd3;\n\
        .reg .b128 %q<4>; cvt.u64.u32 %rd4, %r1; add.u64 %rd5, %rd4, 5; add.u64 %rd6, %rd4, 6; mov.u64 %rd7, 6;\n\
        mov.b128 %q1, {%rd5, %rd7}; mov.b128 %q2, {%rd6, %rd7}; atom.global.cas.b128 %q3, [%rd1], %q1, %q2;\n\
        mov.b128 {%rd8, %rd9}, %q3; st.global.v2.b64 [%rd2], {%rd8, %rd9};\n\
        setp.eq.u32 %p1, %r1, 31; @%p1 atom.global.exch.b128 %q3, [%rd1], %q1;";
    let how = Launch {
        params: &params,
        ..Launch::default()
    };
    run_body(&mut memory, body, &how).unwrap();
    let old = memory.get::<u64>(out, 64);
    for lane in 0..32u64 {
        assert_eq!(old[2 * lane as usize..][..2], [5 + lane, 6], "lane {lane}");
    }
    assert_eq!(memory.get::<u64>(cell, 2), [36, 6]);
}

#[test]
fn hints_and_orderings_change_nothing() {
    let mut memory = Memory::new(8192);
    let data = memory.put(&(0..64u32).collect::<Vec<_>>());
    let params = [data];
    let body = "ld.param.u64 %rd1, [p0]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 8; add.u64 %rd1, %rd1, %rd3;\n\
        createpolicy.fractional.L2::evict_last.b64 %rd9, 0f3F800000;\n\
        ld.global.nc.L1::no_allocate.L2::cache_hint.L2::256B.v2.b32 {%r2, %r3}, [%rd1], %rd9;\n\
        ld.acquire.gpu.global.u32 %r4, [%rd1]; ld.relaxed.sys.global.u32 %r5, [%rd1]; ld.volatile.global.u32 %r6, [%rd1]; ld.mmio.relaxed.sys.global.u32 %r7, [%rd1];\n\
        ld.weak.global.cv.u32 %r8, [%rd1+4]; add.u32 %r2, %r2, %r4; add.u32 %r2, %r2, %r5; add.u32 %r2, %r2, %r6; add.u32 %r2, %r2, %r7; add.u32 %r3, %r3, %r8;\n\
        prefetch.global.L2 [%rd1]; prefetchu.L1 [%rd1]; fence.acq_rel.gpu; fence.sc.sys; membar.sys; applypriority.global.L2::evict_normal [%rd1], 128;\n\
        st.release.gpu.global.u32 [%rd1], %r2; st.global.wt.L2::cache_hint.u32 [%rd1+4], %r3, %rd9; red.global.add.L2::cache_hint.u32 [%rd1], %r1, %rd9;";
    let how = Launch {
        params: &params,
        ..Launch::default()
    };
    run_body(&mut memory, body, &how).unwrap();
    let got = memory.get::<u32>(data, 64);
    for lane in 0..32 {
        assert_eq!(got[2 * lane], 5 * 2 * lane as u32 + lane as u32);
        assert_eq!(got[2 * lane + 1], 2 * (2 * lane as u32 + 1));
    }
}

#[test]
fn asynchronous_copies_may_ignore_their_source() {
    let mut memory = Memory::new(8192);
    let from = memory.put(&(100..132u32).collect::<Vec<_>>());
    let out = memory.alloc(128);
    let params = [from, out];
    let body = "ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 4; add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3;\n\
        mov.u32 %r2, dyn; shl.b32 %r3, %r1, 2; add.u32 %r2, %r2, %r3; setp.gt.u32 %p1, %r1, 20; mov.u64 %rd9, 0;\n\
        cp.async.ca.shared.global.L2::cache_hint.L2::128B [%r2], [%rd1], 4, %p1, %rd9; cp.async.wait_all; ld.shared.u32 %r4, [%r2]; st.global.u32 [%rd2], %r4;";
    let how = Launch {
        shared: 128,
        params: &params,
        ..Launch::default()
    };
    run_body(&mut memory, body, &how).unwrap();
    let want: Vec<u32> = (0..32).map(|i| if i > 20 { 0 } else { 100 + i }).collect();
    assert_eq!(memory.get::<u32>(out, 32), want);
}

#[test]
fn bytes_are_packed_and_unpacked() {
    let mut memory = Memory::new(8192);
    let data = memory.put(&[0x4433_2211u32, 0]);
    let params = [data];
    let body = "ld.param.u64 %rd1, [p0]; ld.global.b32 %r1, [%rd1]; .reg .b8 %c<8>; mov.b32 {%c0, %c1, %c2, %c3}, %r1;\n\
        mov.b16 %rs1, {%c3, %c0}; mov.b16 {%c4, %c5}, %rs1; mov.b32 %r2, {%c1, %c2, %c5, %c4}; st.global.b32 [%rd1+4], %r2;";
    let how = Launch {
        params: &params,
        ..Launch::default()
    };
    run_body(&mut memory, body, &how).unwrap();
    assert_eq!(memory.get::<u32>(data, 2)[1], 0x4411_3322);
}
