//! Tensor-core instructions of every type: `mma.sync` beyond the forms of [`matrix`](super::matrix), and `wgmma`.
//!
//! Fragments follow one rule, with `g = lane / 4`, `t = lane % 4` and `e` elements to a register (1 for f64 and tf32):
//!
//! | fragment | element `i` of register `r` |
//! |---|---|
//! | A, 16 rows | row `g + 8 (r % 2)`, column `e t + i + 4 e (r / 2)` |
//! | A, 8 rows | row `g`, column `e t + i` |
//! | B | row (k) `e t + i + 4 e r`, column (n) `g` |
//! | C/D of 32 and 64 bits | row `g + 8 (r / 2 % 2)`, column `2 t + r % 2 + 8 (r / 4)` |
//! | C/D of f16 | row `g + 8 (r % 2)`, column `2 t + i + 8 (r / 2)` |
//!
//! `wgmma` is computed when it is issued, each warp its own 16 rows; that its accumulators may only be read after
//! `wgmma.wait_group` is not checked. Products are summed in ascending k, in f32 with one FMA each (then rounded, for f16
//! accumulators), exactly for integers.

use super::control::converged;
use super::fault::{Fault, Space};
use super::lane::{Bf16, F16, Lane};
use super::op::{Op, handler};
use super::soft_float::{Format, Overflow, Rounding, Value, round};
use super::tensor_map::swizzled;
use super::warp::{Handler, Ins, LANES, Warp};
use std::sync::OnceLock;

/// The type of a matrix element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Element {
    F16,
    Bf16,
    Tf32,
    E4m3,
    E5m2,
    S8,
    U8,
    S4,
    U4,
    B1,
    F64,
    F32,
    S32,
}

const ELEMENTS: [(&str, Element, u32); 13] = [
    ("f16", Element::F16, 16),
    ("bf16", Element::Bf16, 16),
    ("tf32", Element::Tf32, 32),
    ("e4m3", Element::E4m3, 8),
    ("e5m2", Element::E5m2, 8),
    ("s8", Element::S8, 8),
    ("u8", Element::U8, 8),
    ("s4", Element::S4, 4),
    ("u4", Element::U4, 4),
    ("b1", Element::B1, 1),
    ("f64", Element::F64, 64),
    ("f32", Element::F32, 32),
    ("s32", Element::S32, 32),
];

impl Element {
    pub(crate) fn named(name: &str) -> Option<Element> {
        ELEMENTS
            .iter()
            .find(|(n, ..)| *n == name)
            .map(|&(_, element, _)| element)
    }

    pub(crate) fn bits(self) -> u32 {
        ELEMENTS[self as usize].2
    }

    fn integer(self) -> bool {
        matches!(
            self,
            Element::S8 | Element::U8 | Element::S4 | Element::U4 | Element::B1
        )
    }
}

/// Values of an 8-bit float format by code.
fn table(element: Element) -> &'static [f32; 256] {
    static TABLES: [OnceLock<[f32; 256]>; 2] = [OnceLock::new(), OnceLock::new()];
    let (index, name) = if element == Element::E4m3 {
        (0, "e4m3")
    } else {
        (1, "e5m2")
    };
    TABLES[index].get_or_init(|| {
        let format = Format::of(Format::number(name).unwrap_or(0));
        let single = Format::of(Format::number("f32").unwrap_or(0));
        std::array::from_fn(|code| {
            let value = Value::decode(code as u64, format, false);
            let bits = round(value, single, Rounding::Even, Overflow::Infinity, false);
            f32::from_bits(bits as u32)
        })
    })
}

/// An element's value; every type here but f64 and s32 fits f32 exactly.
#[inline(always)]
fn value(element: Element, bits: u32) -> f32 {
    match element {
        Element::F16 => F16::get(bits & 0xffff).0,
        Element::Bf16 => Bf16::get(bits & 0xffff).0,
        // The tensor core does not see the low bits.
        Element::Tf32 => f32::from_bits(bits & !0x1fff),
        Element::E4m3 | Element::E5m2 => table(element)[(bits & 0xff) as usize],
        Element::S8 => f32::from(bits as i8),
        Element::U8 => f32::from(bits as u8),
        Element::S4 => ((bits << 28) as i32 >> 28) as f32,
        Element::U4 => (bits & 15) as f32,
        Element::B1 => (bits & 1) as f32,
        Element::F64 | Element::F32 | Element::S32 => f32::from_bits(bits),
    }
}

