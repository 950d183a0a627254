//! Joins instructions whose results nothing else reads into one: address arithmetic, and tests of a range. Pairs of products
//! with the same A become one as well.
//!
//! Only within a basic block, where all lanes stay together, and only pure instructions without guards: what the lanes
//! see is the same, and [`fused`] handlers count what they stand for.

use super::cfg::Cfg;
use super::{Fusible, Inst, Register};
use crate::emulator::exec::fused;

/// Terms of a sum at most.
const MOST_TERMS: usize = 4;

/// Instruction `base.rest`, if this pass knows it.
pub(super) fn fusible(base: &str, rest: &[&str]) -> Option<Fusible> {
    Some(match (base, rest) {
        ("add", ["s64" | "u64"]) => Fusible::Add,
        ("cvt", ["u64", "u32"]) => Fusible::Widen,
        ("and", ["pred"]) => Fusible::And,
        ("or", ["pred"]) => Fusible::Or,
        ("setp", [order, ty @ ("u32" | "s32")]) => {
            let (swapped, negated) = match *order {
                "ge" | "hs" => (false, false),
                "lt" | "lo" => (false, true),
                "le" | "ls" => (true, false),
                "gt" | "hi" => (true, true),
                _ => return None,
            };
            Fusible::AtLeast {
                signed: *ty == "s32",
                swapped,
                negated,
            }
        }
        _ => return None,
    })
}

struct Fusing<'a> {
    insts: &'a mut [Inst],
    dead: &'a mut [bool],
    cfg: &'a Cfg,
    /// How often each register is read, how often it is written, and where the last time.
    reads: Vec<u32>,
    writes: Vec<(u32, usize)>,
}

/// Joins what can be joined and marks what is no longer needed in `dead`.
pub(super) fn join(insts: &mut [Inst], dead: &mut [bool], registers: &[Register], cfg: &Cfg) {
    let mut reads = vec![0; registers.len()];
    let mut writes = vec![(0, 0); registers.len()];
    for (index, inst) in insts.iter().enumerate().filter(|&(index, _)| !dead[index]) {
        let guard = inst.guard.iter().map(|(register, _)| register);
        for &src in inst.srcs.iter().chain(guard) {
            reads[src as usize] += 1;
        }
        for &dst in &inst.dsts {
            let (count, _) = writes[dst as usize];
            writes[dst as usize] = (count + 1, index);
        }
    }
    let mut fusing = Fusing {
        insts,
        dead,
        cfg,
        reads,
        writes,
    };
    // Backwards: the last of a chain takes in the others.
    for index in (0..fusing.insts.len()).rev() {
        if fusing.dead[index] || fusing.insts[index].guard.is_some() {
            continue;
        }
        match fusing.insts[index].fusible {
            Some(Fusible::Add) => fusing.sum(index),
            Some(Fusible::And) => fusing.range(index, false),
            Some(Fusible::Or) => fusing.range(index, true),
            _ => {}
        }
    }
    fusing.pairs();
}

impl Fusing<'_> {
    /// The instruction that computes `register` for `reader` alone, if it could as well run there.
    fn only_for(&self, register: u32, reader: usize) -> Option<(usize, Fusible)> {
        let (count, at) = self.writes[register as usize];
        if count != 1 || self.reads[register as usize] != 1 || at >= reader {
            return None;
        }
        let inst = &self.insts[at];
        let near = self.cfg.block_of[at] == self.cfg.block_of[reader];
        if self.dead[at] || inst.guard.is_some() || !near {
            return None;
        }
        let overwritten = self.insts[at + 1..reader]
            .iter()
            .any(|between| between.dsts.iter().any(|dst| inst.srcs.contains(dst)));
        if overwritten {
            return None;
        }
        inst.fusible.map(|fusible| (at, fusible))
    }

    /// Takes the terms of an addition from the additions and extensions that feed it.
    fn sum(&mut self, index: usize) {
        let (mut narrow, mut wide) = (Vec::new(), Vec::new());
        let mut open = self.insts[index].srcs.clone();
        let mut absorbed = Vec::new();
        while let Some(register) = open.pop() {
            let room = narrow.len() + wide.len() + open.len() + 2 <= MOST_TERMS;
            match self.only_for(register, index) {
                Some((at, Fusible::Widen)) if narrow.is_empty() => {
                    absorbed.push(at);
                    narrow.push(self.insts[at].srcs[0]);
                }
                Some((at, Fusible::Add)) if room => {
                    absorbed.push(at);
                    open.extend_from_slice(&self.insts[at].srcs);
                }
                _ => wide.push(register),
            }
        }
        if absorbed.is_empty() {
            return;
        }
        let Some(handler) = fused::sum(narrow.len(), wide.len()) else {
            return;
        };
        narrow.append(&mut wide);
        self.replace(index, &absorbed, narrow, handler);
    }

    /// Takes in both comparisons of a conjunction, or of a disjunction.
    fn range(&mut self, index: usize, either: bool) {
        let &[first, second] = &self.insts[index].srcs[..] else {
            return;
        };
        let comparison = |register| match self.only_for(register, index) {
            Some((
                at,
                Fusible::AtLeast {
                    signed,
                    swapped,
                    negated,
                },
            )) => {
                let &[a, b] = &self.insts[at].srcs[..] else {
                    return None;
                };
                let operands = if swapped { [b, a] } else { [a, b] };
                Some((at, operands, signed, negated))
            }
            _ => None,
        };
        let (Some(first), Some(second)) = (comparison(first), comparison(second)) else {
            return;
        };
        if first.2 != second.2 {
            return;
        }
        // Either of two holds unless both negations do.
        let turned = [first.3 != either, second.3 != either, either];
        let mut ext = if first.2 { fused::SIGNED } else { 0 };
        for (bit, turned) in fused::NEGATE.into_iter().zip(turned) {
            ext |= if turned { bit } else { 0 };
        }
        let srcs = [first.1, second.1].concat();
        self.replace(index, &[first.0, second.0], srcs, fused::both());
        self.insts[index].ext = ext;
    }

    /// Has the first of two products one behind the other, with the same A, run both. The second stays where it is.
    fn pairs(&mut self) {
        // The product before, unless it runs another one already.
        let mut before: Option<usize> = None;
        for index in 0..self.insts.len() {
            if self.dead[index] {
                continue;
            }
            let inst = &self.insts[index];
            let (Some(Fusible::Product { pair }), None) = (inst.fusible, inst.guard) else {
                before = None;
                continue;
            };
            let partner = before.filter(|&before| {
                let first = &self.insts[before];
                let near = self.cfg.block_of[before] == self.cfg.block_of[index];
                near && first.srcs[..4] == inst.srcs[..4]
                    && !first.dsts.iter().any(|dst| inst.srcs.contains(dst))
            });
            before = match partner {
                Some(first) => {
                    self.insts[first].handler = pair;
                    None
                }
                None => Some(index),
            };
        }
    }

    fn replace(
        &mut self,
        index: usize,
        absorbed: &[usize],
        srcs: Vec<u32>,
        handler: crate::emulator::exec::warp::Handler,
    ) {
        for &at in absorbed {
            self.dead[at] = true;
        }
        let inst = &mut self.insts[index];
        inst.handler = handler;
        inst.imm = absorbed.len() as i64;
        inst.srcs = srcs;
        inst.fusible = None;
    }
}
