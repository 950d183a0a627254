//! Virtual memory management: address reservations and the physical memory mapped into them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Context, DevicePtr, DriverError, abi};

/// What a mapped range may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Access {
    /// Nothing.
    None = abi::CU_MEM_ACCESS_FLAGS_PROT_NONE,
    /// Reading.
    Read = abi::CU_MEM_ACCESS_FLAGS_PROT_READ,
    /// Reading and writing.
    ReadWrite = abi::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
}

/// Physical device memory without an address. It lives until it is neither held nor mapped.
#[derive(Debug)]
pub struct PhysicalAllocation {
    context: Context,
    handle: Option<abi::CUmemGenericAllocationHandle>,
    bytes: u64,
}

impl PhysicalAllocation {
    /// Takes `bytes` of physical memory, a multiple of [`Device::granularity_bytes`](super::Device::granularity_bytes).
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuMemCreate` returns: `CUDA_ERROR_INVALID_VALUE` for
    /// bytes that are no multiple of the granularity, `CUDA_ERROR_OUT_OF_MEMORY` beyond what is free.
    pub fn new(context: &Context, bytes: u64) -> Result<PhysicalAllocation, DriverError> {
        let api = context.enter("cuMemCreate")?;
        let properties = context.device().allocation_properties();
        let mut handle = 0;
        // SAFETY: both pointers are to live locals.
        let result = unsafe { (api.cu_mem_create)(&mut handle, bytes as usize, &properties, 0) };
        context.check("cuMemCreate", result, || {
            format!(
                "{bytes} bytes, granularity {} bytes",
                context.device().granularity_bytes()
            )
        })?;
        Ok(PhysicalAllocation {
            context: context.clone(),
            handle: Some(handle),
            bytes,
        })
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Releases the handle and reports what `Drop` would only record. Memory that is still mapped stays.
    ///
    /// # Errors
    /// Whatever `cuMemRelease` returns.
    pub fn close(mut self) -> Result<(), DriverError> {
        self.destroy()
    }

    fn destroy(&mut self) -> Result<(), DriverError> {
        let Some(handle) = self.handle.take() else {
            return Ok(());
        };
        // SAFETY: the handle was owned by `self` and is given back once.
        self.context.destroy("cuMemRelease", |api| unsafe {
            (api.cu_mem_release)(handle)
        })
    }
}

impl Drop for PhysicalAllocation {
    fn drop(&mut self) {
        let result = self.destroy();
        self.context.record(result);
    }
}

/// A range of device addresses, into which physical memory is mapped piece by piece. Its base never
/// changes. On drop it unmaps what is mapped; no work that touches it may be in flight then.
#[derive(Debug)]
pub struct AddressReservation {
    context: Context,
    base: DevicePtr,
    bytes: u64,
    /// Mapped pieces by offset; the held allocation keeps the piece's physical memory alive.
    mapped: Mutex<BTreeMap<u64, Arc<PhysicalAllocation>>>,
}

impl AddressReservation {
    /// Reserves `bytes` of addresses, a multiple of the granularity. `alignment` is a power of two in
    /// bytes, or 0 for the driver's own.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuMemAddressReserve` returns.
    pub fn new(
        context: &Context,
        bytes: u64,
        alignment: u64,
    ) -> Result<AddressReservation, DriverError> {
        let api = context.enter("cuMemAddressReserve")?;
        let mut base = 0u64;
        // SAFETY: the pointer is to a live local.
        let result = unsafe {
            (api.cu_mem_address_reserve)(&mut base, bytes as usize, alignment as usize, 0, 0)
        };
        context.check("cuMemAddressReserve", result, || {
            format!("{bytes} bytes, alignment {alignment} bytes")
        })?;
        Ok(AddressReservation {
            context: context.clone(),
            base: DevicePtr(base),
            bytes,
            mapped: Mutex::default(),
        })
    }

