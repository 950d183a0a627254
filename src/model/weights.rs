//! Where every weight stands in the weights arena, and which bytes of the checkpoint go there.

use super::{Checkpoint, ModelConfig, ModelError, TensorRef};

/// Every weight starts at a multiple of this, so that 128-bit loads and tensor-map bases are aligned.
const WEIGHT_ALIGNMENT_BYTES: u64 = 256;

/// A bf16 matrix `[rows, cols]`, row-major and dense: `y = x . W^T` has `rows` outputs from `cols` inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Offset from the weights arena's base, 256-byte aligned.
    pub offset_bytes: u64,
    /// Output width N.
    pub rows: u32,
    /// Input width K.
    pub cols: u32,
}

/// A bf16 vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vector {
    /// Offset from the weights arena's base, 256-byte aligned.
    pub offset_bytes: u64,
    /// Elements.
    pub len: u32,
}

/// The weights of one decoder layer.
#[derive(Clone, Debug)]
pub struct LayerWeights {
    /// `[hidden]`, before attention.
    pub input_norm: Vector,
    /// `[(num_q_heads + 2 num_kv_heads) * head_dim, hidden]`: q rows, then k rows, then v rows.
    pub qkv: Matrix,
    /// `[head_dim]`, where the family norms q.
    pub q_norm: Option<Vector>,
    /// `[head_dim]`, where the family norms k.
    pub k_norm: Option<Vector>,
    /// `[hidden, num_q_heads * head_dim]`.
    pub output: Matrix,
    /// `[hidden]`, on the attention output, where the family has it.
    pub post_attention_norm: Option<Vector>,
    /// `[hidden]`, before the MLP.
    pub pre_mlp_norm: Vector,
    /// `[2 * intermediate, hidden]`: gate rows, then up rows.
    pub gate_up: Matrix,
    /// `[hidden, intermediate]`.
    pub down: Matrix,
    /// `[hidden]`, on the MLP output, where the family has it.
    pub post_mlp_norm: Option<Vector>,
}

/// One contiguous copy from the checkpoint into the weights arena.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The tensor in the checkpoint.
    pub tensor: TensorRef,
    /// Where its first byte goes, from the weights arena's base.
    pub offset_bytes: u64,
}

/// All weights of a model: their places, and the copies that fill them.
#[derive(Clone, Debug)]
pub struct WeightLayout {
    /// `[vocab, hidden]`.
    pub embed: Matrix,
    /// `[vocab, hidden]`; the embedding matrix itself where the two are tied.
    pub lm_head: Matrix,
    /// `[hidden]`, before the output head.
    pub final_norm: Vector,
    /// One entry a layer.
    pub layers: Vec<LayerWeights>,
    /// The copies, in the order of their destinations.
    pub pieces: Vec<Piece>,
    /// Bytes of the weights arena that are used.
    pub total_bytes: u64,
}

impl WeightLayout {
    /// Places every weight the configuration calls for; presence, element type and shape are checked here, before any device
    /// memory is taken.
    ///
    /// # Errors
    /// A tensor is missing, is not bf16, or has the wrong shape.
    pub fn plan(config: &ModelConfig, checkpoint: &Checkpoint) -> Result<WeightLayout, ModelError> {
        let prefix = ["model.", "language_model.model.", "model.language_model."]
            .into_iter()
            .find(|prefix| checkpoint.contains(&format!("{prefix}embed_tokens.weight")))
            .unwrap_or("model.");
        let mut placer = Placer {
            checkpoint,
            pieces: Vec::new(),
            end_bytes: 0,
        };
        let (hidden, vocab) = (config.hidden_size, config.vocab_size);

        let embed = placer.matrix(&[(format!("{prefix}embed_tokens.weight"), vocab)], hidden)?;
        let lm_head = if config.tied_lm_head {
            embed
        } else {
            let name = match prefix {
                "language_model.model." => "language_model.lm_head.weight",
                _ => "lm_head.weight",
            };
            placer.matrix(&[(name.to_owned(), vocab)], hidden)?
        };
        let final_norm = placer.vector(format!("{prefix}norm.weight"), hidden)?;
        let layers = (0..config.num_layers)
            .map(|layer| placer.layer(config, &format!("{prefix}layers.{layer}.")))
            .collect::<Result<_, _>>()?;
        let Placer {
            pieces, end_bytes, ..
        } = placer;
        Ok(WeightLayout {
            embed,
            lm_head,
            final_norm,
            layers,
            pieces,
            total_bytes: end_bytes,
        })
    }
}

