//! Entry points of modules, kernels and their launch.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use cuda_driver_sys::{CUdeviceptr, CUfunction, CUmodule};

use super::arguments::{In, Out, Text, calls};
use super::capture::refuse_unsafe_call;
use super::entry::{entry, give_back_idle, named, on_current, on_device, write};
use super::failure::Failure;
use super::image;
use super::jit_log::JitLog;
use super::library_calls::of_function;
use super::limits;
use super::link_calls::MAX_REGISTERS;
use super::registry::{self, Kind};
use super::state::{Function, Module, State};
use crate::driver::{CuResult, abi};
use crate::emulator::exec::ModuleCode;
use crate::emulator::mem::Block;

pub(super) unsafe extern "C" fn module_load_data_ex(
    module: *mut CUmodule,
    image: *const c_void,
    option_count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
) -> CuResult {
    entry("cuModuleLoadDataEx", || {
        refuse_unsafe_call("cuModuleLoadDataEx")?;
        on_current("cuModuleLoadDataEx", |state| {
            let log = JitLog::of(
                option_count as usize,
                In::of(options),
                In::of(values.cast_const().cast()),
            )?;
            // SAFETY: the caller passes a module image.
            let loaded = unsafe { image::read(image.cast(), state.profile.compute_capability) }
                .and_then(|image| state.load_module(&image, log.max_registers));
            if let Err(failure) = &loaded {
                log.error(failure);
            }
            let raw = registry::handle(Kind::Module, state.ordinal, loaded?);
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(module, raw as CUmodule, "the module") }
        })
    })
}

pub(super) unsafe extern "C" fn module_unload(module: CUmodule) -> CuResult {
    entry("cuModuleUnload", || {
        refuse_unsafe_call("cuModuleUnload")?;
        let (device, serial) = named(module as u64, Kind::Module, "module")?;
        give_back_idle("cuModuleUnload", &device, |state| {
            state.remove_module(serial)
        })
    })
}

fn load(call: &'static str, module: Out<u64>, image: In<u8>) -> Result<(), Failure> {
    refuse_unsafe_call(call)?;
    module.required("the module")?;
    on_current(call, |state| {
        // SAFETY: the caller passes a module image.
        let image = unsafe { image::read(image.raw(), state.profile.compute_capability) }?;
        let serial = state.load_module(&image, None)?;
        module.put(
            registry::handle(Kind::Module, state.ordinal, serial),
            "the module",
        )
    })
}

/// The bytes of an image file, with the NUL that text needs after its end.
pub(super) fn image_file(name: Text) -> Result<Vec<u8>, Failure> {
    let name = name.get("the file name")?.to_string_lossy().into_owned();
    let mut bytes = std::fs::read(&name).map_err(|error| {
        Failure::new(
            CuResult::FILE_NOT_FOUND,
            format!("{name} cannot be read: {error}"),
        )
    })?;
    bytes.push(0);
    Ok(bytes)
}

calls! {
    "cuModuleLoadData" fn module_load_data(module: Out<u64>, image: In<u8>) {
        load(CALL, module, image)
    }

    "cuModuleLoadFatBinary" fn module_load_fat_binary(module: Out<u64>, image: In<u8>) {
        load(CALL, module, image)
    }

    "cuModuleLoad" fn module_load(module: Out<u64>, name: Text) {
        let bytes = image_file(name)?;
        image::check_length(&bytes)?;
        load(CALL, module, In::of(bytes.as_ptr()))
    }

    /// Modules are loaded whole when they are asked for.
    "cuModuleGetLoadingMode" fn module_get_loading_mode(mode: Out<c_uint>) {
        mode.put(abi::CU_MODULE_EAGER_LOADING, "the mode")
    }

    "cuModuleGetFunctionCount" fn module_get_function_count(count: Out<c_uint>, module: u64) {
        let (device, serial) = named(module, Kind::Module, "module")?;
        on_device(CALL, &device, |state| {
            count.put(state.module(serial)?.code.kernel_names().len() as c_uint, "the count")
        })
    }

    "cuModuleEnumerateFunctions" fn module_enumerate_functions(functions: Out<u64>, count: c_uint, module: u64) {
        let (device, serial) = named(module, Kind::Module, "module")?;
        functions.required("the functions")?;
        on_device(CALL, &device, |state| {
            let names: Vec<CString> = {
                let names = state.module(serial)?.code.kernel_names();
                names.into_iter().filter_map(|name| CString::new(name).ok()).collect()
            };
            let mut handles = Vec::new();
            for name in names.iter().take(count as usize) {
                let id = state.function(serial, name)?;
                handles.push(registry::handle(Kind::Function, device.ordinal, id));
            }
            functions.put_list(handles);
            Ok(())
        })
    }
}

/// The symbol name of a call.
///
/// # Safety
/// `name` must be null or NUL-terminated.
unsafe fn symbol<'a>(name: *const c_char) -> Result<&'a CStr, Failure> {
    if name.is_null() {
        return Err(Failure::null("the name"));
    }
    // SAFETY: the caller answers for a non-null pointer.
    Ok(unsafe { CStr::from_ptr(name) })
}

