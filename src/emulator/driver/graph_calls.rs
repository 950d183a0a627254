//! Entry points of graphs.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use cuda_driver_sys::{CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUstream};

use super::entry::{entry, give_back, named, on_device, write};
use super::failure::Failure;
use super::memory_calls::of_stream;
use super::registry::{self, Kind};
use super::state::{Graph, GraphExec, State};
use super::work::{Node, Program, Work};
use crate::driver::CuResult;
use crate::driver::abi::{self, CUDA_KERNEL_NODE_PARAMS_v2};

pub(super) unsafe extern "C" fn graph_instantiate_with_flags(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    flags: u64,
) -> CuResult {
    entry(|| {
        let (device, serial) = named(graph as u64, Kind::Graph, "graph")?;
        on_device("cuGraphInstantiateWithFlags", &device, |state| {
            if flags != 0 {
                return Err(Failure::new(
                    CuResult::NOT_SUPPORTED,
                    "instantiation flags are not emulated",
                ));
            }
            let program = Program::new(&state.graph(serial)?.nodes);
            let charged_bytes = state.profile.graph_bytes(program.kernels().count());
            state.room_for(charged_bytes, "the executable graph")?;
            let id = state.serial();
            state.execs.insert(
                id,
                GraphExec {
                    program: Arc::new(program),
                    charged_bytes,
                },
            );
            state.note_peak();
            let raw = registry::handle(Kind::GraphExec, device.ordinal, id);
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(exec, raw as CUgraphExec, "the executable graph") }
        })
    })
}

/// Nothing is left to upload: instantiation has taken the graph's memory already.
pub(super) unsafe extern "C" fn graph_upload(exec: CUgraphExec, stream: CUstream) -> CuResult {
    entry(|| {
        let (device, stream) = of_stream(stream)?;
        let (owner, exec) = named(exec as u64, Kind::GraphExec, "executable graph")?;
        on_device("cuGraphUpload", &device, |state| {
            same_device(owner.ordinal, device.ordinal)?;
            state.exec(exec)?;
            if state.stream(stream)?.capture.is_some() {
                return Err(Failure::new(
                    CuResult::STREAM_CAPTURE_UNSUPPORTED,
                    "a graph cannot be uploaded in a capturing stream",
                ));
            }
            Ok(())
        })
    })
}

pub(super) unsafe extern "C" fn graph_launch(exec: CUgraphExec, stream: CUstream) -> CuResult {
    entry(|| {
        let (device, stream) = of_stream(stream)?;
        let (owner, exec) = named(exec as u64, Kind::GraphExec, "executable graph")?;
        on_device("cuGraphLaunch", &device, |state| {
            same_device(owner.ordinal, device.ordinal)?;
            let program = Arc::clone(&state.exec(exec)?.program);
            if let Some(launch) = program
                .kernels()
                .find(|launch| !state.modules.contains_key(&launch.module))
            {
                return Err(Failure::new(
                    CuResult::INVALID_HANDLE,
                    format!("the module of kernel {} was unloaded", launch.code.name),
                ));
            }
            state.issue(stream, Work::Graph(program))
        })
    })
}

fn same_device(graph: u32, stream: u32) -> Result<(), Failure> {
    if graph == stream {
        return Ok(());
    }
    Err(Failure::new(
        CuResult::INVALID_HANDLE,
        "the graph belongs to another device's context than the stream",
    ))
}

pub(super) unsafe extern "C" fn graph_destroy(graph: CUgraph) -> CuResult {
    entry(|| {
        let (device, serial) = named(graph as u64, Kind::Graph, "graph")?;
        give_back("cuGraphDestroy", &device, |state| {
            let graph = state
                .graphs
                .remove(&serial)
                .ok_or_else(|| Failure::handle("graph"))?;
            state.graph_of_node.remove(&graph.first_node);
            Ok(())
        })
    })
}

pub(super) unsafe extern "C" fn graph_exec_destroy(exec: CUgraphExec) -> CuResult {
    entry(|| {
        let (device, serial) = named(exec as u64, Kind::GraphExec, "executable graph")?;
        give_back("cuGraphExecDestroy", &device, |state| {
            let removed = state.execs.remove(&serial);
            removed
                .map(|_| ())
                .ok_or_else(|| Failure::handle("executable graph"))
        })
    })
}

