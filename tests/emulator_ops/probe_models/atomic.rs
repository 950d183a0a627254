//! `atom` and `red`.

use super::{Scene, type_bytes, words};
use half::{bf16, f16};

pub fn model(scene: &Scene<'_>) -> Vec<Vec<u32>> {
    if scene.form.ends_with("(numbers drawn)") {
        return scene.each(|_, _| vec![1]);
    }
    let parts = scene.parts();
    let ty = parts[parts.len() - 1];
    let operations = [
        "add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas",
    ];
    let operation = operations
        .into_iter()
        .find(|operation| scene.has(operation))
        .expect("an operation");
    if scene.form.ends_with("(all threads on one cell)") {
        return met(scene, operation, ty);
    }
    let count = match () {
        () if scene.has("v2") => 2,
        () if scene.has("v4") => 4,
        () => 1,
    };
    let size = type_bytes(ty);
    // PTX ISA, "atom": f32 is flushed on global memory and kept on shared memory.
    let global = !parts.iter().any(|part| part.starts_with("shared"));
    let returns = parts[0] == "atom";
    // Columns: as many for an element as it has 8-byte parts.
    let columns = size.div_ceil(8);
    scene.each(|_, row| {
        let element = |index: usize| -> u128 {
            let of = &row[index * columns..][..columns];
            let all = of
                .iter()
                .rev()
                .fold(0u128, |all, part| all << 64 | u128::from(*part));
            if size == 2 { all & 0xffff } else { all }
        };
        let (mut old, mut new) = (Vec::new(), Vec::new());
        for index in 0..count {
            let b = element(count + index);
            let mut cell = element(index);
            let mut c = 0;
            if operation == "cas" {
                c = element(2);
                if row[row.len() - 1] != 0 {
                    cell = b;
                }
            }
            let bytes = size.max(4);
            old.extend(words(&cell.to_le_bytes()[..bytes]));
            let updated = update(operation, ty, cell, b, c, global);
            new.extend(words(&updated.to_le_bytes()[..bytes]));
        }
        if !returns {
            old.clear();
        }
        old.extend(new);
        old
    })
}

/// The cell's value behind an operation.
fn update(operation: &str, ty: &str, a: u128, b: u128, c: u128, flush: bool) -> u128 {
    let (a64, b64) = (a as u64, b as u64);
    let (a32, b32) = (a as u32, b as u32);
    let half = |x: u128, y: u128| {
        let (x, y) = (f16::from_bits(x as u16), f16::from_bits(y as u16));
        let value = match operation {
            "add" => f16::from_f64(x.to_f64() + y.to_f64()),
            _ => f16::from_f64(extreme(operation, x.to_f64(), y.to_f64())),
        };
        u128::from(value.to_bits())
    };
    let brain = |x: u128, y: u128| {
        let (x, y) = (bf16::from_bits(x as u16), bf16::from_bits(y as u16));
        let value = match operation {
            "add" => bf16::from_f64(x.to_f64() + y.to_f64()),
            _ => bf16::from_f64(extreme(operation, x.to_f64(), y.to_f64())),
        };
        u128::from(value.to_bits())
    };
    let pair = |one: &dyn Fn(u128, u128) -> u128| {
        one(a & 0xffff, b & 0xffff) | one(a >> 16 & 0xffff, b >> 16 & 0xffff) << 16
    };
    match (operation, ty) {
        ("exch", _) => b,
        ("cas", _) => {
            if a == b {
                c
            } else {
                a
            }
        }
        ("and", _) => a & b,
        ("or", _) => a | b,
        ("xor", _) => a ^ b,
        ("add", "u32" | "s32") => a32.wrapping_add(b32).into(),
        ("add", "u64") => a64.wrapping_add(b64).into(),
        ("add", "f32") => {
            let flushed = |x: f32| {
                if flush && x.is_subnormal() {
                    0f32.copysign(x)
                } else {
                    x
                }
            };
            let (x, y) = (flushed(f32::from_bits(a32)), flushed(f32::from_bits(b32)));
            flushed(x + y).to_bits().into()
        }
        ("add", "f64") => (f64::from_bits(a64) + f64::from_bits(b64)).to_bits().into(),
        (_, "f16") => half(a, b),
        (_, "bf16") => brain(a, b),
        (_, "f16x2") => pair(&half),
        (_, "bf16x2") => pair(&brain),
        ("min", "u32" | "u64") => a.min(b),
        ("max", "u32" | "u64") => a.max(b),
        ("min", "s32") => ((a32 as i32).min(b32 as i32) as u32).into(),
        ("max", "s32") => ((a32 as i32).max(b32 as i32) as u32).into(),
        ("min", "s64") => ((a64 as i64).min(b64 as i64) as u64).into(),
        ("max", "s64") => ((a64 as i64).max(b64 as i64) as u64).into(),
        ("inc", _) => {
            if a32 >= b32 {
                0
            } else {
                (a32 + 1).into()
            }
        }
        ("dec", _) => {
            if a32 == 0 || a32 > b32 {
                b32.into()
            } else {
                (a32 - 1).into()
            }
        }
        _ => panic!("{operation}.{ty}"),
    }
}

/// The smaller or larger number; one NaN loses, and +0 is larger than -0.
fn extreme(operation: &str, x: f64, y: f64) -> f64 {
    if x.is_nan() {
        return y;
    }
    if y.is_nan() {
        return x;
    }
    let x_first = x < y || (x == y && x.is_sign_negative());
    if x_first == (operation == "min") {
        x
    } else {
        y
    }
}

/// All threads on one cell, which starts with zero, or with ones for `and` and `min`.
fn met(scene: &Scene<'_>, operation: &str, ty: &str) -> Vec<Vec<u32>> {
    let ones = match type_bytes(ty) {
        8 => u64::MAX,
        _ => 0xffff_ffff,
    };
    let mut cell = if matches!(operation, "and" | "min") {
        ones.into()
    } else {
        0
    };
    for row in &scene.rows {
        let b = match operation {
            "inc" | "dec" => 40,
            _ => row[0],
        };
        // Sums of small integers: exact in any order.
        cell = update(operation, ty, cell, b.into(), 0, false);
    }
    let bytes = type_bytes(ty);
    scene.each(|_, _| words(&cell.to_le_bytes()[..bytes]))
}
