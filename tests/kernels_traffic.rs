//! What kernels move, counted by the emulator: deterministic, so a performance regression fails here without a GPU.

mod support;

use neap::emulator::{self, Counters};
use neap::kernels::{GemmParams, Phase, StepHeader};
use support::Rig;
use support::attention::{Case, Surroundings, shape};
use support::random::Random;

/// Counters of the kernels whose name starts with `kernel`, over what `work` launches.
fn counted(ordinal: u32, kernel: &str, work: impl FnOnce()) -> Counters {
    let total = || {
        let kernels = emulator::report(ordinal).kernels;
        let named = kernels.iter().filter(|(name, _)| name.starts_with(kernel));
        named.fold(Counters::default(), |sum, (_, counters)| sum + *counters)
    };
    let before = total();
    work();
    let after = total();
    assert!(after.launches > before.launches, "no launch of {kernel}");
    let mut during = Counters::default();
    during.warp_instructions = after.warp_instructions - before.warp_instructions;
    during.async_copy_bytes = after.async_copy_bytes - before.async_copy_bytes;
    during.global_load_sectors = after.global_load_sectors - before.global_load_sectors;
    during.global_load_unique_bytes =
        after.global_load_unique_bytes - before.global_load_unique_bytes;
    during.global_store_sectors = after.global_store_sectors - before.global_store_sectors;
    during.global_store_unique_bytes =
        after.global_store_unique_bytes - before.global_store_unique_bytes;
    during.shared_wavefronts = after.shared_wavefronts - before.shared_wavefronts;
    during.shared_ideal_wavefronts = after.shared_ideal_wavefronts - before.shared_ideal_wavefronts;
    during.local_requests = after.local_requests - before.local_requests;
    during.mma_ops = after.mma_ops - before.mma_ops;
    during
}

/// A window is a range of keys, not a mask: K and V bytes of a windowed decode are those of W keys, at any length.
#[test]
fn windowed_decode_reads_its_window_and_no_more() {
    let Some((rig, ordinal)) = Rig::counting() else {
        return;
    };
    let mut random = Random::new("windowed_decode_reads_its_window_and_no_more");
    for (head_dim, window) in [(64, 64), (128, 300), (256, 40)] {
        // K and V of the window, two heads.
        let needed = u64::from(window) * 2 * 2 * head_dim as u64 * 2 / 32;
        let mut extra = Vec::new();
        for kv_len in [window, window + 1, 700, 1500] {
            let shape = shape(4, 2, head_dim, Some(window), 0.0);
            let case = Case::random(&mut random, shape, &[kv_len], false);
            let during = counted(ordinal, "paged_decode", || {
                case.decode(&rig, &mut random, &[0], 1, 16, Surroundings::Noise);
            });
            assert!(
                during.global_load_sectors >= needed,
                "the count misses loads"
            );
            extra.push(during.global_load_sectors - needed);
            rig.reset();
        }
        // What is left, queries, table and work list, takes no account of the length but for the pages and splits a window straddles.
        println!(
            "D {head_dim}, window {window}: {needed} sectors of keys and values, {extra:?} others"
        );
        let (least, most) = (extra.iter().min(), extra.iter().max());
        assert!(
            most.zip(least)
                .is_some_and(|(most, least)| most - least <= 16 + 3 * needed / 100),
            "{extra:?}"
        );
    }
}

/// Prefill under a window reads each tile of 64 queries' window once a query head, not the whole history.
#[test]
fn windowed_prefill_work_does_not_grow_with_history() {
    let Some((rig, ordinal)) = Rig::counting() else {
        return;
    };
    let mut random = Random::new("windowed_prefill_work_does_not_grow_with_history");
    let shape = shape(2, 1, 64, Some(64), 0.0);
    let mut counts = Vec::new();
    for from in [128, 640, 1280] {
        let case = Case::random(&mut random, shape, &[from + 64], false);
        let during = counted(ordinal, "paged_prefill", || {
            case.prefill(
                &rig,
                &mut random,
                &[(0, from, from + 64)],
                0,
                16,
                Surroundings::Noise,
            );
        });
        counts.push((during.async_copy_bytes, during.mma_ops));
        rig.reset();
    }
    assert!(
        counts.windows(2).all(|pair| pair[0] == pair[1]),
        "{counts:?}"
    );
}

