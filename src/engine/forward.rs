//! One forward pass issued on a stream, eagerly or under capture: the layer program meets the kernels.

use crate::driver::{DevicePtr, Stream};
use crate::kernels::{KernelError, Kernels, KvView, Phase};
use crate::model::{ModelConfig, ModelProgram, Step};

use super::EngineError;
use super::step::{StepLayout, StepPointers};
use super::workspace::Workspace;

/// A point of an eager pass at which a caller may look at the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TapPoint {
    /// `residual` holds the embedding.
    Embedded,
    /// `branch` holds a layer's attention output, `residual` not yet.
    AttentionOutput,
    /// `residual` holds the stream after a layer.
    LayerDone,
}

/// Called at every [`TapPoint`] of an eager pass, layer by layer.
pub(super) type Tap<'a> = &'a mut dyn FnMut(&Stream, TapPoint) -> Result<(), EngineError>;

/// Everything a pass needs besides a bucket.
pub(super) struct Forward {
    pub config: ModelConfig,
    pub program: ModelProgram,
    pub kernels: Kernels,
    /// Base of the weights arena.
    pub weights: DevicePtr,
    pub workspace: Workspace,
    /// Columns of a block table.
    pub table_columns: u32,
    /// One view a layer.
    pub kv_views: Vec<KvView>,
}

impl Forward {
    /// The block table of each layer group and its columns, as table updates name them.
    pub fn tables(&self) -> ([DevicePtr; 8], [u32; 8]) {
        let (mut tables, mut strides) = ([DevicePtr::NULL; 8], [0; 8]);
        for (group, table) in self.workspace.block_tables.iter().enumerate() {
            tables[group] = *table;
            strides[group] = self.table_columns;
        }
        (tables, strides)
    }

    /// Issues the pass of a bucket. Rows beyond the step's own counts do nothing.
    pub fn issue(&self, stream: &Stream, layout: &StepLayout) -> Result<(), EngineError> {
        self.issue_layers(stream, layout, None)?;
        self.issue_outputs(stream, layout, LastBranch::Pending)
    }

    /// Issues everything up to the last layer's branch, which is not added to `residual` yet.
    pub fn issue_layers(
        &self,
        stream: &Stream,
        layout: &StepLayout,
        mut tap: Option<Tap>,
    ) -> Result<(), EngineError> {
        let pass = self.pass(stream, layout);
        pass.update_tables()?;
        for step in &self.program.prologue {
            pass.run(step)?;
            if let (Step::Embed { .. }, Some(tap)) = (step, tap.as_mut()) {
                tap(stream, TapPoint::Embedded)?;
            }
        }
        for (index, layer) in self.program.layers.iter().enumerate() {
            for step in &layer.steps {
                pass.run(step)?;
                if let (Step::AttentionOutput(_), Some(tap)) = (step, tap.as_mut()) {
                    tap(stream, TapPoint::AttentionOutput)?;
                }
            }
            if let Some(tap) = tap.as_mut() {
                if index + 1 == self.program.layers.len() {
                    // Otherwise fused into the output norm, which leaves `residual` as it is.
                    pass.add_norm(self.workspace.branch, self.program.last_post_norm(), None)?;
                }
                tap(stream, TapPoint::LayerDone)?;
            }
        }
        Ok(())
    }

    /// Issues what follows the layers, for the rows that the step buffer asks for. `residual` and `branch` must hold those of the
    /// last pass; they are left as they are, so this can be repeated for other rows.
    pub fn issue_outputs(
        &self,
        stream: &Stream,
        layout: &StepLayout,
        last: LastBranch,
    ) -> Result<(), EngineError> {
        let pass = self.pass(stream, layout);
        for step in &self.program.epilogue {
            match (step, last) {
                (Step::OutputNorm { next_norm, .. }, LastBranch::Added) => {
                    pass.output_norm(DevicePtr(0), None, *next_norm)?;
                }
                _ => pass.run(step)?,
            }
        }
        Ok(())
    }

    fn pass<'a>(&'a self, stream: &'a Stream, layout: &'a StepLayout) -> Pass<'a> {
        Pass {
            forward: self,
            stream,
            layout,
            step: layout.at(self.workspace.step),
        }
    }
}

/// Whether the last layer's branch is in `residual` already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastBranch {
    /// It is still in `branch`; the output norm adds it on the fly.
    Pending,
    /// A tapped pass added it.
    Added,
}

/// A pass under way.
pub(super) struct Pass<'a> {
    pub forward: &'a Forward,
    pub stream: &'a Stream,
    pub layout: &'a StepLayout,
    pub step: StepPointers,
}

impl Pass<'_> {
    fn run(&self, step: &Step) -> Result<(), KernelError> {
        let workspace = &self.forward.workspace;
        match *step {
            Step::Embed { table, scale } => self.embed(table, scale),
            Step::AddNorm {
                branch,
                post_norm,
                next_norm,
            } => {
                let y = if branch {
                    workspace.branch
                } else {
                    DevicePtr(0)
                };
                self.add_norm(y, post_norm, Some(next_norm))
            }
            Step::OutputNorm {
                post_norm,
                next_norm,
            } => self.output_norm(workspace.branch, post_norm, next_norm),
            Step::Qkv(matrix) => self.linear(matrix, workspace.normed, workspace.qkv),
            Step::AttentionOutput(matrix) => {
                self.linear(matrix, workspace.attention, workspace.branch)
            }
            Step::GateUp(matrix) => self.linear(matrix, workspace.normed, workspace.gate_up),
            Step::Down(matrix) => self.linear(matrix, workspace.activated, workspace.branch),
            Step::LmHead(matrix) => self.lm_head(matrix),
            Step::GatedActivation(activation) => self.gated_activation(activation),
            Step::Argmax => self.argmax(),
            Step::RopeAppend {
                layer,
                q_norm,
                k_norm,
            } => self.rope_append(layer, q_norm, k_norm),
            Step::Attention(layer) => match self.layout.bucket.phase {
                Phase::Decode => self.decode_attention(layer),
                Phase::Prefill => self.prefill_attention(layer),
            },
        }
    }
}
