//! Which lanes of which registers hold a value.
//!
//! Registers are told apart as the PTX names them, not by the slot they share. Two things can be wrong with a lane:
//! - *Nobody has written it.* Arithmetic passes that on; only what makes it matter (an address, a stored value, a predicate
//!   of a branch or guard, a collective instruction) is reported.
//! - *It was loaded from memory that nobody has written.* A copy is no use: loads, moves, packing, unpacking, `selp` and
//!   stores carry the bytes on, and a store leaves memory as undefined as the register was. Everything else uses them:
//!   arithmetic (conversions, shifts, `prmt` and `shfl` included), addresses, predicates, atomics, matrix instructions.

use std::collections::HashMap;

/// Lanes of a warp.
const LANES: usize = 32;

/// How an instruction passes on bytes that memory never held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Carry {
    /// It uses them.
    #[default]
    Nothing,
    /// The destination is so many bytes of the source, from byte `from` on.
    Bytes {
        /// First byte of the source.
        from: u8,
        /// Bytes taken; zeros fill the rest.
        bytes: u8,
    },
    /// The destination is so many bytes of the first source below those of the second.
    Join {
        /// Bytes of each.
        bytes: u8,
    },
    /// `selp`: of the two sources before the last one only the chosen one counts.
    Select,
    /// The sources are an address; the destinations come from memory.
    Load,
    /// The first source is an address, the others go to memory.
    Store,
}

/// What of an instruction goes on behind its warp's back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Background {
    /// Nothing.
    #[default]
    Nothing,
    /// Its write, of which an mbarrier is told: `st.async`, `red.async`.
    Write,
    /// Its reads and writes of memory: a bulk copy.
    Copy,
    /// Its reads of shared memory and its registers: `wgmma`.
    Matrix,
}

impl Carry {
    /// A move of a whole register.
    pub(crate) const WHOLE: Carry = Carry::Bytes { from: 0, bytes: 8 };
}

/// Register numbers of one instruction, in one flat list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Operands {
    /// First entry in the list: destinations, then sources.
    pub(crate) start: u32,
    pub(crate) destinations: u8,
    pub(crate) sources: u8,
    /// Nothing but the destinations changes.
    pub(crate) pure: bool,
    pub(crate) carry: Carry,
    pub(crate) background: Background,
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
    /// Some of the instructions go on behind their warp's back.
    pub(crate) has_background: bool,
}

impl OperandTable {
    /// Destinations and sources of the instruction at `pc`; of `wgmma` without the accumulators, which may count as zeros.
    pub(crate) fn at(&self, pc: usize) -> (&[u32], &[u32]) {
        let operands = self.of[pc];
        let start = operands.start as usize;
        let middle = start + usize::from(operands.destinations);
        let end = middle + usize::from(operands.sources);
        let first = match operands.background {
            Background::Matrix => middle + usize::from(operands.destinations),
            _ => middle,
        };
        (&self.list[start..middle], &self.list[first..end])
    }
}

/// Stands for a constant in [`OperandTable::list`]: always defined.
pub(crate) const CONSTANT: u32 = u32::MAX;

/// The load that brought bytes which memory never held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Of shared memory, whose address is an offset.
    pub(crate) shared: bool,
    pub(crate) pc: u32,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

/// What the lanes of a register lack.
#[derive(Clone, Copy, Debug, Default)]
struct Lack {
    /// Lanes that nobody has written.
    unwritten: u32,
    /// Lanes with bytes that memory never held.
    loaded: u32,
    /// Which bytes those are, one bit each.
    bytes: [u8; LANES],
    origin: Origin,
}

/// What an instruction uses without its being there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Missing {
    /// Lanes with an operand that nobody has written.
    pub(crate) unwritten: u32,
    /// Lanes with an operand that was loaded from memory which nobody has written, and the load.
    pub(crate) loaded: Option<(u32, Origin)>,
    /// A store carries undefined bytes to memory.
    pub(crate) carries: bool,
}

/// The registers of one block's warps.
#[derive(Debug)]
pub(crate) struct RegisterShadow {
    registers: usize,
    /// `[warp][register]`: lanes that hold a value.
    defined: Vec<u32>,
    /// By the same index: what is known of lanes that do not, where they were loaded.
    lacks: HashMap<usize, Lack>,
}

fn ones(bytes: u8) -> u8 {
    (0xFF_u16 >> (8 - u16::from(bytes.min(8)))) as u8
}

fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 != 0)
}

impl RegisterShadow {
    pub(crate) fn new(registers: usize, warps: usize) -> RegisterShadow {
        RegisterShadow {
            registers,
            defined: vec![0; registers * warps],
            lacks: HashMap::new(),
        }
    }

    /// Forgets all values.
    pub(crate) fn clear(&mut self) {
        self.defined.fill(0);
        self.lacks.clear();
    }

