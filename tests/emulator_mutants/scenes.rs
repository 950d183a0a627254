//! One small run of each kernel, and what it leaves in memory.

use crate::support::attention::{Case, Surroundings, shape};
use crate::support::oracle::Attention;
use crate::support::paged::PagedKv;
use crate::support::random::Random;
use crate::support::{Rig, bits, to_f32};
use half::bf16;
use neap::kernels::{
    AddNormParams, ArgmaxParams, EmbedParams, GatedActParams, GemmParams, KvAppendParams,
    PageCopyParams, Phase, QkvRopeParams, StepHeader, TableUpdate, TableUpdateParams,
};

/// A kernel under mutation. Of attention one instance a shape of code: those for larger groups and with a soft cap differ in
/// constants and in what is done to a score.
pub struct Scene {
    pub kernel: &'static str,
    /// Kernels that the scene launches beside it, unchanged.
    pub also: &'static [&'static str],
    pub run: fn(&Rig) -> Values,
}

/// What a scene computed.
#[derive(Debug, Default)]
pub struct Values {
    floats: Vec<f32>,
    exact: Vec<u8>,
}

impl Values {
    fn floats(values: Vec<f32>) -> Values {
        Values {
            floats: values,
            exact: Vec::new(),
        }
    }

    fn exact<T: bytemuck::Pod>(values: &[T]) -> Values {
        Values {
            floats: Vec::new(),
            exact: bits(values),
        }
    }

    /// Equal, floats up to the tolerance with which the kernel's own test compares it to its f64 twin, which the unchanged
    /// kernel passes: 1 % is more than any of them allows.
    pub fn agrees_with(&self, expected: &Values) -> bool {
        let close =
            |a: f32, b: f32| a.to_bits() == b.to_bits() || (a - b).abs() <= 0.01 * (b.abs() + 0.01);
        self.exact == expected.exact
            && self.floats.len() == expected.floats.len()
            && self
                .floats
                .iter()
                .zip(&expected.floats)
                .all(|(&a, &b)| close(a, b))
    }
}

macro_rules! scenes {
    ($($kernel:literal $(+ $also:literal)* => $run:expr;)*) => {
        pub const SCENES: &[Scene] = &[$(Scene { kernel: $kernel, also: &[$($also),*], run: $run },)*];
    };
}

scenes! {
    "paged_decode_bf16_d64_g8" + "decode_merge_d64" => |rig| decode(rig, shape(2, 1, 64, Some(70), 0.0));
    "paged_decode_bf16_d128_g8" + "decode_merge_d128" => |rig| decode(rig, shape(2, 1, 128, Some(90), 0.0));
    "paged_decode_bf16_d256_g8" + "decode_merge_d256" => |rig| decode(rig, shape(2, 1, 256, Some(50), 0.0));
    "decode_merge_d64" + "paged_decode_bf16_d64_g8" => |rig| decode(rig, shape(2, 1, 64, None, 0.0));
    "paged_prefill_bf16_d64" => |rig| prefill(rig, shape(2, 1, 64, Some(50), 0.0));
    "paged_prefill_bf16_d128" => |rig| prefill(rig, shape(2, 1, 128, Some(50), 0.0));
    "gemm_prefill_bf16_64x64" => |rig| gemm(rig, Phase::Prefill, 70, 72, 544);
    "gemm_prefill_bf16_128x128" => |rig| gemm(rig, Phase::Prefill, 255, 1032, 96);
    "gemm_decode_bf16_t8" => |rig| gemm(rig, Phase::Decode, 3, 72, 544);
    "gemm_decode_bf16_t16" => |rig| gemm(rig, Phase::Decode, 13, 40, 512);
    "gemm_decode_bf16_t32" => |rig| gemm(rig, Phase::Decode, 29, 40, 256);
    "gemm_decode_bf16_t64" => |rig| gemm(rig, Phase::Decode, 61, 40, 256);
    "gemv_bf16" => |rig| gemm(rig, Phase::Decode, 5, 33, 65);
    "add_norm_v1" => |rig| add_norm(rig, 192);
    "add_norm_v4" => |rig| add_norm(rig, 1028);
    "argmax" => argmax;
    "embed" => embed;
    "gated_act_silu" => |rig| gated_act(rig, 1);
    "gated_act_gelu_tanh" => |rig| gated_act(rig, 0);
    "qkv_rope_d64" => |rig| rope(rig, false);
    "qkv_rope_append_d64" => |rig| rope(rig, true);
    "table_update" => table_update;
    "kv_append" => kv_append;
    "page_copy" => page_copy;
}

