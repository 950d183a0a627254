//! What pages, a decode step and the prefix tree cost on the host, beside what other servers do.
//!
//! `cargo bench --bench kv`. Each time in `pages` is of one page taken and one given back; `harness` is what picking the page
//! costs. Numbers of other servers are of translations of their algorithms (`peers/`), in the same run. Times are of this thread on
//! its processor, so that other processes of the machine count only through the caches.

mod peers;

use std::hint::black_box;

use std::time::Duration;

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use neap::kv::{
    Allocator, AttentionKind, Geometry, GroupId, KvDtype, KvSequences, LayerSpec, PageEntry,
    PageSize, Phase, PrefixTree, SequenceId, SlabLayout, solve_slab,
};
use peers::sglang::Cat;
use peers::{sglang, vllm};

const FULL: GroupId = GroupId(0);
const PAGE_TOKENS: u32 = 16;
const WINDOW: u32 = 1_024;

/// One full layer and five sliding ones.
fn geometry() -> Geometry {
    let spec = |kind| LayerSpec {
        kind,
        num_kv_heads: 1,
        k_head_dim: 64,
        v_head_dim: 64,
    };
    let mut layers = vec![spec(AttentionKind::Sliding { window: WINDOW }); 5];
    layers.push(spec(AttentionKind::Full));
    Geometry::new(
        &layers,
        PageSize::new(u64::from(PAGE_TOKENS)).unwrap(),
        KvDtype::Bf16,
        None,
    )
    .unwrap()
}

/// A carve that could hold `pages` full pages, and its slabs.
fn carve(pages: u32) -> (Geometry, SlabLayout, u32) {
    let geometry = geometry();
    let bytes = u64::from(pages) * geometry.groups[0].page_bytes();
    let layout = solve_slab(&geometry, bytes).unwrap();
    let slabs = bytes / layout.slab_bytes;
    (geometry, layout, slabs as u32 + 2)
}

/// Time that this thread spends on a processor.
struct ThreadTime;

impl ThreadTime {
    fn now() -> Duration {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `time` is a valid place for the answer.
        let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        assert_eq!(status, 0);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}

impl Measurement for ThreadTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        Self::now()
    }

    fn end(&self, begin: Duration) -> Duration {
        Self::now() - begin
    }

    fn add(&self, a: &Duration, b: &Duration) -> Duration {
        *a + *b
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        WallTime.to_f64(value)
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0) * bound as u128) >> 64) as usize
    }
}

/// Which page is given back next.
#[derive(Clone, Copy)]
enum Order {
    /// The newest.
    Last,
    /// The oldest, nearly.
    First,
    Random,
}

fn pick<T>(held: &mut Vec<T>, order: Order, random: &mut Random, turn: &mut usize) -> T {
    let place = match order {
        Order::Last => held.len() - 1,
        Order::First => {
            *turn = (*turn + 1) % held.len();
            *turn
        }
        Order::Random => random.below(held.len()),
    };
    held.swap_remove(place)
}

