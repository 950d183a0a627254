//! Faults between launches, copies and the host.

use crate::{Device, kernel};
use neap::arena::{AllocationGate, Arena};
use neap::driver::{Context, Driver, DriverError, Event, MemoryUse, PinnedBuffer, Stream};
use neap::emulator::{self, CheckKind, CheckOptions, Profile};

const STORE: &str = "st.global.u32 [%y], %t;";
const COPY: &str = "ld.global.u32 %r5, [%x];\nst.global.u32 [%y], %r5;";

#[test]
fn streams_without_an_event() {
    for with_event in [true, false] {
        let device = Device::new(3);
        let other = Stream::new(&device.context).unwrap();
        let event = Event::new(&device.context).unwrap();
        let (a, b) = (device.at(0), device.at(65536));
        device.launch(&device.stream, &kernel(4, STORE), 4, 64, [a, a]);
        if with_event {
            event.record(&device.stream).unwrap();
            other.wait_event(&event).unwrap();
        }
        device.launch(&other, &kernel(4, COPY), 4, 64, [a, b]);
        device.context.synchronize().unwrap();
        let kinds = device.kinds();
        assert_eq!(
            kinds.contains(&CheckKind::StreamRace),
            !with_event,
            "{kinds:?}"
        );
        // What the host has waited for is in order for everybody.
        device.launch(&device.stream, &kernel(4, COPY), 4, 64, [b, a]);
        device.stream.synchronize().unwrap();
        device.launch(&other, &kernel(4, COPY), 4, 64, [a, b]);
        other.synchronize().unwrap();
        assert_eq!(device.kinds(), []);
    }
}

/// Streams that nothing orders run in any order; a seed always gives the same one.
#[test]
fn seeds_shuffle_streams() {
    let order = |seed: u64, wait_for_all: bool| {
        let device = Device::new(seed);
        let other = Stream::new(&device.context).unwrap();
        for (stream, value) in [(&device.stream, 1), (&other, 2), (&device.stream, 3)] {
            // SAFETY: the range is mapped for as long as the device lives.
            unsafe { stream.memset_d8_async(device.at(0), value, 4) }.unwrap();
        }
        if wait_for_all {
            device.context.synchronize().unwrap();
        } else {
            other.synchronize().unwrap();
            device.stream.synchronize().unwrap();
        }
        assert!(device.kinds().contains(&CheckKind::StreamRace));
        let mut last = [0; 1];
        device.stream.copy_to_host(&mut last, device.at(0)).unwrap();
        last[0]
    };
    for wait_for_all in [true, false] {
        let results: Vec<u8> = (1..=16).map(|seed| order(seed, wait_for_all)).collect();
        assert!(results.contains(&2) && results.contains(&3), "{results:?}");
        let again: Vec<u8> = (1..=16).map(|seed| order(seed, wait_for_all)).collect();
        assert_eq!(results, again);
    }
}

#[test]
fn branches_of_a_graph_without_an_edge() {
    for joined in [true, false] {
        let device = Device::new(1);
        let side = Stream::new(&device.context).unwrap();
        let (fork, join) = (
            Event::new(&device.context).unwrap(),
            Event::new(&device.context).unwrap(),
        );
        let (a, b, c) = (device.at(0), device.at(65536), device.at(131_072));
        device.stream.copy_to_device(a, &[0; 65536]).unwrap();
        let main = &device.stream;
        let (copy_ab, copy_bc) = (kernel(4, COPY), kernel(4, COPY));
        let load = |ptx: &str| {
            let module = neap::driver::Module::load(&device.context, ptx.as_bytes()).unwrap();
            module.kernel("k").unwrap()
        };
        let (first, second) = (load(&copy_ab), load(&copy_bc));
        let config = neap::driver::LaunchConfig {
            grid: [4, 1, 1],
            block: [64, 1, 1],
            shared_bytes: 0,
        };
        main.begin_capture().unwrap();
        fork.record(main).unwrap();
        side.wait_event(&fork).unwrap();
        // SAFETY: the emulator checks every access of the kernel, which takes two pointers.
        unsafe { side.launch(&first, config, &[a, b]) }.unwrap();
        join.record(&side).unwrap();
        if joined {
            main.wait_event(&join).unwrap();
        }
        // SAFETY: as above.
        unsafe { main.launch(&second, config, &[b, c]) }.unwrap();
        if !joined {
            main.wait_event(&join).unwrap();
        }
        let exec = main.end_capture().unwrap().instantiate().unwrap();
        exec.launch(main).unwrap();
        main.synchronize().unwrap();
        let kinds = device.kinds();
        assert_eq!(kinds.contains(&CheckKind::StreamRace), !joined, "{kinds:?}");
    }
}

#[test]
fn host_memory_touched_too_early() {
    let device = Device::new(1);
    let mut buffer = PinnedBuffer::new(&device.context, 64).unwrap();
    buffer.as_mut_slice().fill(1);
    // SAFETY: the buffer lives until the stream has been waited for.
    unsafe {
        device
            .stream
            .copy_htod_async(device.at(0), buffer.as_ptr(), 64)
    }
    .unwrap();
    buffer.as_mut_slice()[3] = 2;
    device.stream.synchronize().unwrap();
    assert_eq!(device.kinds(), [CheckKind::HostRace]);
    // SAFETY: as above.
    unsafe {
        device
            .stream
            .copy_htod_async(device.at(0), buffer.as_ptr(), 64)
    }
    .unwrap();
    // SAFETY: as above.
    unsafe {
        device
            .stream
            .copy_dtoh_async(buffer.as_mut_ptr(), device.at(0), 64)
    }
    .unwrap();
    device.stream.synchronize().unwrap();
    assert_eq!(
        device.kinds(),
        [],
        "in stream order, from and to one buffer"
    );
    assert_eq!(buffer.as_slice()[..5], [1, 1, 1, 2, 1]);
    // SAFETY: as above.
    unsafe {
        device
            .stream
            .copy_dtoh_async(buffer.as_mut_ptr(), device.at(0), 64)
    }
    .unwrap();
    assert!(
        buffer.as_slice().iter().all(|&byte| byte == 0xFF),
        "what is read too early shows"
    );
    device.stream.synchronize().unwrap();
    assert_eq!(device.kinds(), []);
}

