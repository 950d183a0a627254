//! Streams: in-order queues that run only when somebody waits for them.
//!
//! Work is held back until a synchronisation, a query or a blocking copy forces it. A program that
//! reads a result without waiting therefore sees the old bytes, and one that misses an event sees its
//! streams run in an order it did not expect.

use std::collections::VecDeque;

use super::checks::{fingerprint, poison_host};
use super::failure::Failure;
use super::registry;
use super::run::Stop;
use super::state::{Event, LEGACY, State};
use super::work::{Place, ValueOp, Work};
use crate::emulator::check::streams::{Clock, Footprint};

/// Queued units a stream may hold; beyond, it runs, so that memory stays bounded.
const QUEUE_LIMIT: usize = 1 << 14;

/// A unit of work in a stream.
#[derive(Debug)]
struct Queued {
    ticket: u64,
    /// Other streams' work that must run first: stream and ticket.
    after: Vec<(u64, u64)>,
    /// Other devices' events that must be complete first: ordinal, stream and ticket.
    foreign: Vec<Foreign>,
    work: Work,
    /// For the checked mode: what the host knew to be complete when it issued the work, and a fingerprint of the
    /// page-locked memory it reads or writes.
    issued: (Clock, u64),
}

/// Work of another device's stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Foreign {
    pub(super) ordinal: u32,
    pub(super) stream: u64,
    pub(super) ticket: u64,
}

/// True where work of another device's stream has run; runs it first where that device is not busy.
fn has_run_elsewhere(foreign: Foreign) -> bool {
    let Some(device) = registry::device(foreign.ordinal) else {
        return true;
    };
    // Two devices that wait for each other must not hold each other's lock: the wait is tried again.
    let Some(mut state) = device.try_lock() else {
        return false;
    };
    state.drain(foreign.stream, foreign.ticket);
    state
        .streams
        .get(&foreign.stream)
        .is_none_or(|stream| stream.has_run(foreign.ticket))
}

/// One stream.
#[derive(Debug)]
pub(super) struct Stream {
    /// The stream and the legacy default stream wait for each other.
    pub(super) blocking: bool,
    pub(super) priority: i32,
    /// The program has destroyed it: it goes when its work has run.
    pub(super) destroyed: bool,
    /// The capture the stream is part of.
    pub(super) capture: Option<u64>,
    queue: VecDeque<Queued>,
    /// Ticket of the newest work.
    pub(super) newest: u64,
    /// Modelled time at which the stream's work so far is complete.
    clock_us: f64,
}

impl Stream {
    pub(super) fn new(blocking: bool, priority: i32) -> Stream {
        Stream {
            blocking,
            priority,
            destroyed: false,
            capture: None,
            queue: VecDeque::new(),
            newest: 0,
            clock_us: 0.0,
        }
    }

    /// Forgets what is queued.
    pub(super) fn discard(&mut self) {
        self.queue.clear();
    }

    /// True where the work of this ticket, and all before it, has run.
    pub(super) fn has_run(&self, ticket: u64) -> bool {
        self.queue
            .front()
            .is_none_or(|queued| queued.ticket > ticket)
    }
}

impl State {
    /// The stream of this serial.
    pub(super) fn stream(&self, id: u64) -> Result<&Stream, Failure> {
        self.streams
            .get(&id)
            .filter(|stream| !stream.destroyed)
            .ok_or_else(|| Failure::handle("stream"))
    }

