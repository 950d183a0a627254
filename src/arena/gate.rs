//! The gate in front of every device allocation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether arenas may take device memory. Clones share one state; the engine closes it around captures and for good
/// once it serves (I1).
#[derive(Clone, Debug, Default)]
pub struct AllocationGate {
    closed: Arc<AtomicBool>,
}

impl AllocationGate {
    /// An open gate.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Refuses device allocations from now on.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Lets device allocations through again.
    pub fn open(&self) {
        self.closed.store(false, Ordering::SeqCst);
    }

    /// Whether device allocations are refused.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }
}
