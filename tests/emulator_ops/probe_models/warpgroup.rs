//! Models of `wgmma`, by the PTX ISA's pictures of the layouts in shared memory and in registers.

use super::Scene;
use super::matrix::{bits, decode};
use half::f16;

/// Rows of A.
const M: usize = 64;

pub fn model(scene: &Scene<'_>) -> Vec<Vec<u32>> {
    if scene.form.starts_with("wgmma.wait_group") {
        let product =
            Product::read("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 (A none, B none)");
        let (a, b) = (product.a(scene), product.b(scene));
        // Both groups make the same product.
        return scene.each(|thread, _| {
            let once = product.registers(thread, &a, &b, 1.0);
            [once.clone(), once].concat()
        });
    }
    let product = Product::read(scene.form);
    let (a, b) = (product.a(scene), product.b(scene));
    scene.each(|thread, _| {
        let mut words = vec![0u32; scene.words];
        for (i, register) in product.registers(thread, &a, &b, 2.0).iter().enumerate() {
            let word = &mut words[i % scene.words];
            *word = word.wrapping_mul(31).wrapping_add(*register);
        }
        words
    })
}

struct Product<'a> {
    n: usize,
    k: usize,
    d: &'a str,
    a: &'a str,
    b: &'a str,
    saturate: bool,
    /// Layouts, and signs: what stands in brackets.
    said: Vec<&'a str>,
}

