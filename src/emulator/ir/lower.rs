//! Statements to instructions: the dispatch on opcodes, arithmetic, comparisons and control flow.

use super::param_address;
use super::symbols::Symbols;
use super::{Constant, Flow, Inst, Register, Special};
use crate::emulator::exec::float16::Directed;
use crate::emulator::exec::warp::Handler;
use crate::emulator::exec::{control, convert, float, integer, op, ops_extra, shuffle};
use crate::emulator::ptx::{Entry, Operand, PtxError, RegClass, Statement};
use op::Selected;
use std::collections::{BTreeMap, HashMap};

/// What went wrong with a statement, without its line.
pub(super) type Refusal = String;

/// Lowers one kernel.
pub(super) struct Lowering<'a> {
    pub(super) symbols: &'a Symbols,
    pub(super) param_bytes: u32,
    /// See [`param_address`].
    pub(super) param_addresses: HashMap<u32, i64>,
    pub(super) registers: Vec<Register>,
    pub(super) insts: Vec<Inst>,
    constants: BTreeMap<(u64, u64, u32), u32>,
    /// Halves of 128-bit registers.
    halves: HashMap<u32, (u32, u32)>,
    /// The carry flag of `add.cc` and its kin.
    carry: Option<u32>,
    statement: u32,
    guard: Option<(u32, bool)>,
}

/// A kernel over virtual registers.
pub(super) struct Lowered {
    pub(super) registers: Vec<Register>,
    pub(super) insts: Vec<Inst>,
}

