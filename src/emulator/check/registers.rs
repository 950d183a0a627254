//! Which lanes of which registers hold a value.
//!
//! Registers are told apart as the PTX names them, not by the slot they share. Arithmetic passes undefinedness on; only what
//! makes it matter (an address, a stored value, a predicate of a branch or guard, a collective instruction) is reported.

/// Register numbers of one instruction, in one flat list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Operands {
    /// First entry in the list: destinations, then sources.
    pub(crate) start: u32,
    pub(crate) destinations: u8,
    pub(crate) sources: u8,
    /// Nothing but the destinations changes.
    pub(crate) pure: bool,
    /// `selp`: of the two sources before the last one only the chosen one counts.
    pub(crate) select: bool,
    /// The guard's register plus one; 0 without a guard.
    pub(crate) guard: u32,
}

/// The registers that all instructions of a kernel read and write, constants aside.
#[derive(Debug, Default)]
pub(crate) struct OperandTable {
    pub(crate) of: Vec<Operands>,
    pub(crate) list: Vec<u32>,
    /// Registers there are.
    pub(crate) registers: usize,
}

/// Stands for a constant in [`OperandTable::list`]: always defined.
pub(crate) const CONSTANT: u32 = u32::MAX;

/// The registers of one block's warps.
#[derive(Debug)]
pub(crate) struct RegisterShadow {
    registers: usize,
    /// `[warp][register]`: lanes that hold a value.
    defined: Vec<u32>,
}

impl RegisterShadow {
    pub(crate) fn new(registers: usize, warps: usize) -> RegisterShadow {
        RegisterShadow {
            registers,
            defined: vec![0; registers * warps],
        }
    }

    /// Forgets all values.
    pub(crate) fn clear(&mut self) {
        self.defined.fill(0);
    }

    /// Records an instruction of `warp`, executed for `mask`; gives the lanes that use a value nobody computed.
    #[inline]
    pub(crate) fn execute(
        &mut self,
        warp: usize,
        table: &OperandTable,
        pc: usize,
        mask: u32,
    ) -> u32 {
        let operands = table.of[pc];
        let defined = &mut self.defined[warp * self.registers..(warp + 1) * self.registers];
        let start = operands.start as usize;
        let middle = start + usize::from(operands.destinations);
        let sources = &table.list[middle..middle + usize::from(operands.sources)];
        let of = |register: u32| match register {
            CONSTANT => u32::MAX,
            register => defined[register as usize],
        };
        let mut all = if operands.select && sources.len() == 3 {
            // Which of the two is chosen is not known here: one defined value is the benefit of the doubt.
            of(sources[2]) & (of(sources[0]) | of(sources[1]))
        } else {
            sources
                .iter()
                .fold(u32::MAX, |all, &source| all & of(source))
        };
        let mut missing = 0;
        if !operands.pure {
            missing = mask & !all;
            // Reported once; the results are not held against later instructions.
            all = u32::MAX;
        }
        for &destination in &table.list[start..middle] {
            if destination != CONSTANT {
                let lanes = &mut defined[destination as usize];
                *lanes = *lanes & !mask | all & mask;
            }
        }
        missing
    }

    /// Lanes of `active` whose guard nobody computed.
    #[inline]
    pub(crate) fn guard(&self, warp: usize, table: &OperandTable, pc: usize, active: u32) -> u32 {
        match table.of[pc].guard {
            0 => 0,
            register => active & !self.defined[warp * self.registers + register as usize - 1],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_passes_undefinedness_on_and_a_store_reports_it() {
        let table = OperandTable {
            // r0 = f(); r1 = r0 + r2; store r1
            of: vec![
                Operands {
                    start: 0,
                    destinations: 1,
                    pure: true,
                    ..Operands::default()
                },
                Operands {
                    start: 1,
                    destinations: 1,
                    sources: 2,
                    pure: true,
                    ..Operands::default()
                },
                Operands {
                    start: 4,
                    sources: 1,
                    ..Operands::default()
                },
            ],
            list: vec![0, 1, 0, 2, 1],
            registers: 3,
        };
        let mut shadow = RegisterShadow::new(3, 1);
        assert_eq!(shadow.execute(0, &table, 0, 0xFF), 0);
        assert_eq!(shadow.execute(0, &table, 1, 0xFF), 0);
        assert_eq!(shadow.execute(0, &table, 2, 0x0F), 0x0F);
    }
}
