//! Pools of a fixed size: the static split policies at run time.
//!
//! Which slabs a pool holds is still the allocator's affair; how many, and how many pages admission promises of it, is the policy's.

use super::KvSequences;
use crate::kv::fit::FreeMemory;
use crate::kv::policy::FixedSplit;

impl KvSequences {
    /// Holds each pool to its share of `split`, or lets them share all slabs again (`None`). Pools that hold more at the moment keep it.
    pub fn fix_pools(&mut self, split: Option<&FixedSplit>) {
        let groups = self.geometry.groups.len();
        self.most_pages = vec![u64::MAX; groups];
        let mut most_slabs = vec![u32::MAX; groups];
        for (place, pool) in split
            .iter()
            .flat_map(|split| split.pools.iter().enumerate())
        {
            self.most_pages[place] = pool.pages;
            // All pools but the last have a slab beside their run, that of their null page.
            let slabs = pool.slabs + u64::from(place + 1 < groups);
            most_slabs[place] = u32::try_from(slabs).unwrap_or(u32::MAX);
        }
        self.allocator.set_most_slabs(&most_slabs);
    }

    /// Whether the carve, by the policy, holds so many pages of each group. This is what admission asks (I8).
    pub(super) fn can_hold(&self, whole: &FreeMemory<'_>, pages: &[u64]) -> bool {
        let mut pools = self.most_pages.iter().zip(pages);
        whole.fits(pages) && pools.all(|(most, pages)| pages <= most)
    }
}
