use super::*;
use crate::kv::geometry::{KvDtype, LayerSpec, PageSize};

/// One full layer and two of `window`, each page of 256 bytes a layer, in `slabs` slabs of six full or three SWA pages.
fn sequences(window: u32, page_tokens: u64, slabs: u32) -> KvSequences {
    let spec = |kind| LayerSpec {
        kind,
        num_kv_heads: 1,
        k_head_dim: 8,
        v_head_dim: 8,
    };
    let swa = spec(AttentionKind::Sliding { window });
    let layers = [spec(AttentionKind::Full), swa, swa];
    let geometry = Geometry::new(
        &layers,
        PageSize::new(page_tokens).unwrap(),
        KvDtype::Bf16,
        None,
    )
    .unwrap();
    let layout =
        SlabLayout::with_slab_bytes(&geometry, 6 * geometry.groups[0].page_bytes()).unwrap();
    KvSequences::new(geometry, &layout, slabs, 20).unwrap()
}

const FULL: GroupId = GroupId(0);
const SWA: GroupId = GroupId(1);

impl KvSequences {
    fn extend_by(&mut self, id: SequenceId, tokens: u32, phase: Phase) -> Vec<TableUpdate> {
        let mut updates = Vec::new();
        self.append(id, tokens, phase, &mut updates).unwrap();
        self.allocator.audit().unwrap();
        updates
    }

    fn columns(&self, id: SequenceId, group: GroupId) -> Vec<u32> {
        self.table(id, group)
            .unwrap()
            .map(|(column, _)| column)
            .collect()
    }

    fn slots(&self, id: SequenceId, group: GroupId) -> Vec<u64> {
        let mut slots = Vec::new();
        self.push_slots(id, group, &mut slots).unwrap();
        slots
    }
}

#[test]
fn c25_a_page_is_released_at_exactly_its_moment() {
    let mut kv = sequences(128, 16, 100);
    let id = kv.create(400).unwrap();
    kv.extend_by(id, 127, Phase::Prefill);
    for settled in 127..300 {
        kv.settle(id, settled).unwrap();
        let first = kv.columns(id, SWA)[0];
        assert_eq!(
            first,
            window::dead_pages(settled, 128, 16),
            "settled {settled}"
        );
        assert!(settled != 142 || first == 0);
        assert!(settled != 143 || first == 1);
        kv.extend_by(id, 1, Phase::Decode);
        assert!(kv.held_pages(id, SWA).unwrap() <= 9);
    }
    assert_eq!(kv.columns(id, FULL).len(), 19);
}

#[test]
fn c26_tokens_in_flight_release_nothing() {
    let mut kv = sequences(128, 32, 100);
    let id = kv.create(400).unwrap();
    kv.extend_by(id, 158, Phase::Prefill);
    let step = kv.begin_step();
    kv.extend_by(id, 1, Phase::Decode);
    kv.settle(id, 158).unwrap();
    assert_eq!(
        kv.columns(id, SWA)[0],
        0,
        "the query at 158 still reads position 31"
    );
    kv.complete_step(step).unwrap();
    kv.settle(id, 159).unwrap();
    assert_eq!(kv.columns(id, SWA)[0], 1);
}

#[test]
fn c27_a_page_waits_for_the_newest_step_that_could_name_it() {
    let mut kv = sequences(16, 16, 10);
    let id = kv.create(32).unwrap();
    kv.extend_by(id, 32, Phase::Prefill);
    let first = kv.begin_step();
    let second = kv.begin_step();
    let held = kv.held_pages(id, FULL).unwrap() + kv.held_pages(id, SWA).unwrap();
    kv.release(id).unwrap();
    assert_eq!(kv.retired_pages(), held);
    assert_eq!(kv.allocator().used_pages(FULL), 2);
    kv.complete_step(first).unwrap();
    assert_eq!(kv.retired_pages(), held);
    kv.complete_step(second).unwrap();
    assert_eq!(
        (kv.retired_pages(), kv.allocator().used_pages(FULL)),
        (0, 0)
    );
    assert_eq!(
        kv.append(id, 1, Phase::Decode, &mut Vec::new()),
        Err(KvError::UnknownSequence {
            slot: id.seq_slot()
        })
    );
    assert!(kv.release(id).is_err() && kv.complete_step(StepId(9)).is_err());
}

