//! Operands of probes: edge values, noise, and small values of every type.

use half::{bf16, f16};

use super::Kind;

/// One column of a thread's operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fill {
    /// An operand of an elementwise statement, in 8 bytes.
    Operand(Kind),
    /// 4 bytes, in the register `%a` of the column's number.
    Word(Pattern),
    /// 8 bytes, in the register `%b` of the column's number.
    Wide(Pattern),
}

/// What the values of a column are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pattern {
    /// Values around the edges of every type, and noise.
    Edges,
    /// Noise in all bits.
    Noise,
    /// Numbers below this one.
    Below(u32),
    /// As many elements of this type as fit: integers of few bits, so that sums of their products are exact.
    Small(&'static str),
}

/// Edge values of every width and type: integers around powers of two, floats around 0, 1, infinity and NaN.
const EDGES: [u64; 40] = [
    0,
    1,
    2,
    7,
    31,
    32,
    33,
    63,
    64,
    65,
    255,
    0x3c00,
    0x3f80,
    0x7bff,
    0x7c00,
    0x7e00,
    0x7fff,
    0x8000,
    0xbc00,
    0xffff,
    0x0001_0000,
    0x007f_ffff,
    0x0080_0000,
    0x3f00_0000,
    0x3f80_0000,
    0x3f80_0001,
    0x4b00_0001,
    0x7f7f_ffff,
    0x7f80_0000,
    0x7fc0_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xbf80_0000,
    0xff80_0000,
    0xffff_ffff,
    0x3ff0_0000_0000_0000,
    0x7fef_ffff_ffff_ffff,
    0x7ff0_0000_0000_0000,
    0x8000_0000_0000_0000,
    u64::MAX,
];

impl Fill {
    /// Bytes that a value takes.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Fill::Word(_) => 4,
            Fill::Operand(_) | Fill::Wide(_) => 8,
        }
    }

    /// PTX that loads the value, `at` bytes into the thread's operands.
    pub(super) fn load(self, column: usize, at: usize) -> String {
        match self {
            Fill::Operand(kind) => kind.load(column + 1, at),
            Fill::Word(_) => format!("ld.global.b32 %a{column}, [%in+{at}];"),
            Fill::Wide(_) => format!("ld.global.b64 %b{column}, [%in+{at}];"),
        }
    }
}

/// The operands of a form: every edge, then edges and noise of every magnitude, at last equal ones.
pub(super) fn rows(form: &str, columns: &[Fill], rows: usize) -> Vec<Vec<u64>> {
    // FNV-1a of the form seeds splitmix64, so that a probe's rows do not depend on the others.
    let mut state = fnv1a(form.as_bytes());
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let edge = |row: usize, column: usize, pick: u64, noise: u64| {
        if row + 8 >= rows {
            // Equal operands.
            EDGES[5 * (rows - row) % EDGES.len()]
        } else if row < EDGES.len() {
            // Every edge once in every operand.
            EDGES[(row * (2 * column + 1) + 7 * column) % EDGES.len()]
        } else if pick & 1 == 0 {
            EDGES[(pick >> 8) as usize % EDGES.len()]
        } else {
            noise >> (pick >> 8 & 63)
        }
    };
    let mut one = |row: usize, column: usize, fill: Fill| {
        let (pick, noise) = (next(), next());
        let (pattern, mask) = match fill {
            Fill::Operand(kind) => (Pattern::Edges, kind.mask()),
            Fill::Word(pattern) => (pattern, 0xffff_ffff),
            Fill::Wide(pattern) => (pattern, u64::MAX),
        };
        let value = match pattern {
            Pattern::Edges => edge(row, column, pick, noise),
            Pattern::Noise => noise,
            Pattern::Below(end) => noise % u64::from(end.max(1)),
            Pattern::Small(ty) => small(ty, noise),
        };
        value & mask
    };
    (0..rows)
        .map(|row| {
            let columns = columns.iter().enumerate();
            columns
                .map(|(column, &fill)| one(row, column, fill))
                .collect()
        })
        .collect()
}

/// FNV-1a, 64 bits.
pub(super) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Bits of an element; 0 for types that are no element.
pub(super) fn bits(ty: &str) -> u32 {
    match ty {
        "f64" => 64,
        "f32" | "tf32" | "s32" | "u32" => 32,
        "f16" | "bf16" => 16,
        "e4m3" | "e5m2" | "s8" | "u8" => 8,
        "s4" | "u4" => 4,
        "b1" => 1,
        _ => 0,
    }
}

/// 64 bits full of elements, made of noise: integers from -4 to 4 in floating-point types, any value in integer ones of up
/// to 8 bits, 16 bits with a sign in wider ones.
fn small(ty: &str, mut noise: u64) -> u64 {
    let width = bits(ty);
    if matches!(width, 1 | 4) || matches!(ty, "s8" | "u8") {
        return noise;
    }
    let mut all = 0;
    for at in (0..64).step_by(width.max(8) as usize) {
        let x = (noise % 9) as i64 - 4;
        let wide = i64::from(noise as i16);
        noise = noise.rotate_right(7).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let code = match ty {
            "f64" => (x as f64).to_bits(),
            "f32" | "tf32" => (x as f32).to_bits().into(),
            "f16" => f16::from_f64(x as f64).to_bits().into(),
            "bf16" => bf16::from_f64(x as f64).to_bits().into(),
            // Exponents and mantissas of 0 to 4.
            "e4m3" => [0u64, 0x38, 0x40, 0x44, 0x48][x.unsigned_abs() as usize] | sign(x),
            "e5m2" => [0u64, 0x3c, 0x40, 0x42, 0x44][x.unsigned_abs() as usize] | sign(x),
            _ => wide as u64 & 0xffff_ffff,
        };
        all |= code << at;
    }
    all
}

fn sign(x: i64) -> u64 {
    if x < 0 { 0x80 } else { 0 }
}

/// Whether NaNs of a type have to be made equal.
pub(super) fn is_float(ty: &str) -> bool {
    matches!(ty, "f16" | "bf16" | "f16x2" | "bf16x2" | "f32" | "f64")
}

/// Replaces every NaN by the one that PTX calls canonical.
pub(super) fn canonical_nans(ty: &str, words: &mut [u32]) {
    let half = |bits: u16| {
        let nan = if ty.starts_with('b') {
            bf16::from_bits(bits).is_nan()
        } else {
            f16::from_bits(bits).is_nan()
        };
        if nan { 0x7fff } else { bits }
    };
    match ty {
        "f64" => {
            for pair in words.chunks_exact_mut(2) {
                if f64::from_bits(u64::from(pair[0]) | u64::from(pair[1]) << 32).is_nan() {
                    pair.copy_from_slice(&[0xffff_ffff, 0x7fff_ffff]);
                }
            }
        }
        "f32" => {
            for word in words.iter_mut().filter(|w| f32::from_bits(**w).is_nan()) {
                *word = 0x7fff_ffff;
            }
        }
        _ => {
            for word in words {
                let (low, high) = (half(*word as u16), half((*word >> 16) as u16));
                *word = u32::from(low) | u32::from(high) << 16;
            }
        }
    }
}
