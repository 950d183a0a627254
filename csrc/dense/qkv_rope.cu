// After the QKV projection: per-head RMS norm of q and k (optional), rotary embedding, rounding to bf16, and in
// decode the append of k and v to their pages.
//
// Map: one block of four warps a token, a warp takes heads warp, warp + 4, ...; lane l holds the D / 32 dimensions starting
// at l D / 32, one vector load. With NeoX halves, dimension i pairs with i + D / 2, so the partner sits in lane l ^ 16 and
// rotation is one shuffle a dimension. Cosines and sines depend on position and dimension alone: once a warp, reused for
// all its heads. Loads 4 D bytes a head, stores 2 D contiguous bytes a head. No shared memory.
// 6 (Hq + 2 Hkv) D bytes a token; launch latency dominates in decode, which is why the append is fused.
//
// Angles: position * inv_freq reaches 1e5 radians, where an f32 product is off by 4e-3. The product is kept as a
// rounded part and its exact error (fma), the rounded part is reduced by multiples of pi / 2 split in three (Cody and Waite;
// exact to position 2^20), and the error is added to the remainder. RoPE: arXiv 2104.09864.

#include "../params.cuh"
#include "../ptx/convert.cuh"
#include "../reduce.cuh"

namespace neap {

// cos and sin of position * inv_freq, absolute error below 2e-7 for positions up to 2^20.
__device__ __forceinline__ float2 rotation(float position, float inv_freq) {
  const float angle = position * inv_freq;
  const float angle_error = fmaf(position, inv_freq, -angle);
  const float quarters = rintf(angle * 0.63661977f);
  float r = fmaf(quarters, -1.57079625e+00f, angle);
  r = fmaf(quarters, -7.54978942e-08f, r);
  r = fmaf(quarters, -5.39030295e-15f, r) + angle_error;
  const float r2 = r * r;
  // Taylor coefficients suffice: |r| stays below 0.83 and the first dropped terms below 2e-8.
  float s = fmaf(r2, 2.7557319e-06f, -1.9841270e-04f);
  s = fmaf(s, r2, 8.3333333e-03f);
  s = fmaf(s, r2, -1.6666667e-01f);
  s = fmaf(s * r2, r, r);
  float c = fmaf(r2, -2.7557319e-07f, 2.4801587e-05f);
  c = fmaf(c, r2, -1.3888889e-03f);
  c = fmaf(c, r2, 4.1666667e-02f);
  c = fmaf(c, r2, -0.5f);
  c = fmaf(c, r2, 1.0f);
  const int quadrant = static_cast<int>(quarters);
  const float x = (quadrant & 1) ? s : c, y = (quadrant & 1) ? c : s;
  return make_float2(((quadrant + 1) & 2) ? -x : x, (quadrant & 2) ? -y : y);
}

template <int kElements>
__device__ __forceinline__ void load_floats(float (&v)[kElements], const float* source) {
  if constexpr (kElements == 2) {
    const float2 a = __ldg(reinterpret_cast<const float2*>(source));
    v[0] = a.x, v[1] = a.y;
  } else {
#pragma unroll
    for (int i = 0; i < kElements; i += 4) {
      const float4 a = __ldg(reinterpret_cast<const float4*>(source + i));
      v[i] = a.x, v[i + 1] = a.y, v[i + 2] = a.z, v[i + 3] = a.w;
    }
  }
}

template <int kElements>
__device__ __forceinline__ void store_bf16(void* destination, const float (&v)[kElements]) {
  if constexpr (kElements == 2) {
    *static_cast<uint32_t*>(destination) = pack_bf16x2(v[0], v[1]);
  } else if constexpr (kElements == 4) {
    *static_cast<uint2*>(destination) = make_uint2(pack_bf16x2(v[0], v[1]), pack_bf16x2(v[2], v[3]));
  } else {
    static_assert(kElements == 8, "head_dim is 64, 128 or 256");
    *static_cast<uint4*>(destination) = make_uint4(pack_bf16x2(v[0], v[1]), pack_bf16x2(v[2], v[3]),
                                                   pack_bf16x2(v[4], v[5]), pack_bf16x2(v[6], v[7]));
  }
}

template <int kD, bool kAppend>
__device__ __forceinline__ void qkv_rope_token(const QkvRopeParams& p) {
  constexpr int kElements = kD / 32;
  const uint32_t token = blockIdx.x;
  if (token >= p.header->num_tokens) return;
  const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  const uint32_t dim = lane * kElements;
  const bool upper = lane >= 16;

  float2 turn[kElements];
  const float position = static_cast<float>(p.positions[token]);
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    turn[i] = rotation(position, __ldg(p.inv_freq + (dim & (kD / 2 - 1)) + i));
    turn[i].x *= p.attention_factor;
    turn[i].y *= upper ? p.attention_factor : -p.attention_factor;
  }

