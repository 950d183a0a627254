//! The names that a driver library exports, and which variant of a name a program gets.

use std::ffi::{c_char, c_int, c_uint, c_void};

use cuda_driver_sys::{CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUstream};

use super::arguments::{Export, Out, Text};
use super::entry::{base_name, entry_any_time};
use super::failure::Failure;
use super::names::NAMES;
use super::streams::per_thread;
use super::{
    allocation_calls, context_calls, copy_calls, device_calls, fill_calls, function_calls,
    graph_add_calls, graph_build_calls, graph_calls, graph_node_calls, ipc_calls, launch_calls,
    launches, library_calls, link_calls, module_calls, occupancy_calls, pointer_calls, pool_calls,
    stream_calls, stream_more_calls, tensor_map_calls, user_objects, vmm_calls,
};
use crate::driver::CuResult;
use crate::driver::abi;

/// All entry points but those of the table that this crate itself uses.
fn lists() -> [&'static [Export]; 22] {
    [
        allocation_calls::EXPORTS,
        context_calls::EXPORTS,
        copy_calls::EXPORTS,
        device_calls::EXPORTS,
        fill_calls::EXPORTS,
        function_calls::EXPORTS,
        graph_add_calls::EXPORTS,
        graph_build_calls::EXPORTS,
        graph_calls::EXPORTS,
        graph_node_calls::EXPORTS,
        ipc_calls::EXPORTS,
        launch_calls::EXPORTS,
        library_calls::EXPORTS,
        link_calls::EXPORTS,
        module_calls::EXPORTS,
        occupancy_calls::EXPORTS,
        pointer_calls::EXPORTS,
        pool_calls::EXPORTS,
        stream_more_calls::EXPORTS,
        tensor_map_calls::EXPORTS,
        user_objects::EXPORTS,
        vmm_calls::EXPORTS,
    ]
}

/// Names with variants of different signatures: the CUDA version that brought each, oldest first.
const VARIANTS: &[(&str, &[(c_int, &str)])] = &[
    (
        "cuCtxCreate",
        &[
            (3020, "cuCtxCreate_v2"),
            (11040, "cuCtxCreate_v3"),
            (12050, "cuCtxCreate_v4"),
        ],
    ),
    (
        "cuCtxGetDevice",
        &[(2000, "cuCtxGetDevice"), (13000, "cuCtxGetDevice_v2")],
    ),
    (
        "cuCtxSynchronize",
        &[(2000, "cuCtxSynchronize"), (13000, "cuCtxSynchronize_v2")],
    ),
    (
        "cuStreamGetCtx",
        &[(9020, "cuStreamGetCtx"), (12050, "cuStreamGetCtx_v2")],
    ),
    (
        "cuMemAdvise",
        &[(8000, "cuMemAdvise"), (12020, "cuMemAdvise_v2")],
    ),
    (
        "cuMemPrefetchAsync",
        &[
            (8000, "cuMemPrefetchAsync"),
            (12020, "cuMemPrefetchAsync_v2"),
        ],
    ),
    (
        "cuMemcpyBatchAsync",
        &[
            (12080, "cuMemcpyBatchAsync"),
            (13000, "cuMemcpyBatchAsync_v2"),
        ],
    ),
    (
        "cuStreamGetCaptureInfo",
        &[
            (10010, "cuStreamGetCaptureInfo"),
            (11030, "cuStreamGetCaptureInfo_v2"),
            (12030, "cuStreamGetCaptureInfo_v3"),
        ],
    ),
    (
        "cuStreamUpdateCaptureDependencies",
        &[
            (11030, "cuStreamUpdateCaptureDependencies"),
            (12030, "cuStreamUpdateCaptureDependencies_v2"),
        ],
    ),
    (
        "cuGraphInstantiate",
        &[
            (11000, "cuGraphInstantiate_v2"),
            (12000, "cuGraphInstantiateWithFlags"),
        ],
    ),
    (
        "cuGraphExecUpdate",
        &[
            (10020, "cuGraphExecUpdate"),
            (12000, "cuGraphExecUpdate_v2"),
        ],
    ),
    (
        "cuGraphAddKernelNode",
        &[
            (10000, "cuGraphAddKernelNode"),
            (12000, "cuGraphAddKernelNode_v2"),
        ],
    ),
    (
        "cuGraphKernelNodeGetParams",
        &[
            (10000, "cuGraphKernelNodeGetParams"),
            (12000, "cuGraphKernelNodeGetParams_v2"),
        ],
    ),
    (
        "cuGraphKernelNodeSetParams",
        &[
            (10000, "cuGraphKernelNodeSetParams"),
            (12000, "cuGraphKernelNodeSetParams_v2"),
        ],
    ),
    (
        "cuGraphExecKernelNodeSetParams",
        &[
            (10000, "cuGraphExecKernelNodeSetParams"),
            (12000, "cuGraphExecKernelNodeSetParams_v2"),
        ],
    ),
    (
        "cuGraphGetEdges",
        &[(10000, "cuGraphGetEdges"), (12030, "cuGraphGetEdges_v2")],
    ),
    (
        "cuGraphNodeGetDependencies",
        &[
            (10000, "cuGraphNodeGetDependencies"),
            (12030, "cuGraphNodeGetDependencies_v2"),
        ],
    ),
    (
        "cuGraphNodeGetDependentNodes",
        &[
            (10000, "cuGraphNodeGetDependentNodes"),
            (12030, "cuGraphNodeGetDependentNodes_v2"),
        ],
    ),
    (
        "cuGraphAddDependencies",
        &[
            (10000, "cuGraphAddDependencies"),
            (12030, "cuGraphAddDependencies_v2"),
        ],
    ),
    (
        "cuGraphRemoveDependencies",
        &[
            (10000, "cuGraphRemoveDependencies"),
            (12030, "cuGraphRemoveDependencies_v2"),
        ],
    ),
    (
        "cuGraphAddNode",
        &[(12020, "cuGraphAddNode"), (12030, "cuGraphAddNode_v2")],
    ),
    (
        "cuGetProcAddress",
        &[(11030, "cuGetProcAddress"), (12000, "cuGetProcAddress_v2")],
    ),
];

