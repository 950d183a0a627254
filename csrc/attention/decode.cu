// Paged decode attention: one query token a sequence, keys and values read from pages, split over the keys.
//
// Problem: memory bound. 4 Hkv D bytes a key and layer, 4 Hq D FLOPs: 2 to 16 FLOP a byte. What counts is bytes in flight, not mma shape.
//
// Work: `plan` cuts each row's keys into items at absolute multiples of the row's split size; a block takes (item, kv head) and
// strides over items by gridDim.x, so the grid is fixed for a bucket and idle blocks leave at once. A window is the
// range of the items, never a mask: bytes read do not grow with kv_len.
//
// Warp map: key p belongs to sub-tile p / kKeys, sub-tile s to warp s % kWarps; both absolute. Each warp runs alone: its own ring of
// cp.async stages, its own {m, l, o}, no block barrier until the end, where the warps' states merge in warp order through
// shared memory. The q heads of a group lie on the 16 rows of mma.m16n8k16 (group_size <= 16; rows past it are zero);
// kHalf drops the softmax work of rows 8..15 for groups of at most 8.
// Pages: lane i of the warp holds the block-table entry of key i, fetched one stage ahead; rows get it by shuffle and add
// 256 * entry in 64 bits, so any page size and any placement cost the same. Keys outside the item are zero-filled and
// their scores set to -inf: 0 * V is then exactly 0 whatever lies beside them in the page.
//
//   D    warps  keys a warp  stages  shared memory  bytes in flight a block
//   64     4        32          2        64 KB          64 KB
//   128    4        16          3        96 KB          96 KB
//   256    2        16          2        64 KB          64 KB
//
// Output: o (not divided by l) and {m, l} of every item, merged by decode_merge. Order of every sum (I13) is fixed by absolute key
// positions and the row's own kv_len. Expected 85-88 % of copy bandwidth at B >= 32, kv_len >= 8k; short rows are launch bound.
// Flash-Decoding (PyTorch blog, 2023-10), FlashInfer arXiv 2501.01005. P is rounded to bf16 for P.V, l sums the unrounded values.

#include "../params.cuh"
#include "../ptx/convert.cuh"
#include "../ptx/cp_async.cuh"
#include "../ptx/ldmatrix.cuh"
#include "../ptx/mma.cuh"
#include "../reduce.cuh"
#include "softmax.cuh"
#include "tile.cuh"

namespace neap {

template <int kD_, int kWarps_, int kKeys_, int kStages_>
struct DecodeTraits {
  static constexpr int kD = kD_, kWarps = kWarps_, kKeys = kKeys_, kStages = kStages_;
  using Rows = Tile<kD>;
  static constexpr uint32_t kHalfStageBytes = kKeys * Rows::kRowBytes;  // K, then V
  static constexpr uint32_t kStageBytes = 2 * kHalfStageBytes;
  static constexpr uint32_t kWarpBytes = kStages * kStageBytes;
  static constexpr uint32_t kRowsAPass = 32 / (Rows::kChunks < 32 ? Rows::kChunks : 32);
  // f32 o of one warp, rows padded by 8 floats so that the eight g of a fragment store hit different banks.
  static constexpr uint32_t kOutStride = kD + 8;
  static_assert(kKeys % 16 == 0 && kKeys <= 32, "a lane holds the entry of one key");
  static_assert(Rows::kChunks <= 32, "one pass covers whole rows");
  static_assert(16 * kOutStride * sizeof(float) <= kWarpBytes, "the merge reuses the warp's stages");
};

template <class T, bool kHalf, bool kSoftcap>
__device__ __forceinline__ void decode_item(const DecodeAttentionParams& p, const DecodeItem& item, uint32_t item_index,
                                            uint8_t* shared, float (&state_m)[T::kWarps][16], float (&state_l)[T::kWarps][16]) {
  using Rows = typename T::Rows;
  constexpr int kD = T::kD, kHalves = kHalf ? 1 : 2, kSteps = kD / 16, kBlocks = T::kKeys / 16;
  const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const uint32_t kv_head = blockIdx.y, group = p.num_q_heads / p.num_kv_heads;
  const uint32_t base = shared_address(shared) + warp * T::kWarpBytes;

  // Q fragments; rows past the group are zero.
  uint32_t q[kSteps][4];
  const bf16* q_rows = p.q + (static_cast<uint64_t>(item.row) * p.num_q_heads + kv_head * group) * kD + 2 * t;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t head = g + 8 * half;
    const bool real = head < group && half < kHalves;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      q[step][half] = real ? __ldg(reinterpret_cast<const uint32_t*>(q_rows + head * kD + step * 16)) : 0;
      q[step][2 + half] = real ? __ldg(reinterpret_cast<const uint32_t*>(q_rows + head * kD + step * 16 + 8)) : 0;
    }
  }

  float o[kD / 8][4], m[kHalves], l[kHalves];
