//! Capture and graphs: what is recorded, what replay does, what capture refuses.

use neap::driver::{
    CaptureMode, Context, CuResult, DriverError, Event, NodeKind, PhysicalAllocation, PinnedBuffer,
    Stream,
};
use neap::emulator;

use crate::{GRAIN, MIB, assert_nothing_left, code_of, context_on, mapped, tiny};

#[test]
fn captured_work_does_not_run_and_replays_as_often_as_launched() {
    let (ordinal, context) = context_on(tiny());
    let stream = Stream::new(&context).unwrap();
    let block = mapped(&context, GRAIN);
    let mut input = PinnedBuffer::new(&context, 8).unwrap();
    let mut output = PinnedBuffer::new(&context, 8).unwrap();
    let (a, b) = (block.base(), block.base().add(256));
    stream.copy_to_device(a, &[0; 512]).unwrap();

    assert!(!stream.is_capturing().unwrap());
    stream.begin_capture().unwrap();
    assert!(stream.is_capturing().unwrap());
    // SAFETY: the block and both buffers live until the last launch is complete.
    unsafe { stream.copy_htod_async(a, input.as_ptr(), 8).unwrap() };
    // SAFETY: as above.
    unsafe { stream.memset_d8_async(a.add(4), 9, 1).unwrap() };
    // SAFETY: as above.
    unsafe { stream.copy_dtod_async(b, a, 8).unwrap() };
    // SAFETY: as above.
    unsafe { stream.copy_dtoh_async(output.as_mut_ptr(), b, 8).unwrap() };
    let graph = stream.end_capture().unwrap();
    assert!(!stream.is_capturing().unwrap());
    assert_eq!(
        graph.node_kinds().unwrap(),
        [
            NodeKind::MEMCPY,
            NodeKind::MEMSET,
            NodeKind::MEMCPY,
            NodeKind::MEMCPY
        ]
    );
    assert_eq!(graph.node_count().unwrap(), 4);
    assert!(graph.kernel_nodes().unwrap().is_empty());
    stream.synchronize().unwrap();
    assert_eq!(output.as_slice(), [0; 8], "capture runs nothing");

    let exec = graph.instantiate().unwrap();
    exec.upload(&stream).unwrap();
    for round in 1..=3u8 {
        input.as_mut_slice().fill(round);
        exec.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        let mut expected = [round; 8];
        expected[4] = 9;
        assert_eq!(output.as_slice(), expected);
    }
    // An executable graph does not need the graph it was made from.
    drop(graph);
    input.as_mut_slice().fill(7);
    exec.launch(&stream).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(output.as_slice()[0], 7);
    drop((exec, stream, block, input, output));
    context.close().unwrap();
    assert_nothing_left(ordinal);
}

#[test]
fn executable_graphs_cost_what_the_profile_says() {
    let mut profile = tiny();
    profile.graph_base_bytes = 3 * MIB;
    let (ordinal, context) = context_on(profile);
    let stream = Stream::new(&context).unwrap();
    let block = mapped(&context, GRAIN);
    stream.begin_capture().unwrap();
    // SAFETY: the graph is never launched.
    unsafe { stream.memset_d8_async(block.base(), 1, 1).unwrap() };
    let graph = stream.end_capture().unwrap();
    let before = context.mem_info().unwrap().free_bytes;
    let exec = graph.instantiate().unwrap();
    assert_eq!(before - context.mem_info().unwrap().free_bytes, 3 * MIB);
    assert_eq!(emulator::report(ordinal).graph_bytes, 3 * MIB);
    exec.close().unwrap();
    assert_eq!(context.mem_info().unwrap().free_bytes, before);

    let most = before / GRAIN * GRAIN;
    let _all = PhysicalAllocation::new(&context, most).unwrap();
    assert!(graph.instantiate().unwrap_err().is_out_of_memory());
}