/// Rows that are shorter than a stage, that have two tokens in the last tile, so that every row of a tile is once past the end, that go round the ring of stages, and that end inside a page and a tile; with the
/// window and without; with blocks that are left over and blocks that take several items.
fn decode(rig: &Rig, shape: Attention) -> Values {
    let mut random = Random::fixed(11);
    let mut values = Vec::new();
    for (window, lengths, blocks) in [
        (shape.window, vec![1, 40, 130], None),
        (None, vec![226, 258], Some(2)),
    ] {
        let mut case = Case::random(&mut random, Attention { window, ..shape }, &lengths, true);
        case.item_blocks = blocks;
        let all: Vec<usize> = (0..lengths.len()).collect();
        let found = case.decode(rig, &mut random, &all, 4, 16, Surroundings::Nan);
        values.extend(to_f32(&found.concat()));
    }
    Values::floats(values)
}

/// Chunks with and without history, that end inside a tile and a page; with the window and without.
fn prefill(rig: &Rig, shape: Attention) -> Values {
    let mut random = Random::fixed(12);
    let mut values = Vec::new();
    for (window, chunks, blocks) in [
        (shape.window, [(0, 60, 130), (1, 0, 75)], Some(16)),
        (None, [(0, 201, 230), (1, 133, 140)], Some(1)),
    ] {
        let mut case = Case::random(
            &mut random,
            Attention { window, ..shape },
            &[230, 140],
            true,
        );
        case.item_blocks = blocks;
        let found = case.prefill(rig, &mut random, &chunks, 3, 16, Surroundings::Nan);
        values.extend(to_f32(&found.concat()));
    }
    Values::floats(values)
}

fn gemm(rig: &Rig, phase: Phase, rows: u32, n: u32, k: u32) -> Values {
    let mut random = Random::fixed(13);
    let bucket = rows + 2;
    let x = random.normals_bf16((bucket * k) as usize, 1.0);
    let w = random.normals_bf16((n * k) as usize, 0.5);
    let bias = random.normals_bf16(n as usize, 1.0);
    let y = rig.poisoned::<f32>((bucket * n) as usize);
    let params = GemmParams {
        header: rig.header_of_rows(rows),
        x: rig.upload(&x).pointer,
        weight: rig.upload(&w).pointer,
        bias: rig.upload(&bias).pointer,
        y: y.pointer,
        n,
        k,
        softcap: 0.0,
        ..GemmParams::default()
    };
    // SAFETY: every array has the shape of its field for this bucket.
    unsafe { rig.kernels.gemm(&rig.stream, phase, bucket, &params) }.expect("launch");
    Values::floats(y.read(rig))
}

fn add_norm(rig: &Rig, hidden: u32) -> Values {
    let mut random = Random::fixed(14);
    let (rows, bucket) = (3, 4);
    let len = (bucket * hidden) as usize;
    let residual = rig.upload(&random.normals(len, 3.0));
    let out = rig.poisoned::<bf16>(len);
    let weight = |random: &mut Random| {
        rig.upload(&random.normals_bf16(hidden as usize, 0.5))
            .pointer
    };
    let params = AddNormParams {
        header: rig.header_of_rows(rows),
        residual: residual.pointer,
        y: rig.upload(&random.normals(len, 0.7)).pointer,
        post_weight: weight(&mut random),
        next_weight: weight(&mut random),
        out: out.pointer,
        hidden,
        eps: 1e-6,
        weight_offset: 1.0,
        ..AddNormParams::default()
    };
    // SAFETY: every array has the shape of its field for this bucket.
    unsafe { rig.kernels.add_norm(&rig.stream, bucket, &params) }.expect("launch");
    Values::floats([residual.read(rig), to_f32(&out.read(rig))].concat())
}

