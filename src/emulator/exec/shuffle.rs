//! Instructions by which the lanes of a warp exchange values: `shfl`, `vote`, `match`, `redux`, `activemask`,
//! `movmatrix`.

use super::control::converged;
use super::op::{Op, conjure, handler, plain_handler};
use super::warp::{FULL, Handler, Ins, LANES, Warp};
use std::marker::PhantomData;

/// Whether the lanes named in the mask operand are exactly the ones here. Lanes that exited, or never existed, need not
/// come.
#[inline(always)]
pub(super) unsafe fn members(warp: &mut Warp, ip: *const Ins, slot: u32) -> Option<u32> {
    // SAFETY: the operand is a slot of 32 lanes.
    let wanted = unsafe {
        *warp
            .slot::<u32>(slot)
            .add(warp.mask.trailing_zeros() as usize & 31)
    };
    if wanted & warp.live != warp.mask {
        let wanted = wanted & warp.live;
        warp.fail_divergent(ip, wanted);
        return None;
    }
    Some(wanted)
}

/// `shfl.sync`. `ops`: d, p, a, b, c, mask. `MODE`: 0 up, 1 down, 2 bfly, 3 idx.
struct Shuffle<const MODE: u8>;
impl<const MODE: u8> Op for Shuffle<MODE> {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        // SAFETY: `ops[5]` is the mask.
        if unsafe { members(warp, ip, ins.ops[5]) }.is_none() {
            return std::ptr::null();
        }
        // SAFETY: the operands are slots of 32 lanes.
        let (a, b, c) = unsafe {
            (
                warp.read::<u32>(ins.ops[2]),
                warp.read::<u32>(ins.ops[3]),
                warp.read::<u32>(ins.ops[4]),
            )
        };
        let mut value = [0u32; LANES];
        let mut valid = [0u32; LANES];
        for lane in 0..LANES as u32 {
            let b = b[lane as usize] & 31;
            let (clamp, segment) = (c[lane as usize] & 31, c[lane as usize] >> 8 & 31);
            let highest = (lane & segment) | (clamp & !segment);
            let lowest = lane & segment;
            let (from, ok) = match MODE {
                0 => {
                    let from = lane as i32 - b as i32;
                    (from as u32, from >= highest as i32)
                }
                1 => (lane + b, lane + b <= highest),
                2 => (lane ^ b, (lane ^ b) <= highest),
                _ => {
                    let from = lowest | (b & !segment & 31);
                    (from, from <= highest)
                }
            };
            let from = if ok { from } else { lane };
            let present = warp.mask >> (from & 31) & 1 != 0;
            // What a lane reads from one that is not there is undefined: all ones shows.
            value[lane as usize] = if present {
                a[(from & 31) as usize]
            } else {
                u32::MAX
            };
            valid[lane as usize] = u32::from(ok) << lane;
        }
        let valid = valid.iter().fold(0, |all, bit| all | bit);
        // SAFETY: `ops[0]` is a 32-bit destination.
        unsafe { warp.write32(ins.ops[0], &value) };
        // SAFETY: `ops[1]` is a predicate.
        unsafe { warp.set_pred(ins.ops[1], valid) };
        ip.wrapping_add(1)
    }
}

/// `vote.sync`. `ops`: d, a, mask. `MODE`: 0 any, 1 all, 2 uni, 3 ballot. `ext`: all ones to negate a.
struct Vote<const MODE: u8>;
impl<const MODE: u8> Op for Vote<MODE> {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        // SAFETY: `ops[2]` is the mask.
        if unsafe { members(warp, ip, ins.ops[2]) }.is_none() {
            return std::ptr::null();
        }
        // SAFETY: `ops[1]` is a predicate.
        let yes = unsafe { warp.pred(ins.ops[1]) ^ (ins.imm as u32) } & warp.mask;
        let holds = match MODE {
            0 => yes != 0,
            1 => yes == warp.mask,
            2 => yes == 0 || yes == warp.mask,
            _ => {
                // SAFETY: `ops[0]` is a 32-bit destination.
                unsafe { warp.write32(ins.ops[0], &[yes; LANES]) };
                return ip.wrapping_add(1);
            }
        };
        // SAFETY: `ops[0]` is a predicate.
        unsafe { warp.set_pred(ins.ops[0], if holds { u32::MAX } else { 0 }) };
        ip.wrapping_add(1)
    }
}

