//! Statements to instructions: the dispatch on opcodes, and arithmetic.

use super::fuse;
use super::names::{class_of, select_arithmetic, special};
use super::param_address;
use super::symbols::{Frame, Symbols, function_address};
use super::{Constant, Flow, Inst, Leave, Register};
use crate::emulator::check::registers::{Background, Carry};
use crate::emulator::exec::call::CallSite;
use crate::emulator::exec::warp::Handler;
use crate::emulator::exec::{control, float, integer, op, ops_extra};
use crate::emulator::ptx::{Entry, Operand, PtxError, RegClass, Statement};
use op::{Action, Selected};
use std::collections::{BTreeMap, HashMap};

/// What went wrong with a statement, without its line.
pub(super) type Refusal = String;

/// What a routine is lowered in.
pub(super) struct Surroundings<'a> {
    pub(super) symbols: &'a Symbols,
    /// Bytes of the kernel's parameter block.
    pub(super) param_bytes: u32,
    /// Where a function's parameters lie; `None` in a kernel.
    pub(super) frame: Option<&'a Frame>,
    /// Bytes of the routine's frame.
    pub(super) frame_bytes: u32,
    /// Functions that the module declares.
    pub(super) declared: &'a [String],
    /// Number of the routine's first statement in the kernel's statement table.
    pub(super) first_statement: u32,
    /// The module's PTX.
    pub(super) text: &'a str,
}

/// Lowers one routine.
pub(super) struct Lowering<'a> {
    pub(super) around: &'a Surroundings<'a>,
    pub(super) symbols: &'a Symbols,
    pub(super) routine: &'a Entry,
    /// See [`param_address`].
    pub(super) param_addresses: HashMap<u32, i64>,
    pub(super) registers: Vec<Register>,
    pub(super) insts: Vec<Inst>,
    pub(super) sites: Vec<CallSite>,
    /// Bytes beyond the frame that calls with arguments in registers need.
    pub(super) extra_bytes: u32,
    constants: BTreeMap<(u64, u64, u32), u32>,
    /// Halves of 128-bit registers.
    halves: HashMap<u32, (u32, u32)>,
    /// The carry flag of `add.cc` and its kin.
    pub(super) carry: Option<u32>,
    pub(super) statement: u32,
    pub(super) guard: Option<(u32, bool)>,
}

/// A routine over virtual registers.
pub(super) struct Lowered {
    pub(super) registers: Vec<Register>,
    pub(super) insts: Vec<Inst>,
    pub(super) sites: Vec<CallSite>,
    pub(super) extra_bytes: u32,
}

/// Lowers the body of `routine`.
///
/// # Errors
/// The first statement that is not implemented or whose operands do not fit it.
pub(super) fn lower(routine: &Entry, around: &Surroundings<'_>) -> Result<Lowered, PtxError> {
    let registers = routine
        .registers
        .iter()
        .map(|&class| Register {
            class,
            constant: None,
        })
        .collect();
    let mut lowering = Lowering {
        around,
        symbols: around.symbols,
        routine,
        param_addresses: param_address::find(routine, around.symbols),
        registers,
        insts: Vec::new(),
        sites: Vec::new(),
        extra_bytes: 0,
        constants: BTreeMap::new(),
        halves: HashMap::new(),
        carry: None,
        statement: around.first_statement,
        guard: None,
    };
    lowering
        .prologue()
        .map_err(|why| PtxError::new(routine.line, why))?;
    let mut starts = Vec::with_capacity(routine.statements.len() + 1);
    for (index, statement) in routine.statements.iter().enumerate() {
        starts.push(lowering.insts.len());
        lowering.statement = around.first_statement + index as u32;
        lowering.guard = statement.guard;
        lowering.statement(statement).map_err(|why| {
            let shown: String = around.text[statement.text.clone()]
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ");
            PtxError::new(statement.line, format!("{why} in `{shown}`"))
        })?;
    }
    starts.push(lowering.insts.len());
    // Falling off the end is a return.
    lowering.guard = None;
    lowering
        .leave("ret")
        .map_err(|why| PtxError::new(routine.line, why))?;
    let Lowering {
        mut insts,
        registers,
        sites,
        extra_bytes,
        ..
    } = lowering;
    let returns: Vec<Option<Leave>> = insts
        .iter()
        .map(|i| match i.flow {
            Flow::Exit(leave) => Some(leave),
            _ => None,
        })
        .collect();
    for inst in &mut insts {
        match &mut inst.flow {
            Flow::Jump(target) => {
                *target = starts[*target];
                // A jump to a return is a return: lanes that are done need not wait at a join for the others.
                if let Some(leave) = returns[*target] {
                    inst.flow = Flow::Exit(leave);
                    inst.handler = control::leave(leave, false);
                }
            }
            Flow::Branch { target, negated } => {
                *target = starts[*target];
                if let Some(leave) = returns[*target] {
                    inst.flow = Flow::ExitIf {
                        negated: *negated,
                        leave,
                    };
                    inst.handler = control::leave(leave, true);
                }
            }
            _ => {}
        }
    }
    Ok(Lowered {
        registers,
        insts,
        sites,
        extra_bytes,
    })
}

