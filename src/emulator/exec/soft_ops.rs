//! Instructions computed by [`soft_float`](super::soft_float): conversions and arithmetic that kernels run rarely.

use super::lane::Raw;
use super::op::{Op, Selected, plain_handler};
use super::soft_float::{
    Format, Overflow, Rounding, Value, add, divide, multiply, round, square_root,
};
use super::warp::{Ins, LANES, Warp};
use crate::emulator::ptx::RegClass;
use std::marker::PhantomData;

/// A conversion; packed into `Ins::imm`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conversion {
    /// Number of the source's format, or 16 + log2 of its bytes for unsigned and 24 + that for signed integers.
    pub from: u8,
    /// Number of the result's format.
    pub to: u8,
    /// Number of the rounding.
    pub rounding: u8,
    /// Round to an integral value first.
    pub integral: bool,
    pub flush: bool,
    pub saturate: bool,
    pub relu: bool,
    pub finite: bool,
    /// Two values, both in the one source, or one a source (the first one becomes the upper).
    pub pair: Pair,
}

/// How many values a conversion takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Pair {
    /// One.
    #[default]
    Single,
    /// Two in one register.
    Packed,
    /// Two in two registers.
    Apart,
}

impl Conversion {
    fn pack(self) -> i64 {
        let flags = [
            self.integral,
            self.flush,
            self.saturate,
            self.relu,
            self.finite,
        ];
        let flags = flags
            .iter()
            .enumerate()
            .fold(0, |bits, (i, &on)| bits | i64::from(on) << i);
        i64::from(self.from)
            | i64::from(self.to) << 8
            | i64::from(self.rounding) << 16
            | flags << 24
            | (self.pair as i64) << 32
    }

    fn unpack(imm: i64) -> Conversion {
        let flag = |i: u32| imm >> (24 + i) & 1 != 0;
        Conversion {
            from: imm as u8,
            to: (imm >> 8) as u8,
            rounding: (imm >> 16) as u8,
            integral: flag(0),
            flush: flag(1),
            saturate: flag(2),
            relu: flag(3),
            finite: flag(4),
            pair: match imm >> 32 {
                0 => Pair::Single,
                1 => Pair::Packed,
                _ => Pair::Apart,
            },
        }
    }

    fn source_bits(self) -> u32 {
        match self.from {
            0..16 => Format::of(self.from.into()).bits(),
            n => 8 << (n & 7),
        }
    }

    fn one(self, bits: u64) -> u64 {
        let rounding = Rounding::ALL[usize::from(self.rounding).min(4)];
        let mut value = match self.from {
            0..16 => Value::decode(bits, Format::of(self.from.into()), self.flush),
            n => {
                let unused = 64 - self.source_bits();
                if n >= 24 {
                    Value::integer(i128::from((bits << unused) as i64 >> unused))
                } else {
                    Value::integer(i128::from(bits << unused >> unused))
                }
            }
        };
        if self.integral {
            value = value.integral(rounding);
        }
        if self.saturate {
            value = value.saturate();
        }
        if self.relu {
            value = value.relu();
        }
        let overflow = if self.finite {
            Overflow::Largest
        } else {
            Overflow::Infinity
        };
        let to = Format::of(self.to.into());
        // `.ftz` speaks of f32 results only.
        let flush = self.flush && to.bits() == 32;
        round(value, to, rounding, overflow, flush)
    }

    fn all(self, a: u64, b: u64) -> u64 {
        let width = Format::of(self.to.into()).bits();
        let source = self.source_bits();
        let low_mask = u64::MAX >> (64 - source);
        match self.pair {
            Pair::Single => self.one(a),
            Pair::Packed => self.one(a & low_mask) | self.one(a >> source & low_mask) << width,
            Pair::Apart => self.one(b) | self.one(a) << width,
        }
    }

    /// The instruction, with register classes for its operands.
    pub(crate) fn select(self) -> Selected {
        let class = |bits: u32| match bits {
            0..=16 => RegClass::B16,
            17..=32 => RegClass::B32,
            _ => RegClass::B64,
        };
        let count = |paired: bool| if paired { 2 } else { 1 };
        let src = class(self.source_bits() * count(self.pair == Pair::Packed));
        let dst = class(Format::of(self.to.into()).bits() * count(self.pair != Pair::Single));
        let handler = match (src, dst) {
            (RegClass::B64, RegClass::B64) => plain_handler::<Convert<u64, u64>>(),
            (RegClass::B64, _) => plain_handler::<Convert<u64, u32>>(),
            (_, RegClass::B64) => plain_handler::<Convert<u32, u64>>(),
            _ => plain_handler::<Convert<u32, u32>>(),
        };
        let second = (self.pair == Pair::Apart).then_some(src);
        Selected {
            handler,
            dst,
            src: [Some(src), second, None],
            imm: self.pack(),
        }
    }
}