/// What a call that the emulator does not offer answers, whatever its arguments.
fn refuse(symbol: &'static str) -> CuResult {
    entry_any_time(base_name(symbol), || {
        Err(Failure::new(
            CuResult::NOT_SUPPORTED,
            format!(
                "{symbol} is not emulated, as nothing is of textures, surfaces, arrays, graphics, green contexts, \
                 conditional nodes, events of other processes and handles of other systems"
            ),
        ))
    })
}

macro_rules! refusals {
    ($($name:ident)*) => {
        /// For each of [`NAMES`] a function that refuses it by name.
        static REFUSALS: &[unsafe extern "C" fn() -> CuResult] = &[$({
            unsafe extern "C" fn refusal() -> CuResult {
                refuse(stringify!($name))
            }
            refusal
        }),*];
    };
}
crate::for_each_driver_name!(refusals);

/// What stands for a name that the emulator does not offer; nothing for what is no name.
fn refusal(symbol: &str) -> Option<*const c_void> {
    let place = NAMES.binary_search(&symbol).ok()?;
    Some(REFUSALS[place] as *const c_void)
}

unsafe extern "C" fn unknown() -> CuResult {
    refuse("a function of an unknown name")
}

/// Declares the variants of the table's functions whose default stream is the thread's own.
macro_rules! per_thread_variants {
    ($($symbol:literal $path:path => ($($arg:ident : $type:ty),* $(,)?);)*) => {
        static PER_THREAD_VARIANTS: &[Export] = &[$({
            unsafe extern "C" fn variant($($arg: $type),*) -> CuResult {
                // SAFETY: forwarded from the caller.
                per_thread(|| unsafe { $path($($arg),*) })
            }
            let address = variant as *const c_void;
            Export { symbol: $symbol, address, per_thread: address }
        }),*];
    };
}

