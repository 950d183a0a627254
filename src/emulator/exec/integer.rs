//! Integer arithmetic, bit manipulation and logic.

use super::integer_rare;
use super::op::{Selected, binary, predicate, rare, ternary, unary};

/// Two-operand instruction `base.ty` without modifiers that change its meaning.
pub(crate) fn select2(base: &str, ty: &str) -> Option<Selected> {
    Some(match (base, ty) {
        ("add", "u16" | "s16") => rare::binary(|a: u16, b: u16| a.wrapping_add(b)),
        ("add", "u32" | "s32") => binary(|a: u32, b: u32| a.wrapping_add(b)),
        ("add", "u64" | "s64") => binary(|a: u64, b: u64| a.wrapping_add(b)),
        ("add.sat", "s32") => rare::binary(|a: i32, b: i32| a.saturating_add(b)),
        ("add", "u16x2" | "s16x2") => rare::binary(|a: u32, b: u32| {
            ((a & 0x7fff_7fff).wrapping_add(b & 0x7fff_7fff)) ^ ((a ^ b) & 0x8000_8000)
        }),
        ("sub", "u16" | "s16") => rare::binary(|a: u16, b: u16| a.wrapping_sub(b)),
        ("sub", "u32" | "s32") => binary(|a: u32, b: u32| a.wrapping_sub(b)),
        ("sub", "u64" | "s64") => binary(|a: u64, b: u64| a.wrapping_sub(b)),
        ("sub.sat", "s32") => rare::binary(|a: i32, b: i32| a.saturating_sub(b)),
        ("mul.lo", "u16" | "s16") => rare::binary(|a: u16, b: u16| a.wrapping_mul(b)),
        ("mul.lo", "u32" | "s32") => binary(|a: u32, b: u32| a.wrapping_mul(b)),
        ("mul.lo", "u64" | "s64") => binary(|a: u64, b: u64| a.wrapping_mul(b)),
        ("mul.hi", "u16") => {
            rare::binary(|a: u16, b: u16| ((u32::from(a) * u32::from(b)) >> 16) as u16)
        }
        ("mul.hi", "s16") => {
            rare::binary(|a: i16, b: i16| ((i32::from(a) * i32::from(b)) >> 16) as i16)
        }
        ("mul.hi", "u32") => {
            rare::binary(|a: u32, b: u32| ((u64::from(a) * u64::from(b)) >> 32) as u32)
        }
        ("mul.hi", "s32") => {
            rare::binary(|a: i32, b: i32| ((i64::from(a) * i64::from(b)) >> 32) as i32)
        }
        ("mul.hi", "u64") => {
            rare::binary(|a: u64, b: u64| ((u128::from(a) * u128::from(b)) >> 64) as u64)
        }
        ("mul.hi", "s64") => {
            rare::binary(|a: i64, b: i64| ((i128::from(a) * i128::from(b)) >> 64) as i64)
        }
        ("mul.wide", "u16") => binary(|a: u16, b: u16| u32::from(a) * u32::from(b)),
        ("mul.wide", "s16") => binary(|a: i16, b: i16| i32::from(a) * i32::from(b)),
        ("mul.wide", "u32") => binary(|a: u32, b: u32| u64::from(a) * u64::from(b)),
        ("mul.wide", "s32") => binary(|a: i32, b: i32| i64::from(a) * i64::from(b)),
        ("mul24.lo", "u32") => {
            rare::binary(|a: u32, b: u32| (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff))
        }
        ("mul24.lo", "s32") => {
            rare::binary(|a: i32, b: i32| (a << 8 >> 8).wrapping_mul(b << 8 >> 8))
        }
        ("div", "u16") => rare::binary(|a: u16, b: u16| a.checked_div(b).unwrap_or(u16::MAX)),
        ("div", "s16") => {
            rare::binary(|a: i16, b: i16| if b == 0 { -1 } else { a.wrapping_div(b) })
        }
        // Division by zero is unspecified; all ones is what hardware gives.
        ("div", "u32") => rare::binary(|a: u32, b: u32| a.checked_div(b).unwrap_or(u32::MAX)),
        ("div", "s32") => {
            rare::binary(|a: i32, b: i32| if b == 0 { -1 } else { a.wrapping_div(b) })
        }
        ("div", "u64") => rare::binary(|a: u64, b: u64| a.checked_div(b).unwrap_or(u64::MAX)),
        ("div", "s64") => {
            rare::binary(|a: i64, b: i64| if b == 0 { -1 } else { a.wrapping_div(b) })
        }
        ("rem", "u16") => rare::binary(|a: u16, b: u16| a.checked_rem(b).unwrap_or(a)),
        ("rem", "s16") => rare::binary(|a: i16, b: i16| if b == 0 { a } else { a.wrapping_rem(b) }),
        ("rem", "u32") => rare::binary(|a: u32, b: u32| a.checked_rem(b).unwrap_or(a)),
        ("rem", "s32") => rare::binary(|a: i32, b: i32| if b == 0 { a } else { a.wrapping_rem(b) }),
        ("rem", "u64") => rare::binary(|a: u64, b: u64| a.checked_rem(b).unwrap_or(a)),
        ("rem", "s64") => rare::binary(|a: i64, b: i64| if b == 0 { a } else { a.wrapping_rem(b) }),
        ("min", "u16") => rare::binary(|a: u16, b: u16| a.min(b)),
        ("min", "s16") => rare::binary(|a: i16, b: i16| a.min(b)),
        ("min", "u32") => binary(|a: u32, b: u32| a.min(b)),
        ("min", "s32") => binary(|a: i32, b: i32| a.min(b)),
        ("min", "u64") => binary(|a: u64, b: u64| a.min(b)),
        ("min", "s64") => binary(|a: i64, b: i64| a.min(b)),
        ("max", "u16") => rare::binary(|a: u16, b: u16| a.max(b)),
        ("max", "s16") => rare::binary(|a: i16, b: i16| a.max(b)),
        ("max", "u32") => binary(|a: u32, b: u32| a.max(b)),
        ("max", "s32") => binary(|a: i32, b: i32| a.max(b)),
        ("max.relu", "s32") => rare::binary(|a: i32, b: i32| a.max(b).max(0)),
        ("min.relu", "s32") => rare::binary(|a: i32, b: i32| a.min(b).max(0)),
        ("max", "u64") => binary(|a: u64, b: u64| a.max(b)),
        ("max", "s64") => binary(|a: i64, b: i64| a.max(b)),
        ("and", "pred") => predicate(|a, b| a & b),
        ("or", "pred") => predicate(|a, b| a | b),
        ("xor", "pred") => predicate(|a, b| a ^ b),
        ("and", "b16") => rare::binary(|a: u16, b: u16| a & b),
        ("or", "b16") => rare::binary(|a: u16, b: u16| a | b),
        ("xor", "b16") => rare::binary(|a: u16, b: u16| a ^ b),
        ("and", "b32") => binary(|a: u32, b: u32| a & b),
        ("or", "b32") => binary(|a: u32, b: u32| a | b),
        ("xor", "b32") => binary(|a: u32, b: u32| a ^ b),
        ("and", "b64") => binary(|a: u64, b: u64| a & b),
        ("or", "b64") => binary(|a: u64, b: u64| a | b),
        ("xor", "b64") => binary(|a: u64, b: u64| a ^ b),
        ("shl", "b16") => rare::binary(|a: u16, b: u32| if b < 16 { a << b } else { 0 }),
        ("shl", "b32") => binary(|a: u32, b: u32| if b < 32 { a << b } else { 0 }),
        ("shl", "b64") => binary(|a: u64, b: u32| if b < 64 { a << b } else { 0 }),
        ("shr", "u16" | "b16") => rare::binary(|a: u16, b: u32| if b < 16 { a >> b } else { 0 }),
        ("shr", "s16") => rare::binary(|a: i16, b: u32| a >> b.min(15)),
        ("shr", "u32" | "b32") => binary(|a: u32, b: u32| if b < 32 { a >> b } else { 0 }),
        ("shr", "s32") => binary(|a: i32, b: u32| a >> b.min(31)),
        ("shr", "u64" | "b64") => binary(|a: u64, b: u32| if b < 64 { a >> b } else { 0 }),
        ("shr", "s64") => binary(|a: i64, b: u32| a >> b.min(63)),
        ("bmsk.clamp", "b32") => rare::binary(|a: u32, b: u32| {
            let ones = if b >= 32 { u32::MAX } else { (1 << b) - 1 };
            if a >= 32 { 0 } else { ones << a }
        }),
        ("bmsk.wrap", "b32") => rare::binary(|a: u32, b: u32| ((1 << (b & 31)) - 1) << (a & 31)),
        _ => return integer_rare::select2(base, ty),
    })
}

