//! `tensormap.replace` and `tensormap.cp_fenceproxy`: tensor maps that kernels change. A field is a store into the
//! emulator's encoding of the map, so that what is true of stores (races, what is written) is true of it.

use super::lower::{Lowering, Refusal};
use super::{Constant, Special};
use crate::emulator::exec::access::space;
use crate::emulator::exec::{TensorMap, control, op};
use crate::emulator::ptx::{AddressBase, Literal, Operand, RegClass};

/// Values of `.elemtype`, by the numbers of `CUtensorMapDataType`: u8 to f16 and f32, f32 flushed, f64, bf16, tf32, tf32
/// flushed.
const ELEMENT_TYPES: [u64; 13] = [0, 1, 2, 3, 4, 5, 6, 7, 10, 8, 9, 11, 12];

impl Lowering<'_> {
    pub(super) fn lower_tensormap(&mut self, rest: &[&str], o: &[Operand]) -> Result<(), Refusal> {
        match (rest, o) {
            (["replace", "tile", field, more @ ..], [map, value @ ..]) => {
                self.lower_replace(field, more, map, value)
            }
            (
                [
                    "cp_fenceproxy",
                    "global",
                    "shared::cta",
                    "tensormap::generic",
                    "release",
                    _,
                    "sync",
                    "aligned",
                ],
                [target, source, Operand::Literal(Literal::Int(128))],
            ) => self.lower_copied_map(target, source),
            _ => Err(format!("`tensormap.{}` is not implemented", rest.join("."))),
        }
    }

    /// `tensormap.replace.tile.field[.space].b1024.type [map], [dimension,] value`
    fn lower_replace(
        &mut self,
        field: &str,
        more: &[&str],
        map: &Operand,
        values: &[Operand],
    ) -> Result<(), Refusal> {
        let unknown = || format!("`tensormap.replace.tile.{field}` has no such form");
        let (found, ty) = match more {
            ["b1024", ty] => (space::GENERIC, *ty),
            ["global", "b1024", ty] => (space::GLOBAL, *ty),
            ["shared::cta", "b1024", ty] => (space::SHARED, *ty),
            _ => return Err(unknown()),
        };
        let wide = matches!(field, "global_address" | "global_stride");
        if (ty == "b64") != wide {
            return Err(unknown());
        }
        let (axis, value) = match values {
            [Operand::Literal(Literal::Int(axis)), value] => (*axis, value),
            [value] => (0, value),
            _ => return Err(unknown()),
        };
        if field == "interleave_layout" {
            return match value {
                Operand::Literal(Literal::Int(0)) => Ok(()),
                _ => Err("interleaved tensor maps are not implemented".into()),
            };
        }
        let number = |end: u64| match value {
            Operand::Literal(Literal::Int(value)) if *value < end => Ok(*value),
            _ => Err(format!("this value of `.{field}` is not implemented")),
        };
        let value = match field {
            "elemtype" => {
                let number = number(ELEMENT_TYPES.len() as u64)?;
                self.bits(ELEMENT_TYPES[number as usize], RegClass::B32)
            }
            "swizzle_mode" => {
                let number = number(4)?;
                self.bits(number, RegClass::B32)
            }
            "fill_mode" => {
                let number = number(2)?;
                self.bits(number, RegClass::B32)
            }
            _ if wide => self.source(value, RegClass::B64)?,
            _ => self.source(value, RegClass::B32)?,
        };
        let (offset, bytes) = TensorMap::field(field, axis).ok_or_else(unknown)?;
        // Values that the field cannot hold stay too large for the map to be used.
        let value = match field {
            "rank" => {
                let rank = self.temporary(RegClass::B32);
                let from_last = op::rare::unary(|last: u32| last.saturating_add(1).min(0xff));
                self.pure(from_last, rank, vec![value]);
                rank
            }
            "box_dim" | "element_stride" => {
                let narrow = self.temporary(RegClass::B32);
                let end = self.bits((1 << (8 * bytes)) - 1, RegClass::B32);
                self.pure(
                    op::rare::binary(|a: u32, end: u32| a.min(end)),
                    narrow,
                    vec![value, end],
                );
                narrow
            }
            "global_dim" => {
                let wide = self.temporary(RegClass::B64);
                self.pure(op::unary(|a: u32| u64::from(a)), wide, vec![value]);
                wide
            }
            _ => value,
        };
        let class = if bytes == 8 {
            RegClass::B64
        } else {
            RegClass::B32
        };
        let base = self.flat_address(map)?;
        let place = Operand::Address(AddressBase::Reg(base), offset);
        self.push_store(found, &place, &[Operand::Reg(value)], class, bytes)?;
        Ok(())
    }

    /// The warp copies the 128 bytes of a map from shared to global memory, a lane 4 of them.
    fn lower_copied_map(&mut self, target: &Operand, source: &Operand) -> Result<(), Refusal> {
        let lane = self.constant(Constant::Special(Special::LaneId), RegClass::B64);
        let mut place = |of: &Operand| -> Result<Operand, Refusal> {
            let base = self.flat_address(of)?;
            let sum = self.temporary(RegClass::B64);
            let add =
                op::rare::binary(|base: u64, lane: u64| base.wrapping_add(lane.wrapping_mul(4)));
            self.pure(add, sum, vec![base, lane]);
            Ok(Operand::Address(AddressBase::Reg(sum), 0))
        };
        let (target, source) = (place(target)?, place(source)?);
        let word = Operand::Reg(self.temporary(RegClass::B32));
        self.lower_load(&["shared::cta", "b32"], &[word.clone(), source])?;
        self.lower_store(&["global", "b32"], &[target, word])?;
        self.push(control::fence(), vec![], vec![]);
        Ok(())
    }
}
