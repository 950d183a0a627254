//! Limits that all supported devices share.

/// Threads of a block.
pub(super) const BLOCK_THREADS: u32 = 1024;
/// Threads of a block in x, y and z.
pub(super) const BLOCK: [u32; 3] = [1024, 1024, 64];
/// Blocks of a grid in x, y and z.
pub(super) const GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
/// Bytes of a kernel's parameters on compute capability 7.0 and newer.
pub(super) const PARAM_BYTES: usize = 32_764;
/// Priorities of streams: a lower number is a higher priority.
pub(super) const LOWEST_PRIORITY: i32 = 0;
/// The highest priority of a stream.
pub(super) const HIGHEST_PRIORITY: i32 = -5;
/// Blocks of a cluster without opting in, on devices that have clusters.
pub(super) const CLUSTER_BLOCKS: u32 = 8;
/// Blocks of a cluster after opting in.
pub(super) const CLUSTER_BLOCKS_OPTIN: u32 = 16;
/// Registers of a block and of a multiprocessor.
pub(super) const REGISTERS: u32 = 65_536;
/// Shared memory of each block that the system keeps, in bytes.
pub(super) const RESERVED_SHARED_BYTES: u32 = 1024;