pub(super) unsafe extern "C" fn module_get_function(
    function: *mut CUfunction,
    module: CUmodule,
    name: *const c_char,
) -> CuResult {
    entry("cuModuleGetFunction", || {
        let (device, serial) = named(module as u64, Kind::Module, "module")?;
        // SAFETY: the caller passes null or a NUL-terminated string.
        let name = unsafe { symbol(name) }?;
        on_device("cuModuleGetFunction", &device, |state| {
            let id = state.function(serial, name)?;
            let raw = registry::handle(Kind::Function, device.ordinal, id);
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(function, raw as CUfunction, "the function") }
        })
    })
}

pub(super) unsafe extern "C" fn module_get_global(
    pointer: *mut CUdeviceptr,
    bytes: *mut usize,
    module: CUmodule,
    name: *const c_char,
) -> CuResult {
    entry("cuModuleGetGlobal", || {
        let (device, serial) = named(module as u64, Kind::Module, "module")?;
        // SAFETY: the caller passes null or a NUL-terminated string.
        let name = unsafe { symbol(name) }?.to_string_lossy();
        on_device("cuModuleGetGlobal", &device, |state| {
            let module = state
                .modules
                .get(&serial)
                .ok_or_else(|| Failure::handle("module"))?;
            let Some((address, len)) = module.code.global(&name) else {
                return Err(Failure::new(
                    CuResult::NOT_FOUND,
                    format!("the module has no variable {name}"),
                ));
            };
            // Either result may be left out.
            if !pointer.is_null() {
                // SAFETY: the caller passes a valid pointer.
                unsafe { pointer.write(address) };
            }
            if !bytes.is_null() {
                // SAFETY: the caller passes a valid pointer.
                unsafe { bytes.write(len as usize) };
            }
            Ok(())
        })
    })
}

pub(super) unsafe extern "C" fn func_get_attribute(
    value: *mut c_int,
    attribute: c_uint,
    function: CUfunction,
) -> CuResult {
    entry("cuFuncGetAttribute", || {
        let (device, serial) = of_function(function as u64)?;
        on_device("cuFuncGetAttribute", &device, |state| {
            let (major, minor) = state.profile.compute_capability;
            let function = state.known_function(serial)?;
            let code = &function.code;
            let known = match attribute {
                abi::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => {
                    code.max_threads.unwrap_or(limits::BLOCK_THREADS)
                }
                abi::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => code.static_shared_bytes,
                abi::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES => {
                    u32::try_from(code.const_bytes).unwrap_or(u32::MAX)
                }
                abi::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES => code.local_bytes,
                abi::CU_FUNC_ATTRIBUTE_NUM_REGS => code
                    .registers
                    .min(function.max_registers.unwrap_or(u32::MAX)),
                abi::CU_FUNC_ATTRIBUTE_PTX_VERSION | abi::CU_FUNC_ATTRIBUTE_BINARY_VERSION => {
                    major * 10 + minor
                }
                abi::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                    function.max_dynamic_shared_bytes
                }
                abi::CU_FUNC_ATTRIBUTE_CACHE_MODE_CA => 0,
                abi::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => function.carveout as u32,
                abi::CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET => {
                    u32::from(code.cluster.is_some())
                }
                abi::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH => code.cluster.map_or(0, |c| c[0]),
                abi::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT => code.cluster.map_or(0, |c| c[1]),
                abi::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH => code.cluster.map_or(0, |c| c[2]),
                abi::CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE => 0,
                abi::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED => {
                    u32::from(function.non_portable_cluster)
                }
                other => {
                    return Err(Failure::invalid(format!("no function attribute {other}")));
                }
            };
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(value, known as c_int, "the value") }
        })
    })
}

pub(super) unsafe extern "C" fn func_set_attribute(
    function: CUfunction,
    attribute: c_uint,
    value: c_int,
) -> CuResult {
    entry("cuFuncSetAttribute", || {
        let (device, serial) = of_function(function as u64)?;
        on_device("cuFuncSetAttribute", &device, |state| {
            let limit = state.profile.shared_bytes_per_block_optin;
            let function = state.known_function(serial)?;
            match attribute {
                abi::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                    let room = limit.saturating_sub(function.code.static_shared_bytes);
                    let wanted = u32::try_from(value).unwrap_or(u32::MAX);
                    if wanted > room {
                        return Err(Failure::invalid(format!(
                            "{value} bytes of dynamic shared memory exceed the {room} that a block of {} can have",
                            function.code.name
                        )));
                    }
                    function.max_dynamic_shared_bytes = wanted;
                    Ok(())
                }
                abi::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => {
                    if !(-1..=100).contains(&value) {
                        return Err(Failure::invalid(format!("a carve-out of {value} per cent")));
                    }
                    function.carveout = value;
                    Ok(())
                }
                abi::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED => {
                    function.non_portable_cluster = value != 0;
                    Ok(())
                }
                abi::CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE => Ok(()),
                other => Err(Failure::invalid(format!(
                    "function attribute {other} cannot be set"
                ))),
            }
        })
    })
}

