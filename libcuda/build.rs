//! Names the library as programs look for it, inside of the file and beside it.

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // OUT_DIR is PROFILE/build/PACKAGE/out, and the library goes to PROFILE.
    if let Some(profile) = out.ancestors().nth(3) {
        link(profile);
    }
}

/// Programs open `libcuda.so.1`, which stands beside cargo's `libcuda.so`.
fn link(folder: &Path) {
    let name = folder.join("libcuda.so.1");
    if name.symlink_metadata().is_err()
        && let Err(error) = std::os::unix::fs::symlink("libcuda.so", &name)
    {
        println!(
            "cargo:warning={} could not be made: {error}",
            name.display()
        );
    }
}
