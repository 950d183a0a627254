//! What the interpreter may ask of device memory: which addresses exist and how they may be used.
//!
//! A device address of the emulator *is* a host address of this process, so a kernel's load is a host load once the
//! address has been checked. The check is one byte per granule, read inline by the interpreter; everything the table
//! cannot answer (pinned host memory, exact error causes) goes through [`DeviceMemory::check`].

use std::sync::atomic::{AtomicU8, Ordering};

/// Access rights of every granule of one address range, one byte a granule.
#[derive(Debug)]
pub struct GranuleTable {
    base: u64,
    shift: u32,
    flags: Box<[AtomicU8]>,
}

impl GranuleTable {
    /// The granule has physical memory behind it and may be read.
    pub const READ: u8 = 1;
    /// The granule has physical memory behind it and may be written.
    pub const WRITE: u8 = 2;
    /// The granule belongs to an address reservation (it may have nothing behind it).
    pub const RESERVED: u8 = 4;

    /// A table for `granules` granules of `1 << shift` bytes from address `base` on, all without access.
    pub fn new(base: u64, shift: u32, granules: usize) -> GranuleTable {
        let mut flags = Vec::with_capacity(granules);
        flags.resize_with(granules, || AtomicU8::new(0));
        GranuleTable {
            base,
            shift,
            flags: flags.into_boxed_slice(),
        }
    }

    /// First address the table covers.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// log2 of the bytes of a granule.
    pub fn shift(&self) -> u32 {
        self.shift
    }

    /// Number of granules the table covers.
    pub fn len(&self) -> usize {
        self.flags.len()
    }

    /// Whether the table covers nothing.
    pub fn is_empty(&self) -> bool {
        self.flags.is_empty()
    }

    /// The flags of the granule that holds `address`; 0 outside the table.
    #[inline(always)]
    pub fn get(&self, address: u64) -> u8 {
        let index = (address.wrapping_sub(self.base) >> self.shift) as usize;
        match self.flags.get(index) {
            Some(flags) => flags.load(Ordering::Relaxed),
            None => 0,
        }
    }

    /// The flags, for reads without a bounds check.
    pub(super) fn flags(&self) -> *const u8 {
        self.flags.as_ptr().cast()
    }

    /// Sets the flags of every granule that overlaps `[address, address + bytes)`; what lies outside the table is ignored.
    pub fn set(&self, address: u64, bytes: u64, flags: u8) {
        if bytes == 0 || address < self.base {
            return;
        }
        let first = ((address - self.base) >> self.shift) as usize;
        let last = ((address - self.base + (bytes - 1)) >> self.shift) as usize;
        for granule in self.flags.iter().take(last.saturating_add(1)).skip(first) {
            granule.store(flags, Ordering::Relaxed);
        }
    }
}

/// Why an access to device memory is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccessError {
    /// The address is in the first page of the address space.
    Null,
    /// No reservation, allocation or pinned buffer holds the address.
    Unmapped,
    /// The address is reserved, and no physical memory is mapped there.
    ReservedOnly,
    /// The memory is mapped without the right that the access needs.
    Denied,
    /// The access begins inside an allocation and ends outside it.
    PastEnd,
}

impl std::fmt::Display for AccessError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            AccessError::Null => "it is a null pointer",
            AccessError::Unmapped => "nothing is mapped there",
            AccessError::ReservedOnly => {
                "the address is reserved but no physical memory is mapped there"
            }
            AccessError::Denied => "the mapping does not allow this access",
            AccessError::PastEnd => "it runs past the end of its allocation",
        })
    }
}

/// The device memory that a launch may touch.
///
/// Implementors promise that memory for which [`DeviceMemory::check`] answers `Ok` (or whose granules carry the right
/// flags) stays mapped in this process, at that address, for as long as the launch runs.
pub trait DeviceMemory: Sync {
    /// Whether `[address, address + bytes)` may be read (or, if `write`, written).
    ///
    /// # Errors
    /// The cause, when any byte of the range may not be accessed so.
    fn check(&self, address: u64, bytes: u64, write: bool) -> Result<(), AccessError>;

    /// The table the interpreter consults before it calls [`DeviceMemory::check`].
    fn granules(&self) -> &GranuleTable;
}
