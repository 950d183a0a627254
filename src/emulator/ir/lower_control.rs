//! Control flow, barriers, and exchange within a warp.

use super::lower::{Lowering, Refusal};
use super::names::class_of;
use super::{Flow, Leave};
use crate::emulator::exec::{control, op, shuffle, warp_sync};
use crate::emulator::ptx::{Operand, RegClass, Statement};

impl Lowering<'_> {
    pub(super) fn flow(&mut self, s: &Statement, base: &str) -> Result<(), Refusal> {
        match (base, &s.operands[..]) {
            ("bra", [Operand::Target(target)]) => match self.guard.take() {
                None => self.control(control::jump(false), Flow::Jump(*target), vec![]),
                Some((register, negated)) => {
                    let flow = Flow::Branch {
                        target: *target,
                        negated,
                    };
                    self.control(control::branch(false), flow, vec![register]);
                }
            },
            ("brx", [index, Operand::Targets(targets)]) => {
                if let Some((register, negated)) = self.guard.take() {
                    // Lanes whose guard does not hold go on behind it.
                    let flow = Flow::Branch {
                        target: (self.statement - self.around.first_statement) as usize + 1,
                        negated: !negated,
                    };
                    self.control(control::branch(false), flow, vec![register]);
                }
                let index = self.source(index, RegClass::B32)?;
                let equal = op::compare(|a: u32, b: u32| a == b);
                for (number, target) in targets.iter().enumerate() {
                    if number + 1 == targets.len() {
                        self.control(control::jump(false), Flow::Jump(*target), vec![]);
                        break;
                    }
                    let p = self.temporary(RegClass::Pred);
                    let constant = self.bits(number as u64, RegClass::B32);
                    self.pure(equal, p, vec![index, constant]);
                    let flow = Flow::Branch {
                        target: *target,
                        negated: false,
                    };
                    self.control(control::branch(false), flow, vec![p]);
                }
            }
            // Without a debugger, a breakpoint ends the launch.
            ("trap" | "brkpt", []) => {
                let flow = if self.guard.is_some() {
                    Flow::Next
                } else {
                    Flow::Trap
                };
                self.control(control::trap(), flow, vec![]);
            }
            _ => return Err("the operands have the wrong form".into()),
        }
        Ok(())
    }

    /// `ret` and `exit`; in a kernel they are the same.
    pub(super) fn leave(&mut self, base: &str) -> Result<(), Refusal> {
        let leave = if base == "ret" && self.around.frame.is_some() {
            self.epilogue()?;
            Leave::Function
        } else {
            Leave::Thread
        };
        match self.guard.take() {
            None => self.control(control::leave(leave, false), Flow::Exit(leave), vec![]),
            Some((register, negated)) => self.control(
                control::leave(leave, true),
                Flow::ExitIf { negated, leave },
                vec![register],
            ),
        }
        Ok(())
    }

    pub(super) fn barrier(&mut self, rest: &[&str], o: &[Operand]) -> Result<(), Refusal> {
        let rest: Vec<&str> = rest
            .iter()
            .copied()
            .filter(|part| !matches!(*part, "cta" | "aligned"))
            .collect();
        let zero = self.bits(0, RegClass::B32);
        match (&rest[..], o) {
            (["warp", "sync"], [mask]) => {
                let srcs = vec![self.source(mask, RegClass::B32)?];
                self.push(warp_sync::sync_warp(), vec![], srcs);
            }
            (["sync"], [id]) => {
                let srcs = vec![self.source(id, RegClass::B32)?, zero];
                self.push(control::barrier(control::BarrierKind::Sync), vec![], srcs);
            }
            (["sync" | "arrive"], [id, threads]) => {
                let srcs = vec![
                    self.source(id, RegClass::B32)?,
                    self.source(threads, RegClass::B32)?,
                ];
                let arrive = rest[0] == "arrive";
                let kind = if arrive {
                    control::BarrierKind::Arrive
                } else {
                    control::BarrierKind::Sync
                };
                self.push(control::barrier(kind), vec![], srcs);
            }
            (["red", operation, ..], [d, id, middle @ .., p]) if middle.len() <= 1 => {
                let threads = match middle {
                    [threads] => self.source(threads, RegClass::B32)?,
                    _ => zero,
                };
                let srcs = vec![
                    self.source(id, RegClass::B32)?,
                    threads,
                    self.source(p, RegClass::Pred)?,
                ];
                self.push(control::barrier(control::BarrierKind::Reduce), vec![], srcs)
                    .raw
                    .push((3, 0));
                let (ext, class) = match *operation {
                    "popc" => (0, RegClass::B32),
                    "and" => (1, RegClass::Pred),
                    "or" => (2, RegClass::Pred),
                    _ => return Err("an unknown barrier reduction".into()),
                };
                let dst = self.destination(d, class)?;
                self.push(control::barrier_result(), vec![dst], vec![]).ext = ext;
            }
            _ => return Err("this form of barrier is not implemented".into()),
        }
        Ok(())
    }

    pub(super) fn exchange(
        &mut self,
        s: &Statement,
        base: &str,
        rest: &[&str],
    ) -> Result<(), Refusal> {
        let unknown = || format!("the instruction `{}` is not implemented", s.opcode);
        let o = &s.operands[..];
        let pair = |operand: &Operand| match operand {
            Operand::Pair(d, p) => ((**d).clone(), (**p).clone()),
            other => (other.clone(), Operand::Sink),
        };
        let (handler, dsts, srcs) = match (base, rest, o) {
            ("shfl", ["sync", mode, "b32"], [d, a, b, c, mask]) => {
                let (d, p) = pair(d);
                let mut srcs = Vec::new();
                for operand in [a, b, c, mask] {
                    srcs.push(self.source(operand, RegClass::B32)?);
                }
                let dsts = vec![
                    self.destination(&d, RegClass::B32)?,
                    self.destination(&p, RegClass::Pred)?,
                ];
                (shuffle::shuffle(mode), dsts, srcs)
            }
            ("vote", ["sync", mode, _], [d, a, mask]) => {
                let srcs = vec![
                    self.source(a, RegClass::Pred)?,
                    self.source(mask, RegClass::B32)?,
                ];
                let class = if *mode == "ballot" {
                    RegClass::B32
                } else {
                    RegClass::Pred
                };
                (shuffle::vote(mode), vec![self.destination(d, class)?], srcs)
            }
            ("match", [mode, "sync", ty], [d, a, mask]) => {
                let (d, p) = pair(d);
                let class = class_of(ty).ok_or_else(unknown)?;
                let srcs = vec![self.source(a, class)?, self.source(mask, RegClass::B32)?];
                let dsts = vec![
                    self.destination(&d, RegClass::B32)?,
                    self.destination(&p, RegClass::Pred)?,
                ];
                (shuffle::matching(mode, ty), dsts, srcs)
            }
            ("redux", ["sync", operation, ty], [d, a, mask]) => {
                let srcs = vec![
                    self.source(a, RegClass::B32)?,
                    self.source(mask, RegClass::B32)?,
                ];
                (
                    shuffle::reduce(operation, ty),
                    vec![self.destination(d, RegClass::B32)?],
                    srcs,
                )
            }
            ("activemask", ["b32"], [d]) => (
                Some(shuffle::active_mask()),
                vec![self.destination(d, RegClass::B32)?],
                vec![],
            ),
            _ => return Err(unknown()),
        };
        let handler = handler.ok_or_else(unknown)?;
        self.push(handler, dsts, srcs).early = true;
        Ok(())
    }
}
