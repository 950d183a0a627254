//! Weights from the memory-mapped checkpoint to the device.

use crate::driver::{Context, DevicePtr, DriverError, Event, PinnedBuffer, Stream};
use crate::model::{Checkpoint, WeightLayout};

/// Bytes of one staging buffer: large enough to reach the bus's rate, small enough not to matter on the host.
const STAGING_BYTES: u64 = 16 << 20;

/// One pinned buffer and the event after which it may be filled again.
struct Staging {
    buffer: PinnedBuffer,
    copied: Event,
}

/// Copies every piece of `layout` to `base` + its offset; the gaps between pieces become zero.
///
/// Two pinned buffers take turns: while one is read by the device, the other is filled from the map, which is also when the
/// checkpoint's pages come in from disk.
///
/// # Errors
/// A driver call fails.
pub(super) fn upload_weights(
    context: &Context,
    stream: &Stream,
    base: DevicePtr,
    layout: &WeightLayout,
    checkpoint: &Checkpoint,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), DriverError> {
    let total_bytes = layout.total_bytes;
    let staging_bytes = STAGING_BYTES.min(total_bytes.max(1));
    let mut staging = Vec::new();
    for _ in 0..2 {
        let buffer = PinnedBuffer::new(context, staging_bytes as usize)?;
        staging.push(Staging {
            buffer,
            copied: Event::new(context)?,
        });
    }

    let uploaded = fill_and_copy(stream, base, layout, checkpoint, &mut staging, progress);
    // Whatever happened, the device must have let go of the pinned buffers before they are freed.
    let drained = stream.synchronize();
    uploaded.and(drained)
}

fn fill_and_copy(
    stream: &Stream,
    base: DevicePtr,
    layout: &WeightLayout,
    checkpoint: &Checkpoint,
    staging: &mut [Staging],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), DriverError> {
    let total_bytes = layout.total_bytes;
    let staging_bytes = staging[0].buffer.as_slice().len() as u64;
    let mut next_piece = 0;
    let mut begin = 0;
    let mut turn = 0;
    let turns = staging.len();
    while begin < total_bytes {
        let end = total_bytes.min(begin + staging_bytes);
        let Staging { buffer, copied } = &mut staging[turn % turns];
        if turn >= turns {
            copied.synchronize()?;
        }
        let window = &mut buffer.as_mut_slice()[..(end - begin) as usize];
        window.fill(0);
        // Pieces lie in the order of their destinations; the last one may reach into the next window.
        for (index, piece) in layout.pieces.iter().enumerate().skip(next_piece) {
            let source = checkpoint.bytes(&piece.tensor);
            let (piece_begin, piece_end) =
                (piece.offset_bytes, piece.offset_bytes + source.len() as u64);
            if piece_begin >= end {
                break;
            }
            let (from, to) = (piece_begin.max(begin), piece_end.min(end));
            let source = &source[(from - piece_begin) as usize..(to - piece_begin) as usize];
            window[(from - begin) as usize..(to - begin) as usize].copy_from_slice(source);
            if piece_end <= end {
                next_piece = index + 1;
            }
        }
        // SAFETY: the destination is inside the mapped weights arena, and the pinned source is not touched before `copied`.
        unsafe { stream.copy_htod_async(base.add(begin), window.as_ptr(), window.len()) }?;
        copied.record(stream)?;
        progress(end, total_bytes);
        begin = end;
        turn += 1;
    }
    Ok(())
}
