//! Attention over random sequences: their pages, work lists and launches.

use half::bf16;
use neap::driver::{DevicePtr, LaunchConfig};
use neap::kernels::{
    DecodeAttentionParams, DecodeItem, DecodeMergeParams, DecodeRow, DecodeRowInput,
    PrefillAttentionParams, PrefillSegment, StepHeader, max_decode_items, max_prefill_items,
    plan_decode, plan_prefill,
};

use super::oracle::{Attention, Real, attention};
use super::paged::PagedKv;
use super::random::Random;
use super::{Array, Rig, untouched};

/// Layer group and layer the tests pretend to be.
const GROUP: u32 = 3;
const LAYER: u32 = 1;

/// Sequences over which attention is computed: q [len, Hq, D], k and v [len, Hkv, D] each.
pub struct Case {
    pub shape: Attention,
    pub sequences: Vec<Sequence>,
    pub sinks: Option<Vec<bf16>>,
    /// Blocks that share the work items; one each if not set.
    pub item_blocks: Option<u32>,
    /// Each decode row is one item, however long: more than the plan gives one, but the kernel takes any range. Block tables have no
    /// row and no column to spare.
    pub unsplit: bool,
    /// The decode kernel to launch instead of the one the crate's shapes choose, with its threads and dynamic shared bytes.
    pub decode_kernel: Option<(String, u32, u32)>,
}

pub struct Sequence {
    pub q: Vec<bf16>,
    pub k: Vec<bf16>,
    pub v: Vec<bf16>,
    pub len: u32,
}

/// What else the memory holds while a case runs.
#[derive(Clone, Copy, PartialEq)]
pub enum Surroundings {
    Noise,
    Nan,
}

/// A decode step, ready to launch.
pub struct DecodeStep {
    capacity: u32,
    bucket: u32,
    params: DecodeAttentionParams,
    merge: DecodeMergeParams,
    out: Array<bf16>,
    kernel: Option<(String, u32, u32)>,
}

impl DecodeStep {
    pub fn launch(&self, rig: &Rig) {
        if let Some((kernel, threads, shared_bytes)) = &self.kernel {
            let config = LaunchConfig {
                grid: [self.capacity, self.params.num_kv_heads, 1],
                block: [*threads, 1, 1],
                shared_bytes: *shared_bytes,
            };
            let kernel = rig.kernels.get(kernel).expect("a loaded kernel");
            // SAFETY: as below.
            unsafe { rig.stream.launch(kernel, config, &self.params) }.expect("launch");
            return;
        }
        // SAFETY: every array has the shape of its field for this bucket, and the plan names assigned pages only.
        unsafe { (rig.kernels).decode_attention(&rig.stream, self.capacity, &self.params) }
            .expect("launch");
    }

    fn merge(&self, rig: &Rig) {
        // SAFETY: as above.
        unsafe { (rig.kernels).decode_merge(&rig.stream, self.bucket, &self.merge) }
            .expect("launch");
    }
}

impl Case {
    pub fn random(random: &mut Random, shape: Attention, lengths: &[u32], sinks: bool) -> Case {
        let Attention {
            num_q_heads,
            num_kv_heads,
            head_dim,
            ..
        } = shape;
        let sequences = lengths.iter().map(|&len| {
            let tokens = len as usize;
            Sequence {
                q: random.normals_bf16(tokens * num_q_heads * head_dim, 1.0),
                k: random.normals_bf16(tokens * num_kv_heads * head_dim, 1.0),
                v: random.normals_bf16(tokens * num_kv_heads * head_dim, 1.0),
                len,
            }
        });
        Case {
            shape,
            sequences: sequences.collect(),
            sinks: sinks.then(|| random.normals_bf16(num_q_heads, 2.0)),
            item_blocks: None,
            unsplit: false,
            decode_kernel: None,
        }
    }

    fn q_width(&self) -> usize {
        self.shape.num_q_heads * self.shape.head_dim
    }

