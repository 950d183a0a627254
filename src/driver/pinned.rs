//! Page-locked host memory.

use std::ffi::c_void;

use super::{Context, DriverError, abi};

/// Page-locked host memory, zeroed at creation. Copies to and from it are truly asynchronous: the
/// slices below may be used only when no copy that touches the buffer is in flight.
#[derive(Debug)]
pub struct PinnedBuffer {
    context: Context,
    raw: *mut u8,
    bytes: usize,
}

// SAFETY: the buffer is plain memory owned by this handle.
unsafe impl Send for PinnedBuffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// Allocates and zeroes `bytes` of page-locked memory, page aligned.
    ///
    /// # Errors
    /// [`DriverError::Invalid`] for zero bytes, [`DriverError::Poisoned`], or whatever
    /// `cuMemHostAlloc` returns.
    pub fn new(context: &Context, bytes: usize) -> Result<PinnedBuffer, DriverError> {
        if bytes == 0 {
            return Err(DriverError::Invalid {
                what: "a pinned buffer needs at least one byte".to_owned(),
            });
        }
        let api = context.enter("cuMemHostAlloc")?;
        let mut raw: *mut c_void = std::ptr::null_mut();
        // SAFETY: the pointer is to a live local.
        let result =
            unsafe { (api.cu_mem_host_alloc)(&mut raw, bytes, abi::CU_MEMHOSTALLOC_PORTABLE) };
        context.check("cuMemHostAlloc", result, || format!("{bytes} bytes"))?;
        let raw = raw.cast::<u8>();
        // SAFETY: the driver has just allocated these bytes; zeroing makes them valid to read.
        unsafe { raw.write_bytes(0, bytes) };
        Ok(PinnedBuffer {
            context: context.clone(),
            raw,
            bytes,
        })
    }

    /// Length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// The contents. No copy into the buffer may be in flight.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the buffer is initialised, owned, and no safe call starts a copy into it.
        unsafe { std::slice::from_raw_parts(self.raw, self.bytes) }
    }

    /// The contents, writable. No copy from or into the buffer may be in flight.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the buffer is initialised, owned and exclusively borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.raw, self.bytes) }
    }

    /// Address of the first byte, for asynchronous copies.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.raw
    }

    /// Address of the first byte, for asynchronous copies.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.raw
    }

    /// Frees the buffer and reports what `Drop` would only record.
    ///
    /// # Errors
    /// Whatever `cuMemFreeHost` returns.
    pub fn close(mut self) -> Result<(), DriverError> {
        self.destroy()
    }

    fn destroy(&mut self) -> Result<(), DriverError> {
        let raw = std::mem::replace(&mut self.raw, std::ptr::null_mut());
        if raw.is_null() {
            return Ok(());
        }
        // SAFETY: the memory was owned by `self` and is given back once.
        self.context.destroy("cuMemFreeHost", |api| unsafe {
            (api.cu_mem_free_host)(raw.cast())
        })
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        let result = self.destroy();
        self.context.record(result);
    }
}