#[test]
fn prefill_writes_only_what_a_later_query_sees() {
    let mut kv = sequences(128, 16, 100);
    let id = kv.create(2_000).unwrap();
    let updates = kv.extend_by(id, 1_000, Phase::Prefill);
    // The query at 1,000 sees keys 873 to 1,000, so SWA pages 54 to 62 are there and no earlier one ever was.
    let swa = updates
        .iter()
        .filter(|update| update.group == 1)
        .map(|update| update.column)
        .collect::<Vec<_>>();
    assert_eq!(swa, (54..=62).collect::<Vec<_>>());
    let slots = kv.slots(id, SWA);
    assert!(slots[..873].iter().all(|slot| *slot == DO_NOT_WRITE));
    let (_, entry) = kv.table(id, SWA).unwrap().next().unwrap();
    assert_eq!(slots[873], u64::from(entry.0) << 32 | 9);
    assert!(slots[873..].iter().all(|slot| *slot != DO_NOT_WRITE));
    assert!(kv.slots(id, FULL).iter().all(|slot| *slot != DO_NOT_WRITE));
}

#[test]
fn c06_a_chunk_takes_over_the_pages_whose_window_it_closes() {
    let mut kv = sequences(128, 16, 300);
    let id = kv.create(4_096).unwrap();
    kv.extend_by(id, 512, Phase::Prefill);
    kv.settle(id, 512).unwrap();
    let before = kv
        .table(id, SWA)
        .unwrap()
        .map(|(_, entry)| entry)
        .collect::<std::collections::BTreeSet<_>>();
    assert_eq!(before.len(), 8);
    kv.extend_by(id, 512, Phase::Prefill);
    let after = kv
        .table(id, SWA)
        .unwrap()
        .map(|(_, entry)| entry)
        .collect::<std::collections::BTreeSet<_>>();
    assert_eq!(before, after, "the same memory under new columns");
    assert_eq!(kv.columns(id, SWA), (56..64).collect::<Vec<_>>());
    // A short chunk closes part of the window and leaves the rest in place.
    kv.settle(id, 1_024).unwrap();
    kv.extend_by(id, 20, Phase::Prefill);
    assert_eq!(
        (kv.columns(id, SWA), kv.held_pages(id, SWA).unwrap()),
        ((57..66).collect::<Vec<_>>(), 9)
    );
    // With 64 decoding sequences of nine pages, a chunk of 8,192 tokens adds nine more, not 512.
    assert_eq!(kv.geometry().groups[1].pages_for(8_192), 9);
}

#[test]
fn a_window_of_one_token_is_written_in_decode_and_not_in_prefill() {
    let mut kv = sequences(1, 16, 40);
    let id = kv.create(100).unwrap();
    kv.extend_by(id, 40, Phase::Prefill);
    assert_eq!(kv.held_pages(id, SWA).unwrap(), 0);
    kv.settle(id, 40).unwrap();
    for tokens in 41..80 {
        kv.extend_by(id, 1, Phase::Decode);
        assert_ne!(kv.slots(id, SWA), [DO_NOT_WRITE]);
        kv.settle(id, tokens).unwrap();
        assert!(kv.held_pages(id, SWA).unwrap() <= 1);
    }
}

