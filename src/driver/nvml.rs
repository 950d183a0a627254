//! What a device's memory holds, read without a context from NVIDIA's management library (NVML).
//!
//! The ledger tells what others hold apart from what our context costs; `cuMemGetInfo` cannot, since
//! it needs a context. NVML is optional: every failure here is `None`.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::Device;

/// `nvmlMemory_v2_t`: unlike version 1, `used` leaves out what the driver reserves for itself.
#[repr(C)]
#[derive(Default)]
struct Memory {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// `NVML_STRUCT_VERSION(Memory, 2)`: size in the low bits, version in the top byte.
const MEMORY_VERSION: c_uint = (size_of::<Memory>() as c_uint) | 2 << 24;

const NVML_SUCCESS: c_int = 0;

type Init = unsafe extern "C" fn() -> c_int;
type HandleByPciBusId = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;
type MemoryInfo = unsafe extern "C" fn(*mut c_void, *mut Memory) -> c_int;

struct Nvml {
    handle_by_pci_bus_id: HandleByPciBusId,
    memory_info: MemoryInfo,
}

/// Bytes of the device in use by all processes.
pub(super) fn used_bytes(device: &Device) -> Option<u64> {
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    let nvml = NVML.get_or_init(open).as_ref()?;
    let id = CString::new(device.pci_bus_id().ok()?).ok()?;
    let mut handle = std::ptr::null_mut();
    // SAFETY: the id is NUL-terminated and the pointer is to a live local.
    let found = unsafe { (nvml.handle_by_pci_bus_id)(id.as_ptr(), &mut handle) };
    if found != NVML_SUCCESS {
        return None;
    }
    let mut memory = Memory {
        version: MEMORY_VERSION,
        ..Memory::default()
    };
    // SAFETY: the handle is NVML's own and the struct says its version and size.
    let read = unsafe { (nvml.memory_info)(handle, &mut memory) };
    (read == NVML_SUCCESS).then_some(memory.used)
}

/// Opens and initialises the library; it stays open for the life of the process.
fn open() -> Option<Nvml> {
    // SAFETY: the name is NUL-terminated; loading runs NVIDIA's own initialisers.
    let library = unsafe {
        libc::dlopen(
            c"libnvidia-ml.so.1".as_ptr(),
            libc::RTLD_NOW | libc::RTLD_LOCAL,
        )
    };
    if library.is_null() {
        return None;
    }
    let symbol = |name: &std::ffi::CStr| {
        // SAFETY: the library is open and the name NUL-terminated.
        let address = unsafe { libc::dlsym(library, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    };
    let init = symbol(c"nvmlInit_v2")?;
    let handle_by_pci_bus_id = symbol(c"nvmlDeviceGetHandleByPciBusId_v2")?;
    let memory_info = symbol(c"nvmlDeviceGetMemoryInfo_v2")?;
    // SAFETY: NVML exports this symbol with this signature.
    let init = unsafe { std::mem::transmute::<*mut c_void, Init>(init) };
    // SAFETY: NVML exports this symbol with this signature.
    let handle_by_pci_bus_id =
        unsafe { std::mem::transmute::<*mut c_void, HandleByPciBusId>(handle_by_pci_bus_id) };
    // SAFETY: NVML exports this symbol with this signature.
    let memory_info = unsafe { std::mem::transmute::<*mut c_void, MemoryInfo>(memory_info) };
    // SAFETY: nvmlInit_v2 takes no arguments.
    (unsafe { init() } == NVML_SUCCESS).then_some(Nvml {
        handle_by_pci_bus_id,
        memory_info,
    })
}
