//! What must hold after an operation, and what a recount must find.

use std::collections::HashMap;

use neap::kv::{DO_NOT_WRITE, GroupId, PageEntry, Phase};

use super::World;

impl World {
    pub(super) fn check_slots(
        &self,
        index: usize,
        begin: u32,
        end: u32,
        phase: Phase,
        slots: &[Vec<u64>],
    ) {
        for (group, slots) in slots.iter().enumerate() {
            let kind = self.groups[group];
            let page = kind.page;
            let from = match phase {
                Phase::Prefill => kind
                    .first_visible(end.saturating_sub(self.setup.rewind))
                    .clamp(begin, end),
                Phase::Decode => begin,
            };
            let table = self
                .kv
                .table(self.models[index].id, GroupId(group as u32))
                .expect("a live sequence");
            let mut table = table
                .skip_while(|(column, _)| *column < from / page)
                .peekable();
            for (position, &slot) in (begin..end).zip(slots) {
                if position < from {
                    assert_eq!(slot, DO_NOT_WRITE);
                    continue;
                }
                while table
                    .peek()
                    .is_some_and(|(column, _)| *column < position / page)
                {
                    table.next();
                }
                let &(column, entry) = table.peek().expect("a page for each token written");
                assert_eq!(
                    (column, slot),
                    (
                        position / page,
                        u64::from(entry.0) << 32 | u64::from(kind.row_in_page(position))
                    )
                );
            }
        }
    }

    /// What a sequence holds is what the plain rule says.
    pub(super) fn check(&self, index: usize) {
        let model = &self.models[index];
        let name = self.setup.name;
        assert_eq!(
            self.kv.tokens(model.id),
            Ok(model.tokens.len() as u32),
            "{name}"
        );
        for (group, kind) in self.groups.iter().enumerate() {
            let page = kind.page;
            let id = GroupId(group as u32);
            let table = self.kv.table(model.id, id).expect("a live sequence");
            let last = (model.tokens.len() as u32).div_ceil(page);
            let first = model.first[group].min(last);
            // I9: neither a page more nor one less.
            assert_eq!(
                table.len() as u32,
                last - first,
                "{name}, group {group}: {} tokens",
                model.tokens.len()
            );
            for (column, (found, entry)) in (first..).zip(table) {
                assert_eq!(found, column, "{name}, group {group}");
                // I5: a page lies in its slab, of its pool.
                assert!(
                    self.kv.allocator().holds(id, entry),
                    "{name}: page {entry:?} is not held"
                );
            }
            // I10.
            if let Some(span) = kind.span() {
                let span = span + 2 * self.setup.rewind;
                let most = (span - 1).div_ceil(page) + 1;
                let in_flight = model.planned || !model.launched.is_empty();
                let late = model.tokens.len() as u32 - model.settled;
                assert!(
                    last - first <= most + if in_flight { late.div_ceil(page) } else { 0 },
                    "{name}: {}",
                    last - first
                );
            }
        }
    }

    /// Counts everything again.
    pub fn audit(&self) {
        let name = self.setup.name;
        let allocator = self.kv.allocator();
        allocator
            .audit()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut accounted = self.kv.retired_pages() as u64;
        for group in self.kv.geometry().group_ids() {
            let mut holders = HashMap::<PageEntry, u32>::new();
            let (mut closing, mut need) = (0, 0);
            for model in &self.models {
                let table = self.kv.table(model.id, group).expect("a live sequence");
                closing += (self
                    .kv
                    .held_pages(model.id, group)
                    .expect("a live sequence")
                    - table.len()) as u64;
                need += self.kv.pages_for(model.max_tokens)[group.index()];
                for (_, entry) in table {
                    *holders.entry(entry).or_default() += 1;
                }
            }
            let (mut both, mut extra) = (0, 0);
            for (&entry, &count) in &holders {
                let (sequences, cached) =
                    allocator.holders_of(group, entry).expect("a page in use");
                assert_eq!(
                    sequences, count,
                    "{name}: page {entry:?} of group {group:?}"
                );
                both += u64::from(cached);
                extra += u64::from(count - 1);
            }
            let cached = self.tree.counters().cached_pages[group.index()];
            accounted += holders.len() as u64 + closing + cached - both;
            // I8: each page is charged once, and what may have to be copied.
            let charged = self.kv.charged_pages(group);
            match self.groups[group.index()].span() {
                Some(_) => assert_eq!(charged, need, "{name}"),
                None => {
                    let copies =
                        u64::from(self.setup.rewind.div_ceil(self.groups[group.index()].page) + 1)
                            * self.models.len() as u64;
                    assert!(
                        charged + extra >= need && charged + extra <= need + copies,
                        "{name}: {charged} + {extra} for {need}"
                    );
                    assert!(charged >= holders.len() as u64, "{name}");
                }
            }
        }
        let used = self
            .kv
            .geometry()
            .group_ids()
            .map(|group| allocator.used_pages(group))
            .sum::<u64>();
        assert_eq!(
            used, accounted,
            "{name}: pages in use and pages that somebody holds"
        );
    }

    pub(super) fn finish(&mut self) {
        self.audit();
        while !self.models.is_empty() {
            self.drop_model(0);
        }
        self.settle_all();
        self.tree.clear(&mut self.kv).expect("its own pages");
        self.audit();
        let allocator = self.kv.allocator();
        let pools = self.groups.len() as u32;
        assert_eq!(
            allocator.free_slabs(),
            allocator.online_slabs() - pools,
            "{}: pages leaked",
            self.setup.name
        );
        assert_eq!(
            (allocator.stranded_slabs(), self.kv.retired_pages()),
            (0, 0)
        );
        assert!(self.kv.check_asleep().is_ok());
        assert!(
            self.charged().iter().all(|charged| *charged == 0),
            "{}: a charge is left",
            self.setup.name
        );
    }
}