/// A matrix instruction; packed into `Ins::imm`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub m: u32,
    pub n: u32,
    pub k: u32,
    pub a: Element,
    pub b: Element,
    pub d: Element,
    /// `.satfinite` of integers.
    pub saturate: bool,
    /// `.xor` instead of `.and` of single bits.
    pub xor: bool,
    /// `wgmma`: A is in registers.
    pub a_in_registers: bool,
    pub negate_a: bool,
    pub negate_b: bool,
    pub transpose_a: bool,
    pub transpose_b: bool,
}

impl Product {
    pub(crate) fn pack(self) -> i64 {
        let flags = [
            self.saturate,
            self.xor,
            self.a_in_registers,
            self.negate_a,
            self.negate_b,
            self.transpose_a,
            self.transpose_b,
        ];
        let flags = flags
            .iter()
            .enumerate()
            .fold(0, |bits, (i, &on)| bits | i64::from(on) << i);
        i64::from(self.m)
            | i64::from(self.n) << 8
            | i64::from(self.k) << 20
            | (self.a as i64) << 32
            | (self.b as i64) << 36
            | (self.d as i64) << 40
            | flags << 48
    }

    fn unpack(imm: i64) -> Product {
        let element = |shift: u32| ELEMENTS[(imm >> shift & 15).min(12) as usize].1;
        let flag = |i: u32| imm >> (48 + i) & 1 != 0;
        Product {
            m: (imm & 0xff) as u32,
            n: (imm >> 8 & 0xfff) as u32,
            k: (imm >> 20 & 0xfff) as u32,
            a: element(32),
            b: element(36),
            d: element(40),
            saturate: flag(0),
            xor: flag(1),
            a_in_registers: flag(2),
            negate_a: flag(3),
            negate_b: flag(4),
            transpose_a: flag(5),
            transpose_b: flag(6),
        }
    }

    /// Registers of A, B and D of one thread.
    pub(crate) fn registers(self) -> (usize, usize, usize) {
        let count =
            |elements: u32, bits: u32| (elements * bits).div_ceil(32 * bits.max(32)) as usize;
        let d_bits = self.d.bits();
        let d = if d_bits == 16 {
            (self.m.min(16) * self.n / 64) as usize
        } else {
            (self.m.min(16) * self.n / 32) as usize
        };
        (
            count(self.m.min(16) * self.k, self.a.bits()),
            count(self.k * self.n, self.b.bits()),
            d,
        )
    }
}

/// Most columns and most k of any instruction.
const MAX_N: usize = 256;
const MAX_K: usize = 256;

/// The operands of one warp in row order. Rows of `b` are k.
struct Tiles {
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
}

impl Tiles {
    fn new(p: &Product) -> Tiles {
        let (n, k) = ((p.n as usize).min(MAX_N), (p.k as usize).min(MAX_K));
        Tiles {
            a: vec![0.0; 16 * k],
            b: vec![0.0; k * n],
            c: vec![0.0; 16 * n],
        }
    }

    /// `c += a b`
    #[inline(always)]
    fn multiply(&mut self, n: usize, k: usize) {
        for row in 0..16 {
            let c = &mut self.c[row * n..(row + 1) * n];
            for inner in 0..k {
                let a = self.a[row * k + inner];
                let b = &self.b[inner * n..(inner + 1) * n];
                for (c, b) in c.iter_mut().zip(b) {
                    *c = a.mul_add(*b, *c);
                }
            }
        }
    }

    /// The count of differing bits, for `.xor`.
    fn differ(&mut self, n: usize, k: usize) {
        for row in 0..16 {
            for column in 0..n {
                let count = (0..k)
                    .filter(|&i| self.a[row * k + i] != self.b[i * n + column])
                    .count();
                self.c[row * n + column] = count as f32;
            }
        }
    }
}

fn operands(warp: &Warp, ins: &Ins) -> &'static [u32] {
    // SAFETY: the kernel's code outlives its warps, and the reference does not leave the handler.
    unsafe { &(&(*warp.program).lists)[ins.ops[7] as usize] }
}