#[test]
fn attention_has_no_bank_conflicts_and_full_sectors() {
    let Some((rig, ordinal)) = Rig::counting() else {
        return;
    };
    let mut random = Random::new("attention_has_no_bank_conflicts_and_full_sectors");
    for head_dim in [64, 128, 256] {
        let case = Case::random(&mut random, shape(8, 1, head_dim, None, 0.0), &[512], true);
        let decode = counted(ordinal, "paged_decode", || {
            case.decode(&rig, &mut random, &[0], 1, 16, Surroundings::Noise);
        });
        let prefill = counted(ordinal, "paged_prefill", || {
            case.prefill(
                &rig,
                &mut random,
                &[(0, 384, 512)],
                0,
                16,
                Surroundings::Noise,
            );
        });
        for (name, during) in [("decode", decode), ("prefill", prefill)] {
            let what = format!("{name}, D {head_dim}: {during:?}");
            println!("{what}");
            assert_eq!(
                during.shared_wavefronts, during.shared_ideal_wavefronts,
                "{what}"
            );
            assert_eq!(during.local_requests, 0, "{what}");
            assert!(
                during.global_load_sectors * 32 * 9 <= during.global_load_unique_bytes * 10,
                "{what}"
            );
            assert!(
                during.global_store_sectors * 32 * 9 <= during.global_store_unique_bytes * 10,
                "{what}"
            );
        }
        // Two products of 16 x 8 x 16 tiles over 512 keys, heads padded to 16 rows.
        assert_eq!(
            decode.mma_ops,
            2 * 512 / 8 * head_dim as u64 / 16,
            "D {head_dim}"
        );
        rig.reset();
    }
}

/// Decode reads each weight once, in whole sectors, whatever the batch; x comes on top, once a block of 16 or 32 weight rows.
#[test]
fn skinny_gemm_streams_weights_once() {
    let Some((rig, ordinal)) = Rig::counting() else {
        return;
    };
    let mut random = Random::new("skinny_gemm_streams_weights_once");
    let (n, k) = (512u32, 1024u32);
    let weight = rig.upload(&random.normals_bf16((n * k) as usize, 0.1));
    let x = rig.upload(&random.normals_bf16((64 * k) as usize, 1.0));
    let y = rig.poisoned::<f32>((64 * n) as usize);
    for (rows, weight_rows, instructions_an_mma) in [
        (1u32, 16, 15),
        (8, 16, 17),
        (16, 16, 14),
        (32, 32, 10),
        (64, 32, 8),
    ] {
        let header = rig.header(StepHeader {
            num_tokens: rows,
            ..StepHeader::default()
        });
        let params = GemmParams {
            header,
            x: x.pointer,
            weight: weight.pointer,
            y: y.pointer,
            n,
            k,
            ..GemmParams::default()
        };
        let during = counted(ordinal, "gemm_decode", || {
            // SAFETY: every array has the shape of its field.
            unsafe { rig.kernels.gemm(&rig.stream, Phase::Decode, rows, &params) }.expect("launch");
            rig.stream.synchronize().expect("the launch succeeds");
        });
        println!(
            "{rows} rows: {} instructions, {} mma",
            during.warp_instructions, during.mma_ops
        );
        let weight_bytes = u64::from(n * k * 2);
        let x_bytes = u64::from(n / weight_rows * rows.max(1) * k * 2);
        let loaded = during.global_load_sectors * 32;
        assert!(
            loaded <= weight_bytes + x_bytes + weight_bytes / 64,
            "{rows} rows: {loaded} of {weight_bytes} + {x_bytes}"
        );
        assert!(
            loaded >= weight_bytes + x_bytes,
            "{rows} rows: the count misses loads"
        );
        assert!(
            during.warp_instructions <= instructions_an_mma * during.mma_ops,
            "{rows} rows: {} instructions for {} mma",
            during.warp_instructions,
            during.mma_ops
        );
    }
}
