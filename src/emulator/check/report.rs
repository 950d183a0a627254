//! What a check has to say.

use crate::emulator::exec::FaultSite;
use serde::Serialize;
use std::fmt;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CheckKind {
    /// Two warps of a block touch the same shared memory, one writes, and no barrier orders them.
    SharedRace,
    /// Two lanes of a warp touch the same shared memory, one writes, and no `bar.warp.sync` orders them.
    WarpRace,
    /// Shared memory is touched while an asynchronous copy into it has not been waited for.
    CopyNotWaitedFor,
    /// A register is touched that `wgmma` still writes, or written that it still reads.
    ResultNotWaitedFor,
    /// A register of `wgmma` was written and no `wgmma.fence` stands between.
    MissingFence,
    /// Shared memory is read that nobody has written in this block.
    UninitialisedShared,
    /// A register is used that nothing has been written to.
    UninitialisedRegister,
    /// Device memory is read that nobody has written since it was allocated.
    UninitialisedGlobal,
    /// An access outside of an allocation, or of the part of an arena that was handed out.
    OutOfBounds,
    /// An access to memory that was released: a page of a pool, a part of an arena.
    UseAfterRelease,
    /// Two warps of a block touch the same device memory, one writes, and nothing orders them.
    GlobalRace,
    /// Two blocks of one launch touch the same device memory, one writes, and nothing orders them.
    BlockRace,
    /// Work of two streams, or of two branches of a graph, touches the same device memory, one writes, and no event or
    /// edge orders them.
    StreamRace,
    /// The host touched page-locked memory that a copy still had to read or write.
    HostRace,
    /// Threads of a block that need each other at a barrier or collective instruction do not come together.
    Divergence,
    /// The launch stopped with a fault: an address, an alignment, a bound, a trap, a hang.
    Fault,
    /// Objects were left in a context when it was destroyed.
    Leak,
}

impl fmt::Display for CheckKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CheckKind::SharedRace => "race in shared memory",
            CheckKind::WarpRace => "race between lanes in shared memory",
            CheckKind::CopyNotWaitedFor => "copy not waited for",
            CheckKind::ResultNotWaitedFor => "result not waited for",
            CheckKind::MissingFence => "missing fence",
            CheckKind::UninitialisedShared => "uninitialised shared memory",
            CheckKind::UninitialisedRegister => "uninitialised register",
            CheckKind::UninitialisedGlobal => "uninitialised device memory",
            CheckKind::OutOfBounds => "out of bounds",
            CheckKind::UseAfterRelease => "use after release",
            CheckKind::GlobalRace => "race in device memory within a block",
            CheckKind::BlockRace => "race between blocks",
            CheckKind::StreamRace => "race between streams",
            CheckKind::HostRace => "race with the host",
            CheckKind::Divergence => "divergence",
            CheckKind::Fault => "fault",
            CheckKind::Leak => "leak",
        })
    }
}

/// One finding of the checked mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CheckReport {
    /// What is wrong.
    pub kind: CheckKind,
    /// Where: kernel, block, warp, lane, PTX line and, with `-lineinfo`, CUDA line of the first time. What is not a kernel
    /// (a copy, a context) stands in `kernel` by name.
    pub site: FaultSite,
    /// One sentence with the addresses and the other party.
    pub message: String,
    /// Times this was found at this place.
    pub times: u64,
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)?;
        if self.site.line > 0 {
            write!(f, "; {}", self.site)?;
        } else if !self.site.kernel.is_empty() {
            write!(f, "; {}", self.site.kernel)?;
        }
        if self.times > 1 {
            write!(f, " ({} times)", self.times)?;
        }
        Ok(())
    }
}
