//! `wmma`: matrices in fragments whose layout PTX leaves to the device. Here it is the one of `mma.sync`, so that a `wmma` is
//! loads or stores of the lanes, and one `mma` for every 16 (or 8) rows and 8 columns of D.
//!
//! A register holds `e` elements that are neighbours in K (of C and D: one, or two of 16 bits that are neighbours in a row).
//! Lane 4 g + t has row g (of B: column g) of each group of 8, and elements `e` t, ... of each group of 4 `e` in K. f16
//! fragments of A and B have eight registers in every shape; those that hold nothing are 0.

use half::f16;

use super::lower::{Lowering, Refusal};
use super::lower_tensor::shape;
use super::{Constant, Special};
use crate::emulator::exec::access::space;
use crate::emulator::exec::lane::Lane;
use crate::emulator::exec::op;
use crate::emulator::exec::tensor_core::Element;
use crate::emulator::ptx::{AddressBase, Operand, RegClass};

/// Bits of an element.
fn bits(ty: &str) -> Option<u32> {
    Element::named(ty).map(Element::bits)
}

#[derive(Clone, Copy, PartialEq)]
struct Shape {
    m: u32,
    n: u32,
    k: u32,
}

impl Shape {
    /// The shape of this name, if elements of A and B have it.
    fn of(name: &str, ty: &str) -> Option<Shape> {
        let names: &[&str] = match ty {
            "f16" | "bf16" | "s8" | "u8" => &["m16n16k16", "m32n8k16", "m8n32k16"],
            "tf32" => &["m16n16k8"],
            "f64" => &["m8n8k4"],
            "s4" | "u4" => &["m8n8k32"],
            "b1" => &["m8n8k128"],
            _ => &[],
        };
        if !names.contains(&name) {
            return None;
        }
        let (m, n, k) = shape(name)?;
        Some(Shape { m, n, k })
    }

    /// Groups of rows of D that one `mma` computes, and its rows.
    fn rows(self) -> (u32, u32) {
        (self.m.div_ceil(16), self.m.min(16))
    }
}

/// Elements of one register: their place, counted from the lane's, along the dimension of g and along the one of t.
struct Held {
    slow: u32,
    fast: u32,
    count: u32,
}

/// A matrix in registers and in memory.
struct Fragment {
    held: Vec<Held>,
    /// Elements along the dimension of t from one lane to the next.
    lane: u32,
    bits: u32,
    /// Neighbours along the dimension of t are neighbours in memory.
    contiguous: bool,
    /// Elements from one row (or column) to the next in memory, if the instruction does not say.
    leading: u32,
    /// Registers, with those that hold nothing.
    registers: usize,
}

/// Registers that say where a lane's elements lie in memory.
struct Lines {
    /// Address of the lane's first element.
    start: u32,
    /// Bytes from one row (or column) to the next.
    pitch: u32,
}

fn add(a: u64, b: u64) -> u64 {
    a.wrapping_add(b)
}

impl Fragment {
    fn of(matrix: &str, layout: &str, shape: Shape, ty: &str) -> Option<Fragment> {
        let bits = bits(ty)?;
        let row = match layout {
            "row" => true,
            "col" => false,
            _ => return None,
        };
        // Less than bytes can only be neighbours.
        if bits < 8 && row != (matrix == "a") {
            return None;
        }
        let each = (32 / bits).max(1);
        let (tiles, rows) = shape.rows();
        let halves = rows / 8;
        let mut held = Vec::new();
        let (contiguous, leading) = match matrix {
            "a" | "b" => {
                let a = matrix == "a";
                let groups = if a { tiles } else { shape.n / 8 };
                for group in 0..groups {
                    for block in 0..shape.k / (4 * each) {
                        for half in 0..if a { halves } else { 1 } {
                            held.push(Held {
                                slow: group * if a { 16 } else { 8 } + 8 * half,
                                fast: 4 * each * block,
                                count: each,
                            });
                        }
                    }
                }
                let slow = if a { shape.m } else { shape.n };
                (row == a, if row == a { shape.k } else { slow })
            }
            _ => {
                let count = if bits == 16 { 2 } else { 1 };
                for tile in 0..tiles {
                    for column in 0..shape.n / 8 {
                        for half in 0..halves {
                            held.extend((0..2).step_by(count as usize).map(|j| Held {
                                slow: 16 * tile + 8 * half,
                                fast: 8 * column + j,
                                count,
                            }));
                        }
                    }
                }
                (row, if row { shape.n } else { shape.m })
            }
        };
        let padded = ty == "f16" && matches!(matrix, "a" | "b");
        Some(Fragment {
            registers: if padded { 8 } else { held.len() },
            held,
            lane: if matches!(matrix, "a" | "b") { each } else { 2 },
            bits,
            contiguous,
            leading,
        })
    }

