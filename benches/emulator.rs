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
use support::attention::{Case, DecodeStep, Surroundings};
use support::oracle::Attention;
use support::random::Random;

fn main() {
    println!("wall-clock of the interpreter on this machine; not times of a GPU");
    let part = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let wanted = |name: &str| part.as_deref().is_none_or(|part| part == name);
    if wanted("decode") {
        decode_attention();
    }
    if wanted("gemm") {
        gemm();
    }
    if wanted("launch") {
        launch();
    }
    if wanted("load") {
        load();
    }
}

/// Rounds of a kernel that runs for some milliseconds.
const ROUNDS: u32 = 200;

/// The shortest of `runs` calls of each function, which take turns, in seconds.
fn best<const N: usize>(runs: u32, mut calls: [&mut dyn FnMut(); N]) -> [f64; N] {
    let mut shortest = [Duration::MAX; N];
    for _ in 0..runs {
        for (call, shortest) in calls.iter_mut().zip(&mut shortest) {
            let begin = Instant::now();
            call();
            *shortest = begin.elapsed().min(*shortest);
        }
    }
    shortest.map(|time| time.as_secs_f64())
}

/// Four sequences of 2,000 tokens, eight query heads on two KV heads of 128, pages of 16.
fn decode_attention() {
    let shape = Attention {
        num_q_heads: 8,
        num_kv_heads: 2,
        head_dim: 128,
        window: None,
        sm_scale: 0.088,
        softcap: 0.0,
    };
    let set_up = |threads| {
        let (rig, ordinal) = Rig::emulated(threads);
        let mut random = Random::new("decode attention");
        let case = Case::random(&mut random, shape, &[2_000; 4], false);
        let order = [0, 1, 2, 3];
        let step = case.prepare_decode(&rig, &mut random, &order, 4, 16, Surroundings::Noise);
        (rig, ordinal, step)
    };
    let [one, two] = [1, 2].map(set_up);
    let launch = |(rig, _, step): &(Rig, u32, _)| {
        DecodeStep::launch(step, rig);
        rig.stream.synchronize().expect("a launch");
    };
    let lanes = || -> u64 {
        let kernels = emulator::report(one.1).kernels;
        kernels.values().map(|counters| counters.active_lanes).sum()
    };
    let before = lanes();
    launch(&one);
    let lanes = lanes() - before;
    let seconds = best(ROUNDS, [&mut || launch(&one), &mut || launch(&two)]);
    for (threads, seconds) in (1..).zip(seconds) {
        println!(
            "decode attention, {threads} threads: {:.2} ms, {:.2} G lane operations a second",
            seconds * 1e3,
            lanes as f64 / seconds / 1e9
        );
    }
    two_to_one("decode attention", seconds);
}

fn two_to_one(name: &str, [one, two]: [f64; 2]) {
    println!("{name}, two threads to one: {:.2}", one / two);
}

/// 64 rows by 1,024 by 1,024, the tile of prefill.
fn gemm() {
    const ROWS: u32 = 64;
    const WIDTH: u32 = 1_024;
    let set_up = |threads| {
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
        (rig, params)
    };
    let [one, two] = [1, 2].map(set_up);
    let launch = |(rig, params): &(Rig, GemmParams)| {
        // SAFETY: the arrays have the shapes of their fields.
        unsafe { rig.kernels.gemm(&rig.stream, Phase::Prefill, ROWS, params) }.expect("launch");
        rig.stream.synchronize().expect("a launch");
    };
    let seconds = best(ROUNDS, [&mut || launch(&one), &mut || launch(&two)]);
    let operations = 2.0 * f64::from(ROWS) * f64::from(WIDTH) * f64::from(WIDTH);
    for (threads, seconds) in (1..).zip(seconds) {
        println!(
            "GEMM {ROWS} x {WIDTH} x {WIDTH}, {threads} threads: {:.2} ms, {:.1} GFLOP/s",
            seconds * 1e3,
            operations / seconds / 1e9
        );
    }
    two_to_one("GEMM", seconds);
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
    let mut launches = || {
        for _ in 0..LAUNCHES {
            // SAFETY: no row is read or written.
            unsafe { rig.kernels.gemm(&rig.stream, Phase::Decode, 1, &params) }.expect("launch");
        }
        rig.stream.synchronize().expect("launches");
    };
    let [seconds] = best(20, [&mut launches]);
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
    let mut loads = || {
        for image in images() {
            drop(Module::load(&rig.context, image.bytes_for(&driver)).expect("a module"));
        }
    };
    let [seconds] = best(10, [&mut loads]);
    println!(
        "parse and lower: {:.2} ms for {kernels} kernels, {:.2} ms each",
        seconds * 1e3,
        seconds * 1e3 / kernels as f64
    );
}
