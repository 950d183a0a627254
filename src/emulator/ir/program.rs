//! A kernel with the device functions it may call, in one instruction array.

use super::emit::{Routine, emit};
use super::lower::{Surroundings, lower};
use super::symbols::{Frame, Sizes, Symbols};
use crate::emulator::check::registers::OperandTable;
use crate::emulator::exec::call::CallSite;
use crate::emulator::exec::warp::Ins;
use crate::emulator::ptx::{Entry, Init, Module, Operand, PtxError};
use std::collections::HashSet;

/// A kernel's body and those of its functions, ready to run.
#[derive(Debug)]
pub(crate) struct Code {
    pub instructions: Vec<Ins>,
    /// Registers by instruction, for the checked mode.
    pub operands: OperandTable,
    /// The kernel itself.
    pub kernel: Routine,
    /// Functions, with where their parameters lie.
    pub functions: Vec<(Routine, Frame)>,
    /// Index into `functions` by the function's number in the module.
    pub by_number: Vec<Option<u32>>,
    /// `Ins::imm` of a call is an index into this.
    pub sites: Vec<CallSite>,
    /// Operands of instructions that have more than fit them.
    pub lists: Vec<Vec<u32>>,
    /// Bytes of the kernel's own frame.
    pub frame_bytes: u32,
    /// Bytes of stack that the deepest chain of calls needs; `None` if functions call themselves or through pointers.
    pub stack_bytes: Option<u32>,
}

impl Code {
    /// Most 32-bit registers that any routine keeps live at once, per thread.
    pub(crate) fn pressure(&self) -> u32 {
        let functions = self.functions.iter().map(|(routine, _)| routine.pressure);
        functions.fold(self.kernel.pressure, u32::max)
    }
}

/// A compiled kernel and what its launch has to provide.
pub(crate) struct Program<'a> {
    pub code: Code,
    pub symbols: Symbols,
    pub sizes: Sizes,
    /// Routines in the order of the statement table: the kernel, then its functions.
    pub routines: Vec<&'a Entry>,
}

/// Stack bytes that a call takes beside the function's variables: return address and saved registers.
pub(crate) const CALL_BYTES: u32 = 32;

/// Compiles one kernel of `module`, whose text is `text`.
///
/// # Errors
/// The first statement that is not implemented or whose operands do not fit it.
pub(crate) fn compile<'a>(
    module: &'a Module,
    entry: &'a Entry,
    globals: &Symbols,
    text: &str,
) -> Result<Program<'a>, PtxError> {
    let numbers = reachable(module, entry);
    let functions: Vec<&Entry> = numbers.iter().map(|&n| &module.functions[n]).collect();
    let mut symbols = globals.clone();
    let sizes = symbols.add_entry(module, entry, &functions)?;
    let mut instructions = Vec::new();
    let mut operands = OperandTable::default();
    let mut sites = Vec::new();
    let mut lists = Vec::new();
    let mut first_statement = 0;
    let mut routine = |routine: &Entry, symbols: &Symbols, frame: Option<&Frame>| {
        let frame_bytes = frame.map_or(sizes.frame, |frame| frame.bytes);
        let around = Surroundings {
            symbols,
            param_bytes: sizes.param,
            frame,
            frame_bytes,
            declared: &module.declared,
            first_statement,
            text,
        };
        first_statement += routine.statements.len() as u32;
        let mut lowered = lower(routine, &around)?;
        let frame_bytes = (frame_bytes + lowered.extra_bytes).next_multiple_of(16);
        let first_site = sites.len() as i64;
        for inst in &mut lowered.insts {
            if inst.is_call {
                inst.imm += first_site;
            }
        }
        sites.append(&mut lowered.sites);
        let routine = emit(lowered, &mut instructions, &mut operands, &mut lists);
        Ok::<_, PtxError>((routine, frame_bytes))
    };
    let (kernel, frame_bytes) = routine(entry, &symbols, None)?;
    let mut compiled = Vec::with_capacity(functions.len());
    let mut by_number = vec![None; module.functions.len()];
    for (index, function) in functions.iter().enumerate() {
        let mut symbols = symbols.clone();
        let mut frame = symbols.add_function(function)?;
        let (code, bytes) = routine(function, &symbols, Some(&frame))?;
        frame.bytes = bytes;
        by_number[numbers[index]] = Some(index as u32);
        compiled.push((code, frame));
    }
    let stack_bytes = deepest(module, &numbers, entry, &compiled);
    let mut routines = vec![entry];
    routines.extend(functions);
    Ok(Program {
        code: Code {
            instructions,
            operands,
            kernel,
            functions: compiled,
            by_number,
            sites,
            lists,
            frame_bytes,
            stack_bytes,
        },
        symbols,
        sizes,
        routines,
    })
}

