//! Tensor-core instructions of every type, `stmatrix` and `movmatrix`.

use super::lower::{Lowering, Refusal};
use crate::emulator::check::registers::Background;
use crate::emulator::exec::access::space;
use crate::emulator::exec::tensor_core::{self, Element, Product};
use crate::emulator::exec::warpgroup::{self, WarpgroupOrder};
use crate::emulator::exec::{cluster, shuffle};
use crate::emulator::ptx::{Literal, Operand, RegClass};

/// `m16n8k16`
pub(super) fn shape(text: &str) -> Option<(u32, u32, u32)> {
    let (m, rest) = text.strip_prefix('m')?.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some((m.parse().ok()?, n.parse().ok()?, k.parse().ok()?))
}

/// Shapes of `mma.sync` by element type of A, beyond those that [`matrix`](crate::emulator::exec::matrix) runs.
fn mma_exists(p: &Product) -> bool {
    use Element::{B1, Bf16, E4m3, E5m2, F16, F32, F64, S4, S8, S32, Tf32, U4, U8};
    let shape = (p.m, p.n, p.k);
    let integer = |x: Element, y: Element| {
        matches!(p.a, e if e == x || e == y) && matches!(p.b, e if e == x || e == y) && p.d == S32
    };
    match p.a {
        F16 => p.b == F16 && matches!(p.d, F16 | F32) && matches!(shape, (16, 8, 8 | 16)),
        Bf16 => p.b == Bf16 && p.d == F32 && matches!(shape, (16, 8, 8 | 16)),
        Tf32 => p.b == Tf32 && p.d == F32 && matches!(shape, (16, 8, 4 | 8)),
        E4m3 | E5m2 => {
            matches!(p.b, E4m3 | E5m2)
                && matches!(p.d, F16 | F32)
                && matches!(shape, (16, 8, 16 | 32))
        }
        S8 | U8 => integer(S8, U8) && matches!(shape, (8, 8, 16) | (16, 8, 16 | 32)),
        S4 | U4 => integer(S4, U4) && matches!(shape, (8, 8, 32) | (16, 8, 32 | 64)),
        B1 => integer(B1, B1) && matches!(shape, (8, 8, 128) | (16, 8, 128 | 256)),
        F64 => p.b == F64 && p.d == F64 && matches!(shape, (8, 8, 4) | (16, 8, 4 | 8 | 16)),
        F32 | S32 => false,
    }
}

