//! Bug cases of other servers that concern sizing, by their number in the reference list. Cases with one home in a module
//! (C01 to C03, C07 to C09, C13 in `kv`, C24 to C33 in `kv::window`, C15 and C20 on emulated devices) are tested there.

use neap::arena::{Claims, KvShare, LedgerMeter, Stage};
use neap::driver::MemInfo;
use neap::kv::peers::{Kind, tensorrt_llm, vllm};
use neap::kv::{
    AttentionKind, Carve, FreeMemory, Geometry, KvDtype, LayerSpec, PageSize, Policy, SlabLayout,
    solve_slab,
};

const MIB: u64 = 1 << 20;
const GIB: f64 = (1_u64 << 30) as f64;

fn spec(kind: AttentionKind, num_kv_heads: u32, dim: u32) -> LayerSpec {
    LayerSpec {
        kind,
        num_kv_heads,
        k_head_dim: dim,
        v_head_dim: dim,
    }
}

fn geometry(full: (usize, u32, u32), swa: (usize, u32, u32), window: u32) -> Geometry {
    let layers = [
        vec![spec(AttentionKind::Full, full.1, full.2); full.0],
        vec![spec(AttentionKind::Sliding { window }, swa.1, swa.2); swa.0],
    ];
    Geometry::new(
        &layers.concat(),
        PageSize::new(16).unwrap(),
        KvDtype::Bf16,
        None,
    )
    .unwrap()
}

fn gemma4() -> Geometry {
    geometry((10, 4, 512), (50, 16, 256), 1_024)
}

/// The figure of the list is byte-exact, one page the whole slab: ours lies below it by no more than slabs and null pages.
#[test]
fn c01_c02_one_sequence_takes_all_but_the_null_pages() {
    for (geometry, bytes, exact) in [
        (
            geometry((18, 8, 64), (18, 8, 64), 128),
            5_776_731_013,
            156_544,
        ),
        (gemma4(), 26_349_624_360, 311_248),
    ] {
        // A slab of one page of either pool, where they are equal; else the solver's.
        let swa =
            u64::from(geometry.groups[1].pages_for(u32::MAX)) * geometry.groups[1].page_bytes();
        let full = geometry.groups[0].page_bytes();
        assert_eq!((bytes - swa) / full * 16, exact);
        if geometry.groups[1].page_bytes() == full {
            let layout = SlabLayout::with_slab_bytes(&geometry, full).unwrap();
            let carve = Carve::new(&geometry, &layout, bytes).unwrap();
            // Two null pages of one slab each are all that ours takes.
            assert_eq!(
                u64::from(carve.longest_request_tokens(&geometry)),
                exact - 2 * 16
            );
        }
    }
}

/// Startup says 1.53 sequences of 262,144 and a sequence of 200,000 waits for ever: two functions for one question.
#[test]
fn c04_start_up_and_admission_ask_one_function() {
    // 14,022 shared blocks of vLLM's size; full blocks of 32 tokens, five window groups of 16.
    let kinds = [kind(10, 4, 512, None), kind(50, 16, 256, Some(1_024))];
    let config = vllm::Config {
        max_batched_tokens: 2_048,
        concurrent_batches: 1,
        ..vllm::Config::default()
    };
    let blocks = vllm::Plan::new(&kinds, 1 << 30, config);
    assert_eq!(
        blocks
            .groups
            .iter()
            .map(|group| group.block_tokens)
            .collect::<Vec<_>>(),
        [32, 16, 16, 16, 16, 16]
    );
    let plan = vllm::Plan::new(&kinds, 14_022 * blocks.block_bytes, config);
    assert_eq!(plan.blocks, 14_022);
    // Charged in full, the windows alone exceed the pool; with the chunk in flight it is 6,250 + 5 * 193.
    assert_eq!(
        200_000_u64.div_ceil(32) + 5 * 200_000_u64.div_ceil(16),
        68_750
    );
    assert_eq!(plan.admission_blocks(200_000), 7_215);
    // Ours: the same bytes admit it by the function that reports, with 65 window pages and nothing in flight.
    let geometry = gemma4();
    let bytes = plan.blocks * plan.block_bytes;
    let carve = Carve::new(&geometry, &solve_slab(&geometry, bytes).unwrap(), bytes).unwrap();
    assert_eq!(geometry.pages_for(200_000), [12_500, 65]);
    assert!(carve.free_memory().fits(&geometry.pages_for(200_000)));
    let most = carve.max_requests(&geometry, 200_000);
    let times = |n: u64| {
        geometry
            .pages_for(200_000)
            .iter()
            .map(|pages| pages * n)
            .collect::<Vec<_>>()
    };
    assert!(carve.free_memory().fits(&times(most)) && !carve.free_memory().fits(&times(most + 1)));
}

fn kind(layers: u64, heads: u64, dim: u64, window: Option<u32>) -> Kind {
    Kind {
        layers,
        k_bytes: heads * dim * 2,
        v_bytes: heads * dim * 2,
        window,
    }
}

