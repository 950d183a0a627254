//! What a caller may choose, and what follows from it: bucket lists and limits.

use serde::Serialize;

use super::EngineError;
use crate::kernels::Phase;
use crate::kv::Policy;
use crate::kv::eligibility::Role;

/// Tokens a page holds at most, and every power of two below.
const MAX_PAGE_TOKENS: u32 = 256;

/// Choices of one engine. `Default` suits the bundled model on any device.
#[derive(Clone, Debug, Serialize)]
pub struct EngineOptions {
    /// Tokens of one KV page: a power of two, at most 256.
    pub page_size: u32,
    /// Bytes left free on the device when everything is mapped.
    pub headroom_bytes: u64,
    /// Runs every step without graphs, for comparison. The pools are then sized without knowing what capture takes.
    pub eager: bool,
    /// Sequences that may be resident at once: rows of the block tables, largest decode bucket.
    pub max_seqs: u32,
    /// Longest sequence, prompt and generated tokens together; the model's own limit where this is `None`.
    pub max_model_len: Option<u32>,
    /// Prompt tokens of one step at most: largest prefill bucket.
    pub max_chunk_tokens: u32,
    /// Tokens a request may generate before its admission is looked at again. A request is admitted when its prompt and this
    /// many more fit; where the next ones do not fit, the youngest request is preempted and recomputed later, with the same result.
    /// `u32::MAX` admits a request only with room for all it may generate, and never preempts one for want of it.
    pub admit_new_tokens: u32,
    /// Keeps the pages of prompts, so that a prompt which begins like an earlier one is computed from where they part. What a
    /// request gets is the same, bit for bit; the pages are given up when others need them.
    pub prefix_cache: bool,
    /// How the slabs of the carve are shared out among the pools.
    pub policy: Policy,
    /// What the engine is for; only the graphs of that are captured. What else comes is run without graphs, with the same result.
    pub role: Role,
    /// No more KV than so many resident tokens can fill.
    pub max_kv_tokens: Option<u64>,
    /// Maps the memory of the weights but reads none of the checkpoint's tensors, and captures graphs without computing anything:
    /// what a device holds of a large model, in a moment. Tokens mean nothing then.
    pub dummy_weights: bool,
    /// Upper bound on KV bytes, for tests and for sharing a device.
    pub kv_limit_bytes: Option<u64>,
    /// Batch sizes for which a decode graph is captured; powers of two up to `max_seqs` where this is `None`.
    pub decode_buckets: Option<Vec<u32>>,
    /// Token counts for which a prefill graph is captured; powers of four from 16 up to `max_chunk_tokens` where this is `None`.
    pub prefill_buckets: Option<Vec<u32>>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            page_size: 16,
            headroom_bytes: 0,
            eager: false,
            max_seqs: 32,
            max_model_len: None,
            max_chunk_tokens: 1024,
            admit_new_tokens: 256,
            prefix_cache: true,
            policy: Policy::Dynamic,
            role: Role::Both,
            max_kv_tokens: None,
            dummy_weights: false,
            kv_limit_bytes: None,
            decode_buckets: None,
            prefill_buckets: None,
        }
    }
}

/// Limits and bucket lists, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub max_seqs: u32,
    pub max_model_len: u32,
    pub max_chunk_tokens: u32,
    /// Ascending; the last is `max_seqs`.
    pub decode_buckets: Vec<u32>,
    /// Ascending; the last is `max_chunk_tokens`.
    pub prefill_buckets: Vec<u32>,
}

impl EngineOptions {
    /// Whether the graphs of a phase are captured.
    pub(super) fn captures(&self, phase: Phase) -> bool {
        let other = match phase {
            Phase::Prefill => Role::Decode,
            Phase::Decode => Role::Prefill,
        };
        !self.eager && self.role != other
    }

