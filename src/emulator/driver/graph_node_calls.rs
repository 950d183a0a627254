//! Entry points that read and change what nodes do, in graphs and in executable graphs.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use super::arguments::{In, Out, calls};
use super::entry::{named, on_device};
use super::failure::Failure;
use super::graph_calls::kernel_params;
use super::graph_params::{self, of_node};
use super::graphs::Program;
use super::registry::{self, Kind};
use super::state::State;
use super::work::{Launch, Work};
use crate::driver::CuResult;
use crate::driver::abi::{
    self, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1, CUDA_KERNEL_NODE_PARAMS_v2,
    CUDA_MEM_ALLOC_NODE_PARAMS_v1, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS,
    CUgraphExecUpdateResultInfo, CUgraphNodeParams, CUlaunchAttributeValue,
};

/// Tells something of a node that is of the right kind.
fn read<T>(
    call: &'static str,
    node: u64,
    what: &str,
    take: impl FnOnce(&State, &Work) -> Option<Result<T, Failure>>,
) -> Result<T, Failure> {
    let (device, serial) = of_node(node)?;
    on_device(call, &device, |state| {
        let work = &state.node(serial)?.work;
        take(state, work)
            .unwrap_or_else(|| Err(Failure::invalid(format!("the node is not a {what} node"))))
    })
}

/// Changes what a node of a graph does; its kind stays.
fn change(
    call: &'static str,
    node: u64,
    make: impl FnOnce(&mut State) -> Result<Work, Failure>,
) -> Result<(), Failure> {
    let (device, serial) = of_node(node)?;
    on_device(call, &device, |state| {
        let kind = state.node(serial)?.work.kind();
        let work = make(state)?;
        same_kind(kind, &work)?;
        let before = std::mem::replace(&mut state.node_mut(serial)?.work, work);
        if let Work::Child(child) = before {
            state.remove_graph(child);
        }
        Ok(())
    })
}

fn same_kind(kind: u32, work: &Work) -> Result<(), Failure> {
    if work.kind() == kind {
        return Ok(());
    }
    Err(Failure::invalid(
        "the parameters are for another kind of node",
    ))
}

/// Changes what a node of an executable graph does, from its next launch on.
fn change_exec(
    call: &'static str,
    exec: u64,
    node: u64,
    make: impl FnOnce(&mut State) -> Result<Work, Failure>,
) -> Result<(), Failure> {
    let (device, serial) = of_node(node)?;
    let (owner, exec) = named(exec, Kind::GraphExec, "executable graph")?;
    if owner.ordinal != device.ordinal {
        return Err(Failure::handle("graph node"));
    }
    on_device(call, &device, |state| {
        let place = state.place_in(exec, serial)?;
        let work = make(state)?;
        same_kind(state.exec(exec)?.program.items[place].work.kind(), &work)?;
        // Launches that are queued keep the program they were made with.
        let program = Arc::make_mut(&mut state.exec_mut(exec)?.program);
        program.items[place].work = work;
        Ok(())
    })
}

impl State {
    /// The item of an executable graph that came from a node.
    fn place_in(&self, exec: u64, node: u64) -> Result<usize, Failure> {
        let items = &self.exec(exec)?.program.items;
        items
            .iter()
            .position(|item| item.node == node)
            .ok_or_else(|| Failure::invalid("the executable graph has no such node"))
    }

    /// Makes an executable graph do what a graph of the same shape does.
    fn update(&mut self, exec: u64, graph: u64) -> Result<(), (c_uint, u64, Failure)> {
        let plain = |failure| (abi::CU_GRAPH_EXEC_UPDATE_ERROR, 0, failure);
        let refused = |reason: c_uint, node: u64, what: &str| {
            (
                reason,
                node,
                Failure::new(CuResult::GRAPH_EXEC_UPDATE_FAILURE, what),
            )
        };
        let shape = self.shape(graph).map_err(plain)?;
        let known = &self.exec(exec).map_err(plain)?.shape;
        let order = self
            .graph(graph)
            .map_err(plain)?
            .order()
            .unwrap_or_default();
        if shape.len() != known.len() {
            return Err(refused(
                abi::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED,
                0,
                "the graphs have different numbers of nodes",
            ));
        }
        for ((old, new), node) in known.iter().zip(&shape).zip(&order) {
            if old.0 != new.0 {
                return Err(refused(
                    abi::CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED,
                    *node,
                    "a node is of another kind",
                ));
            }
            if old.1 != new.1 {
                return Err(refused(
                    abi::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED,
                    *node,
                    "a node comes after others than before",
                ));
            }
        }
        let (mut program, _) = self.program(graph).map_err(plain)?;
        let charged_bytes = self.profile.graph_bytes(program.kernels().count());
        let known = self.exec_mut(exec).map_err(plain)?;
        if program.items.len() != known.program.items.len() {
            return Err(refused(
                abi::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED,
                0,
                "a child graph has another number of nodes",
            ));
        }
        // Nodes keep the names under which they were instantiated.
        for (item, old) in program.items.iter_mut().zip(&known.program.items) {
            item.node = old.node;
            item.enabled = old.enabled;
        }
        known.program = Arc::new(program);
        known.charged_bytes = charged_bytes;
        Ok(())
    }

