//! Models of copies, stores and reductions that complete later.

use super::{Scene, type_bytes, words};
use half::{bf16, f16};

pub fn model(scene: &Scene<'_>) -> Vec<Vec<u32>> {
    let form = scene.form.trim_start_matches("@p ");
    if let Some(rest) = form.strip_prefix("cp.async.bulk.") {
        return bulk(scene, rest);
    }
    if form.starts_with("cp.reduce") {
        return reduced(scene);
    }
    if form.starts_with("st.async") || form.starts_with("red.async") {
        return remote(scene);
    }
    if form.starts_with("cp.async.mbarrier") {
        return scene.each(|thread, _| operands(scene, (thread + 5) % 32));
    }
    scene.each(|thread, row| {
        let half: Vec<u32> = row[4..8].iter().map(|word| *word as u32).collect();
        if form == "cp.async.wait_group 1" {
            let first = row[..4].iter().map(|word| *word as u32);
            return half.iter().copied().chain(first).collect();
        }
        let mut slot = vec![u32::MAX; 8];
        let negative = (row[0] as i32) < 0;
        if scene.form.starts_with("@p") && !negative {
            return slot;
        }
        let mut numbers = form
            .split([' ', ','])
            .filter_map(|part| part.parse::<usize>().ok());
        let count = numbers.next().expect("bytes") / 4;
        let given = match form.rsplit(' ').next() {
            Some("bytes") => thread % 32 % (count + 1),
            Some("ignore") if negative => 0,
            _ => count,
        };
        slot[4..4 + count].fill(0);
        slot[4..4 + given].copy_from_slice(&half[..given]);
        slot
    })
}

fn operands(scene: &Scene<'_>, thread: usize) -> Vec<u32> {
    scene.rows[thread][..8]
        .iter()
        .map(|word| *word as u32)
        .collect()
}

/// The thread 5 further on in the block `block`.
fn next(scene: &Scene<'_>, block: usize, thread: usize) -> usize {
    block * scene.threads + (thread + 5) % scene.threads
}

fn bulk(scene: &Scene<'_>, rest: &str) -> Vec<Vec<u32>> {
    scene.each(|thread, row| {
        let block = thread / scene.threads;
        if rest.starts_with("global.") {
            return row.iter().map(|word| *word as u32).collect();
        }
        let from = if rest.starts_with("shared::cluster.shared::cta") {
            1 - block
        } else if let Some((_, mask)) = rest.split_once("(mask ") {
            let mask: usize = mask.trim_end_matches(')').parse().expect("a mask");
            if mask >> block & 1 == 0 {
                return vec![0; 8];
            }
            0
        } else {
            block
        };
        operands(scene, next(scene, from, thread))
    })
}

/// Bytes of a thread's operands from column `from` to before `to`.
pub fn bytes(row: &[u64], from: usize, to: usize, each: usize) -> Vec<u8> {
    row[from..to]
        .iter()
        .flat_map(|value| value.to_le_bytes()[..each].to_vec())
        .collect()
}

fn reduced(scene: &Scene<'_>) -> Vec<Vec<u32>> {
    let parts = scene.parts();
    let ty = parts[parts.len() - 1];
    let operation = parts
        .iter()
        .rev()
        .find(|part| OPERATIONS.contains(part))
        .expect("an operation");
    scene.each(|thread, _| {
        let block = thread / scene.threads;
        let (target, source) = if scene.has("global") {
            (thread, thread)
        } else {
            (next(scene, block, thread), next(scene, 1 - block, thread))
        };
        let column = if ty == "f64" { (4, 8, 8) } else { (8, 16, 4) };
        let old = bytes(&scene.rows[target], 0, column.0, column.2);
        let new = bytes(&scene.rows[source], column.0, column.1, column.2);
        let size = type_bytes(ty);
        let all = old.chunks(size).zip(new.chunks(size));
        words(
            &all.flat_map(|(old, new)| reduce(operation, ty, old, new))
                .collect::<Vec<u8>>(),
        )
    })
}

fn remote(scene: &Scene<'_>) -> Vec<Vec<u32>> {
    let parts = scene.parts();
    let ty = parts[parts.len() - 1];
    let vector = match parts[parts.len() - 2] {
        "v2" => 2,
        "v4" => 4,
        _ => 1,
    };
    let operation = parts.iter().rev().find(|part| OPERATIONS.contains(part));
    let size = vector * type_bytes(ty);
    scene.each(|thread, _| {
        let block = thread / scene.threads;
        let mut slot = bytes(&scene.rows[next(scene, block, thread)], 0, 8, 4);
        let sent = bytes(&scene.rows[next(scene, 1 - block, thread)], 8, 16, 4);
        let place = &mut slot[16..16 + size];
        let value = match operation {
            Some(operation) => reduce(operation, ty, place, &sent[..size]),
            None => sent[..size].to_vec(),
        };
        place.copy_from_slice(&value);
        words(&slot)
    })
}

pub const OPERATIONS: [&str; 8] = ["add", "min", "max", "inc", "dec", "and", "or", "xor"];

/// What the PTX ISA's `red` makes of `old` and `new`, bytes of one element.
pub fn reduce(operation: &str, ty: &str, old: &[u8], new: &[u8]) -> Vec<u8> {
    let size = type_bytes(ty);
    let value = |bytes: &[u8]| {
        bytes
            .iter()
            .rev()
            .fold(0u64, |all, byte| all << 8 | u64::from(*byte))
    };
    let (a, b) = (value(old), value(new));
    let signed = |x: u64| (x << (64 - 8 * size)) as i64;
    let smaller = match ty {
        "f16" => f16::from_bits(b as u16) < f16::from_bits(a as u16),
        "bf16" => bf16::from_bits(b as u16) < bf16::from_bits(a as u16),
        "s32" | "s64" => signed(b) < signed(a),
        _ => b < a,
    };
    let result = match operation {
        "add" => match ty {
            "f16" => {
                let sum = f16::from_bits(a as u16).to_f32() + f16::from_bits(b as u16).to_f32();
                f16::from_f32(sum).to_bits().into()
            }
            "bf16" => {
                let sum = bf16::from_bits(a as u16).to_f32() + bf16::from_bits(b as u16).to_f32();
                bf16::from_f32(sum).to_bits().into()
            }
            "f32" => (f32::from_bits(a as u32) + f32::from_bits(b as u32))
                .to_bits()
                .into(),
            "f64" => (f64::from_bits(a) + f64::from_bits(b)).to_bits(),
            _ => a.wrapping_add(b),
        },
        "min" => {
            if smaller {
                b
            } else {
                a
            }
        }
        "max" => {
            if smaller {
                a
            } else {
                b
            }
        }
        "inc" => {
            if a >= b {
                0
            } else {
                a + 1
            }
        }
        "dec" => {
            if a == 0 || a > b {
                b
            } else {
                a - 1
            }
        }
        "and" => a & b,
        "or" => a | b,
        "xor" => a ^ b,
        other => panic!("no operation `{other}`"),
    };
    result.to_le_bytes()[..size].to_vec()
}
