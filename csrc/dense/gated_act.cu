// Gated activation: out[t, i] = bf16(act(gate_up[t, i]) * gate_up[t, I + i]).
//
// Map: four columns a thread, blocks over (columns, rows): 16-byte loads, 8-byte stores; no shared memory.
// 10 I bytes a row. Both activations are x * sigmoid(z): for SiLU z = x, and for the tanh form of GELU
// 0.5 (1 + tanh u) = sigmoid(2 u), which needs one exponential and one division instead of a tanh and keeps
// the tail for large negative x from cancelling. GELU: arXiv 1606.08415, gating: arXiv 2002.05202.

#include "../params.cuh"
#include "../ptx/convert.cuh"

namespace neap {

constexpr float kLog2E = 1.4426950408889634f;

template <int kActivation>
__device__ __forceinline__ float activate(float x) {
  constexpr float kSqrt2OverPi = 0.7978845608028654f;
  const float z = kActivation == 0 ? 2.0f * kSqrt2OverPi * (x + 0.044715f * x * x * x) : x;
  return __fdividef(x, 1.0f + exp2_approx(-z * kLog2E));
}

template <int kActivation>
__device__ __forceinline__ void gated_act_row(const GatedActParams& p) {
  const uint32_t row = blockIdx.y, column = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (row >= p.header->num_tokens || column >= p.intermediate) return;
  const float* gate = p.gate_up + 2 * static_cast<uint64_t>(row) * p.intermediate + column;
  const float4 g = __ldg(reinterpret_cast<const float4*>(gate));
  const float4 u = __ldg(reinterpret_cast<const float4*>(gate + p.intermediate));
  const uint2 packed = make_uint2(pack_bf16x2(activate<kActivation>(g.x) * u.x, activate<kActivation>(g.y) * u.y),
                                  pack_bf16x2(activate<kActivation>(g.z) * u.z, activate<kActivation>(g.w) * u.w));
  *reinterpret_cast<uint2*>(p.out + static_cast<uint64_t>(row) * p.intermediate + column) = packed;
}

extern "C" __global__ void __launch_bounds__(256) gated_act_gelu_tanh(const __grid_constant__ GatedActParams p) {
  gated_act_row<0>(p);
}

extern "C" __global__ void __launch_bounds__(256) gated_act_silu(const __grid_constant__ GatedActParams p) { gated_act_row<1>(p); }

}  // namespace neap
