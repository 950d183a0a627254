//! The emulated driver: C functions with the real driver's signatures, over process-global state.
//!
//! Everything passes through the C signatures, as it would between two programs: the same functions
//! can be exported from a library named `libcuda.so.1`.

mod allocation_calls;
mod allocations;
mod arguments;
mod attributes;
mod capture;
mod checks;
mod context_calls;
mod contexts;
mod copies;
mod copy_calls;
mod device_calls;
mod device_runtime;
mod entry;
mod exports;
mod failure;
pub(super) mod faults;
mod fill_calls;
mod function_calls;
mod graph_add_calls;
mod graph_build_calls;
mod graph_calls;
mod graph_node_calls;
mod graph_params;
mod graphs;
mod host_functions;
mod image;
mod ipc_calls;
mod jit_log;
mod launch_calls;
mod launches;
mod library_calls;
mod limits;
mod link_calls;
mod module_calls;
mod names;
mod occupancy_calls;
mod pointer_calls;
mod pool_calls;
mod queue;
mod registry;
mod run;
mod state;
mod stream_calls;
mod stream_more_calls;
mod streams;
mod tensor_map_calls;
mod user_objects;
mod vmm_calls;
mod work;

use crate::driver::{Api, CuResult, Device, DevicePtr, MemoryUse};
use std::sync::Arc;

use crate::emulator::check::Checker;
use crate::emulator::{DeviceReport, FaultPlan};

pub(super) use exports::entry_point;
pub(super) use registry::{add_device, before_init, detail};

/// The emulator's table.
pub(super) static API: Api = Api {
    cu_init: device_calls::init,
    cu_driver_get_version: device_calls::driver_get_version,
    cu_get_error_name: device_calls::get_error_name,
    cu_get_error_string: device_calls::get_error_string,
    cu_device_get_count: device_calls::device_get_count,
    cu_device_get: device_calls::device_get,
    cu_device_get_name: device_calls::device_get_name,
    cu_device_total_mem: device_calls::device_total_mem,
    cu_device_get_attribute: device_calls::device_get_attribute,
    cu_device_get_pci_bus_id: device_calls::device_get_pci_bus_id,
    cu_device_primary_ctx_retain: device_calls::device_primary_ctx_retain,
    cu_device_primary_ctx_release: device_calls::device_primary_ctx_release,
    cu_ctx_set_current: device_calls::ctx_set_current,
    cu_ctx_get_current: device_calls::ctx_get_current,
    cu_ctx_synchronize: device_calls::ctx_synchronize,
    cu_mem_get_info: device_calls::mem_get_info,
    cu_mem_alloc: allocation_calls::mem_alloc,
    cu_mem_free: allocation_calls::mem_free,
    cu_mem_host_alloc: allocation_calls::mem_host_alloc,
    cu_mem_free_host: allocation_calls::mem_free_host,
    cu_memcpy_htod: copy_calls::memcpy_htod,
    cu_memcpy_dtoh: copy_calls::memcpy_dtoh,
    cu_memcpy_htod_async: copy_calls::memcpy_htod_async,
    cu_memcpy_dtoh_async: copy_calls::memcpy_dtoh_async,
    cu_memcpy_dtod_async: copy_calls::memcpy_dtod_async,
    cu_memset_d8_async: fill_calls::memset_d8_async,
    cu_memset_d32_async: fill_calls::memset_d32_async,
    cu_mem_address_reserve: vmm_calls::mem_address_reserve,
    cu_mem_address_free: vmm_calls::mem_address_free,
    cu_mem_create: vmm_calls::mem_create,
    cu_mem_release: vmm_calls::mem_release,
    cu_mem_map: vmm_calls::mem_map,
    cu_mem_unmap: vmm_calls::mem_unmap,
    cu_mem_set_access: vmm_calls::mem_set_access,
    cu_mem_get_allocation_granularity: vmm_calls::mem_get_allocation_granularity,
    cu_stream_create_with_priority: stream_calls::stream_create_with_priority,
    cu_stream_destroy: stream_calls::stream_destroy,
    cu_stream_synchronize: stream_calls::stream_synchronize,
    cu_stream_query: stream_calls::stream_query,
    cu_stream_wait_event: stream_calls::stream_wait_event,
    cu_stream_begin_capture: stream_calls::stream_begin_capture,
    cu_stream_end_capture: stream_calls::stream_end_capture,
    cu_stream_is_capturing: stream_calls::stream_is_capturing,
    cu_event_create: stream_calls::event_create,
    cu_event_destroy: stream_calls::event_destroy,
    cu_event_record: stream_calls::event_record,
    cu_event_synchronize: stream_calls::event_synchronize,
    cu_event_query: stream_calls::event_query,
    cu_event_elapsed_time: stream_calls::event_elapsed_time,
    cu_module_load_data_ex: module_calls::module_load_data_ex,
    cu_module_unload: module_calls::module_unload,
    cu_module_get_function: module_calls::module_get_function,
    cu_module_get_global: module_calls::module_get_global,
    cu_func_get_attribute: module_calls::func_get_attribute,
    cu_func_set_attribute: module_calls::func_set_attribute,
    cu_func_get_name: Some(module_calls::func_get_name),
    cu_func_get_param_info: Some(module_calls::func_get_param_info),
    cu_tensor_map_encode_tiled: Some(tensor_map_calls::tensor_map_encode_tiled),
    cu_launch_kernel: launches::launch_kernel,
    cu_graph_instantiate_with_flags: graph_calls::graph_instantiate_with_flags,
    cu_graph_upload: graph_calls::graph_upload,
    cu_graph_launch: graph_calls::graph_launch,
    cu_graph_destroy: graph_calls::graph_destroy,
    cu_graph_exec_destroy: graph_calls::graph_exec_destroy,
    cu_graph_get_nodes: graph_calls::graph_get_nodes,
    cu_graph_node_get_type: graph_calls::graph_node_get_type,
    cu_graph_kernel_node_get_params: graph_calls::graph_kernel_node_get_params,
};

