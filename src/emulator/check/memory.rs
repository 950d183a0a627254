//! The shadow of device memory: which bytes have been written, and which may not be touched although they are mapped.
//!
//! Definedness belongs to physical memory, one bit a byte, and exists only for grains that were touched; a handle mapped at
//! two addresses has one shadow. What another process may write counts as written: nobody sees what it does. What may not be touched belongs to addresses: red zones behind exact allocations, parts of
//! an arena that nobody was given, pages that were released.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Why an address may not be touched, or who may touch it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Zone {
    /// End of the range.
    end: u64,
    /// May not be touched.
    pub(crate) forbidden: bool,
    /// A noun phrase: what the range is.
    pub(crate) name: std::sync::Arc<str>,
    /// Work issued before this ticket may still touch it.
    pub(crate) since: u64,
    /// It was in use once: a released page, a freed range.
    pub(crate) released: bool,
}

/// The shadow of one device's memory.
#[derive(Debug)]
pub(crate) struct MemoryShadow {
    base: u64,
    shift: u32,
    /// By grain of the address window: chunk number plus one, 0 = nothing mapped, or [`SHARED`].
    chunk_at: Vec<u32>,
    /// One bit a byte of a grain, or empty while all of it is undefined.
    chunks: Vec<Vec<u64>>,
    /// By allocation and grain of it: chunk number plus one.
    chunk_of: HashMap<u64, Vec<u32>>,
    spare: Vec<u32>,
    /// Allocations that another process may write.
    shared: HashSet<u64>,
    zones: BTreeMap<u64, Zone>,
    /// Ranges that anybody may touch, by a few bits of the address last asked for: most accesses stay where others were.
    open: RefCell<[(u64, u64); OPEN_RANGES]>,
}

/// A grain that another process may write.
const SHARED: u32 = u32::MAX;

/// Entries of [`MemoryShadow::open`].
const OPEN_RANGES: usize = 16;

impl MemoryShadow {
    /// The shadow of `grains` grains of `1 << shift` bytes from `base` on.
    pub(crate) fn new(base: u64, shift: u32, grains: usize) -> MemoryShadow {
        MemoryShadow {
            base,
            shift,
            chunk_at: vec![0; grains],
            chunks: Vec::new(),
            chunk_of: HashMap::new(),
            spare: Vec::new(),
            shared: HashSet::new(),
            zones: BTreeMap::new(),
            open: RefCell::default(),
        }
    }

    /// An allocation's bytes from `offset` on are mapped at `address`.
    pub(crate) fn map(&mut self, address: u64, bytes: u64, allocation: u64, offset: u64) {
        let first = (offset >> self.shift) as usize;
        let grains = (bytes >> self.shift) as usize;
        let base = (address.wrapping_sub(self.base) >> self.shift) as usize;
        if self.shared.contains(&allocation) {
            let end = (base + grains).min(self.chunk_at.len());
            return self.chunk_at[base..end].fill(SHARED);
        }
        let chunks = self.chunk_of.entry(allocation).or_default();
        if chunks.len() < first + grains {
            chunks.resize(first + grains, 0);
        }
        for (step, chunk) in chunks[first..first + grains].iter_mut().enumerate() {
            if *chunk == 0 {
                let number = self.spare.pop().unwrap_or_else(|| {
                    self.chunks.push(Vec::new());
                    self.chunks.len() as u32 - 1
                });
                *chunk = number + 1;
            }
            if let Some(at) = self.chunk_at.get_mut(base + step) {
                *at = *chunk;
            }
        }
    }

    /// Nothing is mapped there any more, and nothing said about it holds.
    pub(crate) fn unmap(&mut self, address: u64, bytes: u64) {
        for step in 0..bytes >> self.shift {
            if let Some(index) = self.grain_of(address + (step << self.shift)) {
                self.chunk_at[index] = 0;
            }
        }
        self.clear_zones(address, address + bytes);
    }

    /// The allocation's memory went back to the device.
    pub(crate) fn forget(&mut self, allocation: u64) {
        self.shared.remove(&allocation);
        self.drop_chunks(allocation);
    }

    /// From now on another process may write the allocation's memory, wherever it is mapped or will be.
    pub(crate) fn share(&mut self, allocation: u64) {
        let dropped = self.drop_chunks(allocation);
        for at in &mut self.chunk_at {
            if dropped.contains(at) {
                *at = SHARED;
            }
        }
        self.shared.insert(allocation);
    }

    /// Gives an allocation's chunks back; gives their numbers plus one.
    fn drop_chunks(&mut self, allocation: u64) -> HashSet<u32> {
        let mut dropped: HashSet<u32> = HashSet::new();
        dropped.extend(self.chunk_of.remove(&allocation).unwrap_or_default());
        dropped.remove(&0);
        for &chunk in &dropped {
            self.chunks[chunk as usize - 1] = Vec::new();
            self.spare.push(chunk - 1);
        }
        dropped
    }

    /// Where the bits of a grain are, if it has any.
    fn chunk(&self, grain: usize) -> Option<usize> {
        match self.chunk_at[grain] {
            0 | SHARED => None,
            number => Some(number as usize - 1),
        }
    }

