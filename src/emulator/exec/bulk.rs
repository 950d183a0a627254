//! Bulk asynchronous copies: `cp.async.bulk`, its tensor forms, and `cp.reduce.async.bulk`.
//!
//! A copy is performed when somebody waits for it, on its mbarrier or its group, and what it will write to shared memory is
//! poisoned at issue: a consumer that does not wait sees poison. Copies that nobody waits for are performed when the block
//! ends.

use super::access::{host_range, space};
use super::atomics;
use super::fault::{Fault, Space};
use super::mbarrier;
use super::op::{Op, plain_handler};
use super::tensor_map::{TensorMap, swizzled};
use super::warp::{Handler, Ins, LANES, Warp};
use super::watch::{Issued, Movement};
use std::collections::HashMap;

/// Bytes to move, by host address.
#[derive(Clone, Copy, Debug)]
struct Piece {
    target: u64,
    /// `Err`: the bits of the elements to fill with, and their bytes.
    source: Result<u64, (u64, u64)>,
    bytes: u64,
}

/// Who waits for a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Completion {
    /// The barrier at this host address, which is told the bytes.
    Barrier { address: u64, bytes: u64 },
    /// The thread that issued it, in its group of this number (`None`: not committed yet).
    Group {
        thread: (u32, u32),
        number: Option<u64>,
    },
}

/// How the bytes reach the target.
#[derive(Clone, Copy)]
enum Effect {
    Copy,
    Reduce(atomics::Reduction),
}

struct Transfer {
    pieces: Vec<Piece>,
    completion: Completion,
    effect: Effect,
    /// What the checked mode knows it by.
    issued: Option<Issued>,
}

/// The transfers of a cluster that nobody has waited for.
#[derive(Default)]
pub(crate) struct BulkQueue {
    transfers: Vec<Transfer>,
    /// Groups that each thread has committed.
    groups: HashMap<(u32, u32), u64>,
}

impl BulkQueue {
    pub(super) fn clear(&mut self) {
        self.transfers.clear();
        self.groups.clear();
    }

    /// Performs what `due` says, in order of issue; `done` is told each transfer, and whether it completes its barrier's
    /// phase.
    fn perform(
        &mut self,
        due: impl Fn(&Completion) -> bool,
        mut done: impl FnMut(&Transfer, bool),
    ) {
        let mut index = 0;
        while index < self.transfers.len() {
            if due(&self.transfers[index].completion) {
                let transfer = self.transfers.remove(index);
                let completes = transfer.perform();
                done(&transfer, completes);
            } else {
                index += 1;
            }
        }
    }

    /// Performs everything.
    pub(super) fn finish(&mut self) {
        self.perform(|_| true, |_, _| {});
    }
}

impl Transfer {
    /// True where it completes its barrier's phase.
    fn perform(&self) -> bool {
        for piece in &self.pieces {
            match (self.effect, piece.source) {
                (Effect::Copy, Ok(source)) => {
                    // SAFETY: both ranges were checked at issue, and stay mapped while the launch runs.
                    unsafe {
                        std::ptr::copy(
                            source as *const u8,
                            piece.target as *mut u8,
                            piece.bytes as usize,
                        )
                    };
                }
                (Effect::Copy, Err((bits, element))) => {
                    for at in (0..piece.bytes).step_by(element.max(1) as usize) {
                        let bytes = bits.to_le_bytes();
                        let target = (piece.target + at) as *mut u8;
                        let count = element.min(piece.bytes - at).min(8) as usize;
                        // SAFETY: as above.
                        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, count) };
                    }
                }
                (Effect::Reduce(reduction), Ok(source)) => {
                    for at in (0..piece.bytes).step_by(reduction.bytes() as usize) {
                        // SAFETY: as above.
                        unsafe { reduction.apply(piece.target + at, source + at) };
                    }
                }
                (Effect::Reduce(_), Err(_)) => {}
            }
        }
        if let Completion::Barrier { address, bytes } = self.completion {
            // SAFETY: the barrier was checked at issue; it lies in the shared memory of the cluster that runs.
            return unsafe { mbarrier::complete_bytes(address, bytes) };
        }
        false
    }
}

impl Warp {
    fn bulk(&mut self) -> &mut BulkQueue {
        // SAFETY: the block's runner owns the queue and does not use it while a handler runs.
        unsafe { &mut *self.bulk }
    }

    /// Performs the transfers that complete on the barrier at a host address.
    pub(super) fn finish_transfers(&mut self, barrier: u64) {
        let due = |c: &Completion| matches!(c, Completion::Barrier { address, .. } if *address == barrier);
        let watch = self.watch;
        self.bulk().perform(due, |transfer, completes| {
            // SAFETY: a watch that is set outlives the warps, and the block's runner does not use it while a handler runs.
            if let (Some(watch), Some(issued)) = (unsafe { watch.as_mut() }, &transfer.issued) {
                let targets = transfer
                    .pieces
                    .iter()
                    .map(|piece| (piece.target, piece.bytes));
                watch.bulk_arrived(barrier, issued, targets, completes);
            }
        });
    }