fn pages(c: &mut Criterion<ThreadTime>) {
    let mut group = c.benchmark_group("pages");
    group.throughput(Throughput::Elements(1));
    let orders = [
        ("newest", Order::Last),
        ("oldest", Order::First),
        ("random", Order::Random),
    ];
    for (order_name, order) in orders {
        for pages in [1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 21] {
            let full = pages / 10 * 9;
            let parameter = format!("{order_name}/{pages}");
            {
                let (_, layout, slabs) = carve(pages);
                let mut allocator = Allocator::new(&layout, slabs).unwrap();
                let mut held = (0..full)
                    .map(|_| allocator.alloc_page(FULL).unwrap())
                    .collect::<Vec<_>>();
                let (mut random, mut turn) = (Random(1), 0);
                // Freed and taken in random order first, as after long service.
                for _ in 0..pages {
                    let page = pick(&mut held, Order::Random, &mut random, &mut turn);
                    allocator.free_page(FULL, page).unwrap();
                    held.push(allocator.alloc_page(FULL).unwrap());
                }
                group.bench_function(BenchmarkId::new("neap", &parameter), |b| {
                    b.iter(|| {
                        let page: PageEntry = pick(&mut held, order, &mut random, &mut turn);
                        allocator.free_page(FULL, page).unwrap();
                        held.push(allocator.alloc_page(FULL).unwrap());
                    });
                });
                allocator.audit().unwrap();
                group.bench_function(BenchmarkId::new("harness", &parameter), |b| {
                    b.iter(|| {
                        let page = pick(&mut held, order, &mut random, &mut turn);
                        held.push(black_box(page));
                    });
                });
            }
            {
                let mut pool = vllm::BlockPool::new(pages);
                let mut held = (0..full)
                    .map(|_| pool.get_new_block().unwrap())
                    .collect::<Vec<_>>();
                let (mut random, mut turn) = (Random(1), 0);
                for _ in 0..pages {
                    pool.free_block(pick(&mut held, Order::Random, &mut random, &mut turn));
                    held.push(pool.get_new_block().unwrap());
                }
                group.bench_function(BenchmarkId::new("vllm", &parameter), |b| {
                    b.iter(|| {
                        pool.free_block(pick(&mut held, order, &mut random, &mut turn));
                        held.push(pool.get_new_block().unwrap());
                    });
                });
            }
            for (name, cat) in [
                ("sglang", Cat::Copies),
                ("sglang without cat's copy", Cat::Appends),
            ] {
                let mut allocator = sglang::PagedAllocator::new(pages, PAGE_TOKENS, cat);
                let mut held = (0..full)
                    .map(|_| allocator.alloc_page().unwrap())
                    .collect::<Vec<_>>();
                let (mut random, mut turn) = (Random(1), 0);
                group.bench_function(BenchmarkId::new(name, &parameter), |b| {
                    b.iter(|| {
                        let first = pick(&mut held, order, &mut random, &mut turn);
                        let slots: [u64; PAGE_TOKENS as usize] =
                            std::array::from_fn(|token| first + token as u64);
                        allocator.free(&slots);
                        held.push(allocator.alloc_page().unwrap());
                    });
                });
            }
        }
    }
    group.finish();
}

/// As `pages` in random order, 64 pages given back and then 64 taken, as when a request ends and another begins; each time is
/// of one of them.
fn batches(c: &mut Criterion<ThreadTime>) {
    fn run<T>(
        iterations: u64,
        held: &mut Vec<T>,
        random: &mut Random,
        mut free: impl FnMut(T),
        mut taken: impl FnMut() -> T,
    ) -> Duration
    where
        T: Copy,
    {
        const BATCH: u64 = 64;
        let mut picked = Vec::with_capacity(BATCH as usize);
        let mut elapsed = Duration::ZERO;
        for _ in 0..iterations.div_ceil(BATCH) {
            picked.extend((0..BATCH).map(|_| pick(held, Order::Random, random, &mut 0)));
            let begin = ThreadTime::now();
            picked.drain(..).for_each(&mut free);
            elapsed += ThreadTime::now() - begin;
            let begin = ThreadTime::now();
            held.extend((0..BATCH).map(|_| taken()));
            elapsed += ThreadTime::now() - begin;
        }
        elapsed.mul_f64(iterations as f64 / (iterations.div_ceil(BATCH) * BATCH) as f64)
    }

    let mut group = c.benchmark_group("pages, 64 at a time");
    group.throughput(Throughput::Elements(1));
    for pages in [1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 21] {
        let full = pages / 10 * 9;
        let mut random = Random(1);
        {
            let (_, layout, slabs) = carve(pages);
            let allocator = std::cell::RefCell::new(Allocator::new(&layout, slabs).unwrap());
            let free = |page: PageEntry| allocator.borrow_mut().free_page(FULL, page).unwrap();
            let take = || allocator.borrow_mut().alloc_page(FULL).unwrap();
            let mut held = (0..full).map(|_| take()).collect::<Vec<_>>();
            run(u64::from(pages), &mut held, &mut random, free, take);
            group.bench_function(BenchmarkId::new("neap", pages), |b| {
                b.iter_custom(|iterations| run(iterations, &mut held, &mut random, free, take));
            });
        }
        {
            let pool = std::cell::RefCell::new(vllm::BlockPool::new(pages));
            let free = |block| pool.borrow_mut().free_block(block);
            let take = || pool.borrow_mut().get_new_block().unwrap();
            let mut held = (0..full).map(|_| take()).collect::<Vec<_>>();
            run(u64::from(pages), &mut held, &mut random, free, take);
            group.bench_function(BenchmarkId::new("vllm", pages), |b| {
                b.iter_custom(|iterations| run(iterations, &mut held, &mut random, free, take));
            });
        }
    }
    group.finish();
}

