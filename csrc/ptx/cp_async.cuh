// cp.async: 16-byte asynchronous copies from global to shared memory (PTX ISA 7.0, sm_80).
#pragma once

#include <cstdint>

namespace neap {

// Address of a shared-memory object in the .shared window, as the asm operands want it.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes past L1. When `full` is false nothing is read and the destination is zeroed.
__device__ __forceinline__ void cp_async_16(uint32_t destination, const void* source, bool full) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(destination), "l"(source), "r"(full ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Waits until at most `kPending` of this thread's groups are unfinished.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

}  // namespace neap
