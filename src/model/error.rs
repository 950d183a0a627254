//! What can be wrong with a model folder, each case as one sentence.

use std::path::PathBuf;

/// Why a model folder cannot be used.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file of the folder could not be opened, read or mapped.
    #[error(
        "`{}` cannot be read ({source}); a model folder needs config.json, model.safetensors (or its \
         index and shards) and tokenizer.json in the Hugging Face layout", path.display()
    )]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A JSON file does not parse.
    #[error("`{}` is not valid JSON ({source}); fetch the file again", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where the parser stopped.
        source: serde_json::Error,
    },
    /// A configuration field is missing or holds a value that cannot be used.
    #[error("`{}`: field `{field}` is {found}, expected {expected}", path.display())]
    Field {
        /// The configuration file.
        path: PathBuf,
        /// The field, nested ones joined by dots.
        field: String,
        /// What stands there.
        found: String,
        /// What would be accepted.
        expected: String,
    },
    /// The attention geometry cannot be derived from the configuration.
    #[error("`{}`: {source}", path.display())]
    Geometry {
        /// The configuration file.
        path: PathBuf,
        /// The reason.
        source: crate::kv::ConfigError,
    },
    /// No family covers the architecture.
    #[error("`{}`: architecture `{found}` is not supported; this version runs {supported}", path.display())]
    UnsupportedArchitecture {
        /// The configuration file.
        path: PathBuf,
        /// The architecture named there.
        found: String,
        /// Comma-separated supported architectures.
        supported: String,
    },
    /// A safetensors file is damaged or truncated.
    #[error("`{}` is not a complete safetensors file ({detail}); download it again", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What the parser found.
        detail: String,
    },
    /// A tensor that the configuration calls for is absent.
    #[error(
        "`{}` has no tensor `{tensor}`, which config.json calls for (shape {expected:?}); use the \
         weights that belong to this config.json", path.display()
    )]
    MissingTensor {
        /// The safetensors file or index.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shape it should have.
        expected: Vec<usize>,
    },
    /// A tensor has another shape than the configuration says.
    #[error(
        "`{}`: tensor `{tensor}` has shape {found:?}, config.json calls for {expected:?}; use the \
         weights that belong to this config.json", path.display()
    )]
    Shape {
        /// The safetensors file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The shape the configuration calls for.
        expected: Vec<usize>,
    },
    /// A tensor is stored in another element type than bf16.
    #[error(
        "`{}`: tensor `{tensor}` is stored as {found}, expected BF16; convert the checkpoint to \
         bfloat16", path.display()
    )]
    Dtype {
        /// The safetensors file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The element type in the file.
        found: String,
    },
    /// The tokenizer file does not load.
    #[error("`{}` cannot be used as a tokenizer ({detail}); fetch the file again", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What `tokenizers` said.
        detail: String,
    },
    /// Text could not be encoded, or ids could not be decoded.
    #[error("the tokenizer failed ({detail}); check the text or the token ids")]
    Text {
        /// What `tokenizers` said.
        detail: String,
    },
}
