//! `atom` and `red`: one compare-and-swap loop a lane, lanes in ascending order.

use super::access::{Addresses, SPACE_BITS, addresses, prepare, space};
use super::lane::{Bf16, Bf16x2, F16, F16x2, Lane, Raw};
use super::op::{Op, plain_handler};
use super::warp::{Handler, Ins, LANES, Warp};
use crate::emulator::check::shared::Access;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The new value for the old one and the operands b and c.
pub(crate) type Update<W> = fn(W, W, W) -> W;

/// An integer with an atomic counterpart, and the register lane that holds it.
trait Word: Copy {
    type Bits: Raw;
    fn of(bits: Self::Bits) -> Self;
    fn bits(self) -> Self::Bits;
    /// Replaces the value at `address` by `f` of it, b and c, and returns the old one.
    unsafe fn update(address: u64, f: Update<Self>, b: Self, c: Self) -> Self;
}

macro_rules! words {
    ($($word:ty, $bits:ty, $atomic:ty;)*) => {$(
        impl Word for $word {
            type Bits = $bits;
            fn of(bits: $bits) -> Self { bits as $word }
            fn bits(self) -> $bits { self.into() }
            unsafe fn update(address: u64, f: Update<Self>, b: Self, c: Self) -> Self {
                // SAFETY: the caller has checked the address; kernels share such words through atomics.
                let cell = unsafe { <$atomic>::from_ptr(address as *mut $word) };
                let mut old = cell.load(Ordering::SeqCst);
                loop {
                    let new = f(old, b, c);
                    match cell.compare_exchange_weak(old, new, Ordering::SeqCst, Ordering::SeqCst) {
                        Ok(_) => return old,
                        Err(now) => old = now,
                    }
                }
            }
        }
    )*};
}
words! {
    u16, u32, AtomicU16;
    u32, u32, AtomicU32;
    u64, u64, AtomicU64;
}

/// `ops`: destination for the old value, address, b, c; 6 and 7: halves of the address of an [`Update`]. `red` has a
/// destination that nobody reads.
struct Atomic<W>(PhantomData<W>);

impl<W: Word> Op for Atomic<W> {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let function = (u64::from(ins.ops[6]) | u64::from(ins.ops[7]) << 32) as usize;
        // SAFETY: `select` chose this handler together with a function of this signature.
        let f = unsafe { std::mem::transmute::<*const (), Update<W>>(function as *const ()) };
        let Some((all, _)) = prepare(warp, ip, ins.ops[1], size_of::<W>() as u64, true) else {
            return std::ptr::null();
        };
        count(warp, ins, &all, size_of::<W>() as u64);
        // SAFETY: the operands are slots of 32 lanes.
        let (b, c) = unsafe {
            (
                warp.read::<W::Bits>(ins.ops[2]),
                warp.read::<W::Bits>(ins.ops[3]),
            )
        };
        let mut value = [<W::Bits as Raw>::of(0); LANES];
        for lane in lanes(warp.mask) {
            // SAFETY: the access has been checked.
            let old = unsafe { W::update(all.0[lane], f, W::of(b[lane]), W::of(c[lane])) };
            value[lane] = old.bits();
        }
        // SAFETY: the first operand is the destination.
        unsafe { W::Bits::write(warp, ins.ops[0], &value) };
        ip.wrapping_add(1)
    }
}

/// `atom.add.f32`, whose operands lie as those of [`Atomic`] do. PTX ISA, "atom" and "red": on global memory it flushes
/// subnormal inputs and results to zeros of their sign, on shared memory it keeps them.
struct AddFloat;

impl Op for AddFloat {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        // SAFETY: `ops[1]` is an address operand of this instruction.
        let named = unsafe { addresses(warp, ins, ins.ops[1]) };
        let Some((all, _)) = prepare(warp, ip, ins.ops[1], 4, true) else {
            return std::ptr::null();
        };
        count(warp, ins, &all, 4);
        // SAFETY: the operand is a slot of 32 lanes.
        let b = unsafe { warp.read::<u32>(ins.ops[2]) };
        let mut value = [0; LANES];
        for lane in lanes(warp.mask) {
            let f: Update<u32> = match ins.ext & SPACE_BITS {
                space::GLOBAL => add_flushed,
                space::GENERIC if named.0[lane] >> 60 == 0 => add_flushed,
                _ => add_float,
            };
            // SAFETY: the access has been checked.
            value[lane] = unsafe { u32::update(all.0[lane], f, b[lane], 0) };
        }
        // SAFETY: the first operand is the destination.
        unsafe { warp.write32(ins.ops[0], &value) };
        ip.wrapping_add(1)
    }
}

