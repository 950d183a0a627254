//! What the checked mode makes of instructions that go on behind their warp's back: bulk copies and the mbarriers that wait
//! for them, `st.async`, `wgmma`.

use super::super::warp::Warp;
use super::Watch;
use super::memory::Party;
use crate::emulator::check::CheckKind;
use crate::emulator::check::fragments::FragmentFault;
use crate::emulator::check::registers::Background;
use crate::emulator::check::shared::{self, Access};
use std::collections::HashMap;

/// What happens at an mbarrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierEvent {
    /// It begins, or ends, its life.
    Begin,
    /// A thread arrives.
    Arrive,
    /// Bytes of the warp's asynchronous stores have come.
    Bytes,
    /// A thread finds a phase complete.
    Pass,
    /// Nothing that orders.
    Other,
}

/// A piece of a bulk copy, by host address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Movement {
    pub(crate) target: u64,
    /// `None`: the target is filled.
    pub(crate) source: Option<u64>,
    pub(crate) bytes: u64,
}

/// A bulk copy under way: who reads and writes, and in which epochs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Issued {
    reader: (usize, u32),
    writer: (usize, u32),
}

/// Bulk copies in groups, by thread: warp and lane.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// The latest copy of each thread.
    latest: HashMap<(u32, u32), Issued>,
    /// The latest copy of each group.
    committed: HashMap<(u32, u32), Vec<Issued>>,
}

impl Groups {
    pub(super) fn clear(&mut self) {
        self.latest.clear();
        self.committed.clear();
    }
}

