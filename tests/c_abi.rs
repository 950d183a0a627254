//! The C ABI from C: examples/generate.c, linked with the README's line, writes the tokens the command line writes.

use std::ffi::{CStr, CString, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::ptr::{null, null_mut};

use neap::capi::{
    NeapCarve, NeapDevice, NeapDeviceInfo, NeapEngine, NeapEngineOptions, NeapFinish,
    NeapGenerateOptions, NeapPool, NeapPrefixCounters, NeapStatus, neap_detokenize,
    neap_device_close, neap_device_info, neap_device_open, neap_engine_carve, neap_engine_close,
    neap_engine_grow, neap_engine_load, neap_engine_options_init, neap_engine_pool,
    neap_engine_prefix_counters, neap_engine_shrink, neap_engine_sleep, neap_engine_wake,
    neap_generate, neap_generate_options_init, neap_last_error, neap_tokenize,
};
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

fn last_error() -> String {
    // SAFETY: the text is NUL-terminated and lives until this thread's next failure.
    unsafe { CStr::from_ptr(neap_last_error()) }
        .to_str()
        .expect("UTF-8")
        .to_owned()
}

/// A device and an engine through the C functions, closed by `close`.
struct Opened {
    device: *mut NeapDevice,
    engine: *mut NeapEngine,
}

impl Opened {
    fn new() -> Opened {
        let (mut device, mut engine) = (null_mut(), null_mut());
        // SAFETY: a NUL-terminated text and the address of a local.
        let status = unsafe { neap_device_open(c"emu:tiny".as_ptr(), &mut device) };
        assert_eq!(status, NeapStatus::Ok);
        // SAFETY: all-zero bytes are a value of the struct.
        let mut options: NeapEngineOptions = unsafe { std::mem::zeroed() };
        options.struct_size = size_of::<NeapEngineOptions>();
        // SAFETY: the struct has the size it states.
        let status = unsafe { neap_engine_options_init(&mut options) };
        assert_eq!(status, NeapStatus::Ok);
        options.max_seqs = 1;
        options.max_chunk_tokens = 16;
        let model = CString::new(MODEL).expect("no NUL");
        // SAFETY: a live device, a NUL-terminated text, a whole struct, no callback, the address of a local.
        let status = unsafe {
            neap_engine_load(
                device,
                model.as_ptr(),
                &options,
                None,
                null_mut(),
                &mut engine,
            )
        };
        assert_eq!(status, NeapStatus::Ok, "{}", last_error());
        Opened { device, engine }
    }

    /// Closes both and asserts that the emulator has no object left.
    fn close(self) {
        // SAFETY: a live engine that nothing uses any more.
        let status = unsafe { neap_engine_close(self.engine) };
        assert_eq!(status, NeapStatus::Ok);
        // SAFETY: all-zero bytes are a value of the struct.
        let mut info: NeapDeviceInfo = unsafe { std::mem::zeroed() };
        info.struct_size = size_of::<NeapDeviceInfo>();
        // SAFETY: a live device and a whole struct.
        let status = unsafe { neap_device_info(self.device, &mut info) };
        assert_eq!(status, NeapStatus::Ok);
        assert_eq!(
            (info.live_objects, info.is_emulator, info.total_bytes),
            (0, 1, 512 << 20)
        );
        // SAFETY: a live device that nothing uses any more.
        let status = unsafe { neap_device_close(self.device) };
        assert_eq!(status, NeapStatus::Ok);
    }
}

#[test]
fn text_goes_to_ids_and_back() {
    let opened = Opened::new();
    let mut count = 0;
    // SAFETY: a live engine, a NUL-terminated text, no room asked for, the address of a local.
    let status = unsafe {
        neap_tokenize(
            opened.engine,
            c"In the beginning".as_ptr(),
            null_mut(),
            0,
            &mut count,
        )
    };
    assert_eq!((status, count), (NeapStatus::Ok, 5), "{}", last_error());
    let mut ids = vec![u32::MAX; count + 1];
    // SAFETY: as above, with room for `count` ids.
    let status = unsafe {
        neap_tokenize(
            opened.engine,
            c"In the beginning".as_ptr(),
            ids.as_mut_ptr(),
            count,
            &mut count,
        )
    };
    assert_eq!((status, ids[0], ids[5]), (NeapStatus::Ok, 2, u32::MAX));

    let mut text = [b'?'; 32];
    let mut length = 0;
    // SAFETY: a live engine, `count` ids, a buffer of the size given, the address of a local.
    let status = unsafe {
        neap_detokenize(
            opened.engine,
            ids.as_ptr(),
            count,
            text.as_mut_ptr().cast(),
            text.len(),
            &mut length,
        )
    };
    assert_eq!(
        (status, &text[..=length]),
        (NeapStatus::Ok, &b"In the beginning\0"[..])
    );
    let before = text;
    // SAFETY: as above; one byte too little room, so nothing may be written.
    let status = unsafe {
        neap_detokenize(
            opened.engine,
            ids.as_ptr(),
            count,
            text.as_mut_ptr().cast(),
            length,
            &mut length,
        )
    };
    assert_eq!((status, length, text), (NeapStatus::Ok, 16, before));
    opened.close();
}

/// Stores what it is called with; asks to stop at the second token.
unsafe extern "C" fn stop_at_the_second(user: *mut c_void, token: u32) -> i32 {
    // SAFETY: the test passes a Vec<u32> that lives through the call.
    let seen = unsafe { &mut *user.cast::<Vec<u32>>() };
    seen.push(token);
    i32::from(seen.len() == 2)
}

#[test]
fn a_callback_stops_the_generation_and_the_engine_goes_on() {
    let opened = Opened::new();
    let prompt = [2_u32, 264];
    let generate = || {
        let mut seen: Vec<u32> = Vec::new();
        let mut finish = NeapFinish::Length;
        // SAFETY: a live engine, two ids, default options, a callback with its Vec, the address of a local.
        let status = unsafe {
            let user = (&raw mut seen).cast();
            neap_generate(
                opened.engine,
                prompt.as_ptr(),
                2,
                null(),
                Some(stop_at_the_second),
                user,
                &mut finish,
            )
        };
        assert_eq!(
            (status, finish),
            (NeapStatus::Ok, NeapFinish::Callback),
            "{}",
            last_error()
        );
        seen
    };
    let first = generate();
    assert_eq!((first.len(), generate()), (2, first));
    opened.close();
}

#[test]
fn misuse_is_answered_with_a_sentence() {
    let mut device = null_mut();
    // SAFETY: null is answered, not read.
    let status = unsafe { neap_device_open(null(), &mut device) };
    assert_eq!(status, NeapStatus::InvalidArgument);
    assert!(last_error().contains("name is null"), "{}", last_error());
    // SAFETY: NUL-terminated, but not UTF-8.
    let status = unsafe { neap_device_open(c"\xff".as_ptr(), &mut device) };
    assert_eq!(status, NeapStatus::InvalidArgument);
    assert!(last_error().contains("UTF-8"), "{}", last_error());
    // SAFETY: NUL-terminated.
    let status = unsafe { neap_device_open(c"abacus".as_ptr(), &mut device) };
    assert_eq!(status, NeapStatus::InvalidArgument);
    assert!(last_error().contains("emu:PROFILE"), "{}", last_error());
    assert!(device.is_null());
    // SAFETY: null is accepted.
    let status = unsafe { neap_engine_close(null_mut()) };
    assert_eq!(status, NeapStatus::Ok);
    // SAFETY: null is accepted.
    let status = unsafe { neap_device_close(null_mut()) };
    assert_eq!(status, NeapStatus::Ok);

    let opened = Opened::new();
    // SAFETY: all-zero bytes are a value of the struct.
    let mut carve: NeapCarve = unsafe { std::mem::zeroed() };
    // SAFETY: a live engine and a whole struct whose size was never set.
    let status = unsafe { neap_engine_carve(opened.engine, &mut carve) };
    assert_eq!(status, NeapStatus::InvalidArgument);
    assert!(
        last_error().contains("NeapCarve.struct_size is 0"),
        "{}",
        last_error()
    );
    carve.struct_size = size_of::<NeapCarve>();
    // SAFETY: a live engine and a whole struct.
    let status = unsafe { neap_engine_carve(opened.engine, &mut carve) };
    assert_eq!(status, NeapStatus::Ok);
    assert_eq!((carve.num_pools, carve.page_size), (2, 16));
    // SAFETY: all-zero bytes are a value of the struct.
    let mut pool: NeapPool = unsafe { std::mem::zeroed() };
    pool.struct_size = size_of::<NeapPool>();
    // SAFETY: a live engine and a whole struct.
    let status = unsafe { neap_engine_pool(opened.engine, 2, &mut pool) };
    assert_eq!(status, NeapStatus::InvalidArgument);
    // SAFETY: null is answered, not read.
    let status = unsafe { neap_engine_pool(null(), 0, &mut pool) };
    assert_eq!(status, NeapStatus::InvalidArgument);

    // SAFETY: all-zero bytes are a value of the struct.
    let mut options: NeapGenerateOptions = unsafe { std::mem::zeroed() };
    options.struct_size = size_of::<NeapGenerateOptions>();
    // SAFETY: a whole struct.
    let status = unsafe { neap_generate_options_init(&mut options) };
    assert_eq!(status, NeapStatus::Ok);
    for (prompt, max_new_tokens, word) in [
        (&[][..], 4, "prompt"),
        (&[2, 4096][..], 4, "4096"),
        (&[2][..], 0, "max_new_tokens"),
    ] {
        options.max_new_tokens = max_new_tokens;
        // SAFETY: a live engine, as many ids as said, a whole struct, no callback.
        let status = unsafe {
            neap_generate(
                opened.engine,
                prompt.as_ptr(),
                prompt.len(),
                &options,
                None,
                null_mut(),
                null_mut(),
            )
        };
        assert_eq!(status, NeapStatus::Engine);
        assert!(last_error().contains(word), "{}", last_error());
    }
    opened.close();
}

/// Stores what it is called with.
unsafe extern "C" fn store(user: *mut c_void, token: u32) -> i32 {
    // SAFETY: the test passes a Vec<u32> that lives through the call.
    unsafe { &mut *user.cast::<Vec<u32>>() }.push(token);
    0
}

/// What the engine makes of a prompt of 40 tokens.
fn generate(engine: *mut NeapEngine) -> (NeapStatus, Vec<u32>) {
    let mut tokens: Vec<u32> = Vec::new();
    let prompt: Vec<u32> = (0..40).map(|index| 4 + index * 61).collect();
    // SAFETY: all-zero bytes are a value of the struct.
    let mut options: NeapGenerateOptions = unsafe { std::mem::zeroed() };
    options.struct_size = size_of::<NeapGenerateOptions>();
    (options.max_new_tokens, options.ignore_stop_tokens) = (6, 1);
    // SAFETY: a live engine, as many ids as stated, a whole struct, a callback for the vector, no place for the reason.
    let status = unsafe {
        neap_generate(
            engine,
            prompt.as_ptr(),
            prompt.len(),
            &options,
            Some(store),
            (&raw mut tokens).cast(),
            null_mut(),
        )
    };
    (status, tokens)
}

#[test]
fn kv_memory_is_given_back_and_taken_again() {
    let opened = Opened::new();
    let engine = opened.engine;
    let resized = |change: unsafe extern "C" fn(*mut NeapEngine, u64, *mut u64) -> NeapStatus,
                   kv_bytes| {
        let mut bytes = 0;
        // SAFETY: a live engine and the address of a local.
        let status = unsafe { change(engine, kv_bytes, &mut bytes) };
        assert_eq!(status, NeapStatus::Ok, "{}", last_error());
        bytes
    };
    let (status, before) = generate(engine);
    assert_eq!((status, before.len()), (NeapStatus::Ok, 6));
    let whole = resized(neap_engine_grow, 0);
    let given_back = resized(neap_engine_shrink, whole / 4);
    // Whole extents: not more than asked for, and all but one extent of it.
    assert!(given_back <= whole - whole / 4 && given_back > whole / 2);
    assert_eq!(
        resized(neap_engine_grow, 0).next_multiple_of(2 << 20),
        whole.next_multiple_of(2 << 20) - given_back
    );
    assert_eq!(generate(engine), (NeapStatus::Ok, before.clone()));
    let mut bytes = 0;
    // SAFETY: a live engine and the address of a local.
    let status = unsafe { neap_engine_sleep(engine, &mut bytes) };
    assert_eq!(status, NeapStatus::Ok);
    assert_eq!(bytes, whole.next_multiple_of(2 << 20) - given_back);
    assert_eq!(generate(engine), (NeapStatus::Engine, Vec::new()));
    assert!(last_error().contains("sleeps"), "{}", last_error());
    // SAFETY: as above.
    let status = unsafe { neap_engine_wake(engine, &mut bytes) };
    assert_eq!(status, NeapStatus::Ok);
    assert_eq!(resized(neap_engine_grow, u64::MAX), whole);
    // SAFETY: null is answered, not written.
    let status = unsafe { neap_engine_grow(engine, 0, null_mut()) };
    assert_eq!(status, NeapStatus::InvalidArgument);
    assert_eq!(generate(engine), (NeapStatus::Ok, before.clone()));
    assert_eq!(generate(engine), (NeapStatus::Ok, before));
    // SAFETY: all-zero bytes are a value of the struct.
    let mut counters: NeapPrefixCounters = unsafe { std::mem::zeroed() };
    counters.struct_size = size_of::<NeapPrefixCounters>();
    // SAFETY: a live engine and a whole struct.
    let status = unsafe { neap_engine_prefix_counters(engine, &mut counters) };
    assert_eq!(status, NeapStatus::Ok);
    // The second time, and the fourth: sleep lost the third's.
    assert_eq!(
        (counters.lookups, counters.hits, counters.saved_tokens),
        (4, 2, 64)
    );
    opened.close();
}
