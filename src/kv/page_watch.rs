//! Telling a driver that listens which pages are in use, so that kernels that touch a released one are found.

use std::collections::HashSet;

use super::allocator::Allocator;
use super::geometry::{GroupId, PageEntry};
use super::pool::KvArena;
use crate::driver::{Device, DevicePtr, MemoryUse};

/// Follows the pages of a KV arena on a device that [is annotated](Device::is_annotated).
#[derive(Debug)]
pub struct PageWatch {
    device: Device,
    base: DevicePtr,
    /// By group: name, layers, one layer's bytes of a page, from one layer to the next.
    pools: Vec<(String, u32, u64, u64)>,
    in_use: HashSet<(GroupId, PageEntry)>,
    /// Handed out since pages were last withheld.
    fresh: Vec<(GroupId, PageEntry)>,
}

impl PageWatch {
    /// Withholds all of the arena but the null pages. `None` where nobody listens.
    #[must_use]
    pub fn new(arena: &KvArena) -> Option<PageWatch> {
        let device = arena.arena().context().device();
        if !device.is_annotated() {
            return None;
        }
        let groups = arena.geometry().groups.iter().zip(&arena.layout().pools);
        let watch = PageWatch {
            device: device.clone(),
            base: arena.base(),
            pools: groups
                .map(|(group, pool)| {
                    let layers = pool.page_bytes / pool.layer_page_bytes.max(1);
                    let name = group.name.clone();
                    (
                        name,
                        layers as u32,
                        pool.layer_page_bytes,
                        pool.layer_stride_bytes,
                    )
                })
                .collect(),
            in_use: HashSet::new(),
            fresh: Vec::new(),
        };
        watch.device.annotate(
            watch.base,
            arena.arena().mapped_bytes(),
            "KV memory that is no page in use",
            MemoryUse::Withheld,
        );
        for index in 0..watch.pools.len() as u32 {
            let group = GroupId(index);
            watch.annotate(group, arena.null_page(group), MemoryUse::HandedOut);
        }
        Some(watch)
    }

    /// Tells of the pages that were handed out since the last call; before the work that is to use them is launched.
    pub fn hand_out(&mut self, allocator: &Allocator) {
        for (group, entry) in in_use(allocator) {
            if self.in_use.insert((group, entry)) {
                self.annotate(group, entry, MemoryUse::HandedOut);
                self.fresh.push((group, entry));
            }
        }
    }

    /// Tells of the pages that were released since the last call. Work launched earlier may still touch them.
    pub fn withhold(&mut self, allocator: &Allocator) {
        let now: HashSet<(GroupId, PageEntry)> = in_use(allocator).collect();
        let released: Vec<_> = self.in_use.difference(&now).copied().collect();
        for (group, entry) in released {
            self.annotate(group, entry, MemoryUse::Withheld);
            self.in_use.remove(&(group, entry));
        }
        // A slab may have changed its pool: a released page's memory is then part of other pages.
        for (group, entry) in std::mem::take(&mut self.fresh) {
            self.annotate(group, entry, MemoryUse::HandedOut);
        }
    }

    fn annotate(&self, group: GroupId, entry: PageEntry, memory_use: MemoryUse) {
        let Some((name, layers, bytes, stride)) = self.pools.get(group.0 as usize) else {
            return;
        };
        let what = format!("page {} of the {name} pool", entry.0);
        for layer in 0..u64::from(*layers) {
            let address = self.base.add(256 * u64::from(entry.0) + layer * stride);
            self.device.annotate(address, *bytes, &what, memory_use);
        }
    }
}

fn in_use(allocator: &Allocator) -> impl Iterator<Item = (GroupId, PageEntry)> + '_ {
    (0..allocator.slab_count() as u32).flat_map(|slab| allocator.used_entries(slab))
}
