//! Random operations on sequences and pages, checked against a plain model that knows who owns what.
//!
//! The model is a map from page to owner and, for each sequence, the columns it must hold; it knows nothing of slabs lists,
//! bit words or queues. After every operation I5 and I8 to I11 are checked; `AUDIT_EVERY` operations apart the allocator
//! recounts itself.

use std::collections::{BTreeMap, HashMap, VecDeque};

use neap::kv::{
    AttentionKind, DO_NOT_WRITE, Geometry, GroupId, KvDtype, KvError, KvSequences, LayerSpec,
    PageSize, Phase, SequenceId, SlabLayout, StepId,
};

const OPERATIONS: u32 = 40_000;
const AUDIT_EVERY: u32 = 64;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

struct Model {
    max_tokens: u32,
    tokens: u32,
    settled: u32,
    /// Column to entry, by group.
    tables: Vec<BTreeMap<u32, u32>>,
    /// Pages left behind by a chunk, by group: released when dead on settled tokens.
    closing: Vec<BTreeMap<u32, u32>>,
}

/// How often each thing happened that a run must have exercised to mean anything.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    pages: u64,
    taken_over: u64,
    released_while_in_flight: u64,
    slabs_that_changed_pool: u64,
    out_of_pages: u64,
    refused_for_ever: u64,
    refused_for_now: u64,
}

/// A step in flight: its id, its number, the sequences and the tokens that settle with it.
type InFlight = (StepId, u64, Vec<(SequenceId, u32)>);

struct Check {
    seen: Seen,
    /// The last pool of each slab.
    pool_of_slab: HashMap<u32, usize>,
    name: &'static str,
    kv: KvSequences,
    slabs: u64,
    models: Vec<(SequenceId, Model)>,
    /// Group of every page in use or waiting for a step.
    owners: HashMap<u32, usize>,
    /// Pages that left their sequence, and the newest step launched then.
    waiting: VecDeque<(u64, u32)>,
    steps: VecDeque<InFlight>,
    launched: u64,
    completed: u64,
}

impl Check {
    fn new(
        name: &'static str,
        geometry: Geometry,
        layout: &SlabLayout,
        slabs: u32,
        max_sequences: u32,
    ) -> Self {
        Self {
            seen: Seen::default(),
            pool_of_slab: HashMap::new(),
            name,
            kv: KvSequences::new(geometry, layout, slabs, max_sequences).unwrap(),
            slabs: u64::from(slabs),
            models: Vec::new(),
            owners: HashMap::new(),
            waiting: VecDeque::new(),
            steps: VecDeque::new(),
            launched: 0,
            completed: 0,
        }
    }

    fn page_tokens(&self) -> u32 {
        self.kv.geometry().page_size.tokens()
    }

    fn units(&self) -> u32 {
        self.kv.allocator().layout().slab_units() as u32
    }

    fn per_slab(&self, group: usize) -> u64 {
        u64::from(self.kv.allocator().layout().pools[group].pages_per_slab)
    }

    /// Pages in use of every slab that has any, null pages included.
    fn slab_use(&self) -> HashMap<u32, (usize, u64)> {
        let mut used = HashMap::new();
        for group in 0..self.kv.geometry().groups.len() {
            used.insert(group as u32, (group, 1));
        }
        for (entry, group) in &self.owners {
            let slab = used.entry(entry / self.units()).or_insert((*group, 0));
            assert_eq!(slab.0, *group, "{}: a slab serves two pools", self.name);
            slab.1 += 1;
        }
        used
    }

    /// Whether `demand` more pages fit, from the model alone.
    fn fits_now(&self, demand: &[u64]) -> bool {
        let used = self.slab_use();
        let mut slabs = self.slabs - used.len() as u64;
        for (group, &pages) in demand.iter().enumerate() {
            let free: u64 = used
                .values()
                .filter(|slab| slab.0 == group)
                .map(|slab| self.per_slab(group) - slab.1)
                .sum();
            let needed = pages.saturating_sub(free).div_ceil(self.per_slab(group));
            if needed > slabs {
                return false;
            }
            slabs -= needed;
        }
        true
    }