/// 64 decoding requests and a chunk of 8,192: what is in flight is charged once, not to each.
#[test]
fn c06_what_is_in_flight_is_charged_to_nobody() {
    let swa = [kind(1, 8, 64, Some(4))];
    let config = vllm::Config {
        block_tokens: 4,
        max_batched_tokens: 16_384,
        ..vllm::Config::default()
    };
    assert_eq!(
        vllm::Plan::new(&swa, 1 << 30, config).admission_blocks(1 << 30),
        8_194
    );
    let swa = [kind(1, 8, 64, Some(128))];
    let plan = vllm::Plan::new(&swa, 1 << 30, vllm::Config::default());
    assert_eq!(64 * plan.admission_blocks(1 << 30), 66_112);
    // The list has 64 * 9 + 512 = 1,088 pages as the right need: the live pages and the chunk, once. Ours needs the 576 alone: a chunk takes over the pages of its own window (I10).
    let geometry = geometry((1, 8, 64), (1, 8, 64), 128);
    let pages = geometry.groups[1].pages_for(8_192);
    assert_eq!(64 * pages, 576);
}

/// A ratio taken after rounding up to the grain: half and half where 60 to 40 is needed.
#[test]
fn c14_shares_are_taken_in_bytes_and_rounded_last() {
    let kinds = [
        Kind {
            layers: 9,
            k_bytes: 4 * 192 * 2,
            v_bytes: 4 * 128 * 2,
            window: None,
        },
        Kind {
            layers: 39,
            k_bytes: 8 * 192 * 2,
            v_bytes: 8 * 128 * 2,
            window: Some(128),
        },
    ];
    let v2 = tensorrt_llm::V2::new(&kinds, 40_000_000_000, None);
    assert_eq!(v2.ratios, [0.5, 0.5]);
    let layers = [
        vec![
            LayerSpec {
                kind: AttentionKind::Full,
                num_kv_heads: 4,
                k_head_dim: 192,
                v_head_dim: 128
            };
            9
        ],
        vec![
            LayerSpec {
                kind: AttentionKind::Sliding { window: 128 },
                num_kv_heads: 8,
                k_head_dim: 192,
                v_head_dim: 128
            };
            39
        ],
    ];
    let page = PageSize::new(32).unwrap();
    let geometry = Geometry::new(&layers.concat(), page, KvDtype::Bf16, None).unwrap();
    let bytes = geometry.pages_for(2_049);
    let needs = bytes
        .iter()
        .zip(&geometry.groups)
        .map(|(pages, group)| pages * group.page_bytes())
        .collect::<Vec<_>>();
    let share = needs[0] as f64 / needs.iter().sum::<u64>() as f64;
    assert!((share - 0.6).abs() < 0.02, "{share}");
    let quota = 40_000_000_000;
    let carve = Carve::new(&geometry, &solve_slab(&geometry, quota).unwrap(), quota).unwrap();
    let split = Policy::Workload {
        prompt_tokens: 2_048,
        output_tokens: 1,
    }
    .split(&geometry, &carve)
    .unwrap()
    .unwrap();
    let ours = split.pools[0].slabs as f64 / f64::from(carve.slabs);
    assert!((ours - share).abs() < 0.01, "{ours} {share}");
    // The quota is not exceeded by rounding up.
    assert!(u64::from(carve.slabs) * carve.layout().slab_bytes <= quota);
}

/// 22.36 GiB usable; capture takes 136 MiB when 2.97 GiB + 120.88 MiB are left. Sized first, capture fails; captured
/// first, KV is what remains.
#[test]
fn c15_capture_first_leaves_a_smaller_pool_and_no_failure() {
    let left = (2.97 * GIB) as u64 + (120.88 * MIB as f64) as u64;
    let capture = 136 * MIB;
    let sized_first = (2.97 * GIB) as u64;
    assert!(left - sized_first < capture, "capture finds too little");
    let pool = left - capture;
    let geometry = geometry((12, 8, 64), (12, 8, 64), 128);
    let carve = Carve::new(&geometry, &solve_slab(&geometry, pool).unwrap(), pool).unwrap();
    let gib = carve.slab_total_bytes() as f64 / GIB;
    assert!((gib - 2.95).abs() < 0.01, "{gib}");
}

