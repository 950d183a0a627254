//! Which page is whose: pages in slabs, slabs moving between pools and the arena.
//!
//! Invariants, checked by [`Allocator::audit`]:
//! - a slab belongs to one pool or to the arena; an empty one goes back to the arena at once and may serve any
//!   pool next (I11);
//! - a page is handed out from the fullest slab of its pool that has one, so that slabs empty as others fill;
//! - slab `g` belongs to pool `g` for ever and its first page is that pool's null page: padding rows of captured
//!   graphs write there and nobody reads it;
//! - no page is handed out from a slab that compaction empties, nor from one beyond the slabs online.
//!
//! Both operations take a constant number of steps whatever the order: `OpenSlabs` keeps a pool's slabs by their
//! free pages, and the free pages of a slab are a tree of 64-bit words whose root stands in the slab's record. The lowest
//! goes first.

use thiserror::Error;

use super::fast_div::FastDiv;
use super::fit::FreeMemory;
use super::geometry::{ENTRY_UNIT_BYTES, GroupId, PageEntry};
use super::index_set::IndexSet;
use super::open_slabs::OpenSlabs;
use super::slab::{PoolLayout, SlabLayout};

/// One slab: four to a cache line, for these records are what a random order of pages touches.
#[derive(Clone, Copy, Debug)]
struct Slab {
    /// Root of the tree of free pages: bit `i` says that word `i` below, or page `i`, has a free page.
    root: u64,
    free_pages: u32,
    /// The pool that holds it, [`NONE`] while it is in the arena or offline.
    pool: u16,
    /// [`DRAINING`], [`SHARED`].
    flags: u16,
}

mod audit;

/// No pool.
const NONE: u16 = u16::MAX;

/// Its pages are being moved away.
const DRAINING: u16 = 1;

/// Some of its pages have more than one holder.
const SHARED: u16 = 2;

const UNUSED: Slab = Slab {
    root: 0,
    free_pages: 0,
    pool: NONE,
    flags: 0,
};

#[derive(Clone, Debug)]
struct Pool {
    pages_per_slab: u32,
    /// One layer's share of a page in entry units: the distance between two pages of a slab.
    page_units: u32,
    by_page_units: FastDiv,
    slabs: u32,
    /// Slabs that it may hold.
    most_slabs: u32,
    /// Pages held, the null page included.
    used_pages: u64,
    /// Free pages that can be handed out: of open slabs.
    free_pages: u64,
    open: OpenSlabs,
}

/// The pages of a carve.
#[derive(Clone, Debug)]
pub struct Allocator {
    layout: SlabLayout,
    slab_units: u32,
    by_slab_units: FastDiv,
    /// Where each level of a slab's page tree below the root begins in its words; the last holds the pages.
    levels: Vec<u32>,
    words_per_slab: usize,
    slabs: Vec<Slab>,
    /// Slabs below this number may be used.
    online: u32,
    words: Vec<u64>,
    arena: IndexSet,
    pools: Vec<Pool>,
    /// Holders of shared pages, see [`super::holders`]; `most_pages` a slab, empty until a page is shared.
    pub(super) holders: Vec<u32>,
    /// Shared pages of each slab; empty with `holders`.
    pub(super) shared_pages: Vec<u32>,
    pub(super) most_pages: u32,
}

impl Allocator {
    /// A carve of `slabs` slabs in which only the null pages are taken.
    ///
    /// # Errors
    /// [`AllocatorError::NoNullPages`] when there are fewer slabs than pools, [`AllocatorError::BeyondReach`] when
    /// the slabs exceed the 1 TiB that block tables address.
    pub fn new(layout: &SlabLayout, slabs: u32) -> Result<Self, AllocatorError> {
        let pools = layout.pools.len();
        // No model has as many pools as a slab's record could not number.
        if (slabs as usize) < pools || pools >= usize::from(NONE) {
            return Err(AllocatorError::NoNullPages { slabs, pools });
        }
        let slab_units = reachable(layout, slabs)?;
        let most_pages = layout.pools.iter().map(|pool| pool.pages_per_slab).max();
        let most_pages = most_pages.unwrap_or(0);
        let (levels, words_per_slab) = page_tree(most_pages);
        let mut allocator = Self {
            layout: layout.clone(),
            slab_units,
            by_slab_units: FastDiv::new(slab_units),
            levels,
            words_per_slab,
            slabs: vec![UNUSED; slabs as usize],
            online: slabs,
            words: vec![0; slabs as usize * words_per_slab],
            arena: IndexSet::new(slabs),
            pools: layout
                .pools
                .iter()
                .map(|pool| Pool::new(pool, slabs))
                .collect(),
            holders: Vec::new(),
            shared_pages: Vec::new(),
            most_pages,
        };
        for slab in pools as u32..slabs {
            allocator.arena.insert(slab);
        }
        for pool in 0..pools as u32 {
            allocator.adopt(pool, pool);
            allocator.take_page(pool, pool);
        }
        Ok(allocator)
    }

