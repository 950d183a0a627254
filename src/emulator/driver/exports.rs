//! The names that a driver library exports, and which variant of a name a program gets.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::arguments::{Export, Out, Text};
use super::entry::entry_any_time;
use super::failure::Failure;
use super::names::NAMES;
use super::{
    allocation_calls, context_calls, copy_calls, device_calls, fill_calls, function_calls,
    graph_add_calls, graph_build_calls, graph_calls, graph_node_calls, launch_calls, library_calls,
    link_calls, module_calls, occupancy_calls, pointer_calls, pool_calls, stream_more_calls,
    tensor_map_calls, user_objects, vmm_calls,
};
use crate::driver::CuResult;
use crate::driver::abi;

/// All entry points but those of the table that this crate itself uses.
fn lists() -> [&'static [Export]; 21] {
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

/// What the emulator does not offer answers this, whatever its arguments.
unsafe extern "C" fn not_supported() -> CuResult {
    entry_any_time("a call that is not emulated", || {
        Err(Failure::new(
            CuResult::NOT_SUPPORTED,
            "textures, surfaces, arrays, graphics, green contexts and other systems' handles are not emulated",
        ))
    })
}

/// The address of an entry point by its exported name.
fn find(symbol: &str) -> Option<*const c_void> {
    let per_thread = symbol
        .strip_suffix("_ptsz")
        .or_else(|| symbol.strip_suffix("_ptds"));
    let symbol = per_thread.unwrap_or(symbol);
    match symbol {
        "cuGetProcAddress" => return Some(get_proc_address_v1 as *const c_void),
        "cuGetProcAddress_v2" => return Some(get_proc_address as *const c_void),
        "cuGetExportTable" => return Some(get_export_table as *const c_void),
        _ => {}
    }
    let listed = |symbol: &str| {
        let mut exports = lists().into_iter().flatten();
        exports
            .find(|export| export.symbol == symbol)
            .map(|export| export.address)
    };
    let has_variants = VARIANTS.iter().any(|(name, _)| *name == symbol);
    // A first variant took 32-bit sizes; who asks for it by name today means the one that replaced it.
    let newer =
        || listed(&format!("{symbol}_v2")).filter(|_| !has_variants || symbol == "cuCtxCreate");
    if let Some(found) = listed(symbol).or_else(newer) {
        return Some(found);
    }
    // The table has one variant of each name: the newest but where that came later than the table.
    let base = super::entry::base_name(symbol);
    let address = super::API.address_of(base);
    let is_other = match base {
        "cuCtxSynchronize" => symbol != base,
        "cuGraphKernelNodeGetParams" => symbol == base,
        _ => false,
    };
    (!address.is_null() && !is_other).then_some(address)
}

/// The address of an entry point by its exported name; of one that answers "not supported" where there is none.
pub(in crate::emulator) fn entry_point(symbol: &str) -> *const c_void {
    find(symbol).unwrap_or(not_supported as *const c_void)
}

/// The variant of a name that a program built for a CUDA version gets.
fn for_version(name: &str, version: c_int) -> Result<*const c_void, c_uint> {
    if let Some((_, variants)) = VARIANTS.iter().find(|(known, _)| *known == name) {
        let Some((_, symbol)) = variants.iter().rev().find(|(since, _)| *since <= version) else {
            return Err(abi::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
        };
        return Ok(entry_point(symbol));
    }
    ["", "_v2", "_v3"]
        .iter()
        .find_map(|suffix| find(&format!("{name}{suffix}")))
        .or_else(|| {
            NAMES
                .binary_search(&name)
                .is_ok()
                .then_some(not_supported as *const c_void)
        })
        .ok_or(abi::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)
}

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
    match for_version(&name, version) {
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
