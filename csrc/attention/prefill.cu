// Prefill attention: query rows of one chunk against the sequence's paged history and the chunk itself.
//
// Problem: compute bound. 4 D FLOPs a (query head, key) pair inside the causal window.
// Work: `plan` cuts the rows of each sequence into items of at most 64 query rows; a block takes (item, q head) and strides over
// items by gridDim.x, so the grid is fixed for a bucket. Key tiles are 64 keys (32 at D = 256) at absolute multiples, from the tile of the
// first row's window start to the tile of the last row: a window is a range of tiles. Keys outside what the item's rows
// may see are never read (a page that has left the window may already hold something else) and are zero-filled.
//
// Warp map: 4 warps, 16 query rows each, all keys of a tile. S = Q K^T by mma.m16n8k16 with K as the column operand straight from
// row-major keys; P stays in registers as the A operand of P V, V by transposing ldmatrix. Q lives in registers up to D = 128, for
// D = 256 it is read from shared memory again for each tile (64 registers less), and tiles are 32 keys (16 less).
// Stages: one K and one V tile (FlashAttention-2's schedule): V of this tile loads under Q K^T, K of the next under softmax and
// P V; two barriers a tile, other blocks of the SM fill the rest. Row addresses (page look-up in 64 bits, or activation row)
// are worked out once a row by one thread each, a tile ahead, and kept in shared memory.
//
//   D     shared memory (Q + K + V + addresses)  blocks a SM (228 KB)
//   64    26 KB                                  limited by registers
//   128   50 KB                                  4
//   256   65 KB                                  2 (registers)
//
// Masking runs only on tiles that cross the diagonal, the window's edge or the last row. A tile in which a row sees
// nothing changes no bit of that row's state (2^-inf = 0, weight 2^0 = 1), and all tiles are at absolute positions, so a row's bits do
// not depend on its tile mates: a prompt in chunks equals the prompt whole (I13). The sink joins once, in the epilogue.
// Expected on Hopper: FlashAttention-2 class, 55-60 % of FlashAttention-3. arXiv 2307.08691. 64 x 64 tiles re-read K and V once a
// q head from L2; sharing them over the group and 128-row tiles are the first things to try on a device.

#include "../params.cuh"
#include "../ptx/convert.cuh"
#include "../ptx/cp_async.cuh"
#include "../ptx/ldmatrix.cuh"
#include "../ptx/mma.cuh"
#include "../reduce.cuh"
#include "softmax.cuh"
#include "tile.cuh"

