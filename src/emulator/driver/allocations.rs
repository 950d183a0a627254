//! Memory that the driver hands out whole: linear, managed and pool allocations, and host buffers.

use std::ffi::c_void;
use std::sync::Arc;

use super::failure::Failure;
use super::registry::{self, EmulatedDevice};
use super::state::State;
use crate::driver::CuResult;
use crate::emulator::mem::Block;

/// What kind of call made an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// `cuMemAlloc` and its relatives.
    Linear,
    /// `cuMemAllocManaged`: plain device memory, which the host can read and write like its own.
    Managed,
    /// Stream-ordered, from the pool of this serial.
    Pool(u64),
    /// Another process's, by its handle: that process and its number there, and how often it was opened here.
    Ipc {
        process: u64,
        serial: u64,
        opened: u32,
    },
}

/// One allocation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allocation {
    pub(super) serial: u64,
    pub(super) block: Block,
    /// Bytes that were asked for.
    pub(super) bytes: u64,
    pub(super) origin: Origin,
    /// Value of `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
    pub(super) sync_copies: bool,
}

/// Page-locked host memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostBuffer {
    pub(super) serial: u64,
    pub(super) bytes: usize,
    pub(super) flags: u32,
    /// The caller's memory, registered; otherwise it was allocated here.
    pub(super) registered: bool,
}

/// A pool of stream-ordered allocations.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pool {
    /// Values of `CU_MEMPOOL_ATTR_REUSE_*` (1 to 3), on by default.
    pub(super) reuse: [i32; 3],
    pub(super) release_threshold_bytes: u64,
    /// Most bytes a pool may hold, 0 for as many as there are.
    pub(super) limit_bytes: u64,
    pub(super) used_bytes: u64,
    pub(super) used_high_bytes: u64,
    /// Kinds of handles that the pool was made to be shared by.
    pub(super) handle_types: u32,
}

impl State {
    /// Physical memory with addresses of its own.
    pub(super) fn allocate(&mut self, bytes: u64, what: &str) -> Result<Block, Failure> {
        let grain = self.profile.granularity_bytes;
        let bytes = bytes
            .checked_next_multiple_of(grain)
            .ok_or_else(|| Failure::from(CuResult::OUT_OF_MEMORY))?;
        self.room_for(bytes, what)?;
        let id = self.serial();
        let limit = self.poison_limit_bytes();
        Ok(self.memory()?.allocate(id, bytes, limit)?)
    }

    /// Managed memory with addresses of its own. It may exceed the device's: on hardware it migrates.
    fn allocate_managed(&mut self, bytes: u64) -> Result<Block, Failure> {
        let id = self.serial();
        let grain = self.profile.granularity_bytes;
        let bytes = bytes
            .checked_next_multiple_of(grain)
            .ok_or_else(|| Failure::from(CuResult::OUT_OF_MEMORY))?;
        let block = self.memory()?.allocate(id, bytes, 0)?;
        self.managed_bytes += block.bytes;
        Ok(block)
    }

    /// Bytes of poisoned memory that may be alive.
    pub(super) fn poison_limit_bytes(&self) -> u64 {
        if self.profile.poison {
            self.profile.poison_limit_bytes
        } else {
            0
        }
    }

    /// Lets the program see `bytes` of a block as an allocation.
    pub(super) fn enter_allocation(&mut self, block: Block, bytes: u64, origin: Origin) {
        let serial = self.serial();
        self.device_allocations.insert(
            block.address,
            Allocation {
                serial,
                block,
                bytes,
                origin,
                sync_copies: false,
            },
        );
    }

    /// An allocation that the program sees; gives its address.
    pub(super) fn new_allocation(&mut self, bytes: u64, origin: Origin) -> Result<u64, Failure> {
        if bytes == 0 {
            return Err(Failure::invalid("0 bytes cannot be allocated"));
        }
        let block = if origin == Origin::Managed {
            self.allocate_managed(bytes)?
        } else {
            self.allocate(bytes, "the allocation")?
        };
        self.enter_allocation(block, bytes, origin);
        self.check_tail(block.address, bytes, block.bytes);
        if let Origin::Pool(pool) = origin
            && let Some(pool) = self.pools.get_mut(&pool)
        {
            pool.used_bytes += bytes;
            pool.used_high_bytes = pool.used_high_bytes.max(pool.used_bytes);
        }
        self.note_peak();
        Ok(block.address)
    }

