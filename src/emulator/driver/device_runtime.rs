//! What kernels get from the driver beside their parameters: a heap, and room for the barrier of a grid.

use std::sync::Arc;

use super::failure::Failure;
use super::run::Stop;
use super::state::State;
use crate::driver::abi;
use crate::emulator::exec::{DeviceHeap, GRID_WORKSPACE_BYTES, KernelCode};

/// `CU_LIMIT_MALLOC_HEAP_SIZE` as long as nobody sets it.
pub(super) const HEAP_BYTES: usize = 8 << 20;

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Fault(failure.code, failure.detail.unwrap_or_default())
    }
}

impl State {
    /// The heap for a kernel that allocates, made with the first of them, of the size that the limit has then.
    pub(super) fn heap_for(
        &mut self,
        kernel: &KernelCode,
    ) -> Result<Option<Arc<DeviceHeap>>, Stop> {
        if !kernel.uses_heap {
            return Ok(None);
        }
        if self.heap.is_none() {
            let limit = self.contexts.limits.get(&abi::CU_LIMIT_MALLOC_HEAP_SIZE);
            let bytes = limit.copied().unwrap_or(HEAP_BYTES) as u64;
            let block = self.allocate(bytes, "the heap of kernels")?;
            self.note_peak();
            let heap = Arc::new(DeviceHeap::new(block.address, bytes));
            self.heap = Some((block, heap));
        }
        Ok(self.heap.as_ref().map(|(_, heap)| Arc::clone(heap)))
    }

    /// Zeroed memory for the barrier of a cooperative launch's grid; one will do, as launches of a device follow each other.
    pub(super) fn grid_workspace(&mut self) -> Result<u64, Stop> {
        let is_new = self.grid_workspace.is_none();
        let workspace = self
            .grid_workspace
            .get_or_insert_with(|| Box::new([0; GRID_WORKSPACE_BYTES / 8]));
        workspace.fill(0);
        let address = workspace.as_mut_ptr() as u64;
        if is_new {
            // It is there for as long as the device is.
            let space = self.space()?;
            space.add_pinned(address, GRID_WORKSPACE_BYTES as u64);
        }
        Ok(address)
    }
}
