// mma.sync m16n8k16, bf16 operands, f32 accumulation (PTX ISA 7.0, sm_80).
//
// With g = lane / 4 and t = lane % 4:
//   A (16 x 16): a0 = (g, 2t..), a1 = (g + 8, 2t..), a2 = (g, 2t + 8..), a3 = (g + 8, 2t + 8..), two columns a register
//   B (16 x 8):  b0 = (2t.., g), b1 = (2t + 8.., g), two rows a register
//   C (16 x 8):  c0, c1 = (g, 2t), (g, 2t + 1); c2, c3 = (g + 8, 2t), (g + 8, 2t + 1)
// A row of C depends on its own row of A alone, a column on its own column of B: this is what lets rows of
// unrelated sequences share a tile without touching each other's bits.
#pragma once

#include <cstdint>

namespace neap {

__device__ __forceinline__ void mma_bf16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                         uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

}  // namespace neap