/// Reads A from registers.
#[inline(always)]
fn read_a(warp: &Warp, p: &Product, slots: &[u32], a: &mut [f32]) {
    let (k, bits) = (p.k as usize, p.a.bits());
    let e = (32 / bits) as usize;
    for (r, &slot) in slots.iter().enumerate() {
        // SAFETY: the operand is a slot of 32 lanes.
        let words = unsafe { warp.read::<u32>(slot) };
        let (row, column) = if p.m == 8 {
            (0, 4 * e * r)
        } else {
            (8 * (r % 2), 4 * e * (r / 2))
        };
        for lane in 0..LANES {
            let (g, t) = (lane / 4, lane % 4);
            for i in 0..e {
                let x = value(p.a, words[lane] >> (bits * i as u32));
                a[(g + row) * k + column + e * t + i] = if p.negate_a { -x } else { x };
            }
        }
    }
}

#[inline(always)]
fn read_b(warp: &Warp, p: &Product, slots: &[u32], b: &mut [f32]) {
    let (n, bits) = (p.n as usize, p.b.bits());
    let e = (32 / bits) as usize;
    for (r, &slot) in slots.iter().enumerate() {
        // SAFETY: the operand is a slot of 32 lanes.
        let words = unsafe { warp.read::<u32>(slot) };
        for lane in 0..LANES {
            let (g, t) = (lane / 4, lane % 4);
            for i in 0..e {
                b[(e * t + i + 4 * e * r) * n + g] = value(p.b, words[lane] >> (bits * i as u32));
            }
        }
    }
}

/// Row and column of register `r` of an accumulator in a lane (its first element, for packed f16).
#[inline(always)]
fn place(p: &Product, r: usize, lane: usize) -> (usize, usize) {
    let (g, t) = (lane / 4, lane % 4);
    if p.d == Element::F16 {
        (g + 8 * (r % 2), 2 * t + 8 * (r / 2))
    } else if p.m == 8 {
        (g, 2 * t + r)
    } else {
        (g + 8 * (r / 2 % 2), 2 * t + r % 2 + 8 * (r / 4))
    }
}

/// Reads float accumulators; integers are added at the end.
#[inline(always)]
fn read_c(warp: &Warp, p: &Product, slots: &[u32], c: &mut [f32]) {
    let n = p.n as usize;
    for (r, &slot) in slots.iter().enumerate() {
        // SAFETY: the operand is a slot of 32 lanes.
        let words = unsafe { warp.read::<u32>(slot) };
        for lane in 0..LANES {
            let (row, column) = place(p, r, lane);
            if p.d == Element::F16 {
                c[row * n + column] = value(Element::F16, words[lane]);
                c[row * n + column + 1] = value(Element::F16, words[lane] >> 16);
            } else {
                c[row * n + column] = f32::from_bits(words[lane]);
            }
        }
    }
}

/// Writes D; `old` holds the slots of C, or is empty for a C of zeros.
#[inline(always)]
fn write_d(warp: &mut Warp, p: &Product, slots: &[u32], old: &[u32], c: &[f32]) {
    let n = p.n as usize;
    for (r, &slot) in slots.iter().enumerate() {
        let mut words = [0u32; LANES];
        if p.d == Element::S32
            && let Some(&old) = old.get(r)
        {
            // SAFETY: the operand is a slot of 32 lanes.
            words = unsafe { warp.read::<u32>(old) };
        }
        for lane in 0..LANES {
            let (row, column) = place(p, r, lane);
            let x = c[row * n + column];
            words[lane] = match p.d {
                Element::F16 => F16(x).put() | F16(c[row * n + column + 1]).put() << 16,
                Element::S32 => {
                    // A sum over k of products of bytes is exact in f32.
                    let sum = i64::from(words[lane] as i32) + x as i64;
                    if p.saturate {
                        sum.clamp(i32::MIN.into(), i32::MAX.into()) as u32
                    } else {
                        sum as u32
                    }
                }
                _ => x.to_bits(),
            };
        }
        // SAFETY: the operand is a 32-bit destination.
        unsafe { warp.write32(slot, &words) };
    }
}

fn tally(warp: &mut Warp, p: &Product) {
    warp.counters.mma_ops += 1;
    warp.counters.mma_macs += u64::from(p.m.min(16) * p.n * p.k);
}

