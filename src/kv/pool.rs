//! The KV arena on a device: addresses before capture, memory after it.
//!
//! Before capture only the slabs of the null pages are backed; captured graphs hold the arena's base and the layer
//! strides, which never change. After capture the arena is backed up to what was measured to be free.
//!
//! While the engine runs, memory can be given back and taken again: [`KvArena::shrink_to`], [`KvArena::grow_to`], [`KvArena::sleep`],
//! [`KvArena::wake`]. Addresses and graphs stay; [`KvSequences`](super::KvSequences) says which slabs may go. Nothing is cleared on the way: kernels read
//! no page that was not written before, so there is no clearing that could overtake a write.

use thiserror::Error;

use super::carve::{Carve, CarveError};
use super::geometry::{ENTRY_REACH_BYTES, Geometry, GroupId, PageEntry};
use super::slab::{SlabError, SlabLayout, solve_slab};
use crate::arena::{AllocationGate, Arena, ArenaError, KvShare};
use crate::driver::{Context, DevicePtr, DriverError, MemInfo};

/// Addresses for KV, backed step by step.
#[derive(Debug)]
pub struct KvArena {
    arena: Arena,
    geometry: Geometry,
    layout: SlabLayout,
    /// Bytes that were backed when the arena fell asleep.
    asleep_bytes: Option<u64>,
}

/// At least this many extents back a whole carve, so that it can be given back in parts; an extent is at most 1 GiB.
const EXTENTS: u64 = 128;

/// What [`KvArena::extend`] made of the measured memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KvExtension {
    /// The carve; its tail is what no slab covers.
    pub carve: Carve,
    /// The reading that the carve was made from.
    pub measured: MemInfo,
    /// Bytes backed: whole slabs, rounded up to the grain.
    pub mapped_bytes: u64,
    /// Bytes that stay free on the device on purpose: the headroom, and what a limit leaves.
    pub headroom_bytes: u64,
    /// Bytes that were measured free but that the device refused when it came to map them.
    pub refused_bytes: u64,
}

impl KvExtension {
    /// The part of the carve's tail that is not backed, hence free on the device.
    #[must_use]
    pub fn unmapped_bytes(&self) -> u64 {
        self.carve.carved_bytes.saturating_sub(self.mapped_bytes)
    }

    /// Slab bytes of each pool, their line where sequences of `reference_tokens` put it.
    #[must_use]
    pub fn shares(&self, geometry: &Geometry, reference_tokens: u32) -> Vec<KvShare> {
        let slabs = self.carve.split(geometry, reference_tokens);
        let slab_bytes = self.carve.layout().slab_bytes;
        let share = |(group, slabs): (&super::LayerGroup, u64)| KvShare {
            group: group.name.clone(),
            bytes: slabs * slab_bytes,
        };
        geometry.groups.iter().zip(slabs).map(share).collect()
    }
}

impl KvArena {
    /// Chooses the slab for at most `carve_bound_bytes` of KV (what is free before capture), reserves addresses for
    /// that much and backs the null pages.
    ///
    /// # Errors
    /// [`KvArenaError::Carve`] when the bound is too little for one page of each pool, [`KvArenaError::Slab`] for pages
    /// beyond the reach of block tables, [`KvArenaError::Arena`] when the driver refuses.
    pub fn reserve(
        context: &Context,
        gate: &AllocationGate,
        geometry: &Geometry,
        carve_bound_bytes: u64,
    ) -> Result<Self, KvArenaError> {
        let bound = carve_bound_bytes.min(ENTRY_REACH_BYTES);
        let layout = solve_slab(geometry, bound)?;
        Carve::new(geometry, &layout, bound)?;
        let extent_bytes = (bound / EXTENTS).clamp(1, 1 << 30).next_power_of_two();
        let mut arena = Arena::reserve(context, gate, "kv", bound)?.with_extents(extent_bytes);
        arena.map_to(layout.null_bytes())?;
        Ok(Self {
            arena,
            geometry: geometry.clone(),
            layout,
            asleep_bytes: None,
        })
    }

    /// Measures the device and backs the arena with all that is free beside `headroom_bytes`, up to `limit_bytes` of KV in
    /// all. If the device refuses part of it, because another process was faster, the carve is what was mapped.
    ///
    /// # Errors
    /// [`KvArenaError::Carve`] when what is left is too little, [`KvArenaError::Arena`] and [`KvArenaError::Driver`] when the
    /// driver fails otherwise or the gate is closed.
    pub fn extend(
        &mut self,
        headroom_bytes: u64,
        limit_bytes: Option<u64>,
    ) -> Result<KvExtension, KvArenaError> {
        let grain = self.arena.grain_bytes();
        let measured = self.arena.context().mem_info()?;
        let available = self.beside(measured, headroom_bytes);
        let most = limit_bytes
            .unwrap_or(u64::MAX)
            .min(self.arena.reserved_bytes());
        let carved = available.min(most);
        // Mapping rounds up to the grain; only whole grains of the budget may be promised to slabs.
        let carve = Carve::new(&self.geometry, &self.layout, carved / grain * grain)?;
        // What the limit leaves, and less than a grain of the budget, stays free as well.
        let headroom_left =
            headroom_bytes.min(measured.free_bytes) + (available - carved) + carved % grain;
        let wanted = carve.slab_total_bytes();
        let extension = |carve, mapped_bytes: u64| KvExtension {
            carve,
            measured,
            mapped_bytes,
            headroom_bytes: headroom_left,
            refused_bytes: wanted.saturating_sub(mapped_bytes),
        };
        match self.arena.map_to(wanted) {
            Ok(()) => return Ok(extension(carve, self.arena.mapped_bytes())),
            Err(ArenaError::Driver { source, .. }) if source.is_out_of_memory() => {}
            Err(error) => return Err(error.into()),
        }
        let now = self.arena.context().mem_info()?;
        let mapped_bytes = self
            .arena
            .map_up_to(self.beside(now, headroom_bytes).min(wanted) / grain * grain)?;
        let carve = Carve::new(&self.geometry, &self.layout, mapped_bytes)?;
        Ok(extension(carve, mapped_bytes))
    }

