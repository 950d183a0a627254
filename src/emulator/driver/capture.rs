//! Stream capture: recording work into a graph, and refusing what real capture refuses.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use super::failure::Failure;
use super::graphs::Graph;
use super::state::{Event, LEGACY, State};
use super::work::Work;
use crate::driver::{CaptureMode, CuResult, abi};

/// A capture in progress, as other threads and devices see it.
#[derive(Debug)]
struct Active {
    mode: CaptureMode,
    thread: ThreadId,
    invalidated: AtomicBool,
}

static ACTIVE: Mutex<Vec<Arc<Active>>> = Mutex::new(Vec::new());
/// Length of `ACTIVE`, so that calls outside of captures pay one load.
static ACTIVE_COUNT: AtomicUsize = AtomicUsize::new(0);

fn active() -> MutexGuard<'static, Vec<Arc<Active>>> {
    ACTIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Refuses a call that no capture can hold (allocation, synchronous copies, ...) and invalidates the
/// captures that forbid it: those of this thread, and those in global mode of any thread.
pub(super) fn refuse_unsafe_call(call: &'static str) -> Result<(), Failure> {
    if ACTIVE_COUNT.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    let here = std::thread::current().id();
    let thread_mode = THREAD_MODE.get();
    let mut refused = false;
    for capture in active().iter() {
        let forbids = thread_mode != CaptureMode::Relaxed
            && match capture.mode {
                // A thread that is not in global mode is not stopped by other threads' captures.
                CaptureMode::Global => thread_mode == CaptureMode::Global || capture.thread == here,
                CaptureMode::ThreadLocal => capture.thread == here,
                CaptureMode::Relaxed => false,
            };
        if forbids {
            capture.invalidated.store(true, Ordering::Release);
            refused = true;
        }
    }
    if refused {
        return Err(Failure::new(
            CuResult::STREAM_CAPTURE_UNSUPPORTED,
            format!(
                "{call} is not permitted while a stream is capturing; the capture is invalidated"
            ),
        ));
    }
    Ok(())
}

thread_local! {
    /// What the thread's unsafe calls mean for captures: `cuThreadExchangeStreamCaptureMode`.
    static THREAD_MODE: Cell<CaptureMode> = const { Cell::new(CaptureMode::Global) };
}

/// The capture mode of a number.
pub(super) fn mode_of(mode: u32) -> Result<CaptureMode, Failure> {
    match mode {
        abi::CU_STREAM_CAPTURE_MODE_GLOBAL => Ok(CaptureMode::Global),
        abi::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL => Ok(CaptureMode::ThreadLocal),
        abi::CU_STREAM_CAPTURE_MODE_RELAXED => Ok(CaptureMode::Relaxed),
        other => Err(Failure::invalid(format!("no capture mode {other}"))),
    }
}

/// The number of a capture mode.
pub(super) fn mode_number(mode: CaptureMode) -> u32 {
    match mode {
        CaptureMode::Global => abi::CU_STREAM_CAPTURE_MODE_GLOBAL,
        CaptureMode::ThreadLocal => abi::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        CaptureMode::Relaxed => abi::CU_STREAM_CAPTURE_MODE_RELAXED,
    }
}

/// Sets the calling thread's mode and gives the one before.
pub(super) fn exchange_thread_mode(mode: CaptureMode) -> CaptureMode {
    THREAD_MODE.replace(mode)
}

/// A capture in progress.
#[derive(Debug)]
pub(super) struct Capture {
    active: Arc<Active>,
    origin: u64,
    /// The graph that is being made.
    graph: u64,
    /// The graph was the caller's before the capture, and stays.
    graph_is_callers: bool,
    /// For each stream of the capture, the nodes its next node comes after.
    frontiers: HashMap<u64, Vec<u64>>,
}

impl Capture {
    /// Removes the capture from the list other threads see.
    pub(super) fn forget(self) {
        let mut list = active();
        list.retain(|other| !Arc::ptr_eq(other, &self.active));
        ACTIVE_COUNT.store(list.len(), Ordering::Release);
    }

    fn is_invalidated(&self) -> bool {
        self.active.invalidated.load(Ordering::Acquire)
    }

    fn invalidate(&self) {
        self.active.invalidated.store(true, Ordering::Release);
    }