fn add_float(a: u32, b: u32, _: u32) -> u32 {
    float(a, b, |x, y| x + y)
}

fn add_flushed(a: u32, b: u32, _: u32) -> u32 {
    let flush = |bits: u32| {
        if bits & 0x7f80_0000 == 0 {
            bits & 0x8000_0000
        } else {
            bits
        }
    };
    flush(add_float(flush(a), flush(b), 0))
}

fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 != 0)
}

fn count(warp: &mut Warp, ins: &Ins, all: &Addresses, bytes: u64) {
    warp.counters.atomics += u64::from(warp.mask.count_ones());
    if warp.count_memory {
        super::traffic::observe(warp, all, ins.ext & SPACE_BITS, bytes, Access::Atomic);
    }
    if warp.count_traffic {
        let mut seen: Vec<u64> = lanes(warp.mask).map(|lane| all.0[lane]).collect();
        let updates = seen.len();
        seen.sort_unstable();
        seen.dedup();
        warp.counters.atomic_conflicts += (updates - seen.len()) as u64;
    }
    if ins.ext & SPACE_BITS == space::SHARED {
        warp.counters.shared_requests += 1;
    }
}

/// `atom.exch.b128` and (`CAS`) `atom.cas.b128`. `ops`: old low, old high, address, b low, b high, c low, c high.
struct Atomic128<const CAS: bool>;

impl<const CAS: bool> Op for Atomic128<CAS> {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // Hosts have no 128-bit atomics that every CPU runs; such words are only ever accessed atomically through here.
        static TURN: Mutex<()> = Mutex::new(());
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let Some((all, _)) = prepare(warp, ip, ins.ops[2], 16, true) else {
            return std::ptr::null();
        };
        count(warp, ins, &all, 16);
        // SAFETY: the operands are slots of 32 lanes of 64 bits.
        let [b_low, b_high, c_low, c_high] =
            [3, 4, 5, 6].map(|n| unsafe { warp.read::<u64>(ins.ops[n]) });
        let (mut low, mut high) = ([0; LANES], [0; LANES]);
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        for lane in lanes(warp.mask) {
            let target = all.0[lane] as *mut [u64; 2];
            // SAFETY: the access has been checked.
            let old = unsafe { target.read() };
            let (b, c) = ([b_low[lane], b_high[lane]], [c_low[lane], c_high[lane]]);
            let new = match (CAS, old == b) {
                (false, _) => b,
                (true, true) => c,
                (true, false) => old,
            };
            // SAFETY: as above.
            unsafe { target.write(new) };
            [low[lane], high[lane]] = old;
        }
        drop(turn);
        // SAFETY: the first two operands are destinations of 64 bits.
        unsafe { warp.write64(ins.ops[0], &low) };
        // SAFETY: as above.
        unsafe { warp.write64(ins.ops[1], &high) };
        ip.wrapping_add(1)
    }
}

/// An atomic operation, by the width of its words.
#[derive(Clone, Copy)]
pub(crate) enum Reduction {
    Half(Update<u16>),
    Word(Update<u32>),
    Long(Update<u64>),
}

impl From<Update<u16>> for Reduction {
    fn from(f: Update<u16>) -> Reduction {
        Reduction::Half(f)
    }
}

impl From<Update<u32>> for Reduction {
    fn from(f: Update<u32>) -> Reduction {
        Reduction::Word(f)
    }
}

impl From<Update<u64>> for Reduction {
    fn from(f: Update<u64>) -> Reduction {
        Reduction::Long(f)
    }
}