/// One-operand instruction.
pub(crate) fn select1(base: &str, ty: &str) -> Option<Selected> {
    Some(match (base, ty) {
        ("neg", "s16") => rare::unary(|a: u16| a.wrapping_neg()),
        ("neg", "s32") => unary(|a: u32| a.wrapping_neg()),
        ("neg", "s64") => unary(|a: u64| a.wrapping_neg()),
        ("abs", "s16") => rare::unary(|a: i16| a.wrapping_abs()),
        ("abs", "s32") => unary(|a: i32| a.wrapping_abs()),
        ("abs", "s64") => unary(|a: i64| a.wrapping_abs()),
        ("not", "b16") => rare::unary(|a: u16| !a),
        ("not", "b32") => unary(|a: u32| !a),
        ("not", "b64") => unary(|a: u64| !a),
        ("cnot", "b16") => rare::unary(|a: u16| u16::from(a == 0)),
        ("cnot", "b32") => rare::unary(|a: u32| u32::from(a == 0)),
        ("cnot", "b64") => rare::unary(|a: u64| u64::from(a == 0)),
        ("popc", "b32") => unary(|a: u32| a.count_ones()),
        ("popc", "b64") => unary(|a: u64| a.count_ones()),
        ("clz", "b32") => rare::unary(|a: u32| a.leading_zeros()),
        ("clz", "b64") => rare::unary(|a: u64| a.leading_zeros()),
        ("brev", "b32") => rare::unary(|a: u32| a.reverse_bits()),
        ("brev", "b64") => rare::unary(|a: u64| a.reverse_bits()),
        ("bfind", "u32") => rare::unary(|a: u32| 31u32.wrapping_sub(a.leading_zeros())),
        ("bfind", "s32") => rare::unary(|a: u32| {
            31u32.wrapping_sub((a ^ ((a as i32) >> 31) as u32).leading_zeros())
        }),
        ("bfind", "u64") => rare::unary(|a: u64| 63u32.wrapping_sub(a.leading_zeros())),
        ("bfind", "s64") => rare::unary(|a: u64| {
            63u32.wrapping_sub((a ^ ((a as i64) >> 63) as u64).leading_zeros())
        }),
        ("bfind.shiftamt", "u32") => {
            rare::unary(|a: u32| if a == 0 { u32::MAX } else { a.leading_zeros() })
        }
        ("bfind.shiftamt", "s32") => rare::unary(|a: u32| {
            let a = a ^ ((a as i32) >> 31) as u32;
            if a == 0 { u32::MAX } else { a.leading_zeros() }
        }),
        ("bfind.shiftamt", "u64") => {
            rare::unary(|a: u64| if a == 0 { u32::MAX } else { a.leading_zeros() })
        }
        ("bfind.shiftamt", "s64") => rare::unary(|a: u64| {
            let a = a ^ ((a as i64) >> 63) as u64;
            if a == 0 { u32::MAX } else { a.leading_zeros() }
        }),
        _ => return None,
    })
}

