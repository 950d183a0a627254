//! Cached prefixes: a radix tree over blocks of tokens that knows windows.
//!
//! An edge holds the tokens of whole blocks (one block is whole pages of every group) and their full-attention pages. What a windowed
//! group needs to continue at a boundary is the pages of the window before it, so those are kept apart, as one **tail window** for
//! all windowed groups together, attached to the edge that its end lies in. A prefix of `t` tokens can be used iff the tree has the tokens and full pages
//! up to `t` and a tail window that covers `t`: its pages stand contiguously from the first key that the query at `t` sees up to
//! `t`. A tail keeps one block more than its window, so a prompt that parts from a cached one within its last block still finds its window.
//!
//! Pages are held, not owned: sequences and the tree hold the same page, and it is free when the last lets go. Full pages and tail
//! windows are evicted apart, each least recently used first: letting go of tails never touches full pages; letting go of full pages takes the tails
//! that cannot be reached without them. Full pages go block by block from the end of a leaf, so that the beginning of a
//! prefix outlives its end.

use std::collections::{BTreeSet, HashMap};

use serde::Serialize;

use super::geometry::{AttentionKind, GroupId, PageEntry};
use super::kv_error::KvError;
use super::sequences::{KvSequences, PageMove, PrefixPages, SequenceId};
use super::window;

mod evict;
mod peek;
mod source;

pub use source::{PageHolder, PageSource, Uncached};

/// One layer group, as far as the tree is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeGroup {
    /// Which keys its layers read.
    pub kind: AttentionKind,
    /// Tokens per page.
    pub page_tokens: u32,
}

impl TreeGroup {
    fn is_full(self) -> bool {
        !window::pages_die(self.kind)
    }
}

type NodeId = usize;
type TailId = usize;
const ROOT: NodeId = 0;

#[derive(Clone, Debug, Default)]
struct Node {
    parent: NodeId,
    /// Tokens before the edge.
    start: u32,
    /// Tokens of the edge, whole blocks.
    tokens: Vec<u32>,
    /// Pages of the edge, by group; empty for windowed groups.
    pages: Vec<Vec<PageEntry>>,
    /// By the first block of their edge.
    children: HashMap<Box<[u32]>, NodeId>,
    /// Tail windows that end in this edge, by their end.
    tails: Vec<TailId>,
    last_used: u64,
}

impl Node {
    fn end(&self) -> u32 {
        self.start + self.tokens.len() as u32
    }
}

/// The pages of the windows before a boundary, of every windowed group.
#[derive(Clone, Debug, Default)]
struct Tail {
    node: NodeId,
    /// The boundary.
    end: u32,
    /// By group: first token that is there, and the pages from the one that holds it up to `end`. Empty for full groups.
    windows: Vec<(u32, Vec<PageEntry>)>,
    last_used: u64,
}

/// What a tree has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PrefixCounters {
    /// Prompts looked up.
    pub lookups: u64,
    /// Those that found a prefix.
    pub hits: u64,
    /// Tokens that need not be computed again.
    pub saved_tokens: u64,
    /// Prompts shorter than one block and one token.
    pub misses_too_short: u64,
    /// Prompts whose first block is not cached.
    pub misses_unknown: u64,
    /// Prompts whose tokens are cached but no window to continue from.
    pub misses_no_window: u64,
    /// Hits that were cut to an earlier boundary because the window before the last one is gone.
    pub hits_cut_by_window: u64,
    /// Sequences whose windows at the last boundary were gone when they were cached.
    pub tails_not_kept: u64,
    /// Pages in the tree now, by group.
    pub cached_pages: Vec<u64>,
    /// Pages that the tree has let go of, by group.
    pub evicted_pages: Vec<u64>,
}

/// Cached prefixes of one set of sequences.
#[derive(Clone, Debug)]
pub struct PrefixTree {
    groups: Vec<TreeGroup>,
    block_tokens: u32,
    nodes: Vec<Node>,
    free_nodes: Vec<NodeId>,
    tails: Vec<Tail>,
    free_tails: Vec<TailId>,
    /// Leaves and tails, least recently used first.
    leaf_order: BTreeSet<(u64, NodeId)>,
    tail_order: BTreeSet<(u64, TailId)>,
    clock: u64,
    counters: PrefixCounters,
}

