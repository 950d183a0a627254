//! Streams: in-order queues that run only when somebody waits for them.
//!
//! Work is held back until a synchronisation, a query or a blocking copy forces it. A program that
//! reads a result without waiting therefore sees the old bytes, and one that misses an event sees its
//! streams run in an order it did not expect.

use std::collections::VecDeque;

use super::failure::Failure;
use super::state::{Event, LEGACY, State};
use super::work::Work;

/// Queued units a stream may hold; beyond, it runs, so that memory stays bounded.
const QUEUE_LIMIT: usize = 1 << 14;

/// A unit of work in a stream.
#[derive(Debug)]
struct Queued {
    ticket: u64,
    /// Other streams' work that must run first: stream and ticket.
    after: Vec<(u64, u64)>,
    work: Work,
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
        let stream = self
            .streams
            .get_mut(&id)
            .ok_or_else(|| Failure::handle("stream"))?;
        stream.newest = ticket;
        stream.queue.push_back(Queued {
            ticket,
            after,
            work,
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
        }
    }

    /// Runs all of one stream.
    pub(super) fn drain_stream(&mut self, id: u64) {
        if let Some(stream) = self.streams.get(&id) {
            let newest = stream.newest;
            self.drain(id, newest);
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
        match self.run_work(&queued.work) {
            Ok(busy_us) => {
                self.busy_us += busy_us;
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.clock_us += busy_us;
                }
            }
            Err((code, fault)) => self.poison(code, fault),
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
        Ok(self
            .streams
            .get(&stream)
            .is_none_or(|stream| stream.has_run(ticket)))
    }
}
