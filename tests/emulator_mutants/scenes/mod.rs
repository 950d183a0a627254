//! Small runs of each kernel, and what they leave in memory.
//!
//! Sizes are ragged in every direction, rows behind the last and pages nobody was given hold NaN, and what a kernel may not write is
//! part of what is compared. Some launches have grids that the crate's own shapes never choose but that the kernel takes by its own
//! words: only there do some of its bounds matter.

mod attention;
mod cache;
mod dense;

use crate::support::attention::shape;
use crate::support::{Rig, bits};
use attention::{decode, decode_merge, prefill};
use bytemuck::Pod;
use dense::{add_norm, gated_act, gemm_decode, gemm_prefill, rope};
use neap::driver::LaunchConfig;

/// A kernel under mutation.
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

    fn exact<T: Pod>(values: &[T]) -> Values {
        Values {
            floats: Vec::new(),
            exact: bits(values),
        }
    }

    fn extend(&mut self, other: Values) {
        self.floats.extend(other.floats);
        self.exact.extend(other.exact);
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

/// Launches a kernel with a grid of the scene's own.
///
/// # Safety
/// As for the methods of [`neap::kernels::Kernels`]; the grid must be one the kernel takes.
unsafe fn launch<P: Pod>(
    rig: &Rig,
    kernel: &str,
    grid: [u32; 3],
    threads: u32,
    shared_bytes: u32,
    params: &P,
) {
    let config = LaunchConfig {
        grid,
        block: [threads, 1, 1],
        shared_bytes,
    };
    let kernel = rig.kernels.get(kernel).expect("the scene's kernel");
    // SAFETY: the caller's.
    unsafe { rig.stream.launch(kernel, config, params) }.expect("launch");
}

macro_rules! scenes {
    ($($kernel:literal $(+ $also:literal)* => $run:expr;)*) => {
        pub const SCENES: &[Scene] = &[$(Scene { kernel: $kernel, also: &[$($also),*], run: $run },)*];
    };
}

scenes! {
    "paged_decode_bf16_d64_g8" + "decode_merge_d64" => |rig| decode(rig, "paged_decode_bf16_d64_g8", shape(6, 2, 64, None, 0.0));
    "paged_decode_bf16_d64_g8_softcap" + "decode_merge_d64" => |rig| decode(rig, "paged_decode_bf16_d64_g8_softcap", shape(3, 1, 64, None, 4.0));
    "paged_decode_bf16_d64_g16" + "decode_merge_d64" => |rig| decode(rig, "paged_decode_bf16_d64_g16", shape(11, 1, 64, None, 0.0));
    "paged_decode_bf16_d64_g16_softcap" + "decode_merge_d64" => |rig| decode(rig, "paged_decode_bf16_d64_g16_softcap", shape(11, 1, 64, None, 4.0));
    "paged_decode_bf16_d128_g8" + "decode_merge_d128" => |rig| decode(rig, "paged_decode_bf16_d128_g8", shape(3, 1, 128, None, 0.0));
    "paged_decode_bf16_d128_g8_softcap" + "decode_merge_d128" => |rig| decode(rig, "paged_decode_bf16_d128_g8_softcap", shape(3, 1, 128, None, 4.0));
    "paged_decode_bf16_d128_g16" + "decode_merge_d128" => |rig| decode(rig, "paged_decode_bf16_d128_g16", shape(11, 1, 128, None, 0.0));
    "paged_decode_bf16_d128_g16_softcap" + "decode_merge_d128" => |rig| decode(rig, "paged_decode_bf16_d128_g16_softcap", shape(11, 1, 128, None, 4.0));
    "paged_decode_bf16_d256_g8" + "decode_merge_d256" => |rig| decode(rig, "paged_decode_bf16_d256_g8", shape(3, 1, 256, None, 0.0));
    "paged_decode_bf16_d256_g8_softcap" + "decode_merge_d256" => |rig| decode(rig, "paged_decode_bf16_d256_g8_softcap", shape(3, 1, 256, None, 4.0));
    "paged_decode_bf16_d256_g16" + "decode_merge_d256" => |rig| decode(rig, "paged_decode_bf16_d256_g16", shape(11, 1, 256, None, 0.0));
    "paged_decode_bf16_d256_g16_softcap" + "decode_merge_d256" => |rig| decode(rig, "paged_decode_bf16_d256_g16_softcap", shape(11, 1, 256, None, 4.0));
    "decode_merge_d64" => |rig| decode_merge(rig, 64);
    "decode_merge_d128" => |rig| decode_merge(rig, 128);
    "decode_merge_d256" => |rig| decode_merge(rig, 256);
    "paged_prefill_bf16_d64" => |rig| prefill(rig, shape(2, 1, 64, None, 0.0));
    "paged_prefill_bf16_d64_softcap" => |rig| prefill(rig, shape(2, 1, 64, None, 4.0));
    "paged_prefill_bf16_d128" => |rig| prefill(rig, shape(2, 1, 128, None, 0.0));
    "paged_prefill_bf16_d128_softcap" => |rig| prefill(rig, shape(2, 1, 128, None, 4.0));
    "paged_prefill_bf16_d256" => |rig| prefill(rig, shape(2, 1, 256, None, 0.0));
    "paged_prefill_bf16_d256_softcap" => |rig| prefill(rig, shape(2, 1, 256, None, 4.0));
    "gemm_prefill_bf16_64x64" => |rig| gemm_prefill(rig, "gemm_prefill_bf16_64x64", 64, 128);
    "gemm_prefill_bf16_128x128" => |rig| gemm_prefill(rig, "gemm_prefill_bf16_128x128", 128, 256);
    "gemm_decode_bf16_t8" => |rig| gemm_decode(rig, "gemm_decode_bf16_t8", 16, 8);
    "gemm_decode_bf16_t16" => |rig| gemm_decode(rig, "gemm_decode_bf16_t16", 16, 16);
    "gemm_decode_bf16_t32" => |rig| gemm_decode(rig, "gemm_decode_bf16_t32", 32, 32);
    "gemm_decode_bf16_t64" => |rig| gemm_decode(rig, "gemm_decode_bf16_t64", 32, 64);
    "gemv_bf16" => dense::gemv;
    "add_norm_v1" => |rig| add_norm(rig, "add_norm_v1");
    "add_norm_v4" => |rig| add_norm(rig, "add_norm_v4");
    "argmax" => dense::argmax;
    "embed" => dense::embed;
    "gated_act_silu" => |rig| gated_act(rig, 1);
    "gated_act_gelu_tanh" => |rig| gated_act(rig, 0);
    "qkv_rope_d64" => |rig| rope(rig, 64, false);
    "qkv_rope_d128" => |rig| rope(rig, 128, false);
    "qkv_rope_d256" => |rig| rope(rig, 256, false);
    "qkv_rope_append_d64" => |rig| rope(rig, 64, true);
    "qkv_rope_append_d128" => |rig| rope(rig, 128, true);
    "qkv_rope_append_d256" => |rig| rope(rig, 256, true);
    "table_update" => cache::table_update;
    "kv_append" => cache::kv_append;
    "page_copy" => cache::page_copy;
}