const SEQUENCES: u32 = 4_096;
const PROMPT_TOKENS: u32 = 2_000;
/// Steps before a sequence starts again at its prompt: pages then come and go as in service.
const STEPS: u32 = 1_000;

fn decode_step(c: &mut Criterion<ThreadTime>) {
    let mut group = c.benchmark_group("decode step of 4096 sequences");
    group.throughput(Throughput::Elements(u64::from(SEQUENCES)));
    let pages = SEQUENCES * (PROMPT_TOKENS + STEPS).div_ceil(PAGE_TOKENS) * 8;
    {
        let (geometry, layout, slabs) = carve(pages);
        let mut kv = KvSequences::new(geometry, &layout, slabs, SEQUENCES).unwrap();
        let mut updates = Vec::new();
        let mut slots = [Vec::new(), Vec::new()];
        let start = |kv: &mut KvSequences, sequence: u32| {
            let id = kv.create(PROMPT_TOKENS + STEPS + PAGE_TOKENS).unwrap();
            // Spread over a page, so that every step sees the same share of page boundaries.
            let tokens = PROMPT_TOKENS + sequence % PAGE_TOKENS;
            kv.append(id, tokens, Phase::Prefill, &mut Vec::new())
                .unwrap();
            kv.settle(id, tokens).unwrap();
            (id, tokens)
        };
        let mut sequences: Vec<(SequenceId, u32)> = (0..SEQUENCES)
            .map(|sequence| start(&mut kv, sequence))
            .collect();
        let mut steps = 0;
        group.bench_function("neap", |b| {
            b.iter_custom(|iterations| {
                let mut elapsed = Duration::ZERO;
                for _ in 0..iterations {
                    if steps == STEPS {
                        steps = 0;
                        for (sequence, place) in (0..).zip(&mut sequences) {
                            kv.release(place.0).unwrap();
                            *place = start(&mut kv, sequence);
                        }
                    }
                    steps += 1;
                    let begin = ThreadTime::now();
                    updates.clear();
                    slots.iter_mut().for_each(Vec::clear);
                    for (id, _) in &sequences {
                        kv.append(*id, 1, Phase::Decode, &mut updates).unwrap();
                        for (group, slots) in (0..).map(GroupId).zip(&mut slots) {
                            kv.push_slots(*id, group, slots).unwrap();
                        }
                    }
                    let step = kv.begin_step();
                    kv.complete_step(step).unwrap();
                    for (id, tokens) in &mut sequences {
                        *tokens += 1;
                        kv.settle(*id, *tokens).unwrap();
                    }
                    elapsed += ThreadTime::now() - begin;
                    black_box((&updates, &slots));
                }
                elapsed
            });
        });
    }
    {
        let mut pool = vllm::BlockPool::new(pages * 2);
        let mut slots = Vec::new();
        let mut steps = STEPS;
        let mut requests = Vec::new();
        group.bench_function("vllm", |b| {
            b.iter_custom(|iterations| {
                let mut elapsed = Duration::ZERO;
                for _ in 0..iterations {
                    if steps == STEPS {
                        steps = 0;
                        pool = vllm::BlockPool::new(pages * 2);
                        requests = vec![vllm::Request::default(); SEQUENCES as usize];
                        for (sequence, request) in (0..).zip(&mut requests) {
                            for _ in 0..PROMPT_TOKENS + sequence % PAGE_TOKENS {
                                vllm::allocate_slot(&mut pool, request, PAGE_TOKENS, WINDOW)
                                    .unwrap();
                            }
                        }
                    }
                    steps += 1;
                    let begin = ThreadTime::now();
                    slots.clear();
                    for request in &mut requests {
                        slots.push(
                            vllm::allocate_slot(&mut pool, request, PAGE_TOKENS, WINDOW).unwrap(),
                        );
                    }
                    elapsed += ThreadTime::now() - begin;
                    black_box(&slots);
                }
                elapsed
            });
        });
    }
    {
        let mut steps = STEPS;
        let mut requests = Vec::new();
        let mut full = sglang::PagedAllocator::new(pages, PAGE_TOKENS, Cat::Appends);
        let mut swa = sglang::PagedAllocator::new(pages, PAGE_TOKENS, Cat::Appends);
        let mut full_to_swa = vec![0; (pages as usize + 1) * PAGE_TOKENS as usize];
        let mut slots = Vec::new();
        group.bench_function("sglang without cat's copy", |b| {
            b.iter_custom(|iterations| {
                let mut elapsed = Duration::ZERO;
                for _ in 0..iterations {
                    if steps == STEPS {
                        steps = 0;
                        full = sglang::PagedAllocator::new(pages, PAGE_TOKENS, Cat::Appends);
                        swa = sglang::PagedAllocator::new(pages, PAGE_TOKENS, Cat::Appends);
                        requests = vec![sglang::Request::default(); SEQUENCES as usize];
                        for (sequence, request) in (0..).zip(&mut requests) {
                            for _ in 0..PROMPT_TOKENS + sequence % PAGE_TOKENS {
                                sglang::alloc_decode(
                                    &mut full,
                                    &mut swa,
                                    &mut full_to_swa,
                                    request,
                                    WINDOW,
                                )
                                .unwrap();
                            }
                        }
                    }
                    steps += 1;
                    let begin = ThreadTime::now();
                    slots.clear();
                    for request in &mut requests {
                        slots.push(
                            sglang::alloc_decode(
                                &mut full,
                                &mut swa,
                                &mut full_to_swa,
                                request,
                                WINDOW,
                            )
                            .unwrap(),
                        );
                    }
                    elapsed += ThreadTime::now() - begin;
                    black_box(&slots);
                }
                elapsed
            });
        });
    }
    group.finish();
}

