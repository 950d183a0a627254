//! Threads of the program and streams: host functions that wait for a thread, and the default stream of each thread.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use neap::driver::CuResult;
use neap::emulator::{self, entry_point};

use crate::surface::{alloc, new_stream, primary, read_word, release};
use crate::tiny;

/// Waits for the flag at `data`, and clears it.
unsafe extern "C" fn wait_for_flag(data: *mut c_void) {
    // SAFETY: the tests pass a flag that outlives the stream's work.
    let flag = unsafe { &*data.cast::<AtomicBool>() };
    while !flag.swap(false, Ordering::AcqRel) {
        std::thread::yield_now();
    }
}

#[test]
fn a_host_function_may_wait_for_the_thread_that_asks_for_its_stream() {
    let ordinal = emulator::add_device(tiny());
    primary(ordinal);
    let (data, stream, flag) = (alloc(64), new_stream(), AtomicBool::new(false));
    let place = (&raw const flag).cast_mut().cast::<c_void>();
    ok!("cuLaunchHostFunc"(
        stream => u64, wait_for_flag => unsafe extern "C" fn(*mut c_void), place => *mut c_void
    ));
    ok!("cuMemsetD32Async"(data => u64, 9 => u32, 1 => usize, stream => u64));
    // The query begins it, and does not wait for it; other calls are served meanwhile.
    for _ in 0..3 {
        assert_eq!(call!("cuStreamQuery"(stream => u64)), CuResult::NOT_READY);
    }
    let other = alloc(64);
    ok!("cuMemsetD32_v2"(other => u64, 1 => u32, 1 => usize));
    flag.store(true, Ordering::Release);
    ok!("cuStreamSynchronize"(stream => u64));
    assert!(
        !flag.load(Ordering::Acquire),
        "it ran once, before the fill"
    );
    assert_eq!(read_word(data), 9);
    release(ordinal);
}

#[test]
fn host_functions_of_graphs_and_of_destroyed_streams_end_in_their_place() {
    let ordinal = emulator::add_device(tiny());
    primary(ordinal);
    let (data, stream, flag) = (alloc(64), new_stream(), AtomicBool::new(false));
    let place = (&raw const flag).cast_mut().cast::<c_void>();
    let (mut graph, mut exec) = (0u64, 0u64);
    ok!("cuStreamBeginCapture_v2"(stream => u64, 2 => c_uint));
    for word in [1u32, 2] {
        ok!("cuLaunchHostFunc"(
            stream => u64, wait_for_flag => unsafe extern "C" fn(*mut c_void), place => *mut c_void
        ));
        ok!("cuMemsetD32Async"(data => u64, word => u32, 1 => usize, stream => u64));
    }
    ok!("cuStreamEndCapture"(stream => u64, &mut graph => *mut u64));
    ok!("cuGraphInstantiateWithFlags"(&mut exec => *mut u64, graph => u64, 0 => u64));
    ok!("cuGraphLaunch"(exec => u64, stream => u64));
    // Destroying does not wait; the handle is gone at once, the work is not.
    ok!("cuStreamDestroy_v2"(stream => u64));
    assert_eq!(
        call!("cuStreamQuery"(stream => u64)),
        CuResult::INVALID_HANDLE
    );
    assert_eq!(emulator::report(ordinal).live.streams, 0);
    let setter = std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2 {
                flag.store(true, Ordering::Release);
                let begin = Instant::now();
                while flag.load(Ordering::Acquire) {
                    assert!(
                        begin.elapsed() < Duration::from_secs(60),
                        "nobody took the flag"
                    );
                    std::thread::yield_now();
                }
            }
        });
        call!("cuCtxSynchronize"())
    });
    assert_eq!(setter, CuResult::SUCCESS);
    assert_eq!(read_word(data), 2);
    ok!("cuGraphExecDestroy"(exec => u64));
    ok!("cuGraphDestroy"(graph => u64));
    release(ordinal);
}

static COUNTED: AtomicU32 = AtomicU32::new(0);

/// Takes its time, so that a call which does not wait would be seen.
unsafe extern "C" fn count_slowly(_: *mut c_void) {
    std::thread::sleep(Duration::from_millis(30));
    COUNTED.fetch_add(1, Ordering::AcqRel);
}

