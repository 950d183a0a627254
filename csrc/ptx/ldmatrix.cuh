// ldmatrix: four 8x8 bf16 matrices from shared memory into mma fragments (PTX ISA 6.5, sm_75).
//
// Lane l names row l % 8 of matrix l / 8; its 16 bytes must be 16-byte aligned. Register i of lane l
// receives elements 2 * (l % 4) and 2 * (l % 4) + 1 of row l / 4 of matrix i (of column l / 4 when transposed).
#pragma once

#include <cstdint>

namespace neap {

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

}  // namespace neap