impl PrefixTree {
    /// An empty tree for `groups`.
    #[must_use]
    pub fn new(groups: &[TreeGroup]) -> Self {
        let root = Node {
            pages: vec![Vec::new(); groups.len()],
            ..Node::default()
        };
        Self {
            // Recurrent state is that of all tokens, so nothing can start on part of it: no block is ever whole.
            block_tokens: groups
                .iter()
                .fold(1, |block, group| common_multiple(block, group.page_tokens)),
            groups: groups.to_vec(),
            nodes: vec![root],
            free_nodes: Vec::new(),
            tails: Vec::new(),
            free_tails: Vec::new(),
            leaf_order: BTreeSet::new(),
            tail_order: BTreeSet::new(),
            clock: 0,
            counters: PrefixCounters {
                cached_pages: vec![0; groups.len()],
                evicted_pages: vec![0; groups.len()],
                ..PrefixCounters::default()
            },
        }
    }

    /// An empty tree for the pages of `kv`.
    #[must_use]
    pub fn for_sequences(kv: &KvSequences) -> Self {
        let groups = kv.geometry().groups.iter().map(|group| TreeGroup {
            kind: group.kind,
            page_tokens: group.tokens_per_page(),
        });
        Self::new(&groups.collect::<Vec<_>>())
    }

    /// What the tree has done so far.
    #[must_use]
    pub const fn counters(&self) -> &PrefixCounters {
        &self.counters
    }

    /// The longest cached prefix of `prompt` that a sequence can continue from; of 0 tokens if there is none. The last token of the prompt
    /// is never part of it: something must be computed. It counts as used now.
    pub fn lookup(&mut self, prompt: &[u32]) -> PrefixPages {
        self.clock += 1;
        self.counters.lookups += 1;
        let usable = self.usable(prompt);
        let (path, matched) = self.walk(usable);
        let found = self.boundary(&path, matched);
        let Some((tokens, tail)) = found else {
            let reason = match (usable.len(), matched) {
                (0, _) => &mut self.counters.misses_too_short,
                (_, 0) => &mut self.counters.misses_unknown,
                _ => &mut self.counters.misses_no_window,
            };
            *reason += 1;
            return PrefixPages::default();
        };
        self.counters.hits += 1;
        self.counters.saved_tokens += u64::from(tokens);
        self.counters.hits_cut_by_window += u64::from(tokens < matched);
        self.touch(&path, tail);
        self.pages_up_to(&path, tokens, tail)
    }

    /// The last boundary on `path`, up to `matched` tokens, whose windows are there.
    fn boundary(&self, path: &[NodeId], matched: u32) -> Option<(u32, Option<TailId>)> {
        if matched == 0 {
            return None;
        }
        if self.groups.iter().all(|group| group.is_full()) {
            return Some((matched, None));
        }
        for &node in path.iter().rev() {
            let tails = &self.nodes[node].tails;
            // The first that ends beyond the match, then those before it.
            let beyond = tails.partition_point(|&tail| self.tails[tail].end <= matched);
            for &tail in tails[..tails.len().min(beyond + 1)].iter().rev() {
                let boundary = self.tails[tail].end.min(matched);
                if self.covers(tail, boundary) {
                    return Some((boundary, Some(tail)));
                }
            }
        }
        None
    }

    /// Whether a tail holds every key that the query at `boundary` sees in windowed groups.
    fn covers(&self, tail: TailId, boundary: u32) -> bool {
        let tail = &self.tails[tail];
        let mut groups = self.groups.iter().zip(&tail.windows);
        boundary <= tail.end
            && groups.all(|(group, (from, _))| {
                group.is_full() || *from <= group.kind.first_visible(boundary)
            })
    }

