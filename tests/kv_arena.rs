//! Arenas, the KV arena and the ledger on emulated devices: sizing after capture, to the byte.

use neap::arena::{AllocationGate, Arena, ArenaError, Claims, LedgerMeter, Stage};
use neap::driver::{Context, CuResult, Driver};
use neap::emulator::{self, Profile};
use neap::kv::{
    AttentionKind, CarveError, Geometry, KvArena, KvArenaError, KvDtype, KvSequences, LayerSpec,
    PageSize, Phase,
};

const MIB: u64 = 1 << 20;
const GRAIN: u64 = 2 * MIB;

fn device(change: impl FnOnce(&mut Profile)) -> (u32, Context) {
    let mut profile = Profile::named("tiny").expect("a known profile");
    change(&mut profile);
    let ordinal = emulator::add_device(profile);
    let device = Driver::emulator().device(ordinal).unwrap();
    (ordinal, Context::retain_primary(&device).unwrap())
}

fn layers(full: (usize, u32, u32), swa: (usize, u32, u32), window: u32) -> Geometry {
    let spec = |kind, heads, dim| LayerSpec {
        kind,
        num_kv_heads: heads,
        k_head_dim: dim,
        v_head_dim: dim,
    };
    let mut layers = vec![spec(AttentionKind::Full, full.1, full.2); full.0];
    layers.extend(vec![
        spec(AttentionKind::Sliding { window }, swa.1, swa.2);
        swa.0
    ]);
    Geometry::new(
        &layers,
        PageSize::new(16).unwrap(),
        KvDtype::Bf16,
        Some(131_072),
    )
    .unwrap()
}

/// The bundled model: five sliding layers, one full.
fn small() -> Geometry {
    layers((1, 2, 64), (5, 2, 64), 64)
}

fn gemma_27b() -> Geometry {
    layers((10, 16, 128), (52, 16, 128), 1_024)
}

#[test]
fn an_arena_is_backed_in_one_extent_and_handed_out_from_its_start() {
    let (ordinal, context) = device(|_| {});
    let gate = AllocationGate::new();
    let mut arena = Arena::reserve(&context, &gate, "weights", 100 * MIB + 1).unwrap();
    assert_eq!(
        (arena.reserved_bytes(), arena.mapped_bytes()),
        (102 * MIB, 0)
    );
    assert!(matches!(
        arena.alloc(1, 1),
        Err(ArenaError::Exhausted { .. })
    ));
    arena.map_to(99 * MIB).unwrap();
    arena.map_to(3).unwrap();
    assert_eq!(
        (
            arena.mapped_bytes(),
            emulator::report(ordinal).calls_of("cuMemCreate")
        ),
        (100 * MIB, 1)
    );

    let first = arena.alloc(10, 1).unwrap();
    let second = arena.alloc(10, 256).unwrap();
    assert_eq!((first, second), (arena.base(), arena.base().add(256)));
    assert_eq!(arena.used_bytes(), 266);
    assert!(matches!(
        arena.alloc(1, 24),
        Err(ArenaError::Alignment { .. })
    ));
    assert!(matches!(
        arena.alloc(u64::MAX, 1),
        Err(ArenaError::Exhausted { .. })
    ));
    arena.alloc(100 * MIB - 266, 1).unwrap();
    assert!(matches!(
        arena.alloc(1, 1),
        Err(ArenaError::Exhausted { .. })
    ));
    assert!(
        arena.contains(arena.base(), 100 * MIB) && !arena.contains(arena.base(), 100 * MIB + 1)
    );
    assert!(matches!(
        arena.map_to(103 * MIB),
        Err(ArenaError::BeyondReservation { .. })
    ));
    arena.close().unwrap();
    context.close().unwrap();
    assert_eq!(emulator::report(ordinal).live_objects(), 0);
}

