//! TensorRT-LLM's two cache managers: equal bytes for each window size (V1), the ratio of a typical batch (V2).

use super::Kind;

/// Tokens of a block in both managers.
const BLOCK_TOKENS: u64 = 32;

/// The first manager (`calculate_max_num_blocks_for_vswa`): one pool for each window size, all of the same bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct V1 {
    pools: Vec<(Kind, u64)>,
}

impl V1 {
    /// Shares `kv_bytes` out among the window sizes; full layers count as a window of `max_len`.
    #[must_use]
    pub fn new(kinds: &[Kind], kv_bytes: u64, max_len: u64) -> Self {
        let window = |kind: &Kind| kind.window.map_or(max_len, u64::from);
        let mut sizes = kinds.iter().map(window).collect::<Vec<_>>();
        sizes.sort_unstable();
        sizes.dedup();
        let share = 1.0 / sizes.len().max(1) as f64;
        let pool = |kind: &Kind| {
            let same = kinds.iter().filter(|other| window(other) == window(kind));
            let token_bytes = same
                .map(|kind| kind.layers * kind.token_bytes())
                .sum::<u64>();
            let blocks = kv_bytes as f64 * share / token_bytes.max(1) as f64 / BLOCK_TOKENS as f64;
            (*kind, blocks as u64)
        };
        Self {
            pools: kinds.iter().map(pool).collect(),
        }
    }

    /// Blocks of each attention type.
    #[must_use]
    pub fn blocks(&self) -> Vec<u64> {
        self.pools.iter().map(|pool| pool.1).collect()
    }

    /// Sequences of `tokens` tokens: the scarcest pool decides.
    #[must_use]
    pub fn requests(&self, tokens: u64) -> u64 {
        let pools = self.pools.iter();
        pools
            .map(|(kind, blocks)| blocks / kind.pages(tokens, BLOCK_TOKENS).max(1))
            .min()
            .unwrap_or(0)
    }
}

/// The second manager: pools in grains of 2 to 32 MiB, types with the same slots in one pool.
#[derive(Clone, Debug, PartialEq)]
pub struct V2 {
    /// Bytes of a grain.
    pub grain_bytes: u64,
    /// Slots of each pool.
    pub slots: Vec<u64>,
    /// Share of the bytes each pool was meant to get.
    pub ratios: Vec<f64>,
    pool_of: Vec<usize>,
    kinds: Vec<Kind>,
}

impl V2 {
    /// Shares `kv_bytes` out by the ratio of a typical batch: one request of 2,049 tokens, or with `average_tokens` 255
    /// decoding requests of that length and one prefill of 8,192.
    #[must_use]
    pub fn new(kinds: &[Kind], kv_bytes: u64, average_tokens: Option<u64>) -> Self {
        const GRAIN: u64 = 2 << 20;
        let steps = (kv_bytes as f64 / (GRAIN * 512) as f64).log2();
        let grain_bytes = GRAIN << (steps.max(0.0) as u64).min(4);
        // A slot holds all layers' K and V buffers of each size.
        let sizes = |kind: &Kind| {
            let (k, v) = (kind.k_bytes * BLOCK_TOKENS, kind.v_bytes * BLOCK_TOKENS);
            if k == v {
                return vec![2 * k * kind.layers];
            }
            let mut sizes = vec![k * kind.layers, v * kind.layers];
            sizes.sort_unstable_by(|a, b| b.cmp(a));
            sizes
        };
        let mut pools = Vec::<Vec<u64>>::new();
        let mut pool_of = Vec::with_capacity(kinds.len());
        for kind in kinds {
            let sizes = sizes(kind);
            let place = pools.iter().position(|pool| *pool == sizes);
            pool_of.push(place.unwrap_or(pools.len()));
            if place.is_none() {
                pools.push(sizes);
            }
        }
        let batch = match average_tokens {
            None => vec![(2_049, 2_048, 1)],
            Some(tokens) => vec![(8_192, 0, 1), (tokens, tokens.saturating_sub(1), 255)],
        };
        let mut need = vec![0_u64; pools.len()];
        for (kind, &pool) in kinds.iter().zip(&pool_of) {
            for &(capacity, history, count) in &batch {
                let stale = kind.window.map_or(0, |window| {
                    (history + 1_u64).saturating_sub(u64::from(window)) / BLOCK_TOKENS
                });
                need[pool] += (capacity.div_ceil(BLOCK_TOKENS) - stale) * count;
            }
        }
        let grains = |slots: u64, sizes: &[u64]| {
            let sizes = sizes.iter();
            sizes
                .map(|size| slots.saturating_mul(*size).div_ceil(grain_bytes))
                .sum::<u64>()
        };
        // Each pool is rounded up to whole grains before the ratio is taken.
        let bytes = need.iter().zip(&pools);
        let bytes = bytes
            .map(|(&slots, sizes)| grains(slots, sizes) * grain_bytes)
            .collect::<Vec<_>>();
        let sum = bytes.iter().sum::<u64>().max(1) as f64;
        let ratios = bytes
            .iter()
            .map(|&bytes| bytes as f64 / sum)
            .collect::<Vec<_>>();
        // The quota is rounded up as well.
        let mut budget = kv_bytes.div_ceil(grain_bytes);
        let mut slots = vec![0_u64; pools.len()];
        let mut order = (0..pools.len()).collect::<Vec<_>>();
        order.sort_by(|&a, &b| ratios[a].total_cmp(&ratios[b]));
        for (place, &pool) in order.iter().enumerate() {
            let left = order[place..].iter().map(|&pool| ratios[pool]).sum::<f64>();
            let share = (budget as f64 * (ratios[pool] / left)).round_ties_even() as u64;
            let (mut low, mut high) = (
                0,
                share.saturating_mul(grain_bytes) / pools[pool].iter().sum::<u64>().max(1) + 2,
            );
            while low < high {
                let middle = (low + high).div_ceil(2);
                if grains(middle, &pools[pool]) <= share {
                    low = middle
                } else {
                    high = middle - 1
                }
            }
            slots[pool] = low;
            budget = budget.saturating_sub(grains(low, &pools[pool]));
        }
        // One more slot for as long as it takes no grain.
        for (slots, sizes) in slots.iter_mut().zip(&pools) {
            while sizes.iter().any(|&size| size > 0)
                && grains(*slots + 1, sizes) <= grains(*slots, sizes)
            {
                *slots += 1;
            }
        }
        Self {
            grain_bytes,
            slots,
            ratios,
            pool_of,
            kinds: kinds.to_vec(),
        }
    }

    /// Sequences of `tokens` tokens: the scarcest pool decides.
    #[must_use]
    pub fn requests(&self, tokens: u64) -> u64 {
        let mut per_request = vec![0_u64; self.slots.len()];
        for (kind, &pool) in self.kinds.iter().zip(&self.pool_of) {
            per_request[pool] += kind.pages(tokens, BLOCK_TOKENS);
        }
        let pools = self.slots.iter().zip(per_request);
        pools
            .map(|(slots, need)| slots / need.max(1))
            .min()
            .unwrap_or(0)
    }
}