pub(super) unsafe extern "C" fn graph_get_nodes(
    graph: CUgraph,
    nodes: *mut CUgraphNode,
    count: *mut usize,
) -> CuResult {
    entry(|| {
        let (device, serial) = named(graph as u64, Kind::Graph, "graph")?;
        on_device("cuGraphGetNodes", &device, |state| {
            let graph = state.graph(serial)?;
            // SAFETY: the caller passes null or a valid pointer.
            let Some(count) = (unsafe { count.as_mut() }) else {
                return Err(Failure::null("the count"));
            };
            if nodes.is_null() {
                *count = graph.nodes.len();
                return Ok(());
            }
            // As the driver: what is asked for beyond the nodes there are is filled with null.
            for index in 0..*count {
                let raw = match graph.nodes.get(index) {
                    Some(_) => registry::handle(
                        Kind::Node,
                        device.ordinal,
                        graph.first_node + index as u64,
                    ),
                    None => 0,
                };
                // SAFETY: the caller's array has `count` elements.
                unsafe { nodes.add(index).write(raw as CUgraphNode) };
            }
            *count = (*count).min(graph.nodes.len());
            Ok(())
        })
    })
}

pub(super) unsafe extern "C" fn graph_node_get_type(
    node: CUgraphNode,
    kind: *mut c_uint,
) -> CuResult {
    entry(|| {
        let (device, serial) = named(node as u64, Kind::Node, "graph node")?;
        on_device("cuGraphNodeGetType", &device, |state| {
            let known = match state.node(serial)?.work {
                Work::Kernel(_) => abi::CU_GRAPH_NODE_TYPE_KERNEL,
                Work::ToDevice { .. } | Work::ToHost { .. } | Work::Within { .. } => {
                    abi::CU_GRAPH_NODE_TYPE_MEMCPY
                }
                Work::Fill { .. } => abi::CU_GRAPH_NODE_TYPE_MEMSET,
                Work::Graph(_) => abi::CU_GRAPH_NODE_TYPE_GRAPH,
                Work::Record(_) | Work::Wait => abi::CU_GRAPH_NODE_TYPE_EMPTY,
            };
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(kind, known, "the type") }
        })
    })
}

pub(super) unsafe extern "C" fn graph_kernel_node_get_params(
    node: CUgraphNode,
    params: *mut CUDA_KERNEL_NODE_PARAMS_v2,
) -> CuResult {
    entry(|| {
        let (device, serial) = named(node as u64, Kind::Node, "graph node")?;
        on_device("cuGraphKernelNodeGetParams", &device, |state| {
            let Work::Kernel(launch) = &state.node(serial)?.work else {
                return Err(Failure::invalid("the node is not a kernel node"));
            };
            let function = registry::handle(Kind::Function, device.ordinal, launch.function);
            let known = CUDA_KERNEL_NODE_PARAMS_v2 {
                func: function as CUfunction,
                gridDimX: launch.grid[0],
                gridDimY: launch.grid[1],
                gridDimZ: launch.grid[2],
                blockDimX: launch.block[0],
                blockDimY: launch.block[1],
                blockDimZ: launch.block[2],
                sharedMemBytes: launch.shared_bytes,
                // Owned by the node, which the graph keeps; the caller only reads through it.
                kernelParams: launch
                    .param_addresses
                    .as_ptr()
                    .cast_mut()
                    .cast::<*mut c_void>(),
                extra: std::ptr::null_mut(),
                kern: std::ptr::null_mut(),
                ctx: std::ptr::null_mut(),
            };
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(params, known, "the parameters") }
        })
    })
}

impl State {
    /// Keeps captured nodes as a graph and gives its handle.
    pub(super) fn add_graph(&mut self, nodes: Vec<Node>) -> u64 {
        let id = self.serial();
        let first_node = self.serials(nodes.len().max(1));
        self.graph_of_node.insert(first_node, id);
        self.graphs.insert(
            id,
            Graph {
                nodes: Arc::from(nodes),
                first_node,
            },
        );
        registry::handle(Kind::Graph, self.ordinal, id)
    }

    fn graph(&self, id: u64) -> Result<&Graph, Failure> {
        self.graphs.get(&id).ok_or_else(|| Failure::handle("graph"))
    }

    fn exec(&self, id: u64) -> Result<&GraphExec, Failure> {
        self.execs
            .get(&id)
            .ok_or_else(|| Failure::handle("executable graph"))
    }

    /// The node of a handle's serial: its graph is the last one that begins at or before it.
    fn node(&self, serial: u64) -> Result<&Node, Failure> {
        self.graph_of_node
            .range(..=serial)
            .next_back()
            .and_then(|(first, graph)| {
                let graph = self.graphs.get(graph)?;
                graph.nodes.get((serial - first) as usize)
            })
            .ok_or_else(|| Failure::handle("graph node"))
    }
}
