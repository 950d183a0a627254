//! Models: `config.json`, safetensors, the tokenizer, and the layer program of each family.
//!
//! | module | what |
//! |---|---|
//! | [`config`](ModelConfig) | sizes and constants, from both generations of Hugging Face configurations |
//! | [`family`](Family) | what an architecture name implies |
//! | [`checkpoint`](Checkpoint) | safetensors files through memory maps |
//! | `tokenizer` | text to ids and back (feature `text`) |

mod checkpoint;
mod config;
mod error;
mod family;
mod program;
mod rope;
#[cfg(feature = "text")]
mod tokenizer;
mod weights;

pub use checkpoint::{Checkpoint, TensorRef};
pub use config::ModelConfig;
pub use error::ModelError;
pub use family::{Activation, FAMILIES, Family};
pub use program::{LayerProgram, ModelProgram, Step};
pub use rope::{Rope, RopeScaling};
#[cfg(feature = "text")]
pub use tokenizer::{TextStream, Tokenizer};
pub use weights::{LayerWeights, Matrix, Piece, Vector, WeightLayout};
