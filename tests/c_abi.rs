//! The C ABI from C: examples/generate.c, linked with the README's line, writes the tokens the command line writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/gemma3-tiny-kjv");

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The static library of this build: cargo leaves it beside the tests when it builds them.
fn static_library() -> PathBuf {
    let executable = std::env::current_exe().expect("this test's path");
    let deps = executable.parent().expect("target/PROFILE/deps");
    let mut found: Vec<PathBuf> = fs::read_dir(deps)
        .expect("deps")
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            name.starts_with("libneap") && name.ends_with(".a")
        })
        .collect();
    found.sort_by_key(|path| {
        fs::metadata(path)
            .and_then(|metadata| metadata.modified())
            .ok()
    });
    found
        .pop()
        .unwrap_or_else(|| panic!("no libneap.a in {}", deps.display()))
}

/// Compiles the example with the line that the README gives, its two paths replaced.
fn compile(folder: &Path) -> PathBuf {
    let readme = fs::read_to_string(root().join("README.md")).expect("README.md");
    let line = readme
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("cc ") && line.contains("libneap.a"))
        .expect("README.md gives a link line");
    let program = folder.join("generate");
    let library = static_library();
    let mut words = line.split_whitespace();
    let status = Command::new(words.next().expect("cc"))
        .args(words.map(|word| match word {
            "target/release/libneap.a" => library.as_os_str(),
            "generate" => program.as_os_str(),
            other => other.as_ref(),
        }))
        .args(["-Wall", "-Wextra", "-Werror"])
        .current_dir(root())
        .status()
        .expect("cc starts");
    assert!(status.success(), "`{line}` failed");
    program
}

fn tokens(output: &Output) -> Vec<u64> {
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {told}", output.status);
    let written = String::from_utf8(output.stdout.clone()).expect("UTF-8");
    written
        .lines()
        .map(|line| line.parse().expect("an id"))
        .collect()
}

fn ids(report: &Value, field: &str) -> Vec<u64> {
    report[field]
        .as_array()
        .expect(field)
        .iter()
        .map(|id| id.as_u64().expect("an id"))
        .collect()
}

#[test]
fn the_c_example_writes_the_tokens_of_the_command_line() {
    let folder = TempDir::new().expect("a folder");
    let program = compile(folder.path());

    let cli = Command::new(env!("CARGO_BIN_EXE_neap"))
        .args([
            "run",
            MODEL,
            "--device",
            "emu:tiny",
            "--max-new-tokens",
            "24",
            "--json",
        ])
        .output()
        .expect("neap starts");
    let report: Value = serde_json::from_slice(&cli.stdout).expect("JSON");
    let prompt: Vec<String> = ids(&report, "prompt_tokens")
        .iter()
        .map(u64::to_string)
        .collect();

    let from_c = Command::new(&program)
        .args([MODEL, "emu:tiny", "24"])
        .args(&prompt)
        .output()
        .expect("starts");
    let told = String::from_utf8_lossy(&from_c.stderr).into_owned();
    assert_eq!(tokens(&from_c), ids(&report, "tokens"));
    for word in ["total", "graphs", "pool full", "pool swa", "24 tokens"] {
        assert!(told.contains(word), "{told}");
    }

    let refused = Command::new(&program)
        .args(["/no/such/model", "emu:tiny", "4", "2"])
        .output()
        .expect("starts");
    assert_eq!(refused.status.code(), Some(2));
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(told.contains("/no/such/model"), "{told}");
}

#[test]
fn the_c_example_is_clean_under_memcheck() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!(
            "skipped: valgrind is not installed, so memory errors of the C example were not looked for"
        );
        return;
    }
    let folder = TempDir::new().expect("a folder");
    let program = compile(folder.path());
    let output = Command::new("valgrind")
        .args([
            "--quiet",
            "--error-exitcode=99",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite,indirect",
        ])
        .arg(&program)
        .args([MODEL, "emu:tiny", "2", "2", "264"])
        .output()
        .expect("valgrind starts");
    assert_eq!(
        tokens(&output).len(),
        2,
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
