//! Register-file layout: constants first, then the slots that live ranges share, then predicates.

use super::cfg::Cfg;
use super::{Inst, Register};
use crate::emulator::ptx::RegClass;

/// Where every register lies in the register file of a warp.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Byte offset by register; `u32::MAX` for registers that nothing uses.
    pub offset: Vec<u32>,
    /// Bytes of the part that holds constants, from offset 0.
    pub constant_bytes: u32,
    /// Bytes of the whole file.
    pub bytes: u32,
    /// Most 32-bit registers live at once, per thread.
    pub pressure: u32,
    /// A path reads a register that nothing on it has written.
    pub reads_unset: bool,
}

fn slot_bytes(class: RegClass) -> u32 {
    match class {
        RegClass::Pred => 4,
        RegClass::B16 | RegClass::B32 => 128,
        RegClass::B64 | RegClass::B128 => 256,
    }
}

fn pool_of(class: RegClass) -> usize {
    match class {
        RegClass::Pred => 0,
        RegClass::B16 | RegClass::B32 => 1,
        RegClass::B64 | RegClass::B128 => 2,
    }
}

/// Assigns slots. Two registers may share one when their live ranges do not overlap; under divergence that is still right,
/// because every write is masked: a path only overwrites the lanes it runs for.
pub(crate) fn assign(insts: &[Inst], dead: &[bool], registers: &[Register], cfg: &Cfg) -> Layout {
    let (ranges, reads_unset) = live_ranges(insts, dead, registers, cfg);
    let mut offset = vec![u32::MAX; registers.len()];
    let mut bytes = 0;
    for (number, register) in registers.iter().enumerate() {
        if register.constant.is_some() && ranges[number].is_some() {
            offset[number] = bytes;
            bytes += slot_bytes(register.class).next_multiple_of(64);
        }
    }
    let constant_bytes = bytes;

    let mut order: Vec<(usize, usize, usize)> = (0..registers.len())
        .filter(|&number| registers[number].constant.is_none())
        .filter_map(|number| ranges[number].map(|(start, end)| (start, end, number)))
        .collect();
    order.sort_unstable();
    // Per pool: slots in use as (end, slot), and free ones.
    let mut active: [Vec<(usize, u32)>; 3] = Default::default();
    let mut free: [Vec<u32>; 3] = Default::default();
    let mut count = [0u32; 3];
    let mut chosen = vec![0u32; registers.len()];
    let mut pressure = 0;
    for (start, end, number) in order {
        let pool = pool_of(registers[number].class);
        active[pool].retain(|&(until, slot)| {
            let live = until >= start;
            if !live {
                free[pool].push(slot);
            }
            live
        });
        let slot = free[pool].pop().unwrap_or_else(|| {
            count[pool] += 1;
            count[pool] - 1
        });
        chosen[number] = slot;
        active[pool].push((end, slot));
        let live = |pool: usize| {
            active[pool]
                .iter()
                .filter(|(until, _)| *until >= start)
                .count() as u32
        };
        pressure = pressure.max(live(1) + 2 * live(2));
    }
    let narrow_base = constant_bytes;
    let wide_base = narrow_base + 128 * count[1];
    let predicate_base = wide_base + 256 * count[2];
    for (number, register) in registers.iter().enumerate() {
        if register.constant.is_some() || ranges[number].is_none() {
            continue;
        }
        offset[number] = match pool_of(register.class) {
            0 => predicate_base + 4 * chosen[number],
            1 => narrow_base + 128 * chosen[number],
            _ => wide_base + 256 * chosen[number],
        };
    }
    let bytes = (predicate_base + 4 * count[0]).next_multiple_of(64).max(64);
    Layout {
        offset,
        constant_bytes,
        bytes,
        pressure,
        reads_unset,
    }
}

/// First and last position of every register that is used (instruction i reads at 2i and writes at 2i + 1), and whether one
/// that is no constant is read before it is written.
fn live_ranges(
    insts: &[Inst],
    dead: &[bool],
    registers: &[Register],
    cfg: &Cfg,
) -> (Vec<Option<(usize, usize)>>, bool) {
    let words = registers.len().div_ceil(64);
    let n = cfg.blocks.len();
    let mut reads = vec![vec![0u64; words]; n];
    let mut writes = vec![vec![0u64; words]; n];
    let set = |bits: &mut [u64], r: u32| bits[r as usize / 64] |= 1 << (r % 64);
    let has = |bits: &[u64], r: u32| bits[r as usize / 64] >> (r % 64) & 1 != 0;
    for (number, block) in cfg.blocks.iter().enumerate() {
        for index in block.start..block.end {
            if dead[index] {
                continue;
            }
            let inst = &insts[index];
            for &src in inst
                .srcs
                .iter()
                .chain(inst.guard.iter().map(|(register, _)| register))
            {
                if !has(&writes[number], src) {
                    set(&mut reads[number], src);
                }
            }
            for &dst in &inst.dsts {
                if inst.guard.is_some() {
                    // A guarded write leaves the other lanes' values alive.
                    if !has(&writes[number], dst) {
                        set(&mut reads[number], dst);
                    }
                } else {
                    set(&mut writes[number], dst);
                }
            }
        }
    }
    let mut live_in = reads.clone();
    let mut live_out = vec![vec![0u64; words]; n];
    let mut changed = true;
    while changed {
        changed = false;
        for number in (0..n).rev() {
            for word in 0..words {
                let out = cfg.blocks[number]
                    .successors
                    .iter()
                    .fold(0, |bits, &s| bits | live_in[s][word]);
                let new = reads[number][word] | (out & !writes[number][word]);
                live_out[number][word] = out;
                if new != live_in[number][word] {
                    live_in[number][word] = new;
                    changed = true;
                }
            }
        }
    }
    let reads_unset = (0..registers.len() as u32).any(|register| {
        has(&live_in[0], register) && registers[register as usize].constant.is_none()
    });
    let mut ranges: Vec<Option<(usize, usize)>> = vec![None; registers.len()];
    let mut touch = |register: u32, at: usize| {
        let range = ranges[register as usize].get_or_insert((at, at));
        *range = (range.0.min(at), range.1.max(at));
    };
    for (number, block) in cfg.blocks.iter().enumerate() {
        for (bits, at) in [
            (&live_in[number], 2 * block.start),
            (&live_out[number], 2 * block.end - 1),
        ] {
            for (word, &bits) in bits.iter().enumerate() {
                let mut rest = bits;
                while rest != 0 {
                    touch((64 * word) as u32 + rest.trailing_zeros(), at);
                    rest &= rest - 1;
                }
            }
        }
        for index in block.start..block.end {
            if dead[index] {
                continue;
            }
            let inst = &insts[index];
            for &src in inst
                .srcs
                .iter()
                .chain(inst.guard.iter().map(|(register, _)| register))
            {
                touch(src, 2 * index);
            }
            for &dst in &inst.dsts {
                touch(dst, 2 * index + 1);
                if inst.early || inst.dsts.len() > 1 {
                    touch(dst, 2 * index);
                }
            }
        }
    }
    (ranges, reads_unset)
}
