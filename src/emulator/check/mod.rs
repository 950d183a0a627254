//! The checked mode: what a device would let pass, found and named.
//!
//! A device whose [`Profile`](crate::emulator::Profile) has [`CheckOptions`] runs its launches on the calling thread, one block
//! after another (those of a cluster or of a cooperative launch side by side), and compares every access with what it knows:
//! who wrote and read each word of shared memory, which bytes of device memory were ever written, what an arena said about
//! its parts, what orders blocks, streams and graph nodes. It reports what is wrong on *some* schedule, not only on the one
//! that ran. A report is never a guess.
//!
//! | module | what it knows |
//! |---|---|
//! | `clock` | happens-before between the warps of blocks that run together |
//! | `shared` | the words of shared memory |
//! | `registers` | which registers hold a value |
//! | `fragments` | which registers `wgmma` still reads and writes |
//! | `memory` | device memory: written bytes, forbidden ranges |
//! | `streams` | the order between streams, and what their work touched |
//! | `ranges` | what blocks touched, and the order between them |

pub(crate) mod clock;
pub(crate) mod fragments;
pub(crate) mod memory;
pub(crate) mod ranges;
pub(crate) mod registers;
mod report;
pub(crate) mod shared;
pub(crate) mod streams;

pub use report::{CheckKind, CheckReport};

use memory::MemoryShadow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How the checked mode works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckOptions {
    /// Shuffles the order of blocks, warps and streams, and switches between warps at random instructions; the same seed
    /// gives the same order. 0 leaves the natural order.
    pub seed: u64,
    /// A report makes its launch or copy fail and so ends the life of the context, as a sanitizer would. Without it reports
    /// are only collected.
    pub fail: bool,
    /// Each report is also written to standard error, the first time its place is found: `NEAP_CHECK` asks for it, since
    /// who sets the variable may not be who can ask for the reports.
    pub print: bool,
}

impl Default for CheckOptions {
    fn default() -> Self {
        CheckOptions {
            seed: 0,
            fail: true,
            print: false,
        }
    }
}

impl CheckOptions {
    /// Options with this seed; reports make launches fail.
    #[must_use]
    pub fn with_seed(seed: u64) -> CheckOptions {
        CheckOptions {
            seed,
            ..CheckOptions::default()
        }
    }

    /// Reports are only collected.
    #[must_use]
    pub fn collecting(mut self) -> CheckOptions {
        self.fail = false;
        self
    }

    /// What `NEAP_CHECK` asks for, with reports printed: a seed (`NEAP_CHECK=7`), with `,collect` behind it to only collect. `None` when the
    /// variable is not set, empty or `off`.
    ///
    /// # Errors
    /// A sentence about a value that is none of these.
    pub fn from_environment() -> Result<Option<CheckOptions>, String> {
        let Ok(text) = std::env::var("NEAP_CHECK") else {
            return Ok(None);
        };
        let (seed, collect) = match text.split_once(',') {
            Some((seed, "collect")) => (seed, true),
            Some(_) => ("?", false),
            None => (text.as_str(), false),
        };
        if matches!(seed, "" | "off") {
            return Ok(None);
        }
        let seed = seed.parse().map_err(|_| {
            format!("NEAP_CHECK is {text:?}; it must be `off`, a seed such as `7`, or `7,collect`")
        })?;
        let options = CheckOptions {
            print: true,
            ..CheckOptions::with_seed(seed)
        };
        Ok(Some(if collect {
            options.collecting()
        } else {
            options
        }))
    }
}

/// Reports kept in full; later ones of new places are only counted.
const KEPT_REPORTS: usize = 1000;

#[derive(Debug, Default)]
struct Reports {
    list: Vec<CheckReport>,
    index: HashMap<(CheckKind, String, u32), usize>,
    total: u64,
}

/// The checked mode of one device.
#[derive(Debug)]
pub struct Checker {
    options: CheckOptions,
    reports: Mutex<Reports>,
    memory: Mutex<Option<MemoryShadow>>,
    launches: AtomicU64,
    /// Ticket of the work that is running.
    ticket: AtomicU64,
    /// The order of streams, unless it is the natural one.
    streams: Option<Mutex<Shuffle>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while one of these is held, so the state is whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Checker {
    /// A device's checks, without memory yet.
    #[must_use]
    pub fn new(options: CheckOptions) -> Checker {
        Checker {
            options,
            reports: Mutex::default(),
            memory: Mutex::default(),
            launches: AtomicU64::new(0),
            ticket: AtomicU64::new(u64::MAX),
            streams: (options.seed != 0).then(|| Mutex::new(Shuffle::new(options.seed, u64::MAX))),
        }
    }

    /// How it works.
    pub fn options(&self) -> CheckOptions {
        self.options
    }

    /// Everything reported so far, one entry a kind and place.
    pub fn reports(&self) -> Vec<CheckReport> {
        lock(&self.reports).list.clone()
    }

    /// Reports so far, repeated ones included.
    pub fn report_count(&self) -> u64 {
        lock(&self.reports).total
    }

    /// Forgets the reports, as a test does that expected them.
    pub fn take_reports(&self) -> Vec<CheckReport> {
        std::mem::take(&mut *lock(&self.reports)).list
    }

    /// Adds a report, or counts it if its place is known.
    pub(crate) fn report(&self, report: CheckReport) {
        let reports = &mut *lock(&self.reports);
        reports.total += report.times;
        let key = (report.kind, report.site.kernel.clone(), report.site.line);
        if let Some(&index) = reports.index.get(&key) {
            reports.list[index].times += report.times;
        } else if reports.list.len() < KEPT_REPORTS {
            if self.options.print {
                eprintln!("checked mode: {report}");
            }
            reports.index.insert(key, reports.list.len());
            reports.list.push(report);
        }
    }

    /// The shadow of device memory, once the device has any.
    pub(crate) fn memory(&self) -> MutexGuard<'_, Option<MemoryShadow>> {
        lock(&self.memory)
    }

    /// The device's memory window: begins a new shadow.
    pub(crate) fn set_window(&self, base: u64, shift: u32, grains: usize) {
        *lock(&self.memory) = Some(MemoryShadow::new(base, shift, grains));
    }

    /// The order of streams, unless it is the natural one.
    pub(crate) fn streams(&self) -> Option<MutexGuard<'_, Shuffle>> {
        self.streams.as_ref().map(lock)
    }

    /// Number of a launch, for its random order.
    pub(crate) fn next_launch(&self) -> u64 {
        self.launches.fetch_add(1, Ordering::Relaxed)
    }

    /// The work of this ticket is about to run.
    pub(crate) fn set_ticket(&self, ticket: u64) {
        self.ticket.store(ticket, Ordering::Relaxed);
    }

    pub(crate) fn ticket(&self) -> u64 {
        self.ticket.load(Ordering::Relaxed)
    }
}

/// A random order: SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub(crate) struct Shuffle(u64);

impl Shuffle {
    pub(crate) fn new(seed: u64, stream: u64) -> Shuffle {
        Shuffle(seed ^ stream.wrapping_mul(0xD134_2543_DE82_EF95))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn order<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}