    /// Caches the tokens of a sequence, which has settled them all, up to their last whole block. Pages that the tree has already stay
    /// as they are: the sequence's own copies of them leave with it.
    ///
    /// # Errors
    /// [`KvError`] when the sequence does not hold what it must; nothing is cached then.
    pub fn insert(
        &mut self,
        kv: &mut KvSequences,
        id: SequenceId,
        tokens: &[u32],
    ) -> Result<(), KvError> {
        let settled_tokens = kv.settled_tokens(id)?;
        if tokens.len() > settled_tokens as usize {
            return Err(KvError::Settle {
                tokens: u32::try_from(tokens.len()).unwrap_or(u32::MAX),
                settled_tokens,
                appended_tokens: kv.tokens(id)?,
            });
        }
        self.insert_from(&mut source::OfSequence { kv, id }, tokens)
    }

    /// As [`insert`](Self::insert), from any holder of pages.
    ///
    /// # Errors
    /// What `source` says.
    pub fn insert_from(
        &mut self,
        source: &mut impl PageSource,
        tokens: &[u32],
    ) -> Result<(), KvError> {
        self.clock += 1;
        let usable = tokens.len() / self.block_tokens as usize * self.block_tokens as usize;
        let tokens = &tokens[..usable];
        let (mut path, matched) = self.walk(tokens);
        let end = usable as u32;
        if matched < end {
            let last = path[path.len() - 1];
            let parent = if matched < self.nodes[last].end() {
                self.split(source, last, matched)?
            } else {
                last
            };
            path.pop();
            path.push(parent);
            path.push(self.add_leaf(source, parent, &tokens[matched as usize..])?);
        }
        let tail = self.add_tail(source, path[path.len() - 1], end)?;
        self.touch(&path, tail);
        Ok(())
    }

    /// The nodes along `tokens` (whole blocks) and how many of them, in whole blocks, are there.
    fn walk(&self, tokens: &[u32]) -> (Vec<NodeId>, u32) {
        let block = self.block_tokens as usize;
        let mut path = vec![ROOT];
        let mut node = &self.nodes[ROOT];
        let mut matched = 0;
        while matched < tokens.len() {
            let rest = &tokens[matched..];
            let Some(&child) = node.children.get(&rest[..block]) else {
                break;
            };
            path.push(child);
            node = &self.nodes[child];
            let edge = &node.tokens[..node.tokens.len().min(rest.len())];
            if rest.starts_with(edge) && edge.len() == node.tokens.len() {
                matched += edge.len();
                continue;
            }
            let same = edge.iter().zip(rest).take_while(|(a, b)| a == b).count();
            matched += same / block * block;
            break;
        }
        (path, matched as u32)
    }

    /// Marks a path and a tail as used now.
    fn touch(&mut self, path: &[NodeId], tail: Option<TailId>) {
        for &node in path {
            let leaf = node != ROOT && self.nodes[node].children.is_empty();
            let before = std::mem::replace(&mut self.nodes[node].last_used, self.clock);
            if leaf {
                self.leaf_order.remove(&(before, node));
                self.leaf_order.insert((self.clock, node));
            }
        }
        if let Some(tail) = tail {
            let before = std::mem::replace(&mut self.tails[tail].last_used, self.clock);
            self.tail_order.remove(&(before, tail));
            self.tail_order.insert((self.clock, tail));
        }
    }

