//! The checked mode's part of the driver: copies and fills, order between streams and graph nodes, page-locked memory, leaks.

use std::sync::Arc;

use super::graphs::Program;
use super::run::Stop;
use super::state::State;
use super::work::{Copy, Place, Side, Work};
use crate::driver::CuResult;
use crate::emulator::check::streams::{Clock, Footprint};
use crate::emulator::check::{CheckKind, CheckReport, Checker};
use crate::emulator::exec::{FaultSite, describe_forbidden};

/// What a page-locked buffer that an asynchronous copy will fill holds until then.
const HOST_POISON: u8 = 0xFF;

impl State {
    /// Adds a report about something that is not an instruction of a kernel.
    ///
    /// # Errors
    /// The report as a fault, where reports are to make work fail.
    pub(super) fn check_report(
        &self,
        checker: &Checker,
        kind: CheckKind,
        place: &str,
        message: String,
    ) -> Result<(), Stop> {
        let report = CheckReport::of(kind, place, message);
        let text = format!("checked mode: {report}");
        checker.report(report);
        if checker.options().fail {
            Err(Stop::Fault(CuResult::LAUNCH_FAILED, text))
        } else {
            Ok(())
        }
    }

    /// A copy or fill named `what` reads or writes device memory.
    pub(super) fn check_access(
        &mut self,
        what: &str,
        address: u64,
        bytes: u64,
        write: bool,
    ) -> Result<(), Stop> {
        let Some(checker) = self.check.clone() else {
            return Ok(());
        };
        let range = vec![(address, address + bytes)];
        let mut footprint = Footprint::default();
        if write {
            footprint.writes = range;
        } else {
            footprint.reads = range;
        }
        self.touched.absorb(footprint);
        let found = {
            let mut memory = checker.memory();
            let Some(memory) = memory.as_mut() else {
                return Ok(());
            };
            let verb = if write { "write" } else { "read" };
            let forbidden = describe_forbidden(memory, address, bytes, checker.ticket(), verb);
            let undefined = (!write)
                .then(|| memory.undefined(address, bytes))
                .flatten()
                .map(|at| {
                    let message = format!(
                        "a read of {bytes} bytes at {address:#x} meets memory that was never written, from {at:#x} on"
                    );
                    (CheckKind::UninitialisedGlobal, message)
                });
            if write {
                memory.define(address, bytes, true);
            }
            forbidden.or(undefined)
        };
        match found {
            Some((kind, message)) => self.check_report(&checker, kind, what, message),
            None => Ok(()),
        }
    }

    /// A run of a copy's bytes, at these offsets of its sides.
    pub(super) fn check_run(
        &mut self,
        copy: &Copy,
        from: u64,
        to: u64,
        bytes: u64,
    ) -> Result<(), Stop> {
        match (&copy.from.place, &copy.to.place) {
            (Place::Device(source), Place::Device(destination)) => {
                self.check_copy(destination + to, source + from, bytes)
            }
            (Place::Device(source), _) => {
                self.check_access("copy to host", source + from, bytes, false)
            }
            (_, Place::Device(destination)) => {
                self.check_access("copy to device", destination + to, bytes, true)
            }
            _ => Ok(()),
        }
    }

    /// A copy within the device: what is undefined stays so, and is reported where it is used.
    pub(super) fn check_copy(
        &mut self,
        destination: u64,
        source: u64,
        bytes: u64,
    ) -> Result<(), Stop> {
        let Some(checker) = self.check.clone() else {
            return Ok(());
        };
        self.touched.absorb(Footprint {
            reads: vec![(source, source + bytes)],
            writes: vec![(destination, destination + bytes)],
        });
        let found = {
            let mut memory = checker.memory();
            let Some(memory) = memory.as_mut() else {
                return Ok(());
            };
            let ticket = checker.ticket();
            let found = describe_forbidden(memory, source, bytes, ticket, "read")
                .or_else(|| describe_forbidden(memory, destination, bytes, ticket, "write"));
            memory.copy(destination, source, bytes);
            found
        };
        match found {
            Some((kind, message)) => {
                self.check_report(&checker, kind, "copy within the device", message)
            }
            None => Ok(()),
        }
    }

    /// Device memory that the driver itself filled, such as a module's variables.
    pub(super) fn check_defined(&self, address: u64, bytes: u64) {
        if let Some(checker) = &self.check
            && let Some(memory) = checker.memory().as_mut()
        {
            memory.define(address, bytes, true);
        }
    }

