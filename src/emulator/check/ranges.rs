//! Ranges of device memory that blocks touched, and which of them collide.
//!
//! Accesses are logged as ranges, merged where an instruction goes on where it was. When the blocks that run together (one, a
//! cluster, the grid of a cooperative launch) have ended, their warps are compared with each other, at the end of a launch
//! its blocks, and what is left are the ranges the launch read and wrote, to be compared with other streams' work.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

/// One logged range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) write: bool,
    pub(crate) atomic: bool,
    pub(crate) warp: u16,
    pub(crate) lane: u8,
    pub(crate) pc: u32,
    /// The warp's epoch.
    pub(crate) epoch: u32,
    /// Number of the warp's clock as it was then, in the block's list.
    pub(crate) clock: u32,
    /// Number of the block's state of knowledge about other blocks.
    pub(crate) era: u32,
}

/// Entries back from the end in which a range to extend is looked for.
const LOOK_BACK: usize = 6;

/// Bytes of a log above which it is worth looking for what it can do without.
const LOG_BYTES: usize = 64 << 20;

/// The accesses of the blocks that run together.
#[derive(Debug)]
pub(crate) struct BlockLog {
    ranges: Vec<Range>,
    /// `[clock][actor]`
    clocks: Vec<u32>,
    /// Bytes above which it is full.
    limit: usize,
}

impl Default for BlockLog {
    fn default() -> Self {
        BlockLog {
            ranges: Vec::new(),
            clocks: Vec::new(),
            limit: LOG_BYTES,
        }
    }
}

impl BlockLog {
    /// Number of the clock `of`, which is kept.
    pub(crate) fn clock(&mut self, of: &[u32]) -> u32 {
        self.clocks.extend_from_slice(of);
        (self.clocks.len() / of.len()) as u32 - 1
    }

    pub(crate) fn record(&mut self, range: Range) {
        let from = self.ranges.len().saturating_sub(LOOK_BACK);
        for old in self.ranges[from..].iter_mut().rev() {
            let alike = (old.write, old.atomic, old.warp, old.pc, old.clock, old.era)
                == (
                    range.write,
                    range.atomic,
                    range.warp,
                    range.pc,
                    range.clock,
                    range.era,
                );
            if alike && range.start <= old.end && range.end >= old.start {
                old.start = old.start.min(range.start);
                old.end = old.end.max(range.end);
                return;
            }
        }
        self.ranges.push(range);
    }

    fn bytes(&self) -> usize {
        size_of_val(&*self.ranges) + size_of_val(&*self.clocks)
    }

    /// Whether [`BlockLog::settle`] is due.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes() > self.limit
    }

    /// Finds races among what has been logged so far, and takes out what no later access can race with: that of each actor
    /// up to its `settled` epoch. Numbers of clocks given out before are void.
    pub(crate) fn settle(
        &mut self,
        settled: &[u32],
        found: &mut dyn FnMut(&Range, &Range),
    ) -> Vec<Range> {
        let actors = settled.len();
        self.races(actors, found);
        let (done, mut left): (Vec<Range>, Vec<Range>) = std::mem::take(&mut self.ranges)
            .into_iter()
            .partition(|range| range.epoch <= settled[usize::from(range.warp)]);
        let clocks = std::mem::take(&mut self.clocks);
        let mut renumbered = HashMap::new();
        for range in &mut left {
            let old = range.clock as usize;
            range.clock = *renumbered
                .entry(old)
                .or_insert_with(|| self.clock(&clocks[old * actors..(old + 1) * actors]));
        }
        self.ranges = left;
        self.limit = LOG_BYTES.max(2 * self.bytes());
        merged(done)
    }

    /// Pairs of ranges of different warps that nothing orders.
    pub(crate) fn races(&mut self, actors: usize, found: &mut dyn FnMut(&Range, &Range)) {
        self.ranges.sort_unstable_by_key(|range| range.start);
        let clocks = &self.clocks;
        let before = |a: &Range, b: &Range| {
            a.epoch <= clocks[b.clock as usize * actors + usize::from(a.warp)]
        };
        collisions(&self.ranges, |a, b| {
            let ordered = a.warp == b.warp || before(a, b) || before(b, a);
            if !ordered {
                found(a, b);
            }
        });
    }

    /// What is left of the block for comparisons with other blocks; the log begins anew.
    pub(crate) fn finish(&mut self) -> Vec<Range> {
        self.clocks.clear();
        merged(std::mem::take(&mut self.ranges))
    }
}

/// Ranges of one kind and era that touch each other, made one.
fn merged(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_unstable_by_key(|range| (range.write, range.atomic, range.era, range.start));
    ranges.dedup_by(|next, kept| {
        let alike = (next.write, next.atomic, next.era) == (kept.write, kept.atomic, kept.era);
        let joined = alike && next.start <= kept.end;
        if joined {
            kept.end = kept.end.max(next.end);
        }
        joined
    });
    ranges
}

