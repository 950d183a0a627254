// The online-softmax state {m, l, o} and its one merge (arXiv 1805.02867, 2205.14135).
//
// Scores are in base 2: s = q.k * sm_scale * log2(e). A state stands for the keys it has seen: m is the largest score, l the sum
// of 2^(s - m), o the sum of 2^(s - m) v. The empty state is {-inf, 0, 0} and merging it changes no bit of the other.
#pragma once

#include <cstdint>

#include "../ptx/convert.cuh"

namespace neap {

constexpr float kLog2E = 1.4426950408889634f;

__device__ __forceinline__ float negative_infinity() { return __int_as_float(0xff800000); }

// What m is subtracted as: -inf - -inf would be NaN, and against 0 every empty state has weight 2^-inf = 0.
__device__ __forceinline__ float finite_max(float m) { return m == negative_infinity() ? 0.0f : m; }

// Weight of a state with maximum m inside one whose maximum is `reference` (already finite).
__device__ __forceinline__ float state_weight(float m, float reference) { return exp2_approx(m - reference); }

}  // namespace neap
