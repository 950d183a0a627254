//! Copy propagation and removal of unread results.

use super::cfg::Cfg;
use super::{Inst, Register};

/// Replaces registers that only ever hold a copy of another one, and marks instructions that are no longer needed in
/// `dead`.
///
/// A copy `d = s` goes away when both have one definition (a constant has none) and `d`'s definition dominates every use of
/// `d`: then no path leads from a redefinition of `s` to a use of `d` without passing the copy again.
pub(crate) fn propagate(insts: &mut [Inst], registers: &[Register], cfg: &Cfg) -> Vec<bool> {
    let mut definitions = vec![(0u32, usize::MAX); registers.len()];
    let mut uses: Vec<Vec<usize>> = vec![Vec::new(); registers.len()];
    for (index, inst) in insts.iter().enumerate() {
        for &dst in &inst.dsts {
            let entry = &mut definitions[dst as usize];
            *entry = (entry.0 + 1, index);
        }
        for &src in inst
            .srcs
            .iter()
            .chain(inst.guard.iter().map(|(register, _)| register))
        {
            uses[src as usize].push(index);
        }
    }
    let mut alias: Vec<u32> = (0..registers.len() as u32).collect();
    let mut dead = vec![false; insts.len()];
    for index in 0..insts.len() {
        let inst = &insts[index];
        if !inst.copy || inst.guard.is_some() {
            continue;
        }
        let (dst, mut src) = (inst.dsts[0], inst.srcs[0]);
        while alias[src as usize] != src {
            src = alias[src as usize];
        }
        if definitions[dst as usize].0 != 1 {
            continue;
        }
        let constant = registers[src as usize].constant.is_some();
        let block = cfg.block_of[index];
        let dominated = || {
            uses[dst as usize].iter().all(|&at| {
                let other = cfg.block_of[at];
                if other == block {
                    at > index
                } else {
                    cfg.dominates(block, other)
                }
            })
        };
        let defined_before = || {
            let (count, at) = definitions[src as usize];
            count == 1 && {
                let other = cfg.block_of[at];
                insts[at].guard.is_none()
                    && if other == block {
                        at < index
                    } else {
                        cfg.dominates(other, block)
                    }
            }
        };
        if constant || (defined_before() && dominated()) {
            alias[dst as usize] = src;
            dead[index] = true;
        }
    }
    let resolve = |mut register: u32| {
        while alias[register as usize] != register {
            register = alias[register as usize];
        }
        register
    };
    for inst in insts.iter_mut() {
        for src in &mut inst.srcs {
            *src = resolve(*src);
        }
        if let Some((register, _)) = &mut inst.guard {
            *register = resolve(*register);
        }
    }
    remove_unread(insts, registers.len(), &mut dead);
    dead
}

fn remove_unread(insts: &[Inst], registers: usize, dead: &mut [bool]) {
    let mut reads = vec![0u32; registers];
    for (inst, _) in insts.iter().zip(dead.iter()).filter(|(_, dead)| !**dead) {
        for &src in inst
            .srcs
            .iter()
            .chain(inst.guard.iter().map(|(register, _)| register))
        {
            reads[src as usize] += 1;
        }
    }
    // Backwards, so that a chain of unread results mostly goes in one pass.
    let mut changed = true;
    while changed {
        changed = false;
        for (index, inst) in insts.iter().enumerate().rev() {
            if dead[index] || !inst.pure || inst.dsts.iter().any(|&dst| reads[dst as usize] > 0) {
                continue;
            }
            dead[index] = true;
            changed = true;
            for &src in inst
                .srcs
                .iter()
                .chain(inst.guard.iter().map(|(register, _)| register))
            {
                reads[src as usize] -= 1;
            }
        }
    }
}
