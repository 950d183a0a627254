// Reductions whose order is fixed by the number of threads alone.
#pragma once

#include <cstdint>

namespace neap {

constexpr uint32_t kAllLanes = 0xffffffffu;

// Sum over the 32 lanes, the same value in every lane.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  return value;
}

// Sum over the block (whole warps, at most 32 of them). `partial` is 32 floats of shared memory that nobody else uses
// between this call and the next barrier.
__device__ __forceinline__ float block_sum(float value, float* partial) {
  value = warp_sum(value);
  const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  value = lane < (blockDim.x >> 5) ? partial[lane] : 0.0f;
  return warp_sum(value);
}

}  // namespace neap
