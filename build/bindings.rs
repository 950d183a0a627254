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
];

/// Plain integer constants, by regular expression.
const CONSTANTS: &[&str] = &["CUDA_VERSION", "CU_MEMHOSTALLOC_PORTABLE"];

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
];

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
        .raw_line("use cuda_driver_sys::{CUcontext, CUfunction};")
        .blocklist_type("CUcontext|CUctx_st|CUfunction|CUfunc_st")
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
