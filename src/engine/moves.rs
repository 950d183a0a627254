//! What is done to block tables and pages before a step: table entries that come with cached prefixes, forks and compaction, and
//! copies of pages. Captured as a graph of its own, so that a step without any pays nothing.

use std::collections::HashSet;

use crate::driver::{DevicePtr, Stream};
use crate::kernels::{PageCopyParams, StepHeader, TableUpdate, TableUpdateParams};
use crate::kv::{GroupId, KvArena, PageMove};

use super::EngineError;
use super::forward::Forward;
use super::staging::Staging;

/// Table entries of one launch; more make more launches.
const UPDATES: usize = 4096;

/// Page copies of one launch and layer group.
const COPIES: usize = 256;

/// Groups that a step header counts.
const MAX_GROUPS: usize = 8;

/// Bytes of the buffer that the launches read: counts, the pairs of each group, then table entries.
pub(super) const MOVES_BYTES: u64 = (UPDATES_AT + UPDATES * size_of::<TableUpdate>()) as u64;

const PAIRS_AT: usize = size_of::<StepHeader>();
const UPDATES_AT: usize = PAIRS_AT + MAX_GROUPS * COPIES * size_of::<[u32; 2]>();

/// Where the pages of a layer group lie.
#[derive(Clone, Copy, Debug)]
struct Pages {
    layer_stride_bytes: u64,
    layer_page_bytes: u64,
    layers: u32,
}

/// Where pages lie and where launches read what is to be done.
pub(super) struct Moves {
    /// The arena's base.
    base: DevicePtr,
    groups: Vec<Pages>,
}

/// One launch's share.
#[derive(Clone, Debug, Default)]
struct Batch {
    updates: Vec<TableUpdate>,
    /// `[group]`: source and target entries.
    pairs: Vec<Vec<[u32; 2]>>,
}

impl Moves {
    pub fn new(kv: &KvArena) -> Moves {
        let pools = kv.layout().pools.iter().zip(&kv.geometry().groups);
        let groups = pools.map(|(pool, group)| Pages {
            layer_stride_bytes: pool.layer_stride_bytes,
            layer_page_bytes: pool.layer_page_bytes,
            layers: group.layers.len() as u32,
        });
        Moves {
            base: kv.base(),
            groups: groups.collect(),
        }
    }

    /// Issues the launches of one batch, whose counts and lists are read from the moves buffer.
    pub fn issue(&self, stream: &Stream, forward: &Forward) -> Result<(), EngineError> {
        let buffer = forward.workspace.moves;
        let (tables, strides) = forward.tables();
        let params = TableUpdateParams {
            header: buffer,
            updates: buffer.add(UPDATES_AT as u64),
            tables,
            strides,
            ..TableUpdateParams::default()
        };
        // SAFETY: the tables have a column for every page of the longest sequence, and a batch names each place once.
        unsafe {
            forward
                .kernels
                .table_update(stream, UPDATES as u32, &params)
        }?;
        for (group, pages) in self.groups.iter().enumerate() {
            let params = PageCopyParams {
                pairs: buffer.add((PAIRS_AT + group * COPIES * size_of::<[u32; 2]>()) as u64),
                base: self.base,
                layer_stride: pages.layer_stride_bytes,
                num_pairs: COPIES as u32,
                num_layers: pages.layers,
                layer_page_bytes: pages.layer_page_bytes as u32,
                count: buffer.add((std::mem::offset_of!(StepHeader, num_items) + group * 4) as u64),
                ..PageCopyParams::default()
            };
            // SAFETY: pairs name pages of the arena; no page of one step is a source and a target, none is a target twice.
            unsafe { forward.kernels.page_copy(stream, &params) }?;
        }
        Ok(())
    }

    /// Hands `launch` one batch after the other, each copied to the moves buffer before it.
    pub fn run(
        &self,
        stream: &Stream,
        forward: &Forward,
        staging: &mut Staging,
        updates: &[TableUpdate],
        copies: &[PageMove],
        mut launch: impl FnMut() -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        for batch in self.batches(updates, copies) {
            // SAFETY: the moves buffer holds the largest image; launches that read it come before or after it on the stream.
            unsafe { staging.copy(stream, forward.workspace.moves, |image| batch.write(image)) }?;
            launch()?;
        }
        Ok(())
    }

    /// A batch with nothing in it, for warming up.
    pub fn write_nothing(image: &mut [u8]) -> usize {
        Batch::default().write(image)
    }