    /// Gives back the memory behind all but the first `slabs` slabs, whole extents of it; returns the bytes given back, to the byte what the device
    /// has more of. [`KvSequences::shrink`](super::KvSequences::shrink) vacates them first; no step that can touch them may be in flight (I12).
    ///
    /// # Errors
    /// [`KvArenaError::Carve`] when not even the null pages would be left, [`KvArenaError::Arena`] when the driver refuses.
    pub fn shrink_to(&mut self, slabs: u32) -> Result<u64, KvArenaError> {
        let bytes = self.slab_bytes(slabs);
        if bytes < self.layout.null_bytes() {
            let needed_bytes = self.layout.null_bytes();
            return Err(CarveError::TooSmall {
                bytes,
                needed_bytes,
            }
            .into());
        }
        Ok(self.arena.unmap_from(bytes)?)
    }

    /// Backs the first `slabs` slabs again, or as many as the device has memory for; returns how many, for
    /// [`KvSequences::grow`](super::KvSequences::grow).
    ///
    /// # Errors
    /// [`KvArenaError::Arena`] beyond the addresses, behind a closed gate, or when the driver fails otherwise.
    pub fn grow_to(&mut self, slabs: u32) -> Result<u32, KvArenaError> {
        let mapped = self.arena.map_up_to(self.slab_bytes(slabs))?;
        // Not more than the reach, as the addresses are not.
        Ok((mapped / self.layout.slab_bytes).min(u64::from(slabs)) as u32)
    }

    /// Gives back all memory, null pages included, and keeps the addresses: graphs stay valid and must not be launched. Returns the bytes given
    /// back. [`KvSequences::check_asleep`](super::KvSequences::check_asleep) says whether something would be lost.
    ///
    /// # Errors
    /// [`KvArenaError::Arena`] when the driver refuses.
    pub fn sleep(&mut self) -> Result<u64, KvArenaError> {
        let mapped_bytes = self.arena.mapped_bytes();
        let given_back = self.arena.unmap_from(0)?;
        self.asleep_bytes = self.asleep_bytes.or(Some(mapped_bytes));
        Ok(given_back)
    }

    /// Takes back what [`sleep`](Self::sleep) gave away, or as much as the device still has; returns the slabs that are
    /// backed. Their contents are undefined.
    ///
    /// # Errors
    /// [`KvArenaError::Carve`] when not even the null pages could be backed, and then the arena sleeps on;
    /// [`KvArenaError::Arena`] behind a closed gate, or when the driver fails otherwise.
    pub fn wake(&mut self) -> Result<u32, KvArenaError> {
        let Some(wanted_bytes) = self.asleep_bytes else {
            return Ok(self.backed_slabs());
        };
        let bytes = self.arena.map_up_to(wanted_bytes)?;
        let needed_bytes = self.layout.null_bytes();
        if bytes < needed_bytes {
            self.arena.unmap_from(0)?;
            return Err(CarveError::TooSmall {
                bytes,
                needed_bytes,
            }
            .into());
        }
        self.asleep_bytes = None;
        Ok(self.backed_slabs())
    }

    /// Slabs that lie wholly in backed memory.
    #[must_use]
    pub fn backed_slabs(&self) -> u32 {
        // At most the reach, 2^32 units, and a slab is one at least.
        u32::try_from(self.arena.mapped_bytes() / self.layout.slab_bytes).unwrap_or(u32::MAX)
    }

    fn slab_bytes(&self, slabs: u32) -> u64 {
        u64::from(slabs).saturating_mul(self.layout.slab_bytes)
    }

    /// Bytes that KV has and may take when `headroom_bytes` of the free memory are left alone.
    fn beside(&self, reading: MemInfo, headroom_bytes: u64) -> u64 {
        self.arena
            .mapped_bytes()
            .saturating_add(reading.free_bytes.saturating_sub(headroom_bytes))
    }

    /// First address: entries count from here.
    #[must_use]
    pub fn base(&self) -> DevicePtr {
        self.arena.base()
    }

    /// The slab and each pool's layout, layer strides included; constant for the life of the arena.
    #[must_use]
    pub const fn layout(&self) -> &SlabLayout {
        &self.layout
    }

    /// The layer groups.
    #[must_use]
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The addresses and memory underneath.
    #[must_use]
    pub const fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The null page of a group's pool, backed from the start.
    #[must_use]
    pub fn null_page(&self, group: GroupId) -> PageEntry {
        // Each pool's first slab lies below the reach, checked by the carve of `reserve`.
        PageEntry((u64::from(group.0) * self.layout.slab_units()) as u32)
    }

    /// Gives addresses and memory back and reports what `Drop` would only record.
    ///
    /// # Errors
    /// [`KvArenaError::Arena`] when the driver refuses.
    pub fn close(self) -> Result<(), KvArenaError> {
        Ok(self.arena.close()?)
    }
}

/// Why the KV arena cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KvArenaError {
    /// No slab.
    #[error(transparent)]
    Slab(#[from] SlabError),
    /// Too little or too much memory.
    #[error(transparent)]
    Carve(#[from] CarveError),
    /// The arena refused.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The device could not be measured.
    #[error(transparent)]
    Driver(#[from] DriverError),
}
