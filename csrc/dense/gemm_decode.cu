// Skinny GEMM for decode: y[t, n] = sum_k x[t, k] * weight[n, k], few rows t, every weight read once.
//
// Problem: memory bound up to about 100 rows. 2 N K bytes of weights a call, 2 T N K FLOPs; at T = 1 one FLOP a byte.
// Swap-AB: the weights take the M = 16 side of mma.m16n8k16 and eight tokens the N side, so that one token wastes
// tensor-core work (which is free here) instead of bytes.
//
// Warp map: a warp owns 16 kM weight rows and a contiguous range of K; the warps of a block share the rows and split K.
// Fragments come straight from global memory, with no shared memory between: mma sums over k in any order as long as A and
// B agree, so lane (g, t) takes 16 contiguous bytes of row g at k = 8t and uses them as columns {2t, 2t+1, 2t+8, 2t+9} of
// two successive mmas. One 16-byte load of each of two rows feeds two mmas, no ldmatrix, no bank conflicts.
// A block covers 8 kT tokens; token tiles past the step's rows are skipped, rows past the end in the last tile
// repeat the last row and are not stored.
// Bytes in flight: kUnits * kM * 2 KiB a warp (kUnits * 2 * kM 16-byte loads a lane), which with 8 warps a block and two
// or more blocks a SM covers the 25-50 KB/SM an H200 needs. Shared memory: 8 warps * 8 tokens * (16 kM + 4) floats.
//
// Order of the sum (I13): within a warp k ascends in units of 32; the warps' sums are added in warp order. Both depend on
// K alone: not on T, the bucket, the tile a row falls into, nor on kM, kT, kUnits.
// Expected: 80 % of copy bandwidth for N K >= 16 MB at T <= 8; beyond, x is re-read N / (16 kM) times from L2.

#include "../params.cuh"
#include "../ptx/convert.cuh"
#include "../ptx/mma.cuh"

namespace neap {

constexpr uint32_t kMaxWarps = 8;
constexpr uint32_t kUnitK = 32;

template <int kM, int kT, int kUnits>
struct GemmDecodeTraits {
  static constexpr uint32_t kRows = 16 * kM;
  // 4 floats of padding: lane (g, t) writes token 2t, row g, and 2 * (16 kM + 4) is 8 modulo 32.
  static constexpr uint32_t kStride = kRows + 4;
  static_assert((2 * kStride) % 32 == 8, "bank conflicts in the reduction buffer");
  static_assert(kMaxWarps * 8 * kStride * sizeof(float) <= 48 * 1024, "static shared memory");
};

template <int kM, int kT, int kUnits>
__device__ __forceinline__ void gemm_decode_units(float (&acc)[kT][kM][4], const uint8_t* const (&w)[kM][2],
                                                  const uint8_t* const (&x)[kT], uint32_t active, uint32_t offset) {
  uint4 a[kUnits][kM][2];
#pragma unroll
  for (int u = 0; u < kUnits; ++u)
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        a[u][m][half] = __ldg(reinterpret_cast<const uint4*>(w[m][half] + offset + u * kUnitK * sizeof(bf16)));
#pragma unroll
  for (int tile = 0; tile < kT; ++tile) {
    if (tile == 0 || tile < active) {
      uint4 b[kUnits];
#pragma unroll
      for (int u = 0; u < kUnits; ++u) b[u] = __ldg(reinterpret_cast<const uint4*>(x[tile] + offset + u * kUnitK * sizeof(bf16)));
#pragma unroll
      for (int u = 0; u < kUnits; ++u)
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          mma_bf16(acc[tile][m], a[u][m][0].x, a[u][m][1].x, a[u][m][0].y, a[u][m][1].y, b[u].x, b[u].y);
          mma_bf16(acc[tile][m], a[u][m][0].z, a[u][m][1].z, a[u][m][0].w, a[u][m][1].w, b[u].z, b[u].w);
        }
    }
  }
}