    /// Tells the checked mode of a transfer that begins.
    fn bulk_begins(&mut self, lane: usize, pieces: &[Piece], effect: &Effect) -> Option<Issued> {
        // SAFETY: as above.
        let watch = unsafe { self.watch.as_mut() }?;
        let movements = pieces.iter().map(|piece| Movement {
            target: piece.target,
            source: piece.source.ok(),
            bytes: piece.bytes,
        });
        let reduces = matches!(effect, Effect::Reduce(_));
        Some(watch.bulk_begins(self, lane, movements, reduces))
    }
}

/// What a bulk instruction does; packed into `Ins::imm`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bulk {
    /// Dimensions of a tensor; 0 for a plain range.
    pub rank: u8,
    /// The target is global memory (or a tensor in it), and the source shared; otherwise the target is shared memory.
    pub to_global: bool,
    /// The source is shared memory of the block although the target is shared as well.
    pub from_shared: bool,
    /// A mask of blocks that all receive the data.
    pub multicast: bool,
    /// Number of the reduction plus 1, or 0 for a copy. Of a tensor only the operation counts.
    pub reduction: u8,
}

impl Bulk {
    pub(crate) fn pack(self) -> i64 {
        i64::from(self.rank)
            | i64::from(self.to_global) << 8
            | i64::from(self.from_shared) << 9
            | i64::from(self.multicast) << 10
            | i64::from(self.reduction) << 16
    }

    fn unpack(imm: i64) -> Bulk {
        Bulk {
            rank: imm as u8,
            to_global: imm >> 8 & 1 != 0,
            from_shared: imm >> 9 & 1 != 0,
            multicast: imm >> 10 & 1 != 0,
            reduction: (imm >> 16) as u8,
        }
    }
}

/// A bulk copy. Operands, in the list that `ops[7]` names, as 64-bit addresses unless said otherwise: shared address, global
/// address or tensor map, barrier, bytes (32 bits), mask (32 bits), then coordinates (32 bits).
struct Copy;
impl Op for Copy {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let bulk = Bulk::unpack(ins.imm);
        // SAFETY: the kernel's code outlives its warps.
        let list = unsafe { &(&(*warp.program).lists)[ins.ops[7] as usize] };
        let mask = warp.mask;
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            // SAFETY: the list names slots of 32 lanes of 64 bits.
            let wide = |n: usize| unsafe { *warp.slot::<u64>(list[n]).add(lane) };
            // SAFETY: the list names slots of 32 lanes of 32 bits.
            let word = |n: usize| unsafe { *warp.slot::<u32>(list[n]).add(lane) };
            let request = Request {
                bulk,
                shared: wide(0),
                global: wide(1),
                barrier: wide(2),
                bytes: word(3).into(),
                mask: word(4),
                coordinates: std::array::from_fn(|axis| {
                    if axis < usize::from(bulk.rank) {
                        word(5 + axis) as i32
                    } else {
                        0
                    }
                }),
            };
            if issue(warp, ip, lane, &request).is_none() {
                return std::ptr::null();
            }
        }
        ip.wrapping_add(1)
    }
}

struct Request {
    bulk: Bulk,
    shared: u64,
    global: u64,
    barrier: u64,
    bytes: u64,
    mask: u32,
    coordinates: [i32; 5],
}

fn refuse(warp: &mut Warp, ip: *const Ins, lane: usize, message: String) -> Option<()> {
    warp.fail(ip, lane as u32, |site| Fault::Unsupported { site, message });
    None
}

/// `None` after stopping the warp, where `address` is no multiple of `bytes`.
fn aligned(
    warp: &mut Warp,
    ip: *const Ins,
    lane: usize,
    address: u64,
    bytes: u64,
    space: Space,
) -> Option<()> {
    if address.is_multiple_of(bytes) {
        return Some(());
    }
    warp.fail(ip, lane as u32, |site| Fault::Misaligned {
        site,
        space,
        address,
        bytes,
    });
    None
}

