//! Paged attention, decode and prefill, against an f64 twin, and bit for bit against itself in other batches, chunks, page
//! sizes and buckets (I13). What no query may read is noise of 100 sigma, NaN, or an address that faults.

mod support;

use support::attention::{Case, Surroundings, shape};
use support::oracle::compare;
use support::random::Random;
use support::{Rig, bits, random_cases, to_f32};

#[test]
fn decode_matches_the_oracle() {
    let (rig, mut random) = (Rig::new(), Random::new("decode_matches_the_oracle"));
    for (shape, lengths, page_size, sinks) in [
        (
            shape(4, 2, 64, None, 0.0),
            &[1, 5, 31, 32, 33, 64, 200, 513, 700][..],
            16,
            false,
        ),
        (
            shape(4, 2, 64, Some(64), 0.0),
            &[1, 63, 64, 65, 100, 300, 287][..],
            16,
            false,
        ),
        (
            shape(8, 1, 64, Some(300), 0.0),
            &[299, 301, 600, 770][..],
            1,
            true,
        ),
        (shape(16, 1, 64, None, 20.0), &[90, 520][..], 64, true),
        (
            shape(6, 2, 128, None, 0.0),
            &[1, 17, 150, 600][..],
            32,
            true,
        ),
        (
            shape(10, 1, 128, Some(80), 30.0),
            &[79, 81, 300][..],
            8,
            false,
        ),
        (shape(4, 4, 256, None, 0.0), &[3, 70, 290][..], 4, false),
        (
            shape(9, 1, 256, Some(17), 10.0),
            &[16, 18, 65][..],
            256,
            true,
        ),
        (shape(2, 1, 256, None, 50.0), &[40, 300][..], 16, true),
        (shape(12, 1, 256, None, 0.0), &[300][..], 16, false),
    ] {
        let case = Case::random(&mut random, shape, lengths, sinks);
        let all: Vec<usize> = (0..lengths.len()).collect();
        let found = case.decode(
            &rig,
            &mut random,
            &all,
            lengths.len() as u32 + 1,
            page_size,
            Surroundings::Noise,
        );
        for (sequence, &len) in lengths.iter().enumerate() {
            let (oracle, naive) = (
                case.twin::<f64>(sequence, len - 1),
                case.twin::<f32>(sequence, len - 1),
            );
            compare(
                &format!("{shape:?}, kv_len {len}"),
                &to_f32(&found[sequence]),
                &naive,
                &oracle,
            );
        }
    }
}

#[test]
fn decode_rows_do_not_depend_on_batch_bucket_or_pages() {
    let (rig, mut random) = (
        Rig::new(),
        Random::new("decode_rows_do_not_depend_on_batch_bucket_or_pages"),
    );
    for (shape, sinks) in [
        (shape(4, 2, 64, None, 0.0), false),
        (shape(4, 2, 64, Some(64), 0.0), true),
        (shape(12, 1, 128, Some(300), 30.0), false),
        (shape(2, 1, 256, None, 0.0), true),
    ] {
        let lengths = [1, 65, 700, 33, 290];
        let case = Case::random(&mut random, shape, &lengths, sinks);
        let batch = case.decode(
            &rig,
            &mut random,
            &[0, 1, 2, 3, 4],
            8,
            16,
            Surroundings::Noise,
        );
        for (page_size, around) in [
            (1, Surroundings::Nan),
            (16, Surroundings::Nan),
            (64, Surroundings::Noise),
        ] {
            for (sequence, expected) in batch.iter().enumerate() {
                let alone = case.decode(&rig, &mut random, &[sequence], 1, page_size, around);
                assert_eq!(
                    bits(&alone[0]),
                    bits(expected),
                    "{shape:?}, sequence {sequence} alone, page size {page_size}"
                );
            }
        }
        let mixed = case.decode(&rig, &mut random, &[4, 2, 2, 0], 32, 4, Surroundings::Nan);
        for (found, sequence) in mixed.iter().zip([4, 2, 2, 0]) {
            assert_eq!(
                bits(found),
                bits(&batch[sequence]),
                "{shape:?}, sequence {sequence} in another batch"
            );
        }
    }
}

