//! Order between streams: which queued work may run at the same time as which other, and whether they collide.
//!
//! Work is named by its stream and ticket. A stream's clock says up to which ticket of each other stream its next work is
//! ordered; events, the legacy default stream and waits of the host raise it. Work that every clock knows is forgotten.

use super::ranges::{RangeSet, merge, overlap};
use std::collections::HashMap;
use std::sync::Arc;

/// Device memory that work read and wrote.
#[derive(Clone, Debug, Default)]
pub(crate) struct Footprint {
    pub(crate) reads: RangeSet,
    pub(crate) writes: RangeSet,
}

impl Footprint {
    pub(crate) fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }

    /// Adds what other work touched.
    pub(crate) fn absorb(&mut self, other: Footprint) {
        self.reads.extend(other.reads);
        self.writes.extend(other.writes);
        self.reads = merge(std::mem::take(&mut self.reads));
        self.writes = merge(std::mem::take(&mut self.writes));
    }

    /// An address that both touch and one writes: address, whether `self` writes it, whether `other` does.
    pub(crate) fn collides(&self, other: &Footprint) -> Option<(u64, bool, bool)> {
        overlap(&self.writes, &other.writes)
            .map(|at| (at, true, true))
            .or_else(|| overlap(&self.writes, &other.reads).map(|at| (at, true, false)))
            .or_else(|| overlap(&self.reads, &other.writes).map(|at| (at, false, true)))
    }
}

/// Tickets by stream: all work up to and including it.
pub(crate) type Clock = Arc<HashMap<u64, u64>>;

fn join(into: &mut Clock, from: &Clock) {
    if Arc::ptr_eq(into, from)
        || from
            .iter()
            .all(|(s, t)| into.get(s).is_some_and(|k| k >= t))
    {
        return;
    }
    let into = Arc::make_mut(into);
    for (&stream, &ticket) in from.iter() {
        let known = into.entry(stream).or_insert(0);
        *known = (*known).max(ticket);
    }
}

#[derive(Debug)]
struct Done {
    stream: u64,
    ticket: u64,
    name: Arc<str>,
    footprint: Footprint,
}

/// Two pieces of work that nothing orders.
#[derive(Debug)]
pub(crate) struct Collision {
    /// What the earlier one was.
    pub(crate) other: Arc<str>,
    pub(crate) other_stream: u64,
    pub(crate) address: u64,
    pub(crate) writes: bool,
    pub(crate) other_writes: bool,
}

/// Clocks and footprints are kept of this many finished units of work.
const KEPT_CLOCKS: usize = 4096;

/// The order between the streams of one device.
#[derive(Debug, Default)]
pub(crate) struct StreamOrder {
    of_stream: HashMap<u64, Clock>,
    /// Clock of finished work, itself included.
    of_work: HashMap<(u64, u64), Clock>,
    /// What streams that wrote a value into a word had done until then.
    of_word: HashMap<u64, Clock>,
    host: Clock,
    done: Vec<Done>,
}

impl StreamOrder {
    /// What the host knows to be complete: work issued now is ordered behind it.
    pub(crate) fn host(&self) -> Clock {
        Arc::clone(&self.host)
    }

    /// The host has waited for a stream's work up to a ticket.
    pub(crate) fn host_waited(&mut self, stream: u64, ticket: u64) {
        let clock = self.clock_of(stream, ticket);
        join(&mut self.host, &clock);
    }

    /// A stream's next work comes behind work of another stream.
    pub(crate) fn wait(&mut self, stream: u64, other: u64, ticket: u64) {
        let clock = self.clock_of(other, ticket);
        join(self.of_stream.entry(stream).or_default(), &clock);
    }

    /// A stream's work has written a value that others wait for, or (`write` false) has met the value it waited for: one that
    /// a stream wrote, or the host, by now.
    pub(crate) fn met(&mut self, stream: u64, ticket: u64, address: u64, write: bool) {
        if write {
            let clock = self.clock_of(stream, ticket);
            return join(self.of_word.entry(address).or_default(), &clock);
        }
        let known = self.of_stream.entry(stream).or_default();
        join(known, &self.host);
        if let Some(clock) = self.of_word.get(&address) {
            join(known, clock);
        }
    }

