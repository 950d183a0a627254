//! Entry points of streams, their capture, and events.

use std::ffi::{c_int, c_uint};

use cuda_driver_sys::{CUevent, CUgraph, CUstream};

use super::capture::{mode_of, refuse_unsafe_call};
use super::entry::{entry, give_back, named, on_current, on_device, wait, write};
use super::failure::Failure;
use super::limits;
use super::queue::Foreign;
use super::registry::{self, Kind};
use super::state::{Event, LEGACY, Stream};
use super::streams::of_stream;
use super::work::Work;
use crate::driver::{CuResult, abi};

pub(super) unsafe extern "C" fn stream_create_with_priority(
    stream: *mut CUstream,
    flags: c_uint,
    priority: c_int,
) -> CuResult {
    entry("cuStreamCreateWithPriority", || {
        on_current("cuStreamCreateWithPriority", |state| {
            let blocking = match flags {
                abi::CU_STREAM_DEFAULT => true,
                abi::CU_STREAM_NON_BLOCKING => false,
                other => return Err(Failure::invalid(format!("no stream flags {other}"))),
            };
            let serial = state.serial();
            let priority = priority.clamp(limits::HIGHEST_PRIORITY, limits::LOWEST_PRIORITY);
            state
                .streams
                .insert(serial, Stream::new(blocking, priority));
            let raw = registry::handle(Kind::Stream, state.ordinal, serial);
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(stream, raw as CUstream, "the stream") }
        })
    })
}

pub(super) unsafe extern "C" fn stream_destroy(stream: CUstream) -> CuResult {
    entry("cuStreamDestroy", || {
        let (device, serial) = named(stream as u64, Kind::Stream, "stream")?;
        give_back("cuStreamDestroy", &device, |state| {
            if state.capture_status(serial)?.is_some() {
                state.abandon_capture(serial);
            }
            state.destroy_stream(serial);
            Ok(())
        })
    })
}

pub(super) unsafe extern "C" fn stream_synchronize(stream: CUstream) -> CuResult {
    entry("cuStreamSynchronize", || {
        let (device, stream) = of_stream(stream)?;
        wait(
            "cuStreamSynchronize",
            &device,
            |state| state.refuse_wait(stream),
            |state| Ok(state.drain_stream(stream)),
        )
    })
}

/// A query runs the stream: work whose completion somebody polls for must make progress.
pub(super) unsafe extern "C" fn stream_query(stream: CUstream) -> CuResult {
    entry("cuStreamQuery", || {
        let (device, stream) = of_stream(stream)?;
        on_device("cuStreamQuery", &device, |state| {
            state.refuse_wait(stream)?;
            let done = state.drain_stream(stream);
            state.alive()?;
            if done {
                Ok(())
            } else {
                Err(CuResult::NOT_READY.into())
            }
        })
    })
}

pub(super) unsafe extern "C" fn stream_wait_event(
    stream: CUstream,
    event: CUevent,
    _flags: c_uint,
) -> CuResult {
    entry("cuStreamWaitEvent", || {
        let (device, stream) = of_stream(stream)?;
        let (owner, event) = named(event as u64, Kind::Event, "event")?;
        if owner.ordinal != device.ordinal {
            let foreign = match owner.lock().events.get(&event) {
                None => return Err(Failure::handle("event")),
                Some(Event::New) => return Ok(()),
                Some(&Event::Recorded { stream, ticket, .. }) => Foreign {
                    ordinal: owner.ordinal,
                    stream,
                    ticket,
                },
                Some(Event::Captured { .. }) => {
                    return Err(Failure::new(
                        CuResult::NOT_SUPPORTED,
                        "a capture that spans two devices is not emulated",
                    ));
                }
            };
            return on_device("cuStreamWaitEvent", &device, |state| {
                state.refuse_wait_outside(stream)?;
                state.enqueue_behind(stream, Work::Wait, Vec::new(), vec![foreign])
            });
        }
        on_device("cuStreamWaitEvent", &device, |state| {
            state.wait_event(stream, event)
        })
    })
}

