//! Entry points that make graphs node by node, and tell their structure.

use std::ffi::c_uint;
use std::fmt::Write as _;

use super::arguments::{In, Out, Text, calls};
use super::capture::mode_of;
use super::entry::{give_back, named, on_device};
use super::failure::Failure;
use super::graph_calls::put_some;
use super::graph_params;
use super::registry::{self, EmulatedDevice, Kind};
use super::state::State;
use super::streams::of_stream;
use super::work::Work;
use crate::driver::CuResult;
use crate::driver::abi::{self, CUgraphEdgeData};

/// Serials of nodes by their handles.
pub(super) fn serials(device: &EmulatedDevice, handles: Vec<u64>) -> Result<Vec<u64>, Failure> {
    let of_device = |handle| match registry::decode_parts(handle, Kind::Node) {
        Some((ordinal, serial)) if ordinal == device.ordinal => Ok(serial),
        _ => Err(Failure::invalid(
            "a node to come after is no node of the graph",
        )),
    };
    handles.into_iter().map(of_device).collect()
}

/// Refuses edges that mean something else than "after it is complete".
pub(super) fn plain_edges(edges: In<CUgraphEdgeData>, count: usize) -> Result<(), Failure> {
    let edges = match edges.optional() {
        None => return Ok(()),
        Some(_) => edges.list(count, "the edges' data")?,
    };
    if edges
        .iter()
        .any(|edge| edge.to_port != 0 || edge.from_port > 2 || edge.type_ > 1)
    {
        return Err(Failure::invalid(
            "an edge has ports or a kind that there is not",
        ));
    }
    // A programmatic edge lets work begin early; beginning when all is complete is always allowed.
    Ok(())
}

fn put_edges(edges: Out<CUgraphEdgeData>, count: usize) {
    if edges.is_wanted() {
        let plain = CUgraphEdgeData {
            from_port: 0,
            to_port: 0,
            type_: 0,
            reserved: [0; 5],
        };
        edges.put_list(std::iter::repeat_n(plain, count));
    }
}

fn change_edges(
    call: &'static str,
    graph: u64,
    from: In<u64>,
    to: In<u64>,
    count: usize,
    adds: bool,
) -> Result<(), Failure> {
    let (device, graph) = named(graph, Kind::Graph, "graph")?;
    let from = serials(&device, from.list(count, "the nodes")?)?;
    let to = serials(&device, to.list(count, "the nodes")?)?;
    on_device(call, &device, |state| {
        let known = state.graph_mut(graph)?;
        let before = known.nodes.clone();
        for (from, to) in from.into_iter().zip(to) {
            let exists = known.nodes.contains_key(&from);
            let Some(node) = known.nodes.get_mut(&to).filter(|_| exists && from != to) else {
                known.nodes = before;
                return Err(Failure::invalid("an edge's node is no node of the graph"));
            };
            let at = node.after.iter().position(|&other| other == from);
            match (adds, at) {
                (true, None) => node.after.push(from),
                (false, Some(at)) => {
                    node.after.remove(at);
                }
                _ => {
                    known.nodes = before;
                    return Err(Failure::invalid(if adds {
                        "an edge is there already"
                    } else {
                        "an edge is not there"
                    }));
                }
            }
        }
        if known.order().is_none() {
            known.nodes = before;
            return Err(Failure::invalid("the edges would make a circle"));
        }
        Ok(())
    })
}

fn put_graph_edges(
    call: &'static str,
    graph: u64,
    from: Out<u64>,
    to: Out<u64>,
    edges: Out<CUgraphEdgeData>,
    count: Out<usize>,
) -> Result<(), Failure> {
    let (device, graph) = named(graph, Kind::Graph, "graph")?;
    on_device(call, &device, |state| {
        let known: Vec<(u64, u64)> = state.graph(graph)?.edges().collect();
        let handle = |node: &u64| state.node_handle(*node);
        let room = count.get("the count")?;
        put_edges(edges, room.min(known.len()));
        put_some(
            from,
            count,
            known.iter().map(|(from, _)| handle(from)).collect(),
        )?;
        if to.is_wanted() {
            count.put(room, "the count")?;
        }
        put_some(to, count, known.iter().map(|(_, to)| handle(to)).collect())
    })
}

