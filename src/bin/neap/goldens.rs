//! Reference logits for `neap selftest`: the few that are built in, or a folder of them.

use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use serde::Deserialize;

use crate::report::CommandError;

/// What a reference implementation says about one prompt.
#[derive(Clone, Debug, Deserialize)]
pub struct Golden {
    /// The prompt's name.
    pub name: String,
    /// Largest logit error of the reference's own bf16 run at the last prompt position: the unit of tolerance.
    pub bf16_error: f32,
    /// Prompt ids.
    pub prompt: Vec<u32>,
    /// The reference's greedy continuation.
    pub decoded: Vec<u32>,
    /// For each step the largest logits as (id, logit), sorted.
    pub top: Vec<Vec<(u32, f32)>>,
}

/// How a run compares with one golden.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Largest difference to a golden logit.
    pub worst: f32,
    /// Steps at which the difference is within the tolerance.
    pub steps_within: usize,
    /// Steps whose golden margin is wide enough to demand the same first token.
    pub judged: usize,
    /// Judged steps with the same first token.
    pub same_first: usize,
}

/// The tolerance in units of the reference's own bf16 error.
pub const TOLERANCE: f32 = 1.5;

impl Golden {
    /// The continuation to force, so that one row of logits comes out for each step.
    pub fn forced(&self) -> &[u32] {
        &self.decoded[..self.top.len() - 1]
    }

    /// Compares one row of logits a step; `allowed` is the largest difference accepted.
    pub fn compare(&self, rows: &[Vec<f32>], allowed: f32) -> Comparison {
        let mut comparison = Comparison::default();
        for (row, top) in rows.iter().zip(&self.top) {
            let difference = top
                .iter()
                .map(|&(id, golden)| {
                    row.get(id as usize)
                        .map_or(f32::INFINITY, |logit| (logit - golden).abs())
                })
                // f32::max would drop a NaN.
                .fold(0.0, |worst: f32, next| {
                    if next > worst || next.is_nan() {
                        next
                    } else {
                        worst
                    }
                });
            comparison.worst = if difference.is_nan() {
                f32::NAN
            } else {
                comparison.worst.max(difference)
            };
            comparison.steps_within += usize::from(difference <= allowed);
            if top[0].1 - top[1].1 > 2.0 * allowed {
                comparison.judged += 1;
                comparison.same_first += usize::from(argmax(row) == Some(top[0].0));
            }
        }
        comparison
    }
}

/// The lowest id of the largest logit.
pub fn argmax(row: &[f32]) -> Option<u32> {
    let best =
        row.iter().enumerate().fold(
            None,
            |best: Option<(usize, f32)>, (id, &logit)| match best {
                Some((_, largest)) if largest >= logit => best,
                _ if logit.is_nan() => best,
                _ => Some((id, logit)),
            },
        );
    best.map(|(id, _)| id as u32)
}

#[derive(Deserialize)]
struct BuiltIn {
    weights_fnv1a64: String,
    prompts: Vec<Golden>,
}

/// The built-in goldens, if `model` holds the weights they belong to.
///
/// # Errors
/// `Refused` when the weights cannot be read.
pub fn built_in(model: &Path) -> Result<Option<Vec<Golden>>, CommandError> {
    let built_in: BuiltIn =
        serde_json::from_str(include_str!("goldens.json")).map_err(CommandError::refused)?;
    let path = model.join("model.safetensors");
    let bytes = fs::metadata(&path).map_or(0, |metadata| metadata.len());
    // Hashing a large checkpoint byte by byte would take a minute, and it is none of ours.
    if bytes == 0 || bytes > 64 << 20 {
        return Ok(None);
    }
    let weights = fs::read(&path).map_err(|error| {
        CommandError::Refused(format!(
            "{} cannot be read ({error}); check its permissions",
            path.display()
        ))
    })?;
    Ok(
        (format!("{:016x}", fnv1a64(&weights)) == built_in.weights_fnv1a64)
            .then_some(built_in.prompts),
    )
}

fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |state, &byte| {
        (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Reads `MODEL.json` and `MODEL.safetensors` of a goldens folder, MODEL being the last part of the model's path.
///
/// # Errors
/// `Refused` names the file and what is wrong with it.
pub fn from_folder(folder: &Path, model: &Path) -> Result<Vec<Golden>, CommandError> {
    let name = model.file_name().unwrap_or(model.as_os_str());
    let about_path = folder.join(name).with_extension("json");
    let tensors_path = folder.join(name).with_extension("safetensors");
    let read = |path: &Path| {
        fs::read(path).map_err(|error| {
            CommandError::Refused(format!(
                "{} cannot be read ({error}); --goldens needs {} and its .safetensors",
                path.display(),
                about_path.display()
            ))
        })
    };
    let wrong = |path: &Path, what: &dyn std::fmt::Display| {
        CommandError::Refused(format!(
            "{} is no goldens file ({what}); fetch it again",
            path.display()
        ))
    };
    let about: serde_json::Value =
        serde_json::from_slice(&read(&about_path)?).map_err(|error| wrong(&about_path, &error))?;
    let data = read(&tensors_path)?;
    let tensors = SafeTensors::deserialize(&data).map_err(|error| wrong(&tensors_path, &error))?;
    let words = |tensor: String| -> Result<Vec<[u8; 4]>, CommandError> {
        let view = tensors
            .tensor(&tensor)
            .map_err(|error| wrong(&tensors_path, &error))?;
        Ok(view.data().as_chunks::<4>().0.to_vec())
    };
    let ids = |tensor: String| -> Result<Vec<u32>, CommandError> {
        Ok(words(tensor)?.into_iter().map(u32::from_le_bytes).collect())
    };
    let prompts = about["prompts"]
        .as_array()
        .ok_or_else(|| wrong(&about_path, &"no list `prompts`"))?;
    let mut goldens = Vec::new();
    for prompt in prompts {
        let name = prompt["name"]
            .as_str()
            .ok_or_else(|| wrong(&about_path, &"a prompt without `name`"))?;
        let error = &about["hf_bf16_run"][name]["max_abs_logit_diff_vs_fp32"];
        let decoded = ids(format!("{name}.decoded_ids"))?;
        let top_ids = ids(format!("{name}.step_topk_ids"))?;
        let top_logits = words(format!("{name}.step_topk_logits"))?;
        let width = top_ids.len() / decoded.len().max(1);
        if width < 2 || top_ids.len() != top_logits.len() {
            return Err(wrong(
                &tensors_path,
                &format!("{name}: step_topk_ids and decoded_ids do not match"),
            ));
        }
        let pairs: Vec<(u32, f32)> = top_ids
            .into_iter()
            .zip(top_logits.into_iter().map(f32::from_le_bytes))
            .collect();
        goldens.push(Golden {
            name: name.to_owned(),
            bf16_error: error
                .as_f64()
                .ok_or_else(|| wrong(&about_path, &format!("{name}: no bf16 error")))?
                as f32,
            prompt: ids(format!("{name}.input_ids"))?,
            decoded,
            top: pairs.chunks(width).map(<[_]>::to_vec).collect(),
        });
    }
    Ok(goldens)
}

#[cfg(test)]
mod tests {
    use super::{Golden, argmax, fnv1a64};

    fn golden() -> Golden {
        Golden {
            name: "two steps".to_owned(),
            bf16_error: 0.1,
            prompt: vec![0],
            decoded: vec![2, 0],
            top: vec![vec![(2, 5.0), (1, 1.0)], vec![(0, 3.0), (1, 2.9)]],
        }
    }

    #[test]
    fn comparing_counts_steps_and_only_judges_clear_margins() {
        let rows = vec![vec![0.0, 1.1, 5.05], vec![2.9, 2.95, 0.0]];
        let comparison = golden().compare(&rows, 0.15);
        assert_eq!(
            (
                comparison.steps_within,
                comparison.judged,
                comparison.same_first
            ),
            (2, 1, 1)
        );
        assert!((comparison.worst - 0.1).abs() < 1e-3);
        let swapped = vec![vec![0.0, 5.0, 1.0], rows[1].clone()];
        let comparison = golden().compare(&swapped, 0.15);
        assert_eq!(
            (
                comparison.steps_within,
                comparison.judged,
                comparison.same_first
            ),
            (1, 1, 0)
        );
    }

    #[test]
    fn nan_is_never_within() {
        let rows = vec![vec![f32::NAN; 3], vec![3.0, 2.9, 0.0]];
        let comparison = golden().compare(&rows, 0.15);
        assert_eq!((comparison.steps_within, comparison.same_first), (1, 0));
    }

    #[test]
    fn ties_go_to_the_lowest_id() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0, f32::NAN]), Some(1));
        assert_eq!(argmax(&[f32::NAN]), None);
    }

    #[test]
    fn fnv1a64_matches_its_published_vectors() {
        assert_eq!(fnv1a64(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a64(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a64(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
