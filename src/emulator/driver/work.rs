//! What streams and graphs hold: units of device work.

use std::sync::Arc;

use super::graphs::Program;
use crate::emulator::exec::KernelCode;

/// One kernel launch, its parameters copied.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) code: Arc<KernelCode>,
    pub(super) module: u64,
    pub(super) function: u64,
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared_bytes: u32,
    /// Blocks of a cluster in x, y and z, where the launch asks for clusters.
    pub(super) cluster: Option<[u32; 3]>,
    /// All blocks are resident at once.
    pub(super) cooperative: bool,
    /// The parameter block, laid out as the kernel declares it.
    pub(super) params: Box<[u8]>,
    /// Address of each parameter inside `params`, for `cuGraphKernelNodeGetParams`.
    pub(super) param_addresses: Box<[usize]>,
}

impl Launch {
    /// The same launch with a parameter block of its own, which its parameters' addresses lead to.
    pub(super) fn with_own_params(&self) -> Launch {
        let params = self.params.clone();
        let base = params.as_ptr() as usize;
        Launch {
            code: Arc::clone(&self.code),
            param_addresses: self.code.params.iter().map(|p| base + p.offset).collect(),
            params,
            ..*self
        }
    }
}

/// Where a copy reads or writes.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Device(u64),
    /// The bytes as they were at the call, packed: what a copy from pageable memory reads.
    Snapshot(Arc<[u8]>),
    /// Host memory, accessed when the copy runs: page-locked, or pageable in a graph.
    Host {
        address: usize,
        pinned: bool,
    },
}

/// One side of a copy: rows of a plane, planes of a volume.
#[derive(Clone, Debug)]
pub(super) struct Side {
    pub(super) place: Place,
    /// Bytes from one row to the next.
    pub(super) pitch: usize,
    /// Bytes from one plane to the next.
    pub(super) plane: usize,
}

/// A copy of `planes` planes of `rows` rows of `width` bytes.
#[derive(Clone, Debug)]
pub(super) struct Copy {
    pub(super) from: Side,
    pub(super) to: Side,
    pub(super) width: usize,
    pub(super) rows: usize,
    pub(super) planes: usize,
}

/// A fill of `rows` rows of `count` elements of `element_bytes` (1, 2 or 4).
#[derive(Clone, Copy, Debug)]
pub(super) struct Fill {
    pub(super) destination: u64,
    pub(super) value: u32,
    pub(super) element_bytes: usize,
    pub(super) count: usize,
    pub(super) rows: usize,
    /// Bytes from one row to the next.
    pub(super) pitch: usize,
}

/// A function of the host that a stream calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostCall {
    pub(super) function: HostFunction,
    /// Address that is handed to it.
    pub(super) data: usize,
}

/// The two kinds of host functions.
#[derive(Clone, Copy, Debug)]
pub(super) enum HostFunction {
    /// `cuLaunchHostFunc`.
    Plain(unsafe extern "C" fn(*mut std::ffi::c_void)),
    /// `cuStreamAddCallback`, with the stream's handle.
    Callback(
        unsafe extern "C" fn(u64, crate::driver::CuResult, *mut std::ffi::c_void),
        u64,
    ),
}

/// What a stream does with a value in memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum ValueOp {
    Write,
    /// Until `(i64)(memory - value) >= 0`, of the value's width.
    WaitGreaterEqual,
    WaitEqual,
    WaitAnd,
    WaitNor,
}

/// A write of, or a wait for, a 32- or 64-bit value.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryValue {
    pub(super) op: ValueOp,
    pub(super) address: u64,
    pub(super) value: u64,
    pub(super) bytes: usize,
}

/// One unit of work.
#[derive(Clone, Debug)]
pub(super) enum Work {
    Kernel(Arc<Launch>),
    Copy(Copy),
    Fill(Fill),
    /// Completes an event.
    Record(u64),
    /// Waits, inside a graph, for an event that is recorded outside of it.
    WaitFor(u64),
    /// An executable graph, from one of its items on.
    Graph {
        program: Arc<Program>,
        start: usize,
        /// Which graph of the device it is, in order of instantiation.
        number: u64,
    },
    /// A child graph, inside a graph.
    Child(u64),
    Host(HostCall),
    Value(MemoryValue),
    /// Frees a stream-ordered allocation.
    Free(u64),
    /// A stream-ordered allocation of a graph: its address is fixed when the node is made.
    Allocate {
        address: u64,
        bytes: u64,
    },
    /// Nothing but order.
    Wait,
    /// Never ends: what a fault plan made of a launch.
    Hang,
}
