//! From the addresses of a warp access to host pointers: alignment, bounds and mapping checks.

use super::cluster::RANK_SHIFT;
use super::fault::{Fault, Space};
use super::memory::GranuleTable;
use super::op::{CHUNK, chunk};
use super::warp::{FULL, Ins, LANES, Warp};

/// The state space of an access, as handlers carry it.
pub(crate) mod space {
    /// Device memory.
    pub(crate) const GLOBAL: u32 = 0;
    /// Shared memory of the block, by offset.
    pub(crate) const SHARED: u32 = 1;
    /// The thread's stack, by offset.
    pub(crate) const LOCAL: u32 = 2;
    /// Any of the spaces, told apart by the top four bits of the address.
    pub(crate) const GENERIC: u32 = 3;
    /// The parameter block, by offset.
    pub(crate) const PARAM: u32 = 4;
}

/// Bits of `Ins::ext` that hold the space.
pub(crate) const SPACE_BITS: u32 = 7;
/// Bit of `Ins::ext`: the address register has 32 bits.
pub(crate) const NARROW_ADDRESS: u32 = 1 << 8;
/// Bit of `Ins::ext`: a load or store that is `volatile`, `relaxed` or stronger. Only the checked mode tells it apart.
pub(crate) const STRONG: u32 = 1 << 24;
/// Bit of `Ins::ext`: what follows is ordered behind it (`acquire`, `acq_rel`).
pub(crate) const ACQUIRE: u32 = 1 << 25;
/// Bit of `Ins::ext`: what came before is ordered before it (`release`, `acq_rel`).
pub(crate) const RELEASE: u32 = 1 << 26;

/// Generic address of offset 0 of shared memory. Not a canonical x86-64 address, so no device memory is ever there.
pub(crate) const SHARED_WINDOW: u64 = 1 << 60;
/// Generic address of offset 0 of the thread's stack.
pub(crate) const LOCAL_WINDOW: u64 = 2 << 60;
/// Generic address of offset 0 of the parameter block.
pub(crate) const PARAM_WINDOW: u64 = 3 << 60;

/// Addresses of the 32 lanes; after [`resolve`], host pointers.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Addresses(pub [u64; LANES]);

/// How the lanes' addresses relate, where that allows a faster access.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// All the same.
    Uniform,
    /// One behind the other in lane order; only for full warps.
    Contiguous,
    /// Anything else.
    Scattered,
}

impl Shape {
    #[inline(always)]
    fn of(uniform: bool, contiguous: bool) -> Shape {
        if uniform {
            Shape::Uniform
        } else if contiguous {
            Shape::Contiguous
        } else {
            Shape::Scattered
        }
    }
}

/// The addresses that operand `slot` plus the instruction's immediate name. Lanes outside of the mask repeat the first
/// active lane's, so that they may be read along.
#[inline(always)]
pub(crate) unsafe fn addresses(warp: &Warp, ins: &Ins, slot: u32) -> Addresses {
    let mut all = Addresses([0; LANES]);
    if ins.ext & NARROW_ADDRESS == 0 {
        // SAFETY: the operand is a slot of 64-bit lanes.
        let base = unsafe { warp.read::<u64>(slot) };
        for lane in 0..LANES {
            all.0[lane] = base[lane].wrapping_add(ins.imm as u64);
        }
    } else {
        // SAFETY: the operand is a slot of 32-bit lanes.
        let base = unsafe { warp.read::<u32>(slot) };
        for lane in 0..LANES {
            all.0[lane] = u64::from(base[lane].wrapping_add(ins.imm as u32));
        }
    }
    if warp.mask != FULL {
        let first = all.0[warp.mask.trailing_zeros() as usize & 31];
        for lane in 0..LANES {
            all.0[lane] = if warp.mask >> lane & 1 != 0 {
                all.0[lane]
            } else {
                first
            };
        }
    }
    all
}

