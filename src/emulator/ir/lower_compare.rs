//! `setp` and `set`.

use super::lower::{Lowering, Refusal};
use crate::emulator::exec::{float, op};
use crate::emulator::ptx::{Operand, RegClass};

impl Lowering<'_> {
    /// `setp.cmp[.bool][.ftz].type p[|q], a, b[, [!]c]`
    pub(super) fn setp(&mut self, rest: &[&str], o: &[Operand]) -> Result<(), Refusal> {
        if let Some(element) = rest.last().and_then(|ty| ty.strip_suffix("x2")) {
            return self.setp_pair(rest, element, o);
        }
        let ([d, a, b], c) = match o {
            [d, a, b] => ([d, a, b], None),
            [d, a, b, c] => ([d, a, b], Some(c)),
            _ => return Err("setp takes three or four operands".into()),
        };
        let t = self.comparison(rest, a, b, c.is_some())?;
        let combine = rest.get(1).copied().filter(|_| c.is_some()).unwrap_or("");
        let c = match c {
            Some(c) => Some(self.source(c, RegClass::Pred)?),
            None => None,
        };
        let (p, q) = match d {
            Operand::Pair(p, q) => ((**p).clone(), Some((**q).clone())),
            other => (other.clone(), None),
        };
        let combined = |this: &mut Self, value: u32| -> Result<u32, Refusal> {
            let Some(c) = c else { return Ok(value) };
            let handler = match combine {
                "and" => op::predicate(|a, b| a & b),
                "or" => op::predicate(|a, b| a | b),
                "xor" => op::predicate(|a, b| a ^ b),
                _ => return Err(format!("the boolean operation `{combine}` is unknown")),
            };
            let result = this.temporary(RegClass::Pred);
            this.pure(handler, result, vec![value, c]);
            Ok(result)
        };
        let first = combined(self, t)?;
        if let Some(q) = q {
            let inverse = self.temporary(RegClass::Pred);
            self.pure(op::predicate(|a, _| !a), inverse, vec![t, t]);
            let second = combined(self, inverse)?;
            let dst = self.destination(&q, RegClass::Pred)?;
            self.copy(dst, second);
        }
        // Writing the result directly saves the copy in the usual case.
        let dst = self.destination(&p, RegClass::Pred)?;
        let simple = first == t || !matches!(d, Operand::Pair(..));
        if simple && self.insts.last().is_some_and(|inst| inst.dsts == [first]) {
            let last = self.insts.len() - 1;
            self.insts[last].dsts[0] = dst;
        } else {
            self.copy(dst, first);
        }
        Ok(())
    }

    /// Compares into a new predicate.
    fn comparison(
        &mut self,
        rest: &[&str],
        a: &Operand,
        b: &Operand,
        boolean: bool,
    ) -> Result<u32, Refusal> {
        let [comparison, middle @ .., ty] = rest else {
            return Err("the comparison is incomplete".into());
        };
        let ftz = middle.contains(&"ftz");
        if middle.len() != usize::from(ftz) + usize::from(boolean) {
            return Err("an unknown modifier".into());
        }
        let selected = float::select_compare(comparison, ty, ftz)
            .ok_or_else(|| format!("the comparison `{comparison}.{ty}` is not implemented"))?;
        let class = selected.src[0].unwrap_or(RegClass::B32);
        let srcs = vec![self.source(a, class)?, self.source(b, class)?];
        let result = self.temporary(RegClass::Pred);
        self.pure(selected, result, srcs);
        Ok(result)
    }

    /// `setp.cmp[.bool].f16x2 p|q, a, b[, [!]c]`: p for the lower halves, q for the upper ones.
    fn setp_pair(&mut self, rest: &[&str], element: &str, o: &[Operand]) -> Result<(), Refusal> {
        let [Operand::Pair(p, q), a, b, more @ ..] = o else {
            return Err("a comparison of pairs takes a pair of predicates and two operands".into());
        };
        let [head @ .., _] = rest else {
            return Err("the comparison is incomplete".into());
        };
        let mut parts = head.to_vec();
        parts.push(element);
        let (a, b) = (self.halves_of(a)?, self.halves_of(b)?);
        for (target, half) in [(p, 0), (q, 1)] {
            let mut operands = vec![
                (**target).clone(),
                Operand::Reg(a[half]),
                Operand::Reg(b[half]),
            ];
            operands.extend_from_slice(more);
            self.setp(&parts, &operands)?;
        }
        Ok(())
    }

    /// Lower and upper half of a 32-bit operand.
    fn halves_of(&mut self, operand: &Operand) -> Result<[u32; 2], Refusal> {
        let src = self.source(operand, RegClass::B32)?;
        let halves = [self.temporary(RegClass::B16), self.temporary(RegClass::B16)];
        self.pure(op::unary(|a: u32| a & 0xffff), halves[0], vec![src]);
        self.pure(op::unary(|a: u32| a >> 16), halves[1], vec![src]);
        Ok(halves)
    }

    /// `set.cmp[.bool][.ftz].dtype.stype d, a, b[, [!]c]`
    pub(super) fn set(&mut self, rest: &[&str], o: &[Operand]) -> Result<(), Refusal> {
        let [head @ .., to, from] = rest else {
            return Err("the comparison is incomplete".into());
        };
        let (true_bits, class) = match *to {
            "f32" => (u64::from(1f32.to_bits()), RegClass::B32),
            "u32" | "s32" => (u64::from(u32::MAX), RegClass::B32),
            "u16" | "s16" => (0xffff, RegClass::B16),
            "f16" => (0x3c00, RegClass::B16),
            "bf16" => (0x3f80, RegClass::B16),
            "f16x2" | "bf16x2" => return self.set_pair(head, to, from, o),
            _ => return Err(format!("a result of type `{to}` is not implemented")),
        };
        let p = self.temporary(RegClass::Pred);
        let mut parts = head.to_vec();
        parts.push(from);
        let mut operands = o.to_vec();
        let d = operands
            .first()
            .cloned()
            .ok_or("set takes three or four operands")?;
        operands[0] = Operand::Reg(p);
        self.setp(&parts, &operands)?;
        let srcs = vec![self.bits(true_bits, class), self.bits(0, class), p];
        let dst = self.destination(&d, class)?;
        self.pure(op::handler::<op::Select<u32>>(), dst, srcs);
        Ok(())
    }

    /// `set` of two halves at once.
    fn set_pair(
        &mut self,
        head: &[&str],
        to: &str,
        from: &str,
        o: &[Operand],
    ) -> Result<(), Refusal> {
        let (Some(element), Some(from)) = (to.strip_suffix("x2"), from.strip_suffix("x2")) else {
            return Err(format!("a result of type `{to}` needs packed operands"));
        };
        let [d, a, b, more @ ..] = o else {
            return Err("set takes three or four operands".into());
        };
        let (a, b) = (self.halves_of(a)?, self.halves_of(b)?);
        let mut parts = head.to_vec();
        parts.extend([element, from]);
        let results = [self.temporary(RegClass::B16), self.temporary(RegClass::B16)];
        for half in 0..2 {
            let mut operands = vec![
                Operand::Reg(results[half]),
                Operand::Reg(a[half]),
                Operand::Reg(b[half]),
            ];
            operands.extend_from_slice(more);
            self.set(&parts, &operands)?;
        }
        let results = results.map(Operand::Reg);
        self.lower_mov("b32", &[d.clone(), Operand::Vector(results.to_vec())])
    }
}
