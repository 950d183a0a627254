//! Safetensors files, read where they lie through memory maps.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::ModelError;
use super::config::read_json;

/// One tensor of a checkpoint: where its bytes stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorRef {
    /// Index of the shard that holds it.
    pub shard: usize,
    /// Byte range inside the shard's file.
    pub bytes: Range<usize>,
}

/// The safetensors file or files of a model folder, mapped read-only.
///
/// A file that is cut short by another process while it is mapped ends this process with `SIGBUS`, as with any memory map.
pub struct Checkpoint {
    /// The single file, or the index of the shards: named where a tensor is missing.
    root: PathBuf,
    shards: Vec<Shard>,
    tensors: BTreeMap<String, Entry>,
}

struct Shard {
    path: PathBuf,
    map: Mmap,
}

struct Entry {
    at: TensorRef,
    dtype: Dtype,
    shape: Vec<usize>,
}

impl Checkpoint {
    /// Maps `model.safetensors`, or the shards that `model.safetensors.index.json` names, and reads their headers.
    ///
    /// # Errors
    /// A file is missing, cannot be mapped, or is not a complete safetensors file.
    pub fn open(dir: &Path) -> Result<Checkpoint, ModelError> {
        let single = dir.join("model.safetensors");
        let index = dir.join("model.safetensors.index.json");
        if single.exists() || !index.exists() {
            let mut checkpoint = Checkpoint {
                root: single.clone(),
                shards: Vec::new(),
                tensors: BTreeMap::new(),
            };
            checkpoint.add_shard(single)?;
            return Ok(checkpoint);
        }
        let names = shard_names(&index)?;
        let mut checkpoint = Checkpoint {
            root: index,
            shards: Vec::new(),
            tensors: BTreeMap::new(),
        };
        for name in names {
            checkpoint.add_shard(dir.join(name))?;
        }
        Ok(checkpoint)
    }

    fn add_shard(&mut self, path: PathBuf) -> Result<(), ModelError> {
        let io = |source| ModelError::Io {
            path: path.clone(),
            source,
        };
        let file = File::open(&path).map_err(io)?;
        // SAFETY: the map is read-only and private; the type's documentation states what a concurrent truncation does.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        let (header_bytes, metadata) =
            SafeTensors::read_metadata(&map).map_err(|error| ModelError::Safetensors {
                path: path.clone(),
                detail: error.to_string(),
            })?;
        let data_at = 8 + header_bytes;
        let shard = self.shards.len();
        for (name, info) in metadata.tensors() {
            let (begin, end) = info.data_offsets;
            let at = TensorRef {
                shard,
                bytes: data_at + begin..data_at + end,
            };
            self.tensors.insert(
                name,
                Entry {
                    at,
                    dtype: info.dtype,
                    shape: info.shape.clone(),
                },
            );
        }
        self.shards.push(Shard { path, map });
        Ok(())
    }

    /// Whether the checkpoint holds a tensor of that name.
    pub fn contains(&self, tensor: &str) -> bool {
        self.tensors.contains_key(tensor)
    }

    /// Finds a bf16 tensor and checks its shape.
    ///
    /// # Errors
    /// The tensor is absent, is not bf16, or has another shape.
    pub fn bf16(&self, tensor: &str, shape: &[usize]) -> Result<TensorRef, ModelError> {
        let Some(entry) = self.tensors.get(tensor) else {
            return Err(ModelError::MissingTensor {
                path: self.root.clone(),
                tensor: tensor.to_owned(),
                expected: shape.to_vec(),
            });
        };
        let path = || self.shards[entry.at.shard].path.clone();
        if entry.shape != shape {
            return Err(ModelError::Shape {
                path: path(),
                tensor: tensor.to_owned(),
                found: entry.shape.clone(),
                expected: shape.to_vec(),
            });
        }
        if entry.dtype != Dtype::BF16 {
            return Err(ModelError::Dtype {
                path: path(),
                tensor: tensor.to_owned(),
                found: format!("{:?}", entry.dtype),
            });
        }
        Ok(entry.at.clone())
    }

    /// The bytes of a tensor found by [`Checkpoint::bf16`], little-endian bf16, row-major.
    pub fn bytes(&self, tensor: &TensorRef) -> &[u8] {
        &self.shards[tensor.shard].map[tensor.bytes.clone()]
    }
}

/// The distinct file names in an index's `weight_map`, in order.
fn shard_names(index: &Path) -> Result<Vec<String>, ModelError> {
    let value = read_json(index)?;
    let field = |found: &str| ModelError::Field {
        path: index.to_owned(),
        field: "weight_map".to_owned(),
        found: found.to_owned(),
        expected: "an object from tensor names to file names of this folder".to_owned(),
    };
    let map = value
        .get("weight_map")
        .and_then(Value::as_object)
        .ok_or_else(|| field("missing"))?;
    let mut names = Vec::new();
    for file in map.values() {
        let name = file.as_str().ok_or_else(|| field(&file.to_string()))?;
        if name.contains(['/', '\\']) || name.starts_with('.') {
            return Err(field(name));
        }
        names.push(name.to_owned());
    }
    names.sort();
    names.dedup();
    if names.is_empty() {
        return Err(field("empty"));
    }
    Ok(names)
}
