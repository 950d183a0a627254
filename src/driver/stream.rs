//! Streams: in-order queues of work, and their capture into graphs.

use std::ffi::c_void;

use bytemuck::Pod;
use cuda_driver_sys::CUstream;

use super::{Context, CuResult, DevicePtr, DriverError, Event, Graph, Kernel, abi};

/// Grid, block and dynamic shared memory of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

/// Which calls a capture forbids, and to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CaptureMode {
    /// Unsafe calls (allocation, synchronous copies, ...) are forbidden to every thread.
    Global = abi::CU_STREAM_CAPTURE_MODE_GLOBAL,
    /// Unsafe calls are forbidden to the capturing thread.
    ThreadLocal = abi::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    /// Unsafe calls are forbidden to nobody.
    Relaxed = abi::CU_STREAM_CAPTURE_MODE_RELAXED,
}

/// A non-blocking stream: it does not wait for the legacy default stream.
#[derive(Debug)]
pub struct Stream {
    context: Context,
    raw: CUstream,
}

// SAFETY: NVIDIA documents driver API handles as usable from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver serialises concurrent calls on one stream.
unsafe impl Sync for Stream {}

impl Stream {
    /// Creates a stream of default priority.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuStreamCreateWithPriority` returns.
    pub fn new(context: &Context) -> Result<Stream, DriverError> {
        Stream::with_priority(context, 0)
    }

    /// Creates a stream; lower numbers are more urgent, and the driver clamps them.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuStreamCreateWithPriority` returns.
    pub fn with_priority(context: &Context, priority: i32) -> Result<Stream, DriverError> {
        let api = context.enter("cuStreamCreateWithPriority")?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is to a live local.
        let result = unsafe {
            (api.cu_stream_create_with_priority)(&mut raw, abi::CU_STREAM_NON_BLOCKING, priority)
        };
        context.check("cuStreamCreateWithPriority", result, || {
            format!("priority {priority}")
        })?;
        Ok(Stream {
            context: context.clone(),
            raw,
        })
    }

