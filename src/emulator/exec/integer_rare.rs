//! Integer instructions that kernels hardly ever run.

use super::op::{Selected, rare};

/// Two-operand instruction.
pub(super) fn select2(base: &str, ty: &str) -> Option<Selected> {
    use rare::binary;
    Some(match (base, ty) {
        ("min", "u16x2") => binary(|a: u32, b: u32| each(a, b, |x, y| x.min(y))),
        ("max", "u16x2") => binary(|a: u32, b: u32| each(a, b, |x, y| x.max(y))),
        ("min", "s16x2") => binary(|a: u32, b: u32| each_signed(a, b, |x, y| x.min(y))),
        ("max", "s16x2") => binary(|a: u32, b: u32| each_signed(a, b, |x, y| x.max(y))),
        ("min.relu", "s16x2") => binary(|a: u32, b: u32| each_signed(a, b, |x, y| x.min(y).max(0))),
        ("max.relu", "s16x2") => binary(|a: u32, b: u32| each_signed(a, b, |x, y| x.max(y).max(0))),
        ("mul24.hi", "u32") => binary(|a: u32, b: u32| {
            ((u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff)) >> 16) as u32
        }),
        ("mul24.hi", "s32") => binary(|a: i32, b: i32| high24(a, b)),
        ("szext.clamp", "u32") => binary(
            |a: u32, b: u32| {
                if b >= 32 { a } else { a & ((1 << b) - 1) }
            },
        ),
        ("szext.wrap", "u32") => binary(|a: u32, b: u32| a & ((1 << (b & 31)) - 1)),
        ("szext.clamp", "s32") => binary(|a: u32, b: u32| sign_extend(a, b.min(32))),
        ("szext.wrap", "s32") => binary(|a: u32, b: u32| sign_extend(a, b & 31)),
        _ => return None,
    })
}

/// Three-operand instruction.
pub(super) fn select3(base: &str, ty: &str) -> Option<Selected> {
    use rare::ternary;
    Some(match (base, ty) {
        ("mad.hi", "u16") => ternary(|a: u16, b: u16, c: u16| {
            (((u32::from(a) * u32::from(b)) >> 16) as u16).wrapping_add(c)
        }),
        ("mad.hi", "s16") => ternary(|a: i16, b: i16, c: i16| {
            (((i32::from(a) * i32::from(b)) >> 16) as i16).wrapping_add(c)
        }),
        ("mad.hi.sat", "s32") => ternary(|a: i32, b: i32, c: i32| {
            (((i64::from(a) * i64::from(b)) >> 32) as i32).saturating_add(c)
        }),
        ("mad24.hi", "u32") => ternary(|a: u32, b: u32, c: u32| {
            (((u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff)) >> 16) as u32).wrapping_add(c)
        }),
        ("mad24.hi", "s32") => ternary(|a: i32, b: i32, c: i32| high24(a, b).wrapping_add(c)),
        ("mad24.hi.sat", "s32") => ternary(|a: i32, b: i32, c: i32| high24(a, b).saturating_add(c)),
        ("sad", "u16") => ternary(|a: u16, b: u16, c: u16| c.wrapping_add(a.abs_diff(b))),
        ("sad", "s16") => ternary(|a: i16, b: i16, c: u16| c.wrapping_add(a.abs_diff(b))),
        ("sad", "u64") => ternary(|a: u64, b: u64, c: u64| c.wrapping_add(a.abs_diff(b))),
        ("sad", "s64") => ternary(|a: i64, b: i64, c: u64| c.wrapping_add(a.abs_diff(b))),
        ("dp4a.u32", "s32") => ternary(|a: u32, b: u32, c: u32| dot4(a, b, c, false, true)),
        ("dp4a.s32", "u32") => ternary(|a: u32, b: u32, c: u32| dot4(a, b, c, true, false)),
        ("dp2a.lo.u32", "u32") => ternary(|a: u32, b: u32, c: u32| dot2(a, b, c, false, false)),
        ("dp2a.lo.u32", "s32") => ternary(|a: u32, b: u32, c: u32| dot2(a, b, c, false, true)),
        ("dp2a.lo.s32", "u32") => ternary(|a: u32, b: u32, c: u32| dot2(a, b, c, true, false)),
        ("dp2a.lo.s32", "s32") => ternary(|a: u32, b: u32, c: u32| dot2(a, b, c, true, true)),
        ("dp2a.hi.u32", "u32") => {
            ternary(|a: u32, b: u32, c: u32| dot2(a, b >> 16, c, false, false))
        }
        ("dp2a.hi.u32", "s32") => {
            ternary(|a: u32, b: u32, c: u32| dot2(a, b >> 16, c, false, true))
        }
        ("dp2a.hi.s32", "u32") => {
            ternary(|a: u32, b: u32, c: u32| dot2(a, b >> 16, c, true, false))
        }
        ("dp2a.hi.s32", "s32") => ternary(|a: u32, b: u32, c: u32| dot2(a, b >> 16, c, true, true)),
        ("fns", "b32") => ternary(find_nth_set),
        _ => return None,
    })
}

fn each(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(f(a as u16, b as u16)) | u32::from(f((a >> 16) as u16, (b >> 16) as u16)) << 16
}

fn each_signed(a: u32, b: u32, f: impl Fn(i16, i16) -> i16) -> u32 {
    each(a, b, |x, y| f(x as i16, y as i16) as u16)
}

/// Bits 16 to 47 of the product of two signed 24-bit numbers.
fn high24(a: i32, b: i32) -> i32 {
    ((i64::from(a << 8 >> 8) * i64::from(b << 8 >> 8)) >> 16) as i32
}

/// The low `bits` bits, sign-extended.
fn sign_extend(a: u32, bits: u32) -> u32 {
    match bits {
        0 => 0,
        32.. => a,
        _ => ((a << (32 - bits)) as i32 >> (32 - bits)) as u32,
    }
}

fn byte(word: u32, index: u32, signed: bool) -> i32 {
    let byte = (word >> (8 * index)) as u8;
    if signed {
        i32::from(byte as i8)
    } else {
        i32::from(byte)
    }
}

fn dot4(a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool) -> u32 {
    (0..4).fold(c, |sum, i| {
        sum.wrapping_add((byte(a, i, a_signed) * byte(b, i, b_signed)) as u32)
    })
}

/// Two 16-bit values of `a` times the two low bytes of `b`.
fn dot2(a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool) -> u32 {
    (0..2).fold(c, |sum, i| {
        let half = (a >> (16 * i)) as u16;
        let x = if a_signed {
            i32::from(half as i16)
        } else {
            i32::from(half)
        };
        sum.wrapping_add(x.wrapping_mul(byte(b, i, b_signed)) as u32)
    })
}

/// `fns`: position of the n-th set bit from `base` on, upwards for positive n and downwards for negative; `base` itself for
/// 0, if set. All ones if there is none.
fn find_nth_set(mask: u32, base: u32, offset: i32) -> u32 {
    let base = base & 31;
    let set = |position: i32| mask >> position & 1 != 0;
    let (step, mut left) = match offset {
        0 => return if set(base as i32) { base } else { u32::MAX },
        1.. => (1, offset),
        _ => (-1, offset.saturating_neg()),
    };
    let mut position = base as i32;
    while (0..32).contains(&position) {
        if set(position) {
            left -= 1;
            if left == 0 {
                return position as u32;
            }
        }
        position += step;
    }
    u32::MAX
}
