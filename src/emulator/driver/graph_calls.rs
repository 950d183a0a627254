//! Entry points of graphs: instantiation, launch and what they hold.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use cuda_driver_sys::{CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUstream};

use super::arguments::{Out, calls};
use super::entry::{entry, give_back, named, on_device, write};
use super::failure::Failure;
use super::graphs::GraphExec;
use super::registry::{self, Kind};
use super::state::State;
use super::streams::of_stream;
use super::work::{Launch, Work};
use crate::driver::CuResult;
use crate::driver::abi::{self, CUDA_GRAPH_INSTANTIATE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v2};

/// Flags of instantiation that the emulator takes: freeing at launch, uploading, and node priorities, which
/// change nothing here.
const FLAGS: u64 = abi::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH as u64
    | abi::CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD as u64
    | abi::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY as u64;

impl State {
    /// Makes a graph executable; gives the serial.
    fn instantiate(&mut self, graph: u64, flags: u64) -> Result<u64, Failure> {
        let on_device = u64::from(abi::CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH);
        let frees = u64::from(abi::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
        if flags & on_device != 0 && flags & frees != 0 {
            return Err(Failure::invalid(
                "a graph that kernels launch cannot free its memory at launch",
            ));
        }
        if flags & on_device != 0 {
            return Err(Failure::new(
                CuResult::NOT_SUPPORTED,
                "graphs that kernels launch are not emulated",
            ));
        }
        if flags & !FLAGS != 0 {
            return Err(Failure::invalid(format!(
                "no instantiation flags {flags:#x}"
            )));
        }
        let (program, children) = self.program(graph)?;
        let shape = self.shape(graph)?;
        let charged_bytes = self.profile.graph_bytes(program.kernels().count());
        self.room_for(charged_bytes, "the executable graph")?;
        let objects = self.graph(graph)?.objects.clone();
        let id = self.serial();
        let number = self.graphs_made;
        self.graphs_made += 1;
        self.execs.insert(
            id,
            GraphExec {
                program: Arc::new(program),
                number,
                children,
                shape,
                charged_bytes,
                flags,
                objects,
            },
        );
        self.note_peak();
        Ok(id)
    }
}

pub(super) unsafe extern "C" fn graph_instantiate_with_flags(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    flags: u64,
) -> CuResult {
    entry("cuGraphInstantiateWithFlags", || {
        let (device, serial) = named(graph as u64, Kind::Graph, "graph")?;
        on_device("cuGraphInstantiateWithFlags", &device, |state| {
            if exec.is_null() {
                return Err(Failure::null("the executable graph"));
            }
            let id = state.instantiate(serial, flags)?;
            let raw = registry::handle(Kind::GraphExec, device.ordinal, id);
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(exec, raw as CUgraphExec, "the executable graph") }
        })
    })
}

