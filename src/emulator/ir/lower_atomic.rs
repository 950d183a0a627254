//! `atom` and `red`.

use super::lower::{Lowering, Refusal};
use super::lower_memory::{strength, type_bytes, without_hint};
use super::names::class_of;
use crate::emulator::exec::access::{ACQUIRE, RELEASE, space};
use crate::emulator::exec::atomics;
use crate::emulator::ptx::{Operand, RegClass};

impl Lowering<'_> {
    /// `atom` (which returns the old value) and `red`. Scopes and orderings are what sequentially consistent host atomics
    /// satisfy anyway.
    pub(super) fn lower_atomic(
        &mut self,
        returns: bool,
        rest: &[&str],
        o: &[Operand],
    ) -> Result<(), Refusal> {
        let [modifiers @ .., ty] = rest else {
            return Err("the type is missing".into());
        };
        let (mut found, mut operation, mut count) = (space::GENERIC, "", 1);
        for part in modifiers {
            match *part {
                "global" => found = space::GLOBAL,
                "shared" | "shared::cta" | "shared::cluster" => found = space::SHARED,
                "relaxed" | "acquire" | "release" | "acq_rel" | "volatile" | "noftz" => {}
                "cta" | "cluster" | "gpu" | "sys" | "L2::cache_hint" => {}
                "v2" => count = 2,
                "v4" => count = 4,
                "v8" => count = 8,
                "add" | "min" | "max" | "inc" | "dec" | "and" | "or" | "xor" | "exch" | "cas" => {
                    operation = part;
                }
                unknown => return Err(format!("the modifier `.{unknown}` is not implemented")),
            }
        }
        found |= strength(rest) & (ACQUIRE | RELEASE);
        let class = class_of(ty).ok_or_else(|| format!("the type `{ty}` is unknown"))?;
        let wanted = usize::from(returns) + if operation == "cas" { 3 } else { 2 };
        let o = without_hint(rest, o, wanted);
        if o.len() != wanted {
            return Err("a wrong number of operands".into());
        }
        let operands = &o[usize::from(returns)..];
        if class == RegClass::B128 {
            return self.atomic_wide(found, operation, returns.then_some(&o[0]), operands);
        }
        if count > 1 {
            if !matches!(*ty, "f32" | "f16" | "bf16" | "f16x2" | "bf16x2") || operation == "cas" {
                return Err(format!("a vector of `{ty}` is not implemented here"));
            }
            return self.atomic_vector(
                found,
                (operation, ty),
                count,
                returns.then_some(&o[0]),
                operands,
            );
        }
        let dst = if returns {
            self.destination(&o[0], class)?
        } else {
            self.temporary(class)
        };
        self.atomic_element(found, (operation, ty), 0, dst, operands)
    }

    /// One atomic operation, `offset` bytes behind the address operand.
    fn atomic_element(
        &mut self,
        space: u32,
        (operation, ty): (&str, &str),
        offset: i64,
        dst: u32,
        operands: &[Operand],
    ) -> Result<(), Refusal> {
        let class = self.class(dst);
        let (handler, function) = atomics::select(operation, ty)
            .ok_or_else(|| format!("the atomic operation `{operation}.{ty}` is not implemented"))?;
        let address = self.address(&operands[0])?;
        let b = self.source(&operands[1], class)?;
        let c = match operands.get(2) {
            Some(c) => self.source(c, class)?,
            None => b,
        };
        let inst = self.push(handler, vec![dst], vec![address.register, b, c]);
        inst.imm = address.offset.wrapping_add(offset);
        inst.ext = space | address.narrow;
        inst.early = true;
        inst.raw.extend([(6, function[0]), (7, function[1])]);
        Ok(())
    }

    /// A vector is as many operations as it has elements: PTX promises no more.
    fn atomic_vector(
        &mut self,
        space: u32,
        what: (&str, &str),
        count: usize,
        d: Option<&Operand>,
        operands: &[Operand],
    ) -> Result<(), Refusal> {
        let class = class_of(what.1).ok_or("the type is unknown")?;
        let Operand::Vector(values) = &operands[1] else {
            return Err("a vector of values is needed".into());
        };
        let targets = match d {
            Some(Operand::Vector(targets)) => targets.clone(),
            Some(_) => return Err("a vector of destinations is needed".into()),
            None => vec![Operand::Sink; count],
        };
        if values.len() != count || targets.len() != count {
            return Err(format!("vectors of {count} elements are needed"));
        }
        let bytes = i64::from(type_bytes(what.1));
        // Destinations may be values of later elements, so all are written at the end.
        let mut olds = Vec::new();
        for (index, value) in values.iter().enumerate() {
            let old = self.temporary(class);
            olds.push(old);
            let element = [operands[0].clone(), value.clone()];
            self.atomic_element(space, what, index as i64 * bytes, old, &element)?;
        }
        for (target, old) in targets.iter().zip(olds) {
            let dst = self.destination(target, class)?;
            self.copy(dst, old);
        }
        Ok(())
    }

    /// `exch` and `cas` of 128 bits.
    fn atomic_wide(
        &mut self,
        space: u32,
        operation: &str,
        d: Option<&Operand>,
        operands: &[Operand],
    ) -> Result<(), Refusal> {
        let handler = atomics::select_wide(operation)
            .ok_or_else(|| format!("the atomic operation `{operation}.b128` is not implemented"))?;
        let address = self.address(&operands[0])?;
        let mut srcs = vec![address.register];
        for operand in &operands[1..] {
            let Operand::Reg(register) = operand else {
                return Err("an operand is not a register".into());
            };
            if self.class(*register) != RegClass::B128 {
                return Err("an operand is not a 128-bit register".into());
            }
            let (low, high) = self.halves(*register);
            srcs.extend([low, high]);
        }
        // `exch` has no third operand; its handler reads one all the same.
        while srcs.len() < 5 {
            srcs.push(srcs[1]);
        }
        let dsts = match d {
            Some(Operand::Reg(register)) if self.class(*register) == RegClass::B128 => {
                let (low, high) = self.halves(*register);
                vec![low, high]
            }
            Some(Operand::Sink) | None => {
                vec![self.temporary(RegClass::B64), self.temporary(RegClass::B64)]
            }
            Some(_) => return Err("the destination is not a 128-bit register".into()),
        };
        let inst = self.push(handler, dsts, srcs);
        inst.imm = address.offset;
        inst.ext = space | address.narrow;
        inst.early = true;
        Ok(())
    }
}
