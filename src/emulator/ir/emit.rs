//! The last step: instruction array, join points, constants.

use super::cfg::Cfg;
use super::{Constant, Flow, Inst, Register, alias, fuse, lower, slots};
use crate::emulator::check::registers::{Background, CONSTANT, OperandTable, Operands};
use crate::emulator::exec::control;
use crate::emulator::exec::warp::{Ins, NO_GUARD, NO_JOIN};
use crate::emulator::ptx::RegClass;

/// A constant and the slot it is written to before a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConstantSlot {
    /// Byte offset in the register file.
    pub offset: u32,
    pub class: RegClass,
    pub constant: Constant,
}

/// A routine's place in the instruction array, and its registers.
#[derive(Debug)]
pub(crate) struct Routine {
    /// Index of the first instruction.
    pub entry: u32,
    pub constants: Vec<ConstantSlot>,
    /// Bytes of a warp's register file, a multiple of 64.
    pub register_bytes: u32,
    /// Bytes at its start that hold constants.
    pub constant_bytes: u32,
    /// Most 32-bit registers live at once, per thread.
    pub pressure: u32,
    /// A path reads a register that nothing on it has written.
    pub reads_unset: bool,
}

/// Allocates the registers of a lowered routine and appends its instructions, and their registers to `operands`.
pub(super) fn emit(
    lowered: lower::Lowered,
    instructions: &mut Vec<Ins>,
    operands: &mut OperandTable,
    lists: &mut Vec<Vec<u32>>,
) -> Routine {
    let lower::Lowered {
        registers,
        mut insts,
        ..
    } = lowered;
    let entry = instructions.len();
    let cfg = Cfg::new(&insts);
    let mut dead = alias::propagate(&mut insts, &registers, &cfg);
    fuse::join(&mut insts, &mut dead, &registers, &cfg);
    let layout = slots::assign(&insts, &dead, &registers, &cfg);

    // Paths of a conditional branch meet at its block's immediate post-dominator.
    let mut is_join = vec![false; cfg.blocks.len()];
    for (number, block) in cfg.blocks.iter().enumerate() {
        if let (Flow::Branch { .. }, Some(join)) = (insts[block.end - 1].flow, cfg.ipdom[number]) {
            is_join[join] = true;
        }
    }
    let first_register = operands.registers as u32;
    operands.registers += registers.len();
    let mut block_at = vec![0u32; cfg.blocks.len()];
    let blank = |inst: &Inst| Ins {
        handler: inst.handler,
        imm: inst.imm,
        guard: NO_GUARD,
        statement: inst.statement,
        ext: inst.ext,
        ops: [0; 8],
    };
    for (number, block) in cfg.blocks.iter().enumerate() {
        block_at[number] = instructions.len() as u32;
        if is_join[number] {
            instructions.push(Ins {
                handler: control::join(),
                imm: 0,
                ext: 0,
                ..blank(&insts[block.start])
            });
            operands.of.push(Operands::default());
        }
        for index in (block.start..block.end).filter(|&index| !dead[index]) {
            let inst = &insts[index];
            let mut ins = blank(inst);
            if let Some((register, negated)) = inst.guard {
                ins.guard = layout.offset[register as usize] << 1 | u32::from(negated);
            }
            let mut ops = [0; 16];
            let offsets = inst.dsts.iter().chain(&inst.srcs);
            let offsets = offsets.map(|&register| layout.offset[register as usize]);
            if inst.listed {
                ops[7] = lists.len() as u32;
                lists.push(offsets.collect());
            } else {
                for (op, offset) in ops.iter_mut().zip(offsets) {
                    *op = offset;
                }
            }
            for &(position, value) in &inst.raw {
                ops[position] = value;
            }
            ins.ops.copy_from_slice(&ops[..8]);
            let negation = |negated: bool| if negated { u32::MAX } else { 0 };
            match inst.flow {
                Flow::Next | Flow::Exit(_) | Flow::Trap => {}
                // Targets are block numbers until all blocks have their place.
                Flow::Jump(target) => ins.imm = cfg.block_of[target] as i64,
                Flow::Branch { target, negated } => {
                    ins.imm = cfg.block_of[target] as i64;
                    ins.ext = cfg.ipdom[number].map_or(NO_JOIN, |join| join as u32);
                    ins.ops[1] = negation(negated);
                }
                Flow::ExitIf { negated, .. } => ins.ops[1] = negation(negated),
            }
            instructions.push(ins);
            operands.push(inst, &registers, first_register);
            if let Some((imm, ext)) = inst.second {
                let mut second = Ins {
                    imm,
                    ext,
                    ..blank(inst)
                };
                second.ops.copy_from_slice(&ops[8..]);
                instructions.push(second);
                operands.of.push(Operands::default());
            }
        }
    }
    let mut position = entry;
    for (number, block) in cfg.blocks.iter().enumerate() {
        position += usize::from(is_join[number]);
        for index in (block.start..block.end).filter(|&index| !dead[index]) {
            let ins = &mut instructions[position];
            match insts[index].flow {
                Flow::Jump(_) => {
                    let target = block_at[ins.imm as usize];
                    ins.imm = i64::from(target);
                    ins.handler = control::jump(target as usize <= position);
                }
                Flow::Branch { .. } => {
                    let target = block_at[ins.imm as usize];
                    ins.imm = i64::from(target);
                    if ins.ext != NO_JOIN {
                        ins.ext = block_at[ins.ext as usize];
                    }
                    ins.handler = control::branch(target as usize <= position);
                }
                _ => {}
            }
            position += 1 + usize::from(insts[index].second.is_some());
        }
    }
    let constants = registers
        .iter()
        .zip(&layout.offset)
        .filter(|(_, offset)| **offset != u32::MAX);
    let constants = constants
        .filter_map(|(register, &offset)| {
            register.constant.map(|constant| ConstantSlot {
                offset,
                class: register.class,
                constant,
            })
        })
        .collect();
    Routine {
        entry: entry as u32,
        constants,
        register_bytes: layout.bytes,
        constant_bytes: layout.constant_bytes,
        pressure: layout.pressure,
        reads_unset: layout.reads_unset,
    }
}

impl OperandTable {
    /// Adds the registers of one instruction of a routine whose register 0 has the number `first`.
    fn push(&mut self, inst: &Inst, registers: &[Register], first: u32) {
        let start = self.list.len() as u32;
        let named = |&register: &u32| match registers[register as usize].constant {
            Some(_) => CONSTANT,
            None => first + register,
        };
        self.list
            .extend(inst.dsts.iter().chain(&inst.srcs).map(named));
        self.of.push(Operands {
            start,
            destinations: inst.dsts.len() as u8,
            sources: inst.srcs.len() as u8,
            pure: inst.pure,
            carry: inst.carry,
            background: inst.background,
            guard: inst.guard.map_or(0, |(register, _)| first + register + 1),
        });
        self.has_background |= inst.background != Background::Nothing;
    }
}
