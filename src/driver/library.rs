//! Opening `libcuda.so.1` at run time.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::{Api, CuResult, Driver, DriverError, abi};

/// `cuGetProcAddress_v2`, present since CUDA 12.0.
type GetProcAddress = unsafe extern "C" fn(
    symbol: *const c_char,
    address: *mut *mut c_void,
    cuda_version: c_int,
    flags: u64,
    status: *mut c_uint,
) -> CuResult;

/// Entry points follow the legacy default stream.
const LEGACY_STREAM: u64 = 0;

impl Driver {
    /// The file name under which NVIDIA's driver installs its library.
    pub const LIBRARY: &'static str = "libcuda.so.1";

    /// The NVIDIA driver, opened and initialised on first use and kept for the life of the process.
    ///
    /// # Errors
    /// [`DriverError::NoLibrary`] without a driver, [`DriverError::MissingSymbol`] when it is too
    /// old, [`DriverError::Call`] when `cuInit` fails (no device, broken installation).
    pub fn cuda() -> Result<Driver, DriverError> {
        static CUDA: OnceLock<Result<Driver, DriverError>> = OnceLock::new();
        CUDA.get_or_init(|| Driver::open(Driver::LIBRARY)).clone()
    }

    /// Opens the driver library of this file name or path and initialises it. The library is never
    /// closed again: its entry points must outlive every handle.
    ///
    /// # Errors
    /// As for [`Driver::cuda`].
    pub fn open(library: &str) -> Result<Driver, DriverError> {
        let get_proc_address = find_loader(library)?;
        let mut resolve = |symbol: &'static str, version: u32| -> *const c_void {
            let Ok(symbol) = CString::new(symbol) else {
                return std::ptr::null();
            };
            let mut address = std::ptr::null_mut();
            let mut status: c_uint = 0;
            // SAFETY: all pointers are to live locals; the driver only writes the two results.
            let result = unsafe {
                get_proc_address(
                    symbol.as_ptr(),
                    &mut address,
                    version as c_int,
                    LEGACY_STREAM,
                    &mut status,
                )
            };
            let found = status == abi::CU_GET_PROC_ADDRESS_SUCCESS;
            if result.is_success() && found {
                address
            } else {
                std::ptr::null()
            }
        };
        // SAFETY: cuGetProcAddress returns the entry point of that name for that version, and the
        // library is never closed.
        let api: &'static Api = Box::leak(Box::new(unsafe { Api::load(&mut resolve) }?));
        // SAFETY: cuInit takes no pointers.
        let result = unsafe { (api.cu_init)(0) };
        if !result.is_success() {
            return Err(DriverError::from_call("cuInit", result, String::new()));
        }
        Ok(Driver::from_api(api, false, super::nvml::used_bytes, None))
    }
}

/// Opens the library and finds `cuGetProcAddress_v2` in it.
fn find_loader(library: &str) -> Result<GetProcAddress, DriverError> {
    let name = CString::new(library).map_err(|_| DriverError::NoLibrary {
        library: library.replace('\0', "?"),
        reason: "the name holds a NUL".to_owned(),
    })?;
    // SAFETY: the name is a NUL-terminated string; loading runs the library's initialisers, which is
    // what opening a driver means.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(DriverError::NoLibrary {
            library: library.to_owned(),
            reason: last_dl_error(),
        });
    }
    // SAFETY: the handle is open and the name is NUL-terminated.
    let address = unsafe { libc::dlsym(handle, c"cuGetProcAddress_v2".as_ptr()) };
    if address.is_null() {
        return Err(DriverError::MissingSymbol {
            symbol: "cuGetProcAddress_v2",
        });
    }
    // SAFETY: the library exports this symbol with this signature since CUDA 12.0.
    Ok(unsafe { std::mem::transmute::<*mut c_void, GetProcAddress>(address) })
}

/// What the dynamic linker says of the last failure on this thread.
fn last_dl_error() -> String {
    // SAFETY: dlerror has no preconditions.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: dlerror returned a NUL-terminated string that lives until the next call on this thread.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}
