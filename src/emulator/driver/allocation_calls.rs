//! Entry points of linear and managed allocation and of page-locked host memory.

use std::ffi::{c_int, c_uint, c_void};

use cuda_driver_sys::CUdeviceptr;

use super::allocations::{Origin, device_of_pinned};
use super::arguments::{In, Out, calls};
use super::capture::refuse_unsafe_call;
use super::device_calls::of_device;
use super::entry::{entry, give_back_idle, on_current, write};
use super::failure::Failure;
use super::pointer_calls::range_attribute;
use super::registry;
use super::streams::of_stream;
use crate::driver::CuResult;
use crate::driver::abi::{self, CUmemLocation};

/// Bytes that rows of `cuMemAllocPitch` are a multiple of: a texture's alignment, as on hardware.
const PITCH_BYTES: usize = 512;
/// Flags of `cuMemHostAlloc`.
const HOST_FLAGS: u32 = abi::CU_MEMHOSTALLOC_PORTABLE
    | abi::CU_MEMHOSTALLOC_DEVICEMAP
    | abi::CU_MEMHOSTALLOC_WRITECOMBINED;
/// Flags of `cuMemHostRegister`.
const REGISTER_FLAGS: u32 = abi::CU_MEMHOSTREGISTER_PORTABLE
    | abi::CU_MEMHOSTREGISTER_DEVICEMAP
    | abi::CU_MEMHOSTREGISTER_IOMEMORY
    | abi::CU_MEMHOSTREGISTER_READ_ONLY;

pub(super) unsafe extern "C" fn mem_alloc(pointer: *mut CUdeviceptr, bytes: usize) -> CuResult {
    entry("cuMemAlloc", || {
        refuse_unsafe_call("cuMemAlloc")?;
        on_current("cuMemAlloc", |state| {
            if pointer.is_null() {
                return Err(Failure::null("the pointer"));
            }
            let address = state.new_allocation(bytes as u64, Origin::Linear)?;
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(pointer, address, "the pointer") }
        })
    })
}

pub(super) unsafe extern "C" fn mem_free(pointer: CUdeviceptr) -> CuResult {
    entry("cuMemFree", || {
        refuse_unsafe_call("cuMemFree")?;
        if pointer == 0 {
            return Ok(());
        }
        let device = registry::device_of_address(pointer)
            .ok_or_else(|| Failure::invalid("the address belongs to no device"))?;
        give_back_idle("cuMemFree", &device, |state| {
            let known = state.device_allocations.get(&pointer);
            if known.is_some_and(|known| matches!(known.origin, Origin::Ipc { .. })) {
                return Err(Failure::invalid(
                    "the memory is another process's: cuIpcCloseMemHandle gives it back",
                ));
            }
            state.free_allocation(pointer)
        })
    })
}

pub(super) unsafe extern "C" fn mem_host_alloc(
    pointer: *mut *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> CuResult {
    entry("cuMemHostAlloc", || {
        refuse_unsafe_call("cuMemHostAlloc")?;
        on_current("cuMemHostAlloc", |state| {
            if pointer.is_null() {
                return Err(Failure::null("the pointer"));
            }
            if flags & !HOST_FLAGS != 0 {
                return Err(Failure::invalid(format!("no flags {flags:#x}")));
            }
            let address = state.allocate_pinned(bytes, flags)?;
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(pointer, address as *mut c_void, "the pointer") }
        })
    })
}

pub(super) unsafe extern "C" fn mem_free_host(pointer: *mut c_void) -> CuResult {
    entry("cuMemFreeHost", || {
        refuse_unsafe_call("cuMemFreeHost")?;
        let device = match device_of_pinned(pointer as u64) {
            Some(device) => device,
            None => registry::current_device()?,
        };
        give_back_idle("cuMemFreeHost", &device, |state| {
            if state
                .pinned
                .get(&(pointer as u64))
                .is_some_and(|buffer| buffer.registered)
            {
                return Err(Failure::invalid(
                    "the memory was registered: cuMemHostUnregister gives it back",
                ));
            }
            state.free_pinned(pointer as u64)
        })
    })
}