/// Checks an access of `bytes` bytes a lane (a power of two) and turns the addresses into host pointers. `None` means that
/// the warp has been stopped with a fault.
#[inline(always)]
pub(crate) fn resolve(
    warp: &mut Warp,
    ip: *const Ins,
    all: &mut Addresses,
    space: u32,
    bytes: u64,
    write: bool,
) -> Option<Shape> {
    let first = all.0[0];
    let (mut differ, mut any, mut stray) = (0, 0, 0);
    for lane in 0..LANES {
        let address = all.0[lane];
        differ |= address ^ first;
        any |= address;
        stray |= address.wrapping_sub(first.wrapping_add(lane as u64 * bytes));
    }
    if any & (bytes - 1) != 0 {
        return refuse_misaligned(warp, ip, all, space, bytes);
    }
    let ok = match space {
        space::GLOBAL => global_ok(warp, all, differ, write),
        space::SHARED => {
            warp.shared_touched = true;
            offset_ok(all, bytes, warp.shared_bytes, warp.shared as u64)
        }
        _ => return resolve_slowly(warp, ip, all, space, bytes, write),
    };
    if !ok {
        return resolve_slowly(warp, ip, all, space, bytes, write);
    }
    Some(Shape::of(differ == 0, stray == 0 && warp.mask == FULL))
}

/// The offsets in the block's shared memory that the lanes name, if that is all there is to their addresses: each is aligned to
/// `bytes`, a power of two, and lies inside. Lanes that are off repeat the first active one's. `None`: [`find_shared`] knows
/// more.
///
/// # Safety
/// `slot` is an address operand of the instruction whose immediate and width of addresses `ins` holds.
#[inline(always)]
pub(crate) unsafe fn shared_offsets(
    warp: &Warp,
    ins: &Ins,
    slot: u32,
    bytes: u32,
) -> Option<[u32; LANES]> {
    const SIGN: u32 = 1 << 31;
    if ins.ext & NARROW_ADDRESS == 0 || warp.shared_bytes < bytes {
        return None;
    }
    let last = warp.shared_bytes - bytes;
    let slot = warp.slot::<u32>(slot);
    let first = warp.mask.trailing_zeros() as usize & 31;
    // SAFETY: the operand is a slot of 32-bit lanes.
    let first = unsafe { *slot.add(first) };
    let mut offsets = [0; LANES];
    let mut amiss = [0u32; CHUNK];
    for index in 0..LANES / CHUNK {
        // SAFETY: as above.
        let mut base = unsafe { chunk(slot, index) };
        if warp.mask != FULL {
            for i in 0..CHUNK {
                let on = warp.mask >> (index * CHUNK + i) & 1 != 0;
                base[i] = if on { base[i] } else { first };
            }
        }
        for i in 0..CHUNK {
            let offset = base[i].wrapping_add(ins.imm as u32);
            offsets[index * CHUNK + i] = offset;
            // Neither sign is set if both numbers are below 2^31 and the first is not above the second.
            amiss[i] |= offset & (SIGN | (bytes - 1)) | last.wrapping_sub(offset) & SIGN;
        }
    }
    (amiss == [0; CHUNK]).then_some(offsets)
}

/// [`addresses`] and [`resolve`] in shared memory.
///
/// # Safety
/// `slot` is an address operand of the instruction at `ip`, whose immediate and width of addresses `ins` holds.
#[inline(always)]
pub(crate) unsafe fn find_shared(
    warp: &mut Warp,
    ip: *const Ins,
    ins: &Ins,
    slot: u32,
    bytes: u64,
    write: bool,
) -> Option<(Addresses, Shape)> {
    // SAFETY: passed on to the caller.
    let Some(offsets) = (unsafe { shared_offsets(warp, ins, slot, bytes as u32) }) else {
        // SAFETY: as above.
        return unsafe { find(warp, ip, ins, slot, space::SHARED, bytes, write) };
    };
    warp.shared_touched = true;
    let shared = warp.shared as u64;
    let first = offsets[0];
    let (mut differ, mut stray) = ([0; CHUNK], [0; CHUNK]);
    let mut all = Addresses([0; LANES]);
    for index in 0..LANES / CHUNK {
        for i in 0..CHUNK {
            let lane = index * CHUNK + i;
            differ[i] |= offsets[lane] ^ first;
            stray[i] |= offsets[lane].wrapping_sub(first.wrapping_add(lane as u32 * bytes as u32));
            all.0[lane] = shared.wrapping_add(offsets[lane].into());
        }
    }
    let contiguous = stray == [0; CHUNK] && warp.mask == FULL;
    Some((all, Shape::of(differ == [0; CHUNK], contiguous)))
}