fn put_neighbours(
    call: &'static str,
    node: u64,
    nodes: Out<u64>,
    edges: Out<CUgraphEdgeData>,
    count: Out<usize>,
    before: bool,
) -> Result<(), Failure> {
    let (device, serial) = named(node, Kind::Node, "graph node")?;
    on_device(call, &device, |state| {
        let neighbours: Vec<u64> = if before {
            state.node(serial)?.after.clone()
        } else {
            let graph = state.graph(state.graph_of(serial)?)?;
            graph
                .edges()
                .filter(|(from, _)| *from == serial)
                .map(|(_, to)| to)
                .collect()
        };
        let handles: Vec<u64> = neighbours
            .iter()
            .map(|&node| state.node_handle(node))
            .collect();
        put_edges(edges, count.get("the count")?.min(handles.len()));
        put_some(nodes, count, handles)
    })
}

/// A graph as text for Graphviz.
fn dot(state: &State, graph: u64) -> Result<String, Failure> {
    let known = state.graph(graph)?;
    let mut text = String::from("digraph dot {\n");
    let _ = writeln!(
        text,
        "subgraph cluster_{graph} {{\nlabel=\"graph_{graph}\" graph[style=\"dashed\"];"
    );
    for (serial, node) in &known.nodes {
        let label = graph_params::label(&node.work);
        let _ = writeln!(
            text,
            "\"graph_{graph}_node_{serial}\"[style=\"solid\" shape=\"rectangle\" label=\"{serial}\\n{label}\"];"
        );
    }
    for (from, to) in known.edges() {
        let _ = writeln!(
            text,
            "\"graph_{graph}_node_{from}\" -> \"graph_{graph}_node_{to}\";"
        );
    }
    text.push_str("}\n}\n");
    Ok(text)
}

