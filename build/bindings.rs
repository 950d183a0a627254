//! Regenerates `src/driver/abi.rs` from a current `cuda.h` (feature `regenerate-bindings`).
//!
//! `NEAP_CUDA_INCLUDE` names the folder that holds `cuda.h`. The output is checked in and diffed in
//! CI, so a plain build needs neither the header nor libclang.

/// Structs, handles and enums that `cuda-driver-sys` (CUDA 10.1 headers) lacks or declares as closed enums.
const TYPES: &[&str] = &[
    "CUmemGenericAllocationHandle",
    "CUmemAllocationProp",
    "CUmemAccessDesc",
    "CUDA_KERNEL_NODE_PARAMS_v2",
    "CUdriverProcAddressQueryResult",
    "cudaError_enum",
    "CUuuid",
    "CUctxCreateParams",
    "CUexecAffinityParam",
    "CUlaunchConfig",
    "CUlaunchAttribute",
    "CUDA_MEMCPY2D",
    "CUDA_MEMCPY3D",
    "CUDA_MEMCPY3D_PEER",
    "CUmemcpyAttributes",
    "CUmemLocation",
    "CUmemPoolProps",
    "CUmemPoolPtrExportData",
    "CUDA_MEMSET_NODE_PARAMS",
    "CUDA_HOST_NODE_PARAMS",
    "CUDA_KERNEL_NODE_PARAMS_v1",
    "CUDA_MEM_ALLOC_NODE_PARAMS_v1",
    "CUDA_GRAPH_INSTANTIATE_PARAMS",
    "CUgraphNodeParams",
    "CUgraphEdgeData",
    "CUgraphExecUpdateResultInfo",
    "CUstreamBatchMemOpParams",
    "CUipcMemHandle",
    "CUipcEventHandle",
    "CUtensorMap",
];

/// Plain integer constants, by regular expression.
const CONSTANTS: &[&str] = &[
    "CUDA_VERSION",
    "CU_MEMHOST(ALLOC|REGISTER)_.*",
    "CU_MEM_CREATE_.*",
    "CU_MEM_POOL_.*",
];

/// Enums of which only the named constants' values are wanted.
const ENUMS: &[&str] = &[
    "CUdevice_attribute_enum",
    "CUfunction_attribute_enum",
    "CUstream_flags_enum",
    "CUevent_flags_enum",
    "CUstreamCaptureMode_enum",
    "CUstreamCaptureStatus_enum",
    "CUgraphNodeType_enum",
    "CUjit_option_enum",
    "CUmemAllocationGranularity_flags_enum",
    "CUmemAccess_flags_enum",
    "CUctx_flags_enum",
    "CUlimit_enum",
    "CUfunc_cache_enum",
    "CUpointer_attribute_enum",
    "CUmemorytype_enum",
    "CUmemAllocationType_enum",
    "CUmemAllocationHandleType_enum",
    "CUmemLocationType_enum",
    "CUmemPool_attribute_enum",
    "CUgraphMem_attribute_enum",
    "CUmem_range_attribute_enum",
    "CUdevice_P2PAttribute_enum",
    "CUmoduleLoadingMode_enum",
    "CUlibraryOption_enum",
    "CUjitInputType_enum",
    "CUgraphInstantiate_flags_enum",
    "CUgraphInstantiateResult_enum",
    "CUgraphExecUpdateResult_enum",
    "CUgraphDebugDot_flags_enum",
    "CUlaunchAttributeID_enum",
    "CUstreamBatchMemOpType_enum",
    "CUstreamWaitValue_flags_enum",
    "CUstreamUpdateCaptureDependencies_flags_enum",
    "CUexecAffinityType_enum",
    "CUoccupancy_flags_enum",
    "CUfunctionLoadingState_enum",
    "CUtensorMapDataType_enum",
    "CUtensorMapInterleave_enum",
    "CUtensorMapSwizzle_enum",
    "CUtensorMapL2promotion_enum",
    "CUtensorMapFloatOOBfill_enum",
];

/// The handle types that come from `cuda-driver-sys` are plain pointers and integers.
#[derive(Debug)]
struct PlainHandles;

impl bindgen::callbacks::ParseCallbacks for PlainHandles {
    fn blocklisted_type_implements_trait(
        &self,
        _name: &str,
        _derive: bindgen::callbacks::DeriveTrait,
    ) -> Option<bindgen::callbacks::ImplementsTrait> {
        Some(bindgen::callbacks::ImplementsTrait::Yes)
    }
}

/// Writes the bindings beside the source that includes them.
///
/// # Panics
/// When the header cannot be found or parsed: this runs only when asked for.
pub fn regenerate() {
    println!("cargo:rerun-if-env-changed=NEAP_CUDA_INCLUDE");
    println!("cargo:rerun-if-changed=build/bindings.rs");
    let include = std::env::var("NEAP_CUDA_INCLUDE")
        .expect("set NEAP_CUDA_INCLUDE to the folder that holds a current cuda.h");
    let mut builder = bindgen::Builder::default()
        .header(format!("{include}/cuda.h"))
        .clang_arg(format!("-I{include}"))
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .generate_comments(false)
        .layout_tests(true)
        .derive_default(false)
        .allowlist_recursively(true)
        .raw_line("// Types that cuda-driver-sys already has are taken from it.")
        .raw_line(
            "use cuda_driver_sys::{CUarray, CUcontext, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphNode, CUstream};",
        )
        .blocklist_type("CU(context|function|stream|event|graph|graphNode|array|deviceptr(_v2)?)")
        .blocklist_type("CU(ctx|func|stream|event|graph|graphNode|array)_st")
        .raw_line("#[allow(non_camel_case_types)]")
        .raw_line("pub type CUdeviceptr_v2 = CUdeviceptr;")
        .parse_callbacks(Box::new(PlainHandles))
        .disable_header_comment()
        .raw_line("// Generated from cuda.h by build/bindings.rs (feature regenerate-bindings); do not edit.");
    for name in TYPES {
        builder = builder.allowlist_type(name);
    }
    for name in ENUMS {
        builder = builder.allowlist_type(name);
    }
    for name in CONSTANTS {
        builder = builder.allowlist_var(name);
    }
    builder
        .generate()
        .expect("cuda.h could not be parsed")
        .write_to_file("src/driver/abi.rs")
        .expect("src/driver/abi.rs could not be written");
}
