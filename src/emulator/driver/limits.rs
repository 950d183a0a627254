//! Limits that all supported devices share.

/// Threads of a block.
pub(super) const BLOCK_THREADS: u32 = 1024;
/// Threads of a block in x, y and z.
pub(super) const BLOCK: [u32; 3] = [1024, 1024, 64];
/// Blocks of a grid in x, y and z.
pub(super) const GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
/// Bytes of a kernel's parameters on compute capability 7.0 and newer.
pub(super) const PARAM_BYTES: usize = 32_764;
