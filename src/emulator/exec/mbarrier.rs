//! `mbarrier`: barriers in shared memory that count arrivals and bytes of asynchronous copies.
//!
//! PTX leaves the 64 bits of a barrier to the implementation. Here: pending arrivals (bits 0 to 19), arrivals expected in
//! every phase (20 to 39), bytes still to come in two's complement (40 to 60), the phase's parity (61), and a mark (62 and
//! 63, `01`) that neither zeros nor poison carry. A state that `arrive` returns is the word as it was before.

use super::access::{prepare, space};
use super::fault::Fault;
use super::op::{Op, plain_handler};
use super::warp::{Handler, Ins, LANES, Stop, Warp};
use super::watch::BarrierEvent;
use crate::emulator::check::shared::Access;

const COUNT_BITS: u32 = 20;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
const BYTES_SHIFT: u32 = 2 * COUNT_BITS;
const BYTES_BITS: u32 = 21;
const PHASE: u64 = 1 << 61;
const MARK: u64 = 1 << 62;
const MARK_MASK: u64 = 3 << 62;

/// A barrier's word, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    pending: u64,
    expected: u64,
    /// Bytes that copies have still to bring.
    bytes: i64,
    phase: bool,
}

impl State {
    fn unpack(word: u64) -> Option<State> {
        (word & MARK_MASK == MARK).then_some(State {
            pending: word & COUNT_MASK,
            expected: word >> COUNT_BITS & COUNT_MASK,
            bytes: (word << (64 - BYTES_SHIFT - BYTES_BITS)) as i64 >> (64 - BYTES_BITS),
            phase: word & PHASE != 0,
        })
    }

    fn pack(self) -> u64 {
        let bytes = self.bytes as u64 & ((1 << BYTES_BITS) - 1);
        let phase = if self.phase { PHASE } else { 0 };
        self.pending | self.expected << COUNT_BITS | bytes << BYTES_SHIFT | phase | MARK
    }

    /// Begins the next phase if nothing is missing.
    fn settle(&mut self) {
        if self.pending == 0 && self.bytes == 0 {
            self.pending = self.expected;
            self.phase = !self.phase;
        }
    }

    fn expect(&mut self, bytes: i64) -> Result<(), String> {
        self.bytes += bytes;
        if self.bytes.unsigned_abs() >= 1 << (BYTES_BITS - 1) {
            return Err(format!(
                "{} bytes are more than an mbarrier counts",
                self.bytes
            ));
        }
        Ok(())
    }

    fn arrive(&mut self, count: u64, drop: bool, completes: bool) -> Result<(), String> {
        if count == 0 || count > self.pending {
            return Err(format!(
                "{count} arrivals where {} are pending",
                self.pending
            ));
        }
        self.pending -= count;
        if drop {
            self.expected -= count.min(self.expected);
        }
        if !completes && self.pending == 0 && self.bytes == 0 {
            return Err("an arrival with `.noComplete` completes the phase".into());
        }
        self.settle();
        Ok(())
    }
}

/// What an instruction does, in `ops[7]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Action {
    /// `ops[2]`: count.
    Init,
    Invalidate,
    /// `ops[2]`: count; `ops[3]`: bytes to expect first.
    Arrive,
    ArriveDrop,
    ArriveNoComplete,
    ArriveDropNoComplete,
    /// `ops[2]`: bytes.
    ExpectBytes,
    CompleteBytes,
    /// `ops[0]`: predicate; `ops[2]`: state.
    TestState,
    /// `ops[2]`: parity.
    TestParity,
    TryState,
    TryParity,
    /// The arrival of `cp.async.mbarrier.arrive`, which takes the place of one that was counted (`.noinc`) or adds both.
    CopiesArrive,
    CopiesArriveCounted,
}

const ACTIONS: [Action; 14] = [
    Action::Init,
    Action::Invalidate,
    Action::Arrive,
    Action::ArriveDrop,
    Action::ArriveNoComplete,
    Action::ArriveDropNoComplete,
    Action::ExpectBytes,
    Action::CompleteBytes,
    Action::TestState,
    Action::TestParity,
    Action::TryState,
    Action::TryParity,
    Action::CopiesArrive,
    Action::CopiesArriveCounted,
];

/// Subtracts bytes that a copy brought from the barrier at a host address that was checked; true where that completes the
/// phase.
///
/// # Safety
/// `address` leads to 8 bytes of shared memory of a block that still runs.
pub(super) unsafe fn complete_bytes(address: u64, bytes: u64) -> bool {
    let cell = address as *mut u64;
    // SAFETY: passed on to the caller.
    let word = unsafe { cell.read_unaligned() };
    if let Some(mut state) = State::unpack(word) {
        let phase = state.phase;
        state.bytes -= bytes as i64;
        state.settle();
        // SAFETY: as above.
        unsafe { cell.write_unaligned(state.pack()) };
        return state.phase != phase;
    }
    false
}