/// Reductions of `cp.reduce.async.bulk`, by number.
const REDUCTIONS: [(&str, &str); 27] = [
    ("add", "u32"),
    ("add", "s32"),
    ("add", "u64"),
    ("add", "f16"),
    ("add", "bf16"),
    ("add", "f32"),
    ("add", "f64"),
    ("min", "u32"),
    ("min", "s32"),
    ("min", "u64"),
    ("min", "s64"),
    ("min", "f16"),
    ("min", "bf16"),
    ("max", "u32"),
    ("max", "s32"),
    ("max", "u64"),
    ("max", "s64"),
    ("max", "f16"),
    ("max", "bf16"),
    ("inc", "u32"),
    ("dec", "u32"),
    ("and", "b32"),
    ("and", "b64"),
    ("or", "b32"),
    ("or", "b64"),
    ("xor", "b32"),
    ("xor", "b64"),
];

impl Reduction {
    /// The number of a reduction; without a type, of the first one with that operation.
    pub(crate) fn number(operation: &str, ty: Option<&str>) -> Option<usize> {
        REDUCTIONS
            .iter()
            .position(|&(o, t)| o == operation && ty.is_none_or(|ty| ty == t))
    }

    /// The reduction of that number; `ty` takes the place of its type.
    pub(super) fn of(number: usize, ty: Option<&str>) -> Option<Reduction> {
        let &(operation, named) = REDUCTIONS.get(number)?;
        let ty = match (operation, ty) {
            (_, None) => named,
            ("and" | "or" | "xor", Some("u32" | "s32")) => "b32",
            ("and" | "or" | "xor", Some("u64" | "s64")) => "b64",
            (_, Some(ty)) => ty,
        };
        update(operation, ty)
    }

    /// Bytes of a word.
    pub(super) fn bytes(self) -> u64 {
        match self {
            Reduction::Half(_) => 2,
            Reduction::Word(_) => 4,
            Reduction::Long(_) => 8,
        }
    }

    /// Updates the word at `target` with the one at `source`.
    ///
    /// # Safety
    /// Both may be accessed; the target is aligned.
    pub(super) unsafe fn apply(self, target: u64, source: u64) {
        match self {
            Reduction::Half(f) => {
                // SAFETY: passed on to the caller.
                let b = unsafe { (source as *const u16).read_unaligned() };
                // SAFETY: as above.
                unsafe { u16::update(target, f, b, b) };
            }
            Reduction::Word(f) => {
                // SAFETY: as above.
                let b = unsafe { (source as *const u32).read_unaligned() };
                // SAFETY: as above.
                unsafe { u32::update(target, f, b, b) };
            }
            Reduction::Long(f) => {
                // SAFETY: as above.
                let b = unsafe { (source as *const u64).read_unaligned() };
                // SAFETY: as above.
                unsafe { u64::update(target, f, b, b) };
            }
        }
    }
}

fn make<W: Word>(f: Update<W>) -> Reduction
where
    Reduction: From<Update<W>>,
{
    f.into()
}

/// The handler of `atom.<operation>.<type>`, and the function to put in `ops[6]` and `ops[7]`.
pub(crate) fn select(operation: &str, ty: &str) -> Option<(Handler, [u32; 2])> {
    if (operation, ty) == ("add", "f32") {
        return Some((plain_handler::<AddFloat>(), [0; 2]));
    }
    let (handler, function) = match update(operation, ty)? {
        Reduction::Half(f) => (plain_handler::<Atomic<u16>>(), f as *const ()),
        Reduction::Word(f) => (plain_handler::<Atomic<u32>>(), f as *const ()),
        Reduction::Long(f) => (plain_handler::<Atomic<u64>>(), f as *const ()),
    };
    let address = function as u64;
    Some((handler, [address as u32, (address >> 32) as u32]))
}

/// `exch.b128` or `cas.b128`.
pub(crate) fn select_wide(operation: &str) -> Option<Handler> {
    Some(match operation {
        "exch" => plain_handler::<Atomic128<false>>(),
        "cas" => plain_handler::<Atomic128<true>>(),
        _ => return None,
    })
}

fn float(a: u32, b: u32, f: impl Fn(f32, f32) -> f32) -> u32 {
    f(f32::from_bits(a), f32::from_bits(b)).to_bits()
}

fn half(a: u16, b: u16, f: impl Fn(f32, f32) -> f32) -> u16 {
    F16(f(F16::get(a.into()).0, F16::get(b.into()).0)).put() as u16
}

fn brain(a: u16, b: u16, f: impl Fn(f32, f32) -> f32) -> u16 {
    Bf16(f(Bf16::get(a.into()).0, Bf16::get(b.into()).0)).put() as u16
}

