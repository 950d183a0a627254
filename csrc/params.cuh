// Parameter structs of every kernel, mirrored by src/kernels/params.rs.
//
// A kernel takes exactly one of these by value. The first field is always `bytes_touched`, the number
// of bytes of device memory the launch has to move, so that a profiler which only sees kernel arguments
// can print a bandwidth. NEAP_SIZE and NEAP_AT state the layout; a unit test in params.rs reads these
// very lines and compares them with the layout rustc chose.
//
// Shapes are row-major with the last index fastest. T = rows of the bucket (tokens), R = rows of
// the bucket whose logits are wanted, H = hidden size, D = head_dim. Pointers to bf16 and f32 arrays are 16-byte aligned.
#pragma once

#include <cstddef>
#include <cstdint>

namespace neap {

using bf16 = uint16_t;  // storage only; arithmetic is f32

// Row counts of one step. The grid of a captured launch is fixed for its bucket; these say how much of it is real.
struct StepHeader {
  uint32_t num_tokens;         // rows [0, num_tokens) of every T-shaped tensor are real
  uint32_t num_outputs;        // rows [0, num_outputs) of every R-shaped tensor are real
  uint32_t num_table_updates;  // entries of TableUpdateParams::updates
  uint32_t num_seqs;           // sequences of the step
  uint32_t num_items[8];       // attention work items, by layer group
  uint32_t reserved[4];
};

// tables[group][seq_slot * stride + column] = entry
struct TableUpdate {
  uint32_t group;
  uint32_t seq_slot;
  uint32_t column;
  uint32_t entry;
};

// Keys [kv_begin, kv_end) of one decode row; row and seq_slot are indices, kv positions are absolute.
struct DecodeItem {
  uint32_t row;
  uint32_t seq_slot;
  uint32_t kv_begin;
  uint32_t kv_end;
};

// Items [first_item, first_item + num_items) belong to the row.
struct DecodeRow {
  uint32_t first_item;
  uint32_t num_items;
};

// Up to 64 query rows of one sequence. Keys at positions below chunk_pos0 lie in pages, key p at or above it
// in activation row chunk_row0 + (p - chunk_pos0).
struct PrefillItem {
  uint32_t row0;
  uint32_t num_rows;
  uint32_t q_pos0;
  uint32_t seq_slot;
  uint32_t chunk_row0;
  uint32_t chunk_pos0;
};

// Where one layer's keys and values of one pool lie. With e the block-table entry of the token's page:
//   K row = base + 256 * e + layer_offset + head * k_head_stride + token_in_page * k_token_stride
//   V row = base + 256 * e + layer_offset + v_offset + head * v_head_stride + token_in_page * v_token_stride
// Strides and offsets are bytes, all multiples of 16.
struct KvView {
  uint64_t base;
  uint64_t layer_offset;
  uint32_t k_head_stride;
  uint32_t k_token_stride;
  uint32_t v_offset;
  uint32_t v_head_stride;
  uint32_t v_token_stride;
  uint32_t page_size;   // tokens, a power of two in 1..=256
  uint32_t page_shift;  // log2(page_size)
  uint32_t reserved;
};

struct TableUpdateParams {
  uint64_t bytes_touched;
  const StepHeader* header;
  const TableUpdate* updates;  // [num_table_updates]
  uint32_t* tables[8];         // [group] -> [seq_slots, strides[group]] u32
  uint32_t strides[8];
};

struct EmbedParams {
  uint64_t bytes_touched;
  const StepHeader* header;
  const uint32_t* token_ids;  // [T]
  const bf16* table;          // [vocab, H]
  float* residual;            // [T, H]
  uint32_t hidden;            // H, multiple of 4
  float scale;
};

struct AddNormParams {
  uint64_t bytes_touched;
  const StepHeader* header;
  float* residual;              // [T, H], updated in place unless rows are gathered
  const float* y;               // [T, H] or null: what is added
  const bf16* post_weight;      // [H] or null: norm of y before the add
  const bf16* next_weight;      // [H] or null: norm of the sum
  bf16* out;                    // [T, H], or [R, H] when rows are gathered; null iff next_weight is
  const uint32_t* gather_rows;  // [R] token row of each output row, or null
  uint32_t hidden;              // H, multiple of 4, at most 16384
  float eps;
  float weight_offset;          // 1 for Gemma, 0 for Llama
  uint32_t reserved;
};

struct GemmParams {
  uint64_t bytes_touched;
  const StepHeader* header;
  const bf16* x;       // [T or R, K]
  const bf16* weight;  // [N, K]
  const bf16* bias;    // [N] or null
  float* y;            // [T or R, N]
  uint32_t n;
  uint32_t k;
  float softcap;       // y = softcap * tanh(y / softcap) when positive
  uint32_t rows_from;  // 0: num_tokens rows, 1: num_outputs rows
};

struct QkvRopeParams {
  uint64_t bytes_touched;
  const StepHeader* header;
  const float* qkv;           // [T, (Hq + 2 Hkv) * D]
  const bf16* q_norm;         // [D] or null
  const bf16* k_norm;         // [D] or null
  const float* inv_freq;      // [D / 2] radians a position
  const uint32_t* positions;  // [T]
  bf16* q;                    // [T, Hq, D]
  bf16* k;                    // [T, Hkv, D], prefill only
  bf16* v;                    // [T, Hkv, D], prefill only
  const uint64_t* slots;      // [T] entry << 32 | token_in_page, ~0 = do not write; decode only
  KvView kv;                  // decode only
  uint32_t num_q_heads;
  uint32_t num_kv_heads;
  uint32_t head_dim;
  float eps;
  float weight_offset;
  float attention_factor;     // multiplies cos and sin
};

struct KvAppendParams {
  uint64_t bytes_touched;
  const StepHeader* header;
  const bf16* k;          // [T, Hkv, D]
  const bf16* v;          // [T, Hkv, D]
  const uint64_t* slots;  // [T] entry << 32 | token_in_page, ~0 = do not write
  KvView kv;
  uint32_t num_kv_heads;
  uint32_t head_dim;      // multiple of 8
};

struct PageCopyParams {
  uint64_t bytes_touched;
  const uint32_t* pairs;      // [num_pairs, 2] source entry, destination entry
  uint64_t base;
  uint64_t layer_stride;
  uint32_t num_pairs;
  uint32_t num_layers;
  uint32_t layer_page_bytes;  // multiple of 16
  uint32_t reserved;
  const uint32_t* count;      // or null: how many of the pairs there are
};

struct DecodeAttentionParams {
  uint64_t bytes_touched;
  const StepHeader* header;
  const DecodeItem* items;      // [header.num_items[layer_group]]
  const bf16* q;                // [T, Hq, D]
  float* partial_o;             // [max items, Hq, D] not yet divided by l
  float2* partial_ml;           // [max items, Hq] m in base 2, l
  const uint32_t* block_table;  // [seq_slots, table_stride]
  KvView kv;
  uint32_t table_stride;
  uint32_t layer_group;
  uint32_t num_q_heads;
  uint32_t num_kv_heads;
  uint32_t head_dim;
  float sm_scale;
  float softcap;                // 0 = none
  uint32_t reserved;
};

struct DecodeMergeParams {
  uint64_t bytes_touched;
  const StepHeader* header;
  const DecodeRow* rows;     // [T]
  const float* partial_o;    // [max items, Hq, D]
  const float2* partial_ml;  // [max items, Hq]
  const bf16* sinks;         // [Hq] logits or null
  bf16* out;                 // [T, Hq * D]
  uint32_t num_q_heads;
  uint32_t head_dim;
};

struct PrefillAttentionParams {
  uint64_t bytes_touched;
  const StepHeader* header;
  const PrefillItem* items;     // [header.num_items[layer_group]]
  const bf16* q;                // [T, Hq, D]
  const bf16* k;                // [T, Hkv, D] keys of the current chunks
  const bf16* v;                // [T, Hkv, D]
  const uint32_t* block_table;  // [seq_slots, table_stride]
  const bf16* sinks;            // [Hq] logits or null
  bf16* out;                    // [T, Hq * D]
  KvView kv;
  uint32_t table_stride;
  uint32_t layer_group;
  uint32_t num_q_heads;
  uint32_t num_kv_heads;
  uint32_t head_dim;
  uint32_t window;              // keys a query sees, itself included; 0 = all
  float sm_scale;
  float softcap;                // 0 = none
};

struct GatedActParams {
  uint64_t bytes_touched;
  const StepHeader* header;
  const float* gate_up;   // [T, 2 I] gate then up
  bf16* out;              // [T, I]
  uint32_t intermediate;  // I, multiple of 4
  uint32_t activation;    // 0: GELU (tanh form), 1: SiLU
};

struct ArgmaxParams {
  uint64_t bytes_touched;
  const StepHeader* header;
  const float* logits;  // [R, vocab]
  uint32_t* ids;        // [R]
  uint32_t vocab;
  uint32_t reserved;
};

#define NEAP_SIZE(type, bytes) static_assert(sizeof(type) == bytes, "size of " #type)
#define NEAP_AT(type, field, bytes) static_assert(offsetof(type, field) == bytes, "offset of " #type "::" #field)

NEAP_SIZE(StepHeader, 64);
NEAP_AT(StepHeader, num_tokens, 0);
NEAP_AT(StepHeader, num_outputs, 4);
NEAP_AT(StepHeader, num_table_updates, 8);
NEAP_AT(StepHeader, num_seqs, 12);
NEAP_AT(StepHeader, num_items, 16);
NEAP_AT(StepHeader, reserved, 48);

NEAP_SIZE(TableUpdate, 16);
NEAP_AT(TableUpdate, group, 0);
NEAP_AT(TableUpdate, seq_slot, 4);
NEAP_AT(TableUpdate, column, 8);
NEAP_AT(TableUpdate, entry, 12);

NEAP_SIZE(DecodeItem, 16);
NEAP_AT(DecodeItem, row, 0);
NEAP_AT(DecodeItem, seq_slot, 4);
NEAP_AT(DecodeItem, kv_begin, 8);
NEAP_AT(DecodeItem, kv_end, 12);

NEAP_SIZE(DecodeRow, 8);
NEAP_AT(DecodeRow, first_item, 0);
NEAP_AT(DecodeRow, num_items, 4);

NEAP_SIZE(PrefillItem, 24);
NEAP_AT(PrefillItem, row0, 0);
NEAP_AT(PrefillItem, num_rows, 4);
NEAP_AT(PrefillItem, q_pos0, 8);
NEAP_AT(PrefillItem, seq_slot, 12);
NEAP_AT(PrefillItem, chunk_row0, 16);
NEAP_AT(PrefillItem, chunk_pos0, 20);

NEAP_SIZE(KvView, 48);
NEAP_AT(KvView, base, 0);
NEAP_AT(KvView, layer_offset, 8);
NEAP_AT(KvView, k_head_stride, 16);
NEAP_AT(KvView, k_token_stride, 20);
NEAP_AT(KvView, v_offset, 24);
NEAP_AT(KvView, v_head_stride, 28);
NEAP_AT(KvView, v_token_stride, 32);
NEAP_AT(KvView, page_size, 36);
NEAP_AT(KvView, page_shift, 40);
NEAP_AT(KvView, reserved, 44);

NEAP_SIZE(TableUpdateParams, 120);
NEAP_AT(TableUpdateParams, bytes_touched, 0);
NEAP_AT(TableUpdateParams, header, 8);
NEAP_AT(TableUpdateParams, updates, 16);
NEAP_AT(TableUpdateParams, tables, 24);
NEAP_AT(TableUpdateParams, strides, 88);

NEAP_SIZE(EmbedParams, 48);
NEAP_AT(EmbedParams, bytes_touched, 0);
NEAP_AT(EmbedParams, header, 8);
NEAP_AT(EmbedParams, token_ids, 16);
NEAP_AT(EmbedParams, table, 24);
NEAP_AT(EmbedParams, residual, 32);
NEAP_AT(EmbedParams, hidden, 40);
NEAP_AT(EmbedParams, scale, 44);

NEAP_SIZE(AddNormParams, 80);
NEAP_AT(AddNormParams, bytes_touched, 0);
NEAP_AT(AddNormParams, header, 8);
NEAP_AT(AddNormParams, residual, 16);
NEAP_AT(AddNormParams, y, 24);
NEAP_AT(AddNormParams, post_weight, 32);
NEAP_AT(AddNormParams, next_weight, 40);
NEAP_AT(AddNormParams, out, 48);
NEAP_AT(AddNormParams, gather_rows, 56);
NEAP_AT(AddNormParams, hidden, 64);
NEAP_AT(AddNormParams, eps, 68);
NEAP_AT(AddNormParams, weight_offset, 72);
NEAP_AT(AddNormParams, reserved, 76);

NEAP_SIZE(GemmParams, 64);
NEAP_AT(GemmParams, bytes_touched, 0);
NEAP_AT(GemmParams, header, 8);
NEAP_AT(GemmParams, x, 16);
NEAP_AT(GemmParams, weight, 24);
NEAP_AT(GemmParams, bias, 32);
NEAP_AT(GemmParams, y, 40);
NEAP_AT(GemmParams, n, 48);
NEAP_AT(GemmParams, k, 52);
NEAP_AT(GemmParams, softcap, 56);
NEAP_AT(GemmParams, rows_from, 60);

NEAP_SIZE(QkvRopeParams, 160);
NEAP_AT(QkvRopeParams, bytes_touched, 0);
NEAP_AT(QkvRopeParams, header, 8);
NEAP_AT(QkvRopeParams, qkv, 16);
NEAP_AT(QkvRopeParams, q_norm, 24);
NEAP_AT(QkvRopeParams, k_norm, 32);
NEAP_AT(QkvRopeParams, inv_freq, 40);
NEAP_AT(QkvRopeParams, positions, 48);
NEAP_AT(QkvRopeParams, q, 56);
NEAP_AT(QkvRopeParams, k, 64);
NEAP_AT(QkvRopeParams, v, 72);
NEAP_AT(QkvRopeParams, slots, 80);
NEAP_AT(QkvRopeParams, kv, 88);
NEAP_AT(QkvRopeParams, num_q_heads, 136);
NEAP_AT(QkvRopeParams, num_kv_heads, 140);
NEAP_AT(QkvRopeParams, head_dim, 144);
NEAP_AT(QkvRopeParams, eps, 148);
NEAP_AT(QkvRopeParams, weight_offset, 152);
NEAP_AT(QkvRopeParams, attention_factor, 156);

NEAP_SIZE(KvAppendParams, 96);
NEAP_AT(KvAppendParams, bytes_touched, 0);
NEAP_AT(KvAppendParams, header, 8);
NEAP_AT(KvAppendParams, k, 16);
NEAP_AT(KvAppendParams, v, 24);
NEAP_AT(KvAppendParams, slots, 32);
NEAP_AT(KvAppendParams, kv, 40);
NEAP_AT(KvAppendParams, num_kv_heads, 88);
NEAP_AT(KvAppendParams, head_dim, 92);

NEAP_SIZE(PageCopyParams, 56);
NEAP_AT(PageCopyParams, bytes_touched, 0);
NEAP_AT(PageCopyParams, pairs, 8);
NEAP_AT(PageCopyParams, base, 16);
NEAP_AT(PageCopyParams, layer_stride, 24);
NEAP_AT(PageCopyParams, num_pairs, 32);
NEAP_AT(PageCopyParams, num_layers, 36);
NEAP_AT(PageCopyParams, layer_page_bytes, 40);
NEAP_AT(PageCopyParams, reserved, 44);
NEAP_AT(PageCopyParams, count, 48);

NEAP_SIZE(DecodeAttentionParams, 136);
NEAP_AT(DecodeAttentionParams, bytes_touched, 0);
NEAP_AT(DecodeAttentionParams, header, 8);
NEAP_AT(DecodeAttentionParams, items, 16);
NEAP_AT(DecodeAttentionParams, q, 24);
NEAP_AT(DecodeAttentionParams, partial_o, 32);
NEAP_AT(DecodeAttentionParams, partial_ml, 40);
NEAP_AT(DecodeAttentionParams, block_table, 48);
NEAP_AT(DecodeAttentionParams, kv, 56);
NEAP_AT(DecodeAttentionParams, table_stride, 104);
NEAP_AT(DecodeAttentionParams, layer_group, 108);
NEAP_AT(DecodeAttentionParams, num_q_heads, 112);
NEAP_AT(DecodeAttentionParams, num_kv_heads, 116);
NEAP_AT(DecodeAttentionParams, head_dim, 120);
NEAP_AT(DecodeAttentionParams, sm_scale, 124);
NEAP_AT(DecodeAttentionParams, softcap, 128);
NEAP_AT(DecodeAttentionParams, reserved, 132);

NEAP_SIZE(DecodeMergeParams, 64);
NEAP_AT(DecodeMergeParams, bytes_touched, 0);
NEAP_AT(DecodeMergeParams, header, 8);
NEAP_AT(DecodeMergeParams, rows, 16);
NEAP_AT(DecodeMergeParams, partial_o, 24);
NEAP_AT(DecodeMergeParams, partial_ml, 32);
NEAP_AT(DecodeMergeParams, sinks, 40);
NEAP_AT(DecodeMergeParams, out, 48);
NEAP_AT(DecodeMergeParams, num_q_heads, 56);
NEAP_AT(DecodeMergeParams, head_dim, 60);

NEAP_SIZE(PrefillAttentionParams, 152);
NEAP_AT(PrefillAttentionParams, bytes_touched, 0);
NEAP_AT(PrefillAttentionParams, header, 8);
NEAP_AT(PrefillAttentionParams, items, 16);
NEAP_AT(PrefillAttentionParams, q, 24);
NEAP_AT(PrefillAttentionParams, k, 32);
NEAP_AT(PrefillAttentionParams, v, 40);
NEAP_AT(PrefillAttentionParams, block_table, 48);
NEAP_AT(PrefillAttentionParams, sinks, 56);
NEAP_AT(PrefillAttentionParams, out, 64);
NEAP_AT(PrefillAttentionParams, kv, 72);
NEAP_AT(PrefillAttentionParams, table_stride, 120);
NEAP_AT(PrefillAttentionParams, layer_group, 124);
NEAP_AT(PrefillAttentionParams, num_q_heads, 128);
NEAP_AT(PrefillAttentionParams, num_kv_heads, 132);
NEAP_AT(PrefillAttentionParams, head_dim, 136);
NEAP_AT(PrefillAttentionParams, window, 140);
NEAP_AT(PrefillAttentionParams, sm_scale, 144);
NEAP_AT(PrefillAttentionParams, softcap, 148);

NEAP_SIZE(GatedActParams, 40);
NEAP_AT(GatedActParams, bytes_touched, 0);
NEAP_AT(GatedActParams, header, 8);
NEAP_AT(GatedActParams, gate_up, 16);
NEAP_AT(GatedActParams, out, 24);
NEAP_AT(GatedActParams, intermediate, 32);
NEAP_AT(GatedActParams, activation, 36);

NEAP_SIZE(ArgmaxParams, 40);
NEAP_AT(ArgmaxParams, bytes_touched, 0);
NEAP_AT(ArgmaxParams, header, 8);
NEAP_AT(ArgmaxParams, logits, 16);
NEAP_AT(ArgmaxParams, ids, 24);
NEAP_AT(ArgmaxParams, vocab, 32);
NEAP_AT(ArgmaxParams, reserved, 36);

}  // namespace neap
