//! Graphs: nodes and their order, and the flat list of work that an executable graph runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::failure::Failure;
use super::registry::{self, Kind};
use super::run::Stop;
use super::state::State;
use super::user_objects::UserObject;
use super::work::{Launch, Work};

/// A node of a graph.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) work: Work,
    /// Serials of the nodes that come before it.
    pub(super) after: Vec<u64>,
}

/// A graph.
#[derive(Debug, Default)]
pub(super) struct Graph {
    /// Nodes by serial: in the order in which they were added.
    pub(super) nodes: BTreeMap<u64, Node>,
    /// Part of a child node, or still being captured: nobody's to destroy.
    pub(super) owned: bool,
    /// For a clone: its node for each node of the original.
    pub(super) clones: BTreeMap<u64, u64>,
    pub(super) objects: Vec<Arc<UserObject>>,
}

/// One unit of an executable graph.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// The node that it came from.
    pub(super) node: u64,
    pub(super) work: Work,
    /// Earlier items that it comes behind.
    pub(super) after: Vec<usize>,
    /// Cleared by `cuGraphNodeSetEnabled`: it does nothing but order.
    pub(super) enabled: bool,
}

/// What an executable graph runs: its work in an order that respects all dependencies, child graphs included.
#[derive(Clone, Debug, Default)]
pub(super) struct Program {
    pub(super) items: Vec<Item>,
}

impl Program {
    /// Appends items that come behind `before`; gives those that nothing of them comes behind, or `before`
    /// where there are none.
    fn append(&mut self, items: Vec<Item>, before: &[usize]) -> Vec<usize> {
        let begin = self.items.len();
        let mut last: BTreeSet<usize> = (begin..begin + items.len()).collect();
        for item in items {
            let after: Vec<usize> = if item.after.is_empty() {
                before.to_vec()
            } else {
                item.after.iter().map(|index| begin + index).collect()
            };
            after.iter().for_each(|index| {
                last.remove(index);
            });
            self.items.push(Item { after, ..item });
        }
        if last.is_empty() {
            return before.to_vec();
        }
        last.into_iter().collect()
    }

    /// Kernel launches in it.
    pub(super) fn kernels(&self) -> impl Iterator<Item = &Arc<Launch>> {
        self.items.iter().filter_map(|item| match &item.work {
            Work::Kernel(launch) => Some(launch),
            _ => None,
        })
    }
}

/// An executable graph.
#[derive(Debug)]
pub(super) struct GraphExec {
    pub(super) program: Arc<Program>,
    /// Which graph of the device it is, in order of instantiation.
    pub(super) number: u64,
    /// Nodes that stand for a child graph, and the nodes in it.
    pub(super) children: BTreeMap<u64, Vec<u64>>,
    /// Order of the nodes that it was made from, for updates.
    pub(super) shape: Shape,
    pub(super) charged_bytes: u64,
    pub(super) flags: u64,
    /// Kept alive for as long as the graph may run.
    pub(super) objects: Vec<Arc<UserObject>>,
}

/// Kinds of nodes in order, and for each the places of those before it: what an update must not change.
pub(super) type Shape = Vec<(u32, Vec<usize>)>;

impl Graph {
    /// Serials in an order that respects dependencies, and among the free ones the order of adding; `None`
    /// where nodes wait for each other.
    pub(super) fn order(&self) -> Option<Vec<u64>> {
        let mut left: BTreeMap<u64, usize> = BTreeMap::new();
        let mut then: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (&serial, node) in &self.nodes {
            left.insert(serial, node.after.len());
            for &before in &node.after {
                then.entry(before).or_default().push(serial);
            }
        }
        let mut free: BTreeSet<u64> = left
            .iter()
            .filter(|(_, count)| **count == 0)
            .map(|(&serial, _)| serial)
            .collect();
        let mut order = Vec::with_capacity(self.nodes.len());
        while let Some(serial) = free.pop_first() {
            order.push(serial);
            for next in then.get(&serial).into_iter().flatten() {
                if let Some(count) = left.get_mut(next) {
                    *count -= 1;
                    if *count == 0 {
                        free.insert(*next);
                    }
                }
            }
        }
        (order.len() == self.nodes.len()).then_some(order)
    }

