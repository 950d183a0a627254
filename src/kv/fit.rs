//! Does it fit? One function behind start-up, admission and the capacity report (I8).
//!
//! Pools draw whole slabs from one arena, so a demand for pages of several groups fits iff the slabs that the
//! pools must draw, after using the free pages they already hold, are no more than the free slabs.

use super::geometry::Geometry;
use super::slab::SlabLayout;

/// What is free: whole slabs in the arena, and single pages in slabs that pools already hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeMemory<'a> {
    layout: &'a SlabLayout,
    slabs: u64,
    pages: Vec<u64>,
}

impl<'a> FreeMemory<'a> {
    /// `slabs` free slabs and `pages[g]` free pages in slabs held by pool `g`; missing pools have none.
    #[must_use]
    pub fn new(layout: &'a SlabLayout, slabs: u64, mut pages: Vec<u64>) -> Self {
        pages.resize(layout.pools.len(), 0);
        Self {
            layout,
            slabs,
            pages,
        }
    }

    /// A carve of `slabs` slabs with nothing in it but the null page of every pool.
    #[must_use]
    pub fn empty(layout: &'a SlabLayout, slabs: u64) -> Self {
        let pools = layout.pools.len() as u64;
        let pages = if slabs < pools {
            Vec::new()
        } else {
            layout
                .pools
                .iter()
                .map(|pool| u64::from(pool.pages_per_slab).saturating_sub(1))
                .collect()
        };
        Self::new(layout, slabs.saturating_sub(pools), pages)
    }

    /// Free slabs that `demand[g]` more pages of each pool take.
    #[must_use]
    pub fn slabs_needed(&self, demand: &[u64]) -> u128 {
        let pools = self.layout.pools.iter().zip(&self.pages).zip(demand);
        pools
            .map(|((pool, &free), &pages)| {
                u128::from(
                    pages
                        .saturating_sub(free)
                        .div_ceil(u64::from(pool.pages_per_slab)),
                )
            })
            .sum()
    }

    /// Whether `demand[g]` more pages of each pool fit.
    #[must_use]
    pub fn fits(&self, demand: &[u64]) -> bool {
        self.slabs_needed(demand) <= u128::from(self.slabs)
    }

    /// How many times `demand` fits; 0 for a demand of nothing.
    #[must_use]
    pub fn times(&self, demand: &[u64]) -> u64 {
        let pools = self.layout.pools.iter().zip(&self.pages).zip(demand);
        let bounds = pools
            .filter(|(_, pages)| **pages > 0)
            .map(|((pool, &free), &pages)| {
                (u64::from(pool.pages_per_slab).saturating_mul(self.slabs)).saturating_add(free)
                    / pages
            });
        let Some(most) = bounds.min() else { return 0 };
        let scaled = |times: u64| {
            demand
                .iter()
                .map(|pages| pages.saturating_mul(times))
                .collect::<Vec<_>>()
        };
        // The largest count that fits lies in `low..=high`.
        let (mut low, mut high) = (0, most);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.fits(&scaled(middle)) {
                low = middle
            } else {
                high = middle - 1
            }
        }
        low
    }

    /// The longest sequence that fits alone, up to `most_tokens`.
    #[must_use]
    pub fn longest_request_tokens(&self, geometry: &Geometry, most_tokens: u32) -> u32 {
        let (mut low, mut high) = (0, most_tokens);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.fits(&geometry.pages_for(middle)) {
                low = middle
            } else {
                high = middle - 1
            }
        }
        low
    }
}
