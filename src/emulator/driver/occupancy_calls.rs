//! Entry points of occupancy: how many blocks of a kernel a multiprocessor holds.

use std::ffi::{c_int, c_uint};

use super::arguments::{In, Out, calls};
use super::entry::on_device;
use super::failure::Failure;
use super::launch_calls::cluster_of;
use super::launches::LaunchShape;
use super::library_calls::of_function;
use super::limits;
use super::state::{Function, State};
use crate::driver::abi::CUlaunchConfig;
use crate::emulator::Profile;

/// Warps that are given registers together.
const WARP_THREADS: u32 = 32;
/// Registers of a warp are a multiple of this.
const REGISTER_UNIT: u32 = 256;
/// Shared memory of a block is a multiple of this, in bytes.
const SHARED_UNIT: u32 = 128;
/// Blocks of a multiprocessor.
const BLOCKS_PER_SM: u32 = 32;

/// Blocks of `threads` threads and `dynamic` bytes of dynamic shared memory that one multiprocessor holds.
fn blocks_per_sm(profile: &Profile, function: &Function, threads: u32, dynamic: u32) -> u32 {
    let code = &function.code;
    let most = code
        .max_threads
        .unwrap_or(limits::BLOCK_THREADS)
        .min(limits::BLOCK_THREADS);
    if threads == 0 || threads > most {
        return 0;
    }
    let warps = threads.div_ceil(WARP_THREADS);
    let by_threads = profile.threads_per_sm / WARP_THREADS / warps;
    let registers = (code.registers.max(16) * WARP_THREADS).next_multiple_of(REGISTER_UNIT) * warps;
    let by_registers = limits::REGISTERS / registers;
    let shared = u64::from(code.static_shared_bytes) + u64::from(dynamic);
    if shared > u64::from(profile.shared_bytes_per_block_optin) {
        return 0;
    }
    let shared = (shared as u32 + limits::RESERVED_SHARED_BYTES).next_multiple_of(SHARED_UNIT);
    let by_shared = profile.shared_bytes_per_sm / shared;
    BLOCKS_PER_SM
        .min(by_threads)
        .min(by_registers)
        .min(by_shared)
}

/// Blocks of a launch that the device holds at once.
pub(super) fn resident_blocks(
    state: &mut State,
    function: u64,
    shape: &LaunchShape,
) -> Result<u64, Failure> {
    let profile = state.profile.clone();
    let function = state.known_function(function)?;
    let threads = shape.block.iter().product();
    let blocks = blocks_per_sm(&profile, function, threads, shape.shared_bytes);
    Ok(u64::from(blocks) * u64::from(profile.sm_count))
}

/// Threads of the block that fills a multiprocessor best, and blocks of it that fill the device.
fn best_block(
    state: &mut State,
    function: u64,
    limit: c_int,
    mut dynamic: impl FnMut(u32) -> usize,
) -> Result<(u32, u32), Failure> {
    let profile = state.profile.clone();
    let function = state.known_function(function)?;
    let most = function.code.max_threads.unwrap_or(limits::BLOCK_THREADS);
    let most = match u32::try_from(limit) {
        Ok(0) | Err(_) => most,
        Ok(limit) => limit.min(most),
    };
    let mut best = (0, 0, 0);
    // From large to small, so that of two equal ones the larger is taken.
    for warps in (1..=most.div_ceil(WARP_THREADS)).rev() {
        let threads = (warps * WARP_THREADS).min(most);
        let dynamic = u32::try_from(dynamic(threads)).unwrap_or(u32::MAX);
        let blocks = blocks_per_sm(&profile, function, threads, dynamic);
        if blocks * threads > best.0 {
            best = (blocks * threads, threads, blocks);
        }
    }
    Ok((best.1, best.2 * profile.sm_count))
}

/// A callback that gives the dynamic shared memory of a block of so many threads.
type SharedOfBlock = Option<unsafe extern "C" fn(c_int) -> usize>;

fn potential(
    call: &'static str,
    grid: Out<c_int>,
    block: Out<c_int>,
    function: u64,
    shared_of: SharedOfBlock,
    shared: usize,
    limit: c_int,
) -> Result<(), Failure> {
    let (device, function) = of_function(function)?;
    let (threads, blocks) = on_device(call, &device, |state| {
        best_block(state, function, limit, |threads| match shared_of {
            // SAFETY: the caller passes a function of this type.
            Some(shared_of) => unsafe { shared_of(threads as c_int) },
            None => shared,
        })
    })?;
    grid.put(blocks as c_int, "the grid")?;
    block.put(threads as c_int, "the block")
}