  uint8_t* page_k = nullptr;
  uint8_t* page_v = nullptr;
  if constexpr (kAppend) {
    const uint64_t slot = p.slots[token];
    if (slot != ~0ull) {
      uint8_t* page = reinterpret_cast<uint8_t*>(p.kv.base) + ((slot >> 32) << 8) + p.kv.layer_offset;
      const uint64_t in_page = slot & 0xffffffffu;
      page_k = page + in_page * p.kv.k_token_stride;
      page_v = page + p.kv.v_offset + in_page * p.kv.v_token_stride;
    }
  }

  const uint32_t hq = p.num_q_heads, hkv = p.num_kv_heads, heads = hq + 2 * hkv;
  const float* source = p.qkv + static_cast<uint64_t>(token) * heads * kD + dim;
  for (uint32_t head = warp; head < heads; head += warps) {
    float v[kElements];
    load_floats(v, source + head * kD);
    if (head < hq + hkv) {
      const bf16* weight = head < hq ? p.q_norm : p.k_norm;
      if (weight != nullptr) {
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < kElements; ++i) squares += v[i] * v[i];
        const float scale = rsqrtf(warp_sum(squares) * (1.0f / kD) + p.eps);
#pragma unroll
        for (int i = 0; i < kElements; i += 2) {
          const uint32_t packed = __ldg(reinterpret_cast<const uint32_t*>(weight + dim + i));
          v[i] = v[i] * scale * (p.weight_offset + bf16_low(packed));
          v[i + 1] = v[i + 1] * scale * (p.weight_offset + bf16_high(packed));
        }
      }
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        const float partner = __shfl_xor_sync(kAllLanes, v[i], 16);
        v[i] = fmaf(partner, turn[i].y, v[i] * turn[i].x);
      }
    }
    if (head < hq) {
      store_bf16(p.q + (static_cast<uint64_t>(token) * hq + head) * kD + dim, v);
    } else {
      const bool is_v = head >= hq + hkv;
      const uint32_t kv_head = head - hq - (is_v ? hkv : 0);
      if constexpr (kAppend) {
        if (page_k == nullptr) continue;
        uint8_t* row = is_v ? page_v + static_cast<uint64_t>(kv_head) * p.kv.v_head_stride
                            : page_k + static_cast<uint64_t>(kv_head) * p.kv.k_head_stride;
        store_bf16(row + dim * sizeof(bf16), v);
      } else {
        store_bf16((is_v ? p.v : p.k) + (static_cast<uint64_t>(token) * hkv + kv_head) * kD + dim, v);
      }
    }
  }
}

#define NEAP_QKV_ROPE(D)                                                                                             \
  extern "C" __global__ void __launch_bounds__(128) qkv_rope_d##D(const __grid_constant__ QkvRopeParams p) {         \
    qkv_rope_token<D, false>(p);                                                                                     \
  }                                                                                                                  \
  extern "C" __global__ void __launch_bounds__(128) qkv_rope_append_d##D(const __grid_constant__ QkvRopeParams p) {  \
    qkv_rope_token<D, true>(p);                                                                                      \
  }

NEAP_QKV_ROPE(64)
NEAP_QKV_ROPE(128)
NEAP_QKV_ROPE(256)

}  // namespace neap
