//! What one launch did, in numbers that do not depend on the host.

use std::ops::{Add, AddAssign};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Event counts of one or more launches. All but the memory-traffic ones are always exact and deterministic;
        /// sectors, unique bytes and wavefronts are zero unless [`ExecOptions::counters`](super::ExecOptions) was set.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
        #[non_exhaustive]
        pub struct Counters { $($(#[$doc])* pub $name: u64,)* }

        impl AddAssign for Counters {
            fn add_assign(&mut self, other: Counters) { $(self.$name += other.$name;)* }
        }

        impl Counters {
            /// What was counted after `earlier`, a reading of the same counters.
            #[must_use]
            pub fn since(&self, earlier: &Counters) -> Counters {
                Counters { $($name: self.$name.saturating_sub(earlier.$name),)* }
            }
        }
    };
}

counters! {
    /// Kernel launches.
    launches,
    /// Thread blocks run.
    blocks,
    /// Instructions issued, once per warp. PTX moves that the loader propagated away do not count.
    warp_instructions,
    /// Sum over `warp_instructions` of the lanes that took part.
    active_lanes,
    /// Branches whose lanes went both ways.
    divergent_branches,
    /// Warp-level loads from global memory.
    global_load_requests,
    /// Bytes that lanes asked for by global loads.
    global_load_bytes,
    /// 32-byte sectors touched by global loads, per request (only with `ExecOptions::counters`).
    global_load_sectors,
    /// Distinct bytes touched by global loads, per request (only with `ExecOptions::counters`).
    global_load_unique_bytes,
    /// Warp-level stores to global memory.
    global_store_requests,
    /// Bytes that lanes asked for by global stores.
    global_store_bytes,
    /// 32-byte sectors touched by global stores, per request (only with `ExecOptions::counters`).
    global_store_sectors,
    /// Distinct bytes touched by global stores, per request (only with `ExecOptions::counters`).
    global_store_unique_bytes,
    /// Bytes copied from global to shared memory by `cp.async`.
    async_copy_bytes,
    /// Warp-level accesses to shared memory.
    shared_requests,
    /// Passes over the 32 banks that shared accesses needed (only with `ExecOptions::counters`).
    shared_wavefronts,
    /// Passes they would have needed without bank conflicts (only with `ExecOptions::counters`).
    shared_ideal_wavefronts,
    /// Warp-level accesses to local memory.
    local_requests,
    /// Warp-level tensor-core instructions.
    mma_ops,
    /// Multiply-adds done by tensor-core instructions.
    mma_macs,
    /// Barrier arrivals, once per warp.
    barriers,
    /// Atomic operations, once per lane.
    atomics,
    /// Atomic operations whose address another lane of the warp updates as well, beyond the first (only with
    /// `ExecOptions::counters`).
    atomic_conflicts,
}

impl Add for Counters {
    type Output = Counters;
    fn add(mut self, other: Counters) -> Counters {
        self += other;
        self
    }
}

/// Ratios for assertions and tables; `None` where nothing was counted.
impl Counters {
    /// Lanes that took part in an instruction, of 32.
    #[must_use]
    pub fn active_lane_ratio(&self) -> Option<f64> {
        ratio(self.active_lanes, 32 * self.warp_instructions)
    }

    /// Distinct bytes of the bytes of all sectors touched, loads and stores together: 1 when every sector is used whole.
    #[must_use]
    pub fn sector_efficiency(&self) -> Option<f64> {
        ratio(
            self.global_load_unique_bytes + self.global_store_unique_bytes,
            32 * (self.global_load_sectors + self.global_store_sectors),
        )
    }

    /// Passes over shared memory's banks that would have been enough, of those it took: 1 without bank conflicts.
    #[must_use]
    pub fn bank_efficiency(&self) -> Option<f64> {
        ratio(self.shared_ideal_wavefronts, self.shared_wavefronts)
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
