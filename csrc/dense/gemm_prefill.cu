// GEMM for prefill: y[t, n] = sum_k x[t, k] * weight[n, k], many rows t.
//
// Problem: compute bound from about 300 rows. 2 T N K FLOPs; (T K + N K) * 2 + 4 T N bytes.
// Tile kBM x kBN x 64, cp.async through a ring of kStages tiles, ldmatrix, mma.m16n8k16. A shared-memory row is
// 128 bytes, 8 chunks of 16; chunk c of row r lies at c ^ (r & 7), so that the eight rows of an ldmatrix, and the eight lanes
// that fill a row, touch all 32 banks once. Warps tile the block kWarpsM x kWarpsN.
// Ring: one barrier a k tile. The barrier at the top of iteration i says both "tile i has landed" and "all have left
// tile i - 1", whose slot the copy issued right after it refills.
//   64x64:   4 warps of 32x32, 48 KB, for narrow weights and small buckets (more blocks)
//   128x128: 8 warps of 64x32, 96 KB, two thirds less shared-memory traffic a FLOP
// Order of the sum (I13): k ascends in steps of 16 in one accumulator, in both instances; rows past the end are
// zero-filled and never stored, K past the end adds products of zeros.
// Expected on Hopper: 55-60 % of cuBLAS, the ceiling of mma.sync there; wgmma belongs in its own kernel.
// Swizzle and pipeline follow CUTLASS's Ampere mainloop in idea (arXiv 2208.11174 measures the instruction).

#include "../params.cuh"
#include "../ptx/convert.cuh"
#include "../ptx/cp_async.cuh"
#include "../ptx/ldmatrix.cuh"
#include "../ptx/mma.cuh"

