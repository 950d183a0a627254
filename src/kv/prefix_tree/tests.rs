use super::*;
use crate::kv::geometry::{Geometry, KvDtype, LayerSpec, PageSize};
use crate::kv::sequences::Phase;
use crate::kv::slab::solve_slab;

const FULL: GroupId = GroupId(0);
const SWA: GroupId = GroupId(1);

/// Pages by number, with no memory behind them: `kept[g]` is the first token that the sequence still has.
#[derive(Default)]
struct Numbers {
    kept: [u32; 2],
    held: HashMap<(GroupId, PageEntry), u32>,
}

impl PageHolder for Numbers {
    fn cache_again(&mut self, group: GroupId, entry: PageEntry) -> Result<(), KvError> {
        *self.held.get_mut(&(group, entry)).unwrap() += 1;
        Ok(())
    }

    fn uncache(&mut self, group: GroupId, entry: PageEntry) -> Result<Uncached, KvError> {
        let count = self.held.get_mut(&(group, entry)).unwrap();
        *count -= 1;
        let gone = *count == 0;
        if gone {
            self.held.remove(&(group, entry));
        }
        Ok(Uncached {
            left_tree: gone,
            freed: gone,
        })
    }

    fn sequences_of(&self, _: GroupId, _: PageEntry) -> Result<u32, KvError> {
        Ok(0)
    }
}

impl PageSource for Numbers {
    fn valid_from(&self, group: GroupId) -> u32 {
        self.kept[group.index()]
    }

    fn cache(&mut self, group: GroupId, column: u32) -> Result<(PageEntry, bool), KvError> {
        let count = self.held.entry((group, PageEntry(column))).or_insert(0);
        *count += 1;
        Ok((PageEntry(column), *count == 1))
    }
}

fn groups(full_page: u32, swa_page: u32, window: u32) -> [TreeGroup; 2] {
    [
        TreeGroup {
            kind: AttentionKind::Full,
            page_tokens: full_page,
        },
        TreeGroup {
            kind: AttentionKind::Sliding { window },
            page_tokens: swa_page,
        },
    ]
}

#[test]
fn c45_a_prompt_that_parts_within_the_last_block_still_finds_its_window() {
    let mut tree = PrefixTree::new(&groups(32, 16, 1_024));
    let cached = (0..4_100).collect::<Vec<u32>>();
    // Kept for the boundary 4,096 alone: SWA pages 192 on. With one block of slack: 190 on.
    let mut source = Numbers {
        kept: [0, 3_041],
        ..Numbers::default()
    };
    tree.insert_from(&mut source, &cached).unwrap();
    let swa = source.held.keys().filter(|page| page.0 == SWA).count();
    assert_eq!(swa, 256 - 190);
    let mut prompt = cached[..4_090].to_vec();
    prompt.extend([7; 50]);
    let hit = tree.lookup(&prompt);
    assert_eq!(hit.tokens, 4_064);
    assert_eq!((hit.groups[0].0, hit.groups[0].1.len()), (0, 127));
    assert_eq!(hit.groups[1], (190, (190..254).map(PageEntry).collect()));
    // The whole prompt again: the boundary 4,096 itself.
    let hit = tree.lookup(&cached);
    assert_eq!(
        (hit.tokens, hit.groups[1].0, hit.groups[1].1.len()),
        (4_096, 192, 64)
    );
    // Without the slack the shorter prompt finds nothing, as in the report.
    let mut bare = PrefixTree::new(&groups(32, 16, 1_024));
    let mut source = Numbers {
        kept: [0, 3_073],
        ..Numbers::default()
    };
    bare.insert_from(&mut source, &cached).unwrap();
    assert_eq!(bare.lookup(&prompt).tokens, 0);
    assert_eq!(bare.counters().misses_no_window, 1);
    assert_eq!(bare.lookup(&cached).tokens, 4_096);
}

