//! GPU kernels: parameter structs mirrored from `csrc/`, work lists, and launches.
//!
//! | module | what it is |
//! |---|---|
//! | params | `repr(C)` structs, one a kernel, asserted equal to `csrc/params.cuh` on both sides |
//! | plan | [`plan_decode`], [`plan_prefill`]: what attention works on in a step; pure |
//! | shape | instance and grid of a launch from weights' shapes and the bucket; pure |
//! | image | PTX and cubins that the build script embedded |
//! | launch | [`Kernels`]: everything loaded, one method a kernel |
//!
//! Numerics: weights, keys, values and matrix operands are bf16; sums, norms, softmax, the residual stream and products are f32. A
//! row's result never depends on other rows of its batch, the bucket, the slot, or where its pages lie (I13): every
//! sum has an order fixed by absolute positions and by the weights' shape.

mod error;
mod image;
mod launch;
mod params;
mod plan;
mod shape;

pub use error::KernelError;
pub use image::{Image, images};
pub use launch::Kernels;
pub use params::{
    AddNormParams, ArgmaxParams, DecodeAttentionParams, DecodeItem, DecodeMergeParams, DecodeRow,
    EmbedParams, GatedActParams, GemmParams, KvAppendParams, KvView, PageCopyParams,
    PrefillAttentionParams, PrefillItem, QkvRopeParams, StepHeader, TableUpdate, TableUpdateParams,
};
pub use plan::{
    DecodeRowInput, PrefillSegment, decode_split_tokens, max_decode_items, max_prefill_items,
    plan_decode, plan_prefill,
};
pub use shape::Phase;
