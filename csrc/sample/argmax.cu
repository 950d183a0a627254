// Greedy sampling: ids[r] = the lowest index of the largest logit of row r. NaN never wins; a row of nothing
// but NaN gives 0.
//
// Map: one block a row, each thread strides over the row (16-byte loads where the row is aligned), then a warp and a
// block reduction of (value, index) pairs. The order relation is total, so the result does not depend on the
// order of reduction. 4 vocab bytes a row; a single row is bound by what one SM can pull, about 7 us at 128k.

#include "../params.cuh"
#include "../reduce.cuh"

namespace neap {

struct Best {
  float value;
  uint32_t index;
};

__device__ __forceinline__ void consider(Best& best, float value, uint32_t index) {
  if (value > best.value || (value == best.value && index < best.index)) {
    best.value = value;
    best.index = index;
  }
}

__device__ __forceinline__ Best warp_best(Best best) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    const float value = __shfl_xor_sync(kAllLanes, best.value, offset);
    const uint32_t index = __shfl_xor_sync(kAllLanes, best.index, offset);
    consider(best, value, index);
  }
  return best;
}

extern "C" __global__ void __launch_bounds__(1024) argmax(const __grid_constant__ ArgmaxParams p) {
  __shared__ Best partial[32];
  const uint32_t row = blockIdx.x;
  if (row >= p.header->num_outputs) return;
  const float* logits = p.logits + static_cast<uint64_t>(row) * p.vocab;

  const float lowest = __int_as_float(0xff800000);
  Best best = {lowest, p.vocab};
  if ((p.vocab & 3) == 0) {
    for (uint32_t i = threadIdx.x * 4; i < p.vocab; i += blockDim.x * 4) {
      const float4 v = __ldg(reinterpret_cast<const float4*>(logits + i));
      consider(best, v.x, i);
      consider(best, v.y, i + 1);
      consider(best, v.z, i + 2);
      consider(best, v.w, i + 3);
    }
  } else {
    for (uint32_t i = threadIdx.x; i < p.vocab; i += blockDim.x) consider(best, __ldg(logits + i), i);
  }
  best = warp_best(best);
  const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if (lane == 0) partial[warp] = best;
  __syncthreads();
  if (warp != 0) return;
  best = {lowest, p.vocab};
  if (lane < (blockDim.x >> 5)) best = partial[lane];
  best = warp_best(best);
  if (lane == 0) p.ids[row] = best.index < p.vocab ? best.index : 0;
}

}  // namespace neap
