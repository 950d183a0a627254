//! The process's emulated devices, the handles that name their objects, and the calling thread's state.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, TryLockError};

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

impl EmulatedDevice {
    /// The device's state, unless a call is being served.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

static DEVICES: RwLock<Vec<Arc<EmulatedDevice>>> = RwLock::new(Vec::new());
/// Some device wants its work run though nobody waits for it.
static PROGRESSING: AtomicBool = AtomicBool::new(false);
/// The thread that runs such work has been started.
static PROGRESS_RUNS: AtomicBool = AtomicBool::new(false);
static INITIALISED: AtomicBool = AtomicBool::new(false);
/// The process was forked from one that had initialised the driver: its threads and memory are not here.
static FORKED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Contexts that were pushed on this thread; the last is current.
    static CONTEXTS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    /// The thread runs a host function for a stream.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
    static DETAIL: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Adds a device and gives its ordinal.
pub(crate) fn add_device(profile: Profile) -> u32 {
    let mut devices = DEVICES.write().unwrap_or_else(PoisonError::into_inner);
    let ordinal = devices.len() as u32;
    let device = Arc::new(EmulatedDevice {
        ordinal,
        state: Mutex::new(State::new(ordinal, profile.clone())),
        profile,
        space: OnceLock::new(),
    });
    if device.profile.progress.is_some() {
        PROGRESSING.store(true, Ordering::Release);
    }
    devices.push(device);
    ordinal
}

/// The device of this ordinal.
pub(crate) fn device(ordinal: u32) -> Option<Arc<EmulatedDevice>> {
    let devices = DEVICES.read().unwrap_or_else(PoisonError::into_inner);
    devices.get(ordinal as usize).cloned()
}

/// All devices.
pub(super) fn devices() -> Vec<Arc<EmulatedDevice>> {
    DEVICES
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
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

/// What runs before the driver is initialised for the first time.
static BEFORE_INIT: Mutex<Option<fn()>> = Mutex::new(None);

/// Runs `body` when the driver is initialised for the first time, before that.
pub(crate) fn before_init(body: fn()) {
    *BEFORE_INIT.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
}

/// Runs in a process that has just been forked.
extern "C" fn after_fork() {
    FORKED.store(true, Ordering::Release);
    INITIALISED.store(false, Ordering::Release);
}

/// Initialises the driver; as NVIDIA's, not in a process that was forked from one that had.
pub(super) fn initialise() -> Result<(), Failure> {
    if FORKED.load(Ordering::Acquire) {
        return Err(Failure::new(
            CuResult::NOT_INITIALIZED,
            "the process was forked from one that had initialised the driver",
        ));
    }
    {
        let mut before = BEFORE_INIT.lock().unwrap_or_else(PoisonError::into_inner);
        // Others that initialise it meanwhile wait for the end.
        if let Some(body) = before.take() {
            body();
        }
    }
    if !INITIALISED.swap(true, Ordering::AcqRel) {
        // SAFETY: the function only stores to atomics. Where it cannot be registered, forks go unnoticed.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
    }
    start_progress();
    Ok(())
}

/// Starts the thread that runs what lies in streams, where a device wants it.
fn start_progress() {
    if !PROGRESSING.load(Ordering::Acquire) || PROGRESS_RUNS.swap(true, Ordering::AcqRel) {
        return;
    }
    // Without the thread work still runs when somebody waits for it.
    let _ = std::thread::Builder::new()
        .name("neap-progress".to_owned())
        .spawn(progress);
}

/// Runs what lies in streams, on devices that want it.
fn progress() {
    loop {
        let devices = devices();
        let pauses = devices.iter().filter_map(|device| device.profile.progress);
        let pause = pauses.min().unwrap_or(std::time::Duration::from_millis(10));
        std::thread::sleep(pause);
        for device in devices {
            if device.profile.progress.is_some()
                && let Some(mut state) = device.try_lock()
            {
                state.drain_all();
            }
        }
    }
}

/// True where every failed call is told on standard error: `NEAP_EMULATOR_LOG=1`.
pub(super) fn logs_failures() -> bool {
    static LOGS: OnceLock<bool> = OnceLock::new();
    *LOGS.get_or_init(|| std::env::var_os("NEAP_EMULATOR_LOG").is_some_and(|value| value != "0"))
}

pub(super) fn is_initialised() -> bool {
    INITIALISED.load(Ordering::Acquire)
}

/// The calling thread's current context handle, 0 for none.
pub(super) fn current() -> u64 {
    CONTEXTS.with_borrow(|contexts| contexts.last().copied().unwrap_or(0))
}

/// Makes a context the thread's current one, in place of the one that is; 0 for none.
pub(super) fn set_current(handle: u64) {
    CONTEXTS.with_borrow_mut(|contexts| {
        contexts.pop();
        if handle != 0 {
            contexts.push(handle);
        }
    });
}

/// Makes a context the thread's current one, above the one that is.
pub(super) fn push_current(handle: u64) {
    CONTEXTS.with_borrow_mut(|contexts| contexts.push(handle));
}

/// Takes the thread's current context away; the one below becomes current.
pub(super) fn pop_current() -> Option<u64> {
    CONTEXTS.with_borrow_mut(Vec::pop)
}

/// Runs a host function of a stream: the calls it makes are refused, as they would wait for themselves.
pub(super) fn in_host_function(body: impl FnOnce()) {
    let outer = IN_HOST_FUNCTION.replace(true);
    body();
    IN_HOST_FUNCTION.set(outer);
}

/// True inside of [`in_host_function`].
pub(super) fn is_in_host_function() -> bool {
    IN_HOST_FUNCTION.get()
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
    Library,
    Kernel,
    Link,
    Pool,
    UserObject,
}

/// The handle of object `serial` (below 2^40) of a device: kind, ordinal, serial, from the top.
pub(super) fn handle(kind: Kind, ordinal: u32, serial: u64) -> u64 {
    (kind as u64) << 56 | u64::from(ordinal & 0xFFFF) << 40 | serial
}

/// Ordinal and serial of a handle of this kind.
pub(super) fn decode_parts(raw: u64, kind: Kind) -> Option<(u32, u64)> {
    let ordinal = (raw >> 40 & 0xFFFF) as u32;
    (raw >> 56 == kind as u64).then_some((ordinal, raw & ((1 << 40) - 1)))
}

/// Device and serial of a handle of this kind.
pub(super) fn decode(raw: u64, kind: Kind) -> Option<(Arc<EmulatedDevice>, u64)> {
    let (ordinal, serial) = decode_parts(raw, kind)?;
    Some((device(ordinal)?, serial))
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
