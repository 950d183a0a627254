// Embedding lookup: residual[t, :] = f32(table[token_ids[t], :]) * scale.
//
// Map: one block a row, four columns a thread (8-byte loads, 16-byte stores), looping where H is larger than
// four columns a thread. No shared memory. 6 H bytes a row; a single row is latency bound.
// Exact in f32 up to one rounding of the product.

#include "../params.cuh"
#include "../ptx/convert.cuh"

namespace neap {

extern "C" __global__ void __launch_bounds__(256) embed(const __grid_constant__ EmbedParams p) {
  const uint32_t row = blockIdx.x;
  if (row >= p.header->num_tokens) return;
  const uint64_t token = p.token_ids[row];
  const bf16* source = p.table + token * p.hidden;
  float* destination = p.residual + static_cast<uint64_t>(row) * p.hidden;
  for (uint32_t column = threadIdx.x * 4; column < p.hidden; column += blockDim.x * 4) {
    const uint2 packed = __ldg(reinterpret_cast<const uint2*>(source + column));
    const float4 value = make_float4(bf16_low(packed.x) * p.scale, bf16_high(packed.x) * p.scale,
                                     bf16_low(packed.y) * p.scale, bf16_high(packed.y) * p.scale);
    *reinterpret_cast<float4*>(destination + column) = value;
  }
}

}  // namespace neap