impl<'a> Product<'a> {
    fn read(form: &'a str) -> Product<'a> {
        let (opcode, said) = form.split_once(" (").expect("layouts");
        let parts: Vec<&str> = opcode.split('.').collect();
        let saturate = parts[5] == "satfinite";
        let types = &parts[if saturate { 6 } else { 5 }..];
        let shape: Vec<usize> = parts[4]
            .split(['m', 'n', 'k'])
            .filter_map(|n| n.parse().ok())
            .collect();
        assert_eq!(shape[0], M);
        Product {
            n: shape[1],
            k: shape[2],
            d: types[0],
            a: types[1],
            b: types[2],
            saturate,
            said: said.trim_end_matches(')').split(", ").collect(),
        }
    }

    fn element(&self, ty: &str, bytes: &[u8], bit: usize) -> f64 {
        let width = bits(ty);
        let mut code = 0u64;
        for (i, byte) in bytes.iter().take(width.div_ceil(8)).enumerate() {
            let byte = if self.saturate { byte & 0x0f } else { *byte };
            code |= u64::from(byte) << (8 * i);
        }
        if width == 1 {
            code = code >> bit & 1;
        }
        decode(ty, code)
    }

    fn sign(&self, operand: &str) -> f64 {
        if self.said.contains(&operand) {
            -1.0
        } else {
            1.0
        }
    }

    /// `rows` rows of K elements from the image that the threads stored from column `first` on.
    fn image(
        &self,
        scene: &Scene<'_>,
        first: usize,
        ty: &str,
        rows: usize,
        layout: &str,
    ) -> Vec<Vec<f64>> {
        let columns = scene.rows.iter().flat_map(|row| &row[first..first + 16]);
        let bytes: Vec<u8> = columns
            .flat_map(|word| (*word as u32).to_le_bytes())
            .collect();
        let place = |row: usize, k: usize| place(layout, rows, row, k * bits(ty) / 8);
        (0..rows)
            .map(|row| {
                let one = |k: usize| self.element(ty, &bytes[place(row, k)..], k % 8);
                (0..self.k).map(one).collect()
            })
            .collect()
    }

    fn a(&self, scene: &Scene<'_>) -> Vec<Vec<f64>> {
        let layout = &self.said[0][2..];
        let mut a = if layout == "registers" {
            let mut a = vec![vec![0.0; self.k]; M];
            // A warp has 16 rows; a register holds e neighbours in K, registers alternate between the halves of the rows.
            let e = 32 / bits(self.a);
            for (thread, words) in scene.rows.iter().enumerate() {
                let (warp, lane) = (thread / 32, thread % 32);
                for (register, word) in words.iter().enumerate().take(4) {
                    let row = 16 * warp + lane / 4 + register % 2 * 8;
                    for i in 0..e {
                        let column = lane % 4 * e + i + register / 2 * 4 * e;
                        let bit = bits(self.a) * i;
                        let word = *word as u32 >> (bit / 8 * 8);
                        a[row][column] = self.element(self.a, &word.to_le_bytes(), bit % 8);
                    }
                }
            }
            a
        } else {
            self.image(scene, 0, self.a, M, layout)
        };
        for x in a.iter_mut().flatten() {
            *x *= self.sign("-A");
        }
        a
    }

    fn b(&self, scene: &Scene<'_>) -> Vec<Vec<f64>> {
        let mut b = self.image(scene, 16, self.b, self.n, &self.said[1][2..]);
        for x in b.iter_mut().flatten() {
            *x *= self.sign("-B");
        }
        b
    }

    /// A thread's registers of D, `times` the product; with saturation, the product on top of values close to the end.
    fn registers(&self, thread: usize, a: &[Vec<f64>], b: &[Vec<f64>], times: f64) -> Vec<u32> {
        let lane = thread % 32;
        let row = |half: usize| thread / 32 * 16 + lane / 4 + 8 * half;
        let product = |row: usize, column: usize| -> f64 {
            a[row].iter().zip(&b[column]).map(|(x, y)| x * y).sum()
        };
        if self.d == "f16" {
            let one = |i: usize| {
                let pair = [0, 1].map(|j| {
                    let x = times * product(row(i % 2), i / 2 * 8 + lane % 4 * 2 + j);
                    u32::from(f16::from_f64(x + 0.0).to_bits())
                });
                pair[0] | pair[1] << 16
            };
            return (0..self.n / 4).map(one).collect();
        }
        (0..self.n / 2)
            .map(|i| {
                let x = product(row(i / 2 % 2), i / 4 * 8 + lane % 4 * 2 + i % 2);
                match self.d {
                    "f32" => ((times * x) as f32 + 0.0).to_bits(),
                    _ if self.saturate => {
                        let old = 0x7fff_f000 + ((37 * thread + 101 * i) & 2047);
                        // The conversion saturates.
                        (old as f64 + x) as i32 as u32
                    }
                    _ => (times * x) as i64 as u32,
                }
            })
            .collect()
    }
}

/// Where byte `k` of row `row` lies, of `rows` rows of 32 bytes.
///
/// Without a swizzle, cores of 8 rows of 16 bytes lie as they like. With one, rows of 32, 64 or 128 bytes, whose 16-byte
/// units are exchanged by the number of the 128-byte line that they are in.
fn place(layout: &str, rows: usize, row: usize, k: usize) -> usize {
    let mut words = layout.split(' ');
    let mut name = words.next().expect("a layout");
    let said: Vec<&str> = words.collect();
    let (mn, far) = (said.contains(&"MN"), said.contains(&"far"));
    let mut start = 0;
    if let Some((span, from)) = name.split_once('+') {
        (name, start) = (span, from.parse().expect("bytes"));
    }
    // MN-major elements have 2 bytes: element `line` of K, element `row` of a line.
    let line = k / 2;
    let linear = match (name, mn) {
        ("none", false) if far => row / 8 * 128 + k / 16 * (16 * rows) + row % 8 * 16 + k % 16,
        ("none", false) => row / 8 * 256 + k / 16 * 128 + row % 8 * 16 + k % 16,
        ("none", true) if far => row / 8 * 256 + line / 8 * 128 + line % 8 * 16 + row % 8 * 2,
        ("none", true) => row / 8 * 128 + line / 8 * (16 * rows) + line % 8 * 16 + row % 8 * 2,
        (_, false) => row * span(name) + start + k,
        (_, true) => {
            let wide = span(name) / 2;
            row / wide * (16 * span(name)) + line * span(name) + row % wide * 2
        }
    };
    let units = match name {
        "32B" => 1,
        "64B" => 3,
        "128B" => 7,
        _ => 0,
    };
    linear ^ ((linear / 128) & units) << 4
}

fn span(name: &str) -> usize {
    name.trim_end_matches('B').parse().expect("bytes")
}
