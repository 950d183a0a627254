// Matrix product on CUDA cores for weights the tensor-core tiles cannot take (K not a multiple of 32 or N not of 8):
// y[t, n] = sum_k x[t, k] * weight[n, k].
//
// Map: one warp per weight row n and four tokens, lanes stride over k; x and the weights are read two bytes a lane (64
// contiguous bytes a warp), which makes no demand on K's alignment. Serves both phases, so that a weight's kernel depends on
// its shape alone. No shared memory. It is a path for odd shapes, not for speed: about a tenth of the tiles' rate.
// Order of the sum (I13): each lane ascends in k, then a butterfly over lanes; the same for every token.

#include "../params.cuh"
#include "../ptx/convert.cuh"
#include "../reduce.cuh"

namespace neap {

constexpr int kTokens = 4;

extern "C" __global__ void __launch_bounds__(256) gemv_bf16(const __grid_constant__ GemmParams p) {
  const uint32_t rows = p.rows_from == 0 ? p.header->num_tokens : p.header->num_outputs;
  const uint32_t token0 = blockIdx.y * kTokens;
  const uint32_t n = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  if (token0 >= rows || n >= p.n) return;
  const bf16* w = p.weight + static_cast<uint64_t>(n) * p.k;
  const bf16* x[kTokens];
#pragma unroll
  for (int i = 0; i < kTokens; ++i) x[i] = p.x + static_cast<uint64_t>(min(token0 + i, rows - 1)) * p.k;
  float sum[kTokens] = {};
  for (uint32_t k = lane; k < p.k; k += 32) {
    const float weight = bf16_to_float(__ldg(w + k));
#pragma unroll
    for (int i = 0; i < kTokens; ++i) sum[i] = fmaf(bf16_to_float(__ldg(x[i] + k)), weight, sum[i]);
  }
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    float total = warp_sum(sum[i]);
    if (p.bias != nullptr) total += bf16_to_float(p.bias[n]);
    if (p.softcap > 0.0f) total = p.softcap * tanhf(total / p.softcap);
    if (lane == 0 && token0 + i < rows) p.y[static_cast<uint64_t>(token0 + i) * p.n + n] = total;
  }
}

}  // namespace neap
