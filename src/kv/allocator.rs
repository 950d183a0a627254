//! Which page is whose: pages in slabs, slabs moving between pools and the arena.
//!
//! Invariants, checked by [`Allocator::audit`]:
//! - a slab belongs to one pool or to the arena; an empty one goes back to the arena at once and may serve any
//!   pool next (I11);
//! - a page is handed out from the fullest slab of its pool that has one, so that slabs empty as others fill;
//! - slab `g` belongs to pool `g` for ever and its first page is that pool's null page: padding rows of captured
//!   graphs write there and nobody reads it.
//!
//! Both operations take a constant number of steps. Slabs of a pool hang in doubly linked lists, one for each
//! number of free pages, and an `IndexSet` over the non-empty lists yields the fullest. Free pages of a slab are
//! bits; the lowest goes first.

use thiserror::Error;

use super::fit::FreeMemory;
use super::geometry::{ENTRY_UNIT_BYTES, GroupId, PageEntry};
use super::index_set::IndexSet;
use super::slab::{PoolLayout, SlabLayout};

/// No slab, or no pool.
const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Slab {
    /// The pool that holds it, [`NONE`] while it is in the arena.
    pool: u32,
    free_pages: u32,
    /// Neighbours in the list of slabs of this pool with as many free pages.
    previous: u32,
    next: u32,
    /// No word of the slab's bits below this one has a free page.
    first_word: u32,
}

#[derive(Clone, Debug)]
struct Pool {
    pages_per_slab: u32,
    /// One layer's share of a page in entry units: the distance between two pages of a slab.
    page_units: u32,
    slabs: u32,
    free_pages: u64,
    /// `heads[n]`: first slab with `n` free pages. Full slabs are in no list.
    heads: Vec<u32>,
    /// The `n` whose list is not empty.
    counts: IndexSet,
}

/// The pages of a carve.
#[derive(Clone, Debug)]
pub struct Allocator {
    layout: SlabLayout,
    slab_units: u32,
    words_per_slab: usize,
    slabs: Vec<Slab>,
    /// A set bit is a free page; `words_per_slab` words a slab.
    free_bits: Vec<u64>,
    arena: IndexSet,
    pools: Vec<Pool>,
}

