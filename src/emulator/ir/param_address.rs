//! Registers that hold the address of a parameter, known when the kernel is loaded.
//!
//! nvcc addresses the fields of a by-value structure through `mov.b64 %rd1, kernel_param_0; add.s64 %rd2, %rd1, 8`. Loads
//! through such registers are then constants of the launch, like loads that name the parameter itself.

use super::symbols::Symbols;
use crate::emulator::ptx::{Entry, Literal, Operand, VarSpace};
use std::collections::HashMap;

/// Offset in the parameter block by register, for registers with one unguarded definition from a parameter's address.
pub(super) fn find(entry: &Entry, symbols: &Symbols) -> HashMap<u32, i64> {
    let mut definitions: HashMap<u32, u32> = HashMap::new();
    let mut count = |operand: &Operand| {
        if let Operand::Reg(register) = operand {
            *definitions.entry(*register).or_default() += 1;
        }
    };
    for statement in &entry.statements {
        match statement.operands.first() {
            Some(Operand::Vector(parts)) => parts.iter().for_each(&mut count),
            Some(Operand::Pair(a, b)) => {
                count(a);
                count(b);
            }
            Some(operand) => count(operand),
            None => {}
        }
    }
    let mut known = HashMap::new();
    for statement in entry.statements.iter().filter(|s| s.guard.is_none()) {
        let [Operand::Reg(dst), sources @ ..] = &statement.operands[..] else {
            continue;
        };
        if definitions.get(dst) != Some(&1) {
            continue;
        }
        let offset = match (statement.opcode.as_str(), sources) {
            ("mov.b64" | "mov.u64", [Operand::Symbol(name, offset)]) => symbols
                .get(name)
                .filter(|symbol| symbol.space == VarSpace::Param)
                .map(|symbol| (symbol.address as i64).wrapping_add(*offset)),
            ("mov.b64" | "mov.u64", [Operand::Reg(from)]) => known.get(from).copied(),
            ("add.s64" | "add.u64", [Operand::Reg(from), Operand::Literal(Literal::Int(more))]) => {
                known
                    .get(from)
                    .map(|offset: &i64| offset.wrapping_add(*more as i64))
            }
            _ => None,
        };
        if let Some(offset) = offset {
            known.insert(*dst, offset);
        }
    }
    known
}