    fn grain_of(&self, address: u64) -> Option<usize> {
        let index = (address.wrapping_sub(self.base) >> self.shift) as usize;
        (index < self.chunk_at.len()).then_some(index)
    }

    /// Whether the address lies in the device's window: other addresses are host memory, about which nothing is known.
    pub(crate) fn contains(&self, address: u64) -> bool {
        self.grain_of(address).is_some()
    }

    /// The first byte of the range that nobody has written, if there is one.
    pub(crate) fn undefined(&self, address: u64, bytes: u64) -> Option<u64> {
        let (mut at, end) = (address, address + bytes);
        while at < end {
            let stop = (((at >> self.shift) + 1) << self.shift).min(end);
            let index = self.grain_of(at)?;
            if let Some(chunk) = self.chunk(index) {
                let chunk = &self.chunks[chunk];
                let first = at & ((1 << self.shift) - 1);
                if chunk.is_empty() {
                    return Some(at);
                }
                if let Some(offset) = first_zero(chunk, first, first + (stop - at)) {
                    return Some(at - first + offset);
                }
            }
            at = stop;
        }
        None
    }

    /// Bytes among the `bytes` from `address` on that nobody has written, one bit each; 16 at most.
    pub(crate) fn lacking(&self, address: u64, bytes: u64) -> u16 {
        (0..bytes.min(16))
            .filter(|byte| self.undefined(address + byte, 1).is_some())
            .fold(0, |all, byte| all | 1 << byte)
    }

    /// The range has been written, or (`defined` false) holds nothing any more.
    pub(crate) fn define(&mut self, address: u64, bytes: u64, defined: bool) {
        let (mut at, end) = (address, address + bytes);
        while at < end {
            let stop = (((at >> self.shift) + 1) << self.shift).min(end);
            let Some(index) = self.grain_of(at) else {
                return;
            };
            if let Some(chunk) = self.chunk(index) {
                let chunk = &mut self.chunks[chunk];
                if chunk.is_empty() && defined {
                    *chunk = vec![0; (1 << self.shift) / 64];
                }
                if !chunk.is_empty() {
                    let first = at & ((1 << self.shift) - 1);
                    set_bits(chunk, first, first + (stop - at), defined);
                }
            }
            at = stop;
        }
    }

    /// A copy takes over what is known of its source.
    pub(crate) fn copy(&mut self, destination: u64, source: u64, bytes: u64) {
        if self.undefined(source, bytes).is_none() {
            return self.define(destination, bytes, true);
        }
        let defined: Vec<bool> = (0..bytes)
            .map(|offset| self.undefined(source + offset, 1).is_none())
            .collect();
        for (offset, &defined) in defined.iter().enumerate() {
            self.define(destination + offset as u64, 1, defined);
        }
    }

    /// Says what a range is. Later words replace earlier ones.
    pub(crate) fn set_zone(
        &mut self,
        address: u64,
        bytes: u64,
        name: std::sync::Arc<str>,
        forbidden: bool,
        since: u64,
    ) {
        if bytes == 0 {
            return;
        }
        let released = forbidden
            && self
                .zones
                .range(..=address)
                .next_back()
                .is_some_and(|(_, zone)| zone.end > address && (!zone.forbidden || zone.released));
        self.clear_zones(address, address + bytes);
        let zone = Zone {
            end: address + bytes,
            forbidden,
            name,
            since,
            released,
        };
        self.zones.insert(address, zone);
    }

    fn clear_zones(&mut self, address: u64, end: u64) {
        self.open.take();
        if let Some((_, zone)) = self.zones.range_mut(..address).next_back()
            && zone.end > address
        {
            let rest = zone.clone();
            zone.end = address;
            self.zones.insert(address, rest);
        }
        while let Some((&begin, _)) = self.zones.range(address..end).next() {
            if let Some(zone) = self.zones.remove(&begin)
                && zone.end > end
            {
                self.zones.insert(end, zone);
            }
        }
    }

    /// The first part of the range that work of this ticket may not touch, and the nearest range before it.
    pub(crate) fn forbidden(
        &self,
        address: u64,
        bytes: u64,
        ticket: u64,
    ) -> Option<(u64, &Zone, Option<&Zone>)> {
        if self.zones.is_empty() {
            return None;
        }
        let end = address + bytes;
        let open = &mut self.open.borrow_mut()[(address >> 12) as usize % OPEN_RANGES];
        if address >= open.0 && end <= open.1 {
            return None;
        }
        let at = self.zones.range(..=address).next_back();
        let inside = at.filter(|(_, zone)| zone.end > address);
        *open = match inside {
            Some((_, zone)) if zone.forbidden => (0, 0),
            Some((&begin, zone)) => (begin, zone.end),
            None => {
                let next = self.zones.range(address..).next();
                let begin = at.map_or(0, |(_, zone)| zone.end);
                (begin, next.map_or(u64::MAX, |(&begin, _)| begin))
            }
        };
        let first = inside.map_or(address, |(&begin, _)| begin);
        for (&begin, zone) in self.zones.range(first..end) {
            if zone.forbidden && ticket >= zone.since {
                let before = self.zones.range(..begin).next_back().map(|(_, zone)| zone);
                return Some((begin.max(address), zone, before));
            }
        }
        None
    }
}

