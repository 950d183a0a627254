//! mbarriers, bulk copies, tensor maps, clusters, `elect`, `stmatrix`.

#![allow(clippy::needless_range_loop)] // lanes index several arrays

use super::harness::{Launch, Memory, checked, kernel, launch, load, run_body};
use super::matrix::warp;
use neap::emulator::CheckKind;
use neap::emulator::exec::{Fault, TensorMap};

const LANE: &str = "mov.u32 %r1, %tid.x; mul.wide.u32 %rd9, %r1, 4; mov.u32 %r9, dyn;\n";

/// Warp 0 waits on an mbarrier at the start of shared memory for the 64 arrivals of warps 1 and 2, twice.
#[test]
fn arrivals_complete_phases() {
    let mut memory = Memory::new(8192);
    let out = memory.put(&[0u32; 96]);
    let params = [out];
    let body = format!(
        "{LANE} ld.param.u64 %rd1, [p0]; add.u64 %rd1, %rd1, %rd9; setp.ne.u32 %p1, %r1, 0; @%p1 bra READY; mbarrier.init.shared::cta.b64 [%r9], 96; st.shared.u32 [%r9+8], 0;\n\
         READY: fence.mbarrier_init.release.cluster; bar.sync 0; setp.lt.u32 %p2, %r1, 32; mov.u32 %r5, 0; @%p2 bra CONSUME;\n\
         PRODUCE: add.u32 %r6, %r5, 1; atom.shared.add.u32 %r7, [%r9+8], %r6; mbarrier.arrive.release.cta.shared::cta.b64 %rd3, [%r9];\n\
         W1: mbarrier.try_wait.shared.b64 %p3, [%r9], %rd3; @!%p3 bra W1; add.u32 %r5, %r5, 1; setp.lt.u32 %p4, %r5, 2; @%p4 bra PRODUCE; ret;\n\
         CONSUME: mbarrier.arrive.shared.b64 %rd4, [%r9]; mov.u32 %r10, 0; W2: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p3, [%r9], %r10; @!%p3 bra W2;\n\
         mbarrier.arrive.shared.b64 %rd4, [%r9]; mov.u32 %r10, 1; W3: mbarrier.try_wait.parity.shared.b64 %p3, [%r9], %r10, 1000; @!%p3 bra W3; ld.shared.u32 %r11, [%r9+8];\n\
         mbarrier.test_wait.parity.shared.b64 %p5, [%r9], 0; selp.u32 %r12, 1000, 0, %p5; add.u32 %r11, %r11, %r12; st.global.u32 [%rd1], %r11;"
    );
    let how = Launch {
        block: [96, 1, 1],
        shared: 64,
        params: &params,
        ..Launch::default()
    };
    run_body(&mut memory, &body, &how).unwrap();
    // 64 times 1 and 64 times 2; the barrier is in phase 2, whose predecessor has parity 1: a wait for parity 0 would block.
    assert_eq!(memory.get::<u32>(out, 32), [192; 32]);
}