/// Three-operand instruction.
pub(crate) fn select3(base: &str, ty: &str) -> Option<Selected> {
    Some(match (base, ty) {
        ("mad.lo", "u16" | "s16") => {
            rare::ternary(|a: u16, b: u16, c: u16| a.wrapping_mul(b).wrapping_add(c))
        }
        ("mad.lo", "u32" | "s32") => {
            ternary(|a: u32, b: u32, c: u32| a.wrapping_mul(b).wrapping_add(c))
        }
        ("mad.lo", "u64" | "s64") => {
            ternary(|a: u64, b: u64, c: u64| a.wrapping_mul(b).wrapping_add(c))
        }
        ("mad.hi", "u32") => rare::ternary(|a: u32, b: u32, c: u32| {
            (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c)
        }),
        ("mad.hi", "s32") => rare::ternary(|a: i32, b: i32, c: i32| {
            (((i64::from(a) * i64::from(b)) >> 32) as i32).wrapping_add(c)
        }),
        ("mad.hi", "u64") => rare::ternary(|a: u64, b: u64, c: u64| {
            (((u128::from(a) * u128::from(b)) >> 64) as u64).wrapping_add(c)
        }),
        ("mad.hi", "s64") => rare::ternary(|a: i64, b: i64, c: i64| {
            (((i128::from(a) * i128::from(b)) >> 64) as i64).wrapping_add(c)
        }),
        ("mad.wide", "u16") => {
            rare::ternary(|a: u16, b: u16, c: u32| (u32::from(a) * u32::from(b)).wrapping_add(c))
        }
        ("mad.wide", "s16") => {
            rare::ternary(|a: i16, b: i16, c: i32| (i32::from(a) * i32::from(b)).wrapping_add(c))
        }
        ("mad.wide", "u32") => {
            ternary(|a: u32, b: u32, c: u64| (u64::from(a) * u64::from(b)).wrapping_add(c))
        }
        ("mad.wide", "s32") => {
            ternary(|a: i32, b: i32, c: i64| (i64::from(a) * i64::from(b)).wrapping_add(c))
        }
        ("mad24.lo", "u32") => rare::ternary(|a: u32, b: u32, c: u32| {
            (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff).wrapping_add(c)
        }),
        ("mad24.lo", "s32") => rare::ternary(|a: i32, b: i32, c: i32| {
            (a << 8 >> 8).wrapping_mul(b << 8 >> 8).wrapping_add(c)
        }),
        ("sad", "u32") => rare::ternary(|a: u32, b: u32, c: u32| c.wrapping_add(a.abs_diff(b))),
        ("sad", "s32") => rare::ternary(|a: i32, b: i32, c: u32| c.wrapping_add(a.abs_diff(b))),
        ("shf.l.wrap", "b32") => ternary(|a: u32, b: u32, c: u32| funnel_left(a, b, c & 31)),
        ("shf.l.clamp", "b32") => ternary(|a: u32, b: u32, c: u32| funnel_left(a, b, c.min(32))),
        ("shf.r.wrap", "b32") => ternary(|a: u32, b: u32, c: u32| funnel_right(a, b, c & 31)),
        ("shf.r.clamp", "b32") => ternary(|a: u32, b: u32, c: u32| funnel_right(a, b, c.min(32))),
        ("bfe", "u32") => rare::ternary(extract_u32),
        ("bfe", "s32") => rare::ternary(extract_s32),
        ("bfe", "u64") => rare::ternary(extract_u64),
        ("bfe", "s64") => rare::ternary(extract_s64),
        ("prmt", "b32") => ternary(permute),
        ("prmt.f4e", "b32") => rare::ternary(|a: u32, b: u32, c: u32| {
            permute(a, b, 0x3210u32.wrapping_add(0x1111 * (c & 3)))
        }),
        ("prmt.b4e", "b32") => rare::ternary(|a: u32, b: u32, c: u32| {
            permute(a, b, [0x5670, 0x6701, 0x7012, 0x0123][(c & 3) as usize])
        }),
        ("prmt.rc8", "b32") => {
            rare::ternary(|a: u32, b: u32, c: u32| permute(a, b, 0x1111 * (c & 3)))
        }
        ("prmt.ecl", "b32") => rare::ternary(|a: u32, b: u32, c: u32| {
            permute(a, b, [0x3210, 0x3211, 0x3222, 0x3333][(c & 3) as usize])
        }),
        ("prmt.ecr", "b32") => rare::ternary(|a: u32, b: u32, c: u32| {
            permute(a, b, [0x0000, 0x1110, 0x2210, 0x3210][(c & 3) as usize])
        }),
        ("prmt.rc16", "b32") => rare::ternary(|a: u32, b: u32, c: u32| {
            permute(a, b, if c & 1 == 0 { 0x1010 } else { 0x3232 })
        }),
        ("dp4a.u32", "u32") => rare::ternary(|a: u32, b: u32, c: u32| {
            (0..4).fold(c, |sum, i| {
                sum.wrapping_add((a >> (8 * i) & 255) * (b >> (8 * i) & 255))
            })
        }),
        ("dp4a.s32", "s32") => rare::ternary(|a: u32, b: u32, c: i32| {
            (0..4).fold(c, |sum, i| {
                sum.wrapping_add(i32::from((a >> (8 * i)) as i8) * i32::from((b >> (8 * i)) as i8))
            })
        }),
        _ => return integer_rare::select3(base, ty),
    })
}