/// `mma.sync`. Operands in a list: D, A, B, C.
struct Mma;
impl Op for Mma {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        if !converged(warp) {
            let live = warp.live;
            return warp.fail_divergent(ip, live);
        }
        let p = Product::unpack(ins.imm);
        let list = operands(warp, ins);
        let (a_count, b_count, d_count) = p.registers();
        let (d, rest) = list.split_at(d_count);
        let (a, rest) = rest.split_at(a_count);
        let (b, c) = rest.split_at(b_count);
        if p.d == Element::F64 {
            doubles(warp, &p, d, a, b, c);
        } else {
            let mut tiles = Tiles::new(&p);
            read_a(warp, &p, a, &mut tiles.a);
            read_b(warp, &p, b, &mut tiles.b);
            if !p.a.integer() {
                read_c(warp, &p, c, &mut tiles.c);
            }
            if p.xor {
                tiles.differ(p.n as usize, p.k as usize);
            } else {
                tiles.multiply(p.n as usize, p.k as usize);
            }
            write_d(warp, &p, d, c, &tiles.c);
        }
        tally(warp, &p);
        ip.wrapping_add(1)
    }
}

/// `mma.sync` of f64: one FMA a product, in ascending k.
fn doubles(warp: &mut Warp, p: &Product, d: &[u32], a: &[u32], b: &[u32], c: &[u32]) {
    // SAFETY: the operands are slots of 32 lanes of 64 bits.
    let read = |slot: u32| unsafe { warp.read::<f64>(slot) };
    let (a, b, c): (Vec<_>, Vec<_>, Vec<_>) = (
        a.iter().map(|&s| read(s)).collect(),
        b.iter().map(|&s| read(s)).collect(),
        c.iter().map(|&s| read(s)).collect(),
    );
    let rows = if p.m == 8 { 1 } else { 2 };
    for (r, &slot) in d.iter().enumerate() {
        let mut value = [0u64; LANES];
        for lane in 0..LANES {
            let (row, column) = place(p, r, lane);
            let mut sum = c[r][lane];
            for k in 0..p.k as usize {
                let x = a[row / 8 + rows * (k / 4)][4 * (row % 8) + k % 4];
                let y = b[k / 4][4 * column + k % 4];
                sum = x.mul_add(y, sum);
            }
            value[lane] = sum.to_bits();
        }
        // SAFETY: the operand is a 64-bit destination.
        unsafe { warp.write64(slot, &value) };
    }
}

/// A `wgmma` matrix descriptor.
///
/// PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout": start address, leading and stride byte offsets in
/// units of 16 bytes, and the swizzle.
#[derive(Clone, Copy)]
struct Descriptor {
    start: u64,
    leading: u64,
    stride: u64,
    /// log2 of 16-byte units in the swizzle's span.
    swizzle: u8,
    base_offset: u64,
}

impl Descriptor {
    fn unpack(bits: u64) -> Descriptor {
        Descriptor {
            start: (bits & 0x3fff) << 4,
            leading: (bits >> 16 & 0x3fff) << 4,
            stride: (bits >> 32 & 0x3fff) << 4,
            swizzle: match bits >> 62 {
                0 => 0,
                1 => 3,
                2 => 2,
                _ => 1,
            },
            base_offset: bits >> 49 & 7,
        }
    }

    /// Offset in shared memory of element (`mn`, `k`) of `bytes` bytes. The layouts repeat cores of 8 rows of 16 bytes.
    fn offset(&self, mn: u64, k: u64, bytes: u64, transposed: bool) -> u64 {
        let units = 1 << self.swizzle;
        let per = 16 / bytes;
        let linear = if transposed {
            // MN-major: a row of the span holds neighbours in mn; its eight rows are neighbours in k.
            let span = per * units;
            let inside = mn % span * bytes + k % 8 * 16 * units;
            if self.swizzle == 0 {
                inside + mn / span * self.stride + k / 8 * self.leading
            } else {
                inside + mn / span * self.leading + k / 8 * self.stride
            }
        } else {
            // K-major: rows of mn, 16 bytes of k in each unit.
            let unit = if self.swizzle == 0 { self.leading } else { 16 };
            mn % 8 * 16 * units + mn / 8 * self.stride + k / per * unit + k % per * bytes
        };
        swizzled(self.start + linear, self.swizzle)
    }
}