    fn create(&mut self, max_tokens: u32) {
        let geometry = self.kv.geometry().clone();
        let layout = self.kv.allocator().layout().clone();
        let total = self.slabs;
        let fits = |sequences: &[u32]| {
            let mut slabs = 0;
            for (index, group) in geometry.groups.iter().enumerate() {
                let pages: u64 = sequences
                    .iter()
                    .map(|&tokens| u64::from(group.pages_for(tokens)))
                    .sum();
                slabs += (pages + 1).div_ceil(u64::from(layout.pools[index].pages_per_slab));
            }
            slabs <= total
        };
        let together = self
            .models
            .iter()
            .map(|(_, m)| m.max_tokens)
            .chain([max_tokens])
            .collect::<Vec<_>>();
        let expected = (fits(&[max_tokens]), fits(&together));
        match (self.kv.create(max_tokens), expected) {
            (Ok(id), (true, true)) => {
                let groups = self.kv.geometry().groups.len();
                let empty = vec![BTreeMap::new(); groups];
                self.models.push((
                    id,
                    Model {
                        max_tokens,
                        tokens: 0,
                        settled: 0,
                        tables: empty.clone(),
                        closing: empty,
                    },
                ));
            }
            (Err(KvError::NeverFits { longest_tokens, .. }), (false, _)) => {
                assert!(fits(&[longest_tokens]) && !fits(&[longest_tokens + 1]));
                self.seen.refused_for_ever += 1;
            }
            (Err(KvError::NoRoomNow { .. }), (true, false)) => self.seen.refused_for_now += 1,
            (Err(KvError::NoSlot { .. }), (true, true)) => {}
            (outcome, expected) => panic!(
                "{}: {outcome:?} where the model says {expected:?}",
                self.name
            ),
        }
    }

    fn append(&mut self, index: usize, tokens: u32, phase: Phase) {
        let page = self.page_tokens();
        let groups = self.kv.geometry().groups.clone();
        let (id, begin, end) = {
            let (id, model) = &self.models[index];
            (*id, model.tokens, model.tokens + tokens)
        };
        // What must be new, and how much memory that takes beyond what the chunk takes over.
        let mut new = Vec::new();
        let mut demand = Vec::new();
        for (g, group) in groups.iter().enumerate() {
            let model = &self.models[index].1;
            let first_written = match (group.kind.window(), phase) {
                (Some(window), Phase::Prefill) => {
                    begin.max((end + 1).saturating_sub(window)).min(end)
                }
                _ => begin,
            };
            let columns = (first_written / page..end.div_ceil(page))
                .filter(|column| !model.tables[g].contains_key(column));
            let columns = if first_written == end {
                Vec::new()
            } else {
                columns.collect::<Vec<_>>()
            };
            let dead = match (group.kind.window(), phase) {
                (Some(window), Phase::Prefill) => (end + 1).saturating_sub(window) / page,
                _ => 0,
            };
            let closing = model.tables[g]
                .range(..dead)
                .map(|(column, entry)| (*column, *entry))
                .collect::<BTreeMap<_, _>>();
            demand.push((columns.len() as u64).saturating_sub(closing.len() as u64));
            new.push((columns, closing, first_written));
        }
        let mut updates = Vec::new();
        let outcome = self.kv.append(id, tokens, phase, &mut updates);
        if !self.fits_now(&demand) {
            assert!(
                matches!(outcome, Err(KvError::OutOfPages { .. })),
                "{}: {outcome:?}",
                self.name
            );
            assert!(updates.is_empty());
            self.seen.out_of_pages += 1;
            return;
        }
        outcome.unwrap_or_else(|error| panic!("{}: {error}", self.name));
        let mut updates = updates.into_iter();
        for (g, (columns, mut closing, first_written)) in new.into_iter().enumerate() {
            for column in closing.keys() {
                self.models[index].1.tables[g].remove(column);
            }
            for column in columns {
                let update = updates.next().expect("an update for each new column");
                assert_eq!(
                    (update.group as usize, update.seq_slot, update.column),
                    (g, id.seq_slot(), column)
                );
                self.take(g, update.entry, &mut closing);
                self.models[index].1.tables[g].insert(column, update.entry);
            }
            self.models[index].1.closing[g].append(&mut closing);
            self.check_slots(index, g, begin..end, first_written);
        }
        assert_eq!(updates.next(), None);
        self.models[index].1.tokens = end;
    }

