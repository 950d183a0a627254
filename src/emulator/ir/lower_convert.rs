//! `cvt`, and additions with a carry.

use super::lower::{Lowering, Refusal};
use super::names::class_of;
use crate::emulator::exec::{convert, integer, op, ops_extra};
use crate::emulator::ptx::{Operand, RegClass};

impl Lowering<'_> {
    pub(super) fn lower_cvt(&mut self, rest: &[&str], o: &[Operand]) -> Result<(), Refusal> {
        if let ["pack", "sat", to, "s32", chain @ ..] = rest {
            let chained = match chain {
                [] => false,
                ["b32"] => true,
                _ => return Err(String::new()),
            };
            let selected = convert::select_pack(to, chained).ok_or("")?;
            return self.arithmetic(selected, o);
        }
        let [modifiers @ .., to, from] = rest else {
            return Err(String::new());
        };
        let mut m = convert::Modifiers::default();
        for part in modifiers {
            match *part {
                "rn" | "rz" | "rm" | "rp" | "rna" | "rni" | "rzi" | "rmi" | "rpi" => {
                    m.rounding = part;
                }
                "satfinite" => m.finite = true,
                "ftz" => m.ftz = true,
                "sat" => m.sat = true,
                "relu" => m.relu = true,
                _ => return Err(String::new()),
            }
        }
        if to.ends_with("x2") && from.ends_with("x2") {
            let selected = convert::select_pair(to, from, m).ok_or("")?;
            return self.arithmetic(selected, o);
        }
        if let [d, a, b] = o {
            if *from != "f32" {
                return Err(String::new());
            }
            let selected = convert::select_packed(to, m).ok_or("")?;
            return self.arithmetic(selected, &[d.clone(), a.clone(), b.clone()]);
        }
        let [d, a] = o else {
            return Err("cvt takes two or three operands".into());
        };
        let selected = convert::select(to, from, m).ok_or("")?;
        let src = self.source(a, selected.src[0].unwrap_or(RegClass::B32))?;
        let (dst, widening) = self.wide_destination(d, selected.dst, to.starts_with('s'))?;
        self.pure(selected, dst, vec![src]);
        self.widen(dst, widening);
        Ok(())
    }

    /// `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc`, `madc`
    pub(super) fn carry_chain(
        &mut self,
        base: &str,
        modifiers: &[&str],
        ty: &str,
        o: &[Operand],
    ) -> Result<(), Refusal> {
        if let ("mad" | "madc", [d, a, b, c]) = (base, o) {
            // The carry comes from the addition alone.
            let part = modifiers
                .iter()
                .find(|part| matches!(**part, "lo" | "hi"))
                .ok_or("")?;
            let product = integer::select2(&format!("mul.{part}"), ty).ok_or("")?;
            let temporary = self.temporary(product.dst);
            self.arithmetic(product, &[Operand::Reg(temporary), a.clone(), b.clone()])?;
            let sum = if base == "mad" { "add" } else { "addc" };
            return self.carry_chain(
                sum,
                modifiers,
                ty,
                &[d.clone(), Operand::Reg(temporary), c.clone()],
            );
        }
        let sets = modifiers.contains(&"cc");
        let handler = match (base, ty) {
            ("add", "u32" | "s32") => op::plain_handler::<ops_extra::Carry<u32, false, false>>(),
            ("addc", "u32" | "s32") => op::plain_handler::<ops_extra::Carry<u32, false, true>>(),
            ("sub", "u32" | "s32") => op::plain_handler::<ops_extra::Carry<u32, true, false>>(),
            ("subc", "u32" | "s32") => op::plain_handler::<ops_extra::Carry<u32, true, true>>(),
            ("add", "u64" | "s64") => op::plain_handler::<ops_extra::Carry<u64, false, false>>(),
            ("addc", "u64" | "s64") => op::plain_handler::<ops_extra::Carry<u64, false, true>>(),
            ("sub", "u64" | "s64") => op::plain_handler::<ops_extra::Carry<u64, true, false>>(),
            ("subc", "u64" | "s64") => op::plain_handler::<ops_extra::Carry<u64, true, true>>(),
            _ => return Err(String::new()),
        };
        let class = class_of(ty).ok_or("")?;
        let [d, a, b] = o else {
            return Err(String::new());
        };
        let carry = match self.carry {
            Some(carry) => carry,
            None => {
                let carry = self.temporary(RegClass::Pred);
                self.carry = Some(carry);
                carry
            }
        };
        let carry_out = if sets {
            carry
        } else {
            self.temporary(RegClass::Pred)
        };
        // Without `c` at the end of its name an instruction only sets the carry.
        let carry_in = if base.ends_with('c') {
            carry
        } else {
            self.bits(0, RegClass::Pred)
        };
        let srcs = vec![self.source(a, class)?, self.source(b, class)?, carry_in];
        let dst = self.destination(d, class)?;
        self.push(handler, vec![dst, carry_out], srcs);
        Ok(())
    }
}
