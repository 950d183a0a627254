//! Device functions: calls, parameters in registers, the stack.
//!
//! A call's arguments and results travel through the caller's frame: `st.param` and `ld.param` of a call's variables are
//! stores and loads on the thread's stack, and the call copies between the two frames.

use super::lower::{Lowering, Refusal};
use crate::emulator::exec::access::space;
use crate::emulator::exec::call::{self, CallSite, Callee};
use crate::emulator::exec::{control, load_store};
use crate::emulator::ptx::{Operand, RegClass, VarSpace};

impl Lowering<'_> {
    /// Loads the parameters of a function that are registers.
    pub(super) fn prologue(&mut self) -> Result<(), Refusal> {
        for (name, register) in self.register_params(true) {
            let address = self.address_of(&name, 0, RegClass::B64)?;
            self.move_on_stack(true, address, register)?;
        }
        Ok(())
    }

    /// Stores the results of a function that are registers.
    pub(super) fn epilogue(&mut self) -> Result<(), Refusal> {
        for (name, register) in self.register_params(false) {
            let address = self.address_of(&name, 0, RegClass::B64)?;
            self.move_on_stack(false, address, register)?;
        }
        Ok(())
    }

    fn register_params(&self, inputs: bool) -> Vec<(String, u32)> {
        let list = if inputs {
            &self.routine.params
        } else {
            &self.routine.returns
        };
        let named = |(name, _): &&(String, u32)| list.iter().any(|v| v.name == *name);
        let all = self.routine.register_params.iter();
        all.filter(named).cloned().collect()
    }

    /// Loads `register` from the stack or stores it there.
    fn move_on_stack(&mut self, load: bool, address: u32, register: u32) -> Result<(), Refusal> {
        let bytes = self.class(register).bytes();
        let handler = if load {
            load_store::load(space::LOCAL, bytes, false, 1)
        } else {
            load_store::store(space::LOCAL, bytes, 1)
        };
        let handler = handler.ok_or("a parameter of this width cannot be in a register")?;
        let inst = if load {
            self.push(handler, vec![register], vec![address])
        } else {
            self.push(handler, vec![], vec![address, register])
        };
        inst.ext = space::LOCAL;
        inst.early = true;
        Ok(())
    }

    /// `call (returns), callee, (arguments), prototype`
    pub(super) fn call(&mut self, o: &[Operand]) -> Result<(), Refusal> {
        let [
            Operand::Vector(returns),
            callee,
            Operand::Vector(arguments),
            ..,
        ] = o
        else {
            return Err("the operands have the wrong form".into());
        };
        let mut site = CallSite {
            callee: Callee::Indirect,
            arguments: Vec::new(),
            returns: Vec::new(),
        };
        let mut top = 0;
        for argument in arguments {
            let place = self.place_of(argument, &mut top)?;
            site.arguments.push(place);
            if self.variable(argument).is_none() {
                let class = match place.1 {
                    8 => RegClass::B64,
                    2 => RegClass::B16,
                    _ => RegClass::B32,
                };
                let register = self.source(argument, class)?;
                let address = self.frame_address(place.0);
                self.move_on_stack(false, address, register)?;
            }
        }
        for target in returns {
            site.returns.push(self.place_of(target, &mut top)?);
        }
        let mut srcs = Vec::new();
        match callee {
            Operand::Symbol(name, 0) => {
                site.callee = if let Some(number) = self.symbols.function(name) {
                    Callee::Function(number)
                } else if !self.around.declared.contains(name) {
                    return Err(format!("the function `{name}` is not declared"));
                } else {
                    call::built_in(name).ok_or_else(|| {
                        format!("the function `{name}` is not defined in this module")
                    })?
                };
            }
            Operand::Reg(_) => srcs.push(self.source(callee, RegClass::B64)?),
            _ => return Err("this cannot be called".into()),
        }
        let handler = call::handler(site.callee);
        let indirect = site.callee == Callee::Indirect;
        let places = site.returns.clone();
        self.sites.push(site);
        let number = self.sites.len() as i64 - 1;
        let inst = self.push(handler, vec![], srcs);
        (inst.imm, inst.is_call) = (number, true);
        if indirect {
            // Lanes that call different functions go one group after another and meet here.
            let guard = self.guard.take();
            self.push(control::join(), vec![], vec![]);
            self.guard = guard;
        }
        for (target, place) in returns.iter().zip(places) {
            if let Operand::Reg(register) = target {
                let address = self.frame_address(place.0);
                self.move_on_stack(true, address, *register)?;
            }
        }
        Ok(())
    }

    /// The offset from the routine's frame and the bytes of a variable.
    fn variable(&self, operand: &Operand) -> Option<(u32, u32)> {
        let Operand::Symbol(name, 0) = operand else {
            return None;
        };
        let variables = self.routine.variables.iter();
        let mut all = variables
            .chain(&self.routine.params)
            .chain(&self.routine.returns);
        let declared = all.find(|v| v.name == *name)?;
        let symbol = self.symbols.get(name)?;
        let bytes = declared.bytes.unwrap_or(0).min(1 << 24) as u32;
        (symbol.space == VarSpace::Local).then_some((symbol.address as u32, bytes))
    }

    /// Where an argument or result travels: its own variable, or a place behind the frame for a register or number.
    fn place_of(&mut self, operand: &Operand, top: &mut u32) -> Result<(u32, u32), Refusal> {
        if let Some(place) = self.variable(operand) {
            return Ok(place);
        }
        let bytes = match operand {
            Operand::Reg(register) => self.class(*register).bytes(),
            Operand::Literal(_) => 4,
            Operand::Symbol(..) => 8,
            _ => return Err("an argument has the wrong form".into()),
        };
        let offset = self.around.frame_bytes + *top;
        *top += 8;
        self.extra_bytes = self.extra_bytes.max(*top);
        Ok((offset, bytes))
    }

    fn frame_address(&mut self, offset: u32) -> u32 {
        if self.around.frame.is_some() {
            self.constant(super::Constant::Frame(offset), RegClass::B64)
        } else {
            self.bits(offset.into(), RegClass::B64)
        }
    }

    /// `alloca`, `stacksave`, `stackrestore`
    pub(super) fn stack(
        &mut self,
        base: &str,
        rest: &[&str],
        o: &[Operand],
    ) -> Result<(), Refusal> {
        let class = match rest {
            ["u32"] => RegClass::B32,
            ["u64"] => RegClass::B64,
            _ => return Err(format!("`{base}` takes the type u32 or u64")),
        };
        match (base, o) {
            ("alloca", [d, size, align @ ..]) if align.len() <= 1 => {
                let align = match align {
                    [] => 8,
                    [Operand::Literal(align)] => align.bits(8),
                    _ => return Err("the alignment is not a number".into()),
                };
                if !align.is_power_of_two() || align > 1 << 12 {
                    return Err(format!("an alignment of {align} bytes"));
                }
                let srcs = vec![self.source(size, class)?];
                let dst = self.destination(d, class)?;
                self.push(call::allocate(class), vec![dst], srcs).imm = align as i64;
            }
            ("stacksave", [d]) => {
                let dst = self.destination(d, class)?;
                self.push(call::stack_save(class), vec![dst], vec![]);
            }
            ("stackrestore", [a]) => {
                let srcs = vec![self.source(a, class)?];
                self.push(call::stack_restore(class), vec![], srcs);
            }
            _ => return Err("the operands have the wrong form".into()),
        }
        Ok(())
    }
}
