// Shared-memory tiles of bf16 rows and the addresses ldmatrix reads them at.
//
// A row is D bf16 in D / 8 chunks of 16 bytes; chunk c of row r lies at chunk c ^ (r & 7). Eight consecutive rows at one
// chunk then cover all 32 banks, and so do the eight lanes that fill 128 bytes of one row.
#pragma once

#include <cstdint>

namespace neap {

template <int kD>
struct Tile {
  static_assert(kD % 64 == 0, "a row is a multiple of 128 bytes");
  static constexpr uint32_t kRowBytes = kD * 2;
  static constexpr uint32_t kChunks = kD / 8;

  static __device__ __forceinline__ uint32_t offset(uint32_t row, uint32_t chunk) {
    return row * kRowBytes + ((chunk ^ (row & 7)) << 4);
  }

  // Where lane `lane` points ldmatrix for A fragments of rows 0..15, columns 0..15 (registers a0..a3), and equally,
  // transposed, for B fragments of keys 0..15, dimensions 0..15 (b0, b1 of dimensions 0..7, then of 8..15).
  // Columns 16 s are reached by XOR with at(s), rows 16 i by adding 16 * i * kRowBytes.
  static __device__ __forceinline__ uint32_t rows_first(uint32_t lane) { return offset(lane & 15, lane >> 4); }

  // The same for B fragments of keys 0..15 as columns (b0, b1 of keys 0..7, then of keys 8..15), dimensions 0..15.
  static __device__ __forceinline__ uint32_t columns_first(uint32_t lane) {
    return offset((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
  }

  // Bits to flip in such an address for columns 16 step .. 16 step + 15. Steps past a 128-byte line flip bits the
  // swizzle leaves alone, and rows are aligned to the row size, so one XOR serves all.
  static constexpr __device__ __forceinline__ uint32_t at(uint32_t step) { return step << 5; }
};

}  // namespace neap