namespace neap {

template <int kD_>
struct PrefillTraits {
  static constexpr int kD = kD_, kRows = 64, kKeys = kD <= 128 ? 64 : 32, kThreads = 128;
  using Shared = Tile<kD>;
  static constexpr uint32_t kK = kRows * Shared::kRowBytes, kV = kK + kKeys * Shared::kRowBytes;
  static constexpr uint32_t kRowsAPass = kThreads / Shared::kChunks;
  static constexpr bool kQInRegisters = kD <= 128;
  static_assert(kThreads >= 2 * kKeys, "one thread an address: kKeys of K, kKeys of V");
  static_assert(kRows % kRowsAPass == 0 && kKeys % kRowsAPass == 0, "copies cover a tile evenly");
};

template <class T, bool kSoftcap>
__device__ __forceinline__ void prefill_item(const PrefillAttentionParams& p, const PrefillItem& item, uint8_t* shared,
                                             uint64_t (&addresses)[2][2][T::kKeys]) {
  using Rows = typename T::Shared;
  constexpr int kD = T::kD, kSteps = kD / 16, kBlocks = T::kKeys / 16;
  const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const uint32_t head = blockIdx.y, kv_head = head / (p.num_q_heads / p.num_kv_heads);
  const uint32_t base = shared_address(shared);

  // Keys the item's rows may see, and the tiles that hold them.
  const uint32_t key_end = item.q_pos0 + item.num_rows;
  const uint32_t key_begin = p.window != 0 && item.q_pos0 + 1 > p.window ? item.q_pos0 + 1 - p.window : 0;
  const uint32_t tile_begin = key_begin / T::kKeys, tile_end = (key_end + T::kKeys - 1) / T::kKeys;

  // Address of one row a thread: K rows by the first kKeys threads, V rows by the next. 0 stands for "zero-fill".
  const uint32_t own = threadIdx.x & (T::kKeys - 1), is_v = threadIdx.x / T::kKeys;
  const uint32_t* table = p.block_table + static_cast<uint64_t>(item.seq_slot) * p.table_stride;
  const uint64_t paged = p.kv.base + p.kv.layer_offset +
                         (is_v ? p.kv.v_offset + static_cast<uint64_t>(kv_head) * p.kv.v_head_stride
                               : static_cast<uint64_t>(kv_head) * p.kv.k_head_stride);
  const uint32_t token_stride = is_v ? p.kv.v_token_stride : p.kv.k_token_stride;
  const uint64_t fresh = reinterpret_cast<uint64_t>(is_v ? p.v : p.k) + kv_head * Rows::kRowBytes;
  const uint32_t fresh_stride = p.num_kv_heads * Rows::kRowBytes;
  const auto find_addresses = [&](uint32_t tile) {
    const uint32_t key = tile * T::kKeys + own;
    uint64_t address = 0;
    if (key >= key_begin && key < key_end) {
      if (key >= item.chunk_pos0) {
        address = fresh + static_cast<uint64_t>(item.chunk_row0 + (key - item.chunk_pos0)) * fresh_stride;
      } else {
        const uint64_t entry = __ldg(table + (key >> p.kv.page_shift));
        address = paged + (entry << 8) + (key & (p.kv.page_size - 1)) * token_stride;
      }
    }
    if (T::kThreads == 2 * T::kKeys || is_v < 2) addresses[tile & 1][is_v][own] = address;
  };

  const uint32_t copy_row = threadIdx.x / Rows::kChunks, copy_chunk = threadIdx.x % Rows::kChunks;
  const auto copy_tile = [&](uint32_t tile, uint32_t which, uint32_t destination) {
#pragma unroll
    for (uint32_t pass = 0; pass < T::kKeys / T::kRowsAPass; ++pass) {
      const uint32_t row = pass * T::kRowsAPass + copy_row;
      const uint64_t address = addresses[tile & 1][which][row];
      cp_async_16(destination + Rows::offset(row, copy_chunk), reinterpret_cast<const uint8_t*>(address) + copy_chunk * 16,
                  address != 0);
    }
  };

  // Q, once; rows past the item are zero.
#pragma unroll
  for (uint32_t pass = 0; pass < T::kRows / T::kRowsAPass; ++pass) {
    const uint32_t row = pass * T::kRowsAPass + copy_row;
    const bool full = row < item.num_rows;
    const uint64_t source = static_cast<uint64_t>(item.row0 + (full ? row : 0)) * p.num_q_heads + head;
    cp_async_16(base + Rows::offset(row, copy_chunk), p.q + source * kD + copy_chunk * 8, full);
  }
  cp_async_commit();
  find_addresses(tile_begin);
  __syncthreads();
  copy_tile(tile_begin, 0, base + T::kK);
  cp_async_commit();

  float o[kD / 8][4], m[2] = {negative_infinity(), negative_infinity()}, l[2] = {0.0f, 0.0f};
#pragma unroll
  for (int n = 0; n < kD / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) o[n][i] = 0.0f;

  const uint32_t q_lane = base + warp * 16 * Rows::kRowBytes + Rows::rows_first(lane);
  const uint32_t k_lane = base + T::kK + Rows::columns_first(lane), v_lane = base + T::kV + Rows::rows_first(lane);
  uint32_t q[T::kQInRegisters ? kSteps : 1][4];
  if constexpr (T::kQInRegisters) {
    cp_async_wait<1>();
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) ldmatrix_x4(q[step], q_lane ^ Rows::at(step));
  }

  const float scale = kSoftcap ? p.sm_scale / p.softcap : p.sm_scale * kLog2E;
  const float cap = p.softcap * kLog2E;
  const uint32_t first_row = warp * 16 + g;  // and first_row + 8
  for (uint32_t tile = tile_begin; tile < tile_end; ++tile) {
    if (tile + 1 < tile_end) find_addresses(tile + 1);
    cp_async_wait<0>();
    __syncthreads();  // K has landed, the addresses of the next tile stand, and V of the last tile is no longer read
    copy_tile(tile, 1, base + T::kV);
    cp_async_commit();

    float s[2 * kBlocks][4];
#pragma unroll
    for (int n = 0; n < 2 * kBlocks; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = 0.0f;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[4];
      if constexpr (T::kQInRegisters) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = q[step][i];
      } else {
        ldmatrix_x4(a, q_lane ^ Rows::at(step));
      }
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        uint32_t k[4];
        ldmatrix_x4(k, (k_lane ^ Rows::at(step)) + block * 16 * Rows::kRowBytes);
        mma_bf16(s[2 * block], a[0], a[1], a[2], a[3], k[0], k[1]);
        mma_bf16(s[2 * block + 1], a[0], a[1], a[2], a[3], k[2], k[3]);
      }
    }
    cp_async_wait<0>();
    __syncthreads();  // V has landed, K is no longer read
    if (tile + 1 < tile_end) copy_tile(tile + 1, 0, base + T::kK);
    cp_async_commit();