/// The state of a device, if there is one of this ordinal.
pub(super) fn report(ordinal: u32) -> Option<DeviceReport> {
    registry::device(ordinal).map(|device| device.lock().report())
}

/// Bytes of a device that are in use beside what a context of this process costs.
pub(super) fn used_without_context_bytes(device: &Device) -> Option<u64> {
    let device = registry::device(device.ordinal())?;
    let used = device.lock().used_without_context_bytes();
    Some(used)
}

/// Tells the checked mode of a device, if it has one, what a part of its memory is.
pub(super) fn annotate(
    device: &Device,
    address: DevicePtr,
    bytes: u64,
    name: &str,
    memory_use: MemoryUse,
) -> bool {
    let Some(device) = registry::device(device.ordinal()) else {
        return false;
    };
    let mut state = device.lock();
    let Some(checker) = state.check.clone() else {
        return false;
    };
    // Work that was issued before still has what it was issued with.
    let since = state.serial();
    if let Some(memory) = checker.memory().as_mut() {
        let forbidden = memory_use == MemoryUse::Withheld;
        memory.set_zone(address.0, bytes, name.into(), forbidden, since);
    }
    true
}

/// The checked mode of a device, if there is such a device.
pub(super) fn checker(ordinal: u32) -> Option<Option<Arc<Checker>>> {
    registry::device(ordinal).map(|device| device.lock().check.clone())
}

/// The fault that ended the life of a device's context.
pub(super) fn fault(ordinal: u32) -> Option<String> {
    registry::device(ordinal)?.lock().fault()
}

/// Makes the `nth` call from now of a C function fail on a device.
pub(super) fn fail_call(ordinal: u32, call: &str, nth: u64, code: CuResult) {
    add_faults(ordinal, FaultPlan::new().fail_call(call, nth, code));
}

/// Puts a plan in force on a device.
pub(super) fn add_faults(ordinal: u32, plan: FaultPlan) {
    if let Some(device) = registry::device(ordinal) {
        device.lock().faults.add(plan);
    }
}