/// One of [`ACTIONS`]. `ops`: destination (state or predicate), address, two operands of the action.
struct Mbarrier;
impl Op for Mbarrier {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let action = ACTIONS[(ins.ops[7] as usize).min(ACTIONS.len() - 1)];
        if matches!(action, Action::CopiesArrive | Action::CopiesArriveCounted) {
            warp.finish_async_copies();
        }
        let Some((all, _)) = prepare(warp, ip, ins.ops[1], 8, true) else {
            return std::ptr::null();
        };
        warp.counters.shared_requests += 1;
        if warp.count_memory {
            let access = if matches!(action, Action::Init | Action::Invalidate) {
                Access::Write
            } else {
                Access::Atomic
            };
            super::traffic::observe(warp, &all, space::SHARED, 8, access);
        }
        let state_operand = matches!(action, Action::TestState | Action::TryState);
        // SAFETY: the operand is a slot of 32 lanes of this width.
        let first: [u64; LANES] = unsafe {
            if state_operand {
                warp.read::<u64>(ins.ops[2])
            } else {
                warp.read::<u32>(ins.ops[2]).map(u64::from)
            }
        };
        // SAFETY: as above.
        let second = unsafe { warp.read::<u32>(ins.ops[3]) };
        let (mut old, mut holds) = ([0u64; LANES], 0u32);
        let mask = warp.mask;
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            if matches!(
                action,
                Action::TestState | Action::TestParity | Action::TryState | Action::TryParity
            ) {
                warp.finish_transfers(all.0[lane]);
            }
            let cell = all.0[lane] as *mut u64;
            // SAFETY: the access has been checked.
            let word = unsafe { cell.read() };
            old[lane] = word;
            let outcome = apply(action, word, first[lane], second[lane].into());
            let (new, truth) = match outcome {
                Ok(result) => result,
                Err(message) => {
                    return warp.fail(ip, lane as u32, |site| Fault::Unsupported { site, message });
                }
            };
            // SAFETY: as above.
            unsafe { cell.write(new) };
            holds |= u32::from(truth) << lane;
            if !warp.watch.is_null() {
                // SAFETY: a watch that is set outlives the warps, and the block's runner does not use it while a handler
                // runs.
                let watch = unsafe { &mut *warp.watch };
                let event = match action {
                    Action::Init | Action::Invalidate => BarrierEvent::Begin,
                    Action::ExpectBytes => BarrierEvent::Other,
                    Action::CompleteBytes => BarrierEvent::Bytes,
                    Action::TestState
                    | Action::TestParity
                    | Action::TryState
                    | Action::TryParity => {
                        if truth {
                            BarrierEvent::Pass
                        } else {
                            BarrierEvent::Other
                        }
                    }
                    _ => BarrierEvent::Arrive,
                };
                let completes = event != BarrierEvent::Begin && (word ^ new) & PHASE != 0;
                watch.mbarrier(warp, all.0[lane], event, completes);
            }
        }
        let tests = matches!(action, Action::TestState | Action::TestParity);
        let tries = matches!(action, Action::TryState | Action::TryParity);
        if tests || tries {
            // SAFETY: the first operand is a predicate.
            unsafe { warp.set_pred(ins.ops[0], holds) };
            if tries && holds != mask {
                // The thread may be suspended for a while: the others of the cluster get their turn.
                warp.stop = Stop::Wait;
                warp.resume = ip.wrapping_add(1);
                return std::ptr::null();
            }
        } else {
            // SAFETY: the first operand is a destination of 64 bits.
            unsafe { warp.write64(ins.ops[0], &old) };
        }
        ip.wrapping_add(1)
    }
}

/// The word after an action, and the truth of a test.
fn apply(action: Action, word: u64, first: u64, second: u64) -> Result<(u64, bool), String> {
    if action == Action::Init {
        if first == 0 || first > COUNT_MASK {
            return Err(format!(
                "an mbarrier for {first} arrivals: 1 to {COUNT_MASK} can be counted"
            ));
        }
        let state = State {
            pending: first,
            expected: first,
            bytes: 0,
            phase: false,
        };
        return Ok((state.pack(), false));
    }
    let Some(mut state) = State::unpack(word) else {
        return Err("there is no initialised mbarrier at this address".into());
    };
    let mut truth = false;
    match action {
        Action::Init => {}
        Action::Invalidate => return Ok((0, false)),
        Action::Arrive | Action::ArriveDrop => {
            state.expect(second as i64)?;
            state.arrive(first, action == Action::ArriveDrop, true)?;
        }
        Action::ArriveNoComplete => state.arrive(first, false, false)?,
        Action::ArriveDropNoComplete => state.arrive(first, true, false)?,
        Action::ExpectBytes => state.expect(first as i64)?,
        Action::CompleteBytes => {
            state.expect(-(first as i64))?;
            state.settle();
        }
        Action::TestState | Action::TryState => {
            truth = (first & PHASE != 0) != state.phase;
        }
        Action::TestParity | Action::TryParity => truth = (first & 1 != 0) != state.phase,
        // Adds a pending arrival and arrives.
        Action::CopiesArriveCounted => {}
        Action::CopiesArrive => state.arrive(1, false, true)?,
    }
    Ok((state.pack(), truth))
}

/// `mbarrier.pending_count`: what a state says.
pub(crate) fn pending(state: u64) -> u32 {
    (state & COUNT_MASK) as u32
}

pub(crate) fn handler() -> Handler {
    plain_handler::<Mbarrier>()
}