/// Hands out places one after the other.
struct Placer<'a> {
    checkpoint: &'a Checkpoint,
    pieces: Vec<Piece>,
    end_bytes: u64,
}

impl Placer<'_> {
    fn layer(&mut self, config: &ModelConfig, prefix: &str) -> Result<LayerWeights, ModelError> {
        let family = config.family;
        let (hidden, intermediate, head_dim) = (
            config.hidden_size,
            config.intermediate_size,
            config.head_dim,
        );
        let name = |name: &str| format!("{prefix}{name}.weight");
        let pre_mlp = if family.post_norms {
            "pre_feedforward_layernorm"
        } else {
            "post_attention_layernorm"
        };

        let input_norm = self.vector(name("input_layernorm"), hidden)?;
        let kv_width = config.num_kv_heads * head_dim;
        let qkv = [
            (name("self_attn.q_proj"), config.attention_width()),
            (name("self_attn.k_proj"), kv_width),
            (name("self_attn.v_proj"), kv_width),
        ];
        let qkv = self.matrix(&qkv, hidden)?;
        let q_norm = self.vector_if(family.qk_norm, name("self_attn.q_norm"), head_dim)?;
        let k_norm = self.vector_if(family.qk_norm, name("self_attn.k_norm"), head_dim)?;
        let output = self.matrix(
            &[(name("self_attn.o_proj"), hidden)],
            config.attention_width(),
        )?;
        let post_attention_norm =
            self.vector_if(family.post_norms, name("post_attention_layernorm"), hidden)?;
        let pre_mlp_norm = self.vector(name(pre_mlp), hidden)?;
        let gate_up = [
            (name("mlp.gate_proj"), intermediate),
            (name("mlp.up_proj"), intermediate),
        ];
        let gate_up = self.matrix(&gate_up, hidden)?;
        let down = self.matrix(&[(name("mlp.down_proj"), hidden)], intermediate)?;
        let post_mlp_norm = self.vector_if(
            family.post_norms,
            name("post_feedforward_layernorm"),
            hidden,
        )?;
        Ok(LayerWeights {
            input_norm,
            qkv,
            q_norm,
            k_norm,
            output,
            post_attention_norm,
            pre_mlp_norm,
            gate_up,
            down,
            post_mlp_norm,
        })
    }

    /// Places tensors of equal width one below the other as a single matrix.
    fn matrix(&mut self, parts: &[(String, u32)], cols: u32) -> Result<Matrix, ModelError> {
        let offset_bytes = self.align();
        let mut total_rows = 0;
        for (name, rows) in parts {
            let tensor = self
                .checkpoint
                .bf16(name, &[*rows as usize, cols as usize])?;
            self.place(tensor);
            total_rows += rows;
        }
        Ok(Matrix {
            offset_bytes,
            rows: total_rows,
            cols,
        })
    }

    fn vector(&mut self, name: String, len: u32) -> Result<Vector, ModelError> {
        let offset_bytes = self.align();
        let tensor = self.checkpoint.bf16(&name, &[len as usize])?;
        self.place(tensor);
        Ok(Vector { offset_bytes, len })
    }

    fn vector_if(
        &mut self,
        wanted: bool,
        name: String,
        len: u32,
    ) -> Result<Option<Vector>, ModelError> {
        if wanted {
            self.vector(name, len).map(Some)
        } else {
            Ok(None)
        }
    }

    fn align(&mut self) -> u64 {
        self.end_bytes = self.end_bytes.next_multiple_of(WEIGHT_ALIGNMENT_BYTES);
        self.end_bytes
    }

    fn place(&mut self, tensor: TensorRef) {
        let bytes = tensor.bytes.len() as u64;
        self.pieces.push(Piece {
            tensor,
            offset_bytes: self.end_bytes,
        });
        self.end_bytes += bytes;
    }
}
