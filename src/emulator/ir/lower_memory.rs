//! Loads, stores, atomics, asynchronous copies and matrix instructions.

use super::lower::{Lowering, Refusal, Widening};
use super::names::class_of;
use super::{Constant, Fusible, Inst};
use crate::emulator::check::registers::Carry;
use crate::emulator::exec::access::{ACQUIRE, NARROW_ADDRESS, RELEASE, STRONG, space};
use crate::emulator::exec::{async_copy, load_store, matrix};
use crate::emulator::ptx::{AddressBase, Operand, RegClass, VarSpace};

/// Marks the first entry of a two-entry instruction.
pub(super) const TWO_ENTRIES: u32 = 1 << 31;

/// An address operand: register, offset, and whether the register has 32 bits.
pub(super) struct Address {
    pub(super) register: u32,
    pub(super) offset: i64,
    pub(super) narrow: u32,
}

impl Lowering<'_> {
    pub(super) fn address(&mut self, operand: &Operand) -> Result<Address, Refusal> {
        let Operand::Address(base, offset) = operand else {
            return Err("an address is needed".into());
        };
        match base {
            AddressBase::Reg(register) => match self.class(*register) {
                RegClass::B32 => Ok(Address {
                    register: *register,
                    offset: *offset,
                    narrow: NARROW_ADDRESS,
                }),
                RegClass::B64 => Ok(Address {
                    register: *register,
                    offset: *offset,
                    narrow: 0,
                }),
                class => Err(format!("a {class:?} register cannot be an address")),
            },
            AddressBase::Symbol(name) => {
                let register = self.address_of(name, 0, RegClass::B64)?;
                Ok(Address {
                    register,
                    offset: *offset,
                    narrow: 0,
                })
            }
            AddressBase::Absolute => {
                let register = self.bits(0, RegClass::B64);
                Ok(Address {
                    register,
                    offset: *offset,
                    narrow: 0,
                })
            }
        }
    }

    /// Space, element type and element count of a load or store; everything else is a hint or an ordering, which the
    /// interpreter's memory satisfies anyway.
    fn access<'a>(&self, rest: &[&'a str]) -> Result<(u32, &'a str, usize), Refusal> {
        let [modifiers @ .., ty] = rest else {
            return Err("the type is missing".into());
        };
        let (mut found, mut count) = (space::GENERIC, 1);
        for part in modifiers {
            match *part {
                "global" | "const" => found = space::GLOBAL,
                "shared" | "shared::cta" | "shared::cluster" => found = space::SHARED,
                "local" => found = space::LOCAL,
                "param" | "param::entry" | "param::func" => found = space::PARAM,
                "v2" => count = 2,
                "v4" => count = 4,
                "weak" | "relaxed" | "acquire" | "release" | "volatile" | "mmio" => {}
                "cta" | "cluster" | "gpu" | "sys" => {}
                "nc" | "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt" | "unified" => {}
                hint if hint.starts_with("L1::") || hint.starts_with("L2::") => {}
                unknown => return Err(format!("the modifier `.{unknown}` is not implemented")),
            }
        }
        Ok((found, ty, count))
    }

    /// Parameters of functions and of calls lie on the thread's stack.
    fn on_stack(&self, found: u32, operand: &Operand) -> bool {
        found == space::PARAM
            && (self.around.frame.is_some()
                || matches!(operand, Operand::Address(AddressBase::Symbol(name), _)
                    if self.symbols.get(name).is_some_and(|s| s.space == VarSpace::Local)))
    }

    pub(super) fn lower_load(&mut self, rest: &[&str], o: &[Operand]) -> Result<(), Refusal> {
        let (mut found, ty, mut count) = self.access(rest)?;
        let [d, source] = without_hint(rest, o, 2) else {
            return Err("a load takes a destination and an address".into());
        };
        if self.on_stack(found, source) {
            found = space::LOCAL;
        }
        let mut elements = d.elements();
        if elements.len() != count {
            return Err(format!(
                "{} destinations for {count} elements",
                elements.len()
            ));
        }
        let mut class = class_of(ty).ok_or_else(|| format!("the type `{ty}` is unknown"))?;
        let mut bytes = type_bytes(ty);
        let signed = ty.starts_with('s');
        if let (RegClass::B128, [Operand::Reg(register)]) = (class, &elements[..]) {
            let (low, high) = self.halves(*register);
            elements = vec![Operand::Reg(low), Operand::Reg(high)];
            (class, bytes, count) = (RegClass::B64, 8, 2);
        }
        if found == space::PARAM
            && let Operand::Address(base, offset) = source
        {
            let start = match base {
                AddressBase::Symbol(name) => {
                    let symbol = self
                        .symbols
                        .get(name)
                        .filter(|s| s.space == VarSpace::Param);
                    Some(
                        symbol
                            .ok_or_else(|| format!("`{name}` is not a parameter"))?
                            .address as i64,
                    )
                }
                AddressBase::Reg(register) => self.param_addresses.get(register).copied(),
                AddressBase::Absolute => Some(0),
            };
            if let Some(start) = start {
                return self.parameter(start.saturating_add(*offset), &elements, bytes, signed);
            }
        }
        let handler = load_store::load(found, bytes, signed, count)
            .ok_or("this width of load is not implemented")?;
        let address = self.address(source)?;
        let mut dsts = Vec::new();
        let mut widenings = Vec::new();
        for element in &elements {
            let (dst, widening) = self.wide_destination(element, class, signed)?;
            dsts.push(dst);
            widenings.push((dst, widening));
        }
        let inst = self.push(handler, dsts, vec![address.register]);
        inst.imm = address.offset;
        inst.ext = found | address.narrow | strength(rest);
        inst.carry = Carry::Load;
        inst.early = true;
        for (dst, widening) in widenings {
            match widening {
                // The loaded value already fills the 32-bit lane.
                Widening::To64 { .. } => self.widen(dst, widening),
                Widening::None => {}
            }
        }
        Ok(())
    }

    /// A load from a known place in the parameter block becomes a constant of the launch.
    fn parameter(
        &mut self,
        start: i64,
        elements: &[Operand],
        bytes: u32,
        signed: bool,
    ) -> Result<(), Refusal> {
        for (index, element) in elements.iter().enumerate() {
            let at = start.saturating_add(index as i64 * i64::from(bytes));
            let last = i64::from(self.around.param_bytes) - i64::from(bytes);
            if !(0..=last).contains(&at) {
                return Err(format!(
                    "offset {at} lies outside of the {} bytes of parameters",
                    self.around.param_bytes
                ));
            }
            if at % i64::from(bytes) != 0 {
                return Err(format!("offset {at} is not a multiple of {bytes}"));
            }
            let Operand::Reg(register) = element else {
                if *element == Operand::Sink {
                    continue;
                }
                return Err("the destination is not a register".into());
            };
            let class = self.class(*register);
            if class.bytes() < bytes {
                return Err("the destination is too narrow".into());
            }
            let constant = Constant::Param {
                offset: at as u32,
                bytes: bytes as u8,
                signed,
            };
            let src = self.constant(constant, class);
            self.copy(*register, src);
        }
        Ok(())
    }

    pub(super) fn lower_store(&mut self, rest: &[&str], o: &[Operand]) -> Result<(), Refusal> {
        let (mut found, ty, count) = self.access(rest)?;
        let [target, value] = without_hint(rest, o, 2) else {
            return Err("a store takes an address and a value".into());
        };
        if self.on_stack(found, target) {
            found = space::LOCAL;
        } else if found == space::PARAM {
            return Err("a kernel's parameters cannot be written".into());
        }
        let mut elements = value.elements();
        if elements.len() != count {
            return Err(format!("{} values for {count} elements", elements.len()));
        }
        let mut class = class_of(ty).ok_or_else(|| format!("the type `{ty}` is unknown"))?;
        let mut bytes = type_bytes(ty);
        if let (RegClass::B128, [Operand::Reg(register)]) = (class, &elements[..]) {
            let (low, high) = self.halves(*register);
            elements = vec![Operand::Reg(low), Operand::Reg(high)];
            (class, bytes) = (RegClass::B64, 8);
        }
        let inst = self.push_store(found, target, &elements, class, bytes)?;
        inst.ext |= strength(rest);
        Ok(())
    }

    /// A store of `elements`, registers of `class` of which `bytes` are written each.
    pub(super) fn push_store(
        &mut self,
        found: u32,
        target: &Operand,
        elements: &[Operand],
        class: RegClass,
        bytes: u32,
    ) -> Result<&mut Inst, Refusal> {
        let handler = load_store::store(found, bytes, elements.len())
            .ok_or("this width of store is not implemented")?;
        let address = self.address(target)?;
        let mut srcs = vec![address.register];
        for element in elements {
            srcs.push(self.source(element, class)?);
        }
        let inst = self.push(handler, vec![], srcs);
        inst.imm = address.offset;
        inst.ext = found | address.narrow;
        inst.carry = Carry::Store;
        Ok(inst)
    }

    /// `cp.async...`
    pub(super) fn lower_async(&mut self, rest: &[&str], o: &[Operand]) -> Result<(), Refusal> {
        match (rest, o) {
            (["async", "bulk", more @ ..], _) => return self.lower_bulk(false, more, o),
            (["reduce", "async", "bulk", more @ ..], _) => return self.lower_bulk(true, more, o),
            (["async", "mbarrier", "arrive", more @ ..], _) => {
                return self.lower_copies_arrive(more, o);
            }
            (["async", "commit_group"], []) => {
                self.push(async_copy::commit(), vec![], vec![]);
            }
            (["async", "wait_all"], []) => {
                self.push(async_copy::wait(), vec![], vec![]).imm = -1;
            }
            (["async", "wait_group"], [Operand::Literal(count)]) => {
                let count = count.bits(4) as i64;
                self.push(async_copy::wait(), vec![], vec![]).imm = count;
            }
            (
                [
                    "async",
                    cache @ ("ca" | "cg"),
                    "shared" | "shared::cta",
                    "global",
                    hints @ ..,
                ],
                [d, a, Operand::Literal(bytes), size @ ..],
            ) if size.len() <= 1 + usize::from(hints.contains(&"L2::cache_hint"))
                && hints.iter().all(|hint| hint.starts_with("L2::")) =>
            {
                // The cache policy comes last.
                let hinted = hints.contains(&"L2::cache_hint") && !size.is_empty();
                let size = &size[..size.len() - usize::from(hinted)];
                let bytes = bytes.bits(4) as u32;
                if !(bytes == 16 || (*cache == "ca" && matches!(bytes, 4 | 8))) {
                    return Err(format!("`cp.async.{cache}` cannot copy {bytes} bytes"));
                }
                let target = self.address(d)?;
                let source = self.address(a)?;
                let mut srcs = vec![target.register, source.register];
                if let [Operand::Reg(register)] = size
                    && self.class(*register) == RegClass::Pred
                {
                    // `ignore-src`: zeros instead of the source where the predicate holds.
                    let (none, all) = (
                        self.bits(0, RegClass::B32),
                        self.bits(bytes.into(), RegClass::B32),
                    );
                    let given = self.temporary(RegClass::B32);
                    let select = crate::emulator::exec::op::handler::<
                        crate::emulator::exec::op::Select<u32>,
                    >();
                    self.pure(select, given, vec![none, all, *register]);
                    srcs.push(given);
                } else if let [size] = size {
                    srcs.push(self.source(size, RegClass::B32)?);
                }
                let inst = self.push(async_copy::issue(!size.is_empty(), bytes), vec![], srcs);
                inst.imm = source.offset;
                inst.ext = source.narrow | TWO_ENTRIES;
                inst.second = Some((target.offset, target.narrow));
                inst.raw.push((7, bytes));
            }
            _ => return Err("this form of asynchronous copy is not implemented".into()),
        }
        Ok(())
    }

    /// `ldmatrix` and `mma`
    pub(super) fn lower_matrix(
        &mut self,
        base: &str,
        rest: &[&str],
        o: &[Operand],
    ) -> Result<(), Refusal> {
        let unknown = || format!("`{base}.{}` is not implemented", rest.join("."));
        let rest: Vec<&str> = rest
            .iter()
            .copied()
            .filter(|part| !matches!(*part, "sync" | "aligned"))
            .collect();
        match (base, &rest[..], o) {
            (
                "ldmatrix",
                ["m8n8", count, middle @ .., "shared" | "shared::cta", "b16"],
                [Operand::Vector(d), source],
            ) => {
                let transposed = match middle {
                    [] => false,
                    ["trans"] => true,
                    _ => return Err(unknown()),
                };
                let count = match *count {
                    "x1" => 1,
                    "x2" => 2,
                    "x4" => 4,
                    _ => return Err(unknown()),
                };
                if d.len() != count {
                    return Err(format!("{} destinations for {count} matrices", d.len()));
                }
                let handler = matrix::load_matrix(count, transposed).ok_or_else(unknown)?;
                let address = self.address(source)?;
                let dsts = self.registers_of(d, true)?;
                let inst = self.push(handler, dsts, vec![address.register]);
                inst.imm = address.offset;
                inst.ext = space::SHARED | address.narrow;
                inst.early = true;
            }
            (
                "mma",
                [shape, "row", "col", "f32", a_type, b_type, "f32"],
                [
                    Operand::Vector(d),
                    Operand::Vector(a),
                    Operand::Vector(b),
                    Operand::Vector(c),
                ],
            ) if a_type == b_type && matrix::mma(shape, a_type).is_some() => {
                let (handler, a_count, b_count) = matrix::mma(shape, a_type).ok_or_else(unknown)?;
                if (d.len(), a.len(), b.len(), c.len()) != (4, a_count, b_count, 4) {
                    return Err("a fragment has the wrong number of registers".into());
                }
                let mut srcs = self.registers_of(a, false)?;
                srcs.extend(self.registers_of(b, false)?);
                srcs.extend(self.registers_of(c, false)?);
                let dsts = self.registers_of(d, true)?;
                let inst = self.push(handler, dsts, srcs);
                inst.ext = TWO_ENTRIES;
                inst.second = Some((0, 0));
                inst.early = true;
                inst.fusible =
                    matrix::mma_pair(shape, a_type).map(|pair| Fusible::Product { pair });
            }
            ("mma", ..) => return self.lower_mma(&rest, o),
            _ => return Err(unknown()),
        }
        // Collective instructions under a guard would need every lane's predicate to agree.
        if self.insts.last().is_some_and(|inst| inst.guard.is_some()) {
            return Err(format!("a guarded `{base}` is not implemented"));
        }
        Ok(())
    }

    fn registers_of(&mut self, operands: &[Operand], write: bool) -> Result<Vec<u32>, Refusal> {
        operands
            .iter()
            .map(|operand| {
                if write {
                    self.destination(operand, RegClass::B32)
                } else {
                    self.source(operand, RegClass::B32)
                }
            })
            .collect()
    }
}

/// The operands without the cache policy that comes last if the instruction takes one.
pub(super) fn without_hint<'o>(rest: &[&str], o: &'o [Operand], wanted: usize) -> &'o [Operand] {
    let hinted = rest.contains(&"L2::cache_hint") && o.len() == wanted + 1;
    if hinted { &o[..wanted] } else { o }
}

pub(super) fn type_bytes(ty: &str) -> u32 {
    match ty {
        "b8" | "u8" | "s8" => 1,
        other => class_of(other).map_or(0, RegClass::bytes),
    }
}

/// The ordering that an access's qualifiers ask for, as bits of `Ins::ext`.
pub(super) fn strength(qualifiers: &[&str]) -> u32 {
    qualifiers.iter().fold(0, |bits, qualifier| {
        bits | match *qualifier {
            "volatile" | "relaxed" | "mmio" => STRONG,
            "acquire" => STRONG | ACQUIRE,
            "release" => STRONG | RELEASE,
            "acq_rel" => STRONG | ACQUIRE | RELEASE,
            _ => 0,
        }
    })
}
