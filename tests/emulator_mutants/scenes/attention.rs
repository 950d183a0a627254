//! Scenes of the attention kernels.

use super::{Values, launch};
use crate::support::attention::{Case, Surroundings};
use crate::support::oracle::Attention;
use crate::support::random::Random;
use crate::support::{Rig, to_f32};
use half::bf16;
use neap::kernels::DecodeMergeParams;

/// Sequences of which every score lies well below zero, so that a key that is read as zeros and not masked would win.
fn sequences(random: &mut Random, shape: Attention, lengths: &[u32], sinks: bool) -> Case {
    let mut case = Case::random(random, shape, lengths, sinks);
    for sequence in &mut case.sequences {
        for value in &mut sequence.q {
            *value = bf16::from_f32(value.to_f32().abs());
        }
        for value in &mut sequence.k {
            *value = bf16::from_f32(-value.to_f32().abs());
        }
    }
    case
}

/// Ranges that begin at the last key of a tile and end at the first of one: so every row of a tile is once not there, in the copies
/// before the loop and in those within. The ring of stages goes round twice. Blocks are left over, or take several items. A kernel
/// for wide groups takes a narrow one too.
pub fn decode(rig: &Rig, kernel: &str, shape: Attention) -> Values {
    let mut random = Random::fixed(11);
    // Keys a warp and stage, warps, stages: as DecodeTraits has them.
    let (keys, warps, stages) = match shape.head_dim {
        64 => (32, 4, 2),
        128 => (16, 4, 3),
        _ => (16, 2, 2),
    };
    let shared_bytes = warps * stages * 2 * keys * shape.head_dim as u32 * 2;
    let round = keys * warps;
    let turned = round * (2 * stages + 1) + 1;
    let cut = 6 * keys + 1;
    let window = Some(cut - (2 * keys - 1));
    let narrow = Attention {
        num_q_heads: 3,
        num_kv_heads: 1,
        ..shape
    };
    let mut values = Values::default();
    for (shape, window, lengths, blocks, bucket, page_size) in [
        (narrow, None, vec![1], 2, 1, 4),
        (narrow, None, vec![round + 1], 2, 1, 8),
        (shape, None, vec![turned], 1, 1, 16),
        (shape, window, vec![cut, keys + 3, 3 * keys], 2, 5, 16),
    ] {
        let mut case = sequences(&mut random, Attention { window, ..shape }, &lengths, false);
        case.item_blocks = Some(blocks);
        case.unsplit = true;
        case.decode_kernel = Some((kernel.to_owned(), 32 * warps, shared_bytes));
        let all: Vec<usize> = (0..lengths.len()).collect();
        let found = case.decode(rig, &mut random, &all, bucket, page_size, Surroundings::Nan);
        values.extend(Values::floats(to_f32(&found.concat())));
    }
    values
}

/// Rows of none, one and several splits, up to more than the loop takes at once, with heads that do not fill their block's warps.
pub fn decode_merge(rig: &Rig, head_dim: u32) -> Values {
    const HEADS: u32 = 6;
    let mut random = Random::fixed(21);
    let counts = [1u32, 6, 0, 4, 3];
    let mut rows: Vec<[u32; 2]> = Vec::new();
    let mut items = 0;
    for count in counts {
        rows.push([items, count]);
        items += count;
    }
    // What a graph leaves behind the rows of a step.
    rows.push([0, 3]);
    let pairs = (items * HEADS) as usize;
    let states: Vec<[f32; 2]> = (0..pairs)
        .map(|_| [random.normal(2.0), 1.0 + random.normal(1.0).abs()])
        .collect();
    let partial_o = random.normals(pairs * head_dim as usize, 1.0);
    let out = rig.poisoned::<bf16>(rows.len() * (HEADS * head_dim) as usize);
    let mut values = Values::default();
    for sinks in [None, Some(random.normals_bf16(HEADS as usize, 1.0))] {
        let params = DecodeMergeParams {
            header: rig.header_of_rows(counts.len() as u32),
            rows: rig.upload(&rows).pointer,
            partial_o: rig.upload(&partial_o).pointer,
            partial_ml: rig.upload(&states).pointer,
            sinks: sinks.map_or(neap::driver::DevicePtr::NULL, |sinks| {
                rig.upload(&sinks).pointer
            }),
            out: out.pointer,
            num_q_heads: HEADS,
            head_dim,
            ..DecodeMergeParams::default()
        };
        let kernel = format!("decode_merge_d{head_dim}");
        let grid = [rows.len() as u32, HEADS.div_ceil(4), 1];
        // SAFETY: every array has the shape of its field for six rows, five of which are real.
        unsafe { launch(rig, &kernel, grid, 128, 0, &params) };
        values.extend(Values::floats(to_f32(&out.read(rig))));
    }
    values
}

/// Chunks with and without history, that end inside a tile and a page and leave most rows of an item empty; with the window and
/// without. Behind the last chunk there is room for a whole item, which must stay as it is.
pub fn prefill(rig: &Rig, shape: Attention) -> Values {
    let mut random = Random::fixed(12);
    let mut values = Values::default();
    let chunks = [
        (Some(50), vec![(0, 60, 130), (1, 0, 75)], 16, true),
        (None, vec![(0, 201, 230), (1, 139, 140)], 1, true),
        (None, vec![(1, 0, 2)], 1, false),
    ];
    for (window, chunks, blocks, sinks) in chunks {
        let shape = Attention { window, ..shape };
        let mut case = sequences(&mut random, shape, &[230, 140], sinks);
        case.item_blocks = Some(blocks);
        let found = case.prefill(rig, &mut random, &chunks, 64, 16, Surroundings::Nan);
        values.extend(Values::floats(to_f32(&found.concat())));
    }
    values
}
