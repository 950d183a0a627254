//! Steps: launched, completed late and in order, and what the simulated device does in each.

use neap::kv::{DO_NOT_WRITE, GroupId, Phase};

use super::{Choices, POISON, Step, Way, Work, World};

impl World {
    pub(super) fn launch_now(&mut self) {
        self.launched += 1;
        let number = self.launched;
        let copies = self.kv.page_copies().to_vec();
        self.seen.copies += copies.len() as u64;
        for copy in &copies {
            assert!(
                copies.iter().all(|other| other.target != copy.source),
                "a target is a source"
            );
            self.named[copy.source.0 as usize] = number;
            self.named[copy.target.0 as usize] = number;
        }
        let works = std::mem::take(&mut self.works);
        for model in &mut self.models {
            model.planned = false;
        }
        for work in &works {
            if let Some(index) = self.models.iter().position(|model| model.id == work.id) {
                for (_, entry) in self.held(index) {
                    self.named[entry as usize] = number;
                }
                let model = &mut self.models[index];
                model
                    .launched
                    .push_back((number, model.tokens.len() as u32));
            }
        }
        self.steps.push_back(Step {
            id: self.kv.begin_step(),
            number,
            fresh: std::mem::take(&mut self.fresh),
            copies,
            updates: std::mem::take(&mut self.updates),
            works,
        });
    }

    /// Completes the oldest step, or several at once; then sequences settle in any order, or later.
    pub(super) fn complete(&mut self, choices: &mut impl Choices) -> Option<()> {
        if self.steps.is_empty() {
            return Some(());
        }
        let several = 1 + choices.below(self.steps.len() as u32)? as usize;
        let id = self.steps[several - 1].id;
        for _ in 0..several {
            let step = self.steps.pop_front().expect("counted");
            self.completed = step.number;
            self.execute(step);
        }
        self.kv.complete_step(id).expect("a launched step");
        let first = choices.below(self.models.len().max(1) as u32)? as usize;
        let later = choices.below(4)?;
        for place in 0..self.models.len() {
            let index = (first + place) % self.models.len();
            if later != 0 || place % 3 != 0 {
                self.settle(index);
            }
        }
        Some(())
    }

    pub(super) fn settle(&mut self, index: usize) {
        let model = &mut self.models[index];
        let mut tokens = None;
        while model
            .launched
            .front()
            .is_some_and(|launched| launched.0 <= self.completed)
        {
            tokens = model.launched.pop_front().map(|launched| launched.1);
        }
        // Cut back meanwhile, or settled by a later step already.
        let Some(tokens) = tokens
            .map(|tokens| tokens.min(model.tokens.len() as u32))
            .filter(|&tokens| tokens > model.settled)
        else {
            return;
        };
        self.kv
            .settle(model.id, tokens)
            .expect("tokens that were appended");
        model.settled = tokens;
        model.given_up = model.given_up.max(tokens);
        for (first, group) in model.first.iter_mut().zip(&self.groups) {
            *first = (*first).max(group.dead_pages(tokens.saturating_sub(self.setup.rewind)));
        }
        self.check(index);
    }

    pub(super) fn execute(&mut self, step: Step) {
        let page = self.setup.page_tokens as usize;
        for entry in step.fresh {
            self.memory[entry as usize * page..][..page].fill(POISON);
        }
        let sources = step
            .copies
            .iter()
            .map(|copy| self.memory[copy.source.0 as usize * page..][..page].to_vec());
        let sources = sources.collect::<Vec<_>>();
        for (copy, source) in step.copies.iter().zip(sources) {
            self.memory[copy.target.0 as usize * page..][..page].copy_from_slice(&source);
        }
        for update in step.updates {
            self.tables
                .insert((update.seq_slot, update.group, update.column), update.entry);
        }
        let (decode, prefill): (Vec<_>, Vec<_>) = step
            .works
            .iter()
            .partition(|work| work.phase == Phase::Decode);
        for work in &decode {
            self.write(work);
        }
        for work in decode.iter().chain(&prefill) {
            for &(group, position, stamp) in &work.reads {
                let kind = self.groups[group as usize];
                let entry = self.tables[&(work.slot, group, position / kind.page)];
                let row = kind.row_in_page(position) as usize;
                let found = self.memory[entry as usize * page + row];
                assert_eq!(
                    found, stamp,
                    "{}: step {}, slot {}, group {group}: the query at {} reads something else at {position}",
                    self.setup.name, step.number, work.slot, work.begin
                );
                self.seen.reads += 1;
            }
        }
        for work in &prefill {
            self.write(work);
        }
    }

    pub(super) fn write(&mut self, work: &Work) {
        for slots in &work.slots {
            for (&slot, &stamp) in slots.iter().zip(&work.stamps) {
                if slot != DO_NOT_WRITE {
                    let place = (slot >> 32) as usize * self.setup.page_tokens as usize
                        + (slot & 0xffff) as usize;
                    self.memory[place] = stamp;
                }
            }
        }
    }

    /// What an engine does before it says that pages are short: cached prefixes go, steps complete, slabs are emptied.
    /// What keeps the promise of admission, least costly first (I8): one of the [`WAYS`](super::WAYS).
    pub(super) fn make_room(&mut self, way: Way) {
        match way {
            Way::Evict => {
                for group in 0..self.groups.len() as u32 {
                    self.tree
                        .evict(&mut self.kv, GroupId(group), u64::MAX)
                        .expect("its own pages");
                }
                self.settle_all();
            }
            Way::Compact => self.compact_all(),
            Way::Clear => {
                self.tree.clear(&mut self.kv).expect("its own pages");
                self.settle_all();
                self.compact_all();
                self.seen.cleared += 1;
            }
        }
    }

    fn compact_all(&mut self) {
        let mut updates = Vec::new();
        let moves = self
            .kv
            .compact(usize::MAX, &mut updates)
            .expect("nothing is planned");
        self.follow(&moves, updates);
        self.settle_all();
    }

    pub(super) fn settle_all(&mut self) {
        self.launch_now();
        while let Some(step) = self.steps.pop_front() {
            let id = step.id;
            self.completed = step.number;
            self.execute(step);
            self.kv.complete_step(id).expect("a launched step");
        }
        for index in 0..self.models.len() {
            self.settle(index);
        }
    }
}