/// The first zero among bits `[from, to)`.
fn first_zero(bits: &[u64], from: u64, to: u64) -> Option<u64> {
    let mut at = from;
    while at < to {
        let word = !bits[(at / 64) as usize] >> (at % 64);
        let here = (64 - at % 64).min(to - at);
        if word != 0 && u64::from(word.trailing_zeros()) < here {
            return Some(at + u64::from(word.trailing_zeros()));
        }
        at += here;
    }
    None
}

fn set_bits(bits: &mut [u64], from: u64, to: u64, value: bool) {
    let mut at = from;
    while at < to {
        let here = (64 - at % 64).min(to - at);
        let mask = (u64::MAX >> (64 - here)) << (at % 64);
        let word = &mut bits[(at / 64) as usize];
        *word = if value { *word | mask } else { *word & !mask };
        at += here;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRAIN: u64 = 4096;

    fn shadow() -> MemoryShadow {
        MemoryShadow::new(0x10_0000, 12, 16)
    }

    #[test]
    fn definedness_follows_the_memory_and_not_the_address() {
        let (mut shadow, a, b) = (shadow(), 0x10_0000, 0x10_4000);
        shadow.map(a, 2 * GRAIN, 7, 0);
        assert_eq!(shadow.undefined(a + 8, 4), Some(a + 8));
        shadow.define(a + 4000, 200, true);
        assert_eq!(shadow.undefined(a + 4000, 200), None);
        assert_eq!(shadow.undefined(a + 4000, 201), Some(a + 4200));
        // The same memory elsewhere, then away and back again.
        shadow.map(b, 2 * GRAIN, 7, 0);
        assert_eq!(shadow.undefined(b + 4000, 200), None);
        shadow.define(b + 10, 1, true);
        shadow.unmap(a, 2 * GRAIN);
        shadow.unmap(b, 2 * GRAIN);
        shadow.map(a, 2 * GRAIN, 7, 0);
        assert_eq!(shadow.undefined(a + 10, 1), None);
        // New memory at the same place.
        shadow.unmap(a, 2 * GRAIN);
        shadow.forget(7);
        shadow.map(a, 2 * GRAIN, 8, 0);
        assert_eq!(shadow.undefined(a + 10, 1), Some(a + 10));
    }

    #[test]
    fn shared_memory_counts_as_written_wherever_it_is_mapped() {
        let (mut shadow, a, b) = (shadow(), 0x10_0000, 0x10_4000);
        shadow.map(a, 2 * GRAIN, 7, 0);
        shadow.map(b, GRAIN, 8, 0);
        shadow.share(7);
        assert_eq!(shadow.undefined(a, 2 * GRAIN), None);
        assert_eq!(shadow.undefined(b, 4), Some(b));
        shadow.define(a, 16, false);
        assert_eq!(shadow.undefined(a, 16), None, "another may write it again");
        shadow.unmap(a, 2 * GRAIN);
        shadow.map(a, GRAIN, 7, GRAIN);
        assert_eq!(shadow.undefined(a, GRAIN), None);
        // Gone, and new memory in its place.
        shadow.unmap(a, GRAIN);
        shadow.forget(7);
        shadow.map(a, GRAIN, 7, 0);
        assert_eq!(shadow.undefined(a, 4), Some(a));
    }

    #[test]
    fn a_copy_takes_over_exactly_what_was_defined() {
        let mut shadow = shadow();
        shadow.map(0x10_0000, GRAIN, 1, 0);
        shadow.define(0x10_0000 + 3, 70, true);
        shadow.define(0x10_0000 + 1024, 64, true);
        shadow.copy(0x10_0000 + 1024, 0x10_0000, 100);
        for offset in 0..100 {
            assert_eq!(
                shadow.undefined(0x10_0000 + 1024 + offset, 1).is_none(),
                (3..73).contains(&offset)
            );
        }
    }

    #[test]
    fn zones_split_and_know_what_was_there_before() {
        let mut shadow = shadow();
        let name = |text: &str| std::sync::Arc::from(text);
        let base = 0x10_0000;
        shadow.set_zone(base, 4096, name("nobody's"), true, 0);
        shadow.set_zone(base + 256, 100, name("a page"), false, 0);
        assert!(shadow.forbidden(base + 256, 100, 9).is_none());
        let (at, zone, before) = shadow.forbidden(base + 340, 20, 9).unwrap();
        assert_eq!((at, &*zone.name), (base + 356, "nobody's"));
        assert_eq!(&*before.unwrap().name, "a page");
        shadow.set_zone(base + 256, 100, name("a released page"), true, 5);
        assert!(
            shadow.forbidden(base + 256, 4, 4).is_none(),
            "issued before"
        );
        let (_, zone, _) = shadow.forbidden(base + 256, 4, 5).unwrap();
        assert!(zone.released);
        let (_, zone, _) = shadow.forbidden(base, 4, 5).unwrap();
        assert!(!zone.released);
    }
}
