//! Scenes of the kernels that work on activations.

use super::{Values, launch};
use crate::support::paged::PagedKv;
use crate::support::random::Random;
use crate::support::{Array, Rig, to_f32};
use bytemuck::Pod;
use half::bf16;
use neap::driver::DevicePtr;
use neap::kernels::{
    AddNormParams, ArgmaxParams, EmbedParams, GatedActParams, GemmParams, Phase, QkvRopeParams,
};

/// Sizes of a product: `rows` of `bucket` rows are real.
#[derive(Clone, Copy)]
struct Product {
    rows: u32,
    bucket: u32,
    n: u32,
    k: u32,
    bias: bool,
}

impl Product {
    /// The operands on the device, and where the result goes. What rows behind the last hold is NaN. The first row and the first column
    /// begin with an infinity: whoever reads them instead of zeros has it everywhere.
    fn upload(self, rig: &Rig, random: &mut Random) -> (GemmParams, Array<f32>) {
        let Product {
            rows, bucket, n, k, ..
        } = self;
        let mut x = random.normals_bf16((rows * k) as usize, 1.0);
        let mut w = random.normals_bf16((n * k) as usize, 0.5);
        for operand in [&mut x, &mut w] {
            if let Some(first) = operand.first_mut() {
                *first = bf16::INFINITY;
            }
        }
        x.resize((bucket * k) as usize, bf16::NAN);
        let bias = random.normals_bf16(n as usize, 1.0);
        let y = rig.poisoned::<f32>((bucket * n) as usize);
        let params = GemmParams {
            header: rig.header_of_rows(rows),
            x: rig.upload(&x).pointer,
            weight: rig.upload(&w).pointer,
            bias: optional(rig, self.bias, &bias),
            y: y.pointer,
            n,
            k,
            softcap: 0.0,
            ..GemmParams::default()
        };
        (params, y)
    }
}

/// The address of an array, or null.
fn optional<T: Pod>(rig: &Rig, given: bool, values: &[T]) -> DevicePtr {
    if given {
        rig.upload(values).pointer
    } else {
        DevicePtr::NULL
    }
}

/// K that ends inside the first tile, inside the second, and inside a tile of the ring's third turn; a block for rows of which none is
/// real, and results for all rows of every tile.
pub fn gemm_prefill(rig: &Rig, kernel: &str, tile: u32, threads: u32) -> Values {
    let mut random = Random::fixed(13);
    let mut values = Values::default();
    for k in [32, 96, 480] {
        let product = Product {
            rows: tile + 6,
            bucket: 3 * tile,
            n: tile + 8,
            k,
            bias: k != 32,
        };
        let (params, y) = product.upload(rig, &mut random);
        let grid = [product.n.div_ceil(tile), product.bucket / tile, 1];
        // SAFETY: every array has the shape of its field for this bucket.
        unsafe { launch(rig, kernel, grid, threads, 3 * 2 * tile * 128, &params) };
        values.extend(Values::floats(y.read(rig)));
    }
    values
}

/// Ranges of K of every length a warp's loops tell apart, one warp, two and eight, rows that end in each tile, with room behind them
/// and without, blocks for rows of which none is real, and a step without rows in a bucket smaller than a block.
pub fn gemm_decode(rig: &Rig, kernel: &str, columns: u32, tokens: u32) -> Values {
    let mut random = Random::fixed(13);
    let mut runs = vec![
        (tokens + 3, 3 * tokens, 8, 544, true),
        (tokens - 3, tokens, 2, 256, true),
        (1, tokens, 2, 1120, true),
        (0, 1, 2, 96, true),
    ];
    for tile in 0..tokens / 8 {
        let rows = 8 * tile + 3;
        runs.extend([(rows, tokens, 1, 96, false), (rows, rows, 2, 96, false)]);
    }
    let mut values = Values::default();
    for (rows, bucket, warps, k, bias) in runs {
        let product = Product {
            rows,
            bucket,
            n: columns + 4,
            k,
            bias,
        };
        let (params, y) = product.upload(rig, &mut random);
        let grid = [product.n.div_ceil(columns), bucket.div_ceil(tokens), 1];
        // SAFETY: every array has the shape of its field for this bucket.
        unsafe { launch(rig, kernel, grid, 32 * warps, 0, &params) };
        values.extend(Values::floats(y.read(rig)));
    }
    values
}

pub fn gemv(rig: &Rig) -> Values {
    let mut random = Random::fixed(13);
    let mut values = Values::default();
    for (rows, bucket, k) in [(5, 12, 65), (6, 12, 3), (8, 12, 40), (5, 5, 33)] {
        let product = Product {
            rows,
            bucket,
            n: 33,
            k,
            bias: k != 3,
        };
        let (params, y) = product.upload(rig, &mut random);
        // SAFETY: every array has the shape of its field for this bucket.
        unsafe {
            rig.kernels
                .gemm(&rig.stream, Phase::Decode, bucket, &params)
        }
        .expect("launch");
        values.extend(Values::floats(y.read(rig)));
    }
    values
}

