//! Entry points of streams, their capture, and events.

use std::ffi::{c_int, c_uint};

use cuda_driver_sys::{CUevent, CUgraph, CUstream};

use super::capture::refuse_unsafe_call;
use super::entry::{entry, give_back, named, on_current, on_device, write};
use super::failure::Failure;
use super::memory_calls::of_stream;
use super::registry::{self, Kind};
use super::state::{Event, LEGACY, Stream};
use crate::driver::{CaptureMode, CuResult, abi};

pub(super) unsafe extern "C" fn stream_create_with_priority(
    stream: *mut CUstream,
    flags: c_uint,
    _priority: c_int,
) -> CuResult {
    entry(|| {
        on_current("cuStreamCreateWithPriority", |state| {
            let blocking = match flags {
                abi::CU_STREAM_DEFAULT => true,
                abi::CU_STREAM_NON_BLOCKING => false,
                other => return Err(Failure::invalid(format!("no stream flags {other}"))),
            };
            let serial = state.serial();
            state.streams.insert(serial, Stream::new(blocking));
            let raw = registry::handle(Kind::Stream, state.ordinal, serial);
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(stream, raw as CUstream, "the stream") }
        })
    })
}

pub(super) unsafe extern "C" fn stream_destroy(stream: CUstream) -> CuResult {
    entry(|| {
        let (device, serial) = named(stream as u64, Kind::Stream, "stream")?;
        give_back("cuStreamDestroy", &device, |state| {
            if state.capture_status(serial)?.is_some() {
                state.abandon_capture(serial);
            }
            state.drain_stream(serial);
            state.streams.remove(&serial);
            Ok(())
        })
    })
}

pub(super) unsafe extern "C" fn stream_synchronize(stream: CUstream) -> CuResult {
    entry(|| {
        let (device, stream) = of_stream(stream)?;
        on_device("cuStreamSynchronize", &device, |state| {
            state.refuse_wait(stream)?;
            state.drain_stream(stream);
            state.alive()
        })
    })
}

/// A query runs the stream: work whose completion somebody polls for must make progress.
pub(super) unsafe extern "C" fn stream_query(stream: CUstream) -> CuResult {
    entry(|| {
        let (device, stream) = of_stream(stream)?;
        on_device("cuStreamQuery", &device, |state| {
            state.refuse_wait(stream)?;
            state.drain_stream(stream);
            state.alive()
        })
    })
}

pub(super) unsafe extern "C" fn stream_wait_event(
    stream: CUstream,
    event: CUevent,
    _flags: c_uint,
) -> CuResult {
    entry(|| {
        let (device, stream) = of_stream(stream)?;
        let (owner, event) = named(event as u64, Kind::Event, "event")?;
        if owner.ordinal != device.ordinal {
            return Err(Failure::new(
                CuResult::NOT_SUPPORTED,
                "waiting for another device's event is not emulated",
            ));
        }
        on_device("cuStreamWaitEvent", &device, |state| {
            state.wait_event(stream, event)
        })
    })
}

pub(super) unsafe extern "C" fn stream_begin_capture(stream: CUstream, mode: c_uint) -> CuResult {
    entry(|| {
        let (device, stream) = of_stream(stream)?;
        let mode = match mode {
            abi::CU_STREAM_CAPTURE_MODE_GLOBAL => CaptureMode::Global,
            abi::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL => CaptureMode::ThreadLocal,
            abi::CU_STREAM_CAPTURE_MODE_RELAXED => CaptureMode::Relaxed,
            other => return Err(Failure::invalid(format!("no capture mode {other}"))),
        };
        on_device("cuStreamBeginCapture", &device, |state| {
            state.begin_capture(stream, mode)
        })
    })
}

pub(super) unsafe extern "C" fn stream_end_capture(
    stream: CUstream,
    graph: *mut CUgraph,
) -> CuResult {
    entry(|| {
        let (device, stream) = of_stream(stream)?;
        on_device("cuStreamEndCapture", &device, |state| {
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(graph, std::ptr::null_mut(), "the graph") }?;
            let nodes = state.end_capture(stream)?;
            let raw = state.add_graph(nodes);
            // SAFETY: the pointer was checked above.
            unsafe { write(graph, raw as CUgraph, "the graph") }
        })
    })
}