#[test]
fn prefill_matches_the_oracle() {
    let (rig, mut random) = (Rig::new(), Random::new("prefill_matches_the_oracle"));
    for (shape, chunks, page_size, sinks) in [
        (
            shape(4, 2, 64, None, 0.0),
            &[(0, 0, 1), (1, 0, 70), (2, 60, 130)][..],
            16,
            false,
        ),
        (
            shape(4, 2, 64, Some(64), 0.0),
            &[(0, 0, 200), (1, 65, 140), (2, 300, 301)][..],
            16,
            true,
        ),
        (
            shape(2, 2, 64, Some(10), 20.0),
            &[(0, 0, 63), (1, 100, 165)][..],
            1,
            true,
        ),
        (
            shape(3, 1, 128, None, 0.0),
            &[(0, 0, 66), (1, 129, 140)][..],
            64,
            true,
        ),
        (
            shape(2, 1, 128, Some(100), 30.0),
            &[(0, 250, 320)][..],
            8,
            false,
        ),
        (
            shape(2, 1, 256, None, 0.0),
            &[(0, 0, 40), (1, 70, 140)][..],
            32,
            false,
        ),
        (
            shape(1, 1, 256, Some(33), 10.0),
            &[(0, 64, 150)][..],
            4,
            true,
        ),
    ] {
        let lengths: Vec<u32> = chunks.iter().map(|&(_, _, to)| to).collect();
        let case = Case::random(&mut random, shape, &lengths, sinks);
        let found = case.prefill(&rig, &mut random, chunks, 7, page_size, Surroundings::Noise);
        for (found, &(sequence, from, to)) in found.iter().zip(chunks) {
            let (mut oracle, mut naive) = (Vec::<f64>::new(), Vec::<f32>::new());
            for position in from..to {
                oracle.extend(case.twin::<f64>(sequence, position));
                naive.extend(case.twin::<f32>(sequence, position));
            }
            compare(
                &format!("{shape:?}, {from}..{to}"),
                &to_f32(found),
                &naive,
                &oracle,
            );
        }
    }
}

/// A prompt in chunks equals the prompt whole, wherever the chunks end and whoever shares the batch.
#[test]
fn prefill_rows_do_not_depend_on_chunks_mates_or_pages() {
    let (rig, mut random) = (
        Rig::new(),
        Random::new("prefill_rows_do_not_depend_on_chunks_mates_or_pages"),
    );
    for (shape, sinks) in [
        (shape(4, 2, 64, None, 0.0), false),
        (shape(4, 2, 64, Some(64), 0.0), true),
        (shape(2, 1, 128, Some(50), 25.0), false),
        (shape(1, 1, 256, None, 0.0), true),
    ] {
        let (len, other) = (230, 90);
        let case = Case::random(&mut random, shape, &[len, other], sinks);
        let whole =
            bits(&case.prefill(&rig, &mut random, &[(0, 0, len)], 0, 16, Surroundings::Nan)[0]);
        for (cuts, page_size) in [
            (&[64, 128, 192][..], 16),
            (&[1, 77, 100, 229][..], 1),
            (&[130][..], 64),
        ] {
            let mut found = Vec::new();
            let mut from = 0;
            for &to in cuts.iter().chain([&len]) {
                let mate = random.below(other - 1) + 1;
                let chunks = [(1, mate / 2, mate), (0, from, to)];
                found.extend(bits(
                    &case.prefill(&rig, &mut random, &chunks, 9, page_size, Surroundings::Nan)[1],
                ));
                from = to;
            }
            assert!(
                found == whole,
                "{shape:?}: cut at {cuts:?}, page size {page_size}"
            );
        }
    }
}

/// One query after prefill and the same query by decode agree within rounding: the two kernels implement one function.
#[test]
fn decode_and_prefill_agree() {
    let (rig, mut random) = (Rig::new(), Random::new("decode_and_prefill_agree"));
    for window in [None, Some(64)] {
        let lengths = [65, 300];
        let case = Case::random(&mut random, shape(4, 2, 64, window, 0.0), &lengths, true);
        let decoded = case.decode(&rig, &mut random, &[0, 1], 2, 16, Surroundings::Noise);
        for (sequence, &len) in lengths.iter().enumerate() {
            let prefilled = case.prefill(
                &rig,
                &mut random,
                &[(sequence, len - 1, len)],
                0,
                16,
                Surroundings::Noise,
            );
            for (a, b) in to_f32(&decoded[sequence])
                .into_iter()
                .zip(to_f32(&prefilled[0]))
            {
                assert!(
                    (a - b).abs() <= 0.02 * (1.0 + a.abs()),
                    "{a} and {b}, window {window:?}"
                );
            }
        }
    }
}

