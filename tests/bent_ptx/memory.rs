//! Device memory between pages that nobody may touch: an access that the checks let through by mistake ends the process.

use std::sync::atomic::{AtomicU64, Ordering};

use neap::emulator::exec::{AccessError, DeviceMemory, GranuleTable};

const PAGE_BYTES: u64 = 4096;
/// Pages of memory, and of what lies on either side.
const PAGES: u64 = 8;

/// Memory of a few pages.
pub struct Memory {
    /// First byte of the whole mapping.
    mapping: u64,
    table: GranuleTable,
    next: AtomicU64,
}

impl Memory {
    pub fn new() -> Memory {
        let bytes = (3 * PAGES * PAGE_BYTES) as usize;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing.
        let mapping = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(mapping, libc::MAP_FAILED);
        let mapping = mapping as u64;
        let begin = mapping + PAGES * PAGE_BYTES;
        // SAFETY: the range lies in the mapping.
        let opened = unsafe {
            libc::mprotect(
                begin as *mut _,
                (PAGES * PAGE_BYTES) as usize,
                libc::PROT_READ | libc::PROT_WRITE,
            )
        };
        assert_eq!(opened, 0);
        let table = GranuleTable::new(mapping, PAGE_BYTES.trailing_zeros(), 3 * PAGES as usize);
        let rights = GranuleTable::READ | GranuleTable::WRITE | GranuleTable::RESERVED;
        table.set(begin, PAGES * PAGE_BYTES, rights);
        Memory {
            mapping,
            table,
            next: AtomicU64::new(begin),
        }
    }

    /// The first address behind the memory.
    pub fn end(&self) -> u64 {
        self.mapping + 2 * PAGES * PAGE_BYTES
    }

    /// Fresh memory, if there is as much.
    pub fn allocate(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let next = *self.next.get_mut();
        let address = next.checked_next_multiple_of(align.max(1))?;
        let end = address.checked_add(bytes)?;
        if end > self.end() {
            return None;
        }
        self.next.store(end, Ordering::Relaxed);
        Some(address)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, which nothing refers to any more.
        unsafe { libc::munmap(self.mapping as *mut _, (3 * PAGES * PAGE_BYTES) as usize) };
    }
}

impl DeviceMemory for Memory {
    fn check(&self, address: u64, bytes: u64, _: bool) -> Result<(), AccessError> {
        let begin = self.end() - PAGES * PAGE_BYTES;
        if bytes == 0
            || (address >= begin
                && address
                    .checked_add(bytes)
                    .is_some_and(|end| end <= self.end()))
        {
            return Ok(());
        }
        Err(AccessError::Unmapped)
    }

    fn granules(&self) -> &GranuleTable {
        &self.table
    }
}