pub(super) unsafe extern "C" fn stream_begin_capture(stream: CUstream, mode: c_uint) -> CuResult {
    entry("cuStreamBeginCapture", || {
        let (device, stream) = of_stream(stream)?;
        let mode = mode_of(mode)?;
        on_device("cuStreamBeginCapture", &device, |state| {
            state.begin_capture(stream, mode, None)
        })
    })
}

pub(super) unsafe extern "C" fn stream_end_capture(
    stream: CUstream,
    graph: *mut CUgraph,
) -> CuResult {
    entry("cuStreamEndCapture", || {
        let (device, stream) = of_stream(stream)?;
        on_device("cuStreamEndCapture", &device, |state| {
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(graph, std::ptr::null_mut(), "the graph") }?;
            let ended = state.end_capture(stream)?;
            let raw = state.graph_handle(ended);
            // SAFETY: the pointer was checked above.
            unsafe { write(graph, raw as CUgraph, "the graph") }
        })
    })
}

pub(super) unsafe extern "C" fn stream_is_capturing(
    stream: CUstream,
    status: *mut c_uint,
) -> CuResult {
    entry("cuStreamIsCapturing", || {
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

pub(super) unsafe extern "C" fn event_create(event: *mut CUevent, flags: c_uint) -> CuResult {
    entry("cuEventCreate", || {
        let known =
            abi::CU_EVENT_BLOCKING_SYNC | abi::CU_EVENT_DISABLE_TIMING | abi::CU_EVENT_INTERPROCESS;
        let shared_and_timed =
            flags & abi::CU_EVENT_INTERPROCESS != 0 && flags & abi::CU_EVENT_DISABLE_TIMING == 0;
        if flags & !known != 0 || shared_and_timed {
            return Err(Failure::invalid(format!("no event flags {flags:#x}")));
        }
        on_current("cuEventCreate", |state| {
            let serial = state.serial();
            if flags & abi::CU_EVENT_DISABLE_TIMING != 0 {
                state.untimed_events.insert(serial);
            }
            state.events.insert(serial, Event::New);
            let raw = registry::handle(Kind::Event, state.ordinal, serial);
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(event, raw as CUevent, "the event") }
        })
    })
}

pub(super) unsafe extern "C" fn event_destroy(event: CUevent) -> CuResult {
    entry("cuEventDestroy", || {
        let (device, serial) = named(event as u64, Kind::Event, "event")?;
        give_back("cuEventDestroy", &device, |state| {
            state.untimed_events.remove(&serial);
            let removed = state.events.remove(&serial);
            removed.map(|_| ()).ok_or_else(|| Failure::handle("event"))
        })
    })
}

pub(super) unsafe extern "C" fn event_record(event: CUevent, stream: CUstream) -> CuResult {
    entry("cuEventRecord", || {
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
    entry("cuEventSynchronize", || {
        let (device, event) = named(event as u64, Kind::Event, "event")?;
        device.lock().refuse_captured_event(event)?;
        refuse_unsafe_call("cuEventSynchronize")?;
        wait(
            "cuEventSynchronize",
            &device,
            |_| Ok(()),
            |state| state.event_complete(event, true),
        )
    })
}

/// Answers "not ready" once before it runs what the event waits for, so that callers must cope with both.
pub(super) unsafe extern "C" fn event_query(event: CUevent) -> CuResult {
    entry("cuEventQuery", || {
        let (device, event) = named(event as u64, Kind::Event, "event")?;
        device.lock().refuse_captured_event(event)?;
        refuse_unsafe_call("cuEventQuery")?;
        on_device("cuEventQuery", &device, |state| {
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
    entry("cuEventElapsedTime", || {
        let (device, start) = named(start as u64, Kind::Event, "event")?;
        let (_, end) = named(end as u64, Kind::Event, "event")?;
        on_device("cuEventElapsedTime", &device, |state| {
            let time = |event: u64| match state.events.get(&event) {
                _ if state.untimed_events.contains(&event) => Err(Failure::new(
                    CuResult::INVALID_HANDLE,
                    "the event was created without timing",
                )),
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