/// Beyond 8192 keys splits double in size to stay within the merge's 32.
#[test]
fn long_rows_decode_in_larger_splits() {
    let (rig, mut random) = (Rig::new(), Random::new("long_rows_decode_in_larger_splits"));
    let lengths = [8192, 8193, 9000];
    let case = Case::random(&mut random, shape(8, 1, 64, None, 0.0), &lengths, true);
    let found = case.decode(&rig, &mut random, &[0, 1, 2], 3, 32, Surroundings::Nan);
    for (sequence, &len) in lengths.iter().enumerate() {
        let oracle = case.twin::<f64>(sequence, len - 1);
        let naive = case.twin::<f32>(sequence, len - 1);
        compare(
            &format!("kv_len {len}"),
            &to_f32(&found[sequence]),
            &naive,
            &oracle,
        );
    }
}

/// More items than blocks: each block goes on to further items, and no item's state leaks into the next.
#[test]
fn blocks_take_several_items() {
    let (rig, mut random) = (Rig::new(), Random::new("blocks_take_several_items"));
    let case = Case::random(
        &mut random,
        shape(2, 1, 64, Some(8), 0.0),
        &[1, 5, 11, 40],
        true,
    );
    let alone: Vec<_> = (0..4)
        .map(|sequence| {
            bits(&case.decode(&rig, &mut random, &[sequence], 1, 4, Surroundings::Nan)[0])
        })
        .collect();
    let many: Vec<usize> = (0..1100).map(|row| row % 4).collect();
    let found = case.decode(&rig, &mut random, &many, 1100, 4, Surroundings::Noise);
    for (row, found) in found.iter().enumerate() {
        assert!(bits(found) == alone[row % 4], "row {row}");
    }

    let whole = case.prefill(&rig, &mut random, &[(3, 0, 40)], 0, 4, Surroundings::Nan);
    let width = whole[0].len() / 40;
    let chunks: Vec<_> = (0..1100)
        .map(|chunk| (3, chunk % 40, chunk % 40 + 1))
        .collect();
    let found = case.prefill(&rig, &mut random, &chunks, 0, 4, Surroundings::Noise);
    for (found, &(_, from, _)) in found.iter().zip(&chunks) {
        let expected = &whole[0][from as usize * width..][..width];
        assert_eq!(bits(found), bits(expected), "position {from}");
    }
}

/// Random shapes, windows, lengths, cuts and page sizes. `NEAP_TEST_CASES` runs more of them.
#[test]
fn random_cases_match_the_oracle() {
    let (rig, mut random) = (Rig::new(), Random::new("random_cases_match_the_oracle"));
    for case_index in 0..random_cases(8) {
        let head_dim = [64, 128, 256][random.below(3) as usize];
        let (group, num_kv_heads) = (1 + random.below(16) as usize, 1 + random.below(2) as usize);
        let window = (random.below(3) > 0)
            .then(|| 1 + random.below(if case_index % 2 == 0 { 80 } else { 400 }));
        let softcap = [0.0, 0.0, 15.0][random.below(3) as usize];
        let shape = shape(
            group * num_kv_heads,
            num_kv_heads,
            head_dim,
            window,
            softcap,
        );
        let lengths: Vec<u32> = (0..3).map(|_| 1 + random.below(350)).collect();
        let sinks = random.below(2) == 0;
        let case = Case::random(&mut random, shape, &lengths, sinks);
        let page_size = 1 << random.below(9);
        let around = [Surroundings::Noise, Surroundings::Nan][random.below(2) as usize];

        let decoded = case.decode(&rig, &mut random, &[0, 1, 2], 4, page_size, around);
        let chunks: Vec<_> = (0..3)
            .map(|sequence| {
                let to = lengths[sequence];
                (sequence, to - 1 - random.below(to.min(70)), to)
            })
            .collect();
        let prefilled = case.prefill(&rig, &mut random, &chunks, 1, page_size, around);
        for (index, &(sequence, from, to)) in chunks.iter().enumerate() {
            let what = format!("{shape:?}, page size {page_size}, sinks {sinks}");
            let (mut oracle, mut naive) = (Vec::<f64>::new(), Vec::<f32>::new());
            for position in from..to {
                oracle.extend(case.twin::<f64>(sequence, position));
                naive.extend(case.twin::<f32>(sequence, position));
            }
            let width = decoded[sequence].len();
            let last = oracle.len() - width;
            let what = format!("{what}, {from}..{to}");
            compare(&what, &to_f32(&prefilled[index]), &naive, &oracle);
            compare(
                &what,
                &to_f32(&decoded[sequence]),
                &naive[last..],
                &oracle[last..],
            );
        }
        rig.reset();
    }
}
