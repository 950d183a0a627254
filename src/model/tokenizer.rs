//! Text to token ids and back, through `tokenizer.json`.

use std::path::Path;

use super::{ModelConfig, ModelError};

/// The tokenizer of a model folder.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    bos_token: Option<u32>,
}

impl Tokenizer {
    /// Loads `tokenizer.json` of a model folder, and the start token from its `config.json`.
    ///
    /// # Errors
    /// A file is missing or does not parse.
    pub fn from_dir(dir: &Path) -> Result<Tokenizer, ModelError> {
        let bos_token = ModelConfig::from_dir(dir)?.bos_token;
        let path = dir.join("tokenizer.json");
        let bytes = std::fs::read(&path).map_err(|source| ModelError::Io {
            path: path.clone(),
            source,
        })?;
        let inner =
            tokenizers::Tokenizer::from_bytes(&bytes).map_err(|error| ModelError::Tokenizer {
                path,
                detail: error.to_string(),
            })?;
        Ok(Tokenizer { inner, bos_token })
    }

    /// Encodes a prompt: the tokenizer's own post-processing, and the model's `bos` first where that left it out.
    ///
    /// # Errors
    /// The tokenizer refuses the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        let encoding = self
            .inner
            .encode_fast(text, true)
            .map_err(|error| ModelError::Text {
                detail: error.to_string(),
            })?;
        let mut ids = encoding.get_ids().to_vec();
        if let Some(bos) = self.bos_token.filter(|bos| ids.first() != Some(bos)) {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// Decodes token ids, special tokens left out.
    ///
    /// # Errors
    /// The tokenizer's decoder fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String, ModelError> {
        self.inner
            .decode(ids, true)
            .map_err(|error| ModelError::Text {
                detail: error.to_string(),
            })
    }

    /// A decoder for one sequence that is generated token by token.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream {
            tokenizer: self,
            ids: Vec::new(),
            context: 0,
            read: 0,
        }
    }
}

/// Incremental decoding of one sequence: what it hands out, joined, is the decoded text, and no piece ends inside a character.
///
/// Only a short tail is decoded again for each token: `ids[context..read]` has been handed out and is kept because decoders
/// look at what stands before (leading spaces); `ids[read..]` is pending.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    ids: Vec<u32>,
    context: usize,
    read: usize,
}

impl TextStream<'_> {
    /// Adds one token; returns the text that became certain, empty while a character is incomplete.
    ///
    /// # Errors
    /// The tokenizer's decoder fails.
    pub fn push(&mut self, token: u32) -> Result<String, ModelError> {
        self.ids.push(token);
        self.advance(false)
    }

    /// Ends the sequence; returns what was held back, incomplete characters as U+FFFD.
    ///
    /// # Errors
    /// The tokenizer's decoder fails.
    pub fn finish(mut self) -> Result<String, ModelError> {
        self.advance(true)
    }

    fn advance(&mut self, last: bool) -> Result<String, ModelError> {
        let before = self.tokenizer.decode(&self.ids[self.context..self.read])?;
        let now = self.tokenizer.decode(&self.ids[self.context..])?;
        // Decoders write U+FFFD for bytes that do not (yet) make up a character.
        if now.len() <= before.len() || (now.ends_with('\u{FFFD}') && !last) {
            return Ok(String::new());
        }
        let piece = now.get(before.len()..).unwrap_or_default().to_owned();
        self.context = self.read;
        self.read = self.ids.len();
        Ok(piece)
    }
}
