//! Sticky errors, injected failures, what `Drop` records, and the sentences errors make.

use std::sync::Arc;

use neap::driver::{
    AddressReservation, Context, CuResult, Driver, DriverError, Event, PhysicalAllocation,
    PinnedBuffer, Stream,
};
use neap::emulator;

use crate::{GRAIN, assert_nothing_left, context_on, mapped, tiny};

/// Unmapping under queued work is a use after free: the work faults when it runs, the context is
/// poisoned, and everything can still be given back.
#[test]
fn work_that_outlives_its_memory_poisons_the_context() {
    let (ordinal, context) = context_on(tiny());
    let stream = Stream::new(&context).unwrap();
    let block = mapped(&context, GRAIN);
    let event = Event::new(&context).unwrap();
    // SAFETY: deliberately wrong, on an emulator that checks: the block is unmapped before the fill runs.
    unsafe { stream.memset_d8_async(block.base(), 1, 64).unwrap() };
    block.unmap(0, GRAIN).unwrap();
    assert!(context.poison().is_none(), "faults surface at a wait");
    let error = stream.synchronize().unwrap_err();
    assert_eq!(error.code(), Some(CuResult::ILLEGAL_ADDRESS));
    assert!(
        error.to_string().starts_with(
            "cuStreamSynchronize failed with CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access"
        ),
        "{error}"
    );
    let fault = emulator::last_fault(ordinal).unwrap();
    assert!(
        fault.contains("fill: 64 bytes") && fault.contains("reserved"),
        "{fault}"
    );

    // Every later call refuses, without another driver call, and names the cause.
    let calls = emulator::report(ordinal).calls_of("cuMemGetInfo");
    let later = context.mem_info().unwrap_err();
    assert!(matches!(later, DriverError::Poisoned { .. }), "{later}");
    assert!(
        later.to_string().contains("cuMemGetInfo was not called")
            && later.to_string().contains("cuStreamSynchronize failed"),
        "{later}"
    );
    assert_eq!(emulator::report(ordinal).calls_of("cuMemGetInfo"), calls);
    assert!(event.record(&stream).is_err());

    // A second handle on the same context learns it from the driver.
    let device = Driver::emulator().device(ordinal).unwrap();
    let other = Context::retain_primary(&device);
    assert_eq!(other.unwrap_err().code(), Some(CuResult::ILLEGAL_ADDRESS));
    drop((event, stream, block));
    assert!(context.take_recorded_error().is_none());
    context.close().unwrap();
    assert_nothing_left(ordinal);

    // A new context starts clean.
    let context = Context::retain_primary(&device).unwrap();
    context.synchronize().unwrap();
    assert_eq!(
        emulator::last_fault(ordinal),
        Some(fault),
        "kept for the report at exit"
    );
}

#[test]
fn any_call_can_be_made_to_fail_at_its_nth_call() {
    let (ordinal, context) = context_on(tiny());
    emulator::fail_call(ordinal, "cuMemCreate", 2, CuResult::OUT_OF_MEMORY);
    let first = PhysicalAllocation::new(&context, GRAIN).unwrap();
    let used = emulator::report(ordinal).physical_bytes;
    let second = PhysicalAllocation::new(&context, GRAIN).unwrap_err();
    assert!(second.is_out_of_memory());
    assert_eq!(emulator::report(ordinal).physical_bytes, used);
    let third = PhysicalAllocation::new(&context, GRAIN).unwrap();
    drop((first, third));

    emulator::fail_call(ordinal, "cuCtxSynchronize", 1, CuResult::ECC_UNCORRECTABLE);
    assert!(context.synchronize().is_err());
    assert_eq!(
        context.poison().unwrap().code(),
        Some(CuResult::ECC_UNCORRECTABLE)
    );
    assert!(matches!(
        context.synchronize().unwrap_err(),
        DriverError::Poisoned { .. }
    ));
}

/// A code this build has no name for, from a newer driver, is carried as a number.
#[test]
fn unknown_codes_are_told_as_numbers() {
    let (ordinal, context) = context_on(tiny());
    emulator::fail_call(ordinal, "cuMemGetInfo", 1, CuResult(4242));
    let error = context.mem_info().unwrap_err();
    assert_eq!(error.code(), Some(CuResult(4242)));
    assert!(error.to_string().contains("4242"), "{error}");
    assert!(context.poison().is_none());
}

