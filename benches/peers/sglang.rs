//! SGLang's paged allocator (0.5.23, `mem_cache/allocator.py`): a tensor of free page numbers, allocation takes its head, freeing
//! joins the freed pages to its end with `torch.cat`. A hybrid model has one for each pool and a mapping from full to SWA slots.
//!
//! `torch.cat` makes a new tensor. [`Cat::Copies`] does the same; [`Cat::Appends`] is what the algorithm would cost without.

use std::collections::VecDeque;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Cat {
    Copies,
    Appends,
}

pub struct PagedAllocator {
    pub page_size: u32,
    free_pages: VecDeque<u64>,
    cat: Cat,
}

impl PagedAllocator {
    pub fn new(pages: u32, page_size: u32, cat: Cat) -> Self {
        Self {
            page_size,
            // Page 0 takes the padding tokens.
            free_pages: (1..=u64::from(pages)).collect(),
            cat,
        }
    }

    /// `alloc(page_size)`: the first token slot of a page; the caller's index tensor of the page's tokens follows from it.
    pub fn alloc_page(&mut self) -> Option<u64> {
        self.free_pages
            .pop_front()
            .map(|page| page * u64::from(self.page_size))
    }

    /// `free(indices)`: the pages of the slots, each once.
    pub fn free(&mut self, slots: &[u64]) {
        let mut pages = slots
            .iter()
            .map(|slot| slot / u64::from(self.page_size))
            .collect::<Vec<_>>();
        pages.sort_unstable();
        pages.dedup();
        if self.cat == Cat::Copies {
            self.free_pages = self.free_pages.iter().copied().chain(pages).collect();
        } else {
            self.free_pages.extend(pages);
        }
    }
}

/// A request's slots so far: the last of each pool, and the first SWA token not evicted.
#[derive(Clone, Default)]
pub struct Request {
    pub tokens: u32,
    pub slots: Vec<u64>,
    evicted: u32,
}

/// `SWATokenToKVPoolAllocator.alloc_decode` for one request, and the eviction of what left its window.
pub fn alloc_decode(
    full: &mut PagedAllocator,
    swa: &mut PagedAllocator,
    full_to_swa: &mut [u64],
    request: &mut Request,
    window: u32,
) -> Option<[u64; 2]> {
    let page_size = full.page_size;
    // Pages wholly before the window.
    let dead = (request.tokens + 1).saturating_sub(window) / page_size * page_size;
    if dead > request.evicted {
        let slots = &request.slots[request.evicted as usize..dead as usize];
        let gone = slots
            .iter()
            .map(|&slot| std::mem::take(&mut full_to_swa[slot as usize]));
        let gone = gone.filter(|slot| *slot != 0).collect::<Vec<_>>();
        swa.free(&gone);
        request.evicted = dead;
    }
    let slots = if request.tokens.is_multiple_of(page_size) {
        [full.alloc_page()?, swa.alloc_page()?]
    } else {
        let last = *request.slots.last()?;
        [last + 1, full_to_swa[last as usize] + 1]
    };
    full_to_swa[slots[0] as usize] = slots[1];
    request.slots.push(slots[0]);
    request.tokens += 1;
    Some(slots)
}
