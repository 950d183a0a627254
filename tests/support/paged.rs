//! Paged keys and values of a test: pages scattered over an arena full of noise.

use half::bf16;
use neap::driver::DevicePtr;
use neap::kernels::KvView;

use super::random::Random;
use super::{Array, Rig};

/// One layer group's pages. The arena is laid out [layer][page][K|V][head][token][dim] with a gap before each layer's chunk.
pub struct PagedKv {
    pub page_size: u32,
    pub num_kv_heads: u32,
    pub head_dim: u32,
    pub num_layers: u32,
    /// Columns of the block table.
    pub columns: u32,
    pub layer_stride: u64,
    pub layer_page_bytes: u64,
    arena: DevicePtr,
    arena_bytes: u64,
    free_entries: Vec<u32>,
    tables: Vec<Vec<u32>>,
}

/// The entry of table columns that no kernel may follow: its page lies far outside the arena.
pub const FORBIDDEN_ENTRY: u32 = 0xffff_0000;

impl PagedKv {
    /// `pages` pages for `seq_slots` sequences, filled with noise of 100 sigma.
    pub fn new(
        rig: &Rig,
        random: &mut Random,
        page_size: u32,
        num_kv_heads: u32,
        head_dim: u32,
        seq_slots: usize,
        pages: u32,
    ) -> PagedKv {
        let num_layers = 3;
        let layer_page_bytes =
            u64::from(2 * num_kv_heads * page_size * head_dim * 2).next_multiple_of(256);
        let layer_stride =
            layer_page_bytes * u64::from(pages + 1) + 256 * u64::from(1 + random.below(4));
        let arena_bytes = layer_stride * u64::from(num_layers);
        // Entry 0 is the null page, which nobody reads.
        let mut free_entries: Vec<_> = (1..=pages)
            .map(|page| (u64::from(page) * layer_page_bytes / 256) as u32)
            .collect();
        random.shuffle(&mut free_entries);
        let arena = rig.allocate(arena_bytes);
        let kv = PagedKv {
            page_size,
            num_kv_heads,
            head_dim,
            num_layers,
            columns: 1,
            layer_stride,
            layer_page_bytes,
            arena,
            arena_bytes,
            free_entries,
            tables: vec![Vec::new(); seq_slots],
        };
        kv.fill(rig, random.normals_bf16((arena_bytes / 2) as usize, 100.0));
        kv
    }

    fn fill(&self, rig: &Rig, values: Vec<bf16>) {
        rig.stream
            .copy_to_device(self.arena, bytemuck::cast_slice(&values))
            .expect("copy");
    }

    /// Every byte 0xFF: NaN wherever a kernel looks without having been asked to.
    pub fn fill_with_nan(&self, rig: &Rig) {
        self.fill(
            rig,
            vec![bf16::from_bits(0xffff); (self.arena_bytes / 2) as usize],
        );
    }

    pub fn contents(&self, rig: &Rig) -> Vec<bf16> {
        let mut values = vec![bf16::ZERO; (self.arena_bytes / 2) as usize];
        rig.stream
            .copy_to_host(bytemuck::cast_slice_mut(&mut values), self.arena)
            .expect("copy");
        values
    }

    pub fn view(&self, layer: u32) -> KvView {
        let token_bytes = 2 * self.head_dim;
        let head_bytes = token_bytes * self.page_size;
        KvView {
            base: self.arena,
            layer_offset: u64::from(layer) * self.layer_stride,
            k_head_stride: head_bytes,
            k_token_stride: token_bytes,
            v_offset: head_bytes * self.num_kv_heads,
            v_head_stride: head_bytes,
            v_token_stride: token_bytes,
            page_size: self.page_size,
            page_shift: self.page_size.trailing_zeros(),
            reserved: 0,
        }
    }

    /// Gives sequence `seq_slot` scattered pages for the tokens `first..end`.
    pub fn assign(&mut self, seq_slot: usize, first: u32, end: u32) {
        let columns = end.div_ceil(self.page_size);
        self.columns = self.columns.max(columns + 1);
        let table = &mut self.tables[seq_slot];
        table.resize(table.len().max(columns as usize), FORBIDDEN_ENTRY);
        for entry in &mut table[(first / self.page_size) as usize..columns as usize] {
            if *entry == FORBIDDEN_ENTRY {
                *entry = self.free_entries.pop().expect("the test made enough pages");
            }
        }
    }

    /// The slot of a token, as `qkv_rope` and `kv_append` take it.
    pub fn slot(&self, seq_slot: usize, token: u32) -> u64 {
        let entry = self.tables[seq_slot][(token / self.page_size) as usize];
        assert_ne!(entry, FORBIDDEN_ENTRY);
        u64::from(entry) << 32 | u64::from(token % self.page_size)
    }

    /// Element index in [`PagedKv::contents`] of dimension 0 of a token's key (or value) row.
    pub fn row_index(&self, layer: u32, slot: u64, head: u32, is_value: bool) -> usize {
        let view = self.view(layer);
        let (offset, head_stride, token_stride) = if is_value {
            (view.v_offset, view.v_head_stride, view.v_token_stride)
        } else {
            (0, view.k_head_stride, view.k_token_stride)
        };
        let bytes = (slot >> 32) * 256
            + view.layer_offset
            + u64::from(offset)
            + u64::from(head) * u64::from(head_stride)
            + (slot & 0xffff_ffff) * u64::from(token_stride);
        (bytes / 2) as usize
    }

    /// Writes tokens from the host: of each (sequence slot, first token, k, v), k and v being [tokens, Hkv, D].
    pub fn store(&self, rig: &Rig, layer: u32, parts: &[(usize, u32, &[bf16], &[bf16])]) {
        let (heads, dim) = (self.num_kv_heads as usize, self.head_dim as usize);
        let mut contents = self.contents(rig);
        for &(seq_slot, first, k, v) in parts {
            for (is_value, tensor) in [(false, k), (true, v)] {
                for (token, rows) in (first..).zip(tensor.chunks_exact(heads * dim)) {
                    let slot = self.slot(seq_slot, token);
                    for (head, row) in (0u32..).zip(rows.chunks_exact(dim)) {
                        let at = self.row_index(layer, slot, head, is_value);
                        contents[at..at + dim].copy_from_slice(row);
                    }
                }
            }
        }
        self.fill(rig, contents);
    }

    /// The block tables, [seq_slots, columns].
    pub fn upload_tables(&self, rig: &Rig) -> Array<u32> {
        let mut all = Vec::new();
        for table in &self.tables {
            all.extend(table);
            all.resize(
                all.len() + self.columns as usize - table.len(),
                FORBIDDEN_ENTRY,
            );
        }
        rig.upload(&all)
    }
}