#[test]
fn states_counts_and_drops() {
    let mut memory = Memory::new(8192);
    let out = memory.alloc(64);
    let params = [out];
    let body = format!(
        "{LANE} ld.param.u64 %rd1, [p0]; setp.ne.u32 %p1, %r1, 0; @%p1 ret; mbarrier.init.shared.b64 [%r9+16], 5;\n\
         mbarrier.arrive.shared.b64 %rd3, [%r9+16], 2; mbarrier.pending_count.b64 %r2, %rd3;\n\
         mbarrier.arrive.noComplete.shared.b64 %rd3, [%r9+16], 1; mbarrier.pending_count.b64 %r3, %rd3;\n\
         mbarrier.arrive_drop.shared.b64 %rd4, [%r9+16], 2; mbarrier.test_wait.shared.b64 %p2, [%r9+16], %rd4; selp.u32 %r4, 1, 0, %p2;\n\
         mbarrier.arrive.shared.b64 %rd5, [%r9+16]; mbarrier.pending_count.b64 %r5, %rd5; mbarrier.test_wait.shared.b64 %p3, [%r9+16], %rd5; selp.u32 %r6, 1, 0, %p3;\n\
         mbarrier.expect_tx.relaxed.cta.shared.b64 [%r9+16], 100; mbarrier.arrive.shared.b64 _, [%r9+16], 2; mbarrier.test_wait.shared.b64 %p3, [%r9+16], %rd5; selp.u32 %r7, 1, 0, %p3;\n\
         mbarrier.complete_tx.relaxed.cta.shared.b64 [%r9+16], 100; mbarrier.test_wait.shared.b64 %p3, [%r9+16], %rd5; selp.u32 %r8, 1, 0, %p3;\n\
         st.global.v4.u32 [%rd1], {{%r2, %r3, %r4, %r5}}; st.global.v2.u32 [%rd1+16], {{%r6, %r7}}; st.global.u32 [%rd1+24], %r8; mbarrier.inval.shared.b64 [%r9+16];"
    );
    let how = Launch {
        shared: 64,
        params: &params,
        ..Launch::default()
    };
    run_body(&mut memory, &body, &how).unwrap();
    // 5 pending, then 3; the phase ends; two arrivals were dropped, so that the next one has 3.
    assert_eq!(memory.get::<u32>(out, 7), [5, 3, 1, 3, 0, 0, 1]);
}

#[test]
fn misused_barriers_are_faults() {
    let run = |body: &str| {
        let mut memory = Memory::new(8192);
        let body = format!("{LANE} {body}");
        let how = Launch {
            shared: 64,
            ..Launch::default()
        };
        run_body(&mut memory, &body, &how).unwrap_err().to_string()
    };
    let one = "setp.ne.u32 %p1, %r1, 0; @%p1 ret; ";
    assert!(run("mbarrier.arrive.shared.b64 %rd3, [%r9];").contains("no initialised mbarrier"));
    assert!(
        run(&format!(
            "{one} mbarrier.init.shared.b64 [%r9], 2; mbarrier.arrive.shared.b64 %rd3, [%r9], 3;"
        ))
        .contains("3 arrivals where 2 are pending")
    );
    let text = run(&format!(
        "{one} mbarrier.init.shared.b64 [%r9], 2; L: mbarrier.try_wait.parity.shared.b64 %p2, [%r9], 0; @!%p2 bra L;"
    ));
    // In a random order it is not seen that nobody else will arrive.
    let hung = checked() && text.contains("counts as hung");
    assert!(
        text.contains("deadlock") && text.contains("an mbarrier") || hung,
        "{text}"
    );
}

#[test]
fn bulk_copies_and_reductions_arrive_when_waited_for() {
    let mut memory = Memory::new(16384);
    let source: Vec<u32> = (0..64).collect();
    let from = memory.put(&source);
    let out = memory.alloc(32 * 4 * 3);
    let sums = memory.put(&vec![1000u32; 64]);
    let params = [from, out, sums];
    // Lane 0 copies 256 bytes; what is there before the wait is poison.
    let body = format!(
        "{LANE} ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; ld.param.u64 %rd3, [p2]; add.u64 %rd2, %rd2, %rd9; setp.ne.u32 %p1, %r1, 0; @%p1 bra WAIT;\n\
         mbarrier.init.shared.b64 [%r9], 1; mbarrier.arrive.expect_tx.shared.b64 _, [%r9], 256;\n\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r9+64], [%rd1], 256, [%r9]; WAIT: bar.warp.sync 0xffffffff;\n\
         shl.b32 %r2, %r1, 2; add.u32 %r2, %r2, %r9; ld.shared.u32 %r3, [%r2+64]; st.global.u32 [%rd2], %r3;\n\
         L: mbarrier.try_wait.parity.shared.b64 %p2, [%r9], 0; @!%p2 bra L; ld.shared.u32 %r3, [%r2+64]; st.global.u32 [%rd2+128], %r3; ld.shared.u32 %r3, [%r2+192]; st.global.u32 [%rd2+256], %r3;\n\
         fence.proxy.async.shared::cta; @%p1 ret;\n\
         cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd3], [%r9+64], 256; cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;\n\
         cp.async.bulk.global.shared::cta.bulk_group [%rd3+128], [%r9+64], 16; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
    );
    let mut how = Launch {
        shared: 512,
        params: &params,
        ..Launch::default()
    };
    how.collect();
    run_body(&mut memory, &body, &how).unwrap();
    how.assert_reported(&[CheckKind::CopyNotWaitedFor]);
    let got = memory.get::<u32>(out, 96);
    assert_eq!(got[..32], [u32::MAX; 32]);
    assert_eq!(got[32..], source);
    let mut want: Vec<u32> = source.iter().map(|v| v + 1000).collect();
    want[32..36].copy_from_slice(&[0, 1, 2, 3]);
    assert_eq!(memory.get::<u32>(sums, 64), want);
}

