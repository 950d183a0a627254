//! Build script: an import stub for `-lcuda`.
#[cfg(feature = "regenerate-bindings")]
#[path = "build/bindings.rs"]
mod bindings;

fn main() {
    #[cfg(feature = "regenerate-bindings")]
    bindings::regenerate();
    println!("cargo:rerun-if-changed=build.rs");
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let source = out.join("libcuda_stub.c");
    std::fs::write(&source, "").expect("OUT_DIR is writable");
    let status = cc::Build::new()
        .get_compiler()
        .to_command()
        .args(["-shared", "-Wl,-soname,libcuda.so.1", "-o"])
        .arg(out.join("libcuda.so"))
        .arg(&source)
        .status()
        .expect("a C compiler is needed");
    assert!(
        status.success(),
        "the C compiler could not make the libcuda import stub"
    );
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-arg=-Wl,--as-needed");
}