calls! {
    "cuMemAllocPitch_v2" fn mem_alloc_pitch(
        pointer: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element_bytes: c_uint,
    ) {
        refuse_unsafe_call(CALL)?;
        pointer.required("the pointer")?;
        if !matches!(element_bytes, 4 | 8 | 16) {
            return Err(Failure::invalid(format!("elements have 4, 8 or 16 bytes, not {element_bytes}")));
        }
        on_current(CALL, |state| {
            let row = width.checked_next_multiple_of(PITCH_BYTES);
            let bytes = row.and_then(|row| row.checked_mul(height));
            let (Some(row), Some(bytes)) = (row, bytes) else {
                return Err(Failure::from(CuResult::OUT_OF_MEMORY));
            };
            pitch.put(row, "the pitch")?;
            pointer.put(state.new_allocation(bytes as u64, Origin::Linear)?, "the pointer")
        })
    }

    "cuMemAllocManaged" fn mem_alloc_managed(pointer: Out<u64>, bytes: usize, flags: c_uint) {
        refuse_unsafe_call(CALL)?;
        pointer.required("the pointer")?;
        // CU_MEM_ATTACH_GLOBAL and CU_MEM_ATTACH_HOST.
        if !matches!(flags, 1 | 2) {
            return Err(Failure::invalid(format!("no flags {flags:#x}")));
        }
        on_current(CALL, |state| {
            let address = state.new_allocation(bytes as u64, Origin::Managed)?;
            // The host may write it, which nobody sees.
            state.check_defined(address, bytes as u64);
            pointer.put(address, "the pointer")
        })
    }

    "cuMemGetAddressRange_v2" fn mem_get_address_range(base: Out<u64>, bytes: Out<usize>, pointer: u64) {
        let device = registry::device_of_address(pointer)
            .or_else(|| device_of_pinned(pointer))
            .ok_or_else(|| not_found(pointer))?;
        let mut state = device.lock();
        state.begin(CALL)?;
        let pinned = state.pinned_at(pointer).map(|(begin, buffer)| (begin, buffer.bytes as u64));
        let (begin, len) = pinned
            .or_else(|| state.range_at(pointer))
            .ok_or_else(|| not_found(pointer))?;
        base.put_if_wanted(begin);
        bytes.put_if_wanted(len as usize);
        Ok(())
    }

    "cuMemAllocHost_v2" fn mem_alloc_host(pointer: Out<u64>, bytes: usize) {
        refuse_unsafe_call(CALL)?;
        pointer.required("the pointer")?;
        on_current(CALL, |state| pointer.put(state.allocate_pinned(bytes, 0)?, "the pointer"))
    }

    "cuMemHostRegister_v2" fn mem_host_register(pointer: u64, bytes: usize, flags: c_uint) {
        refuse_unsafe_call(CALL)?;
        on_current(CALL, |state| {
            if flags & !REGISTER_FLAGS != 0 {
                return Err(Failure::invalid(format!("no flags {flags:#x}")));
            }
            if flags & abi::CU_MEMHOSTREGISTER_IOMEMORY != 0 {
                return Err(Failure::new(CuResult::NOT_SUPPORTED, "memory of other hardware is not emulated"));
            }
            state.register_pinned(pointer, bytes, flags)
        })
    }

    "cuMemHostUnregister" fn mem_host_unregister(pointer: u64) {
        refuse_unsafe_call(CALL)?;
        registry::current_device()?;
        let unknown = || Failure::new(
            CuResult::HOST_MEMORY_NOT_REGISTERED,
            format!("no registered memory begins at {pointer:#x}"),
        );
        let device = device_of_pinned(pointer).ok_or_else(unknown)?;
        give_back_idle(CALL, &device, |state| {
            match state.pinned.get(&pointer) {
                Some(buffer) if buffer.registered => state.free_pinned(pointer),
                _ => Err(unknown()),
            }
        })
    }

    /// A device address of page-locked memory is its host address.
    "cuMemHostGetDevicePointer_v2" fn mem_host_get_device_pointer(device: Out<u64>, pointer: u64, flags: c_uint) {
        registry::current_device()?;
        if flags != 0 {
            return Err(Failure::invalid("the flags must be 0"));
        }
        device_of_pinned(pointer).ok_or_else(|| Failure::invalid("the memory is not page-locked"))?;
        device.put(pointer, "the device pointer")
    }

    "cuMemHostGetFlags" fn mem_host_get_flags(flags: Out<c_uint>, pointer: u64) {
        let unknown = || Failure::invalid("no page-locked buffer is there");
        let device = device_of_pinned(pointer).ok_or_else(unknown)?;
        let found = device.lock().pinned_at(pointer);
        match found {
            // As the driver: all memory is mapped for the device under unified addressing.
            Some((_, buffer)) if !buffer.registered => {
                flags.put(buffer.flags | abi::CU_MEMHOSTALLOC_DEVICEMAP, "the flags")
            }
            _ => Err(unknown()),
        }
    }

    /// Advice changes nothing: managed memory stays where it is.
    "cuMemAdvise" fn mem_advise(pointer: u64, bytes: usize, advice: c_uint, device: c_int) {
        if device >= 0 {
            of_device(device)?;
        }
        advise(CALL, pointer, bytes, advice)
    }

    "cuMemAdvise_v2" fn mem_advise_at(pointer: u64, bytes: usize, advice: c_uint, location: CUmemLocation) {
        if location.type_ == abi::CU_MEM_LOCATION_TYPE_DEVICE {
            of_device(location.id)?;
        }
        advise(CALL, pointer, bytes, advice)
    }

    "cuMemPrefetchAsync" fn mem_prefetch(pointer: u64, bytes: usize, device: c_int, stream: u64) {
        if device >= 0 {
            of_device(device)?;
        }
        of_stream(stream)?;
        managed(CALL, pointer, bytes)
    }

    "cuMemPrefetchAsync_v2" fn mem_prefetch_at(
        pointer: u64, bytes: usize, location: CUmemLocation, flags: c_uint, stream: u64,
    ) {
        if flags != 0 {
            return Err(Failure::invalid("the flags must be 0"));
        }
        if location.type_ == abi::CU_MEM_LOCATION_TYPE_DEVICE {
            of_device(location.id)?;
        }
        of_stream(stream)?;
        managed(CALL, pointer, bytes)
    }

    "cuMemRangeGetAttribute" fn mem_range_get_attribute(
        data: Out<c_int>, bytes: usize, attribute: c_uint, pointer: u64, count: usize,
    ) {
        managed(CALL, pointer, count)?;
        range_attribute(data, bytes, attribute)
    }

    "cuMemRangeGetAttributes" fn mem_range_get_attributes(
        data: In<Out<c_int>>, bytes: In<usize>, attributes: In<c_uint>, attribute_count: usize,
        pointer: u64, count: usize,
    ) {
        managed(CALL, pointer, count)?;
        let data = data.list(attribute_count, "the data")?;
        let bytes = bytes.list(attribute_count, "the sizes")?;
        let attributes = attributes.list(attribute_count, "the attributes")?;
        for ((data, bytes), attribute) in data.into_iter().zip(bytes).zip(attributes) {
            range_attribute(data, bytes, attribute)?;
        }
        Ok(())
    }

    "cuStreamAttachMemAsync" fn stream_attach_mem(stream: u64, pointer: u64, bytes: usize, flags: c_uint) {
        of_stream(stream)?;
        if !matches!(flags, 1 | 2 | 4) {
            return Err(Failure::invalid(format!("no flags {flags:#x}")));
        }
        managed(CALL, pointer, bytes.max(1))
    }
}

fn not_found(pointer: u64) -> Failure {
    Failure::new(
        CuResult::NOT_FOUND,
        format!("{pointer:#x} belongs to no allocation"),
    )
}

/// Refuses a range that is not managed memory.
fn managed(call: &'static str, pointer: u64, bytes: usize) -> Result<(), Failure> {
    let wrong = || {
        Failure::invalid(format!(
            "{bytes} bytes at {pointer:#x} are not managed memory"
        ))
    };
    let device = registry::device_of_address(pointer).ok_or_else(wrong)?;
    let mut state = device.lock();
    state.begin(call)?;
    match state.allocation_at(pointer) {
        Some(found)
            if found.origin == Origin::Managed
                && pointer - found.block.address + bytes as u64 <= found.bytes =>
        {
            Ok(())
        }
        _ => Err(wrong()),
    }
}

fn advise(call: &'static str, pointer: u64, bytes: usize, advice: c_uint) -> Result<(), Failure> {
    if !(1..=6).contains(&advice) {
        return Err(Failure::invalid(format!("no advice {advice}")));
    }
    managed(call, pointer, bytes)
}