fn argmax(rig: &Rig) -> Values {
    let mut random = Random::fixed(15);
    let (rows, vocab) = (6u32, 4099u32);
    let mut logits = random.normals((rows * vocab) as usize, 1.0);
    for row in 0..rows {
        // The largest value in a different warp each time, twice in one row.
        logits[(row * vocab + 37 + row * 700) as usize] = 90.0;
    }
    logits[(5 * vocab + 4098) as usize] = 90.0;
    let ids = rig.poisoned::<u32>(rows as usize + 1);
    let params = ArgmaxParams {
        header: rig.header_of_rows(rows),
        logits: rig.upload(&logits).pointer,
        ids: ids.pointer,
        vocab,
        ..ArgmaxParams::default()
    };
    // SAFETY: every array has the shape of its field; the last row is past num_outputs.
    unsafe { rig.kernels.argmax(&rig.stream, rows + 1, &params) }.expect("launch");
    Values::exact(&ids.read(rig))
}

fn embed(rig: &Rig) -> Values {
    let mut random = Random::fixed(16);
    let (rows, bucket, hidden, vocab) = (5u32, 8u32, 1028u32, 20u32);
    let ids: Vec<u32> = (0..bucket).map(|_| random.below(vocab)).collect();
    let residual = rig.poisoned::<f32>((bucket * hidden) as usize);
    let params = EmbedParams {
        header: rig.header_of_rows(rows),
        token_ids: rig.upload(&ids).pointer,
        table: rig
            .upload(&random.normals_bf16((vocab * hidden) as usize, 1.0))
            .pointer,
        residual: residual.pointer,
        hidden,
        scale: 3.5,
        ..EmbedParams::default()
    };
    // SAFETY: every array has the shape of its field for this bucket.
    unsafe { rig.kernels.embed(&rig.stream, bucket, &params) }.expect("launch");
    Values::floats(residual.read(rig))
}

fn gated_act(rig: &Rig, activation: u32) -> Values {
    let mut random = Random::fixed(17);
    let (rows, bucket, columns) = (5u32, 8u32, 516u32);
    let out = rig.poisoned::<bf16>((bucket * columns) as usize);
    let params = GatedActParams {
        header: rig.header_of_rows(rows),
        gate_up: rig
            .upload(&random.normals((bucket * 2 * columns) as usize, 2.0))
            .pointer,
        out: out.pointer,
        intermediate: columns,
        activation,
        ..GatedActParams::default()
    };
    // SAFETY: every array has the shape of its field for this bucket.
    unsafe { rig.kernels.gated_act(&rig.stream, bucket, &params) }.expect("launch");
    Values::floats(to_f32(&out.read(rig)))
}

fn rope(rig: &Rig, append: bool) -> Values {
    let mut random = Random::fixed(18);
    let (rows, bucket, heads, kv_heads, dim) = (5u32, 7u32, 4u32, 2u32, 64u32);
    let mut kv = PagedKv::new(rig, &mut random, 16, kv_heads, dim, rows as usize, 16);
    let mut slots = Vec::new();
    for slot in 0..rows {
        kv.assign(slot as usize, 20 + slot, 21 + slot);
        slots.push(kv.slot(slot as usize, 20 + slot));
    }
    slots.extend([slots[0]; 2]);
    slots[3] = u64::MAX;
    let qkv = random.normals((bucket * (heads + 2 * kv_heads) * dim) as usize, 1.0);
    let inv_freq: Vec<f32> = (0..dim / 2)
        .map(|pair| 10_000f32.powf(-2.0 * pair as f32 / dim as f32))
        .collect();
    let positions: Vec<u32> = (0..bucket).map(|row| 20 + row).collect();
    let norm = |random: &mut Random| rig.upload(&random.normals_bf16(dim as usize, 0.5)).pointer;
    let array = |heads: u32| rig.poisoned::<bf16>((bucket * heads * dim) as usize);
    let (q, k, v) = (array(heads), array(kv_heads), array(kv_heads));
    let mut params = QkvRopeParams {
        header: rig.header_of_rows(rows),
        qkv: rig.upload(&qkv).pointer,
        q_norm: norm(&mut random),
        k_norm: norm(&mut random),
        inv_freq: rig.upload(&inv_freq).pointer,
        positions: rig.upload(&positions).pointer,
        q: q.pointer,
        num_q_heads: heads,
        num_kv_heads: kv_heads,
        head_dim: dim,
        eps: 1e-6,
        weight_offset: 1.0,
        attention_factor: 1.0,
        ..QkvRopeParams::default()
    };
    let phase = if append {
        params.slots = rig.upload(&slots).pointer;
        params.kv = kv.view(1);
        Phase::Decode
    } else {
        params.k = k.pointer;
        params.v = v.pointer;
        Phase::Prefill
    };
    // SAFETY: every array has the shape of its field; slots name tokens of assigned pages.
    unsafe { rig.kernels.qkv_rope(&rig.stream, phase, bucket, &params) }.expect("launch");
    let mut values = Values::floats(to_f32(&q.read(rig)));
    if append {
        values.floats.extend(to_f32(&kv.contents(rig)));
    } else {
        values.floats.extend(to_f32(&k.read(rig)));
        values.floats.extend(to_f32(&v.read(rig)));
    }
    values
}