/// [`addresses`] and [`resolve`] for handlers that run rarely: in the space that the instruction names.
#[inline(always)]
pub(crate) fn prepare(
    warp: &mut Warp,
    ip: *const Ins,
    slot: u32,
    bytes: u64,
    write: bool,
) -> Option<(Addresses, Shape)> {
    // SAFETY: the run loop passes a valid instruction.
    let ins = unsafe { &*ip };
    // SAFETY: the handler passes an address operand of it.
    unsafe { find(warp, ip, ins, slot, ins.ext & SPACE_BITS, bytes, write) }
}

/// [`addresses`] and [`resolve`], compiled once.
///
/// # Safety
/// As for [`find_shared`].
#[inline(never)]
unsafe fn find(
    warp: &mut Warp,
    ip: *const Ins,
    ins: &Ins,
    slot: u32,
    space: u32,
    bytes: u64,
    write: bool,
) -> Option<(Addresses, Shape)> {
    // SAFETY: passed on to the caller.
    let mut all = unsafe { addresses(warp, ins, slot) };
    let shape = resolve(warp, ip, &mut all, space, bytes, write)?;
    Some((all, shape))
}

/// Whether the granule table alone allows an access at `address`. An aligned access never crosses a granule.
#[inline(always)]
pub(super) fn granule_ok(warp: &Warp, address: u64, write: bool) -> bool {
    let right = if write {
        GranuleTable::WRITE
    } else {
        GranuleTable::READ
    };
    let index = address.wrapping_sub(warp.granule_base) >> warp.granule_shift;
    if index >= warp.granule_count {
        return false;
    }
    // SAFETY: the index lies inside the table, whose bytes are atomics; a stale value only postpones a report.
    let flags = unsafe { warp.granule_flags.add(index as usize).read() };
    flags & right != 0
}

/// [`granule_ok`] for all lanes, whose addresses differ in the bits of `differ`.
#[inline(always)]
fn global_ok(warp: &Warp, all: &Addresses, differ: u64, write: bool) -> bool {
    if differ >> warp.granule_shift == 0 {
        granule_ok(warp, all.0[0], write)
    } else {
        let mut ok = true;
        for lane in 0..LANES {
            ok &= granule_ok(warp, all.0[lane], write);
        }
        ok
    }
}

/// Checks offsets against a limit and adds `base`.
#[inline(always)]
fn offset_ok(all: &mut Addresses, bytes: u64, limit: u32, base: u64) -> bool {
    let (mut highest, mut upper) = (0u32, 0u64);
    for lane in 0..LANES {
        highest = highest.max(all.0[lane] as u32);
        upper |= all.0[lane] >> 32;
    }
    if upper != 0 || u64::from(highest) + bytes > u64::from(limit) {
        return false;
    }
    for lane in 0..LANES {
        all.0[lane] = all.0[lane].wrapping_add(base);
    }
    true
}

/// Lane by lane: every space, and the exact cause of a refusal.
#[cold]
#[inline(never)]
fn resolve_slowly(
    warp: &mut Warp,
    ip: *const Ins,
    all: &mut Addresses,
    space: u32,
    bytes: u64,
    write: bool,
) -> Option<Shape> {
    for lane in 0..LANES {
        if warp.mask >> lane & 1 == 0 {
            continue;
        }
        let mut address = all.0[lane];
        let mut space = space;
        if space == space::GENERIC {
            space = match address >> 60 {
                1 => space::SHARED,
                2 => space::LOCAL,
                3 => space::PARAM,
                _ => space::GLOBAL,
            };
            if space != space::GLOBAL {
                address &= u64::MAX >> 4;
            }
        }
        // Of this block's shared memory or, named with a rank, of any block's of the cluster.
        warp.shared_touched |= space == space::SHARED;
        let (limit, base, named) = match space {
            // An address in another block of the cluster.
            space::SHARED if (1 << RANK_SHIFT..1 << 32).contains(&address) => {
                let rank = (address >> RANK_SHIFT) - 1;
                address &= (1 << RANK_SHIFT) - 1;
                let limit = if rank < u64::from(warp.cluster_ranks) {
                    warp.shared_bytes
                } else {
                    0
                };
                let base = warp.cluster_shared as u64 + rank * u64::from(warp.cluster_stride);
                (limit, base, Space::Shared)
            }
            space::SHARED => (warp.shared_bytes, warp.shared as u64, Space::Shared),
            space::LOCAL => (
                warp.local_bytes,
                warp.local as u64 + lane as u64 * u64::from(warp.local_bytes),
                Space::Local,
            ),
            space::PARAM => (
                if write { 0 } else { warp.param_bytes },
                warp.params as u64,
                Space::Param,
            ),
            _ => {
                // SAFETY: the launch lends its memory to the warp while it runs.
                let memory = unsafe { &*warp.memory };
                if let Err(reason) = memory.check(address, bytes, write) {
                    let space = Space::Global;
                    warp.fail(ip, lane as u32, |site| Fault::IllegalAddress {
                        site,
                        space,
                        address,
                        bytes,
                        write,
                        reason,
                    });
                    return None;
                }
                all.0[lane] = address;
                continue;
            }
        };
        if address
            .checked_add(bytes)
            .is_none_or(|end| end > u64::from(limit))
        {
            let limit = u64::from(limit);
            warp.fail(ip, lane as u32, |site| Fault::OutOfBounds {
                site,
                space: named,
                address,
                bytes,
                limit,
            });
            return None;
        }
        all.0[lane] = base + address;
    }
    let first = all.0[warp.mask.trailing_zeros() as usize & 31];
    for lane in 0..LANES {
        if warp.mask >> lane & 1 == 0 {
            all.0[lane] = first;
        }
    }
    Some(Shape::Scattered)
}

