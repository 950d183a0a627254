//! Exact traffic of an access: sectors and distinct bytes in global memory, bank passes in shared memory.

use super::access::{Addresses, space};
use super::warp::{LANES, Warp};
use crate::emulator::check::shared::Access;

const SECTOR_BYTES: u64 = 32;
const BANKS: usize = 32;

/// Shows one access of `bytes` bytes a lane to the checked mode and adds it to the counters of `warp`, as far as they want
/// it. Called for every access while [`Warp::count_memory`] is set.
#[cold]
#[inline(never)]
pub(crate) fn count(warp: &mut Warp, all: &Addresses, space: u32, bytes: u64, write: bool) {
    let access = if write { Access::Write } else { Access::Read };
    observe(warp, all, space, bytes, access);
}

/// As [`count`], for any kind of access.
#[cold]
#[inline(never)]
pub(crate) fn observe(warp: &mut Warp, all: &Addresses, space: u32, bytes: u64, access: Access) {
    if !warp.watch.is_null() {
        // SAFETY: a watch that is set outlives the warps, and the block's runner does not use it while a handler runs.
        unsafe { &mut *warp.watch }.access(warp, all, space, bytes, access);
    }
    if warp.count_traffic {
        tally(warp, all, space, bytes, access.writes());
    }
}

/// Adds one access to the traffic counters of `warp`.
#[cold]
#[inline(never)]
pub(crate) fn tally(warp: &mut Warp, all: &Addresses, space: u32, bytes: u64, write: bool) {
    let mut lanes = [0u64; LANES];
    let mut n = 0;
    for lane in 0..LANES {
        if warp.mask >> lane & 1 != 0 {
            lanes[n] = all.0[lane];
            n += 1;
        }
    }
    let lanes = &mut lanes[..n];
    match space {
        space::GLOBAL => {
            lanes.sort_unstable();
            let (mut sectors, mut unique) = (0, 0);
            let (mut next_sector, mut next_byte) = (0, 0);
            for &address in lanes.iter() {
                let end = address + bytes;
                unique += end - address.max(next_byte).min(end);
                next_byte = next_byte.max(end);
                let first = (address / SECTOR_BYTES).max(next_sector);
                let last = (end - 1) / SECTOR_BYTES;
                sectors += (last + 1).saturating_sub(first);
                next_sector = next_sector.max(last + 1);
            }
            if write {
                warp.counters.global_store_sectors += sectors;
                warp.counters.global_store_unique_bytes += unique;
            } else {
                warp.counters.global_load_sectors += sectors;
                warp.counters.global_load_unique_bytes += unique;
            }
        }
        space::SHARED => {
            let base = warp.shared as u64;
            // Accesses of 8 and 16 bytes are served half a warp and a quarter warp at a time.
            let together = LANES / (bytes as usize / 4).clamp(1, 4);
            for group in lanes.chunks(together) {
                warp.counters.shared_wavefronts += wavefronts(group, base, bytes);
                warp.counters.shared_ideal_wavefronts += 1;
            }
        }
        _ => {}
    }
}

/// Passes for one group of lanes: the largest number of distinct words that any bank has to deliver.
fn wavefronts(lanes: &[u64], base: u64, bytes: u64) -> u64 {
    let mut words = [0u64; 4 * LANES];
    let mut n = 0;
    for &address in lanes {
        // Another block of the cluster may lie before this one.
        let first = (address.wrapping_sub(base) as i64).div_euclid(4) as u64;
        for word in 0..bytes.div_ceil(4) {
            words[n] = first.wrapping_add(word);
            n += 1;
        }
    }
    let words = &mut words[..n];
    words.sort_unstable();
    let mut load = [0u64; BANKS];
    let mut previous = None;
    for &word in words.iter() {
        if previous != Some(word) {
            load[word as usize % BANKS] += 1;
            previous = Some(word);
        }
    }
    load.into_iter().max().unwrap_or(0)
}
