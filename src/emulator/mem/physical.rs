//! Physical memory: ranges of one sparse memfd.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

/// Bytes written at once when poisoning.
const POISON_CHUNK: usize = 1 << 20;

/// One allocation: a range of the device's file, or a file of its own where others may share it.
#[derive(Clone, Debug)]
struct Allocation {
    offset: u64,
    bytes: u64,
    poisoned: bool,
    /// Pieces mapped somewhere.
    mappings: u32,
    /// Handles that are held; the memory lives on while it is mapped.
    handles: u32,
    own_file: Option<Arc<File>>,
}

/// Why physical memory could not be had.
#[derive(Debug)]
pub(crate) enum PhysicalError {
    /// The host refused a system call.
    Host(io::Error),
    /// No allocation of this number, or its handle was given back.
    NoSuchAllocation,
}

impl From<io::Error> for PhysicalError {
    fn from(error: io::Error) -> Self {
        PhysicalError::Host(error)
    }
}

/// The name under which other processes see such files.
pub(crate) const MEMORY_FILE_NAME: &str = "neap-device";

/// A file that is nothing but memory.
fn memory_file() -> io::Result<File> {
    let name = std::ffi::CString::new(MEMORY_FILE_NAME)?;
    // SAFETY: the name is a NUL-terminated string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and owned by nobody else.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// All physical memory of a device. Ranges are handed out lowest first, so that allocations made one
/// after the other lie one after the other in the file, and the kernel merges their mappings: a
/// process may have only 65,530 of them.
#[derive(Debug)]
pub(crate) struct Physical {
    file: File,
    /// End of the file's used part.
    end_bytes: u64,
    /// Free ranges below `end_bytes`, by offset; never adjacent to each other.
    free: BTreeMap<u64, u64>,
    allocations: HashMap<u64, Allocation>,
    in_use_bytes: u64,
    poisoned_bytes: u64,
}

impl Physical {
    pub(crate) fn new() -> io::Result<Physical> {
        Ok(Physical {
            file: memory_file()?,
            end_bytes: 0,
            free: BTreeMap::new(),
            allocations: HashMap::new(),
            in_use_bytes: 0,
            poisoned_bytes: 0,
        })
    }

    /// Bytes of all allocations that are held or mapped.
    pub(crate) fn in_use_bytes(&self) -> u64 {
        self.in_use_bytes
    }

    /// Bytes of live allocations that were filled with 0xFF.
    pub(crate) fn poisoned_bytes(&self) -> u64 {
        self.poisoned_bytes
    }

    /// Allocations whose handle is not given back.
    pub(crate) fn held(&self) -> u64 {
        self.allocations.values().filter(|a| a.handles > 0).count() as u64
    }

    /// The file that holds an allocation.
    pub(crate) fn file(&self, id: u64) -> BorrowedFd<'_> {
        self.allocations
            .get(&id)
            .and_then(|allocation| allocation.own_file.as_deref())
            .unwrap_or(&self.file)
            .as_fd()
    }

    /// Takes `bytes` in a file of their own under the number `id`, so that others may share them.
    pub(crate) fn create_shared(&mut self, id: u64, bytes: u64) -> Result<(), PhysicalError> {
        let file = memory_file()?;
        file.set_len(bytes)?;
        self.add_shared(id, file, 0, bytes);
        Ok(())
    }

    /// Takes memory that is shared through a descriptor, under the number `id`, or gives the number that
    /// it has here already.
    pub(crate) fn import(&mut self, id: u64, fd: BorrowedFd<'_>) -> Result<u64, PhysicalError> {
        let file = File::from(fd.try_clone_to_owned()?);
        let metadata = file.metadata()?;
        let same = |known: &File| {
            known
                .metadata()
                .is_ok_and(|known| (known.dev(), known.ino()) == (metadata.dev(), metadata.ino()))
        };
        let known = self
            .allocations
            .iter_mut()
            .find(|(_, allocation)| allocation.own_file.as_deref().is_some_and(same));
        if let Some((&known, allocation)) = known {
            allocation.handles += 1;
            return Ok(known);
        }
        if metadata.len() == 0 || !metadata.is_file() {
            return Err(PhysicalError::NoSuchAllocation);
        }
        self.add_shared(id, file, 0, metadata.len());
        Ok(id)
    }

    /// Takes a part of a file that others have open as well.
    pub(crate) fn add_shared(&mut self, id: u64, file: File, offset: u64, bytes: u64) {
        let allocation = Allocation {
            offset,
            bytes,
            poisoned: false,
            mappings: 0,
            handles: 1,
            own_file: Some(Arc::new(file)),
        };
        self.in_use_bytes += bytes;
        self.allocations.insert(id, allocation);
    }

    /// The file of an allocation that others may share.
    pub(crate) fn shared_file(&self, id: u64) -> Result<Option<Arc<File>>, PhysicalError> {
        self.range(id)?;
        Ok(self
            .allocations
            .get(&id)
            .and_then(|allocation| allocation.own_file.clone()))
    }

    /// One more handle of memory that is held or mapped.
    pub(crate) fn retain(&mut self, id: u64) -> Result<(), PhysicalError> {
        let allocation = self.allocations.get_mut(&id);
        allocation.ok_or(PhysicalError::NoSuchAllocation)?.handles += 1;
        Ok(())
    }

    /// Takes `bytes` under the number `id`. It reads 0xFF where `poison_limit_bytes` of live poisoned
    /// memory is not exceeded by it, 0 otherwise.
    pub(crate) fn create(
        &mut self,
        id: u64,
        bytes: u64,
        poison_limit_bytes: u64,
    ) -> Result<(), PhysicalError> {
        let fit = self
            .free
            .iter()
            .find(|&(_, &free)| free >= bytes)
            .map(|(&offset, &free)| (offset, free));
        let offset = match fit {
            Some((offset, free)) => {
                self.free.remove(&offset);
                if free > bytes {
                    self.free.insert(offset + bytes, free - bytes);
                }
                offset
            }
            None => {
                // The file is sparse and may be longer than the device: accounting is by bytes in use.
                self.file.set_len(self.end_bytes + bytes)?;
                let offset = self.end_bytes;
                self.end_bytes += bytes;
                offset
            }
        };
        let poisoned = self.poisoned_bytes + bytes <= poison_limit_bytes;
        let allocation = Allocation {
            offset,
            bytes,
            poisoned,
            mappings: 0,
            handles: 1,
            own_file: None,
        };
        if poisoned && let Err(error) = self.fill(offset, bytes) {
            self.give_back(offset, bytes)?;
            return Err(error.into());
        }
        if poisoned {
            self.poisoned_bytes += bytes;
        }
        self.in_use_bytes += bytes;
        self.allocations.insert(id, allocation);
        Ok(())
    }

    /// Size and file offset of a held allocation.
    pub(crate) fn range(&self, id: u64) -> Result<(u64, u64), PhysicalError> {
        match self.allocations.get(&id) {
            Some(allocation) if allocation.handles > 0 => Ok((allocation.offset, allocation.bytes)),
            _ => Err(PhysicalError::NoSuchAllocation),
        }
    }

    /// The file of an allocation that is held or mapped, and where in it.
    pub(crate) fn place(&self, id: u64) -> Option<(BorrowedFd<'_>, u64)> {
        let offset = self.allocations.get(&id)?.offset;
        Some((self.file(id), offset))
    }

    /// Whether the memory is still held or mapped.
    pub(crate) fn is_alive(&self, id: u64) -> bool {
        self.allocations.contains_key(&id)
    }

    /// Gives the handle back; the memory goes when it is not mapped any more.
    pub(crate) fn release(&mut self, id: u64) -> Result<(), PhysicalError> {
        match self.allocations.get_mut(&id) {
            Some(allocation) if allocation.handles > 0 => allocation.handles -= 1,
            _ => return Err(PhysicalError::NoSuchAllocation),
        }
        self.reclaim(id)
    }

    /// One more piece of the allocation is mapped.
    pub(crate) fn add_mapping(&mut self, id: u64) {
        if let Some(allocation) = self.allocations.get_mut(&id) {
            allocation.mappings += 1;
        }
    }

    /// One piece fewer is mapped.
    pub(crate) fn remove_mapping(&mut self, id: u64) -> Result<(), PhysicalError> {
        if let Some(allocation) = self.allocations.get_mut(&id) {
            allocation.mappings -= 1;
        }
        self.reclaim(id)
    }

    /// Frees the range when it is neither held nor mapped.
    fn reclaim(&mut self, id: u64) -> Result<(), PhysicalError> {
        let Some(allocation) = self.allocations.get(&id) else {
            return Ok(());
        };
        if allocation.handles > 0 || allocation.mappings > 0 {
            return Ok(());
        }
        let Some(allocation) = self.allocations.remove(&id) else {
            return Ok(());
        };
        self.in_use_bytes -= allocation.bytes;
        if allocation.poisoned {
            self.poisoned_bytes -= allocation.bytes;
        }
        if allocation.own_file.is_some() {
            return Ok(());
        }
        self.give_back(allocation.offset, allocation.bytes)
    }

    /// Returns host pages of a range and puts it on the free list, merged with its neighbours.
    fn give_back(&mut self, offset: u64, bytes: u64) -> Result<(), PhysicalError> {
        // SAFETY: the descriptor is open and the range lies in the file.
        let punched = unsafe {
            libc::fallocate(
                self.file.as_raw_fd(),
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                offset as libc::off_t,
                bytes as libc::off_t,
            )
        };
        if punched != 0 {
            return Err(io::Error::last_os_error().into());
        }
        let (mut offset, mut bytes) = (offset, bytes);
        if let Some((&before, &before_bytes)) = self.free.range(..offset).next_back()
            && before + before_bytes == offset
        {
            self.free.remove(&before);
            offset = before;
            bytes += before_bytes;
        }
        if let Some(after_bytes) = self.free.remove(&(offset + bytes)) {
            bytes += after_bytes;
        }
        self.free.insert(offset, bytes);
        Ok(())
    }

    /// Writes 0xFF over a range.
    fn fill(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let chunk = vec![0xFFu8; POISON_CHUNK.min(bytes as usize)];
        let mut done = 0;
        while done < bytes {
            let len = (bytes - done).min(POISON_CHUNK as u64);
            self.file
                .write_all_at(&chunk[..len as usize], offset + done)?;
            done += len;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRAIN: u64 = 2 << 20;

    #[test]
    fn ranges_are_consecutive_reused_and_merged() {
        let mut physical = Physical::new().unwrap();
        for id in 0..4 {
            physical.create(id, GRAIN, 0).unwrap();
            assert_eq!(physical.range(id).unwrap(), (id * GRAIN, GRAIN));
        }
        physical.release(1).unwrap();
        physical.release(2).unwrap();
        assert_eq!(physical.in_use_bytes(), 2 * GRAIN);
        physical.create(9, 2 * GRAIN, 0).unwrap();
        assert_eq!(physical.range(9).unwrap(), (GRAIN, 2 * GRAIN));
        assert!(matches!(
            physical.release(1),
            Err(PhysicalError::NoSuchAllocation)
        ));
    }

    #[test]
    fn memory_lives_while_mapped() {
        let mut physical = Physical::new().unwrap();
        physical.create(1, GRAIN, 0).unwrap();
        physical.add_mapping(1);
        physical.release(1).unwrap();
        assert_eq!((physical.in_use_bytes(), physical.held()), (GRAIN, 0));
        physical.remove_mapping(1).unwrap();
        assert_eq!(physical.in_use_bytes(), 0);
    }

    #[test]
    fn poison_stops_at_its_limit_and_comes_back_after_reuse() {
        let mut physical = Physical::new().unwrap();
        let first_byte = |physical: &Physical, id| {
            let mut byte = [0u8];
            let (offset, _) = physical.range(id).unwrap();
            physical.file.read_exact_at(&mut byte, offset).unwrap();
            byte[0]
        };
        physical.create(1, GRAIN, GRAIN).unwrap();
        physical.create(2, GRAIN, GRAIN).unwrap();
        assert_eq!(
            (first_byte(&physical, 1), first_byte(&physical, 2)),
            (0xFF, 0)
        );
        physical.release(1).unwrap();
        physical.create(3, GRAIN, GRAIN).unwrap();
        assert_eq!(first_byte(&physical, 3), 0xFF);
    }
}
