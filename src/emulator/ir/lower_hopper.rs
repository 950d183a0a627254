//! Clusters, mbarriers and bulk asynchronous copies.

use super::lower::{Lowering, Refusal};
use super::lower_memory::type_bytes;
use super::names::class_of;
use super::{Constant, Special};
use crate::emulator::check::registers::Background;
use crate::emulator::exec::access::{RELEASE, SHARED_WINDOW, space};
use crate::emulator::exec::atomics::Reduction;
use crate::emulator::exec::bulk::{self, Bulk};
use crate::emulator::exec::mbarrier::{self, Action};
use crate::emulator::exec::{cluster, control, op};
use crate::emulator::ptx::{AddressBase, Operand, RegClass};

impl Lowering<'_> {
    /// `mapa[.shared::cluster].type d, a, rank` and `getctarank[.shared::cluster].type d, a`
    pub(super) fn lower_map(
        &mut self,
        base: &str,
        rest: &[&str],
        o: &[Operand],
    ) -> Result<(), Refusal> {
        let wide = match rest {
            ["shared::cluster", "u64"] | ["u64"] => true,
            ["shared::cluster", "u32"] | ["u32"] => false,
            _ => return Err(format!("`{base}.{}` is not implemented", rest.join("."))),
        };
        let class = if wide { RegClass::B64 } else { RegClass::B32 };
        match (base, o) {
            ("mapa", [d, a, rank]) => {
                let srcs = vec![self.source(a, class)?, self.source(rank, RegClass::B32)?];
                let dst = self.destination(d, class)?;
                self.pure(cluster::map_address(wide), dst, srcs);
            }
            ("getctarank", [d, a]) => {
                let own = self.constant(Constant::Special(Special::ClusterRank), RegClass::B32);
                let srcs = vec![self.source(a, class)?, own];
                let dst = self.destination(d, RegClass::B32)?;
                self.pure(cluster::rank_of_address(wide), dst, srcs);
            }
            _ => return Err("the operands have the wrong form".into()),
        }
        Ok(())
    }

    /// `elect.sync d|p, mask`
    pub(super) fn lower_elect(&mut self, rest: &[&str], o: &[Operand]) -> Result<(), Refusal> {
        let (["sync"], [Operand::Pair(d, p), mask]) = (rest, o) else {
            return Err("elect takes a pair of destinations and a mask".into());
        };
        let srcs = vec![self.source(mask, RegClass::B32)?];
        let dsts = vec![
            self.destination(d, RegClass::B32)?,
            self.destination(p, RegClass::Pred)?,
        ];
        self.push(cluster::elect(), dsts, srcs).early = true;
        Ok(())
    }

    /// `barrier.cluster.arrive` and `barrier.cluster.wait`
    pub(super) fn lower_cluster_barrier(&mut self, rest: &[&str]) -> Result<(), Refusal> {
        let known = |part: &&str| matches!(*part, "aligned" | "acquire" | "release" | "relaxed");
        let handler = match rest {
            ["arrive", more @ ..] if more.iter().all(known) => cluster::arrive(),
            ["wait", more @ ..] if more.iter().all(known) => cluster::wait(),
            _ => return Err("this form of barrier is not implemented".into()),
        };
        let relaxed = rest.contains(&"relaxed");
        self.push(handler, vec![], vec![]).ext = if relaxed { 0 } else { RELEASE };
        Ok(())
    }

    /// `mbarrier.operation...`
    pub(super) fn lower_mbarrier(&mut self, rest: &[&str], o: &[Operand]) -> Result<(), Refusal> {
        let unknown = || format!("`mbarrier.{}` is not implemented", rest.join("."));
        let [operation, modifiers @ ..] = rest else {
            return Err(unknown());
        };
        let (mut parity, mut bytes, mut completes, mut found) =
            (false, false, true, space::GENERIC);
        for part in modifiers {
            match *part {
                "shared" | "shared::cta" | "shared::cluster" => found = space::SHARED,
                "parity" => parity = true,
                "expect_tx" => bytes = true,
                "noComplete" => completes = false,
                "release" | "acquire" | "relaxed" | "cta" | "cluster" | "b64" => {}
                _ => return Err(unknown()),
            }
        }
        if *operation == "pending_count" {
            let [d, state] = o else {
                return Err(unknown());
            };
            let srcs = vec![self.source(state, RegClass::B64)?];
            let dst = self.destination(d, RegClass::B32)?;
            self.pure(op::rare::unary(mbarrier::pending), dst, srcs);
            return Ok(());
        }
        let (action, d, address, operands) = match (*operation, o) {
            ("init", [address, count]) => (Action::Init, None, address, vec![count]),
            ("inval", [address]) => (Action::Invalidate, None, address, vec![]),
            ("expect_tx", [address, count]) => (Action::ExpectBytes, None, address, vec![count]),
            ("complete_tx", [address, count]) => {
                (Action::CompleteBytes, None, address, vec![count])
            }
            ("arrive" | "arrive_drop", [d, address, more @ ..]) if more.len() <= 1 => {
                let action = match (*operation, completes) {
                    ("arrive", true) => Action::Arrive,
                    ("arrive", false) => Action::ArriveNoComplete,
                    (_, true) => Action::ArriveDrop,
                    (_, false) => Action::ArriveDropNoComplete,
                };
                (action, Some(d), address, more.iter().collect())
            }
            // An arrival at another block's barrier returns no state.
            ("arrive" | "arrive_drop", [address @ Operand::Address(..)]) => {
                let action = if *operation == "arrive" {
                    Action::Arrive
                } else {
                    Action::ArriveDrop
                };
                (action, None, address, vec![])
            }
            ("test_wait", [p, address, state]) => {
                let action = if parity {
                    Action::TestParity
                } else {
                    Action::TestState
                };
                (action, Some(p), address, vec![state])
            }
            // The time that a thread may be suspended for is only a hint.
            ("try_wait", [p, address, state, hint @ ..]) if hint.len() <= 1 => {
                let action = if parity {
                    Action::TryParity
                } else {
                    Action::TryState
                };
                (action, Some(p), address, vec![state])
            }
            _ => return Err(unknown()),
        };
        let tests = matches!(
            action,
            Action::TestParity | Action::TestState | Action::TryParity | Action::TryState
        );
        let class = if matches!(action, Action::TestState | Action::TryState) {
            RegClass::B64
        } else {
            RegClass::B32
        };
        let one = self.bits(1, RegClass::B32);
        let zero = self.bits(0, RegClass::B32);
        let operand = match operands.first() {
            Some(operand) => self.source(operand, class)?,
            None => one,
        };
        let (first, second) = if bytes {
            (one, operand)
        } else {
            (operand, zero)
        };
        let dst = match (d, tests) {
            (Some(d), true) => self.destination(d, RegClass::Pred)?,
            (Some(d), false) => self.destination(d, RegClass::B64)?,
            (None, _) => self.temporary(RegClass::B64),
        };
        self.mbarrier_action(action, found, dst, address, first, second)
    }

    fn mbarrier_action(
        &mut self,
        action: Action,
        space: u32,
        dst: u32,
        address: &Operand,
        first: u32,
        second: u32,
    ) -> Result<(), Refusal> {
        let address = self.address(address)?;
        let srcs = vec![address.register, first, second];
        let inst = self.push(mbarrier::handler(), vec![dst], srcs);
        inst.imm = address.offset;
        inst.ext = space | address.narrow;
        inst.early = true;
        inst.raw.push((7, action as u32));
        Ok(())
    }

    /// `cp.async.mbarrier.arrive[.noinc].shared.b64 [address]`
    pub(super) fn lower_copies_arrive(
        &mut self,
        rest: &[&str],
        o: &[Operand],
    ) -> Result<(), Refusal> {
        let (action, more) = match rest {
            ["noinc", more @ ..] => (Action::CopiesArrive, more),
            more => (Action::CopiesArriveCounted, more),
        };
        let found = match more {
            ["b64"] => space::GENERIC,
            ["shared" | "shared::cta", "b64"] => space::SHARED,
            _ => return Err("this form of asynchronous copy is not implemented".into()),
        };
        let [address] = o else {
            return Err("an address is needed".into());
        };
        let zero = self.bits(0, RegClass::B32);
        let dst = self.temporary(RegClass::B64);
        self.mbarrier_action(action, found, dst, address, zero, zero)
    }

    /// `cp.async.bulk...` (the parts behind `bulk`) and, with `reduce`, `cp.reduce.async.bulk...`
    pub(super) fn lower_bulk(
        &mut self,
        reduce: bool,
        rest: &[&str],
        o: &[Operand],
    ) -> Result<(), Refusal> {
        let unknown = || {
            format!(
                "this form of bulk copy (`{}`) is not implemented",
                rest.join(".")
            )
        };
        match (rest, o) {
            (["commit_group"], []) => {
                self.push(bulk::commit(), vec![], vec![]);
                return Ok(());
            }
            (["wait_group"] | ["wait_group", "read"], [Operand::Literal(count)]) => {
                let inst = self.push(bulk::wait(), vec![], vec![]);
                inst.imm = count.bits(4) as i64;
                inst.ext = u32::from(rest.len() == 2);
                return Ok(());
            }
            // Prefetches change nothing here.
            (["prefetch", ..], _) => {
                self.push(control::nothing(), vec![], vec![]);
                return Ok(());
            }
            _ => {}
        }
        let mut copy = Bulk::default();
        let (mut spaces, mut group, mut hinted) = (Vec::new(), false, false);
        let (mut operation, mut ty) = (None, None);
        let mut parts = rest.iter().peekable();
        if parts.next_if(|part| **part == "tensor").is_some() {
            copy.rank = match parts.next() {
                Some(&"1d") => 1,
                Some(&"2d") => 2,
                Some(&"3d") => 3,
                Some(&"4d") => 4,
                Some(&"5d") => 5,
                _ => return Err(unknown()),
            };
        }
        for part in parts {
            match *part {
                "global" | "shared::cta" | "shared::cluster" => spaces.push(*part),
                "bulk_group" => group = true,
                "mbarrier::complete_tx::bytes" => {}
                "multicast::cluster" => copy.multicast = true,
                "L2::cache_hint" => hinted = true,
                "tile" if copy.rank > 0 => {}
                "noftz" => {}
                "add" | "min" | "max" | "inc" | "dec" | "and" | "or" | "xor" if reduce => {
                    operation = Some(*part);
                }
                name if reduce && class_of(name).is_some() => ty = Some(name),
                _ => return Err(unknown()),
            }
        }
        copy.to_global = match spaces[..] {
            ["global", "shared::cta"] => true,
            ["shared::cluster" | "shared::cta", "global"] => false,
            ["shared::cluster", "shared::cta"] if copy.rank == 0 => {
                copy.from_shared = true;
                false
            }
            _ => return Err(unknown()),
        };
        if group != copy.to_global || (copy.multicast && copy.from_shared) {
            return Err(unknown());
        }
        if reduce {
            let number = operation
                .filter(|_| copy.rank > 0 || ty.is_some())
                .and_then(|operation| Reduction::number(operation, ty))
                .ok_or_else(unknown)?;
            copy.reduction = number as u8 + 1;
        }
        let o = if hinted { &o[..o.len().max(1) - 1] } else { o };
        let extra = usize::from(copy.multicast);
        // Shared address, global address or map, barrier, bytes, mask.
        let (shared, global, barrier, bytes, mask) = match (copy.rank > 0, copy.to_global, o) {
            (false, true, [target, source, bytes]) => (source, target, None, Some(bytes), None),
            (false, false, [target, source, bytes, barrier, mask @ ..]) if mask.len() == extra => {
                (target, source, Some(barrier), Some(bytes), mask.first())
            }
            (true, true, [map, source]) => (source, map, None, None, None),
            (true, false, [target, map, barrier, mask @ ..]) if mask.len() == extra => {
                (target, map, Some(barrier), None, mask.first())
            }
            _ => return Err(unknown()),
        };
        let zero = self.bits(0, RegClass::B64);
        let mut srcs = vec![self.flat_address(shared)?];
        srcs.push(self.flat_address(global)?);
        srcs.push(match barrier {
            Some(barrier) => self.flat_address(barrier)?,
            None => zero,
        });
        let none = self.bits(0, RegClass::B32);
        srcs.push(match bytes {
            Some(bytes) => self.source(bytes, RegClass::B32)?,
            None => none,
        });
        srcs.push(match mask {
            Some(mask) => {
                let narrow = self.source(mask, RegClass::B16)?;
                let mask = self.temporary(RegClass::B32);
                self.pure(op::rare::unary(|a: u32| a & 0xffff), mask, vec![narrow]);
                mask
            }
            None => none,
        });
        let coordinates = match global {
            Operand::Tensor(_, _, coordinates) => coordinates.clone(),
            _ => Vec::new(),
        };
        if coordinates.len() != usize::from(copy.rank) {
            return Err(format!(
                "{} coordinates for {} dimensions",
                coordinates.len(),
                copy.rank
            ));
        }
        for coordinate in &coordinates {
            srcs.push(self.source(coordinate, RegClass::B32)?);
        }
        let inst = self.push(bulk::copy(), vec![], srcs);
        inst.imm = copy.pack();
        inst.listed = true;
        inst.background = Background::Copy;
        Ok(())
    }

    /// The 64-bit register that holds an address operand with its offset added.
    pub(super) fn flat_address(&mut self, operand: &Operand) -> Result<u32, Refusal> {
        let operand = match operand {
            Operand::Tensor(base, offset, _) => Operand::Address(base.clone(), *offset),
            other => other.clone(),
        };
        // A tensor map that is a parameter of the kernel is read through the parameter window.
        if let Operand::Address(AddressBase::Symbol(name), offset) = &operand
            && let Some(symbol) = self.symbols.get(name)
            && symbol.space == crate::emulator::ptx::VarSpace::Param
        {
            let window = crate::emulator::exec::access::PARAM_WINDOW;
            let address = window
                .wrapping_add(symbol.address)
                .wrapping_add(*offset as u64);
            return Ok(self.bits(address, RegClass::B64));
        }
        let address = self.address(&operand)?;
        let base = if address.narrow == 0 {
            address.register
        } else {
            let wide = self.temporary(RegClass::B64);
            let extend = op::unary(|a: u32| u64::from(a));
            self.pure(extend, wide, vec![address.register]);
            wide
        };
        if address.offset == 0 {
            return Ok(base);
        }
        let offset = self.bits(address.offset as u64, RegClass::B64);
        let sum = self.temporary(RegClass::B64);
        let add = op::binary(|a: u64, b: u64| a.wrapping_add(b));
        self.pure(add, sum, vec![base, offset]);
        Ok(sum)
    }

    /// `st.async` and `red.async`: a store or reduction in another block's shared memory that tells an mbarrier its bytes.
    pub(super) fn lower_remote(
        &mut self,
        reduce: bool,
        rest: &[&str],
        o: &[Operand],
    ) -> Result<(), Refusal> {
        let [modifiers @ .., ty] = rest else {
            return Err("the type is missing".into());
        };
        let (mut count, mut operation) = (1, "");
        for part in modifiers {
            match *part {
                "weak"
                | "relaxed"
                | "cluster"
                | "shared::cluster"
                | "mbarrier::complete_tx::bytes" => {}
                "v2" if !reduce => count = 2,
                "v4" if !reduce => count = 4,
                "add" | "min" | "max" | "inc" | "dec" | "and" | "or" | "xor" if reduce => {
                    operation = part;
                }
                unknown => return Err(format!("the modifier `.{unknown}` is not implemented")),
            }
        }
        let [target, value, barrier] = o else {
            return Err("an address, a value and a barrier are needed".into());
        };
        let class = class_of(ty).ok_or_else(|| format!("the type `{ty}` is unknown"))?;
        let bytes = type_bytes(ty);
        if reduce {
            let parts = ["shared::cluster", operation, ty];
            self.lower_atomic(false, &parts, &[target.clone(), value.clone()])?;
        } else {
            let elements = value.elements();
            if elements.len() != count {
                return Err("this width of store is not implemented".into());
            }
            self.push_store(space::SHARED, target, &elements, class, bytes)?;
        }
        if let Some(inst) = self.insts.last_mut() {
            inst.background = Background::Write;
        }
        let total = self.bits(u64::from(bytes) * count as u64, RegClass::B32);
        let zero = self.bits(0, RegClass::B32);
        let dst = self.temporary(RegClass::B64);
        let action = Action::CompleteBytes;
        self.mbarrier_action(action, space::SHARED, dst, barrier, total, zero)
    }

    /// `isspacep.shared::cta`: generic addresses of the block's own shared memory.
    pub(super) fn is_own_shared(&mut self, d: &Operand, a: &Operand) -> Result<(), Refusal> {
        let own = self.constant(Constant::Special(Special::ClusterRank), RegClass::B64);
        let srcs = vec![self.source(a, RegClass::B64)?, own];
        let dst = self.destination(d, RegClass::Pred)?;
        let test = op::rare::compare(|a: u64, own: u64| {
            let code = (a & 0xffff_ffff) >> cluster::RANK_SHIFT;
            a >> 60 == SHARED_WINDOW >> 60 && (code == 0 || code == own + 1)
        });
        self.pure(test, dst, srcs);
        Ok(())
    }
}