#pragma unroll
  for (int n = 0; n < kD / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) o[n][i] = 0.0f;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) m[half] = negative_infinity(), l[half] = 0.0f;

  // This warp's sub-tiles: first, first + kWarps, ... below last.
  const uint32_t begin = item.kv_begin, end = item.kv_end;
  const uint32_t lowest = begin / T::kKeys, last = (end + T::kKeys - 1) / T::kKeys;
  const uint32_t first = lowest + (warp + T::kWarps - lowest % T::kWarps) % T::kWarps;

  const uint32_t* table = p.block_table + static_cast<uint64_t>(item.seq_slot) * p.table_stride;
  const uint32_t copy_row = lane / Rows::kChunks, copy_chunk = lane % Rows::kChunks;
  const uint8_t* keys = reinterpret_cast<const uint8_t*>(p.kv.base) + p.kv.layer_offset + copy_chunk * 16;
  const uint8_t* values = keys + p.kv.v_offset + static_cast<uint64_t>(kv_head) * p.kv.v_head_stride;
  keys += static_cast<uint64_t>(kv_head) * p.kv.k_head_stride;
  const uint32_t in_page_mask = p.kv.page_size - 1;

  const auto fetch_entry = [&](uint32_t sub_tile) {
    const uint32_t key = sub_tile * T::kKeys + (lane & (T::kKeys - 1));
    return key >= begin && key < end ? __ldg(table + (key >> p.kv.page_shift)) : 0u;
  };
  const auto copy_sub_tile = [&](uint32_t sub_tile, uint32_t stage, uint32_t entry) {
    const uint32_t destination = base + stage * T::kStageBytes;
#pragma unroll
    for (uint32_t pass = 0; pass < T::kKeys / T::kRowsAPass; ++pass) {
      const uint32_t row = pass * T::kRowsAPass + copy_row;
      const uint32_t key = sub_tile * T::kKeys + row, in_page = key & in_page_mask;
      const bool full = key >= begin && key < end;
      const uint64_t page = static_cast<uint64_t>(__shfl_sync(kAllLanes, entry, row)) << 8;
      const uint32_t offset = Rows::offset(row, copy_chunk);
      cp_async_16(destination + offset, keys + page + in_page * p.kv.k_token_stride, full);
      cp_async_16(destination + T::kHalfStageBytes + offset, values + page + in_page * p.kv.v_token_stride, full);
    }
  };

  const float scale = kSoftcap ? p.sm_scale / p.softcap : p.sm_scale * kLog2E;
  const float cap = p.softcap * kLog2E;
  const uint32_t k_lane = Rows::columns_first(lane), v_lane = T::kHalfStageBytes + Rows::rows_first(lane);

  uint32_t entry = fetch_entry(first), ahead = first;