/// Calls `found` for every two overlapping ranges of which one writes and not both are atomic. `ranges` are sorted by start.
fn collisions(ranges: &[Range], mut found: impl FnMut(&Range, &Range)) {
    // Plain reads and writes, then atomic ones.
    let mut open: [BinaryHeap<Reverse<(u64, usize)>>; 4] = Default::default();
    for (index, range) in ranges.iter().enumerate() {
        for heap in &mut open {
            while heap
                .peek()
                .is_some_and(|Reverse((end, _))| *end <= range.start)
            {
                heap.pop();
            }
        }
        let against: &[usize] = match (range.atomic, range.write) {
            (false, false) => &[1, 3],
            (false, true) => &[0, 1, 2, 3],
            (true, false) => &[1],
            (true, true) => &[0, 1],
        };
        for &kind in against {
            for Reverse((_, other)) in &open[kind] {
                found(&ranges[*other], range);
            }
        }
        let kind = 2 * usize::from(range.atomic) + usize::from(range.write);
        open[kind].push(Reverse((range.end, index)));
    }
}

/// What a block knows of other blocks: accesses up to which of their phases are ordered before its own.
type Knowledge = Arc<HashMap<u64, u32>>;

#[derive(Clone, Debug)]
struct Era {
    block: u64,
    phase: u32,
    knows: Knowledge,
}

/// Order between blocks of one launch, made by fences and atomics.
///
/// A block's life is cut into phases at its fences. An atomic publishes what the block had done before its last fence, and
/// what it knew then; a later atomic or strong load of the same address by another block picks that up, and the block's
/// next fence or barrier makes it count.
#[derive(Debug, Default)]
pub(crate) struct BlockOrder {
    eras: Vec<Era>,
    /// Phase at the present block's last fence: what an atomic publishes.
    published: u32,
    /// Picked up, and not yet followed by a fence or barrier.
    pending: HashMap<u64, u32>,
    at: HashMap<u64, HashMap<u64, u32>>,
}

impl BlockOrder {
    pub(crate) fn begin_block(&mut self, block: u64) {
        self.eras.push(Era {
            block,
            phase: 1,
            knows: Knowledge::default(),
        });
        self.published = 0;
        self.pending.clear();
    }

    /// Number of the present block's present state.
    pub(crate) fn era(&self) -> u32 {
        self.eras.len() as u32 - 1
    }

    /// A fence by any warp of the block.
    pub(crate) fn fence(&mut self) {
        let Some(era) = self.eras.last() else {
            return;
        };
        self.published = era.phase;
        let next = Era {
            phase: era.phase + 1,
            ..era.clone()
        };
        self.eras.push(next);
        self.acquire();
    }

    /// What was picked up counts from here on: at a fence or a barrier.
    pub(crate) fn acquire(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let Some(era) = self.eras.last() else {
            return;
        };
        let mut knows = (*era.knows).clone();
        for (block, phase) in self.pending.drain() {
            let known = knows.entry(block).or_insert(0);
            *known = (*known).max(phase);
        }
        let next = Era {
            knows: Arc::new(knows),
            ..era.clone()
        };
        self.eras.push(next);
    }

    /// An atomic or strong access of the word at `address`.
    pub(crate) fn synchronise(&mut self, address: u64, reads: bool, writes: bool) {
        let Some(era) = self.eras.last() else {
            return;
        };
        if reads && let Some(there) = self.at.get(&address) {
            for (&block, &phase) in there {
                let known = self.pending.entry(block).or_insert(0);
                *known = (*known).max(phase);
            }
        }
        if writes && self.published > 0 {
            let there = self.at.entry(address).or_default();
            let own = std::iter::once((era.block, self.published));
            for (block, phase) in own.chain(era.knows.iter().map(|(&b, &p)| (b, p))) {
                let known = there.entry(block).or_insert(0);
                *known = (*known).max(phase);
            }
        }
    }

    fn before(&self, a: &Range, b: &Range) -> bool {
        let (a, b) = (&self.eras[a.era as usize], &self.eras[b.era as usize]);
        b.knows.get(&a.block).is_some_and(|&phase| a.phase <= phase)
    }

    /// The block that made a range.
    pub(crate) fn block_of(&self, range: &Range) -> u64 {
        self.eras[range.era as usize].block
    }