    /// First address.
    #[must_use]
    pub fn base(&self) -> DevicePtr {
        self.base
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The context of the reservation.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Maps all of `allocation` at `offset_bytes`. The range has no access until
    /// [`AddressReservation::set_access`].
    ///
    /// # Errors
    /// [`DriverError::Invalid`] for a range outside the reservation, [`DriverError::Poisoned`], or
    /// whatever `cuMemMap` returns: `CUDA_ERROR_INVALID_VALUE` for an offset that is no multiple of
    /// the granularity, `CUDA_ERROR_ALREADY_MAPPED`, ...
    pub fn map(
        &self,
        offset_bytes: u64,
        allocation: Arc<PhysicalAllocation>,
    ) -> Result<(), DriverError> {
        let bytes = allocation.bytes();
        let address = self.range("cuMemMap", offset_bytes, bytes)?;
        let Some(handle) = allocation.handle else {
            return Err(DriverError::Invalid {
                what: "the physical allocation is closed".to_owned(),
            });
        };
        let api = self.context.enter("cuMemMap")?;
        let mut mapped = self.mapped();
        // SAFETY: the range lies in this reservation and the handle is alive.
        let result = unsafe { (api.cu_mem_map)(address.0, bytes as usize, 0, handle, 0) };
        self.context.check("cuMemMap", result, || {
            format!(
                "{bytes} bytes at offset {offset_bytes} of {}, granularity {} bytes",
                self.base,
                self.context.device().granularity_bytes()
            )
        })?;
        mapped.insert(offset_bytes, allocation);
        Ok(())
    }

    /// Opens a mapped range for reading and writing by the context's device.
    ///
    /// # Errors
    /// As for [`AddressReservation::set_access_to`].
    pub fn set_access(&self, offset_bytes: u64, bytes: u64) -> Result<(), DriverError> {
        self.set_access_to(offset_bytes, bytes, Access::ReadWrite)
    }

    /// Sets what a mapped range may be used for by the context's device.
    ///
    /// # Errors
    /// [`DriverError::Invalid`] for a range outside the reservation, [`DriverError::Poisoned`], or
    /// whatever `cuMemSetAccess` returns: `CUDA_ERROR_INVALID_VALUE` where part of the range is not mapped.
    pub fn set_access_to(
        &self,
        offset_bytes: u64,
        bytes: u64,
        access: Access,
    ) -> Result<(), DriverError> {
        let address = self.range("cuMemSetAccess", offset_bytes, bytes)?;
        let api = self.context.enter("cuMemSetAccess")?;
        let description = abi::CUmemAccessDesc {
            location: self.context.device().location(),
            flags: access as u32,
        };
        // SAFETY: the range lies in this reservation and the pointer is to one live description.
        let result = unsafe { (api.cu_mem_set_access)(address.0, bytes as usize, &description, 1) };
        self.context.check("cuMemSetAccess", result, || {
            format!(
                "{access:?}, {bytes} bytes at offset {offset_bytes} of {}",
                self.base
            )
        })
    }

    /// Unmaps a range that consists of whole mapped pieces. Their physical memory is given back where
    /// nobody else holds it. No work that touches the range may be in flight.
    ///
    /// # Errors
    /// [`DriverError::Invalid`] for a range outside the reservation, [`DriverError::Poisoned`], or
    /// whatever `cuMemUnmap` returns: `CUDA_ERROR_INVALID_VALUE` where the range cuts a piece.
    pub fn unmap(&self, offset_bytes: u64, bytes: u64) -> Result<(), DriverError> {
        let address = self.range("cuMemUnmap", offset_bytes, bytes)?;
        let api = self.context.enter("cuMemUnmap")?;
        let mut mapped = self.mapped();
        // SAFETY: the range lies in this reservation; the caller ended the work that touches it, and
        // a range that cuts a piece is refused by the driver.
        let result = unsafe { (api.cu_mem_unmap)(address.0, bytes as usize) };
        self.context.check("cuMemUnmap", result, || {
            format!("{bytes} bytes at offset {offset_bytes} of {}", self.base)
        })?;
        let mut rest = mapped.split_off(&offset_bytes);
        let mut after = rest.split_off(&(offset_bytes + bytes));
        mapped.append(&mut after);
        // The lock is released before the allocations in `rest` are: their Drop calls the driver.
        drop(mapped);
        Ok(())
    }

    /// Bytes that are mapped now.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        self.mapped().values().map(|piece| piece.bytes()).sum()
    }

    /// Unmaps everything, frees the addresses and reports what `Drop` would only record.
    ///
    /// # Errors
    /// The first error of `cuMemUnmap` or `cuMemAddressFree`.
    pub fn close(mut self) -> Result<(), DriverError> {
        self.destroy()
    }

    /// The address of a range, which must lie in the reservation.
    fn range(
        &self,
        call: &'static str,
        offset_bytes: u64,
        bytes: u64,
    ) -> Result<DevicePtr, DriverError> {
        let inside = offset_bytes
            .checked_add(bytes)
            .is_some_and(|end| end <= self.bytes);
        if !inside {
            return Err(DriverError::Invalid {
                what: format!(
                    "{call}: {bytes} bytes at offset {offset_bytes} do not lie in the reservation of {} bytes",
                    self.bytes
                ),
            });
        }
        Ok(self.base.add(offset_bytes))
    }

    fn mapped(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<PhysicalAllocation>>> {
        // Each critical section leaves the map whole, so a panic elsewhere is no reason to stop.
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn destroy(&mut self) -> Result<(), DriverError> {
        if self.base.is_null() {
            return Ok(());
        }
        let mut first = Ok(());
        let pieces = std::mem::take(&mut *self.mapped());
        for (offset_bytes, piece) in pieces {
            let address = self.base.add(offset_bytes);
            // SAFETY: exactly this piece is mapped here, and no work is in flight at drop.
            let unmapped = self.context.destroy("cuMemUnmap", |api| unsafe {
                (api.cu_mem_unmap)(address.0, piece.bytes() as usize)
            });
            first = first.and(unmapped);
        }
        let base = std::mem::take(&mut self.base);
        let bytes = self.bytes as usize;
        // SAFETY: the reservation was owned by `self`, holds no mapping any more, and is given back once.
        let freed = self.context.destroy("cuMemAddressFree", |api| unsafe {
            (api.cu_mem_address_free)(base.0, bytes)
        });
        first.and(freed)
    }
}

impl Drop for AddressReservation {
    fn drop(&mut self) {
        let result = self.destroy();
        self.context.record(result);
    }
}
