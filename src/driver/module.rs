//! Modules and the kernels in them.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::sync::Arc;

use cuda_driver_sys::{CUfunction, CUmodule};

use super::{Context, DriverError, abi};

/// Bytes of compiler log kept from a refused image.
const LOG_BYTES: usize = 4096;

/// A loaded module. Kernels made from it keep it loaded.
#[derive(Clone, Debug)]
pub struct Module {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    context: Context,
    raw: CUmodule,
}

// SAFETY: NVIDIA documents driver API handles as usable from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above; nothing here changes after construction.
unsafe impl Sync for Inner {}

impl Module {
    /// Loads PTX text, a fatbin or a cubin. PTX need not end with a NUL.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuModuleLoadDataEx` returns; the compiler's log, where
    /// there is one, is part of the error.
    pub fn load(context: &Context, image: &[u8]) -> Result<Module, DriverError> {
        let api = context.enter("cuModuleLoadDataEx")?;
        // The driver takes no length: text must end with a NUL, binary images know their own size.
        let mut terminated = Vec::with_capacity(image.len() + 1);
        terminated.extend_from_slice(image);
        terminated.push(0);
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = [
            abi::CU_JIT_ERROR_LOG_BUFFER,
            abi::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        // The driver reads the size from the pointer's own value.
        let mut values = [
            log.as_mut_ptr().cast::<c_void>(),
            std::ptr::without_provenance_mut::<c_void>(LOG_BYTES),
        ];
        let mut raw = std::ptr::null_mut();
        // SAFETY: the image is NUL-terminated, the option arrays have the stated length, and the log
        // buffer lives until the call returns.
        let result = unsafe {
            (api.cu_module_load_data_ex)(
                &mut raw,
                terminated.as_ptr().cast(),
                options.len() as c_uint,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        context.check("cuModuleLoadDataEx", result, || {
            let end = log.iter().position(|&byte| byte == 0).unwrap_or(LOG_BYTES);
            let log = String::from_utf8_lossy(&log[..end]);
            let log = log.trim();
            if log.is_empty() {
                format!("image of {} bytes", image.len())
            } else {
                format!("image of {} bytes: {log}", image.len())
            }
        })?;
        Ok(Module {
            inner: Arc::new(Inner {
                context: context.clone(),
                raw,
            }),
        })
    }

    /// The kernel of this (unmangled) name.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuModuleGetFunction` returns: `CUDA_ERROR_NOT_FOUND`
    /// where the module has no such kernel.
    pub fn kernel(&self, name: &str) -> Result<Kernel, DriverError> {
        let context = &self.inner.context;
        let c_name = c_name(name)?;
        let api = context.enter("cuModuleGetFunction")?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the module is loaded, the name is NUL-terminated, the pointer is to a live local.
        let result =
            unsafe { (api.cu_module_get_function)(&mut raw, self.inner.raw, c_name.as_ptr()) };
        context.check("cuModuleGetFunction", result, || name.to_owned())?;
        let mut kernel = Kernel {
            module: self.clone(),
            raw,
            name: Arc::from(name),
            param_bytes: None,
        };
        kernel.param_bytes = kernel.read_param_bytes()?;
        Ok(kernel)
    }

    /// Address and bytes of a `__device__` or `__constant__` variable.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuModuleGetGlobal` returns.
    pub fn global(&self, name: &str) -> Result<(super::DevicePtr, u64), DriverError> {
        let context = &self.inner.context;
        let c_name = c_name(name)?;
        let api = context.enter("cuModuleGetGlobal")?;
        let (mut address, mut bytes) = (0u64, 0usize);
        // SAFETY: the module is loaded, the name is NUL-terminated, both pointers are to live locals.
        let result = unsafe {
            (api.cu_module_get_global)(&mut address, &mut bytes, self.inner.raw, c_name.as_ptr())
        };
        context.check("cuModuleGetGlobal", result, || name.to_owned())?;
        Ok((super::DevicePtr(address), bytes as u64))
    }

    /// Unloads the module and reports what `Drop` would only record.
    ///
    /// # Errors
    /// [`DriverError::InUse`] while kernels of the module live (they keep it loaded), or whatever
    /// `cuModuleUnload` returns.
    pub fn close(self) -> Result<(), DriverError> {
        let ordinal = self.inner.context.device().ordinal();
        match Arc::try_unwrap(self.inner) {
            Ok(mut inner) => inner.destroy(),
            Err(inner) => Err(DriverError::InUse {
                ordinal,
                holders: Arc::strong_count(&inner) - 1,
            }),
        }
    }
}

impl Inner {
    fn destroy(&mut self) -> Result<(), DriverError> {
        let raw = std::mem::replace(&mut self.raw, std::ptr::null_mut());
        if raw.is_null() {
            return Ok(());
        }
        // SAFETY: the handle was owned by `self` and is given back once.
        self.context.destroy("cuModuleUnload", |api| unsafe {
            (api.cu_module_unload)(raw)
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let result = self.destroy();
        self.context.record(result);
    }
}

/// A kernel of a loaded module, which it keeps loaded.
#[derive(Clone)]
pub struct Kernel {
    module: Module,
    raw: CUfunction,
    name: Arc<str>,
    param_bytes: Option<usize>,
}

// SAFETY: NVIDIA documents driver API handles as usable from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// The kernel's (unmangled) name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of all parameters together, where the driver can tell (CUDA 12.4 and newer).
    #[must_use]
    pub fn param_bytes(&self) -> Option<usize> {
        self.param_bytes
    }

    /// Registers a thread.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuFuncGetAttribute` returns.
    pub fn num_regs(&self) -> Result<u32, DriverError> {
        self.attribute(abi::CU_FUNC_ATTRIBUTE_NUM_REGS)
    }

    /// Static shared memory of a block, in bytes.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuFuncGetAttribute` returns.
    pub fn static_shared_bytes(&self) -> Result<u32, DriverError> {
        self.attribute(abi::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
    }

    /// Local memory (spills and stack) of a thread, in bytes.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuFuncGetAttribute` returns.
    pub fn local_bytes(&self) -> Result<u32, DriverError> {
        self.attribute(abi::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)
    }

    /// Threads a block of this kernel may have.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuFuncGetAttribute` returns.
    pub fn max_threads(&self) -> Result<u32, DriverError> {
        self.attribute(abi::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
    }

    /// Opts in to this much dynamic shared memory a block; without it the limit is 48 KiB.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuFuncSetAttribute` returns: `CUDA_ERROR_INVALID_VALUE`
    /// where static and dynamic bytes exceed what the device has.
    pub fn set_max_dynamic_shared_bytes(&self, bytes: u32) -> Result<(), DriverError> {
        let context = &self.module.inner.context;
        let api = context.enter("cuFuncSetAttribute")?;
        // SAFETY: the module is loaded, so the function is alive.
        let result = unsafe {
            (api.cu_func_set_attribute)(
                self.raw,
                abi::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                c_int::try_from(bytes).unwrap_or(c_int::MAX),
            )
        };
        context.check("cuFuncSetAttribute", result, || {
            format!(
                "{}, {bytes} bytes of dynamic shared memory a block",
                self.name
            )
        })
    }

    /// The driver's handle.
    pub(super) fn raw(&self) -> CUfunction {
        self.raw
    }

    fn attribute(&self, attribute: u32) -> Result<u32, DriverError> {
        let context = &self.module.inner.context;
        let api = context.enter("cuFuncGetAttribute")?;
        let mut value: c_int = 0;
        // SAFETY: the module is loaded, so the function is alive; the pointer is to a live local.
        let result = unsafe { (api.cu_func_get_attribute)(&mut value, attribute, self.raw) };
        context.check("cuFuncGetAttribute", result, || {
            format!("{}, attribute {attribute}", self.name)
        })?;
        Ok(value.max(0) as u32)
    }

    fn read_param_bytes(&self) -> Result<Option<usize>, DriverError> {
        let context = &self.module.inner.context;
        let api = context.enter("cuFuncGetParamInfo")?;
        // SAFETY: the module is loaded, so the function is alive.
        unsafe { param_bytes(api, self.raw) }
            .transpose()
            .map_err(|code| {
                DriverError::from_call("cuFuncGetParamInfo", code, self.name.to_string())
            })
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("name", &self.name)
            .field("param_bytes", &self.param_bytes)
            .finish_non_exhaustive()
    }
}

/// Bytes of all parameters of a function; `None` where the driver cannot tell.
///
/// # Safety
/// `function` must be alive.
pub(super) unsafe fn param_bytes(
    api: &super::Api,
    function: CUfunction,
) -> Option<Result<usize, super::CuResult>> {
    let param_info = api.cu_func_get_param_info?;
    let mut end = 0usize;
    for index in 0.. {
        let (mut offset, mut bytes) = (0usize, 0usize);
        // SAFETY: the function is alive and both pointers are to live locals.
        let result = unsafe { param_info(function, index, &mut offset, &mut bytes) };
        match result {
            super::CuResult::SUCCESS => end = end.max(offset + bytes),
            // The driver's way to say that the index is past the last parameter.
            super::CuResult::INVALID_VALUE => break,
            code => return Some(Err(code)),
        }
    }
    Some(Ok(end))
}

/// The name of a function, where the driver can tell.
///
/// # Safety
/// `function` must be alive.
pub(super) unsafe fn function_name(api: &super::Api, function: CUfunction) -> Option<String> {
    let get_name = api.cu_func_get_name?;
    let mut name: *const c_char = std::ptr::null();
    // SAFETY: the function is alive and the pointer is to a live local.
    let result = unsafe { get_name(&mut name, function) };
    if !result.is_success() || name.is_null() {
        return None;
    }
    // SAFETY: the driver returned a NUL-terminated string that lives as long as the function.
    let name = unsafe { std::ffi::CStr::from_ptr(name) };
    Some(name.to_string_lossy().into_owned())
}

fn c_name(name: &str) -> Result<CString, DriverError> {
    CString::new(name).map_err(|_| DriverError::Invalid {
        what: format!("the symbol name {name:?} holds a NUL"),
    })
}
