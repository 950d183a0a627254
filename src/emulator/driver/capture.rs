//! Stream capture: recording work into a graph, and refusing what real capture refuses.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use super::failure::Failure;
use super::state::{Event, LEGACY, State};
use super::work::{Node, Work};
use crate::driver::{CaptureMode, CuResult};

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
    let mut refused = false;
    for capture in active().iter() {
        let forbids = match capture.mode {
            CaptureMode::Global => true,
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

/// A capture in progress.
#[derive(Debug)]
pub(super) struct Capture {
    active: Arc<Active>,
    origin: u64,
    nodes: Vec<Node>,
    /// For each stream of the capture, the nodes its next node comes after.
    frontiers: HashMap<u64, Vec<usize>>,
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
    fn is_joined(&self) -> bool {
        let mut before: HashSet<usize> = HashSet::new();
        let mut pending = self
            .frontiers
            .get(&self.origin)
            .cloned()
            .unwrap_or_default();
        while let Some(node) = pending.pop() {
            if before.insert(node) {
                pending.extend(&self.nodes[node].after);
            }
        }
        self.frontiers
            .values()
            .flatten()
            .all(|node| before.contains(node))
    }
}

impl State {
    /// Starts a capture in a stream.
    pub(super) fn begin_capture(&mut self, stream: u64, mode: CaptureMode) -> Result<(), Failure> {
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
                nodes: Vec::new(),
                frontiers: HashMap::from([(stream, Vec::new())]),
            },
        );
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.capture = Some(id);
        }
        Ok(())
    }

    /// Ends the capture of a stream and gives its nodes.
    pub(super) fn end_capture(&mut self, stream: u64) -> Result<Vec<Node>, Failure> {
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
        let Some(mut capture) = self.captures.remove(&id) else {
            return Err(CuResult::UNKNOWN.into());
        };
        let invalidated = capture.is_invalidated();
        let joined = capture.is_joined();
        let nodes = std::mem::take(&mut capture.nodes);
        capture.forget();
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
        Ok(nodes)
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
        let node = capture.nodes.len();
        let after = capture
            .frontiers
            .insert(stream, vec![node])
            .unwrap_or_default();
        capture.nodes.push(Node { work, after });
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
        nodes: &[usize],
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
