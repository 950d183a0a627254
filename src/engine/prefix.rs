//! Prompts that begin like earlier ones: what is taken from the prefix tree, and what is put into it.
//!
//! Only prompts are cached, as prefill wrote them. A generated token's keys come from the decode kernels, which add in another order, so
//! they would not be, bit for bit, what a prompt with the same tokens computes (I13).
//!
//! A windowed group keeps only what the next query sees, so a prompt's windows must be put into the tree at the moment it stands at a
//! boundary. Where that matters, its prefill stops there: at its last whole block, and where it parts from cached prompts that left no
//! window, which other prompts are likely to do as well.

use crate::kv::{AllocatorError, KvError, PrefixCounters, SequenceId};

use super::EngineError;
use super::runner::{Runner, admitted};
use super::serve::Engine;

/// A sequence that was admitted for a prompt.
#[derive(Clone, Debug)]
pub(super) struct Started {
    pub sequence: SequenceId,
    /// Tokens whose pages were cached.
    pub cached_tokens: u32,
    /// Tokens of the prompt at which it is put into the tree, ascending.
    pub stops: Vec<u32>,
}

impl Runner {
    /// Admits a sequence of at most `max_tokens` tokens that begins with `prompt`; `None` while others hold too much.
    pub fn start_prompt(
        &mut self,
        prompt: &[u32],
        max_tokens: u32,
    ) -> Result<Option<Started>, EngineError> {
        let Some(tree) = &mut self.prefixes else {
            let started = self.start(max_tokens)?.map(|sequence| Started {
                sequence,
                cached_tokens: 0,
                stops: Vec::new(),
            });
            return Ok(started);
        };
        let (prefix, known_tokens) = tree.peek(prompt);
        let created = self
            .sequences
            .create_with_prefix(max_tokens, &prefix, &mut self.updates);
        let Some(sequence) = admitted(created)? else {
            return Ok(None);
        };
        let mut stops = Vec::new();
        if prompt.is_empty() {
            // A look inside, which leaves the cache alone.
        } else if self.windows.iter().all(Option::is_none) {
            // Pages of full groups are there whenever they are asked for.
            stops.push(prompt.len() as u32);
        } else {
            stops.extend([known_tokens, tree.last_boundary(prompt)]);
            stops.retain(|stop| *stop > prefix.tokens);
            stops.dedup();
        }
        if !prompt.is_empty() {
            tree.lookup(prompt);
        }
        self.note_updates();
        Ok(Some(Started {
            sequence,
            cached_tokens: prefix.tokens,
            stops,
        }))
    }

    /// Caches the prompt of a sequence, which has settled those tokens and no more.
    pub fn cache_prompt(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
    ) -> Result<(), EngineError> {
        let Some(tree) = &mut self.prefixes else {
            return Ok(());
        };
        match tree.insert(&mut self.sequences, sequence, tokens) {
            // A page that ends more cached windows than can be counted: this prompt is not cached, and nothing is lost.
            Err(KvError::Allocator(AllocatorError::Shared { .. })) => Ok(()),
            inserted => Ok(inserted?),
        }
    }
}

impl Engine {
    /// What the prefix cache has done so far: hits, misses by reason, evictions by pool, tokens saved; `None` when it is switched off.
    pub fn prefix_counters(&self) -> Option<&PrefixCounters> {
        Some(self.runner.prefixes.as_ref()?.counters())
    }

    /// Lets go of every cached prefix. Pages that running requests use stay theirs.
    ///
    /// # Errors
    /// An earlier step failed.
    pub fn clear_prefix_cache(&mut self) -> Result<(), EngineError> {
        self.check_usable()?;
        self.runner.clear_prefixes()?;
        Ok(())
    }
}