fn active_blocks(
    call: &'static str,
    blocks: Out<c_int>,
    function: u64,
    threads: c_int,
    shared: usize,
) -> Result<(), Failure> {
    let (device, function) = of_function(function)?;
    on_device(call, &device, |state| {
        let profile = state.profile.clone();
        let function = state.known_function(function)?;
        let threads = u32::try_from(threads)
            .ok()
            .filter(|&threads| threads > 0)
            .ok_or_else(|| Failure::invalid(format!("a block of {threads} threads")))?;
        let shared = u32::try_from(shared).unwrap_or(u32::MAX);
        blocks.put(
            blocks_per_sm(&profile, function, threads, shared) as c_int,
            "the blocks",
        )
    })
}

calls! {
    "cuOccupancyMaxActiveBlocksPerMultiprocessor" fn max_active_blocks(
        blocks: Out<c_int>, function: u64, threads: c_int, shared: usize,
    ) {
        active_blocks(CALL, blocks, function, threads, shared)
    }

    "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags" fn max_active_blocks_with_flags(
        blocks: Out<c_int>, function: u64, threads: c_int, shared: usize, flags: c_uint,
    ) {
        if flags > 1 {
            return Err(Failure::invalid(format!("no flags {flags:#x}")));
        }
        active_blocks(CALL, blocks, function, threads, shared)
    }

    "cuOccupancyMaxPotentialBlockSize" fn max_potential_block_size(
        grid: Out<c_int>, block: Out<c_int>, function: u64, shared_of: SharedOfBlock, shared: usize, limit: c_int,
    ) {
        potential(CALL, grid, block, function, shared_of, shared, limit)
    }

    "cuOccupancyMaxPotentialBlockSizeWithFlags" fn max_potential_block_size_with_flags(
        grid: Out<c_int>, block: Out<c_int>, function: u64, shared_of: SharedOfBlock, shared: usize, limit: c_int,
        flags: c_uint,
    ) {
        if flags > 1 {
            return Err(Failure::invalid(format!("no flags {flags:#x}")));
        }
        potential(CALL, grid, block, function, shared_of, shared, limit)
    }

    "cuOccupancyAvailableDynamicSMemPerBlock" fn available_dynamic_shared(
        bytes: Out<usize>, function: u64, blocks: c_int, threads: c_int,
    ) {
        let (device, function) = of_function(function)?;
        on_device(CALL, &device, |state| {
            let profile = state.profile.clone();
            let function = state.known_function(function)?;
            let (Ok(blocks @ 1..), Ok(threads @ 1..)) = (u32::try_from(blocks), u32::try_from(threads)) else {
                return Err(Failure::invalid(format!("{blocks} blocks of {threads} threads")));
            };
            if blocks_per_sm(&profile, function, threads, 0) < blocks {
                return Err(Failure::invalid(format!(
                    "a multiprocessor does not hold {blocks} blocks of {threads} threads"
                )));
            }
            let share = profile.shared_bytes_per_sm / blocks / SHARED_UNIT * SHARED_UNIT;
            let room = share
                .saturating_sub(limits::RESERVED_SHARED_BYTES)
                .min(profile.shared_bytes_per_block_optin)
                .saturating_sub(function.code.static_shared_bytes);
            bytes.put(room as usize, "the bytes")
        })
    }

    "cuOccupancyMaxPotentialClusterSize" fn max_potential_cluster_size(
        size: Out<c_int>, function: u64, config: In<CUlaunchConfig>,
    ) {
        config.get("the configuration")?;
        let (device, function) = of_function(function)?;
        on_device(CALL, &device, |state| {
            if state.profile.compute_capability.0 < 9 {
                return Err(Failure::new(
                    crate::driver::CuResult::NOT_SUPPORTED,
                    "the device has no clusters",
                ));
            }
            let function = state.known_function(function)?;
            let most = if function.non_portable_cluster {
                limits::CLUSTER_BLOCKS_OPTIN
            } else {
                limits::CLUSTER_BLOCKS
            };
            size.put(most as c_int, "the size")
        })
    }

    "cuOccupancyMaxActiveClusters" fn max_active_clusters(
        clusters: Out<c_int>, function: u64, config: In<CUlaunchConfig>,
    ) {
        let config = config.get("the configuration")?;
        let (device, function) = of_function(function)?;
        let cluster = cluster_of(&config)?.unwrap_or([1; 3]);
        on_device(CALL, &device, |state| {
            let profile = state.profile.clone();
            let function = state.known_function(function)?;
            let threads = config.blockDimX * config.blockDimY * config.blockDimZ;
            let blocks = blocks_per_sm(&profile, function, threads, config.sharedMemBytes);
            let size: u32 = cluster.iter().product();
            clusters.put((blocks * profile.sm_count / size.max(1)) as c_int, "the clusters")
        })
    }
}