pub(super) unsafe extern "C" fn func_get_name(
    name: *mut *const c_char,
    function: CUfunction,
) -> CuResult {
    entry("cuFuncGetName", || {
        let (device, serial) = of_function(function as u64)?;
        on_device("cuFuncGetName", &device, |state| {
            let known = state.known_function(serial)?.name.as_ptr();
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(name, known, "the name") }
        })
    })
}

pub(super) unsafe extern "C" fn func_get_param_info(
    function: CUfunction,
    index: usize,
    offset: *mut usize,
    bytes: *mut usize,
) -> CuResult {
    entry("cuFuncGetParamInfo", || {
        let (device, serial) = of_function(function as u64)?;
        on_device("cuFuncGetParamInfo", &device, |state| {
            let function = state.known_function(serial)?;
            let Some(slot) = function.code.params.get(index) else {
                return Err(Failure::invalid(format!(
                    "{} has no parameter {index}",
                    function.code.name
                )));
            };
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(offset, slot.offset, "the offset") }?;
            if bytes.is_null() {
                return Ok(());
            }
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(bytes, slot.bytes, "the bytes") }
        })
    })
}

impl State {
    /// The module of this serial.
    pub(super) fn module(&self, serial: u64) -> Result<&Module, Failure> {
        self.modules
            .get(&serial)
            .ok_or_else(|| Failure::handle("module"))
    }

    /// The function of this serial.
    pub(super) fn known_function(&mut self, id: u64) -> Result<&mut Function, Failure> {
        self.functions
            .get_mut(&id)
            .ok_or_else(|| Failure::handle("function"))
    }

    /// Loads a module. A limit of registers shows in what its kernels say of themselves: where a compiler
    /// would spill, the interpreter needs not.
    pub(super) fn load_module(
        &mut self,
        image: &image::Image,
        max_registers: Option<u32>,
    ) -> Result<u64, Failure> {
        let linked = image.ptx.strip_prefix(MAX_REGISTERS);
        let linked = linked.and_then(|rest| rest.lines().next()?.parse().ok());
        let max_registers = max_registers.or(linked);
        let charged_bytes = self.profile.module_bytes(image.bytes);
        self.room_for(charged_bytes, "the module")?;
        let mut globals: Vec<Block> = Vec::new();
        let mut failure = None;
        let mut used = 0u64;
        let code = ModuleCode::load(&image.ptx, &mut |bytes, align| {
            // Variables share a block while they fit.
            let at = used.next_multiple_of(align.max(1));
            if let Some(block) = globals.last()
                && at + bytes <= block.bytes
            {
                used = at + bytes;
                return Some(block.address + at);
            }
            match self.allocate(bytes.max(1), "a variable of the module") {
                Ok(block) => {
                    globals.push(block);
                    used = bytes;
                    Some(block.address)
                }
                Err(error) => {
                    failure = Some(error);
                    None
                }
            }
        });
        match code {
            Ok(code) => {
                let serial = self.serial();
                for block in &globals {
                    self.check_defined(block.address, block.bytes);
                }
                self.modules.insert(
                    serial,
                    Module {
                        code,
                        charged_bytes,
                        max_registers,
                        globals,
                        functions: HashMap::new(),
                    },
                );
                self.note_peak();
                Ok(serial)
            }
            Err(error) => {
                for block in globals {
                    self.memory()?.free_block(block)?;
                }
                Err(failure.unwrap_or_else(|| {
                    Failure::new(
                        CuResult::INVALID_PTX,
                        format!("PTX line {}: {}", error.line, error.message),
                    )
                }))
            }
        }
    }

    /// Unloads a module.
    pub(super) fn remove_module(&mut self, serial: u64) -> Result<(), Failure> {
        let module = self
            .modules
            .remove(&serial)
            .ok_or_else(|| Failure::handle("module"))?;
        for function in module.functions.values() {
            self.functions.remove(function);
        }
        for block in module.globals {
            self.memory()?.free_block(block)?;
        }
        Ok(())
    }

    /// The kernel of this name in a module.
    pub(super) fn function(&mut self, module: u64, name: &CStr) -> Result<u64, Failure> {
        let limit = self.profile.shared_bytes_per_block;
        let text = name.to_string_lossy();
        let loaded = self
            .modules
            .get(&module)
            .ok_or_else(|| Failure::handle("module"))?;
        if let Some(&id) = loaded.functions.get(text.as_ref()) {
            return Ok(id);
        }
        let max_registers = loaded.max_registers;
        let Some(code) = loaded.code.kernel(&text) else {
            return Err(Failure::new(
                CuResult::NOT_FOUND,
                format!(
                    "the module has no kernel {text}; it has: {}",
                    loaded.code.kernel_names().join(", ")
                ),
            ));
        };
        let id = self.serial();
        if let Some(loaded) = self.modules.get_mut(&module) {
            loaded.functions.insert(text.into_owned(), id);
        }
        self.functions.insert(
            id,
            Function {
                module,
                name: CString::from(name),
                max_dynamic_shared_bytes: limit.saturating_sub(code.static_shared_bytes),
                max_registers,
                carveout: -1,
                non_portable_cluster: false,
                code,
            },
        );
        Ok(id)
    }
}