#[test]
fn a_window_that_parting_prompts_found_stays_theirs() {
    let mut tree = PrefixTree::new(&groups(16, 16, 64));
    let cached = (0..1_000).collect::<Vec<u32>>();
    let mut source = Numbers {
        kept: [0, 0],
        ..Numbers::default()
    };
    tree.insert_from(&mut source, &cached).unwrap();
    // Parts one block before the end of the cached prompt, and is cached itself: the edge is divided there.
    let mut other = cached[..980].to_vec();
    other.extend([9; 400]);
    assert_eq!(tree.lookup(&other).tokens, 976);
    tree.insert_from(&mut source, &other).unwrap();
    let mut third = cached[..980].to_vec();
    third.extend([8; 400]);
    assert_eq!(tree.lookup(&third).tokens, 976);
    // Far before the end there is no window, and earlier blocks are no help.
    let mut fourth = cached[..500].to_vec();
    fourth.extend([8; 400]);
    assert_eq!(tree.lookup(&fourth).tokens, 0);
    assert_eq!(tree.counters().misses_no_window, 1);
    tree.clear(&mut source).unwrap();
    assert!(source.held.is_empty() && tree.counters().cached_pages == [0, 0]);
}

#[test]
fn short_prompts_and_unknown_ones_are_told_apart() {
    let mut tree = PrefixTree::new(&groups(16, 16, 64));
    let mut source = Numbers::default();
    tree.insert_from(&mut source, &(0..100).collect::<Vec<u32>>())
        .unwrap();
    assert_eq!(tree.lookup(&(0..16).collect::<Vec<u32>>()).tokens, 0);
    assert_eq!(tree.lookup(&[]).tokens, 0);
    assert_eq!(tree.lookup(&[5; 40]).tokens, 0);
    // One token more than the prefix, so that something is computed.
    assert_eq!(tree.lookup(&(0..97).collect::<Vec<u32>>()).tokens, 96);
    assert_eq!(tree.lookup(&(0..96).collect::<Vec<u32>>()).tokens, 80);
    let counters = tree.counters();
    assert_eq!(
        (
            counters.misses_too_short,
            counters.misses_unknown,
            counters.hits
        ),
        (2, 1, 2)
    );
    assert_eq!(counters.saved_tokens, 96 + 80);
    assert_eq!(counters.lookups, 5);
}

fn kv(window: u32, slabs: u32) -> KvSequences {
    let spec = |kind| LayerSpec {
        kind,
        num_kv_heads: 1,
        k_head_dim: 64,
        v_head_dim: 64,
    };
    let layers = [
        spec(AttentionKind::Full),
        spec(AttentionKind::Sliding { window }),
    ];
    let geometry = Geometry::new(&layers, PageSize::new(16).unwrap(), KvDtype::Bf16, None).unwrap();
    let layout = solve_slab(&geometry, 0).unwrap();
    KvSequences::new(geometry, &layout, slabs, 64)
        .unwrap()
        .with_rewind(31)
}

/// A sequence of `tokens` that is computed, cached and released.
fn serve(kv: &mut KvSequences, tree: &mut PrefixTree, tokens: &[u32]) -> u32 {
    let hit = tree.lookup(tokens);
    let id = kv
        .create_with_prefix(tokens.len() as u32, &hit, &mut Vec::new())
        .unwrap();
    let rest = tokens.len() as u32 - hit.tokens;
    kv.append(id, rest, Phase::Prefill, &mut Vec::new())
        .unwrap();
    let step = kv.begin_step();
    kv.complete_step(step).unwrap();
    kv.settle(id, tokens.len() as u32).unwrap();
    tree.insert(kv, id, tokens).unwrap();
    kv.release(id).unwrap();
    kv.allocator().audit().unwrap();
    hit.tokens
}

