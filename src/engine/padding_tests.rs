//! What a captured graph does with the rows and blocks beyond a step's own.

use std::path::Path;

use super::{Engine, EngineOptions, Request};
use crate::driver::{DevicePtr, Driver};
use crate::emulator::{self, Profile};

fn engine(rows: u32, eager: bool) -> Engine {
    let ordinal = emulator::add_device(Profile::named("tiny").expect("a known profile"));
    let device = Driver::emulator().device(ordinal).expect("just added");
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/gemma3-tiny-kjv");
    let options = EngineOptions {
        eager,
        max_seqs: rows,
        decode_buckets: Some(vec![rows]),
        prefill_buckets: Some(vec![64]),
        max_chunk_tokens: 64,
        ..EngineOptions::default()
    };
    Engine::load(&device, &dir, &options, &mut |_| {}).expect("the bundled model loads")
}

fn poison(engine: &Engine, from: DevicePtr, to: DevicePtr) {
    let stream = &engine.runner.stream;
    // SAFETY: the range lies in the workspace arena, and no step is in flight.
    unsafe { stream.memset_d8_async(from, 0xff, (to.0 - from.0) as usize) }.expect("fills");
    stream.synchronize().expect("fills");
}

/// Two prompts, then `steps` decode steps; tokens and the bits of both rows' logits. Before each, everything that a step is to write is
/// filled with 0xFF: work lists, activations, partial results.
fn run(engine: &mut Engine, steps: usize) -> Vec<Vec<u32>> {
    for len in [10, 12] {
        let request = Request {
            prompt: (0..len).map(|index| 4 + index * 619 % 4092).collect(),
            max_new_tokens: 50,
            stop_tokens: Vec::new(),
        };
        engine.submit(request).expect("is accepted");
    }
    let mut seen = Vec::new();
    let [_, workspace, _] = engine.arenas();
    for _ in 0..=steps {
        let buffers = &engine.runner.forward.workspace;
        poison(engine, buffers.step, buffers.block_tables[0]);
        poison(
            engine,
            buffers.residual,
            workspace.base.add(workspace.bytes),
        );
        let events = engine.step().expect("runs");
        let mut row: Vec<u32> = events.iter().map(|event| event.token).collect();
        for output_row in 0..2 {
            let logits = engine.runner.logits(output_row).expect("reads");
            row.extend(logits.into_iter().map(f32::to_bits));
        }
        seen.push(row);
    }
    seen
}

/// flashinfer#4002: a graph captured for 16 rows and replayed with 2 read plan entries that nobody had written.
#[test]
fn c21_padded_rows_read_no_plan_and_write_nothing() {
    let mut graph = engine(16, false);
    let replayed = run(&mut graph, 3);
    assert_eq!(replayed, run(&mut engine(2, true), 3));
    // After the last decode step, rows from 2 on are as they were filled.
    let buffers = &graph.runner.forward.workspace;
    let config = &graph.runner.forward.config;
    let hidden = u64::from(config.hidden_size);
    let attention = u64::from(config.attention_width());
    let vocab = u64::from(config.vocab_size);
    for (name, buffer, row_bytes) in [
        ("residual", buffers.residual, hidden * 4),
        ("normed", buffers.normed, hidden * 2),
        ("q", buffers.q, attention * 2),
        ("attention", buffers.attention, attention * 2),
        ("branch", buffers.branch, hidden * 4),
        ("logits", buffers.logits, vocab * 4),
    ] {
        let mut rows = vec![0; 14 * row_bytes as usize];
        graph
            .runner
            .stream
            .copy_to_host(&mut rows, buffer.add(2 * row_bytes))
            .expect("reads");
        assert!(
            rows.iter().all(|byte| *byte == 0xff),
            "{name}: a padded row was written"
        );
    }
}