    fn batches(&self, updates: &[TableUpdate], copies: &[PageMove]) -> Vec<Batch> {
        let updates = newest(updates);
        let mut updates = updates.chunks(UPDATES);
        let by_group = (0..self.groups.len() as u32).map(|group| {
            let of_group = copies.iter().filter(|copy| copy.group == GroupId(group));
            of_group
                .map(|copy| [copy.source.0, copy.target.0])
                .collect::<Vec<_>>()
        });
        let by_group = by_group.collect::<Vec<_>>();
        let mut pairs = by_group
            .iter()
            .map(|pairs| pairs.chunks(COPIES))
            .collect::<Vec<_>>();
        let mut batches = Vec::new();
        loop {
            let batch = Batch {
                updates: updates.next().unwrap_or_default().to_vec(),
                pairs: pairs
                    .iter_mut()
                    .map(|pairs| pairs.next().unwrap_or_default().to_vec())
                    .collect(),
            };
            if batch.updates.is_empty() && batch.pairs.iter().all(Vec::is_empty) {
                return batches;
            }
            batches.push(batch);
        }
    }
}

impl Batch {
    /// Writes the batch into `image` and returns how many bytes of it are in use.
    fn write(&self, image: &mut [u8]) -> usize {
        let mut header = StepHeader {
            num_table_updates: self.updates.len() as u32,
            ..StepHeader::default()
        };
        let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
        for (group, pairs) in self.pairs.iter().enumerate() {
            header.num_items[group] = pairs.len() as u32;
            put(
                PAIRS_AT + group * COPIES * size_of::<[u32; 2]>(),
                bytemuck::cast_slice(pairs),
            );
        }
        put(UPDATES_AT, bytemuck::cast_slice(&self.updates));
        put(0, bytemuck::bytes_of(&header));
        UPDATES_AT + self.updates.len() * size_of::<TableUpdate>()
    }
}

/// The last word on each place of the tables: a page that a sequence took and that moved before the launch, a slot that changed hands.
fn newest(updates: &[TableUpdate]) -> Vec<TableUpdate> {
    let mut seen = HashSet::with_capacity(updates.len());
    let newest = updates
        .iter()
        .rev()
        .filter(|update| seen.insert((update.group, update.seq_slot, update.column)));
    newest.copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::PageEntry;

    fn update(column: u32, entry: u32) -> TableUpdate {
        TableUpdate {
            group: 0,
            seq_slot: 3,
            column,
            entry,
        }
    }

    fn moves(groups: usize) -> Moves {
        let pages = Pages {
            layer_stride_bytes: 4096,
            layer_page_bytes: 1024,
            layers: 2,
        };
        Moves {
            base: DevicePtr(0),
            groups: vec![pages; groups],
        }
    }

    #[test]
    fn the_newest_entry_of_a_place_counts() {
        let found = newest(&[update(0, 1), update(1, 2), update(0, 3)]);
        assert_eq!(found, [update(0, 3), update(1, 2)]);
    }

    #[test]
    fn what_exceeds_a_launch_goes_into_the_next() {
        let copy = |group, source| PageMove {
            group: GroupId(group),
            source: PageEntry(source),
            target: PageEntry(source + 100_000),
        };
        let updates: Vec<_> = (0..UPDATES as u32 + 5)
            .map(|column| update(column, column))
            .collect();
        let copies: Vec<_> = (0..600)
            .map(|source| copy(1, source))
            .chain([copy(0, 7)])
            .collect();
        let moves = moves(2);
        let batches = moves.batches(&updates, &copies);
        let counts: Vec<_> = batches
            .iter()
            .map(|batch| {
                (
                    batch.updates.len(),
                    batch.pairs[0].len(),
                    batch.pairs[1].len(),
                )
            })
            .collect();
        assert_eq!(
            counts,
            [
                (UPDATES, 1, COPIES),
                (5, 0, COPIES),
                (0, 0, 600 - 2 * COPIES)
            ]
        );
        assert!(moves.batches(&[], &[]).is_empty());
        let mut image = vec![0xee; MOVES_BYTES as usize];
        let used = batches[0].write(&mut image);
        assert_eq!(used as u64, MOVES_BYTES);
        let header: StepHeader = bytemuck::pod_read_unaligned(&image[..size_of::<StepHeader>()]);
        assert_eq!(
            (header.num_table_updates, &header.num_items[..3]),
            (UPDATES as u32, &[1, COPIES as u32, 0][..])
        );
    }
}