pub(super) unsafe extern "C" fn stream_is_capturing(
    stream: CUstream,
    status: *mut c_uint,
) -> CuResult {
    entry(|| {
        let (device, stream) = of_stream(stream)?;
        on_device("cuStreamIsCapturing", &device, |state| {
            if stream == LEGACY && state.implicit_captures().next().is_some() {
                return Err(Failure::new(
                    CuResult::STREAM_CAPTURE_IMPLICIT,
                    "a blocking stream is capturing",
                ));
            }
            let value = match state.capture_status(stream)? {
                None => abi::CU_STREAM_CAPTURE_STATUS_NONE,
                Some(false) => abi::CU_STREAM_CAPTURE_STATUS_ACTIVE,
                Some(true) => abi::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
            };
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(status, value, "the status") }
        })
    })
}

pub(super) unsafe extern "C" fn event_create(event: *mut CUevent, _flags: c_uint) -> CuResult {
    entry(|| {
        on_current("cuEventCreate", |state| {
            let serial = state.serial();
            state.events.insert(serial, Event::New);
            let raw = registry::handle(Kind::Event, state.ordinal, serial);
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(event, raw as CUevent, "the event") }
        })
    })
}

pub(super) unsafe extern "C" fn event_destroy(event: CUevent) -> CuResult {
    entry(|| {
        let (device, serial) = named(event as u64, Kind::Event, "event")?;
        give_back("cuEventDestroy", &device, |state| {
            let removed = state.events.remove(&serial);
            removed.map(|_| ()).ok_or_else(|| Failure::handle("event"))
        })
    })
}

pub(super) unsafe extern "C" fn event_record(event: CUevent, stream: CUstream) -> CuResult {
    entry(|| {
        let (device, stream) = of_stream(stream)?;
        let (owner, event) = named(event as u64, Kind::Event, "event")?;
        if owner.ordinal != device.ordinal {
            return Err(Failure::new(
                CuResult::INVALID_HANDLE,
                "the event and the stream belong to different devices",
            ));
        }
        on_device("cuEventRecord", &device, |state| {
            state.record_event(event, stream)
        })
    })
}

pub(super) unsafe extern "C" fn event_synchronize(event: CUevent) -> CuResult {
    entry(|| {
        let (device, event) = named(event as u64, Kind::Event, "event")?;
        refuse_unsafe_call("cuEventSynchronize")?;
        on_device("cuEventSynchronize", &device, |state| {
            state.refuse_captured_event(event)?;
            state.event_complete(event, true).map(|_| ())
        })
    })
}

/// Answers "not ready" once before it runs what the event waits for, so that callers must cope with both.
pub(super) unsafe extern "C" fn event_query(event: CUevent) -> CuResult {
    entry(|| {
        let (device, event) = named(event as u64, Kind::Event, "event")?;
        refuse_unsafe_call("cuEventQuery")?;
        on_device("cuEventQuery", &device, |state| {
            state.refuse_captured_event(event)?;
            if state.event_complete(event, false)? {
                return Ok(());
            }
            state.event_complete(event, true)?;
            Err(CuResult::NOT_READY.into())
        })
    })
}

pub(super) unsafe extern "C" fn event_elapsed_time(
    milliseconds: *mut f32,
    start: CUevent,
    end: CUevent,
) -> CuResult {
    entry(|| {
        let (device, start) = named(start as u64, Kind::Event, "event")?;
        let (_, end) = named(end as u64, Kind::Event, "event")?;
        on_device("cuEventElapsedTime", &device, |state| {
            let time = |event: u64| match state.events.get(&event) {
                Some(Event::Recorded { time_us, .. }) => {
                    time_us.ok_or_else(|| Failure::from(CuResult::NOT_READY))
                }
                Some(_) => Err(Failure::new(
                    CuResult::INVALID_HANDLE,
                    "the event was not recorded in a stream",
                )),
                None => Err(Failure::handle("event")),
            };
            let elapsed = (time(end)? - time(start)?) / 1e3;
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(milliseconds, elapsed as f32, "the milliseconds") }
        })
    })
}
