//! An empty `libcuda.so` to link against.
//!
//! `cuda-driver-sys` passes `-lcuda`, but neap opens `libcuda.so.1` at run time and must build where there
//! is none. The stub satisfies the linker; `--as-needed` keeps it out of the binary's dependencies.

use std::path::Path;

pub fn make(out: &Path) -> Result<(), String> {
    let source = out.join("libcuda_stub.c");
    std::fs::write(&source, "").map_err(|error| format!("{}: {error}", source.display()))?;
    let status = cc::Build::new()
        .get_compiler()
        .to_command()
        .args(["-shared", "-Wl,-soname,libcuda.so.1", "-o"])
        .arg(out.join("libcuda.so"))
        .arg(&source)
        .status()
        .map_err(|error| format!("a C compiler is needed to link neap: {error}"))?;
    if !status.success() {
        return Err("the C compiler could not make the libcuda import stub".to_owned());
    }
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-arg=-Wl,--as-needed");
    Ok(())
}
