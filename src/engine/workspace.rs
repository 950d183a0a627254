//! The workspace: every buffer that steps write and read, placed once and never moved.

use crate::driver::DevicePtr;
use crate::model::{ModelConfig, ModelProgram};

use super::moves::MOVES_BYTES;
use super::options::Limits;

/// Alignment of every buffer.
const BUFFER_ALIGNMENT_BYTES: u64 = 256;

/// What the sizes of the buffers follow from.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkspaceSizes {
    /// Largest bucket of either phase.
    pub max_rows: u32,
    /// Largest number of rows whose logits one step may ask for.
    pub max_output_rows: u32,
    /// Largest number of decode attention items of one layer group.
    pub max_decode_items: u32,
    /// Largest step buffer.
    pub step_bytes: u64,
    /// Columns of a block table.
    pub table_columns: u32,
}

/// Device addresses of all buffers; shapes as in [`crate::model::ModelProgram`]'s table.
#[derive(Clone, Debug)]
pub(super) struct Workspace {
    /// The step buffer, see [`super::step`].
    pub step: DevicePtr,
    /// What [`super::moves`] launches read.
    pub moves: DevicePtr,
    /// `[max_seqs, table_columns]` u32 of each layer group.
    pub block_tables: Vec<DevicePtr>,
    /// `[head_dim / 2]` f32 of each RoPE.
    pub inv_freq: Vec<DevicePtr>,
    pub residual: DevicePtr,
    pub normed: DevicePtr,
    pub qkv: DevicePtr,
    /// `[rows, num_q_heads, head_dim]` bf16, rotated.
    pub q: DevicePtr,
    /// `[rows, num_kv_heads, head_dim]` bf16, the keys of a prefill chunk.
    pub k: DevicePtr,
    /// `[rows, num_kv_heads, head_dim]` bf16, the values of a prefill chunk.
    pub v: DevicePtr,
    /// `[items, num_q_heads, head_dim]` f32.
    pub partial_o: DevicePtr,
    /// `[items, num_q_heads, 2]` f32: m in base 2, l.
    pub partial_ml: DevicePtr,
    pub attention: DevicePtr,
    pub branch: DevicePtr,
    pub gate_up: DevicePtr,
    pub activated: DevicePtr,
    pub outputs: DevicePtr,
    pub logits: DevicePtr,
    pub sampled: DevicePtr,
}

impl Workspace {
    /// Places all buffers from `base` on; returns them and the bytes they take. With a null base this is the sizing pass.
    pub fn place(
        base: DevicePtr,
        config: &ModelConfig,
        program: &ModelProgram,
        num_groups: usize,
        limits: &Limits,
        sizes: &WorkspaceSizes,
    ) -> (Workspace, u64) {
        let mut end_bytes = 0u64;
        let mut buffer = |count: u64, element_bytes: u64| {
            let at = base.add(end_bytes);
            end_bytes += (count * element_bytes).next_multiple_of(BUFFER_ALIGNMENT_BYTES);
            at
        };
        let rows = u64::from(sizes.max_rows);
        let output_rows = u64::from(sizes.max_output_rows);
        let items = u64::from(sizes.max_decode_items);
        let hidden = u64::from(config.hidden_size);
        let q_heads = u64::from(config.num_q_heads);
        let head_dim = u64::from(config.head_dim);
        let kv_width = u64::from(config.num_kv_heads) * head_dim;
        let attention_width = u64::from(config.attention_width());
        let intermediate = u64::from(config.intermediate_size);
        let vocab = u64::from(config.vocab_size);
        let table = u64::from(limits.max_seqs) * u64::from(sizes.table_columns);

        let workspace = Workspace {
            step: buffer(sizes.step_bytes, 1),
            moves: buffer(MOVES_BYTES, 1),
            block_tables: (0..num_groups).map(|_| buffer(table, 4)).collect(),
            inv_freq: program
                .ropes
                .iter()
                .map(|_| buffer(head_dim / 2, 4))
                .collect(),
            residual: buffer(rows * hidden, 4),
            normed: buffer(rows * hidden, 2),
            qkv: buffer(rows * u64::from(config.qkv_width()), 4),
            q: buffer(rows * attention_width, 2),
            k: buffer(rows * kv_width, 2),
            v: buffer(rows * kv_width, 2),
            partial_o: buffer(items * attention_width, 4),
            partial_ml: buffer(items * q_heads, 8),
            attention: buffer(rows * attention_width, 2),
            branch: buffer(rows * hidden, 4),
            gate_up: buffer(rows * 2 * intermediate, 4),
            activated: buffer(rows * intermediate, 2),
            outputs: buffer(output_rows * hidden, 2),
            logits: buffer(output_rows * vocab, 4),
            sampled: buffer(output_rows, 4),
        };
        (workspace, end_bytes)
    }
}
