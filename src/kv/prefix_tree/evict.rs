//! What the tree lets go of, and in which order.

use super::source::PageHolder;
use super::{GroupId, KvError, Node, NodeId, PageEntry, PrefixTree, ROOT, TailId};

impl PrefixTree {
    /// Lets go of cached pages, least recently used first, until `pages` pages of `group` are free or will be with the steps in flight, or
    /// until nothing that is not in use is left; returns how many are. For a windowed group only tail windows go.
    ///
    /// # Errors
    /// [`KvError`] when the pages are not those of `kv`.
    pub fn evict(
        &mut self,
        kv: &mut impl PageHolder,
        group: GroupId,
        pages: u64,
    ) -> Result<u64, KvError> {
        match self.groups.get(group.index()) {
            Some(kind) if kind.is_full() => self.evict_full(kv, group, pages),
            Some(_) => self.evict_tails(kv, group, pages),
            None => Ok(0),
        }
    }

    /// Lets go of everything.
    ///
    /// # Errors
    /// [`KvError`] when the pages are not those of `kv`.
    pub fn clear(&mut self, kv: &mut impl PageHolder) -> Result<(), KvError> {
        while let Some(&(_, tail)) = self.tail_order.first() {
            self.drop_tail(kv, tail)?;
        }
        while let Some(&(_, leaf)) = self.leaf_order.first() {
            while self.drop_last_block(kv, leaf)?.is_some() {}
        }
        Ok(())
    }

    fn evict_tails(
        &mut self,
        kv: &mut impl PageHolder,
        group: GroupId,
        pages: u64,
    ) -> Result<u64, KvError> {
        let mut freed = 0;
        let mut after = (0, 0);
        while freed < pages {
            let Some(&(last_used, tail)) = self.tail_order.range(after..).next() else {
                break;
            };
            after = (last_used, tail + 1);
            // One whose pages sequences still hold would free nothing.
            let window = &self.tails[tail].windows[group.index()].1;
            let mut idle = false;
            for &entry in window {
                idle |= kv.sequences_of(group, entry)? == 0;
            }
            if idle {
                freed += self.drop_tail(kv, tail)?[group.index()];
            }
        }
        Ok(freed)
    }

    fn evict_full(
        &mut self,
        kv: &mut impl PageHolder,
        group: GroupId,
        pages: u64,
    ) -> Result<u64, KvError> {
        let mut freed = 0;
        let mut after = (0, 0);
        while freed < pages {
            let Some(&(last_used, leaf)) = self.leaf_order.range(after..).next() else {
                break;
            };
            after = (last_used, leaf + 1);
            while freed < pages && !self.last_block_in_use(kv, leaf)? {
                let parent = self.nodes[leaf].parent;
                let Some(block) = self.drop_last_block(kv, leaf)? else {
                    // The parent may be a leaf now, as old as its last use.
                    after = after.min((self.nodes[parent].last_used, 0));
                    break;
                };
                freed += block[group.index()];
                if self.nodes[leaf].tokens.is_empty() {
                    after = after.min((self.nodes[parent].last_used, 0));
                    break;
                }
            }
        }
        Ok(freed)
    }

    /// Whether a sequence holds the last block of an edge.
    fn last_block_in_use(&self, kv: &impl PageHolder, node: NodeId) -> Result<bool, KvError> {
        for (group, pages) in (0..).map(GroupId).zip(&self.nodes[node].pages) {
            if let Some(&entry) = pages.last()
                && kv.sequences_of(group, entry)? > 0
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Lets go of the last block of a leaf, of the tail windows that end in it, and of the leaf when it is its last; returns the
    /// pages freed, `None` for a leaf that is gone.
    fn drop_last_block(
        &mut self,
        kv: &mut impl PageHolder,
        leaf: NodeId,
    ) -> Result<Option<Vec<u64>>, KvError> {
        let tokens = self.nodes[leaf].tokens.len();
        if tokens == 0 || leaf == ROOT {
            return Ok(None);
        }
        let keep = tokens - self.block_tokens as usize;
        let end = self.nodes[leaf].start + keep as u32;
        let mut freed = vec![0; self.groups.len()];
        while let Some(&tail) = self.nodes[leaf]
            .tails
            .last()
            .filter(|&&tail| self.tails[tail].end > end)
        {
            for (freed, pages) in freed.iter_mut().zip(self.drop_tail(kv, tail)?) {
                *freed += pages;
            }
        }
        for (index, group) in self
            .groups
            .iter()
            .enumerate()
            .filter(|(_, group)| group.is_full())
        {
            let first = keep / group.page_tokens as usize;
            for entry in self.nodes[leaf].pages[index]
                .split_off(first)
                .into_iter()
                .rev()
            {
                let gone = kv.uncache(GroupId(index as u32), entry)?;
                freed[index] += u64::from(gone.freed);
                self.counters.cached_pages[index] -= u64::from(gone.left_tree);
                self.counters.evicted_pages[index] += u64::from(gone.left_tree);
            }
        }
        let key = self.nodes[leaf].tokens[..self.block_tokens as usize].to_vec();
        self.nodes[leaf].tokens.truncate(keep);
        if keep == 0 {
            let Node {
                parent, last_used, ..
            } = std::mem::take(&mut self.nodes[leaf]);
            self.leaf_order.remove(&(last_used, leaf));
            self.free_nodes.push(leaf);
            let above = &mut self.nodes[parent];
            above.children.remove(key.as_slice());
            if parent != ROOT && above.children.is_empty() {
                self.leaf_order.insert((above.last_used, parent));
            }
        }
        Ok(Some(freed))
    }

    /// Lets go of a tail window; returns the pages freed by group.
    fn drop_tail(&mut self, kv: &mut impl PageHolder, tail: TailId) -> Result<Vec<u64>, KvError> {
        let gone = std::mem::take(&mut self.tails[tail]);
        self.tail_order.remove(&(gone.last_used, tail));
        self.nodes[gone.node].tails.retain(|&other| other != tail);
        self.free_tails.push(tail);
        self.let_go_of(kv, &gone.windows)
    }

    pub(super) fn let_go_of(
        &mut self,
        kv: &mut impl PageHolder,
        windows: &[(u32, Vec<PageEntry>)],
    ) -> Result<Vec<u64>, KvError> {
        let mut freed = vec![0; self.groups.len()];
        for (index, (_, pages)) in windows.iter().enumerate() {
            for &entry in pages.iter().rev() {
                let gone = kv.uncache(GroupId(index as u32), entry)?;
                freed[index] += u64::from(gone.freed);
                self.counters.cached_pages[index] -= u64::from(gone.left_tree);
                self.counters.evicted_pages[index] += u64::from(gone.left_tree);
            }
        }
        Ok(freed)
    }
}