/// Every call that no capture can hold, by name.
type Forbidden = (&'static str, fn(&Context) -> Result<(), DriverError>);

const FORBIDDEN: &[Forbidden] = &[
    ("cuMemCreate", |context| {
        PhysicalAllocation::new(context, GRAIN).map(|_| ())
    }),
    ("cuMemHostAlloc", |context| {
        PinnedBuffer::new(context, 64).map(|_| ())
    }),
    ("cuCtxSynchronize", |context| context.synchronize()),
    ("cuModuleLoadDataEx", |context| {
        neap::driver::Module::load(context, b".version 8.0\n.target sm_80\n").map(|_| ())
    }),
];

#[test]
fn allocation_and_waiting_are_refused_during_capture_and_end_it() {
    for (call, attempt) in FORBIDDEN {
        let (_, context) = context_on(tiny());
        let stream = Stream::new(&context).unwrap();
        stream.begin_capture().unwrap();
        let error = attempt(&context).unwrap_err();
        assert_eq!(
            error.code(),
            Some(CuResult::STREAM_CAPTURE_UNSUPPORTED),
            "{call}"
        );
        assert!(error.to_string().contains(call), "{error}");
        assert!(stream.is_capturing().unwrap(), "invalidated, not ended");
        assert_eq!(
            code_of(stream.end_capture()),
            CuResult::STREAM_CAPTURE_INVALIDATED
        );
        // The stream and the context are good afterwards.
        assert!(!stream.is_capturing().unwrap());
        context.synchronize().unwrap();
        stream.synchronize().unwrap();
    }
}

#[test]
fn a_capturing_stream_cannot_be_waited_for() {
    let (_, context) = context_on(tiny());
    let stream = Stream::new(&context).unwrap();
    for wait in [Stream::synchronize, |stream: &Stream| {
        stream.query().map(|_| ())
    }] {
        stream.begin_capture().unwrap();
        assert_eq!(code_of(wait(&stream)), CuResult::STREAM_CAPTURE_UNSUPPORTED);
        assert_eq!(
            code_of(stream.end_capture()),
            CuResult::STREAM_CAPTURE_INVALIDATED
        );
    }
}

#[test]
fn an_invalidated_capture_takes_no_more_work() {
    let (_, context) = context_on(tiny());
    let stream = Stream::new(&context).unwrap();
    let block = mapped(&context, GRAIN);
    stream.begin_capture().unwrap();
    assert!(PhysicalAllocation::new(&context, GRAIN).is_err());
    // SAFETY: the block is mapped.
    let filled = unsafe { stream.memset_d8_async(block.base(), 0, 1) };
    assert_eq!(code_of(filled), CuResult::STREAM_CAPTURE_INVALIDATED);
    assert!(stream.end_capture().is_err());
}

#[test]
fn modes_decide_who_may_allocate() {
    let (_, context) = context_on(tiny());
    let stream = Stream::new(&context).unwrap();
    let elsewhere = || {
        std::thread::scope(|scope| {
            let allocate = || PhysicalAllocation::new(&context, GRAIN).map(|_| ());
            scope.spawn(allocate).join().unwrap()
        })
    };
    stream.begin_capture_with(CaptureMode::Relaxed).unwrap();
    PhysicalAllocation::new(&context, GRAIN).unwrap();
    stream.end_capture().unwrap();

    stream.begin_capture_with(CaptureMode::ThreadLocal).unwrap();
    elsewhere().unwrap();
    stream.end_capture().unwrap();
}

#[test]
fn captures_are_ended_where_and_by_whom_they_were_begun() {
    let (_, context) = context_on(tiny());
    let stream = Stream::new(&context).unwrap();
    assert_eq!(code_of(stream.end_capture()), CuResult::ILLEGAL_STATE);
    stream.begin_capture().unwrap();
    assert_eq!(code_of(stream.begin_capture()), CuResult::ILLEGAL_STATE);
    let elsewhere = std::thread::scope(|scope| {
        let end = || stream.end_capture().map(|_| ());
        scope.spawn(end).join().unwrap()
    });
    assert_eq!(code_of(elsewhere), CuResult::STREAM_CAPTURE_WRONG_THREAD);
    stream.end_capture().unwrap();
}

#[test]
fn streams_fork_into_a_capture_and_must_join_it() {
    let (_, context) = context_on(tiny());
    let (origin, side) = (
        Stream::new(&context).unwrap(),
        Stream::new(&context).unwrap(),
    );
    let (fork, join) = (Event::new(&context).unwrap(), Event::new(&context).unwrap());
    let block = mapped(&context, GRAIN);
    let base = block.base();
    let record = |joined: bool| {
        origin.begin_capture().unwrap();
        // SAFETY: the block is mapped until the end of the test.
        unsafe { origin.memset_d8_async(base, 1, 64).unwrap() };
        fork.record(&origin).unwrap();
        side.wait_event(&fork).unwrap();
        assert!(side.is_capturing().unwrap());
        // SAFETY: as above.
        unsafe { side.copy_dtod_async(base.add(64), base, 64).unwrap() };
        join.record(&side).unwrap();
        if joined {
            origin.wait_event(&join).unwrap();
        }
        // SAFETY: as above.
        unsafe { origin.memset_d8_async(base, 2, 64).unwrap() };
        origin.end_capture()
    };
    assert_eq!(code_of(record(false)), CuResult::STREAM_CAPTURE_UNJOINED);
    assert!(!side.is_capturing().unwrap());
    let graph = record(true).unwrap();
    assert_eq!(graph.node_count().unwrap(), 3);
    let exec = graph.instantiate().unwrap();
    exec.launch(&origin).unwrap();
    let mut read = [0u8; 65];
    origin.copy_to_host(&mut read, base.add(63)).unwrap();
    assert_eq!(read[0], 2);
    assert_eq!(read[1..], [1; 64]);

    // Only the origin can end a capture.
    origin.begin_capture().unwrap();
    fork.record(&origin).unwrap();
    side.wait_event(&fork).unwrap();
    assert_eq!(
        code_of(side.end_capture()),
        CuResult::STREAM_CAPTURE_UNMATCHED
    );
    assert!(origin.end_capture().is_err());
}

#[test]
fn captures_are_isolated_from_the_outside_and_from_each_other() {
    let (_, context) = context_on(tiny());
    let (a, b) = (
        Stream::new(&context).unwrap(),
        Stream::new(&context).unwrap(),
    );
    let event = Event::new(&context).unwrap();
    event.record(&b).unwrap();
    a.begin_capture().unwrap();
    assert_eq!(
        code_of(a.wait_event(&event)),
        CuResult::STREAM_CAPTURE_ISOLATION
    );
    assert!(a.end_capture().is_err());

    a.begin_capture().unwrap();
    b.begin_capture().unwrap();
    event.record(&a).unwrap();
    assert_eq!(
        code_of(b.wait_event(&event)),
        CuResult::STREAM_CAPTURE_MERGE
    );
    assert!(a.end_capture().is_err());
    assert!(b.end_capture().is_err());

    // An event of a capture never completes, so nobody can wait for it.
    a.begin_capture_with(CaptureMode::Relaxed).unwrap();
    event.record(&a).unwrap();
    assert_eq!(code_of(event.synchronize()), CuResult::CAPTURED_EVENT);
    assert!(a.end_capture().is_err());
}

#[test]
fn the_default_stream_takes_no_part_in_captures() {
    let (_, context) = context_on(tiny());
    let block = mapped(&context, GRAIN);
    let api = context.device().driver().api();
    let legacy = std::ptr::null_mut();
    // SAFETY: capturing the default stream is refused.
    let begun = unsafe { (api.cu_stream_begin_capture)(legacy, CaptureMode::Relaxed as u32) };
    assert_eq!(begun, CuResult::STREAM_CAPTURE_UNSUPPORTED);
    let mut raw = std::ptr::null_mut();
    // SAFETY: the pointer is to a live local; flags 0 make a blocking stream.
    assert!(unsafe { (api.cu_stream_create_with_priority)(&mut raw, 0, 0) }.is_success());
    // SAFETY: the stream is alive.
    let begun = unsafe { (api.cu_stream_begin_capture)(raw, CaptureMode::Relaxed as u32) };
    assert!(begun.is_success());
    // SAFETY: the block is mapped.
    let filled = unsafe { (api.cu_memset_d8_async)(block.base().0, 0, 1, legacy) };
    assert_eq!(filled, CuResult::STREAM_CAPTURE_IMPLICIT);
    let mut graph = std::ptr::null_mut();
    // SAFETY: the stream is alive and the pointer is to a live local.
    let ended = unsafe { (api.cu_stream_end_capture)(raw, &mut graph) };
    assert_eq!(ended, CuResult::STREAM_CAPTURE_INVALIDATED);
    assert!(graph.is_null());
    // SAFETY: the stream was made above and is given back once.
    assert!(unsafe { (api.cu_stream_destroy)(raw) }.is_success());
}

#[test]
fn graphs_nest_by_being_launched_in_a_capture() {
    let (_, context) = context_on(tiny());
    let stream = Stream::new(&context).unwrap();
    let block = mapped(&context, GRAIN);
    stream.begin_capture().unwrap();
    // SAFETY: the block is mapped until the end of the test.
    unsafe { stream.memset_d8_async(block.base(), 6, 4).unwrap() };
    let inner = stream.end_capture().unwrap().instantiate().unwrap();
    stream.begin_capture().unwrap();
    inner.launch(&stream).unwrap();
    // SAFETY: as above.
    unsafe {
        stream
            .copy_dtod_async(block.base().add(4), block.base(), 4)
            .unwrap();
    }
    let outer = stream.end_capture().unwrap();
    assert_eq!(
        outer.node_kinds().unwrap(),
        [NodeKind::GRAPH, NodeKind::MEMCPY]
    );
    outer.instantiate().unwrap().launch(&stream).unwrap();
    let mut read = [0u8; 8];
    stream.copy_to_host(&mut read, block.base()).unwrap();
    assert_eq!(read, [6; 8]);
}
