//! What the checked mode makes of accesses to shared and device memory.

use super::super::access::{ACQUIRE, Addresses, RELEASE, STRONG, space};
use super::super::warp::{LANES, Warp};
use super::Watch;
use super::reports::{describe_forbidden, unwritten};
use crate::emulator::check::CheckKind;
use crate::emulator::check::ranges::Range;
use crate::emulator::check::registers::{Background, Carry, Operands, Origin};
use crate::emulator::check::shared::{self, Access, SharedFault, Touch};

/// Whose access it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Party {
    /// The warp whose place in the order it has.
    pub(super) warp: u32,
    /// Who it is recorded for: the warp, or what goes on behind its back.
    pub(super) actor: u32,
}

impl Party {
    fn of(warp: &Warp) -> Party {
        Party {
            warp: warp.position,
            actor: warp.position,
        }
    }
}

impl Watch<'_> {
    /// An access of `bytes` bytes a lane, resolved.
    pub(crate) fn access(
        &mut self,
        warp: &Warp,
        all: &Addresses,
        state_space: u32,
        bytes: u64,
        access: Access,
    ) {
        let access = self.strength(access, state_space, warp, all);
        let remote = self.operands().background == Background::Write;
        let (party, access) = match (remote, access) {
            (false, _) => (Party::of(warp), access),
            (true, Access::Atomic) => (self.begin_remote(warp), access),
            (true, _) => (self.begin_remote(warp), Access::Write),
        };
        match state_space {
            space::SHARED => self.access_shared(party, warp.mask, all, bytes, access),
            space::GLOBAL => self.access_global(party, warp.mask, all, bytes, access),
            space::GENERIC => {
                // Resolved addresses are host pointers, which tell the spaces apart.
                let (mut in_shared, mut in_global) = (0, 0);
                for lane in (0..LANES).filter(|lane| warp.mask >> lane & 1 != 0) {
                    let address = all.0[lane];
                    if self.in_shared(address) {
                        in_shared |= 1 << lane;
                    } else if self.in_device(address) {
                        in_global |= 1 << lane;
                    }
                }
                self.access_shared(party, in_shared, all, bytes, access);
                self.access_global(party, in_global, all, bytes, access);
            }
            _ => {}
        }
        if remote {
            self.end_remote(warp);
        }
    }

    fn operands(&self) -> Operands {
        self.launch.spec.kernel.code.operands.of[self.pc as usize]
    }

    /// Whether a host address lies in the shared memory of the blocks that run.
    pub(super) fn in_shared(&self, address: u64) -> bool {
        let bytes = self.together as u64 * u64::from(self.shared_stride);
        address.wrapping_sub(self.shared_base) < bytes
    }

    /// Offset of a host address in the shared memory of the blocks that run.
    pub(super) fn shared_offset(&self, address: u64) -> u32 {
        address.wrapping_sub(self.shared_base) as u32
    }

    fn in_device(&self, address: u64) -> bool {
        self.memory
            .as_ref()
            .is_some_and(|memory| memory.contains(address))
    }

    /// What the instruction's qualifiers make of an access, and the order between blocks that they make.
    fn strength(&mut self, access: Access, space: u32, warp: &Warp, all: &Addresses) -> Access {
        // SAFETY: the run loop set `pc` to the instruction that runs.
        let ext = unsafe { (*warp.at(self.pc)).ext };
        let access = match access {
            Access::Read if ext & STRONG != 0 => Access::Strong { write: false },
            Access::Write if ext & STRONG != 0 => Access::Strong { write: true },
            other => other,
        };
        if !access.is_atomic() {
            return access;
        }
        let position = warp.position as usize;
        let between_blocks = space != space::SHARED && !self.whole_grid();
        if ext & RELEASE != 0 {
            self.fence(warp.position);
        }
        let (reads, writes) = (access.reads(), access.writes());
        for lane in (0..LANES).filter(|lane| warp.mask >> lane & 1 != 0) {
            let address = all.0[lane];
            self.clocks.synchronise(position, address, reads, writes);
            if between_blocks {
                self.order.synchronise(address, reads, writes);
            }
        }
        if ext & ACQUIRE != 0 {
            if self.clocks.acquire(position) {
                self.logged_clock[position] = u32::MAX;
            }
            self.order.acquire();
        }
        access
    }

    fn access_shared(
        &mut self,
        party: Party,
        mask: u32,
        all: &Addresses,
        bytes: u64,
        access: Access,
    ) {
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            let lacking = if access.writes() {
                self.store_lacking(party.warp, lane, bytes)
            } else {
                0
            };
            let offset = self.shared_offset(all.0[lane]);
            if self.touch_shared(party, lane, offset, bytes, access, lacking) {
                let lacking = self.shared.lacking(&self.clocks, offset, bytes as u32);
                let origin = Origin {
                    shared: true,
                    pc: self.pc,
                    address: offset.into(),
                    bytes,
                };
                self.load_lacking(party.warp, lane, lacking, origin);
            }
        }
    }

    /// One lane's access of shared memory; bit n of `lacking`: byte n of what it writes holds no value. True where an
    /// instruction that only carries values has read bytes that hold none.
    fn touch_shared(
        &mut self,
        party: Party,
        lane: usize,
        offset: u32,
        bytes: u64,
        access: Access,
        lacking: u16,
    ) -> bool {
        let touch = Touch {
            warp: party.warp,
            actor: party.actor,
            lane: if access == Access::Collective {
                shared::ALL
            } else {
                lane as u8
            },
            pc: self.pc,
            access,
            undefined: lacking,
        };
        match self.shared.touch(&self.clocks, offset, bytes as u32, touch) {
            None => false,
            Some(SharedFault::Uninitialised) if self.passes_on() => true,
            Some(fault) => {
                self.report_shared(party.warp, lane as u32, offset, bytes, access, fault);
                false
            }
        }
    }

    fn access_global(
        &mut self,
        party: Party,
        mask: u32,
        all: &Addresses,
        bytes: u64,
        access: Access,
    ) {
        // Neighbours are looked at together.
        let mut run: Option<(u64, u64, u8)> = None;
        let mut undefined = None;
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            let address = all.0[lane];
            match &mut run {
                Some((start, end, _)) if address >= *start && address <= *end => {
                    *end = (*end).max(address + bytes);
                }
                _ => {
                    if let Some((start, end, first)) = run {
                        let found = self.touch_global(party, first, start, end, access);
                        undefined = undefined.or(found.map(|at| (first, at)));
                    }
                    run = Some((address, address + bytes, lane as u8));
                }
            }
        }
        if let Some((start, end, first)) = run {
            let found = self.touch_global(party, first, start, end, access);
            undefined = undefined.or(found.map(|at| (first, at)));
        }
        match undefined {
            Some((lane, at)) if !self.passes_on() => self.report(
                CheckKind::UninitialisedGlobal,
                party.warp,
                lane.into(),
                self.pc,
                u32::MAX,
                || unwritten(&format!("{at:#x}"), bytes),
            ),
            Some(_) => self.load_undefined(party.warp, mask, all, bytes),
            None if self.carries && access.writes() => {
                self.store_undefined(party.warp, mask, all, bytes);
            }
            None => {}
        }
    }

    /// A load of device memory has met bytes that nobody has written.
    #[cold]
    fn load_undefined(&mut self, warp: u32, mask: u32, all: &Addresses, bytes: u64) {
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            let address = all.0[lane];
            let lacking = self.lacking(address, bytes);
            let origin = Origin {
                shared: false,
                pc: self.pc,
                address,
                bytes,
            };
            self.load_lacking(warp, lane, lacking, origin);
        }
    }

    /// A store has left bytes without a value in device memory.
    #[cold]
    fn store_undefined(&mut self, warp: u32, mask: u32, all: &Addresses, bytes: u64) {
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            let lacking = self.store_lacking(warp, lane, bytes);
            self.undefine(all.0[lane], lacking);
        }
    }

    /// Bytes of device memory that nobody has written, one bit each.
    fn lacking(&self, address: u64, bytes: u64) -> u16 {
        self.memory
            .as_ref()
            .map_or(0, |memory| memory.lacking(address, bytes))
    }

    /// An access of a range of device memory; gives the first byte of a range that is read although nobody has written it.
    fn touch_global(
        &mut self,
        party: Party,
        lane: u8,
        start: u64,
        end: u64,
        access: Access,
    ) -> Option<u64> {
        let (warp, actor) = (party.warp, party.actor);
        if self.log.is_full() {
            self.settle();
        }
        let memory = self.memory.as_mut()?;
        if !memory.contains(start) {
            return None;
        }
        let (bytes, write) = (end - start, access.writes());
        let what = if write { "write" } else { "read" };
        if let Some(fault) = describe_forbidden(memory, start, bytes, self.ticket, what) {
            let (kind, message) = fault;
            self.report(kind, warp, lane.into(), self.pc, u32::MAX, || message);
            return None;
        }
        let undefined = if access.reads() {
            memory.undefined(start, bytes)
        } else {
            None
        };
        if write {
            memory.define(start, bytes, true);
        }
        let index = warp as usize;
        if self.logged_clock[index] == u32::MAX {
            self.logged_clock[index] = self.log.clock(self.clocks.of(index));
        }
        self.log.record(Range {
            start,
            end,
            write,
            atomic: access.is_atomic(),
            warp: actor as u16,
            lane,
            pc: self.pc,
            epoch: self.clocks.epoch(actor as usize),
            clock: self.logged_clock[index],
            era: self.order.era(),
        });
        undefined
    }

    /// `cp.async` for the lanes of the warp's mask: `source_bytes` are read at `source` now or later, `bytes` written at
    /// `target` later. What holds no value there holds none here.
    pub(crate) fn async_copy(
        &mut self,
        warp: &Warp,
        target: &Addresses,
        source: &Addresses,
        source_bytes: &[u8; LANES],
        bytes: u64,
    ) {
        let party = Party::of(warp);
        for lane in (0..LANES).filter(|lane| warp.mask >> lane & 1 != 0) {
            let (given, start) = (u64::from(source_bytes[lane]), source.0[lane]);
            let mut lacking = 0;
            if given > 0 {
                let end = start + given;
                let found = self.touch_global(party, lane as u8, start, end, Access::Read);
                lacking = found.map_or(0, |_| self.lacking(start, given));
            }
            let offset = self.shared_offset(target.0[lane]);
            self.touch_shared(party, lane, offset, bytes, Access::Pending, lacking);
        }
    }

    /// The copies into `target` by the lanes of `mask` are complete.
    pub(crate) fn async_complete(
        &mut self,
        warp: &Warp,
        mask: u32,
        target: &[u64; LANES],
        bytes: u32,
    ) {
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            let offset = self.shared_offset(target[lane]);
            self.shared
                .complete(&self.clocks, offset, bytes, warp.position);
        }
    }

    // Behind a warp's back.

    /// Whether all bytes of a range hold values.
    pub(super) fn holds_values(&self, address: u64, bytes: u64) -> bool {
        if self.in_shared(address) {
            let offset = self.shared_offset(address);
            (0..bytes).step_by(16).all(|at| {
                let count = (bytes - at).min(16) as u32;
                self.shared.lacking(&self.clocks, offset + at as u32, count) == 0
            })
        } else {
            let memory = self.memory.as_ref();
            memory.is_none_or(|memory| memory.undefined(address, bytes).is_none())
        }
    }

    /// A read at a host address that goes on behind the warp's back; gives the bytes of the first 16 that hold no value,
    /// which an instruction that computes with them is reported for.
    pub(super) fn read_behind(
        &mut self,
        party: Party,
        lane: usize,
        address: u64,
        bytes: u64,
    ) -> u16 {
        if self.in_shared(address) {
            let offset = self.shared_offset(address);
            if self.touch_shared(party, lane, offset, bytes, Access::Read, 0) {
                return self.shared.lacking(&self.clocks, offset, bytes as u32);
            }
        } else if self.in_device(address) {
            let found =
                self.touch_global(party, lane as u8, address, address + bytes, Access::Read);
            return found.map_or(0, |_| self.lacking(address, bytes));
        }
        0
    }

    /// A write at a host address that goes on behind the warp's back.
    pub(super) fn write_behind(
        &mut self,
        party: Party,
        lane: usize,
        address: u64,
        bytes: u64,
        access: Access,
        lacking: u16,
    ) {
        if self.in_shared(address) {
            let offset = self.shared_offset(address);
            self.touch_shared(party, lane, offset, bytes, access, lacking);
        } else if self.in_device(address) {
            let end = address + bytes;
            let found = self.touch_global(party, lane as u8, address, end, access);
            if let Some(at) = found {
                let kind = CheckKind::UninitialisedGlobal;
                self.report(kind, party.warp, lane as u32, self.pc, u32::MAX, || {
                    unwritten(&format!("{at:#x}"), bytes)
                });
            }
            self.undefine(address, lacking);
        }
    }

    /// Bytes of device memory hold no value, those of the bits in `lacking`.
    fn undefine(&mut self, address: u64, lacking: u16) {
        if let Some(memory) = self.memory.as_mut() {
            for byte in (0..16).filter(|byte| lacking >> byte & 1 != 0) {
                memory.define(address + byte, 1, false);
            }
        }
    }

    /// Whether the instruction that runs only carries values.
    fn passes_on(&self) -> bool {
        let operands = self.operands();
        operands.carry == Carry::Load || operands.background == Background::Copy
    }

    /// A lane's load has met bytes that hold no value: bit n of `lacking` is its byte n.
    fn load_lacking(&mut self, warp: u32, lane: usize, lacking: u16, origin: Origin) {
        let table = &self.launch.spec.kernel.code.operands;
        let (destinations, _) = table.at(self.pc as usize);
        let bytes = origin.bytes / destinations.len().max(1) as u64;
        for (n, &register) in destinations.iter().enumerate() {
            let part = (lacking >> (n as u64 * bytes)) & ((1 << bytes) - 1);
            if part != 0 {
                self.registers
                    .load(warp as usize, register, lane, part as u8, origin);
            }
        }
    }

    /// Bytes of what a lane stores that hold no value.
    fn store_lacking(&self, warp: u32, lane: usize, bytes: u64) -> u16 {
        if !self.carries {
            return 0;
        }
        let table = &self.launch.spec.kernel.code.operands;
        let (_, sources) = table.at(self.pc as usize);
        let values = &sources[1..];
        let bytes = bytes / values.len().max(1) as u64;
        values.iter().enumerate().fold(0, |all, (n, &register)| {
            let carried = u16::from(self.registers.carried(warp as usize, register, lane));
            all | (carried & ((1 << bytes) - 1)) << (n as u64 * bytes)
        })
    }
}