/// Any conversion to a float format.
struct Convert<A, D>(PhantomData<(A, D)>);
impl<A: Raw, D: Raw> Op for Convert<A, D> {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let conversion = Conversion::unpack(ins.imm);
        // SAFETY: the operand is a slot of 32 lanes of this width.
        let a = unsafe { warp.read::<A>(ins.ops[1]) };
        let b = if conversion.pair == Pair::Apart {
            // SAFETY: as above.
            unsafe { warp.read::<A>(ins.ops[2]) }
        } else {
            a
        };
        let value: [D; LANES] =
            std::array::from_fn(|lane| D::of(conversion.all(a[lane].wide(), b[lane].wide())));
        // SAFETY: the first operand is a destination of this width.
        unsafe { D::write(warp, ins.ops[0], &value) };
        ip.wrapping_add(1)
    }
}

/// Arithmetic that [`Arithmetic`] knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Add,
    Subtract,
    Multiply,
    MultiplyAdd,
    Divide,
    Reciprocal,
    SquareRoot,
}

const OPERATIONS: [(&str, usize, Operation); 8] = [
    ("add", 2, Operation::Add),
    ("sub", 2, Operation::Subtract),
    ("mul", 2, Operation::Multiply),
    ("fma", 3, Operation::MultiplyAdd),
    ("mad", 3, Operation::MultiplyAdd),
    ("div", 2, Operation::Divide),
    ("rcp", 1, Operation::Reciprocal),
    ("sqrt", 1, Operation::SquareRoot),
];

/// Modifiers of [`arithmetic`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arithmetic {
    pub rounding: Rounding,
    pub flush: bool,
    pub saturate: bool,
    pub relu: bool,
}

/// `base.ty` with these modifiers, for f16, bf16, f32, f64 and the packed 16-bit types.
pub(crate) fn arithmetic(base: &str, ty: &str, sources: usize, m: Arithmetic) -> Option<Selected> {
    let number = OPERATIONS
        .iter()
        .position(|&(name, count, _)| name == base && count == sources)?;
    let (element, pair) = match ty.strip_suffix("x2") {
        Some(element) => (element, true),
        None => (ty, false),
    };
    let format = Format::number(element).filter(|&n| n < 4)?;
    let rounding = Rounding::ALL.iter().position(|&r| r == m.rounding)?;
    let class = match (element, pair) {
        ("f64", false) => RegClass::B64,
        ("f64", true) => return None,
        ("f32", false) => RegClass::B32,
        ("f32", true) => return None,
        (_, true) => RegClass::B32,
        (_, false) => RegClass::B16,
    };
    let flags = [pair, m.flush, m.saturate, m.relu]
        .iter()
        .enumerate()
        .fold(0, |bits, (i, &on)| bits | i64::from(on) << i);
    let imm = number as i64 | (format as i64) << 8 | (rounding as i64) << 16 | flags << 24;
    let handler = match (class, sources) {
        (RegClass::B64, 1) => plain_handler::<Compute<u64, 1>>(),
        (RegClass::B64, 2) => plain_handler::<Compute<u64, 2>>(),
        (RegClass::B64, _) => plain_handler::<Compute<u64, 3>>(),
        (_, 1) => plain_handler::<Compute<u32, 1>>(),
        (_, 2) => plain_handler::<Compute<u32, 2>>(),
        _ => plain_handler::<Compute<u32, 3>>(),
    };
    Some(Selected {
        handler,
        dst: class,
        src: [
            Some(class),
            (sources > 1).then_some(class),
            (sources > 2).then_some(class),
        ],
        imm,
    })
}

fn compute(imm: i64, operands: [u64; 3]) -> u64 {
    let format = Format::of((imm >> 8) as usize & 255);
    let rounding = Rounding::ALL[((imm >> 16) as usize & 255).min(4)];
    let flag = |i: u32| imm >> (24 + i) & 1 != 0;
    let [a, b, c] = operands.map(|bits| Value::decode(bits, format, flag(1)));
    let one = Value::integer(1);
    let minus = |v: Value| multiply(v, Value::integer(-1));
    let mut value = match OPERATIONS[(imm as usize & 255).min(OPERATIONS.len() - 1)].2 {
        Operation::Add => add(a, b, rounding),
        Operation::Subtract => add(a, minus(b), rounding),
        Operation::Multiply => multiply(a, b),
        Operation::MultiplyAdd => add(multiply(a, b), c, rounding),
        Operation::Divide => divide(a, b),
        Operation::Reciprocal => divide(one, a),
        Operation::SquareRoot => square_root(a),
    };
    if flag(3) {
        value = value.relu();
    }
    let mut bits = round(value, format, rounding, Overflow::Infinity, flag(1));
    if flag(2) {
        let value = Value::decode(bits, format, false).saturate();
        bits = round(value, format, rounding, Overflow::Infinity, false);
    }
    bits
}

