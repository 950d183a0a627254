//! Build script: the kernel images, and an import stub for `-lcuda`.

#[cfg(feature = "regenerate-bindings")]
#[path = "build/bindings.rs"]
mod bindings;
#[path = "build/images.rs"]
mod images;
#[path = "build/stub.rs"]
mod stub;
#[path = "build/toolkit.rs"]
mod toolkit;

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(feature = "regenerate-bindings")]
    bindings::regenerate();
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    match stub::make(&out).and_then(|()| images::embed(&out)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}
