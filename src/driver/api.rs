//! The table of driver entry points.

use std::ffi::{c_char, c_int, c_uint, c_void};

use cuda_driver_sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUgraphNode,
    CUmodule, CUstream,
};

use super::abi::{
    CUDA_KERNEL_NODE_PARAMS_v2, CUmemAccessDesc, CUmemAllocationProp, CUmemGenericAllocationHandle,
    CUtensorMap,
};
use super::{CuResult, DriverError};

/// Declares [`Api`] and how it is filled, from one list.
///
/// A line is `field = symbol @ version (argument types)`: `cuGetProcAddress` picks the newest `_vN`
/// variant of the symbol that CUDA `version` knew, so the version fixes the signature. Lines under
/// `optional` may be absent from a driver.
macro_rules! driver_api {
    (
        required { $( $(#[$doc:meta])* $field:ident = $symbol:literal @ $version:literal ( $($arg:ty),* $(,)? ); )* }
        optional { $( $(#[$odoc:meta])* $ofield:ident = $osymbol:literal @ $oversion:literal ( $($oarg:ty),* $(,)? ); )* }
    ) => {
        /// Every driver entry point neap uses. Fields are named after the C functions.
        ///
        /// The table is injectable: `libcuda.so.1` and the emulator fill the same struct, and nothing
        /// above this room knows which of the two it calls.
        #[derive(Clone, Copy, Debug)]
        pub struct Api {
            $( $(#[$doc])* pub $field: unsafe extern "C" fn($($arg),*) -> CuResult, )*
            $( $(#[$odoc])* pub $ofield: Option<unsafe extern "C" fn($($oarg),*) -> CuResult>, )*
        }

        impl Api {
            /// The base names (without `_v2`) of all entry points, required ones first.
            pub const SYMBOLS: &'static [&'static str] = &[ $($symbol,)* $($osymbol,)* ];

            /// Fills the table. `resolve(symbol, cuda_version)` gives an entry point's address, or
            /// null where there is none.
            ///
            /// # Safety
            /// Every non-null address must be the C function of that name, in the variant that
            /// `cuda_version` selects, and must stay valid for as long as the table is used.
            ///
            /// # Errors
            /// [`DriverError::MissingSymbol`] names the first required entry point that is absent.
            pub(crate) unsafe fn load(
                resolve: &mut dyn FnMut(&'static str, u32) -> *const c_void,
            ) -> Result<Api, DriverError> {
                Ok(Api {
                    $( $field: {
                        let address = resolve($symbol, $version);
                        if address.is_null() {
                            return Err(DriverError::MissingSymbol { symbol: $symbol });
                        }
                        // SAFETY: the caller of `load` promises that the address is this function.
                        unsafe {
                            std::mem::transmute::<*const c_void, unsafe extern "C" fn($($arg),*) -> CuResult>(address)
                        }
                    }, )*
                    $( $ofield: {
                        let address = resolve($osymbol, $oversion);
                        if address.is_null() {
                            None
                        } else {
                            // SAFETY: the caller of `load` promises that the address is this function.
                            Some(unsafe {
                                std::mem::transmute::<*const c_void, unsafe extern "C" fn($($oarg),*) -> CuResult>(address)
                            })
                        }
                    }, )*
                })
            }

            /// The address of the entry point with this base name, null where the table has none.
            #[must_use]
            pub fn address_of(&self, symbol: &str) -> *const c_void {
                match symbol {
                    $( $symbol => self.$field as *const c_void, )*
                    $( $osymbol => self.$ofield.map_or(std::ptr::null(), |entry| entry as *const c_void), )*
                    _ => std::ptr::null(),
                }
            }
        }
    };
}

driver_api! {
    required {
        /// `cuInit(flags)`.
        cu_init = "cuInit" @ 12000 (c_uint);
        /// `cuDriverGetVersion(version)`.
        cu_driver_get_version = "cuDriverGetVersion" @ 12000 (*mut c_int);
        /// `cuGetErrorName(error, name)`.
        cu_get_error_name = "cuGetErrorName" @ 12000 (CuResult, *mut *const c_char);
        /// `cuGetErrorString(error, text)`.
        cu_get_error_string = "cuGetErrorString" @ 12000 (CuResult, *mut *const c_char);

        /// `cuDeviceGetCount(count)`.
        cu_device_get_count = "cuDeviceGetCount" @ 12000 (*mut c_int);
        /// `cuDeviceGet(device, ordinal)`.
        cu_device_get = "cuDeviceGet" @ 12000 (*mut CUdevice, c_int);
        /// `cuDeviceGetName(name, bytes, device)`.
        cu_device_get_name = "cuDeviceGetName" @ 12000 (*mut c_char, c_int, CUdevice);
        /// `cuDeviceTotalMem(bytes, device)`.
        cu_device_total_mem = "cuDeviceTotalMem" @ 12000 (*mut usize, CUdevice);
        /// `cuDeviceGetAttribute(value, attribute, device)`.
        cu_device_get_attribute = "cuDeviceGetAttribute" @ 12000 (*mut c_int, c_uint, CUdevice);

        /// `cuDeviceGetPCIBusId(id, bytes, device)`.
        cu_device_get_pci_bus_id = "cuDeviceGetPCIBusId" @ 12000 (*mut c_char, c_int, CUdevice);
        /// `cuDevicePrimaryCtxRetain(context, device)`.
        cu_device_primary_ctx_retain = "cuDevicePrimaryCtxRetain" @ 12000 (*mut CUcontext, CUdevice);
        /// `cuDevicePrimaryCtxRelease(device)`.
        cu_device_primary_ctx_release = "cuDevicePrimaryCtxRelease" @ 12000 (CUdevice);
        /// `cuCtxSetCurrent(context)`.
        cu_ctx_set_current = "cuCtxSetCurrent" @ 12000 (CUcontext);
        /// `cuCtxGetCurrent(context)`.
        cu_ctx_get_current = "cuCtxGetCurrent" @ 12000 (*mut CUcontext);
        /// `cuCtxSynchronize()`.
        cu_ctx_synchronize = "cuCtxSynchronize" @ 12000 ();

        /// `cuMemGetInfo(free, total)`.
        cu_mem_get_info = "cuMemGetInfo" @ 12000 (*mut usize, *mut usize);
        /// `cuMemAlloc(pointer, bytes)`; neap itself never calls it, tests assert so.
        cu_mem_alloc = "cuMemAlloc" @ 12000 (*mut CUdeviceptr, usize);
        /// `cuMemFree(pointer)`.
        cu_mem_free = "cuMemFree" @ 12000 (CUdeviceptr);
        /// `cuMemHostAlloc(pointer, bytes, flags)`.
        cu_mem_host_alloc = "cuMemHostAlloc" @ 12000 (*mut *mut c_void, usize, c_uint);
        /// `cuMemFreeHost(pointer)`.
        cu_mem_free_host = "cuMemFreeHost" @ 12000 (*mut c_void);
        /// `cuMemcpyHtoD(destination, source, bytes)`.
        cu_memcpy_htod = "cuMemcpyHtoD" @ 12000 (CUdeviceptr, *const c_void, usize);
        /// `cuMemcpyDtoH(destination, source, bytes)`.
        cu_memcpy_dtoh = "cuMemcpyDtoH" @ 12000 (*mut c_void, CUdeviceptr, usize);
        /// `cuMemcpyHtoDAsync(destination, source, bytes, stream)`.
        cu_memcpy_htod_async = "cuMemcpyHtoDAsync" @ 12000 (CUdeviceptr, *const c_void, usize, CUstream);
        /// `cuMemcpyDtoHAsync(destination, source, bytes, stream)`.
        cu_memcpy_dtoh_async = "cuMemcpyDtoHAsync" @ 12000 (*mut c_void, CUdeviceptr, usize, CUstream);
        /// `cuMemcpyDtoDAsync(destination, source, bytes, stream)`.
        cu_memcpy_dtod_async = "cuMemcpyDtoDAsync" @ 12000 (CUdeviceptr, CUdeviceptr, usize, CUstream);
        /// `cuMemsetD8Async(destination, value, count, stream)`.
        cu_memset_d8_async = "cuMemsetD8Async" @ 12000 (CUdeviceptr, u8, usize, CUstream);
        /// `cuMemsetD32Async(destination, value, count, stream)`.
        cu_memset_d32_async = "cuMemsetD32Async" @ 12000 (CUdeviceptr, c_uint, usize, CUstream);

        /// `cuMemAddressReserve(pointer, bytes, alignment, address, flags)`.
        cu_mem_address_reserve = "cuMemAddressReserve" @ 12000 (*mut CUdeviceptr, usize, usize, CUdeviceptr, u64);
        /// `cuMemAddressFree(pointer, bytes)`.
        cu_mem_address_free = "cuMemAddressFree" @ 12000 (CUdeviceptr, usize);
        /// `cuMemCreate(handle, bytes, properties, flags)`.
        cu_mem_create = "cuMemCreate" @ 12000 (*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, u64);
        /// `cuMemRelease(handle)`.
        cu_mem_release = "cuMemRelease" @ 12000 (CUmemGenericAllocationHandle);
        /// `cuMemMap(pointer, bytes, offset, handle, flags)`.
        cu_mem_map = "cuMemMap" @ 12000 (CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, u64);
        /// `cuMemUnmap(pointer, bytes)`.
        cu_mem_unmap = "cuMemUnmap" @ 12000 (CUdeviceptr, usize);
        /// `cuMemSetAccess(pointer, bytes, descriptions, count)`.
        cu_mem_set_access = "cuMemSetAccess" @ 12000 (CUdeviceptr, usize, *const CUmemAccessDesc, usize);
        /// `cuMemGetAllocationGranularity(bytes, properties, option)`.
        cu_mem_get_allocation_granularity = "cuMemGetAllocationGranularity" @ 12000 (*mut usize, *const CUmemAllocationProp, c_uint);

        /// `cuStreamCreateWithPriority(stream, flags, priority)`.
        cu_stream_create_with_priority = "cuStreamCreateWithPriority" @ 12000 (*mut CUstream, c_uint, c_int);
        /// `cuStreamDestroy(stream)`.
        cu_stream_destroy = "cuStreamDestroy" @ 12000 (CUstream);
        /// `cuStreamSynchronize(stream)`.
        cu_stream_synchronize = "cuStreamSynchronize" @ 12000 (CUstream);
        /// `cuStreamQuery(stream)`.
        cu_stream_query = "cuStreamQuery" @ 12000 (CUstream);
        /// `cuStreamWaitEvent(stream, event, flags)`.
        cu_stream_wait_event = "cuStreamWaitEvent" @ 12000 (CUstream, CUevent, c_uint);
        /// `cuStreamBeginCapture(stream, mode)`.
        cu_stream_begin_capture = "cuStreamBeginCapture" @ 12000 (CUstream, c_uint);
        /// `cuStreamEndCapture(stream, graph)`.
        cu_stream_end_capture = "cuStreamEndCapture" @ 12000 (CUstream, *mut CUgraph);
        /// `cuStreamIsCapturing(stream, status)`.
        cu_stream_is_capturing = "cuStreamIsCapturing" @ 12000 (CUstream, *mut c_uint);

        /// `cuEventCreate(event, flags)`.
        cu_event_create = "cuEventCreate" @ 12000 (*mut CUevent, c_uint);
        /// `cuEventDestroy(event)`.
        cu_event_destroy = "cuEventDestroy" @ 12000 (CUevent);
        /// `cuEventRecord(event, stream)`.
        cu_event_record = "cuEventRecord" @ 12000 (CUevent, CUstream);
        /// `cuEventSynchronize(event)`.
        cu_event_synchronize = "cuEventSynchronize" @ 12000 (CUevent);
        /// `cuEventQuery(event)`.
        cu_event_query = "cuEventQuery" @ 12000 (CUevent);
        /// `cuEventElapsedTime(milliseconds, start, end)`.
        cu_event_elapsed_time = "cuEventElapsedTime" @ 12000 (*mut f32, CUevent, CUevent);

        /// `cuModuleLoadDataEx(module, image, count, options, values)`.
        cu_module_load_data_ex = "cuModuleLoadDataEx" @ 12000 (*mut CUmodule, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
        /// `cuModuleUnload(module)`.
        cu_module_unload = "cuModuleUnload" @ 12000 (CUmodule);
        /// `cuModuleGetFunction(function, module, name)`.
        cu_module_get_function = "cuModuleGetFunction" @ 12000 (*mut CUfunction, CUmodule, *const c_char);
        /// `cuModuleGetGlobal(pointer, bytes, module, name)`.
        cu_module_get_global = "cuModuleGetGlobal" @ 12000 (*mut CUdeviceptr, *mut usize, CUmodule, *const c_char);
        /// `cuFuncGetAttribute(value, attribute, function)`.
        cu_func_get_attribute = "cuFuncGetAttribute" @ 12000 (*mut c_int, c_uint, CUfunction);
        /// `cuFuncSetAttribute(function, attribute, value)`.
        cu_func_set_attribute = "cuFuncSetAttribute" @ 12000 (CUfunction, c_uint, c_int);
        /// `cuLaunchKernel(function, grid x y z, block x y z, shared bytes, stream, parameters, extra)`.
        cu_launch_kernel = "cuLaunchKernel" @ 12000 (CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void);

        /// `cuGraphInstantiateWithFlags(exec, graph, flags)`.
        cu_graph_instantiate_with_flags = "cuGraphInstantiateWithFlags" @ 12000 (*mut CUgraphExec, CUgraph, u64);
        /// `cuGraphUpload(exec, stream)`.
        cu_graph_upload = "cuGraphUpload" @ 12000 (CUgraphExec, CUstream);
        /// `cuGraphLaunch(exec, stream)`.
        cu_graph_launch = "cuGraphLaunch" @ 12000 (CUgraphExec, CUstream);
        /// `cuGraphDestroy(graph)`.
        cu_graph_destroy = "cuGraphDestroy" @ 12000 (CUgraph);
        /// `cuGraphExecDestroy(exec)`.
        cu_graph_exec_destroy = "cuGraphExecDestroy" @ 12000 (CUgraphExec);
        /// `cuGraphGetNodes(graph, nodes, count)`.
        cu_graph_get_nodes = "cuGraphGetNodes" @ 12000 (CUgraph, *mut CUgraphNode, *mut usize);
        /// `cuGraphNodeGetType(node, type)`.
        cu_graph_node_get_type = "cuGraphNodeGetType" @ 12000 (CUgraphNode, *mut c_uint);
        /// `cuGraphKernelNodeGetParams(node, parameters)`.
        cu_graph_kernel_node_get_params = "cuGraphKernelNodeGetParams" @ 12000 (CUgraphNode, *mut CUDA_KERNEL_NODE_PARAMS_v2);

    }
    optional {
        /// `cuFuncGetName(name, function)`, since CUDA 12.3.
        cu_func_get_name = "cuFuncGetName" @ 12030 (*mut *const c_char, CUfunction);
        /// `cuFuncGetParamInfo(function, index, offset, bytes)`, since CUDA 12.4.
        cu_func_get_param_info = "cuFuncGetParamInfo" @ 12040 (CUfunction, usize, *mut usize, *mut usize);
        /// `cuTensorMapEncodeTiled(map, type, rank, address, dims, strides, box dims, element strides, interleave, swizzle,
        /// L2 promotion, fill)`.
        cu_tensor_map_encode_tiled = "cuTensorMapEncodeTiled" @ 12000 (*mut CUtensorMap, c_uint, c_uint, *mut c_void, *const u64, *const u64, *const c_uint, *const c_uint, c_uint, c_uint, c_uint, c_uint);
    }
}