    /// A page is handed out: it is nobody's, or one that this chunk leaves behind.
    fn take(&mut self, group: usize, entry: u32, closing: &mut BTreeMap<u32, u32>) {
        let layout = &self.kv.allocator().layout().pools[group];
        let (slab, offset) = (entry / self.units(), u64::from(entry % self.units()) * 256);
        // I5: the page lies in its slab, every layer of it.
        assert_eq!(offset % layout.layer_page_bytes, 0);
        assert!(offset / layout.layer_page_bytes < u64::from(layout.pages_per_slab));
        assert!(u64::from(slab) < self.slabs);
        let left_behind = closing
            .iter()
            .find(|(_, left)| **left == entry)
            .map(|(column, _)| *column);
        if let Some(column) = left_behind {
            closing.remove(&column);
            self.seen.taken_over += 1;
            return;
        }
        assert!(
            closing.is_empty(),
            "{}: fresh memory although the chunk leaves pages behind",
            self.name
        );
        assert!(
            entry != group as u32 * self.units(),
            "{}: the null page is handed out",
            self.name
        );
        // I11: from the fullest slab of the pool that has a free page, else from a new one.
        let used = self.slab_use();
        let open = used
            .values()
            .filter(|s| s.0 == group && s.1 < self.per_slab(group))
            .map(|s| s.1)
            .max();
        match (open, used.get(&slab)) {
            (Some(fullest), Some(&(owner, pages))) => {
                assert_eq!((owner, pages), (group, fullest), "{}", self.name)
            }
            (None, None) => {}
            (open, slab) => panic!("{}: open {open:?}, taken from {slab:?}", self.name),
        }
        self.seen.pages += 1;
        if self
            .pool_of_slab
            .insert(slab, group)
            .is_some_and(|last| last != group)
        {
            self.seen.slabs_that_changed_pool += 1;
        }
        // No double ownership, and no reuse before its step has completed (I9).
        assert_eq!(
            self.owners.insert(entry, group),
            None,
            "{}: page {entry} has two owners",
            self.name
        );
    }

    fn check_slots(
        &self,
        index: usize,
        group: usize,
        range: std::ops::Range<u32>,
        first_written: u32,
    ) {
        let (id, model) = &self.models[index];
        let mut slots = Vec::new();
        self.kv
            .push_slots(*id, GroupId(group as u32), &mut slots)
            .unwrap();
        let page = self.page_tokens();
        assert_eq!(slots.len(), range.len());
        for (position, slot) in range.zip(slots) {
            if position < first_written {
                assert_eq!(slot, DO_NOT_WRITE);
            } else {
                let entry = model.tables[group][&(position / page)];
                assert_eq!(slot, u64::from(entry) << 32 | u64::from(position % page));
            }
        }
    }

    fn leave(&mut self, entry: u32) {
        if self.launched == self.completed {
            self.owners.remove(&entry).expect("a page leaves once");
        } else {
            self.waiting.push_back((self.launched, entry));
            self.seen.released_while_in_flight += 1;
        }
    }

