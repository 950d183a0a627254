//! What streams and graphs hold: units of device work.

use std::sync::Arc;

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
    /// The parameter block, laid out as the kernel declares it.
    pub(super) params: Box<[u8]>,
    /// Address of each parameter inside `params`, for `cuGraphKernelNodeGetParams`.
    pub(super) param_addresses: Box<[usize]>,
}

/// Host memory that a copy reads.
#[derive(Clone, Debug)]
pub(super) enum HostSource {
    /// The bytes as they were at the call: what a copy from pageable memory reads.
    Snapshot(Arc<[u8]>),
    /// Page-locked memory, read when the copy runs.
    Pinned(usize),
    /// Pageable memory in a graph, read when the copy runs.
    Pageable(usize),
}

/// One unit of work.
#[derive(Clone, Debug)]
pub(super) enum Work {
    Kernel(Arc<Launch>),
    ToDevice {
        destination: u64,
        source: HostSource,
        bytes: usize,
    },
    ToHost {
        destination: usize,
        /// The destination is page-locked.
        pinned: bool,
        source: u64,
        bytes: usize,
    },
    Within {
        destination: u64,
        source: u64,
        bytes: usize,
    },
    Fill {
        destination: u64,
        value: u32,
        /// Bytes of one element, 1 or 4.
        width: usize,
        count: usize,
    },
    /// Completes an event.
    Record(u64),
    Graph(Arc<Program>),
    /// Nothing but order.
    Wait,
}

/// A node of a graph.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) work: Work,
    /// Nodes that come before it. All have smaller indices.
    pub(super) after: Vec<usize>,
}

/// What an executable graph runs: its work in an order that respects all dependencies.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) work: Vec<Work>,
    /// For each unit, the earlier ones it comes behind.
    pub(super) after: Vec<Vec<usize>>,
}

impl Program {
    /// Nodes stand in capture order, which respects dependencies: each depends on earlier ones only.
    pub(super) fn new(nodes: &[Node]) -> Program {
        debug_assert!(
            nodes
                .iter()
                .enumerate()
                .all(|(index, node)| node.after.iter().all(|&before| before < index))
        );
        Program {
            work: nodes.iter().map(|node| node.work.clone()).collect(),
            after: nodes.iter().map(|node| node.after.clone()).collect(),
        }
    }

    /// Kernel launches in it, those of nested graphs included.
    pub(super) fn kernels(&self) -> impl Iterator<Item = &Arc<Launch>> {
        let mut stack = vec![self.work.iter()];
        std::iter::from_fn(move || {
            loop {
                match stack.last_mut()?.next() {
                    Some(Work::Kernel(launch)) => return Some(launch),
                    Some(Work::Graph(program)) => stack.push(program.work.iter()),
                    Some(_) => {}
                    None => {
                        stack.pop();
                    }
                }
            }
        })
    }
}
