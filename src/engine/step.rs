//! The step buffer: everything a step tells the device, in one copy.
//!
//! A graph holds the addresses of its bucket's regions, so the layout is a constant of the bucket. What varies from step to step
//! comes in order of certainty, table updates last: only the part in use is copied.

use bytemuck::Pod;

use crate::driver::DevicePtr;
use crate::kernels::{DecodeItem, DecodeRow, Phase, PrefillItem, StepHeader, TableUpdate};

/// Alignment of every region of the step buffer.
const REGION_ALIGNMENT_BYTES: u64 = 16;

/// A graph's size: its phase and the rows it has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Bucket {
    pub phase: Phase,
    pub rows: u32,
}

/// Offsets of a bucket's regions from the step buffer's base, bytes.
#[derive(Clone, Debug)]
pub(super) struct StepLayout {
    pub bucket: Bucket,
    /// Rows whose logits a step of this bucket may ask for.
    pub output_rows: u32,
    token_ids: u64,
    positions: u64,
    gather_rows: u64,
    /// One region a layer group.
    slots: Vec<u64>,
    items: Vec<u64>,
    /// Attention work items a layer group may have.
    pub item_capacity: Vec<u32>,
    /// One region a layer group; decode only.
    decode_rows: Vec<u64>,
    updates: u64,
    pub update_capacity: u32,
    pub total_bytes: u64,
}

impl StepLayout {
    /// Lays out a bucket; `item_capacity[group]` bounds its attention work items, `update_capacity` its table updates.
    pub fn new(
        bucket: Bucket,
        output_rows: u32,
        item_capacity: Vec<u32>,
        update_capacity: u32,
    ) -> StepLayout {
        let mut end_bytes = size_of::<StepHeader>() as u64;
        let mut region = |count: u32, element_bytes: usize| {
            let at = end_bytes.next_multiple_of(REGION_ALIGNMENT_BYTES);
            end_bytes = at + u64::from(count) * element_bytes as u64;
            at
        };
        let groups = item_capacity.len();
        let token_ids = region(bucket.rows, size_of::<u32>());
        let positions = region(bucket.rows, size_of::<u32>());
        let gather_rows = region(output_rows, size_of::<u32>());
        let slots = (0..groups)
            .map(|_| region(bucket.rows, size_of::<u64>()))
            .collect();
        let (item_bytes, decode_row_count) = match bucket.phase {
            Phase::Decode => (size_of::<DecodeItem>(), bucket.rows),
            Phase::Prefill => (size_of::<PrefillItem>(), 0),
        };
        let items = item_capacity
            .iter()
            .map(|capacity| region(*capacity, item_bytes))
            .collect();
        let decode_rows = (0..groups)
            .map(|_| region(decode_row_count, size_of::<DecodeRow>()))
            .collect();
        let updates = region(update_capacity, size_of::<TableUpdate>());
        StepLayout {
            bucket,
            output_rows,
            token_ids,
            positions,
            gather_rows,
            slots,
            items,
            item_capacity,
            decode_rows,
            updates,
            update_capacity,
            total_bytes: end_bytes,
        }
    }

    /// Device addresses of the regions, given the step buffer's base.
    pub fn at(&self, base: DevicePtr) -> StepPointers {
        let add = |offset: &u64| base.add(*offset);
        StepPointers {
            header: base,
            token_ids: add(&self.token_ids),
            positions: add(&self.positions),
            gather_rows: add(&self.gather_rows),
            slots: self.slots.iter().map(add).collect(),
            items: self.items.iter().map(add).collect(),
            decode_rows: self.decode_rows.iter().map(add).collect(),
            updates: add(&self.updates),
        }
    }
}

/// Device addresses of a bucket's regions.
pub(super) struct StepPointers {
    pub header: DevicePtr,
    pub token_ids: DevicePtr,
    pub positions: DevicePtr,
    pub gather_rows: DevicePtr,
    pub slots: Vec<DevicePtr>,
    pub items: Vec<DevicePtr>,
    pub decode_rows: Vec<DevicePtr>,
    pub updates: DevicePtr,
}

/// Attention work of one layer group.
#[derive(Clone, Debug)]
pub(super) enum GroupWork {
    Decode {
        items: Vec<DecodeItem>,
        rows: Vec<DecodeRow>,
    },
    Prefill {
        items: Vec<PrefillItem>,
    },
}

/// What one step tells the device, before it is laid out.
#[derive(Clone, Debug, Default)]
pub(super) struct StepPlan {
    /// `[tokens]`.
    pub token_ids: Vec<u32>,
    /// `[tokens]`, absolute.
    pub positions: Vec<u32>,
    /// `[layer group][tokens]`.
    pub slots: Vec<Vec<u64>>,
    /// Token rows whose logits are wanted.
    pub gather_rows: Vec<u32>,
    /// `[layer group]`.
    pub work: Vec<GroupWork>,
    pub updates: Vec<TableUpdate>,
    pub num_seqs: u32,
}

