//! Address reservations and what is mapped into them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::physical::{Physical, PhysicalError};
use super::space::Space;
use super::window::{Rights, Window};
use crate::emulator::Profile;
use crate::emulator::check::Checker;
use crate::emulator::check::memory::MemoryShadow;
use crate::emulator::exec::GranuleTable;

/// Address space a device has, as a multiple of its memory: reservations may exceed memory.
const WINDOW_FACTOR: u64 = 4;

/// Why a call on addresses was refused.
#[derive(Debug)]
pub(crate) enum MapError {
    /// A value the call cannot take, with what it should have been.
    Invalid(String),
    /// No room for so many addresses.
    NoAddresses,
    /// Something is mapped there already.
    AlreadyMapped,
    /// The handle of the physical memory is not valid.
    NoSuchAllocation,
    /// The host refused a system call.
    Host(io::Error),
}

impl From<io::Error> for MapError {
    fn from(error: io::Error) -> Self {
        MapError::Host(error)
    }
}

impl From<PhysicalError> for MapError {
    fn from(error: PhysicalError) -> Self {
        match error {
            PhysicalError::Host(error) => MapError::Host(error),
            PhysicalError::NoSuchAllocation => MapError::NoSuchAllocation,
        }
    }
}

/// A piece of physical memory at an address.
#[derive(Clone, Copy, Debug)]
struct Piece {
    bytes: u64,
    allocation: u64,
}

/// Addresses with memory of their own behind them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

/// A device's addresses and physical memory.
#[derive(Debug)]
pub(crate) struct Memory {
    window: Window,
    space: Arc<Space>,
    pub(crate) physical: Physical,
    grain: u64,
    /// Reservations: address to bytes. At least one grain without rights lies between two.
    reservations: BTreeMap<u64, u64>,
    pieces: BTreeMap<u64, Piece>,
    check: Option<Arc<Checker>>,
}

impl Memory {
    pub(crate) fn new(profile: &Profile, check: Option<Arc<Checker>>) -> io::Result<Memory> {
        let grain = profile.granularity_bytes;
        let bytes = (profile.total_bytes.next_multiple_of(grain)) * WINDOW_FACTOR + 2 * grain;
        let window = Window::reserve(bytes, grain)?;
        let space = Arc::new(Space::new(window.base(), bytes, grain));
        if let Some(checker) = &check {
            let grains = (bytes / grain) as usize;
            checker.set_window(window.base(), grain.trailing_zeros(), grains);
        }
        Ok(Memory {
            window,
            space,
            physical: Physical::new()?,
            grain,
            reservations: BTreeMap::new(),
            pieces: BTreeMap::new(),
            check,
        })
    }

    pub(crate) fn space(&self) -> &Arc<Space> {
        &self.space
    }

    pub(crate) fn reservation_count(&self) -> u64 {
        self.reservations.len() as u64
    }

    pub(crate) fn piece_count(&self) -> u64 {
        self.pieces.len() as u64
    }

    /// Reserves addresses. `alignment` is a power of two in bytes, or 0.
    pub(crate) fn reserve(&mut self, bytes: u64, alignment: u64) -> Result<u64, MapError> {
        if bytes == 0 || !bytes.is_multiple_of(self.grain) {
            return Err(self.not_a_multiple("the reservation's bytes", bytes));
        }
        if alignment != 0 && !alignment.is_power_of_two() {
            return Err(MapError::Invalid(format!(
                "alignment {alignment} is not a power of two"
            )));
        }
        let alignment = alignment.max(self.grain);
        // The first gap that holds the range and a grain without rights on either side.
        let mut at = (self.window.base() + self.grain).next_multiple_of(alignment);
        for (&taken, &taken_bytes) in &self.reservations {
            let fits = at
                .checked_add(bytes)
                .is_some_and(|end| end + self.grain <= taken);
            if fits {
                break;
            }
            at = at.max((taken + taken_bytes + self.grain).next_multiple_of(alignment));
        }
        let fits = at
            .checked_add(bytes)
            .is_some_and(|end| end + self.grain <= self.window.end());
        if !fits {
            return Err(MapError::NoAddresses);
        }
        self.reservations.insert(at, bytes);
        self.space.set(at, bytes, GranuleTable::RESERVED);
        Ok(at)
    }

    /// Gives a reservation back; it must be named exactly and hold nothing.
    pub(crate) fn free(&mut self, address: u64, bytes: u64) -> Result<(), MapError> {
        if self.reservations.get(&address) != Some(&bytes) {
            return Err(MapError::Invalid(format!(
                "no reservation of {bytes} bytes begins at {address:#x}"
            )));
        }
        if let Some((at, piece)) = self.pieces.range(address..address + bytes).next() {
            return Err(MapError::Invalid(format!(
                "{} bytes are still mapped at {at:#x}",
                piece.bytes
            )));
        }
        self.reservations.remove(&address);
        self.space.set(address, bytes, 0);
        Ok(())
    }