/// `wgmma.mma_async`. Operands in a list: D, C (the same registers before), A (four registers, or a descriptor), the
/// descriptor of B, and the predicate that keeps C.
struct Wgmma;
impl Op for Wgmma {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        if !converged(warp) || warp.mask != u32::MAX {
            return warp.fail_divergent(ip, u32::MAX);
        }
        let p = Product::unpack(ins.imm);
        let list = operands(warp, ins);
        let (_, _, d_count) = p.registers();
        let (d, rest) = list.split_at(d_count);
        let (c, rest) = rest.split_at(d_count);
        let (a, rest) = rest.split_at(if p.a_in_registers { 4 } else { 1 });
        // SAFETY: the last operand is a predicate.
        let keeps = unsafe { warp.pred(rest[1]) } & 1 != 0;
        let mut tiles = Tiles::new(&p);
        let (n, k) = (p.n as usize, p.k as usize);
        if p.a_in_registers {
            read_a(warp, &p, a, &mut tiles.a);
        } else {
            // SAFETY: the operand is a slot of 32 lanes of 64 bits, the same in all.
            let descriptor = Descriptor::unpack(unsafe { *warp.slot::<u64>(a[0]) });
            let first = 16 * (warp.index % 4);
            let (element, negate) = (p.a, p.negate_a);
            let ok = load(
                warp,
                ip,
                &descriptor,
                element,
                p.transpose_a,
                16,
                k,
                |row, inner, x| {
                    tiles.a[row * k + inner] = if negate { -x } else { x };
                },
                first as usize,
            );
            if !ok {
                return std::ptr::null();
            }
        }
        // SAFETY: the operand is a slot of 32 lanes of 64 bits, the same in all.
        let descriptor = Descriptor::unpack(unsafe { *warp.slot::<u64>(rest[0]) });
        let negate = p.negate_b;
        let ok = load(
            warp,
            ip,
            &descriptor,
            p.b,
            p.transpose_b,
            n,
            k,
            |column, inner, x| {
                tiles.b[inner * n + column] = if negate { -x } else { x };
            },
            0,
        );
        if !ok {
            return std::ptr::null();
        }
        if keeps && !p.a.integer() {
            read_c(warp, &p, c, &mut tiles.c);
        }
        tiles.multiply(n, k);
        write_d(warp, &p, d, if keeps { c } else { &[] }, &tiles.c);
        tally(warp, &p);
        ip.wrapping_add(1)
    }
}

/// Reads `rows` rows of `k` elements through a descriptor, from row `first` on.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn load(
    warp: &mut Warp,
    ip: *const Ins,
    descriptor: &Descriptor,
    element: Element,
    transposed: bool,
    rows: usize,
    k: usize,
    mut put: impl FnMut(usize, usize, f32),
    first: usize,
) -> bool {
    if descriptor.base_offset != 0 {
        let message = "a matrix descriptor with a base offset".into();
        warp.fail(ip, 0, |site| Fault::Unsupported { site, message });
        return false;
    }
    let bits = element.bits();
    let bytes = u64::from(bits / 8).max(1);
    let limit = u64::from(warp.shared_bytes);
    for row in 0..rows {
        for inner in 0..k {
            // Single bits are read from the byte that holds eight of them.
            let index = if bits == 1 { inner / 8 } else { inner };
            let at = descriptor.offset((first + row) as u64, index as u64, bytes, transposed);
            if at + bytes > limit {
                warp.fail(ip, 0, |site| Fault::OutOfBounds {
                    site,
                    space: Space::Shared,
                    address: at,
                    bytes,
                    limit,
                });
                return false;
            }
            if !warp.watch.is_null() {
                // SAFETY: a watch that is set outlives the warps, and the block's runner does not use it while a handler runs.
                unsafe { &mut *warp.watch }.matrix_read(warp, at, bytes);
            }
            let mut word = [0u8; 4];
            let source = warp.shared.wrapping_add(at as usize);
            // SAFETY: the range was checked to lie in the block's shared memory.
            unsafe { std::ptr::copy_nonoverlapping(source, word.as_mut_ptr(), bytes as usize) };
            let mut word = u32::from_le_bytes(word);
            if bits == 1 {
                word >>= inner % 8;
            }
            put(row, inner, value(element, word));
        }
    }
    warp.counters.shared_requests += 1;
    true
}

pub(crate) fn mma() -> Handler {
    handler::<Mma>()
}

pub(crate) fn wgmma() -> Handler {
    handler::<Wgmma>()
}
