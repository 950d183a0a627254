//! Traffic that changes its length without a restart: 1k requests, then 128k, then 1k again, each time up to the same share as a
//! carve that never saw anything else. What the change cost in pages moved and microseconds is printed.

use std::time::{Duration, Instant};

use neap::kv::{
    AttentionKind, Carve, Geometry, KvDtype, KvError, KvSequences, LayerSpec, PageSize, Phase,
    SequenceId, solve_slab,
};

/// Layers, KV heads and head dims of the full and the sliding kind, and the window.
type Shape = ((usize, u32, u32, u32), (usize, u32, u32, u32), u32);

const SHAPES: [(&str, Shape); 5] = [
    ("gpt-oss-20b", ((12, 8, 64, 64), (12, 8, 64, 64), 128)),
    ("gpt-oss-120b", ((18, 8, 64, 64), (18, 8, 64, 64), 128)),
    (
        "Gemma-3-27B",
        ((10, 16, 128, 128), (52, 16, 128, 128), 1_024),
    ),
    ("MiMo-V2-Flash", ((9, 4, 192, 128), (39, 8, 192, 128), 128)),
    ("Llama-3.1-8B", ((32, 8, 128, 128), (0, 8, 128, 128), 128)),
];

fn geometry((full, swa, window): Shape) -> Geometry {
    let spec =
        |kind, (_, num_kv_heads, k_head_dim, v_head_dim): (usize, u32, u32, u32)| LayerSpec {
            kind,
            num_kv_heads,
            k_head_dim,
            v_head_dim,
        };
    let mut layers = vec![spec(AttentionKind::Full, full); full.0];
    layers.extend(vec![spec(AttentionKind::Sliding { window }, swa); swa.0]);
    Geometry::new(
        &layers,
        PageSize::new(16).unwrap(),
        KvDtype::Bf16,
        Some(131_072),
    )
    .unwrap()
}

struct Server {
    kv: KvSequences,
    live: Vec<(SequenceId, u32)>,
    random: u64,
    pages_moved: u64,
    compacting: Duration,
}

impl Server {
    fn random(&mut self, bound: usize) -> usize {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.random) * bound as u128) >> 64) as usize
    }

    fn step(&mut self) {
        let step = self.kv.begin_step();
        self.kv.complete_step(step).unwrap();
    }

    /// Admits a request and computes it in chunks; false when there is no room.
    fn start(&mut self, tokens: u32) -> bool {
        let id = match self.kv.create(tokens) {
            Ok(id) => id,
            Err(KvError::NoRoomNow { .. }) => return false,
            Err(error) => panic!("{error}"),
        };
        let mut computed = 0;
        while computed < tokens {
            let chunk = (tokens - computed).min(8_192);
            match self.kv.append(id, chunk, Phase::Prefill, &mut Vec::new()) {
                Ok(()) => {}
                Err(KvError::OutOfPages { .. }) => {
                    let begin = Instant::now();
                    let moves = self.kv.compact(usize::MAX, &mut Vec::new()).unwrap();
                    self.compacting += begin.elapsed();
                    self.pages_moved += moves.len() as u64;
                    self.step();
                    self.kv
                        .append(id, chunk, Phase::Prefill, &mut Vec::new())
                        .expect("what admission promised");
                }
                Err(error) => panic!("{error}"),
            }
            computed += chunk;
            self.step();
            self.kv.settle(id, computed).unwrap();
        }
        self.live.push((id, tokens));
        true
    }

    /// Requests of another length end in random order, one after the other, while those of `tokens` take their place as soon as they fit.
    fn drift_to(&mut self, tokens: u32) -> u64 {
        loop {
            while self.start(tokens) {}
            let others = (0..self.live.len())
                .filter(|&place| self.live[place].1 != tokens)
                .collect::<Vec<_>>();
            if others.is_empty() {
                return self.live.len() as u64;
            }
            let place = others[self.random(others.len())];
            let (id, _) = self.live.swap_remove(place);
            self.kv.release(id).unwrap();
        }
    }
}

#[test]
fn every_length_gets_its_share_whatever_traffic_was_before() {
    for (name, shape) in SHAPES {
        let geometry = geometry(shape);
        let bytes = 40_000_000_000;
        let carve = Carve::new(&geometry, &solve_slab(&geometry, bytes).unwrap(), bytes).unwrap();
        let kv = KvSequences::new(geometry.clone(), carve.layout(), carve.slabs, 4_096).unwrap();
        let mut server = Server {
            kv,
            live: Vec::new(),
            random: 1,
            pages_moved: 0,
            compacting: Duration::ZERO,
        };
        for tokens in [1_024, 131_072, 1_024, 8_192, 131_072] {
            (server.pages_moved, server.compacting) = (0, Duration::ZERO);
            let resident = server.drift_to(tokens);
            assert_eq!(
                resident,
                carve.max_requests(&geometry, tokens),
                "{name} at {tokens}"
            );
            println!(
                "{name}: {resident} of {tokens} tokens; {} pages moved, {} us to plan it",
                server.pages_moved,
                server.compacting.as_micros()
            );
        }
        server.kv.allocator().audit().unwrap();
    }
}
