//! Events: points in a stream that other streams and the host can wait for.

use cuda_driver_sys::CUevent;

use super::{Context, CuResult, DriverError, Stream, abi};

/// An event with timing.
#[derive(Debug)]
pub struct Event {
    context: Context,
    raw: CUevent,
}

// SAFETY: NVIDIA documents driver API handles as usable from any thread.
unsafe impl Send for Event {}
// SAFETY: as above; the driver synchronises concurrent calls on one event.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event. One that was never recorded counts as complete.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuEventCreate` returns.
    pub fn new(context: &Context) -> Result<Event, DriverError> {
        let api = context.enter("cuEventCreate")?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is to a live local.
        let result = unsafe { (api.cu_event_create)(&mut raw, abi::CU_EVENT_DEFAULT) };
        context.check("cuEventCreate", result, String::new)?;
        Ok(Event {
            context: context.clone(),
            raw,
        })
    }

    /// Records the event after the work issued to `stream` so far.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuEventRecord` returns.
    pub fn record(&self, stream: &Stream) -> Result<(), DriverError> {
        let api = self.context.enter("cuEventRecord")?;
        // SAFETY: both handles are alive.
        let result = unsafe { (api.cu_event_record)(self.raw, stream.raw()) };
        self.context.check("cuEventRecord", result, String::new)
    }

    /// Waits until the event's latest record is complete.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuEventSynchronize` returns (errors of earlier work included).
    pub fn synchronize(&self) -> Result<(), DriverError> {
        let api = self.context.enter("cuEventSynchronize")?;
        // SAFETY: the handle is alive.
        let result = unsafe { (api.cu_event_synchronize)(self.raw) };
        self.context
            .check("cuEventSynchronize", result, String::new)
    }

    /// True when the event's latest record is complete.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuEventQuery` returns beside "not ready".
    pub fn query(&self) -> Result<bool, DriverError> {
        let api = self.context.enter("cuEventQuery")?;
        // SAFETY: the handle is alive.
        let result = unsafe { (api.cu_event_query)(self.raw) };
        if result == CuResult::NOT_READY {
            return Ok(false);
        }
        self.context.check("cuEventQuery", result, String::new)?;
        Ok(true)
    }

    /// Milliseconds between two completed events. On the emulator this is a model, not a measurement.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuEventElapsedTime` returns (not recorded, not ready).
    pub fn elapsed_ms(start: &Event, end: &Event) -> Result<f32, DriverError> {
        let api = start.context.enter("cuEventElapsedTime")?;
        let mut milliseconds = 0.0;
        // SAFETY: both handles are alive and the pointer is to a live local.
        let result = unsafe { (api.cu_event_elapsed_time)(&mut milliseconds, start.raw, end.raw) };
        start
            .context
            .check("cuEventElapsedTime", result, String::new)?;
        Ok(milliseconds)
    }

    /// Destroys the event and reports what `Drop` would only record.
    ///
    /// # Errors
    /// Whatever `cuEventDestroy` returns.
    pub fn close(mut self) -> Result<(), DriverError> {
        self.destroy()
    }

    /// The driver's handle.
    pub(super) fn raw(&self) -> CUevent {
        self.raw
    }

    fn destroy(&mut self) -> Result<(), DriverError> {
        let raw = std::mem::replace(&mut self.raw, std::ptr::null_mut());
        if raw.is_null() {
            return Ok(());
        }
        // SAFETY: the handle was owned by `self` and is given back once.
        self.context.destroy("cuEventDestroy", |api| unsafe {
            (api.cu_event_destroy)(raw)
        })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let result = self.destroy();
        self.context.record(result);
    }
}