#[test]
fn copies_of_a_warp_arrive_at_a_barrier() {
    let mut memory = Memory::new(8192);
    let from = memory.put(&(0..32u32).map(|v| v + 7).collect::<Vec<_>>());
    let out = memory.alloc(128);
    let params = [from, out];
    let body = format!(
        "{LANE} ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; add.u64 %rd1, %rd1, %rd9; add.u64 %rd2, %rd2, %rd9; setp.eq.u32 %p1, %r1, 0;\n\
         @%p1 mbarrier.init.shared.b64 [%r9], 32; bar.warp.sync 0xffffffff; shl.b32 %r2, %r1, 2; add.u32 %r2, %r2, %r9;\n\
         cp.async.ca.shared.global [%r2+16], [%rd1], 4; cp.async.mbarrier.arrive.noinc.shared.b64 [%r9];\n\
         L: mbarrier.try_wait.parity.shared.b64 %p2, [%r9], 0; @!%p2 bra L; ld.shared.u32 %r3, [%r2+16]; st.global.u32 [%rd2], %r3;"
    );
    let how = Launch {
        shared: 256,
        params: &params,
        ..Launch::default()
    };
    run_body(&mut memory, &body, &how).unwrap();
    assert_eq!(memory.get::<u32>(out, 32), (7..39).collect::<Vec<u32>>());
}

/// A tensor map of `u32` elements.
fn map(address: u64, dims: [u64; 2], part: [u16; 2], swizzle: u8) -> TensorMap {
    TensorMap {
        data_type: 2,
        rank: 2,
        swizzle,
        nan_fill: false,
        address,
        dims: [dims[0], dims[1], 1, 1, 1],
        strides: [dims[0] * 4, 0, 0, 0],
        box_dims: [part[0], part[1], 1, 1, 1],
        element_strides: [1; 5],
    }
}

