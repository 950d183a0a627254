//! Entry points of modules, kernels and their launch.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use cuda_driver_sys::{CUdeviceptr, CUfunction, CUmodule, CUstream};

use super::capture::refuse_unsafe_call;
use super::entry::{entry, give_back, named, on_current, on_device, write};
use super::failure::Failure;
use super::image;
use super::limits;
use super::memory_calls::of_stream;
use super::registry::{self, Kind};
use super::state::{Function, Module, State};
use super::work::{Launch, Work};
use crate::driver::{CuResult, abi};
use crate::emulator::exec::ModuleCode;
use crate::emulator::mem::Block;

/// `CU_LAUNCH_PARAM_END`, `_BUFFER_POINTER` and `_BUFFER_SIZE`: tags of `cuLaunchKernel`'s extra list.
const PARAM_END: usize = 0;
const PARAM_BUFFER_POINTER: usize = 1;
const PARAM_BUFFER_SIZE: usize = 2;

pub(super) unsafe extern "C" fn module_load_data_ex(
    module: *mut CUmodule,
    image: *const c_void,
    option_count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
) -> CuResult {
    entry(|| {
        refuse_unsafe_call("cuModuleLoadDataEx")?;
        on_current("cuModuleLoadDataEx", |state| {
            // SAFETY: the caller passes a module image.
            let loaded = unsafe { image::read(image.cast(), state.profile.compute_capability) }
                .and_then(|image| state.load_module(&image));
            if let Err(failure) = &loaded
                && let Some(detail) = &failure.detail
            {
                // SAFETY: the caller passes `option_count` options and as many values.
                unsafe { log_error(detail, option_count as usize, options, values) };
            }
            let raw = registry::handle(Kind::Module, state.ordinal, loaded?);
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(module, raw as CUmodule, "the module") }
        })
    })
}

/// Writes a refusal into the caller's compiler-log buffer, if it gave one.
///
/// # Safety
/// `options` and `values` must be null or arrays of `count`, and the log buffer as long as its option says.
unsafe fn log_error(text: &str, count: usize, options: *const c_uint, values: *const *mut c_void) {
    if options.is_null() || values.is_null() {
        return;
    }
    let (mut buffer, mut room) = (std::ptr::null_mut::<u8>(), 0usize);
    for index in 0..count {
        // SAFETY: the array has `count` elements.
        let option = unsafe { options.add(index).read() };
        // SAFETY: the array has `count` elements.
        let value = unsafe { values.add(index).read() };
        match option {
            abi::CU_JIT_ERROR_LOG_BUFFER => buffer = value.cast(),
            // The size is the pointer's own value, 32 bits of it.
            abi::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES => room = value as usize & 0xFFFF_FFFF,
            _ => {}
        }
    }
    if buffer.is_null() || room == 0 {
        return;
    }
    let len = text.len().min(room - 1);
    // SAFETY: the buffer has `room` bytes and `len` is less.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buffer, len) };
    // SAFETY: as above: `len` is an index inside the buffer.
    unsafe { buffer.add(len).write(0) };
}