    fn complete(&mut self) {
        let Some((step, number, settled)) = self.steps.pop_front() else {
            return;
        };
        self.kv.complete_step(step).unwrap();
        self.completed = number;
        while self
            .waiting
            .front()
            .is_some_and(|(step, _)| *step <= self.completed)
        {
            let (_, entry) = self.waiting.pop_front().expect("just seen");
            self.owners.remove(&entry).expect("a page leaves once");
        }
        for (id, tokens) in settled {
            let Some(index) = self.models.iter().position(|(other, _)| *other == id) else {
                assert!(self.kv.settle(id, tokens).is_err());
                continue;
            };
            self.kv.settle(id, tokens).unwrap();
            self.models[index].1.settled = tokens;
            for (g, group) in self.kv.geometry().groups.clone().iter().enumerate() {
                let Some(window) = group.kind.window() else {
                    continue;
                };
                let dead = (tokens + 1).saturating_sub(window) / self.page_tokens();
                let model = &mut self.models[index].1;
                let mut gone = Vec::new();
                for table in [&mut model.closing[g], &mut model.tables[g]] {
                    let kept = table.split_off(&dead);
                    gone.extend(std::mem::replace(table, kept).into_values());
                }
                gone.into_iter().for_each(|entry| self.leave(entry));
            }
        }
    }

    fn release(&mut self, index: usize) {
        let (id, model) = self.models.swap_remove(index);
        self.kv.release(id).unwrap();
        for table in model.closing.into_iter().chain(model.tables) {
            table.into_values().for_each(|entry| self.leave(entry));
        }
        assert!(self.kv.tokens(id).is_err());
    }

    fn launch(&mut self) {
        let settled = self
            .models
            .iter()
            .map(|(id, model)| (*id, model.tokens))
            .collect();
        self.launched += 1;
        self.steps
            .push_back((self.kv.begin_step(), self.launched, settled));
    }

    fn check(&self, operation: u32) {
        let in_flight = !self.steps.is_empty();
        for (id, model) in &self.models {
            for (g, group) in self.kv.geometry().groups.iter().enumerate() {
                let held = self.kv.held_pages(*id, GroupId(g as u32)).unwrap();
                assert_eq!(held, model.tables[g].len() + model.closing[g].len());
                // I10; a step in flight may add the page it decodes into before the oldest one settles.
                if !in_flight && model.settled == model.tokens {
                    assert!(
                        held as u32 <= group.pages_for(model.tokens.max(1)),
                        "{}: {held} pages",
                        self.name
                    );
                }
            }
        }
        if operation.is_multiple_of(AUDIT_EVERY) {
            self.kv.allocator().audit().unwrap();
            for (id, model) in &self.models {
                for (g, table) in model.tables.iter().enumerate() {
                    let held = self
                        .kv
                        .table(*id, GroupId(g as u32))
                        .unwrap()
                        .map(|(c, e)| (c, e.0));
                    assert!(
                        held.eq(table.iter().map(|(c, e)| (*c, *e))),
                        "{}",
                        self.name
                    );
                }
            }
            // I11: every slab without a page in use is in the arena.
            let used = self.slab_use();
            assert_eq!(
                u64::from(self.kv.allocator().free_slabs()),
                self.slabs - used.len() as u64
            );
            assert_eq!(self.kv.retired_pages(), self.waiting.len());
        }
    }