#[test]
fn tensor_copies_swizzle_and_fill_what_lies_outside() {
    for (swizzle, span) in [(0u8, 32usize), (1, 8), (2, 16), (3, 32)] {
        let (width, height) = (40usize, 12usize);
        let (box_width, box_height) = (span, 10usize);
        let mut memory = Memory::new(1 << 16);
        let tensor: Vec<u32> = (0..width * height).map(|v| v as u32 + 1).collect();
        let tensor = memory.put(&tensor);
        let words = map(
            tensor,
            [width as u64, height as u64],
            [box_width as u16, box_height as u16],
            swizzle,
        );
        words.validate().unwrap();
        assert_eq!(TensorMap::decode(&words.encode()), Some(words));
        let descriptor = memory.put(&words.encode());
        let back = memory.put(&vec![0u32; width * height]);
        let back_map = TensorMap {
            address: back,
            ..words
        };
        let back_map = memory.put(&back_map.encode());
        let bytes = 4 * box_width * box_height;
        let out = memory.alloc(bytes);
        let (x, y) = (-3i32, 5i32);
        let params = [descriptor, back_map, out];
        let mut body = format!(
            "{LANE} ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; ld.param.u64 %rd3, [p2]; setp.ne.u32 %p1, %r1, 0; @%p1 ret;\n\
             mbarrier.init.shared.b64 [%r9], 1; mbarrier.arrive.expect_tx.shared.b64 _, [%r9], {bytes}; mov.u32 %r2, {x}; mov.u32 %r3, {y};\n\
             cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r9+1024], [%rd1, {{%r2, %r3}}], [%r9];\n\
             L: mbarrier.try_wait.parity.shared.b64 %p2, [%r9], 0; @!%p2 bra L;\n"
        );
        for word in 0..bytes / 4 {
            body += &format!(
                "ld.shared.u32 %r4, [%r9+{}]; st.global.u32 [%rd3+{}], %r4;\n",
                1024 + 4 * word,
                4 * word
            );
        }
        body += "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd2, {%r2, %r3}], [%r9+1024]; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;\n\
             cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%rd2, {%r2, %r3}], [%r9+1024]; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;";
        let how = Launch {
            shared: 1024 + bytes as u32,
            params: &params,
            ..Launch::default()
        };
        run_body(&mut memory, &body, &how).unwrap();
        let at = |column: i32, row: i32| {
            let inside = (0..width as i32).contains(&column) && (0..height as i32).contains(&row);
            inside.then(|| (row * width as i32 + column + 1) as u32)
        };
        let got = memory.get::<u32>(out, bytes / 4);
        for row in 0..box_height {
            for column in 0..box_width {
                let offset = 4 * (row * box_width + column);
                let line = offset / 128;
                let unit = match swizzle {
                    0 => 0,
                    1 => line % 2,
                    2 => line % 4,
                    _ => line % 8,
                };
                let want = at(x + column as i32, y + row as i32).unwrap_or(0);
                assert_eq!(
                    got[(offset ^ unit << 4) / 4],
                    want,
                    "swizzle {swizzle} row {row} column {column}"
                );
            }
        }
        // Stored, then added once more; nothing outside of the box.
        let stored = memory.get::<u32>(back, width * height);
        for row in 0..height as i32 {
            for column in 0..width as i32 {
                let covered = (x..x + box_width as i32).contains(&column)
                    && (y..y + box_height as i32).contains(&row);
                let want = if covered {
                    2 * at(column, row).unwrap()
                } else {
                    0
                };
                assert_eq!(stored[row as usize * width + column as usize], want);
            }
        }
    }
}

#[test]
fn tensors_of_other_ranks_and_fills() {
    let mut memory = Memory::new(1 << 16);
    let data: Vec<u16> = (0..4096).collect();
    let tensor = memory.put(&data);
    // bf16, 3 dimensions of 16 x 8 x 4, a box of 8 x 2 x 3 with every second row.
    let map = TensorMap {
        data_type: 9,
        rank: 3,
        swizzle: 0,
        nan_fill: true,
        address: tensor,
        dims: [16, 8, 4, 1, 1],
        strides: [32, 256, 0, 0],
        box_dims: [8, 4, 3, 1, 1],
        element_strides: [1, 2, 1, 1, 1],
    };
    let descriptor = memory.put(&map.encode());
    let out = memory.alloc(96);
    let params = [descriptor, out];
    let mut body = format!(
        "{LANE} ld.param.u64 %rd1, [p0]; ld.param.u64 %rd3, [p1]; setp.ne.u32 %p1, %r1, 0; @%p1 ret;\n\
         mbarrier.init.shared.b64 [%r9], 1; mbarrier.arrive.expect_tx.shared.b64 _, [%r9], 96;\n\
         cp.async.bulk.tensor.3d.shared::cta.global.mbarrier::complete_tx::bytes [%r9+128], [%rd1, {{12, 1, 2}}], [%r9];\n\
         L: mbarrier.try_wait.parity.shared.b64 %p2, [%r9], 0; @!%p2 bra L;\n"
    );
    for word in 0..24 {
        body += &format!(
            "ld.shared.u32 %r4, [%r9+{}]; st.global.u32 [%rd3+{}], %r4;\n",
            128 + 4 * word,
            4 * word
        );
    }
    let how = Launch {
        shared: 512,
        params: &params,
        ..Launch::default()
    };
    run_body(&mut memory, &body, &how).unwrap();
    let mut want = Vec::new();
    for z in 2..5 {
        for y in [1, 3] {
            for x in 12..20 {
                let inside = x < 16 && z < 4;
                want.push(if inside {
                    data[x + 16 * y + 128 * z]
                } else {
                    0x7fff
                });
            }
        }
    }
    assert_eq!(memory.get::<u16>(out, 48), want);
}