/// The functions that a routine calls by name, and whether it calls through a pointer.
fn calls(module: &Module, routine: &Entry) -> (Vec<usize>, bool) {
    let (mut direct, mut indirect) = (Vec::new(), false);
    for statement in &routine.statements {
        if statement.opcode != "call" && !statement.opcode.starts_with("call.") {
            continue;
        }
        match statement.operands.get(1) {
            Some(Operand::Symbol(name, _)) => {
                direct.extend(module.functions.iter().position(|f| f.name == *name));
            }
            _ => indirect = true,
        }
    }
    (direct, indirect)
}

/// Numbers of the functions that a kernel may call, in the order of the module.
fn reachable(module: &Module, entry: &Entry) -> Vec<usize> {
    let mut found = HashSet::new();
    let mut queue = vec![entry];
    let mut pointers = false;
    while let Some(routine) = queue.pop() {
        let (mut direct, indirect) = calls(module, routine);
        if indirect && !pointers {
            pointers = true;
            direct.extend(address_taken(module));
        }
        for number in direct {
            if found.insert(number) {
                queue.push(&module.functions[number]);
            }
        }
    }
    let mut found: Vec<usize> = found.into_iter().collect();
    found.sort_unstable();
    found
}

/// Functions that occur as data.
fn address_taken(module: &Module) -> Vec<usize> {
    let mut names = HashSet::new();
    for routine in module.entries.iter().chain(&module.functions) {
        for statement in &routine.statements {
            let call = statement.opcode == "call" || statement.opcode.starts_with("call.");
            for (position, operand) in statement.operands.iter().enumerate() {
                match operand {
                    Operand::Symbol(name, _) if !(call && position == 1) => {
                        names.insert(name.as_str());
                    }
                    Operand::Vector(elements) => {
                        names.extend(elements.iter().filter_map(|e| match e {
                            Operand::Symbol(name, _) => Some(name.as_str()),
                            _ => None,
                        }))
                    }
                    _ => {}
                }
            }
        }
    }
    for variable in &module.variables {
        names.extend(variable.init.iter().filter_map(|init| match init {
            Init::Address(name, _) => Some(name.as_str()),
            Init::Bits(_) => None,
        }));
    }
    let taken = |(_, function): &(usize, &Entry)| names.contains(function.name.as_str());
    module
        .functions
        .iter()
        .enumerate()
        .filter(taken)
        .map(|(number, _)| number)
        .collect()
}

/// Stack bytes below the kernel's frame that the deepest chain of calls needs.
fn deepest(
    module: &Module,
    numbers: &[usize],
    entry: &Entry,
    compiled: &[(Routine, Frame)],
) -> Option<u32> {
    let callees = |routine: &Entry| {
        if routine
            .statements
            .iter()
            .any(|s| s.opcode.starts_with("alloca"))
        {
            return None;
        }
        let (direct, indirect) = calls(module, routine);
        let inside = direct
            .into_iter()
            .filter_map(|number| numbers.iter().position(|&n| n == number));
        (!indirect).then(|| inside.collect::<Vec<usize>>())
    };
    let of_function: Option<Vec<Vec<usize>>> = numbers
        .iter()
        .map(|&number| callees(&module.functions[number]))
        .collect();
    let of_function = of_function?;
    // A chain without repetition is at most as long as there are functions.
    let mut below = vec![0u32; numbers.len()];
    let cost = |index: usize, below: &[u32]| {
        (compiled[index].1.bytes + CALL_BYTES).saturating_add(below[index])
    };
    for round in 0..=numbers.len() {
        let mut changed = false;
        for (index, list) in of_function.iter().enumerate() {
            let most = list.iter().map(|&c| cost(c, &below)).max().unwrap_or(0);
            if most > below[index] {
                below[index] = most;
                changed = true;
            }
        }
        if !changed {
            let kernel = callees(entry)?;
            return Some(kernel.iter().map(|&c| cost(c, &below)).max().unwrap_or(0));
        }
        if round == numbers.len() {
            return None;
        }
    }
    None
}