#[test]
fn c04_what_start_up_admits_runs_and_the_rest_is_refused_at_once() {
    let mut kv = sequences(128, 16, 40);
    let free = FreeMemory::empty(kv.allocator().layout(), 40);
    let longest = free.longest_request_tokens(kv.geometry(), u32::MAX);
    assert_eq!(
        kv.create(longest + 1),
        Err(KvError::NeverFits {
            tokens: longest + 1,
            longest_tokens: longest
        })
    );
    // The longest one runs to its end, in chunks and in decode, without waiting.
    let id = kv.create(longest).unwrap();
    assert_eq!(kv.create(16), Err(KvError::NoRoomNow { tokens: 16 }));
    let mut tokens = 0;
    while tokens + 300 < longest {
        kv.extend_by(id, 300, Phase::Prefill);
        tokens += 300;
        kv.settle(id, tokens).unwrap();
    }
    while tokens < longest {
        kv.extend_by(id, 1, Phase::Decode);
        tokens += 1;
        kv.settle(id, tokens).unwrap();
    }
    assert!(matches!(
        kv.append(id, 1, Phase::Decode, &mut Vec::new()),
        Err(KvError::BeyondPromise { .. })
    ));
    kv.release(id).unwrap();
    assert_eq!(kv.allocator().free_slabs(), 38);
}

#[test]
fn slots_of_the_tables_run_out_with_a_sentence() {
    let mut kv = sequences(128, 16, 100);
    let ids = (0..20).map(|_| kv.create(16).unwrap()).collect::<Vec<_>>();
    assert_eq!(kv.create(16), Err(KvError::NoSlot { sequences: 20 }));
    kv.release(ids[3]).unwrap();
    let again = kv.create(16).unwrap();
    assert_eq!(again.seq_slot(), ids[3].seq_slot());
    assert_ne!(again, ids[3]);
    assert!(matches!(kv.settle(again, 1), Err(KvError::Settle { .. })));
}

#[test]
fn c26_rejected_drafts_find_their_window() {
    // The window and 4 tokens to rewind: page 4 (tokens 64 to 79) must outlive n = 207.
    let mut kv = sequences(128, 16, 100).with_rewind(4);
    let id = kv.create(400).unwrap();
    kv.extend_by(id, 190, Phase::Prefill);
    let step = kv.begin_step();
    kv.complete_step(step).unwrap();
    for settled in 190..=200 {
        kv.settle(id, settled.min(190)).unwrap();
    }
    kv.extend_by(id, 17, Phase::Decode);
    let step = kv.begin_step();
    kv.complete_step(step).unwrap();
    kv.settle(id, 207).unwrap();
    // Without the allowance pages 0 to 4 were dead: 207 - 127 = 80.
    assert_eq!(window::dead_pages(207, 128, 16), 5);
    assert_eq!(kv.columns(id, SWA)[0], 4);
    kv.truncate(id, 203).unwrap();
    // The query at 203 reads from 76 on.
    assert_eq!(window::first_visible(203, 128), 76);
    assert_eq!(kv.columns(id, SWA)[0], 4);
    assert_eq!(
        kv.truncate(id, 202),
        Err(KvError::Truncate {
            tokens: 202,
            floor_tokens: 203,
            appended_tokens: 203
        })
    );
    kv.extend_by(id, 1, Phase::Decode);
    assert_eq!(kv.truncate(id, 203), Err(KvError::StepPlanned));
    let step = kv.begin_step();
    kv.truncate(id, 203).unwrap();
    kv.complete_step(step).unwrap();
    kv.settle(id, 203).unwrap();
}

#[test]
fn cutting_gives_back_the_pages_of_what_was_cut() {
    let mut kv = sequences(16, 16, 40).with_rewind(40);
    let id = kv.create(400).unwrap();
    kv.extend_by(id, 100, Phase::Prefill);
    let step = kv.begin_step();
    kv.truncate(id, 64).unwrap();
    // The step in flight writes them.
    assert_eq!(kv.retired_pages(), 3 + 3);
    kv.complete_step(step).unwrap();
    assert_eq!(
        (kv.retired_pages(), kv.allocator().used_pages(FULL)),
        (0, 4)
    );
    assert_eq!(kv.columns(id, FULL), [0, 1, 2, 3]);
    let updates = kv.extend_by(id, 1, Phase::Decode);
    assert_eq!(
        updates
            .iter()
            .map(|update| update.column)
            .collect::<Vec<_>>(),
        [4, 4]
    );
    kv.release(id).unwrap();
    kv.allocator().audit().unwrap();
}