    /// The null page of a group's pool: the first page of slab `group`.
    #[must_use]
    pub const fn null_page(&self, group: GroupId) -> PageEntry {
        PageEntry(group.0 * self.slab_units)
    }

    /// A free page for `group`, from its fullest slab that has one, else from a new slab; `None` when neither is left.
    ///
    /// # Panics
    /// When `group` is not one of the layout's.
    #[inline]
    pub fn alloc_page(&mut self, group: GroupId) -> Option<PageEntry> {
        let slab = match self.pools[group.index()].open.fullest() {
            Some(slab) => slab,
            None => {
                let pool = &self.pools[group.index()];
                if pool.slabs >= pool.most_slabs {
                    return None;
                }
                let slab = self.arena.first()?;
                self.arena.remove(slab);
                self.adopt(slab, group.0);
                slab
            }
        };
        let page = self.take_page(slab, group.0);
        let units = self.pools[group.index()].page_units;
        // Below the reach, which was checked at construction.
        Some(PageEntry(slab * self.slab_units + page * units))
    }

    /// Gives a page back that has no other holder.
    ///
    /// # Errors
    /// [`AllocatorError::NotHeld`] unless `entry` is a page that `group` holds now and that is not its null page;
    /// [`AllocatorError::Shared`] while others hold it.
    #[inline]
    pub fn free_page(&mut self, group: GroupId, entry: PageEntry) -> Result<(), AllocatorError> {
        let (slab, page) = self.locate(group, entry)?;
        if self.slabs[slab as usize].flags & SHARED != 0 && self.holder_word(slab, page) != 0 {
            return Err(AllocatorError::Shared { group, entry });
        }
        self.put_page(slab, page);
        let record = &mut self.slabs[slab as usize];
        record.free_pages += 1;
        let free_pages = record.free_pages;
        let draining = record.flags & DRAINING != 0;
        let pool = &mut self.pools[group.index()];
        pool.used_pages -= 1;
        if !draining {
            pool.free_pages += 1;
            pool.open.raise(slab, free_pages - 1);
        }
        if free_pages == pool.pages_per_slab {
            pool.slabs -= 1;
            if !draining {
                pool.free_pages -= u64::from(free_pages);
            }
            let record = &mut self.slabs[slab as usize];
            (record.pool, record.flags) = (NONE, 0);
            if slab < self.online {
                self.arena.insert(slab);
            }
        }
        Ok(())
    }

    /// Whether `group` holds the page `entry` now.
    #[must_use]
    pub fn holds(&self, group: GroupId, entry: PageEntry) -> bool {
        self.find(group, entry)
            .is_some_and(|(slab, page)| !self.is_free(slab, page))
    }