#[test]
fn c20_nothing_is_allocated_while_the_gate_is_closed() {
    let (ordinal, context) = device(|_| {});
    let gate = AllocationGate::new();
    let mut arena = Arena::reserve(&context, &gate, "workspace", 64 * MIB).unwrap();
    arena.map_to(8 * MIB).unwrap();
    gate.clone().close();
    let created = emulator::report(ordinal).calls_of("cuMemCreate");
    let error = arena.map_to(16 * MIB).unwrap_err();
    assert_eq!(
        error,
        ArenaError::Sealed {
            arena: "workspace",
            bytes: 8 * MIB
        }
    );
    assert!(arena.map_up_to(16 * MIB).is_err());
    // What is backed already may be handed out: that is host arithmetic.
    arena.alloc(MIB, 256).unwrap();
    arena.map_to(8 * MIB).unwrap();
    assert_eq!(emulator::report(ordinal).calls_of("cuMemCreate"), created);
    gate.open();
    arena.map_to(16 * MIB).unwrap();
}

#[test]
fn a_refused_extent_changes_nothing() {
    let (ordinal, context) = device(|_| {});
    let free = context.mem_info().unwrap().free_bytes;
    let mut arena = Arena::reserve(&context, &AllocationGate::new(), "weights", 512 * MIB).unwrap();
    let error = arena.map_to(512 * MIB).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("the weights arena: cuMemCreate"),
        "{error}"
    );
    assert!(!error.to_string().contains('\n'));
    // The memory is there, but opening it fails: it goes back.
    emulator::fail_call(ordinal, "cuMemSetAccess", 1, CuResult::INVALID_VALUE);
    assert!(arena.map_to(64 * MIB).is_err());
    assert_eq!(
        (arena.mapped_bytes(), context.mem_info().unwrap().free_bytes),
        (0, free)
    );
    // As much as there is, in halving extents.
    assert_eq!(arena.map_up_to(512 * MIB).unwrap(), free / GRAIN * GRAIN);
    assert!(context.mem_info().unwrap().free_bytes < GRAIN);
}

#[test]
fn kv_has_only_its_null_pages_before_capture_and_all_that_is_free_after_it() {
    let (ordinal, context) = device(|_| {});
    let geometry = small();
    let bound = context.mem_info().unwrap().free_bytes;
    let mut kv = KvArena::reserve(&context, &AllocationGate::new(), &geometry, bound).unwrap();
    let null_bytes = kv.layout().null_bytes().next_multiple_of(GRAIN);
    assert_eq!(emulator::report(ordinal).physical_bytes, null_bytes);
    let (base, layout) = (kv.base(), kv.layout().clone());

    let headroom = 10 * MIB;
    let extension = kv.extend(headroom, None).unwrap();
    let carve = &extension.carve;
    assert_eq!(
        (kv.base(), kv.layout()),
        (base, &layout),
        "captured graphs hold both"
    );
    assert_eq!(extension.refused_bytes, 0);
    // I4: backed beyond whole slabs is less than a grain; the rest of the tail is not backed at all.
    assert!(extension.mapped_bytes - carve.slab_total_bytes() < GRAIN);
    assert_eq!(
        emulator::report(ordinal).physical_bytes,
        extension.mapped_bytes
    );
    // I5: slabs and tail are the bytes carved.
    assert_eq!(
        u64::from(carve.slabs) * layout.slab_bytes + carve.tail_bytes,
        carve.carved_bytes
    );
    assert!(carve.tail_bytes < layout.slab_bytes);
    let free = context.mem_info().unwrap().free_bytes;
    assert_eq!(free, extension.headroom_bytes + extension.unmapped_bytes());
    assert!(extension.headroom_bytes - headroom < GRAIN);
    // The pages reach the last slab, and it is backed.
    let mut sequences = KvSequences::new(geometry.clone(), &layout, carve.slabs, 1).unwrap();
    let longest = carve.longest_request_tokens(&geometry);
    let id = sequences.create(longest).unwrap();
    sequences
        .append(id, longest, Phase::Prefill, &mut Vec::new())
        .unwrap();
    for group in geometry.group_ids() {
        let pool = &layout.pools[group.index()];
        let chunk = pool.layer_stride_bytes * (pool.page_bytes / pool.layer_page_bytes - 1)
            + pool.layer_page_bytes;
        for (_, entry) in sequences.table(id, group).unwrap() {
            assert!(
                kv.arena()
                    .contains(kv.base().add(entry.offset_bytes()), chunk)
            );
        }
    }
    kv.close().unwrap();
    context.close().unwrap();
    assert_eq!(emulator::report(ordinal).live_objects(), 0);
}