/// The host pointer behind `bytes` bytes at one lane's generic address, or `None` after stopping the warp.
pub(super) fn host_address(
    warp: &mut Warp,
    ip: *const Ins,
    lane: usize,
    address: u64,
    bytes: u64,
    write: bool,
) -> Option<*mut u8> {
    host_range(warp, ip, lane, address, space::GENERIC, bytes, write)
}

/// The host pointer behind `bytes` bytes at one lane's address in a space (generic addresses go for shared ones too), or
/// `None` after stopping the warp.
pub(super) fn host_range(
    warp: &mut Warp,
    ip: *const Ins,
    lane: usize,
    address: u64,
    space: u32,
    bytes: u64,
    write: bool,
) -> Option<*mut u8> {
    let mask = warp.mask;
    warp.mask = 1 << lane;
    let generic = space == space::SHARED && address >> 60 != 0;
    let mut all = Addresses([address; LANES]);
    let space = if generic { space::GENERIC } else { space };
    let found = resolve_slowly(warp, ip, &mut all, space, bytes, write);
    warp.mask = mask;
    found.map(|_| all.0[lane] as *mut u8)
}

#[cold]
#[inline(never)]
fn refuse_misaligned(
    warp: &mut Warp,
    ip: *const Ins,
    all: &Addresses,
    space: u32,
    bytes: u64,
) -> Option<Shape> {
    let lane = (0..LANES)
        .find(|&lane| all.0[lane] & (bytes - 1) != 0)
        .unwrap_or(0);
    let address = all.0[lane];
    let space = match space {
        space::SHARED => Space::Shared,
        space::LOCAL => Space::Local,
        space::PARAM => Space::Param,
        space::GENERIC if address >> 60 == 1 => Space::Shared,
        space::GENERIC if address >> 60 == 2 => Space::Local,
        _ => Space::Global,
    };
    warp.fail(ip, lane as u32, |site| Fault::Misaligned {
        site,
        space,
        address,
        bytes,
    });
    None
}

/// Counts an access whose addresses have been resolved.
#[inline(always)]
pub(crate) fn count(warp: &mut Warp, all: &Addresses, space: u32, bytes: u64, write: bool) {
    tally(warp, space, bytes, write);
    if warp.count_memory {
        super::traffic::count(warp, all, space, bytes, write);
    }
}

/// Adds an access to the counters that need no addresses.
#[inline(always)]
pub(crate) fn tally(warp: &mut Warp, space: u32, bytes: u64, write: bool) {
    let total = u64::from(warp.mask.count_ones()) * bytes;
    let counters = &mut warp.counters;
    match space {
        space::SHARED => counters.shared_requests += 1,
        space::LOCAL => counters.local_requests += 1,
        space::PARAM => {}
        _ if write => {
            counters.global_store_requests += 1;
            counters.global_store_bytes += total;
        }
        _ => {
            counters.global_load_requests += 1;
            counters.global_load_bytes += total;
        }
    }
}
