//! Parameter structs of the kernels, mirrored from `csrc/params.cuh`.
//!
//! A kernel takes exactly one of them by value. Shapes are row-major, last index fastest; T = rows of the bucket (tokens), R = rows of the
//! bucket whose logits are wanted, H = hidden size, D = head_dim, Hq and Hkv = query and key-value heads. Device
//! pointers are 16-byte aligned; [`DevicePtr::NULL`] stands for "none" where a field says so.

use bytemuck::{Pod, Zeroable};

use crate::driver::DevicePtr;

/// Declares structs with their layout, which is asserted here and compared with the CUDA side's assertions in the tests.
macro_rules! mirrored {
    ($($(#[$meta:meta])* $name:ident: $bytes:literal { $($(#[$field_meta:meta])* $field:ident: $type:ty = $offset:literal,)* })*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
            #[repr(C)]
            pub struct $name {
                $($(#[$field_meta])* pub $field: $type,)*
            }

            impl Default for $name {
                fn default() -> Self {
                    Self::zeroed()
                }
            }

            const _: () = {
                assert!(size_of::<$name>() == $bytes);
                $(assert!(std::mem::offset_of!($name, $field) == $offset);)*
            };
        )*

        /// Size, and name and offset of each field, of every struct.
        #[cfg(test)]
        const LAYOUT: &[(&str, usize, &[(&str, usize)])] =
            &[$((stringify!($name), $bytes, &[$((stringify!($field), $offset)),*])),*];
    };
}

mirrored! {
    /// Row counts of one step, in device memory. The grid of a captured launch is fixed for its bucket; these say how much of it is real.
    StepHeader: 64 {
        /// Rows [0, num_tokens) of every T-shaped tensor are real.
        num_tokens: u32 = 0,
        /// Rows [0, num_outputs) of every R-shaped tensor are real.
        num_outputs: u32 = 4,
        /// Entries of TableUpdateParams::updates.
        num_table_updates: u32 = 8,
        /// Sequences of the step.
        num_seqs: u32 = 12,
        /// Attention work items, by layer group.
        num_items: [u32; 8] = 16,
        /// Zero.
        reserved: [u32; 4] = 48,
    }

    /// One block-table write: `tables[group][seq_slot * stride + column] = entry`.
    TableUpdate: 16 {
        /// Layer group, below 8.
        group: u32 = 0,
        /// Row of the block table.
        seq_slot: u32 = 4,
        /// Page index within the sequence.
        column: u32 = 8,
        /// Page, in units of 256 bytes from the KV base.
        entry: u32 = 12,
    }

    /// Keys `[kv_begin, kv_end)` of one decode row; positions are absolute. Made by [`plan_decode`](super::plan_decode).
    DecodeItem: 16 {
        /// Row of `q` and `out`.
        row: u32 = 0,
        /// Row of the block table.
        seq_slot: u32 = 4,
        /// First key.
        kv_begin: u32 = 8,
        /// One past the last key.
        kv_end: u32 = 12,
    }

    /// A decode row's items, `[first_item, first_item + num_items)`, for the merge.
    DecodeRow: 8 {
        /// First of the row's items.
        first_item: u32 = 0,
        /// How many.
        num_items: u32 = 4,
    }

    /// Up to 64 query rows of one sequence. Keys at positions below `chunk_pos0` lie in pages, key `p` at or above it in activation row `chunk_row0 + (p - chunk_pos0)`. Made by [`plan_prefill`](super::plan_prefill).
    PrefillItem: 24 {
        /// First query row.
        row0: u32 = 0,
        /// Query rows, 1..=64.
        num_rows: u32 = 4,
        /// Position of the first query row.
        q_pos0: u32 = 8,
        /// Row of the block table.
        seq_slot: u32 = 12,
        /// Activation row of the chunk's first token.
        chunk_row0: u32 = 16,
        /// Position of the chunk's first token.
        chunk_pos0: u32 = 20,
    }

    /// Where one layer's keys and values of one pool lie. With `e` the block-table entry of the token's page:
    ///
    /// `K row = base + 256 e + layer_offset + head * k_head_stride + token_in_page * k_token_stride`,
    /// `V row = base + 256 e + layer_offset + v_offset + head * v_head_stride + token_in_page * v_token_stride`.
    ///
    /// Strides and offsets are bytes, all multiples of 16.
    KvView: 48 {
        /// KV arena.
        base: DevicePtr = 0,
        /// The layer's byte offset from a page's address: layer in group times layer stride.
        layer_offset: u64 = 8,
        /// Bytes from one head's keys to the next.
        k_head_stride: u32 = 16,
        /// Bytes from one key to the next.
        k_token_stride: u32 = 20,
        /// Bytes from a page's keys to its values.
        v_offset: u32 = 24,
        /// Bytes from one head's values to the next.
        v_head_stride: u32 = 28,
        /// Bytes from one value to the next.
        v_token_stride: u32 = 32,
        /// Tokens, a power of two in 1..=256.
        page_size: u32 = 36,
        /// `log2(page_size)`.
        page_shift: u32 = 40,
        /// Zero.
        reserved: u32 = 44,
    }

    /// Of [`Kernels::table_update`](super::Kernels::table_update).
    TableUpdateParams: 120 {
        /// Bytes of device memory the launch moves; filled in by the launch method.
        bytes_touched: u64 = 0,
        /// One [`StepHeader`].
        header: DevicePtr = 8,
        /// `[num_table_updates]` [`TableUpdate`].
        updates: DevicePtr = 16,
        /// A group's table, `[seq_slots, strides[group]]` u32, or null.
        tables: [DevicePtr; 8] = 24,
        /// Columns of each table.
        strides: [u32; 8] = 88,
    }

    /// Of [`Kernels::embed`](super::Kernels::embed): `residual[t] = table[token_ids[t]] * scale`.
    EmbedParams: 48 {
        /// Bytes of device memory the launch moves; filled in by the launch method.
        bytes_touched: u64 = 0,
        /// One [`StepHeader`].
        header: DevicePtr = 8,
        /// `[T]` u32.
        token_ids: DevicePtr = 16,
        /// `[vocab, H]` bf16.
        table: DevicePtr = 24,
        /// `[T, H]` f32.
        residual: DevicePtr = 32,
        /// H, multiple of 4.
        hidden: u32 = 40,
        /// Multiplier, `sqrt(H)` for Gemma.
        scale: f32 = 44,
    }

    /// Of [`Kernels::add_norm`](super::Kernels::add_norm): residual add with a norm before and a norm after.
    AddNormParams: 80 {
        /// Bytes of device memory the launch moves; filled in by the launch method.
        bytes_touched: u64 = 0,
        /// One [`StepHeader`].
        header: DevicePtr = 8,
        /// `[T, H]` f32; updated in place unless rows are gathered.
        residual: DevicePtr = 16,
        /// `[T, H]` f32; or null: what is added.
        y: DevicePtr = 24,
        /// `[H]` bf16; or null: norm of y before the add.
        post_weight: DevicePtr = 32,
        /// `[H]` bf16; or null: norm of the sum.
        next_weight: DevicePtr = 40,
        /// `[T, H]` bf16; or [R, H] when rows are gathered; null iff next_weight is.
        out: DevicePtr = 48,
        /// `[R]` u32; token row of each output row, or null.
        gather_rows: DevicePtr = 56,
        /// H, multiple of 4, at most 16384.
        hidden: u32 = 64,
        /// Added to the mean square.
        eps: f32 = 68,
        /// Added to norm weights: 1 for Gemma, 0 for Llama.
        weight_offset: f32 = 72,
        /// Zero.
        reserved: u32 = 76,
    }

    /// Of [`Kernels::gemm`](super::Kernels::gemm): `y = x . weight^T (+ bias)`.
    GemmParams: 64 {
        /// Bytes of device memory the launch moves; filled in by the launch method.
        bytes_touched: u64 = 0,
        /// One [`StepHeader`].
        header: DevicePtr = 8,
        /// `[T or R, K]` bf16.
        x: DevicePtr = 16,
        /// `[N, K]` bf16.
        weight: DevicePtr = 24,
        /// `[N]` bf16; or null.
        bias: DevicePtr = 32,
        /// `[T or R, N]` f32.
        y: DevicePtr = 40,
        /// Output features N.
        n: u32 = 48,
        /// Input features K.
        k: u32 = 52,
        /// Y = softcap * tanh(y / softcap) when positive.
        softcap: f32 = 56,
        /// 0: num_tokens rows, 1: num_outputs rows.
        rows_from: u32 = 60,
    }

    /// Of [`Kernels::qkv_rope`](super::Kernels::qkv_rope): per-head norms, rotary embedding, rounding, and in decode the append.
    QkvRopeParams: 160 {
        /// Bytes of device memory the launch moves; filled in by the launch method.
        bytes_touched: u64 = 0,
        /// One [`StepHeader`].
        header: DevicePtr = 8,
        /// `[T, (Hq + 2 Hkv) * D]` f32.
        qkv: DevicePtr = 16,
        /// `[D]` bf16; or null.
        q_norm: DevicePtr = 24,
        /// `[D]` bf16; or null.
        k_norm: DevicePtr = 32,
        /// `[D / 2]` f32; radians a position.
        inv_freq: DevicePtr = 40,
        /// `[T]` u32.
        positions: DevicePtr = 48,
        /// `[T, Hq, D]` bf16.
        q: DevicePtr = 56,
        /// `[T, Hkv, D]` bf16; prefill only.
        k: DevicePtr = 64,
        /// `[T, Hkv, D]` bf16; prefill only.
        v: DevicePtr = 72,
        /// `[T]` u64; entry << 32 | token_in_page, ~0 = do not write; decode only.
        slots: DevicePtr = 80,
        /// The layer's keys and values; decode only.
        kv: KvView = 88,
        /// Hq.
        num_q_heads: u32 = 136,
        /// Hkv, a divisor of Hq.
        num_kv_heads: u32 = 140,
        /// D.
        head_dim: u32 = 144,
        /// Added to the mean square.
        eps: f32 = 148,
        /// Added to norm weights: 1 for Gemma, 0 for Llama.
        weight_offset: f32 = 152,
        /// Multiplies cos and sin.
        attention_factor: f32 = 156,
    }

    /// Of [`Kernels::kv_append`](super::Kernels::kv_append).
    KvAppendParams: 96 {
        /// Bytes of device memory the launch moves; filled in by the launch method.
        bytes_touched: u64 = 0,
        /// One [`StepHeader`].
        header: DevicePtr = 8,
        /// `[T, Hkv, D]` bf16.
        k: DevicePtr = 16,
        /// `[T, Hkv, D]` bf16.
        v: DevicePtr = 24,
        /// `[T]` u64; entry << 32 | token_in_page, ~0 = do not write.
        slots: DevicePtr = 32,
        /// The layer's keys and values.
        kv: KvView = 40,
        /// Hkv, a divisor of Hq.
        num_kv_heads: u32 = 88,
        /// Multiple of 8.
        head_dim: u32 = 92,
    }

    /// Of [`Kernels::page_copy`](super::Kernels::page_copy).
    PageCopyParams: 56 {
        /// Bytes of device memory the launch moves; filled in by the launch method.
        bytes_touched: u64 = 0,
        /// `[num_pairs, 2]` u32; source entry, destination entry.
        pairs: DevicePtr = 8,
        /// KV arena.
        base: DevicePtr = 16,
        /// Bytes from one layer's chunk of a page to the next layer's.
        layer_stride: u64 = 24,
        /// Pages to copy; at most so many where `count` is given.
        num_pairs: u32 = 32,
        /// Layers of the group.
        num_layers: u32 = 36,
        /// Multiple of 16.
        layer_page_bytes: u32 = 40,
        /// Zero.
        reserved: u32 = 44,
        /// One u32, or null: how many of the pairs there are.
        count: DevicePtr = 48,
    }

    /// Of [`Kernels::decode_attention`](super::Kernels::decode_attention).
    DecodeAttentionParams: 136 {
        /// Bytes of device memory the launch moves; filled in by the launch method.
        bytes_touched: u64 = 0,
        /// One [`StepHeader`].
        header: DevicePtr = 8,
        /// `[header.num_items[layer_group]` [`DecodeItem`]; ].
        items: DevicePtr = 16,
        /// `[T, Hq, D]` bf16.
        q: DevicePtr = 24,
        /// `[max items, Hq, D]` f32; not yet divided by l.
        partial_o: DevicePtr = 32,
        /// `[max items, Hq]` 2 x f32; m in base 2, l.
        partial_ml: DevicePtr = 40,
        /// `[seq_slots, table_stride]` u32.
        block_table: DevicePtr = 48,
        /// The layer's keys and values.
        kv: KvView = 56,
        /// Columns of the block table.
        table_stride: u32 = 104,
        /// Index into `StepHeader::num_items`.
        layer_group: u32 = 108,
        /// Hq.
        num_q_heads: u32 = 112,
        /// Hkv, a divisor of Hq.
        num_kv_heads: u32 = 116,
        /// D.
        head_dim: u32 = 120,
        /// Multiplier of `q . k`.
        sm_scale: f32 = 124,
        /// 0 = none.
        softcap: f32 = 128,
        /// Zero.
        reserved: u32 = 132,
    }

    /// Of [`Kernels::decode_merge`](super::Kernels::decode_merge).
    DecodeMergeParams: 64 {
        /// Bytes of device memory the launch moves; filled in by the launch method.
        bytes_touched: u64 = 0,
        /// One [`StepHeader`].
        header: DevicePtr = 8,
        /// `[T]` [`DecodeRow`].
        rows: DevicePtr = 16,
        /// `[max items, Hq, D]` f32.
        partial_o: DevicePtr = 24,
        /// `[max items, Hq]` 2 x f32.
        partial_ml: DevicePtr = 32,
        /// `[Hq]` bf16; logits or null.
        sinks: DevicePtr = 40,
        /// `[T, Hq * D]` bf16.
        out: DevicePtr = 48,
        /// Hq.
        num_q_heads: u32 = 56,
        /// D.
        head_dim: u32 = 60,
    }

    /// Of [`Kernels::prefill_attention`](super::Kernels::prefill_attention).
    PrefillAttentionParams: 152 {
        /// Bytes of device memory the launch moves; filled in by the launch method.
        bytes_touched: u64 = 0,
        /// One [`StepHeader`].
        header: DevicePtr = 8,
        /// `[header.num_items[layer_group]` [`PrefillItem`]; ].
        items: DevicePtr = 16,
        /// `[T, Hq, D]` bf16.
        q: DevicePtr = 24,
        /// `[T, Hkv, D]` bf16; keys of the current chunks.
        k: DevicePtr = 32,
        /// `[T, Hkv, D]` bf16.
        v: DevicePtr = 40,
        /// `[seq_slots, table_stride]` u32.
        block_table: DevicePtr = 48,
        /// `[Hq]` bf16; logits or null.
        sinks: DevicePtr = 56,
        /// `[T, Hq * D]` bf16.
        out: DevicePtr = 64,
        /// The layer's keys and values.
        kv: KvView = 72,
        /// Columns of the block table.
        table_stride: u32 = 120,
        /// Index into `StepHeader::num_items`.
        layer_group: u32 = 124,
        /// Hq.
        num_q_heads: u32 = 128,
        /// Hkv, a divisor of Hq.
        num_kv_heads: u32 = 132,
        /// D.
        head_dim: u32 = 136,
        /// Keys a query sees, itself included; 0 = all.
        window: u32 = 140,
        /// Multiplier of `q . k`.
        sm_scale: f32 = 144,
        /// 0 = none.
        softcap: f32 = 148,
    }

    /// Of [`Kernels::gated_act`](super::Kernels::gated_act): `out = act(gate) * up`.
    GatedActParams: 40 {
        /// Bytes of device memory the launch moves; filled in by the launch method.
        bytes_touched: u64 = 0,
        /// One [`StepHeader`].
        header: DevicePtr = 8,
        /// `[T, 2 I]` f32; gate then up.
        gate_up: DevicePtr = 16,
        /// `[T, I]` bf16.
        out: DevicePtr = 24,
        /// I, multiple of 4.
        intermediate: u32 = 32,
        /// 0: GELU (tanh form), 1: SiLU.
        activation: u32 = 36,
    }

    /// Of [`Kernels::argmax`](super::Kernels::argmax).
    ArgmaxParams: 40 {
        /// Bytes of device memory the launch moves; filled in by the launch method.
        bytes_touched: u64 = 0,
        /// One [`StepHeader`].
        header: DevicePtr = 8,
        /// `[R, vocab]` f32.
        logits: DevicePtr = 16,
        /// `[R]` u32.
        ids: DevicePtr = 24,
        /// Logits a row.
        vocab: u32 = 32,
        /// Zero.
        reserved: u32 = 36,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::LAYOUT;

    /// The numbers in `csrc/params.cuh` that `static_assert` checks on the CUDA side.
    #[test]
    fn cuda_asserts_the_same_layout() {
        let source = include_str!("../../csrc/params.cuh");
        let mut sizes = BTreeMap::new();
        let mut offsets = BTreeMap::new();
        for line in source.lines() {
            let arguments = |prefix: &str| -> Option<Vec<&str>> {
                let inner = line.strip_prefix(prefix)?.strip_suffix(");")?;
                Some(inner.split(", ").collect())
            };
            if let Some(parts) = arguments("NEAP_SIZE(") {
                sizes.insert(parts[0], parts[1].parse::<usize>().expect("a size"));
            } else if let Some(parts) = arguments("NEAP_AT(") {
                offsets.insert(
                    (parts[0], parts[1]),
                    parts[2].parse::<usize>().expect("an offset"),
                );
            }
        }
        let ours: BTreeMap<_, _> = LAYOUT
            .iter()
            .map(|(name, bytes, _)| (*name, *bytes))
            .collect();
        assert_eq!(sizes, ours);
        let ours: BTreeMap<_, _> = LAYOUT
            .iter()
            .flat_map(|(name, _, fields)| {
                fields
                    .iter()
                    .map(|(field, offset)| ((*name, *field), *offset))
            })
            .collect();
        assert_eq!(offsets, ours);
    }

    /// A launch reports its bytes to a profiler that only sees arguments: the count must come first.
    #[test]
    fn bytes_touched_comes_first_everywhere() {
        for (name, _, fields) in LAYOUT.iter().filter(|(name, ..)| name.ends_with("Params")) {
            assert_eq!(fields[0], ("bytes_touched", 0), "{name}");
        }
    }
}