#[test]
fn forks_share_pages_until_one_writes() {
    let mut kv = sequences(32, 16, 100);
    let parent = kv.create(200).unwrap();
    kv.extend_by(parent, 40, Phase::Prefill);
    assert_eq!(
        kv.fork(parent, 200, &mut Vec::new()),
        Err(KvError::StepPlanned)
    );
    let step = kv.begin_step();
    kv.complete_step(step).unwrap();
    let before = kv.allocator().used_pages(FULL);
    let charged = kv.charged_pages(FULL);
    let mut updates = Vec::new();
    let children = [0; 3].map(|_| kv.fork(parent, 200, &mut updates).unwrap());
    assert_eq!(kv.allocator().used_pages(FULL), before);
    // Of each child its pages beyond the two whole ones: 13 - 2, the copy of the third included.
    assert_eq!(kv.charged_pages(FULL), charged + 3 * (13 - 2));
    assert_eq!(updates.len(), 3 * (3 + 3));
    // Each child writes and gets a copy; the parent, last, writes in place.
    for child in children {
        let updates = kv.extend_by(child, 1, Phase::Decode);
        assert_eq!(
            updates
                .iter()
                .map(|update| update.column)
                .collect::<Vec<_>>(),
            [2, 2]
        );
    }
    assert!(kv.extend_by(parent, 1, Phase::Decode).is_empty());
    assert_eq!(kv.page_copies().len(), 6);
    assert_eq!(kv.charged_pages(FULL), charged + 3 * (13 - 2));
    let step = kv.begin_step();
    assert!(kv.page_copies().is_empty());
    kv.complete_step(step).unwrap();
    assert_eq!(kv.allocator().used_pages(FULL), before + 3);
    for id in children.into_iter().chain([parent]) {
        kv.release(id).unwrap();
    }
    assert_eq!([kv.charged_pages(FULL), kv.charged_pages(SWA)], [0, 0]);
    assert_eq!(
        kv.allocator().used_pages(FULL) + kv.allocator().used_pages(SWA),
        0
    );
    kv.allocator().audit().unwrap();
}

#[test]
fn the_source_of_a_copy_is_not_handed_out_before_the_copy() {
    let mut kv = sequences(32, 16, 100);
    let parent = kv.create(200).unwrap();
    kv.extend_by(parent, 40, Phase::Prefill);
    let step = kv.begin_step();
    kv.complete_step(step).unwrap();
    let child = kv.fork(parent, 200, &mut Vec::new()).unwrap();
    kv.extend_by(child, 1, Phase::Decode);
    let sources = kv
        .page_copies()
        .iter()
        .map(|copy| copy.source)
        .collect::<Vec<_>>();
    // No step is in flight, yet the pages the planned one copies from must wait for it.
    kv.release(parent).unwrap();
    let other = kv.create(100).unwrap();
    let updates = kv.extend_by(other, 100, Phase::Prefill);
    assert!(
        updates
            .iter()
            .all(|update| !sources.contains(&PageEntry(update.entry)))
    );
    let step = kv.begin_step();
    assert!(kv.retired_pages() > 0);
    kv.complete_step(step).unwrap();
    assert_eq!(kv.retired_pages(), 0);
}

#[test]
fn a_page_that_a_chunk_still_reads_is_copied_before_a_decode_into_it() {
    // Window of two pages. Both hold the third page, half full; the chunk jumps over its rest and leaves it to the other.
    let mut kv = sequences(32, 16, 100);
    let first = kv.create(200).unwrap();
    kv.extend_by(first, 40, Phase::Prefill);
    let step = kv.begin_step();
    kv.complete_step(step).unwrap();
    kv.settle(first, 40).unwrap();
    let second = kv.fork(first, 200, &mut Vec::new()).unwrap();
    kv.extend_by(first, 60, Phase::Prefill);
    let last = |kv: &KvSequences| kv.table(second, SWA).unwrap().last().unwrap();
    let (column, read) = last(&kv);
    assert_eq!(column, 2);
    kv.extend_by(second, 1, Phase::Decode);
    let (column, written) = last(&kv);
    assert_eq!(column, 2);
    assert_ne!(written, read, "the chunk's first queries see its tokens");
    assert!(kv.page_copies().contains(&PageMove {
        group: SWA,
        source: read,
        target: written
    }));
    let step = kv.begin_step();
    assert!(kv.allocator().holds(SWA, read));
    kv.complete_step(step).unwrap();
    assert!(!kv.allocator().holds(SWA, read));
}

