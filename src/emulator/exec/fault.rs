//! Ways in which a kernel can go wrong, and the place where it did.

use super::AccessError;
use crate::emulator::check::CheckReport;
use std::fmt;

/// Where a fault happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct FaultSite {
    /// Name of the kernel.
    pub kernel: String,
    /// Block index `(x, y, z)`.
    pub block: [u32; 3],
    /// Warp within the block.
    pub warp: u32,
    /// First lane concerned.
    pub lane: u32,
    /// Line of the PTX text, from 1.
    pub line: u32,
    /// The PTX statement.
    pub statement: String,
    /// `file:line` of the CUDA source, if the PTX carries line information.
    pub source: Option<String>,
}

impl fmt::Display for FaultSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.block;
        write!(
            f,
            "kernel {}, block ({x},{y},{z}), warp {}, lane {}, PTX line {}",
            self.kernel, self.warp, self.lane, self.line
        )?;
        if let Some(source) = &self.source {
            write!(f, " ({source})")?;
        }
        if !self.statement.is_empty() {
            write!(f, " `{}`", self.statement)?;
        }
        Ok(())
    }
}

/// A state space, as faults name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Device memory.
    Global,
    /// Shared memory of the block.
    Shared,
    /// Stack of the thread.
    Local,
    /// Kernel parameters.
    Param,
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Space::Global => "global",
            Space::Shared => "shared",
            Space::Local => "local",
            Space::Param => "parameter",
        })
    }
}

/// Why a launch stopped.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The launch configuration or parameter block does not fit the kernel.
    #[error("kernel {kernel} cannot be launched: {message}")]
    InvalidLaunch {
        /// Name of the kernel.
        kernel: String,
        /// What does not fit, with the values.
        message: String,
    },
    /// A load or store outside of mapped memory.
    #[error("illegal {} of {bytes} bytes at {space} address {address:#x}: {reason}; {site}", if *.write { "store" } else { "load" })]
    IllegalAddress {
        /// Where.
        site: Box<FaultSite>,
        /// State space of the access.
        space: Space,
        /// The lane's address.
        address: u64,
        /// Bytes of the lane's access.
        bytes: u64,
        /// Whether it was a store.
        write: bool,
        /// Why it is illegal.
        reason: AccessError,
    },
    /// An address that is not a multiple of the access size.
    #[error("misaligned {space} address {address:#x} for an access of {bytes} bytes; {site}")]
    Misaligned {
        /// Where.
        site: Box<FaultSite>,
        /// State space of the access.
        space: Space,
        /// The lane's address.
        address: u64,
        /// Bytes of the lane's access.
        bytes: u64,
    },
    /// An access past the end of the block's shared memory, the thread's stack or the parameters.
    #[error(
        "{space} access of {bytes} bytes at offset {address:#x} is outside of the {limit} bytes there are; {site}"
    )]
    OutOfBounds {
        /// Where.
        site: Box<FaultSite>,
        /// State space of the access.
        space: Space,
        /// The lane's offset.
        address: u64,
        /// Bytes of the lane's access.
        bytes: u64,
        /// Bytes of the space.
        limit: u64,
    },
    /// Lanes of a warp did not reach a barrier or a `.sync` instruction together.
    #[error("divergence: {message}; {site}")]
    Divergence {
        /// Where.
        site: Box<FaultSite>,
        /// Which lanes were wanted and which were there.
        message: String,
    },
    /// Warps of a block wait for each other for ever.
    #[error("barrier deadlock: {message}; {site}")]
    BarrierDivergence {
        /// Where one of the warps waits.
        site: Box<FaultSite>,
        /// Which warps wait where.
        message: String,
    },
    /// A warp took more backward branches than the watchdog allows.
    #[error(
        "watchdog: a warp took {branches} backward branches without finishing, so the kernel counts as hung; {site}"
    )]
    Watchdog {
        /// Where.
        site: Box<FaultSite>,
        /// Backward branches taken.
        branches: u64,
    },
    /// The kernel executed `trap`.
    #[error("the kernel trapped; {site}")]
    Trap {
        /// Where.
        site: Box<FaultSite>,
    },
    /// Calls nested deeper than the thread's stack allows.
    #[error(
        "stack overflow: {depth} nested calls need more than the {bytes} bytes of stack a thread has; {site}"
    )]
    StackOverflow {
        /// Where.
        site: Box<FaultSite>,
        /// Calls that were nested.
        depth: u32,
        /// Bytes of stack of a thread.
        bytes: u32,
    },
    /// A device-side `assert` whose condition did not hold.
    #[error("{message}; {site}")]
    Assertion {
        /// Where.
        site: Box<FaultSite>,
        /// File, line, function and condition.
        message: String,
    },
    /// The checked mode found something, and is to make launches fail.
    #[error("checked mode: {report}")]
    Checked {
        /// The first of its findings.
        report: Box<CheckReport>,
    },
    /// An operation whose operands the emulator refuses at run time.
    #[error("unsupported operation: {message}; {site}")]
    Unsupported {
        /// Where.
        site: Box<FaultSite>,
        /// What it was.
        message: String,
    },
}

impl Fault {
    /// Where the fault happened; `None` when the launch never began.
    pub fn site(&self) -> Option<&FaultSite> {
        match self {
            Fault::InvalidLaunch { .. } => None,
            Fault::Checked { report } => Some(&report.site),
            Fault::IllegalAddress { site, .. }
            | Fault::Misaligned { site, .. }
            | Fault::OutOfBounds { site, .. }
            | Fault::Divergence { site, .. }
            | Fault::BarrierDivergence { site, .. }
            | Fault::Watchdog { site, .. }
            | Fault::Trap { site }
            | Fault::StackOverflow { site, .. }
            | Fault::Assertion { site, .. }
            | Fault::Unsupported { site, .. } => Some(site),
        }
    }

    /// The sentence without the place.
    pub(super) fn cause(&self) -> String {
        let text = self.to_string();
        match self.site() {
            Some(site) => text.replace(&format!("; {site}"), ""),
            None => text,
        }
    }

    pub(super) fn site_mut(&mut self) -> Option<&mut FaultSite> {
        match self {
            Fault::InvalidLaunch { .. } => None,
            Fault::Checked { report } => Some(&mut report.site),
            Fault::IllegalAddress { site, .. }
            | Fault::Misaligned { site, .. }
            | Fault::OutOfBounds { site, .. }
            | Fault::Divergence { site, .. }
            | Fault::BarrierDivergence { site, .. }
            | Fault::Watchdog { site, .. }
            | Fault::Trap { site }
            | Fault::StackOverflow { site, .. }
            | Fault::Assertion { site, .. }
            | Fault::Unsupported { site, .. } => Some(site),
        }
    }
}