impl Allocator {
    /// A carve of `slabs` slabs in which only the null pages are taken.
    ///
    /// # Errors
    /// [`AllocatorError::NoNullPages`] when there are fewer slabs than pools, [`AllocatorError::BeyondReach`] when
    /// the slabs exceed the 1 TiB that block tables address.
    pub fn new(layout: &SlabLayout, slabs: u32) -> Result<Self, AllocatorError> {
        let pools = layout.pools.len();
        if (slabs as usize) < pools {
            return Err(AllocatorError::NoNullPages { slabs, pools });
        }
        let slab_units = u32::try_from(layout.slab_units()).ok();
        let (Some(slab_units), true) = (
            slab_units,
            layout.slab_units() * u64::from(slabs) <= 1 << 32,
        ) else {
            return Err(AllocatorError::BeyondReach {
                slabs,
                slab_bytes: layout.slab_bytes,
            });
        };
        let most_pages = layout
            .pools
            .iter()
            .map(|pool| pool.pages_per_slab)
            .max()
            .unwrap_or(0);
        let words_per_slab = most_pages.div_ceil(64) as usize;
        let unused = Slab {
            pool: NONE,
            free_pages: 0,
            previous: NONE,
            next: NONE,
            first_word: 0,
        };
        let mut allocator = Self {
            layout: layout.clone(),
            slab_units,
            words_per_slab,
            slabs: vec![unused; slabs as usize],
            free_bits: vec![0; slabs as usize * words_per_slab],
            arena: IndexSet::new(slabs),
            pools: layout.pools.iter().map(Pool::new).collect(),
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
    pub fn alloc_page(&mut self, group: GroupId) -> Option<PageEntry> {
        let pool = &self.pools[group.index()];
        let slab = match pool.counts.first() {
            Some(free_pages) => pool.heads[free_pages as usize],
            None => {
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

    /// Gives a page back.
    ///
    /// # Errors
    /// [`AllocatorError::NotHeld`] unless `entry` is a page that `group` holds now and that is not its null page.
    pub fn free_page(&mut self, group: GroupId, entry: PageEntry) -> Result<(), AllocatorError> {
        let not_held = AllocatorError::NotHeld { group, entry };
        let (slab, page) = self
            .find(group, entry)
            .filter(|_| entry != self.null_page(group))
            .ok_or(not_held.clone())?;
        let word = slab as usize * self.words_per_slab + page as usize / 64;
        let bit = 1_u64 << (page % 64);
        if self.free_bits[word] & bit != 0 {
            return Err(not_held);
        }
        self.free_bits[word] |= bit;
        let record = &mut self.slabs[slab as usize];
        record.first_word = record.first_word.min(page / 64);
        let pool = &mut self.pools[group.index()];
        pool.free_pages += 1;
        let before = record.free_pages;
        if before > 0 {
            pool.unlink(&mut self.slabs, slab, before);
        }
        let after = before + 1;
        self.slabs[slab as usize].free_pages = after;
        if after == pool.pages_per_slab {
            pool.slabs -= 1;
            pool.free_pages -= u64::from(after);
            self.slabs[slab as usize].pool = NONE;
            self.arena.insert(slab);
        } else {
            pool.link(&mut self.slabs, slab, after);
        }
        Ok(())
    }

    /// Whether `group` holds the page `entry` now.
    #[must_use]
    pub fn holds(&self, group: GroupId, entry: PageEntry) -> bool {
        self.find(group, entry).is_some_and(|(slab, page)| {
            self.free_bits[slab as usize * self.words_per_slab + page as usize / 64]
                & (1 << (page % 64))
                == 0
        })
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
    /// [`FreeMemory::fits`], without building one.
    #[must_use]
    pub fn fits(&self, demand: &[u64]) -> bool {
        let pools = self.pools.iter().zip(demand);
        let slabs = pools.map(|(pool, &pages)| {
            u128::from(
                pages
                    .saturating_sub(pool.free_pages)
                    .div_ceil(u64::from(pool.pages_per_slab)),
            )
        });
        slabs.sum::<u128>() <= u128::from(self.arena.len())
    }

    /// Slabs in the arena, in no pool.
    #[must_use]
    pub const fn free_slabs(&self) -> u32 {
        self.arena.len()
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
        let pool = &self.pools[group.index()];
        u64::from(pool.slabs) * u64::from(pool.pages_per_slab) - pool.free_pages - 1
    }

    /// The layout of the slabs.
    #[must_use]
    pub const fn layout(&self) -> &SlabLayout {
        &self.layout
    }

    /// The slab and the page in it that `entry` names, if that slab belongs to `group` and the entry is a page's first.
    fn find(&self, group: GroupId, entry: PageEntry) -> Option<(u32, u32)> {
        let pool = self.pools.get(group.index())?;
        let (slab, units) = (entry.0 / self.slab_units, entry.0 % self.slab_units);
        let (page, inside) = (units / pool.page_units, units % pool.page_units);
        let held = self
            .slabs
            .get(slab as usize)
            .is_some_and(|record| record.pool == group.0);
        (held && inside == 0 && page < pool.pages_per_slab).then_some((slab, page))
    }

    /// Gives a slab of the arena to a pool, all its pages free.
    fn adopt(&mut self, slab: u32, pool_index: u32) {
        let pool = &mut self.pools[pool_index as usize];
        let pages = pool.pages_per_slab;
        let bits =
            &mut self.free_bits[slab as usize * self.words_per_slab..][..self.words_per_slab];
        for (place, word) in bits.iter_mut().enumerate() {
            let left = (pages as usize).saturating_sub(place * 64);
            *word = if left >= 64 {
                u64::MAX
            } else {
                (1 << left) - 1
            };
        }
        let record = &mut self.slabs[slab as usize];
        (record.pool, record.free_pages, record.first_word) = (pool_index, pages, 0);
        pool.slabs += 1;
        pool.free_pages += u64::from(pages);
        pool.link(&mut self.slabs, slab, pages);
    }

    /// Takes the lowest free page of a slab that has one.
    fn take_page(&mut self, slab: u32, pool_index: u32) -> u32 {
        let pool = &mut self.pools[pool_index as usize];
        let before = self.slabs[slab as usize].free_pages;
        pool.unlink(&mut self.slabs, slab, before);
        pool.free_pages -= 1;
        let record = &mut self.slabs[slab as usize];
        record.free_pages = before - 1;
        let bits =
            &mut self.free_bits[slab as usize * self.words_per_slab..][..self.words_per_slab];
        let mut word = record.first_word as usize;
        while bits[word] == 0 {
            word += 1;
        }
        record.first_word = word as u32;
        let bit = bits[word].trailing_zeros();
        bits[word] &= bits[word] - 1;
        if before > 1 {
            pool.link(&mut self.slabs, slab, before - 1);
        }
        word as u32 * 64 + bit
    }

    /// Recounts everything from the page bits and compares; for tests and self-tests.
    ///
    /// # Errors
    /// A sentence naming the first difference.
    pub fn audit(&self) -> Result<(), String> {
        let mut pool_slabs = vec![0; self.pools.len()];
        let mut pool_free = vec![0_u64; self.pools.len()];
        let mut listed = 0;
        for (index, slab) in self.slabs.iter().enumerate() {
            let in_arena = self.arena.contains(index as u32);
            if in_arena != (slab.pool == NONE) {
                return Err(format!(
                    "slab {index} is in the arena: {in_arena}, but its pool is {}",
                    slab.pool
                ));
            }
            if in_arena {
                continue;
            }
            let pool = &self.pools[slab.pool as usize];
            let bits = &self.free_bits[index * self.words_per_slab..][..self.words_per_slab];
            let free = bits.iter().map(|word| word.count_ones()).sum::<u32>();
            if free != slab.free_pages {
                return Err(format!(
                    "slab {index} counts {} free pages, its bits {free}",
                    slab.free_pages
                ));
            }
            if free == pool.pages_per_slab {
                return Err(format!(
                    "slab {index} is empty but still held by pool {}",
                    slab.pool
                ));
            }
            if bits[..slab.first_word as usize]
                .iter()
                .any(|word| *word != 0)
            {
                return Err(format!(
                    "slab {index} has a free page below word {}",
                    slab.first_word
                ));
            }
            listed += u32::from(free > 0);
            pool_slabs[slab.pool as usize] += 1;
            pool_free[slab.pool as usize] += u64::from(free);
        }
        for (index, pool) in self.pools.iter().enumerate() {
            if (pool.slabs, pool.free_pages) != (pool_slabs[index], pool_free[index]) {
                return Err(format!(
                    "pool {index} counts {} slabs and {} free pages, its slabs {} and {}",
                    pool.slabs, pool.free_pages, pool_slabs[index], pool_free[index]
                ));
            }
            if self.slabs[index].pool != index as u32
                || self.free_bits[index * self.words_per_slab] & 1 != 0
            {
                return Err(format!("the null page of pool {index} is not held"));
            }
            for (free_pages, &head) in pool.heads.iter().enumerate() {
                if (head != NONE) != pool.counts.contains(free_pages as u32) {
                    return Err(format!(
                        "pool {index} mislays its slabs with {free_pages} free pages"
                    ));
                }
                let mut slab = head;
                while slab != NONE {
                    let record = &self.slabs[slab as usize];
                    if (record.pool, record.free_pages as usize) != (index as u32, free_pages) {
                        return Err(format!(
                            "slab {slab} hangs in the wrong list of pool {index}"
                        ));
                    }
                    listed = listed.wrapping_sub(1);
                    slab = record.next;
                }
            }
        }
        if listed == 0 {
            Ok(())
        } else {
            Err("a slab with free pages hangs in no list".to_owned())
        }
    }
}

impl Pool {
    fn new(layout: &PoolLayout) -> Self {
        let pages_per_slab = layout.pages_per_slab;
        Self {
            pages_per_slab,
            // A layer's share of a page is below 4 GiB.
            page_units: (layout.layer_page_bytes / ENTRY_UNIT_BYTES) as u32,
            slabs: 0,
            free_pages: 0,
            heads: vec![NONE; pages_per_slab as usize + 1],
            counts: IndexSet::new(pages_per_slab + 1),
        }
    }

    fn link(&mut self, slabs: &mut [Slab], slab: u32, free_pages: u32) {
        let head = std::mem::replace(&mut self.heads[free_pages as usize], slab);
        let record = &mut slabs[slab as usize];
        (record.previous, record.next) = (NONE, head);
        if head == NONE {
            self.counts.insert(free_pages);
        } else {
            slabs[head as usize].previous = slab;
        }
    }

    fn unlink(&mut self, slabs: &mut [Slab], slab: u32, free_pages: u32) {
        let Slab { previous, next, .. } = slabs[slab as usize];
        if next != NONE {
            slabs[next as usize].previous = previous;
        }
        if previous != NONE {
            slabs[previous as usize].next = next;
            return;
        }
        self.heads[free_pages as usize] = next;
        if next == NONE {
            self.counts.remove(free_pages);
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
}