    fn kv_width(&self) -> usize {
        self.shape.num_kv_heads * self.shape.head_dim
    }

    /// Attention of one token of one sequence.
    pub fn twin<R: Real>(&self, sequence: usize, position: u32) -> Vec<R> {
        let Sequence { q, k, v, .. } = &self.sequences[sequence];
        let query = &q[position as usize * self.q_width()..][..self.q_width()];
        attention(&self.shape, query, k, v, position, self.sinks.as_deref())
    }

    fn sinks_on(&self, rig: &Rig) -> DevicePtr {
        self.sinks
            .as_ref()
            .map_or(DevicePtr::NULL, |sinks| rig.upload(sinks).pointer)
    }

    /// First key that the token at `position` sees.
    pub fn first_key(&self, position: u32) -> u32 {
        self.shape
            .window
            .map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// Pages holding `first..end` of each listed sequence, sequence `i` in row `slots[i]` of the block table. Everything else is noise
    /// or NaN, and every other column points where reading faults.
    fn paged(
        &self,
        rig: &Rig,
        random: &mut Random,
        page_size: u32,
        around: Surroundings,
        stored: &[(usize, usize, u32, u32)],
        slots: usize,
    ) -> PagedKv {
        let tokens: u32 = stored.iter().map(|&(_, _, first, end)| end - first).sum();
        let pages = tokens / page_size + 2 * stored.len() as u32 + 3;
        let Attention {
            num_kv_heads,
            head_dim,
            ..
        } = self.shape;
        let mut kv = PagedKv::new(
            rig,
            random,
            page_size,
            num_kv_heads as u32,
            head_dim as u32,
            slots,
            pages,
        );
        if around == Surroundings::Nan {
            kv.fill_with_nan(rig);
        }
        let mut parts = Vec::new();
        for &(sequence, slot, first, end) in stored.iter().filter(|(.., first, end)| first < end) {
            kv.assign(slot, first, end);
            let at = first as usize * self.kv_width()..end as usize * self.kv_width();
            let Sequence { k, v, .. } = &self.sequences[sequence];
            parts.push((slot, first, &k[at.clone()], &v[at]));
        }
        kv.store(rig, LAYER, &parts);
        kv
    }

    /// Decodes the last token of each listed sequence in one batch; returns [Hq * D] a row.
    pub fn decode(
        &self,
        rig: &Rig,
        random: &mut Random,
        sequences: &[usize],
        bucket: u32,
        page_size: u32,
        around: Surroundings,
    ) -> Vec<Vec<bf16>> {
        let step = self.prepare_decode(rig, random, sequences, bucket, page_size, around);
        step.launch(rig);
        step.merge(rig);
        let width = self.q_width();
        let found = step.out.read(rig);
        let (real, padding) = found.split_at(sequences.len() * width);
        assert!(untouched(padding), "padded rows were written");
        real.chunks_exact(width).map(<[bf16]>::to_vec).collect()
    }

    /// Everything on the device that [`decode`](Self::decode) launches on.
    pub fn prepare_decode(
        &self,
        rig: &Rig,
        random: &mut Random,
        sequences: &[usize],
        bucket: u32,
        page_size: u32,
        around: Surroundings,
    ) -> DecodeStep {
        let Attention {
            num_q_heads,
            num_kv_heads,
            head_dim,
            window,
            ..
        } = self.shape;
        let table_rows = sequences.len() + if self.unsplit { 0 } else { 2 };
        let mut slots: Vec<usize> = (0..table_rows).collect();
        random.shuffle(&mut slots);
        let stored: Vec<_> = sequences
            .iter()
            .zip(&slots)
            .map(|(&sequence, &slot)| {
                let len = self.sequences[sequence].len;
                (sequence, slot, self.first_key(len - 1), len)
            })
            .collect();
        let mut kv = self.paged(rig, random, page_size, around, &stored, table_rows);
        if self.unsplit {
            kv.columns -= 1;
        }

        let inputs: Vec<_> = stored
            .iter()
            .map(|&(_, slot, _, kv_len)| DecodeRowInput {
                seq_slot: slot as u32,
                kv_len,
            })
            .collect();
        let (mut items, mut rows) = (Vec::new(), Vec::new());
        plan_decode(&inputs, window, &mut items, &mut rows);
        if self.unsplit {
            join_rows(&mut items, &mut rows);
        }
        let longest = inputs.iter().map(|input| input.kv_len).max().expect("rows");
        let capacity = max_decode_items(bucket, longest, window);
        assert!(items.len() as u32 <= capacity);

        let width = self.q_width();
        let mut q = vec![bf16::NAN; bucket as usize * width];
        for (row, &(sequence, _, _, len)) in stored.iter().enumerate() {
            let query = &self.sequences[sequence].q[(len as usize - 1) * width..][..width];
            q[row * width..][..width].copy_from_slice(query);
        }
        let mut header = StepHeader {
            num_tokens: sequences.len() as u32,
            num_seqs: sequences.len() as u32,
            ..StepHeader::default()
        };
        header.num_items[GROUP as usize] = items.len() as u32;
        let header = rig.header(header);
        let partial_o = rig.poisoned::<f32>(capacity as usize * width);
        let partial_ml = rig.poisoned::<[f32; 2]>(capacity as usize * num_q_heads);
        let out = rig.poisoned::<bf16>(bucket as usize * width);
        // What a graph leaves behind the items of a step: no kernel may look at it.
        items.resize(capacity as usize, stale());
        rows.resize(bucket as usize, bytemuck::Zeroable::zeroed());
        let params = DecodeAttentionParams {
            header,
            items: rig.upload(&items).pointer,
            q: rig.upload(&q).pointer,
            partial_o: partial_o.pointer,
            partial_ml: partial_ml.pointer,
            block_table: kv.upload_tables(rig).pointer,
            kv: kv.view(LAYER),
            table_stride: kv.columns,
            layer_group: GROUP,
            num_q_heads: num_q_heads as u32,
            num_kv_heads: num_kv_heads as u32,
            head_dim: head_dim as u32,
            sm_scale: self.shape.sm_scale,
            softcap: self.shape.softcap,
            ..DecodeAttentionParams::default()
        };
        let merge = DecodeMergeParams {
            header,
            rows: rig.upload(&rows).pointer,
            partial_o: partial_o.pointer,
            partial_ml: partial_ml.pointer,
            sinks: self.sinks_on(rig),
            out: out.pointer,
            num_q_heads: num_q_heads as u32,
            head_dim: head_dim as u32,
            ..DecodeMergeParams::default()
        };
        DecodeStep {
            // Fewer blocks take items in turns.
            capacity: self.item_blocks.unwrap_or(capacity),
            bucket,
            params,
            merge,
            out,
            kernel: self.decode_kernel.clone(),
        }
    }

    /// Prefills chunks (sequence, from, to) in one batch, earlier keys coming from pages; returns [to - from, Hq * D] a chunk.
    pub fn prefill(
        &self,
        rig: &Rig,
        random: &mut Random,
        chunks: &[(usize, u32, u32)],
        spare_rows: u32,
        page_size: u32,
        around: Surroundings,
    ) -> Vec<Vec<bf16>> {
        let Attention {
            num_q_heads,
            num_kv_heads,
            head_dim,
            window,
            ..
        } = self.shape;
        let table_rows = chunks.len() + 1;
        let mut slots: Vec<usize> = (0..table_rows).collect();
        random.shuffle(&mut slots);
        let stored: Vec<_> = chunks
            .iter()
            .zip(&slots)
            .map(|(&(sequence, from, _), &slot)| {
                (sequence, slot, self.first_key(from).min(from), from)
            })
            .collect();
        let kv = self.paged(rig, random, page_size, around, &stored, table_rows);

        let (mut segments, mut row0) = (Vec::new(), 0);
        let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
        for (&(sequence, from, to), &slot) in chunks.iter().zip(&slots) {
            segments.push(PrefillSegment {
                row0,
                num_rows: to - from,
                pos0: from,
                seq_slot: slot as u32,
            });
            row0 += to - from;
            let sequence = &self.sequences[sequence];
            let part = |tensor: &[bf16], width: usize| {
                tensor[from as usize * width..to as usize * width].to_vec()
            };
            q.extend(part(&sequence.q, self.q_width()));
            k.extend(part(&sequence.k, self.kv_width()));
            v.extend(part(&sequence.v, self.kv_width()));
        }
        let bucket = row0 + spare_rows;
        for (tensor, width) in [
            (&mut q, self.q_width()),
            (&mut k, self.kv_width()),
            (&mut v, self.kv_width()),
        ] {
            tensor.resize(bucket as usize * width, bf16::NAN);
        }
        let mut items = Vec::new();
        plan_prefill(&segments, &mut items);
        let capacity = max_prefill_items(bucket, chunks.len() as u32);
        let mut header = StepHeader {
            num_tokens: row0,
            num_seqs: chunks.len() as u32,
            ..StepHeader::default()
        };
        header.num_items[GROUP as usize] = items.len() as u32;
        // What a graph leaves behind the items of a step: no kernel may look at it.
        items.resize(capacity as usize, stale());
        let out = rig.poisoned::<bf16>(bucket as usize * self.q_width());
        let params = PrefillAttentionParams {
            header: rig.header(header),
            items: rig.upload(&items).pointer,
            q: rig.upload(&q).pointer,
            k: rig.upload(&k).pointer,
            v: rig.upload(&v).pointer,
            block_table: kv.upload_tables(rig).pointer,
            sinks: self.sinks_on(rig),
            out: out.pointer,
            kv: kv.view(LAYER),
            table_stride: kv.columns,
            layer_group: GROUP,
            num_q_heads: num_q_heads as u32,
            num_kv_heads: num_kv_heads as u32,
            head_dim: head_dim as u32,
            window: window.unwrap_or(0),
            sm_scale: self.shape.sm_scale,
            softcap: self.shape.softcap,
            ..PrefillAttentionParams::default()
        };
        let blocks = self.item_blocks.unwrap_or(capacity);
        // SAFETY: every array has the shape of its field for this bucket, and keys before the chunks lie in assigned pages; fewer blocks
        // take items in turns.
        unsafe { rig.kernels.prefill_attention(&rig.stream, blocks, &params) }.expect("launch");
        let found = out.read(rig);
        assert!(
            untouched(&found[row0 as usize * self.q_width()..]),
            "padded rows were written"
        );
        let parts = segments.iter().map(|segment| {
            let at = segment.row0 as usize * self.q_width();
            found[at..at + segment.num_rows as usize * self.q_width()].to_vec()
        });
        parts.collect()
    }
}

/// Makes the items of each row one.
fn join_rows(items: &mut Vec<DecodeItem>, rows: &mut [DecodeRow]) {
    items.dedup_by(|next, item| {
        let same = next.row == item.row;
        if same {
            item.kv_end = next.kv_end;
        }
        same
    });
    for (row, found) in (0u32..).zip(rows) {
        *found = DecodeRow {
            first_item: row,
            num_items: 1,
        };
    }
}

/// Bytes no work item has.
fn stale<T: bytemuck::Pod>() -> T {
    bytemuck::pod_read_unaligned(&vec![0xff; size_of::<T>()])
}

/// A shape with the usual scale.
pub fn shape(
    num_q_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    window: Option<u32>,
    softcap: f32,
) -> Attention {
    Attention {
        num_q_heads,
        num_kv_heads,
        head_dim,
        window,
        sm_scale: (head_dim as f32).powf(-0.5),
        softcap,
    }
}