impl Lowering<'_> {
    /// `mma.sync` in any of its forms but the sparse ones.
    pub(super) fn lower_mma(&mut self, rest: &[&str], o: &[Operand]) -> Result<(), Refusal> {
        let unknown = || format!("`mma.{}` is not implemented", rest.join("."));
        let parts: Vec<&str> = rest
            .iter()
            .copied()
            .filter(|part| !matches!(*part, "sync" | "aligned"))
            .collect();
        let [dims, "row", "col", types @ ..] = &parts[..] else {
            return Err(unknown());
        };
        let (saturate, types) = match types {
            ["satfinite", types @ ..] => (true, types),
            types => (false, types),
        };
        let (d, a, b, c, xor) = match types {
            [d, a, b, c] => (d, a, b, c, false),
            [d, a, b, c, "xor", "popc"] => (d, a, b, c, true),
            [d, a, b, c, "and", "popc"] => (d, a, b, c, false),
            _ => return Err(unknown()),
        };
        let (m, n, k) = shape(dims).ok_or_else(unknown)?;
        let element = |name: &str| Element::named(name).ok_or_else(unknown);
        let p = Product {
            m,
            n,
            k,
            a: element(a)?,
            b: element(b)?,
            d: element(d)?,
            saturate,
            xor,
            a_in_registers: true,
            negate_a: false,
            negate_b: false,
            transpose_a: false,
            transpose_b: false,
        };
        let single_bit = types.len() == 6;
        if c != d
            || !mma_exists(&p)
            || single_bit != (p.a == Element::B1)
            || (saturate && p.d != Element::S32)
        {
            return Err(unknown());
        }
        let [d, a, b, c] = o else {
            return Err("mma takes four fragments".into());
        };
        let (a_count, b_count, d_count) = p.registers();
        let class = if p.d == Element::F64 {
            RegClass::B64
        } else {
            RegClass::B32
        };
        let dsts = self.fragment(d, d_count, class, true)?;
        let mut srcs = self.fragment(a, a_count, class, false)?;
        srcs.extend(self.fragment(b, b_count, class, false)?);
        srcs.extend(self.fragment(c, d_count, class, false)?);
        let inst = self.push(tensor_core::mma(), dsts, srcs);
        inst.imm = p.pack();
        inst.listed = true;
        inst.early = true;
        self.refuse_guard("mma")
    }

    /// Registers of a fragment: a vector, or one register.
    fn fragment(
        &mut self,
        operand: &Operand,
        count: usize,
        class: RegClass,
        write: bool,
    ) -> Result<Vec<u32>, Refusal> {
        let elements = operand.elements();
        if elements.len() != count {
            return Err(format!(
                "a fragment of {} registers where {count} are needed",
                elements.len()
            ));
        }
        let one = |element: &Operand| {
            if write {
                self.destination(element, class)
            } else {
                self.source(element, class)
            }
        };
        elements.iter().map(one).collect()
    }

    /// Collective instructions under a guard would need every lane's predicate to agree.
    pub(super) fn refuse_guard(&self, base: &str) -> Result<(), Refusal> {
        if self.guard.is_some() {
            return Err(format!("a guarded `{base}` is not implemented"));
        }
        Ok(())
    }

    /// `wgmma...`
    pub(super) fn lower_wgmma(&mut self, rest: &[&str], o: &[Operand]) -> Result<(), Refusal> {
        use Element::{B1, Bf16, E4m3, E5m2, F16, F32, S8, S32, Tf32, U8};
        let unknown = || format!("`wgmma.{}` is not implemented", rest.join("."));
        self.refuse_guard("wgmma")?;
        let types = match rest {
            [
                order @ ("fence" | "commit_group" | "wait_group"),
                "sync",
                "aligned",
            ] => {
                let (order, keep) = match (*order, o) {
                    ("fence", []) => (WarpgroupOrder::Fence, 0),
                    ("commit_group", []) => (WarpgroupOrder::Commit, 0),
                    ("wait_group", [Operand::Literal(keep)]) => {
                        (WarpgroupOrder::Wait, keep.bits(4) as i64)
                    }
                    _ => return Err(unknown()),
                };
                self.push(warpgroup::order(order), vec![], vec![]).imm = keep;
                return Ok(());
            }
            ["mma_async", "sync", "aligned", types @ ..] => types,
            _ => return Err(unknown()),
        };
        let (dims, saturate, d, a, b) = match types {
            [dims, "satfinite", d, a, b] => (dims, true, d, a, b),
            [dims, d, a, b] | [dims, d, a, b, "and", "popc"] => (dims, false, d, a, b),
            _ => return Err(unknown()),
        };
        let (m, n, k) = shape(dims).ok_or_else(unknown)?;
        let element = |name: &str| Element::named(name).ok_or_else(unknown);
        let (a_type, b_type, d_type) = (element(a)?, element(b)?, element(d)?);
        let integer = d_type == S32;
        let pair = matches!(
            (a_type, b_type, d_type),
            (F16, F16, F16 | F32)
                | (Bf16, Bf16, F32)
                | (Tf32, Tf32, F32)
                | (E4m3 | E5m2, E4m3 | E5m2, F16 | F32)
                | (S8 | U8, S8 | U8, S32)
                | (B1, B1, S32)
        );
        let n_exists = (8..=256).contains(&n)
            && n % 8 == 0
            && (!integer || n % 16 == 0 || matches!(n, 8 | 24));
        if !pair
            || m != 64
            || k * a_type.bits() != 256
            || !n_exists
            || (saturate && !(integer && a_type != B1))
            || (types.len() == 6) != (a_type == B1)
        {
            return Err(unknown());
        }
        let [d, a, b, scale, flags @ ..] = o else {
            return Err(unknown());
        };
        let flag = |index: usize| match flags.get(index) {
            Some(Operand::Literal(Literal::Int(value))) => Ok(*value as i64),
            _ => Err("a scale or transposition is not a number".to_owned()),
        };
        let a_in_registers = matches!(a, Operand::Vector(_));
        let short = matches!(a_type, F16 | Bf16);
        let wanted = match (integer, short, a_in_registers) {
            (true, ..) => 0,
            (_, true, true) => 3,
            (_, true, false) => 4,
            (_, false, _) => 2,
        };
        if flags.len() != wanted {
            return Err(format!(
                "{} scales and transpositions where {wanted} are needed",
                flags.len()
            ));
        }
        let mut p = Product {
            m,
            n,
            k,
            a: a_type,
            b: b_type,
            d: d_type,
            saturate,
            xor: false,
            a_in_registers,
            negate_a: false,
            negate_b: false,
            transpose_a: false,
            transpose_b: false,
        };
        if wanted >= 2 {
            (p.negate_a, p.negate_b) = (flag(0)? == -1, flag(1)? == -1);
        }
        if wanted == 4 {
            (p.transpose_a, p.transpose_b) = (flag(2)? == 1, flag(3)? == 1);
        } else if wanted == 3 {
            p.transpose_b = flag(2)? == 1;
        }
        let (.., d_count) = p.registers();
        let dsts = self.fragment(d, d_count, RegClass::B32, true)?;
        let mut srcs = self.fragment(d, d_count, RegClass::B32, false)?;
        if a_in_registers {
            srcs.extend(self.fragment(a, 4, RegClass::B32, false)?);
        } else {
            srcs.push(self.source(a, RegClass::B64)?);
        }
        srcs.push(self.source(b, RegClass::B64)?);
        srcs.push(self.source(scale, RegClass::Pred)?);
        let inst = self.push(tensor_core::wgmma(), dsts, srcs);
        inst.imm = p.pack();
        inst.listed = true;
        inst.early = true;
        inst.background = Background::Matrix;
        Ok(())
    }

    /// `stmatrix.sync.aligned.m8n8.xN[.trans].shared.b16 [address], {registers}`
    pub(super) fn lower_stmatrix(&mut self, rest: &[&str], o: &[Operand]) -> Result<(), Refusal> {
        let unknown = || format!("`stmatrix.{}` is not implemented", rest.join("."));
        self.refuse_guard("stmatrix")?;
        let (count, transposed) = match rest {
            [
                "sync",
                "aligned",
                "m8n8",
                count,
                "shared" | "shared::cta",
                "b16",
            ] => (count, false),
            [
                "sync",
                "aligned",
                "m8n8",
                count,
                "trans",
                "shared" | "shared::cta",
                "b16",
            ] => (count, true),
            _ => return Err(unknown()),
        };
        let count = match *count {
            "x1" => 1,
            "x2" => 2,
            "x4" => 4,
            _ => return Err(unknown()),
        };
        let [target, value] = o else {
            return Err("stmatrix takes an address and registers".into());
        };
        let handler = cluster::store_matrix(count, transposed).ok_or_else(unknown)?;
        let address = self.address(target)?;
        let mut srcs = vec![address.register];
        srcs.extend(self.fragment(value, count, RegClass::B32, false)?);
        let inst = self.push(handler, vec![], srcs);
        inst.imm = address.offset;
        inst.ext = space::SHARED | address.narrow;
        Ok(())
    }

    /// `movmatrix.sync.aligned.m8n8.trans.b16 d, a`
    pub(super) fn lower_movmatrix(&mut self, rest: &[&str], o: &[Operand]) -> Result<(), Refusal> {
        self.refuse_guard("movmatrix")?;
        let (["sync", "aligned", "m8n8", "trans", "b16"], [d, a]) = (rest, o) else {
            return Err(format!("`movmatrix.{}` is not implemented", rest.join(".")));
        };
        let srcs = vec![self.source(a, RegClass::B32)?];
        let dst = self.destination(d, RegClass::B32)?;
        self.push(shuffle::move_matrix(), vec![dst], srcs);
        Ok(())
    }
}
