//! How long launches would take on the device a profile describes: a *model*, never a measurement.

use std::fmt;

use serde::Serialize;

use super::{Counters, Profile};

/// Modelled time of a launch on its own stream, beside what it does.
const LAUNCH_US: f64 = 2.0;
/// The gap between two launches of one graph.
const GRAPH_GAP_US: f64 = 1.0;
/// Warp instructions a multiprocessor issues in a cycle: one each of its four schedulers.
const ISSUE_PER_CYCLE: f64 = 4.0;

/// What bounds the modelled time of one or more launches, each part as if it ran alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ModelTime {
    /// Device memory traffic at copy bandwidth, in microseconds.
    pub memory_us: f64,
    /// Tensor-core work at the dense bf16 rate, in microseconds.
    pub tensor_us: f64,
    /// Warp instructions at full issue rate on all multiprocessors, in microseconds.
    pub issue_us: f64,
    /// Launches, in microseconds.
    pub launch_us: f64,
}

impl ModelTime {
    /// The model of counters that were taken on a device of this profile; `in_graph` says that the launches were a graph's.
    #[must_use]
    pub fn new(profile: &Profile, counters: &Counters, in_graph: bool) -> ModelTime {
        let loaded = match counters.global_load_unique_bytes {
            0 => counters.global_load_bytes,
            unique => unique,
        };
        let bytes = loaded + counters.global_store_bytes;
        let cycles = counters.warp_instructions as f64
            / (ISSUE_PER_CYCLE * f64::from(profile.sm_count.max(1)));
        let gap_us = if in_graph { GRAPH_GAP_US } else { LAUNCH_US };
        ModelTime {
            memory_us: bytes as f64 / profile.copy_bytes_per_second * 1e6,
            tensor_us: 2.0 * counters.mma_macs as f64 / profile.bf16_flops * 1e6,
            issue_us: cycles / (f64::from(profile.clock_khz.max(1)) / 1e3),
            launch_us: gap_us * counters.launches as f64,
        }
    }

    /// The whole: the longest part, and the launches.
    #[must_use]
    pub fn total_us(&self) -> f64 {
        self.launch_us + self.memory_us.max(self.tensor_us).max(self.issue_us)
    }

    /// The part that bounds it.
    #[must_use]
    pub fn bound(&self) -> &'static str {
        let parts = [
            (self.launch_us, "launches"),
            (self.memory_us, "memory"),
            (self.tensor_us, "tensor cores"),
            (self.issue_us, "issue"),
        ];
        let longest = parts.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
        longest.map_or("launches", |(_, name)| name)
    }
}

impl fmt::Display for ModelTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "model: {:.1} us, bound by {}",
            self.total_us(),
            self.bound()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_part_bounds() {
        let mut profile = Profile::named("h200").expect("a known profile");
        profile.copy_bytes_per_second = 1e12;
        profile.bf16_flops = 1e15;
        profile.sm_count = 100;
        profile.clock_khz = 1_000_000;
        let mut counters = Counters {
            launches: 2,
            global_load_bytes: 6_000_000,
            global_store_bytes: 4_000_000,
            mma_macs: 1_000_000_000,
            warp_instructions: 800_000,
            ..Counters::default()
        };
        let time = ModelTime::new(&profile, &counters, false);
        assert_eq!(
            [
                time.memory_us,
                time.tensor_us,
                time.issue_us,
                time.launch_us
            ]
            .map(f64::round),
            [10.0, 2.0, 2.0, 4.0]
        );
        assert_eq!((time.total_us().round(), time.bound()), (14.0, "memory"));
        counters.global_load_unique_bytes = 1_000_000;
        assert!(ModelTime::new(&profile, &counters, true).total_us() < 8.0);
    }
}
