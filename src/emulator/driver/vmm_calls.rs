//! Entry points of virtual memory management.

use std::ffi::c_uint;
use std::sync::Arc;

use cuda_driver_sys::CUdeviceptr;

use super::capture::refuse_unsafe_call;
use super::device_calls::of_device;
use super::entry::{entry, give_back, named, on_current, on_device, write};
use super::failure::Failure;
use super::registry::{self, EmulatedDevice, Kind};
use crate::driver::CuResult;
use crate::driver::abi::{
    self, CUmemAccessDesc, CUmemAllocationProp, CUmemGenericAllocationHandle,
};

/// The device whose window holds an address.
fn of_address(address: u64) -> Result<Arc<EmulatedDevice>, Failure> {
    registry::device_of_address(address)
        .ok_or_else(|| Failure::invalid(format!("{address:#x} belongs to no reservation")))
}

/// The device that allocation properties name; only plain device memory is emulated.
///
/// # Safety
/// `properties` must be null or valid for reading.
unsafe fn of_properties(
    properties: *const CUmemAllocationProp,
) -> Result<Arc<EmulatedDevice>, Failure> {
    // SAFETY: the caller passes null or a valid pointer.
    let Some(properties) = (unsafe { properties.as_ref() }) else {
        return Err(Failure::null("the properties"));
    };
    if properties.type_ != abi::CU_MEM_ALLOCATION_TYPE_PINNED
        || properties.location.type_ != abi::CU_MEM_LOCATION_TYPE_DEVICE
    {
        return Err(Failure::new(
            CuResult::NOT_SUPPORTED,
            "only pinned memory located on a device is emulated",
        ));
    }
    of_device(properties.location.id)
}

pub(super) unsafe extern "C" fn mem_get_allocation_granularity(
    bytes: *mut usize,
    properties: *const CUmemAllocationProp,
    option: c_uint,
) -> CuResult {
    entry(|| {
        // SAFETY: the caller passes null or a valid pointer.
        let device = unsafe { of_properties(properties) }?;
        if option > abi::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED {
            return Err(Failure::invalid(format!("no granularity option {option}")));
        }
        let granularity = device.profile.granularity_bytes as usize;
        // SAFETY: the caller passes null or a valid pointer.
        unsafe { write(bytes, granularity, "the bytes") }
    })
}

pub(super) unsafe extern "C" fn mem_address_reserve(
    pointer: *mut CUdeviceptr,
    bytes: usize,
    alignment: usize,
    _hint: CUdeviceptr,
    flags: u64,
) -> CuResult {
    entry(|| {
        if flags != 0 {
            return Err(Failure::invalid("the flags must be 0"));
        }
        on_current("cuMemAddressReserve", |state| {
            let address = state.memory()?.reserve(bytes as u64, alignment as u64)?;
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(pointer, address, "the pointer") }
        })
    })
}

pub(super) unsafe extern "C" fn mem_address_free(pointer: CUdeviceptr, bytes: usize) -> CuResult {
    entry(|| {
        give_back("cuMemAddressFree", &*of_address(pointer)?, |state| {
            Ok(state.memory()?.free(pointer, bytes as u64)?)
        })
    })
}

pub(super) unsafe extern "C" fn mem_create(
    handle: *mut CUmemGenericAllocationHandle,
    bytes: usize,
    properties: *const CUmemAllocationProp,
    flags: u64,
) -> CuResult {
    entry(|| {
        refuse_unsafe_call("cuMemCreate")?;
        // SAFETY: the caller passes null or a valid pointer.
        let device = unsafe { of_properties(properties) }?;
        on_device("cuMemCreate", &device, |state| {
            if flags != 0 {
                return Err(Failure::invalid("the flags must be 0"));
            }
            let grain = state.profile.granularity_bytes;
            if bytes == 0 || !(bytes as u64).is_multiple_of(grain) {
                return Err(Failure::invalid(format!(
                    "the bytes must be a positive multiple of the granularity of {grain} bytes, not {bytes}"
                )));
            }
            state.room_for(bytes as u64, "the allocation")?;
            let serial = state.serial();
            let limit = state.poison_limit_bytes();
            state
                .memory()?
                .physical
                .create(serial, bytes as u64, limit)?;
            state.note_peak();
            let raw = registry::handle(Kind::Physical, device.ordinal, serial);
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(handle, raw, "the handle") }
        })
    })
}

pub(super) unsafe extern "C" fn mem_release(handle: CUmemGenericAllocationHandle) -> CuResult {
    entry(|| {
        let (device, serial) = named(handle, Kind::Physical, "physical allocation")?;
        give_back("cuMemRelease", &device, |state| {
            Ok(state.memory()?.release(serial)?)
        })
    })
}

pub(super) unsafe extern "C" fn mem_map(
    pointer: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> CuResult {
    entry(|| {
        refuse_unsafe_call("cuMemMap")?;
        let device = of_address(pointer)?;
        let (owner, serial) = named(handle, Kind::Physical, "physical allocation")?;
        on_device("cuMemMap", &device, |state| {
            if offset != 0 || flags != 0 {
                return Err(Failure::invalid("the offset and the flags must be 0"));
            }
            if owner.ordinal != device.ordinal {
                return Err(Failure::new(
                    CuResult::NOT_SUPPORTED,
                    "mapping another device's memory is not emulated",
                ));
            }
            Ok(state.memory()?.map(pointer, bytes as u64, serial)?)
        })
    })
}

pub(super) unsafe extern "C" fn mem_unmap(pointer: CUdeviceptr, bytes: usize) -> CuResult {
    entry(|| {
        refuse_unsafe_call("cuMemUnmap")?;
        // Queued work is not run first: work that still touches the range then faults, as it would on
        // hardware when the timing is bad.
        give_back("cuMemUnmap", &*of_address(pointer)?, |state| {
            Ok(state.memory()?.unmap(pointer, bytes as u64)?)
        })
    })
}

pub(super) unsafe extern "C" fn mem_set_access(
    pointer: CUdeviceptr,
    bytes: usize,
    descriptions: *const CUmemAccessDesc,
    count: usize,
) -> CuResult {
    entry(|| {
        let device = of_address(pointer)?;
        on_device("cuMemSetAccess", &device, |state| {
            if descriptions.is_null() || count != 1 {
                return Err(Failure::new(
                    CuResult::NOT_SUPPORTED,
                    "exactly one access description is emulated",
                ));
            }
            // SAFETY: the caller passes an array of `count` descriptions, and that is 1.
            let description = unsafe { descriptions.read() };
            if description.location.type_ != abi::CU_MEM_LOCATION_TYPE_DEVICE
                || description.location.id != device.ordinal as i32
            {
                return Err(Failure::new(
                    CuResult::NOT_SUPPORTED,
                    "access by another device is not emulated",
                ));
            }
            let (read, write) = match description.flags {
                abi::CU_MEM_ACCESS_FLAGS_PROT_NONE => (false, false),
                abi::CU_MEM_ACCESS_FLAGS_PROT_READ => (true, false),
                abi::CU_MEM_ACCESS_FLAGS_PROT_READWRITE => (true, true),
                other => return Err(Failure::invalid(format!("no access flags {other}"))),
            };
            Ok(state
                .memory()?
                .set_access(pointer, bytes as u64, read, write)?)
        })
    })
}