#pragma unroll
  for (int stage = 0; stage < T::kStages - 1; ++stage) {
    if (ahead < last) {
      copy_sub_tile(ahead, stage, entry);
      ahead += T::kWarps;
      entry = fetch_entry(ahead);
    }
    cp_async_commit();
  }
  uint32_t stage = 0, refill = T::kStages - 1;
  for (uint32_t sub_tile = first; sub_tile < last; sub_tile += T::kWarps) {
    cp_async_wait<T::kStages - 2>();
    __syncwarp();  // this stage has landed for all lanes, and all have left the one refilled next
    if (ahead < last) {
      copy_sub_tile(ahead, refill, entry);
      ahead += T::kWarps;
      entry = fetch_entry(ahead);
    }
    cp_async_commit();

    const uint32_t k_stage = base + stage * T::kStageBytes + k_lane, v_stage = base + stage * T::kStageBytes + v_lane;
    float s[2 * kBlocks][4];
#pragma unroll
    for (int n = 0; n < 2 * kBlocks; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = 0.0f;
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        uint32_t k[4];
        ldmatrix_x4(k, (k_stage ^ Rows::at(step)) + block * 16 * Rows::kRowBytes);
        mma_bf16(s[2 * block], q[step][0], q[step][1], q[step][2], q[step][3], k[0], k[1]);
        mma_bf16(s[2 * block + 1], q[step][0], q[step][1], q[step][2], q[step][3], k[2], k[3]);
      }

#pragma unroll
    for (int n = 0; n < 2 * kBlocks; ++n)
#pragma unroll
      for (int i = 0; i < 2 * kHalves; ++i) s[n][i] = kSoftcap ? cap * tanhf(s[n][i] * scale) : s[n][i] * scale;
    const uint32_t key0 = sub_tile * T::kKeys;
    if (key0 < begin || key0 + T::kKeys > end) {
#pragma unroll
      for (int n = 0; n < 2 * kBlocks; ++n)
#pragma unroll
        for (int i = 0; i < 2 * kHalves; ++i) {
          const uint32_t key = key0 + n * 8 + 2 * t + (i & 1);
          if (key < begin || key >= end) s[n][i] = negative_infinity();
        }
    }

#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      float top = s[0][2 * half];
#pragma unroll
      for (int n = 0; n < 2 * kBlocks; ++n) top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
      const float next = fmaxf(m[half], top), reference = finite_max(next);
      const float keep = state_weight(m[half], reference);
      m[half] = next;
      l[half] *= keep;
#pragma unroll
      for (int n = 0; n < kD / 8; ++n) o[n][2 * half] *= keep, o[n][2 * half + 1] *= keep;
#pragma unroll
      for (int n = 0; n < 2 * kBlocks; ++n) {
        s[n][2 * half] = state_weight(s[n][2 * half], reference);
        s[n][2 * half + 1] = state_weight(s[n][2 * half + 1], reference);
        l[half] += s[n][2 * half] + s[n][2 * half + 1];
      }
    }

#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const uint32_t a0 = pack_bf16x2(s[2 * block][0], s[2 * block][1]), a2 = pack_bf16x2(s[2 * block + 1][0], s[2 * block + 1][1]);
      const uint32_t a1 = kHalf ? 0 : pack_bf16x2(s[2 * block][2], s[2 * block][3]);
      const uint32_t a3 = kHalf ? 0 : pack_bf16x2(s[2 * block + 1][2], s[2 * block + 1][3]);