    // A guard instead of the inner `if` would let the draw fall through to the next arm.
    #[allow(clippy::collapsible_match)]
    fn run(mut self, seed: u64, longest: u32) -> Seen {
        let mut random = Random(seed);
        for operation in 0..OPERATIONS {
            let live = self.models.len() as u64;
            match random.below(20) {
                0..=1 => {
                    let longest = if random.below(20) == 0 {
                        longest * 40
                    } else {
                        longest
                    };
                    self.create(1 + random.below(u64::from(longest)) as u32);
                }
                2 => {
                    if live > 0 && random.below(3) == 0 {
                        self.release(random.below(live) as usize);
                    }
                }
                3..=5 => {
                    if self.steps.len() < 3 {
                        self.launch();
                    }
                }
                6..=8 => self.complete(),
                kind if live > 0 => {
                    let index = random.below(live) as usize;
                    let left = self.models[index].1.max_tokens - self.models[index].1.tokens;
                    if left == 0 {
                        self.release(index);
                    } else if kind < 11 {
                        self.append(
                            index,
                            1 + random.below(u64::from(left.min(60))) as u32,
                            Phase::Prefill,
                        );
                    } else {
                        self.append(index, 1, Phase::Decode);
                    }
                }
                _ => {}
            }
            self.check(operation);
        }
        while !self.models.is_empty() {
            self.release(0);
        }
        while !self.steps.is_empty() {
            self.complete();
        }
        self.check(0);
        assert!(
            self.owners.is_empty() && self.waiting.is_empty(),
            "{}: pages leaked",
            self.name
        );
        let groups = self.kv.geometry().groups.len() as u64;
        assert_eq!(
            u64::from(self.kv.allocator().free_slabs()),
            self.slabs - groups,
            "{}",
            self.name
        );
        self.seen
    }
}

fn geometry(groups: &[(usize, Option<u32>, u32)], page_tokens: u64) -> Geometry {
    let layers = groups.iter().flat_map(|&(layers, window, head_dim)| {
        let kind = window.map_or(AttentionKind::Full, |window| AttentionKind::Sliding {
            window,
        });
        vec![
            LayerSpec {
                kind,
                num_kv_heads: 1,
                k_head_dim: head_dim,
                v_head_dim: head_dim
            };
            layers
        ]
    });
    Geometry::new(
        &layers.collect::<Vec<_>>(),
        PageSize::new(page_tokens).unwrap(),
        KvDtype::Bf16,
        None,
    )
    .unwrap()
}

fn run(
    name: &'static str,
    groups: &[(usize, Option<u32>, u32)],
    page_tokens: u64,
    slab_pages: u64,
    slabs: u32,
    longest: u32,
) {
    let geometry = geometry(groups, page_tokens);
    let largest = geometry
        .groups
        .iter()
        .map(|group| group.page_bytes())
        .max()
        .unwrap();
    let layout = SlabLayout::with_slab_bytes(&geometry, largest * slab_pages).unwrap();
    let pools = geometry.groups.len();
    for seed in 1..=3 {
        println!("{name}, seed {seed}");
        let check = Check::new(name, geometry.clone(), &layout, slabs, 12);
        let seen = check.run(seed, longest);
        println!("{seen:?}");
        // A run that exercised nothing proves nothing.
        assert!(seen.pages > 5_000 && seen.released_while_in_flight > 1_000);
        if pools > 1 {
            assert!(seen.refused_for_ever > 100 && seen.refused_for_now > 100);
            assert!(seen.slabs_that_changed_pool > 20);
        }
    }
}

#[test]
fn full_and_sliding_in_exact_slabs() {
    run("exact", &[(1, None, 64), (5, Some(64), 64)], 16, 3, 24, 700);
}

#[test]
fn pages_of_one_token() {
    run("page 1", &[(1, None, 64), (2, Some(9), 64)], 1, 70, 6, 200);
}

#[test]
fn slabs_with_a_remainder() {
    run(
        "remainder",
        &[(3, None, 64), (7, Some(33), 96)],
        8,
        2,
        30,
        300,
    );
}

#[test]
fn one_page_slabs() {
    run(
        "one page",
        &[(1, None, 64), (1, Some(20), 64)],
        4,
        1,
        90,
        160,
    );
}

#[test]
fn a_window_of_one_token() {
    run(
        "window 1",
        &[(1, None, 64), (1, Some(1), 64)],
        4,
        8,
        20,
        160,
    );
}

#[test]
fn all_layers_slide() {
    run("all sliding", &[(4, Some(31), 64)], 8, 5, 14, 900);
}

#[test]
fn three_groups() {
    run(
        "three",
        &[(2, None, 64), (3, Some(16), 64), (5, Some(100), 32)],
        8,
        4,
        40,
        400,
    );
}
