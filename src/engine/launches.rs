//! One method a fused step: parameters from the workspace, the weights and the step buffer.
//!
//! Every launch is safe for the same reason: its addresses lie in the three arenas, which outlive all graphs and are backed before
//! anything is launched; [`Workspace::place`](super::workspace::Workspace::place) sizes every buffer for the largest bucket, and
//! [`StepPlan::write`](super::step::StepPlan::write) checks the step's counts against its bucket.

use crate::driver::DevicePtr;
use crate::kernels::{
    AddNormParams, ArgmaxParams, DecodeAttentionParams, DecodeMergeParams, EmbedParams,
    GatedActParams, GemmParams, KernelError, KvAppendParams, Phase, PrefillAttentionParams,
    QkvRopeParams, TableUpdateParams,
};
use crate::model::{Activation, Matrix, Vector};

use super::forward::Pass;

/// `GemmParams::rows_from`: as many rows as the step has tokens.
const ROWS_ARE_TOKENS: u32 = 0;
/// `GemmParams::rows_from`: as many rows as the step asks logits for.
const ROWS_ARE_OUTPUTS: u32 = 1;

/// No tensor: kernels skip what is null.
const NULL: DevicePtr = DevicePtr::NULL;

/// Attention parameters of a layer: the fields that both phases have, then those of one.
macro_rules! attention_params {
    ($params:ident of $layer:ident in $pass:ident { $($field:ident: $value:expr,)* }) => {{
        let (config, workspace) = (&$pass.forward.config, &$pass.forward.workspace);
        $params {
            header: $pass.step.header,
            items: $pass.step.items[$layer.group],
            q: workspace.q,
            block_table: workspace.block_tables[$layer.group],
            table_stride: $pass.forward.table_columns,
            layer_group: $layer.group as u32,
            num_q_heads: config.num_q_heads,
            num_kv_heads: config.num_kv_heads,
            head_dim: config.head_dim,
            sm_scale: config.attention_scale,
            softcap: config.attn_softcap.unwrap_or(0.0),
            $($field: $value,)*
            ..Default::default()
        }
    }};
}

