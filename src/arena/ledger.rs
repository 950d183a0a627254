//! The account of every byte of the device, from `cuMemGetInfo` readings alone.
//!
//! Each start-up stage ends with a reading; what became unavailable in between is that stage's. What arenas hold is
//! known exactly, so the readings of those stages are checked against it, and the difference is stated as
//! *unaccounted* instead of being hidden in a neighbour. The ledger closes when that is within one grain (I3).

use std::fmt;

use serde::{Deserialize, Serialize};

use super::bytes::{Grouped, HumanBytes};
use crate::driver::MemInfo;

/// A start-up stage whose memory only a reading can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// Loading modules.
    Modules,
    /// Mapping an arena: weights, workspace, KV. What it took is known, the reading is checked against it.
    Arena,
    /// Capturing, instantiating and warming graphs.
    Graphs,
}

/// Collects readings during start-up.
#[derive(Clone, Debug)]
pub struct LedgerMeter {
    total_bytes: u64,
    foreign_bytes: u64,
    context_bytes: u64,
    modules_bytes: i64,
    graphs_bytes: i64,
    free_bytes: u64,
}

impl LedgerMeter {
    /// Starts with the first reading, taken in a fresh context that by itself costs `context_bytes`; the rest of what
    /// is taken is foreign. Where the context's cost cannot be told apart, pass 0: it then counts as foreign.
    #[must_use]
    pub fn start(first: MemInfo, context_bytes: u64) -> Self {
        let taken = first.total_bytes.saturating_sub(first.free_bytes);
        let context_bytes = context_bytes.min(taken);
        Self {
            total_bytes: first.total_bytes,
            foreign_bytes: taken - context_bytes,
            context_bytes,
            modules_bytes: 0,
            graphs_bytes: 0,
            free_bytes: first.free_bytes,
        }
    }

    /// Charges what became unavailable since the last reading to `stage`; stages may come more than once.
    pub fn record(&mut self, stage: Stage, reading: MemInfo) {
        let taken = signed(self.free_bytes).saturating_sub(signed(reading.free_bytes));
        match stage {
            Stage::Modules => self.modules_bytes += taken,
            Stage::Graphs => self.graphs_bytes += taken,
            Stage::Arena => {}
        }
        self.free_bytes = reading.free_bytes;
    }

    /// Free bytes at the last reading.
    #[must_use]
    pub const fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// The ledger, once everything is mapped: `last` is a reading after that.
    #[must_use]
    pub fn finish(&self, last: MemInfo, claims: Claims) -> Ledger {
        let Claims {
            weights_bytes,
            workspace_bytes,
            headroom_bytes,
            kv,
            tail_bytes,
            unmapped_bytes,
            grain_bytes,
            ineligible,
        } = claims;
        let modules_bytes = u64::try_from(self.modules_bytes).unwrap_or(0);
        let graphs_bytes = u64::try_from(self.graphs_bytes).unwrap_or(0);
        let mut ledger = Ledger {
            total_bytes: self.total_bytes,
            foreign_bytes: self.foreign_bytes,
            context_bytes: self.context_bytes,
            modules_bytes,
            weights_bytes,
            workspace_bytes,
            graphs_bytes,
            headroom_bytes,
            kv,
            tail_bytes,
            unaccounted_bytes: 0,
            grain_bytes,
            ineligible,
        };
        // Taken by nobody we know, or (negative) claimed by somebody but not taken.
        let taken = signed(last.total_bytes) - signed(last.free_bytes);
        let claimed = ledger.rows().iter().map(|row| signed(row.1)).sum::<i64>()
            - signed(headroom_bytes)
            - signed(unmapped_bytes);
        ledger.unaccounted_bytes = taken - claimed;
        ledger
    }
}

/// What start-up knows it holds, for [`LedgerMeter::finish`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// Bytes mapped for weights.
    pub weights_bytes: u64,
    /// Bytes mapped for the workspace.
    pub workspace_bytes: u64,
    /// Bytes left free on purpose.
    pub headroom_bytes: u64,
    /// Bytes of whole slabs, by pool.
    pub kv: Vec<KvShare>,
    /// The carve's tail below one slab, mapped or not.
    pub tail_bytes: u64,
    /// The part of the tail that is not mapped, hence free on the device.
    pub unmapped_bytes: u64,
    /// The device's grain.
    pub grain_bytes: u64,
    /// Why KV was not sized from what capture left, and what to change, if it was not.
    pub ineligible: Option<String>,
}

