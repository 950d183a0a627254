//! An interpreter of operation sequences on KV memory, checked against a plain model.
//!
//! Operations come from a [`Choices`]: random numbers in the tests, the bytes of an input in the fuzz target. The model knows, for each
//! sequence, its tokens and by the plain rule of its windows which columns it must hold, and a simulated device that
//! executes steps late and in order: page copies, block-table updates, attention reads and writes. What is stored for a token is a hash
//! of all tokens up to it, which is what K and V are a function of; so a read tells whether a page is still what it should be,
//! through forks, copies, prefix hits, cuts, compaction and reuse. Fresh pages are poisoned.
//!
//! After every operation the sequence it touched is checked (I9, I10, holders); every `audit_every` operations everything
//! is counted again: who holds each page, that every other page is free, I5, I8 and I11.

use std::collections::{HashMap, VecDeque};

use neap::kv::{
    AttentionKind, Geometry, GroupId, KvDtype, KvError, KvSequences, LayerSpec, PageMove, PageSize,
    Phase, PrefixTree, SequenceId, SlabLayout, StepId, TableUpdate,
};

mod checks;
mod device;
#[path = "../fuzzing/mod.rs"]
pub mod fuzzing;
mod model;
mod setups;

pub use setups::SETUPS;

use fuzzing::{Bytes, Choices};
use model::{Group, Model};

/// Runs the operations that `bytes` spell on one of the setups, which the first byte names; returns how many there were.
pub fn run_bytes(bytes: &[u8]) -> u64 {
    let Some((&first, rest)) = bytes.split_first() else {
        return 0;
    };
    let setup = Setup {
        audit_every: 16,
        ..SETUPS[usize::from(first) % SETUPS.len()].clone()
    };
    let mut world = World::new(&setup);
    world.run(&mut Bytes(rest), u64::MAX);
    world.seen.operations
}

impl Setup {
    /// Whether a sequence has a state that cannot be taken back, nor cached.
    pub fn keeps_state(&self) -> bool {
        self.groups
            .iter()
            .any(|group| matches!(group.1, AttentionKind::Recurrent { .. }))
    }
}

const POISON: u64 = 0x5eed_dead_5eed_dead;

/// What to run operations on.
#[derive(Clone, Debug)]
pub struct Setup {
    pub name: &'static str,
    /// Layers and head dim of each kind of layer.
    pub groups: &'static [(usize, AttentionKind, u32)],
    pub page_tokens: u32,
    /// Pages of the largest kind in a slab.
    pub slab_pages: u64,
    pub slabs: u32,
    pub longest: u32,
    pub rewind: u32,
    pub audit_every: u64,
}

/// How often things happened that a run must have exercised to mean anything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub operations: u64,
    pub fresh_pages: u64,
    pub copies: u64,
    pub forks: u64,
    pub cuts: u64,
    pub hits: u64,
    pub evicted: u64,
    pub moved: u64,
    pub shrunk: u64,
    pub refused_shrinks: u64,
    pub out_of_pages: u64,
    pub promises_kept: u64,
    pub cleared: u64,
    pub reads: u64,
}

/// How pages that were promised are had when they are not free.
#[derive(Clone, Copy)]
enum Way {
    /// Cached prefixes that nobody uses are let go of, and the steps in flight complete.
    Evict,
    Compact,
    /// All cached prefixes are let go of: a page that the tree holds cannot be overwritten by its sequence.
    Clear,
}

const WAYS: [Way; 3] = [Way::Evict, Way::Compact, Way::Clear];

struct Work {
    slot: u32,
    phase: Phase,
    begin: u32,
    stamps: Vec<u64>,
    /// What the query at `begin` reads before: `(group, position, stamp)`.
    reads: Vec<(u32, u32, u64)>,
    slots: Vec<Vec<u64>>,
    id: SequenceId,
}

struct Step {
    id: StepId,
    number: u64,
    fresh: Vec<u32>,
    copies: Vec<PageMove>,
    updates: Vec<TableUpdate>,
    works: Vec<Work>,
}

/// The system under test beside its model.
pub struct World {
    setup: Setup,
    pub kv: KvSequences,
    pub tree: PrefixTree,
    groups: Vec<Group>,
    models: Vec<Model>,
    /// Planned and not launched.
    fresh: Vec<u32>,
    updates: Vec<TableUpdate>,
    works: Vec<Work>,
    steps: VecDeque<Step>,
    launched: u64,
    completed: u64,
    /// The newest step that names a page, by entry.
    named: Vec<u64>,
    /// Device memory: a hash for each token of each page.
    memory: Vec<u64>,
    /// Block tables by slot, group and column.
    tables: HashMap<(u32, u32, u32), u32>,
    pub seen: Seen,
}