    /// The context of the stream.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Waits for all work issued to the stream. Errors of that work surface here.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuStreamSynchronize` returns.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        let api = self.context.enter("cuStreamSynchronize")?;
        // SAFETY: the handle is alive.
        let result = unsafe { (api.cu_stream_synchronize)(self.raw) };
        self.context
            .check("cuStreamSynchronize", result, String::new)
    }

    /// True when all work issued to the stream is complete.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuStreamQuery` returns beside "not ready".
    pub fn query(&self) -> Result<bool, DriverError> {
        let api = self.context.enter("cuStreamQuery")?;
        // SAFETY: the handle is alive.
        let result = unsafe { (api.cu_stream_query)(self.raw) };
        if result == CuResult::NOT_READY {
            return Ok(false);
        }
        self.context.check("cuStreamQuery", result, String::new)?;
        Ok(true)
    }

    /// Makes later work of this stream wait for the event's latest record.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuStreamWaitEvent` returns.
    pub fn wait_event(&self, event: &Event) -> Result<(), DriverError> {
        let api = self.context.enter("cuStreamWaitEvent")?;
        // SAFETY: both handles are alive.
        let result = unsafe { (api.cu_stream_wait_event)(self.raw, event.raw(), 0) };
        self.context.check("cuStreamWaitEvent", result, String::new)
    }

    /// Copies `bytes` from host to device, in stream order.
    ///
    /// # Safety
    /// `destination` must be `bytes` of writable device memory and `source` `bytes` of readable host
    /// memory; the source must stay unchanged until the copy is complete.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuMemcpyHtoDAsync` returns.
    pub unsafe fn copy_htod_async(
        &self,
        destination: DevicePtr,
        source: *const u8,
        bytes: usize,
    ) -> Result<(), DriverError> {
        let api = self.context.enter("cuMemcpyHtoDAsync")?;
        // SAFETY: the caller answers for both ranges.
        let result =
            unsafe { (api.cu_memcpy_htod_async)(destination.0, source.cast(), bytes, self.raw) };
        self.context.check("cuMemcpyHtoDAsync", result, || {
            format!("{bytes} bytes to {destination}")
        })
    }

    /// Copies `bytes` from device to host, in stream order.
    ///
    /// # Safety
    /// `source` must be `bytes` of readable device memory and `destination` `bytes` of writable host
    /// memory that nobody touches until the copy is complete.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuMemcpyDtoHAsync` returns.
    pub unsafe fn copy_dtoh_async(
        &self,
        destination: *mut u8,
        source: DevicePtr,
        bytes: usize,
    ) -> Result<(), DriverError> {
        let api = self.context.enter("cuMemcpyDtoHAsync")?;
        // SAFETY: the caller answers for both ranges.
        let result =
            unsafe { (api.cu_memcpy_dtoh_async)(destination.cast(), source.0, bytes, self.raw) };
        self.context.check("cuMemcpyDtoHAsync", result, || {
            format!("{bytes} bytes from {source}")
        })
    }

    /// Copies `bytes` within device memory, in stream order.
    ///
    /// # Safety
    /// Both ranges must be device memory, and must not overlap.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuMemcpyDtoDAsync` returns.
    pub unsafe fn copy_dtod_async(
        &self,
        destination: DevicePtr,
        source: DevicePtr,
        bytes: usize,
    ) -> Result<(), DriverError> {
        let api = self.context.enter("cuMemcpyDtoDAsync")?;
        // SAFETY: the caller answers for both ranges.
        let result =
            unsafe { (api.cu_memcpy_dtod_async)(destination.0, source.0, bytes, self.raw) };
        self.context.check("cuMemcpyDtoDAsync", result, || {
            format!("{bytes} bytes from {source} to {destination}")
        })
    }

    /// Fills `bytes` of device memory with `value`, in stream order.
    ///
    /// # Safety
    /// The range must be writable device memory.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuMemsetD8Async` returns.
    pub unsafe fn memset_d8_async(
        &self,
        destination: DevicePtr,
        value: u8,
        bytes: usize,
    ) -> Result<(), DriverError> {
        let api = self.context.enter("cuMemsetD8Async")?;
        // SAFETY: the caller answers for the range.
        let result = unsafe { (api.cu_memset_d8_async)(destination.0, value, bytes, self.raw) };
        self.context.check("cuMemsetD8Async", result, || {
            format!("{bytes} bytes at {destination}")
        })
    }

    /// Fills `words` 32-bit words of device memory with `value`, in stream order.
    ///
    /// # Safety
    /// The range must be writable device memory, 4-byte aligned.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuMemsetD32Async` returns.
    pub unsafe fn memset_d32_async(
        &self,
        destination: DevicePtr,
        value: u32,
        words: usize,
    ) -> Result<(), DriverError> {
        let api = self.context.enter("cuMemsetD32Async")?;
        // SAFETY: the caller answers for the range.
        let result = unsafe { (api.cu_memset_d32_async)(destination.0, value, words, self.raw) };
        self.context.check("cuMemsetD32Async", result, || {
            format!("{words} words at {destination}")
        })
    }

    /// Copies a slice to device memory and waits for it.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever the copy or the wait returns; a range that is not
    /// mapped device memory is refused by the driver.
    pub fn copy_to_device(&self, destination: DevicePtr, source: &[u8]) -> Result<(), DriverError> {
        if source.is_empty() {
            return Ok(());
        }
        // SAFETY: the source is borrowed until the wait below returns; the driver checks the device range.
        unsafe { self.copy_htod_async(destination, source.as_ptr(), source.len()) }?;
        self.synchronize()
    }

    /// Copies device memory into a slice and waits for it.
    ///
    /// # Errors
    /// As for [`Stream::copy_to_device`].
    pub fn copy_to_host(
        &self,
        destination: &mut [u8],
        source: DevicePtr,
    ) -> Result<(), DriverError> {
        if destination.is_empty() {
            return Ok(());
        }
        // SAFETY: the destination is borrowed until the wait below returns; the driver checks the device range.
        unsafe { self.copy_dtoh_async(destination.as_mut_ptr(), source, destination.len()) }?;
        self.synchronize()
    }

    /// Launches a kernel whose only parameter is one struct by value.
    ///
    /// # Safety
    /// The kernel must accept `P` by value, and every address in it must be good for what the kernel
    /// does with it until the launch is complete.
    ///
    /// # Errors
    /// [`DriverError::Invalid`] where the driver knows the parameter's size and it is not `P`'s,
    /// [`DriverError::Poisoned`], or whatever `cuLaunchKernel` returns.
    pub unsafe fn launch<P: Pod>(
        &self,
        kernel: &Kernel,
        config: LaunchConfig,
        params: &P,
    ) -> Result<(), DriverError> {
        if let Some(expected) = kernel.param_bytes()
            && expected != size_of::<P>()
        {
            return Err(DriverError::Invalid {
                what: format!(
                    "kernel {} takes {expected} bytes of parameters, {} were given: the structs on the two sides differ",
                    kernel.name(),
                    size_of::<P>()
                ),
            });
        }
        let api = self.context.enter("cuLaunchKernel")?;
        let mut arguments = [std::ptr::from_ref(params).cast_mut().cast::<c_void>()];
        let LaunchConfig {
            grid,
            block,
            shared_bytes,
        } = config;
        // SAFETY: the driver copies the one parameter before it returns; the caller answers for its contents.
        let result = unsafe {
            (api.cu_launch_kernel)(
                kernel.raw(),
                grid[0],
                grid[1],
                grid[2],
                block[0],
                block[1],
                block[2],
                shared_bytes,
                self.raw,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        self.context.check("cuLaunchKernel", result, || {
            format!(
                "{}, grid {grid:?}, block {block:?}, {shared_bytes} bytes of dynamic shared memory",
                kernel.name()
            )
        })
    }

    /// Starts to record this stream's work into a graph instead of running it. Unsafe calls, such as
    /// allocation, are refused to the calling thread until [`Stream::end_capture`].
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuStreamBeginCapture` returns.
    pub fn begin_capture(&self) -> Result<(), DriverError> {
        self.begin_capture_with(CaptureMode::ThreadLocal)
    }

    /// [`Stream::begin_capture`] in a chosen mode.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuStreamBeginCapture` returns.
    pub fn begin_capture_with(&self, mode: CaptureMode) -> Result<(), DriverError> {
        let api = self.context.enter("cuStreamBeginCapture")?;
        // SAFETY: the handle is alive.
        let result = unsafe { (api.cu_stream_begin_capture)(self.raw, mode as u32) };
        self.context
            .check("cuStreamBeginCapture", result, || format!("{mode:?}"))
    }

    /// Ends the capture and gives the recorded graph.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuStreamEndCapture` returns: a capture that an
    /// unsafe call invalidated ends here with `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`.
    pub fn end_capture(&self) -> Result<Graph, DriverError> {
        let api = self.context.enter("cuStreamEndCapture")?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the handle is alive and the pointer is to a live local.
        let result = unsafe { (api.cu_stream_end_capture)(self.raw, &mut raw) };
        self.context
            .check("cuStreamEndCapture", result, String::new)?;
        Ok(Graph::from_raw(&self.context, raw))
    }

    /// True between [`Stream::begin_capture`] and [`Stream::end_capture`], also when the capture was
    /// invalidated meanwhile.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuStreamIsCapturing` returns.
    pub fn is_capturing(&self) -> Result<bool, DriverError> {
        let api = self.context.enter("cuStreamIsCapturing")?;
        let mut status = abi::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the handle is alive and the pointer is to a live local.
        let result = unsafe { (api.cu_stream_is_capturing)(self.raw, &mut status) };
        self.context
            .check("cuStreamIsCapturing", result, String::new)?;
        Ok(status != abi::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Destroys the stream and reports what `Drop` would only record. Work in it still completes.
    ///
    /// # Errors
    /// Whatever `cuStreamDestroy` returns.
    pub fn close(mut self) -> Result<(), DriverError> {
        self.destroy()
    }

    /// The driver's handle.
    pub(super) fn raw(&self) -> CUstream {
        self.raw
    }

    fn destroy(&mut self) -> Result<(), DriverError> {
        let raw = std::mem::replace(&mut self.raw, std::ptr::null_mut());
        if raw.is_null() {
            return Ok(());
        }
        // SAFETY: the handle was owned by `self` and is given back once.
        self.context.destroy("cuStreamDestroy", |api| unsafe {
            (api.cu_stream_destroy)(raw)
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let result = self.destroy();
        self.context.record(result);
    }
}
