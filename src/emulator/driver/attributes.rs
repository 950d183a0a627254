//! What a device says of itself, attribute by attribute.

use std::ffi::{c_int, c_uint};

use super::limits;
use crate::driver::abi;
use crate::emulator::Profile;

/// PCI domain of emulated devices: one that no machine has.
pub(super) const PCI_DOMAIN: u32 = 0xEEEE;

/// The value of a device attribute, where there is one of this number.
pub(super) fn of(profile: &Profile, ordinal: u32, attribute: c_uint) -> Option<c_int> {
    let (major, minor) = profile.compute_capability;
    let hopper = u32::from(major >= 9);
    let value = match attribute {
        abi::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK => limits::BLOCK_THREADS,
        abi::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X => limits::BLOCK[0],
        abi::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y => limits::BLOCK[1],
        abi::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z => limits::BLOCK[2],
        abi::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X => limits::GRID[0],
        abi::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y => limits::GRID[1],
        abi::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z => limits::GRID[2],
        abi::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK => profile.shared_bytes_per_block,
        abi::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => {
            profile.shared_bytes_per_block_optin
        }
        abi::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => {
            profile.shared_bytes_per_sm
        }
        abi::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK => limits::RESERVED_SHARED_BYTES,
        abi::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY => 65_536,
        abi::CU_DEVICE_ATTRIBUTE_WARP_SIZE => 32,
        abi::CU_DEVICE_ATTRIBUTE_MAX_PITCH => i32::MAX as u32,
        abi::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK
        | abi::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR => limits::REGISTERS,
        abi::CU_DEVICE_ATTRIBUTE_CLOCK_RATE => profile.clock_khz,
        abi::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE => profile.memory_clock_khz,
        abi::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH => profile.memory_bus_bits,
        abi::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT | abi::CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT => {
            512
        }
        abi::CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT => 32,
        abi::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => profile.sm_count,
        abi::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR => profile.threads_per_sm,
        abi::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR => 32,
        abi::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE => {
            u32::try_from(profile.l2_bytes).unwrap_or(u32::MAX)
        }
        abi::CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE => {
            (profile.l2_bytes / 16 * 10) as u32
        }
        abi::CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE => 128 << 20,
        abi::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => major,
        abi::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => minor,
        abi::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT => 3,
        abi::CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO => 2,
        abi::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => ordinal & 0xFF,
        abi::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID => PCI_DOMAIN,
        abi::CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID => ordinal,
        abi::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES => {
            abi::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        }
        abi::CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT => 1 + 3 * hopper,
        abi::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH
        | abi::CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED => hopper,
        // What the emulator does, or what is true of it as of every such device.
        abi::CU_DEVICE_ATTRIBUTE_GPU_OVERLAP
        | abi::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY
        | abi::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS
        | abi::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
        | abi::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED
        | abi::CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED
        | abi::CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED
        | abi::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY
        | abi::CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED
        | abi::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        | abi::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1
        | abi::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1
        | abi::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1
        | abi::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
        | abi::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR
        | abi::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH
        | abi::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED
        | abi::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED
        | abi::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        | abi::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        | abi::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
        | abi::CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS
        | abi::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS => 1,
        // No host NUMA node is near an emulated device.
        abi::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID | abi::CU_DEVICE_ATTRIBUTE_NUMA_ID => {
            return Some(-1);
        }
        // Textures, surfaces, graphics, other systems' handles, fabrics: 0, as a device without them says.
        other if (1..abi::CU_DEVICE_ATTRIBUTE_MAX).contains(&other) => 0,
        _ => return None,
    };
    Some(c_int::try_from(value).unwrap_or(c_int::MAX))
}