#pragma unroll
    for (int n = 0; n < 2 * kBlocks; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = kSoftcap ? cap * tanhf(s[n][i] * scale) : s[n][i] * scale;
    const uint32_t key0 = tile * T::kKeys;
    const bool crosses_diagonal = key0 + T::kKeys - 1 > item.q_pos0;
    const bool crosses_window = p.window != 0 && key0 + p.window < key_end;
    if (crosses_diagonal || crosses_window) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t q_pos = item.q_pos0 + first_row + 8 * half;
        const uint32_t visible = p.window == 0 ? q_pos + 1 : min(p.window, q_pos + 1);
#pragma unroll
        for (int n = 0; n < 2 * kBlocks; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            // distance of the key behind the query; keys ahead of it wrap to huge values
            const uint32_t distance = q_pos - (key0 + n * 8 + 2 * t + i);
            if (distance >= visible) s[n][2 * half + i] = negative_infinity();
          }
      }
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
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
      const uint32_t a0 = pack_bf16x2(s[2 * block][0], s[2 * block][1]), a1 = pack_bf16x2(s[2 * block][2], s[2 * block][3]);
      const uint32_t a2 = pack_bf16x2(s[2 * block + 1][0], s[2 * block + 1][1]);
      const uint32_t a3 = pack_bf16x2(s[2 * block + 1][2], s[2 * block + 1][3]);
#pragma unroll
      for (int n = 0; n < kD / 16; ++n) {
        uint32_t v[4];
        ldmatrix_x4_trans(v, (v_lane ^ Rows::at(n)) + block * 16 * Rows::kRowBytes);
        mma_bf16(o[2 * n], a0, a1, a2, a3, v[0], v[1]);
        mma_bf16(o[2 * n + 1], a0, a1, a2, a3, v[2], v[3]);
      }
    }
  }

  // The warp's own rows of Q have served: they take its output, so that it leaves in 16-byte stores of whole rows.
  uint8_t* staged = shared + warp * 16 * Rows::kRowBytes;
  const float sink = p.sinks != nullptr ? bf16_to_float(p.sinks[head]) * kLog2E : negative_infinity();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    l[half] += __shfl_xor_sync(kAllLanes, l[half], 1);
    l[half] += __shfl_xor_sync(kAllLanes, l[half], 2);
    const float reference = finite_max(fmaxf(m[half], sink)), keep = state_weight(m[half], reference);
    const float total = fmaf(l[half], keep, state_weight(sink, reference));
    const float inverse = total > 0.0f ? keep / total : 0.0f;
#pragma unroll
    for (int n = 0; n < kD / 8; ++n)
      *reinterpret_cast<uint32_t*>(staged + Rows::offset(g + 8 * half, n) + 4 * t) =
          pack_bf16x2(o[n][2 * half] * inverse, o[n][2 * half + 1] * inverse);
  }
  __syncwarp();
#pragma unroll
  for (uint32_t pass = 0; pass < 16 * Rows::kChunks / 32; ++pass) {
    const uint32_t local = (pass * 32 + lane) / Rows::kChunks, chunk = lane % Rows::kChunks, row = warp * 16 + local;
    const uint4 packed = *reinterpret_cast<const uint4*>(staged + Rows::offset(local, chunk));
    if (row < item.num_rows) {
      const uint64_t out_row = static_cast<uint64_t>(item.row0 + row) * p.num_q_heads + head;
      *reinterpret_cast<uint4*>(p.out + out_row * kD + chunk * 8) = packed;
    }
  }
  __syncthreads();  // before the next item refills the tiles
}

template <class T, bool kSoftcap>
__device__ __forceinline__ void prefill(const PrefillAttentionParams& p) {
  extern __shared__ __align__(512) uint8_t shared[];
  __shared__ uint64_t addresses[2][2][T::kKeys];
  const uint32_t items = p.header->num_items[p.layer_group];
  for (uint32_t index = blockIdx.x; index < items; index += gridDim.x) {
    const uint2* source = reinterpret_cast<const uint2*>(p.items + index);
    const uint2 a = __ldg(source), b = __ldg(source + 1), c = __ldg(source + 2);
    prefill_item<T, kSoftcap>(p, PrefillItem{a.x, a.y, b.x, b.y, c.x, c.y}, shared, addresses);
  }
}

#define NEAP_PREFILL(D)                                                                                                \
  extern "C" __global__ void __launch_bounds__(128) paged_prefill_bf16_d##D(const __grid_constant__ PrefillAttentionParams p) { \
    prefill<PrefillTraits<D>, false>(p);                                                                              \
  }                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(128)                                                                   \
      paged_prefill_bf16_d##D##_softcap(const __grid_constant__ PrefillAttentionParams p) {                           \
    prefill<PrefillTraits<D>, true>(p);                                                                               \
  }

NEAP_PREFILL(64)
NEAP_PREFILL(128)
NEAP_PREFILL(256)

}  // namespace neap