    /// Pairs of ranges of different blocks that nothing orders. Sorts `ranges`.
    pub(crate) fn races(&self, ranges: &mut [Range], found: &mut dyn FnMut(&Range, &Range)) {
        ranges.sort_unstable_by_key(|range| range.start);
        collisions(ranges, |a, b| {
            if self.block_of(a) != self.block_of(b) && !self.before(a, b) && !self.before(b, a) {
                found(a, b);
            }
        });
    }

    /// Ends the launch.
    pub(crate) fn clear(&mut self) {
        *self = BlockOrder::default();
    }
}

/// Sorted ranges that do not touch each other.
pub(crate) type RangeSet = Vec<(u64, u64)>;

/// Merges ranges.
pub(crate) fn merge(mut ranges: RangeSet) -> RangeSet {
    ranges.sort_unstable();
    ranges.dedup_by(|next, kept| {
        let joined = next.0 <= kept.1;
        if joined {
            kept.1 = kept.1.max(next.1);
        }
        joined
    });
    ranges
}

/// The first address that two sets share.
pub(crate) fn overlap(a: &[(u64, u64)], b: &[(u64, u64)]) -> Option<u64> {
    let (mut i, mut j) = (0, 0);
    while i < a.len() && j < b.len() {
        let start = a[i].0.max(b[j].0);
        if start < a[i].1.min(b[j].1) {
            return Some(start);
        }
        if a[i].1 <= b[j].1 {
            i += 1;
        } else {
            j += 1;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64, write: bool, era: u32) -> Range {
        Range {
            start,
            end,
            write,
            atomic: false,
            warp: 0,
            lane: 0,
            pc: 0,
            epoch: 1,
            clock: 0,
            era,
        }
    }

    fn races(order: &BlockOrder, mut ranges: Vec<Range>) -> usize {
        let mut count = 0;
        order.races(&mut ranges, &mut |_, _| count += 1);
        count
    }

    #[test]
    fn blocks_collide_where_one_writes() {
        let mut order = BlockOrder::default();
        order.begin_block(0);
        order.begin_block(1);
        assert_eq!(
            races(&order, vec![range(0, 8, false, 0), range(4, 8, false, 1)]),
            0
        );
        assert_eq!(
            races(&order, vec![range(0, 8, true, 0), range(8, 12, true, 1)]),
            0
        );
        assert_eq!(
            races(&order, vec![range(0, 8, true, 0), range(7, 12, false, 1)]),
            1
        );
        assert_eq!(
            races(&order, vec![range(0, 8, true, 0), range(7, 12, true, 0)]),
            0
        );
    }

    #[test]
    fn a_fence_and_an_atomic_order_what_came_before() {
        for fence in [false, true] {
            let mut order = BlockOrder::default();
            order.begin_block(0);
            let write = order.era();
            if fence {
                order.fence();
            }
            order.synchronise(64, true, true);
            let late = order.era();
            order.begin_block(1);
            order.synchronise(64, true, true);
            order.acquire();
            let read = order.era();
            let expected = usize::from(!fence);
            assert_eq!(
                races(
                    &order,
                    vec![range(0, 8, true, write), range(0, 8, false, read)]
                ),
                expected
            );
            if fence {
                let pair = vec![range(0, 8, true, late), range(0, 8, false, read)];
                assert_eq!(races(&order, pair), 1, "written after the fence");
            }
        }
    }

    #[test]
    fn a_log_forgets_what_is_settled_and_nothing_else() {
        let mut log = BlockLog::default();
        let clock = log.clock(&[1, 0]);
        let other = log.clock(&[1, 1]);
        let at = |start, warp, epoch, clock| Range {
            warp,
            epoch,
            clock,
            ..range(start, start + 4, true, 0)
        };
        log.record(at(0, 0, 1, clock));
        log.record(at(16, 1, 1, other));
        log.record(at(32, 1, 2, other));
        // Warp 0 knows warp 1 up to epoch 1; nobody knows warp 0.
        let mut none = 0;
        let done = log.settle(&[0, 1], &mut |_, _| none += 1);
        assert_eq!((done.len(), done[0].start, none), (1, 16, 0));
        let clock = log.clock(&[2, 1]);
        log.record(at(32, 0, 2, clock));
        log.record(at(16, 0, 2, clock));
        let mut found = Vec::new();
        log.races(2, &mut |a, b| found.push((a.start, b.start)));
        assert_eq!(found, [(32, 32)]);
        assert_eq!(log.finish().len(), 3, "one for 32");
    }

    #[test]
    fn sets_merge_and_overlap() {
        let a = merge(vec![(8, 12), (0, 4), (4, 6), (20, 30)]);
        assert_eq!(a, [(0, 6), (8, 12), (20, 30)]);
        assert_eq!(overlap(&a, &[(6, 8), (12, 20)]), None);
        assert_eq!(overlap(&a, &[(6, 8), (29, 40)]), Some(29));
    }
}
