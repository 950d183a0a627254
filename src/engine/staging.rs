//! Host images on their way to the device: two pinned buffers that take turns.
//!
//! An asynchronous copy reads its pinned source when the stream reaches it, which may be after the host has planned the next step.
//! So a buffer is filled again only when the event behind its last copy has passed: a copy in flight never sees its source
//! overwritten, whether or not the caller waits for steps.

use crate::driver::{Context, DevicePtr, DriverError, Event, PinnedBuffer, Stream};

/// A pinned buffer, and the event after which it may be filled again.
struct Buffer {
    image: PinnedBuffer,
    copied: Event,
}

/// Two pinned buffers that take turns.
pub(super) struct Staging {
    buffers: [Buffer; 2],
    next: usize,
}

impl Staging {
    /// Two buffers of `bytes` bytes.
    pub fn new(context: &Context, bytes: usize) -> Result<Staging, DriverError> {
        let buffer = || -> Result<Buffer, DriverError> {
            Ok(Buffer {
                image: PinnedBuffer::new(context, bytes)?,
                copied: Event::new(context)?,
            })
        };
        Ok(Staging {
            buffers: [buffer()?, buffer()?],
            next: 0,
        })
    }

    /// Lets `fill` write an image, which says how many bytes of it are in use, and copies those to `destination` in stream order.
    ///
    /// # Safety
    /// As many bytes at `destination` are mapped and nothing else writes them before the copy has run.
    pub unsafe fn copy(
        &mut self,
        stream: &Stream,
        destination: DevicePtr,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), DriverError> {
        let buffer = &mut self.buffers[self.next];
        buffer.copied.synchronize()?;
        let bytes = fill(buffer.image.as_mut_slice());
        // SAFETY: the destination is the caller's to vouch for; the source is not touched before `copied`.
        unsafe { stream.copy_htod_async(destination, buffer.image.as_ptr(), bytes) }?;
        buffer.copied.record(stream)?;
        self.next = 1 - self.next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{AllocationGate, Arena};
    use crate::driver::Driver;
    use crate::emulator::{self, Profile};

    /// nvbug 6293536: one pinned block table was reused for asynchronous copies; the host planned the next step into it before
    /// the copy ran, and attention read another batch's pages. The emulator runs a stream when it is waited for and no
    /// sooner, so with one buffer every copy below would carry the last image.
    #[test]
    fn c29_a_copy_in_flight_never_sees_its_staging_overwritten() {
        let ordinal = emulator::add_device(Profile::named("tiny").expect("a known profile"));
        let device = Driver::emulator().device(ordinal).expect("just added");
        let context = Context::retain_primary(&device).expect("a context");
        let stream = Stream::new(&context).expect("a stream");
        let gate = AllocationGate::new();
        let mut arena = Arena::reserve(&context, &gate, "test", 1 << 20).expect("addresses");
        arena.map_to(1 << 20).expect("memory");
        let place = |step: u64| arena.base().add(step * 256);
        let mut staging = Staging::new(&context, 256).expect("pinned memory");
        for step in 0..7 {
            let fill = |image: &mut [u8]| {
                image.fill(step as u8 + 1);
                256 - step as usize
            };
            // SAFETY: the arena is mapped, and each copy has a place of its own in it.
            unsafe { staging.copy(&stream, place(step), fill) }.expect("copies");
        }
        for step in 0..7 {
            let mut found = vec![0; 256 - step as usize];
            stream
                .copy_to_host(&mut found, place(step))
                .expect("reads back");
            assert!(
                found.iter().all(|byte| *byte == step as u8 + 1),
                "step {step} carried the image of step {}",
                found[0] - 1
            );
        }
    }
}