fn halves(a: u32, b: u32, f: impl Fn(f32, f32) -> f32) -> u32 {
    let (a, b) = (F16x2::get(a), F16x2::get(b));
    F16x2(f(a.0, b.0), f(a.1, b.1)).put()
}

fn brains(a: u32, b: u32, f: impl Fn(f32, f32) -> f32) -> u32 {
    let (a, b) = (Bf16x2::get(a), Bf16x2::get(b));
    Bf16x2(f(a.0, b.0), f(a.1, b.1)).put()
}

/// What `<operation>.<type>` makes of a word.
fn update(operation: &str, ty: &str) -> Option<Reduction> {
    use super::float::{max, min};
    Some(match (operation, ty) {
        ("add", "u32" | "s32") => make(|a: u32, b, _| a.wrapping_add(b)),
        ("add", "u64" | "s64") => make(|a: u64, b, _| a.wrapping_add(b)),
        ("add", "f32") => make(|a: u32, b, _| float(a, b, |x, y| x + y)),
        ("add", "f64") => make(|a: u64, b, _| (f64::from_bits(a) + f64::from_bits(b)).to_bits()),
        ("add", "f16") => make(|a: u16, b, _| half(a, b, |x, y| x + y)),
        ("add", "bf16") => make(|a: u16, b, _| brain(a, b, |x, y| x + y)),
        ("add", "f16x2") => make(|a: u32, b, _| halves(a, b, |x, y| x + y)),
        ("add", "bf16x2") => make(|a: u32, b, _| brains(a, b, |x, y| x + y)),
        ("min", "f16") => make(|a: u16, b, _| half(a, b, min)),
        ("max", "f16") => make(|a: u16, b, _| half(a, b, max)),
        ("min", "bf16") => make(|a: u16, b, _| brain(a, b, min)),
        ("max", "bf16") => make(|a: u16, b, _| brain(a, b, max)),
        ("min", "f16x2") => make(|a: u32, b, _| halves(a, b, min)),
        ("max", "f16x2") => make(|a: u32, b, _| halves(a, b, max)),
        ("min", "bf16x2") => make(|a: u32, b, _| brains(a, b, min)),
        ("max", "bf16x2") => make(|a: u32, b, _| brains(a, b, max)),
        ("min", "u32") => make(|a: u32, b, _| a.min(b)),
        ("max", "u32") => make(|a: u32, b, _| a.max(b)),
        ("min", "s32") => make(|a: u32, b, _| (a as i32).min(b as i32) as u32),
        ("max", "s32") => make(|a: u32, b, _| (a as i32).max(b as i32) as u32),
        ("min", "u64") => make(|a: u64, b, _| a.min(b)),
        ("max", "u64") => make(|a: u64, b, _| a.max(b)),
        ("min", "s64") => make(|a: u64, b, _| (a as i64).min(b as i64) as u64),
        ("max", "s64") => make(|a: u64, b, _| (a as i64).max(b as i64) as u64),
        ("inc", "u32") => make(|a: u32, b, _| if a >= b { 0 } else { a + 1 }),
        ("dec", "u32") => make(|a: u32, b, _| if a == 0 || a > b { b } else { a - 1 }),
        ("and", "b32") => make(|a: u32, b, _| a & b),
        ("or", "b32") => make(|a: u32, b, _| a | b),
        ("xor", "b32") => make(|a: u32, b, _| a ^ b),
        ("and", "b64") => make(|a: u64, b, _| a & b),
        ("or", "b64") => make(|a: u64, b, _| a | b),
        ("xor", "b64") => make(|a: u64, b, _| a ^ b),
        ("exch", "b32" | "u32" | "s32" | "f32") => make(|_: u32, b, _| b),
        ("exch", "b64" | "u64" | "s64" | "f64") => make(|_: u64, b, _| b),
        ("cas", "b16") => make(|a: u16, b, c| if a == b { c } else { a }),
        ("cas", "b32" | "u32" | "s32") => make(|a: u32, b, c| if a == b { c } else { a }),
        ("cas", "b64" | "u64" | "s64") => make(|a: u64, b, c| if a == b { c } else { a }),
        _ => return None,
    })
}