/// `match.sync`. `ops`: d, p, a, mask.
struct Match<T, const ALL: bool>(PhantomData<T>);
impl<T: Copy + PartialEq, const ALL: bool> Op for Match<T, ALL> {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        // SAFETY: `ops[3]` is the mask.
        if unsafe { members(warp, ip, ins.ops[3]) }.is_none() {
            return std::ptr::null();
        }
        // SAFETY: `ops[2]` is a slot of 32 lanes of T.
        let a = unsafe { warp.read::<T>(ins.ops[2]) };
        let mut value = [0u32; LANES];
        for lane in 0..LANES {
            for other in 0..LANES {
                if warp.mask >> other & 1 != 0 && a[lane] == a[other] {
                    value[lane] |= 1 << other;
                }
            }
        }
        if ALL {
            let same = value[warp.mask.trailing_zeros() as usize & 31] == warp.mask;
            value = [if same { warp.mask } else { 0 }; LANES];
            // SAFETY: `ops[1]` is a predicate.
            unsafe { warp.set_pred(ins.ops[1], if same { u32::MAX } else { 0 }) };
        }
        // SAFETY: `ops[0]` is a 32-bit destination.
        unsafe { warp.write32(ins.ops[0], &value) };
        ip.wrapping_add(1)
    }
}

/// `redux.sync`. `ops`: d, a, mask.
struct Reduce<F>(PhantomData<F>);
impl<F: Fn(u32, u32) -> u32 + Copy> Op for Reduce<F> {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        // SAFETY: `ops[2]` is the mask.
        if unsafe { members(warp, ip, ins.ops[2]) }.is_none() {
            return std::ptr::null();
        }
        let f = conjure::<F>();
        // SAFETY: `ops[1]` is a slot of 32 lanes.
        let a = unsafe { warp.read::<u32>(ins.ops[1]) };
        let mask = warp.mask;
        let lanes = (0..LANES)
            .filter(|lane| mask >> lane & 1 != 0)
            .map(|lane| a[lane]);
        let result = lanes.reduce(f).unwrap_or(0);
        // SAFETY: `ops[0]` is a 32-bit destination.
        unsafe { warp.write32(ins.ops[0], &[result; LANES]) };
        ip.wrapping_add(1)
    }
}

/// `activemask`. `ops`: d.
struct ActiveMask;
impl Op for ActiveMask {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let mask = warp.mask;
        // SAFETY: `ops[0]` is a 32-bit destination.
        unsafe { warp.write32(ins.ops[0], &[mask; LANES]) };
        ip.wrapping_add(1)
    }
}

/// `shfl.sync.bfly` (`INDEXED`: `idx`) with AVX2, for full warps that are one segment; others take the general way.
///
/// # Safety
/// As for every handler; the CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn shuffle_avx2<const INDEXED: bool>(warp: &mut Warp, ip: *const Ins) -> *const Ins {
    use std::arch::x86_64::*;
    // SAFETY: the run loop passes a valid instruction.
    let ins = unsafe { &*ip };
    // Loops, not closures: what `array::from_fn` calls is not compiled for AVX2.
    let mut operands = [[_mm256_setzero_si256(); 4]; 4];
    for (operand, &slot) in operands.iter_mut().zip(&ins.ops[2..6]) {
        for (part, value) in operand.iter_mut().enumerate() {
            // SAFETY: the operand is a slot of 32 words, which are aligned.
            *value = unsafe { _mm256_load_si256(warp.slot::<__m256i>(slot).add(part)) };
        }
    }
    let [source, from, segments, members] = operands;
    let mut differ = _mm256_setzero_si256();
    for part in 0..4 {
        let segment = _mm256_xor_si256(segments[part], _mm256_set1_epi32(31));
        let missing = _mm256_xor_si256(members[part], _mm256_set1_epi32(-1));
        differ = _mm256_or_si256(differ, _mm256_or_si256(segment, missing));
    }
    if warp.mask != FULL || _mm256_testz_si256(differ, differ) == 0 {
        // SAFETY: the same instruction.
        return unsafe {
            if INDEXED {
                Shuffle::<3>::run(warp, ip)
            } else {
                Shuffle::<2>::run(warp, ip)
            }
        };
    }
    for part in 0..4 {
        let mut from = from[part];
        if !INDEXED {
            let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let lanes = _mm256_add_epi32(lanes, _mm256_set1_epi32(8 * part as i32));
            from = _mm256_xor_si256(from, lanes);
        }
        // Bits 3 and 4 of the index choose the part.
        let bit3 = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(from));
        let bit4 = _mm256_castsi256_ps(_mm256_slli_epi32::<27>(from));
        let mut candidates = [_mm256_setzero_ps(); 4];
        for (candidate, words) in candidates.iter_mut().zip(source) {
            *candidate = _mm256_permutevar8x32_ps(_mm256_castsi256_ps(words), from);
        }
        let [a, b, c, d] = candidates;
        let (low, high) = (_mm256_blendv_ps(a, b, bit3), _mm256_blendv_ps(c, d, bit3));
        let value = _mm256_blendv_ps(low, high, bit4);
        // SAFETY: `ops[0]` is a slot of 32 words, which are aligned.
        unsafe { _mm256_store_ps(warp.slot::<f32>(ins.ops[0]).add(8 * part), value) };
    }
    // SAFETY: `ops[1]` is a predicate.
    unsafe { warp.set_pred(ins.ops[1], FULL) };
    ip.wrapping_add(1)
}

