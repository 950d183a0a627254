//! A model of `wmma`: matrices in memory, a product, and a matrix in memory again.

use super::Scene;
use super::matrix::{bits as narrow_bits, decode};
use half::f16;

fn bits(ty: &str) -> usize {
    match ty {
        "f32" | "s32" => 32,
        ty => narrow_bits(ty),
    }
}

/// A matrix that the threads stored from a column of their operands on.
struct Stored<'a> {
    ty: &'a str,
    row_major: bool,
    pitch: usize,
    bytes: Vec<u8>,
}

impl<'a> Stored<'a> {
    fn new(ty: &'a str, layout: &str, rows: usize, columns: usize) -> Stored<'a> {
        let row_major = layout == "row";
        let (lines, length) = if row_major {
            (rows, columns)
        } else {
            (columns, rows)
        };
        // Lines have 16 bytes at least.
        let pitch = length.max(128 / bits(ty));
        Stored {
            ty,
            row_major,
            pitch,
            bytes: vec![0; (lines * pitch * bits(ty)).div_ceil(1024) * 128],
        }
    }

    /// The first bit of an element.
    fn place(&self, row: usize, column: usize) -> usize {
        let (line, along) = if self.row_major {
            (row, column)
        } else {
            (column, row)
        };
        (line * self.pitch + along) * bits(self.ty)
    }

    fn get(&self, row: usize, column: usize) -> f64 {
        let (at, width) = (self.place(row, column), bits(self.ty));
        let bytes = &self.bytes[at / 8..][..width.div_ceil(8)];
        let code = bytes
            .iter()
            .rev()
            .fold(0u64, |all, byte| all << 8 | u64::from(*byte));
        let code = if width < 8 {
            code >> (at % 8) & ((1 << width) - 1)
        } else {
            code
        };
        decode(self.ty, code)
    }

    fn put(&mut self, row: usize, column: usize, x: f64) {
        let code = match self.ty {
            "f64" => x.to_bits(),
            "f32" => (x as f32).to_bits().into(),
            "f16" => f16::from_f64(x).to_bits().into(),
            _ => x as i64 as u64,
        };
        let (at, width) = (self.place(row, column) / 8, bits(self.ty) / 8);
        self.bytes[at..at + width].copy_from_slice(&code.to_le_bytes()[..width]);
    }
}

pub fn model(scene: &Scene<'_>) -> Vec<Vec<u32>> {
    let (opcode, said) = scene.form.split_once(" (C ").expect("layouts");
    let parts: Vec<&str> = opcode
        .split('.')
        .filter(|part| !matches!(*part, "rn" | "satfinite"))
        .collect();
    let said: Vec<&str> = said.split([' ', ',']).collect();
    let at = parts
        .iter()
        .position(|part| part.starts_with('m') && part.contains('k'))
        .expect("a shape");
    let size: Vec<usize> = parts[at]
        .split(['m', 'n', 'k'])
        .filter_map(|n| n.parse().ok())
        .collect();
    let (m, n, k) = (size[0], size[1], size[2]);
    let d_type = parts[at + 1];
    let a_type = if parts.len() == at + 3 {
        "f16"
    } else {
        parts[at + 2]
    };
    let mut a = Stored::new(a_type, parts[at - 2], m, k);
    let mut b = Stored::new(a_type, parts[at - 1], k, n);
    let c_type = parts.last().expect("the type of C");
    let mut c = Stored::new(c_type, said[0], m, n);
    let mut d = Stored::new(d_type, said[3], m, n);
    let each = if d_type == "f64" { 8 } else { 4 };
    let mut column = 0;
    for matrix in [&mut a, &mut b, &mut c] {
        let share = matrix.bytes.len() / 32;
        for (lane, row) in scene.rows.iter().enumerate() {
            let values = row[column..column + share / each].iter();
            let bytes: Vec<u8> = values
                .flat_map(|value| value.to_le_bytes()[..each].to_vec())
                .collect();
            matrix.bytes[lane * share..][..share].copy_from_slice(&bytes);
        }
        column += share / each;
    }
    for row in 0..m {
        for column in 0..n {
            let products = (0..k).map(|i| {
                let (x, y) = (a.get(row, i), b.get(i, column));
                if scene.has("xor") {
                    f64::from(u8::from(x != y))
                } else {
                    x * y
                }
            });
            d.put(row, column, c.get(row, column) + products.sum::<f64>());
        }
    }
    let mut bytes = d
        .bytes
        .chunks(4 * scene.words)
        .map(super::words)
        .collect::<Vec<_>>();
    bytes.resize(32, Vec::new());
    bytes
}
