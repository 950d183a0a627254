//! The shadow of a block's shared memory: who wrote and who read every word, and what nobody has written.
//!
//! A report is never a guess: where the record is too coarse to be sure (two lanes writing parts of one word, two unordered
//! warps writing different bytes of it) the check stays silent.

use super::clock::Clocks;

/// `lane` of a record that several lanes share.
pub(crate) const MANY: u8 = u8::MAX;
/// `lane` of a load by all lanes together. All of them have made it before any goes on, so what a lane of the same warp
/// writes later is ordered behind it.
pub(crate) const ALL: u8 = u8::MAX - 1;

/// How an access touches memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// An ordinary load.
    Read,
    /// A load by all lanes of a warp together (`ldmatrix`): each lane gets data that others' addresses name.
    Collective,
    /// An ordinary store.
    Write,
    /// A load or store that is `volatile`, `relaxed` or stronger: never races with its kind or with atomics.
    Strong {
        /// Whether it writes.
        write: bool,
    },
    /// A read-modify-write.
    Atomic,
    /// A store that happens at some time after this, up to its completion (`cp.async`).
    Pending,
}

impl Access {
    pub(crate) fn writes(self) -> bool {
        matches!(
            self,
            Access::Write | Access::Pending | Access::Atomic | Access::Strong { write: true }
        )
    }

    pub(crate) fn reads(self) -> bool {
        !self.writes() || self == Access::Atomic
    }

    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Access::Atomic | Access::Strong { .. })
    }
}

/// The latest write of a word.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    epoch: u32,
    pc: u32,
    actor: u16,
    lane: u8,
    /// Bytes of the word: low half the latest write's, high half those written since the block began.
    bytes: u8,
    flags: u8,
}

const PENDING: u8 = 1;
const ATOMIC: u8 = 2;

/// What is wrong with an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharedFault {
    /// Nobody has written the bytes in this block.
    Uninitialised,
    /// An asynchronous copy into the bytes has not been waited for.
    NotWaited(Other),
    /// Unordered with another warp's access.
    Race(Other),
    /// Unordered with an access of another lane of the same warp.
    WarpRace(Other),
}

/// The other access of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Other {
    /// A warp, or what goes on behind the back of one (see [`Clocks`]).
    pub(crate) actor: u32,
    /// [`MANY`] when there were several.
    pub(crate) lane: u8,
    pub(crate) pc: u32,
    pub(crate) wrote: bool,
}

/// One lane's access, within one word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    /// The warp whose place in the order it has.
    pub(crate) warp: u32,
    /// Who it is recorded for: the warp, or what goes on behind its back.
    pub(crate) actor: u32,
    pub(crate) lane: u8,
    pub(crate) pc: u32,
    pub(crate) access: Access,
    /// Bytes of what is written that hold no value, from the first one on.
    pub(crate) undefined: u16,
}

/// The shadow of the shared memory of the blocks that run together, which is that of one cluster after the other.
#[derive(Debug)]
pub(crate) struct SharedShadow {
    written: Vec<Written>,
    /// `[actor][word]`: the latest read by an actor of the word's cluster: epoch in bits 32.., pc in 12..32, bytes in 8..12,
    /// lane in 0..8.
    read: Vec<u64>,
    clusters: usize,
}

const PC_MASK: u64 = (1 << 20) - 1;

impl SharedShadow {
    /// The shadow of `bytes` bytes, of `clusters` clusters with `actors` actors together.
    pub(crate) fn new(bytes: usize, clusters: usize, actors: usize) -> SharedShadow {
        let words = bytes.div_ceil(4);
        SharedShadow {
            written: vec![Written::default(); words],
            read: vec![0; words * (actors / clusters)],
            clusters,
        }
    }

    /// Number of an actor in its cluster.
    fn inside(&self, clocks: &Clocks, actor: usize) -> usize {
        if self.clusters == 1 {
            return actor;
        }
        let warps = clocks.warps() / self.clusters;
        actor / clocks.warps() * warps + actor % clocks.warps() % warps
    }