per_thread_variants! {
    "cuMemcpyHtoD" copy_calls::memcpy_htod => (to: CUdeviceptr, from: *const c_void, bytes: usize);
    "cuMemcpyDtoH" copy_calls::memcpy_dtoh => (to: *mut c_void, from: CUdeviceptr, bytes: usize);
    "cuMemcpyHtoDAsync" copy_calls::memcpy_htod_async
        => (to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    "cuMemcpyDtoHAsync" copy_calls::memcpy_dtoh_async
        => (to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    "cuMemcpyDtoDAsync" copy_calls::memcpy_dtod_async
        => (to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    "cuMemsetD8Async" fill_calls::memset_d8_async => (to: CUdeviceptr, value: u8, count: usize, stream: CUstream);
    "cuMemsetD32Async" fill_calls::memset_d32_async => (to: CUdeviceptr, value: c_uint, count: usize, stream: CUstream);
    "cuStreamSynchronize" stream_calls::stream_synchronize => (stream: CUstream);
    "cuStreamQuery" stream_calls::stream_query => (stream: CUstream);
    "cuStreamWaitEvent" stream_calls::stream_wait_event => (stream: CUstream, event: CUevent, flags: c_uint);
    "cuStreamBeginCapture" stream_calls::stream_begin_capture => (stream: CUstream, mode: c_uint);
    "cuStreamEndCapture" stream_calls::stream_end_capture => (stream: CUstream, graph: *mut CUgraph);
    "cuStreamIsCapturing" stream_calls::stream_is_capturing => (stream: CUstream, status: *mut c_uint);
    "cuEventRecord" stream_calls::event_record => (event: CUevent, stream: CUstream);
    "cuGraphUpload" graph_calls::graph_upload => (exec: CUgraphExec, stream: CUstream);
    "cuGraphLaunch" graph_calls::graph_launch => (exec: CUgraphExec, stream: CUstream);
    "cuLaunchKernel" launches::launch_kernel => (
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void,
    );
}

/// The address of an entry point by its exported name.
fn find(symbol: &str) -> Option<*const c_void> {
    let shorter = symbol
        .strip_suffix("_ptsz")
        .or_else(|| symbol.strip_suffix("_ptds"));
    let per_thread = shorter.is_some();
    let symbol = shorter.unwrap_or(symbol);
    match symbol {
        "cuGetProcAddress_v2" if per_thread => return Some(get_proc_address_ptsz as *const c_void),
        "cuGetProcAddress" => return Some(get_proc_address_v1 as *const c_void),
        "cuGetProcAddress_v2" => return Some(get_proc_address as *const c_void),
        "cuGetExportTable" => return Some(get_export_table as *const c_void),
        _ => {}
    }
    let listed = |symbol: &str| {
        let mut exports = lists().into_iter().flatten();
        exports
            .find(|export| export.symbol == symbol)
            .map(|export| {
                if per_thread {
                    export.per_thread
                } else {
                    export.address
                }
            })
    };
    let has_variants = VARIANTS.iter().any(|(name, _)| *name == symbol);
    // A first variant took 32-bit sizes; who asks for it by name today means the one that replaced it.
    let newer =
        || listed(&format!("{symbol}_v2")).filter(|_| !has_variants || symbol == "cuCtxCreate");
    if let Some(found) = listed(symbol).or_else(newer) {
        return Some(found);
    }
    // The table has one variant of each name: the newest but where that came later than the table.
    let base = base_name(symbol);
    let address = super::API.address_of(base);
    let is_other = match base {
        "cuCtxSynchronize" => symbol != base,
        "cuGraphKernelNodeGetParams" => symbol == base,
        _ => false,
    };
    if address.is_null() || is_other {
        return None;
    }
    let mut variants = PER_THREAD_VARIANTS.iter();
    match variants.find(|variant| per_thread && variant.symbol == base) {
        Some(variant) => Some(variant.address),
        None => Some(address),
    }
}

/// The address of an entry point by its exported name; of one that answers "not supported" where there is none.
pub(in crate::emulator) fn entry_point(symbol: &str) -> *const c_void {
    find(symbol)
        .or_else(|| refusal(symbol))
        .unwrap_or(unknown as *const c_void)
}

/// The variant of a name that a program built for a CUDA version gets; `per_thread`: the one whose default stream is the
/// thread's own, where there are both.
fn for_version(name: &str, version: c_int, per_thread: bool) -> Result<*const c_void, c_uint> {
    let is_name = |symbol: &str| NAMES.binary_search(&symbol).is_ok();
    let of_thread = |symbol: &str| {
        let mut variants = ["_ptsz", "_ptds"]
            .iter()
            .map(|suffix| format!("{symbol}{suffix}"));
        variants.find(|variant| per_thread && is_name(variant))
    };
    if let Some((_, variants)) = VARIANTS.iter().find(|(known, _)| *known == name) {
        let Some((_, symbol)) = variants.iter().rev().find(|(since, _)| *since <= version) else {
            return Err(abi::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
        };
        return Ok(entry_point(
            &of_thread(symbol).unwrap_or_else(|| (*symbol).to_owned()),
        ));
    }
    let symbols = ["", "_v2", "_v3"].map(|suffix| format!("{name}{suffix}"));
    let variant = symbols.iter().find_map(|symbol| of_thread(symbol));
    let found = variant
        .as_ref()
        .or_else(|| symbols.iter().find(|symbol| find(symbol).is_some()));
    found
        .map(|symbol| entry_point(symbol))
        .or_else(|| refusal(name))
        .ok_or(abi::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)
}

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`
const PER_THREAD_DEFAULT_STREAM: u64 = 2;

fn resolve(
    symbol: &Text,
    address: Out<*const c_void>,
    version: c_int,
    flags: u64,
    status: Out<c_uint>,
) -> Result<(), Failure> {
    let name = symbol.get("the symbol")?.to_string_lossy();
    address.required("the address")?;
    if flags > 2 {
        return Err(Failure::invalid(format!("no flags {flags:#x}")));
    }
    match for_version(&name, version, flags & PER_THREAD_DEFAULT_STREAM != 0) {
        Ok(found) => {
            status.put_if_wanted(abi::CU_GET_PROC_ADDRESS_SUCCESS);
            address.put(found, "the address")
        }
        Err(reason) => {
            address.put_if_wanted(std::ptr::null());
            if status.is_wanted() {
                status.put_if_wanted(reason);
                return Ok(());
            }
            Err(Failure::new(
                CuResult::NOT_FOUND,
                format!("there is no {name} for CUDA version {version}"),
            ))
        }
    }
}

unsafe extern "C" fn get_proc_address(
    symbol: Text,
    address: Out<*const c_void>,
    version: c_int,
    flags: u64,
    status: Out<c_uint>,
) -> CuResult {
    entry_any_time("cuGetProcAddress", || {
        resolve(&symbol, address, version, flags, status)
    })
}

/// What a program built for per-thread default streams calls: without flags it gets the same variants.
unsafe extern "C" fn get_proc_address_ptsz(
    symbol: Text,
    address: Out<*const c_void>,
    version: c_int,
    flags: u64,
    status: Out<c_uint>,
) -> CuResult {
    entry_any_time("cuGetProcAddress", || {
        let flags = if flags == 0 {
            PER_THREAD_DEFAULT_STREAM
        } else {
            flags
        };
        resolve(&symbol, address, version, flags, status)
    })
}

unsafe extern "C" fn get_proc_address_v1(
    symbol: Text,
    address: Out<*const c_void>,
    version: c_int,
    flags: u64,
) -> CuResult {
    entry_any_time("cuGetProcAddress", || {
        resolve(&symbol, address, version, flags, Out::at(0))
    })
}

/// The tables are NVIDIA's own, for its own libraries.
unsafe extern "C" fn get_export_table(table: Out<*const c_void>, id: *const c_char) -> CuResult {
    entry_any_time("cuGetExportTable", || {
        let _ = id;
        table.put_if_wanted(std::ptr::null());
        Err(Failure::new(
            CuResult::NOT_SUPPORTED,
            "the driver's private tables are not emulated: the CUDA runtime library cannot run on it",
        ))
    })
}