/// Upper 32 bits of `b:a << n`, n up to 32.
#[inline(always)]
fn funnel_left(a: u32, b: u32, n: u32) -> u32 {
    ((u64::from(b) << 32 | u64::from(a)) << n >> 32) as u32
}

/// Lower 32 bits of `b:a >> n`, n up to 32.
#[inline(always)]
fn funnel_right(a: u32, b: u32, n: u32) -> u32 {
    ((u64::from(b) << 32 | u64::from(a)) >> n) as u32
}

#[inline(always)]
fn extract_u32(a: u32, position: u32, length: u32) -> u32 {
    extract_u64(a.into(), position, length) as u32
}

#[inline(always)]
fn extract_s32(a: i32, position: u32, length: u32) -> i32 {
    // Beyond bit 31 the field is filled with the sign, as is a field of more than 32 bits.
    let (position, length) = (position & 255, length & 255);
    if length == 0 {
        return 0;
    }
    let shifted = a >> position.min(31);
    if length >= 32 || position + length > 32 {
        return shifted;
    }
    shifted << (32 - length) >> (32 - length)
}

#[inline(always)]
fn extract_u64(a: u64, position: u32, length: u32) -> u64 {
    let (position, length) = (position & 255, length & 255);
    let shifted = if position < 64 { a >> position } else { 0 };
    if length < 64 {
        shifted & ((1 << length) - 1)
    } else {
        shifted
    }
}

