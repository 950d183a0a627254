//! Copies, fills and values in memory: checked when they are issued, as the driver does, and again when they run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::failure::Failure;
use super::registry;
use super::run::Stop;
use super::state::State;
use super::work::{Copy, Fill, HostFunction, MemoryValue, Place, Side, ValueOp, Work};
use crate::driver::CuResult;
use crate::emulator::exec::DeviceMemory;
use crate::emulator::mem::Space;

/// Memory as a caller names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Device(u64),
    Host(usize),
    /// Whatever the address belongs to.
    Unified(u64),
}

/// One side of a copy as a caller names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub(super) target: Target,
    pub(super) pitch: usize,
    pub(super) plane: usize,
}

/// Bytes of a row, rows of a plane, planes.
pub(super) type Extent = [usize; 3];

impl Region {
    /// Bytes without gaps.
    pub(super) fn linear(target: Target, bytes: usize) -> Region {
        Region {
            target,
            pitch: bytes,
            plane: bytes,
        }
    }
}

impl Side {
    /// Offset of a row's first byte from the side's begin.
    fn offset(&self, row: usize, plane: usize) -> usize {
        row * self.pitch + plane * self.plane
    }

    /// True where rows and planes follow each other without gaps.
    fn is_packed(&self, [width, rows, planes]: Extent) -> bool {
        (rows == 1 || self.pitch == width) && (planes == 1 || self.plane == width * rows)
    }
}

impl Copy {
    fn extent(&self) -> Extent {
        [self.width, self.rows, self.planes]
    }

    fn bytes(&self) -> usize {
        self.width * self.rows * self.planes
    }

    /// Runs of bytes that are contiguous on both sides: offsets of source and destination, and length.
    pub(super) fn runs(&self) -> Box<dyn Iterator<Item = (usize, usize, usize)> + '_> {
        if self.from.is_packed(self.extent()) && self.to.is_packed(self.extent()) {
            return Box::new(std::iter::once((0, 0, self.bytes())));
        }
        let rows = (0..self.planes).flat_map(|plane| (0..self.rows).map(move |row| (row, plane)));
        Box::new(rows.map(|(row, plane)| {
            let from = self.from.offset(row, plane);
            (from, self.to.offset(row, plane), self.width)
        }))
    }

    /// Whether the copy reads and writes memory of the host.
    pub(super) fn touches_host(&self) -> (bool, bool) {
        let is_host = |side: &Side| !matches!(side.place, Place::Device(_));
        (is_host(&self.from), is_host(&self.to))
    }

    /// True where the host side is memory that nobody locked.
    fn is_pageable(side: &Side) -> bool {
        matches!(side.place, Place::Host { pinned: false, .. })
    }
}

impl HostFunction {
    /// Calls the function.
    pub(super) fn run(self, data: usize) {
        match self {
            // SAFETY: the caller of the C function passed a function that takes its data.
            HostFunction::Plain(function) => unsafe { function(data as *mut _) },
            // SAFETY: as above.
            HostFunction::Callback(function, stream) => unsafe {
                function(stream, CuResult::SUCCESS, data as *mut _);
            },
        }
    }
}

/// The space that holds a device address: this device's, or another's.
fn space_of(own: &Arc<Space>, address: u64) -> Arc<Space> {
    if own.contains(address) {
        return Arc::clone(own);
    }
    registry::device_of_address(address)
        .and_then(|device| device.space.get().cloned())
        .unwrap_or_else(|| Arc::clone(own))
}

impl State {
    /// What an address belongs to.
    fn place(&mut self, target: Target, bytes: usize) -> Result<Place, Failure> {
        let host = |state: &mut State, address: usize| {
            let pinned = state
                .memory()?
                .space()
                .is_pinned(address as u64, bytes as u64);
            Ok(Place::Host { address, pinned })
        };
        match target {
            Target::Device(address) | Target::Unified(address)
                if registry::device_of_address(address).is_some() =>
            {
                Ok(Place::Device(address))
            }
            // Page-locked memory has a device address, which is its host address.
            Target::Device(address) => Ok(Place::Device(address)),
            Target::Host(address) if registry::device_of_address(address as u64).is_some() => {
                Ok(Place::Device(address as u64))
            }
            Target::Host(0) | Target::Unified(0) => Err(Failure::null("the host memory")),
            Target::Host(address) => host(self, address),
            Target::Unified(address) => host(self, address as usize),
        }
    }

    /// Checks a device range at the call, as the driver does, with the code it uses.
    fn device_range(&mut self, address: u64, bytes: usize, write: bool) -> Result<(), Failure> {
        let space = space_of(self.memory()?.space(), address);
        space.check(address, bytes as u64, write).map_err(|reason| {
            Failure::invalid(format!(
                "{bytes} bytes at {address:#x} are not accessible device memory: {reason}"
            ))
        })
    }

