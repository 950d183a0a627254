//! Memory of one process in another, by the handles of `cuIpcGetMemHandle`.

use std::ffi::{c_char, c_uint, c_void};
use std::process::Command;

use neap::driver::CuResult;
use neap::emulator::{self, entry_point};

use crate::surface::{alloc, fill, primary, read_word, release};
use crate::tiny;

/// Where the second process finds the handle.
const VARIABLE: &str = "NEAP_TEST_IPC_HANDLE";

#[repr(C)]
#[derive(Clone, Copy)]
struct Handle([c_char; 64]);

fn open(pointer: &mut u64, handle: Handle) -> CuResult {
    call!("cuIpcOpenMemHandle_v2"(pointer => *mut u64, handle => Handle, 1 => c_uint))
}

#[test]
fn another_process_reads_and_writes_the_same_memory() {
    let ordinal = emulator::add_device(tiny());
    primary(ordinal);
    let (other, data, mut handle) = (alloc(1 << 20), alloc(5 << 20), Handle([0; 64]));
    fill(other, 1, 4);
    fill(data, 41, 1);
    // A handle is the allocation's, whatever address in it is asked with.
    ok!("cuIpcGetMemHandle"(&mut handle => *mut Handle, data + 100 => u64));
    let mut own = 0u64;
    assert_eq!(open(&mut own, handle), CuResult::INVALID_CONTEXT, "its own");
    let text: Vec<String> = handle
        .0
        .iter()
        .map(|byte| (*byte as u8).to_string())
        .collect();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "two_processes::second_process", "--nocapture"])
        .env(VARIABLE, text.join(" "))
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(read_word(data), 42);
    assert_eq!(read_word(data + (5 << 20) - 4), 7);
    assert_eq!(read_word(other), 1);
    // Memory that is not cuMemAlloc's has no such handle, and what is freed cannot be opened.
    let mut managed = 0u64;
    ok!("cuMemAllocManaged"(&mut managed => *mut u64, 64 => usize, 1 => c_uint));
    assert_eq!(
        call!("cuIpcGetMemHandle"(&mut handle => *mut Handle, managed => u64)),
        CuResult::INVALID_VALUE
    );
    assert_eq!(open(&mut own, Handle([0; 64])), CuResult::INVALID_HANDLE);
    assert_eq!(
        call!("cuIpcCloseMemHandle"(data => u64)),
        CuResult::INVALID_VALUE
    );
    release(ordinal);
}

/// What the test above runs in another process; nothing without it.
#[test]
fn second_process() {
    let Ok(text) = std::env::var(VARIABLE) else {
        return;
    };
    let mut handle = Handle([0; 64]);
    for (place, byte) in handle.0.iter_mut().zip(text.split(' ')) {
        *place = byte.parse::<u8>().unwrap() as c_char;
    }
    let ordinal = emulator::add_device(tiny());
    primary(ordinal);
    let (mut data, mut again) = (0u64, 0u64);
    assert_eq!(
        open(&mut data, handle),
        CuResult::SUCCESS,
        "{:?}",
        emulator::last_error_detail()
    );
    assert_eq!(open(&mut again, handle), CuResult::SUCCESS);
    assert_eq!(data, again);
    assert_eq!(read_word(data), 41);
    fill(data, 42, 1);
    fill(data + (5 << 20) - 4, 7, 1);
    let mut size = 0usize;
    ok!("cuMemGetAddressRange_v2"(std::ptr::null_mut() => *mut u64, &mut size => *mut usize, data => u64));
    assert_eq!(size, 5 << 20);
    assert_eq!(
        call!("cuMemFree_v2"(data => u64)),
        CuResult::INVALID_VALUE,
        "another's"
    );
    ok!("cuIpcCloseMemHandle"(data => u64));
    assert_eq!(read_word(data), 42, "it was opened twice");
    ok!("cuIpcCloseMemHandle"(data => u64));
    assert_eq!(
        call!("cuIpcCloseMemHandle"(data => u64)),
        CuResult::INVALID_VALUE
    );
    // Its maker's process is there, and this is no memory of its device.
    handle.0[16] = 0;
    assert_ne!(open(&mut data, handle), CuResult::SUCCESS);
    release(ordinal);
    assert_eq!(emulator::report(ordinal).used_bytes(), 0);
}

#[test]
fn a_forked_process_has_no_driver() {
    let ordinal = emulator::add_device(tiny());
    primary(ordinal);
    // SAFETY: the child calls the driver, which refuses, and leaves without running anything of the test's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let again = call!("cuInit"(0 => c_uint));
        let other = call!("cuCtxSynchronize"());
        let refused = [again, other] == [CuResult::NOT_INITIALIZED; 2];
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    assert!(child > 0);
    let mut status = -1;
    // SAFETY: the child is this process's, and the place a live local.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    ok!("cuCtxSynchronize"());
    release(ordinal);
}
