//! `wmma`: fragments lie as the device likes, so a probe loads A, B and C from memory and stores D; operands whose sums are
//! exact.
//!
//! A, B and C lie behind each other in shared memory, each thread's words of each behind the others'; where a row (or column)
//! of a matrix would be shorter than 16 bytes, it is 16 bytes long. D is stored in the same way. Behind a form stand the
//! layout of C and of D, and the space that the matrices are in.

use super::fill::bits;
use super::matrix::{names, sizes};
use super::{Family, Fill, Pattern, Probe};

/// A matrix in memory.
struct Stored {
    /// Elements from one row (or column) to the next.
    pitch: u32,
    /// 32-bit words of a thread's share.
    words: usize,
}

impl Stored {
    /// `rows` by `columns` elements of `bits` bits.
    fn new(rows: u32, columns: u32, bits: u32, row_major: bool) -> Stored {
        let (lines, length) = if row_major {
            (rows, columns)
        } else {
            (columns, rows)
        };
        let pitch = length.max(128 / bits);
        Stored {
            pitch,
            words: (lines * pitch * bits).div_ceil(32 * 32) as usize,
        }
    }
}

struct Product {
    shape: &'static str,
    /// Types of D, of A and B, of C.
    d: &'static str,
    a: &'static str,
    c: &'static str,
    /// Between `wmma.mma` and `.sync`, and behind the types.
    extra: (&'static str, &'static str),
    /// Whether A, B, C and D are row-major.
    rows: [bool; 4],
    space: &'static str,
}

impl Product {
    fn layout(&self, matrix: usize) -> &'static str {
        if self.rows[matrix] { "row" } else { "col" }
    }

    fn form(&self) -> String {
        let (a, c, d) = (self.a, self.c, self.d);
        let types = match a {
            "f16" => format!("{d}.{c}"),
            a => format!("{d}.{a}.{a}.{c}"),
        };
        format!(
            "wmma.mma{}.sync.aligned.{}.{}.{}.{types}{} (C {}, D {}, {})",
            self.extra.0,
            self.layout(0),
            self.layout(1),
            self.shape,
            self.extra.1,
            self.layout(2),
            self.layout(3),
            if self.space.is_empty() {
                "generic"
            } else {
                self.space
            }
        )
    }

    fn probe(&self) -> Probe {
        let [m, n, k] = sizes(self.shape);
        let (narrow, wide) = (bits(self.a), bits(self.d));
        let stored = [
            Stored::new(m, k, narrow, self.rows[0]),
            Stored::new(k, n, narrow, self.rows[1]),
            Stored::new(m, n, bits(self.c), self.rows[2]),
            Stored::new(m, n, wide, self.rows[3]),
        ];
        let mut inputs = Vec::new();
        let mut body = String::from(
            "mov.u64 %rd0, scratch{n}; cvta.shared.u64 %rd5, 0; cvt.u64.u32 %rd6, %s; add.u64 %rd5, %rd5, %rd6;\n",
        );
        let (mut at, mut starts) = (0, [0; 3]);
        for (matrix, ty) in [self.a, self.a, self.c].into_iter().enumerate() {
            starts[matrix] = at;
            body += &self.share(stored[matrix].words, at, ty, &mut inputs);
            at += 128 * stored[matrix].words;
        }
        body += "bar.sync 0;\n";
        let (window, base) = match self.space {
            "" => ("", "%rd5"),
            "global" => (".global", "%rd0"),
            _ => (".shared", "%s"),
        };
        // Registers are full; of A and B of f16 there are always eight.
        let count = |elements: u32, bits: u32| (elements * bits / 32 / bits.max(32)) as usize;
        let narrow_count = |elements: u32| match self.a {
            "f16" => 8,
            _ => count(elements, narrow),
        };
        let register = if wide == 64 { "%rd" } else { "%r" };
        let fragments = [
            names(register, 10, narrow_count(m * k)),
            names(register, 20, narrow_count(k * n)),
            names(register, 30, count(m * n, bits(self.c))),
            names(register, 40, count(m * n, wide)),
        ];
        for (matrix, name) in ["a", "b", "c"].into_iter().enumerate() {
            let ty = if matrix == 2 { self.c } else { self.a };
            body += &format!(
                "wmma.load.{name}.sync.aligned.{}.{}{window}.{ty} {}, [{base}+{}], {};\n",
                self.layout(matrix),
                self.shape,
                fragments[matrix],
                starts[matrix],
                stored[matrix].pitch
            );
        }
        let form = self.form();
        let opcode = form.split(' ').next().unwrap_or_default();
        let [a, b, c, d] = &fragments;
        body += &format!(
            "{opcode} {d}, {a}, {b}, {c};\nmov.u64 %rd2, results{{n}};\n\
             wmma.store.d.sync.aligned.{}.{}.global.{} [%rd2], {d}, {};",
            self.layout(3),
            self.shape,
            self.d,
            stored[3].pitch
        );
        // A thread's share of D is a multiple of 16 bytes.
        let words = stored[3].words.next_multiple_of(4);
        Probe::new(Family::Matrix, form, 0)
            .inputs(inputs)
            .memory(words)
            .shared(at as u32)
            .globals(format!(".global .align 128 .b8 scratch{{n}}[{at}];\n"))
            .body(body)
    }

    /// PTX that stores a thread's share of a matrix, `words` words, into shared and global memory from byte `at` on.
    fn share(&self, words: usize, at: usize, ty: &'static str, inputs: &mut Vec<Fill>) -> String {
        let bytes = 4 * words;
        let mut text = format!(
            "mul.lo.u32 %r0, %t, {bytes}; add.u32 %r1, %r0, %s; cvt.u64.u32 %rd1, %r0; add.u64 %rd1, %rd1, %rd0;\n"
        );
        let pattern = Pattern::Small(ty);
        let (fill, store, register) = if ty == "f64" {
            (Fill::Wide(pattern), "b64", "%b")
        } else {
            (Fill::Word(pattern), "b32", "%a")
        };
        for place in (at..at + bytes).step_by(fill.bytes()) {
            let column = inputs.len();
            inputs.push(fill);
            text += &format!(
                "st.shared.{store} [%r1+{place}], {register}{column}; st.global.{store} [%rd1+{place}], {register}{column};\n"
            );
        }
        text
    }
}