/// Graph memory nobody counted: 1.3 GB short, or 60 MB assumed for each graph.
#[test]
fn c17_graphs_stand_in_the_ledger_and_the_sum_closes() {
    let total = 81_559 * MIB;
    let reading = |taken_mib: u64| MemInfo {
        free_bytes: total - taken_mib * MIB,
        total_bytes: total,
    };
    for graphs_mib in [0, 60, 1_300, 10_240] {
        let mut meter = LedgerMeter::start(reading(500), 400 * MIB);
        meter.record(Stage::Modules, reading(520));
        meter.record(Stage::Arena, reading(520 + 40_000));
        meter.record(Stage::Graphs, reading(520 + 40_000 + graphs_mib));
        let headroom_mib = 256;
        let carved = total - (520 + 40_000 + graphs_mib + headroom_mib) * MIB;
        let geometry = geometry((18, 8, 64), (18, 8, 64), 128);
        let carve = Carve::new(&geometry, &solve_slab(&geometry, carved).unwrap(), carved).unwrap();
        let slabs = carve.split(&geometry, 8_192);
        let kv = geometry
            .groups
            .iter()
            .zip(&slabs)
            .map(|(group, slabs)| KvShare {
                group: group.name.clone(),
                bytes: slabs * carve.layout().slab_bytes,
            });
        let mapped = carve.slab_total_bytes();
        let ledger = meter.finish(
            MemInfo {
                free_bytes: headroom_mib * MIB + carve.tail_bytes,
                total_bytes: total,
            },
            Claims {
                weights_bytes: 39_000 * MIB,
                workspace_bytes: 1_000 * MIB,
                headroom_bytes: headroom_mib * MIB,
                kv: kv.collect(),
                tail_bytes: carve.tail_bytes,
                unmapped_bytes: carve.tail_bytes,
                grain_bytes: 2 * MIB,
                ineligible: None,
            },
        );
        assert_eq!(mapped + carve.tail_bytes, carved);
        assert_eq!(
            (ledger.graphs_bytes, ledger.unaccounted_bytes),
            (graphs_mib * MIB, 0)
        );
        assert!(ledger.closes());
    }
}

/// Logits of 128 x 262,144 in f32 are 134,217,728 bytes: a workspace fixed before KV is measured cannot be missing later.
#[test]
fn c18_the_workspace_is_taken_before_kv_is_measured() {
    let logits = 128_u64 * 262_144 * 4;
    assert_eq!(logits, 134_217_728);
    let geometry = geometry((10, 16, 128), (52, 16, 128), 1_024);
    let free = (42.38 * GIB) as u64 + (7.2 * GIB) as u64;
    let carve =
        |bytes| Carve::new(&geometry, &solve_slab(&geometry, bytes).unwrap(), bytes).unwrap();
    // Each copy of the logits that is fixed beforehand takes its bytes from the pool, to the byte.
    for copies in 0..4 {
        let carved = carve(free - copies * logits);
        assert_eq!(
            carved.slab_total_bytes() + carved.tail_bytes + copies * logits,
            free
        );
    }
}

/// A transfer registers each pool with its own page bytes, and a window sends its live pages alone.
#[test]
fn c48_each_pool_has_a_descriptor_of_its_own() {
    // gemma-3-4b: 34 layers, of which 5 are full.
    let geometry = geometry((5, 4, 256), (29, 4, 256), 1_024);
    let layout = solve_slab(&geometry, 10_000_000_000).unwrap();
    let pages = layout
        .pools
        .iter()
        .map(|pool| pool.page_bytes)
        .collect::<Vec<_>>();
    assert_eq!(pages, [5 * 65_536, 29 * 65_536]);
    // The arena is one region: a page is its entry, and each layer's share lies a constant stride further.
    for (pool, group) in layout.pools.iter().zip(&geometry.groups) {
        let last = (group.layers.len() as u64 - 1) * pool.layer_stride_bytes;
        assert!(last + pool.layer_page_bytes <= layout.slab_bytes);
    }
    let window = spec(AttentionKind::Sliding { window: 128 }, 8, 64);
    let geometry =
        Geometry::new(&[window], PageSize::new(16).unwrap(), KvDtype::Bf16, None).unwrap();
    assert_eq!(geometry.groups[0].pages_for(131_072), 9);
    assert_eq!(131_072 / 16, 8_192);
}

/// One layer's pages 1.75 MiB apart cost 31 % of the requests: in a slab they are neighbours.
#[test]
fn c50_pages_of_a_layer_are_neighbours() {
    let geometry = geometry((28, 8, 128), (28, 8, 128), 1_024);
    let layout = solve_slab(&geometry, 100_000_000_000).unwrap();
    for pool in &layout.pools {
        // From one page of a layer to the next there is only that layer's share, and a run is as long as memory allows.
        assert_eq!(pool.layer_page_bytes, 16 * 8 * 256 * 2);
        assert_eq!(
            pool.layer_stride_bytes,
            u64::from(pool.pages_per_slab) * pool.layer_page_bytes
        );
        assert!(pool.layer_stride_bytes >= MIB, "{pool:?}");
    }
}

/// Free memory counts the pages that pools already hold before it asks for slabs.
#[test]
fn c03_half_used_slabs_are_capacity_too() {
    let geometry = geometry((12, 8, 64), (12, 8, 64), 128);
    let layout =
        SlabLayout::with_slab_bytes(&geometry, 8 * geometry.groups[0].page_bytes()).unwrap();
    let free = FreeMemory::new(&layout, 1, vec![3, 5]);
    assert!(free.fits(&[11, 5]) && free.fits(&[3, 13]) && !free.fits(&[4, 6]));
}