    /// Destroys a stream; the work that it holds still runs.
    pub(super) fn destroy_stream(&mut self, id: u64) {
        self.drain_stream(id);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.destroyed = true;
        }
        self.forget_destroyed();
    }

    /// Forgets destroyed streams whose work has run.
    fn forget_destroyed(&mut self) {
        self.streams
            .retain(|_, stream| !stream.destroyed || !stream.queue.is_empty());
    }

    /// Puts work into a stream, or into the capture that the stream is part of.
    pub(super) fn issue(&mut self, stream: u64, work: Work) -> Result<(), Failure> {
        if self.stream(stream)?.capture.is_some() {
            return self.capture_work(stream, work);
        }
        self.enqueue(stream, work, Vec::new())
    }

    /// Puts work into a stream behind other streams' work.
    pub(super) fn enqueue(
        &mut self,
        id: u64,
        work: Work,
        after: Vec<(u64, u64)>,
    ) -> Result<(), Failure> {
        self.enqueue_behind(id, work, after, Vec::new())
    }

    /// Puts work into a stream behind work of other streams, and of other devices' streams.
    pub(super) fn enqueue_behind(
        &mut self,
        id: u64,
        work: Work,
        mut after: Vec<(u64, u64)>,
        foreign: Vec<Foreign>,
    ) -> Result<(), Failure> {
        if id == LEGACY {
            self.refuse_implicit_capture()?;
            let blocking = self
                .streams
                .iter()
                .filter(|(other, stream)| **other != LEGACY && stream.blocking);
            after.extend(blocking.map(|(other, stream)| (*other, stream.newest)));
        } else if self.stream(id)?.blocking
            && let Some(legacy) = self.streams.get(&LEGACY)
        {
            after.push((LEGACY, legacy.newest));
        }
        let ticket = self.serial();
        let mut print = 0;
        if self.check.is_some() {
            let queued = self.streams.values().flat_map(|stream| &stream.queue);
            poison_host(&work, queued.map(|queued| &queued.work));
            print = fingerprint(&work);
        }
        let host = self.stream_order.host();
        let stream = self
            .streams
            .get_mut(&id)
            .ok_or_else(|| Failure::handle("stream"))?;
        stream.newest = ticket;
        stream.queue.push_back(Queued {
            ticket,
            after,
            foreign,
            work,
            issued: (host, print),
        });
        if stream.queue.len() > QUEUE_LIMIT {
            self.drain(id, ticket);
            self.alive()?;
        }
        Ok(())
    }

    /// Runs a stream up to a ticket, and whatever of other streams must come before. False where it
    /// cannot: something waits for a value or another device, or hangs.
    pub(super) fn drain(&mut self, stream: u64, ticket: u64) -> bool {
        let mut wanted = vec![(stream, ticket)];
        while let Some(&(id, ticket)) = wanted.last() {
            let Some(front) = self.streams.get_mut(&id).and_then(|stream| {
                stream
                    .queue
                    .front_mut()
                    .filter(|queued| queued.ticket <= ticket)
            }) else {
                wanted.pop();
                continue;
            };
            if let Some(&(other, before)) = front.after.last() {
                if self
                    .streams
                    .get(&other)
                    .is_none_or(|stream| stream.has_run(before))
                {
                    if self.check.is_some() {
                        self.stream_order.wait(id, other, before);
                    }
                    self.arrive(id, other);
                } else {
                    wanted.push((other, before));
                }
                continue;
            }
            if let Some(&foreign) = front.foreign.last() {
                if !has_run_elsewhere(foreign) {
                    return false;
                }
                front.foreign.pop();
                continue;
            }
            let queued = self
                .streams
                .get_mut(&id)
                .and_then(|stream| stream.queue.pop_front());
            if let Some(queued) = queued
                && !self.run_queued(id, queued)
            {
                return false;
            }
        }
        true
    }

    /// Runs everything that is queued and can run; false where something cannot.
    pub(super) fn drain_all(&mut self) -> bool {
        let mut ids: Vec<(u64, u64)> = self
            .streams
            .iter()
            .map(|(id, stream)| (*id, stream.newest))
            .collect();
        ids.sort_unstable();
        if let Some(mut shuffle) = self.check.as_ref().and_then(|check| check.streams()) {
            shuffle.order(&mut ids);
        }
        let all = ids.into_iter().fold(true, |all, (id, newest)| {
            self.drain_waited(id, newest) && all
        });
        self.forget_destroyed();
        all
    }

    /// Runs all of one stream; false where something cannot run.
    pub(super) fn drain_stream(&mut self, id: u64) -> bool {
        match self.streams.get(&id) {
            Some(stream) => {
                let newest = stream.newest;
                self.drain_waited(id, newest)
            }
            None => true,
        }
    }

    /// Runs a stream up to a ticket for a host that waits for it.
    fn drain_waited(&mut self, id: u64, ticket: u64) -> bool {
        for (other, ahead) in self.ahead(id) {
            self.drain(other, ahead);
        }
        let done = self.drain(id, ticket);
        if done {
            self.host_waited(id, ticket);
        }
        done
    }

    /// Other streams' work that a shuffled device runs before that of the stream that somebody waits for: stream and ticket.
    fn ahead(&self, id: u64) -> Vec<(u64, u64)> {
        let Some(mut shuffle) = self.check.as_ref().and_then(|check| check.streams()) else {
            return Vec::new();
        };
        let mut others: Vec<u64> = self
            .streams
            .keys()
            .copied()
            .filter(|other| *other != id)
            .collect();
        others.sort_unstable();
        shuffle.order(&mut others);
        let mut pick = |other: u64| {
            let queue = &self.streams.get(&other)?.queue;
            let count = shuffle.below(queue.len() as u64 + 1) as usize;
            Some((other, queue.get(count.checked_sub(1)?)?.ticket))
        };
        others.into_iter().filter_map(&mut pick).collect()
    }

    /// The dependency of `id`'s front on `other` is met: its modelled time cannot be earlier.
    fn arrive(&mut self, id: u64, other: u64) {
        let time = self.streams.get(&other).map_or(0.0, |s| s.clock_us);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.clock_us = stream.clock_us.max(time);
            if let Some(front) = stream.queue.front_mut() {
                front.after.pop();
            }
        }
    }

    /// Runs a unit of work; one that cannot run yet goes back to the head of its stream, and gives false.
    fn run_queued(&mut self, id: u64, queued: Queued) -> bool {
        if let Work::Record(event) = queued.work {
            // Never collides; it carries the stream's order to whoever waits for the event.
            let _ = self.check_ran(id, queued.ticket, &queued.issued.0, &queued.work);
            let now = self.streams.get(&id).map_or(0.0, |s| s.clock_us);
            if let Some(Event::Recorded {
                ticket, time_us, ..
            }) = self.events.get_mut(&event)
                && *ticket == queued.ticket
            {
                *time_us = Some(now);
            }
            return true;
        }
        let outer = std::mem::replace(&mut self.running, queued.ticket);
        let outcome = self.run_traced(id, &queued);
        self.running = outer;
        match outcome {
            Ok(busy_us) => {
                self.busy_us += busy_us;
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.clock_us += busy_us;
                }
                true
            }
            Err(Stop::Fault(code, fault)) => {
                self.poison(code, fault);
                true
            }
            Err(stop) => {
                let work = match (stop, queued.work) {
                    (Stop::Hangs, _) => Work::Hang,
                    (
                        Stop::NotYetAt(start),
                        Work::Graph {
                            program, number, ..
                        },
                    ) => Work::Graph {
                        program,
                        start,
                        number,
                    },
                    (_, work) => work,
                };
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.queue.push_front(Queued { work, ..queued });
                }
                false
            }
        }
    }

    /// Runs work under the eyes of the checked mode, if there is one.
    fn run_traced(&mut self, id: u64, queued: &Queued) -> Result<f64, Stop> {
        let Some(checker) = &self.check else {
            return self.run_work(&queued.work);
        };
        checker.set_ticket(queued.ticket);
        self.touched = Footprint::default();
        self.check_host(&queued.work, queued.issued.1)?;
        let writes_host_memory = match &queued.work {
            Work::Copy(copy) => matches!(copy.to.place, Place::Host { pinned: true, .. }),
            Work::Kernel(_) | Work::Graph { .. } => true,
            _ => false,
        };
        if writes_host_memory {
            self.check_queued_host()?;
        }
        let busy = self.run_work(&queued.work)?;
        if writes_host_memory {
            self.renew_fingerprints();
        }
        self.check_ran(id, queued.ticket, &queued.issued.0, &queued.work)?;
        if let Work::Value(value) = &queued.work {
            let write = matches!(value.op, ValueOp::Write);
            self.stream_order
                .met(id, queued.ticket, value.address, write);
        }
        Ok(busy)
    }

    /// Checks the page-locked memory of all queued copies, before work runs that may write some of it.
    fn check_queued_host(&self) -> Result<(), Stop> {
        let queued = self.streams.values().flat_map(|stream| &stream.queue);
        queued
            .filter(|queued| queued.issued.1 != 0)
            .try_for_each(|queued| self.check_host(&queued.work, queued.issued.1))
    }

    /// Work has written host memory that queued copies may be about to read or write.
    fn renew_fingerprints(&mut self) {
        let queues = self
            .streams
            .values_mut()
            .flat_map(|stream| &mut stream.queue);
        for queued in queues.filter(|queued| queued.issued.1 != 0) {
            queued.issued.1 = fingerprint(&queued.work);
        }
    }

    /// The host has waited for a stream's work up to a ticket.
    fn host_waited(&mut self, stream: u64, ticket: u64) {
        if self.check.is_some() {
            self.stream_order.host_waited(stream, ticket);
            if self.streams.values().all(|stream| stream.queue.is_empty()) {
                self.stream_order.prune();
            }
        }
    }

    /// Records an event from inside a graph: it is complete.
    pub(super) fn record_from_graph(&mut self, event: u64) {
        let time_us = Some(self.busy_us);
        if let Some(event) = self.events.get_mut(&event) {
            *event = Event::Recorded {
                stream: LEGACY,
                ticket: 0,
                time_us,
            };
        }
    }

    /// True where the event's work has run; runs it first when `force`.
    pub(super) fn event_complete(&mut self, event: u64, force: bool) -> Result<bool, Failure> {
        let event = self
            .events
            .get(&event)
            .ok_or_else(|| Failure::handle("event"))?;
        let &Event::Recorded { stream, ticket, .. } = event else {
            return Ok(true);
        };
        if force {
            self.drain(stream, ticket);
            self.alive()?;
        }
        let complete = self
            .streams
            .get(&stream)
            .is_none_or(|stream| stream.has_run(ticket));
        if complete {
            self.host_waited(stream, ticket);
        }
        Ok(complete)
    }
}