impl Lowering<'_> {
    pub(super) fn temporary(&mut self, class: RegClass) -> u32 {
        self.registers.push(Register {
            class,
            constant: None,
        });
        self.registers.len() as u32 - 1
    }

    pub(super) fn constant(&mut self, constant: Constant, class: RegClass) -> u32 {
        let (kind, bits) = constant.key();
        let key = (kind, bits, class.bytes());
        if let Some(&register) = self.constants.get(&key) {
            return register;
        }
        self.registers.push(Register {
            class,
            constant: Some(constant),
        });
        let register = self.registers.len() as u32 - 1;
        self.constants.insert(key, register);
        register
    }

    pub(super) fn bits(&mut self, bits: u64, class: RegClass) -> u32 {
        self.constant(Constant::Bits(bits), class)
    }

    /// A constant register with the address of a variable or function.
    pub(super) fn address_of(
        &mut self,
        name: &str,
        offset: i64,
        class: RegClass,
    ) -> Result<u32, Refusal> {
        if let Some(symbol) = self.symbols.get(name) {
            let address = symbol.address.wrapping_add(offset as u64);
            return Ok(if symbol.in_frame {
                self.constant(Constant::Frame(address as u32), class)
            } else {
                self.bits(address, class)
            });
        }
        match self.symbols.function(name) {
            Some(number) => Ok(self.bits(function_address(number), class)),
            None => Err(format!("`{name}` is not defined")),
        }
    }

    pub(super) fn halves(&mut self, register: u32) -> (u32, u32) {
        if let Some(&halves) = self.halves.get(&register) {
            return halves;
        }
        let halves = (self.temporary(RegClass::B64), self.temporary(RegClass::B64));
        self.halves.insert(register, halves);
        halves
    }

    pub(super) fn class(&self, register: u32) -> RegClass {
        self.registers[register as usize].class
    }

    /// Adds an instruction; the caller may amend it.
    pub(super) fn push(
        &mut self,
        action: impl Into<Action>,
        dsts: Vec<u32>,
        srcs: Vec<u32>,
    ) -> &mut Inst {
        let Action { handler, imm } = action.into();
        self.insts.push(Inst {
            handler,
            guard: self.guard,
            dsts,
            srcs,
            imm,
            ext: 0,
            second: None,
            raw: Vec::new(),
            flow: Flow::Next,
            statement: self.statement,
            early: false,
            pure: false,
            copy: false,
            is_call: false,
            carry: Carry::Nothing,
            background: Background::Nothing,
            listed: false,
            fusible: None,
        });
        let last = self.insts.len() - 1;
        &mut self.insts[last]
    }

    pub(super) fn pure(
        &mut self,
        action: impl Into<Action>,
        dst: u32,
        srcs: Vec<u32>,
    ) -> &mut Inst {
        let inst = self.push(action, vec![dst], srcs);
        inst.pure = true;
        inst
    }

    /// `dst = src`, of one class.
    pub(super) fn copy(&mut self, dst: u32, src: u32) {
        let handler = match self.class(dst) {
            RegClass::Pred => {
                let handler = op::predicate(|a, _| a);
                let inst = self.push(handler, vec![dst], vec![src, src]);
                (inst.copy, inst.pure, inst.carry) = (true, true, Carry::WHOLE);
                return;
            }
            RegClass::B16 | RegClass::B32 => op::unary(|a: u32| a),
            RegClass::B64 | RegClass::B128 => op::unary(|a: u64| a),
        };
        let inst = self.push(handler, vec![dst], vec![src]);
        (inst.copy, inst.pure, inst.carry) = (true, true, Carry::WHOLE);
    }

    pub(super) fn control(&mut self, handler: Handler, flow: Flow, srcs: Vec<u32>) {
        self.push(handler, vec![], srcs).flow = flow;
    }

    /// The register that holds a source operand of the given class.
    pub(super) fn source(&mut self, operand: &Operand, class: RegClass) -> Result<u32, Refusal> {
        match operand {
            Operand::Reg(register) => {
                let actual = self.class(*register);
                match (actual, class) {
                    (a, b) if a == b => Ok(*register),
                    (RegClass::B32, RegClass::B16) => Ok(*register),
                    (RegClass::B64, RegClass::B32 | RegClass::B16) => {
                        let narrow = self.temporary(RegClass::B32);
                        self.pure(op::unary(|a: u64| a as u32), narrow, vec![*register])
                            .carry = Carry::Bytes { from: 0, bytes: 4 };
                        Ok(narrow)
                    }
                    _ => Err(format!(
                        "an operand is a {actual:?} register where {class:?} is needed"
                    )),
                }
            }
            Operand::NotReg(register) if class == RegClass::Pred => {
                let inverse = self.temporary(RegClass::Pred);
                self.pure(
                    op::predicate(|a, _| !a),
                    inverse,
                    vec![*register, *register],
                );
                Ok(inverse)
            }
            Operand::Literal(literal) if class == RegClass::Pred => {
                let truth = literal.bits(8) != 0;
                Ok(self.bits(if truth { u64::MAX } else { 0 }, class))
            }
            Operand::Literal(literal) => Ok(self.bits(literal.bits(class.bytes().max(4)), class)),
            Operand::Symbol(name, offset) => self.address_of(name, *offset, class),
            Operand::Special(name) => {
                let Some(special) = special(name) else {
                    return Err(format!("the special register `{name}` is not supported"));
                };
                Ok(self.constant(Constant::Special(special), class))
            }
            _ => Err("an operand has the wrong form".into()),
        }
    }

    /// The register that a destination operand of the given class names.
    pub(super) fn destination(
        &mut self,
        operand: &Operand,
        class: RegClass,
    ) -> Result<u32, Refusal> {
        match operand {
            Operand::Reg(register) if self.class(*register) == class => Ok(*register),
            Operand::Reg(register) => Err(format!(
                "the destination is a {:?} register where {class:?} is needed",
                self.class(*register)
            )),
            Operand::Sink => Ok(self.temporary(class)),
            _ => Err("the destination is not a register".into()),
        }
    }

    /// A destination that may be wider than the result (`ld`, `cvt`): the register to write, and what to call once the
    /// instruction has been added.
    pub(super) fn wide_destination(
        &mut self,
        operand: &Operand,
        class: RegClass,
        signed: bool,
    ) -> Result<(u32, Widening), Refusal> {
        let Operand::Reg(register) = operand else {
            return Ok((self.destination(operand, class)?, Widening::None));
        };
        match (self.class(*register), class) {
            (a, b) if a == b => Ok((*register, Widening::None)),
            (RegClass::B32, RegClass::B16) => Ok((*register, Widening::None)),
            (RegClass::B64, RegClass::B32 | RegClass::B16) => Ok((
                self.temporary(class),
                Widening::To64 {
                    register: *register,
                    signed,
                },
            )),
            (actual, _) => Err(format!(
                "the destination is a {actual:?} register, too narrow for the result"
            )),
        }
    }

    pub(super) fn widen(&mut self, from: u32, widening: Widening) {
        if let Widening::To64 { register, signed } = widening {
            let handler = if signed {
                op::unary(|a: i32| i64::from(a))
            } else {
                op::unary(|a: u32| u64::from(a))
            };
            // The upper half repeats the sign at most.
            self.pure(handler, register, vec![from]).carry = Carry::Bytes { from: 0, bytes: 4 };
        }
    }

    /// A destination, then as many sources as `selected` has.
    pub(super) fn arithmetic(
        &mut self,
        selected: Selected,
        operands: &[Operand],
    ) -> Result<(), Refusal> {
        let wanted = selected.src.iter().flatten().count();
        if operands.len() != wanted + 1 {
            return Err(format!(
                "{} operands where {} are needed",
                operands.len(),
                wanted + 1
            ));
        }
        let mut srcs = Vec::with_capacity(3);
        for (operand, class) in operands[1..].iter().zip(selected.src.iter().flatten()) {
            srcs.push(self.source(operand, *class)?);
        }
        let dst = self.destination(&operands[0], selected.dst)?;
        self.pure(selected, dst, srcs);
        Ok(())
    }

    fn statement(&mut self, s: &Statement) -> Result<(), Refusal> {
        let parts: Vec<&str> = s.opcode.split('.').collect();
        let (base, rest) = (parts[0], &parts[1..]);
        let ty = rest.last().copied().unwrap_or("");
        let modifiers = &rest[..rest.len().saturating_sub(1)];
        let unknown = || format!("the instruction `{}` is not implemented", s.opcode);
        let o = &s.operands[..];
        let before = self.insts.len();
        match base {
            "bra" | "brx" | "trap" | "brkpt" => self.flow(s, base)?,
            "ret" | "exit" if o.is_empty() => self.leave(base)?,
            "call" => self.call(o)?,
            "alloca" | "stacksave" | "stackrestore" => self.stack(base, rest, o)?,
            "mov" => self.lower_mov(ty, o)?,
            "ld" | "ldu" => self.lower_load(rest, o)?,
            "st" | "red" if rest.first() == Some(&"async") => {
                self.lower_remote(base == "red", &rest[1..], o)?;
            }
            "st" => self.lower_store(rest, o)?,
            "atom" | "red" => self.lower_atomic(base == "atom", rest, o)?,
            "cvta" => self.lower_cvta(rest, o)?,
            "isspacep" => self.lower_isspacep(rest, o)?,
            "cp" => self.lower_async(rest, o)?,
            "ldmatrix" | "mma" => self.lower_matrix(base, rest, o)?,
            "stmatrix" => self.lower_stmatrix(rest, o)?,
            "movmatrix" => self.lower_movmatrix(rest, o)?,
            "wgmma" => self.lower_wgmma(rest, o)?,
            "wmma" => self.lower_wmma(rest, o)?,
            "mbarrier" => self.lower_mbarrier(rest, o)?,
            "tensormap" => self.lower_tensormap(rest, o)?,
            "mapa" | "getctarank" => self.lower_map(base, rest, o)?,
            "elect" => self.lower_elect(rest, o)?,
            // Registers are not shared out between warps here.
            "setmaxnreg" => {
                self.push(control::nothing(), vec![], vec![]);
            }
            "prefetch" | "prefetchu" | "membar" | "fence" | "pmevent" | "griddepcontrol"
            | "discard" | "applypriority" => {
                let handler = match base {
                    "membar" | "fence" => control::fence(),
                    _ => control::nothing(),
                };
                self.push(handler, vec![], vec![]);
            }
            // Cache policies change nothing here.
            "createpolicy" if ty == "b64" && !o.is_empty() => {
                let zero = self.bits(0, RegClass::B64);
                let dst = self.destination(&o[0], RegClass::B64)?;
                self.copy(dst, zero);
            }
            "nanosleep" => {
                self.push(control::sleep(), vec![], vec![]);
            }
            "barrier" if rest.first() == Some(&"cluster") => {
                self.lower_cluster_barrier(&rest[1..])?;
            }
            "bar" | "barrier" => self.barrier(rest, o)?,
            "shfl" | "vote" | "match" | "redux" | "activemask" => self.exchange(s, base, rest)?,
            "setp" => self.setp(rest, o)?,
            "set" => self.set(rest, o)?,
            "selp" => {
                let handler = match ty {
                    "b16" | "u16" | "s16" | "b32" | "u32" | "s32" | "f32" => {
                        op::handler::<op::Select<u32>>()
                    }
                    "b64" | "u64" | "s64" | "f64" => op::handler::<op::Select<u64>>(),
                    _ => return Err(unknown()),
                };
                let class = class_of(ty).ok_or_else(unknown)?;
                let [d, a, b, p] = o else {
                    return Err("selp takes four operands".into());
                };
                let srcs = vec![
                    self.source(a, class)?,
                    self.source(b, class)?,
                    self.source(p, RegClass::Pred)?,
                ];
                let dst = self.destination(d, class)?;
                self.pure(handler, dst, srcs).carry = Carry::Select;
            }
            "slct" => {
                let [d, a, b, c] = o else {
                    return Err("slct takes four operands".into());
                };
                let [.., to, from] = rest else {
                    return Err(unknown());
                };
                let class = class_of(to).ok_or_else(unknown)?;
                let test = float::select_compare("ge", from, modifiers.contains(&"ftz"))
                    .ok_or_else(unknown)?;
                let (Some(c_class), p) = (class_of(from), self.temporary(RegClass::Pred)) else {
                    return Err(unknown());
                };
                let srcs = vec![self.source(c, c_class)?, self.bits(0, c_class)];
                self.pure(test, p, srcs);
                let srcs = vec![self.source(a, class)?, self.source(b, class)?, p];
                let dst = self.destination(d, class)?;
                let narrow = class != RegClass::B64;
                let handler = if narrow {
                    op::handler::<op::Select<u32>>()
                } else {
                    op::handler::<op::Select<u64>>()
                };
                self.pure(handler, dst, srcs);
            }
            "cvt" => self
                .lower_cvt(rest, o)
                .map_err(|why| if why.is_empty() { unknown() } else { why })?,
            "bfi" => {
                let (handler, class) = match ty {
                    "b32" => (op::handler::<ops_extra::Insert<u32>>(), RegClass::B32),
                    "b64" => (op::handler::<ops_extra::Insert<u64>>(), RegClass::B64),
                    _ => return Err(unknown()),
                };
                let [d, a, b, position, length] = o else {
                    return Err("bfi takes five operands".into());
                };
                let srcs = vec![
                    self.source(a, class)?,
                    self.source(b, class)?,
                    self.source(position, RegClass::B32)?,
                    self.source(length, RegClass::B32)?,
                ];
                let dst = self.destination(d, class)?;
                self.pure(handler, dst, srcs);
            }
            "lop3" if modifiers.is_empty() && ty == "b32" => {
                let [d, a, b, c, Operand::Literal(table)] = o else {
                    return Err("lop3 takes three sources and a table".into());
                };
                let mut srcs = Vec::new();
                for operand in [a, b, c] {
                    srcs.push(self.source(operand, RegClass::B32)?);
                }
                let dst = self.destination(d, RegClass::B32)?;
                let inst = self.push(op::handler::<ops_extra::Lop3>(), vec![dst], srcs);
                inst.pure = true;
                inst.imm = (table.bits(4) & 255) as i64;
            }
            "lop3" if matches!(modifiers, ["or"] | ["and"]) && ty == "b32" => {
                let [Operand::Pair(d, p), a, b, c, Operand::Literal(table), q] = o else {
                    return Err("lop3 takes a pair, three sources, a table and a predicate".into());
                };
                let mut srcs = Vec::new();
                for operand in [a, b, c] {
                    srcs.push(self.source(operand, RegClass::B32)?);
                }
                srcs.push(self.source(q, RegClass::Pred)?);
                let dsts = vec![
                    self.destination(d, RegClass::B32)?,
                    self.destination(p, RegClass::Pred)?,
                ];
                let inst = self.push(op::plain_handler::<ops_extra::Lop3Test>(), dsts, srcs);
                inst.pure = true;
                inst.imm = (table.bits(4) & 255) as i64;
                inst.ext = u32::from(modifiers == ["and"]);
            }
            "add" | "addc" | "sub" | "subc" | "mad" | "madc"
                if base.ends_with('c') || modifiers.contains(&"cc") =>
            {
                self.carry_chain(base, modifiers, ty, o)
                    .map_err(|why| if why.is_empty() { unknown() } else { why })?;
            }
            "not" if ty == "pred" => {
                let [d, a] = o else {
                    return Err("not takes two operands".into());
                };
                let a = self.source(a, RegClass::Pred)?;
                let dst = self.destination(d, RegClass::Pred)?;
                self.pure(op::predicate(|a, _| !a), dst, vec![a, a]);
            }
            "testp" => {
                let [property, _] = rest else {
                    return Err(unknown());
                };
                let selected = float::select_test(property, ty).ok_or_else(unknown)?;
                let [d, a] = o else {
                    return Err("testp takes two operands".into());
                };
                self.arithmetic(selected, &[d.clone(), a.clone(), a.clone()])?;
            }
            // `prmt.b32.mode` is the one opcode whose type is not last.
            "prmt" if rest.len() == 2 && rest[0] == "b32" => {
                let selected =
                    integer::select3(&format!("prmt.{ty}"), "b32").ok_or_else(unknown)?;
                self.arithmetic(selected, o)?;
            }
            _ => {
                let selected =
                    select_arithmetic(base, modifiers, ty, o.len()).ok_or_else(unknown)?;
                self.arithmetic(selected, o)?;
            }
        }
        if let [only] = &mut self.insts[before..] {
            only.fusible = only.fusible.or(fuse::fusible(base, rest));
        }
        Ok(())
    }
}

/// What [`Lowering::wide_destination`] leaves to do.
#[derive(Clone, Copy)]
pub(super) enum Widening {
    None,
    To64 { register: u32, signed: bool },
}