    /// The actor with a number in the cluster that a word belongs to.
    fn actor(&self, clocks: &Clocks, word: usize, inside: usize) -> usize {
        if self.clusters == 1 {
            return inside;
        }
        let warps = clocks.warps() / self.clusters;
        let cluster = word / (self.written.len() / self.clusters);
        inside / warps * clocks.warps() + cluster * warps + inside % warps
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.written.fill(Written::default());
        self.read.fill(0);
    }

    /// Records an access of `bytes` bytes at `offset` by one lane and gives the first thing wrong with it.
    pub(crate) fn touch(
        &mut self,
        clocks: &Clocks,
        offset: u32,
        bytes: u32,
        touch: Touch,
    ) -> Option<SharedFault> {
        let mut found = None;
        let end = offset + bytes;
        let mut at = offset;
        while at < end {
            let word = at / 4;
            let next = end.min(word * 4 + 4);
            let mask = (0xF_u8 >> (4 - (next - at))) << (at % 4);
            let fault = if touch.access.writes() {
                // Of more than 16 bytes none are undefined.
                let lacking = touch.undefined.checked_shr(at - offset).unwrap_or(0) as u8 & 0xF;
                let lacking = lacking << (at % 4) & mask;
                self.write(clocks, word as usize, mask, lacking, touch)
            } else {
                self.read(clocks, word as usize, mask, touch)
            };
            found = found.or(fault);
            at = next;
        }
        found
    }

    fn write(
        &mut self,
        clocks: &Clocks,
        word: usize,
        mask: u8,
        lacking: u8,
        touch: Touch,
    ) -> Option<SharedFault> {
        let (me, known) = (touch.warp as usize, clocks.of(touch.warp as usize));
        let mut fault = None;
        if touch.access == Access::Atomic && self.undefined(clocks, word, mask) {
            fault = Some(SharedFault::Uninitialised);
        }
        let old = self.written[word];
        fault = fault.or(self.against_write(clocks, &old, mask, touch));
        let reads = self.read.iter().skip(word).step_by(self.written.len());
        for (inside, &read) in reads.enumerate() {
            let epoch = (read >> 32) as u32;
            if fault.is_some() || epoch < clocks.base() || (read >> 8) as u8 & mask == 0 {
                continue;
            }
            let actor = self.actor(clocks, word, inside);
            let lane = read as u8;
            let other = Other {
                actor: actor as u32,
                lane,
                pc: (read >> 12 & PC_MASK) as u32,
                wrote: false,
            };
            if actor != me {
                if epoch > known[actor] {
                    fault = Some(SharedFault::Race(other));
                }
            } else if epoch == known[me] && lane != touch.lane && lane != ALL {
                fault = Some(SharedFault::WarpRace(other));
            }
        }
        let fresh = old.epoch < clocks.base();
        let defined = if fresh { 0 } else { old.bytes & 0xF0 };
        let epoch = clocks.epoch(touch.actor as usize);
        let own = u32::from(old.actor) == touch.actor;
        let same = !fresh && old.epoch == epoch && old.pc == touch.pc && own;
        let lane = if same && old.lane != touch.lane {
            MANY
        } else {
            touch.lane
        };
        self.written[word] = Written {
            epoch,
            pc: touch.pc,
            actor: touch.actor as u16,
            lane,
            bytes: defined & !(lacking << 4)
                | (mask & !lacking) << 4
                | mask
                | if same { old.bytes & 0xF } else { 0 },
            flags: match touch.access {
                Access::Pending => PENDING,
                access if access.is_atomic() => ATOMIC,
                _ => 0,
            },
        };
        fault
    }

    fn read(
        &mut self,
        clocks: &Clocks,
        word: usize,
        mask: u8,
        touch: Touch,
    ) -> Option<SharedFault> {
        let old = self.written[word];
        let fault = self.against_write(clocks, &old, mask, touch).or_else(|| {
            let undefined = self.undefined(clocks, word, mask);
            undefined.then_some(SharedFault::Uninitialised)
        });
        if touch.access.is_atomic() {
            return fault;
        }
        let actor = touch.actor as usize;
        let inside = self.inside(clocks, actor);
        let record = &mut self.read[inside * self.written.len() + word];
        let epoch = clocks.epoch(actor);
        let (mut lane, mut bytes) = (touch.lane, mask);
        if *record >> 32 == u64::from(epoch) {
            bytes |= (*record >> 8) as u8 & 0xF;
            if *record as u8 != lane {
                lane = MANY;
            }
        }
        *record = u64::from(epoch) << 32
            | (u64::from(touch.pc) & PC_MASK) << 12
            | u64::from(bytes) << 8
            | u64::from(lane);
        fault
    }