calls! {
    "cuGraphCreate" fn graph_create(graph: Out<u64>, flags: c_uint) {
        graph.required("the graph")?;
        if flags != 0 {
            return Err(Failure::invalid("the flags must be 0"));
        }
        let device = registry::current_device()?;
        on_device(CALL, &device, |state| {
            let id = state.new_graph(false);
            graph.put(state.graph_handle(id), "the graph")
        })
    }

    "cuGraphClone" fn graph_clone(clone: Out<u64>, graph: u64) {
        clone.required("the clone")?;
        let (device, graph) = named(graph, Kind::Graph, "graph")?;
        on_device(CALL, &device, |state| {
            let copy = state.clone_graph(graph, false)?;
            clone.put(state.graph_handle(copy), "the clone")
        })
    }

    "cuGraphNodeFindInClone" fn graph_node_find_in_clone(found: Out<u64>, original: u64, clone: u64) {
        let (device, clone) = named(clone, Kind::Graph, "graph")?;
        let (_, original) = named(original, Kind::Node, "graph node")?;
        on_device(CALL, &device, |state| {
            let known = state.graph(clone)?.clones.get(&original).copied();
            let node = known.ok_or_else(|| Failure::invalid("the graph is no clone that has this node"))?;
            found.put(state.node_handle(node), "the node")
        })
    }

    "cuGraphDestroyNode" fn graph_destroy_node(node: u64) {
        let (device, serial) = named(node, Kind::Node, "graph node")?;
        give_back(CALL, &device, |state| {
            let graph = state.graph_of(serial)?;
            state.graph_of_node.remove(&serial);
            let known = state.graph_mut(graph)?;
            let gone = known.nodes.remove(&serial);
            known.nodes.values_mut().for_each(|node| node.after.retain(|&before| before != serial));
            if let Some(Work::Child(child)) = gone.map(|node| node.work) {
                state.remove_graph(child);
            }
            Ok(())
        })
    }

    "cuGraphGetRootNodes" fn graph_get_root_nodes(graph: u64, nodes: Out<u64>, count: Out<usize>) {
        let (device, graph) = named(graph, Kind::Graph, "graph")?;
        on_device(CALL, &device, |state| {
            let roots = state.graph(graph)?.nodes.iter().filter(|(_, node)| node.after.is_empty());
            let roots: Vec<u64> = roots.map(|(&serial, _)| state.node_handle(serial)).collect();
            put_some(nodes, count, roots)
        })
    }

    "cuGraphGetEdges" fn graph_get_edges(graph: u64, from: Out<u64>, to: Out<u64>, count: Out<usize>) {
        put_graph_edges(CALL, graph, from, to, Out::at(0), count)
    }

    "cuGraphGetEdges_v2" fn graph_get_edges_v2(
        graph: u64, from: Out<u64>, to: Out<u64>, edges: Out<CUgraphEdgeData>, count: Out<usize>,
    ) {
        put_graph_edges(CALL, graph, from, to, edges, count)
    }

    "cuGraphNodeGetDependencies" fn node_get_dependencies(node: u64, nodes: Out<u64>, count: Out<usize>) {
        put_neighbours(CALL, node, nodes, Out::at(0), count, true)
    }

    "cuGraphNodeGetDependencies_v2" fn node_get_dependencies_v2(
        node: u64, nodes: Out<u64>, edges: Out<CUgraphEdgeData>, count: Out<usize>,
    ) {
        put_neighbours(CALL, node, nodes, edges, count, true)
    }

    "cuGraphNodeGetDependentNodes" fn node_get_dependents(node: u64, nodes: Out<u64>, count: Out<usize>) {
        put_neighbours(CALL, node, nodes, Out::at(0), count, false)
    }

    "cuGraphNodeGetDependentNodes_v2" fn node_get_dependents_v2(
        node: u64, nodes: Out<u64>, edges: Out<CUgraphEdgeData>, count: Out<usize>,
    ) {
        put_neighbours(CALL, node, nodes, edges, count, false)
    }

    "cuGraphAddDependencies" fn add_dependencies(graph: u64, from: In<u64>, to: In<u64>, count: usize) {
        change_edges(CALL, graph, from, to, count, true)
    }

    "cuGraphAddDependencies_v2" fn add_dependencies_v2(
        graph: u64, from: In<u64>, to: In<u64>, edges: In<CUgraphEdgeData>, count: usize,
    ) {
        plain_edges(edges, count)?;
        change_edges(CALL, graph, from, to, count, true)
    }

    "cuGraphRemoveDependencies" fn remove_dependencies(graph: u64, from: In<u64>, to: In<u64>, count: usize) {
        change_edges(CALL, graph, from, to, count, false)
    }

    "cuGraphRemoveDependencies_v2" fn remove_dependencies_v2(
        graph: u64, from: In<u64>, to: In<u64>, edges: In<CUgraphEdgeData>, count: usize,
    ) {
        plain_edges(edges, count)?;
        change_edges(CALL, graph, from, to, count, false)
    }

    "cuGraphDebugDotPrint" fn graph_debug_dot_print(graph: u64, path: Text, flags: c_uint) {
        let _ = flags;
        let (device, graph) = named(graph, Kind::Graph, "graph")?;
        let path = path.get("the path")?.to_string_lossy().into_owned();
        let text = on_device(CALL, &device, |state| dot(state, graph))?;
        std::fs::write(&path, text).map_err(|error| {
            Failure::new(CuResult::OPERATING_SYSTEM, format!("{path} cannot be written: {error}"))
        })
    }

    "cuStreamBeginCaptureToGraph" fn stream_begin_capture_to_graph(
        stream: u64, graph: u64, after: In<u64>, edges: In<CUgraphEdgeData>, count: usize, mode: c_uint,
    ) {
        plain_edges(edges, count)?;
        let mode = mode_of(mode)?;
        let (device, stream) = of_stream(stream)?;
        let (owner, graph) = named(graph, Kind::Graph, "graph")?;
        if owner.ordinal != device.ordinal {
            return Err(Failure::handle("graph"));
        }
        let after = serials(&device, after.list(count, "the nodes to come after")?)?;
        on_device(CALL, &device, |state| state.begin_capture(stream, mode, Some((graph, after))))
    }

    "cuStreamGetCaptureInfo" fn stream_get_capture_info(stream: u64, status: Out<c_uint>, id: Out<u64>) {
        capture_info(CALL, stream, Info { status, id, graph: Out::at(0), nodes: Out::at(0), edges: Out::at(0), count: Out::at(0) })
    }

    "cuStreamGetCaptureInfo_v2" fn stream_get_capture_info_v2(
        stream: u64, status: Out<c_uint>, id: Out<u64>, graph: Out<u64>, nodes: Out<*const u64>, count: Out<usize>,
    ) {
        capture_info(CALL, stream, Info { status, id, graph, nodes, edges: Out::at(0), count })
    }

    "cuStreamGetCaptureInfo_v3" fn stream_get_capture_info_v3(
        stream: u64, status: Out<c_uint>, id: Out<u64>, graph: Out<u64>, nodes: Out<*const u64>,
        edges: Out<*const CUgraphEdgeData>, count: Out<usize>,
    ) {
        capture_info(CALL, stream, Info { status, id, graph, nodes, edges, count })
    }

    "cuStreamUpdateCaptureDependencies" fn stream_update_capture_dependencies(
        stream: u64, nodes: In<u64>, count: usize, flags: c_uint,
    ) {
        update_dependencies(CALL, stream, nodes, count, flags)
    }

    "cuStreamUpdateCaptureDependencies_v2" fn stream_update_capture_dependencies_v2(
        stream: u64, nodes: In<u64>, edges: In<CUgraphEdgeData>, count: usize, flags: c_uint,
    ) {
        plain_edges(edges, count)?;
        update_dependencies(CALL, stream, nodes, count, flags)
    }
}

