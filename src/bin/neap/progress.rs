//! What is shown while a model loads: bars on a terminal, one line a phase elsewhere.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressStyle};
use neap::engine::Progress;

use crate::report::note;

/// Shows the start-up's phases on standard error.
pub struct ProgressDisplay {
    bar: Option<ProgressBar>,
    phase: &'static str,
}

impl ProgressDisplay {
    /// Nothing shown yet.
    pub fn new() -> ProgressDisplay {
        ProgressDisplay {
            bar: None,
            phase: "",
        }
    }

    /// Takes one report.
    pub fn show(&mut self, now: &Progress) {
        let (phase, done, total, template) = match *now {
            Progress::Weights {
                done_bytes,
                total_bytes,
            } => (
                "weights",
                done_bytes,
                total_bytes,
                "{prefix:>9} {wide_bar} {bytes}/{total_bytes}",
            ),
            Progress::Capture { done, total } => (
                "graphs",
                u64::from(done),
                u64::from(total),
                "{prefix:>9} {wide_bar} {pos}/{len}",
            ),
            Progress::Measure => ("measure", 0, 0, "{prefix:>9}"),
            Progress::Carve => ("carve", 0, 0, "{prefix:>9}"),
        };
        if self.phase != phase {
            self.phase = phase;
            self.finish();
            if stderr().is_terminal() {
                let style = ProgressStyle::with_template(template)
                    .unwrap_or_else(|_| ProgressStyle::default_bar());
                self.bar = Some(ProgressBar::new(total).with_style(style).with_prefix(phase));
            } else {
                note(&now.to_string());
            }
        }
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
        }
    }

    /// Takes the bar away.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