impl StepPlan {
    /// Writes the step into `image` and returns how many bytes of it are in use.
    ///
    /// # Panics
    /// The plan exceeds the bucket; the planner chooses the bucket so that it does not.
    pub fn write(&self, layout: &StepLayout, image: &mut [u8]) -> usize {
        let mut header = StepHeader {
            num_tokens: self.token_ids.len() as u32,
            num_outputs: self.gather_rows.len() as u32,
            num_table_updates: self.updates.len() as u32,
            num_seqs: self.num_seqs,
            ..StepHeader::default()
        };
        assert!(
            self.token_ids.len() <= layout.bucket.rows as usize,
            "tokens exceed the bucket"
        );
        assert!(
            self.gather_rows.len() <= layout.output_rows as usize,
            "outputs exceed the bucket"
        );
        assert!(
            self.updates.len() <= layout.update_capacity as usize,
            "table updates exceed the bucket"
        );
        put(image, layout.token_ids, &self.token_ids);
        put(image, layout.positions, &self.positions);
        put(image, layout.gather_rows, &self.gather_rows);
        for (group, slots) in self.slots.iter().enumerate() {
            put(image, layout.slots[group], slots);
        }
        for (group, work) in self.work.iter().enumerate() {
            let count = match work {
                GroupWork::Decode { items, rows } => {
                    put(image, layout.items[group], items);
                    put(image, layout.decode_rows[group], rows);
                    items.len()
                }
                GroupWork::Prefill { items } => {
                    put(image, layout.items[group], items);
                    items.len()
                }
            };
            assert!(
                count <= layout.item_capacity[group] as usize,
                "attention work exceeds the bucket"
            );
            header.num_items[group] = count as u32;
        }
        put(image, layout.updates, &self.updates);
        put(image, 0, &[header]);
        layout.updates as usize + self.updates.len() * size_of::<TableUpdate>()
    }
}

fn put<T: Pod>(image: &mut [u8], offset_bytes: u64, elements: &[T]) {
    let bytes: &[u8] = bytemuck::cast_slice(elements);
    let at = offset_bytes as usize;
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(phase: Phase, rows: u32) -> StepLayout {
        StepLayout::new(Bucket { phase, rows }, rows.min(4), vec![3, 5], 7)
    }

    /// Begin and end of every region, with the element counts the bucket has room for.
    fn regions(layout: &StepLayout) -> Vec<(u64, u64)> {
        let rows = u64::from(layout.bucket.rows);
        let item_bytes = match layout.bucket.phase {
            Phase::Decode => size_of::<DecodeItem>(),
            Phase::Prefill => size_of::<PrefillItem>(),
        } as u64;
        let mut regions = vec![
            (0, size_of::<StepHeader>() as u64),
            (layout.token_ids, rows * 4),
            (layout.positions, rows * 4),
            (layout.gather_rows, u64::from(layout.output_rows) * 4),
            (layout.updates, u64::from(layout.update_capacity) * 16),
        ];
        regions.extend(layout.slots.iter().map(|at| (*at, rows * 8)));
        regions.extend(
            layout
                .items
                .iter()
                .zip(&layout.item_capacity)
                .map(|(at, capacity)| (*at, u64::from(*capacity) * item_bytes)),
        );
        if layout.bucket.phase == Phase::Decode {
            regions.extend(layout.decode_rows.iter().map(|at| (*at, rows * 8)));
        }
        let mut regions: Vec<_> = regions
            .into_iter()
            .map(|(at, bytes)| (at, at + bytes))
            .collect();
        regions.sort_unstable();
        regions
    }

    #[test]
    fn regions_are_aligned_disjoint_and_inside() {
        for (phase, rows) in [
            (Phase::Decode, 1),
            (Phase::Decode, 8),
            (Phase::Prefill, 16),
            (Phase::Prefill, 65),
        ] {
            let layout = layout(phase, rows);
            let regions = regions(&layout);
            assert!(
                regions.windows(2).all(|pair| pair[0].1 <= pair[1].0),
                "{phase:?} {rows}: {regions:?}"
            );
            assert!(
                regions
                    .iter()
                    .all(|(begin, end)| begin % REGION_ALIGNMENT_BYTES == 0
                        && *end <= layout.total_bytes)
            );
            assert_eq!(
                regions.last().map(|(begin, _)| *begin),
                Some(layout.updates),
                "what varies most comes last"
            );
        }
    }

    #[test]
    fn a_step_is_written_where_its_layout_says() {
        let layout = layout(Phase::Decode, 2);
        let item = DecodeItem {
            row: 1,
            seq_slot: 6,
            kv_begin: 0,
            kv_end: 9,
        };
        let update = TableUpdate {
            group: 1,
            seq_slot: 6,
            column: 2,
            entry: 77,
        };
        let work = |items: Vec<DecodeItem>| GroupWork::Decode {
            items,
            rows: vec![DecodeRow::default(); 2],
        };
        let plan = StepPlan {
            token_ids: vec![11, 12],
            positions: vec![8, 9],
            slots: vec![vec![1, 2], vec![3, u64::MAX]],
            gather_rows: vec![1],
            work: vec![work(vec![item]), work(vec![item, item])],
            updates: vec![update],
            num_seqs: 2,
        };
        let mut image = vec![0xEE; layout.total_bytes as usize];
        let used = plan.write(&layout, &mut image);
        let read = |at: u64| {
            u32::from_le_bytes(
                image[at as usize..at as usize + 4]
                    .try_into()
                    .expect("4 bytes"),
            )
        };
        assert_eq!(
            (read(0), read(4), read(8), read(12)),
            (2, 1, 1, 2),
            "header counts"
        );
        assert_eq!((read(16), read(20), read(24)), (1, 2, 0), "items by group");
        assert_eq!(
            (
                read(layout.token_ids + 4),
                read(layout.positions),
                read(layout.gather_rows)
            ),
            (12, 8, 1)
        );
        assert_eq!(read(layout.slots[1] + 8), u32::MAX);
        assert_eq!(read(layout.items[1] + 16 + 4), 6);
        assert_eq!(
            (read(layout.updates + 12), used as u64),
            (77, layout.updates + 16)
        );
    }
}
