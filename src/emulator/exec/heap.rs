//! The heap of the device run time: what `malloc` and `free` of kernels hand out.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::call::CallSite;
use super::fault::Fault;
use super::host_call::{argument, put_result};
use super::warp::{Ins, LANES, Warp};

/// Alignment of every piece, as CUDA promises.
const ALIGN_BYTES: u64 = 16;

/// A range of device memory from which kernels allocate.
#[derive(Debug)]
pub struct DeviceHeap {
    pieces: Mutex<Pieces>,
}

#[derive(Debug, Default)]
struct Pieces {
    /// Free ranges, address to bytes; never adjacent to each other.
    free: BTreeMap<u64, u64>,
    /// Allocated ranges.
    used: BTreeMap<u64, u64>,
}

impl DeviceHeap {
    /// A heap of `bytes` at a device address.
    #[must_use]
    pub fn new(address: u64, bytes: u64) -> DeviceHeap {
        let pieces = Pieces {
            free: BTreeMap::from([(address, bytes)]),
            used: BTreeMap::new(),
        };
        DeviceHeap {
            pieces: Mutex::new(pieces),
        }
    }

    fn pieces(&self) -> std::sync::MutexGuard<'_, Pieces> {
        // Both lists are whole whenever the lock is free.
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of `bytes` that nobody else has, 0 where the heap has no such piece.
    pub fn allocate(&self, bytes: u64) -> u64 {
        let Some(bytes) = bytes.max(1).checked_next_multiple_of(ALIGN_BYTES) else {
            return 0;
        };
        let mut pieces = self.pieces();
        let fit = pieces.free.iter().find(|(_, free)| **free >= bytes);
        let Some((&address, &free)) = fit else {
            return 0;
        };
        pieces.free.remove(&address);
        if free > bytes {
            pieces.free.insert(address + bytes, free - bytes);
        }
        pieces.used.insert(address, bytes);
        address
    }

    /// Takes a piece back; false where none begins at the address.
    pub fn release(&self, address: u64) -> bool {
        let mut pieces = self.pieces();
        let Some(mut bytes) = pieces.used.remove(&address) else {
            return false;
        };
        let mut address = address;
        if let Some((&before, &before_bytes)) = pieces.free.range(..address).next_back()
            && before + before_bytes == address
        {
            pieces.free.remove(&before);
            address = before;
            bytes += before_bytes;
        }
        if let Some(after_bytes) = pieces.free.remove(&(address + bytes)) {
            bytes += after_bytes;
        }
        pieces.free.insert(address, bytes);
        true
    }
}

/// `malloc(bytes)`: null where the heap is full or a launch has none.
pub(super) fn malloc(warp: &mut Warp, ip: *const Ins, site: &CallSite) -> *const Ins {
    let mask = warp.mask;
    for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
        let bytes = argument(warp, lane, site, 0);
        let heap = warp.calls.heap.as_deref();
        let address = heap.map_or(0, |heap| heap.allocate(bytes));
        put_result(warp, lane, site, &address.to_le_bytes());
    }
    ip.wrapping_add(1)
}

/// `free(pointer)`: nothing for null; a fault for what `malloc` did not give.
pub(super) fn free(warp: &mut Warp, ip: *const Ins, site: &CallSite) -> *const Ins {
    let mask = warp.mask;
    for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
        let address = argument(warp, lane, site, 0);
        let heap = warp.calls.heap.as_deref();
        if address != 0 && !heap.is_some_and(|heap| heap.release(address)) {
            let message =
                format!("free of {address:#x}, which malloc has not given or which was freed");
            return warp.fail(ip, lane as u32, |site| Fault::Unsupported { site, message });
        }
    }
    ip.wrapping_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_reused_and_merged() {
        let heap = DeviceHeap::new(0x1000, 64);
        let pieces: Vec<u64> = [1, 16, 17].map(|bytes| heap.allocate(bytes)).to_vec();
        assert_eq!(pieces, [0x1000, 0x1010, 0x1020]);
        assert_eq!(heap.allocate(1), 0);
        assert!(heap.release(0x1010) && !heap.release(0x1010));
        assert_eq!(heap.allocate(17), 0);
        assert!(heap.release(0x1000) && heap.release(0x1020));
        assert_eq!(heap.allocate(64), 0x1000);
        assert_eq!(heap.allocate(u64::MAX), 0);
    }
}
