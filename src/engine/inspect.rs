//! Looking inside: teacher-forced logits, scores, hidden states. Sequences here live only for the call.

use crate::kernels::Phase;

use super::EngineError;
use super::forward::{LastBranch, TapPoint};
use super::prefix::Started;
use super::runner::{Row, Runner, Segment};
use super::serve::Engine;
use super::step::Bucket;

/// A prompt and the tokens that are to follow it whatever the model says.
#[derive(Clone, Copy, Debug)]
pub struct Forced<'a> {
    /// The prompt, start token included.
    pub prompt: &'a [u32],
    /// The tokens fed after it, one decode step each.
    pub continuation: &'a [u32],
}

/// Intermediate tensors of one pass, row-major f32.
#[derive(Clone, Debug, PartialEq)]
pub struct HiddenStates {
    /// `[tokens, hidden]`: the scaled embedding.
    pub embed: Vec<f32>,
    /// One entry a layer.
    pub layers: Vec<LayerStates>,
    /// `[tokens, hidden]`: after the final norm, as the output head reads it (bf16 values).
    pub final_norm: Vec<f32>,
}

/// Intermediate tensors of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerStates {
    /// `[tokens, hidden]`: attention output after `o_proj`, before the post-norm.
    pub attention_output: Vec<f32>,
    /// `[tokens, hidden]`: the residual stream after the layer.
    pub residual: Vec<f32>,
}

impl Engine {
    /// Logits `[vocab]` at the last prompt position and after each forced token: `1 + continuation` rows.
    ///
    /// # Errors
    /// As [`Engine::logits_for_batch`].
    pub fn logits_for(
        &mut self,
        prompt: &[u32],
        forced: &[u32],
    ) -> Result<Vec<Vec<f32>>, EngineError> {
        let mut rows = self.logits_for_batch(&[Forced {
            prompt,
            continuation: forced,
        }])?;
        Ok(rows.pop().unwrap_or_default())
    }

    /// As [`Engine::logits_for`] for several sequences, whose forced tokens are decoded together, one batch a step.
    ///
    /// # Errors
    /// A prompt is empty, too long or holds an unknown token; the sequences do not fit at once; a driver call fails.
    pub fn logits_for_batch(
        &mut self,
        sequences: &[Forced],
    ) -> Result<Vec<Vec<Vec<f32>>>, EngineError> {
        self.check_usable()?;
        for forced in sequences {
            self.check_prompt(forced.prompt)?;
            self.check_prompt(&[forced.prompt, forced.continuation].concat())?;
        }
        let wanted: Vec<_> = sequences
            .iter()
            .map(|forced| {
                let length = forced.prompt.len() + forced.continuation.len();
                (forced.prompt, length as u32)
            })
            .collect();
        self.with_sequences(&wanted, |runner, started| {
            let mut rows = Vec::with_capacity(started.len());
            for (started, forced) in started.iter().zip(sequences) {
                prefill_all(runner, started, forced.prompt)?;
                rows.push(vec![runner.logits(0)?]);
            }
            let longest = sequences
                .iter()
                .map(|forced| forced.continuation.len())
                .max()
                .unwrap_or(0);
            for step in 0..longest {
                let batch: Vec<usize> = (0..started.len())
                    .filter(|index| step < sequences[*index].continuation.len())
                    .collect();
                let mut draft = runner.draft(Phase::Decode);
                for index in &batch {
                    let forced = &sequences[*index];
                    let position = (forced.prompt.len() + step) as u32;
                    let row = Row {
                        sequence: started[*index].sequence,
                        position,
                        token: forced.continuation[step],
                    };
                    if !runner.add_row(&mut draft, &row)? {
                        return Err(EngineError::Busy {
                            found: sequences.len(),
                            limit: draft.len(),
                        });
                    }
                }
                runner.run(draft)?;
                for (row, index) in batch.into_iter().enumerate() {
                    rows[index].push(runner.logits(row)?);
                }
            }
            Ok(rows)
        })
    }

