// Applies a step's block-table updates, before anything that reads the tables.
//
// Map: one block, one update a thread, looping. At most one update a (group, seq_slot, column) in a step, so the
// order does not matter. A step changes a handful of entries: the tables stay on the device and only changes
// are sent, which keeps the copy per step at 16 bytes an entry.

#include "../params.cuh"

namespace neap {

extern "C" __global__ void __launch_bounds__(128) table_update(const __grid_constant__ TableUpdateParams p) {
  const uint32_t count = p.header->num_table_updates;
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
    const uint4 update = __ldg(reinterpret_cast<const uint4*>(p.updates + i));
    // Selected by comparison: indexing a kernel parameter with a run-time value would go through local memory.
    uint32_t* table = p.tables[0];
    uint32_t stride = p.strides[0];
#pragma unroll
    for (uint32_t group = 1; group < 8; ++group) {
      if (update.x == group) {
        table = p.tables[group];
        stride = p.strides[group];
      }
    }
    table[static_cast<uint64_t>(update.y) * stride + update.z] = update.w;
  }
}

}  // namespace neap
