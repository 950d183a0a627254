//! Which stream a handle names.

use std::sync::Arc;

use super::entry::named;
use super::failure::Failure;
use super::registry::{self, EmulatedDevice, Kind};
use super::state::{LEGACY, State, Stream};

/// `CU_STREAM_LEGACY`: the default stream by another name.
const STREAM_LEGACY: u64 = 1;
/// `CU_STREAM_PER_THREAD`: the calling thread's own default stream.
const STREAM_PER_THREAD: u64 = 2;

/// The device and serial a stream handle names; default streams are those of the current context.
pub(super) fn of_stream<S: StreamHandle>(stream: S) -> Result<(Arc<EmulatedDevice>, u64), Failure> {
    match stream.raw() {
        0 | STREAM_LEGACY => Ok((registry::current_device()?, LEGACY)),
        STREAM_PER_THREAD => {
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
        self.streams.keys().filter(|id| !default(id)).count()
    }
}