    /// Memory of a graph's allocation node: its address is part of the graph, so it stays until the device's
    /// last context is gone.
    pub(super) fn graph_allocation(&mut self, bytes: u64) -> Result<u64, Failure> {
        let address = self.new_allocation(bytes, Origin::Linear)?;
        if let Some(allocation) = self.device_allocations.remove(&address) {
            self.graph_allocations.insert(address, allocation);
        }
        Ok(address)
    }

    /// Frees the allocation that begins at an address.
    pub(super) fn free_allocation(&mut self, address: u64) -> Result<(), Failure> {
        let allocation = self
            .device_allocations
            .remove(&address)
            .ok_or_else(|| Failure::invalid("no allocation begins at this address"))?;
        if let Origin::Pool(pool) = allocation.origin
            && let Some(pool) = self.pools.get_mut(&pool)
        {
            pool.used_bytes -= allocation.bytes;
        }
        if allocation.origin == Origin::Managed {
            self.managed_bytes -= allocation.block.bytes;
        }
        Ok(self.memory()?.free_block(allocation.block)?)
    }

    /// The allocation that holds an address.
    pub(super) fn allocation_at(&self, address: u64) -> Option<&Allocation> {
        let lists = [&self.device_allocations, &self.graph_allocations];
        lists.into_iter().find_map(|list| {
            let (begin, allocation) = list.range(..=address).next_back()?;
            (address - begin < allocation.bytes).then_some(allocation)
        })
    }

    /// Base and bytes of the allocation or mapping that holds an address.
    pub(super) fn range_at(&mut self, address: u64) -> Option<(u64, u64)> {
        if let Some(allocation) = self.allocation_at(address) {
            return Some((allocation.block.address, allocation.bytes));
        }
        for module in self.modules.values() {
            if let Some(range) = module.code.global_at(address) {
                return Some(range);
            }
        }
        self.memory().ok()?.piece_at(address)
    }

    /// Page-locked memory of the emulator's own.
    pub(super) fn allocate_pinned(&mut self, bytes: usize, flags: u32) -> Result<u64, Failure> {
        if bytes == 0 {
            return Err(Failure::invalid("0 bytes cannot be allocated"));
        }
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(Failure::new(
                CuResult::OUT_OF_MEMORY,
                format!("the host has no {bytes} bytes for a page-locked buffer"),
            ));
        }
        self.note_pinned(address as u64, bytes, flags, false)?;
        Ok(address as u64)
    }

    /// Registers the caller's memory as page-locked.
    pub(super) fn register_pinned(
        &mut self,
        address: u64,
        bytes: usize,
        flags: u32,
    ) -> Result<(), Failure> {
        if address == 0 || bytes == 0 {
            return Err(Failure::invalid("no memory to register"));
        }
        if self
            .memory()?
            .space()
            .overlaps_pinned(address, bytes as u64)
        {
            return Err(Failure::new(
                CuResult::HOST_MEMORY_ALREADY_REGISTERED,
                format!("part of {bytes} bytes at {address:#x} is page-locked already"),
            ));
        }
        self.note_pinned(address, bytes, flags, true)
    }

    fn note_pinned(
        &mut self,
        address: u64,
        bytes: usize,
        flags: u32,
        registered: bool,
    ) -> Result<(), Failure> {
        let serial = self.serial();
        self.memory()?.space().add_pinned(address, bytes as u64);
        self.pinned.insert(
            address,
            HostBuffer {
                serial,
                bytes,
                flags,
                registered,
            },
        );
        Ok(())
    }

    /// Gives a page-locked buffer back; registered memory stays its owner's.
    pub(super) fn free_pinned(&mut self, address: u64) -> Result<(), Failure> {
        let Some(buffer) = self.pinned.remove(&address) else {
            return Err(Failure::invalid(
                "no page-locked buffer begins at this address",
            ));
        };
        self.memory()?.space().remove_pinned(address);
        if !buffer.registered {
            // SAFETY: this is the whole range that `allocate_pinned` got.
            unsafe { libc::munmap(address as *mut c_void, buffer.bytes) };
        }
        Ok(())
    }

    /// The page-locked buffer that holds an address, and where it begins.
    pub(super) fn pinned_at(&self, address: u64) -> Option<(u64, HostBuffer)> {
        let (&begin, &buffer) = self.pinned.range(..=address).next_back()?;
        (address - begin < buffer.bytes as u64).then_some((begin, buffer))
    }
}

/// The device that holds the page-locked buffer around an address.
pub(super) fn device_of_pinned(address: u64) -> Option<Arc<EmulatedDevice>> {
    registry::devices()
        .into_iter()
        .find(|device| device.lock().pinned_at(address).is_some())
}