    /// Maps `bytes` of an allocation from `begin` on at `address`, without access.
    pub(crate) fn map(
        &mut self,
        address: u64,
        bytes: u64,
        begin: u64,
        allocation: u64,
    ) -> Result<(), MapError> {
        let (offset, allocation_bytes) = self.physical.range(allocation)?;
        if !begin.is_multiple_of(self.grain) {
            return Err(self.not_a_multiple("the offset", begin));
        }
        if bytes == 0 || !bytes.is_multiple_of(self.grain) {
            return Err(self.not_a_multiple("the mapping's bytes", bytes));
        }
        if begin
            .checked_add(bytes)
            .is_none_or(|end| end > allocation_bytes)
        {
            return Err(MapError::Invalid(format!(
                "{bytes} bytes from {begin} exceed the allocation of {allocation_bytes}"
            )));
        }
        if !address.is_multiple_of(self.grain) {
            return Err(self.not_a_multiple("the address", address));
        }
        self.reserved(address, bytes)?;
        if self.pieces_in(address, bytes).next().is_some() {
            return Err(MapError::AlreadyMapped);
        }
        self.window.map(
            address,
            bytes,
            self.physical.file(allocation),
            offset + begin,
        )?;
        self.physical.add_mapping(allocation);
        self.pieces.insert(address, Piece { bytes, allocation });
        self.space
            .set(address, bytes, GranuleTable::RESERVED | Space::MAPPED);
        self.shadow(|shadow| shadow.map(address, bytes, allocation, begin));
        Ok(())
    }

    /// Base and bytes of the piece that is mapped around an address.
    pub(crate) fn piece_at(&self, address: u64) -> Option<(u64, u64)> {
        let (at, piece) = self.pieces_in(address, 1).next()?;
        Some((at, piece.bytes))
    }

    /// The allocation that is mapped around an address.
    pub(crate) fn allocation_at(&self, address: u64) -> Option<u64> {
        let (_, piece) = self.pieces_in(address, 1).next()?;
        Some(piece.allocation)
    }

    /// Unmaps whole pieces.
    pub(crate) fn unmap(&mut self, address: u64, bytes: u64) -> Result<(), MapError> {
        let pieces = self.whole_pieces(address, bytes)?;
        self.window.unmap(address, bytes)?;
        self.space.set(address, bytes, GranuleTable::RESERVED);
        self.shadow(|shadow| shadow.unmap(address, bytes));
        for at in pieces {
            if let Some(piece) = self.pieces.remove(&at) {
                self.physical.remove_mapping(piece.allocation)?;
                self.forget_if_gone(piece.allocation);
            }
        }
        Ok(())
    }

    /// Gives the handle of physical memory back.
    pub(crate) fn release(&mut self, allocation: u64) -> Result<(), MapError> {
        self.physical.release(allocation)?;
        self.forget_if_gone(allocation);
        Ok(())
    }

    fn forget_if_gone(&self, allocation: u64) {
        if !self.physical.is_alive(allocation) {
            self.shadow(|shadow| shadow.forget(allocation));
        }
    }

    /// Another process may write the allocation from now on, which the checked mode has to know.
    pub(crate) fn shared(&self, allocation: u64) {
        self.shadow(|shadow| shadow.share(allocation));
    }

    /// Tells the checked mode, if there is one.
    fn shadow(&self, tell: impl FnOnce(&mut MemoryShadow)) {
        if let Some(checker) = &self.check
            && let Some(shadow) = checker.memory().as_mut()
        {
            tell(shadow);
        }
    }

    /// Sets the access rights of whole pieces.
    pub(crate) fn set_access(
        &mut self,
        address: u64,
        bytes: u64,
        read: bool,
        write: bool,
    ) -> Result<(), MapError> {
        self.whole_pieces(address, bytes)?;
        let (rights, flags) = match (read, write) {
            (_, true) => (Rights::ReadWrite, GranuleTable::READ | GranuleTable::WRITE),
            (true, false) => (Rights::Read, GranuleTable::READ),
            (false, false) => (Rights::None, 0),
        };
        self.window.protect(address, bytes, rights)?;
        self.space.set(
            address,
            bytes,
            flags | GranuleTable::RESERVED | Space::MAPPED,
        );
        Ok(())
    }

