//! Launches: what hardware could not hold is refused, and parameters are copied before the call returns.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use cuda_driver_sys::{CUfunction, CUstream};

use super::entry::{entry, on_device};
use super::failure::Failure;
use super::launch_calls::LaunchAttributes;
use super::library_calls::of_function;
use super::limits;
use super::state::{Function, State};
use super::streams::of_stream;
use super::work::{Launch, Work};
use crate::driver::CuResult;

/// `CU_LAUNCH_PARAM_END`, `_BUFFER_POINTER` and `_BUFFER_SIZE`: tags of `cuLaunchKernel`'s extra list.
const PARAM_END: usize = 0;
const PARAM_BUFFER_POINTER: usize = 1;
const PARAM_BUFFER_SIZE: usize = 2;

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
    entry("cuLaunchKernel", || {
        let shape = LaunchShape {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared_bytes,
        };
        let attributes = LaunchAttributes::default();
        let (function, stream) = (function as u64, stream as u64);
        // SAFETY: the caller passes one pointer a parameter, or a buffer that holds them all.
        unsafe {
            launch(
                "cuLaunchKernel",
                function,
                shape,
                attributes,
                stream,
                params,
                extra,
            )
        }
    })
}

/// Grid, block and dynamic shared memory of a launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaunchShape {
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared_bytes: u32,
}

/// Issues a launch into a stream.
///
/// # Safety
/// As for [`copy_params`].
pub(super) unsafe fn launch(
    call: &'static str,
    function: u64,
    shape: LaunchShape,
    attributes: LaunchAttributes,
    stream: u64,
    params: *const *mut c_void,
    extra: *const *mut c_void,
) -> Result<(), Failure> {
    let (device, stream) = of_stream(stream)?;
    let (owner, function) = of_function(function)?;
    on_device(call, &device, |state| {
        if owner.ordinal != device.ordinal {
            return Err(Failure::new(
                CuResult::INVALID_HANDLE,
                "the function belongs to another device's context than the stream",
            ));
        }
        // SAFETY: forwarded from the caller.
        let launch = unsafe { state.new_launch(function, shape, attributes, params, extra) }?;
        state.issue(stream, Work::Kernel(Arc::new(launch)))
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
    /// A launch, checked, with its parameters copied.
    ///
    /// # Safety
    /// As for [`copy_params`].
    pub(super) unsafe fn new_launch(
        &mut self,
        function: u64,
        shape: LaunchShape,
        attributes: LaunchAttributes,
        params: *const *mut c_void,
        extra: *const *mut c_void,
    ) -> Result<Launch, Failure> {
        let LaunchShape {
            grid,
            block,
            shared_bytes,
        } = shape;
        self.check_launch(function, grid, block, shared_bytes)?;
        self.check_attributes(function, &shape, &attributes)?;
        let known = self.known_function(function)?;
        // SAFETY: forwarded from the caller.
        let bytes = unsafe { copy_params(known, params, extra) }?;
        let base = bytes.as_ptr() as usize;
        Ok(Launch {
            code: Arc::clone(&known.code),
            module: known.module,
            function,
            grid,
            block,
            shared_bytes,
            cluster: attributes.cluster,
            cooperative: attributes.cooperative,
            param_addresses: known.code.params.iter().map(|p| base + p.offset).collect(),
            params: bytes,
        })
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
        if let Some(required) = code.required_block
            && required != block
        {
            return Err(Failure::invalid(format!(
                "{}: block {block:?}, where the kernel requires {required:?} (.reqntid)",
                code.name
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