/// Rows that fill their block's last turn in part, and rows shorter than one turn; with and without each of the parts.
pub fn add_norm(rig: &Rig, kernel: &str) -> Values {
    let mut random = Random::fixed(14);
    let (rows, bucket) = (3, 5);
    let mut values = Values::default();
    let usual = if kernel == "add_norm_v1" {
        (192, 64)
    } else {
        (1028, 96)
    };
    for ((hidden, threads), added, gathered, post, next) in [
        (usual, true, false, true, true),
        ((100, 64), true, false, true, true),
        ((100, 64), true, true, false, true),
        ((100, 64), true, false, false, false),
        ((100, 64), false, false, false, true),
    ] {
        let len = (bucket * hidden) as usize;
        let mut filled = |sigma: f64| {
            let mut values = random.normals((rows * hidden) as usize, sigma);
            values.resize(len, f32::NAN);
            rig.upload(&values)
        };
        let (residual, y) = (filled(3.0), filled(0.7));
        let out = rig.poisoned::<bf16>(len);
        let mut weight = |given: bool| {
            let values = random.normals_bf16(hidden as usize, 0.5);
            optional(rig, given, &values)
        };
        let params = AddNormParams {
            header: rig.header_of_rows(rows),
            residual: residual.pointer,
            y: if added { y.pointer } else { DevicePtr::NULL },
            post_weight: weight(post),
            next_weight: weight(next),
            out: out.pointer,
            gather_rows: optional(rig, gathered, &[2u32, 0, 1, 1, 1]),
            hidden,
            eps: 1e-6,
            weight_offset: 1.0,
            ..AddNormParams::default()
        };
        // SAFETY: every array has the shape of its field for this bucket.
        unsafe { launch(rig, kernel, [bucket, 1, 1], threads, 0, &params) };
        values.extend(Values::floats(
            [residual.read(rig), to_f32(&out.read(rig))].concat(),
        ));
    }
    values
}

/// Rows in both forms of loads, longer and shorter than a block takes at once.
pub fn argmax(rig: &Rig) -> Values {
    let mut random = Random::fixed(15);
    let rows = 6u32;
    let mut values = Values::default();
    for vocab in [4099u32, 4100, 5, 8] {
        let mut logits = random.normals((rows * vocab) as usize, 1.0);
        for row in 0..rows {
            // The largest value in a different warp each time, and larger from row to row.
            let best = (37 + row * 700) % vocab;
            logits[(row * vocab + best) as usize] = 90.0 + row as f32;
        }
        // Twice in one row: the first wins.
        logits[(5 * vocab + vocab - 1) as usize] = 95.0;
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
        values.extend(Values::exact(&ids.read(rig)));
    }
    values
}

pub fn embed(rig: &Rig) -> Values {
    let mut random = Random::fixed(16);
    let (rows, bucket, vocab) = (5u32, 8u32, 20u32);
    let mut values = Values::default();
    for hidden in [1028u32, 100] {
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
        values.extend(Values::floats(residual.read(rig)));
    }
    values
}

pub fn gated_act(rig: &Rig, activation: u32) -> Values {
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

/// More heads than a block has warps, and fewer; with norms and without.
pub fn rope(rig: &Rig, dim: u32, append: bool) -> Values {
    let mut random = Random::fixed(18);
    let mut values = Values::default();
    for (heads, kv_heads) in [(4, 2), (1, 1)] {
        values.extend(rope_heads(rig, &mut random, dim, append, heads, kv_heads));
    }
    values
}

fn rope_heads(
    rig: &Rig,
    random: &mut Random,
    dim: u32,
    append: bool,
    heads: u32,
    kv_heads: u32,
) -> Values {
    let (rows, bucket) = (5u32, 7u32);
    let mut kv = PagedKv::new(rig, random, 16, kv_heads, dim, rows as usize, 16);
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
    let norm = |random: &mut Random| {
        let weights = random.normals_bf16(dim as usize, 0.5);
        optional(rig, heads > 1, &weights)
    };
    let array = |heads: u32| rig.poisoned::<bf16>((bucket * heads * dim) as usize);
    let (q, k, v) = (array(heads), array(kv_heads), array(kv_heads));
    let mut params = QkvRopeParams {
        header: rig.header_of_rows(rows),
        qkv: rig.upload(&qkv).pointer,
        q_norm: norm(random),
        k_norm: norm(random),
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
        values.extend(Values::floats(to_f32(&kv.contents(rig))));
    } else {
        values.extend(Values::floats(to_f32(&k.read(rig))));
        values.extend(Values::floats(to_f32(&v.read(rig))));
    }
    values
}
