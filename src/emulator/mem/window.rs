//! The window of host address space that holds a device's addresses.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A range of host addresses without access, in which memory is mapped piece by piece.
#[derive(Debug)]
pub(crate) struct Window {
    /// What `mmap` returned, before alignment.
    raw: *mut libc::c_void,
    raw_bytes: usize,
    base: u64,
    bytes: u64,
}

// SAFETY: the window is an address range owned by this value; it holds no thread-bound state.
unsafe impl Send for Window {}
// SAFETY: as above; changing mappings takes `&mut self`.
unsafe impl Sync for Window {}

/// Rights of a mapped piece on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rights {
    None,
    Read,
    ReadWrite,
}

impl Rights {
    fn flags(self) -> libc::c_int {
        match self {
            Rights::None => libc::PROT_NONE,
            Rights::Read => libc::PROT_READ,
            Rights::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

impl Window {
    /// Reserves `bytes` of addresses aligned to `alignment` (a power of two).
    pub(crate) fn reserve(bytes: u64, alignment: u64) -> io::Result<Window> {
        let raw_bytes = (bytes + alignment) as usize;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing.
        let raw = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                raw_bytes,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if raw == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Window {
            raw,
            raw_bytes,
            base: (raw as u64).next_multiple_of(alignment),
            bytes,
        })
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn end(&self) -> u64 {
        self.base + self.bytes
    }

    /// Maps `bytes` of the file at `offset` to `address`, without access.
    pub(crate) fn map(
        &mut self,
        address: u64,
        bytes: u64,
        file: BorrowedFd<'_>,
        offset: u64,
    ) -> io::Result<()> {
        self.place(
            address,
            bytes,
            libc::MAP_SHARED | libc::MAP_FIXED,
            file.as_raw_fd(),
            offset,
        )
    }

    /// Takes away what is mapped at `address`; the addresses stay reserved.
    pub(crate) fn unmap(&mut self, address: u64, bytes: u64) -> io::Result<()> {
        self.place(
            address,
            bytes,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
            -1,
            0,
        )
    }

    /// Changes the rights of a mapped range.
    pub(crate) fn protect(&mut self, address: u64, bytes: u64, rights: Rights) -> io::Result<()> {
        self.assert_inside(address, bytes);
        // SAFETY: the range lies in this window, which nobody else owns.
        let result =
            unsafe { libc::mprotect(address as *mut libc::c_void, bytes as usize, rights.flags()) };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    fn place(
        &mut self,
        address: u64,
        bytes: u64,
        flags: libc::c_int,
        file: libc::c_int,
        offset: u64,
    ) -> io::Result<()> {
        self.assert_inside(address, bytes);
        // SAFETY: MAP_FIXED replaces mappings of this window only, which nobody else owns.
        let placed = unsafe {
            libc::mmap(
                address as *mut libc::c_void,
                bytes as usize,
                libc::PROT_NONE,
                flags,
                file,
                offset as libc::off_t,
            )
        };
        if placed == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// MAP_FIXED outside of the window would replace the process's own memory, so this is no debug check.
    fn assert_inside(&self, address: u64, bytes: u64) {
        let end = address.checked_add(bytes);
        assert!(
            address >= self.base && end.is_some_and(|end| end <= self.end()),
            "range outside of the device window"
        );
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: this is the whole range that `reserve` got.
        unsafe { libc::munmap(self.raw, self.raw_bytes) };
    }
}