fn table_update(rig: &Rig) -> Values {
    let table = rig.upload(&[7u32; 60]);
    let other = rig.upload(&[7u32; 80]);
    let updates: Vec<TableUpdate> = (0..6)
        .map(|index| TableUpdate {
            group: index % 2,
            seq_slot: index / 2,
            column: 3 * index,
            entry: 100 + index,
        })
        .collect();
    let mut params = TableUpdateParams {
        header: rig.header(StepHeader {
            num_table_updates: 5,
            ..StepHeader::default()
        }),
        updates: rig.upload(&updates).pointer,
        ..TableUpdateParams::default()
    };
    (params.tables[0], params.strides[0]) = (table.pointer, 15);
    (params.tables[1], params.strides[1]) = (other.pointer, 20);
    // SAFETY: every array has the shape of its field; no place is named twice.
    unsafe { rig.kernels.table_update(&rig.stream, 6, &params) }.expect("launch");
    Values::exact(&[table.read(rig), other.read(rig)].concat())
}

fn kv_append(rig: &Rig) -> Values {
    let mut random = Random::fixed(19);
    let (rows, bucket, heads, dim) = (21u32, 24u32, 3u32, 96u32);
    let mut kv = PagedKv::new(rig, &mut random, 16, heads, dim, 1, 5);
    kv.assign(0, 0, rows);
    let slots: Vec<u64> = (0..bucket)
        .map(|token| match token {
            0..4 => u64::MAX,
            token => kv.slot(0, token.min(rows - 1)),
        })
        .collect();
    let len = (bucket * heads * dim) as usize;
    let params = KvAppendParams {
        header: rig.header_of_rows(rows),
        k: rig.upload(&random.normals_bf16(len, 1.0)).pointer,
        v: rig.upload(&random.normals_bf16(len, 1.0)).pointer,
        slots: rig.upload(&slots).pointer,
        kv: kv.view(2),
        num_kv_heads: heads,
        head_dim: dim,
        ..KvAppendParams::default()
    };
    // SAFETY: every array has the shape of its field; slots name tokens of assigned pages.
    unsafe { rig.kernels.kv_append(&rig.stream, bucket, &params) }.expect("launch");
    Values::exact(&kv.contents(rig))
}

fn page_copy(rig: &Rig) -> Values {
    let mut random = Random::fixed(20);
    let kv = PagedKv::new(rig, &mut random, 4, 2, 72, 1, 12);
    let entry = |page: u64| (page * kv.layer_page_bytes / 256) as u32;
    let pairs = [entry(3), entry(8), entry(0), entry(5), entry(11), entry(1)];
    let params = PageCopyParams {
        pairs: rig.upload(&pairs).pointer,
        base: kv.view(0).base,
        layer_stride: kv.layer_stride,
        num_pairs: 3,
        num_layers: kv.num_layers,
        layer_page_bytes: kv.layer_page_bytes as u32,
        ..PageCopyParams::default()
    };
    // SAFETY: all entries are pages of this arena, each named once.
    unsafe { rig.kernels.page_copy(&rig.stream, &params) }.expect("launch");
    Values::exact(&kv.contents(rig))
}