/// A prompt of 32k tokens: found but for its last block, and cached anew behind a shared beginning.
fn prefix(c: &mut Criterion<ThreadTime>) {
    const TOKENS: u32 = 32_768;
    let (geometry, layout, slabs) = carve(1 << 19);
    let mut kv = KvSequences::new(geometry, &layout, slabs, 64)
        .unwrap()
        .with_rewind(2 * PAGE_TOKENS - 1);
    let mut tree = PrefixTree::for_sequences(&kv);
    let prompt = |branch: u32, shared: u32| {
        (0..TOKENS)
            .map(|token| {
                if token < shared {
                    token
                } else {
                    token + branch * TOKENS
                }
            })
            .collect::<Vec<_>>()
    };
    let compute = |kv: &mut KvSequences, tokens: u32| {
        let id = kv.create(tokens).unwrap();
        kv.append(id, tokens, Phase::Prefill, &mut Vec::new())
            .unwrap();
        let step = kv.begin_step();
        kv.complete_step(step).unwrap();
        kv.settle(id, tokens).unwrap();
        id
    };
    let mut group = c.benchmark_group("prefix of 32768 tokens");
    let first = prompt(0, 0);
    let id = compute(&mut kv, TOKENS);
    tree.insert(&mut kv, id, &first).unwrap();
    kv.release(id).unwrap();
    group.bench_function("match", |b| {
        b.iter(|| black_box(tree.lookup(&first).tokens))
    });
    for shared in [0, TOKENS / 2] {
        let mut branch = 1;
        group.bench_function(format!("match and insert, {shared} tokens shared"), |b| {
            b.iter_custom(|iterations| {
                let mut elapsed = Duration::ZERO;
                for _ in 0..iterations {
                    let tokens = prompt(branch, shared);
                    branch += 1;
                    let id = compute(&mut kv, TOKENS);
                    let begin = ThreadTime::now();
                    black_box(tree.lookup(&tokens).tokens);
                    tree.insert(&mut kv, id, &tokens).unwrap();
                    elapsed += ThreadTime::now() - begin;
                    kv.release(id).unwrap();
                    if branch.is_multiple_of(64) {
                        tree.clear(&mut kv).unwrap();
                    }
                }
                elapsed
            });
        });
        tree.clear(&mut kv).unwrap();
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .with_measurement(ThreadTime)
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800));
    targets = pages, batches, decode_step, prefix
}
criterion_main!(benches);