/// Nothing is left to upload: instantiation has taken the graph's memory already.
pub(super) unsafe extern "C" fn graph_upload(exec: CUgraphExec, stream: CUstream) -> CuResult {
    entry("cuGraphUpload", || {
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
    entry("cuGraphLaunch", || {
        let (device, stream) = of_stream(stream)?;
        let (owner, exec) = named(exec as u64, Kind::GraphExec, "executable graph")?;
        on_device("cuGraphLaunch", &device, |state| {
            same_device(owner.ordinal, device.ordinal)?;
            let graph = state.exec(exec)?;
            let (program, number) = (Arc::clone(&graph.program), graph.number);
            if let Some(launch) = program
                .kernels()
                .find(|launch| !state.modules.contains_key(&launch.module))
            {
                return Err(Failure::new(
                    CuResult::INVALID_HANDLE,
                    format!("the module of kernel {} was unloaded", launch.code.name),
                ));
            }
            state.issue(
                stream,
                Work::Graph {
                    program,
                    start: 0,
                    number,
                },
            )
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
    entry("cuGraphDestroy", || {
        let (device, serial) = named(graph as u64, Kind::Graph, "graph")?;
        give_back("cuGraphDestroy", &device, |state| {
            if state.graph(serial)?.owned {
                return Err(Failure::invalid(
                    "the graph is part of a node or of a capture: it goes with that",
                ));
            }
            state.remove_graph(serial);
            Ok(())
        })
    })
}

pub(super) unsafe extern "C" fn graph_exec_destroy(exec: CUgraphExec) -> CuResult {
    entry("cuGraphExecDestroy", || {
        let (device, serial) = named(exec as u64, Kind::GraphExec, "executable graph")?;
        give_back("cuGraphExecDestroy", &device, |state| {
            let Some(exec) = state.execs.remove(&serial) else {
                return Err(Failure::handle("executable graph"));
            };
            if !exec.objects.is_empty() {
                // What the graph kept alive must outlive the launches that are queued.
                state.drain_all();
            }
            Ok(())
        })
    })
}

pub(super) unsafe extern "C" fn graph_get_nodes(
    graph: CUgraph,
    nodes: *mut CUgraphNode,
    count: *mut usize,
) -> CuResult {
    entry("cuGraphGetNodes", || {
        let (device, serial) = named(graph as u64, Kind::Graph, "graph")?;
        on_device("cuGraphGetNodes", &device, |state| {
            let handles: Vec<u64> = state.graph(serial)?.nodes.keys().copied().collect();
            let handles = handles
                .into_iter()
                .map(|node| state.node_handle(node))
                .collect();
            put_some(Out::at(nodes as u64), Out::at(count as u64), handles)
        })
    })
}

/// Writes a list as these calls do: its length where no room is given; otherwise as much as there is room
/// for, with zeros in what is left, and how much it was.
pub(super) fn put_some(list: Out<u64>, count: Out<usize>, values: Vec<u64>) -> Result<(), Failure> {
    let room = count.get("the count")?;
    if !list.is_wanted() {
        return count.put(values.len(), "the count");
    }
    let filler = std::iter::repeat(0);
    let len = values.len();
    list.put_list(values.into_iter().chain(filler).take(room));
    count.put(room.min(len), "the count")
}

pub(super) unsafe extern "C" fn graph_node_get_type(
    node: CUgraphNode,
    kind: *mut c_uint,
) -> CuResult {
    entry("cuGraphNodeGetType", || {
        let (device, serial) = named(node as u64, Kind::Node, "graph node")?;
        on_device("cuGraphNodeGetType", &device, |state| {
            let known = state.node(serial)?.work.kind();
            // SAFETY: the caller passes null or a valid pointer.
            unsafe { write(kind, known, "the type") }
        })
    })
}

impl Work {
    /// The kind of node that the work makes, as NVIDIA numbers it.
    pub(super) fn kind(&self) -> u32 {
        match self {
            Work::Kernel(_) => abi::CU_GRAPH_NODE_TYPE_KERNEL,
            Work::Copy(_) => abi::CU_GRAPH_NODE_TYPE_MEMCPY,
            Work::Fill(_) => abi::CU_GRAPH_NODE_TYPE_MEMSET,
            Work::Graph { .. } | Work::Child(_) => abi::CU_GRAPH_NODE_TYPE_GRAPH,
            Work::Host(_) => abi::CU_GRAPH_NODE_TYPE_HOST,
            Work::Record(_) => abi::CU_GRAPH_NODE_TYPE_EVENT_RECORD,
            Work::WaitFor(_) => abi::CU_GRAPH_NODE_TYPE_WAIT_EVENT,
            Work::Value(_) => abi::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
            Work::Allocate { .. } => abi::CU_GRAPH_NODE_TYPE_MEM_ALLOC,
            Work::Free(_) => abi::CU_GRAPH_NODE_TYPE_MEM_FREE,
            Work::Wait | Work::Hang => abi::CU_GRAPH_NODE_TYPE_EMPTY,
        }
    }
}

/// A launch as its node's parameters have it.
pub(super) fn kernel_params(ordinal: u32, launch: &Launch) -> CUDA_KERNEL_NODE_PARAMS_v2 {
    CUDA_KERNEL_NODE_PARAMS_v2 {
        func: registry::handle(Kind::Function, ordinal, launch.function) as CUfunction,
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
    }
}

pub(super) unsafe extern "C" fn graph_kernel_node_get_params(
    node: CUgraphNode,
    params: *mut CUDA_KERNEL_NODE_PARAMS_v2,
) -> CuResult {
    entry("cuGraphKernelNodeGetParams", || {
        let (device, serial) = named(node as u64, Kind::Node, "graph node")?;
        on_device("cuGraphKernelNodeGetParams", &device, |state| {
            let Work::Kernel(launch) = &state.node(serial)?.work else {
                return Err(Failure::invalid("the node is not a kernel node"));
            };
            // SAFETY: the caller passes null or a valid pointer.
            unsafe {
                write(
                    params,
                    kernel_params(device.ordinal, launch),
                    "the parameters",
                )
            }
        })
    })
}

calls! {
    "cuGraphInstantiate_v2" fn graph_instantiate_v2(
        exec: Out<u64>, graph: u64, failed: Out<u64>, log: Out<u8>, log_bytes: usize,
    ) {
        exec.required("the executable graph")?;
        failed.put_if_wanted(0);
        if log.is_wanted() && log_bytes > 0 {
            log.put_if_wanted(0);
        }
        let (device, serial) = named(graph, Kind::Graph, "graph")?;
        on_device(CALL, &device, |state| {
            let id = state.instantiate(serial, 0)?;
            exec.put(registry::handle(Kind::GraphExec, device.ordinal, id), "the executable graph")
        })
    }

    "cuGraphInstantiateWithParams" fn graph_instantiate_with_params(
        exec: Out<u64>, graph: u64, params: Out<CUDA_GRAPH_INSTANTIATE_PARAMS>,
    ) {
        exec.required("the executable graph")?;
        let mut known = params.get("the parameters")?;
        let (device, serial) = named(graph, Kind::Graph, "graph")?;
        on_device(CALL, &device, |state| {
            let outcome = state.instantiate(serial, known.flags);
            known.hErrNode_out = std::ptr::null_mut();
            known.result_out = match &outcome {
                Ok(_) => abi::CUDA_GRAPH_INSTANTIATE_SUCCESS,
                Err(failure) if failure.code == CuResult::INVALID_VALUE => {
                    abi::CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE
                }
                Err(_) => abi::CUDA_GRAPH_INSTANTIATE_ERROR,
            };
            params.put_if_wanted(known);
            exec.put(registry::handle(Kind::GraphExec, device.ordinal, outcome?), "the executable graph")
        })
    }

    "cuGraphExecGetFlags" fn graph_exec_get_flags(exec: u64, flags: Out<u64>) {
        let (device, exec) = named(exec, Kind::GraphExec, "executable graph")?;
        on_device(CALL, &device, |state| {
            // Uploading is done once, at instantiation; the flag is not kept.
            let kept = state.exec(exec)?.flags & !u64::from(abi::CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
            flags.put(kept, "the flags")
        })
    }
}