/// Where what is known of a capture goes.
struct Info {
    status: Out<c_uint>,
    id: Out<u64>,
    graph: Out<u64>,
    nodes: Out<*const u64>,
    edges: Out<*const CUgraphEdgeData>,
    count: Out<usize>,
}

fn capture_info(call: &'static str, stream: u64, info: Info) -> Result<(), Failure> {
    let (device, stream) = of_stream(stream)?;
    on_device(call, &device, |state| {
        let status = match state.capture_status(stream)? {
            None => abi::CU_STREAM_CAPTURE_STATUS_NONE,
            Some(false) => abi::CU_STREAM_CAPTURE_STATUS_ACTIVE,
            Some(true) => abi::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
        };
        info.status.put(status, "the status")?;
        info.edges.put_if_wanted(std::ptr::null());
        let Some((id, graph, after)) = state
            .capture_info(stream)?
            .filter(|_| status == abi::CU_STREAM_CAPTURE_STATUS_ACTIVE)
        else {
            return Ok(());
        };
        info.id.put_if_wanted(id);
        info.graph.put_if_wanted(state.graph_handle(graph));
        info.count.put_if_wanted(after.len());
        if info.nodes.is_wanted() {
            // Valid until the next call on the stream, which keeps them.
            let handles: Vec<u64> = after.iter().map(|&node| state.node_handle(node)).collect();
            let kept = state.told_dependencies.entry(stream).or_default();
            *kept = handles;
            info.nodes.put_if_wanted(kept.as_ptr());
        }
        Ok(())
    })
}

fn update_dependencies(
    call: &'static str,
    stream: u64,
    nodes: In<u64>,
    count: usize,
    flags: c_uint,
) -> Result<(), Failure> {
    let replace = match flags {
        abi::CU_STREAM_ADD_CAPTURE_DEPENDENCIES => false,
        abi::CU_STREAM_SET_CAPTURE_DEPENDENCIES => true,
        other => return Err(Failure::invalid(format!("no flags {other:#x}"))),
    };
    let (device, stream) = of_stream(stream)?;
    let nodes = serials(&device, nodes.list(count, "the nodes")?)?;
    on_device(call, &device, |state| {
        state.set_capture_dependencies(stream, nodes, replace)
    })
}
