//! What a start-up reports while it runs, and how long its stages took.

use std::fmt;

use serde::Serialize;

/// One report of the start-up, in the order of the stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Weights are being uploaded.
    Weights {
        /// Bytes handed to the device so far.
        done_bytes: u64,
        /// Bytes in all.
        total_bytes: u64,
    },
    /// Graphs are being captured and warmed.
    Capture {
        /// Graphs ready.
        done: u32,
        /// Graphs in all.
        total: u32,
    },
    /// What capture left over is being read.
    Measure,
    /// The leftover is being mapped as KV pages.
    Carve,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Progress::Weights { .. } => "uploading weights",
            Progress::Capture { .. } => "capturing graphs",
            Progress::Measure => "measuring what is left",
            Progress::Carve => "carving KV pools",
        })
    }
}

/// Wall-clock time of each start-up stage on the host, microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct StartupTimings {
    /// Reading and checking `config.json` and the checkpoint's headers.
    pub model_us: u64,
    /// Retaining the context.
    pub context_us: u64,
    /// Loading the kernels.
    pub modules_us: u64,
    /// Mapping the weights arena and uploading into it.
    pub weights_us: u64,
    /// Mapping the workspace arena, reserving KV addresses, mapping null pages.
    pub workspace_us: u64,
    /// Capturing and warming every graph.
    pub capture_us: u64,
    /// Measuring, carving and mapping the pools.
    pub carve_us: u64,
    /// All of it.
    pub total_us: u64,
}