/// Queues one thread's copy; `None` after stopping the warp.
fn issue(warp: &mut Warp, ip: *const Ins, lane: usize, request: &Request) -> Option<()> {
    let bulk = request.bulk;
    // A tensor map, or the data itself.
    let alignment = if bulk.rank > 0 { 64 } else { 16 };
    aligned(warp, ip, lane, request.global, alignment, Space::Global)?;
    let map = if bulk.rank > 0 {
        let at = host_range(warp, ip, lane, request.global, space::GENERIC, 128, false)?;
        // SAFETY: the 128 bytes were checked to be readable.
        let words = unsafe { at.cast::<[u64; 16]>().read_unaligned() };
        match TensorMap::decode(&words) {
            Some(map) if map.rank == bulk.rank => Some(map),
            _ => {
                let message = format!(
                    "there is no tensor map of {} dimensions at {:#x}",
                    bulk.rank, request.global
                );
                return refuse(warp, ip, lane, message);
            }
        }
    } else {
        None
    };
    let bytes = match &map {
        Some(map) => map.extent().iter().product::<u64>() * map.element_bytes(),
        None => request.bytes,
    };
    let alignment = match &map {
        Some(_) => 128,
        None => 16,
    };
    aligned(warp, ip, lane, request.shared, alignment, Space::Shared)?;
    aligned(warp, ip, lane, bytes, 16, Space::Shared)?;
    if bytes == 0 {
        return refuse(warp, ip, lane, "a bulk copy of 0 bytes".into());
    }
    let reduction = match bulk.reduction {
        0 => None,
        number => {
            let ty = map.as_ref().map(TensorMap::reduction_type);
            match atomics::Reduction::of(usize::from(number - 1), ty) {
                Some(reduction) => Some(reduction),
                None => {
                    let message = "this reduction does not exist for the tensor's type".into();
                    return refuse(warp, ip, lane, message);
                }
            }
        }
    };
    let effect = reduction.map_or(Effect::Copy, Effect::Reduce);
    // A swizzle moves units of rows that are shorter than its span anywhere in the span.
    let room = bytes.next_multiple_of(map.as_ref().map_or(1, |map| 16 << map.swizzle));
    warp.counters.async_copy_bytes += bytes;
    if bulk.to_global {
        let shared = host_range(warp, ip, lane, request.shared, space::SHARED, room, false)? as u64;
        let pieces = match &map {
            Some(map) => boxes(warp, ip, lane, map, request, shared, true)?,
            None => {
                let target =
                    host_range(warp, ip, lane, request.global, space::GLOBAL, bytes, true)?;
                vec![Piece {
                    target: target as u64,
                    source: Ok(shared),
                    bytes,
                }]
            }
        };
        let thread = (warp.position, lane as u32);
        let issued = warp.bulk_begins(lane, &pieces, &effect);
        warp.bulk().transfers.push(Transfer {
            pieces,
            completion: Completion::Group {
                thread,
                number: None,
            },
            effect,
            issued,
        });
        return Some(());
    }
    // To shared memory: of the block that the address names, or of all blocks in the mask.
    let targets: Vec<(u64, u64)> = if bulk.multicast {
        let ranks = (0..warp.cluster_ranks).filter(|rank| request.mask >> rank & 1 != 0);
        let at = |address: u64, rank: u32| u64::from(rank + 1) << 24 | (address & 0xff_ffff);
        ranks
            .map(|rank| (at(request.shared, rank), at(request.barrier, rank)))
            .collect()
    } else {
        vec![(request.shared, request.barrier)]
    };
    for (shared, barrier) in targets {
        let target = host_range(warp, ip, lane, shared, space::SHARED, room, true)? as u64;
        let address = host_range(warp, ip, lane, barrier, space::SHARED, 8, true)? as u64;
        let pieces = match &map {
            Some(map) => boxes(warp, ip, lane, map, request, target, false)?,
            None => {
                let from = if bulk.from_shared {
                    space::SHARED
                } else {
                    space::GLOBAL
                };
                let source = host_range(warp, ip, lane, request.global, from, bytes, false)?;
                vec![Piece {
                    target,
                    source: Ok(source as u64),
                    bytes,
                }]
            }
        };
        if reduction.is_none() {
            for piece in &pieces {
                // SAFETY: the range was checked to lie in a block's shared memory.
                unsafe {
                    std::ptr::write_bytes(piece.target as *mut u8, 0xFF, piece.bytes as usize);
                }
            }
        }
        let issued = warp.bulk_begins(lane, &pieces, &effect);
        warp.bulk().transfers.push(Transfer {
            pieces,
            completion: Completion::Barrier { address, bytes },
            effect,
            issued,
        });
    }
    Some(())
}

