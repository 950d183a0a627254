//! Moves, packing and unpacking, and address-space conversions.

use super::lower::{Lowering, Refusal};
use super::names::class_of;
use crate::emulator::check::registers::Carry;
use crate::emulator::exec::access::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW};
use crate::emulator::exec::{op, ops_extra};
use crate::emulator::ptx::{Operand, RegClass};

impl Lowering<'_> {
    pub(super) fn lower_mov(&mut self, ty: &str, o: &[Operand]) -> Result<(), Refusal> {
        let [d, a] = o else {
            return Err("mov takes two operands".into());
        };
        let class = class_of(ty).ok_or_else(|| format!("the type `{ty}` is unknown"))?;
        match (d, a) {
            (_, Operand::Vector(parts)) => self.pack(class, d, parts),
            (Operand::Vector(parts), _) => self.unpack(class, parts, a),
            (_, Operand::Special(name))
                if matches!(
                    &name[..],
                    "%clock"
                        | "%clock64"
                        | "%clock_hi"
                        | "%globaltimer"
                        | "%globaltimer_lo"
                        | "%globaltimer_hi"
                ) =>
            {
                let wide = matches!(&name[..], "%clock64" | "%globaltimer");
                let (handler, class) = if wide {
                    (op::plain_handler::<ops_extra::Clock<u64>>(), RegClass::B64)
                } else {
                    (op::plain_handler::<ops_extra::Clock<u32>>(), RegClass::B32)
                };
                let dst = self.destination(d, class)?;
                self.push(handler, vec![dst], vec![]).imm =
                    if name.ends_with("_hi") { 32 } else { 0 };
                Ok(())
            }
            (Operand::Reg(to), Operand::Reg(from)) if class == RegClass::B128 => {
                let ((to_low, to_high), (low, high)) = (self.halves(*to), self.halves(*from));
                self.copy(to_low, low);
                self.copy(to_high, high);
                Ok(())
            }
            _ => {
                let src = self.source(a, class)?;
                let dst = self.destination(d, class)?;
                self.copy(dst, src);
                Ok(())
            }
        }
    }

    fn pack(&mut self, class: RegClass, d: &Operand, parts: &[Operand]) -> Result<(), Refusal> {
        match (class, parts) {
            (RegClass::B32, [low, high]) => {
                let dst = self.destination(d, RegClass::B32)?;
                self.pack16(dst, low, high)
            }
            (RegClass::B64, [low, high]) => {
                let dst = self.destination(d, RegClass::B64)?;
                let srcs = vec![
                    self.source(low, RegClass::B32)?,
                    self.source(high, RegClass::B32)?,
                ];
                self.pure(
                    op::binary(|a: u32, b: u32| u64::from(b) << 32 | u64::from(a)),
                    dst,
                    srcs,
                )
                .carry = Carry::Join { bytes: 4 };
                Ok(())
            }
            (RegClass::B64, [a, b, c, e]) => {
                let (low, high) = (self.temporary(RegClass::B32), self.temporary(RegClass::B32));
                self.pack16(low, a, b)?;
                self.pack16(high, c, e)?;
                let parts = [Operand::Reg(low), Operand::Reg(high)];
                self.pack(class, d, &parts)
            }
            (RegClass::B16, [low, high]) => {
                let dst = self.destination(d, RegClass::B16)?;
                self.pack8(dst, low, high)
            }
            (RegClass::B32, [a, b, c, e]) => {
                let (low, high) = (self.temporary(RegClass::B16), self.temporary(RegClass::B16));
                self.pack8(low, a, b)?;
                self.pack8(high, c, e)?;
                let parts = [Operand::Reg(low), Operand::Reg(high)];
                self.pack(class, d, &parts)
            }
            (RegClass::B128, [a, b, c, e]) => {
                let (low, high) = (self.temporary(RegClass::B64), self.temporary(RegClass::B64));
                self.pack(RegClass::B64, &Operand::Reg(low), &[a.clone(), b.clone()])?;
                self.pack(RegClass::B64, &Operand::Reg(high), &[c.clone(), e.clone()])?;
                let parts = [Operand::Reg(low), Operand::Reg(high)];
                self.pack(class, d, &parts)
            }
            (RegClass::B128, [low, high]) => {
                let Operand::Reg(register) = d else {
                    return Err("the destination is not a register".into());
                };
                let srcs = (
                    self.source(low, RegClass::B64)?,
                    self.source(high, RegClass::B64)?,
                );
                let (to_low, to_high) = self.halves(*register);
                self.copy(to_low, srcs.0);
                self.copy(to_high, srcs.1);
                Ok(())
            }
            _ => Err("this form of packing is not implemented".into()),
        }
    }

    fn pack16(&mut self, dst: u32, low: &Operand, high: &Operand) -> Result<(), Refusal> {
        let srcs = vec![
            self.source(low, RegClass::B16)?,
            self.source(high, RegClass::B16)?,
        ];
        self.pure(
            op::binary(|a: u32, b: u32| (a & 0xffff) | b << 16),
            dst,
            srcs,
        )
        .carry = Carry::Join { bytes: 2 };
        Ok(())
    }

    fn pack8(&mut self, dst: u32, low: &Operand, high: &Operand) -> Result<(), Refusal> {
        let srcs = vec![
            self.source(low, RegClass::B16)?,
            self.source(high, RegClass::B16)?,
        ];
        let join = op::rare::binary(|a: u32, b: u32| (a & 0xff) | (b & 0xff) << 8);
        self.pure(join, dst, srcs).carry = Carry::Join { bytes: 1 };
        Ok(())
    }

    fn unpack(&mut self, class: RegClass, parts: &[Operand], a: &Operand) -> Result<(), Refusal> {
        // The piece of so many bytes from byte `from` on.
        let piece = |this: &mut Self, part: &Operand, from: u8, bytes: u8, src: u32| {
            if *part == Operand::Sink {
                return Ok(());
            }
            let wide = class == RegClass::B64;
            let selected = match (wide, bytes, from) {
                (true, 4, 0) => op::unary(|a: u64| a as u32),
                (true, 4, _) => op::unary(|a: u64| (a >> 32) as u32),
                (true, _, 0) => op::unary(|a: u64| a as u16),
                (true, _, 2) => op::unary(|a: u64| (a >> 16) as u16),
                (true, _, 4) => op::unary(|a: u64| (a >> 32) as u16),
                (true, ..) => op::unary(|a: u64| (a >> 48) as u16),
                (false, 2, 0) => op::unary(|a: u32| a & 0xffff),
                (false, 2, _) => op::unary(|a: u32| a >> 16),
                (false, _, 0) => op::rare::unary(|a: u32| a & 0xff),
                (false, _, 1) => op::rare::unary(|a: u32| a >> 8 & 0xff),
                (false, _, 2) => op::rare::unary(|a: u32| a >> 16 & 0xff),
                (false, ..) => op::rare::unary(|a: u32| a >> 24 & 0xff),
            };
            let class = if bytes == 4 {
                RegClass::B32
            } else {
                RegClass::B16
            };
            let dst = this.destination(part, class)?;
            this.pure(selected, dst, vec![src]).carry = Carry::Bytes { from, bytes };
            Ok::<_, Refusal>(())
        };
        match (class, parts) {
            (RegClass::B16 | RegClass::B32 | RegClass::B64, [_, _])
            | (RegClass::B32 | RegClass::B64, [_, _, _, _]) => {
                let src = self.source(a, class)?;
                let bytes = class.bytes() as u8 / parts.len() as u8;
                for (index, part) in parts.iter().enumerate() {
                    piece(self, part, index as u8 * bytes, bytes, src)?;
                }
                Ok(())
            }
            (RegClass::B128, [p0, p1, p2, p3]) => {
                let (low, high) = (self.temporary(RegClass::B64), self.temporary(RegClass::B64));
                let halves = [Operand::Reg(low), Operand::Reg(high)];
                self.unpack(class, &halves, a)?;
                self.unpack(RegClass::B64, &[p0.clone(), p1.clone()], &halves[0])?;
                self.unpack(RegClass::B64, &[p2.clone(), p3.clone()], &halves[1])
            }
            (RegClass::B128, [low, high]) => {
                let Operand::Reg(register) = a else {
                    return Err("the source is not a register".into());
                };
                let (from_low, from_high) = self.halves(*register);
                for (part, from) in [(low, from_low), (high, from_high)] {
                    if *part != Operand::Sink {
                        let dst = self.destination(part, RegClass::B64)?;
                        self.copy(dst, from);
                    }
                }
                Ok(())
            }
            _ => Err("this form of unpacking is not implemented".into()),
        }
    }

    /// `cvta[.to].space.u64`
    pub(super) fn lower_cvta(&mut self, rest: &[&str], o: &[Operand]) -> Result<(), Refusal> {
        let (to, space, ty) = match rest {
            ["to", space, ty] => (true, *space, *ty),
            [space, ty] => (false, *space, *ty),
            _ => return Err("an unknown form of cvta".into()),
        };
        let [d, a] = o else {
            return Err("cvta takes two operands".into());
        };
        if ty != "u64" {
            return Err("only 64-bit generic addresses are supported".into());
        }
        let src = self.source(a, RegClass::B64)?;
        let dst = self.destination(d, RegClass::B64)?;
        let window = match space {
            "global" | "const" => {
                self.copy(dst, src);
                return Ok(());
            }
            "shared" | "shared::cta" | "shared::cluster" => SHARED_WINDOW,
            "local" => LOCAL_WINDOW,
            "param" | "param::func" if self.around.frame.is_some() => LOCAL_WINDOW,
            "param" | "param::entry" => PARAM_WINDOW,
            _ => return Err(format!("the space `{space}` is not implemented")),
        };
        let window = self.bits(window, RegClass::B64);
        let handler = if to {
            op::binary(|a: u64, b: u64| a.wrapping_sub(b))
        } else {
            op::binary(|a: u64, b: u64| a.wrapping_add(b))
        };
        self.pure(handler, dst, vec![src, window]);
        Ok(())
    }

    /// `isspacep.space`
    pub(super) fn lower_isspacep(&mut self, rest: &[&str], o: &[Operand]) -> Result<(), Refusal> {
        let [d, a] = o else {
            return Err("isspacep takes two operands".into());
        };
        let window = match rest {
            ["global"] => return self.is_global(d, a),
            // Constant memory is device memory here, as its generic addresses are on hardware.
            ["const"] => 0,
            ["shared" | "shared::cta"] => return self.is_own_shared(d, a),
            ["shared::cluster"] => SHARED_WINDOW,
            ["local"] => LOCAL_WINDOW,
            ["param" | "param::entry"] => PARAM_WINDOW,
            _ => return Err("this space cannot be told apart".into()),
        };
        let srcs = vec![
            self.source(a, RegClass::B64)?,
            self.bits(window, RegClass::B64),
        ];
        let dst = self.destination(d, RegClass::Pred)?;
        self.pure(op::compare(|a: u64, b: u64| a >> 60 == b >> 60), dst, srcs);
        Ok(())
    }

    /// `isspacep.global`: the window of kernel parameters lies in the global one (PTX ISA, "Generic Addressing").
    fn is_global(&mut self, d: &Operand, a: &Operand) -> Result<(), Refusal> {
        let srcs = vec![
            self.source(a, RegClass::B64)?,
            self.bits(PARAM_WINDOW, RegClass::B64),
        ];
        let dst = self.destination(d, RegClass::Pred)?;
        let test = op::rare::compare(|a: u64, param: u64| a >> 60 == 0 || a >> 60 == param >> 60);
        self.pure(test, dst, srcs);
        Ok(())
    }
}