    /// Negative log-likelihood in nats of each token but the first, given those before it.
    ///
    /// # Errors
    /// As [`Engine::logits_for_batch`].
    pub fn score(&mut self, tokens: &[u32]) -> Result<Vec<f32>, EngineError> {
        self.check_usable()?;
        self.check_prompt(tokens)?;
        // Every token's logits are wanted, so nothing of it may be taken from the prefix cache.
        self.with_sequences(&[(&[], tokens.len() as u32)], |runner, started| {
            let mut nll = Vec::with_capacity(tokens.len());
            let max_chunk_tokens = runner.limits.max_chunk_tokens as usize;
            for (chunk_index, chunk) in tokens.chunks(max_chunk_tokens).enumerate() {
                let position = chunk_index * max_chunk_tokens;
                let segment = Segment {
                    sequence: started[0].sequence,
                    position: position as u32,
                    tokens: chunk,
                    wants_output: true,
                };
                let bucket = prefill_one(runner, &segment)?;
                for_output_slices(
                    runner,
                    bucket,
                    chunk.len(),
                    LastBranch::Pending,
                    |runner, row, output_row| {
                        if let Some(target) = tokens.get(position + row + 1) {
                            nll.push(negative_log_likelihood(
                                &runner.logits(output_row)?,
                                *target as usize,
                            ));
                        }
                        Ok(())
                    },
                )?;
            }
            Ok(nll)
        })
    }

    /// Intermediate tensors of one pass over `tokens`.
    ///
    /// # Errors
    /// The engine runs graphs, `tokens` exceed one pass, or as [`Engine::logits_for_batch`].
    pub fn hidden_states(&mut self, tokens: &[u32]) -> Result<HiddenStates, EngineError> {
        self.check_usable()?;
        if !self.eager {
            return Err(EngineError::NeedsEager);
        }
        self.check_prompt(tokens)?;
        let limit = self.runner.limits.max_chunk_tokens;
        if tokens.len() > limit as usize {
            return Err(EngineError::PassTooLong {
                found: tokens.len(),
                limit,
            });
        }
        self.with_sequences(&[(&[], tokens.len() as u32)], |runner, started| {
            let hidden = runner.forward.config.hidden_size as usize;
            let elements = tokens.len() * hidden;
            let mut states = HiddenStates {
                embed: Vec::new(),
                layers: Vec::new(),
                final_norm: Vec::new(),
            };
            let segment = Segment {
                sequence: started[0].sequence,
                position: 0,
                tokens,
                wants_output: true,
            };
            let (residual, branch) = (
                runner.forward.workspace.residual,
                runner.forward.workspace.branch,
            );
            let mut attention_output = Vec::new();
            let mut draft = runner.draft(Phase::Prefill);
            if !runner.add_segment(&mut draft, &segment)? {
                return Err(EngineError::Busy { found: 1, limit: 0 });
            }
            let bucket = runner.run_tapped(draft, &mut |stream, point| {
                let read = |from| -> Result<Vec<f32>, EngineError> {
                    let mut values = vec![0f32; elements];
                    stream.copy_to_host(bytemuck::cast_slice_mut(&mut values), from)?;
                    Ok(values)
                };
                match point {
                    TapPoint::Embedded => states.embed = read(residual)?,
                    TapPoint::AttentionOutput => attention_output = read(branch)?,
                    TapPoint::LayerDone => states.layers.push(LayerStates {
                        attention_output: std::mem::take(&mut attention_output),
                        residual: read(residual)?,
                    }),
                }
                Ok(())
            })?;
            for_output_slices(
                runner,
                bucket,
                tokens.len(),
                LastBranch::Added,
                |runner, _, output_row| {
                    let mut row = vec![half::bf16::ZERO; hidden];
                    let source = runner
                        .forward
                        .workspace
                        .outputs
                        .add((output_row * hidden * 2) as u64);
                    runner
                        .stream
                        .copy_to_host(bytemuck::cast_slice_mut(&mut row), source)?;
                    states
                        .final_norm
                        .extend(row.into_iter().map(half::bf16::to_f32));
                    Ok(())
                },
            )?;
            Ok(states)
        })
    }

