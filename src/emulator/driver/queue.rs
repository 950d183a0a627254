//! Streams: in-order queues that run only when somebody waits for them.
//!
//! Work is held back until a synchronisation, a query or a blocking copy forces it. A program that
//! reads a result without waiting therefore sees the old bytes, and one that misses an event sees its
//! streams run in an order it did not expect.

use std::collections::VecDeque;

use super::checks::{fingerprint, poison_host};
use super::failure::Failure;
use super::run::WorkFault;
use super::state::{Event, LEGACY, State};
use super::work::Work;
use crate::emulator::check::streams::{Clock, Footprint};

/// Queued units a stream may hold; beyond, it runs, so that memory stays bounded.
const QUEUE_LIMIT: usize = 1 << 14;

/// A unit of work in a stream.
#[derive(Debug)]
struct Queued {
    ticket: u64,
    /// Other streams' work that must run first: stream and ticket.
    after: Vec<(u64, u64)>,
    work: Work,
    /// For the checked mode: what the host knew to be complete when it issued the work, and a fingerprint of the
    /// page-locked memory it reads or writes.
    issued: (Clock, u64),
}

/// One stream.
#[derive(Debug)]
pub(super) struct Stream {
    /// The stream and the legacy default stream wait for each other.
    pub(super) blocking: bool,
    /// The capture the stream is part of.
    pub(super) capture: Option<u64>,
    queue: VecDeque<Queued>,
    /// Ticket of the newest work.
    pub(super) newest: u64,
    /// Modelled time at which the stream's work so far is complete.
    clock_us: f64,
}

impl Stream {
    pub(super) fn new(blocking: bool) -> Stream {
        Stream {
            blocking,
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
    fn has_run(&self, ticket: u64) -> bool {
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
            .ok_or_else(|| Failure::handle("stream"))
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
        mut after: Vec<(u64, u64)>,
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
            work,
            issued: (host, print),
        });
        if stream.queue.len() > QUEUE_LIMIT {
            self.drain(id, ticket);
            self.alive()?;
        }
        Ok(())
    }

    /// Runs a stream up to a ticket, and whatever of other streams must come before.
    pub(super) fn drain(&mut self, stream: u64, ticket: u64) {
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
            let queued = self
                .streams
                .get_mut(&id)
                .and_then(|stream| stream.queue.pop_front());
            if let Some(queued) = queued {
                self.run_queued(id, queued);
            }
        }
    }

    /// Runs everything that is queued.
    pub(super) fn drain_all(&mut self) {
        let ids: Vec<(u64, u64)> = self
            .streams
            .iter()
            .map(|(id, stream)| (*id, stream.newest))
            .collect();
        for (id, newest) in ids {
            self.drain(id, newest);
            self.host_waited(id, newest);
        }
    }

    /// Runs all of one stream.
    pub(super) fn drain_stream(&mut self, id: u64) {
        if let Some(stream) = self.streams.get(&id) {
            let newest = stream.newest;
            self.drain(id, newest);
            self.host_waited(id, newest);
        }
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

    fn run_queued(&mut self, id: u64, queued: Queued) {
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
            return;
        }
        match self.run_traced(id, &queued) {
            Ok(busy_us) => {
                self.busy_us += busy_us;
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.clock_us += busy_us;
                }
            }
            Err((code, fault)) => self.poison(code, fault),
        }
    }

    /// Runs work under the eyes of the checked mode, if there is one.
    fn run_traced(&mut self, id: u64, queued: &Queued) -> Result<f64, WorkFault> {
        let Some(checker) = &self.check else {
            return self.run_work(&queued.work);
        };
        checker.set_ticket(queued.ticket);
        self.touched = Footprint::default();
        self.check_host(&queued.work, queued.issued.1)?;
        let writes_host_memory = matches!(
            queued.work,
            Work::ToHost { pinned: true, .. } | Work::Kernel(_) | Work::Graph(_)
        );
        if writes_host_memory {
            self.check_queued_host()?;
        }
        let busy = self.run_work(&queued.work)?;
        if writes_host_memory {
            self.renew_fingerprints();
        }
        self.check_ran(id, queued.ticket, &queued.issued.0, &queued.work)?;
        Ok(busy)
    }

    /// Checks the page-locked memory of all queued copies, before work runs that may write some of it.
    fn check_queued_host(&self) -> Result<(), WorkFault> {
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
