//! The layer program: the fused steps of one forward pass, as data.
//!
//! A step names its weights; its inputs and outputs are the workspace buffers of the same name:
//!
//! | buffer | shape, dtype |
//! |---|---|
//! | `residual` | `[tokens, hidden]` f32 |
//! | `normed` | `[tokens, hidden]` bf16 |
//! | `qkv` | `[tokens, (num_q_heads + 2 num_kv_heads) * head_dim]` f32 |
//! | `attention` | `[tokens, num_q_heads * head_dim]` bf16 |
//! | `branch` | `[tokens, hidden]` f32: what the attention or MLP adds to the residual stream |
//! | `gate_up` | `[tokens, 2 * intermediate]` f32 |
//! | `activated` | `[tokens, intermediate]` bf16 |
//! | `outputs` | `[output rows, hidden]` bf16, final-normed rows whose logits are wanted |
//! | `logits` | `[output rows, vocab]` f32 |
//! | `sampled` | `[output rows]` i32 |

use crate::kv::{self, AttentionKind, Geometry};

use super::{Activation, Matrix, ModelConfig, ModelError, Rope, Vector, WeightLayout};

/// One fused step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// `residual = embed[token] * scale`.
    Embed {
        /// The embedding matrix.
        table: Matrix,
        /// The factor.
        scale: f32,
    },
    /// `residual += post_norm(branch)` where there is a branch, then `normed = next_norm(residual)`.
    AddNorm {
        /// Whether the branch is added; the first norm of a pass has none yet.
        branch: bool,
        /// The norm on the branch, where the family has one.
        post_norm: Option<Vector>,
        /// The norm that feeds the next projection.
        next_norm: Vector,
    },
    /// The last norm, for the rows whose logits are wanted: `outputs = next_norm(residual + post_norm(branch))`; `residual` stays.
    OutputNorm {
        /// The norm on the last branch, where the family has one.
        post_norm: Option<Vector>,
        /// The model's final norm.
        next_norm: Vector,
    },
    /// `qkv = normed . W^T`.
    Qkv(Matrix),
    /// q and k are normed per head where the family does so and rotated; k and v go to the pages (decode) or to activations
    /// and then to the pages (prefill).
    RopeAppend {
        /// Index into [`ModelProgram::layers`].
        layer: usize,
        /// The norm on q heads.
        q_norm: Option<Vector>,
        /// The norm on k heads.
        k_norm: Option<Vector>,
    },
    /// `attention = softmax(q . k * sm_scale) . v`, causal, inside the window of the layer of that index.
    Attention(usize),
    /// `branch = attention . W^T`.
    AttentionOutput(Matrix),
    /// `gate_up = normed . W^T`.
    GateUp(Matrix),
    /// `activated = act(gate) * up`.
    GatedActivation(Activation),
    /// `branch = activated . W^T`.
    Down(Matrix),
    /// `logits = outputs . W^T`, soft-capped where the model says so.
    LmHead(Matrix),
    /// `sampled = argmax(logits)`, the lowest id on ties.
    Argmax,
}

/// The steps of one decoder layer and what its attention needs to know.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerProgram {
    /// Index into [`Geometry::groups`].
    pub group: usize,
    /// The layer's place among the layers of its group.
    pub layer_in_group: u32,
    /// Keys a query sees, itself included; `None` sees all.
    pub window: Option<u32>,
    /// Index into [`ModelProgram::ropes`].
    pub rope: usize,
    /// The fused steps, in order.
    pub steps: Vec<Step>,
}

/// One forward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelProgram {
    /// Embedding and the first norm.
    pub prologue: Vec<Step>,
    /// One entry a layer.
    pub layers: Vec<LayerProgram>,
    /// Final norm, output head, greedy choice.
    pub epilogue: Vec<Step>,
    /// The distinct RoPE tables.
    pub ropes: Vec<Rope>,
}

impl ModelProgram {
    /// Lays out the steps of a model.
    ///
    /// # Errors
    /// A layer group's retention rule has no attention kernel yet, or the groups do not cover every layer once.
    pub fn new(
        config: &ModelConfig,
        geometry: &Geometry,
        weights: &WeightLayout,
    ) -> Result<ModelProgram, ModelError> {
        let field = |found: String, expected: &str| ModelError::Field {
            path: config.path.clone(),
            field: "layer_types".to_owned(),
            found,
            expected: expected.to_owned(),
        };
        // RoPE follows the layer's own kind: a window as long as the model's limit joins the full group and keeps its base.
        let specs =
            kv::config::layer_specs(&config.text).map_err(|source| ModelError::Geometry {
                path: config.path.clone(),
                source,
            })?;
        let ropes = vec![config.rope_full, config.rope_sliding];

        let mut layers = Vec::with_capacity(weights.layers.len());
        for (index, layer) in weights.layers.iter().enumerate() {
            let (Some((group, layer_in_group)), Some(spec)) =
                (geometry.locate(index as u32), specs.get(index))
            else {
                return Err(field(
                    format!("without an entry for layer {index}"),
                    "one entry a layer",
                ));
            };
            let rope = match spec.kind {
                AttentionKind::Full => 0,
                AttentionKind::Sliding { .. } => 1,
                other => {
                    return Err(field(
                        format!("{other:?} for layer {index}"),
                        "full or sliding-window attention; other kinds can be sized but have no kernel yet",
                    ));
                }
            };
            let window = geometry.group(group).kind.window();
            let mut steps = vec![
                Step::Qkv(layer.qkv),
                Step::RopeAppend {
                    layer: index,
                    q_norm: layer.q_norm,
                    k_norm: layer.k_norm,
                },
                Step::Attention(index),
                Step::AttentionOutput(layer.output),
                Step::AddNorm {
                    branch: true,
                    post_norm: layer.post_attention_norm,
                    next_norm: layer.pre_mlp_norm,
                },
                Step::GateUp(layer.gate_up),
                Step::GatedActivation(config.activation),
                Step::Down(layer.down),
            ];
            // The add after the last layer belongs to the output norm, which runs on the wanted rows only.
            if let Some(next) = weights.layers.get(index + 1) {
                steps.push(Step::AddNorm {
                    branch: true,
                    post_norm: layer.post_mlp_norm,
                    next_norm: next.input_norm,
                });
            }
            layers.push(LayerProgram {
                group: group.index(),
                layer_in_group,
                window,
                rope,
                steps,
            });
        }
        let (Some(first), Some(last)) = (weights.layers.first(), weights.layers.last()) else {
            return Err(field("empty".to_owned(), "at least one layer"));
        };
        Ok(ModelProgram {
            prologue: vec![
                Step::Embed {
                    table: weights.embed,
                    scale: config.embed_scale,
                },
                Step::AddNorm {
                    branch: false,
                    post_norm: None,
                    next_norm: first.input_norm,
                },
            ],
            epilogue: vec![
                Step::OutputNorm {
                    post_norm: last.post_mlp_norm,
                    next_norm: weights.final_norm,
                },
                Step::LmHead(weights.lm_head),
                Step::Argmax,
            ],
            layers,
            ropes,
        })
    }

    /// The norm on the last layer's MLP output, where the family has one.
    pub fn last_post_norm(&self) -> Option<Vector> {
        self.epilogue.iter().find_map(|step| match step {
            Step::OutputNorm { post_norm, .. } => *post_norm,
            _ => None,
        })
    }
}
