//! One address reservation with its physical backing.

use std::sync::Arc;

use thiserror::Error;

use super::gate::AllocationGate;
use crate::driver::{
    AddressReservation, Context, DevicePtr, DriverError, MemoryUse, PhysicalAllocation,
};

/// A range of device addresses, backed from its start up to [`mapped_bytes`](Self::mapped_bytes), handed out from
/// its start up to [`used_bytes`](Self::used_bytes).
#[derive(Debug)]
pub struct Arena {
    name: &'static str,
    context: Context,
    gate: AllocationGate,
    reservation: AddressReservation,
    grain_bytes: u64,
    mapped_bytes: u64,
    used_bytes: u64,
    /// Most bytes in one extent.
    extent_bytes: u64,
    /// Ends of the extents that back the arena, ascending; each begins where the one before ends.
    extent_ends: Vec<u64>,
}

impl Arena {
    /// Reserves addresses for `bytes`, rounded up to the device's grain; takes no device memory.
    ///
    /// # Errors
    /// [`ArenaError::Driver`] when the driver has no such range, or for no bytes at all.
    pub fn reserve(
        context: &Context,
        gate: &AllocationGate,
        name: &'static str,
        bytes: u64,
    ) -> Result<Self, ArenaError> {
        let grain_bytes = context.device().granularity_bytes();
        let rounded = bytes
            .checked_next_multiple_of(grain_bytes)
            .ok_or(ArenaError::TooLarge { arena: name, bytes })?;
        let reservation = AddressReservation::new(context, rounded, 0)
            .map_err(|source| ArenaError::driver(name, source))?;
        Ok(Self {
            name,
            context: context.clone(),
            gate: gate.clone(),
            reservation,
            grain_bytes,
            mapped_bytes: 0,
            used_bytes: 0,
            extent_bytes: u64::MAX,
            extent_ends: Vec::new(),
        })
    }

    /// Backs the arena in extents of at most `bytes`, rounded up to the grain, so that parts of it can be given back by
    /// [`unmap_from`](Self::unmap_from).
    #[must_use]
    pub fn with_extents(mut self, bytes: u64) -> Self {
        self.extent_bytes = bytes
            .max(1)
            .checked_next_multiple_of(self.grain_bytes)
            .unwrap_or(u64::MAX);
        self
    }

