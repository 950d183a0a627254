//! Which instance of a kernel is launched, and with what grid: pure functions of weights' shapes and buckets.
//!
//! Grids never depend on the rows a step really has, so a captured launch serves every step of its bucket. Where instances
//! compute one product differently (tensor cores or CUDA cores), the weights' shape alone decides (I13); where they differ
//! only in tiling, with each output summed in the same order, the bucket may decide.

use super::plan::PREFILL_ROWS;

/// Whether a pass decodes one token a sequence or takes in prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// One token a sequence; weights dominate the bytes.
    Decode,
    /// Chunks of prompts; FLOPs dominate.
    Prefill,
}

/// One launch: which kernel, with what geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub kernel: &'static str,
    pub grid: [u32; 3],
    pub threads: u32,
    pub shared_bytes: u32,
}

impl Shape {
    fn new(kernel: &'static str, grid: [u32; 3], threads: u32) -> Shape {
        Shape {
            kernel,
            grid,
            threads,
            shared_bytes: 0,
        }
    }
}

/// Threads for a row of `columns`, `each` columns a thread: whole warps, within `limit`.
fn row_threads(columns: u32, each: u32, limit: u32) -> u32 {
    columns.div_ceil(each).next_multiple_of(32).clamp(32, limit)
}

pub(super) fn table_update() -> Shape {
    Shape::new("table_update", [1, 1, 1], 128)
}

pub(super) fn embed(rows: u32, hidden: u32) -> Shape {
    Shape::new("embed", [rows, 1, 1], row_threads(hidden, 4, 256))
}

/// Largest hidden size of [`add_norm`]: 1024 threads of sixteen columns.
pub(super) const ADD_NORM_MAX_HIDDEN: u32 = 16_384;

pub(super) fn add_norm(rows: u32, hidden: u32) -> Shape {
    if hidden <= 1024 {
        Shape::new("add_norm_v1", [rows, 1, 1], row_threads(hidden, 4, 256))
    } else {
        Shape::new("add_norm_v4", [rows, 1, 1], row_threads(hidden, 16, 1024))
    }
}

/// True when the tensor-core tiles can take a weight of `n` x `k`.
fn tensor_cores(n: u32, k: u32) -> bool {
    k.is_multiple_of(32) && n.is_multiple_of(8)
}

pub(super) fn gemm(phase: Phase, rows: u32, n: u32, k: u32) -> Shape {
    if !tensor_cores(n, k) {
        return Shape::new("gemv_bf16", [n.div_ceil(8), rows.div_ceil(4), 1], 256);
    }
    match phase {
        Phase::Decode => {
            let (kernel, weight_rows, tokens) = match rows {
                0..=8 => ("gemm_decode_bf16_t8", 16, 8),
                9..=16 => ("gemm_decode_bf16_t16", 16, 16),
                17..=32 => ("gemm_decode_bf16_t32", 32, 32),
                _ => ("gemm_decode_bf16_t64", 32, 64),
            };
            // The number of warps is part of the order of the sum: it may depend on K, not on the rows.
            let warps = match k {
                0..512 => 2,
                512..2048 => 4,
                _ => 8,
            };
            Shape::new(
                kernel,
                [n.div_ceil(weight_rows), rows.div_ceil(tokens), 1],
                32 * warps,
            )
        }
        Phase::Prefill => {
            // Large tiles only where there are enough of them to fill a device.
            let large = rows >= 256 && n >= 1024;
            let (kernel, tile, threads) = if large {
                ("gemm_prefill_bf16_128x128", 128, 256)
            } else {
                ("gemm_prefill_bf16_64x64", 64, 128)
            };
            Shape {
                shared_bytes: 3 * 2 * tile * 128,
                ..Shape::new(kernel, [n.div_ceil(tile), rows.div_ceil(tile), 1], threads)
            }
        }
    }
}

pub(super) fn qkv_rope(phase: Phase, rows: u32, head_dim: u32) -> Option<Shape> {
    let kernel = match (phase, head_dim) {
        (Phase::Decode, 64) => "qkv_rope_append_d64",
        (Phase::Decode, 128) => "qkv_rope_append_d128",
        (Phase::Decode, 256) => "qkv_rope_append_d256",
        (Phase::Prefill, 64) => "qkv_rope_d64",
        (Phase::Prefill, 128) => "qkv_rope_d128",
        (Phase::Prefill, 256) => "qkv_rope_d256",
        _ => return None,
    };
    Some(Shape::new(kernel, [rows, 1, 1], 128))
}

pub(super) fn kv_append(rows: u32, num_kv_heads: u32, head_dim: u32) -> Shape {
    let chunks = 2 * num_kv_heads * head_dim / 8;
    Shape::new("kv_append", [rows, 1, 1], row_threads(chunks, 1, 128))
}