    /// What is free now, for [`FreeMemory::fits`].
    #[must_use]
    pub fn free_memory(&self) -> FreeMemory<'_> {
        FreeMemory::new(
            &self.layout,
            u64::from(self.arena.len()),
            self.pools.iter().map(|pool| pool.free_pages).collect(),
        )
    }

    /// Whether `demand[g]` more pages of each group can be handed out now; the same answer as
    /// [`FreeMemory::fits`], without building one, but that a pool does not go beyond what a static policy gives it.
    #[must_use]
    pub fn fits(&self, demand: &[u64]) -> bool {
        let mut drawn = 0_u128;
        for (pool, &pages) in self.pools.iter().zip(demand) {
            if pages <= pool.free_pages {
                continue;
            }
            let slabs = (pages - pool.free_pages).div_ceil(u64::from(pool.pages_per_slab));
            if slabs > u64::from(pool.most_slabs.saturating_sub(pool.slabs)) {
                return false;
            }
            drawn += u128::from(slabs);
        }
        drawn <= u128::from(self.arena.len())
    }

    /// Slabs that each pool may hold; one that holds more keeps them.
    pub(super) fn set_most_slabs(&mut self, most_slabs: &[u32]) {
        for (pool, &most) in self.pools.iter_mut().zip(most_slabs) {
            pool.most_slabs = most;
        }
    }

    /// Slabs in the arena, in no pool.
    #[must_use]
    pub const fn free_slabs(&self) -> u32 {
        self.arena.len()
    }

    /// Slabs that may be used: those with memory behind them.
    #[must_use]
    pub const fn online_slabs(&self) -> u32 {
        self.online
    }

    /// Slabs that the pool of `group` holds.
    ///
    /// # Panics
    /// When `group` is not one of the layout's.
    #[must_use]
    pub fn pool_slabs(&self, group: GroupId) -> u32 {
        self.pools[group.index()].slabs
    }

    /// Pages of `group` in use, the null page excluded.
    ///
    /// # Panics
    /// When `group` is not one of the layout's.
    #[must_use]
    pub fn used_pages(&self, group: GroupId) -> u64 {
        self.pools[group.index()].used_pages - 1
    }

    /// Free pages of `group` in slabs that it holds and that are not being emptied.
    ///
    /// # Panics
    /// When `group` is not one of the layout's.
    #[must_use]
    pub fn free_pages(&self, group: GroupId) -> u64 {
        self.pools[group.index()].free_pages
    }

    /// The layout of the slabs.
    #[must_use]
    pub const fn layout(&self) -> &SlabLayout {
        &self.layout
    }

    /// The slab that `entry` lies in.
    #[must_use]
    pub const fn slab_of(&self, entry: PageEntry) -> u32 {
        self.by_slab_units.div_rem(entry.0).0
    }

    /// The slab of `group` with the fewest pages in use, the one of its null page excepted.
    pub(super) fn sparsest_slab(&self, group: GroupId) -> Option<u32> {
        let pinned = self.pools.len() as u32;
        self.pools[group.index()]
            .open
            .sparsest_first()
            .find(|slab| *slab >= pinned)
    }

    /// Pages of a slab in use, null page included; 0 in the arena.
    pub(super) fn slab_used_pages(&self, slab: u32) -> u32 {
        let record = &self.slabs[slab as usize];
        match self.pools.get(record.pool as usize) {
            Some(pool) => pool.pages_per_slab - record.free_pages,
            None => 0,
        }
    }

    /// Hands out no more pages of a slab: it leaves its pool with the last page in use.
    pub(super) fn drain(&mut self, slab: u32) {
        let record = self.slabs[slab as usize];
        let Some(pool) = self.pools.get_mut(record.pool as usize) else {
            return;
        };
        if record.flags & DRAINING != 0 {
            return;
        }
        self.slabs[slab as usize].flags |= DRAINING;
        if record.free_pages > 0 {
            pool.free_pages -= u64::from(record.free_pages);
            // As if its other pages were freed one after the other: it passes through every list and out.
            for free_pages in record.free_pages..pool.pages_per_slab {
                pool.open.raise(slab, free_pages);
            }
        }
    }

    /// Takes the slabs from `online` on out of use, or brings slabs up to there into use. Pages in slabs that go offline stay
    /// where they are and are not handed out again.
    ///
    /// # Errors
    /// [`AllocatorError::NoNullPages`] below one slab a pool, [`AllocatorError::BeyondReach`] beyond what tables address.
    pub(super) fn set_online(&mut self, online: u32) -> Result<(), AllocatorError> {
        let pools = self.pools.len();
        if (online as usize) < pools {
            return Err(AllocatorError::NoNullPages {
                slabs: online,
                pools,
            });
        }
        reachable(&self.layout, online)?;
        if online as usize > self.slabs.len() {
            self.slabs.resize(online as usize, UNUSED);
            self.words.resize(online as usize * self.words_per_slab, 0);
            if !self.holders.is_empty() {
                self.holders
                    .resize(online as usize * self.most_pages as usize, 0);
                self.shared_pages.resize(online as usize, 0);
            }
            self.arena.grow(online);
            for pool in &mut self.pools {
                pool.open.reserve(online);
            }
        }
        for slab in online..self.online {
            if self.arena.contains(slab) {
                self.arena.remove(slab);
            } else {
                self.drain(slab);
            }
        }
        for slab in self.online..online {
            // One that still holds pages comes back when it is empty.
            if self.slabs[slab as usize].pool == NONE {
                self.arena.insert(slab);
            }
        }
        self.online = online;
        Ok(())
    }

    /// Pages in use of a slab, its null page excepted.
    pub(super) fn used_entries(
        &self,
        slab: u32,
    ) -> impl Iterator<Item = (GroupId, PageEntry)> + '_ {
        let pool = self.slabs[slab as usize].pool;
        let pages = self
            .pools
            .get(pool as usize)
            .map_or(0, |pool| pool.pages_per_slab);
        let used = (0..pages).filter(move |&page| !self.is_free(slab, page));
        let used = used.filter(move |&page| page > 0 || slab as usize >= self.pools.len());
        used.map(move |page| {
            let units = self.pools[pool as usize].page_units;
            (
                GroupId(u32::from(pool)),
                PageEntry(slab * self.slab_units + page * units),
            )
        })
    }

    /// What would be free if only slabs below `online` were in use.
    pub(super) fn free_below(&self, online: u32) -> FreeMemory<'_> {
        let mut free = vec![0; self.pools.len()];
        let mut empty = 0;
        for slab in &self.slabs[..(online as usize).min(self.slabs.len())] {
            if slab.pool == NONE {
                empty += 1;
            } else if slab.flags & DRAINING == 0 {
                free[slab.pool as usize] += u64::from(slab.free_pages);
            }
        }
        FreeMemory::new(&self.layout, empty, free)
    }

    /// Slabs beyond those online that still hold pages.
    #[must_use]
    pub fn stranded_slabs(&self) -> usize {
        let offline = &self.slabs[self.online as usize..];
        offline.iter().filter(|slab| slab.pool != NONE).count()
    }

    /// The slab and the page in it of a page in use.
    #[inline]
    pub(super) fn locate(
        &self,
        group: GroupId,
        entry: PageEntry,
    ) -> Result<(u32, u32), AllocatorError> {
        let found = self
            .find(group, entry)
            .filter(|&(slab, page)| !self.is_free(slab, page) && entry != self.null_page(group));
        found.ok_or(AllocatorError::NotHeld { group, entry })
    }

    /// The slab and the page in it that `entry` names, if that slab belongs to `group` and the entry is a page's first.
    #[inline]
    fn find(&self, group: GroupId, entry: PageEntry) -> Option<(u32, u32)> {
        let pool = self.pools.get(group.index())?;
        let (slab, units) = self.by_slab_units.div_rem(entry.0);
        let (page, inside) = pool.by_page_units.div_rem(units);
        let held = self
            .slabs
            .get(slab as usize)
            .is_some_and(|record| u32::from(record.pool) == group.0);
        (held && inside == 0 && page < pool.pages_per_slab).then_some((slab, page))
    }

    /// Notes whether pages of a slab have more than one holder.
    pub(super) fn set_shared(&mut self, slab: u32, shared: bool) {
        let flags = &mut self.slabs[slab as usize].flags;
        *flags = *flags & !SHARED | if shared { SHARED } else { 0 };
    }

    /// Gives a slab of the arena to a pool that has no open one, all its pages free.
    fn adopt(&mut self, slab: u32, pool_index: u32) {
        let pool = &mut self.pools[pool_index as usize];
        let pages = pool.pages_per_slab;
        let words = &mut self.words[slab as usize * self.words_per_slab..][..self.words_per_slab];
        let mut bits = pages;
        for (level, &start) in self.levels.iter().enumerate().rev() {
            let end = self
                .levels
                .get(level + 1)
                .map_or(self.words_per_slab, |&end| end as usize);
            for (place, word) in words[start as usize..end].iter_mut().enumerate() {
                *word = ones(bits.saturating_sub(place as u32 * 64));
            }
            bits = bits.div_ceil(64);
        }
        let record = &mut self.slabs[slab as usize];
        (record.root, record.pool, record.free_pages) = (ones(bits), pool_index as u16, pages);
        pool.slabs += 1;
        pool.free_pages += u64::from(pages);
        pool.open.adopt(slab);
    }

    /// Takes the lowest free page of the fullest slab of its pool.
    #[inline]
    fn take_page(&mut self, slab: u32, pool_index: u32) -> u32 {
        let pool = &mut self.pools[pool_index as usize];
        let record = &mut self.slabs[slab as usize];
        pool.open.lower(record.free_pages);
        record.free_pages -= 1;
        pool.free_pages -= 1;
        pool.used_pages += 1;
        let words = &mut self.words[slab as usize * self.words_per_slab..][..self.words_per_slab];
        let mut page = record.root.trailing_zeros();
        for &start in &self.levels {
            page = page * 64 + words[(start + page) as usize].trailing_zeros();
        }
        // Upwards as long as words empty.
        let mut bit = page;
        for &start in self.levels.iter().rev() {
            let word = &mut words[(start + bit / 64) as usize];
            *word &= *word - 1;
            if *word != 0 {
                return page;
            }
            bit /= 64;
        }
        record.root &= record.root - 1;
        page
    }

    /// Marks a page as free in its slab's tree.
    #[inline]
    fn put_page(&mut self, slab: u32, page: u32) {
        let words = &mut self.words[slab as usize * self.words_per_slab..][..self.words_per_slab];
        let mut bit = page;
        for &start in self.levels.iter().rev() {
            let word = &mut words[(start + bit / 64) as usize];
            let was_empty = *word == 0;
            *word |= 1 << (bit % 64);
            if !was_empty {
                return;
            }
            bit /= 64;
        }
        self.slabs[slab as usize].root |= 1 << bit;
    }

    pub(super) fn slab_count(&self) -> usize {
        self.slabs.len()
    }

    /// Whether pages of a slab have more than one holder.
    pub(super) fn is_shared(&self, slab: u32) -> bool {
        self.slabs[slab as usize].flags & SHARED != 0
    }

    #[inline]
    pub(super) fn is_free(&self, slab: u32, page: u32) -> bool {
        let word = match self.levels.last() {
            None => self.slabs[slab as usize].root,
            Some(&start) => {
                self.words[slab as usize * self.words_per_slab + (start + page / 64) as usize]
            }
        };
        word & (1 << (page % 64)) != 0
    }
}

