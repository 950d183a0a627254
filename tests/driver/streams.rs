//! Order within and between streams, and what the host may rely on.

use neap::driver::{DevicePtr, Event, PinnedBuffer, Stream};
use neap::emulator::{self, CheckKind};

use crate::{
    GRAIN, assert_nothing_left, assert_reported, check_options, context_on, mapped, tiny,
    tiny_collecting,
};

fn byte_at(stream: &Stream, address: DevicePtr) -> u8 {
    let mut byte = [0u8];
    stream.copy_to_host(&mut byte, address).unwrap();
    byte[0]
}

#[test]
fn work_runs_when_somebody_waits_and_not_before() {
    let (_, context) = context_on(tiny());
    let stream = Stream::new(&context).unwrap();
    let block = mapped(&context, GRAIN);
    let mut host = PinnedBuffer::new(&context, 16).unwrap();
    // SAFETY: the block is mapped and the buffer lives until the wait below.
    unsafe {
        stream.memset_d8_async(block.base(), 5, 16).unwrap();
    }
    // SAFETY: as above.
    unsafe {
        stream
            .copy_dtoh_async(host.as_mut_ptr(), block.base(), 16)
            .unwrap();
    }
    // The checked mode fills a buffer that a copy is to fill.
    let old = if check_options().is_some() { 0xFF } else { 0 };
    assert_eq!(host.as_slice(), [old; 16], "read before waiting");
    stream.synchronize().unwrap();
    assert_eq!(host.as_slice(), [5; 16]);
}

#[test]
fn pageable_sources_may_change_after_the_call_and_pinned_ones_may_not() {
    let (ordinal, context) = context_on(tiny_collecting());
    let stream = Stream::new(&context).unwrap();
    let block = mapped(&context, GRAIN);
    let mut pageable = [1u8; 16];
    let mut pinned = PinnedBuffer::new(&context, 16).unwrap();
    pinned.as_mut_slice().fill(1);
    // SAFETY: both sources live until the wait below.
    unsafe {
        stream
            .copy_htod_async(block.base(), pageable.as_ptr(), 16)
            .unwrap();
    }
    // SAFETY: as above.
    unsafe {
        stream
            .copy_htod_async(block.base().add(16), pinned.as_ptr(), 16)
            .unwrap();
    }
    pageable.fill(2);
    pinned.as_mut_slice().fill(2);
    stream.synchronize().unwrap();
    assert_eq!(byte_at(&stream, block.base()), 1);
    assert_eq!(byte_at(&stream, block.base().add(16)), 2);
    assert_reported(ordinal, &[CheckKind::HostRace]);
}

#[test]
fn events_order_streams_and_without_them_nothing_does() {
    let (ordinal, context) = context_on(tiny_collecting());
    let (a, b) = (
        Stream::new(&context).unwrap(),
        Stream::new(&context).unwrap(),
    );
    let block = mapped(&context, GRAIN);
    let (x, y) = (block.base(), block.base().add(64));
    let event = Event::new(&context).unwrap();
    assert!(event.query().unwrap(), "never recorded: complete");

    // With an event: b copies what a wrote.
    // SAFETY: the block is mapped until the end of the test.
    unsafe { a.memset_d8_async(x, 1, 64).unwrap() };
    event.record(&a).unwrap();
    b.wait_event(&event).unwrap();
    // SAFETY: as above.
    unsafe { b.copy_dtod_async(y, x, 64).unwrap() };
    b.synchronize().unwrap();
    assert_eq!(byte_at(&b, y), 1);
    assert_reported(ordinal, &[]);

    // Without: a's fill is held back until a is waited for, so b copies the old bytes; the checked mode shuffles streams.
    // SAFETY: as above.
    unsafe { a.memset_d8_async(x, 2, 64).unwrap() };
    // SAFETY: as above.
    unsafe { b.copy_dtod_async(y, x, 64).unwrap() };
    b.synchronize().unwrap();
    let copied = byte_at(&b, y);
    assert!(copied == 1 || check_options().is_some() && copied == 2);
    a.synchronize().unwrap();
    assert_eq!(byte_at(&a, x), 2);
    assert_reported(ordinal, &[CheckKind::StreamRace]);
}

#[test]
fn a_wait_means_the_record_at_the_time_of_the_call() {
    let (_, context) = context_on(tiny());
    let (a, b) = (
        Stream::new(&context).unwrap(),
        Stream::new(&context).unwrap(),
    );
    let block = mapped(&context, GRAIN);
    let (x, y) = (block.base(), block.base().add(64));
    let event = Event::new(&context).unwrap();
    // SAFETY: the block is mapped until the end of the test.
    unsafe { a.memset_d8_async(x, 1, 1).unwrap() };
    event.record(&a).unwrap();
    b.wait_event(&event).unwrap();
    // SAFETY: as above.
    unsafe { a.memset_d8_async(y, 2, 1).unwrap() };
    event.record(&a).unwrap();
    b.synchronize().unwrap();
    // The copy goes through b, so it does not run a's second fill; shuffled streams may.
    assert_eq!(byte_at(&b, x), 1);
    if check_options().is_none() {
        assert!(!event.query().unwrap(), "the second record is still queued");
    }
    event.synchronize().unwrap();
    assert_eq!(byte_at(&b, y), 2);
}