#[test]
fn cached_prefixes_are_held_once_and_charged_once() {
    let mut kv = kv(64, 400);
    let mut tree = PrefixTree::for_sequences(&kv);
    let prompt = (0..1_000).collect::<Vec<u32>>();
    assert_eq!(serve(&mut kv, &mut tree, &prompt), 0);
    let cached = tree.counters().cached_pages.clone();
    assert_eq!(cached[0], 62);
    assert_eq!(
        [
            kv.allocator().used_pages(FULL),
            kv.allocator().used_pages(SWA)
        ],
        [cached[0], cached[1]]
    );
    // The same prompt again takes nothing new to the tree.
    assert_eq!(serve(&mut kv, &mut tree, &prompt), 992);
    assert_eq!(tree.counters().cached_pages, cached);
    // Two sequences on one prefix: its full pages are charged once, the pages after it to each.
    let hit = tree.lookup(&prompt);
    let (used, before) = (kv.allocator().used_pages(FULL), kv.charged_pages(FULL));
    assert_eq!(before, 0);
    let first = kv.create_with_prefix(1_600, &hit, &mut Vec::new()).unwrap();
    assert_eq!(kv.charged_pages(FULL), 100);
    let second = kv.create_with_prefix(1_600, &hit, &mut Vec::new()).unwrap();
    assert_eq!(kv.charged_pages(FULL), 100 + (100 - 62));
    assert_eq!(kv.allocator().used_pages(FULL), used);
    // Eviction while both hold it frees nothing; after them everything goes.
    assert_eq!(tree.evict(&mut kv, FULL, 1_000).unwrap(), 0);
    for id in [first, second] {
        kv.release(id).unwrap();
    }
    assert_eq!(kv.charged_pages(FULL), 0);
    assert_eq!(tree.evict(&mut kv, FULL, 1_000).unwrap(), 62);
    assert_eq!(
        [
            kv.allocator().used_pages(FULL),
            kv.allocator().used_pages(SWA)
        ],
        [0, 0]
    );
    kv.allocator().audit().unwrap();
}

#[test]
fn windows_are_evicted_without_full_pages_and_full_pages_with_their_windows() {
    let mut kv = kv(64, 800);
    let mut tree = PrefixTree::for_sequences(&kv);
    let prompts = (0..4)
        .map(|kind| {
            (0..400)
                .map(|token| token + 10_000 * kind)
                .collect::<Vec<u32>>()
        })
        .collect::<Vec<_>>();
    for prompt in &prompts {
        serve(&mut kv, &mut tree, prompt);
    }
    assert_eq!(tree.lookup(&prompts[0]).tokens, 384);
    let full = kv.allocator().used_pages(FULL);
    // The least recently used window is the second prompt's.
    assert!(tree.evict(&mut kv, SWA, 1).unwrap() >= 1);
    assert_eq!(kv.allocator().used_pages(FULL), full);
    assert_eq!(tree.lookup(&prompts[1]).tokens, 0);
    assert_eq!(tree.counters().misses_no_window, 1);
    assert_eq!(
        [0, 2, 3].map(|prompt| tree.lookup(&prompts[prompt]).tokens),
        [384; 3]
    );
    // Computing it again brings its window back, and takes no second copy of its full pages.
    assert_eq!(serve(&mut kv, &mut tree, &prompts[1]), 0);
    assert_eq!(kv.allocator().used_pages(FULL), full);
    assert_eq!(tree.lookup(&prompts[1]).tokens, 384);
    // A full page goes from the end of the oldest prompt, and its window with it.
    let swa = kv.allocator().used_pages(SWA);
    assert_eq!(tree.evict(&mut kv, FULL, 1).unwrap(), 1);
    assert!(kv.allocator().used_pages(SWA) < swa);
    assert_eq!(tree.lookup(&prompts[0]).tokens, 0);
    tree.clear(&mut kv).unwrap();
    assert_eq!(
        [
            kv.allocator().used_pages(FULL),
            kv.allocator().used_pages(SWA)
        ],
        [0, 0]
    );
    kv.allocator().audit().unwrap();
}

#[test]
fn c47_each_kind_goes_from_its_own_tail() {
    let mut kv = kv(64, 400);
    let mut tree = PrefixTree::for_sequences(&kv);
    let prompt = (0..1_601).collect::<Vec<u32>>();
    // Cached in two parts, so that there are two windows.
    serve(&mut kv, &mut tree, &prompt[..801]);
    serve(&mut kv, &mut tree, &prompt);
    // Ten full pages go from the end; what is left can be used up to the window before them, the first one.
    assert_eq!(tree.evict(&mut kv, FULL, 10).unwrap(), 10);
    assert_eq!(tree.counters().cached_pages[0], 90);
    assert_eq!(tree.lookup(&prompt).tokens, 800);
    assert_eq!(tree.counters().hits_cut_by_window, 1);
}