pub(super) fn page_copy(num_pairs: u32, num_layers: u32) -> Shape {
    Shape::new(
        "page_copy",
        [num_pairs.clamp(1, 4096), num_layers.clamp(1, 4096), 1],
        256,
    )
}

/// Blocks along items: beyond this, blocks take several items each. Some eight items a SM are plenty in flight.
const MAX_ITEM_BLOCKS: u32 = 1024;

pub(super) fn decode_attention(
    item_capacity: u32,
    num_q_heads: u32,
    num_kv_heads: u32,
    head_dim: u32,
    softcap: bool,
) -> Option<Shape> {
    let narrow = num_q_heads / num_kv_heads <= 8;
    let kernel = match (head_dim, narrow, softcap) {
        (64, true, false) => "paged_decode_bf16_d64_g8",
        (64, true, true) => "paged_decode_bf16_d64_g8_softcap",
        (64, false, false) => "paged_decode_bf16_d64_g16",
        (64, false, true) => "paged_decode_bf16_d64_g16_softcap",
        (128, true, false) => "paged_decode_bf16_d128_g8",
        (128, true, true) => "paged_decode_bf16_d128_g8_softcap",
        (128, false, false) => "paged_decode_bf16_d128_g16",
        (128, false, true) => "paged_decode_bf16_d128_g16_softcap",
        (256, true, false) => "paged_decode_bf16_d256_g8",
        (256, true, true) => "paged_decode_bf16_d256_g8_softcap",
        (256, false, false) => "paged_decode_bf16_d256_g16",
        (256, false, true) => "paged_decode_bf16_d256_g16_softcap",
        _ => return None,
    };
    // As DecodeTraits has them: warps, keys a warp and stage, stages; K and V.
    let (warps, keys, stages) = match head_dim {
        64 => (4, 32, 2),
        128 => (4, 16, 3),
        _ => (2, 16, 2),
    };
    Some(Shape {
        shared_bytes: warps * stages * 2 * keys * head_dim * 2,
        ..Shape::new(
            kernel,
            [item_capacity.clamp(1, MAX_ITEM_BLOCKS), num_kv_heads, 1],
            32 * warps,
        )
    })
}

pub(super) fn decode_merge(rows: u32, num_q_heads: u32, head_dim: u32) -> Option<Shape> {
    let kernel = match head_dim {
        64 => "decode_merge_d64",
        128 => "decode_merge_d128",
        256 => "decode_merge_d256",
        _ => return None,
    };
    let warps = num_q_heads.clamp(1, 4);
    Some(Shape::new(
        kernel,
        [rows, num_q_heads.div_ceil(warps), 1],
        32 * warps,
    ))
}

pub(super) fn prefill_attention(
    item_capacity: u32,
    num_q_heads: u32,
    head_dim: u32,
    softcap: bool,
) -> Option<Shape> {
    let kernel = match (head_dim, softcap) {
        (64, false) => "paged_prefill_bf16_d64",
        (64, true) => "paged_prefill_bf16_d64_softcap",
        (128, false) => "paged_prefill_bf16_d128",
        (128, true) => "paged_prefill_bf16_d128_softcap",
        (256, false) => "paged_prefill_bf16_d256",
        (256, true) => "paged_prefill_bf16_d256_softcap",
        _ => return None,
    };
    // As PrefillTraits has them: 64 rows of Q, one tile of K and one of V.
    let keys = if head_dim <= 128 { 64 } else { 32 };
    Some(Shape {
        shared_bytes: (PREFILL_ROWS + 2 * keys) * head_dim * 2,
        ..Shape::new(
            kernel,
            [item_capacity.clamp(1, MAX_ITEM_BLOCKS), num_q_heads, 1],
            128,
        )
    })
}

pub(super) fn gated_act(rows: u32, intermediate: u32, silu: bool) -> Shape {
    let kernel = if silu {
        "gated_act_silu"
    } else {
        "gated_act_gelu_tanh"
    };
    let threads = row_threads(intermediate, 4, 256);
    Shape::new(
        kernel,
        [intermediate.div_ceil(4 * threads), rows, 1],
        threads,
    )
}

pub(super) fn argmax(rows: u32, vocab: u32) -> Shape {
    Shape::new("argmax", [rows, 1, 1], row_threads(vocab, 32, 1024))
}