#[test]
fn undefined_memory_copied_to_the_host() {
    let device = Device::new(0);
    device
        .stream
        .copy_to_device(device.at(0), &[1; 100])
        .unwrap();
    let mut bytes = [0; 101];
    device
        .stream
        .copy_to_host(&mut bytes[..100], device.at(0))
        .unwrap();
    assert_eq!(device.kinds(), []);
    device
        .stream
        .copy_to_host(&mut bytes, device.at(0))
        .unwrap();
    assert_eq!(device.kinds(), [CheckKind::UninitialisedGlobal]);
}

#[test]
fn objects_left_behind() {
    let mut profile = Profile::named("tiny").unwrap();
    profile.check = Some(CheckOptions::default().collecting());
    let ordinal = emulator::add_device(profile);
    let device = Driver::emulator().device(ordinal).unwrap();
    let context = Context::retain_primary(&device).unwrap();
    let stream = Stream::new(&context).unwrap();
    drop((stream, context));
    assert_eq!(emulator::take_check_reports(ordinal), []);
}

/// Runs a kernel that uses shared memory which nobody wrote; gives the device and the outcome.
fn uninitialised(profile: Profile) -> (u32, Result<(), DriverError>) {
    let ordinal = emulator::add_device(profile);
    let device = Driver::emulator().device(ordinal).unwrap();
    let context = Context::retain_primary(&device).unwrap();
    let stream = Stream::new(&context).unwrap();
    let body = "ld.shared.u32 %r1, [s];\nsetp.eq.u32 %p1, %r1, 0;\n@%p1 bra done;\ndone:";
    let module = neap::driver::Module::load(&context, kernel(4, body).as_bytes()).unwrap();
    let config = neap::driver::LaunchConfig {
        grid: [1, 1, 1],
        block: [32, 1, 1],
        shared_bytes: 0,
    };
    let none = neap::driver::DevicePtr::default();
    // SAFETY: the kernel touches no device memory.
    unsafe { stream.launch(&module.kernel("k").unwrap(), config, &[none, none]) }.unwrap();
    (ordinal, stream.synchronize())
}

#[test]
fn a_report_ends_the_contexts_life_unless_it_is_only_collected() {
    let mut profile = Profile::named("tiny").unwrap();
    profile.check = Some(CheckOptions::with_seed(1));
    let (ordinal, outcome) = uninitialised(profile);
    let error = outcome.unwrap_err();
    assert!(
        error.to_string().contains("CUDA_ERROR_LAUNCH_FAILED"),
        "{error}"
    );
    let fault = emulator::last_fault(ordinal).unwrap();
    assert!(fault.contains("uninitialised shared memory"), "{fault}");
}

/// `scripts/checked.sh` runs this before it believes that other suites are checked.
#[test]
fn the_environment_turns_the_mode_on() {
    let on = CheckOptions::from_environment().unwrap().is_some();
    let (_, outcome) = uninitialised(Profile::named("tiny").unwrap());
    assert_eq!(outcome.is_err(), on, "{outcome:?}");
}

#[test]
fn past_the_end_of_an_allocation_and_of_a_part_of_an_arena() {
    let gate = AllocationGate::new();
    let device = Device::new(1);
    let mut arena = Arena::reserve(&device.context, &gate, "test", 4 << 20).unwrap();
    arena.map_to(4 << 20).unwrap();
    let part = arena.alloc(1000, 256).unwrap();
    let next = arena.alloc(1024, 256).unwrap();
    // 256 threads write 1024 bytes: 24 more than the first part has.
    device.run(&kernel(4, STORE), 1, 250, [part, part]);
    device.run(&kernel(4, STORE), 1, 256, [next, next]);
    assert_eq!(device.kinds(), []);
    device.run(&kernel(4, STORE), 1, 256, [part, part]);
    let reports = device.reports();
    assert_eq!(reports[0].kind, CheckKind::OutOfBounds);
    let text = reports[0].to_string();
    for words in [
        "between two parts of the test arena",
        "behind 1000 bytes of the test arena",
    ] {
        assert!(text.contains(words), "{text}");
    }
    device.run(&kernel(4, STORE), 1, 257, [next, next]);
    assert_eq!(device.kinds(), [CheckKind::OutOfBounds]);
}

#[test]
fn released_memory_may_be_touched_by_what_was_issued_before() {
    let device = Device::new(1);
    let page = device.at(65536);
    let annotate = |memory_use| {
        let device = device.context.device();
        device.annotate(page, 4096, "page 3 of a pool", memory_use);
    };
    annotate(MemoryUse::HandedOut);
    device.launch(&device.stream, &kernel(4, STORE), 4, 64, [page, page]);
    annotate(MemoryUse::Withheld);
    device.stream.synchronize().unwrap();
    assert_eq!(device.kinds(), []);
    device.run(&kernel(4, STORE), 4, 64, [page, page]);
    let reports = device.reports();
    assert_eq!(reports[0].kind, CheckKind::UseAfterRelease);
    assert!(reports[0].message.contains("page 3 of a pool"));
    annotate(MemoryUse::HandedOut);
    device.run(&kernel(4, STORE), 4, 64, [page, page]);
    assert_eq!(device.kinds(), []);
}