pub(super) fn list(probes: &mut Vec<Probe>) {
    let mut add = |shape, (d, a, c), extra, rows, space| {
        let product = Product {
            shape,
            d,
            a,
            c,
            extra,
            rows,
            space,
        };
        probes.push(product.probe());
    };
    let choices = [true, false];
    for types in [
        ("f16", "f16", "f16"),
        ("f32", "f16", "f32"),
        ("f16", "f16", "f32"),
        ("f32", "f16", "f16"),
        ("f32", "bf16", "f32"),
        ("s32", "s8", "s32"),
        ("s32", "u8", "s32"),
        ("f32", "tf32", "f32"),
        ("f64", "f64", "f64"),
    ] {
        let shapes: &[&str] = match types.1 {
            "tf32" => &["m16n16k8"],
            "f64" => &["m8n8k4"],
            _ => &["m16n16k16", "m32n8k16", "m8n32k16"],
        };
        let behind = if types.1 == "f64" { ".rn" } else { "" };
        for shape in shapes {
            for a_rows in choices {
                for b_rows in choices {
                    for d_rows in choices {
                        let rows = [a_rows, b_rows, !d_rows, d_rows];
                        add(shape, types, ("", behind), rows, "shared");
                    }
                }
            }
            if types.0 == "s32" {
                add(
                    shape,
                    types,
                    ("", ".satfinite"),
                    [true, false, true, true],
                    "shared",
                );
            }
            for space in ["", "global"] {
                add(shape, types, ("", behind), [true, false, true, true], space);
            }
        }
    }
    for (shape, a, between) in [
        ("m8n8k32", "s4", ""),
        ("m8n8k32", "u4", ""),
        ("m8n8k128", "b1", ".xor.popc"),
        ("m8n8k128", "b1", ".and.popc"),
    ] {
        for d_rows in choices {
            let rows = [true, false, !d_rows, d_rows];
            add(shape, ("s32", a, "s32"), (between, ""), rows, "shared");
        }
    }
}
