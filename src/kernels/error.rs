//! What loading and launching kernels can fail with.

use crate::driver::DriverError;

/// Why kernels could not be loaded or launched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The driver refused a call.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The kernel is in none of the texts that were loaded.
    #[error("{kernel} is not loaded: give `Kernels::load_ptx` a text that holds it")]
    NotLoaded {
        /// The kernel.
        kernel: &'static str,
    },
    /// No kernel is built for this head_dim.
    #[error("{kernel}: head_dim {head_dim} is not built; use a model with head_dim 64, 128 or 256")]
    HeadDim {
        /// Kernel family.
        kernel: &'static str,
        /// What was asked for.
        head_dim: u32,
    },
    /// A shape or stride the kernel cannot take.
    #[error("{kernel}: {name} is {found}, it must be {wanted}")]
    Shape {
        /// Kernel family.
        kernel: &'static str,
        /// The parameter.
        name: &'static str,
        /// Its value.
        found: u64,
        /// What it must be.
        wanted: &'static str,
    },
    /// A kernel needs more shared memory than a block of this device can have.
    #[error(
        "{kernel} needs {needed_bytes} bytes of shared memory a block, the device allows {allowed_bytes}: use a device of compute \
         capability 8.0 or newer"
    )]
    SharedMemory {
        /// The kernel.
        kernel: &'static str,
        /// Dynamic shared memory it is launched with.
        needed_bytes: u32,
        /// The device's limit with opt-in.
        allowed_bytes: u32,
    },
}