#[test]
fn what_waits_for_a_stream_waits_for_its_host_functions() {
    let ordinal = emulator::add_device(tiny());
    primary(ordinal);
    let data = alloc(64);
    ok!("cuMemsetD32_v2"(data => u64, 1 => u32, 1 => usize));
    let mut word = 0u32;
    let mut expected = 0;
    let mut counts = |wait: &mut dyn FnMut()| {
        // On the default stream, for which copies and frees wait.
        ok!("cuLaunchHostFunc"(
            0 => u64, count_slowly => unsafe extern "C" fn(*mut c_void), std::ptr::null_mut() => *mut c_void
        ));
        wait();
        expected += 1;
        assert_eq!(COUNTED.load(Ordering::Acquire), expected);
    };
    counts(&mut || ok!("cuMemcpyDtoH_v2"(&mut word => *mut u32, data => u64, 4 => usize)));
    counts(
        &mut || ok!("cuMemcpyDtoHAsync_v2"(&mut word => *mut u32, data => u64, 4 => usize, 0 => u64)),
    );
    counts(&mut || ok!("cuMemsetD32_v2"(data => u64, 1 => u32, 1 => usize)));
    counts(&mut || ok!("cuCtxSynchronize"()));
    counts(&mut || ok!("cuMemFree_v2"(data => u64)));
    counts(&mut || release(ordinal));
}

#[test]
fn per_thread_variants_use_the_threads_own_default_stream() {
    let ordinal = emulator::add_device(tiny());
    let context = primary(ordinal);
    let data = alloc(64);
    let id = |name: &'static str| {
        let mut id = u64::MAX;
        let code = match name {
            "cuStreamGetId" => call!("cuStreamGetId"(0 => u64, &mut id => *mut u64)),
            _ => call!("cuStreamGetId_ptsz"(0 => u64, &mut id => *mut u64)),
        };
        assert_eq!(code, CuResult::SUCCESS);
        id
    };
    let (legacy, own) = (id("cuStreamGetId"), id("cuStreamGetId_ptsz"));
    assert_ne!(legacy, own);
    assert_eq!(own, id("cuStreamGetId_ptsz"));
    let others = std::thread::spawn(move || {
        assert_eq!(call!("cuCtxSetCurrent"(context => u64)), CuResult::SUCCESS);
        let mut id = 0u64;
        assert_eq!(
            call!("cuStreamGetId_ptsz"(0 => u64, &mut id => *mut u64)),
            CuResult::SUCCESS
        );
        id
    });
    let others = others.join().unwrap();
    assert!(others != own && others != legacy);
    // Work issued there is that stream's: what is captured shows it.
    ok!("cuStreamBeginCapture_v2_ptsz"(0 => u64, 2 => c_uint));
    ok!("cuMemsetD32Async_ptsz"(data => u64, 5 => u32, 1 => usize, 0 => u64));
    let (mut graph, mut nodes) = (0u64, 0usize);
    ok!("cuStreamEndCapture_ptsz"(0 => u64, &mut graph => *mut u64));
    ok!("cuGraphGetNodes"(graph => u64, std::ptr::null_mut() => *mut u64, &mut nodes => *mut usize));
    assert_eq!(nodes, 1);
    ok!("cuGraphDestroy"(graph => u64));
    // cuGetProcAddress gives the same variant to who asks for it, and to who is built for it.
    let find = |symbol: &'static str, flags: u64| {
        let name = std::ffi::CString::new(symbol).unwrap();
        let mut address = std::ptr::null::<c_void>();
        ok!("cuGetProcAddress_v2"(
            name.as_ptr() => *const c_char, &mut address => *mut *const c_void, 13000 => c_int, flags => u64,
            std::ptr::null_mut() => *mut u32
        ));
        address
    };
    for name in ["cuLaunchKernel", "cuStreamGetId", "cuMemcpyHtoD"] {
        let (plain, variant) = (find(name, 1), find(name, 2));
        assert_ne!(plain, variant, "{name}");
        assert_eq!(find(name, 0), plain, "{name}");
    }
    assert_eq!(find("cuStreamGetId", 2), entry_point("cuStreamGetId_ptsz"));
    assert_eq!(find("cuMemcpyHtoD", 2), entry_point("cuMemcpyHtoD_v2_ptds"));
    assert_eq!(find("cuDeviceGet", 2), entry_point("cuDeviceGet"));
    release(ordinal);
}

#[test]
fn what_is_not_emulated_is_refused_by_name() {
    for name in [
        "cuTexObjectCreate",
        "cuGreenCtxCreate",
        "cuGraphConditionalHandleCreate",
        "cuIpcGetEventHandle",
    ] {
        let address = entry_point(name);
        // SAFETY: a function that is not emulated looks at none of its arguments.
        let refused = unsafe {
            std::mem::transmute::<*const c_void, unsafe extern "C" fn() -> CuResult>(address)
        };
        // SAFETY: as above.
        assert_eq!(unsafe { refused() }, CuResult::NOT_SUPPORTED);
        let detail = emulator::last_error_detail().unwrap();
        assert!(detail.starts_with(name), "{detail}");
    }
}
