//! Entry points of the driver itself, devices and contexts.

use std::ffi::{c_char, c_int, c_uint};

use cuda_driver_sys::{CUcontext, CUdevice};

use super::entry::{entry, named, on_current, on_device, write};
use super::failure::Failure;
use super::registry::{self, EmulatedDevice, Kind};
use crate::driver::{CuResult, abi};

/// The CUDA version the emulator speaks: that of the header its types come from.
const VERSION: c_int = abi::CUDA_VERSION as c_int;

pub(super) unsafe extern "C" fn init(flags: c_uint) -> CuResult {
    registry::initialise();
    entry(|| match flags {
        0 => Ok(()),
        _ => Err(Failure::invalid("the flags must be 0")),
    })
}

pub(super) unsafe extern "C" fn driver_get_version(version: *mut c_int) -> CuResult {
    // SAFETY: the caller passes null or a valid pointer.
    entry(|| unsafe { write(version, VERSION, "the version") })
}

pub(super) unsafe extern "C" fn get_error_name(
    error: CuResult,
    name: *mut *const c_char,
) -> CuResult {
    entry(|| {
        let known = error.c_strings().map(|(name, _)| name.as_ptr());
        // SAFETY: the caller passes null or a valid pointer.
        unsafe { write(name, known.unwrap_or(std::ptr::null()), "the name") }?;
        known.map(|_| ()).ok_or_else(|| unknown_code(error))
    })
}

pub(super) unsafe extern "C" fn get_error_string(
    error: CuResult,
    text: *mut *const c_char,
) -> CuResult {
    entry(|| {
        let known = error.c_strings().map(|(_, text)| text.as_ptr());
        // SAFETY: the caller passes null or a valid pointer.
        unsafe { write(text, known.unwrap_or(std::ptr::null()), "the text") }?;
        known.map(|_| ()).ok_or_else(|| unknown_code(error))
    })
}

fn unknown_code(error: CuResult) -> Failure {
    Failure::invalid(format!("{} is no result code known here", error.0))
}

pub(super) unsafe extern "C" fn device_get_count(count: *mut c_int) -> CuResult {
    // SAFETY: the caller passes null or a valid pointer.
    entry(|| unsafe { write(count, registry::device_count() as c_int, "the count") })
}

pub(super) unsafe extern "C" fn device_get(device: *mut CUdevice, ordinal: c_int) -> CuResult {
    entry(|| {
        of_device(ordinal)?;
        // SAFETY: the caller passes null or a valid pointer.
        unsafe { write(device, ordinal, "the device") }
    })
}

/// The device a `CUdevice` names: its ordinal.
pub(super) fn of_device(device: CUdevice) -> Result<std::sync::Arc<EmulatedDevice>, Failure> {
    u32::try_from(device)
        .ok()
        .and_then(registry::device)
        .ok_or_else(|| {
            Failure::new(
                CuResult::INVALID_DEVICE,
                format!("there is no device {device}"),
            )
        })
}

pub(super) unsafe extern "C" fn device_get_name(
    name: *mut c_char,
    bytes: c_int,
    device: CUdevice,
) -> CuResult {
    entry(|| {
        let device = of_device(device)?;
        if name.is_null() || bytes <= 0 {
            return Err(Failure::invalid("the name has no room"));
        }
        let len = device.profile.name.len().min(bytes as usize - 1);
        let text = device.profile.name.as_ptr().cast::<c_char>();
        // SAFETY: the caller's buffer has `bytes` bytes and `len` is less.
        unsafe { std::ptr::copy_nonoverlapping(text, name, len) };
        // SAFETY: as above: `len` is an index inside the buffer.
        unsafe { name.add(len).write(0) };
        Ok(())
    })
}

pub(super) unsafe extern "C" fn device_total_mem(bytes: *mut usize, device: CUdevice) -> CuResult {
    entry(|| {
        let device = of_device(device)?;
        // SAFETY: the caller passes null or a valid pointer.
        unsafe { write(bytes, device.profile.total_bytes as usize, "the bytes") }
    })
}

