//! A plain host implementation of Gemma 3 text: the oracle's twin.
//!
//! In [`Precision::Float32`] it must agree with Hugging Face's fp32 goldens. In [`Precision::Bfloat16`] it rounds wherever
//! Hugging Face's eager bf16 run stores a bf16 tensor, so its distance from the goldens says how far a sound bf16 run strays,
//! for tensors the goldens hold no such figure for.

use std::path::Path;

use half::bf16;
use neap::model::{Checkpoint, ModelConfig};

/// Where values are rounded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// Stored as f32; products are summed in f64.
    Float32,
    /// Stored as bf16 after every operation; sums as above.
    Bfloat16,
}

impl Precision {
    fn store(self, value: f64) -> f32 {
        match self {
            Precision::Float32 => value as f32,
            Precision::Bfloat16 => bf16::from_f64(value).to_f32(),
        }
    }
}

/// What one layer hands on, each `[tokens, hidden]`.
pub struct LayerStates {
    /// Attention output after `o_proj`, before the post-norm.
    pub attn_out: Vec<f32>,
    /// Residual stream after the layer.
    pub out: Vec<f32>,
}

/// Everything the goldens hold of one pass.
pub struct States {
    pub layers: Vec<LayerStates>,
    pub final_norm: Vec<f32>,
}

/// A model folder's weights on the host.
pub struct Twin {
    config: ModelConfig,
    checkpoint: Checkpoint,
    sliding: Vec<bool>,
    window: usize,
}

impl Twin {
    pub fn load(dir: &Path) -> Twin {
        let config = ModelConfig::from_dir(dir).expect("config.json loads");
        let checkpoint = Checkpoint::open(dir).expect("model.safetensors opens");
        let sliding = config.text["layer_types"].as_array().expect("layer_types");
        let sliding = sliding
            .iter()
            .map(|kind| kind == "sliding_attention")
            .collect();
        let window = config.text["sliding_window"]
            .as_u64()
            .expect("sliding_window") as usize;
        Twin {
            config,
            checkpoint,
            sliding,
            window,
        }
    }

    fn weight(&self, name: &str, shape: &[u32]) -> Vec<f32> {
        let shape: Vec<usize> = shape.iter().map(|size| *size as usize).collect();
        let tensor = self
            .checkpoint
            .bf16(name, &shape)
            .expect("tensor of the expected shape");
        let bytes = self.checkpoint.bytes(&tensor).chunks_exact(2);
        bytes
            .map(|pair| bf16::from_le_bytes([pair[0], pair[1]]).to_f32())
            .collect()
    }

    /// One pass over `ids` with the model's masks, no cache.
    pub fn forward(&self, ids: &[u32], precision: Precision) -> States {
        let config = &self.config;
        let (hidden, head_dim) = (config.hidden_size as usize, config.head_dim as usize);
        let embed = self.weight(
            "model.embed_tokens.weight",
            &[config.vocab_size, config.hidden_size],
        );
        let scale = match precision {
            Precision::Float32 => f64::from(config.embed_scale),
            Precision::Bfloat16 => bf16::from_f32(config.embed_scale).to_f64(),
        };
        let mut residual: Vec<f32> = ids
            .iter()
            .flat_map(|id| &embed[*id as usize * hidden..][..hidden])
            .map(|value| precision.store(f64::from(*value) * scale))
            .collect();

        let mut layers = Vec::new();
        for layer in 0..config.num_layers {
            let name = |suffix: &str| format!("model.layers.{layer}.{suffix}.weight");
            let norm = |x: &[f32], suffix: &str, width: u32| {
                self.rms_norm(x, &self.weight(&name(suffix), &[width]), precision)
            };
            let linear = |x: &[f32], suffix: &str, rows: u32, cols: u32| {
                matmul(
                    x,
                    &self.weight(&name(suffix), &[rows, cols]),
                    cols as usize,
                    precision,
                )
            };
            let (width, q_width) = (config.hidden_size, config.attention_width());
            let kv_width = config.num_kv_heads * config.head_dim;

            let x = norm(&residual, "input_layernorm", width);
            let q = linear(&x, "self_attn.q_proj", q_width, width);
            let k = linear(&x, "self_attn.k_proj", kv_width, width);
            let v = linear(&x, "self_attn.v_proj", kv_width, width);
            let mut q = norm(&q, "self_attn.q_norm", config.head_dim);
            let mut k = norm(&k, "self_attn.k_norm", config.head_dim);
            let sliding = self.sliding[layer as usize];
            let rope = if sliding {
                config.rope_sliding
            } else {
                config.rope_full
            };
            let inv_freq = rope.inv_freq(config.head_dim);
            rotate(&mut q, ids.len(), head_dim, &inv_freq, precision);
            rotate(&mut k, ids.len(), head_dim, &inv_freq, precision);
            let window = if sliding { self.window } else { usize::MAX };
            let attention = self.attention(&q, &k, &v, ids.len(), window, precision);
            let attn_out = linear(&attention, "self_attn.o_proj", width, q_width);
            add(
                &mut residual,
                &norm(&attn_out, "post_attention_layernorm", width),
                precision,
            );

            let x = norm(&residual, "pre_feedforward_layernorm", width);
            let gate = linear(&x, "mlp.gate_proj", config.intermediate_size, width);
            let up = linear(&x, "mlp.up_proj", config.intermediate_size, width);
            let gated: Vec<f32> = gate
                .iter()
                .zip(&up)
                .map(|(gate, up)| {
                    let activated = precision.store(gelu_tanh(f64::from(*gate)));
                    precision.store(f64::from(activated) * f64::from(*up))
                })
                .collect();
            let down = linear(&gated, "mlp.down_proj", width, config.intermediate_size);
            add(
                &mut residual,
                &norm(&down, "post_feedforward_layernorm", width),
                precision,
            );
            layers.push(LayerStates {
                attn_out,
                out: residual.clone(),
            });
        }
        let final_norm = self.weight("model.norm.weight", &[config.hidden_size]);
        States {
            layers,
            final_norm: self.rms_norm(&residual, &final_norm, precision),
        }
    }

