//! What the checked mode makes of accesses to shared and device memory.

use super::super::access::{ACQUIRE, Addresses, RELEASE, STRONG, space};
use super::super::warp::{LANES, Warp};
use super::Watch;
use super::reports::{describe_forbidden, unwritten};
use crate::emulator::check::CheckKind;
use crate::emulator::check::ranges::Range;
use crate::emulator::check::registers::{Carry, Origin};
use crate::emulator::check::shared::{self, Access, SharedFault, Touch};

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
        match state_space {
            space::SHARED => self.access_shared(warp, warp.mask, all, bytes, access),
            space::GLOBAL => self.access_global(warp, warp.mask, all, bytes, access),
            space::GENERIC => {
                // Resolved addresses are host pointers, which tell the spaces apart.
                let (shared, window) = (warp.shared as u64, u64::from(warp.shared_bytes));
                let (mut in_shared, mut in_global) = (0, 0);
                for lane in (0..LANES).filter(|lane| warp.mask >> lane & 1 != 0) {
                    let address = all.0[lane];
                    if address.wrapping_sub(shared) < window {
                        in_shared |= 1 << lane;
                    } else if self.in_device(address) {
                        in_global |= 1 << lane;
                    }
                }
                self.access_shared(warp, in_shared, all, bytes, access);
                self.access_global(warp, in_global, all, bytes, access);
            }
            _ => {}
        }
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
        if space == space::SHARED || !access.is_atomic() {
            return access;
        }
        if ext & RELEASE != 0 {
            self.order.fence();
        }
        for lane in (0..LANES).filter(|lane| warp.mask >> lane & 1 != 0) {
            self.order
                .synchronise(all.0[lane], access.reads(), access.writes());
        }
        if ext & ACQUIRE != 0 {
            self.order.acquire();
        }
        access
    }

    fn access_shared(
        &mut self,
        warp: &Warp,
        mask: u32,
        all: &Addresses,
        bytes: u64,
        access: Access,
    ) {
        if self.is_cluster {
            return;
        }
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            let undefined = if access.writes() {
                self.store_lacking(warp.index, lane, bytes)
            } else {
                0
            };
            self.touch_shared(warp, lane, all.0[lane], bytes, access, undefined);
        }
    }

    /// One lane's access of shared memory; bit n of `undefined`: byte n of what it writes holds no value.
    fn touch_shared(
        &mut self,
        warp: &Warp,
        lane: usize,
        address: u64,
        bytes: u64,
        access: Access,
        undefined: u16,
    ) {
        let offset = (address - warp.shared as u64) as u32;
        let touch = Touch {
            warp: warp.index,
            lane: if access == Access::Collective {
                shared::ALL
            } else {
                lane as u8
            },
            pc: self.pc,
            access,
            undefined,
        };
        match self.shared.touch(&self.clocks, offset, bytes as u32, touch) {
            None => {}
            Some(SharedFault::Uninitialised) if self.loads() => {
                let lacking = self.shared.lacking(&self.clocks, offset, bytes as u32);
                let origin = Origin {
                    shared: true,
                    pc: self.pc,
                    address: offset.into(),
                    bytes,
                };
                self.load_lacking(warp.index, lane, lacking, origin);
            }
            Some(fault) => {
                self.report_shared(warp.index, lane as u32, offset, bytes, access, fault);
            }
        }
    }

    fn access_global(
        &mut self,
        warp: &Warp,
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
                        let found = self.touch_global(warp.index, first, start, end, access);
                        undefined = undefined.or(found.map(|at| (first, at)));
                    }
                    run = Some((address, address + bytes, lane as u8));
                }
            }
        }
        if let Some((start, end, first)) = run {
            let found = self.touch_global(warp.index, first, start, end, access);
            undefined = undefined.or(found.map(|at| (first, at)));
        }
        match undefined {
            Some((lane, at)) if !self.loads() => self.report(
                CheckKind::UninitialisedGlobal,
                warp.index,
                lane.into(),
                self.pc,
                u32::MAX,
                || unwritten(false, at, bytes),
            ),
            Some(_) => self.load_undefined(warp.index, mask, all, bytes),
            None if self.carries && access.writes() => {
                self.store_undefined(warp.index, mask, all, bytes);
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
            if let Some(memory) = self.memory.as_mut() {
                for byte in (0..bytes).filter(|byte| lacking >> byte & 1 != 0) {
                    memory.define(all.0[lane] + byte, 1, false);
                }
            }
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
        warp: u32,
        lane: u8,
        start: u64,
        end: u64,
        access: Access,
    ) -> Option<u64> {
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
            warp: warp as u16,
            lane,
            pc: self.pc,
            epoch: self.clocks.epoch(index),
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
        for lane in (0..LANES).filter(|lane| warp.mask >> lane & 1 != 0) {
            let (given, start) = (u64::from(source_bytes[lane]), source.0[lane]);
            let mut undefined = 0;
            if given > 0 {
                let end = start + given;
                let found = self.touch_global(warp.index, lane as u8, start, end, Access::Read);
                undefined = found.map_or(0, |_| self.lacking(start, given));
            }
            if !self.is_cluster {
                let target = target.0[lane];
                self.touch_shared(warp, lane, target, bytes, Access::Pending, undefined);
            }
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
        if self.is_cluster {
            return;
        }
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            let offset = (target[lane] - warp.shared as u64) as u32;
            self.shared
                .complete(&self.clocks, offset, bytes, warp.index);
        }
    }

    /// Whether the instruction that runs only carries values from memory to registers.
    fn loads(&self) -> bool {
        self.launch.spec.kernel.code.operands.of[self.pc as usize].carry == Carry::Load
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
