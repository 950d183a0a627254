// Merges the splits of a decode row: out = sum_i 2^(m_i - M) o_i / (sum_i 2^(m_i - M) l_i [+ 2^(sink - M)]).
//
// Map: a warp takes (row, q head); lane i weighs split i (at most 32 splits), then all lanes walk the splits in order, D / 32
// dimensions a lane. The sink, a logit without a value, enters here once a row, however many splits there are.
// 4 D bytes a split and head plus 2 D written; with one split it is a scale and a conversion.
// A row without items (none in a well-formed step) gives zeros. Order (I13): splits ascend, the sum of l is a butterfly whose shape
// does not depend on other rows.

#include "../params.cuh"
#include "../ptx/convert.cuh"
#include "../reduce.cuh"
#include "softmax.cuh"

namespace neap {

template <int kD>
__device__ __forceinline__ void decode_merge(const DecodeMergeParams& p) {
  constexpr int kElements = kD / 32, kVector = kElements < 4 ? kElements : 4;
  const uint32_t row = blockIdx.x, lane = threadIdx.x & 31;
  const uint32_t head = blockIdx.y * (blockDim.x >> 5) + (threadIdx.x >> 5);
  if (row >= p.header->num_tokens || head >= p.num_q_heads) return;
  const uint2 packed = __ldg(reinterpret_cast<const uint2*>(p.rows + row));
  const uint64_t first = packed.x;
  const uint32_t count = packed.y;

  float2 ml = make_float2(negative_infinity(), 0.0f);
  if (lane < count) ml = __ldg(p.partial_ml + (first + lane) * p.num_q_heads + head);
  float top = warp_max(ml.x);
  float sink = negative_infinity();
  if (p.sinks != nullptr) {
    sink = bf16_to_float(p.sinks[head]) * kLog2E;
    top = fmaxf(top, sink);
  }
  const float reference = finite_max(top);
  const float weight = state_weight(ml.x, reference);
  const float total = warp_sum(weight * ml.y) + state_weight(sink, reference);

  float o[kElements] = {};
  const float* part = p.partial_o + (first * p.num_q_heads + head) * kD + lane * kVector;
  for (uint32_t split = 0; split < count; ++split) {
    const float w = __shfl_sync(kAllLanes, weight, split);
#pragma unroll
    for (int i = 0; i < kElements; i += kVector) {
      if constexpr (kVector == 2) {
        const float2 v = __ldg(reinterpret_cast<const float2*>(part));
        o[0] = fmaf(w, v.x, o[0]);
        o[1] = fmaf(w, v.y, o[1]);
      } else {
        const float4 v = __ldg(reinterpret_cast<const float4*>(part + i * 32));
        o[i] = fmaf(w, v.x, o[i]);
        o[i + 1] = fmaf(w, v.y, o[i + 1]);
        o[i + 2] = fmaf(w, v.z, o[i + 2]);
        o[i + 3] = fmaf(w, v.w, o[i + 3]);
      }
    }
    part += static_cast<uint64_t>(p.num_q_heads) * kD;
  }
  const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
  bf16* out = p.out + (static_cast<uint64_t>(row) * p.num_q_heads + head) * kD + lane * kVector;
#pragma unroll
  for (int i = 0; i < kElements; i += kVector) {
    if constexpr (kVector == 2) {
      *reinterpret_cast<uint32_t*>(out) = pack_bf16x2(o[0] * inverse, o[1] * inverse);
    } else {
      *reinterpret_cast<uint2*>(out + i * 32) = make_uint2(pack_bf16x2(o[i] * inverse, o[i + 1] * inverse),
                                                           pack_bf16x2(o[i + 2] * inverse, o[i + 3] * inverse));
    }
  }
}

extern "C" __global__ void __launch_bounds__(128) decode_merge_d64(const __grid_constant__ DecodeMergeParams p) { decode_merge<64>(p); }
extern "C" __global__ void __launch_bounds__(128) decode_merge_d128(const __grid_constant__ DecodeMergeParams p) { decode_merge<128>(p); }
extern "C" __global__ void __launch_bounds__(128) decode_merge_d256(const __grid_constant__ DecodeMergeParams p) { decode_merge<256>(p); }

}  // namespace neap