impl Watch<'_> {
    /// Something happens at the mbarrier at a host address, and completes its phase or not.
    pub(crate) fn mbarrier(
        &mut self,
        warp: &Warp,
        address: u64,
        event: BarrierEvent,
        completes: bool,
    ) {
        let (barrier, position) = (self.shared_offset(address), warp.position as usize);
        match event {
            BarrierEvent::Begin => self.clocks.forget(barrier),
            BarrierEvent::Arrive => self.clocks.release(barrier, position, false),
            BarrierEvent::Bytes => self.remote_arrived(position, barrier),
            BarrierEvent::Pass => self.clocks.pass(barrier, position),
            BarrierEvent::Other => {}
        }
        if completes {
            self.clocks.complete(barrier);
        }
        self.logged_clock[position] = u32::MAX;
    }

    // Asynchronous stores.

    /// The warp's store is one that others learn of through an mbarrier alone.
    pub(super) fn begin_remote(&mut self, warp: &Warp) -> Party {
        let position = warp.position as usize;
        let writer = self.clocks.writer(position);
        self.clocks.begin_background(writer);
        Party {
            warp: warp.position,
            actor: writer as u32,
        }
    }

    /// It has been recorded: the warp's own later accesses are not ordered behind it.
    pub(super) fn end_remote(&mut self, warp: &Warp) {
        self.clocks.advance(warp.position as usize);
        self.logged_clock[warp.position as usize] = u32::MAX;
    }

    fn remote_arrived(&mut self, position: usize, barrier: u32) {
        if self.clocks.actors() > self.clocks.warps() {
            let writer = self.clocks.writer(position);
            let epoch = self.clocks.epoch(writer);
            self.clocks.tell(barrier, writer, epoch);
        }
    }

    // Bulk copies.

    /// A lane issues a bulk copy, or (`reduces`) reduction.
    pub(crate) fn bulk_begins(
        &mut self,
        warp: &Warp,
        lane: usize,
        pieces: impl Iterator<Item = Movement>,
        reduces: bool,
    ) -> Issued {
        let position = warp.position as usize;
        let (reader, writer) = (self.clocks.reader(position), self.clocks.writer(position));
        let issued = Issued {
            reader: (reader, self.clocks.begin_background(reader)),
            writer: (writer, self.clocks.begin_background(writer)),
        };
        let party = |actor: usize| Party {
            warp: warp.position,
            actor: actor as u32,
        };
        for piece in pieces {
            // What a piece lacks is told in 16 bytes at a time.
            let whole = piece
                .source
                .is_none_or(|source| self.holds_values(source, piece.bytes));
            let step = if whole { piece.bytes.max(1) } else { 16 };
            for at in (0..piece.bytes).step_by(step as usize) {
                let bytes = step.min(piece.bytes - at);
                let lacking = match piece.source {
                    Some(source) => self.read_behind(party(reader), lane, source + at, bytes),
                    None => 0,
                };
                let access = if reduces {
                    Access::Atomic
                } else {
                    Access::Pending
                };
                self.write_behind(
                    party(writer),
                    lane,
                    piece.target + at,
                    bytes,
                    access,
                    lacking,
                );
            }
        }
        self.end_remote(warp);
        self.bulk
            .latest
            .insert((warp.position, lane as u32), issued);
        issued
    }

    /// A bulk copy that an mbarrier counts is complete; `targets` are the ranges it wrote.
    pub(crate) fn bulk_arrived(
        &mut self,
        barrier: u64,
        issued: &Issued,
        targets: impl Iterator<Item = (u64, u64)>,
        completes: bool,
    ) {
        let barrier = self.shared_offset(barrier);
        for (address, bytes) in targets {
            if !self.in_shared(address) {
                continue;
            }
            let (offset, bytes) = (self.shared_offset(address), bytes as u32);
            let writer = issued.writer.0 as u32;
            self.shared.complete(&self.clocks, offset, bytes, writer);
        }
        for (actor, epoch) in [issued.reader, issued.writer] {
            self.clocks.tell(barrier, actor, epoch);
        }
        if completes {
            self.clocks.complete(barrier);
        }
    }

    /// `cp.async.bulk.commit_group` by a thread.
    pub(crate) fn bulk_commit(&mut self, thread: (u32, u32)) {
        let latest = self.bulk.latest.get(&thread).copied().unwrap_or_default();
        self.bulk.committed.entry(thread).or_default().push(latest);
    }

    /// `cp.async.bulk.wait_group`: the thread's first `done` groups are complete, or their reads alone.
    pub(crate) fn bulk_wait(&mut self, thread: (u32, u32), done: u64, reads_only: bool) {
        let groups = self.bulk.committed.get(&thread);
        let Some(&issued) = groups.and_then(|groups| groups[..done as usize].last()) else {
            return;
        };
        let warp = thread.0 as usize;
        if issued == Issued::default() {
            return;
        }
        self.clocks.learn(warp, issued.reader.0, issued.reader.1);
        if !reads_only {
            self.clocks.learn(warp, issued.writer.0, issued.writer.1);
        }
        self.logged_clock[warp] = u32::MAX;
    }

    // `wgmma`.

    /// An operand of `wgmma` is read from an offset of the block's own shared memory.
    pub(crate) fn matrix_read(&mut self, warp: &Warp, offset: u64, bytes: u64) {
        let party = Party {
            warp: warp.position,
            actor: self.clocks.reader(warp.position as usize) as u32,
        };
        let lane = usize::from(shared::ALL);
        self.read_behind(party, lane, warp.shared as u64 + offset, bytes);
    }

    /// The registers of the instruction that is about to run.
    pub(super) fn execute_fragments(&mut self, warp: u32, pc: u32) {
        let table = &self.launch.spec.kernel.code.operands;
        let operands = table.of[pc as usize];
        let (destinations, sources) = table.at(pc as usize);
        let fragments = &mut self.fragments[warp as usize];
        let found = if operands.background == Background::Matrix {
            let position = warp as usize;
            let reader = self.clocks.reader(position);
            self.clocks.begin_background(reader);
            // A descriptor or four registers of A, then B's descriptor and a predicate, which are read at once.
            let a = &sources[..sources.len() - 2];
            fragments.issue(pc, destinations, if a.len() > 1 { a } else { &[] })
        } else {
            fragments.execute(pc, destinations, sources)
        };
        if let Some(fault) = found {
            self.report_fragment(warp, fault);
        }
    }

    #[cold]
    fn report_fragment(&mut self, warp: u32, fault: FragmentFault) {
        let (kind, other, message) = match fault {
            FragmentFault::NotWaited { pc } => (
                CheckKind::ResultNotWaitedFor,
                pc,
                format!(
                    "a register is touched that the wgmma in {} still reads or writes, and no wgmma.wait_group stands between",
                    self.place(pc)
                ),
            ),
            FragmentFault::NotFenced { pc } => (
                CheckKind::MissingFence,
                pc,
                format!(
                    "a register of wgmma was written in {}, and no wgmma.fence stands between",
                    self.place(pc)
                ),
            ),
        };
        self.report(kind, warp, 0, self.pc, other, || message);
    }

    /// `wgmma.fence`
    pub(crate) fn matrix_fence(&mut self, warp: u32) {
        if let Some(fragments) = self.fragments.get_mut(warp as usize) {
            fragments.fence();
        }
    }

    /// `wgmma.commit_group`
    pub(crate) fn matrix_commit(&mut self, warp: u32) {
        if let Some(fragments) = self.fragments.get_mut(warp as usize) {
            let reader = self.clocks.reader(warp as usize);
            fragments.commit(self.clocks.epoch(reader));
        }
    }

    /// `wgmma.wait_group`: `keep` groups may stay open.
    pub(crate) fn matrix_wait(&mut self, warp: u32, keep: u64) {
        let position = warp as usize;
        let Some(fragments) = self.fragments.get_mut(position) else {
            return;
        };
        if let Some(epoch) = fragments.wait(keep) {
            let reader = self.clocks.reader(position);
            self.clocks.learn(position, reader, epoch);
            self.logged_clock[position] = u32::MAX;
        }
    }
}