    /// Pairs of nodes of which the first comes before the second.
    pub(super) fn edges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.nodes
            .iter()
            .flat_map(|(&to, node)| node.after.iter().map(move |&from| (from, to)))
    }
}

impl State {
    /// A new graph without nodes; gives its serial.
    pub(super) fn new_graph(&mut self, owned: bool) -> u64 {
        let id = self.serial();
        let graph = Graph {
            owned,
            ..Graph::default()
        };
        self.graphs.insert(id, graph);
        id
    }

    /// Handle of a graph.
    pub(super) fn graph_handle(&self, id: u64) -> u64 {
        registry::handle(Kind::Graph, self.ordinal, id)
    }

    /// Handle of a node.
    pub(super) fn node_handle(&self, serial: u64) -> u64 {
        registry::handle(Kind::Node, self.ordinal, serial)
    }

    pub(super) fn graph(&self, id: u64) -> Result<&Graph, Failure> {
        self.graphs.get(&id).ok_or_else(|| Failure::handle("graph"))
    }

    pub(super) fn graph_mut(&mut self, id: u64) -> Result<&mut Graph, Failure> {
        self.graphs
            .get_mut(&id)
            .ok_or_else(|| Failure::handle("graph"))
    }

    pub(super) fn exec(&self, id: u64) -> Result<&GraphExec, Failure> {
        self.execs
            .get(&id)
            .ok_or_else(|| Failure::handle("executable graph"))
    }

    pub(super) fn exec_mut(&mut self, id: u64) -> Result<&mut GraphExec, Failure> {
        self.execs
            .get_mut(&id)
            .ok_or_else(|| Failure::handle("executable graph"))
    }

    /// The graph of a node.
    pub(super) fn graph_of(&self, node: u64) -> Result<u64, Failure> {
        self.graph_of_node
            .get(&node)
            .copied()
            .ok_or_else(|| Failure::handle("graph node"))
    }

    pub(super) fn node(&self, serial: u64) -> Result<&Node, Failure> {
        let graph = self.graph(self.graph_of(serial)?)?;
        graph
            .nodes
            .get(&serial)
            .ok_or_else(|| Failure::handle("graph node"))
    }

    pub(super) fn node_mut(&mut self, serial: u64) -> Result<&mut Node, Failure> {
        let graph = self.graph_of(serial)?;
        let graph = self.graph_mut(graph)?;
        graph
            .nodes
            .get_mut(&serial)
            .ok_or_else(|| Failure::handle("graph node"))
    }

    /// Adds a node to a graph; gives its serial.
    pub(super) fn add_node(
        &mut self,
        graph: u64,
        work: Work,
        mut after: Vec<u64>,
    ) -> Result<u64, Failure> {
        let known = self.graph(graph)?;
        if let Some(stranger) = after.iter().find(|node| !known.nodes.contains_key(node)) {
            return Err(Failure::invalid(format!(
                "node {stranger} to come after is not one of the graph"
            )));
        }
        let count = after.len();
        after.sort_unstable();
        after.dedup();
        if after.len() != count {
            return Err(Failure::invalid("a node to come after is named twice"));
        }
        let serial = self.serial();
        self.graph_of_node.insert(serial, graph);
        self.graph_mut(graph)?
            .nodes
            .insert(serial, Node { work, after });
        Ok(serial)
    }

    /// Removes a graph, its nodes and its child graphs.
    pub(super) fn remove_graph(&mut self, id: u64) {
        let Some(graph) = self.graphs.remove(&id) else {
            return;
        };
        for (serial, node) in graph.nodes {
            self.graph_of_node.remove(&serial);
            if let Work::Child(child) = node.work {
                self.remove_graph(child);
            }
        }
    }