/// Start-up with `graph_bytes` taken between the reservation and the carve; slabs and pages of each pool, and the ledger.
fn start_up(graph_bytes: u64) -> (u32, Vec<u64>, neap::arena::Ledger) {
    let (_, context) = device(|profile| profile.total_bytes = 4 << 30);
    let gate = AllocationGate::new();
    let geometry = small();
    let mut meter = LedgerMeter::start(context.mem_info().unwrap(), 0);
    let mut weights = Arena::reserve(&context, &gate, "weights", 64 * MIB).unwrap();
    weights.map_to(64 * MIB).unwrap();
    let bound = context.mem_info().unwrap().free_bytes;
    let mut kv = KvArena::reserve(&context, &gate, &geometry, bound).unwrap();
    meter.record(Stage::Arena, context.mem_info().unwrap());
    // What capture takes, by whatever means.
    let mut graphs = Arena::reserve(&context, &gate, "graphs", graph_bytes.max(GRAIN)).unwrap();
    graphs.map_to(graph_bytes).unwrap();
    let extension = kv.extend(32 * MIB, None).unwrap();
    meter.record(Stage::Graphs, extension.measured);
    let ledger = meter.finish(
        context.mem_info().unwrap(),
        Claims {
            weights_bytes: weights.mapped_bytes(),
            headroom_bytes: extension.headroom_bytes,
            kv: extension.shares(&geometry, 2_048),
            tail_bytes: extension.carve.tail_bytes,
            unmapped_bytes: extension.unmapped_bytes(),
            grain_bytes: GRAIN,
            ..Claims::default()
        },
    );
    let pages = extension
        .carve
        .report(&geometry, 2_048, &[])
        .pools
        .iter()
        .map(|pool| pool.pages)
        .collect();
    (extension.carve.slabs, pages, ledger)
}

#[test]
fn both_pools_are_sized_from_what_is_left_after_capture() {
    // The defect this guards against: graphs cost more than was reserved, and a pool keeps its pre-capture size.
    let (slabs_before, pages_before, ledger_before) = start_up(0);
    let slab_bytes = ledger_before
        .kv
        .iter()
        .map(|share| share.bytes)
        .sum::<u64>()
        / u64::from(slabs_before);
    for graph_bytes in [GRAIN, 100 * MIB, 1 << 30] {
        let (slabs, pages, ledger) = start_up(graph_bytes);
        assert_eq!(ledger.graphs_bytes, graph_bytes);
        let kv = |ledger: &neap::arena::Ledger| {
            ledger.kv.iter().map(|share| share.bytes).sum::<u64>() + ledger.tail_bytes
        };
        assert_eq!(
            kv(&ledger) + graph_bytes,
            kv(&ledger_before),
            "KV is smaller by exactly what graphs cost"
        );
        let lost = u64::from(slabs_before - slabs) * slab_bytes;
        assert!(lost.abs_diff(graph_bytes) <= slab_bytes);
        // Each pool shrinks by its share, within a few slabs of rounding.
        for (before, after) in pages_before.iter().zip(&pages) {
            assert!(after < before, "a pool of {before} pages still has {after}");
            let share = graph_bytes as f64 / kv(&ledger_before) as f64;
            let shrunk = 1.0 - *after as f64 / *before as f64;
            assert!(
                (shrunk - share).abs() < 0.01,
                "{graph_bytes}: shrunk by {shrunk}, not {share}"
            );
        }
        for ledger in [&ledger, &ledger_before] {
            assert_eq!(ledger.unaccounted_bytes, 0);
            assert!(ledger.closes());
        }
    }
}

