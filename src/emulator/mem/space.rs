//! What may be accessed: the part of a device's memory that launches read.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::emulator::exec::{AccessError, DeviceMemory, GranuleTable};

/// Addresses below this are null pointers with an offset.
const NULL_BYTES: u64 = 4096;

/// Page-locked host buffers, address to bytes: memory of the process, which all devices may use.
/// Unlike device memory, checked to the byte.
static PINNED: RwLock<BTreeMap<u64, u64>> = RwLock::new(BTreeMap::new());

/// Access rights of a device's window, and the peers whose memory its kernels may use.
#[derive(Debug)]
pub(crate) struct Space {
    table: GranuleTable,
    peers: RwLock<Vec<Arc<Space>>>,
}

impl Space {
    /// The grain is mapped, whatever its access rights.
    pub(crate) const MAPPED: u8 = 8;

    pub(crate) fn new(base: u64, bytes: u64, granularity_bytes: u64) -> Space {
        Space {
            table: GranuleTable::new(
                base,
                granularity_bytes.trailing_zeros(),
                (bytes / granularity_bytes) as usize,
            ),
            peers: RwLock::default(),
        }
    }

    pub(crate) fn set(&self, address: u64, bytes: u64, flags: u8) {
        self.table.set(address, bytes, flags);
    }

    /// Flags of the grain around an address.
    pub(crate) fn flags(&self, address: u64) -> u8 {
        self.table.get(address)
    }

    /// True where the address lies in the device's window.
    pub(crate) fn contains(&self, address: u64) -> bool {
        let bytes = (self.table.len() as u64) << self.table.shift();
        address.wrapping_sub(self.table.base()) < bytes
    }

    pub(crate) fn add_pinned(&self, address: u64, bytes: u64) {
        PINNED
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(address, bytes);
    }

    /// Bytes of the buffer that began at `address`, if there was one.
    pub(crate) fn remove_pinned(&self, address: u64) -> Option<u64> {
        PINNED
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&address)
    }

    /// True where page-locked memory holds part of the range.
    pub(crate) fn overlaps_pinned(&self, address: u64, bytes: u64) -> bool {
        let pinned = PINNED.read().unwrap_or_else(PoisonError::into_inner);
        let end = address.saturating_add(bytes);
        pinned
            .range(..end)
            .next_back()
            .is_some_and(|(&base, &len)| base + len > address)
    }

    /// Lets kernels of this device use another's memory, or no longer.
    pub(crate) fn set_peer(&self, peer: &Arc<Space>, enabled: bool) {
        let mut peers = self.peers.write().unwrap_or_else(PoisonError::into_inner);
        peers.retain(|known| !Arc::ptr_eq(known, peer));
        if enabled {
            peers.push(Arc::clone(peer));
        }
    }

    /// Checks a range that lies outside of the window: a peer's memory, or page-locked host memory.
    fn check_outside(&self, address: u64, bytes: u64, write: bool) -> Result<(), AccessError> {
        let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
        match peers.iter().find(|peer| peer.contains(address)) {
            Some(peer) => peer.check(address, bytes, write),
            None => self.check_pinned(address, bytes),
        }
    }

    /// True where the whole range lies in one page-locked buffer.
    pub(crate) fn is_pinned(&self, address: u64, bytes: u64) -> bool {
        self.check_pinned(address, bytes).is_ok()
    }

    fn check_pinned(&self, address: u64, bytes: u64) -> Result<(), AccessError> {
        let pinned = PINNED.read().unwrap_or_else(PoisonError::into_inner);
        match pinned.range(..=address).next_back() {
            Some((&base, &len)) if address - base < len => {
                if bytes <= len - (address - base) {
                    Ok(())
                } else {
                    Err(AccessError::PastEnd)
                }
            }
            _ => Err(AccessError::Unmapped),
        }
    }
}

impl DeviceMemory for Space {
    fn check(&self, address: u64, bytes: u64, write: bool) -> Result<(), AccessError> {
        if bytes == 0 {
            return Ok(());
        }
        if address < NULL_BYTES {
            return Err(AccessError::Null);
        }
        if !self.contains(address) {
            return self.check_outside(address, bytes, write);
        }
        let Some(last) = address.checked_add(bytes - 1) else {
            return Err(AccessError::PastEnd);
        };
        let wanted = if write {
            GranuleTable::WRITE
        } else {
            GranuleTable::READ
        };
        let grain = 1u64 << self.table.shift();
        let mut at = address;
        loop {
            let flags = self.table.get(at);
            if flags & wanted == 0 {
                return Err(if flags & Space::MAPPED != 0 {
                    AccessError::Denied
                } else if flags & GranuleTable::RESERVED != 0 {
                    AccessError::ReservedOnly
                } else if at == address {
                    AccessError::Unmapped
                } else {
                    AccessError::PastEnd
                });
            }
            at = (at & !(grain - 1)) + grain;
            if at > last {
                return Ok(());
            }
        }
    }

    fn granules(&self) -> &GranuleTable {
        &self.table
    }
}