/// The `count` lowest bits, at most 64.
const fn ones(count: u32) -> u64 {
    if count >= 64 {
        u64::MAX
    } else {
        (1 << count) - 1
    }
}

/// Starts of the levels below the root, and words in all.
fn page_tree(pages: u32) -> (Vec<u32>, usize) {
    let mut widths = Vec::new();
    let mut bits = pages;
    while bits > 64 {
        bits = bits.div_ceil(64);
        widths.push(bits);
    }
    let mut words = 0;
    let starts = widths.iter().rev().map(|width| {
        let start = words;
        words += width;
        start
    });
    let starts = starts.collect();
    (starts, words as usize)
}

/// The slab in entry units, if `slabs` of them lie in reach.
fn reachable(layout: &SlabLayout, slabs: u32) -> Result<u32, AllocatorError> {
    let units = u32::try_from(layout.slab_units()).ok();
    units
        .filter(|&units| u64::from(units) * u64::from(slabs) <= 1 << 32)
        .ok_or(AllocatorError::BeyondReach {
            slabs,
            slab_bytes: layout.slab_bytes,
        })
}

impl Pool {
    fn new(layout: &PoolLayout, slabs: u32) -> Self {
        // A layer's share of a page is below 4 GiB.
        let page_units = (layout.layer_page_bytes / ENTRY_UNIT_BYTES) as u32;
        Self {
            pages_per_slab: layout.pages_per_slab,
            page_units,
            by_page_units: FastDiv::new(page_units),
            slabs: 0,
            most_slabs: u32::MAX,
            used_pages: 0,
            free_pages: 0,
            open: OpenSlabs::new(layout.pages_per_slab, slabs),
        }
    }
}

/// Why pages cannot be handled so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AllocatorError {
    /// Fewer slabs than pools.
    #[error(
        "{slabs} slabs cannot hold the null pages of {pools} pools; give the KV arena more memory"
    )]
    NoNullPages {
        /// Slabs there are.
        slabs: u32,
        /// Pools there are.
        pools: usize,
    },
    /// More than block tables can address.
    #[error(
        "{slabs} slabs of {slab_bytes} bytes exceed the 1 TiB that block tables can address; use fewer"
    )]
    BeyondReach {
        /// Slabs asked for.
        slabs: u32,
        /// Bytes of one.
        slab_bytes: u64,
    },
    /// A page that is not held is given back.
    #[error("entry {} is not a page that layer group {} holds; each page is given back once, to its own group", entry.0, group.0)]
    NotHeld {
        /// The group it was given back to.
        group: GroupId,
        /// The page.
        entry: PageEntry,
    },
    /// A page that others hold is given back for all of them.
    #[error("entry {} of layer group {} has other holders; each lets go of it by itself", entry.0, group.0)]
    Shared {
        /// The group.
        group: GroupId,
        /// The page.
        entry: PageEntry,
    },
}
