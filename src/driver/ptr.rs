//! Device addresses.

use std::fmt;

use bytemuck::{Pod, Zeroable};

/// An address in device memory, in bytes. Plain data: it owns nothing, and may stand in kernel parameters.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// The null address.
    pub const NULL: DevicePtr = DevicePtr(0);

    /// The address `bytes` further on.
    ///
    /// # Panics
    /// In debug builds, where the address would wrap.
    #[must_use]
    #[allow(clippy::should_implement_trait)]
    pub fn add(self, bytes: u64) -> DevicePtr {
        debug_assert!(
            self.0.checked_add(bytes).is_some(),
            "device address wraps around"
        );
        DevicePtr(self.0.wrapping_add(bytes))
    }

    /// True for the null address.
    #[must_use]
    pub fn is_null(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Debug for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
