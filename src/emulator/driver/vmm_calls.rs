//! Entry points of virtual memory management.

use std::ffi::{c_int, c_uint};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use std::sync::Arc;

use cuda_driver_sys::CUdeviceptr;

use super::arguments::{In, Out, calls};
use super::capture::refuse_unsafe_call;
use super::device_calls::of_device;
use super::entry::{entry, give_back, named, on_current, on_device, write};
use super::failure::Failure;
use super::registry::{self, EmulatedDevice, Kind};
use crate::driver::CuResult;
use crate::driver::abi::{
    self, CUmemAccessDesc, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation,
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
    entry("cuMemGetAllocationGranularity", || {
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
    entry("cuMemAddressReserve", || {
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
    entry("cuMemAddressFree", || {
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
    entry("cuMemCreate", || {
        refuse_unsafe_call("cuMemCreate")?;
        // SAFETY: the caller passes null or a valid pointer.
        let device = unsafe { of_properties(properties) }?;
        on_device("cuMemCreate", &device, |state| {
            if flags != 0 {
                return Err(Failure::invalid("the flags must be 0"));
            }
            // SAFETY: `of_properties` has read them, so they are there.
            let shared = unsafe { properties.read() }.requestedHandleTypes;
            if shared & !abi::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR != 0 {
                return Err(Failure::new(
                    CuResult::NOT_SUPPORTED,
                    format!("memory cannot be shared by handles of kind {shared:#x}"),
                ));
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
            let physical = &mut state.memory()?.physical;
            if shared == 0 {
                physical.create(serial, bytes as u64, limit)?;
            } else {
                physical.create_shared(serial, bytes as u64)?;
            }
            state.note_peak();
            let raw = registry::handle(Kind::Physical, device.ordinal, serial);
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(handle, raw, "the handle") }
        })
    })
}

pub(super) unsafe extern "C" fn mem_release(handle: CUmemGenericAllocationHandle) -> CuResult {
    entry("cuMemRelease", || {
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
    entry("cuMemMap", || {
        refuse_unsafe_call("cuMemMap")?;
        let device = of_address(pointer)?;
        let (owner, serial) = named(handle, Kind::Physical, "physical allocation")?;
        on_device("cuMemMap", &device, |state| {
            if flags != 0 {
                return Err(Failure::invalid("the flags must be 0"));
            }
            if owner.ordinal != device.ordinal {
                return Err(Failure::new(
                    CuResult::NOT_SUPPORTED,
                    "mapping another device's memory is not emulated",
                ));
            }
            Ok(state
                .memory()?
                .map(pointer, bytes as u64, offset as u64, serial)?)
        })
    })
}

pub(super) unsafe extern "C" fn mem_unmap(pointer: CUdeviceptr, bytes: usize) -> CuResult {
    entry("cuMemUnmap", || {
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
    entry("cuMemSetAccess", || {
        let device = of_address(pointer)?;
        on_device("cuMemSetAccess", &device, |state| {
            // A peer reaches the memory once its context has enabled access; rights are the owner's.
            let own = In::of(descriptions)
                .list(count, "the descriptions")?
                .into_iter()
                .filter(|description| {
                    description.location.type_ == abi::CU_MEM_LOCATION_TYPE_DEVICE
                })
                .find(|description| description.location.id == device.ordinal as i32);
            let Some(description) = own else {
                return if count == 0 {
                    Err(Failure::invalid("there is no access description"))
                } else {
                    Err(Failure::new(
                        CuResult::NOT_SUPPORTED,
                        "access by other devices or the host alone is not emulated",
                    ))
                };
            };
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

/// Refuses kinds of handles that are not emulated.
fn descriptor_kind(kind: c_uint) -> Result<(), Failure> {
    if kind == abi::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
        return Ok(());
    }
    Err(Failure::new(
        CuResult::NOT_SUPPORTED,
        format!("handles of kind {kind:#x} are not emulated"),
    ))
}

calls! {
    "cuMemExportToShareableHandle" fn mem_export(handle_out: Out<c_int>, handle: u64, kind: c_uint, flags: u64) {
        descriptor_kind(kind)?;
        if flags != 0 {
            return Err(Failure::invalid("the flags must be 0"));
        }
        handle_out.required("the descriptor")?;
        let (device, serial) = named(handle, Kind::Physical, "physical allocation")?;
        on_device(CALL, &device, |state| {
            let memory = state.memory()?;
            let Some(file) = memory.physical.shared_file(serial)? else {
                return Err(Failure::invalid("the memory was not created to be shared"));
            };
            let copy = file.try_clone().map_err(|error| {
                Failure::new(CuResult::OPERATING_SYSTEM, format!("the descriptor cannot be copied: {error}"))
            })?;
            memory.shared(serial);
            handle_out.put(copy.into_raw_fd(), "the descriptor")
        })
    }

    /// The descriptor is passed as the pointer's value and stays the caller's.
    "cuMemImportFromShareableHandle" fn mem_import(handle: Out<u64>, descriptor: usize, kind: c_uint) {
        descriptor_kind(kind)?;
        handle.required("the handle")?;
        let fd = c_int::try_from(descriptor).map_err(|_| Failure::invalid("the handle is no file descriptor"))?;
        // SAFETY: asks about a descriptor, whatever it is.
        if fd < 0 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            return Err(Failure::invalid(format!("{fd} is no open file descriptor")));
        }
        // SAFETY: the descriptor is open, and the caller keeps it open during the call.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        debug_assert_eq!(borrowed.as_raw_fd(), fd);
        on_current(CALL, |state| {
            let serial = state.serial();
            let ordinal = state.ordinal;
            let memory = state.memory()?;
            let serial = memory.physical.import(serial, borrowed)?;
            memory.shared(serial);
            state.note_peak();
            handle.put(registry::handle(Kind::Physical, ordinal, serial), "the handle")
        })
    }

    "cuMemRetainAllocationHandle" fn mem_retain_allocation_handle(handle: Out<u64>, address: u64) {
        handle.required("the handle")?;
        let device = of_address(address)?;
        on_device(CALL, &device, |state| {
            // What cuMemAlloc gave has no handle.
            if state.allocation_at(address).is_some() {
                return Err(Failure::invalid(format!("{address:#x} was not mapped with cuMemMap")));
            }
            let memory = state.memory()?;
            let serial = memory
                .allocation_at(address)
                .ok_or_else(|| Failure::invalid(format!("nothing is mapped at {address:#x}")))?;
            memory.physical.retain(serial)?;
            handle.put(registry::handle(Kind::Physical, device.ordinal, serial), "the handle")
        })
    }

    "cuMemGetAllocationPropertiesFromHandle" fn mem_get_allocation_properties(
        properties: Out<CUmemAllocationProp>, handle: u64,
    ) {
        let (device, serial) = named(handle, Kind::Physical, "physical allocation")?;
        on_device(CALL, &device, |state| {
            let shared = state.memory()?.physical.shared_file(serial)?.is_some();
            // SAFETY: a structure of integers and pointers, for which all zeros are valid.
            let mut known: CUmemAllocationProp = unsafe { std::mem::zeroed() };
            known.type_ = abi::CU_MEM_ALLOCATION_TYPE_PINNED;
            known.location.type_ = abi::CU_MEM_LOCATION_TYPE_DEVICE;
            known.location.id = device.ordinal as c_int;
            if shared {
                known.requestedHandleTypes = abi::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            }
            properties.put(known, "the properties")
        })
    }

    "cuMemGetAccess" fn mem_get_access(flags: Out<u64>, location: In<CUmemLocation>, address: u64) {
        let location = location.get("the location")?;
        let device = of_address(address)?;
        let asks_own = location.type_ == abi::CU_MEM_LOCATION_TYPE_DEVICE
            && location.id == device.ordinal as c_int;
        on_device(CALL, &device, |state| {
            let known = match state.memory()?.access_at(address) {
                None => return Err(Failure::invalid(format!("nothing is mapped at {address:#x}"))),
                Some((true, true)) if asks_own => abi::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                Some((true, false)) if asks_own => abi::CU_MEM_ACCESS_FLAGS_PROT_READ,
                Some(_) => abi::CU_MEM_ACCESS_FLAGS_PROT_NONE,
            };
            flags.put(u64::from(known), "the flags")
        })
    }
}
