//! Entry points of the driver itself, devices and contexts.

use std::ffi::{c_char, c_int, c_uint};

use cuda_driver_sys::{CUcontext, CUdevice};

use super::arguments::{Out, Text, calls};
use super::attributes;
use super::entry::{entry, entry_any_time, named, on_current, settled, wait, write};
use super::failure::Failure;
use super::registry::{self, EmulatedDevice, Kind};
use crate::driver::abi::CUuuid;
use crate::driver::{CuResult, abi};

/// The CUDA version the emulator speaks: that of the header its types come from.
const VERSION: c_int = abi::CUDA_VERSION as c_int;

pub(super) unsafe extern "C" fn init(flags: c_uint) -> CuResult {
    entry_any_time("cuInit", || {
        if flags != 0 {
            return Err(Failure::invalid("the flags must be 0"));
        }
        registry::initialise()
    })
}

pub(super) unsafe extern "C" fn driver_get_version(version: *mut c_int) -> CuResult {
    // SAFETY: the caller passes null or a valid pointer.
    entry_any_time("cuDriverGetVersion", || unsafe {
        write(version, VERSION, "the version")
    })
}

pub(super) unsafe extern "C" fn get_error_name(
    error: CuResult,
    name: *mut *const c_char,
) -> CuResult {
    entry_any_time("cuGetErrorName", || {
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
    entry_any_time("cuGetErrorString", || {
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
    entry("cuDeviceGetCount", || unsafe {
        write(count, registry::device_count() as c_int, "the count")
    })
}

pub(super) unsafe extern "C" fn device_get(device: *mut CUdevice, ordinal: c_int) -> CuResult {
    entry("cuDeviceGet", || {
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
    entry("cuDeviceGetName", || {
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
    entry("cuDeviceTotalMem", || {
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
    entry("cuDeviceGetAttribute", || {
        let device = of_device(device)?;
        let known = attributes::of(&device.profile, device.ordinal, attribute)
            .ok_or_else(|| Failure::invalid(format!("no device attribute {attribute}")))?;
        // SAFETY: the caller passes null or a valid pointer.
        unsafe { write(value, known, "the value") }
    })
}

pub(super) unsafe extern "C" fn device_get_pci_bus_id(
    id: *mut c_char,
    bytes: c_int,
    device: CUdevice,
) -> CuResult {
    entry("cuDeviceGetPCIBusId", || {
        let device = of_device(device)?;
        let text = pci_bus_id(device.ordinal) + "\0";
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
    entry("cuDevicePrimaryCtxRetain", || {
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
    entry("cuDevicePrimaryCtxRelease", || {
        let device = of_device(device)?;
        device.lock().begin("cuDevicePrimaryCtxRelease")?;
        settled(&device).release()
    })
}

pub(super) unsafe extern "C" fn ctx_set_current(context: CUcontext) -> CuResult {
    entry("cuCtxSetCurrent", || {
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
    entry("cuCtxGetCurrent", || unsafe {
        write(context, registry::current() as CUcontext, "the context")
    })
}

pub(super) unsafe extern "C" fn ctx_synchronize() -> CuResult {
    entry("cuCtxSynchronize", || {
        let device = registry::current_device()?;
        wait(
            "cuCtxSynchronize",
            &device,
            |state| state.refuse_wait_for_context(),
            |state| Ok(state.drain_all()),
        )
    })
}

pub(super) unsafe extern "C" fn mem_get_info(free: *mut usize, total: *mut usize) -> CuResult {
    entry("cuMemGetInfo", || {
        on_current("cuMemGetInfo", |state| {
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(free, state.free_bytes() as usize, "the free bytes") }?;
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(total, state.profile.total_bytes as usize, "the total bytes") }
        })
    })
}

/// The PCI address of an emulated device.
fn pci_bus_id(ordinal: u32) -> String {
    format!("{:04X}:{:02X}:00.0", attributes::PCI_DOMAIN, ordinal & 0xFF)
}

/// An identifier that is the same for the same ordinal, and no real device's.
fn uuid(ordinal: u32) -> [u8; 16] {
    let mut bytes = *b"neap emulated\0\0\0";
    bytes[12..].copy_from_slice(&(ordinal + 1).to_be_bytes());
    bytes
}

fn put_uuid(uuid_out: Out<CUuuid>, device: CUdevice) -> Result<(), Failure> {
    let bytes = uuid(of_device(device)?.ordinal).map(|byte| byte as c_char);
    uuid_out.put(CUuuid { bytes }, "the identifier")
}

calls! {
    "cuDeviceGetUuid" fn device_get_uuid(identifier: Out<CUuuid>, device: c_int) {
        put_uuid(identifier, device)
    }

    "cuDeviceGetUuid_v2" fn device_get_uuid_v2(identifier: Out<CUuuid>, device: c_int) {
        put_uuid(identifier, device)
    }

    /// Only Windows has such identifiers.
    "cuDeviceGetLuid" fn device_get_luid(luid: Out<u8>, mask: Out<c_uint>, device: c_int) {
        let _ = (luid, mask);
        of_device(device)?;
        Err(Failure::new(CuResult::NOT_SUPPORTED, "locally unique identifiers exist on Windows only"))
    }

    "cuDeviceComputeCapability" fn device_compute_capability(major: Out<c_int>, minor: Out<c_int>, device: c_int) {
        let (known_major, known_minor) = of_device(device)?.profile.compute_capability;
        major.put(known_major as c_int, "the major version")?;
        minor.put(known_minor as c_int, "the minor version")
    }

    "cuDeviceGetByPCIBusId" fn device_get_by_pci_bus_id(device: Out<c_int>, id: Text) {
        let id = id.get("the address")?.to_string_lossy().to_ascii_uppercase();
        let short = |ordinal| pci_bus_id(ordinal).trim_end_matches(".0").to_owned();
        let found = registry::devices()
            .into_iter()
            .find(|device| pci_bus_id(device.ordinal) == id || short(device.ordinal) == id)
            .ok_or_else(|| Failure::new(CuResult::INVALID_DEVICE, format!("no device is at {id}")))?;
        device.put(found.ordinal as c_int, "the device")
    }

    "cuDeviceCanAccessPeer" fn device_can_access_peer(possible: Out<c_int>, device: c_int, peer: c_int) {
        let (device, peer) = (of_device(device)?, of_device(peer)?);
        possible.put(c_int::from(device.ordinal != peer.ordinal), "the answer")
    }

    "cuDeviceGetP2PAttribute" fn device_get_p2p_attribute(
        value: Out<c_int>, attribute: c_uint, device: c_int, peer: c_int,
    ) {
        let (device, peer) = (of_device(device)?, of_device(peer)?);
        if device.ordinal == peer.ordinal {
            return Err(Failure::new(CuResult::INVALID_DEVICE, "a device is no peer of itself"));
        }
        let known = match attribute {
            abi::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK => 0,
            abi::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED
            | abi::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED => 1,
            abi::CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED
            | abi::CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED => 0,
            other => return Err(Failure::invalid(format!("no peer attribute {other}"))),
        };
        value.put(known, "the value")
    }

    "cuDeviceGetExecAffinitySupport" fn device_get_exec_affinity_support(
        supported: Out<c_int>, kind: c_uint, device: c_int,
    ) {
        of_device(device)?;
        if kind != abi::CU_EXEC_AFFINITY_TYPE_SM_COUNT {
            return Err(Failure::invalid(format!("no kind of execution affinity {kind}")));
        }
        supported.put(0, "the answer")
    }

    "cuDeviceGetTexture1DLinearMaxWidth" fn device_get_texture_width(
        width: Out<usize>, format: c_uint, channels: c_uint, device: c_int,
    ) {
        let _ = (width, format, channels);
        of_device(device)?;
        Err(Failure::new(CuResult::NOT_SUPPORTED, "textures are not emulated"))
    }

    "cuProfilerStart" fn profiler_start() {
        registry::current_device().map(|_| ())
    }

    "cuProfilerStop" fn profiler_stop() {
        registry::current_device().map(|_| ())
    }

    "cuFlushGPUDirectRDMAWrites" fn flush_direct_writes(target: c_uint, scope: c_uint) {
        let _ = (target, scope);
        Err(Failure::new(CuResult::NOT_SUPPORTED, "other hardware's writes are not emulated"))
    }
}
