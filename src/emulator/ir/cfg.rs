//! Basic blocks, dominators and post-dominators.

use super::{Flow, Inst};

/// A kernel's control-flow graph.
#[derive(Debug)]
pub(crate) struct Cfg {
    pub blocks: Vec<Block>,
    /// Block of each instruction.
    pub block_of: Vec<usize>,
    /// Immediate dominator of each block; `None` for the entry and for blocks that cannot be reached.
    pub idom: Vec<Option<usize>>,
    /// Immediate post-dominator of each block; `None` if its paths only meet at the end of the kernel.
    pub ipdom: Vec<Option<usize>>,
}

/// Instructions `[start, end)`.
#[derive(Debug)]
pub(crate) struct Block {
    pub start: usize,
    pub end: usize,
    pub successors: Vec<usize>,
}

impl Cfg {
    /// The graph of `insts`, which ends with an instruction that does not fall through.
    pub(crate) fn new(insts: &[Inst]) -> Cfg {
        let mut leader = vec![false; insts.len() + 1];
        leader[0] = true;
        for (index, inst) in insts.iter().enumerate() {
            match inst.flow {
                Flow::Next | Flow::ExitIf { .. } => {}
                Flow::Jump(target) | Flow::Branch { target, .. } => {
                    leader[target] = true;
                    leader[index + 1] = true;
                }
                Flow::Exit(_) | Flow::Trap => leader[index + 1] = true,
            }
        }
        let starts: Vec<usize> = (0..insts.len()).filter(|&i| leader[i]).collect();
        let mut block_of = vec![0; insts.len()];
        let mut blocks = Vec::with_capacity(starts.len());
        for (number, &start) in starts.iter().enumerate() {
            let end = starts.get(number + 1).copied().unwrap_or(insts.len());
            block_of[start..end].fill(number);
            blocks.push(Block {
                start,
                end,
                successors: Vec::new(),
            });
        }
        for block in &mut blocks {
            let end = block.end;
            let mut successors = Vec::new();
            match insts[end - 1].flow {
                Flow::Jump(target) => successors.push(block_of[target]),
                Flow::Branch { target, .. } => {
                    successors.push(block_of[end]);
                    successors.push(block_of[target]);
                }
                Flow::Exit(_) | Flow::Trap => {}
                // A conditional exit has no edge to the end: its lanes vanish, and the others still meet.
                Flow::Next | Flow::ExitIf { .. } => successors.push(block_of[end]),
            }
            block.successors = successors;
        }
        let n = blocks.len();
        let forward: Vec<Vec<usize>> = blocks.iter().map(|b| b.successors.clone()).collect();
        let idom = dominators(&forward, 0);
        // Backwards from a virtual block n behind every exit.
        let mut backward = vec![Vec::new(); n + 1];
        for (number, block) in blocks.iter().enumerate() {
            for &successor in &block.successors {
                backward[successor].push(number);
            }
            if matches!(insts[block.end - 1].flow, Flow::Exit(_)) {
                backward[n].push(number);
            }
        }
        let ipdom = dominators(&backward, n)
            .into_iter()
            .take(n)
            .map(|d| d.filter(|&d| d != n))
            .collect();
        Cfg {
            blocks,
            block_of,
            idom,
            ipdom,
        }
    }

    /// Whether every path from the entry to block `b` goes through block `a`.
    pub(crate) fn dominates(&self, a: usize, b: usize) -> bool {
        let mut block = Some(b);
        while let Some(current) = block {
            if current == a {
                return true;
            }
            block = self.idom[current];
        }
        false
    }
}

/// Immediate dominators of a graph given by successors (Cooper, Harvey and Kennedy's iteration).
fn dominators(successors: &[Vec<usize>], root: usize) -> Vec<Option<usize>> {
    let n = successors.len();
    let mut order = Vec::with_capacity(n);
    let mut seen = vec![false; n];
    let mut stack = vec![(root, 0)];
    seen[root] = true;
    while let Some((node, next)) = stack.last_mut() {
        if let Some(&successor) = successors[*node].get(*next) {
            *next += 1;
            if !seen[successor] {
                seen[successor] = true;
                stack.push((successor, 0));
            }
        } else {
            order.push(*node);
            stack.pop();
        }
    }
    let mut rank = vec![usize::MAX; n];
    for (index, &node) in order.iter().enumerate() {
        rank[node] = index;
    }
    let mut predecessors = vec![Vec::new(); n];
    for &node in &order {
        for &successor in &successors[node] {
            predecessors[successor].push(node);
        }
    }
    let mut idom = vec![None; n];
    idom[root] = Some(root);
    let mut changed = true;
    while changed {
        changed = false;
        for &node in order.iter().rev().filter(|&&node| node != root) {
            let mut new: Option<usize> = None;
            for &predecessor in predecessors[node].iter().filter(|&&p| idom[p].is_some()) {
                new = Some(match new {
                    None => predecessor,
                    Some(current) => meet(&idom, &rank, current, predecessor),
                });
            }
            if new.is_some() && idom[node] != new {
                idom[node] = new;
                changed = true;
            }
        }
    }
    idom[root] = None;
    idom
}

fn meet(idom: &[Option<usize>], rank: &[usize], mut a: usize, mut b: usize) -> usize {
    while a != b {
        while rank[a] < rank[b] {
            match idom[a] {
                Some(up) if up != a => a = up,
                _ => return b,
            }
        }
        while rank[b] < rank[a] {
            match idom[b] {
                Some(up) if up != b => b = up,
                _ => return a,
            }
        }
    }
    a
}