    /// Addresses behind an allocation that are mapped only because memory comes in grains.
    pub(super) fn check_tail(&self, address: u64, bytes: u64, mapped_bytes: u64) {
        if let Some(checker) = &self.check
            && let Some(memory) = checker.memory().as_mut()
        {
            let name = format!("past the end of an allocation of {bytes} bytes at {address:#x}");
            memory.set_zone(address + bytes, mapped_bytes - bytes, name.into(), true, 0);
        }
    }

    /// A copy from or to page-locked memory is about to run: the host must have left the memory alone since the call.
    pub(super) fn check_host(&self, work: &Work, at_issue: u64) -> Result<(), Stop> {
        let Some(checker) = &self.check else {
            return Ok(());
        };
        if fingerprint(work) == at_issue {
            return Ok(());
        }
        let (place, message) = match work {
            Work::Copy(Copy {
                to:
                    Side {
                        place:
                            Place::Host {
                                address: destination,
                                ..
                            },
                        ..
                    },
                ..
            }) => (
                "copy to host",
                format!(
                    "the host wrote the page-locked buffer at {destination:#x} before a copy into it was complete"
                ),
            ),
            _ => (
                "copy to device",
                "the host changed a page-locked buffer before a copy from it was complete"
                    .to_owned(),
            ),
        };
        self.check_report(checker, CheckKind::HostRace, place, message)
    }

    /// Work of a stream has run: compares what it touched with work that nothing orders it with.
    pub(super) fn check_ran(
        &mut self,
        stream: u64,
        ticket: u64,
        host: &Clock,
        work: &Work,
    ) -> Result<(), Stop> {
        let Some(checker) = self.check.clone() else {
            return Ok(());
        };
        let footprint = std::mem::take(&mut self.touched);
        let name = name_of(work);
        let found = self
            .stream_order
            .ran(stream, ticket, host, Arc::clone(&name), footprint);
        for collision in found {
            let verb = |writes: bool| if writes { "writes" } else { "reads" };
            let message = format!(
                "{name} in stream {stream} {} {:#x}, which {} in stream {} {}, and no event orders them",
                verb(collision.writes),
                collision.address,
                collision.other,
                collision.other_stream,
                verb(collision.other_writes),
            );
            self.check_report(&checker, CheckKind::StreamRace, &name, message)?;
        }
        Ok(())
    }

    /// Runs a graph's items and compares those that no path of edges orders.
    pub(super) fn run_checked_program(
        &mut self,
        checker: &Checker,
        program: &Program,
        start: usize,
        number: u64,
    ) -> Result<f64, (usize, Stop)> {
        let count = program.items.len();
        let mut before: Vec<Vec<u64>> = Vec::with_capacity(count);
        let mut touched: Vec<Footprint> = Vec::with_capacity(count);
        let mut whole = std::mem::take(&mut self.touched);
        let mut busy = 0.0;
        for (index, item) in program.items.iter().enumerate() {
            if index >= start {
                busy += self.run_item(item, number).map_err(|stop| (index, stop))?;
            }
            let mut ancestors = vec![0u64; count.div_ceil(64)];
            for &other in &item.after {
                ancestors[other / 64] |= 1 << (other % 64);
                for (all, known) in ancestors.iter_mut().zip(&before[other]) {
                    *all |= known;
                }
            }
            let own = std::mem::take(&mut self.touched);
            for (other, theirs) in touched.iter().enumerate() {
                if ancestors[other / 64] >> (other % 64) & 1 != 0 {
                    continue;
                }
                if let Some((address, ..)) = own.collides(theirs) {
                    let (name, other) = (name_of(&item.work), name_of(&program.items[other].work));
                    let message = format!(
                        "graph nodes {name} and {other} both touch {address:#x}, one writes, and no path of edges orders them"
                    );
                    self.check_report(checker, CheckKind::StreamRace, &name, message)
                        .map_err(|stop| (index, stop))?;
                }
            }
            whole.absorb(own.clone());
            before.push(ancestors);
            touched.push(own);
        }
        self.touched = whole;
        Ok(busy)
    }

    /// The context is being destroyed with these objects in it.
    pub(super) fn check_leaks(&self, left: &crate::emulator::LiveObjects) {
        if let Some(checker) = &self.check
            && left.total() > 0
        {
            let message = format!("{left} were left in a context that was destroyed");
            checker.report(CheckReport::of(
                CheckKind::Leak,
                "cuDevicePrimaryCtxRelease",
                message,
            ));
        }
    }
}