impl Pass<'_> {
    /// Address of a weight, null where the family has none.
    fn vector(&self, vector: Option<Vector>) -> DevicePtr {
        vector.map_or(NULL, |vector| self.forward.weights.add(vector.offset_bytes))
    }

    fn rows(&self) -> u32 {
        self.layout.bucket.rows
    }

    pub(super) fn update_tables(&self) -> Result<(), KernelError> {
        let (tables, strides) = self.forward.tables();
        let params = TableUpdateParams {
            header: self.step.header,
            updates: self.step.updates,
            tables,
            strides,
            ..Default::default()
        };
        // SAFETY: as stated at the top of this file.
        unsafe {
            self.forward
                .kernels
                .table_update(self.stream, self.layout.update_capacity, &params)
        }
    }

    pub(super) fn embed(&self, table: Matrix, scale: f32) -> Result<(), KernelError> {
        let params = EmbedParams {
            header: self.step.header,
            token_ids: self.step.token_ids,
            table: self.forward.weights.add(table.offset_bytes),
            residual: self.forward.workspace.residual,
            hidden: table.cols,
            scale,
            ..Default::default()
        };
        // SAFETY: as stated at the top of this file.
        unsafe {
            self.forward
                .kernels
                .embed(self.stream, self.rows(), &params)
        }
    }

    /// `y` and the next norm may be absent.
    pub(super) fn add_norm(
        &self,
        y: DevicePtr,
        post_norm: Option<Vector>,
        next_norm: Option<Vector>,
    ) -> Result<(), KernelError> {
        let params = AddNormParams {
            out: if next_norm.is_some() {
                self.forward.workspace.normed
            } else {
                NULL
            },
            ..self.norm_params(y, post_norm, next_norm)
        };
        // SAFETY: as stated at the top of this file.
        unsafe {
            self.forward
                .kernels
                .add_norm(self.stream, self.rows(), &params)
        }
    }

    /// For the rows whose logits are wanted; `residual` stays as it is.
    pub(super) fn output_norm(
        &self,
        y: DevicePtr,
        post_norm: Option<Vector>,
        next_norm: Vector,
    ) -> Result<(), KernelError> {
        let params = AddNormParams {
            out: self.forward.workspace.outputs,
            gather_rows: self.step.gather_rows,
            ..self.norm_params(y, post_norm, Some(next_norm))
        };
        // SAFETY: as stated at the top of this file.
        unsafe {
            self.forward
                .kernels
                .add_norm(self.stream, self.layout.output_rows, &params)
        }
    }

    fn norm_params(
        &self,
        y: DevicePtr,
        post_norm: Option<Vector>,
        next_norm: Option<Vector>,
    ) -> AddNormParams {
        let config = &self.forward.config;
        AddNormParams {
            header: self.step.header,
            residual: self.forward.workspace.residual,
            y,
            post_weight: self.vector(post_norm),
            next_weight: self.vector(next_norm),
            hidden: config.hidden_size,
            eps: config.rms_norm_eps,
            weight_offset: config.family.norm_weight_offset,
            ..Default::default()
        }
    }

    /// `y = x . W^T` for the step's tokens.
    pub(super) fn linear(
        &self,
        matrix: Matrix,
        x: DevicePtr,
        y: DevicePtr,
    ) -> Result<(), KernelError> {
        let params = GemmParams {
            rows_from: ROWS_ARE_TOKENS,
            ..self.gemm_params(matrix, x, y)
        };
        // SAFETY: as stated at the top of this file.
        unsafe {
            self.forward
                .kernels
                .gemm(self.stream, self.phase(), self.rows(), &params)
        }
    }

    /// In either phase by the kernel for few rows: a prefill step asks for one row a prompt, and the logits of a row then come from
    /// the same sums wherever it ran.
    pub(super) fn lm_head(&self, matrix: Matrix) -> Result<(), KernelError> {
        let workspace = &self.forward.workspace;
        let params = GemmParams {
            rows_from: ROWS_ARE_OUTPUTS,
            softcap: self.forward.config.final_softcap.unwrap_or(0.0),
            ..self.gemm_params(matrix, workspace.outputs, workspace.logits)
        };
        // SAFETY: as stated at the top of this file.
        unsafe {
            self.forward
                .kernels
                .gemm(self.stream, Phase::Decode, self.layout.output_rows, &params)
        }
    }

    fn gemm_params(&self, matrix: Matrix, x: DevicePtr, y: DevicePtr) -> GemmParams {
        GemmParams {
            header: self.step.header,
            x,
            weight: self.forward.weights.add(matrix.offset_bytes),
            y,
            n: matrix.rows,
            k: matrix.cols,
            ..Default::default()
        }
    }

    fn phase(&self) -> Phase {
        self.layout.bucket.phase
    }

    /// Decode writes keys and values straight into pages; prefill leaves them in `k` and `v` for its own attention.
    pub(super) fn rope_append(
        &self,
        layer: usize,
        q_norm: Option<Vector>,
        k_norm: Option<Vector>,
    ) -> Result<(), KernelError> {
        let (config, workspace) = (&self.forward.config, &self.forward.workspace);
        let kv = self.forward.kv_views[layer];
        let layer = &self.forward.program.layers[layer];
        let params = QkvRopeParams {
            header: self.step.header,
            qkv: workspace.qkv,
            q_norm: self.vector(q_norm),
            k_norm: self.vector(k_norm),
            inv_freq: workspace.inv_freq[layer.rope],
            positions: self.step.positions,
            q: workspace.q,
            k: workspace.k,
            v: workspace.v,
            slots: self.step.slots[layer.group],
            kv,
            num_q_heads: config.num_q_heads,
            num_kv_heads: config.num_kv_heads,
            head_dim: config.head_dim,
            eps: config.rms_norm_eps,
            weight_offset: config.family.norm_weight_offset,
            attention_factor: 1.0,
            ..Default::default()
        };
        // SAFETY: as stated at the top of this file.
        unsafe {
            self.forward
                .kernels
                .qkv_rope(self.stream, self.phase(), self.rows(), &params)
        }
    }

    pub(super) fn decode_attention(&self, layer: usize) -> Result<(), KernelError> {
        let (config, workspace) = (&self.forward.config, &self.forward.workspace);
        let kv = self.forward.kv_views[layer];
        let layer = &self.forward.program.layers[layer];
        let params = attention_params!(DecodeAttentionParams of layer in self {
            partial_o: workspace.partial_o,
            partial_ml: workspace.partial_ml,
            kv: kv,
        });
        // SAFETY: as stated at the top of this file.
        unsafe {
            self.forward.kernels.decode_attention(
                self.stream,
                self.layout.item_capacity[layer.group],
                &params,
            )
        }?;
        let params = DecodeMergeParams {
            header: self.step.header,
            rows: self.step.decode_rows[layer.group],
            partial_o: workspace.partial_o,
            partial_ml: workspace.partial_ml,
            out: workspace.attention,
            num_q_heads: config.num_q_heads,
            head_dim: config.head_dim,
            ..Default::default()
        };
        // SAFETY: as stated at the top of this file.
        unsafe {
            self.forward
                .kernels
                .decode_merge(self.stream, self.rows(), &params)
        }
    }

    /// Attention before append: a chunk's last keys may go into the very pages whose window the chunk closes.
    pub(super) fn prefill_attention(&self, layer: usize) -> Result<(), KernelError> {
        let (config, workspace) = (&self.forward.config, &self.forward.workspace);
        let kv = self.forward.kv_views[layer];
        let layer = &self.forward.program.layers[layer];
        let params = attention_params!(PrefillAttentionParams of layer in self {
            k: workspace.k,
            v: workspace.v,
            out: workspace.attention,
            kv: kv,
            window: layer.window.unwrap_or(0),
        });
        // SAFETY: as stated at the top of this file.
        unsafe {
            self.forward.kernels.prefill_attention(
                self.stream,
                self.layout.item_capacity[layer.group],
                &params,
            )
        }?;
        let params = KvAppendParams {
            header: self.step.header,
            k: workspace.k,
            v: workspace.v,
            slots: self.step.slots[layer.group],
            kv,
            num_kv_heads: config.num_kv_heads,
            head_dim: config.head_dim,
            ..Default::default()
        };
        // SAFETY: as stated at the top of this file.
        unsafe {
            self.forward
                .kernels
                .kv_append(self.stream, self.rows(), &params)
        }
    }

    pub(super) fn gated_activation(&self, activation: Activation) -> Result<(), KernelError> {
        let params = GatedActParams {
            header: self.step.header,
            gate_up: self.forward.workspace.gate_up,
            out: self.forward.workspace.activated,
            intermediate: self.forward.config.intermediate_size,
            activation: match activation {
                Activation::GeluTanh => 0,
                Activation::Silu => 1,
            },
            ..Default::default()
        };
        // SAFETY: as stated at the top of this file.
        unsafe {
            self.forward
                .kernels
                .gated_act(self.stream, self.rows(), &params)
        }
    }

    pub(super) fn argmax(&self) -> Result<(), KernelError> {
        let params = ArgmaxParams {
            header: self.step.header,
            logits: self.forward.workspace.logits,
            ids: self.forward.workspace.sampled,
            vocab: self.forward.config.vocab_size,
            ..Default::default()
        };
        // SAFETY: as stated at the top of this file.
        unsafe {
            self.forward
                .kernels
                .argmax(self.stream, self.layout.output_rows, &params)
        }
    }
}