    /// Backs the first `bytes`, rounded up to the grain, in as few extents as it may.
    ///
    /// # Errors
    /// [`ArenaError::Sealed`] behind a closed gate, [`ArenaError::BeyondReservation`], or the driver's refusal, after
    /// which nothing has changed.
    pub fn map_to(&mut self, bytes: u64) -> Result<(), ArenaError> {
        let target = self.target(bytes)?;
        let before = self.mapped_bytes;
        while self.mapped_bytes < target {
            let extent = (target - self.mapped_bytes).min(self.extent_bytes);
            if let Err(error) = self.map_extent(extent) {
                // What it failed with says more than what giving back may fail with.
                let _ = self.unmap_from(before);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Backs the first `bytes`, rounded up to the grain, or as many of them as the device still has; returns the
    /// bytes backed. Extents are as large as the device allows.
    ///
    /// # Errors
    /// As for [`map_to`](Self::map_to), except that running out of device memory is no error.
    pub fn map_up_to(&mut self, bytes: u64) -> Result<u64, ArenaError> {
        let target = self.target(bytes)?;
        let mut extent = target
            .saturating_sub(self.mapped_bytes)
            .min(self.extent_bytes);
        while extent > 0 {
            match self.map_extent(extent) {
                Ok(()) => extent = extent.min(target - self.mapped_bytes),
                Err(ArenaError::Driver { source, .. }) if source.is_out_of_memory() => {
                    extent = extent / 2 / self.grain_bytes * self.grain_bytes;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(self.mapped_bytes)
    }

    /// Gives back the memory of every extent that lies wholly at or beyond `bytes`; the addresses stay. Returns the bytes given back. No work that
    /// touches them may be in flight. [`map_to`](Self::map_to) brings memory back, not what was in it.
    ///
    /// # Errors
    /// [`ArenaError::InUse`] when part of it is handed out; the driver's refusal, after which what it did not unmap is still there.
    pub fn unmap_from(&mut self, bytes: u64) -> Result<u64, ArenaError> {
        let before = self.mapped_bytes;
        while let Some(&end) = self.extent_ends.last() {
            let begin = match self.extent_ends.len() {
                1 => 0,
                extents => self.extent_ends[extents - 2],
            };
            if begin < bytes {
                break;
            }
            if begin < self.used_bytes {
                return Err(ArenaError::InUse {
                    arena: self.name,
                    bytes,
                    used_bytes: self.used_bytes,
                });
            }
            self.reservation
                .unmap(begin, end - begin)
                .map_err(|source| ArenaError::driver(self.name, source))?;
            self.extent_ends.pop();
            self.mapped_bytes = begin;
        }
        Ok(before - self.mapped_bytes)
    }

    /// Hands out `bytes` at a multiple of `alignment_bytes`.
    ///
    /// # Errors
    /// [`ArenaError::Exhausted`] beyond what is backed, [`ArenaError::Alignment`] unless a power of two.
    pub fn alloc(&mut self, bytes: u64, alignment_bytes: u64) -> Result<DevicePtr, ArenaError> {
        if !alignment_bytes.is_power_of_two() {
            return Err(ArenaError::Alignment {
                arena: self.name,
                alignment_bytes,
            });
        }
        // The base is aligned to the grain at least; larger alignments are relative to address zero.
        let base = self.base().0;
        let start = base
            .checked_add(self.used_bytes)
            .and_then(|address| address.checked_next_multiple_of(alignment_bytes))
            .map(|address| address - base);
        let end = start
            .and_then(|start| start.checked_add(bytes))
            .filter(|&end| end <= self.mapped_bytes);
        let (Some(start), Some(end)) = (start, end) else {
            return Err(ArenaError::Exhausted {
                arena: self.name,
                bytes,
                used_bytes: self.used_bytes,
                mapped_bytes: self.mapped_bytes,
            });
        };
        let gap = self.base().add(self.used_bytes);
        let what = format!("between two parts of the {} arena", self.name);
        let device = self.context.device();
        device.annotate(gap, start - self.used_bytes, &what, MemoryUse::Withheld);
        let what = format!("{bytes} bytes of the {} arena", self.name);
        let pointer = self.base().add(start);
        device.annotate(pointer, bytes, &what, MemoryUse::HandedOut);
        let what = format!("a part of the {} arena that nobody was given", self.name);
        let rest = self.mapped_bytes - end;
        device.annotate(self.base().add(end), rest, &what, MemoryUse::Withheld);
        self.used_bytes = end;
        Ok(pointer)
    }

    /// The context of the addresses.
    #[must_use]
    pub const fn context(&self) -> &Context {
        &self.context
    }

    /// First address; never changes.
    #[must_use]
    pub fn base(&self) -> DevicePtr {
        self.reservation.base()
    }

    /// Bytes of addresses.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.reservation.bytes()
    }

    /// Bytes of device memory behind the addresses, a multiple of the grain.
    #[must_use]
    pub const fn mapped_bytes(&self) -> u64 {
        self.mapped_bytes
    }

    /// Bytes handed out, alignment gaps included.
    #[must_use]
    pub const fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// The device's grain.
    #[must_use]
    pub const fn grain_bytes(&self) -> u64 {
        self.grain_bytes
    }

    /// Whether `[pointer, pointer + bytes)` lies in the backed part.
    #[must_use]
    pub fn contains(&self, pointer: DevicePtr, bytes: u64) -> bool {
        let offset = pointer.0.checked_sub(self.base().0);
        offset
            .and_then(|offset| offset.checked_add(bytes))
            .is_some_and(|end| end <= self.mapped_bytes)
    }

    /// Gives addresses and memory back and reports what `Drop` would only record.
    ///
    /// # Errors
    /// [`ArenaError::Driver`] when the driver refuses.
    pub fn close(self) -> Result<(), ArenaError> {
        let name = self.name;
        self.reservation
            .close()
            .map_err(|source| ArenaError::driver(name, source))
    }

    fn target(&self, bytes: u64) -> Result<u64, ArenaError> {
        let target = bytes
            .checked_next_multiple_of(self.grain_bytes)
            .filter(|&target| target <= self.reserved_bytes());
        target.ok_or(ArenaError::BeyondReservation {
            arena: self.name,
            bytes,
            reserved_bytes: self.reserved_bytes(),
        })
    }

    fn map_extent(&mut self, bytes: u64) -> Result<(), ArenaError> {
        if self.gate.is_closed() {
            return Err(ArenaError::Sealed {
                arena: self.name,
                bytes,
            });
        }
        let at = self.mapped_bytes;
        // Once parts are handed out, nothing else may be touched.
        let withhold = self.used_bytes > 0;
        let map = || {
            let allocation = Arc::new(PhysicalAllocation::new(&self.context, bytes)?);
            self.reservation.map(at, allocation)?;
            self.reservation.set_access(at, bytes).or_else(|error| {
                // Memory without access is of no use; give it back and keep the first error.
                self.reservation.unmap(at, bytes)?;
                Err(error)
            })
        };
        map().map_err(|source| ArenaError::driver(self.name, source))?;
        self.mapped_bytes += bytes;
        self.extent_ends.push(self.mapped_bytes);
        if withhold {
            let what = format!("a part of the {} arena that nobody was given", self.name);
            let address = self.base().add(at);
            self.context
                .device()
                .annotate(address, bytes, &what, MemoryUse::Withheld);
        }
        Ok(())
    }
}

/// Why an arena cannot do that.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// A device allocation while a graph is captured, or after start-up.
    #[error(
        "the {arena} arena may not take {bytes} bytes of device memory now: a graph is being captured or the engine serves; allocate before"
    )]
    Sealed {
        /// Name of the arena.
        arena: &'static str,
        /// Bytes asked for.
        bytes: u64,
    },
    /// Beyond the addresses there are.
    #[error(
        "the {arena} arena has {reserved_bytes} bytes of addresses and cannot back {bytes}; reserve more"
    )]
    BeyondReservation {
        /// Name of the arena.
        arena: &'static str,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes of addresses.
        reserved_bytes: u64,
    },
    /// More bytes than there are addresses anywhere.
    #[error("the {arena} arena cannot reserve {bytes} bytes of addresses; ask for less")]
    TooLarge {
        /// Name of the arena.
        arena: &'static str,
        /// Bytes asked for.
        bytes: u64,
    },
    /// Beyond the memory there is.
    #[error(
        "the {arena} arena has {mapped_bytes} bytes of memory, {used_bytes} of them used, and no room for {bytes} more; map more first"
    )]
    Exhausted {
        /// Name of the arena.
        arena: &'static str,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes handed out.
        used_bytes: u64,
        /// Bytes backed.
        mapped_bytes: u64,
    },
    /// Handed out, so it cannot be given back.
    #[error(
        "the {arena} arena cannot give back memory from {bytes} bytes on: its first {used_bytes} are handed out; give back less"
    )]
    InUse {
        /// Name of the arena.
        arena: &'static str,
        /// Where giving back was to begin.
        bytes: u64,
        /// Bytes handed out.
        used_bytes: u64,
    },
    /// Not a power of two.
    #[error("the {arena} arena cannot align to {alignment_bytes} bytes; give a power of two")]
    Alignment {
        /// Name of the arena.
        arena: &'static str,
        /// Alignment asked for.
        alignment_bytes: u64,
    },
    /// The driver refused.
    #[error("the {arena} arena: {source}")]
    Driver {
        /// Name of the arena.
        arena: &'static str,
        /// What the driver said.
        source: DriverError,
    },
}

impl ArenaError {
    fn driver(arena: &'static str, source: DriverError) -> Self {
        Self::Driver { arena, source }
    }
}