/// `OPERATIONS` by number, over 1 to 3 sources. `ops`: d, sources.
struct Compute<T, const N: usize>(PhantomData<T>);
impl<T: Raw, const N: usize> Op for Compute<T, N> {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let pair = ins.imm >> 24 & 1 != 0;
        let mut sources = [[0u64; LANES]; 3];
        for n in 0..N {
            // SAFETY: the operands are slots of 32 lanes of this width.
            sources[n] = unsafe { warp.read::<T>(ins.ops[1 + n]) }.map(T::wide);
        }
        let value: [T; LANES] = std::array::from_fn(|lane| {
            let x = [sources[0][lane], sources[1][lane], sources[2][lane]];
            T::of(if pair {
                compute(ins.imm, x.map(|v| v & 0xffff)) | compute(ins.imm, x.map(|v| v >> 16)) << 16
            } else {
                compute(ins.imm, x)
            })
        });
        // SAFETY: the first operand is a destination of this width.
        unsafe { T::write(warp, ins.ops[0], &value) };
        ip.wrapping_add(1)
    }
}

/// `min` and `max` with `.NaN`, `.xorsign.abs` or `.ftz`.
pub(crate) fn extreme(
    base: &str,
    ty: &str,
    nan: bool,
    xorsign: bool,
    flush: bool,
) -> Option<Selected> {
    let (element, pair) = match ty.strip_suffix("x2") {
        Some(element) => (element, true),
        None => (ty, false),
    };
    let format = Format::number(element).filter(|&n| n < 3)?;
    let class = if pair || element == "f32" {
        RegClass::B32
    } else {
        RegClass::B16
    };
    let flags = [pair, base == "max", nan, xorsign, flush]
        .iter()
        .enumerate()
        .fold(0, |bits, (i, &on)| bits | i64::from(on) << i);
    Some(Selected {
        handler: plain_handler::<Extreme>(),
        dst: class,
        src: [Some(class), Some(class), None],
        imm: format as i64 | flags << 24,
    })
}

fn one_extreme(imm: i64, a: u64, b: u64) -> u64 {
    let format = Format::of(imm as usize & 255);
    let flag = |i: u32| imm >> (24 + i) & 1 != 0;
    let (max, nan, xorsign, flush) = (flag(1), flag(2), flag(3), flag(4));
    let sign = 1u64 << (format.bits() - 1);
    let (a_bits, b_bits) = if xorsign {
        (a & !sign, b & !sign)
    } else {
        (a, b)
    };
    // As sign and magnitude, formats order like integers; subnormals to be flushed become zeros first.
    let key = |bits: u64| {
        let value = Value::decode(bits, format, flush);
        let word = round(value, format, Rounding::Even, Overflow::Infinity, false);
        let magnitude = (word & (sign - 1)) as i64;
        let order = if word & sign != 0 {
            -magnitude - 1
        } else {
            magnitude
        };
        (value == Value::Nan, order, word)
    };
    let ((a_nan, a_key, a_word), (b_nan, b_key, b_word)) = (key(a_bits), key(b_bits));
    let canonical = round(
        Value::Nan,
        format,
        Rounding::Even,
        Overflow::Infinity,
        false,
    );
    let chosen = match (a_nan, b_nan) {
        (true, true) => return canonical,
        (true, _) | (_, true) if nan => return canonical,
        (true, _) => b_word,
        (_, true) => a_word,
        _ if (a_key > b_key) == max => a_word,
        _ => b_word,
    };
    if xorsign {
        chosen | ((a ^ b) & sign)
    } else {
        chosen
    }
}

/// `ops`: d, a, b.
struct Extreme;
impl Op for Extreme {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        // SAFETY: the operands are slots of 32 lanes.
        let (a, b) = unsafe { (warp.read::<u32>(ins.ops[1]), warp.read::<u32>(ins.ops[2])) };
        let pair = ins.imm >> 24 & 1 != 0;
        let narrow = Format::of(ins.imm as usize & 255).bits() < 32;
        let low = if narrow { 0xffff } else { u32::MAX };
        let value: [u32; LANES] = std::array::from_fn(|lane| {
            let (x, y) = (u64::from(a[lane] & low), u64::from(b[lane] & low));
            let mut word = one_extreme(ins.imm, x, y) as u32;
            if pair {
                let (x, y) = (u64::from(a[lane] >> 16), u64::from(b[lane] >> 16));
                word |= (one_extreme(ins.imm, x, y) as u32) << 16;
            }
            word
        });
        // SAFETY: the first operand is a 32-bit destination.
        unsafe { warp.write32(ins.ops[0], &value) };
        ip.wrapping_add(1)
    }
}