    /// A copy, checked.
    pub(super) fn new_copy(
        &mut self,
        from: Region,
        to: Region,
        extent: Extent,
    ) -> Result<Option<Copy>, Failure> {
        let [width, rows, planes] = extent;
        let bytes = width
            .checked_mul(rows)
            .and_then(|plane| plane.checked_mul(planes))
            .ok_or_else(|| Failure::invalid("the copy's bytes wrap around"))?;
        if bytes == 0 {
            return Ok(None);
        }
        for region in [from, to] {
            let gaps = [(rows, region.pitch, width), (planes, region.plane, width)];
            if let Some((_, pitch, _)) = gaps
                .iter()
                .find(|(count, pitch, least)| *count > 1 && pitch < least)
            {
                return Err(Failure::invalid(format!(
                    "a pitch of {pitch} bytes is less than the row's {width}"
                )));
            }
        }
        let side = |state: &mut State, region: Region| -> Result<Side, Failure> {
            let span = region.pitch * (rows - 1) + region.plane * (planes - 1) + width;
            Ok(Side {
                place: state.place(region.target, span)?,
                pitch: region.pitch,
                plane: region.plane,
            })
        };
        let copy = Copy {
            from: side(self, from)?,
            to: side(self, to)?,
            width,
            rows,
            planes,
        };
        for (offset_from, offset_to, len) in copy.runs() {
            if let Place::Device(address) = copy.from.place {
                self.device_range(address + offset_from as u64, len, false)?;
            }
            if let Place::Device(address) = copy.to.place {
                self.device_range(address + offset_to as u64, len, true)?;
            }
        }
        Ok(Some(copy))
    }

    /// Issues a copy into a stream. What it reads from pageable memory has been read; true where what it writes
    /// there must be written when the call returns.
    pub(super) fn copy(
        &mut self,
        stream: u64,
        from: Region,
        to: Region,
        extent: Extent,
    ) -> Result<bool, Failure> {
        let Some(mut copy) = self.new_copy(from, to, extent)? else {
            return Ok(false);
        };
        let captures = self.stream(stream)?.capture.is_some();
        if !captures && Copy::is_pageable(&copy.from) {
            copy.from = snapshot(&copy);
        }
        let pageable = Copy::is_pageable(&copy.to);
        self.issue(stream, Work::Copy(copy))?;
        Ok(pageable && !captures)
    }

    /// Runs a copy.
    pub(super) fn run_copy(&mut self, copy: &Copy) -> Result<f64, Stop> {
        let space = self.space()?;
        for (from, to, len) in copy.runs() {
            let source = begin(&space, &copy.from.place, from, len, false, "copy's source")?;
            let target = begin(&space, &copy.to.place, to, len, true, "copy's destination")?;
            self.check_run(copy, from as u64, to as u64, len as u64)?;
            // SAFETY: device ranges were checked to be mapped with the rights needed; host memory is what
            // the caller of the driver call keeps valid until the copy is complete, or a snapshot of it.
            unsafe { std::ptr::copy(source as *const u8, target as *mut u8, len) };
        }
        let bytes = copy.bytes() as f64;
        Ok(match copy.touches_host() {
            (false, false) => 2.0 * bytes / self.profile.copy_bytes_per_second * 1e6,
            _ => bytes / self.profile.link_bytes_per_second * 1e6,
        })
    }

    /// Issues a fill into a stream.
    pub(super) fn fill(&mut self, stream: u64, fill: Fill) -> Result<(), Failure> {
        match self.checked_fill(fill)? {
            Some(fill) => self.issue(stream, Work::Fill(fill)),
            None => Ok(()),
        }
    }

    /// A fill, checked; nothing where it fills nothing.
    pub(super) fn checked_fill(&mut self, fill: Fill) -> Result<Option<Fill>, Failure> {
        if fill.count == 0 || fill.rows == 0 {
            return Ok(None);
        }
        let element = fill.element_bytes as u64;
        if !matches!(element, 1 | 2 | 4) {
            return Err(Failure::invalid(format!(
                "elements have 1, 2 or 4 bytes, not {element}"
            )));
        }
        let aligned = fill.destination.is_multiple_of(element)
            && (fill.rows == 1 || (fill.pitch as u64).is_multiple_of(element));
        if !aligned {
            return Err(Failure::invalid(format!(
                "{:#x} with a pitch of {} bytes is not a multiple of {element}",
                fill.destination, fill.pitch
            )));
        }
        let width = fill
            .count
            .checked_mul(fill.element_bytes)
            .ok_or_else(|| Failure::invalid("the range wraps around"))?;
        if fill.rows > 1 && fill.pitch < width {
            return Err(Failure::invalid(format!(
                "a pitch of {} bytes is less than the row's {width}",
                fill.pitch
            )));
        }
        for row in 0..fill.rows {
            self.device_range(fill.destination + (row * fill.pitch) as u64, width, true)?;
        }
        Ok(Some(fill))
    }