/// Two streams that wait for each other in turn, thousands of times: no recursion, no deadlock.
#[test]
fn long_chains_of_events_run() {
    let (_, context) = context_on(tiny());
    let streams = [
        Stream::new(&context).unwrap(),
        Stream::new(&context).unwrap(),
    ];
    let block = mapped(&context, GRAIN);
    let event = Event::new(&context).unwrap();
    for step in 0..5000u64 {
        let stream = &streams[(step % 2) as usize];
        stream.wait_event(&event).unwrap();
        // SAFETY: the block is mapped until the end of the test.
        unsafe {
            stream
                .copy_dtod_async(block.base().add(step + 1), block.base().add(step), 1)
                .unwrap();
        }
        if step == 0 {
            // SAFETY: as above.
            unsafe { stream.memset_d8_async(block.base().add(1), 77, 1).unwrap() };
        }
        event.record(stream).unwrap();
    }
    assert_eq!(byte_at(&streams[1], block.base().add(5000)), 77);
}

#[test]
fn blocking_streams_and_the_default_stream_wait_for_each_other() {
    let (ordinal, context) = context_on(tiny_collecting());
    let block = mapped(&context, GRAIN);
    let api = context.device().driver().api();
    let mut raw = std::ptr::null_mut();
    // SAFETY: the pointer is to a live local; flags 0 make a blocking stream.
    assert!(unsafe { (api.cu_stream_create_with_priority)(&mut raw, 0, 0) }.is_success());
    // SAFETY: the block is mapped and the stream is alive.
    assert!(unsafe { (api.cu_memset_d8_async)(block.base().0, 3, 8, raw) }.is_success());
    let mut host = [0u8; 8];
    // A copy in the default stream waits for the blocking stream.
    // SAFETY: the block is mapped and the buffer is 8 bytes long.
    let copied = unsafe { (api.cu_memcpy_dtoh)(host.as_mut_ptr().cast(), block.base().0, 8) };
    assert!(copied.is_success());
    assert_eq!(host, [3; 8]);
    assert_reported(ordinal, &[]);

    // It does not wait for a non-blocking one.
    let free = Stream::new(&context).unwrap();
    // SAFETY: the block is mapped.
    unsafe { free.memset_d8_async(block.base(), 4, 8).unwrap() };
    // SAFETY: as above.
    let copied = unsafe { (api.cu_memcpy_dtoh)(host.as_mut_ptr().cast(), block.base().0, 8) };
    assert!(copied.is_success());
    assert!(host == [3; 8] || check_options().is_some() && host == [4; 8]);
    free.synchronize().unwrap();
    assert_reported(ordinal, &[CheckKind::StreamRace]);
    // SAFETY: the stream was made above and is given back once.
    assert!(unsafe { (api.cu_stream_destroy)(raw) }.is_success());
}

#[test]
fn elapsed_time_is_a_model_of_bytes_over_bandwidth() {
    let mut profile = tiny();
    profile.copy_bytes_per_second = 1e9;
    let (ordinal, context) = context_on(profile);
    let stream = Stream::new(&context).unwrap();
    let block = mapped(&context, GRAIN);
    let (start, end) = (Event::new(&context).unwrap(), Event::new(&context).unwrap());
    assert!(
        Event::elapsed_ms(&start, &end).is_err(),
        "never recorded: no time"
    );
    start.record(&stream).unwrap();
    // SAFETY: both halves of the block are mapped.
    unsafe {
        stream
            .copy_dtod_async(block.base(), block.base().add(1 << 20), 500_000)
            .unwrap();
    }
    end.record(&stream).unwrap();
    end.synchronize().unwrap();
    let milliseconds = Event::elapsed_ms(&start, &end).unwrap();
    assert!((milliseconds - 1.0).abs() < 1e-3, "{milliseconds}");
    assert!(emulator::report(ordinal).modelled_busy_us >= 1000.0);
}

#[test]
fn queries_make_progress() {
    let (ordinal, context) = context_on(tiny());
    let stream = Stream::new(&context).unwrap();
    let block = mapped(&context, GRAIN);
    let event = Event::new(&context).unwrap();
    // SAFETY: the block is mapped.
    unsafe { stream.memset_d8_async(block.base(), 1, 1).unwrap() };
    event.record(&stream).unwrap();
    let mut polls = 0;
    while !event.query().unwrap() {
        polls += 1;
        assert!(polls < 10);
    }
    assert!(polls > 0, "work is held back at first");
    assert!(stream.query().unwrap());
    event.close().unwrap();
    stream.close().unwrap();
    block.close().unwrap();
    context.close().unwrap();
    assert_nothing_left(ordinal);
}