template <int kM, int kT, int kUnits>
__device__ __forceinline__ void gemm_decode(const GemmParams& p) {
  using Traits = GemmDecodeTraits<kM, kT, kUnits>;
  __shared__ float partial[kMaxWarps][8][Traits::kStride];

  const uint32_t rows = p.rows_from == 0 ? p.header->num_tokens : p.header->num_outputs;
  const uint32_t token0 = blockIdx.y * 8 * kT;
  if (token0 >= rows) return;
  const uint32_t active = min((rows - token0 + 7) / 8, static_cast<uint32_t>(kT));
  const uint32_t n0 = blockIdx.x * Traits::kRows;
  const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  const uint32_t g = lane >> 2, t = lane & 3;

  const uint64_t row_bytes = static_cast<uint64_t>(p.k) * sizeof(bf16);
  const uint8_t* w[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t n = min(n0 + m * 16 + half * 8 + g, p.n - 1);
      w[m][half] = reinterpret_cast<const uint8_t*>(p.weight) + n * row_bytes + t * 16;
    }
  const uint8_t* x[kT];
#pragma unroll
  for (int tile = 0; tile < kT; ++tile) {
    const uint32_t row = min(token0 + tile * 8 + g, rows - 1);
    x[tile] = reinterpret_cast<const uint8_t*>(p.x) + row * row_bytes + t * 16;
  }

  float acc[kT][kM][4];
#pragma unroll
  for (int tile = 0; tile < kT; ++tile)
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[tile][m][i] = 0.0f;

  const uint32_t units = p.k / kUnitK, share = (units + warps - 1) / warps;
  const uint32_t end = min((warp + 1) * share, units);
  uint32_t unit = min(warp * share, units);
  for (; unit + kUnits <= end; unit += kUnits)
    gemm_decode_units<kM, kT, kUnits>(acc, w, x, active, unit * kUnitK * sizeof(bf16));
  for (; unit < end; ++unit) gemm_decode_units<kM, kT, 1>(acc, w, x, active, unit * kUnitK * sizeof(bf16));

#pragma unroll
  for (int tile = 0; tile < kT; ++tile) {
    if (tile > 0 && tile >= active) break;
    if (tile > 0) __syncthreads();
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      partial[warp][2 * t][m * 16 + g] = acc[tile][m][0];
      partial[warp][2 * t + 1][m * 16 + g] = acc[tile][m][1];
      partial[warp][2 * t][m * 16 + 8 + g] = acc[tile][m][2];
      partial[warp][2 * t + 1][m * 16 + 8 + g] = acc[tile][m][3];
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < 8 * Traits::kRows; i += blockDim.x) {
      const uint32_t token = i / Traits::kRows, row = i % Traits::kRows;
      if (token0 + tile * 8 + token >= rows || n0 + row >= p.n) continue;
      float sum = partial[0][token][row];
      for (uint32_t other = 1; other < warps; ++other) sum += partial[other][token][row];
      if (p.bias != nullptr) sum += bf16_to_float(p.bias[n0 + row]);
      if (p.softcap > 0.0f) sum = p.softcap * tanhf(sum / p.softcap);
      p.y[static_cast<uint64_t>(token0 + tile * 8 + token) * p.n + n0 + row] = sum;
    }
  }
}

// Instances by tokens a block (8 kT); the host takes the least that covers the bucket, 64 at most.
extern "C" __global__ void __launch_bounds__(256) gemm_decode_bf16_t8(const __grid_constant__ GemmParams p) { gemm_decode<1, 1, 4>(p); }
extern "C" __global__ void __launch_bounds__(256) gemm_decode_bf16_t16(const __grid_constant__ GemmParams p) { gemm_decode<1, 2, 4>(p); }
extern "C" __global__ void __launch_bounds__(256) gemm_decode_bf16_t32(const __grid_constant__ GemmParams p) { gemm_decode<2, 4, 2>(p); }
extern "C" __global__ void __launch_bounds__(256) gemm_decode_bf16_t64(const __grid_constant__ GemmParams p) { gemm_decode<2, 8, 2>(p); }

}  // namespace neap