    /// Runs a fill.
    pub(super) fn run_fill(&mut self, fill: &Fill) -> Result<f64, Stop> {
        let space = self.space()?;
        let width = fill.count * fill.element_bytes;
        for row in 0..fill.rows {
            let place = Place::Device(fill.destination + (row * fill.pitch) as u64);
            let first = begin(&space, &place, 0, width, true, "fill")?;
            if let Place::Device(address) = place {
                self.check_access("fill", address, width as u64, true)?;
            }
            match fill.element_bytes {
                // SAFETY: the range was checked to be mapped and writable.
                1 => unsafe { (first as *mut u8).write_bytes(fill.value as u8, width) },
                // SAFETY: as above, and the call refused addresses that are not multiples of the element.
                2 => unsafe { write_all(first as *mut u16, fill.value as u16, fill.count) },
                // SAFETY: as above.
                _ => unsafe { write_all(first as *mut u32, fill.value, fill.count) },
            }
        }
        Ok((width * fill.rows) as f64 / self.profile.copy_bytes_per_second * 1e6)
    }

    /// A value in memory that a stream writes or waits for, checked.
    pub(super) fn checked_value(&mut self, value: MemoryValue) -> Result<MemoryValue, Failure> {
        if !value.address.is_multiple_of(value.bytes as u64) {
            return Err(Failure::invalid(format!(
                "{:#x} is not a multiple of {}",
                value.address, value.bytes
            )));
        }
        let write = matches!(value.op, ValueOp::Write);
        self.device_range(value.address, value.bytes, write)?;
        Ok(value)
    }

    /// Writes a value, or looks whether the one waited for is there.
    pub(super) fn run_value(&mut self, value: &MemoryValue) -> Result<f64, Stop> {
        let space = self.space()?;
        let write = matches!(value.op, ValueOp::Write);
        let place = Place::Device(value.address);
        let at = begin(&space, &place, 0, value.bytes, write, "value in memory")?;
        // SAFETY: the word was checked to be accessible, and its address to be a multiple of its size.
        let word32 = || unsafe { &*(at as *const AtomicU32) };
        // SAFETY: as above.
        let word64 = || unsafe { &*(at as *const AtomicU64) };
        let wide = value.bytes == 8;
        if write {
            if wide {
                word64().store(value.value, Ordering::SeqCst);
            } else {
                word32().store(value.value as u32, Ordering::SeqCst);
            }
            self.check_defined(value.address, value.bytes as u64);
            return Ok(0.0);
        }
        let (found, mask) = if wide {
            (word64().load(Ordering::SeqCst), u64::MAX)
        } else {
            (
                u64::from(word32().load(Ordering::SeqCst)),
                u64::from(u32::MAX),
            )
        };
        let wanted = value.value & mask;
        let difference = found.wrapping_sub(wanted) & mask;
        let there = match value.op {
            ValueOp::Write => true,
            ValueOp::WaitGreaterEqual => difference <= mask >> 1,
            ValueOp::WaitEqual => found == wanted,
            ValueOp::WaitAnd => found & wanted != 0,
            ValueOp::WaitNor => !(found | wanted) & mask != 0,
        };
        if there { Ok(0.0) } else { Err(Stop::NotYet) }
    }
}

/// # Safety
/// `first` must lead to `count` writable elements.
unsafe fn write_all<T: std::marker::Copy>(first: *mut T, value: T, count: usize) {
    for index in 0..count {
        // SAFETY: the caller answers for `count` elements.
        unsafe { first.add(index).write(value) };
    }
}

/// Packs what a copy reads from pageable memory.
fn snapshot(copy: &Copy) -> Side {
    let mut bytes: Vec<u8> = Vec::with_capacity(copy.bytes());
    if let Place::Host { address, .. } = copy.from.place {
        for plane in 0..copy.planes {
            for row in 0..copy.rows {
                let at = (address + copy.from.offset(row, plane)) as *const u8;
                // SAFETY: the caller of the C function passes rows of readable host memory.
                bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(at, copy.width) });
            }
        }
    }
    Side {
        place: Place::Snapshot(Arc::from(bytes)),
        pitch: copy.width,
        plane: copy.width * copy.rows,
    }
}

/// The host address of a range, checked when the work runs: what was there at the call may be gone.
fn begin(
    space: &Arc<Space>,
    place: &Place,
    offset: usize,
    bytes: usize,
    write: bool,
    what: &str,
) -> Result<usize, Stop> {
    match place {
        Place::Snapshot(copy) => Ok(copy.as_ptr() as usize + offset),
        Place::Host {
            address,
            pinned: false,
        } => Ok(address + offset),
        Place::Host {
            address,
            pinned: true,
        } => {
            let at = address + offset;
            if space.is_pinned(at as u64, bytes as u64) {
                return Ok(at);
            }
            Err(Stop::Fault(
                CuResult::ILLEGAL_ADDRESS,
                format!(
                    "copy: {bytes} bytes at {at:#x} were page-locked host memory, which was freed"
                ),
            ))
        }
        Place::Device(address) => {
            let at = address + offset as u64;
            match space_of(space, at).check(at, bytes as u64, write) {
                Ok(()) => Ok(at as usize),
                Err(reason) => Err(Stop::Fault(
                    CuResult::ILLEGAL_ADDRESS,
                    format!("{what}: {bytes} bytes at {at:#x} cannot be accessed: {reason}"),
                )),
            }
        }
    }
}
