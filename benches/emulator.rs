//! How fast the software device runs kernels: `cargo bench --bench emulator [-- PART]`, PART one of `decode`, `gemm`, `launch`, `load`.
//!
//! Wall-clock times of the interpreter on this machine, by one CPU thread and by two. They say how long tests take, nothing about a GPU.
//! The best of several runs, since other processes of the machine only add.

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use neap::driver::{Driver, Module};
use neap::emulator;
use neap::kernels::{GemmParams, Phase, images};
use support::Rig;
use support::attention::{Case, Surroundings};
use support::oracle::Attention;
use support::random::Random;

fn main() {
    println!("wall-clock of the interpreter on this machine; not times of a GPU");
    let part = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let wanted = |name: &str| part.as_deref().is_none_or(|part| part == name);
    let two_to_one = |name: &str, run: fn(usize) -> f64| {
        let [one, two] = [1, 2].map(run);
        println!("{name}, two threads to one: {:.2}", one / two);
    };
    if wanted("decode") {
        two_to_one("decode attention", decode_attention);
    }
    if wanted("gemm") {
        two_to_one("GEMM", gemm);
    }
    if wanted("launch") {
        launch();
    }
    if wanted("load") {
        load();
    }
}

/// The shortest of several calls, in seconds.
fn best(runs: u32, mut run: impl FnMut()) -> f64 {
    let time = |run: &mut dyn FnMut()| {
        let begin = Instant::now();
        run();
        begin.elapsed()
    };
    let times = (0..runs).map(|_| time(&mut run));
    times.min().unwrap_or(Duration::MAX).as_secs_f64()
}

/// Four sequences of 2,000 tokens, eight query heads on two KV heads of 128, pages of 16.
fn decode_attention(threads: usize) -> f64 {
    let (rig, ordinal) = Rig::emulated(threads);
    let mut random = Random::new("decode attention");
    let shape = Attention {
        num_q_heads: 8,
        num_kv_heads: 2,
        head_dim: 128,
        window: None,
        sm_scale: 0.088,
        softcap: 0.0,
    };
    let case = Case::random(&mut random, shape, &[2_000; 4], false);
    let step = case.prepare_decode(&rig, &mut random, &[0, 1, 2, 3], 4, 16, Surroundings::Noise);
    let lanes = || -> u64 {
        let kernels = emulator::report(ordinal).kernels;
        kernels.values().map(|counters| counters.active_lanes).sum()
    };
    let before = lanes();
    step.launch(&rig);
    rig.stream.synchronize().expect("a launch");
    let lanes = lanes() - before;
    let seconds = best(20, || {
        step.launch(&rig);
        rig.stream.synchronize().expect("a launch");
    });
    println!(
        "decode attention, {threads} threads: {:.2} ms, {:.2} G lane operations a second",
        seconds * 1e3,
        lanes as f64 / seconds / 1e9
    );
    seconds
}

/// 64 rows by 1,024 by 1,024, the tile of prefill.
fn gemm(threads: usize) -> f64 {
    const ROWS: u32 = 64;
    const WIDTH: u32 = 1_024;
    let (rig, _) = Rig::emulated(threads);
    let mut random = Random::new("GEMM");
    let elements = |rows: u32| (rows * WIDTH) as usize;
    let params = GemmParams {
        header: rig.header_of_rows(ROWS),
        x: rig
            .upload(&random.normals_bf16(elements(ROWS), 1.0))
            .pointer,
        weight: rig
            .upload(&random.normals_bf16(elements(WIDTH), 1.0))
            .pointer,
        y: rig.poisoned::<f32>(elements(ROWS)).pointer,
        n: WIDTH,
        k: WIDTH,
        ..GemmParams::default()
    };
    let seconds = best(20, || {
        // SAFETY: the arrays have the shapes of their fields.
        unsafe { rig.kernels.gemm(&rig.stream, Phase::Prefill, ROWS, &params) }.expect("launch");
        rig.stream.synchronize().expect("a launch");
    });
    let operations = 2.0 * f64::from(ROWS) * f64::from(WIDTH) * f64::from(WIDTH);
    println!(
        "GEMM {ROWS} x {WIDTH} x {WIDTH}, {threads} threads: {:.2} ms, {:.1} GFLOP/s",
        seconds * 1e3,
        operations / seconds / 1e9
    );
    seconds
}

/// One block that finds nothing to do.
fn launch() {
    const LAUNCHES: u32 = 2_000;
    let (rig, _) = Rig::emulated(1);
    let params = GemmParams {
        header: rig.header_of_rows(0),
        x: rig.allocate(1 << 12),
        weight: rig.allocate(1 << 12),
        y: rig.allocate(1 << 12),
        n: 8,
        k: 64,
        ..GemmParams::default()
    };
    let seconds = best(5, || {
        for _ in 0..LAUNCHES {
            // SAFETY: no row is read or written.
            unsafe { rig.kernels.gemm(&rig.stream, Phase::Decode, 1, &params) }.expect("launch");
        }
        rig.stream.synchronize().expect("launches");
    });
    println!(
        "a launch of one block: {:.2} us",
        seconds / f64::from(LAUNCHES) * 1e6
    );
}

/// Parsing and lowering of all the library's kernels.
fn load() {
    let (rig, _) = Rig::emulated(1);
    let driver = Driver::emulator();
    let kernels = images()
        .iter()
        .flat_map(|image| image.kernel_names())
        .count();
    let seconds = best(5, || {
        for image in images() {
            drop(Module::load(&rig.context, image.bytes_for(&driver)).expect("a module"));
        }
    });
    println!(
        "parse and lower: {:.2} ms for {kernels} kernels, {:.2} ms each",
        seconds * 1e3,
        seconds * 1e3 / kernels as f64
    );
}