/// Rows that are shorter than the swizzle's span go to any unit of the span, which has to be there.
#[test]
fn a_swizzle_stays_within_shared_memory() {
    for (shared, fits) in [(8 * 128, true), (7 * 128 + 32, false)] {
        let mut memory = Memory::new(1 << 14);
        let tensor = memory.put(&[7u32; 64]);
        let place = memory.put(&map(tensor, [8, 8], [8, 1], 3).encode());
        let params = [place];
        // The eighth line of 128 bytes: unit 0 changes places with unit 7.
        let body = format!(
            "{LANE} ld.param.u64 %rd1, [p0]; setp.ne.u32 %p1, %r1, 0; @%p1 ret;
             mbarrier.init.shared.b64 [%r9], 1; mbarrier.arrive.expect_tx.shared.b64 _, [%r9], 32;
             cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r9+896], [%rd1, {{0, 0}}], [%r9];
             L: mbarrier.try_wait.parity.shared.b64 %p2, [%r9], 0; @!%p2 bra L;"
        );
        let how = Launch {
            shared,
            params: &params,
            ..Launch::default()
        };
        match run_body(&mut memory, &body, &how) {
            Ok(_) => assert!(fits),
            Err(fault) => assert!(
                !fits && matches!(fault, Fault::OutOfBounds { .. }),
                "{fault}"
            ),
        }
    }
}