#[test]
fn compaction_leaves_each_pool_as_few_slabs_as_hold_its_pages() {
    // Slabs of six full pages, the first with the null page: 17 sequences of a page each fill three.
    let mut kv = sequences(16, 16, 30);
    let ids = (0..17).map(|_| kv.create(16).unwrap()).collect::<Vec<_>>();
    for &id in &ids {
        kv.extend_by(id, 1, Phase::Prefill);
    }
    assert_eq!(kv.allocator().pool_slabs(FULL), 3);
    // One page stays in each of the second and the third slab, which only together with the null page's are few enough for one.
    for place in (0..17).filter(|place| ![5, 11].contains(place)) {
        kv.release(ids[place]).unwrap();
    }
    let step = kv.begin_step();
    kv.complete_step(step).unwrap();
    let mut updates = Vec::new();
    kv.compact(usize::MAX, &mut updates).unwrap();
    let step = kv.begin_step();
    kv.complete_step(step).unwrap();
    kv.allocator().audit().unwrap();
    assert_eq!(kv.allocator().pool_slabs(FULL), 1);
}

#[test]
fn compaction_keeps_what_admission_promised() {
    // Slabs of six full or three SWA pages. Two sequences spread over every slab; then one of them needs whole slabs.
    let mut kv = sequences(16, 16, 16);
    let ids = (0..8).map(|_| kv.create(112).unwrap()).collect::<Vec<_>>();
    for _ in 0..7 {
        for &id in &ids {
            kv.extend_by(id, 16, Phase::Prefill);
        }
        let step = kv.begin_step();
        kv.complete_step(step).unwrap();
        for &id in &ids {
            let tokens = kv.tokens(id).unwrap();
            kv.settle(id, tokens).unwrap();
        }
    }
    for &id in &ids[1..] {
        kv.release(id).unwrap();
    }
    // What is left of the full pool lies in every slab it had.
    let slabs = kv.allocator().pool_slabs(FULL);
    assert!(slabs > 2);
    let before = kv.columns(ids[0], FULL);
    let mut updates = Vec::new();
    assert!(kv.compact(0, &mut updates).unwrap().is_empty());
    let moves = kv.compact(usize::MAX, &mut updates).unwrap();
    assert_eq!(
        (moves.len(), updates.len()),
        (kv.page_copies().len(), moves.len())
    );
    assert_eq!(
        kv.allocator().pool_slabs(FULL),
        slabs,
        "their pages are read by the step to come"
    );
    let step = kv.begin_step();
    kv.complete_step(step).unwrap();
    assert_eq!(kv.allocator().pool_slabs(FULL), 2);
    assert_eq!(kv.columns(ids[0], FULL), before);
    assert!(
        kv.compact(usize::MAX, &mut updates).unwrap().is_empty(),
        "there is nothing more to gain"
    );
    kv.allocator().audit().unwrap();
    // Decoding finds the moved page.
    let id = ids[0];
    kv.truncate(id, 112).unwrap();
    let moved = kv.table(id, FULL).unwrap().last().unwrap().1;
    kv.release(id).unwrap();
    assert!(!kv.allocator().holds(FULL, moved));
}