    /// Logits `[vocab]` at the last position.
    pub fn last_logits(&self, ids: &[u32], precision: Precision) -> Vec<f32> {
        self.logits(ids, ids.len() - 1, precision)
    }

    /// Logits `[positions from first on, vocab]`.
    pub fn logits(&self, ids: &[u32], first: usize, precision: Precision) -> Vec<f32> {
        let config = &self.config;
        let (vocab, hidden) = (config.vocab_size, config.hidden_size as usize);
        let states = self.forward(ids, precision);
        let head = if config.tied_lm_head {
            "model.embed_tokens.weight"
        } else {
            "lm_head.weight"
        };
        let weight = self.weight(head, &[vocab, config.hidden_size]);
        let mut logits = matmul(
            &states.final_norm[first * hidden..],
            &weight,
            hidden,
            precision,
        );
        if let Some(cap) = config.final_softcap.map(f64::from) {
            for logit in &mut logits {
                *logit = precision.store(cap * (f64::from(*logit) / cap).tanh());
            }
        }
        logits
    }

    /// `x / rms(x) * (1 + weight)` over rows of `weight`'s length.
    fn rms_norm(&self, x: &[f32], weight: &[f32], precision: Precision) -> Vec<f32> {
        let mut out = Vec::with_capacity(x.len());
        for row in x.chunks_exact(weight.len()) {
            let mean = row
                .iter()
                .map(|value| f64::from(*value).powi(2))
                .sum::<f64>()
                / row.len() as f64;
            let scale = (mean + f64::from(self.config.rms_norm_eps)).sqrt().recip();
            let normed = row
                .iter()
                .zip(weight)
                .map(|(value, weight)| f64::from(*value) * scale * (1.0 + f64::from(*weight)));
            out.extend(normed.map(|value| precision.store(value)));
        }
        out
    }

    /// `[tokens, num_q_heads * head_dim]` from q of that shape and k, v of `[tokens, num_kv_heads * head_dim]`.
    fn attention(
        &self,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        tokens: usize,
        window: usize,
        precision: Precision,
    ) -> Vec<f32> {
        let (q_heads, kv_heads) = (
            self.config.num_q_heads as usize,
            self.config.num_kv_heads as usize,
        );
        let head_dim = self.config.head_dim as usize;
        let sm_scale = f64::from(self.config.attention_scale);
        let mut out = vec![0.0; tokens * q_heads * head_dim];
        for position in 0..tokens {
            let first = (position + 1).saturating_sub(window);
            for head in 0..q_heads {
                let kv_head = head * kv_heads / q_heads;
                let query = &q[(position * q_heads + head) * head_dim..][..head_dim];
                let row = |key: usize| (key * kv_heads + kv_head) * head_dim;
                let scores: Vec<f64> = (first..=position)
                    .map(|key| {
                        let dot = precision.store(dot(query, &k[row(key)..][..head_dim]));
                        f64::from(precision.store(f64::from(dot) * sm_scale))
                    })
                    .collect();
                let max = scores.iter().copied().fold(f64::MIN, f64::max);
                let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
                let weights: Vec<f64> = scores
                    .iter()
                    .map(|score| f64::from(precision.store((score - max).exp() / sum)))
                    .collect();
                for dim in 0..head_dim {
                    let sum: f64 = (first..=position)
                        .zip(&weights)
                        .map(|(key, weight)| weight * f64::from(v[row(key) + dim]))
                        .sum();
                    out[(position * q_heads + head) * head_dim + dim] = precision.store(sum);
                }
            }
        }
        out
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(a, b)| f64::from(*a) * f64::from(*b))
        .sum()
}

/// `x . weight^T` for rows of `cols`.
fn matmul(x: &[f32], weight: &[f32], cols: usize, precision: Precision) -> Vec<f32> {
    x.chunks_exact(cols)
        .flat_map(|x| {
            weight
                .chunks_exact(cols)
                .map(move |w| precision.store(dot(x, w)))
        })
        .collect()
}

fn add(residual: &mut [f32], branch: &[f32], precision: Precision) {
    for (value, branch) in residual.iter_mut().zip(branch) {
        *value = precision.store(f64::from(*value) + f64::from(*branch));
    }
}

/// Half-split RoPE on `[tokens, heads * head_dim]`.
fn rotate(x: &mut [f32], tokens: usize, head_dim: usize, inv_freq: &[f32], precision: Precision) {
    let row_len = x.len() / tokens;
    for (position, row) in x.chunks_exact_mut(row_len).enumerate() {
        for head in row.chunks_exact_mut(head_dim) {
            for (pair, inv_freq) in inv_freq.iter().enumerate() {
                let angle = f64::from(position as f32 * inv_freq);
                let (cos, sin) = (
                    f64::from(precision.store(angle.cos())),
                    f64::from(precision.store(angle.sin())),
                );
                let (a, b) = (f64::from(head[pair]), f64::from(head[pair + head_dim / 2]));
                let product = |x: f64, y: f64| f64::from(precision.store(x * y));
                head[pair] = precision.store(product(a, cos) - product(b, sin));
                head[pair + head_dim / 2] = precision.store(product(b, cos) + product(a, sin));
            }
        }
    }
}

fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
}