/// The pieces of a box between a tensor and shared memory, whose first byte has host address `shared`.
fn boxes(
    warp: &mut Warp,
    ip: *const Ins,
    lane: usize,
    map: &TensorMap,
    request: &Request,
    shared: u64,
    to_global: bool,
) -> Option<Vec<Piece>> {
    let element = map.element_bytes();
    let extent = map.extent();
    // Swizzles go by the offset in the block's shared memory.
    let start = request.shared & 0xff_ffff;
    let mut pieces = Vec::new();
    let mut linear = 0;
    let contiguous = map.element_strides[0] == 1;
    let per_piece = if contiguous { (16 / element).max(1) } else { 1 };
    let mut index = [0u64; 5];
    loop {
        // One row of the innermost dimension, in pieces of at most 16 bytes.
        let mut row = Some(map.address);
        for axis in 1..usize::from(map.rank) {
            let step = i64::from(map.element_strides[axis]);
            let at = i64::from(request.coordinates[axis]) + index[axis] as i64 * step;
            row = row.filter(|_| (0..map.dims[axis] as i64).contains(&at));
            row = row.map(|address| {
                address.wrapping_add((at as u64).wrapping_mul(map.strides[axis - 1]))
            });
        }
        let mut x = 0;
        while x < extent[0] {
            let count = per_piece.min(extent[0] - x);
            let step = i64::from(map.element_strides[0]);
            let first = i64::from(request.coordinates[0]) + x as i64 * step;
            let offset = linear * element;
            let place = shared + (swizzled(start + offset, map.swizzle) - start);
            // Elements of a piece may lie on either side of the tensor's edge.
            let inside = |at: i64| row.is_some() && (0..map.dims[0] as i64).contains(&at);
            let whole = inside(first) && inside(first + count as i64 - 1);
            let parts = if whole { 1 } else { count };
            for part in 0..parts {
                let at = first + part as i64;
                let bytes = count / parts * element;
                let here = place + part * element;
                let source = match row.filter(|_| inside(at)) {
                    Some(row) => {
                        let address = row.wrapping_add(at as u64 * element);
                        Ok(
                            host_range(warp, ip, lane, address, space::GLOBAL, bytes, to_global)?
                                as u64,
                        )
                    }
                    None => Err((map.fill(), element)),
                };
                match (to_global, source) {
                    (false, source) => pieces.push(Piece {
                        target: here,
                        source,
                        bytes,
                    }),
                    (true, Ok(target)) => pieces.push(Piece {
                        target,
                        source: Ok(here),
                        bytes,
                    }),
                    // What lies outside of the tensor is not written.
                    (true, Err(_)) => {}
                }
            }
            linear += count;
            x += count;
        }
        let mut axis = 1;
        loop {
            if axis >= usize::from(map.rank) {
                return Some(pieces);
            }
            index[axis] += 1;
            if index[axis] < extent[axis] {
                break;
            }
            index[axis] = 0;
            axis += 1;
        }
    }
}

/// `cp.async.bulk.commit_group`
struct Commit;
impl Op for Commit {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        let (mask, position, watch) = (warp.mask, warp.position, warp.watch);
        let queue = warp.bulk();
        for lane in (0..LANES as u32).filter(|lane| mask >> lane & 1 != 0) {
            let who = (position, lane);
            // SAFETY: a watch that is set outlives the warps, and the block's runner does not use it while a handler runs.
            if let Some(watch) = unsafe { watch.as_mut() } {
                watch.bulk_commit(who);
            }
            let next = queue.groups.entry(who).or_default();
            let current = *next;
            *next += 1;
            for transfer in &mut queue.transfers {
                if let Completion::Group { thread, number } = &mut transfer.completion
                    && *thread == who
                    && number.is_none()
                {
                    *number = Some(current);
                }
            }
        }
        ip.wrapping_add(1)
    }
}

/// `cp.async.bulk.wait_group[.read]`. `imm`: groups that may stay open; `ext`: 1 if only their reads must be complete.
struct Wait;
impl Op for Wait {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let keep = ins.imm as u64;
        let (mask, position, watch) = (warp.mask, warp.position, warp.watch);
        let queue = warp.bulk();
        for lane in (0..LANES as u32).filter(|lane| mask >> lane & 1 != 0) {
            let who = (position, lane);
            let committed = queue.groups.get(&who).copied().unwrap_or(0);
            let done = committed.saturating_sub(keep);
            let due = |completion: &Completion| {
                matches!(completion, Completion::Group { thread, number: Some(n) }
                    if *thread == who && *n < done)
            };
            queue.perform(due, |_, _| {});
            // SAFETY: a watch that is set outlives the warps, and the block's runner does not use it while a handler runs.
            if let Some(watch) = unsafe { watch.as_mut() } {
                watch.bulk_wait(who, done, ins.ext & 1 != 0);
            }
        }
        ip.wrapping_add(1)
    }
}

pub(crate) fn copy() -> Handler {
    plain_handler::<Copy>()
}

pub(crate) fn commit() -> Handler {
    plain_handler::<Commit>()
}

pub(crate) fn wait() -> Handler {
    plain_handler::<Wait>()
}