#[test]
fn shrinking_is_refused_below_what_is_promised_and_undone_by_growing() {
    let mut kv = sequences(16, 16, 40);
    let id = kv.create(600).unwrap();
    let mut updates = Vec::new();
    // 38 full pages and 2 SWA pages, null pages included in 7 and 1 slabs.
    let error = kv.shrink(7, &mut updates).unwrap_err();
    assert_eq!(
        error,
        KvError::Shrink {
            slabs: 7,
            needed_slabs: 8
        }
    );
    assert!(kv.shrink(8, &mut updates).unwrap().is_empty());
    assert_eq!(
        (kv.allocator().online_slabs(), kv.allocator().free_slabs()),
        (8, 6)
    );
    kv.extend_by(id, 600, Phase::Prefill);
    assert!(matches!(kv.create(100), Err(KvError::NoRoomNow { .. })));
    assert!(matches!(kv.create(2_000), Err(KvError::NeverFits { .. })));
    assert_eq!(kv.shrink(6, &mut updates), Err(KvError::StepPlanned));
    kv.grow(40).unwrap();
    kv.create(2_000).unwrap();
    kv.grow(80).unwrap();
    assert_eq!(kv.allocator().online_slabs(), 80);
    kv.allocator().audit().unwrap();
}

#[test]
fn c48_a_transfer_names_live_pages_of_each_kind_only() {
    let mut kv = sequences(128, 16, 3_000);
    let id = kv.create(131_072).unwrap();
    kv.extend_by(id, 131_072, Phase::Prefill);
    let step = kv.begin_step();
    kv.complete_step(step).unwrap();
    kv.settle(id, 131_072).unwrap();
    assert_eq!(kv.table(id, FULL).unwrap().len(), 8_192);
    assert!(kv.table(id, SWA).unwrap().len() <= 9);
    // Each kind has its own page bytes, and each page its own place.
    let layout = kv.allocator().layout();
    assert_ne!(layout.pools[0].page_bytes, layout.pools[1].page_bytes);
    let pages = kv
        .geometry()
        .group_ids()
        .flat_map(|group| kv.table(id, group).unwrap().map(|page| page.1));
    let pages = pages.collect::<Vec<_>>();
    assert_eq!(
        pages
            .iter()
            .collect::<std::collections::BTreeSet<_>>()
            .len(),
        pages.len()
    );
}

#[test]
fn a_promise_is_raised_while_it_fits_beside_the_others() {
    let mut kv = sequences(128, 16, 40);
    let first = kv.create(16).unwrap();
    kv.extend_by(first, 16, Phase::Prefill);
    assert!(matches!(
        kv.append(first, 1, Phase::Decode, &mut Vec::new()),
        Err(KvError::BeyondPromise { .. })
    ));
    kv.raise(first, 64).unwrap();
    kv.raise(first, 32).unwrap();
    for _ in 0..48 {
        kv.extend_by(first, 1, Phase::Decode);
    }

    // What is left is promised to others; then nothing more can be, until they end.
    let mut others = Vec::new();
    let refused = loop {
        match kv.create(16) {
            Ok(id) => others.push(id),
            Err(error) => break error,
        }
    };
    if let KvError::NoSlot { .. } = refused {
        let last = others.pop().unwrap();
        let mut tokens = 16;
        while kv.raise(last, tokens + 16).is_ok() {
            tokens += 16;
        }
        others.push(last);
    }
    let too_much = 64 + 100 * 16;
    assert!(matches!(
        kv.raise(first, too_much),
        Err(KvError::NoRoomNow { .. } | KvError::NeverFits { .. })
    ));
    for id in others {
        kv.release(id).unwrap();
    }
    kv.raise(first, 80).unwrap();
    kv.release(first).unwrap();
    assert!(kv.raise(first, 96).is_err(), "a released sequence");
    assert_eq!(
        kv.allocator().free_slabs(),
        38,
        "promises leave nothing behind"
    );
    // All of it can be promised again: what was raised has been taken back as a whole.
    let longest = (1..).take_while(|tokens| {
        let fits = kv.create(*tokens);
        fits.map(|id| kv.release(id).unwrap()).is_ok()
    });
    assert!(longest.last().unwrap() > 64);
}
