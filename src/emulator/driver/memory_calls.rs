//! Entry points of plain allocation, page-locked host memory, copies and fills.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use cuda_driver_sys::{CUdeviceptr, CUstream};

use super::capture::refuse_unsafe_call;
use super::entry::{entry, give_back, named, on_current, on_device, write};
use super::failure::Failure;
use super::registry::{self, EmulatedDevice, Kind};
use super::state::{LEGACY, State};
use super::work::{HostSource, Work};
use crate::driver::CuResult;
use crate::emulator::exec::DeviceMemory;

/// `CU_STREAM_LEGACY`: the default stream by another name.
const STREAM_LEGACY: u64 = 1;

/// The device and serial a stream handle names; the default stream is that of the current context.
pub(super) fn of_stream(stream: CUstream) -> Result<(Arc<EmulatedDevice>, u64), Failure> {
    match stream as u64 {
        0 | STREAM_LEGACY => Ok((registry::current_device()?, LEGACY)),
        raw => named(raw, Kind::Stream, "stream"),
    }
}

pub(super) unsafe extern "C" fn mem_alloc(pointer: *mut CUdeviceptr, bytes: usize) -> CuResult {
    entry(|| {
        refuse_unsafe_call("cuMemAlloc")?;
        on_current("cuMemAlloc", |state| {
            if bytes == 0 {
                return Err(Failure::invalid("0 bytes cannot be allocated"));
            }
            let block = state.allocate(bytes as u64, "the allocation")?;
            state.device_allocations.insert(block.address, block);
            state.check_tail(block.address, bytes as u64, block.bytes);
            state.note_peak();
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(pointer, block.address, "the pointer") }
        })
    })
}

pub(super) unsafe extern "C" fn mem_free(pointer: CUdeviceptr) -> CuResult {
    entry(|| {
        refuse_unsafe_call("cuMemFree")?;
        if pointer == 0 {
            return Ok(());
        }
        let device = registry::device_of_address(pointer)
            .ok_or_else(|| Failure::invalid("the address belongs to no device"))?;
        give_back("cuMemFree", &device, |state| {
            state.drain_all();
            let block = state
                .device_allocations
                .remove(&pointer)
                .ok_or_else(|| Failure::invalid("no allocation begins at this address"))?;
            Ok(state.memory()?.free_block(block)?)
        })
    })
}

pub(super) unsafe extern "C" fn mem_host_alloc(
    pointer: *mut *mut c_void,
    bytes: usize,
    _flags: c_uint,
) -> CuResult {
    entry(|| {
        refuse_unsafe_call("cuMemHostAlloc")?;
        on_current("cuMemHostAlloc", |state| {
            let address = state.allocate_pinned(bytes)?;
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(pointer, address as *mut c_void, "the pointer") }
        })
    })
}

pub(super) unsafe extern "C" fn mem_free_host(pointer: *mut c_void) -> CuResult {
    entry(|| {
        refuse_unsafe_call("cuMemFreeHost")?;
        let device = registry::current_device()?;
        give_back("cuMemFreeHost", &device, |state| {
            state.drain_all();
            state.free_pinned(pointer as u64)
        })
    })
}

pub(super) unsafe extern "C" fn memcpy_htod(
    destination: CUdeviceptr,
    source: *const c_void,
    bytes: usize,
) -> CuResult {
    entry(|| {
        refuse_unsafe_call("cuMemcpyHtoD")?;
        on_current("cuMemcpyHtoD", |state| {
            state.copy_to_device(LEGACY, destination, source as usize, bytes)?;
            state.drain_stream(LEGACY);
            state.alive()
        })
    })
}

pub(super) unsafe extern "C" fn memcpy_dtoh(
    destination: *mut c_void,
    source: CUdeviceptr,
    bytes: usize,
) -> CuResult {
    entry(|| {
        refuse_unsafe_call("cuMemcpyDtoH")?;
        on_current("cuMemcpyDtoH", |state| {
            state.copy_to_host(LEGACY, destination as usize, source, bytes)?;
            state.drain_stream(LEGACY);
            state.alive()
        })
    })
}

