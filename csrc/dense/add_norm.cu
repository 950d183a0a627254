// Residual add and RMS norms, fused:
//   v = y                                            (or rmsnorm(y) * (offset + post_weight) where given)
//   residual += v                                    (written back unless rows are gathered)
//   out = bf16(rmsnorm(residual) * (offset + next_weight))
//
// Map: one block a row. A row is held in registers, kVectors float4 a thread, so that y and the residual are each
// read once; two block sums at most. The block size and kVectors follow from H alone, hence the order of the sums too.
// Shared memory: 256 bytes. Bytes a row: 4 H (y) + 8 H (residual) + 2 H (out) + weights from L2.
// Everything is f32; the one rounding to bf16 comes last. Launch latency dominates below about 64 rows.
// RMSNorm: arXiv 1910.07467.

#include "../params.cuh"
#include "../ptx/convert.cuh"
#include "../reduce.cuh"

namespace neap {

__device__ __forceinline__ float4 norm_weight(const bf16* weight, uint32_t column, float offset) {
  const uint2 packed = __ldg(reinterpret_cast<const uint2*>(weight + column));
  return make_float4(offset + bf16_low(packed.x), offset + bf16_high(packed.x), offset + bf16_low(packed.y),
                     offset + bf16_high(packed.y));
}

__device__ __forceinline__ float sum_of_squares(float4 v) { return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; }

template <int kVectors>
__device__ __forceinline__ void add_norm_row(const AddNormParams& p) {
  __shared__ float partial[2][32];
  const bool gathered = p.gather_rows != nullptr;
  const uint32_t row = blockIdx.x;
  if (row >= (gathered ? p.header->num_outputs : p.header->num_tokens)) return;
  const uint64_t source = static_cast<uint64_t>(gathered ? p.gather_rows[row] : row) * p.hidden;
  const float inverse_hidden = 1.0f / static_cast<float>(p.hidden);

  float4 r[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const uint32_t column = (threadIdx.x + i * blockDim.x) * 4;
    r[i] = column < p.hidden ? *reinterpret_cast<const float4*>(p.residual + source + column) : make_float4(0, 0, 0, 0);
  }
  if (p.y != nullptr) {
    float4 v[kVectors];
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const uint32_t column = (threadIdx.x + i * blockDim.x) * 4;
      v[i] = column < p.hidden ? __ldg(reinterpret_cast<const float4*>(p.y + source + column)) : make_float4(0, 0, 0, 0);
      squares += sum_of_squares(v[i]);
    }
    if (p.post_weight != nullptr) {
      const float scale = rsqrtf(block_sum(squares, partial[0]) * inverse_hidden + p.eps);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const uint32_t column = (threadIdx.x + i * blockDim.x) * 4;
        if (column < p.hidden) {
          const float4 w = norm_weight(p.post_weight, column, p.weight_offset);
          v[i] = make_float4(v[i].x * scale * w.x, v[i].y * scale * w.y, v[i].z * scale * w.z, v[i].w * scale * w.w);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      r[i] = make_float4(r[i].x + v[i].x, r[i].y + v[i].y, r[i].z + v[i].z, r[i].w + v[i].w);
      const uint32_t column = (threadIdx.x + i * blockDim.x) * 4;
      if (!gathered && column < p.hidden) *reinterpret_cast<float4*>(p.residual + source + column) = r[i];
    }
  }
  if (p.next_weight == nullptr) return;

  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) squares += sum_of_squares(r[i]);
  const float scale = rsqrtf(block_sum(squares, partial[1]) * inverse_hidden + p.eps);
  bf16* out = p.out + static_cast<uint64_t>(row) * p.hidden;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const uint32_t column = (threadIdx.x + i * blockDim.x) * 4;
    if (column < p.hidden) {
      const float4 w = norm_weight(p.next_weight, column, p.weight_offset);
      const uint2 packed = make_uint2(pack_bf16x2(r[i].x * scale * w.x, r[i].y * scale * w.y),
                                      pack_bf16x2(r[i].z * scale * w.z, r[i].w * scale * w.w));
      *reinterpret_cast<uint2*>(out + column) = packed;
    }
  }
}

// H up to four columns a thread.
extern "C" __global__ void __launch_bounds__(256) add_norm_v1(const __grid_constant__ AddNormParams p) { add_norm_row<1>(p); }

// H up to sixteen columns a thread.
extern "C" __global__ void __launch_bounds__(1024) add_norm_v4(const __grid_constant__ AddNormParams p) { add_norm_row<4>(p); }

}  // namespace neap