/// Kernels launched with dynamic shared memory and how much, for the opt-in at load time.
pub(super) fn dynamic_shared_bytes() -> Vec<(&'static str, u32)> {
    let mut shapes = Vec::new();
    for rows in [64, 256] {
        shapes.push(gemm(Phase::Prefill, rows, 1024, 64));
    }
    for head_dim in [64, 128, 256] {
        for softcap in [false, true] {
            shapes.extend(
                [1, 16]
                    .iter()
                    .filter_map(|&group| decode_attention(1, group, 1, head_dim, softcap)),
            );
            shapes.extend(prefill_attention(1, 1, head_dim, softcap));
        }
    }
    shapes
        .iter()
        .map(|shape| (shape.kernel, shape.shared_bytes))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gemm_instances() {
        for (phase, rows, n, k, kernel, grid, threads, shared_bytes) in [
            (
                Phase::Decode,
                1,
                192,
                256,
                "gemm_decode_bf16_t8",
                [12, 1, 1],
                64,
                0,
            ),
            (
                Phase::Decode,
                8,
                4096,
                192,
                "gemm_decode_bf16_t8",
                [256, 1, 1],
                64,
                0,
            ),
            (
                Phase::Decode,
                9,
                4096,
                512,
                "gemm_decode_bf16_t16",
                [256, 1, 1],
                128,
                0,
            ),
            (
                Phase::Decode,
                32,
                4096,
                4096,
                "gemm_decode_bf16_t32",
                [128, 1, 1],
                256,
                0,
            ),
            (
                Phase::Decode,
                128,
                4104,
                4096,
                "gemm_decode_bf16_t64",
                [129, 2, 1],
                256,
                0,
            ),
            (
                Phase::Prefill,
                64,
                512,
                192,
                "gemm_prefill_bf16_64x64",
                [8, 1, 1],
                128,
                49_152,
            ),
            (
                Phase::Prefill,
                256,
                512,
                192,
                "gemm_prefill_bf16_64x64",
                [8, 4, 1],
                128,
                49_152,
            ),
            (
                Phase::Prefill,
                256,
                1024,
                192,
                "gemm_prefill_bf16_128x128",
                [8, 2, 1],
                256,
                98_304,
            ),
            (Phase::Decode, 5, 9, 64, "gemv_bf16", [2, 2, 1], 256, 0),
            (Phase::Prefill, 5, 16, 40, "gemv_bf16", [2, 2, 1], 256, 0),
        ] {
            let shape = gemm(phase, rows, n, k);
            assert_eq!(
                shape,
                Shape {
                    kernel,
                    grid,
                    threads,
                    shared_bytes
                },
                "{phase:?} {rows} {n} {k}"
            );
        }
    }

    /// The bucket may change the tiling, never the number of warps that split K nor the family.
    #[test]
    fn rows_do_not_change_the_order_of_a_sum() {
        for (n, k) in [(64, 32), (192, 512), (4096, 2048), (17, 64), (64, 100)] {
            let threads: Vec<_> = [1, 8, 9, 33, 200]
                .map(|rows| gemm(Phase::Decode, rows, n, k).threads)
                .into();
            assert!(
                threads.windows(2).all(|pair| pair[0] == pair[1]),
                "{n} x {k}: {threads:?}"
            );
            for phase in [Phase::Decode, Phase::Prefill] {
                let families: Vec<_> = [1, 64, 300]
                    .map(|rows| gemm(phase, rows, n, k).kernel.starts_with("gemv"))
                    .into();
                assert!(
                    families.iter().all(|&gemv| gemv != tensor_cores(n, k)),
                    "{n} x {k}"
                );
            }
        }
    }

    #[test]
    fn norms_hold_a_row_in_registers() {
        for hidden in (4..=ADD_NORM_MAX_HIDDEN).step_by(4) {
            let shape = add_norm(3, hidden);
            let columns = if shape.kernel == "add_norm_v1" { 4 } else { 16 };
            assert!(
                shape.threads * columns >= hidden && shape.threads <= 1024,
                "{hidden}"
            );
        }
    }

    /// 99 KiB is what a block may have on every device from compute capability 8.0 on (8.6, 8.9 and 12.0 have the least).
    #[test]
    fn shared_memory_fits_every_device() {
        let all = dynamic_shared_bytes();
        assert_eq!(all.len(), 2 + 3 * 2 * 3);
        for (kernel, bytes) in all {
            assert!(bytes > 0 && bytes <= 99 * 1024 - 2048, "{kernel}: {bytes}");
        }
    }

    #[test]
    fn unknown_head_dims_have_no_kernel() {
        assert_eq!(qkv_rope(Phase::Decode, 1, 96), None);
        assert_eq!(decode_attention(1, 8, 1, 80, false), None);
        assert_eq!(decode_merge(1, 8, 512), None);
        assert_eq!(prefill_attention(1, 8, 32, false), None);
    }

    #[test]
    fn grids_are_capped_and_never_empty() {
        let decode = decode_attention(1_000_000, 8, 2, 64, false).expect("built");
        assert_eq!(decode.grid, [MAX_ITEM_BLOCKS, 2, 1]);
        assert_eq!(
            prefill_attention(0, 4, 64, false).expect("built").grid,
            [1, 4, 1]
        );
        assert_eq!(page_copy(0, 0).grid, [1, 1, 1]);
        assert_eq!(gated_act(7, 512, false).grid, [1, 7, 1]);
        assert_eq!(gated_act(7, 3000, true).grid, [3, 7, 1]);
        assert_eq!(argmax(3, 4096).threads, 128);
    }
}