/// Slab bytes of one pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvShare {
    /// Name of the layer group.
    pub group: String,
    /// Bytes.
    pub bytes: u64,
}

/// Who holds the device's memory. All fields but `unaccounted_bytes` and `grain_bytes` add up to `total_bytes`, to
/// within `unaccounted_bytes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Ledger {
    /// Bytes of the device.
    pub total_bytes: u64,
    /// Taken before this process's context, by others.
    pub foreign_bytes: u64,
    /// The context's own cost.
    pub context_bytes: u64,
    /// Loaded modules.
    pub modules_bytes: u64,
    /// The weights arena.
    pub weights_bytes: u64,
    /// The workspace arena.
    pub workspace_bytes: u64,
    /// Captured, instantiated and warmed graphs.
    pub graphs_bytes: u64,
    /// Left free on purpose.
    pub headroom_bytes: u64,
    /// Whole slabs, by pool.
    pub kv: Vec<KvShare>,
    /// The carve's tail, below one slab.
    pub tail_bytes: u64,
    /// Device memory taken by nobody above (positive), or held above without being taken (negative).
    pub unaccounted_bytes: i64,
    /// The device's grain.
    pub grain_bytes: u64,
    /// Why KV was not sized from what capture left, and what to change, if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ineligible: Option<String>,
}

impl Ledger {
    /// Whether the sum closes to within one grain (I3).
    #[must_use]
    pub fn closes(&self) -> bool {
        self.unaccounted_bytes.unsigned_abs() <= self.grain_bytes
    }

    /// Label and bytes of every holder, in the order of start-up.
    fn rows(&self) -> Vec<(String, u64)> {
        let fixed = [
            ("foreign", self.foreign_bytes),
            ("context", self.context_bytes),
            ("modules", self.modules_bytes),
            ("weights", self.weights_bytes),
            ("workspace", self.workspace_bytes),
            ("graphs", self.graphs_bytes),
            ("headroom", self.headroom_bytes),
        ];
        let pools = self
            .kv
            .iter()
            .map(|share| (format!("KV {}", share.group), share.bytes));
        let fixed = fixed
            .into_iter()
            .map(|(label, bytes)| (label.to_owned(), bytes));
        fixed
            .chain(pools)
            .chain([("tail".to_owned(), self.tail_bytes)])
            .collect()
    }
}