#[test]
fn what_drop_cannot_return_is_recorded_once() {
    let (ordinal, context) = context_on(tiny());
    let stream = Stream::new(&context).unwrap();
    emulator::fail_call(ordinal, "cuStreamDestroy", 1, CuResult::INVALID_HANDLE);
    drop(stream);
    let recorded = context.take_recorded_error().unwrap();
    assert!(
        recorded.to_string().contains("cuStreamDestroy"),
        "{recorded}"
    );
    assert!(context.take_recorded_error().is_none());

    // `close` returns it instead.
    let event = Event::new(&context).unwrap();
    emulator::fail_call(ordinal, "cuEventDestroy", 1, CuResult::INVALID_HANDLE);
    assert!(event.close().is_err());
    assert!(context.take_recorded_error().is_none());

    // The last `close` returns what nobody took.
    let buffer = PinnedBuffer::new(&context, 1).unwrap();
    emulator::fail_call(ordinal, "cuMemFreeHost", 1, CuResult::INVALID_VALUE);
    drop(buffer);
    let error = context.close().unwrap_err();
    assert!(error.to_string().contains("cuMemFreeHost"), "{error}");
    let report = emulator::report(ordinal);
    assert_eq!(
        (report.leaked.streams, report.leaked.events),
        (1, 1),
        "{report}"
    );
    assert_eq!(report.leaked.pinned_buffers, 1, "{report}");
}

#[test]
fn handles_keep_their_context_alive() {
    let (ordinal, context) = context_on(tiny());
    let stream = Stream::new(&context).unwrap();
    let error = context.close().unwrap_err();
    assert!(
        matches!(error, DriverError::InUse { holders: 1, .. }),
        "{error}"
    );
    stream.synchronize().unwrap();
    assert_eq!(emulator::report(ordinal).live.context_references, 1);
    drop(stream);
    assert_nothing_left(ordinal);
}

#[test]
fn mapped_memory_keeps_its_allocation_and_goes_with_its_reservation() {
    let (ordinal, context) = context_on(tiny());
    let reservation = AddressReservation::new(&context, 2 * GRAIN, 0).unwrap();
    for offset in [0, GRAIN] {
        let physical = PhysicalAllocation::new(&context, GRAIN).unwrap();
        reservation.map(offset, Arc::new(physical)).unwrap();
    }
    let live = emulator::report(ordinal).live;
    assert_eq!(
        (live.reservations, live.mappings, live.physical_allocations),
        (1, 2, 2)
    );
    drop(reservation);
    assert!(context.take_recorded_error().is_none());
    context.close().unwrap();
    assert_nothing_left(ordinal);
}

#[test]
fn ordinals_beyond_the_devices_are_refused() {
    let driver = Driver::emulator();
    let error = driver.device(1_000_000).unwrap_err();
    assert!(
        matches!(
            error,
            DriverError::NoSuchDevice {
                ordinal: 1_000_000,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("1000000"), "{error}");
}

/// Handles of one kind, of another device, or of destroyed objects are errors, never crashes.
#[test]
fn stale_and_foreign_handles_are_refused() {
    let (_, context) = context_on(tiny());
    let api = Driver::emulator().api();
    let mut event = std::ptr::null_mut();
    context.make_current().unwrap();
    // SAFETY: the pointer is to a live local.
    assert!(unsafe { (api.cu_event_create)(&mut event, 0) }.is_success());
    // SAFETY: the handle is alive and given back once.
    assert!(unsafe { (api.cu_event_destroy)(event) }.is_success());
    for bad in [event, std::ptr::without_provenance_mut(0x1234_5678)] {
        // SAFETY: handles are numbers to the emulator; it follows none.
        let result = unsafe { (api.cu_event_synchronize)(bad) };
        assert_eq!(result, CuResult::INVALID_HANDLE);
    }
    // SAFETY: as above.
    let result = unsafe { (api.cu_stream_synchronize)(event.cast()) };
    assert_eq!(result, CuResult::INVALID_HANDLE);
    assert!(emulator::last_error_detail().unwrap().contains("stream"));
}

#[test]
fn two_contexts_on_one_thread_do_not_mix() {
    let (first, a) = context_on(tiny());
    let (second, b) = context_on(tiny());
    let held = PhysicalAllocation::new(&a, 4 * GRAIN).unwrap();
    assert_eq!(
        b.mem_info().unwrap().free_bytes - a.mem_info().unwrap().free_bytes,
        4 * GRAIN
    );
    assert_eq!(emulator::report(first).physical_bytes, 4 * GRAIN);
    assert_eq!(emulator::report(second).physical_bytes, 0);
    // Memory of one device cannot be mapped into another's addresses.
    let reservation = AddressReservation::new(&b, 4 * GRAIN, 0).unwrap();
    let error = reservation.map(0, Arc::new(held)).unwrap_err();
    assert_eq!(error.code(), Some(CuResult::NOT_SUPPORTED));
}
