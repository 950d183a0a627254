//! Memory that other processes write, unseen: it counts as written, and keeps its bounds.

use std::ffi::{c_char, c_int, c_uint};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::process::Command;

use crate::{Device, kernel};
use neap::driver::DevicePtr;
use neap::emulator::CheckKind;

/// Uses the words of 64 threads.
const USE: &str = "ld.global.u32 %r5, [%x];\nadd.u32 %r5, %r5, 1;\nst.global.u32 [%y], %r5;";
const FILE_DESCRIPTOR: c_uint = 1;

/// `CUmemAllocationProp` of memory of a device, to be shared by descriptors: type, kind of handle, location; no flags.
fn properties(device: u32) -> [u32; 8] {
    [1, FILE_DESCRIPTOR, 1, device, 0, 0, 0, 0]
}

/// Maps physical memory somewhere on the device.
fn map(device: &Device, handle: u64, bytes: usize) -> DevicePtr {
    let mut address = 0u64;
    ok!("cuMemAddressReserve"(&mut address => *mut u64, bytes => usize, 0 => usize, 0 => u64, 0 => u64));
    ok!("cuMemMap"(address => u64, bytes => usize, 0 => usize, handle => u64, 0 => u64));
    // `CUmemAccessDesc`: location, and rights to read and write.
    let access = [1, device.ordinal, 3];
    ok!("cuMemSetAccess"(address => u64, bytes => usize, &raw const access => *const [u32; 3], 1 => usize));
    DevicePtr(address)
}

#[test]
fn memory_with_a_descriptor_that_others_hold() {
    let device = Device::new(0);
    let bytes = device.context.device().granularity_bytes() as usize;
    let (own, mut handle, mut descriptor) = (properties(device.ordinal), 0u64, 0);
    ok!("cuMemCreate"(&mut handle => *mut u64, bytes => usize, &raw const own => *const [u32; 8], 0 => u64));
    let shared = map(&device, handle, bytes);
    let uses = |at: DevicePtr| {
        device.run(&kernel(4, USE), 1, 64, [at, device.at(65536)]);
        device.kinds()
    };
    assert_eq!(uses(shared), [CheckKind::UninitialisedGlobal], "not yet");
    ok!("cuMemExportToShareableHandle"(
        &mut descriptor => *mut c_int, handle => u64, FILE_DESCRIPTOR => c_uint, 0 => u64
    ));
    // SAFETY: the descriptor is new, and the caller's.
    let file = unsafe { File::from_raw_fd(descriptor) };
    file.write_all_at(&[3; 256], 1024).unwrap();
    assert_eq!(uses(shared.add(1024)), []);
    let mut word = [0; 4];
    device
        .stream
        .copy_to_host(&mut word, shared.add(1024))
        .unwrap();
    assert_eq!((word, device.kinds()), ([3; 4], vec![]));
    assert_eq!(uses(device.at(0)), [CheckKind::UninitialisedGlobal]);
}

#[test]
fn memory_with_a_descriptor_of_somebody_else() {
    let device = Device::new(0);
    let bytes = device.context.device().granularity_bytes() as usize;
    // SAFETY: the name is a NUL-terminated string.
    let descriptor = unsafe { libc::memfd_create(c"another's".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(descriptor >= 0);
    // SAFETY: the descriptor is new and owned by nobody else.
    let file = unsafe { File::from_raw_fd(descriptor) };
    file.set_len(bytes as u64).unwrap();
    let mut handle = 0u64;
    ok!("cuMemImportFromShareableHandle"(
        &mut handle => *mut u64, file.as_raw_fd() as usize => usize, FILE_DESCRIPTOR => c_uint
    ));
    let shared = map(&device, handle, bytes);
    let run = |at| device.launch(&device.stream, &kernel(4, USE), 1, 64, [at, at]);
    run(shared);
    device.stream.synchronize().unwrap();
    assert_eq!(device.kinds(), []);
    // The words of the last threads lie behind it.
    run(shared.add(bytes as u64 - 128));
    assert!(device.stream.synchronize().is_err());
    assert_eq!(device.kinds(), [CheckKind::OutOfBounds]);
}

/// Where the second process finds the handle.
const VARIABLE: &str = "NEAP_TEST_SHARED_HANDLE";
/// Bytes of the allocation, in a grain that is larger.
const BYTES: usize = 1000;

#[repr(C)]
#[derive(Clone, Copy)]
struct Handle([c_char; 64]);

#[test]
fn an_allocation_that_another_process_opens() {
    let device = Device::new(0);
    let (mut pointer, mut handle) = (0u64, Handle([0; 64]));
    ok!("cuMemAlloc_v2"(&mut pointer => *mut u64, BYTES => usize));
    ok!("cuIpcGetMemHandle"(&mut handle => *mut Handle, pointer => u64));
    let text: Vec<String> = handle.0.iter().map(|byte| byte.to_string()).collect();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sharing::second_process", "--nocapture"])
        .env(VARIABLE, text.join(" "))
        .status()
        .unwrap();
    assert!(status.success());
    let mut word = [0; 4];
    let pointer = DevicePtr(pointer);
    device.stream.copy_to_host(&mut word, pointer).unwrap();
    assert_eq!((word, device.kinds()), ([7; 4], vec![]));
}

/// What the test above runs in another process; nothing without it.
#[test]
fn second_process() {
    let Ok(text) = std::env::var(VARIABLE) else {
        return;
    };
    let mut handle = Handle([0; 64]);
    for (place, byte) in handle.0.iter_mut().zip(text.split(' ')) {
        *place = byte.parse().unwrap();
    }
    let device = Device::new(0);
    let mut pointer = 0u64;
    ok!("cuIpcOpenMemHandle_v2"(&mut pointer => *mut u64, handle => Handle, 1 => c_uint));
    let mut bytes = [0; BYTES];
    let shared = DevicePtr(pointer);
    device.stream.copy_to_host(&mut bytes, shared).unwrap();
    assert_eq!(device.kinds(), []);
    ok!("cuMemsetD8_v2"(pointer => u64, 7 => u8, BYTES => usize));
    device.context.synchronize().unwrap();
    assert_eq!(device.kinds(), []);
    ok!("cuMemsetD8_v2"(pointer => u64, 7 => u8, BYTES + 1 => usize));
    device.context.synchronize().unwrap();
    assert_eq!(device.kinds(), [CheckKind::OutOfBounds]);
    ok!("cuIpcCloseMemHandle"(pointer => u64));
}
