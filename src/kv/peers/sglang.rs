//! SGLang 0.5.23 (`HybridSWAPoolConfigurator`, `DefaultPoolConfigurator`): two pools in a fixed ratio of tokens.

use super::Kind;

/// Families whose sliding layers are priced and stored as full ones (`is_hybrid_swa_model` leaves them out).
const STORED_AS_FULL: [&str; 7] = [
    "exaone4",
    "exaone_moe",
    "gemma2",
    "gemma3",
    "gemma3n",
    "olmo2",
    "olmo3",
];

/// Whether the server keeps windows of this `model_type` as windows.
#[must_use]
pub fn stores_windows(model_type: &str) -> bool {
    let name = model_type.strip_suffix("_text").unwrap_or(model_type);
    !STORED_AS_FULL.contains(&name)
}

/// What the rule depends on besides the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Tokens of the window pool for each token of the full pool.
    pub ratio: f64,
    /// Tokens of a page.
    pub page_tokens: u64,
    /// Tokens of a prefill chunk; two may be in flight.
    pub chunk_tokens: u64,
    /// Tokens between two releases of what has left the window.
    pub eviction_interval: u64,
    /// Full draft layers that are charged together with the model's.
    pub draft_layers: u64,
    /// Whether windows are kept as windows.
    pub stores_windows: bool,
    /// Whether the model's class states its window without the query (gpt-oss, Gemma), so that the server's `window` is one
    /// less than ours.
    pub window_excludes_query: bool,
}

impl Default for Rule {
    fn default() -> Self {
        Self {
            ratio: 0.8,
            page_tokens: 1,
            chunk_tokens: 8_192,
            eviction_interval: 128,
            draft_layers: 0,
            stores_windows: true,
            window_excludes_query: true,
        }
    }
}

/// Tokens of the two pools.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// Tokens of the full pool.
    pub full_tokens: u64,
    /// Tokens of the window pool.
    pub swa_tokens: u64,
    /// Bytes that a token is priced at.
    pub cell_bytes: f64,
}

impl Rule {
    fn window(&self, kind: &Kind) -> Option<u64> {
        let window = u64::from(kind.window?);
        Some(if self.window_excludes_query {
            window.saturating_sub(1)
        } else {
            window
        })
    }

    fn floor_page(&self, tokens: f64) -> u64 {
        tokens as u64 / self.page_tokens * self.page_tokens
    }

    /// Tokens of both pools from `budget` bytes; `None` when the window pool would not hold a window and a page.
    #[must_use]
    pub fn split(&self, kinds: &[Kind], budget: u64) -> Option<Split> {
        self.split_capped(kinds, budget, None)
    }

    /// As [`Rule::split`], with at most `cap_tokens` in the full pool (what was reserved before capture).
    #[must_use]
    pub fn split_capped(
        &self,
        kinds: &[Kind],
        budget: u64,
        cap_tokens: Option<u64>,
    ) -> Option<Split> {
        let bytes = |kind: &Kind| (kind.token_bytes() * kind.layers) as f64;
        let (windows, full) = kinds
            .iter()
            .partition::<Vec<_>, _>(|kind| self.stores_windows && kind.window.is_some());
        let full_bytes = full.iter().copied().map(bytes).sum::<f64>();
        let swa_bytes = windows.iter().copied().map(bytes).sum::<f64>();
        let draft = kinds.iter().find(|kind| kind.window.is_none());
        let draft_bytes = draft.map_or(0, |kind| kind.token_bytes() * self.draft_layers) as f64;
        if full.is_empty() {
            let cell_bytes = swa_bytes + draft_bytes;
            return Some(Split {
                full_tokens: 0,
                swa_tokens: self.floor_page((budget as f64 / cell_bytes).floor()),
                cell_bytes,
            });
        }
        let cell_bytes = full_bytes + draft_bytes + self.ratio * swa_bytes;
        let mut full_tokens = self.floor_page((budget as f64 / cell_bytes).floor());
        if let Some(cap) = cap_tokens {
            full_tokens = self.floor_page(full_tokens.min(cap) as f64);
        }
        let swa_tokens = if windows.is_empty() {
            0
        } else {
            self.floor_page(full_tokens as f64 * self.ratio)
        };
        let window = windows.iter().filter_map(|kind| self.window(kind)).max();
        if window.is_some_and(|window| window + self.page_tokens >= swa_tokens) {
            return None;
        }
        Some(Split {
            full_tokens,
            swa_tokens,
            cell_bytes,
        })
    }

    /// Sequences of `tokens` tokens in a split.
    #[must_use]
    pub fn requests(&self, kinds: &[Kind], split: Split, tokens: u64) -> u64 {
        let windows = kinds.iter().filter(|_| self.stores_windows);
        let window = windows.filter_map(|kind| self.window(kind)).max();
        let by_window = |window: u64| {
            let per_request = tokens.min(window + self.eviction_interval + 2 * self.page_tokens);
            split.swa_tokens.saturating_sub(2 * self.chunk_tokens) / per_request.max(1)
        };
        match window {
            None => split.full_tokens / tokens.max(1),
            Some(window) if kinds.iter().all(|kind| kind.window.is_some()) => by_window(window),
            Some(window) => (split.full_tokens / tokens.max(1)).min(by_window(window)),
        }
    }

    /// Tokens of the window pool that so many requests need at most (`SWARequestCapPoolConfigurator`).
    #[must_use]
    pub fn swa_tokens_for(&self, kinds: &[Kind], requests: u64) -> u64 {
        let window = kinds
            .iter()
            .filter_map(|kind| self.window(kind))
            .max()
            .unwrap_or(0);
        let per_request = window + self.eviction_interval + 2 * self.page_tokens;
        per_request * requests + 2 * self.chunk_tokens + self.page_tokens
    }
}

/// Rows of the table from requests to tokens: half the tokens at most, and by default 512 sequences of full length, from 2,048
/// to 4,096.
#[must_use]
pub fn request_rows(full_tokens: u64, context_tokens: u64, max_running: Option<u64>) -> u64 {
    let by_default = (full_tokens as f64 / context_tokens as f64 * 512.0) as u64;
    max_running
        .unwrap_or(by_default.clamp(2_048, 4_096))
        .min(full_tokens / 2)
}