impl CheckReport {
    /// A report about something that is not an instruction of a kernel.
    fn of(kind: CheckKind, place: &str, message: String) -> CheckReport {
        CheckReport {
            kind,
            site: FaultSite {
                kernel: place.to_owned(),
                ..FaultSite::default()
            },
            message,
            times: 1,
        }
    }
}

/// A number that tells whether the host changed page-locked memory that a copy still has to read or write (FNV-1a over
/// words); 0 for work without such memory.
pub(super) fn fingerprint(work: &Work) -> u64 {
    let Work::Copy(copy) = work else {
        return 0;
    };
    let Some((start, end)) = pinned_span(&copy.from, copy).or_else(|| pinned_span(&copy.to, copy))
    else {
        return 0;
    };
    let (address, bytes) = (start, end - start);
    // SAFETY: the call has found the range to be a page-locked buffer, which lives until streams have been drained.
    let memory = unsafe { std::slice::from_raw_parts(address as *const u8, bytes) };
    let mut words = memory.chunks_exact(8);
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut mix = |value: u64| hash = (hash ^ value).wrapping_mul(0x0000_0100_0000_01b3);
    for word in &mut words {
        mix(u64::from_le_bytes(word.try_into().unwrap_or_default()));
    }
    for &byte in words.remainder() {
        mix(byte.into());
    }
    hash.max(1)
}

/// Fills the page-locked buffer that a copy is to fill, so that whoever reads it before the copy is complete sees that it
/// was too early. Not while queued work may still read or write the buffer.
pub(super) fn poison_host<'a>(work: &Work, queued: impl Iterator<Item = &'a Work>) {
    let Work::Copy(copy) = work else {
        return;
    };
    let Some((start, end)) = pinned_span(&copy.to, copy) else {
        return;
    };
    let mut queued = queued;
    // Between the rows of a pitched copy stands what is not its to fill.
    if end - start != copy.width * copy.rows * copy.planes
        || queued.any(|work| touches_host(work, start, end))
    {
        return;
    }
    // SAFETY: the call has found the range to be a page-locked buffer of this device.
    unsafe { std::ptr::write_bytes(start as *mut u8, HOST_POISON, end - start) };
}

/// The host addresses of a side of a copy, from its first byte to the end of its last row.
fn host_span(side: &Side, copy: &Copy) -> Option<(usize, usize)> {
    let Place::Host { address, .. } = side.place else {
        return None;
    };
    let last = side.pitch * (copy.rows - 1) + side.plane * (copy.planes - 1);
    Some((address, address + last + copy.width))
}

/// As [`host_span`], where the memory is page-locked.
fn pinned_span(side: &Side, copy: &Copy) -> Option<(usize, usize)> {
    host_span(side, copy).filter(|_| matches!(side.place, Place::Host { pinned: true, .. }))
}

/// Whether work reads or writes host memory in `[start, end)`; kernels do if an address in it is among their parameters.
fn touches_host(work: &Work, start: usize, end: usize) -> bool {
    let overlaps =
        |span: Option<(usize, usize)>| span.is_some_and(|(from, to)| from < end && to > start);
    match work {
        Work::Copy(copy) => {
            overlaps(host_span(&copy.from, copy)) || overlaps(host_span(&copy.to, copy))
        }
        Work::Kernel(launch) => launch.params.windows(8).step_by(4).any(|word| {
            let address = u64::from_le_bytes(word.try_into().unwrap_or_default());
            (start as u64..end as u64).contains(&address)
        }),
        Work::Graph { program, .. } => program
            .items
            .iter()
            .any(|item| touches_host(&item.work, start, end)),
        // A host function may do anything with memory of the host.
        Work::Host(_) => true,
        _ => false,
    }
}

/// Work in a few words.
fn name_of(work: &Work) -> Arc<str> {
    match work {
        Work::Kernel(launch) => launch.code.name.as_str().into(),
        Work::Copy(copy) => match (&copy.from.place, &copy.to.place) {
            (Place::Device(_), Place::Device(_)) => "a copy within the device".into(),
            (Place::Device(_), _) => "a copy to the host".into(),
            (_, Place::Device(_)) => "a copy to the device".into(),
            _ => "a copy within the host".into(),
        },
        Work::Fill(_) => "a fill".into(),
        Work::Graph { .. } | Work::Child(_) => "a graph".into(),
        Work::Host(_) => "a host function".into(),
        Work::Value(_) => "a value in memory".into(),
        Work::Allocate { .. } => "an allocation".into(),
        Work::Free(_) => "a free".into(),
        Work::Record(_) | Work::WaitFor(_) | Work::Wait | Work::Hang => "an event".into(),
    }
}