    /// Records an instruction of `warp`, executed for `mask`; gives what it uses without its being there.
    #[inline]
    pub(crate) fn execute(
        &mut self,
        warp: usize,
        table: &OperandTable,
        pc: usize,
        mask: u32,
    ) -> Missing {
        let (destinations, sources) = table.at(pc);
        let first = warp * self.registers;
        let defined = &mut self.defined[first..first + self.registers];
        let all = sources
            .iter()
            .filter(|&&source| source != CONSTANT)
            .fold(u32::MAX, |all, &source| all & defined[source as usize]);
        if mask & !all != 0 {
            return self.execute_without(warp, table, pc, mask);
        }
        for &destination in destinations {
            if destination != CONSTANT {
                defined[destination as usize] |= mask;
            }
        }
        Missing::default()
    }

    /// [`RegisterShadow::execute`] where an operand lacks something.
    #[cold]
    fn execute_without(
        &mut self,
        warp: usize,
        table: &OperandTable,
        pc: usize,
        mask: u32,
    ) -> Missing {
        let operands = table.of[pc];
        let (destinations, sources) = table.at(pc);
        let lacks: Vec<Lack> = sources
            .iter()
            .map(|&source| self.lack(warp, source, mask))
            .collect();
        let mut missing = Missing::default();
        let mut result = Lack::default();
        // Sources that count as used.
        let mut used = &lacks[..];
        match (operands.carry, &lacks[..]) {
            (Carry::Bytes { from, bytes }, [source, ..]) => {
                result = *source;
                for lane in lanes_of(source.loaded) {
                    result.set(lane, source.bytes[lane] >> from & ones(bytes));
                }
                used = &[];
            }
            (Carry::Join { bytes }, [low, high]) => {
                result = if low.loaded != 0 { *low } else { *high };
                result.unwritten = low.unwritten | high.unwritten;
                for lane in lanes_of(low.loaded | high.loaded) {
                    let (low, high) = (low.bytes_of(lane), high.bytes_of(lane));
                    result.set(lane, low & ones(bytes) | high << bytes);
                }
                used = &[];
            }
            (Carry::Select, [a, b, chooser]) => {
                // Which of the two is chosen is not known here: one defined value is the benefit of the doubt.
                result = if a.loaded != 0 { *a } else { *b };
                let (none_a, none_b) = (a.unwritten | a.loaded, b.unwritten | b.loaded);
                for lane in lanes_of(a.loaded | b.loaded) {
                    let bytes = |lack: &Lack| match lack.unwritten >> lane & 1 {
                        0 => lack.bytes_of(lane),
                        _ => 0xFF,
                    };
                    result.set(lane, bytes(a) & bytes(b));
                }
                result.loaded &= none_a & none_b;
                result.unwritten = chooser.unwritten | none_a & none_b & !result.loaded;
                used = std::slice::from_ref(&lacks[2]);
            }
            (Carry::Store, [address, values @ ..]) => {
                missing.unwritten = values.iter().fold(0, |all, lack| all | lack.unwritten);
                missing.carries = values.iter().any(|lack| lack.loaded != 0);
                used = std::slice::from_ref(address);
            }
            _ => {}
        }
        let loaded = used.iter().fold(0, |all, lack| all | lack.loaded);
        if loaded != 0 {
            let by = used.iter().find(|lack| lack.loaded != 0);
            missing.loaded = Some((loaded, by.map(|lack| lack.origin).unwrap_or_default()));
        }
        let unwritten = used.iter().fold(0, |all, lack| all | lack.unwritten);
        // What is reported is not held against later instructions.
        if operands.pure {
            result.unwritten |= unwritten & !loaded;
        } else {
            missing.unwritten |= unwritten;
            result.unwritten = 0;
        }
        result.loaded &= !result.unwritten;
        for &destination in destinations {
            self.set(warp, destination, mask, &result);
        }
        missing
    }

    fn lack(&self, warp: usize, register: u32, mask: u32) -> Lack {
        if register == CONSTANT {
            return Lack::default();
        }
        let index = warp * self.registers + register as usize;
        let undefined = mask & !self.defined[index];
        let mut lack = match self.lacks.get(&index) {
            Some(lack) if undefined != 0 => *lack,
            _ => Lack::default(),
        };
        lack.loaded &= undefined;
        lack.unwritten = undefined & !lack.loaded;
        lack
    }

    fn set(&mut self, warp: usize, register: u32, mask: u32, lack: &Lack) {
        if register == CONSTANT {
            return;
        }
        let index = warp * self.registers + register as usize;
        let defined = &mut self.defined[index];
        *defined = *defined & !mask | mask & !(lack.unwritten | lack.loaded);
        let loaded = lack.loaded & mask;
        if loaded == 0 && !self.lacks.contains_key(&index) {
            return;
        }
        let known = self.lacks.entry(index).or_default();
        known.loaded = known.loaded & !mask | loaded;
        for lane in lanes_of(loaded) {
            known.bytes[lane] = lack.bytes[lane];
        }
        if loaded != 0 {
            known.origin = lack.origin;
        }
    }