#[inline(always)]
fn extract_s64(a: i64, position: u32, length: u32) -> i64 {
    let (position, length) = (position & 255, length & 255);
    if length == 0 {
        return 0;
    }
    let shifted = a >> position.min(63);
    if length >= 64 || position + length > 64 {
        return shifted;
    }
    shifted << (64 - length) >> (64 - length)
}

/// `prmt` in its default mode: each nibble of `selector` picks a byte of `b:a`, or its sign.
#[inline(always)]
fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    let mut result = 0;
    for i in 0..4 {
        let pick = selector >> (4 * i) & 15;
        let byte = (bytes >> (8 * (pick & 7))) as u8;
        let byte = if pick & 8 != 0 {
            (byte as i8 >> 7) as u8
        } else {
            byte
        };
        result |= u32::from(byte) << (8 * i);
    }
    result
}

/// `bfi`: inserts the low `length` bits of `a` into `b` at `position`; bits past the end are dropped.
#[inline(always)]
pub(crate) fn insert_u64(a: u64, b: u64, position: u32, length: u32, width: u32) -> u64 {
    let (position, length) = (position & 255, length & 255);
    if position >= width || length == 0 {
        return b;
    }
    let length = length.min(width - position);
    let field = (if length < 64 {
        (1u64 << length) - 1
    } else {
        u64::MAX
    }) << position;
    (b & !field) | (a << position & field)
}

/// `lop3`: bit i of the table is the result for the operand bits `a b c` = i.
#[inline(always)]
pub(crate) fn lop3(a: u32, b: u32, c: u32, table: u32) -> u32 {
    let mut result = 0;
    for i in 0..8 {
        let term = (if i & 4 != 0 { a } else { !a })
            & (if i & 2 != 0 { b } else { !b })
            & (if i & 1 != 0 { c } else { !c });
        result |= if table >> i & 1 != 0 { term } else { 0 };
    }
    result
}