namespace neap {

template <int kBM_, int kBN_, int kWarpsM_, int kWarpsN_, int kStages_>
struct GemmPrefillTraits {
  static constexpr int kBM = kBM_, kBN = kBN_, kWarpsN = kWarpsN_, kStages = kStages_;
  static constexpr int kThreads = 32 * kWarpsM_ * kWarpsN_;
  static constexpr int kWM = kBM / kWarpsM_, kWN = kBN / kWarpsN_;
  static constexpr int kMI = kWM / 16, kNI = kWN / 16;
  static constexpr uint32_t kRowBytes = 128, kBK = 64;
  static constexpr uint32_t kStageBytes = (kBM + kBN) * kRowBytes;
  static constexpr int kRowsAPass = kThreads / 8;
  static_assert(kWM % 16 == 0 && kWN % 16 == 0, "warp tiles are whole mma tiles");
  static_assert(kBM % kRowsAPass == 0 && kBN % kRowsAPass == 0 && kRowsAPass % 8 == 0, "copies cover the tile evenly");
};

template <class T>
__device__ __forceinline__ void gemm_prefill(const GemmParams& p) {
  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t rows = p.rows_from == 0 ? p.header->num_tokens : p.header->num_outputs;
  const uint32_t row0 = blockIdx.y * T::kBM, n0 = blockIdx.x * T::kBN;
  if (row0 >= rows) return;
  const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const uint32_t warp_m = warp / T::kWarpsN * T::kWM, warp_n = warp % T::kWarpsN * T::kWN;
  const uint32_t base = shared_address(shared);

  // Copies: eight threads a row, kRowsAPass rows a pass.
  const uint32_t copy_row = threadIdx.x >> 3, copy_chunk = threadIdx.x & 7;
  const uint32_t copy_offset = copy_row * T::kRowBytes + ((copy_chunk ^ (copy_row & 7)) << 4);
  const uint64_t pass_elements = static_cast<uint64_t>(T::kRowsAPass) * p.k;
  const bf16* x = p.x + static_cast<uint64_t>(row0 + copy_row) * p.k + copy_chunk * 8;
  const bf16* w = p.weight + static_cast<uint64_t>(n0 + copy_row) * p.k + copy_chunk * 8;
  const uint32_t tiles = (p.k + T::kBK - 1) / T::kBK;
  const auto copy_tile = [&](uint32_t tile, uint32_t stage) {
    const uint32_t k0 = tile * T::kBK;
    const bool in_k = k0 + copy_chunk * 8 < p.k;
    uint32_t destination = base + stage * T::kStageBytes + copy_offset;
#pragma unroll
    for (int pass = 0; pass < T::kBM / T::kRowsAPass; ++pass) {
      const bool full = in_k && row0 + copy_row + pass * T::kRowsAPass < rows;
      cp_async_16(destination + pass * T::kRowsAPass * T::kRowBytes, full ? x + pass * pass_elements + k0 : p.x, full);
    }
    destination += T::kBM * T::kRowBytes;
#pragma unroll
    for (int pass = 0; pass < T::kBN / T::kRowsAPass; ++pass) {
      const bool full = in_k && n0 + copy_row + pass * T::kRowsAPass < p.n;
      cp_async_16(destination + pass * T::kRowsAPass * T::kRowBytes, full ? w + pass * pass_elements + k0 : p.weight, full);
    }
  };

  float acc[T::kMI][2 * T::kNI][4];
#pragma unroll
  for (int mi = 0; mi < T::kMI; ++mi)
#pragma unroll
    for (int ni = 0; ni < 2 * T::kNI; ++ni)
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[mi][ni][i] = 0.0f;

  // ldmatrix addresses at k = 0; step s of 16 flips chunk bits 1 and 2 with s, which the swizzle carries through.
  const uint32_t a_row = warp_m + (lane & 15), a_chunk = (lane >> 4) ^ (lane & 7);
  const uint32_t b_row = warp_n + (lane & 7) + ((lane >> 4) << 3), b_chunk = ((lane >> 3) & 1) ^ (lane & 7);
  const uint32_t a_base = base + a_row * T::kRowBytes + (a_chunk << 4);
  const uint32_t b_base = base + (T::kBM + b_row) * T::kRowBytes + (b_chunk << 4);

#pragma unroll
  for (int stage = 0; stage < T::kStages - 1; ++stage) {
    if (stage < tiles) copy_tile(stage, stage);
    cp_async_commit();
  }
  uint32_t stage = 0, refill = T::kStages - 1;
  for (uint32_t tile = 0; tile < tiles; ++tile) {
    cp_async_wait<T::kStages - 2>();
    __syncthreads();
    if (tile + T::kStages - 1 < tiles) copy_tile(tile + T::kStages - 1, refill);
    cp_async_commit();
    const uint32_t a_stage = a_base + stage * T::kStageBytes, b_stage = b_base + stage * T::kStageBytes;
#pragma unroll
    for (uint32_t step = 0; step < 4; ++step) {
      uint32_t a[T::kMI][4], b[T::kNI][4];
      const uint32_t a_step = a_stage ^ (step << 5), b_step = b_stage ^ (step << 5);
#pragma unroll
      for (int mi = 0; mi < T::kMI; ++mi) ldmatrix_x4(a[mi], a_step + mi * 16 * T::kRowBytes);
#pragma unroll
      for (int ni = 0; ni < T::kNI; ++ni) ldmatrix_x4(b[ni], b_step + ni * 16 * T::kRowBytes);
#pragma unroll
      for (int mi = 0; mi < T::kMI; ++mi)
#pragma unroll
        for (int ni = 0; ni < T::kNI; ++ni) {
          mma_bf16(acc[mi][2 * ni], a[mi][0], a[mi][1], a[mi][2], a[mi][3], b[ni][0], b[ni][1]);
          mma_bf16(acc[mi][2 * ni + 1], a[mi][0], a[mi][1], a[mi][2], a[mi][3], b[ni][2], b[ni][3]);
        }
    }
    stage = stage + 1 == T::kStages ? 0 : stage + 1;
    refill = refill + 1 == T::kStages ? 0 : refill + 1;
  }

  const uint32_t g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int ni = 0; ni < 2 * T::kNI; ++ni) {
    const uint32_t n = n0 + warp_n + ni * 8 + 2 * t;
    if (n >= p.n) continue;  // N is a multiple of 8: both columns or none
    float2 bias = make_float2(0.0f, 0.0f);
    if (p.bias != nullptr) {
      const uint32_t packed = __ldg(reinterpret_cast<const uint32_t*>(p.bias + n));
      bias = make_float2(bf16_low(packed), bf16_high(packed));
    }
#pragma unroll
    for (int mi = 0; mi < T::kMI; ++mi)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t row = row0 + warp_m + mi * 16 + half * 8 + g;
        if (row >= rows) continue;
        float2 value = make_float2(acc[mi][ni][2 * half] + bias.x, acc[mi][ni][2 * half + 1] + bias.y);
        if (p.softcap > 0.0f)
          value = make_float2(p.softcap * tanhf(value.x / p.softcap), p.softcap * tanhf(value.y / p.softcap));
        *reinterpret_cast<float2*>(p.y + static_cast<uint64_t>(row) * p.n + n) = value;
      }
  }
}

extern "C" __global__ void __launch_bounds__(128) gemm_prefill_bf16_64x64(const __grid_constant__ GemmParams p) {
  gemm_prefill<GemmPrefillTraits<64, 64, 2, 2, 3>>(p);
}

extern "C" __global__ void __launch_bounds__(256) gemm_prefill_bf16_128x128(const __grid_constant__ GemmParams p) {
  gemm_prefill<GemmPrefillTraits<128, 128, 2, 4, 3>>(p);
}

}  // namespace neap