/// A tensor map that is none, or that does not lie at a multiple of 64 bytes, and changes that make none of it.
#[test]
fn what_is_no_tensor_map_is_a_fault() {
    let copy = "mbarrier.init.shared.b64 [%r9], 1; mbarrier.arrive.expect_tx.shared.b64 _, [%r9], 256;\n\
         cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r9+128], [%rd1, {0, 0}], [%r9];\n\
         L: mbarrier.try_wait.parity.shared.b64 %p2, [%r9], 0; @!%p2 bra L;\n";
    let replace = |what: &str| format!("tensormap.replace.tile.{what};");
    for (offset, change, said) in [
        (0, String::new(), None),
        (16, String::new(), Some("64")),
        (128, String::new(), Some("no tensor map of 2 dimensions")),
        (
            0,
            replace("rank.global.b1024.b32 [%rd1], 2"),
            Some("no tensor map"),
        ),
        (
            0,
            replace("rank.global.b1024.b32 [%rd1], 0xffffffff"),
            Some("no tensor map"),
        ),
        (
            0,
            replace("box_dim.global.b1024.b32 [%rd1], 0, 257"),
            Some("no tensor map"),
        ),
        (
            0,
            replace("box_dim.global.b1024.b32 [%rd1], 0, 65544"),
            Some("no tensor map"),
        ),
        (
            0,
            replace("element_stride.global.b1024.b32 [%rd1], 0, 257"),
            Some("no tensor map"),
        ),
        (
            0,
            replace("global_stride.global.b1024.b64 [%rd1], 0, 8"),
            Some("no tensor map"),
        ),
        (0, replace("swizzle_mode.global.b1024.b32 [%rd1], 1"), None),
        // Refused when the module is loaded.
        (
            0,
            replace("swizzle_mode.global.b1024.b32 [%rd1], 4"),
            Some("`.swizzle_mode`"),
        ),
        (
            0,
            replace("interleave_layout.global.b1024.b32 [%rd1], 1"),
            Some("interleaved"),
        ),
        (
            0,
            replace("box_dim.global.b1024.b32 [%rd1], 5, 1"),
            Some("has no such form"),
        ),
        (
            0,
            replace("global_dim.global.b1024.b64 [%rd1], 1, %rd1"),
            Some("has no such form"),
        ),
    ] {
        let mut memory = Memory::new(1 << 14);
        let tensor = memory.put(&[7u32; 256]);
        let words = map(tensor, [16, 16], [8, 8], 0).encode();
        let all: Vec<u64> = words.iter().chain(&[0; 32]).copied().collect();
        let place = memory.put(&all);
        assert_eq!(place % 128, 0);
        let params = [place + offset];
        let body = format!(
            "{LANE} ld.param.u64 %rd1, [p0]; setp.ne.u32 %p1, %r1, 0; @%p1 ret;\n{change}\n{copy}"
        );
        let how = Launch {
            shared: 512,
            params: &params,
            ..Launch::default()
        };
        let outcome = match load(&mut memory, &kernel(1, &body)) {
            Ok(module) => launch(&module, "k", &memory, &how).map_err(|fault| fault.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match (outcome, said) {
            (Ok(_), None) => {}
            (Err(error), Some(said)) => assert!(error.contains(said), "{change}: {error}"),
            (outcome, _) => panic!("{offset} {change}: {:?}", outcome.err()),
        }
    }
}

#[test]
fn blocks_of_a_cluster_share_their_memory() {
    let mut memory = Memory::new(1 << 15);
    let out = memory.alloc(4 * 32 * 12);
    let params = [out];
    // Every block of a 2 x 2 x 1 cluster writes into the next one's shared memory and adds to rank 0's counter.
    let body = format!(
        "{LANE} ld.param.u64 %rd1, [p0]; mov.u32 %r2, %cluster_ctarank; mov.u32 %r3, %cluster_nctarank; add.u32 %r4, %r2, 1; rem.u32 %r4, %r4, %r3;\n\
         st.shared.u32 [%r9+4], 0; barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n\
         mapa.shared::cluster.u32 %r5, %r9, %r4; shl.b32 %r6, %r1, 2; add.u32 %r7, %r5, %r6; mad.lo.u32 %r8, %r2, 100, %r1; st.shared::cluster.u32 [%r7+128], %r8;\n\
         cvta.shared.u64 %rd2, 0; cvt.u64.u32 %rd3, %r9; add.u64 %rd2, %rd2, %rd3; mapa.u64 %rd4, %rd2, 0; atom.add.u32 %r10, [%rd4+4], 1;\n\
         getctarank.shared::cluster.u32 %r11, %r7; isspacep.shared::cluster %p1, %rd4; isspacep.shared::cta %p2, %rd4; selp.u32 %r12, 10, 0, %p1; selp.u32 %r13, 100, 0, %p2; add.u32 %r11, %r11, %r12; add.u32 %r11, %r11, %r13;\n\
         barrier.cluster.arrive; barrier.cluster.wait; add.u32 %r6, %r6, %r9; ld.shared.u32 %r14, [%r6+128]; ld.shared.u32 %r15, [%r9+4];\n\
         mov.u32 %r20, %ctaid.x; mov.u32 %r21, %ctaid.y; mov.u32 %r22, %nctaid.x; mad.lo.u32 %r20, %r21, %r22, %r20; mul.wide.u32 %rd5, %r20, 384; add.u64 %rd1, %rd1, %rd5; mul.wide.u32 %rd6, %r1, 12; add.u64 %rd1, %rd1, %rd6;\n\
         st.global.u32 [%rd1], %r14; st.global.u32 [%rd1+4], %r15; st.global.u32 [%rd1+8], %r11; barrier.cluster.arrive; barrier.cluster.wait;"
    );
    let how = Launch {
        grid: [4, 2, 1],
        cluster: [2, 2, 1],
        shared: 512,
        params: &params,
        ..Launch::default()
    };
    let how = Launch {
        grid: [2, 2, 1],
        ..how
    };
    run_body(&mut memory, &body, &how).unwrap();
    let got = memory.get::<u32>(out, 3 * 32 * 4);
    for block in 0..4u32 {
        for lane in 0..32u32 {
            let at = 3 * (32 * block + lane) as usize;
            assert_eq!(
                got[at],
                (block + 3) % 4 * 100 + lane,
                "from the block before"
            );
            assert_eq!(got[at + 1], if block == 0 { 128 } else { 0 }, "the counter");
            let next = (block + 1) % 4;
            let own = if block == 0 { 100 } else { 0 };
            assert_eq!(got[at + 2], next + 10 + own, "ranks and spaces");
        }
    }
}

#[test]
fn cluster_indices() {
    let mut memory = Memory::new(1 << 14);
    let out = memory.alloc(8 * 24 * 4);
    let params = [out];
    let names = [
        "%clusterid.x",
        "%clusterid.y",
        "%nclusterid.x",
        "%nclusterid.y",
        "%cluster_ctaid.x",
        "%cluster_ctaid.y",
        "%cluster_nctaid.x",
        "%cluster_ctarank",
    ];
    let mut body = String::from(
        "ld.param.u64 %rd1, [p0]; mov.u32 %r20, %ctaid.x; mov.u32 %r21, %ctaid.y; mad.lo.u32 %r20, %r21, 6, %r20; mul.wide.u32 %rd5, %r20, 32; add.u64 %rd1, %rd1, %rd5;\n",
    );
    for (index, name) in names.iter().enumerate() {
        body += &format!(
            "mov.u32 %r1, {name}; st.global.u32 [%rd1+{}], %r1;\n",
            4 * index
        );
    }
    let how = Launch {
        grid: [6, 4, 1],
        block: [1, 1, 1],
        cluster: [3, 2, 1],
        params: &params,
        ..Launch::default()
    };
    run_body(&mut memory, &body, &how).unwrap();
    let got = memory.get::<u32>(out, 8 * 24);
    for y in 0..4u32 {
        for x in 0..6u32 {
            let at = 8 * (6 * y + x) as usize;
            let want = [x / 3, y / 2, 2, 2, x % 3, y % 2, 3, x % 3 + 3 * (y % 2)];
            assert_eq!(got[at..at + 8], want, "block {x}, {y}");
        }
    }
    let how = Launch {
        grid: [5, 4, 1],
        ..how
    };
    let refused = run_body(&mut memory, &body, &how).unwrap_err();
    assert!(refused.to_string().contains("does not consist of clusters"));
}

#[test]
fn multicast_reaches_every_block_of_the_mask_and_remote_stores_tell_a_barrier() {
    let mut memory = Memory::new(1 << 14);
    let from = memory.put(&[11u32, 12, 13, 14]);
    let out = memory.alloc(4 * 8 * 4);
    let params = [from, out];
    let body = format!(
        "{LANE} ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; mov.u32 %r2, %cluster_ctarank; mul.wide.u32 %rd3, %r2, 32; add.u64 %rd2, %rd2, %rd3;\n\
         mbarrier.init.shared.b64 [%r9], 1; st.shared.u32 [%r9+16], 0; setp.eq.u32 %p1, %r2, 2; selp.u32 %r3, 4, 20, %p1; mbarrier.arrive.expect_tx.shared.b64 _, [%r9], %r3;\n\
         barrier.cluster.arrive; barrier.cluster.wait; setp.ne.u32 %p2, %r2, 0; mov.u16 %rs1, 11; @%p2 bra REMOTE;\n\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r9+16], [%rd1], 16, [%r9], %rs1;\n\
         REMOTE: add.u32 %r4, %r2, 1; and.b32 %r4, %r4, 3; mapa.shared::cluster.u32 %r5, %r9, %r4; st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r5+32], %r2, [%r5];\n\
         L: mbarrier.try_wait.parity.shared.b64 %p3, [%r9], 0; @!%p3 bra L; ld.shared.v4.u32 {{%r10, %r11, %r12, %r13}}, [%r9+16]; ld.shared.u32 %r14, [%r9+32];\n\
         st.global.v4.u32 [%rd2], {{%r10, %r11, %r12, %r13}}; st.global.u32 [%rd2+16], %r14; barrier.cluster.arrive; barrier.cluster.wait;"
    );
    let how = Launch {
        grid: [4, 1, 1],
        block: [1, 1, 1],
        cluster: [4, 1, 1],
        shared: 64,
        params: &params,
        ..Launch::default()
    };
    run_body(&mut memory, &body, &how).unwrap();
    let got = memory.get::<u32>(out, 32);
    for rank in 0..4usize {
        if rank != 2 {
            assert_eq!(got[8 * rank..][..4], [11, 12, 13, 14], "rank {rank}");
        } else {
            assert_eq!(got[16], 0, "rank 2 is not in the mask");
        }
        assert_eq!(got[8 * rank + 4], (rank as u32 + 3) % 4);
    }
}

#[test]
fn a_cluster_barrier_that_a_block_misses_is_a_deadlock() {
    let mut memory = Memory::new(8192);
    let body = "mov.u32 %r2, %cluster_ctarank; setp.eq.u32 %p1, %r2, 1; @%p1 bra OTHER; barrier.cluster.arrive; barrier.cluster.wait; ret; OTHER: bar.sync 1, 64;";
    let how = Launch {
        grid: [2, 1, 1],
        cluster: [2, 1, 1],
        ..Launch::default()
    };
    let fault = run_body(&mut memory, body, &how).unwrap_err();
    let Fault::BarrierDivergence { message, .. } = &fault else {
        panic!("{fault}");
    };
    assert!(
        message.contains("the cluster's barrier") && message.contains("barrier 1"),
        "{message}"
    );
}

#[test]
fn one_lane_is_elected() {
    let body = "mov.u32 %r1, %laneid; setp.lt.u32 %p3, %r1, 9; mov.u32 %r40, 99; mov.u32 %r41, 0; @%p3 bra SKIP; elect.sync %r40|%p1, 0xfffffe00; selp.u32 %r41, 1, 0, %p1; SKIP: bar.warp.sync 0xffffffff;";
    let got = warp(body, &[], 2, &[]);
    for lane in 0..32 {
        assert_eq!(got[0][lane], if lane < 9 { 99 } else { 9 });
        assert_eq!(got[1][lane], u32::from(lane == 9));
    }
}

#[test]
fn stmatrix_undoes_ldmatrix() {
    let shared: Vec<u8> = (0..1024u32).map(|i| (i * 37 + i / 256) as u8).collect();
    for (count, names) in [
        (1, "%r40"),
        (2, "%r40, %r41"),
        (4, "%r40, %r41, %r42, %r43"),
    ] {
        for trans in ["", ".trans"] {
            // Reads matrices, writes them 512 bytes further on, and reads what lies there plainly.
            let body = format!(
                "shl.b32 %r20, %r90, 4; add.u32 %r20, %r20, %r92; ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{names}}}, [%r20];\n\
                 stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r20+512], {{{names}}}; bar.warp.sync 0xffffffff;\n\
                 shl.b32 %r21, %r90, 2; add.u32 %r21, %r21, %r92; ld.shared.u32 %r40, [%r21+512];"
            );
            let got = warp(&body, &[], 1, &shared);
            for lane in 0..32 {
                let bytes: [u8; 4] = shared[4 * lane..][..4].try_into().unwrap();
                assert_eq!(got[0][lane], u32::from_le_bytes(bytes), "x{count}{trans}");
            }
        }
    }
}
