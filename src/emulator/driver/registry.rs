//! The process's emulated devices, the handles that name their objects, and the calling thread's state.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use super::failure::Failure;
use super::state::State;
use crate::driver::CuResult;
use crate::emulator::Profile;
use crate::emulator::mem::Space;

/// One emulated device.
#[derive(Debug)]
pub(crate) struct EmulatedDevice {
    pub(crate) ordinal: u32,
    pub(crate) profile: Profile,
    /// Set once the device has a window of addresses.
    pub(super) space: OnceLock<Arc<Space>>,
    state: Mutex<State>,
}

impl EmulatedDevice {
    /// The device's state. One lock a device: calls on it are served one after the other, launches
    /// included, as a single command queue would.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic inside an entry point is reported as CUDA_ERROR_UNKNOWN; what it left behind may be
        // wrong for that device, but not unsound: every access is checked against the tables.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

static DEVICES: RwLock<Vec<Arc<EmulatedDevice>>> = RwLock::new(Vec::new());
static INITIALISED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static CURRENT: Cell<u64> = const { Cell::new(0) };
    static DETAIL: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Adds a device and gives its ordinal.
pub(crate) fn add_device(profile: Profile) -> u32 {
    let mut devices = DEVICES.write().unwrap_or_else(PoisonError::into_inner);
    let ordinal = devices.len() as u32;
    devices.push(Arc::new(EmulatedDevice {
        ordinal,
        state: Mutex::new(State::new(ordinal, profile.clone())),
        profile,
        space: OnceLock::new(),
    }));
    ordinal
}

/// The device of this ordinal.
pub(crate) fn device(ordinal: u32) -> Option<Arc<EmulatedDevice>> {
    let devices = DEVICES.read().unwrap_or_else(PoisonError::into_inner);
    devices.get(ordinal as usize).cloned()
}

pub(super) fn device_count() -> usize {
    DEVICES.read().unwrap_or_else(PoisonError::into_inner).len()
}

/// The device whose window holds this address.
pub(super) fn device_of_address(address: u64) -> Option<Arc<EmulatedDevice>> {
    let devices = DEVICES.read().unwrap_or_else(PoisonError::into_inner);
    devices
        .iter()
        .find(|device| {
            device
                .space
                .get()
                .is_some_and(|space| space.contains(address))
        })
        .cloned()
}

pub(super) fn initialise() {
    INITIALISED.store(true, Ordering::Release);
}

pub(super) fn is_initialised() -> bool {
    INITIALISED.load(Ordering::Acquire)
}

/// The calling thread's current context handle, 0 for none.
pub(super) fn current() -> u64 {
    CURRENT.get()
}

pub(super) fn set_current(handle: u64) {
    CURRENT.set(handle);
}

/// What the calling thread's latest failed call had to say beyond its code.
pub(crate) fn detail() -> Option<String> {
    DETAIL.with_borrow(Clone::clone)
}

pub(super) fn set_detail(detail: Option<String>) {
    DETAIL.with_borrow_mut(|slot| *slot = detail);
}

/// What a handle names. Handles are numbers, never addresses: a stale or foreign one is an error, not a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Context = 0x11,
    Stream,
    Event,
    Module,
    Function,
    Graph,
    GraphExec,
    Node,
    Physical,
}

/// The handle of object `serial` (below 2^40) of a device: kind, ordinal, serial, from the top.
pub(super) fn handle(kind: Kind, ordinal: u32, serial: u64) -> u64 {
    (kind as u64) << 56 | u64::from(ordinal & 0xFFFF) << 40 | serial
}

/// Device and serial of a handle of this kind.
pub(super) fn decode(raw: u64, kind: Kind) -> Option<(Arc<EmulatedDevice>, u64)> {
    if raw >> 56 != kind as u64 {
        return None;
    }
    let ordinal = (raw >> 40 & 0xFFFF) as u32;
    Some((device(ordinal)?, raw & ((1 << 40) - 1)))
}

/// The device of the calling thread's current context.
pub(super) fn current_device() -> Result<Arc<EmulatedDevice>, Failure> {
    match decode(current(), Kind::Context) {
        Some((device, generation)) if device.lock().context_is(generation) => Ok(device),
        Some(_) => Err(Failure::new(
            CuResult::CONTEXT_IS_DESTROYED,
            "the current context was destroyed",
        )),
        None => Err(Failure::new(
            CuResult::INVALID_CONTEXT,
            "no context is current on this thread",
        )),
    }
}
