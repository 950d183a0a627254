//! Which stream a handle names.

use std::cell::Cell;
use std::sync::Arc;

use super::entry::named;
use super::failure::Failure;
use super::registry::{self, EmulatedDevice, Kind};
use super::state::{LEGACY, State, Stream};
use crate::driver::CuResult;

/// `CU_STREAM_LEGACY`: the default stream by another name.
const STREAM_LEGACY: u64 = 1;
/// `CU_STREAM_PER_THREAD`: the calling thread's own default stream.
const STREAM_PER_THREAD: u64 = 2;

thread_local! {
    /// The call that runs is the variant (`_ptsz`, `_ptds`) whose default stream is the thread's own.
    static PER_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call as its variant whose default stream is the thread's own.
pub(super) fn per_thread(call: impl FnOnce() -> CuResult) -> CuResult {
    let outer = PER_THREAD.replace(true);
    let code = call();
    PER_THREAD.set(outer);
    code
}

/// The device and serial a stream handle names; default streams are those of the current context.
pub(super) fn of_stream<S: StreamHandle>(stream: S) -> Result<(Arc<EmulatedDevice>, u64), Failure> {
    match stream.raw() {
        STREAM_LEGACY => Ok((registry::current_device()?, LEGACY)),
        0 if !PER_THREAD.get() => Ok((registry::current_device()?, LEGACY)),
        0 | STREAM_PER_THREAD => {
            let device = registry::current_device()?;
            let stream = device.lock().thread_stream();
            Ok((device, stream))
        }
        raw => named(raw, Kind::Stream, "stream"),
    }
}

/// A stream handle as the C types have it.
pub(super) trait StreamHandle {
    fn raw(self) -> u64;
}

impl StreamHandle for u64 {
    fn raw(self) -> u64 {
        self
    }
}

impl StreamHandle for cuda_driver_sys::CUstream {
    fn raw(self) -> u64 {
        self as u64
    }
}

impl State {
    /// The calling thread's default stream, made on first use. It and the legacy one wait for each other.
    fn thread_stream(&mut self) -> u64 {
        let thread = std::thread::current().id();
        if let Some(&stream) = self.thread_streams.get(&thread)
            && self.streams.contains_key(&stream)
        {
            return stream;
        }
        let serial = self.serial();
        self.streams.insert(serial, Stream::new(true, 0));
        self.thread_streams.insert(thread, serial);
        serial
    }

    /// Streams that the program made: all but the default ones.
    pub(super) fn made_streams(&self) -> usize {
        let default = |id: &u64| *id == LEGACY || self.thread_streams.values().any(|own| own == id);
        let made = self
            .streams
            .iter()
            .filter(|(id, stream)| !default(id) && !stream.destroyed);
        made.count()
    }
}