    fn clock_of(&self, stream: u64, ticket: u64) -> Clock {
        match self.of_work.get(&(stream, ticket)) {
            Some(clock) => Arc::clone(clock),
            None => Arc::new(HashMap::from([(stream, ticket)])),
        }
    }

    /// A stream's work has run, issued when the host knew `host`: what it collides with.
    pub(crate) fn ran(
        &mut self,
        stream: u64,
        ticket: u64,
        host: &Clock,
        name: Arc<str>,
        footprint: Footprint,
    ) -> Vec<Collision> {
        let clock = self.of_stream.entry(stream).or_default();
        join(clock, host);
        Arc::make_mut(clock).insert(stream, ticket);
        let clock = Arc::clone(clock);
        let unordered = self.done.iter().filter(|done| {
            done.stream != stream && clock.get(&done.stream).is_none_or(|&t| t < done.ticket)
        });
        let found = unordered
            .filter_map(|done| {
                let (address, writes, other_writes) = footprint.collides(&done.footprint)?;
                Some(Collision {
                    other: Arc::clone(&done.name),
                    other_stream: done.stream,
                    address,
                    writes,
                    other_writes,
                })
            })
            .collect();
        if self.of_work.len() >= KEPT_CLOCKS {
            let oldest = self.of_work.keys().map(|&(_, t)| t).min().unwrap_or(0);
            let cut = oldest + (ticket.saturating_sub(oldest)) / 2;
            self.of_work.retain(|&(_, t), _| t > cut);
        }
        self.of_work.insert((stream, ticket), clock);
        if !footprint.is_empty() {
            if self.done.len() >= KEPT_CLOCKS {
                self.done.remove(0);
            }
            self.done.push(Done {
                stream,
                ticket,
                name,
                footprint,
            });
        }
        found
    }

    /// Forgets finished work that the host knows to be complete: all that is issued later is ordered behind it. Only while
    /// nothing is queued, which may have been issued before the host knew.
    pub(crate) fn prune(&mut self) {
        let host = Arc::clone(&self.host);
        self.done
            .retain(|done| host.get(&done.stream).is_none_or(|&t| t < done.ticket));
        self.of_work
            .retain(|&(stream, ticket), _| host.get(&stream).is_none_or(|&t| t <= ticket));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writes(start: u64, end: u64) -> Footprint {
        Footprint {
            reads: Vec::new(),
            writes: vec![(start, end)],
        }
    }

    fn run(order: &mut StreamOrder, host: &Clock, stream: u64, ticket: u64) -> usize {
        order
            .ran(stream, ticket, host, "work".into(), writes(0, 8))
            .len()
    }

    #[test]
    fn two_streams_collide_unless_an_event_or_the_host_orders_them() {
        let mut order = StreamOrder::default();
        let host = order.host();
        assert_eq!(run(&mut order, &host, 1, 1), 0);
        assert_eq!(run(&mut order, &host, 2, 2), 1, "nothing orders them");

        let mut order = StreamOrder::default();
        assert_eq!(run(&mut order, &host, 1, 1), 0);
        order.wait(2, 1, 1);
        assert_eq!(run(&mut order, &host, 2, 2), 0, "an event");
        order.wait(3, 2, 2);
        assert_eq!(run(&mut order, &host, 3, 3), 0, "an event behind an event");
        assert_eq!(run(&mut order, &host, 1, 4), 2, "behind neither");

        let mut order = StreamOrder::default();
        assert_eq!(run(&mut order, &host, 1, 1), 0);
        order.host_waited(1, 1);
        let later = order.host();
        assert_eq!(run(&mut order, &later, 2, 2), 0, "issued after the wait");

        for same in [true, false] {
            let mut order = StreamOrder::default();
            assert_eq!(run(&mut order, &host, 1, 1), 0);
            order.met(1, 1, 64, true);
            order.met(2, 2, if same { 64 } else { 72 }, false);
            let races = usize::from(!same);
            assert_eq!(run(&mut order, &host, 2, 3), races, "a value in memory");
        }
    }
}
