//! vLLM 0.33.0 (`v1/core/kv_cache_planning.py`): one pool of blocks for layer groups that are padded to one size.

use super::Kind;

/// What the rule depends on besides the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Tokens of a block.
    pub block_tokens: u64,
    /// Tokens of one step at most.
    pub max_batched_tokens: u64,
    /// Steps in flight.
    pub concurrent_batches: u64,
}

impl Default for Config {
    /// The API server on a card of 70 to 160 GiB, asynchronous scheduling on.
    fn default() -> Self {
        Self {
            block_tokens: 16,
            max_batched_tokens: 8_192,
            concurrent_batches: 2,
        }
    }
}

/// Layers of one kind that share blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    kind: Kind,
    /// Tokens of this group's block.
    pub block_tokens: u64,
    /// Layers that are really there; the others of the largest group are padding.
    pub layers: u64,
}

/// Blocks and groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Blocks, the null block included.
    pub blocks: u64,
    /// Groups.
    pub groups: Vec<Group>,
    config: Config,
}

impl Plan {
    /// Unifies page sizes, groups layers and counts blocks.
    #[must_use]
    pub fn new(kinds: &[Kind], kv_bytes: u64, config: Config) -> Self {
        let page = |kind: &Kind| kind.token_bytes().saturating_mul(config.block_tokens);
        let largest = kinds.iter().map(page).max().unwrap_or(1).max(1);
        // A smaller page that divides the largest gets more tokens; any other is padded.
        let block_tokens = |kind: &Kind| match page(kind) {
            0 => config.block_tokens,
            page if largest.is_multiple_of(page) => {
                config.block_tokens.saturating_mul(largest / page)
            }
            _ => config.block_tokens,
        };
        let fewest = kinds.iter().map(|kind| kind.layers).min().unwrap_or(1);
        let most = kinds.iter().map(|kind| kind.layers).max().unwrap_or(1);
        let size = if 2 * most < 3 * fewest { most } else { fewest }.max(1);
        let mut groups = Vec::new();
        for kind in kinds {
            let count = kind.layers.div_ceil(size);
            // Layers are dealt round-robin.
            groups.extend((0..count).map(|place| Group {
                kind: *kind,
                block_tokens: block_tokens(kind),
                layers: (kind.layers - place).div_ceil(count),
            }));
        }
        let widest = groups.iter().map(|group| group.layers).max().unwrap_or(1);
        let block_bytes = widest.saturating_mul(largest);
        Self {
            block_bytes,
            blocks: kv_bytes / block_bytes,
            groups,
            config,
        }
    }

    /// Layer slots that hold nothing.
    #[must_use]
    pub fn padding_layers(&self) -> u64 {
        let widest = self
            .groups
            .iter()
            .map(|group| group.layers)
            .max()
            .unwrap_or(0);
        self.groups.iter().map(|group| widest - group.layers).sum()
    }

    /// Blocks that a new sequence of `tokens` tokens is charged: windows with everything that may be in flight.
    #[must_use]
    pub fn admission_blocks(&self, tokens: u64) -> u64 {
        let in_flight = self.config.max_batched_tokens * self.config.concurrent_batches;
        let blocks = self.groups.iter().map(|group| match group.kind.window {
            None => tokens.div_ceil(group.block_tokens),
            Some(window) => {
                let kept = u64::from(window).saturating_sub(1) + in_flight;
                kept.min(tokens).div_ceil(group.block_tokens) + 1
            }
        });
        blocks.sum()
    }

    /// Blocks that a sequence of `tokens` tokens holds in steady decode.
    #[must_use]
    pub fn decode_blocks(&self, tokens: u64) -> u64 {
        let blocks = self.groups.iter();
        blocks
            .map(|group| group.kind.pages(tokens, group.block_tokens))
            .sum()
    }

    /// What it logs as maximum concurrency.
    #[must_use]
    pub fn logged_requests(&self, tokens: u64) -> u64 {
        self.blocks / self.admission_blocks(tokens).max(1)
    }

    /// The capacity that it logs, in tokens, for sequences of `max_len`.
    #[must_use]
    pub fn logged_tokens(&self, max_len: u64) -> u64 {
        let concurrency = self.blocks as f64 / self.admission_blocks(max_len).max(1) as f64;
        (concurrency * max_len as f64) as u64
    }

    /// What versions before the change of the log line report: blocks of a group times the least tokens of a block.
    #[must_use]
    pub fn old_logged_tokens(&self) -> u64 {
        let tokens = self.groups.iter().map(|group| group.block_tokens).min();
        self.blocks / (self.groups.len() as u64).max(1) * tokens.unwrap_or(0)
    }

    /// What its scheduler can keep running: the last sequence to come must find all it is charged, the others hold what
    /// they need.
    #[must_use]
    pub fn running_requests(&self, tokens: u64) -> u64 {
        // One block is the null block.
        let usable = self.blocks.saturating_sub(1);
        match usable.checked_sub(self.admission_blocks(tokens)) {
            Some(rest) => rest / self.decode_blocks(tokens).max(1) + 1,
            None => 0,
        }
    }
}