pub fn geometry(groups: &[(usize, AttentionKind, u32)], page_tokens: u32) -> Geometry {
    let layers = groups.iter().flat_map(|&(layers, kind, head_dim)| {
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
    let page_size = PageSize::new(u64::from(page_tokens)).expect("a page size");
    Geometry::new(&layers.collect::<Vec<_>>(), page_size, KvDtype::Bf16, None).expect("a geometry")
}

impl World {
    pub fn new(setup: &Setup) -> Self {
        let geometry = geometry(setup.groups, setup.page_tokens);
        let largest = geometry
            .groups
            .iter()
            .map(|group| group.page_bytes())
            .max()
            .expect("a group");
        let layout =
            SlabLayout::with_slab_bytes(&geometry, largest * setup.slab_pages).expect("a layout");
        let entries = layout.slab_units() as usize * setup.slabs as usize;
        let groups = geometry
            .groups
            .iter()
            .map(|group| Group::new(group.kind, setup.page_tokens))
            .collect();
        let kv = KvSequences::new(geometry, &layout, setup.slabs, 12)
            .expect("a carve")
            .with_rewind(setup.rewind);
        Self {
            tree: PrefixTree::for_sequences(&kv),
            kv,
            groups,
            models: Vec::new(),
            fresh: Vec::new(),
            updates: Vec::new(),
            works: Vec::new(),
            steps: VecDeque::new(),
            launched: 0,
            completed: 0,
            named: vec![0; entries],
            memory: vec![POISON; entries * setup.page_tokens as usize],
            tables: HashMap::new(),
            seen: Seen::default(),
            setup: setup.clone(),
        }
    }

    /// Runs until the choices end or `operations` are done.
    pub fn run(&mut self, choices: &mut impl Choices, operations: u64) {
        for operation in 1..=operations {
            if self.operation(choices).is_none() {
                break;
            }
            self.seen.operations += 1;
            if operation.is_multiple_of(self.setup.audit_every) {
                self.audit();
            }
        }
        self.finish();
    }

    fn operation(&mut self, choices: &mut impl Choices) -> Option<()> {
        let kind = choices.below(64)?;
        let live = self.models.len() as u32;
        match kind {
            0..=5 => self.create(choices)?,
            6..=13 => self.launch(),
            14..=23 => self.complete(choices)?,
            24..=25 => self.compact(choices)?,
            26 => self.resize(choices)?,
            27 => self.evict(choices)?,
            _ if live == 0 => {}
            kind => {
                let index = choices.below(live)? as usize;
                match kind {
                    28..=30 => self.fork(index, choices)?,
                    31..=34 => self.truncate(index, choices)?,
                    35..=36 => self.release(index, choices)?,
                    37..=38 => self.cache(index),
                    39..=44 => self.prefill(index, choices)?,
                    kind => self.decode(index, kind, choices)?,
                }
            }
        }
        Some(())
    }

    fn units(&self) -> u32 {
        self.kv.allocator().layout().slab_units() as u32
    }

    /// Whether pages fit slabs, by the plain rule.
    fn fits(&self, pages: &[u64]) -> bool {
        let layout = self.kv.allocator().layout();
        let slabs = pages
            .iter()
            .zip(&layout.pools)
            .map(|(pages, pool)| (pages + 1).div_ceil(u64::from(pool.pages_per_slab)));
        slabs.sum::<u64>() <= u64::from(self.kv.allocator().online_slabs())
    }

    fn charged(&self) -> Vec<u64> {
        self.kv
            .geometry()
            .group_ids()
            .map(|group| self.kv.charged_pages(group))
            .collect()
    }

    fn create(&mut self, choices: &mut impl Choices) -> Option<()> {
        let longest = self.setup.longest * if choices.below(16)? == 0 { 40 } else { 1 };
        let max_tokens = 1 + choices.below(longest)?;
        // Few beginnings, so that prompts share them, and a point at which each goes its own way.
        let family = choices.below(3)?;
        let parting = choices.below(self.setup.longest + 1)?;
        let own = choices.below(1 << 16)?;
        let length = 1 + choices.below(max_tokens)?;
        let token = |position: u32| {
            if position < parting {
                family
            } else {
                3 + (position * 7 + own) % 1_000
            }
        };
        let prompt = (0..length.min(self.setup.longest))
            .map(token)
            .collect::<Vec<_>>();
        let hit = self.tree.lookup(&prompt);
        assert!(
            hit.tokens < prompt.len() as u32
                && (self.groups.iter()).all(|group| hit.tokens.is_multiple_of(group.page))
        );
        let need = self.kv.pages_for(max_tokens);
        let together = self
            .charged()
            .iter()
            .zip(&need)
            .map(|(charged, pages)| charged + pages)
            .collect::<Vec<_>>();
        let (alone, beside) = (self.fits(&need), self.fits(&together));
        let mut updates = Vec::new();
        let id = match self.kv.create_with_prefix(max_tokens, &hit, &mut updates) {
            Ok(id) => {
                assert!(
                    hit.tokens > 0 || (alone && beside),
                    "{}: admitted beyond what fits",
                    self.setup.name
                );
                id
            }
            Err(KvError::NeverFits { longest_tokens, .. }) => {
                assert!(hit.tokens > 0 || !alone);
                assert!(longest_tokens < max_tokens);
                return Some(());
            }
            Err(KvError::NoRoomNow { .. }) => {
                assert!(hit.tokens > 0 || (alone && !beside));
                return Some(());
            }
            Err(KvError::NoSlot { .. }) => return Some(()),
            Err(error) => panic!("{}: {error}", self.setup.name),
        };
        self.seen.hits += u64::from(hit.tokens > 0);
        self.updates.append(&mut updates);
        let first = |group: &Group| match hit.tokens {
            0 => 0,
            tokens => group.dead_pages(tokens),
        };
        let mut model = Model {
            id,
            max_tokens,
            tokens: Vec::new(),
            stamps: Vec::new(),
            prompt,
            settled: hit.tokens,
            launched: VecDeque::new(),
            planned: false,
            given_up: if hit.tokens > 0 {
                hit.tokens + self.setup.rewind
            } else {
                0
            },
            first: self.groups.iter().map(first).collect(),
        };
        for position in 0..hit.tokens as usize {
            model.push(model.prompt[position]);
        }
        self.models.push(model);
        self.check(self.models.len() - 1);
        Some(())
    }

    fn prefill(&mut self, index: usize, choices: &mut impl Choices) -> Option<()> {
        let model = &self.models[index];
        let left = model.max_tokens - model.tokens.len() as u32;
        let prompt = (model.prompt.len() as u32).saturating_sub(model.tokens.len() as u32);
        let most = if prompt > 0 { prompt } else { left.min(20) };
        if most > 0 && left > 0 {
            let tokens = 1 + choices.below(most.min(left))?;
            self.append(index, tokens, Phase::Prefill, choices)?;
        }
        Some(())
    }

    fn decode(&mut self, index: usize, kind: u32, choices: &mut impl Choices) -> Option<()> {
        let left = self.models[index].max_tokens - self.models[index].tokens.len() as u32;
        let drafts = if kind < 48 {
            choices.below(self.setup.rewind + 1)?
        } else {
            0
        };
        if left > 0 {
            self.append(index, (1 + drafts).min(left), Phase::Decode, choices)?;
        }
        Some(())
    }

    fn append(
        &mut self,
        index: usize,
        tokens: u32,
        phase: Phase,
        choices: &mut impl Choices,
    ) -> Option<()> {
        // One append a step, and settled before it is much ahead, as engines do.
        if self.models[index].planned || self.models[index].launched.len() > 1 {
            return Some(());
        }
        let (id, begin) = (
            self.models[index].id,
            self.models[index].tokens.len() as u32,
        );
        // The model's side: tokens appended are new ones unless a prompt says otherwise.
        let salt = choices.below(50)?;
        let keep_promise = choices.below(2)? == 0;
        let mut before = self.held(index);
        let mut updates = Vec::new();
        let mut outcome = self.kv.append(id, tokens, phase, &mut updates);
        if let Err(KvError::OutOfPages { .. }) = outcome {
            self.seen.out_of_pages += 1;
            if !keep_promise {
                return Some(());
            }
            for way in WAYS {
                assert!(updates.is_empty());
                self.make_room(way);
                // Compaction may have moved them.
                before = self.held(index);
                outcome = self.kv.append(id, tokens, phase, &mut updates);
                if outcome.is_ok() {
                    break;
                }
            }
            self.seen.promises_kept += 1;
        }
        outcome
            .unwrap_or_else(|error| panic!("{}: the promise is broken: {error}", self.setup.name));
        let end = begin + tokens;
        let mut reads = Vec::new();
        let model = &mut self.models[index];
        for position in begin..end {
            let token = model
                .prompt
                .get(position as usize)
                .copied()
                .unwrap_or(2_000 + salt);
            model.push(token);
        }
        // A decode writes before it reads.
        let written = if phase == Phase::Decode { end } else { begin };
        for (index, group) in self.groups.iter().enumerate() {
            let from = group.first_visible(begin);
            for position in [from, (from + begin) / 2, begin.saturating_sub(1)] {
                if (from..begin).contains(&position)
                    && let Some(last) = group.last_of_row(position, written)
                {
                    reads.push((index as u32, position, model.stamps[last as usize]));
                }
            }
            if phase == Phase::Prefill {
                let closed = group.dead_pages(end.saturating_sub(self.setup.rewind));
                model.first[index] = model.first[index].max(closed);
            }
        }
        if phase == Phase::Prefill {
            model.given_up = model.given_up.max(end);
        }
        model.planned = true;
        let stamps = model.stamps[begin as usize..].to_vec();
        let mut slots = vec![Vec::new(); self.groups.len()];
        for (group, slots) in slots.iter_mut().enumerate() {
            self.kv
                .push_slots(id, GroupId(group as u32), slots)
                .expect("a live sequence");
            assert_eq!(slots.len(), tokens as usize);
        }
        self.check_slots(index, begin, end, phase, &slots);
        for update in &updates {
            if !before.contains(&(update.group, update.entry)) {
                self.take(update.entry);
            }
        }
        self.updates.extend(updates);
        self.works.push(Work {
            slot: id.seq_slot(),
            phase,
            begin,
            stamps,
            reads,
            slots,
            id,
        });
        self.check(index);
        Some(())
    }

    /// A page is handed out: no step in flight names it (I9).
    fn take(&mut self, entry: u32) {
        assert!(
            self.named[entry as usize] <= self.completed,
            "{}: page {entry} is named by step {}, of which {} have completed",
            self.setup.name,
            self.named[entry as usize],
            self.completed
        );
        self.fresh.push(entry);
        self.seen.fresh_pages += 1;
    }

    fn held(&self, index: usize) -> Vec<(u32, u32)> {
        let id = self.models[index].id;
        let groups = self.kv.geometry().group_ids();
        groups
            .flat_map(|group| {
                self.kv
                    .table(id, group)
                    .expect("a live sequence")
                    .map(move |(_, entry)| (group.0, entry.0))
            })
            .collect()
    }

    fn launch(&mut self) {
        let nothing =
            self.works.is_empty() && self.updates.is_empty() && self.kv.page_copies().is_empty();
        if nothing || self.steps.len() >= 4 {
            return;
        }
        self.launch_now();
    }

    fn fork(&mut self, index: usize, choices: &mut impl Choices) -> Option<()> {
        let model = &self.models[index];
        let max_tokens = model.tokens.len() as u32 + choices.below(self.setup.longest)?;
        let mut updates = Vec::new();
        let outcome = self.kv.fork(model.id, max_tokens, &mut updates);
        if model.planned {
            assert_eq!(outcome, Err(KvError::StepPlanned));
            return Some(());
        }
        let Ok(id) = outcome else { return Some(()) };
        self.seen.forks += 1;
        self.updates.append(&mut updates);
        let model = Model {
            id,
            max_tokens,
            tokens: model.tokens.clone(),
            stamps: model.stamps.clone(),
            prompt: Vec::new(),
            settled: model.settled,
            launched: model.launched.clone(),
            planned: false,
            given_up: model.given_up,
            first: model.first.clone(),
        };
        self.models.push(model);
        self.check(index);
        self.check(self.models.len() - 1);
        Some(())
    }

    fn truncate(&mut self, index: usize, choices: &mut impl Choices) -> Option<()> {
        let back = choices.below(2 * self.setup.rewind + 2)?;
        let model = &mut self.models[index];
        let tokens = (model.tokens.len() as u32).saturating_sub(back);
        let floor = if self.setup.keeps_state() {
            model.tokens.len() as u32
        } else {
            model.given_up.saturating_sub(self.setup.rewind)
        };
        let outcome = self.kv.truncate(model.id, tokens);
        if model.planned {
            assert_eq!(outcome, Err(KvError::StepPlanned));
            return Some(());
        }
        if tokens < floor {
            assert!(
                matches!(outcome, Err(KvError::Truncate { floor_tokens, .. }) if floor_tokens == floor),
                "{outcome:?}"
            );
            return Some(());
        }
        outcome.expect("within the allowance");
        self.seen.cuts += 1;
        model.tokens.truncate(tokens as usize);
        model.stamps.truncate(tokens as usize);
        model.prompt.truncate(tokens as usize);
        model.settled = model.settled.min(tokens);
        for launched in &mut model.launched {
            launched.1 = launched.1.min(tokens);
        }
        self.check(index);
        Some(())
    }

    fn release(&mut self, index: usize, choices: &mut impl Choices) -> Option<()> {
        // Rarely before its end.
        let model = &self.models[index];
        if (model.tokens.len() as u32) < model.max_tokens && choices.below(3)? != 0 {
            return Some(());
        }
        if choices.below(2)? == 0 {
            self.cache(index);
        }
        self.drop_model(index);
        Some(())
    }

    fn drop_model(&mut self, index: usize) {
        let model = self.models.swap_remove(index);
        self.kv.release(model.id).expect("a live sequence");
        assert!(self.kv.release(model.id).is_err());
        // What was planned for it is not launched.
        self.works.retain(|work| work.id != model.id);
    }

    fn cache(&mut self, index: usize) {
        let model = &self.models[index];
        let tokens = &model.tokens[..model.settled as usize];
        self.tree
            .insert(&mut self.kv, model.id, tokens)
            .expect("settled tokens");
        self.check(index);
    }

    fn evict(&mut self, choices: &mut impl Choices) -> Option<()> {
        let group = GroupId(choices.below(self.groups.len() as u32)?);
        let pages = u64::from(choices.below(30)?);
        let full_before = self.tree.counters().cached_pages[0];
        self.seen.evicted += self
            .tree
            .evict(&mut self.kv, group, pages)
            .expect("its own pages");
        if self.groups[group.index()].span().is_some() && self.groups[0].span().is_none() {
            assert_eq!(
                self.tree.counters().cached_pages[0],
                full_before,
                "evicting windows took full pages"
            );
        }
        Some(())
    }

    fn compact(&mut self, choices: &mut impl Choices) -> Option<()> {
        let most = choices.below(64)? as usize;
        let mut updates = Vec::new();
        let outcome = self.kv.compact(most, &mut updates);
        if self.models.iter().any(|model| model.planned) {
            assert_eq!(outcome, Err(KvError::StepPlanned));
            return Some(());
        }
        let moves = outcome.expect("nothing is planned");
        assert!(moves.len() <= most);
        self.follow(&moves, updates);
        Some(())
    }

    fn follow(&mut self, moves: &[PageMove], updates: Vec<TableUpdate>) {
        self.tree.moved(moves);
        self.seen.moved += moves.len() as u64;
        for page in moves {
            self.take(page.target.0);
        }
        self.updates.extend(updates);
    }

    fn resize(&mut self, choices: &mut impl Choices) -> Option<()> {
        let slabs = self.groups.len() as u32 + choices.below(self.setup.slabs)?;
        let slabs = slabs.min(self.setup.slabs);
        let online = self.kv.allocator().online_slabs();
        // Memory that shrinking gave back is mapped again only after it has been unmapped.
        if slabs > online && self.kv.allocator().stranded_slabs() > 0 {
            return Some(());
        }
        let mut updates = Vec::new();
        if slabs > online {
            let page = self.setup.page_tokens as usize;
            let units = self.units() as usize;
            self.memory[online as usize * units * page..slabs as usize * units * page].fill(POISON);
            self.kv.grow(slabs).expect("as before");
            return Some(());
        }
        if self.models.iter().any(|model| model.planned) {
            return Some(());
        }
        match self.kv.shrink(slabs, &mut updates) {
            Ok(moves) => {
                self.seen.shrunk += u64::from(slabs < online);
                self.follow(&moves, updates);
            }
            Err(KvError::Shrink { needed_slabs, .. }) => {
                assert!(needed_slabs > u64::from(slabs));
                assert_eq!(self.kv.allocator().online_slabs(), online);
                self.seen.refused_shrinks += 1;
            }
            Err(error) => panic!("{}: {error}", self.setup.name),
        }
        Some(())
    }
}