    fn undefined(&self, clocks: &Clocks, word: usize, mask: u8) -> bool {
        let old = self.written[word];
        old.epoch < clocks.base() || old.bytes >> 4 & mask != mask
    }

    /// Bytes among the `bytes` from `offset` on that hold no value, one bit each; 16 at most.
    pub(crate) fn lacking(&self, clocks: &Clocks, offset: u32, bytes: u32) -> u16 {
        (0..bytes.min(16))
            .filter(|byte| {
                let at = offset + byte;
                self.undefined(clocks, at as usize / 4, 1 << (at % 4))
            })
            .fold(0, |all, byte| all | 1 << byte)
    }

    /// Compares an access with the word's latest write.
    fn against_write(
        &self,
        clocks: &Clocks,
        old: &Written,
        mask: u8,
        touch: Touch,
    ) -> Option<SharedFault> {
        if old.epoch < clocks.base() || old.bytes & mask == 0 {
            return None;
        }
        let other = Other {
            actor: old.actor.into(),
            lane: old.lane,
            pc: old.pc,
            wrote: true,
        };
        if old.flags & PENDING != 0 {
            return Some(SharedFault::NotWaited(other));
        }
        if touch.access.is_atomic() && old.flags & ATOMIC != 0 {
            return None;
        }
        let me = touch.warp as usize;
        if usize::from(old.actor) != me {
            let known = clocks.of(me)[usize::from(old.actor)];
            return (old.epoch > known).then_some(SharedFault::Race(other));
        }
        if old.epoch != clocks.epoch(me) {
            return None;
        }
        let unordered = if touch.access == Access::Collective {
            true
        } else if old.lane == MANY {
            // One of the writers is another lane for certain only if all bytes are touched.
            mask == 0xF && old.pc != touch.pc
        } else {
            // Lanes of one store that meet in a word leave one of their values there, often the same.
            old.lane != touch.lane && (old.pc != touch.pc || !touch.access.writes())
        };
        unordered.then_some(SharedFault::WarpRace(other))
    }