/// Lowers the body of `entry`.
pub(super) fn lower(
    entry: &Entry,
    symbols: &Symbols,
    param_bytes: u32,
    text: &str,
) -> Result<Lowered, PtxError> {
    let registers = entry
        .registers
        .iter()
        .map(|&class| Register {
            class,
            constant: None,
        })
        .collect();
    let mut lowering = Lowering {
        symbols,
        param_bytes,
        param_addresses: param_address::find(entry, symbols),
        registers,
        insts: Vec::new(),
        constants: BTreeMap::new(),
        halves: HashMap::new(),
        carry: None,
        statement: 0,
        guard: None,
    };
    let mut starts = Vec::with_capacity(entry.statements.len() + 1);
    for (index, statement) in entry.statements.iter().enumerate() {
        starts.push(lowering.insts.len());
        lowering.statement = index as u32;
        lowering.guard = statement.guard;
        lowering.statement(statement).map_err(|why| {
            let shown: String = text[statement.text.clone()]
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ");
            PtxError::new(statement.line, format!("{why} in `{shown}`"))
        })?;
    }
    starts.push(lowering.insts.len());
    // Falling off the end is a return.
    lowering.statement = entry.statements.len().saturating_sub(1) as u32;
    lowering.guard = None;
    lowering.control(control::exit(false), Flow::Exit, vec![]);
    let Lowering {
        mut insts,
        registers,
        ..
    } = lowering;
    let returns: Vec<bool> = insts.iter().map(|i| i.flow == Flow::Exit).collect();
    for inst in &mut insts {
        match &mut inst.flow {
            Flow::Jump(target) => {
                *target = starts[*target];
                // A jump to a return is a return: lanes that are done need not wait at a join for the others.
                if returns[*target] {
                    inst.flow = Flow::Exit;
                    inst.handler = control::exit(false);
                }
            }
            Flow::Branch { target, negated } => {
                *target = starts[*target];
                if returns[*target] {
                    inst.flow = Flow::ExitIf { negated: *negated };
                    inst.handler = control::exit(true);
                }
            }
            _ => {}
        }
    }
    Ok(Lowered { registers, insts })
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
    pub(super) fn push(&mut self, handler: Handler, dsts: Vec<u32>, srcs: Vec<u32>) -> &mut Inst {
        self.insts.push(Inst {
            handler,
            guard: self.guard,
            dsts,
            srcs,
            imm: 0,
            ext: 0,
            second: None,
            raw: Vec::new(),
            flow: Flow::Next,
            statement: self.statement,
            early: false,
            pure: false,
            copy: false,
        });
        let last = self.insts.len() - 1;
        &mut self.insts[last]
    }

    pub(super) fn pure(&mut self, handler: Handler, dst: u32, srcs: Vec<u32>) -> &mut Inst {
        let inst = self.push(handler, vec![dst], srcs);
        inst.pure = true;
        inst
    }

    /// `dst = src`, of one class.
    pub(super) fn copy(&mut self, dst: u32, src: u32) {
        let handler = match self.class(dst) {
            RegClass::Pred => {
                let handler = op::predicate(|a, _| a).handler;
                let inst = self.push(handler, vec![dst], vec![src, src]);
                (inst.copy, inst.pure) = (true, true);
                return;
            }
            RegClass::B16 | RegClass::B32 => op::unary(|a: u32| a).handler,
            RegClass::B64 | RegClass::B128 => op::unary(|a: u64| a).handler,
        };
        let inst = self.push(handler, vec![dst], vec![src]);
        (inst.copy, inst.pure) = (true, true);
    }

    fn control(&mut self, handler: Handler, flow: Flow, srcs: Vec<u32>) {
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
                        self.pure(
                            op::unary(|a: u64| a as u32).handler,
                            narrow,
                            vec![*register],
                        );
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
                    op::predicate(|a, _| !a).handler,
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
            Operand::Symbol(name, offset) => {
                let Some(symbol) = self.symbols.get(name) else {
                    return Err(format!("`{name}` is not defined"));
                };
                Ok(self.bits(symbol.address.wrapping_add(*offset as u64), class))
            }
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
                op::unary(|a: i32| i64::from(a)).handler
            } else {
                op::unary(|a: u32| u64::from(a)).handler
            };
            self.pure(handler, register, vec![from]);
        }
    }

    /// A destination, then as many sources as `selected` has.
    fn arithmetic(&mut self, selected: Selected, operands: &[Operand]) -> Result<(), Refusal> {
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
        self.pure(selected.handler, dst, srcs).imm = selected.imm;
        Ok(())
    }

    fn statement(&mut self, s: &Statement) -> Result<(), Refusal> {
        let parts: Vec<&str> = s.opcode.split('.').collect();
        let (base, rest) = (parts[0], &parts[1..]);
        let ty = rest.last().copied().unwrap_or("");
        let modifiers = &rest[..rest.len().saturating_sub(1)];
        let unknown = || format!("the instruction `{}` is not implemented", s.opcode);
        let o = &s.operands[..];
        match base {
            "bra" | "brx" | "ret" | "exit" | "trap" | "call" => self.flow(s, base)?,
            "mov" => self.lower_mov(ty, o)?,
            "ld" | "ldu" => self.lower_load(rest, o)?,
            "st" => self.lower_store(rest, o)?,
            "atom" | "red" => self.lower_atomic(base == "atom", rest, o)?,
            "cvta" => self.lower_cvta(rest, o)?,
            "isspacep" => self.lower_isspacep(rest, o)?,
            "cp" => self.lower_async(rest, o)?,
            "ldmatrix" | "mma" => self.lower_matrix(base, rest, o)?,
            "prefetch" | "prefetchu" | "membar" | "fence" | "pmevent" | "griddepcontrol"
            | "discard" | "applypriority" => {
                if rest
                    .iter()
                    .any(|part| matches!(*part, "tensormap" | "mbarrier_init"))
                {
                    return Err(unknown());
                }
                self.push(control::nothing(), vec![], vec![]);
            }
            "nanosleep" => {
                self.push(control::sleep(), vec![], vec![]);
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
                self.pure(handler, dst, srcs);
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
                self.pure(test.handler, p, srcs);
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
                self.pure(op::predicate(|a, _| !a).handler, dst, vec![a, a]);
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
        Ok(())
    }

    fn flow(&mut self, s: &Statement, base: &str) -> Result<(), Refusal> {
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
                if self.guard.is_some() {
                    return Err("a guarded `brx.idx` is not implemented".into());
                }
                let index = self.source(index, RegClass::B32)?;
                let equal = op::compare(|a: u32, b: u32| a == b).handler;
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
            ("ret" | "exit", []) => match self.guard.take() {
                None => self.control(control::exit(false), Flow::Exit, vec![]),
                Some((register, negated)) => self.control(
                    control::exit(true),
                    Flow::ExitIf { negated },
                    vec![register],
                ),
            },
            ("trap", []) => {
                let flow = if self.guard.is_some() {
                    Flow::Next
                } else {
                    Flow::Trap
                };
                self.control(control::trap(), flow, vec![]);
            }
            ("call", _) => {
                return Err(
                    "calls of device functions are not implemented (inline the function)".into(),
                );
            }
            _ => return Err("the operands have the wrong form".into()),
        }
        Ok(())
    }

    fn barrier(&mut self, rest: &[&str], o: &[Operand]) -> Result<(), Refusal> {
        let rest: Vec<&str> = rest
            .iter()
            .copied()
            .filter(|part| !matches!(*part, "cta" | "aligned"))
            .collect();
        let zero = self.bits(0, RegClass::B32);
        match (&rest[..], o) {
            (["warp", "sync"], [mask]) => {
                let srcs = vec![self.source(mask, RegClass::B32)?];
                self.push(shuffle::sync_warp(), vec![], srcs);
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

    fn exchange(&mut self, s: &Statement, base: &str, rest: &[&str]) -> Result<(), Refusal> {
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

    /// `setp.cmp[.bool][.ftz].type p[|q], a, b[, [!]c]`
    fn setp(&mut self, rest: &[&str], o: &[Operand]) -> Result<(), Refusal> {
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
                "and" => op::predicate(|a, b| a & b).handler,
                "or" => op::predicate(|a, b| a | b).handler,
                "xor" => op::predicate(|a, b| a ^ b).handler,
                _ => return Err(format!("the boolean operation `{combine}` is unknown")),
            };
            let result = this.temporary(RegClass::Pred);
            this.pure(handler, result, vec![value, c]);
            Ok(result)
        };
        let first = combined(self, t)?;
        if let Some(q) = q {
            let inverse = self.temporary(RegClass::Pred);
            self.pure(op::predicate(|a, _| !a).handler, inverse, vec![t, t]);
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
        self.pure(selected.handler, result, srcs);
        Ok(result)
    }

    /// `set.cmp[.bool][.ftz].dtype.stype d, a, b[, [!]c]`
    fn set(&mut self, rest: &[&str], o: &[Operand]) -> Result<(), Refusal> {
        let [head @ .., to, from] = rest else {
            return Err("the comparison is incomplete".into());
        };
        let true_bits = match *to {
            "f32" => u64::from(1f32.to_bits()),
            "u32" | "s32" => u64::from(u32::MAX),
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
        let srcs = vec![
            self.bits(true_bits, RegClass::B32),
            self.bits(0, RegClass::B32),
            p,
        ];
        let dst = self.destination(&d, RegClass::B32)?;
        self.pure(op::handler::<op::Select<u32>>(), dst, srcs);
        Ok(())
    }

    fn lower_cvt(&mut self, rest: &[&str], o: &[Operand]) -> Result<(), Refusal> {
        let [modifiers @ .., to, from] = rest else {
            return Err(String::new());
        };
        let mut m = convert::Modifiers::default();
        for part in modifiers {
            match *part {
                "rn" | "rz" | "rm" | "rp" | "rni" | "rzi" | "rmi" | "rpi" => m.rounding = part,
                "ftz" => m.ftz = true,
                "sat" => m.sat = true,
                "relu" => m.relu = true,
                _ => return Err(String::new()),
            }
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
        self.pure(selected.handler, dst, vec![src]).imm = selected.imm;
        self.widen(dst, widening);
        Ok(())
    }

    /// `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc`, `madc`
    fn carry_chain(
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
        let srcs = vec![self.source(a, class)?, self.source(b, class)?, carry];
        let dst = self.destination(d, class)?;
        self.push(handler, vec![dst, carry_out], srcs);
        Ok(())
    }
}

/// What [`Lowering::wide_destination`] leaves to do.
#[derive(Clone, Copy)]
pub(super) enum Widening {
    None,
    To64 { register: u32, signed: bool },
}

/// The register class of values of a type.
pub(super) fn class_of(ty: &str) -> Option<RegClass> {
    Some(match ty {
        "pred" => RegClass::Pred,
        "b8" | "u8" | "s8" | "b16" | "u16" | "s16" | "f16" | "bf16" => RegClass::B16,
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" => RegClass::B32,
        "b64" | "u64" | "s64" | "f64" => RegClass::B64,
        "b128" => RegClass::B128,
        _ => return None,
    })
}

/// Arithmetic by name, type and operand count.
fn select_arithmetic(
    base: &str,
    modifiers: &[&str],
    ty: &str,
    operands: usize,
) -> Option<Selected> {
    if matches!(ty, "f32" | "f64" | "f16" | "bf16" | "f16x2" | "bf16x2") {
        let mut m = float::Modifiers::default();
        for part in modifiers {
            match *part {
                "rn" => {}
                "ftz" => m.ftz = true,
                "sat" => m.sat = true,
                "NaN" => m.nan = true,
                "relu" => m.relu = true,
                "approx" | "full" => m.approx = true,
                "rz" => m.directed = Some(Directed::Zero),
                "rm" => m.directed = Some(Directed::Down),
                "rp" => m.directed = Some(Directed::Up),
                _ => return None,
            }
        }
        let takes = |allowed: bool, asked: bool| allowed || !asked;
        let half = ty != "f32" && ty != "f64";
        let reciprocal = m.approx && matches!(base, "rcp" | "rsqrt");
        let known = takes(ty == "f32" || half || reciprocal, m.ftz)
            && takes(
                matches!(base, "add" | "sub" | "mul" | "fma" | "mad") && ty == "f32",
                m.sat,
            )
            && takes(matches!(base, "min" | "max"), m.nan)
            && takes(base == "fma" && half, m.relu)
            && takes(operands > 2 && ty == "f32", m.directed.is_some())
            && takes(
                matches!(
                    base,
                    "div" | "rcp" | "sqrt" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh"
                ),
                m.approx,
            );
        // Subnormals of the 16-bit formats are kept: `.ftz` is refused where it would matter.
        if !known || (half && m.ftz && base != "ex2") {
            return None;
        }
        return match operands {
            2 => float::select1(base, ty, m),
            3 => float::select2(base, ty, m),
            4 => float::select3(base, ty, m),
            _ => None,
        };
    }
    let name = std::iter::once(base)
        .chain(modifiers.iter().copied())
        .collect::<Vec<_>>()
        .join(".");
    match operands {
        2 => integer::select1(&name, ty),
        3 => integer::select2(&name, ty),
        4 => integer::select3(&name, ty),
        _ => None,
    }
}

fn special(name: &str) -> Option<Special> {
    let axis = |name: &str| match name {
        "x" => Some(0),
        "y" => Some(1),
        "z" => Some(2),
        _ => None,
    };
    if let Some((register, dimension)) = name.split_once('.') {
        let dimension = axis(dimension)?;
        return Some(match register {
            "%tid" => Special::Tid(dimension),
            "%ntid" => Special::Ntid(dimension),
            "%ctaid" => Special::Ctaid(dimension),
            "%nctaid" => Special::Nctaid(dimension),
            // Without clusters, every block is a cluster of its own.
            "%clusterid" => Special::Ctaid(dimension),
            "%nclusterid" => Special::Nctaid(dimension),
            "%cluster_ctaid" => Special::Zero,
            "%cluster_nctaid" => Special::One,
            _ => return None,
        });
    }
    Some(match name {
        "%laneid" => Special::LaneId,
        "%warpid" => Special::WarpId,
        "%nwarpid" => Special::WarpCount,
        "%lanemask_eq" => Special::LaneMaskEq,
        "%lanemask_le" => Special::LaneMaskLe,
        "%lanemask_lt" => Special::LaneMaskLt,
        "%lanemask_ge" => Special::LaneMaskGe,
        "%lanemask_gt" => Special::LaneMaskGt,
        "%smid" => Special::SmId,
        "%nsmid" => Special::SmCount,
        "%gridid" => Special::GridId,
        "%dynamic_smem_size" => Special::DynamicSharedBytes,
        "%total_smem_size" => Special::TotalSharedBytes,
        "%cluster_ctarank" => Special::Zero,
        "%cluster_nctarank" => Special::One,
        _ => return None,
    })
}