pub(super) unsafe extern "C" fn module_unload(module: CUmodule) -> CuResult {
    entry(|| {
        refuse_unsafe_call("cuModuleUnload")?;
        let (device, serial) = named(module as u64, Kind::Module, "module")?;
        give_back("cuModuleUnload", &device, |state| {
            state.drain_all();
            let module = state
                .modules
                .remove(&serial)
                .ok_or_else(|| Failure::handle("module"))?;
            for function in module.functions.values() {
                state.functions.remove(function);
            }
            for block in module.globals {
                state.memory()?.free_block(block)?;
            }
            Ok(())
        })
    })
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
    entry(|| {
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
    entry(|| {
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
    entry(|| {
        let (device, serial) = named(function as u64, Kind::Function, "function")?;
        on_device("cuFuncGetAttribute", &device, |state| {
            let (major, minor) = state.profile.compute_capability;
            let function = state.known_function(serial)?;
            let code = &function.code;
            let known = match attribute {
                abi::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => {
                    code.max_threads.unwrap_or(limits::BLOCK_THREADS)
                }
                abi::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => code.static_shared_bytes,
                abi::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES => 0,
                abi::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES => code.local_bytes,
                abi::CU_FUNC_ATTRIBUTE_NUM_REGS => code.registers,
                abi::CU_FUNC_ATTRIBUTE_PTX_VERSION | abi::CU_FUNC_ATTRIBUTE_BINARY_VERSION => {
                    major * 10 + minor
                }
                abi::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                    function.max_dynamic_shared_bytes
                }
                other => {
                    return Err(Failure::invalid(format!(
                        "the emulator has no value for function attribute {other}"
                    )));
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
    entry(|| {
        let (device, serial) = named(function as u64, Kind::Function, "function")?;
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
                abi::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => Ok(()),
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
    entry(|| {
        let (device, serial) = named(function as u64, Kind::Function, "function")?;
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
    entry(|| {
        let (device, serial) = named(function as u64, Kind::Function, "function")?;
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

pub(super) unsafe extern "C" fn launch_kernel(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: CUstream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CuResult {
    entry(|| {
        let (device, stream) = of_stream(stream)?;
        let (owner, function) = named(function as u64, Kind::Function, "function")?;
        on_device("cuLaunchKernel", &device, |state| {
            if owner.ordinal != device.ordinal {
                return Err(Failure::new(
                    CuResult::INVALID_HANDLE,
                    "the function belongs to another device's context than the stream",
                ));
            }
            let grid = [grid_x, grid_y, grid_z];
            let block = [block_x, block_y, block_z];
            state.check_launch(function, grid, block, shared_bytes)?;
            let (id, known) = (function, state.known_function(function)?);
            // SAFETY: the caller passes one pointer a parameter, or a buffer that holds them all.
            let bytes = unsafe { copy_params(known, params, extra) }?;
            let base = bytes.as_ptr() as usize;
            let launch = Launch {
                code: Arc::clone(&known.code),
                module: known.module,
                function: id,
                grid,
                block,
                shared_bytes,
                param_addresses: known.code.params.iter().map(|p| base + p.offset).collect(),
                params: bytes,
            };
            state.issue(stream, Work::Kernel(Arc::new(launch)))
        })
    })
}

/// Copies a launch's parameters into one block, as the driver does before it returns.
///
/// # Safety
/// `params` must be null or an array with one pointer a parameter, each to that parameter's bytes;
/// `extra` must be null or a tagged list that ends with `CU_LAUNCH_PARAM_END`.
unsafe fn copy_params(
    function: &Function,
    params: *const *mut c_void,
    extra: *const *mut c_void,
) -> Result<Box<[u8]>, Failure> {
    let code = &function.code;
    let mut bytes = vec![0u8; code.param_bytes].into_boxed_slice();
    if code.params.is_empty() {
        return Ok(bytes);
    }
    if !params.is_null() {
        for (index, slot) in code.params.iter().enumerate() {
            // SAFETY: the array has one pointer a parameter.
            let source = unsafe { params.add(index).read() };
            if source.is_null() {
                return Err(Failure::null("a parameter"));
            }
            let room = &mut bytes[slot.offset..slot.offset + slot.bytes];
            // SAFETY: the pointer leads to the parameter's bytes, and `room` is as long.
            unsafe {
                std::ptr::copy_nonoverlapping(source.cast(), room.as_mut_ptr(), slot.bytes);
            }
        }
        return Ok(bytes);
    }
    if extra.is_null() {
        return Err(Failure::invalid(format!(
            "{} takes {} bytes of parameters and none were given",
            code.name, code.param_bytes
        )));
    }
    let (mut buffer, mut buffer_bytes) = (std::ptr::null::<u8>(), 0usize);
    let mut at = extra;
    loop {
        // SAFETY: the list goes on until its end tag.
        let tag = unsafe { at.read() } as usize;
        if tag == PARAM_END {
            break;
        }
        // SAFETY: a value follows every other tag.
        let value = unsafe { at.add(1).read() };
        match tag {
            PARAM_BUFFER_POINTER => buffer = value.cast(),
            // SAFETY: the value of this tag leads to a size.
            PARAM_BUFFER_SIZE => buffer_bytes = unsafe { value.cast::<usize>().read() },
            other => return Err(Failure::invalid(format!("no launch parameter tag {other}"))),
        }
        // SAFETY: the list goes on until its end tag.
        at = unsafe { at.add(2) };
    }
    if buffer.is_null() || buffer_bytes < code.param_bytes {
        return Err(Failure::invalid(format!(
            "{} takes {} bytes of parameters and {buffer_bytes} were given",
            code.name, code.param_bytes
        )));
    }
    // SAFETY: the buffer holds at least the bytes that are copied.
    unsafe { std::ptr::copy_nonoverlapping(buffer, bytes.as_mut_ptr(), code.param_bytes) };
    Ok(bytes)
}

impl State {
    /// The function of this serial.
    pub(super) fn known_function(&mut self, id: u64) -> Result<&mut Function, Failure> {
        self.functions
            .get_mut(&id)
            .ok_or_else(|| Failure::handle("function"))
    }

    fn load_module(&mut self, image: &image::Image) -> Result<u64, Failure> {
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

    fn function(&mut self, module: u64, name: &CStr) -> Result<u64, Failure> {
        let limit = self.profile.shared_bytes_per_block;
        let text = name.to_string_lossy();
        let loaded = self
            .modules
            .get(&module)
            .ok_or_else(|| Failure::handle("module"))?;
        if let Some(&id) = loaded.functions.get(text.as_ref()) {
            return Ok(id);
        }
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
                code,
            },
        );
        Ok(id)
    }

    /// Refuses a launch that the hardware could not hold.
    fn check_launch(
        &mut self,
        function: u64,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
    ) -> Result<(), Failure> {
        let function = self.known_function(function)?;
        let code = &function.code;
        let threads: u64 = block.iter().map(|&n| u64::from(n)).product();
        let most = code.max_threads.unwrap_or(limits::BLOCK_THREADS);
        let within = |size: [u32; 3], limit: [u32; 3]| {
            size.iter().zip(limit).all(|(&n, most)| n >= 1 && n <= most)
        };
        if !within(grid, limits::GRID) {
            return Err(Failure::invalid(format!(
                "{}: grid {grid:?} is not within 1 and {:?}",
                code.name,
                limits::GRID
            )));
        }
        if !within(block, limits::BLOCK) || threads > u64::from(most) {
            return Err(Failure::invalid(format!(
                "{}: block {block:?} has {threads} threads; at most {most}, and {:?} in x, y, z, are possible",
                code.name,
                limits::BLOCK
            )));
        }
        if shared_bytes > function.max_dynamic_shared_bytes {
            return Err(Failure::invalid(format!(
                "{}: {shared_bytes} bytes of dynamic shared memory exceed the {} the kernel opted in to (cuFuncSetAttribute)",
                code.name, function.max_dynamic_shared_bytes
            )));
        }
        if code.param_bytes > limits::PARAM_BYTES {
            return Err(Failure::invalid(format!(
                "{}: {} bytes of parameters exceed {}",
                code.name,
                code.param_bytes,
                limits::PARAM_BYTES
            )));
        }
        Ok(())
    }
}