    /// Replaces a child graph inside an executable graph.
    fn update_child(&mut self, exec: u64, node: u64, graph: u64) -> Result<(), Failure> {
        let (inner, _): (Program, _) = self.program(graph)?;
        let known = self.exec_mut(exec)?;
        let nodes = known
            .children
            .get(&node)
            .cloned()
            .ok_or_else(|| Failure::invalid("the executable graph has no such child node"))?;
        let program = Arc::make_mut(&mut known.program);
        let begin = program
            .items
            .iter()
            .position(|item| nodes.first() == Some(&item.node));
        let same = begin.is_some_and(|begin| {
            let old = &program.items[begin..begin + nodes.len()];
            inner.items.len() == old.len()
                && inner
                    .items
                    .iter()
                    .zip(old)
                    .all(|(new, old)| new.work.kind() == old.work.kind())
        });
        let Some(begin) = begin.filter(|_| same) else {
            return Err(Failure::invalid("the child graph has another shape"));
        };
        for (old, new) in program.items[begin..].iter_mut().zip(inner.items) {
            old.work = new.work;
        }
        Ok(())
    }
}

fn put_update(info: Option<&mut CUgraphExecUpdateResultInfo>, result: c_uint, node: u64) {
    if let Some(info) = info {
        info.result = result;
        info.errorNode = node as cuda_driver_sys::CUgraphNode;
        info.errorFromNode = std::ptr::null_mut();
    }
}

fn update(
    call: &'static str,
    exec: u64,
    graph: u64,
) -> Result<(c_uint, u64, Result<(), Failure>), Failure> {
    let (device, exec) = named(exec, Kind::GraphExec, "executable graph")?;
    let (owner, graph) = named(graph, Kind::Graph, "graph")?;
    if owner.ordinal != device.ordinal {
        return Err(Failure::handle("graph"));
    }
    on_device(call, &device, |state| {
        Ok(match state.update(exec, graph) {
            Ok(()) => (abi::CU_GRAPH_EXEC_UPDATE_SUCCESS, 0, Ok(())),
            Err((reason, node, failure)) => {
                let node = if node == 0 {
                    0
                } else {
                    state.node_handle(node)
                };
                (reason, node, Err(failure))
            }
        })
    })
}

fn launch_of(work: &Work) -> Option<&Arc<Launch>> {
    match work {
        Work::Kernel(launch) => Some(launch),
        _ => None,
    }
}