pub(super) unsafe extern "C" fn device_get_attribute(
    value: *mut c_int,
    attribute: c_uint,
    device: CUdevice,
) -> CuResult {
    entry(|| {
        let profile = &of_device(device)?.profile;
        let known = match attribute {
            abi::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK => super::limits::BLOCK_THREADS,
            abi::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X => super::limits::BLOCK[0],
            abi::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y => super::limits::BLOCK[1],
            abi::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z => super::limits::BLOCK[2],
            abi::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X => super::limits::GRID[0],
            abi::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y => super::limits::GRID[1],
            abi::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z => super::limits::GRID[2],
            abi::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK => profile.shared_bytes_per_block,
            abi::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => {
                profile.shared_bytes_per_block_optin
            }
            abi::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => {
                profile.shared_bytes_per_sm
            }
            abi::CU_DEVICE_ATTRIBUTE_WARP_SIZE => 32,
            abi::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK
            | abi::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR => 65_536,
            abi::CU_DEVICE_ATTRIBUTE_CLOCK_RATE => profile.clock_khz,
            abi::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => profile.sm_count,
            abi::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR => profile.threads_per_sm,
            abi::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE => {
                u32::try_from(profile.l2_bytes).unwrap_or(u32::MAX)
            }
            abi::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => profile.compute_capability.0,
            abi::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => profile.compute_capability.1,
            abi::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
            | abi::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
            | abi::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS
            | abi::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED
            | abi::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT => 1,
            abi::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID
            | abi::CU_DEVICE_ATTRIBUTE_INTEGRATED
            | abi::CU_DEVICE_ATTRIBUTE_ECC_ENABLED
            | abi::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
            | abi::CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT => 0,
            other => {
                return Err(Failure::invalid(format!(
                    "the emulator has no value for device attribute {other}"
                )));
            }
        };
        let known = c_int::try_from(known).unwrap_or(c_int::MAX);
        // SAFETY: the caller passes null or a valid pointer.
        unsafe { write(value, known, "the value") }
    })
}

pub(super) unsafe extern "C" fn device_get_pci_bus_id(
    id: *mut c_char,
    bytes: c_int,
    device: CUdevice,
) -> CuResult {
    entry(|| {
        let device = of_device(device)?;
        let text = format!("EEEE:{:02X}:00.0\0", device.ordinal & 0xFF);
        if id.is_null() || (bytes as usize) < text.len() || bytes <= 0 {
            return Err(Failure::invalid("the id has no room"));
        }
        // SAFETY: the caller's buffer has `bytes` bytes, which the text does not exceed.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), id, text.len()) };
        Ok(())
    })
}

pub(super) unsafe extern "C" fn device_primary_ctx_retain(
    context: *mut CUcontext,
    device: CUdevice,
) -> CuResult {
    entry(|| {
        let device = of_device(device)?;
        let mut state = device.lock();
        state.begin("cuDevicePrimaryCtxRetain")?;
        if context.is_null() {
            return Err(Failure::null("the context"));
        }
        let generation = state.retain()?;
        let handle = registry::handle(Kind::Context, device.ordinal, generation);
        // SAFETY: the caller passes null or a valid pointer.
        unsafe { write(context, handle as CUcontext, "the context") }
    })
}

pub(super) unsafe extern "C" fn device_primary_ctx_release(device: CUdevice) -> CuResult {
    entry(|| {
        let device = of_device(device)?;
        let mut state = device.lock();
        state.begin("cuDevicePrimaryCtxRelease")?;
        state.release()
    })
}

pub(super) unsafe extern "C" fn ctx_set_current(context: CUcontext) -> CuResult {
    entry(|| {
        let raw = context as u64;
        if raw != 0 {
            let (device, generation) = named(raw, Kind::Context, "context").map_err(|_| {
                Failure::new(CuResult::INVALID_CONTEXT, "the handle names no context")
            })?;
            if !device.lock().context_is(generation) {
                return Err(Failure::new(
                    CuResult::CONTEXT_IS_DESTROYED,
                    "the context was destroyed",
                ));
            }
        }
        registry::set_current(raw);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn ctx_get_current(context: *mut CUcontext) -> CuResult {
    // SAFETY: the caller passes null or a valid pointer.
    entry(|| unsafe { write(context, registry::current() as CUcontext, "the context") })
}

pub(super) unsafe extern "C" fn ctx_synchronize() -> CuResult {
    entry(|| {
        let device = registry::current_device()?;
        on_device("cuCtxSynchronize", &device, |state| {
            state.refuse_wait_for_context()?;
            state.drain_all();
            state.alive()
        })
    })
}

pub(super) unsafe extern "C" fn mem_get_info(free: *mut usize, total: *mut usize) -> CuResult {
    entry(|| {
        on_current("cuMemGetInfo", |state| {
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(free, state.free_bytes() as usize, "the free bytes") }?;
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(total, state.profile.total_bytes as usize, "the total bytes") }
        })
    })
}
