//! Questions to the tree that change nothing in it.

use super::{NodeId, PrefixPages, PrefixTree, TailId, TreeGroup};

impl PrefixTree {
    /// What [`lookup`](Self::lookup) would find, without counting it: for an admission that may still be refused. And the tokens at the
    /// beginning of `prompt` that are cached, whether or not there is a window to continue from: where they exceed what is found, prompts
    /// part at a boundary that has no tail window yet.
    #[must_use]
    pub fn peek(&self, prompt: &[u32]) -> (PrefixPages, u32) {
        let (path, known_tokens) = self.walk(self.usable(prompt));
        let found = match self.boundary(&path, known_tokens) {
            Some((tokens, tail)) => self.pages_up_to(&path, tokens, tail),
            None => PrefixPages::default(),
        };
        (found, known_tokens)
    }

    /// The last boundary of `prompt` at which a prefix may end.
    #[must_use]
    pub fn last_boundary(&self, prompt: &[u32]) -> u32 {
        self.usable(prompt).len() as u32
    }

    /// The part of a prompt that a prefix may cover: whole blocks, and one token at least is left to compute.
    pub(super) fn usable<'a>(&self, prompt: &'a [u32]) -> &'a [u32] {
        let block = self.block_tokens as usize;
        &prompt[..prompt.len().saturating_sub(1) / block * block]
    }

    /// The pages of the first `tokens` tokens on `path`, windows from `tail`.
    pub(super) fn pages_up_to(
        &self,
        path: &[NodeId],
        tokens: u32,
        tail: Option<TailId>,
    ) -> PrefixPages {
        let pages = |(index, group): (usize, &TreeGroup)| {
            let end = tokens / group.page_tokens;
            if group.is_full() {
                let mut pages = Vec::with_capacity(end as usize);
                for &node in path {
                    let missing = end as usize - pages.len();
                    let edge = &self.nodes[node].pages[index];
                    pages.extend(edge.iter().take(missing));
                }
                return (0, pages);
            }
            let first = group.kind.first_visible(tokens) / group.page_tokens;
            let Some(tail) = tail else {
                return (first, Vec::new());
            };
            let (from, pages) = &self.tails[tail].windows[index];
            let held = from / group.page_tokens;
            (
                first,
                pages[(first - held) as usize..(end - held) as usize].to_vec(),
            )
        };
        PrefixPages {
            tokens,
            groups: self.groups.iter().enumerate().map(pages).collect(),
        }
    }
}