    /// A load has filled a lane of a register; `bytes` of it nobody had written to memory.
    pub(crate) fn load(
        &mut self,
        warp: usize,
        register: u32,
        lane: usize,
        bytes: u8,
        origin: Origin,
    ) {
        let mut lack = Lack {
            origin,
            ..Lack::default()
        };
        lack.set(lane, bytes);
        self.set(warp, register, 1 << lane, &lack);
    }

    /// The bytes of a register's lane that memory never held.
    pub(crate) fn carried(&self, warp: usize, register: u32, lane: usize) -> u8 {
        self.lack(warp, register, 1 << lane).bytes_of(lane)
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

impl Lack {
    fn set(&mut self, lane: usize, bytes: u8) {
        self.bytes[lane] = bytes;
        self.loaded = self.loaded & !(1 << lane) | u32::from(bytes != 0) << lane;
    }

    fn bytes_of(&self, lane: usize) -> u8 {
        if self.loaded >> lane & 1 != 0 {
            self.bytes[lane]
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table of instructions, given as destinations, sources, purity and carry.
    fn table(instructions: &[(&[u32], &[u32], bool, Carry)]) -> OperandTable {
        let mut table = OperandTable {
            registers: 8,
            ..OperandTable::default()
        };
        for &(destinations, sources, pure, carry) in instructions {
            table.of.push(Operands {
                start: table.list.len() as u32,
                destinations: destinations.len() as u8,
                sources: sources.len() as u8,
                pure,
                carry,
                background: Background::Nothing,
                guard: 0,
            });
            table.list.extend(destinations.iter().chain(sources));
        }
        table
    }

    #[test]
    fn arithmetic_passes_on_what_nobody_wrote_and_a_store_reports_it() {
        let table = table(&[
            (&[0], &[], true, Carry::Nothing),
            (&[1], &[0, 2], true, Carry::Nothing),
            (&[], &[CONSTANT, 1], false, Carry::Store),
        ]);
        let mut shadow = RegisterShadow::new(8, 1);
        assert_eq!(shadow.execute(0, &table, 0, 0xFF), Missing::default());
        assert_eq!(shadow.execute(0, &table, 1, 0xFF), Missing::default());
        assert_eq!(shadow.execute(0, &table, 2, 0x0F).unwritten, 0x0F);
    }

    #[test]
    fn copies_carry_loaded_bytes_and_arithmetic_uses_them() {
        let bytes = |from, bytes| Carry::Bytes { from, bytes };
        let table = table(&[
            (&[0], &[CONSTANT], false, Carry::Load),
            // Halves of r0, and the halves put together the other way round.
            (&[1], &[0], true, bytes(0, 2)),
            (&[2], &[0], true, bytes(2, 2)),
            (&[3], &[2, 1], true, Carry::Join { bytes: 2 }),
            (&[], &[CONSTANT, 3], false, Carry::Store),
            (&[4], &[1], true, Carry::Nothing),
            (&[4], &[2], true, Carry::Nothing),
            (&[4], &[0, 3, CONSTANT], true, Carry::Select),
        ]);
        let mut shadow = RegisterShadow::new(8, 2);
        let origin = Origin {
            pc: 7,
            address: 64,
            bytes: 4,
            shared: false,
        };
        let warp = 1;
        assert_eq!(shadow.execute(warp, &table, 0, 3), Missing::default());
        // Lane 1 lacks the upper half.
        shadow.load(warp, 0, 1, 0b1100, origin);
        for pc in 1..4 {
            assert_eq!(shadow.execute(warp, &table, pc, 3), Missing::default());
        }
        let stored = shadow.execute(warp, &table, 4, 3);
        assert!(stored.carries && stored.loaded.is_none());
        assert_eq!(shadow.carried(warp, 3, 1), 0b0011);
        assert_eq!(shadow.carried(warp, 3, 0), 0);
        assert_eq!(shadow.execute(warp, &table, 5, 3), Missing::default());
        assert_eq!(shadow.execute(warp, &table, 6, 3).loaded, Some((2, origin)));
        assert_eq!(shadow.execute(warp, &table, 6, 1), Missing::default());
        assert_eq!(shadow.execute(warp, &table, 7, 3), Missing::default());
        assert_eq!(shadow.carried(warp, 4, 1), 0, "no byte is missing in both");
        // Defined again.
        shadow.execute(warp, &table, 0, 3);
        assert_eq!(shadow.carried(warp, 0, 1), 0);
    }
}