    /// Starts one sequence for each prompt and length, runs `body`, and gives their pages back whatever came of it.
    fn with_sequences<T>(
        &mut self,
        wanted: &[(&[u32], u32)],
        body: impl FnOnce(&mut Runner, &[Started]) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        self.check_awake()?;
        let mut sequences = Vec::with_capacity(wanted.len());
        let mut refused = None;
        for (prompt, length) in wanted {
            match self.runner.start_prompt(prompt, *length) {
                Ok(Some(started)) => sequences.push(started),
                Ok(None) => {
                    refused = Some(EngineError::Busy {
                        found: wanted.len(),
                        limit: sequences.len(),
                    })
                }
                Err(error) => refused = Some(error),
            }
            if refused.is_some() {
                break;
            }
        }
        let result = match refused {
            None => {
                let result = body(&mut self.runner, &sequences);
                self.remember_failure(result)
            }
            Some(error) => Err(error),
        };
        for started in sequences {
            self.runner.sequences.release(started.sequence)?;
        }
        result
    }
}

/// Runs a whole prompt in chunks; afterwards output row 0 holds the logits of its last token.
fn prefill_all(runner: &mut Runner, started: &Started, prompt: &[u32]) -> Result<(), EngineError> {
    let max_chunk_tokens = runner.limits.max_chunk_tokens as usize;
    let mut stops = started.stops.iter().map(|stop| *stop as usize).peekable();
    let mut position = started.cached_tokens as usize;
    while position < prompt.len() {
        let stop = stops.peek().copied().unwrap_or(prompt.len());
        let end = stop.min(position + max_chunk_tokens);
        prefill_one(
            runner,
            &Segment {
                sequence: started.sequence,
                position: position as u32,
                tokens: &prompt[position..end],
                wants_output: end == prompt.len(),
            },
        )?;
        if stops.next_if_eq(&end).is_some() {
            runner.cache_prompt(started.sequence, &prompt[..end])?;
        }
        position = end;
    }
    Ok(())
}

fn prefill_one(runner: &mut Runner, segment: &Segment) -> Result<Bucket, EngineError> {
    let mut draft = runner.draft(Phase::Prefill);
    while !runner.add_segment(&mut draft, segment)? {
        // Nothing is planned yet, so pages may move.
        if !runner.compact()? && !runner.clear_prefixes()? {
            return Err(EngineError::Busy { found: 1, limit: 0 });
        }
    }
    Ok(runner.run(draft)?.0)
}

/// Runs the output head over all token rows of the last prefill step, a slice at a time; `read(runner, token row, output row)`.
fn for_output_slices(
    runner: &mut Runner,
    bucket: Bucket,
    num_rows: usize,
    last: LastBranch,
    mut read: impl FnMut(&mut Runner, usize, usize) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    let rows: Vec<u32> = (0..num_rows as u32).collect();
    for slice in rows.chunks(runner.layouts[&bucket].output_rows as usize) {
        runner.outputs_of_rows(bucket, slice, last)?;
        for (output_row, row) in slice.iter().enumerate() {
            read(runner, *row as usize, output_row)?;
        }
    }
    Ok(())
}

/// `logsumexp(logits) - logits[target]`, summed in f64.
fn negative_log_likelihood(logits: &[f32], target: usize) -> f32 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits
        .iter()
        .map(|logit| f64::from(logit - max).exp())
        .sum();
    (sum.ln() + f64::from(max) - f64::from(logits[target])) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likelihood_of_equal_logits_is_uniform() {
        let nll = negative_log_likelihood(&[3.0; 8], 5);
        assert!((nll - 8f32.ln()).abs() < 1e-6, "{nll}");
        assert!(negative_log_likelihood(&[0.0, 100.0], 1).abs() < 1e-6);
        assert!(negative_log_likelihood(&[f32::NAN, 1.0], 1).is_nan());
    }
}