pub(super) unsafe extern "C" fn memcpy_htod_async(
    destination: CUdeviceptr,
    source: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> CuResult {
    entry(|| {
        let (device, stream) = of_stream(stream)?;
        on_device("cuMemcpyHtoDAsync", &device, |state| {
            state.copy_to_device(stream, destination, source as usize, bytes)
        })
    })
}

pub(super) unsafe extern "C" fn memcpy_dtoh_async(
    destination: *mut c_void,
    source: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CuResult {
    entry(|| {
        let (device, stream) = of_stream(stream)?;
        on_device("cuMemcpyDtoHAsync", &device, |state| {
            state.copy_to_host(stream, destination as usize, source, bytes)
        })
    })
}

pub(super) unsafe extern "C" fn memcpy_dtod_async(
    destination: CUdeviceptr,
    source: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CuResult {
    entry(|| {
        let (device, stream) = of_stream(stream)?;
        on_device("cuMemcpyDtoDAsync", &device, |state| {
            state.device_range(destination, bytes, true)?;
            state.device_range(source, bytes, false)?;
            state.issue(
                stream,
                Work::Within {
                    destination,
                    source,
                    bytes,
                },
            )
        })
    })
}

pub(super) unsafe extern "C" fn memset_d8_async(
    destination: CUdeviceptr,
    value: u8,
    count: usize,
    stream: CUstream,
) -> CuResult {
    entry(|| {
        let (device, stream) = of_stream(stream)?;
        on_device("cuMemsetD8Async", &device, |state| {
            state.fill(stream, destination, u32::from(value), 1, count)
        })
    })
}

pub(super) unsafe extern "C" fn memset_d32_async(
    destination: CUdeviceptr,
    value: c_uint,
    count: usize,
    stream: CUstream,
) -> CuResult {
    entry(|| {
        let (device, stream) = of_stream(stream)?;
        on_device("cuMemsetD32Async", &device, |state| {
            state.fill(stream, destination, value, 4, count)
        })
    })
}

impl State {
    /// Physical memory with addresses of its own.
    pub(super) fn allocate(
        &mut self,
        bytes: u64,
        what: &str,
    ) -> Result<crate::emulator::mem::Block, Failure> {
        let grain = self.profile.granularity_bytes;
        let bytes = bytes
            .checked_next_multiple_of(grain)
            .ok_or_else(|| Failure::from(CuResult::OUT_OF_MEMORY))?;
        self.room_for(bytes, what)?;
        let id = self.serial();
        let limit = self.poison_limit_bytes();
        Ok(self.memory()?.allocate(id, bytes, limit)?)
    }

    /// Bytes of poisoned memory that may be alive.
    pub(super) fn poison_limit_bytes(&self) -> u64 {
        if self.profile.poison {
            self.profile.poison_limit_bytes
        } else {
            0
        }
    }

    fn allocate_pinned(&mut self, bytes: usize) -> Result<u64, Failure> {
        if bytes == 0 {
            return Err(Failure::invalid("0 bytes cannot be allocated"));
        }
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(Failure::new(
                CuResult::OUT_OF_MEMORY,
                format!("the host has no {bytes} bytes for a page-locked buffer"),
            ));
        }
        self.memory()?
            .space()
            .add_pinned(address as u64, bytes as u64);
        self.pinned.insert(address as u64, bytes);
        Ok(address as u64)
    }

    /// Frees a page-locked buffer.
    pub(super) fn free_pinned(&mut self, address: u64) -> Result<(), Failure> {
        let Some(bytes) = self.pinned.remove(&address) else {
            return Err(Failure::invalid(
                "no page-locked buffer begins at this address",
            ));
        };
        self.memory()?.space().remove_pinned(address);
        // SAFETY: this is the whole range that `allocate_pinned` got.
        unsafe { libc::munmap(address as *mut c_void, bytes) };
        Ok(())
    }

    /// Checks a device range at the call, as the driver does, with the code it uses.
    fn device_range(&mut self, address: u64, bytes: usize, write: bool) -> Result<(), Failure> {
        let space = Arc::clone(self.memory()?.space());
        space.check(address, bytes as u64, write).map_err(|reason| {
            Failure::invalid(format!(
                "{bytes} bytes at {address:#x} are not accessible device memory: {reason}"
            ))
        })
    }

    fn copy_to_device(
        &mut self,
        stream: u64,
        destination: u64,
        source: usize,
        bytes: usize,
    ) -> Result<(), Failure> {
        if bytes == 0 {
            return Ok(());
        }
        if source == 0 {
            return Err(Failure::null("the source"));
        }
        self.device_range(destination, bytes, true)?;
        let source = if self
            .memory()?
            .space()
            .is_pinned(source as u64, bytes as u64)
        {
            HostSource::Pinned(source)
        } else if self.stream(stream)?.capture.is_some() {
            HostSource::Pageable(source)
        } else {
            // The driver has read pageable memory when the call returns.
            // SAFETY: the caller passes `bytes` of readable host memory.
            let bytes = unsafe { std::slice::from_raw_parts(source as *const u8, bytes) };
            HostSource::Snapshot(Arc::from(bytes))
        };
        self.issue(
            stream,
            Work::ToDevice {
                destination,
                source,
                bytes,
            },
        )
    }

    fn copy_to_host(
        &mut self,
        stream: u64,
        destination: usize,
        source: u64,
        bytes: usize,
    ) -> Result<(), Failure> {
        if bytes == 0 {
            return Ok(());
        }
        if destination == 0 {
            return Err(Failure::null("the destination"));
        }
        self.device_range(source, bytes, false)?;
        let pinned = self
            .memory()?
            .space()
            .is_pinned(destination as u64, bytes as u64);
        self.issue(
            stream,
            Work::ToHost {
                destination,
                pinned,
                source,
                bytes,
            },
        )?;
        if !pinned && self.stream(stream)?.capture.is_none() {
            // The driver has written pageable memory when the call returns.
            self.drain_stream(stream);
            self.alive()?;
        }
        Ok(())
    }

    fn fill(
        &mut self,
        stream: u64,
        destination: u64,
        value: u32,
        width: usize,
        count: usize,
    ) -> Result<(), Failure> {
        if count == 0 {
            return Ok(());
        }
        if !destination.is_multiple_of(width as u64) {
            return Err(Failure::invalid(format!(
                "{destination:#x} is not a multiple of {width}"
            )));
        }
        let bytes = count
            .checked_mul(width)
            .ok_or_else(|| Failure::invalid("the range wraps around"))?;
        self.device_range(destination, bytes, true)?;
        self.issue(
            stream,
            Work::Fill {
                destination,
                value,
                width,
                count,
            },
        )
    }
}
