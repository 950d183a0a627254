//! Clusters: their barrier, the election of a lane, addresses in other blocks' shared memory, and `stmatrix`.
//!
//! A shared address above 2^24 names a block of the cluster: `(rank + 1) << 24 | offset`. Plain offsets are the block's own.

use super::access::{RELEASE, addresses, resolve, space};
use super::control::converged;
use super::fault::Fault;
use super::op::{Op, Selected, plain_handler, rare};
use super::shuffle::members;
use super::warp::{Handler, Ins, LANES, Stop, Warp};

/// Bits of a shared address below the block's rank.
pub(crate) const RANK_SHIFT: u32 = 24;

/// `mapa`: the same place in the shared memory of another block. Bits above the shared window stay, so that generic
/// addresses remain generic.
pub(crate) fn map_address(wide: bool) -> Selected {
    const OFFSET: u32 = (1 << RANK_SHIFT) - 1;
    if wide {
        rare::binary(|a: u64, rank: u32| {
            (a >> 32 << 32)
                | u64::from(rank.wrapping_add(1) << RANK_SHIFT)
                | (a & u64::from(OFFSET))
        })
    } else {
        rare::binary(|a: u32, rank: u32| rank.wrapping_add(1) << RANK_SHIFT | (a & OFFSET))
    }
}

/// `getctarank`: the block that an address lies in; the second operand is the own rank.
pub(crate) fn rank_of_address(wide: bool) -> Selected {
    fn rank(address: u32, own: u32) -> u32 {
        match address >> RANK_SHIFT {
            0 => own,
            code => code - 1,
        }
    }
    if wide {
        rare::binary(|a: u64, own: u32| rank(a as u32, own))
    } else {
        rare::binary(rank)
    }
}

/// `elect.sync`. `ops`: d, p, mask. The lowest lane is elected, as by hardware.
struct Elect;
impl Op for Elect {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        // SAFETY: `ops[2]` is the mask.
        if unsafe { members(warp, ip, ins.ops[2]) }.is_none() {
            return std::ptr::null();
        }
        let leader = warp.mask.trailing_zeros();
        // SAFETY: `ops[0]` is a 32-bit destination.
        unsafe { warp.write32(ins.ops[0], &[leader; LANES]) };
        // SAFETY: `ops[1]` is a predicate.
        unsafe { warp.set_pred(ins.ops[1], 1 << leader) };
        ip.wrapping_add(1)
    }
}

/// `barrier.cluster.arrive`
struct Arrive;
impl Op for Arrive {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        if !converged(warp) {
            let live = warp.live;
            return warp.fail_divergent(ip, live);
        }
        if warp.cluster_arrived {
            let message = "the warp has arrived at the cluster's barrier and not waited".into();
            let lane = warp.mask.trailing_zeros();
            return warp.fail(ip, lane, |site| Fault::Unsupported { site, message });
        }
        warp.counters.barriers += 1;
        warp.cluster_arrived = true;
        warp.cluster_owes = true;
        if !warp.watch.is_null() {
            // SAFETY: a watch that is set outlives the warps, and the block's runner does not use it while a handler runs.
            let watch = unsafe { &mut *warp.watch };
            // SAFETY: the run loop passes a valid instruction.
            let relaxed = unsafe { &*ip }.ext & RELEASE == 0;
            watch.cluster_arrive(warp.position, relaxed);
        }
        ip.wrapping_add(1)
    }
}

/// `barrier.cluster.wait`
struct Wait;
impl Op for Wait {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        if !converged(warp) {
            let live = warp.live;
            return warp.fail_divergent(ip, live);
        }
        if !warp.cluster_owes {
            let message = "the warp waits at the cluster's barrier without having arrived".into();
            let lane = warp.mask.trailing_zeros();
            return warp.fail(ip, lane, |site| Fault::Unsupported { site, message });
        }
        if warp.cluster_arrived {
            // Not complete: executed again when it is.
            warp.stop = Stop::Cluster;
            warp.resume = ip;
            return std::ptr::null();
        }
        warp.cluster_owes = false;
        if !warp.watch.is_null() {
            // SAFETY: a watch that is set outlives the warps, and the block's runner does not use it while a handler runs.
            unsafe { &mut *warp.watch }.cluster_pass(warp.position);
        }
        ip.wrapping_add(1)
    }
}

/// `stmatrix.sync.aligned.m8n8.xN[.trans].shared.b16`. `ops`: address, N sources.
struct StoreMatrix<const N: usize, const TRANSPOSED: bool>;
impl<const N: usize, const TRANSPOSED: bool> Op for StoreMatrix<N, TRANSPOSED> {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        if !converged(warp) {
            let live = warp.live;
            return warp.fail_divergent(ip, live);
        }
        // SAFETY: the first operand is the address.
        let mut all = unsafe { addresses(warp, ins, ins.ops[0]) };
        // Only the first 8 N lanes give addresses.
        let first = all.0[0];
        for lane in 8 * N..LANES {
            all.0[lane] = first;
        }
        if resolve(warp, ip, &mut all, space::SHARED, 16, true).is_none() {
            return std::ptr::null();
        }
        let mask = warp.mask;
        warp.mask = mask & (u32::MAX >> (32 - 8 * N));
        super::access::count(warp, &all, space::SHARED, 16, true);
        warp.mask = mask;
        for n in 0..N {
            // SAFETY: the operands after the address are slots of 32 lanes.
            let value = unsafe { warp.read::<u32>(ins.ops[1 + n]) };
            for row in 0..8 {
                let halves: [u16; 8] = std::array::from_fn(|column| {
                    // Lane 4 g + t holds row g, columns 2 t and 2 t + 1; transposed, the other way round.
                    let (g, c) = if TRANSPOSED {
                        (column, row)
                    } else {
                        (row, column)
                    };
                    (value[4 * g + c / 2] >> (16 * (c % 2))) as u16
                });
                // SAFETY: the access has been checked.
                unsafe { (all.0[8 * n + row] as *mut [u16; 8]).write(halves) };
            }
        }
        ip.wrapping_add(1)
    }
}

pub(crate) fn elect() -> Handler {
    plain_handler::<Elect>()
}

pub(crate) fn arrive() -> Handler {
    plain_handler::<Arrive>()
}

pub(crate) fn wait() -> Handler {
    plain_handler::<Wait>()
}

pub(crate) fn store_matrix(count: usize, transposed: bool) -> Option<Handler> {
    Some(match (count, transposed) {
        (1, false) => plain_handler::<StoreMatrix<1, false>>(),
        (2, false) => plain_handler::<StoreMatrix<2, false>>(),
        (4, false) => plain_handler::<StoreMatrix<4, false>>(),
        (1, true) => plain_handler::<StoreMatrix<1, true>>(),
        (2, true) => plain_handler::<StoreMatrix<2, true>>(),
        (4, true) => plain_handler::<StoreMatrix<4, true>>(),
        _ => return None,
    })
}
