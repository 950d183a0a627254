//! Loading: every kernel that ships loads, and what cannot run is refused by line.

use super::harness::{Launch, Memory, kernel, load, run_body};

fn ptx_files(folder: &std::path::Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the folder of prebuilt PTX is there") {
        let path = entry.expect("a readable folder").path();
        if path.is_dir() {
            ptx_files(&path, found);
        } else if path.extension().is_some_and(|e| e == "ptx") {
            found.push(path);
        }
    }
}

#[test]
fn every_shipped_kernel_loads() {
    let mut files = Vec::new();
    ptx_files(
        &std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("csrc/prebuilt"),
        &mut files,
    );
    assert!(!files.is_empty());
    let mut failures = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("PTX is text");
        let mut memory = Memory::new(1 << 20);
        let start = std::time::Instant::now();
        match load(&mut memory, &text) {
            Err(error) => failures.push(format!("{}: {error}", file.display())),
            Ok(module) => {
                for name in module.kernel_names() {
                    let k = module.kernel(name).expect("its own kernel");
                    println!(
                        "{name}: {} instructions, {} registers, {} B of register file, {} B local",
                        k.instruction_count, k.registers, k.register_file_bytes, k.local_bytes
                    );
                }
                println!("{}: {:?}", file.display(), start.elapsed());
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn a_store_of_the_thread_index_runs() {
    let mut memory = Memory::new(1 << 16);
    let out = memory.alloc(4 * 64);
    run_body(
        &mut memory,
        "ld.param.u64 %rd1, [p0]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r1;",
        &Launch { params: &[out], block: [64, 1, 1], ..Launch::default() },
    )
    .expect("it runs");
    assert_eq!(memory.get::<u32>(out, 64), (0..64).collect::<Vec<u32>>());
}

#[test]
fn unknown_instructions_are_refused_with_their_line() {
    let text = kernel(0, "mov.u32 %r1, 1;\nfrobnicate.b32 %r1, %r1;");
    let error = load(&mut Memory::new(4096), &text).expect_err("it is no instruction");
    assert_eq!(
        text.lines().nth(error.line as usize - 1),
        Some("frobnicate.b32 %r1, %r1;")
    );
    assert!(error.message.contains("frobnicate.b32 %r1, %r1"), "{error}");
}

#[test]
fn cpus_without_avx2_compute_the_same() {
    if std::env::var_os("NEAP_EMULATOR_PORTABLE").is_some() {
        return;
    }
    again(
        "NEAP_EMULATOR_PORTABLE",
        "1",
        &[
            "integer::",
            "float::",
            "matrix::",
            "control::",
            "memory::",
            "fused::",
        ],
    );
}

#[test]
fn cpus_without_avx512_compute_the_same() {
    if std::env::var_os("NEAP_EMULATOR_AVX512").is_some() {
        return;
    }
    again("NEAP_EMULATOR_AVX512", "0", &["matrix::", "fused::"]);
}

/// Runs tests in a process with a variable. Their models are exact, so passing means equal bits.
fn again(variable: &str, value: &str, tests: &[&str]) {
    let program = std::env::current_exe().expect("a test knows its own path");
    let output = std::process::Command::new(program)
        .args(tests)
        .env(variable, value)
        .output()
        .expect("the test program starts again");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}