    fn class(&self) -> RegClass {
        if self.bits == 64 {
            RegClass::B64
        } else {
            RegClass::B32
        }
    }
}

/// PTX type of a load that zero extends, or of a store, of so many bits.
fn access(bits: u32) -> &'static str {
    match bits {
        8 => "u8",
        16 => "u16",
        32 => "u32",
        _ => "u64",
    }
}

impl Lowering<'_> {
    pub(super) fn lower_wmma(&mut self, rest: &[&str], o: &[Operand]) -> Result<(), Refusal> {
        self.refuse_guard("wmma")?;
        let unknown = || format!("`wmma.{}` is not implemented", rest.join("."));
        let parts: Vec<&str> = rest
            .iter()
            .copied()
            .filter(|part| !matches!(*part, "sync" | "aligned"))
            .collect();
        match (&parts[..], o) {
            (
                [
                    "load",
                    matrix @ ("a" | "b" | "c"),
                    layout,
                    shape,
                    window @ ..,
                    ty,
                ],
                [Operand::Vector(fragment), address, leading @ ..],
            )
            | (
                ["store", matrix @ "d", layout, shape, window @ .., ty],
                [address, Operand::Vector(fragment), leading @ ..],
            ) if leading.len() <= 1 && window.len() <= 1 => {
                // C and D have shapes of the types that A and B may have then.
                let from = match (*matrix, *ty) {
                    ("c" | "d", "f16" | "f32") if *shape == "m16n16k8" => "tf32",
                    ("c" | "d", "f16" | "f32") => "f16",
                    ("c" | "d", "s32") => match *shape {
                        "m8n8k32" => "s4",
                        "m8n8k128" => "b1",
                        _ => "s8",
                    },
                    ("a" | "b", "f32" | "s32") => return Err(unknown()),
                    (_, ty) => ty,
                };
                let shape = Shape::of(shape, from).ok_or_else(unknown)?;
                let held = Fragment::of(matrix, layout, shape, ty).ok_or_else(unknown)?;
                let window = window.first().copied();
                let stores = parts[0] == "store";
                self.move_fragment(&held, window, address, leading.first(), fragment, stores)
            }
            (["mma", more @ ..], [d, a, b, c]) => self.lower_wmma_product(more, [d, a, b, c]),
            _ => Err(unknown()),
        }
    }

    /// Loads a fragment, or stores it.
    fn move_fragment(
        &mut self,
        fragment: &Fragment,
        window: Option<&str>,
        address: &Operand,
        leading: Option<&Operand>,
        registers: &[Operand],
        stores: bool,
    ) -> Result<(), Refusal> {
        if registers.len() != fragment.registers {
            return Err(format!(
                "{} registers in a fragment of {}",
                registers.len(),
                fragment.registers
            ));
        }
        let lines = self.lines(fragment, address, leading)?;
        let (held, spare) = registers.split_at(fragment.held.len());
        for (held, register) in fragment.held.iter().zip(held) {
            let single = fragment.contiguous || held.count == 1;
            let (pieces, bits) = if single {
                (1, held.count * fragment.bits)
            } else {
                (held.count, fragment.bits)
            };
            let places: Vec<Operand> = (0..pieces)
                .map(|piece| self.place(fragment, &lines, held, piece))
                .collect();
            if stores {
                self.store_pieces(fragment.class(), bits, window, &places, register)?;
            } else {
                self.load_pieces(fragment.class(), bits, window, &places, register)?;
            }
        }
        for register in spare {
            let dst = self.destination(register, RegClass::B32)?;
            let zero = self.bits(0, RegClass::B32);
            self.copy(dst, zero);
        }
        Ok(())
    }

    /// Where the lane's first element lies, and the pitch.
    fn lines(
        &mut self,
        fragment: &Fragment,
        address: &Operand,
        leading: Option<&Operand>,
    ) -> Result<Lines, Refusal> {
        let leading = match leading {
            Some(operand) => self.source(operand, RegClass::B32)?,
            None => self.bits(fragment.leading.into(), RegClass::B32),
        };
        let width = self.bits(fragment.bits.into(), RegClass::B32);
        let pitch = self.temporary(RegClass::B64);
        let scaled = op::rare::binary(|n: u32, bits: u32| u64::from(n) * u64::from(bits) / 8);
        self.pure(scaled, pitch, vec![leading, width]);
        let base = self.flat_address(address)?;
        let lane = self.constant(Constant::Special(Special::LaneId), RegClass::B64);
        let step = self.bits(fragment.lane.into(), RegClass::B64);
        let thread = self.computed(
            |lane: u64, step: u64| (lane % 4).wrapping_mul(step),
            lane,
            step,
        );
        let four = self.bits(4, RegClass::B64);
        let group = self.computed(
            |lane: u64, four: u64| lane.checked_div(four).unwrap_or(0),
            lane,
            four,
        );
        // Along a line elements are neighbours: count bits, as some are no bytes.
        let (across, along) = if fragment.contiguous {
            (group, thread)
        } else {
            (thread, group)
        };
        let across = self.computed(|n: u64, pitch: u64| n.wrapping_mul(pitch), across, pitch);
        let width = self.bits(fragment.bits.into(), RegClass::B64);
        let along = self.computed(|n: u64, bits: u64| n.wrapping_mul(bits) / 8, along, width);
        let inside = self.computed(add, across, along);
        let start = self.computed(add, base, inside);
        Ok(Lines { start, pitch })
    }

    /// The address of an element of a register, or of all of them where they are neighbours.
    fn place(&mut self, fragment: &Fragment, lines: &Lines, held: &Held, piece: u32) -> Operand {
        let (across, along) = if fragment.contiguous {
            (held.slow, held.fast)
        } else {
            (held.fast + piece, held.slow)
        };
        let count = self.bits(across.into(), RegClass::B64);
        let far = self.computed(
            |n: u64, pitch: u64| n.wrapping_mul(pitch),
            count,
            lines.pitch,
        );
        let at = self.computed(add, lines.start, far);
        Operand::Address(AddressBase::Reg(at), i64::from(along * fragment.bits / 8))
    }

    /// Stores a register, in as many pieces of `bits` as there are places.
    fn store_pieces(
        &mut self,
        class: RegClass,
        bits: u32,
        window: Option<&str>,
        places: &[Operand],
        register: &Operand,
    ) -> Result<(), Refusal> {
        let found = match window {
            None => space::GENERIC,
            Some("global") => space::GLOBAL,
            Some("shared" | "shared::cta" | "shared::cluster") => space::SHARED,
            Some(other) => return Err(format!("the space `{other}` is not implemented")),
        };
        let mut rest = self.source(register, class)?;
        for (piece, place) in places.iter().enumerate() {
            if piece > 0 {
                let width = self.bits(bits.into(), RegClass::B32);
                rest = self.computed(|a: u32, bits: u32| a >> (bits & 31), rest, width);
            }
            self.push_store(found, place, &[Operand::Reg(rest)], class, bits / 8)?;
        }
        Ok(())
    }

    /// The same for a load.
    fn load_pieces(
        &mut self,
        class: RegClass,
        bits: u32,
        window: Option<&str>,
        places: &[Operand],
        register: &Operand,
    ) -> Result<(), Refusal> {
        let modifiers: Vec<&str> = window.into_iter().chain([access(bits)]).collect();
        let mut pieces = Vec::with_capacity(places.len());
        for place in places {
            let piece = self.temporary(class);
            self.lower_load(&modifiers, &[Operand::Reg(piece), place.clone()])?;
            pieces.push(piece);
        }
        let joined = pieces.into_iter().rev().reduce(|high, low| match bits {
            8 => self.computed(|high: u32, low: u32| high << 8 | low, high, low),
            _ => self.computed(|high: u32, low: u32| high << 16 | low, high, low),
        });
        let dst = self.destination(register, class)?;
        if let Some(value) = joined {
            self.copy(dst, value);
        }
        Ok(())
    }

    /// A register that `f` computes.
    fn computed<T: Lane, F: Fn(T, T) -> T + Copy>(&mut self, f: F, a: u32, b: u32) -> u32 {
        let dst = self.temporary(if size_of::<T>() == 8 {
            RegClass::B64
        } else {
            RegClass::B32
        });
        self.pure(op::rare::binary(f), dst, vec![a, b]);
        dst
    }

    /// `wmma.mma...` (the parts behind `mma`): D, A, B, C.
    fn lower_wmma_product(&mut self, parts: &[&str], o: [&Operand; 4]) -> Result<(), Refusal> {
        let unknown = || format!("`wmma.mma.{}` is not implemented", parts.join("."));
        let mut parts_left = parts.to_vec();
        // What `mma` has behind its types.
        let mut operation: Vec<&str> = Vec::new();
        if let ["and" | "xor", "popc", ..] = parts_left[..] {
            operation = parts_left.drain(..2).collect();
        }
        let mut satfinite: Vec<&str> = Vec::new();
        if parts_left.last() == Some(&"satfinite") {
            satfinite.extend(parts_left.pop());
        }
        let (shape, d_type, a_type, b_type, c_type) = match parts_left[..] {
            ["row" | "col", "row" | "col", shape, d, c] => (shape, d, "f16", "f16", c),
            ["row" | "col", "row" | "col", shape, d, a, b, c] => (shape, d, a, b, c),
            [
                "row" | "col",
                "row" | "col",
                shape,
                "f64",
                "f64",
                "f64",
                "f64",
                "rn",
            ] => (shape, "f64", "f64", "f64", "f64"),
            _ => return Err(unknown()),
        };
        let integer = matches!(a_type, "s8" | "u8" | "s4" | "u4");
        // `mma` judges the types; what has two types for C and D is computed in f32.
        let mixed = matches!(
            (a_type, d_type, c_type),
            ("f16", "f16", "f32") | ("f16", "f32", "f16")
        );
        let computed_type = if mixed { "f32" } else { d_type };
        if (d_type != c_type && !mixed) || a_type != b_type || (!satfinite.is_empty() && !integer) {
            return Err(unknown());
        }
        let size = Shape::of(shape, a_type).ok_or_else(unknown)?;
        let width = bits(a_type).ok_or_else(unknown)?;
        let each = (32 / width).max(1);
        let blocks = (size.k / (4 * each)) as usize;
        let (tiles, rows) = size.rows();
        let (tiles, columns) = (tiles as usize, (size.n / 8) as usize);
        let halves = (rows / 8) as usize;
        // Integers and f64 have products of 8 rows.
        let padded = rows == 8 && matches!(a_type, "f16" | "bf16");
        let of_half = |ty: &str| if ty == "f16" { 1 } else { 2 };
        let groups = tiles * columns * halves;
        let counts = [
            groups * of_half(d_type),
            tiles * blocks * halves,
            columns * blocks,
            groups * of_half(c_type),
        ];
        let lists: Vec<Vec<Operand>> = o.iter().map(|operand| operand.elements()).collect();
        let [d, a, b, c] = &lists[..] else {
            return Err(unknown());
        };
        let given = |count: usize| if a_type == "f16" { 8 } else { count };
        if [d.len(), a.len(), b.len(), c.len()]
            != [counts[0], given(counts[1]), given(counts[2]), counts[3]]
        {
            return Err("a fragment has the wrong number of registers".into());
        }
        let mma_shape = format!("m{}n8k{}", if padded { 16 } else { rows }, size.k);
        let mut modifiers = vec!["sync", "aligned", mma_shape.as_str(), "row", "col"];
        modifiers.extend(satfinite);
        modifiers.extend([computed_type, a_type, b_type, computed_type]);
        modifiers.extend(operation);
        let class = if d_type == "f64" {
            RegClass::B64
        } else {
            RegClass::B32
        };
        let zero = Operand::Reg(self.bits(0, RegClass::B32));
        let widened;
        let c = if mixed && c_type == "f16" {
            widened = self.halves_to_floats(c)?;
            &widened
        } else {
            c
        };
        // D may share registers with what later products still read.
        let mut results = Vec::new();
        for tile in 0..tiles {
            for column in 0..columns {
                let a = &a[tile * blocks * halves..][..blocks * halves];
                let b = b[column * blocks..][..blocks].to_vec();
                let per = halves * of_half(computed_type);
                let mut c = c[(tile * columns + column) * per..][..per].to_vec();
                let mut d: Vec<Operand> = (0..per)
                    .map(|_| Operand::Reg(self.temporary(class)))
                    .collect();
                results.extend(d.iter().cloned());
                let a = if padded {
                    c.extend(vec![zero.clone(); per]);
                    d.extend((0..per).map(|_| Operand::Reg(self.temporary(class))));
                    a.iter()
                        .flat_map(|half| [half.clone(), zero.clone()])
                        .collect()
                } else {
                    a.to_vec()
                };
                let operands = [d, a, b, c].map(Operand::Vector);
                self.lower_matrix("mma", &modifiers, &operands)?;
            }
        }
        if mixed && d_type == "f16" {
            results = self.floats_to_halves(&results)?;
        }
        for (register, result) in d.iter().zip(results) {
            let dst = self.destination(register, class)?;
            let src = self.source(&result, class)?;
            self.copy(dst, src);
        }
        Ok(())
    }

    /// Two f32 registers of each register of two f16.
    fn halves_to_floats(&mut self, halves: &[Operand]) -> Result<Vec<Operand>, Refusal> {
        let mut floats = Vec::with_capacity(2 * halves.len());
        for register in halves {
            let pair = self.source(register, RegClass::B32)?;
            let low = op::rare::unary(|pair: u32| f16::from_bits(pair as u16).to_f32());
            let high = op::rare::unary(|pair: u32| f16::from_bits((pair >> 16) as u16).to_f32());
            for convert in [low, high] {
                let dst = self.temporary(RegClass::B32);
                self.pure(convert, dst, vec![pair]);
                floats.push(Operand::Reg(dst));
            }
        }
        Ok(floats)
    }

    /// A register of two f16 of each two f32 registers.
    fn floats_to_halves(&mut self, floats: &[Operand]) -> Result<Vec<Operand>, Refusal> {
        let mut halves = Vec::with_capacity(floats.len() / 2);
        for pair in floats.chunks(2) {
            let mut srcs = Vec::with_capacity(2);
            for float in pair {
                srcs.push(self.source(float, RegClass::B32)?);
            }
            let dst = self.temporary(RegClass::B32);
            let round = op::rare::binary(|low: f32, high: f32| {
                let bits = |x| u32::from(f16::from_f32(x).to_bits());
                bits(low) | bits(high) << 16
            });
            self.pure(round, dst, srcs);
            halves.push(Operand::Reg(dst));
        }
        Ok(halves)
    }
}