#[test]
fn c15_capture_first_then_what_is_left() {
    // 2.97 GiB and 120.88 MiB are free; capture takes 136 MiB. A pool of 2.97 GiB sized before would starve it.
    let before = (2.97 * 1024.0 + 120.88) as u64 * MIB / GRAIN * GRAIN;
    let (_, context) = device(|profile| {
        profile.total_bytes = 22_896 * MIB;
        profile.foreign_bytes = 22_896 * MIB - profile.context_bytes - before;
    });
    assert_eq!(context.mem_info().unwrap().free_bytes, before);
    let gate = AllocationGate::new();
    let mut kv = KvArena::reserve(&context, &gate, &small(), before).unwrap();
    let mut graphs = Arena::reserve(&context, &gate, "graphs", 136 * MIB).unwrap();
    graphs.map_to(136 * MIB).unwrap();
    let extension = kv.extend(0, None).unwrap();
    assert_eq!(extension.carve.carved_bytes, before - 136 * MIB);
}

#[test]
fn what_the_device_refuses_shrinks_the_carve_and_is_said() {
    let (ordinal, context) = device(|profile| profile.total_bytes = 4 << 30);
    let geometry = small();
    let bound = context.mem_info().unwrap().free_bytes;
    let mut kv = KvArena::reserve(&context, &AllocationGate::new(), &geometry, bound).unwrap();
    let null_bytes = kv.arena().mapped_bytes();
    // The whole extent is refused twice, then half of it is granted and everything after it refused.
    for call in [1, 2].into_iter().chain(4..=40) {
        emulator::fail_call(ordinal, "cuMemCreate", call, CuResult::OUT_OF_MEMORY);
    }
    let extension = kv.extend(64 * MIB, None).unwrap();
    assert!(extension.refused_bytes > 0);
    assert_eq!(extension.mapped_bytes, kv.arena().mapped_bytes());
    assert_eq!(extension.carve.carved_bytes, extension.mapped_bytes);
    assert!(extension.mapped_bytes > null_bytes && extension.mapped_bytes < bound * 6 / 10);
    assert!(extension.carve.slab_total_bytes() <= kv.arena().mapped_bytes());
    assert_eq!(
        emulator::report(ordinal).physical_bytes,
        extension.mapped_bytes
    );
}

#[test]
fn a_limit_and_too_little_memory() {
    let (_, context) = device(|_| {});
    let geometry = small();
    let bound = context.mem_info().unwrap().free_bytes;
    let mut kv = KvArena::reserve(&context, &AllocationGate::new(), &geometry, bound).unwrap();
    let is_small =
        |error: &KvArenaError| matches!(error, KvArenaError::Carve(CarveError::TooSmall { .. }));
    let error = kv.extend(0, Some(GRAIN - 1)).unwrap_err();
    assert!(is_small(&error), "{error}");
    let extension = kv.extend(0, Some(50 * MIB + 5)).unwrap();
    assert_eq!(extension.carve.carved_bytes, 50 * MIB);
    assert_eq!(extension.headroom_bytes, bound - 50 * MIB);
    assert_eq!(
        context.mem_info().unwrap().free_bytes,
        extension.headroom_bytes + extension.unmapped_bytes()
    );
    let refused = KvArena::reserve(&context, &AllocationGate::new(), &geometry, 100).unwrap_err();
    assert!(is_small(&refused), "{refused}");
}

#[test]
fn the_whole_of_an_h200_is_carved_without_touching_it() {
    let ordinal = emulator::add_device(Profile::named("h200").unwrap());
    let context = Context::retain_primary(&Driver::emulator().device(ordinal).unwrap()).unwrap();
    let geometry = gemma_27b();
    let bound = context.mem_info().unwrap().free_bytes;
    assert!(bound > 140_000_000_000);
    let mut kv = KvArena::reserve(&context, &AllocationGate::new(), &geometry, bound).unwrap();
    let extension = kv.extend(1 << 30, None).unwrap();
    assert!(extension.carve.carved_bytes + (1 << 30) + GRAIN > bound);
    assert!(extension.carve.tail_bytes < bound / 1_000);
    assert!(extension.carve.max_requests(&geometry, 131_072) >= 11);
    kv.close().unwrap();
    context.close().unwrap();
    assert_eq!(emulator::report(ordinal).live_objects(), 0);
}