    /// A copy of a graph with nodes of its own.
    pub(super) fn clone_graph(&mut self, id: u64, owned: bool) -> Result<u64, Failure> {
        let original: Vec<(u64, Node)> = self
            .graph(id)?
            .nodes
            .iter()
            .map(|(&serial, node)| (serial, node.clone()))
            .collect();
        let objects = self.graph(id)?.objects.clone();
        let copy = self.new_graph(owned);
        let mut clones = BTreeMap::new();
        for (serial, _) in &original {
            clones.insert(*serial, self.serial());
        }
        for (serial, node) in original {
            let work = match node.work {
                Work::Child(child) => Work::Child(self.clone_graph(child, true)?),
                work => work,
            };
            let after = node
                .after
                .iter()
                .filter_map(|before| clones.get(before).copied());
            let node = Node {
                work,
                after: after.collect(),
            };
            let own = clones[&serial];
            self.graph_of_node.insert(own, copy);
            self.graph_mut(copy)?.nodes.insert(own, node);
        }
        let graph = self.graph_mut(copy)?;
        graph.clones = clones;
        graph.objects = objects;
        Ok(copy)
    }

    /// Order of a graph's nodes with kinds and dependencies.
    pub(super) fn shape(&self, id: u64) -> Result<Shape, Failure> {
        let graph = self.graph(id)?;
        let order = graph.order().ok_or_else(cycle)?;
        let place: BTreeMap<u64, usize> = order.iter().copied().zip(0..).collect();
        Ok(order
            .iter()
            .map(|serial| {
                let node = &graph.nodes[serial];
                let mut after: Vec<usize> = node.after.iter().map(|before| place[before]).collect();
                after.sort_unstable();
                (node.work.kind(), after)
            })
            .collect())
    }

    /// The work of a graph in order, and the nodes of its child graphs by the node that stands for them.
    pub(super) fn program(&self, id: u64) -> Result<(Program, BTreeMap<u64, Vec<u64>>), Failure> {
        let graph = self.graph(id)?;
        let mut program = Program::default();
        let mut children = BTreeMap::new();
        // The items that end each node.
        let mut ends: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for serial in graph.order().ok_or_else(cycle)? {
            let node = &graph.nodes[&serial];
            let before = node
                .after
                .iter()
                .flat_map(|before| ends[before].iter().copied());
            let before: Vec<usize> = before.collect();
            let last = match &node.work {
                Work::Child(child) => {
                    let (inner, inner_children) = self.program(*child)?;
                    let nodes = inner.items.iter().map(|item| item.node).collect();
                    children.insert(serial, nodes);
                    children.extend(inner_children);
                    program.append(inner.items, &before)
                }
                Work::Graph { program: inner, .. } => {
                    let items = inner.items.iter().cloned();
                    let items = items.map(|item| Item {
                        node: serial,
                        ..item
                    });
                    program.append(items.collect(), &before)
                }
                work => {
                    let item = Item {
                        node: serial,
                        work: work.clone(),
                        after: Vec::new(),
                        enabled: true,
                    };
                    program.append(vec![item], &before)
                }
            };
            ends.insert(serial, last);
        }
        Ok((program, children))
    }

    /// Runs the program of the graph with that number from an item on; gives the item that could not run, and why.
    pub(super) fn run_program(
        &mut self,
        program: &Program,
        start: usize,
        number: u64,
    ) -> Result<f64, (usize, Stop)> {
        let mut busy_us = 0.0;
        for (index, item) in program.items.iter().enumerate().skip(start) {
            busy_us += self.run_item(item, number).map_err(|stop| (index, stop))?;
        }
        Ok(busy_us)
    }

    /// Runs one item of the program of the graph with that number.
    pub(super) fn run_item(&mut self, item: &Item, number: u64) -> Result<f64, Stop> {
        match &item.work {
            _ if !item.enabled => Ok(0.0),
            Work::Record(event) => {
                self.record_from_graph(*event);
                Ok(0.0)
            }
            Work::Kernel(launch) => self.run_kernel(launch, Some(number)),
            _ => self.run_work(&item.work),
        }
    }
}

fn cycle() -> Failure {
    Failure::invalid("nodes of the graph wait for each other in a circle")
}
