//! Entry points of functions beyond attributes and launches, and of kernels, which stand for a function in every context.

use std::ffi::{c_char, c_int, c_uint};

use super::arguments::{Out, calls};
use super::device_calls::of_device;
use super::entry::on_device;
use super::failure::Failure;
use super::library_calls::{function_on, kernel_library, kernel_name, of_function};
use super::module_calls;
use super::registry::{self, Kind};
use crate::driver::CuResult;
use crate::driver::abi;

/// Result of another entry point as this room has it.
fn passed(code: CuResult) -> Result<(), Failure> {
    if code.is_success() {
        return Ok(());
    }
    Err(Failure {
        code,
        detail: registry::detail(),
    })
}

calls! {
    "cuFuncGetModule" fn func_get_module(module: Out<u64>, function: u64) {
        let (device, serial) = of_function(function)?;
        on_device(CALL, &device, |state| {
            let serial = state.known_function(serial)?.module;
            module.put(registry::handle(Kind::Module, device.ordinal, serial), "the module")
        })
    }

    /// Functions are loaded with their module.
    "cuFuncIsLoaded" fn func_is_loaded(loaded: Out<c_uint>, function: u64) {
        let (device, serial) = of_function(function)?;
        on_device(CALL, &device, |state| {
            state.known_function(serial)?;
            loaded.put(abi::CU_FUNCTION_LOADING_STATE_LOADED, "the state")
        })
    }

    "cuFuncLoad" fn func_load(function: u64) {
        let (device, serial) = of_function(function)?;
        on_device(CALL, &device, |state| state.known_function(serial).map(|_| ()))
    }

    "cuFuncSetCacheConfig" fn func_set_cache_config(function: u64, config: c_uint) {
        let (device, serial) = of_function(function)?;
        on_device(CALL, &device, |state| {
            state.known_function(serial)?;
            if config > abi::CU_FUNC_CACHE_PREFER_EQUAL {
                return Err(Failure::invalid(format!("no cache configuration {config}")));
            }
            Ok(())
        })
    }

    "cuFuncSetSharedMemConfig" fn func_set_shared_config(function: u64, config: c_uint) {
        let (device, serial) = of_function(function)?;
        on_device(CALL, &device, |state| {
            state.known_function(serial)?;
            if config > 2 {
                return Err(Failure::invalid(format!("no shared-memory configuration {config}")));
            }
            Ok(())
        })
    }

    "cuKernelGetFunction" fn kernel_get_function(function: Out<u64>, kernel: u64) {
        let device = registry::current_device()?;
        let serial = function_on(&device, kernel)?;
        function.put(registry::handle(Kind::Function, device.ordinal, serial), "the function")
    }

    "cuKernelGetLibrary" fn kernel_get_library(library: Out<u64>, kernel: u64) {
        library.put(kernel_library(kernel)?, "the library")
    }

    "cuKernelGetName" fn kernel_get_name(name: Out<*const c_char>, kernel: u64) {
        name.put(kernel_name(kernel)?, "the name")
    }

    "cuKernelGetAttribute" fn kernel_get_attribute(
        value: *mut c_int, attribute: c_uint, kernel: u64, device: c_int,
    ) {
        let device = of_device(device)?;
        let function = registry::handle(Kind::Function, device.ordinal, function_on(&device, kernel)?);
        // SAFETY: the value is null or a valid pointer, as both calls want it.
        passed(unsafe { module_calls::func_get_attribute(value, attribute, function as _) })
    }

    "cuKernelSetAttribute" fn kernel_set_attribute(
        attribute: c_uint, value: c_int, kernel: u64, device: c_int,
    ) {
        let device = of_device(device)?;
        let function = registry::handle(Kind::Function, device.ordinal, function_on(&device, kernel)?);
        // SAFETY: the call takes no pointers.
        passed(unsafe { module_calls::func_set_attribute(function as _, attribute, value) })
    }

    "cuKernelSetCacheConfig" fn kernel_set_cache_config(kernel: u64, config: c_uint, device: c_int) {
        function_on(&of_device(device)?, kernel)?;
        if config > abi::CU_FUNC_CACHE_PREFER_EQUAL {
            return Err(Failure::invalid(format!("no cache configuration {config}")));
        }
        Ok(())
    }

    "cuKernelGetParamInfo" fn kernel_get_param_info(
        kernel: u64, index: usize, offset: *mut usize, bytes: *mut usize,
    ) {
        let device = registry::current_device()?;
        let function = registry::handle(Kind::Function, device.ordinal, function_on(&device, kernel)?);
        // SAFETY: both places are null or valid pointers, as both calls want them.
        passed(unsafe { module_calls::func_get_param_info(function as _, index, offset, bytes) })
    }
}
