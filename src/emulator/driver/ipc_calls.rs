//! Memory of another process by a handle: `cuIpcGetMemHandle` and what takes its handles.
//!
//! The memory of a device is a file that has no name. A handle says which process has it open as which descriptor, and which
//! part of it the allocation is; whoever may look into that process's descriptors (the same user) maps the same part. Events
//! of other processes are refused: `CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED` says so.

use std::ffi::c_uint;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;

use super::allocations::{Allocation, Origin};
use super::arguments::{Out, calls};
use super::entry::{give_back_idle, on_current};
use super::failure::Failure;
use super::registry;
use super::state::State;
use crate::driver::CuResult;
use crate::driver::abi::CUipcMemHandle;
use crate::emulator::mem::MEMORY_FILE_NAME;

const MAGIC: u64 = u64::from_le_bytes(*b"neap-ipc");
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`: a hint, here.
const LAZY_PEER_ACCESS: c_uint = 1;

/// What the 64 bytes of a handle say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shared {
    process: u64,
    descriptor: u64,
    /// Place of the allocation in the file, in bytes.
    offset: u64,
    /// Bytes of it that are mapped, and that were asked for.
    mapped_bytes: u64,
    bytes: u64,
    /// Number of the allocation in its process.
    serial: u64,
}

impl Shared {
    fn pack(self) -> CUipcMemHandle {
        let words = [
            MAGIC,
            self.process,
            self.descriptor,
            self.offset,
            self.mapped_bytes,
            self.bytes,
            self.serial,
            0,
        ];
        let mut reserved = [0; 64];
        for (place, byte) in reserved
            .iter_mut()
            .zip(words.iter().flat_map(|word| word.to_le_bytes()))
        {
            *place = byte as std::ffi::c_char;
        }
        CUipcMemHandle { reserved }
    }

    fn unpack(handle: &CUipcMemHandle) -> Result<Shared, Failure> {
        let bytes = handle.reserved.map(|byte| byte as u8);
        let mut words = [0u64; 8];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [
            magic,
            process,
            descriptor,
            offset,
            mapped_bytes,
            bytes,
            serial,
            zero,
        ] = words;
        let whole = magic == MAGIC
            && zero == 0
            && (1..=mapped_bytes).contains(&bytes)
            && offset.checked_add(mapped_bytes).is_some();
        if !whole {
            return Err(Failure::handle("IPC memory"));
        }
        Ok(Shared {
            process,
            descriptor,
            offset,
            mapped_bytes,
            bytes,
            serial,
        })
    }
}

impl State {
    fn share(&mut self, pointer: u64) -> Result<Shared, Failure> {
        let unknown = || Failure::invalid("the pointer lies in no allocation of cuMemAlloc");
        let allocation = *self
            .allocation_at(pointer)
            .filter(|allocation| allocation.origin == Origin::Linear)
            .ok_or_else(unknown)?;
        let memory = self.memory()?;
        let backing = memory.backing(allocation.block.address);
        let (file, offset) = backing.ok_or_else(unknown)?;
        if let Some(physical) = memory.allocation_at(allocation.block.address) {
            memory.shared(physical);
        }
        Ok(Shared {
            process: std::process::id().into(),
            descriptor: file.as_raw_fd() as u64,
            offset,
            mapped_bytes: allocation.block.bytes,
            bytes: allocation.bytes,
            serial: allocation.serial,
        })
    }

    /// Maps what another process shares; gives the address, the same one for a handle that is open already.
    fn open_shared(&mut self, shared: Shared) -> Result<u64, Failure> {
        if shared.process == u64::from(std::process::id()) {
            return Err(Failure::new(
                CuResult::INVALID_CONTEXT,
                "a process cannot open a handle of its own: it has the pointer",
            ));
        }
        let known = self
            .device_allocations
            .iter_mut()
            .find_map(|(&address, allocation)| match &mut allocation.origin {
                Origin::Ipc {
                    serial,
                    process,
                    opened,
                } if (*serial, *process) == (shared.serial, shared.process) => {
                    *opened += 1;
                    Some(address)
                }
                _ => None,
            });
        if let Some(address) = known {
            return Ok(address);
        }
        let path = format!("/proc/{}/fd/{}", shared.process, shared.descriptor);
        let gone = |reason: String| {
            Failure::new(
                CuResult::MAP_FAILED,
                format!(
                    "the memory of process {} cannot be opened: {reason}",
                    shared.process
                ),
            )
        };
        let target = std::fs::read_link(&path).map_err(|error| gone(error.to_string()))?;
        if !target.to_string_lossy().contains(MEMORY_FILE_NAME) {
            return Err(gone("it has closed it".to_owned()));
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|error| gone(error.to_string()))?;
        let end = file
            .metadata()
            .map_err(|error| gone(error.to_string()))?
            .len();
        if shared.offset + shared.mapped_bytes > end {
            return Err(gone("it has freed it".to_owned()));
        }
        let id = self.serial();
        let block = self
            .memory()?
            .map_file(id, file, shared.offset, shared.mapped_bytes)?;
        let origin = Origin::Ipc {
            process: shared.process,
            serial: shared.serial,
            opened: 1,
        };
        self.enter_allocation(block, shared.bytes, origin);
        self.check_tail(block.address, shared.bytes, block.bytes);
        self.note_peak();
        Ok(block.address)
    }

    fn close_shared(&mut self, address: u64) -> Result<(), Failure> {
        let opened = match self.device_allocations.get_mut(&address) {
            Some(Allocation {
                origin: Origin::Ipc { opened, .. },
                ..
            }) => {
                *opened -= 1;
                *opened
            }
            _ => {
                return Err(Failure::invalid(
                    "no memory of another process begins at this address",
                ));
            }
        };
        if opened == 0 {
            self.free_allocation(address)?;
        }
        Ok(())
    }
}

calls! {
    "cuIpcGetMemHandle" fn ipc_get_mem_handle(handle: Out<CUipcMemHandle>, pointer: u64) {
        let device = registry::device_of_address(pointer)
            .ok_or_else(|| Failure::invalid("the address belongs to no device"))?;
        let shared = super::entry::on_device(CALL, &device, |state| state.share(pointer))?;
        handle.put(shared.pack(), "the handle")
    }

    "cuIpcOpenMemHandle_v2" fn ipc_open_mem_handle(pointer: Out<u64>, handle: CUipcMemHandle, flags: c_uint) {
        pointer.required("the pointer")?;
        if flags & !LAZY_PEER_ACCESS != 0 {
            return Err(Failure::invalid(format!("no flags {flags:#x}")));
        }
        let shared = Shared::unpack(&handle)?;
        on_current(CALL, |state| pointer.put(state.open_shared(shared)?, "the pointer"))
    }

    "cuIpcCloseMemHandle" fn ipc_close_mem_handle(pointer: u64) {
        let device = registry::device_of_address(pointer)
            .ok_or_else(|| Failure::invalid("the address belongs to no device"))?;
        give_back_idle(CALL, &device, |state| state.close_shared(pointer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_says_what_was_put_into_it_and_a_damaged_one_nothing() {
        let shared = Shared {
            process: 7,
            descriptor: 9,
            offset: 1 << 21,
            mapped_bytes: 1 << 21,
            bytes: 1000,
            serial: 3,
        };
        let handle = shared.pack();
        assert_eq!(Shared::unpack(&handle).unwrap(), shared);
        let mut wrong = handle;
        wrong.reserved[0] ^= 1;
        assert!(Shared::unpack(&wrong).is_err());
        let empty = Shared { bytes: 0, ..shared };
        assert!(Shared::unpack(&empty.pack()).is_err());
        let endless = Shared {
            offset: u64::MAX,
            ..shared
        };
        assert!(Shared::unpack(&endless.pack()).is_err());
    }
}
