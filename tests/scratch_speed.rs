use neap::driver::Driver;
use neap::emulator::{self, Profile};
use neap::engine::{Engine, EngineOptions, Request};
use std::path::Path;
#[test]
fn speed() {
    let ordinal = emulator::add_device(Profile::named("tiny").unwrap());
    let device = Driver::emulator().device(ordinal).unwrap();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/gemma3-tiny-kjv");
    let t = std::time::Instant::now();
    let mut engine = Engine::load(&device, &dir, &EngineOptions::default(), &mut |_| {}).unwrap();
    println!("load {:?} {:?}", t.elapsed(), engine.startup_timings());
    let before = emulator::report(ordinal);
    let n: u32 = std::env::var("N")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(64);
    engine
        .submit(Request {
            prompt: vec![2, 100, 200, 300],
            max_new_tokens: n,
            stop_tokens: vec![],
        })
        .unwrap();
    let t = std::time::Instant::now();
    let mut steps = vec![];
    while engine.has_work() {
        let t = std::time::Instant::now();
        engine.step().unwrap();
        steps.push(t.elapsed().as_secs_f64() * 1e3);
    }
    let dt = t.elapsed().as_secs_f64();
    let after = emulator::report(ordinal);
    println!(
        "{} tok/s ; steps ms {:?}",
        n as f64 / dt,
        steps.iter().take(8).collect::<Vec<_>>()
    );
    steps.sort_by(f64::total_cmp);
    println!("min {} median {}", steps[0], steps[steps.len() / 2]);
    for (name, c) in &after.kernels {
        let b = before.kernels.get(name).copied().unwrap_or_default();
        println!(
            "{name}: launches {} blocks {} winst {} mma {} barriers {} lanes/inst {:.1}",
            c.launches - b.launches,
            c.blocks - b.blocks,
            c.warp_instructions - b.warp_instructions,
            c.mma_ops - b.mma_ops,
            c.barriers - b.barriers,
            (c.active_lanes - b.active_lanes) as f64
                / (c.warp_instructions - b.warp_instructions).max(1) as f64
        );
    }
    let _ = engine.close();
}
