//! Models of `ldmatrix`, `stmatrix`, `mma`, by the PTX ISA's formulas for where elements lie.

use super::Scene;
use half::{bf16, f16};

pub fn model(scene: &Scene<'_>) -> Vec<Vec<u32>> {
    match scene.parts()[0] {
        "mma" => product(scene),
        "wmma" => super::wmma::model(scene),
        "ldmatrix" | "stmatrix" => moved(scene),
        "movmatrix" => transposed(scene),
        _ => panic!("{}: no model", scene.form),
    }
}

/// Bits of an element.
pub fn bits(ty: &str) -> usize {
    match ty {
        "f64" => 64,
        "tf32" => 32,
        "f16" | "bf16" => 16,
        "s4" | "u4" => 4,
        "b1" => 1,
        _ => 8,
    }
}

/// The number that a code of the type is.
pub fn decode(ty: &str, code: u64) -> f64 {
    // Sign, exponent with a bias, mantissa.
    let short = |mantissa: u32, bias: i32| {
        let exponent = (code as u32 >> mantissa & (0x7f >> mantissa)) as i32;
        let fraction = f64::from(code as u32 & ((1 << mantissa) - 1)) / f64::from(1 << mantissa);
        let x = if exponent == 0 {
            fraction * 2f64.powi(1 - bias)
        } else {
            (1.0 + fraction) * 2f64.powi(exponent - bias)
        };
        if code & 0x80 == 0 { x } else { -x }
    };
    match ty {
        "f64" => f64::from_bits(code),
        "tf32" => f32::from_bits(code as u32 & !0x1fff).into(),
        "f32" => f32::from_bits(code as u32).into(),
        "f16" => f16::from_bits(code as u16).into(),
        "bf16" => bf16::from_bits(code as u16).into(),
        "e4m3" => short(3, 7),
        "e5m2" => short(2, 15),
        "s32" => (code as u32 as i32).into(),
        "s8" => (code as u8 as i8).into(),
        "s4" => ((code as u8) << 4) as i8 as f64 / 16.0,
        _ => code as f64,
    }
}

fn half_of(word: u64, index: usize) -> u32 {
    (word >> (16 * index)) as u32 & 0xffff
}

/// Lane 8 m + r gives row r of matrix m; lane l has elements 2 (l % 4) and the next of row l / 4, or of that column.
fn moved(scene: &Scene<'_>) -> Vec<Vec<u32>> {
    let parts = scene.parts();
    let count: usize = parts[4][1..].parse().expect("a count");
    let (trans, rows) = (scene.has("trans"), &scene.rows);
    let pair = |f: &dyn Fn(usize) -> u32| f(0) | f(1) << 16;
    if parts[0] == "ldmatrix" {
        return scene.each(|lane, _| {
            let element = |matrix: usize, row: usize, column: usize| {
                half_of(rows[8 * matrix + row][column / 2], column % 2)
            };
            let one = |matrix| {
                pair(&|j| {
                    let (row, column) = (lane / 4, lane % 4 * 2 + j);
                    if trans {
                        element(matrix, column, row)
                    } else {
                        element(matrix, row, column)
                    }
                })
            };
            (0..count).map(one).collect()
        });
    }
    scene.each(|lane, _| {
        let (matrix, row) = (lane / 8, lane % 8);
        if matrix >= count {
            return vec![0; 4];
        }
        let one = |word: usize| {
            pair(&|j| {
                let (row, column) = if trans {
                    (2 * word + j, row)
                } else {
                    (row, 2 * word + j)
                };
                half_of(rows[4 * row + column / 2][matrix], column % 2)
            })
        };
        (0..4).map(one).collect()
    })
}

/// Lane l has elements 2 (l % 4) and the next of row l / 4, before as of the transposed matrix.
fn transposed(scene: &Scene<'_>) -> Vec<Vec<u32>> {
    let element =
        |row: usize, column: usize| half_of(scene.rows[4 * row + column / 2][0], column % 2);
    scene.each(|lane, _| {
        let (row, column) = (lane / 4, lane % 4 * 2);
        vec![element(column, row) | element(column + 1, row) << 16]
    })
}

fn product(scene: &Scene<'_>) -> Vec<Vec<u32>> {
    let parts = scene.parts();
    let saturate = scene.has("satfinite");
    let shape: Vec<usize> = parts[3]
        .split(['m', 'n', 'k'])
        .filter_map(|n| n.parse().ok())
        .collect();
    let (m, k) = (shape[0], shape[2]);
    let at = if saturate { 7 } else { 6 };
    let (d_type, a_type, b_type) = (parts[at], parts[at + 1], parts[at + 2]);
    let width = bits(a_type);
    // Elements of a register.
    let e = if width == 64 { 1 } else { 32 / width };
    let (a_count, b_count) = (m * k / 32 / e, k / 4 / e);
    let d_count = if d_type == "f16" { m / 8 } else { m / 4 };
    let mask = |ty: &str| match (saturate, ty) {
        (true, "s8") => 0x7f7f_7f7f,
        (true, "s4") => 0x7777_7777,
        _ => u64::MAX,
    };
    let code = |word: u64, index: usize| {
        let low = if width == 64 {
            u64::MAX
        } else {
            (1 << width) - 1
        };
        word >> (width * index) & low
    };
    let mut a = vec![vec![0.0; k]; m];
    let mut b = vec![vec![0.0; 8]; k];
    for (lane, words) in scene.rows.iter().enumerate() {
        let (group, thread) = (lane / 4, lane % 4);
        for i in 0..a_count * e {
            // Registers alternate between the two halves of the rows, then move on in k.
            let block = i / e;
            let row = group + if m == 16 && block % 2 == 1 { 8 } else { 0 };
            let far = if m == 16 { block / 2 } else { block };
            let column = thread * e + i % e + 4 * e * far;
            a[row][column] = decode(a_type, code(words[block] & mask(a_type), i % e));
        }
        for i in 0..b_count * e {
            let row = thread * e + i % e + 4 * e * (i / e);
            let word = words[a_count + i / e] & mask(b_type);
            b[row][group] = decode(b_type, code(word, i % e));
        }
    }
    let sum = |row: usize, column: usize, c: f64| {
        let products = (0..k).map(|i| {
            if scene.has("xor") {
                f64::from(u8::from(a[row][i] != b[i][column]))
            } else {
                a[row][i] * b[i][column]
            }
        });
        c + products.sum::<f64>()
    };
    scene.each(|lane, words| {
        let (group, thread) = (lane / 4, lane % 4);
        let one = |i: usize| -> Vec<u32> {
            let c = words[a_count + b_count + i];
            if d_type == "f16" {
                let half = |j| {
                    let c = decode("f16", half_of(c, j).into());
                    let x = sum(group + 8 * i, 2 * thread + j, c);
                    u32::from(f16::from_f64(x).to_bits())
                };
                return vec![half(0) | half(1) << 16];
            }
            let c = if saturate {
                (c | 0x7fff_0000) & 0x7fff_ffff
            } else {
                c
            };
            let row = group + if i < 2 { 0 } else { 8 };
            let x = sum(row, 2 * thread + i % 2, decode(d_type, c));
            match d_type {
                "f64" => vec![x.to_bits() as u32, (x.to_bits() >> 32) as u32],
                "f32" => vec![(x as f32).to_bits()],
                // Conversions to i32 saturate.
                _ if saturate => vec![x as i32 as u32],
                _ => vec![x as i64 as u32],
            }
        };
        (0..d_count).flat_map(one).collect()
    })
}