    /// An asynchronous copy is complete. One of a warp's own is an ordinary write of its lane, now; one that went on behind
    /// its back keeps its epoch, of which only those learn who wait for it.
    pub(crate) fn complete(&mut self, clocks: &Clocks, offset: u32, bytes: u32, actor: u32) {
        for word in offset / 4..(offset + bytes).div_ceil(4) {
            let written = &mut self.written[word as usize];
            if written.flags & PENDING != 0 && u32::from(written.actor) == actor {
                written.flags = 0;
                if (actor as usize) < clocks.warps() {
                    written.epoch = clocks.epoch(actor as usize);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup() -> (Clocks, SharedShadow) {
        let mut clocks = Clocks::new(2, 1, false);
        clocks.begin_block();
        (clocks, SharedShadow::new(64, 1, 2))
    }

    fn touch(warp: u32, lane: u8, pc: u32, access: Access) -> Touch {
        Touch {
            warp,
            actor: warp,
            lane,
            pc,
            access,
            undefined: 0,
        }
    }

    fn barrier(clocks: &mut Clocks) {
        for warp in 0..2 {
            clocks.arrive(0, warp);
        }
        for warp in 0..2 {
            clocks.leave(0, warp);
        }
        clocks.reset(0);
    }

    #[test]
    fn a_read_after_another_warps_write_needs_a_barrier() {
        let (mut clocks, mut shadow) = setup();
        let write = touch(0, 3, 7, Access::Write);
        let read = touch(1, 0, 9, Access::Read);
        assert_eq!(
            shadow.touch(&clocks, 8, 4, read),
            Some(SharedFault::Uninitialised)
        );
        clocks.begin_block();
        assert_eq!(shadow.touch(&clocks, 8, 4, write), None);
        assert!(matches!(
            shadow.touch(&clocks, 8, 4, read),
            Some(SharedFault::Race(Other {
                actor: 0,
                lane: 3,
                pc: 7,
                wrote: true
            }))
        ));
        clocks.begin_block();
        assert_eq!(shadow.touch(&clocks, 8, 4, write), None);
        barrier(&mut clocks);
        assert_eq!(shadow.touch(&clocks, 8, 4, read), None);
        assert!(matches!(
            shadow.touch(&clocks, 8, 4, write),
            Some(SharedFault::Race(Other {
                actor: 1,
                wrote: false,
                ..
            }))
        ));
    }

    #[test]
    fn bytes_of_one_word_are_told_apart() {
        let (clocks, mut shadow) = setup();
        assert_eq!(
            shadow.touch(&clocks, 0, 2, touch(0, 0, 1, Access::Write)),
            None
        );
        assert_eq!(
            shadow.touch(&clocks, 2, 2, touch(1, 0, 2, Access::Write)),
            None
        );
        assert_eq!(
            shadow.touch(&clocks, 2, 2, touch(1, 0, 3, Access::Read)),
            None
        );
        assert_eq!(
            shadow.touch(&clocks, 4, 2, touch(1, 0, 3, Access::Read)),
            Some(SharedFault::Uninitialised)
        );
    }

    #[test]
    fn a_store_of_undefined_bytes_leaves_them_undefined() {
        let (clocks, mut shadow) = setup();
        let write = Touch {
            undefined: 0b1100_0110,
            ..touch(0, 0, 1, Access::Write)
        };
        shadow.touch(&clocks, 8, 8, touch(0, 0, 1, Access::Write));
        assert_eq!(shadow.touch(&clocks, 8, 8, write), None);
        assert_eq!(shadow.lacking(&clocks, 8, 8), 0b1100_0110);
        assert_eq!(shadow.lacking(&clocks, 4, 8), 0b0110_1111);
        let read = touch(0, 0, 2, Access::Read);
        assert_eq!(shadow.touch(&clocks, 11, 3, read), None);
        assert_eq!(
            shadow.touch(&clocks, 9, 1, read),
            Some(SharedFault::Uninitialised)
        );
    }

    #[test]
    fn lanes_of_a_warp_need_bar_warp_sync() {
        let (mut clocks, mut shadow) = setup();
        shadow.touch(&clocks, 0, 4, touch(0, 0, 1, Access::Write));
        assert_eq!(
            shadow.touch(&clocks, 0, 4, touch(0, 0, 2, Access::Read)),
            None
        );
        assert!(matches!(
            shadow.touch(&clocks, 0, 4, touch(0, 1, 2, Access::Read)),
            Some(SharedFault::WarpRace(_))
        ));
        clocks.advance(0);
        assert_eq!(
            shadow.touch(&clocks, 0, 4, touch(0, 1, 2, Access::Read)),
            None
        );
    }

    #[test]
    fn a_pending_copy_may_not_be_touched_until_it_is_complete() {
        let (mut clocks, mut shadow) = setup();
        assert_eq!(
            shadow.touch(&clocks, 16, 16, touch(0, 4, 1, Access::Pending)),
            None
        );
        assert!(matches!(
            shadow.touch(&clocks, 16, 4, touch(0, 4, 2, Access::Read)),
            Some(SharedFault::NotWaited(_))
        ));
        shadow.complete(&clocks, 16, 16, 0);
        assert_eq!(
            shadow.touch(&clocks, 16, 16, touch(0, 4, 2, Access::Read)),
            None
        );
        assert!(matches!(
            shadow.touch(&clocks, 16, 4, touch(1, 0, 3, Access::Read)),
            Some(SharedFault::Race(_))
        ));
        barrier(&mut clocks);
        assert_eq!(
            shadow.touch(&clocks, 16, 4, touch(1, 0, 3, Access::Read)),
            None
        );
    }
}
