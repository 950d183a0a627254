//! Entry points that add a node to a graph.

use super::arguments::{In, Out, calls};
use super::entry::{named, on_device};
use super::failure::Failure;
use super::graph_build_calls::{plain_edges, serials};
use super::graph_params;
use super::registry::Kind;
use super::state::State;
use super::work::Work;
use crate::driver::abi::{
    CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1, CUDA_KERNEL_NODE_PARAMS_v2,
    CUDA_MEM_ALLOC_NODE_PARAMS_v1, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUgraphEdgeData,
    CUgraphNodeParams,
};

/// Where a new node goes: the place of its handle, its graph, and the nodes before it.
#[derive(Clone, Copy)]
struct NewNode {
    node: Out<u64>,
    graph: u64,
    after: In<u64>,
    count: usize,
}

/// Adds a node whose work `make` gives.
fn add(
    call: &'static str,
    new: NewNode,
    make: impl FnOnce(&mut State) -> Result<Work, Failure>,
) -> Result<(), Failure> {
    new.node.required("the node")?;
    let (device, graph) = named(new.graph, Kind::Graph, "graph")?;
    let after = new.after.list(new.count, "the nodes to come after")?;
    let after = serials(&device, after)?;
    on_device(call, &device, |state| {
        state.graph(graph)?;
        let work = make(state)?;
        let serial = state.add_node(graph, work, after)?;
        new.node.put(state.node_handle(serial), "the node")
    })
}

/// Declares calls that add a node: all begin with the same four arguments.
macro_rules! adders {
    ($( $symbol:literal fn $name:ident ( $($arg:ident : $type:ty),* ) |$state:ident| $body:block )* also $($rest:tt)*) => {
        calls! { $(
                $symbol fn $name(node: Out<u64>, graph: u64, after: In<u64>, count: usize $(, $arg: $type)*) {
                    let new = NewNode { node, graph, after, count };
                    add(CALL, new, |$state: &mut State| {
                        $body
                    })
                }
        )*
            $($rest)*
        }
    };
}

adders! {
    "cuGraphAddKernelNode_v2" fn add_kernel_node(params: In<CUDA_KERNEL_NODE_PARAMS_v2>) |state| {
        graph_params::kernel(state, &params.get("the parameters")?)
    }
    "cuGraphAddKernelNode" fn add_kernel_node_v1(params: In<CUDA_KERNEL_NODE_PARAMS_v1>) |state| {
        graph_params::kernel(state, &graph_params::newer(&params.get("the parameters")?))
    }
    "cuGraphAddMemcpyNode" fn add_memcpy_node(copy: In<CUDA_MEMCPY3D>, _context: u64) |state| {
        graph_params::copy(state, &copy.get("the copy")?)
    }
    "cuGraphAddMemsetNode" fn add_memset_node(fill: In<CUDA_MEMSET_NODE_PARAMS>, _context: u64) |state| {
        graph_params::fill(state, &fill.get("the fill")?)
    }
    "cuGraphAddHostNode" fn add_host_node(host: In<CUDA_HOST_NODE_PARAMS>) |state| {
        let _ = state;
        graph_params::host(&host.get("the function")?)
    }
    "cuGraphAddChildGraphNode" fn add_child_graph_node(child: u64) |state| {
        graph_params::child(state, child)
    }
    "cuGraphAddEmptyNode" fn add_empty_node() |state| {
        let _ = state;
        Ok(Work::Wait)
    }
    "cuGraphAddEventRecordNode" fn add_event_record_node(event: u64) |state| {
        Ok(Work::Record(graph_params::event(state, event)?))
    }
    "cuGraphAddEventWaitNode" fn add_event_wait_node(event: u64) |state| {
        Ok(Work::WaitFor(graph_params::event(state, event)?))
    }
    "cuGraphAddMemAllocNode" fn add_mem_alloc_node(params: Out<CUDA_MEM_ALLOC_NODE_PARAMS_v1>) |state| {
        let mut known = params.get("the parameters")?;
        let address = state.graph_allocation(known.bytesize as u64)?;
        known.dptr = address;
        params.put_if_wanted(known);
        Ok(Work::Allocate { address, bytes: known.bytesize as u64 })
    }
    "cuGraphAddMemFreeNode" fn add_mem_free_node(pointer: u64) |state| {
        graph_params::free(state, pointer)
    }
    "cuGraphAddNode" fn add_node_v1(params: Out<CUgraphNodeParams>) |state| {
        graph_params::generic(state, params)
    }
    also
    "cuGraphAddNode_v2" fn add_node_v2(
        node: Out<u64>, graph: u64, after: In<u64>, edges: In<CUgraphEdgeData>, count: usize,
        params: Out<CUgraphNodeParams>,
    ) {
        plain_edges(edges, count)?;
        add(CALL, NewNode { node, graph, after, count }, |state| graph_params::generic(state, params))
    }
}
