//! What a test demands of a kernel's counters.

use super::exec::Counters;
use std::fmt;

/// Demands on the counters of a kernel. Each adds a sentence when it does not hold; [`Expectation::check`] gives them all.
///
/// ```
/// # let counters = neap::emulator::Counters::default();
/// use neap::emulator::Expectation;
/// Expectation::of("paged_decode", &counters)
///     .no_bank_conflicts()
///     .sector_efficiency_at_least(0.99)
///     .no_local_memory()
///     .check()
///     .unwrap();
/// ```
#[derive(Debug)]
#[must_use = "nothing is demanded before `check`"]
pub struct Expectation<'a> {
    kernel: &'a str,
    counters: &'a Counters,
    failures: Vec<String>,
}

/// Counters that are not what a test demands, a sentence each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unexpected(Vec<String>);

impl fmt::Display for Unexpected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl std::error::Error for Unexpected {}

impl<'a> Expectation<'a> {
    /// Demands on `counters`, which were counted with [`Profile::counters`](super::Profile) where sectors, bytes or banks
    /// matter.
    pub fn of(kernel: &'a str, counters: &'a Counters) -> Expectation<'a> {
        Expectation {
            kernel,
            counters,
            failures: Vec::new(),
        }
    }

    /// Shared memory takes no pass over its banks more than it must.
    pub fn no_bank_conflicts(self) -> Self {
        let (needed, took) = (
            self.counters.shared_ideal_wavefronts,
            self.counters.shared_wavefronts,
        );
        self.demand(took == needed, || {
            format!("shared memory took {took} passes over its banks where {needed} are enough")
        })
    }

    /// Distinct bytes of the bytes of all sectors touched.
    pub fn sector_efficiency_at_least(self, ratio: f64) -> Self {
        let found = self.counters.sector_efficiency();
        self.demand(found.is_none_or(|found| found >= ratio), || {
            format!(
                "{:.1} % of the bytes of its sectors were wanted, less than {:.1} %",
                100.0 * found.unwrap_or_default(),
                100.0 * ratio
            )
        })
    }

    /// Lanes that took part in an instruction, of 32.
    pub fn active_lanes_at_least(self, ratio: f64) -> Self {
        let found = self.counters.active_lane_ratio();
        self.demand(found.is_none_or(|found| found >= ratio), || {
            format!(
                "{:.1} % of the lanes were active, less than {:.1} %",
                100.0 * found.unwrap_or_default(),
                100.0 * ratio
            )
        })
    }

    /// Nothing is spilled: no access to local memory.
    pub fn no_local_memory(self) -> Self {
        let found = self.counters.local_requests;
        self.demand(found == 0, || {
            format!("{found} accesses went to local memory")
        })
    }

    /// No branch whose lanes went both ways.
    pub fn no_divergence(self) -> Self {
        let found = self.counters.divergent_branches;
        self.demand(found == 0, || format!("{found} branches went both ways"))
    }

    /// No two lanes of a warp update one address at once.
    pub fn no_atomic_conflicts(self) -> Self {
        let found = self.counters.atomic_conflicts;
        self.demand(found == 0, || {
            format!("{found} atomic operations hit the address of another lane")
        })
    }

    /// Bytes read from device memory, by sectors of 32.
    pub fn sector_bytes_read_at_most(self, bytes: u64) -> Self {
        let found = 32 * self.counters.global_load_sectors;
        self.demand(found <= bytes, || {
            format!("{found} bytes of sectors were read, more than {bytes}")
        })
    }

    /// Tensor-core instructions, exactly.
    pub fn mma_ops(self, count: u64) -> Self {
        let found = self.counters.mma_ops;
        self.demand(found == count, || {
            format!("{found} tensor-core instructions ran, not {count}")
        })
    }

    fn demand(mut self, holds: bool, failure: impl FnOnce() -> String) -> Self {
        if !holds {
            self.failures
                .push(format!("{}: {}", self.kernel, failure()));
        }
        self
    }

    /// Whether everything demanded holds.
    ///
    /// # Errors
    /// What does not, a sentence each.
    pub fn check(self) -> Result<(), Unexpected> {
        if self.failures.is_empty() {
            Ok(())
        } else {
            Err(Unexpected(self.failures))
        }
    }
}