    /// Divides an edge at `at` tokens from the root; returns the new upper part. If its windows are there, a tail
    /// window ends at it from now on, so that others that part here find it.
    fn split(
        &mut self,
        holder: &mut impl PageHolder,
        node: NodeId,
        at: u32,
    ) -> Result<NodeId, KvError> {
        let keep = (at - self.nodes[node].start) as usize;
        let block = self.block_tokens as usize;
        let covering = {
            let tails = &self.nodes[node].tails;
            let beyond = tails.partition_point(|&tail| self.tails[tail].end < at);
            tails
                .get(beyond)
                .copied()
                .filter(|&tail| self.tails[tail].end > at && self.covers(tail, at))
        };
        let upper = self.new_node();
        let lower = &mut self.nodes[node];
        let (parent, start) = (lower.parent, lower.start);
        let tail_tokens = lower.tokens.split_off(keep);
        let head_tokens = std::mem::replace(&mut lower.tokens, tail_tokens);
        let mut head_pages = Vec::with_capacity(self.groups.len());
        for (group, pages) in self.groups.iter().zip(&mut lower.pages) {
            let rest = if group.is_full() {
                pages.split_off(keep / group.page_tokens as usize)
            } else {
                Vec::new()
            };
            head_pages.push(std::mem::replace(pages, rest));
        }
        let ended = lower
            .tails
            .partition_point(|&tail| self.tails[tail].end <= at);
        let staying = lower.tails.split_off(ended);
        let head_tails = std::mem::replace(&mut lower.tails, staying);
        (lower.parent, lower.start) = (upper, at);
        let lower_key = lower.tokens[..block].into();
        let last_used = lower.last_used;
        for &tail in &head_tails {
            self.tails[tail].node = upper;
        }
        let upper_key: Box<[u32]> = head_tokens[..block].into();
        self.nodes[upper] = Node {
            parent,
            start,
            tokens: head_tokens,
            pages: head_pages,
            children: HashMap::from([(lower_key, node)]),
            tails: head_tails,
            last_used,
        };
        self.nodes[parent].children.insert(upper_key, upper);
        if let Some(tail) = covering {
            let windows = self.tails[tail].windows.clone();
            self.share_tail(holder, upper, at, &windows)?;
        }
        Ok(upper)
    }

    /// A tail that ends at `at`, of pages that the tree holds already.
    fn share_tail(
        &mut self,
        holder: &mut impl PageHolder,
        node: NodeId,
        at: u32,
        windows: &[(u32, Vec<PageEntry>)],
    ) -> Result<(), KvError> {
        let mut shared = vec![(0, Vec::new()); self.groups.len()];
        for (index, group) in self
            .groups
            .iter()
            .enumerate()
            .filter(|(_, group)| !group.is_full())
        {
            let (from, pages) = &windows[index];
            let held = from / group.page_tokens;
            let end = at / group.page_tokens;
            let pages = &pages[..(end - held) as usize];
            for &entry in pages {
                holder.cache_again(GroupId(index as u32), entry)?;
            }
            shared[index] = (*from, pages.to_vec());
        }
        let last_used = self.clock;
        self.attach_tail(Tail {
            node,
            end: at,
            windows: shared,
            last_used,
        });
        Ok(())
    }

    /// A leaf below `parent` with the rest of a sequence's tokens and their full pages.
    fn add_leaf(
        &mut self,
        source: &mut impl PageSource,
        parent: NodeId,
        tokens: &[u32],
    ) -> Result<NodeId, KvError> {
        let start = self.nodes[parent].end();
        let mut pages = vec![Vec::new(); self.groups.len()];
        // Where a block is several pages, prompts that part within it share its first ones.
        let mut new_pages = vec![0; self.groups.len()];
        for (index, group) in self
            .groups
            .iter()
            .enumerate()
            .filter(|(_, group)| group.is_full())
        {
            let first = start / group.page_tokens;
            let columns = first..first + tokens.len() as u32 / group.page_tokens;
            pages[index].reserve_exact(columns.len());
            for column in columns {
                match source.cache(GroupId(index as u32), column) {
                    Ok((entry, new)) => {
                        pages[index].push(entry);
                        new_pages[index] += u64::from(new);
                    }
                    Err(error) => {
                        for (index, pages) in pages.iter().enumerate() {
                            for &entry in pages {
                                source.uncache(GroupId(index as u32), entry)?;
                            }
                        }
                        return Err(error);
                    }
                }
            }
        }
        for (count, new) in self.counters.cached_pages.iter_mut().zip(new_pages) {
            *count += new;
        }
        let leaf = self.new_node();
        self.nodes[leaf] = Node {
            parent,
            start,
            tokens: tokens.to_vec(),
            pages,
            last_used: self.clock,
            ..Node::default()
        };
        let above = &mut self.nodes[parent];
        above
            .children
            .insert(tokens[..self.block_tokens as usize].into(), leaf);
        let was_leaf = (above.last_used, parent);
        self.leaf_order.remove(&was_leaf);
        self.leaf_order.insert((self.clock, leaf));
        Ok(leaf)
    }