/// A waterfall: each holder's bytes, and what is left below it, drawn to scale.
impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const BAR: u64 = 40;
        let rows = self.rows();
        let label_width = rows
            .iter()
            .map(|row| row.0.len())
            .max()
            .unwrap_or(0)
            .max("unaccounted".len());
        let byte_width = Grouped(self.total_bytes).to_string().len();
        let mut line = |label: &str, bytes: u64, bar: (u64, u64)| {
            let (from, to) = bar;
            let cell = |place: u64| {
                u128::from(place) * u128::from(BAR) / u128::from(self.total_bytes.max(1))
            };
            let (start, end) = (cell(from) as usize, cell(to) as usize);
            let drawn = format!("{}{}", " ".repeat(start), "#".repeat(end - start));
            writeln!(
                f,
                "{label:label_width$}  {:>byte_width$}  {:>11}  |{drawn:width$}|",
                Grouped(bytes),
                HumanBytes(bytes),
                width = BAR as usize
            )
        };
        line("total", self.total_bytes, (0, self.total_bytes))?;
        let mut left = self.total_bytes;
        for (label, bytes) in &rows {
            let below = left.saturating_sub(*bytes);
            line(label, *bytes, (below, left))?;
            left = below;
        }
        let sign = if self.unaccounted_bytes < 0 { "-" } else { "" };
        let unaccounted = format!("{sign}{}", Grouped(self.unaccounted_bytes.unsigned_abs()));
        let verdict = if self.closes() {
            "closes within one grain of"
        } else {
            "does NOT close within one grain of"
        };
        writeln!(
            f,
            "{:label_width$}  {unaccounted:>byte_width$}  ({verdict} {})",
            "unaccounted",
            HumanBytes(self.grain_bytes)
        )?;
        match &self.ineligible {
            Some(reason) => writeln!(f, "KV was not sized after capture: {reason}"),
            None => Ok(()),
        }
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn reading(free_mib: u64) -> MemInfo {
        MemInfo {
            free_bytes: free_mib * MIB,
            total_bytes: 1_000 * MIB,
        }
    }

    fn claims() -> Claims {
        Claims {
            weights_bytes: 100 * MIB,
            workspace_bytes: 20 * MIB,
            headroom_bytes: 64 * MIB,
            kv: vec![
                KvShare {
                    group: "full".into(),
                    bytes: 300 * MIB,
                },
                KvShare {
                    group: "swa".into(),
                    bytes: 200 * MIB,
                },
            ],
            tail_bytes: 6 * MIB,
            unmapped_bytes: 5 * MIB,
            grain_bytes: 2 * MIB,
            ineligible: None,
        }
    }

    fn meter(graphs_mib: u64) -> LedgerMeter {
        let mut meter = LedgerMeter::start(reading(800), 150 * MIB);
        meter.record(Stage::Modules, reading(790));
        meter.record(Stage::Arena, reading(670));
        meter.record(Stage::Graphs, reading(670 - graphs_mib));
        meter
    }

    #[test]
    fn the_sum_is_the_total() {
        // Free before the carve 640: headroom 64, KV 576 of which 570 make slabs.
        let mut claims = claims();
        claims.kv[0].bytes = 370 * MIB;
        let ledger = meter(30).finish(reading(64 + 5), claims);
        assert_eq!(
            (ledger.foreign_bytes, ledger.context_bytes),
            (50 * MIB, 150 * MIB)
        );
        assert_eq!(
            (ledger.modules_bytes, ledger.graphs_bytes),
            (10 * MIB, 30 * MIB)
        );
        assert_eq!(ledger.unaccounted_bytes, 0);
        assert_eq!(
            ledger.rows().iter().map(|row| row.1).sum::<u64>(),
            ledger.total_bytes
        );
        assert!(ledger.closes());
    }

    #[test]
    fn what_nobody_holds_is_stated_and_not_spread() {
        let mut claims = claims();
        claims.kv[0].bytes = 370 * MIB;
        let ledger = meter(30).finish(reading(64 + 5 - 3), claims);
        assert_eq!(ledger.unaccounted_bytes, 3 * MIB as i64);
        assert!(!ledger.closes());
        assert!(ledger.to_string().contains("does NOT close"));
    }

    #[test]
    fn a_reason_against_sizing_after_capture_is_the_last_line() {
        let reason = "eager mode was asked for; drop --eager".to_owned();
        let claims = Claims {
            ineligible: Some(reason.clone()),
            ..claims()
        };
        let ledger = meter(30).finish(reading(69), claims);
        let text = ledger.to_string();
        assert_eq!(
            text.lines().last(),
            Some(format!("KV was not sized after capture: {reason}").as_str())
        );
        assert_eq!(serde_json::to_value(&ledger).unwrap()["ineligible"], reason);
    }

    #[test]
    fn the_waterfall_is_aligned_and_drawn_to_scale() {
        let mut claims = claims();
        claims.kv[0].bytes = 370 * MIB;
        let text = meter(30).finish(reading(69), claims).to_string();
        let lines = text.lines().collect::<Vec<_>>();
        assert_eq!(lines.len(), 12);
        assert_eq!(
            lines[0],
            format!(
                "total        1,048,576,000  1000.00 MiB  |{}|",
                "#".repeat(40)
            )
        );
        assert_eq!(
            lines[8],
            format!(
                "KV full        387,973,120   370.00 MiB  |{}{}{}|",
                " ".repeat(8),
                "#".repeat(15),
                " ".repeat(17)
            )
        );
        assert!(
            lines[..11].iter().all(|line| line.len() == lines[0].len()),
            "{text}"
        );
    }
}