    /// True where every node at the end of a forked stream comes before the origin's end.
    fn is_joined(&self, graph: &Graph) -> bool {
        let mut before: HashSet<u64> = HashSet::new();
        let mut pending = self
            .frontiers
            .get(&self.origin)
            .cloned()
            .unwrap_or_default();
        while let Some(node) = pending.pop() {
            if before.insert(node) {
                pending.extend(graph.nodes.get(&node).iter().flat_map(|node| &node.after));
            }
        }
        self.frontiers
            .values()
            .flatten()
            .all(|node| before.contains(node))
    }
}

impl State {
    /// Starts a capture in a stream, into a graph of the caller's behind these nodes of it, or into a new one.
    pub(super) fn begin_capture(
        &mut self,
        stream: u64,
        mode: CaptureMode,
        into: Option<(u64, Vec<u64>)>,
    ) -> Result<(), Failure> {
        if stream == LEGACY {
            return Err(Failure::new(
                CuResult::STREAM_CAPTURE_UNSUPPORTED,
                "the legacy default stream cannot be captured",
            ));
        }
        if self.stream(stream)?.capture.is_some() {
            return Err(Failure::new(
                CuResult::ILLEGAL_STATE,
                "the stream is capturing already",
            ));
        }
        let graph_is_callers = into.is_some();
        let (graph, after) = match into {
            Some((graph, after)) => {
                let known = self.graph(graph)?;
                if let Some(stranger) = after.iter().find(|node| !known.nodes.contains_key(node)) {
                    return Err(Failure::invalid(format!(
                        "node {stranger} to come after is not one of the graph"
                    )));
                }
                (graph, after)
            }
            None => (self.new_graph(true), Vec::new()),
        };
        let entry = Arc::new(Active {
            mode,
            thread: std::thread::current().id(),
            invalidated: AtomicBool::new(false),
        });
        let mut list = active();
        list.push(Arc::clone(&entry));
        ACTIVE_COUNT.store(list.len(), Ordering::Release);
        drop(list);
        let id = self.serial();
        self.captures.insert(
            id,
            Capture {
                active: entry,
                origin: stream,
                graph,
                graph_is_callers,
                frontiers: HashMap::from([(stream, after)]),
            },
        );
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.capture = Some(id);
        }
        Ok(())
    }

    /// Ends the capture of a stream and gives its graph.
    pub(super) fn end_capture(&mut self, stream: u64) -> Result<u64, Failure> {
        let Some(id) = self.stream(stream)?.capture else {
            return Err(Failure::new(
                CuResult::ILLEGAL_STATE,
                "the stream is not capturing",
            ));
        };
        let Some(capture) = self.captures.get(&id) else {
            return Err(CuResult::UNKNOWN.into());
        };
        if capture.origin != stream {
            capture.invalidate();
            return Err(Failure::new(
                CuResult::STREAM_CAPTURE_UNMATCHED,
                "the stream joined the capture of another stream, which has to end it",
            ));
        }
        if capture.active.mode != CaptureMode::Relaxed
            && capture.active.thread != std::thread::current().id()
        {
            return Err(Failure::new(
                CuResult::STREAM_CAPTURE_WRONG_THREAD,
                "the capture was begun by another thread",
            ));
        }
        for stream in self.streams.values_mut() {
            stream.capture = stream.capture.filter(|&other| other != id);
        }
        let Some(capture) = self.captures.remove(&id) else {
            return Err(CuResult::UNKNOWN.into());
        };
        let invalidated = capture.is_invalidated();
        let (graph, is_callers) = (capture.graph, capture.graph_is_callers);
        let joined = capture.is_joined(self.graph(graph)?);
        capture.forget();
        if !is_callers && (invalidated || !joined) {
            self.remove_graph(graph);
        } else if let Some(graph) = self.graphs.get_mut(&graph) {
            graph.owned = false;
        }
        if invalidated {
            return Err(Failure::new(
                CuResult::STREAM_CAPTURE_INVALIDATED,
                "a call during the capture invalidated it",
            ));
        }
        if !joined {
            return Err(Failure::new(
                CuResult::STREAM_CAPTURE_UNJOINED,
                "a stream that was forked into the capture has work its origin does not wait for",
            ));
        }
        Ok(graph)
    }

    /// A stream of a capture is going away: the capture ends without a graph where the stream is its
    /// origin, and is invalidated otherwise.
    pub(super) fn abandon_capture(&mut self, stream: u64) {
        let Some(id) = self.streams.get(&stream).and_then(|s| s.capture) else {
            return;
        };
        match self.captures.remove(&id) {
            Some(capture) if capture.origin == stream => {
                for stream in self.streams.values_mut() {
                    stream.capture = stream.capture.filter(|&other| other != id);
                }
                if !capture.graph_is_callers {
                    self.remove_graph(capture.graph);
                }
                capture.forget();
            }
            Some(capture) => {
                capture.invalidate();
                self.captures.insert(id, capture);
            }
            None => {}
        }
    }

    /// Status of a stream's capture: `None`, or whether it was invalidated.
    pub(super) fn capture_status(&self, stream: u64) -> Result<Option<bool>, Failure> {
        let id = self.stream(stream)?.capture;
        Ok(id
            .and_then(|id| self.captures.get(&id))
            .map(Capture::is_invalidated))
    }

    /// Adds a node to the capture a stream is part of.
    pub(super) fn capture_work(&mut self, stream: u64, work: Work) -> Result<(), Failure> {
        let capture = self.valid_capture(stream)?;
        let graph = capture.graph;
        let mut after = capture.frontiers.get(&stream).cloned().unwrap_or_default();
        // A caller may have removed nodes of its graph since.
        let known = &self.graph(graph)?.nodes;
        after.retain(|node| known.contains_key(node));
        let node = self.add_node(graph, work, after)?;
        self.valid_capture(stream)?
            .frontiers
            .insert(stream, vec![node]);
        Ok(())
    }

    /// The capture that a stream is part of: its number, its graph, and the nodes that the stream's next
    /// one comes after.
    pub(super) fn capture_info(
        &self,
        stream: u64,
    ) -> Result<Option<(u64, u64, Vec<u64>)>, Failure> {
        let id = self.stream(stream)?.capture;
        Ok(id.and_then(|id| {
            let capture = self.captures.get(&id)?;
            let after = capture.frontiers.get(&stream).cloned().unwrap_or_default();
            Some((id, capture.graph, after))
        }))
    }

    /// Adds to, or replaces, the nodes that a capturing stream's next node comes after.
    pub(super) fn set_capture_dependencies(
        &mut self,
        stream: u64,
        nodes: Vec<u64>,
        replace: bool,
    ) -> Result<(), Failure> {
        let graph = self.valid_capture(stream)?.graph;
        let known = self.graph(graph)?;
        if let Some(stranger) = nodes.iter().find(|node| !known.nodes.contains_key(node)) {
            return Err(Failure::invalid(format!(
                "node {stranger} is not one of the capture's graph"
            )));
        }
        let frontier = self
            .valid_capture(stream)?
            .frontiers
            .entry(stream)
            .or_default();
        if replace {
            frontier.clear();
        }
        frontier.extend(nodes);
        frontier.sort_unstable();
        frontier.dedup();
        Ok(())
    }

    /// Records an event: in a capture, it stands for the nodes so far.
    pub(super) fn record_event(&mut self, event: u64, stream: u64) -> Result<(), Failure> {
        if !self.events.contains_key(&event) {
            return Err(Failure::handle("event"));
        }
        let recorded = match self.stream(stream)?.capture {
            Some(id) => {
                let capture = self.valid_capture(stream)?;
                let nodes = capture.frontiers.get(&stream).cloned().unwrap_or_default();
                Event::Captured { capture: id, nodes }
            }
            None => Event::Recorded {
                stream,
                ticket: self.peek_serial(),
                time_us: None,
            },
        };
        let is_work = matches!(recorded, Event::Recorded { .. });
        self.events.insert(event, recorded);
        if is_work {
            self.enqueue(stream, Work::Record(event), Vec::new())?;
        }
        Ok(())
    }

    /// Makes a stream wait for an event; an event of a capture draws the stream into it.
    pub(super) fn wait_event(&mut self, stream: u64, event: u64) -> Result<(), Failure> {
        let event = self
            .events
            .get(&event)
            .cloned()
            .ok_or_else(|| Failure::handle("event"))?;
        let capturing = self.stream(stream)?.capture;
        match (event, capturing) {
            (Event::New, None) => Ok(()),
            (
                Event::Recorded {
                    stream: other,
                    ticket,
                    ..
                },
                None,
            ) => self.enqueue(stream, Work::Wait, vec![(other, ticket)]),
            (Event::New | Event::Recorded { .. }, Some(_)) => {
                self.valid_capture(stream)?.invalidate();
                Err(Failure::new(
                    CuResult::STREAM_CAPTURE_ISOLATION,
                    "a capturing stream cannot wait for an event recorded outside of the capture",
                ))
            }
            (Event::Captured { capture: id, nodes }, capturing) => {
                self.join(stream, id, &nodes, capturing)
            }
        }
    }

    fn join(
        &mut self,
        stream: u64,
        id: u64,
        nodes: &[u64],
        capturing: Option<u64>,
    ) -> Result<(), Failure> {
        if let Some(other) = capturing.filter(|&other| other != id) {
            for id in [id, other] {
                if let Some(capture) = self.captures.get(&id) {
                    capture.invalidate();
                }
            }
            return Err(Failure::new(
                CuResult::STREAM_CAPTURE_MERGE,
                "the stream and the event belong to two different captures",
            ));
        }
        let Some(capture) = self.captures.get_mut(&id) else {
            return Err(Failure::invalid(
                "the event was recorded in a capture that has ended",
            ));
        };
        if capture.is_invalidated() {
            return Err(CuResult::STREAM_CAPTURE_INVALIDATED.into());
        }
        if stream == LEGACY {
            capture.invalidate();
            return Err(Failure::new(
                CuResult::STREAM_CAPTURE_IMPLICIT,
                "the legacy default stream cannot join a capture",
            ));
        }
        let frontier = capture.frontiers.entry(stream).or_default();
        frontier.extend(nodes);
        frontier.sort_unstable();
        frontier.dedup();
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.capture = Some(id);
        }
        Ok(())
    }

    /// Refuses to wait for a stream that captures: nothing it holds will run.
    pub(super) fn refuse_wait(&mut self, stream: u64) -> Result<(), Failure> {
        if self.stream(stream)?.capture.is_none() {
            return Ok(());
        }
        self.valid_capture(stream)?.invalidate();
        Err(Failure::new(
            CuResult::STREAM_CAPTURE_UNSUPPORTED,
            "a capturing stream cannot be waited for; the capture is invalidated",
        ))
    }

    /// Refuses to make a capturing stream wait for work outside of its capture.
    pub(super) fn refuse_wait_outside(&mut self, stream: u64) -> Result<(), Failure> {
        if self.stream(stream)?.capture.is_none() {
            return Ok(());
        }
        self.valid_capture(stream)?.invalidate();
        Err(Failure::new(
            CuResult::STREAM_CAPTURE_ISOLATION,
            "a capturing stream cannot wait for an event recorded outside of the capture",
        ))
    }

    /// Refuses to wait for the whole context while any of its streams captures.
    pub(super) fn refuse_wait_for_context(&mut self) -> Result<(), Failure> {
        if self.captures.is_empty() {
            return Ok(());
        }
        self.captures.values().for_each(Capture::invalidate);
        Err(Failure::new(
            CuResult::STREAM_CAPTURE_UNSUPPORTED,
            "the context cannot be waited for while a stream is capturing; the capture is invalidated",
        ))
    }

    /// Refuses work in the legacy default stream while a stream that waits for it captures.
    pub(super) fn refuse_implicit_capture(&self) -> Result<(), Failure> {
        let mut refused = Ok(());
        for capture in self.implicit_captures() {
            capture.invalidate();
            refused = Err(Failure::new(
                CuResult::STREAM_CAPTURE_IMPLICIT,
                "a blocking stream is capturing and would have to wait for the legacy default stream",
            ));
        }
        refused
    }

    /// Captures that work in the legacy default stream would become part of.
    pub(super) fn implicit_captures(&self) -> impl Iterator<Item = &Capture> {
        let blocking = self.streams.values().filter(|stream| stream.blocking);
        blocking
            .filter_map(|stream| stream.capture)
            .filter_map(|id| self.captures.get(&id))
    }

    /// Refuses to query or wait for an event that stands for nodes of a capture.
    pub(super) fn refuse_captured_event(&self, event: u64) -> Result<(), Failure> {
        match self.events.get(&event) {
            None => Err(Failure::handle("event")),
            Some(Event::Captured { capture, .. }) => {
                if let Some(capture) = self.captures.get(capture) {
                    capture.invalidate();
                }
                Err(Failure::new(
                    CuResult::CAPTURED_EVENT,
                    "the event was recorded in a capture, so it never completes",
                ))
            }
            Some(_) => Ok(()),
        }
    }

    /// The capture a stream is part of, while it is still good.
    fn valid_capture(&mut self, stream: u64) -> Result<&mut Capture, Failure> {
        let id = self.stream(stream)?.capture;
        match id.and_then(|id| self.captures.get_mut(&id)) {
            Some(capture) if capture.is_invalidated() => Err(Failure::new(
                CuResult::STREAM_CAPTURE_INVALIDATED,
                "a call during the capture invalidated it",
            )),
            Some(capture) => Ok(capture),
            None => Err(CuResult::ILLEGAL_STATE.into()),
        }
    }
}