    /// Takes addresses and physical memory in one, readable and writable, under the number `id`.
    pub(crate) fn allocate(
        &mut self,
        id: u64,
        bytes: u64,
        poison_limit_bytes: u64,
    ) -> Result<Block, MapError> {
        let bytes = bytes.next_multiple_of(self.grain);
        let address = self.reserve(bytes, 0)?;
        let block = Block { address, bytes };
        let backed = self.back(id, block, poison_limit_bytes);
        if backed.is_err() {
            // Already failing: what is there goes, and the first error is the one to tell.
            let _ = self.free(address, bytes);
        }
        backed.map(|()| block)
    }

    /// Takes addresses for a part of a file, readable and writable, under the number `id`.
    pub(crate) fn map_file(
        &mut self,
        id: u64,
        file: File,
        offset: u64,
        bytes: u64,
    ) -> Result<Block, MapError> {
        let address = self.reserve(bytes, 0)?;
        self.physical.add_shared(id, file, offset, bytes);
        self.shared(id);
        let mapped = self.map(address, bytes, 0, id);
        // From here on the mapping alone keeps the memory.
        self.physical.release(id)?;
        let rights = mapped.and_then(|()| self.set_access(address, bytes, true, true));
        if rights.is_err() {
            // Already failing, as above.
            let _ = self.free(address, bytes);
        }
        rights.map(|()| Block { address, bytes })
    }

    /// The file behind a mapped address, and the place in it of the allocation that is mapped there.
    pub(crate) fn backing(&self, address: u64) -> Option<(BorrowedFd<'_>, u64)> {
        self.physical.place(self.allocation_at(address)?)
    }

    /// Gives a block back.
    pub(crate) fn free_block(&mut self, block: Block) -> Result<(), MapError> {
        self.unmap(block.address, block.bytes)?;
        self.free(block.address, block.bytes)
    }

    fn back(&mut self, id: u64, block: Block, poison_limit_bytes: u64) -> Result<(), MapError> {
        self.physical.create(id, block.bytes, poison_limit_bytes)?;
        let mapped = self.map(block.address, block.bytes, 0, id);
        // From here on the mapping alone keeps the memory.
        self.physical.release(id)?;
        mapped?;
        self.set_access(block.address, block.bytes, true, true)
    }

    /// Rights of the piece that is mapped around an address: read, write.
    pub(crate) fn access_at(&self, address: u64) -> Option<(bool, bool)> {
        self.piece_at(address)?;
        let flags = self.space.flags(address);
        Some((
            flags & GranuleTable::READ != 0,
            flags & GranuleTable::WRITE != 0,
        ))
    }

    /// Addresses of the pieces that cover the range exactly.
    fn whole_pieces(&self, address: u64, bytes: u64) -> Result<Vec<u64>, MapError> {
        let end = self.reserved(address, bytes)?;
        let mut at = address;
        let mut pieces = Vec::new();
        while at < end {
            let Some(piece) = self.pieces.get(&at) else {
                return Err(MapError::Invalid(match self.pieces_in(at, 1).next() {
                    Some((begin, _)) => format!(
                        "the range begins inside the piece mapped at {begin:#x}: only whole pieces can be named"
                    ),
                    None => format!("nothing is mapped at {at:#x}"),
                }));
            };
            pieces.push(at);
            at += piece.bytes;
        }
        if at != end {
            return Err(MapError::Invalid(format!(
                "the range ends inside a mapped piece that ends at {at:#x}: only whole pieces can be named"
            )));
        }
        Ok(pieces)
    }

    /// Pieces that overlap a range.
    fn pieces_in(&self, address: u64, bytes: u64) -> impl Iterator<Item = (u64, Piece)> + '_ {
        let before = self
            .pieces
            .range(..address)
            .next_back()
            .filter(move |(at, piece)| **at + piece.bytes > address);
        before
            .into_iter()
            .chain(self.pieces.range(address..address.saturating_add(bytes)))
            .map(|(&at, &piece)| (at, piece))
    }

    /// The end of a range that lies in one reservation.
    fn reserved(&self, address: u64, bytes: u64) -> Result<u64, MapError> {
        let end = address.checked_add(bytes);
        let holder = self.reservations.range(..=address).next_back();
        match (holder, end) {
            (Some((&base, &len)), Some(end)) if bytes > 0 && end <= base + len => Ok(end),
            _ => Err(MapError::Invalid(format!(
                "{bytes} bytes at {address:#x} do not lie in one reservation"
            ))),
        }
    }

    fn not_a_multiple(&self, what: &str, value: u64) -> MapError {
        MapError::Invalid(format!(
            "{what} must be a positive multiple of the granularity of {} bytes, not {value}",
            self.grain
        ))
    }
}