    /// Checks the options against a model's own limit.
    pub(super) fn limits(&self, max_position_embeddings: u32) -> Result<Limits, EngineError> {
        let bad = |option: &'static str, found: u64, expected: String| EngineError::Option {
            option,
            found,
            expected,
        };
        if !self.page_size.is_power_of_two() || self.page_size > MAX_PAGE_TOKENS {
            let expected = format!("a power of two from 1 to {MAX_PAGE_TOKENS}");
            return Err(bad("page_size", self.page_size.into(), expected));
        }
        if !(1..=4096).contains(&self.max_seqs) {
            return Err(bad(
                "max_seqs",
                self.max_seqs.into(),
                "1 to 4096".to_owned(),
            ));
        }
        if !(1..=65_536).contains(&self.max_chunk_tokens) {
            return Err(bad(
                "max_chunk_tokens",
                self.max_chunk_tokens.into(),
                "1 to 65536".to_owned(),
            ));
        }
        if self.admit_new_tokens == 0 {
            return Err(bad("admit_new_tokens", 0, "at least 1".to_owned()));
        }
        let max_model_len = self.max_model_len.unwrap_or(max_position_embeddings);
        if !(1..=max_position_embeddings).contains(&max_model_len) {
            let expected =
                format!("1 to the model's max_position_embeddings, {max_position_embeddings}");
            return Err(bad("max_model_len", max_model_len.into(), expected));
        }
        let max_chunk_tokens = self.max_chunk_tokens.min(max_model_len);
        Ok(Limits {
            max_seqs: self.max_seqs,
            max_model_len,
            max_chunk_tokens,
            decode_buckets: buckets(
                "decode_buckets",
                self.decode_buckets.as_deref(),
                1,
                2,
                self.max_seqs,
            )?,
            prefill_buckets: buckets(
                "prefill_buckets",
                self.prefill_buckets.as_deref(),
                16,
                4,
                max_chunk_tokens,
            )?,
        })
    }
}

/// An ascending bucket list that ends with `largest`: the caller's, or `first * factor^i`.
fn buckets(
    option: &'static str,
    chosen: Option<&[u32]>,
    first: u32,
    factor: u32,
    largest: u32,
) -> Result<Vec<u32>, EngineError> {
    let mut list: Vec<u32> = match chosen {
        Some(list) => {
            if let Some(found) = list.iter().find(|bucket| !(1..=largest).contains(*bucket)) {
                let expected = format!("1 to {largest} in every entry");
                return Err(EngineError::Option {
                    option,
                    found: u64::from(*found),
                    expected,
                });
            }
            list.to_vec()
        }
        None => std::iter::successors(Some(first), |bucket| bucket.checked_mul(factor))
            .take_while(|bucket| *bucket < largest)
            .collect(),
    };
    list.push(largest);
    list.sort_unstable();
    list.dedup();
    Ok(list)
}

/// The smallest bucket that holds `rows`.
pub(super) fn bucket_for(buckets: &[u32], rows: u32) -> Option<u32> {
    buckets.iter().copied().find(|bucket| *bucket >= rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_end_with_the_limit() {
        let limits = EngineOptions::default()
            .limits(2048)
            .expect("defaults are valid");
        assert_eq!(limits.decode_buckets, [1, 2, 4, 8, 16, 32]);
        assert_eq!(limits.prefill_buckets, [16, 64, 256, 1024]);
        let options = EngineOptions {
            max_seqs: 5,
            max_chunk_tokens: 100,
            ..EngineOptions::default()
        };
        let limits = options.limits(2048).expect("valid");
        assert_eq!(limits.decode_buckets, [1, 2, 4, 5]);
        assert_eq!(limits.prefill_buckets, [16, 64, 100]);
        let limits = options.limits(10).expect("valid");
        assert_eq!(
            (limits.max_chunk_tokens, limits.prefill_buckets),
            (10, vec![10])
        );
        assert_eq!(bucket_for(&[1, 2, 4], 3), Some(4));
        assert_eq!(bucket_for(&[1, 2, 4], 5), None);
    }

    #[test]
    fn bad_options_name_themselves() {
        let message =
            |options: EngineOptions| options.limits(2048).expect_err("is refused").to_string();
        let base = EngineOptions::default;
        for (options, words) in [
            (
                EngineOptions {
                    page_size: 0,
                    ..base()
                },
                ["page_size", "0"],
            ),
            (
                EngineOptions {
                    page_size: 24,
                    ..base()
                },
                ["page_size", "24"],
            ),
            (
                EngineOptions {
                    page_size: 512,
                    ..base()
                },
                ["page_size", "512"],
            ),
            (
                EngineOptions {
                    max_seqs: 0,
                    ..base()
                },
                ["max_seqs", "0"],
            ),
            (
                EngineOptions {
                    max_model_len: Some(4096),
                    ..base()
                },
                ["max_model_len", "4096"],
            ),
            (
                EngineOptions {
                    max_chunk_tokens: 0,
                    ..base()
                },
                ["max_chunk_tokens", "0"],
            ),
            (
                EngineOptions {
                    decode_buckets: Some(vec![64]),
                    ..base()
                },
                ["decode_buckets", "64"],
            ),
        ] {
            let message = message(options);
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
        }
    }
}
