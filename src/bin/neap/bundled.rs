//! The model that comes with neap, for a first run without arguments.

use std::path::{Path, PathBuf};

use crate::report::CommandError;

/// The bundled model's folder below the root of the crate.
const FOLDER: &str = "models/gemma3-tiny-kjv";

/// A prompt that suits it: it has read one book.
pub const PROMPT: &str = "In the beginning";

/// `given`, or the bundled model: beside the executable or above it (`target/release/neap`), where the crate was
/// built, or in the current folder.
///
/// # Errors
/// `Refused` when no model is named and none of these folders holds the bundled one.
pub fn model_or_bundled(given: Option<&Path>) -> Result<PathBuf, CommandError> {
    if let Some(model) = given {
        return Ok(model.to_owned());
    }
    let executable = std::env::current_exe().ok();
    let above_executable = executable
        .iter()
        .flat_map(|path| path.ancestors().skip(1).take(4).map(Path::to_owned));
    let roots = above_executable.chain([
        PathBuf::from(env!("CARGO_MANIFEST_DIR")),
        PathBuf::from("."),
    ]);
    let tried: Vec<PathBuf> = roots.map(|root| root.join(FOLDER)).collect();
    tried.iter().find(|folder| folder.join("config.json").is_file()).cloned().ok_or_else(|| {
        CommandError::Refused(format!(
            "the bundled model ({FOLDER}) is neither beside this program nor in the current folder; name a model folder: neap run MODEL"
        ))
    })
}