pub(crate) fn shuffle(mode: &str) -> Option<Handler> {
    #[cfg(target_arch = "x86_64")]
    if super::op::has_avx2() {
        match mode {
            "bfly" => return Some(shuffle_avx2::<false>),
            "idx" => return Some(shuffle_avx2::<true>),
            _ => {}
        }
    }
    Some(match mode {
        "up" => handler::<Shuffle<0>>(),
        "down" => handler::<Shuffle<1>>(),
        "bfly" => handler::<Shuffle<2>>(),
        "idx" => handler::<Shuffle<3>>(),
        _ => return None,
    })
}

pub(crate) fn vote(mode: &str) -> Option<Handler> {
    Some(match mode {
        "any" => plain_handler::<Vote<0>>(),
        "all" => plain_handler::<Vote<1>>(),
        "uni" => plain_handler::<Vote<2>>(),
        "ballot" => plain_handler::<Vote<3>>(),
        _ => return None,
    })
}

pub(crate) fn matching(mode: &str, ty: &str) -> Option<Handler> {
    Some(match (mode, ty) {
        ("any", "b32") => plain_handler::<Match<u32, false>>(),
        ("any", "b64") => plain_handler::<Match<u64, false>>(),
        ("all", "b32") => plain_handler::<Match<u32, true>>(),
        ("all", "b64") => plain_handler::<Match<u64, true>>(),
        _ => return None,
    })
}

fn reduce_by<F: Fn(u32, u32) -> u32 + Copy>(_: F) -> Handler {
    plain_handler::<Reduce<F>>()
}

pub(crate) fn reduce(operation: &str, ty: &str) -> Option<Handler> {
    Some(match (operation, ty) {
        ("add", "u32" | "s32") => reduce_by(u32::wrapping_add),
        ("min", "u32") => reduce_by(|a: u32, b: u32| a.min(b)),
        ("max", "u32") => reduce_by(|a: u32, b: u32| a.max(b)),
        ("min", "s32") => reduce_by(|a, b| (a as i32).min(b as i32) as u32),
        ("max", "s32") => reduce_by(|a, b| (a as i32).max(b as i32) as u32),
        ("and", "b32") => reduce_by(|a, b| a & b),
        ("or", "b32") => reduce_by(|a, b| a | b),
        ("xor", "b32") => reduce_by(|a, b| a ^ b),
        _ => return None,
    })
}

/// `movmatrix.sync.aligned.m8n8.trans.b16`. `ops`: d, a. Lane 4 g + t holds columns 2 t and 2 t + 1 of row g.
struct MoveMatrix;
impl Op for MoveMatrix {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        if !converged(warp) {
            let live = warp.live;
            return warp.fail_divergent(ip, live);
        }
        // SAFETY: the operand is a slot of 32 lanes.
        let value = unsafe { warp.read::<u32>(ins.ops[1]) };
        let element =
            |row: usize, column: usize| value[4 * row + column / 2] >> (16 * (column % 2)) & 0xffff;
        let transposed: [u32; LANES] = std::array::from_fn(|lane| {
            let (row, column) = (lane / 4, lane % 4 * 2);
            element(column, row) | element(column + 1, row) << 16
        });
        // SAFETY: the operand is a 32-bit destination.
        unsafe { warp.write32(ins.ops[0], &transposed) };
        ip.wrapping_add(1)
    }
}

pub(crate) fn move_matrix() -> Handler {
    plain_handler::<MoveMatrix>()
}

pub(crate) fn active_mask() -> Handler {
    plain_handler::<ActiveMask>()
}
