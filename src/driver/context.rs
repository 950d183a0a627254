//! The primary context of a device.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use cuda_driver_sys::CUcontext;

use super::{Api, CuResult, Device, DriverError};

/// Device memory as the driver counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemInfo {
    /// Bytes nobody holds.
    pub free_bytes: u64,
    /// Bytes the device has.
    pub total_bytes: u64,
}

/// A retained primary context: the one that PyTorch and other runtimes in the process share.
///
/// Cloning is cheap; the driver's reference is released when the last clone and the last handle made
/// from it are gone. The driver's functions may be called from any thread, so the handle is `Send`
/// and `Sync`; every method makes the context current on the calling thread.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    raw: CUcontext,
    state: Mutex<State>,
    /// Set by `close`, so that `Drop` does not release a second time.
    released: bool,
}

impl Inner {
    fn release(&mut self) -> Result<(), DriverError> {
        if std::mem::replace(&mut self.released, true) {
            return Ok(());
        }
        let driver = self.device.driver();
        // SAFETY: this handle owns one reference to the primary context and gives it back once.
        let result = unsafe { (driver.api().cu_device_primary_ctx_release)(self.device.raw()) };
        driver.check("cuDevicePrimaryCtxRelease", result, String::new)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Nobody is left to read a recorded error: this is the last reference.
        let _ = self.release();
    }
}

/// What went wrong in the context so far.
#[derive(Default)]
struct State {
    /// First error that a `Drop` could not return.
    recorded: Option<DriverError>,
    /// The error that ended the context's life.
    poison: Option<DriverError>,
}

// SAFETY: NVIDIA documents driver API handles as usable from any thread; the only other state is
// behind a mutex.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Context {
    /// Retains the device's primary context and makes it current.
    ///
    /// # Errors
    /// Whatever `cuDevicePrimaryCtxRetain` returns: out of memory, device unavailable, ...
    pub fn retain_primary(device: &Device) -> Result<Context, DriverError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is to a live local.
        let result =
            unsafe { (device.driver().api().cu_device_primary_ctx_retain)(&mut raw, device.raw()) };
        device
            .driver()
            .check("cuDevicePrimaryCtxRetain", result, || {
                format!("device {}", device.ordinal())
            })?;
        let context = Context {
            inner: Arc::new(Inner {
                device: device.clone(),
                raw,
                state: Mutex::default(),
                released: false,
            }),
        };
        context.make_current()?;
        Ok(context)
    }

    /// The device of the context.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Makes the context current on the calling thread.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuCtxSetCurrent` returns.
    pub fn make_current(&self) -> Result<(), DriverError> {
        self.enter("cuCtxSetCurrent").map(|_| ())
    }

    /// Free and total bytes of the device now.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuMemGetInfo` returns.
    pub fn mem_info(&self) -> Result<MemInfo, DriverError> {
        let api = self.enter("cuMemGetInfo")?;
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: both pointers are to live locals.
        let result = unsafe { (api.cu_mem_get_info)(&mut free, &mut total) };
        self.check("cuMemGetInfo", result, String::new)?;
        Ok(MemInfo {
            free_bytes: free as u64,
            total_bytes: total as u64,
        })
    }

    /// Waits for all work of the context. Errors of earlier asynchronous work surface here.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuCtxSynchronize` returns.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        let api = self.enter("cuCtxSynchronize")?;
        // SAFETY: the call takes no arguments and the context is current.
        let result = unsafe { (api.cu_ctx_synchronize)() };
        self.check("cuCtxSynchronize", result, String::new)
    }

    /// Takes the first error that a `Drop` of this context's handles could not return.
    #[must_use]
    pub fn take_recorded_error(&self) -> Option<DriverError> {
        self.state(|state| state.recorded.take())
    }

    /// The error that ended the context's life, if one did.
    #[must_use]
    pub fn poison(&self) -> Option<DriverError> {
        self.state(|state| state.poison.clone())
    }

    /// Releases the driver's reference now and reports what `Drop` would only record.
    ///
    /// # Errors
    /// [`DriverError::InUse`] while clones or handles made from the context live (they keep it alive);
    /// an error recorded by an earlier `Drop`; or whatever `cuDevicePrimaryCtxRelease` returns.
    pub fn close(self) -> Result<(), DriverError> {
        let ordinal = self.device().ordinal();
        match Arc::try_unwrap(self.inner) {
            Ok(mut inner) => {
                let recorded = lock(&inner.state).recorded.take();
                let released = inner.release();
                match recorded {
                    Some(error) => Err(error),
                    None => released,
                }
            }
            Err(inner) => Err(DriverError::InUse {
                ordinal,
                holders: Arc::strong_count(&inner) - 1,
            }),
        }
    }

    /// Makes the context current for `call` and gives the table; refuses when poisoned.
    pub(super) fn enter(&self, call: &'static str) -> Result<&'static Api, DriverError> {
        if let Some(cause) = self.poison() {
            return Err(DriverError::Poisoned {
                call,
                cause: Box::new(cause),
            });
        }
        let api = self.api();
        // SAFETY: the context is retained for as long as `self` lives.
        let result = unsafe { (api.cu_ctx_set_current)(self.inner.raw) };
        self.check("cuCtxSetCurrent", result, String::new)?;
        Ok(api)
    }

    /// The table, without making the context current.
    pub(super) fn api(&self) -> &'static Api {
        self.inner.device.driver().api()
    }

    /// Turns a result code into an error, and poisons the context where the code ends its life.
    pub(super) fn check(
        &self,
        call: &'static str,
        result: CuResult,
        values: impl FnOnce() -> String,
    ) -> Result<(), DriverError> {
        let checked = self.inner.device.driver().check(call, result, values);
        if let Err(error) = &checked
            && result.is_sticky()
        {
            self.state(|state| {
                state.poison.get_or_insert_with(|| error.clone());
            });
        }
        checked
    }

    /// Runs a destroying call for a `Drop` or `close`. In a poisoned context the object is still
    /// given back, but the code (which only repeats the poison) is not an error of its own.
    pub(super) fn destroy(
        &self,
        call: &'static str,
        destroy: impl FnOnce(&'static Api) -> CuResult,
    ) -> Result<(), DriverError> {
        let api = self.api();
        // SAFETY: the context is retained for as long as `self` lives.
        let current = unsafe { (api.cu_ctx_set_current)(self.inner.raw) };
        let poisoned = self.poison().is_some();
        let result = destroy(api);
        if poisoned {
            return Ok(());
        }
        self.check("cuCtxSetCurrent", current, String::new)?;
        self.check(call, result, String::new)
    }

    /// Keeps an error that a `Drop` cannot return.
    pub(super) fn record(&self, result: Result<(), DriverError>) {
        if let Err(error) = result {
            self.state(|state| {
                state.recorded.get_or_insert(error);
            });
        }
    }

    fn state<T>(&self, read: impl FnOnce(&mut State) -> T) -> T {
        read(&mut lock(&self.inner.state))
    }
}

/// A panic elsewhere cannot leave these few fields half-written, so lock poisoning is ignored.
fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("device", &self.device().ordinal())
            .field("poison", &self.poison())
            .finish_non_exhaustive()
    }
}