    /// The tail window of a sequence at `end`, if it still has it; the one that is there, if it has been cached before.
    fn add_tail(
        &mut self,
        source: &mut impl PageSource,
        node: NodeId,
        end: u32,
    ) -> Result<Option<TailId>, KvError> {
        if end == 0 || self.groups.iter().all(|group| group.is_full()) {
            return Ok(None);
        }
        let there = self.nodes[node]
            .tails
            .iter()
            .find(|&&tail| self.tails[tail].end == end);
        if let Some(&tail) = there {
            return Ok(Some(tail));
        }
        let mut windows = vec![(0, Vec::new()); self.groups.len()];
        let windowed = self
            .groups
            .iter()
            .enumerate()
            .filter(|(_, group)| !group.is_full());
        let mut whole = true;
        for (index, group) in windowed.clone() {
            let valid = source.valid_from(GroupId(index as u32));
            // One block more, for prompts that part from this one within the last.
            let wanted = group.kind.first_visible(end - self.block_tokens);
            windows[index].0 = valid.max(wanted);
            whole &= valid <= group.kind.first_visible(end);
        }
        if !whole {
            self.counters.tails_not_kept += 1;
            return Ok(None);
        }
        let mut refused = None;
        for (index, group) in windowed {
            let (from, pages) = &mut windows[index];
            for column in *from / group.page_tokens..end / group.page_tokens {
                match source.cache(GroupId(index as u32), column) {
                    Ok((entry, new)) => {
                        self.counters.cached_pages[index] += u64::from(new);
                        pages.push(entry);
                    }
                    Err(error) => refused = refused.or(Some(error)),
                }
            }
        }
        if let Some(error) = refused {
            self.let_go_of(source, &windows)?;
            return Err(error);
        }
        Ok(Some(self.attach_tail(Tail {
            node,
            end,
            windows,
            last_used: self.clock,
        })))
    }

    fn attach_tail(&mut self, tail: Tail) -> TailId {
        let (node, end, last_used) = (tail.node, tail.end, tail.last_used);
        let id = match self.free_tails.pop() {
            Some(id) => {
                self.tails[id] = tail;
                id
            }
            None => {
                self.tails.push(tail);
                self.tails.len() - 1
            }
        };
        let place = self.nodes[node]
            .tails
            .partition_point(|&other| self.tails[other].end < end);
        self.nodes[node].tails.insert(place, id);
        self.tail_order.insert((last_used, id));
        id
    }

    fn new_node(&mut self) -> NodeId {
        self.free_nodes.pop().unwrap_or_else(|| {
            self.nodes.push(Node::default());
            self.nodes.len() - 1
        })
    }

    /// Follows pages that compaction moved.
    pub fn moved(&mut self, moves: &[PageMove]) {
        if moves.is_empty() {
            return;
        }
        let targets = moves
            .iter()
            .map(|page| ((page.group, page.source), page.target))
            .collect::<HashMap<_, _>>();
        let edges = self
            .nodes
            .iter_mut()
            .flat_map(|node| node.pages.iter_mut().enumerate());
        let windows = self.tails.iter_mut().flat_map(|tail| {
            tail.windows
                .iter_mut()
                .map(|window| &mut window.1)
                .enumerate()
        });
        for (group, pages) in edges.chain(windows) {
            for entry in pages {
                if let Some(&target) = targets.get(&(GroupId(group as u32), *entry)) {
                    *entry = target;
                }
            }
        }
    }
}

/// The least common multiple, at most `u32::MAX`.
fn common_multiple(a: u32, b: u32) -> u32 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x.max(1)).saturating_mul(b)
}

#[cfg(test)]
mod tests;