#pragma unroll
      for (int n = 0; n < kD / 16; ++n) {
        uint32_t v[4];
        ldmatrix_x4_trans(v, (v_stage ^ Rows::at(n)) + block * 16 * Rows::kRowBytes);
        mma_bf16(o[2 * n], a0, a1, a2, a3, v[0], v[1]);
        mma_bf16(o[2 * n + 1], a0, a1, a2, a3, v[2], v[3]);
      }
    }
    stage = stage + 1 == T::kStages ? 0 : stage + 1;
    refill = refill + 1 == T::kStages ? 0 : refill + 1;
  }
  __syncwarp();  // every stage with rows has been waited for, and all lanes have read it: the output takes their place

  float* mine = reinterpret_cast<float*>(shared + warp * T::kWarpBytes);
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    l[half] += __shfl_xor_sync(kAllLanes, l[half], 1);
    l[half] += __shfl_xor_sync(kAllLanes, l[half], 2);
    const uint32_t head = g + 8 * half;
    if (t == 0) state_m[warp][head] = m[half], state_l[warp][head] = l[half];
    if (head < group) {
#pragma unroll
      for (int n = 0; n < kD / 8; ++n)
        *reinterpret_cast<float2*>(mine + head * T::kOutStride + n * 8 + 2 * t) = make_float2(o[n][2 * half], o[n][2 * half + 1]);
    }
  }
  __syncthreads();

  const uint64_t out_row = static_cast<uint64_t>(item_index) * p.num_q_heads + kv_head * group;
  for (uint32_t i = threadIdx.x; i < group * (kD / 4); i += blockDim.x) {
    const uint32_t head = i / (kD / 4), dim = i % (kD / 4) * 4;
    float top = state_m[0][head];
#pragma unroll
    for (int other = 1; other < T::kWarps; ++other) top = fmaxf(top, state_m[other][head]);
    const float reference = finite_max(top);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float total = 0.0f;
#pragma unroll
    for (int other = 0; other < T::kWarps; ++other) {
      const float weight = state_weight(state_m[other][head], reference);
      const float4 part = *reinterpret_cast<const float4*>(shared + other * T::kWarpBytes + (head * T::kOutStride + dim) * sizeof(float));
      sum.x = fmaf(weight, part.x, sum.x);
      sum.y = fmaf(weight, part.y, sum.y);
      sum.z = fmaf(weight, part.z, sum.z);
      sum.w = fmaf(weight, part.w, sum.w);
      total = fmaf(weight, state_l[other][head], total);
    }
    *reinterpret_cast<float4*>(p.partial_o + (out_row + head) * kD + dim) = sum;
    if (dim == 0) p.partial_ml[out_row + head] = make_float2(top, total);
  }
  __syncthreads();  // before the next item refills the stages
}

template <class T, bool kHalf, bool kSoftcap>
__device__ __forceinline__ void paged_decode(const DecodeAttentionParams& p) {
  extern __shared__ __align__(512) uint8_t shared[];
  __shared__ float state_m[T::kWarps][16], state_l[T::kWarps][16];
  const uint32_t items = p.header->num_items[p.layer_group];
  for (uint32_t index = blockIdx.x; index < items; index += gridDim.x) {
    const uint4 packed = __ldg(reinterpret_cast<const uint4*>(p.items + index));
    decode_item<T, kHalf, kSoftcap>(p, DecodeItem{packed.x, packed.y, packed.z, packed.w}, index, shared, state_m, state_l);
  }
}

#define NEAP_DECODE(D, WARPS, KEYS, STAGES, G, HALF)                                                                     \
  extern "C" __global__ void __launch_bounds__(WARPS * 32)                                                              \
      paged_decode_bf16_d##D##_g##G(const __grid_constant__ DecodeAttentionParams p) {                                  \
    paged_decode<DecodeTraits<D, WARPS, KEYS, STAGES>, HALF, false>(p);                                                 \
  }                                                                                                                     \
  extern "C" __global__ void __launch_bounds__(WARPS * 32)                                                              \
      paged_decode_bf16_d##D##_g##G##_softcap(const __grid_constant__ DecodeAttentionParams p) {                        \
    paged_decode<DecodeTraits<D, WARPS, KEYS, STAGES>, HALF, true>(p);                                                  \
  }

NEAP_DECODE(64, 4, 32, 2, 8, true)
NEAP_DECODE(64, 4, 32, 2, 16, false)
NEAP_DECODE(128, 4, 16, 3, 8, true)
NEAP_DECODE(128, 4, 16, 3, 16, false)
NEAP_DECODE(256, 2, 16, 2, 8, true)
NEAP_DECODE(256, 2, 16, 2, 16, false)

}  // namespace neap