calls! {
    "cuGraphKernelNodeGetParams" fn kernel_node_get_params_v1(node: u64, params: Out<CUDA_KERNEL_NODE_PARAMS_v1>) {
        let known = read(CALL, node, "kernel", |state, work| {
            launch_of(work).map(|launch| Ok(graph_params::older(&kernel_params(state.ordinal, launch))))
        })?;
        params.put(known, "the parameters")
    }

    "cuGraphKernelNodeSetParams" fn kernel_node_set_params_v1(node: u64, params: In<CUDA_KERNEL_NODE_PARAMS_v1>) {
        let params = graph_params::newer(&params.get("the parameters")?);
        change(CALL, node, |state| graph_params::kernel(state, &params))
    }

    "cuGraphKernelNodeSetParams_v2" fn kernel_node_set_params(node: u64, params: In<CUDA_KERNEL_NODE_PARAMS_v2>) {
        let params = params.get("the parameters")?;
        change(CALL, node, |state| graph_params::kernel(state, &params))
    }

    "cuGraphMemcpyNodeGetParams" fn memcpy_node_get_params(node: u64, params: Out<CUDA_MEMCPY3D>) {
        let known = read(CALL, node, "copy", |_, work| match work {
            Work::Copy(copy) => Some(Ok(graph_params::copy_params(copy))),
            _ => None,
        })?;
        params.put(known, "the parameters")
    }

    "cuGraphMemcpyNodeSetParams" fn memcpy_node_set_params(node: u64, params: In<CUDA_MEMCPY3D>) {
        let params = params.get("the parameters")?;
        change(CALL, node, |state| graph_params::copy(state, &params))
    }

    "cuGraphMemsetNodeGetParams" fn memset_node_get_params(node: u64, params: Out<CUDA_MEMSET_NODE_PARAMS>) {
        let known = read(CALL, node, "fill", |_, work| match work {
            Work::Fill(fill) => Some(Ok(graph_params::fill_params(fill))),
            _ => None,
        })?;
        params.put(known, "the parameters")
    }

    "cuGraphMemsetNodeSetParams" fn memset_node_set_params(node: u64, params: In<CUDA_MEMSET_NODE_PARAMS>) {
        let params = params.get("the parameters")?;
        change(CALL, node, |state| graph_params::fill(state, &params))
    }

    "cuGraphHostNodeGetParams" fn host_node_get_params(node: u64, params: Out<CUDA_HOST_NODE_PARAMS>) {
        let known = read(CALL, node, "host", |_, work| match work {
            Work::Host(call) => Some(graph_params::host_params(call)),
            _ => None,
        })?;
        params.put(known, "the parameters")
    }

    "cuGraphHostNodeSetParams" fn host_node_set_params(node: u64, params: In<CUDA_HOST_NODE_PARAMS>) {
        let params = params.get("the parameters")?;
        change(CALL, node, |_| graph_params::host(&params))
    }

    "cuGraphChildGraphNodeGetGraph" fn child_node_get_graph(node: u64, graph: Out<u64>) {
        let known = read(CALL, node, "child graph", |state, work| match work {
            Work::Child(child) => Some(Ok(state.graph_handle(*child))),
            Work::Graph { .. } => Some(Err(Failure::new(
                CuResult::NOT_SUPPORTED,
                "the graph of a captured launch is not kept as a graph",
            ))),
            _ => None,
        })?;
        graph.put(known, "the graph")
    }

    "cuGraphEventRecordNodeGetEvent" fn record_node_get_event(node: u64, event: Out<u64>) {
        let known = read(CALL, node, "event record", |state, work| match work {
            Work::Record(event) => Some(Ok(registry::handle(Kind::Event, state.ordinal, *event))),
            _ => None,
        })?;
        event.put(known, "the event")
    }

    "cuGraphEventRecordNodeSetEvent" fn record_node_set_event(node: u64, event: u64) {
        change(CALL, node, |state| Ok(Work::Record(graph_params::event(state, event)?)))
    }

    "cuGraphEventWaitNodeGetEvent" fn wait_node_get_event(node: u64, event: Out<u64>) {
        let known = read(CALL, node, "event wait", |state, work| match work {
            Work::WaitFor(event) => Some(Ok(registry::handle(Kind::Event, state.ordinal, *event))),
            _ => None,
        })?;
        event.put(known, "the event")
    }

    "cuGraphEventWaitNodeSetEvent" fn wait_node_set_event(node: u64, event: u64) {
        change(CALL, node, |state| Ok(Work::WaitFor(graph_params::event(state, event)?)))
    }

    "cuGraphMemAllocNodeGetParams" fn alloc_node_get_params(node: u64, params: Out<CUDA_MEM_ALLOC_NODE_PARAMS_v1>) {
        params.required("the parameters")?;
        let (address, bytes, ordinal) = read(CALL, node, "allocation", |state, work| match work {
            Work::Allocate { address, bytes } => Some(Ok((*address, *bytes, state.ordinal))),
            _ => None,
        })?;
        // SAFETY: a structure of integers and pointers, for which all zeros are valid.
        let mut known: CUDA_MEM_ALLOC_NODE_PARAMS_v1 = unsafe { std::mem::zeroed() };
        known.poolProps.allocType = abi::CU_MEM_ALLOCATION_TYPE_PINNED;
        known.poolProps.location.type_ = abi::CU_MEM_LOCATION_TYPE_DEVICE;
        known.poolProps.location.id = ordinal as c_int;
        known.bytesize = bytes as usize;
        known.dptr = address;
        params.put(known, "the parameters")
    }

    "cuGraphMemFreeNodeGetParams" fn free_node_get_params(node: u64, pointer: Out<u64>) {
        let known = read(CALL, node, "free", |_, work| match work {
            Work::Free(address) => Some(Ok(*address)),
            _ => None,
        })?;
        pointer.put(known, "the pointer")
    }

    "cuGraphNodeSetParams" fn node_set_params(node: u64, params: Out<CUgraphNodeParams>) {
        change(CALL, node, |state| graph_params::generic(state, params))
    }

    "cuGraphExecNodeSetParams" fn exec_node_set_params(exec: u64, node: u64, params: Out<CUgraphNodeParams>) {
        change_exec(CALL, exec, node, |state| graph_params::generic(state, params))
    }

    "cuGraphExecKernelNodeSetParams" fn exec_kernel_node_set_params_v1(
        exec: u64, node: u64, params: In<CUDA_KERNEL_NODE_PARAMS_v1>,
    ) {
        let params = graph_params::newer(&params.get("the parameters")?);
        change_exec(CALL, exec, node, |state| graph_params::kernel(state, &params))
    }

    "cuGraphExecKernelNodeSetParams_v2" fn exec_kernel_node_set_params(
        exec: u64, node: u64, params: In<CUDA_KERNEL_NODE_PARAMS_v2>,
    ) {
        let params = params.get("the parameters")?;
        change_exec(CALL, exec, node, |state| graph_params::kernel(state, &params))
    }

    "cuGraphExecMemcpyNodeSetParams" fn exec_memcpy_node_set_params(
        exec: u64, node: u64, params: In<CUDA_MEMCPY3D>, context: u64,
    ) {
        let _ = context;
        let params = params.get("the parameters")?;
        change_exec(CALL, exec, node, |state| graph_params::copy(state, &params))
    }

    "cuGraphExecMemsetNodeSetParams" fn exec_memset_node_set_params(
        exec: u64, node: u64, params: In<CUDA_MEMSET_NODE_PARAMS>, context: u64,
    ) {
        let _ = context;
        let params = params.get("the parameters")?;
        change_exec(CALL, exec, node, |state| graph_params::fill(state, &params))
    }

    "cuGraphExecHostNodeSetParams" fn exec_host_node_set_params(
        exec: u64, node: u64, params: In<CUDA_HOST_NODE_PARAMS>,
    ) {
        let params = params.get("the parameters")?;
        change_exec(CALL, exec, node, |_| graph_params::host(&params))
    }

    "cuGraphExecChildGraphNodeSetParams" fn exec_child_node_set_params(exec: u64, node: u64, child: u64) {
        let (device, exec) = named(exec, Kind::GraphExec, "executable graph")?;
        let (_, node) = of_node(node)?;
        let (_, child) = named(child, Kind::Graph, "graph")?;
        on_device(CALL, &device, |state| state.update_child(exec, node, child))
    }

    "cuGraphExecEventRecordNodeSetEvent" fn exec_record_node_set_event(exec: u64, node: u64, event: u64) {
        change_exec(CALL, exec, node, |state| Ok(Work::Record(graph_params::event(state, event)?)))
    }

    "cuGraphExecEventWaitNodeSetEvent" fn exec_wait_node_set_event(exec: u64, node: u64, event: u64) {
        change_exec(CALL, exec, node, |state| Ok(Work::WaitFor(graph_params::event(state, event)?)))
    }

    "cuGraphNodeSetEnabled" fn node_set_enabled(exec: u64, node: u64, enabled: c_uint) {
        let (_, serial) = of_node(node)?;
        let (device, exec) = named(exec, Kind::GraphExec, "executable graph")?;
        on_device(CALL, &device, |state| {
            let place = state.place_in(exec, serial)?;
            let program = Arc::make_mut(&mut state.exec_mut(exec)?.program);
            let item = &mut program.items[place];
            if !matches!(item.work, Work::Kernel(_) | Work::Copy(_) | Work::Fill(_)) {
                return Err(Failure::invalid("only kernel, copy and fill nodes can be disabled"));
            }
            item.enabled = enabled != 0;
            Ok(())
        })
    }

    "cuGraphNodeGetEnabled" fn node_get_enabled(exec: u64, node: u64, enabled: Out<c_uint>) {
        let (_, serial) = of_node(node)?;
        let (device, exec) = named(exec, Kind::GraphExec, "executable graph")?;
        on_device(CALL, &device, |state| {
            let place = state.place_in(exec, serial)?;
            let known = state.exec(exec)?.program.items[place].enabled;
            enabled.put(c_uint::from(known), "the answer")
        })
    }

    "cuGraphExecUpdate" fn exec_update(exec: u64, graph: u64, failed: Out<u64>, result: Out<c_uint>) {
        let (reason, node, outcome) = update(CALL, exec, graph)?;
        failed.put_if_wanted(node);
        result.put(reason, "the result")?;
        outcome
    }

    "cuGraphExecUpdate_v2" fn exec_update_v2(exec: u64, graph: u64, info: Out<CUgraphExecUpdateResultInfo>) {
        let mut known = info.get("the result")?;
        let (reason, node, outcome) = update(CALL, exec, graph)?;
        put_update(Some(&mut known), reason, node);
        info.put_if_wanted(known);
        outcome
    }

    "cuGraphKernelNodeCopyAttributes" fn kernel_node_copy_attributes(to: u64, from: u64) {
        let kernel = |node| read(CALL, node, "kernel", |_, work| launch_of(work).map(|launch| Ok(Arc::clone(launch))));
        kernel(to)?;
        let from = kernel(from)?;
        set_launch(CALL, to, |launch| {
            launch.cluster = from.cluster;
            launch.cooperative = from.cooperative;
        })
    }

    "cuGraphKernelNodeGetAttribute" fn kernel_node_get_attribute(
        node: u64, attribute: c_uint, value: Out<CUlaunchAttributeValue>,
    ) {
        let launch = read(CALL, node, "kernel", |_, work| launch_of(work).map(|launch| Ok(Arc::clone(launch))))?;
        // SAFETY: a union of integers and structures of integers, for which all zeros are valid.
        let mut known: CUlaunchAttributeValue = unsafe { std::mem::zeroed() };
        match attribute {
            abi::CU_LAUNCH_ATTRIBUTE_COOPERATIVE => known.cooperative = c_int::from(launch.cooperative),
            abi::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
                let [x, y, z] = launch.cluster.unwrap_or([1; 3]);
                known.clusterDim.x = x;
                known.clusterDim.y = y;
                known.clusterDim.z = z;
            }
            abi::CU_LAUNCH_ATTRIBUTE_PRIORITY
            | abi::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
            | abi::CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE
            | abi::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP
            | abi::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN => {}
            other => return Err(Failure::invalid(format!("no kernel node attribute {other}"))),
        }
        value.put(known, "the value")
    }

    "cuGraphKernelNodeSetAttribute" fn kernel_node_set_attribute(
        node: u64, attribute: c_uint, value: In<CUlaunchAttributeValue>,
    ) {
        let value = value.get("the value")?;
        match attribute {
            abi::CU_LAUNCH_ATTRIBUTE_COOPERATIVE => {
                // SAFETY: the attribute says which member of the union the caller filled.
                let cooperative = unsafe { value.cooperative } != 0;
                set_launch(CALL, node, |launch| launch.cooperative = cooperative)
            }
            abi::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
                // SAFETY: as above.
                let cluster = unsafe { value.clusterDim };
                set_launch(CALL, node, |launch| launch.cluster = Some([cluster.x, cluster.y, cluster.z]))
            }
            abi::CU_LAUNCH_ATTRIBUTE_PRIORITY
            | abi::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
            | abi::CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE
            | abi::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP
            | abi::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN => set_launch(CALL, node, |_| {}),
            other => Err(Failure::invalid(format!("no kernel node attribute {other}"))),
        }
    }
}

/// Changes a kernel node's launch.
fn set_launch(call: &'static str, node: u64, set: impl FnOnce(&mut Launch)) -> Result<(), Failure> {
    let (device, serial) = of_node(node)?;
    on_device(call, &device, |state| {
        match &mut state.node_mut(serial)?.work {
            Work::Kernel(launch) => {
                let mut changed = launch.with_own_params();
                set(&mut changed);
                *launch = Arc::new(changed);
                Ok(())
            }
            _ => Err(Failure::invalid("the node is not a kernel node")),
        }
    })
}
