//! Loads and stores of 1 to 16 bytes a lane.

use super::access::{
    Addresses, SPACE_BITS, Shape, addresses, count, find_shared, prepare, resolve, space,
};
use super::op::{Op, handler, plain_handler};
use super::warp::{FULL, Handler, Ins, LANES, Warp};
use std::marker::PhantomData;

/// An element in memory and the register lane it becomes.
trait Element: Copy {
    type Bits: Copy;
    fn widen(self) -> Self::Bits;
    fn narrow(bits: Self::Bits) -> Self;
    unsafe fn write(warp: &mut Warp, slot: u32, value: &[Self::Bits; LANES]);
}

macro_rules! elements {
    ($($type:ty, $bits:ty, $write:ident, |$v:ident| $widen:expr;)*) => {$(
        impl Element for $type {
            type Bits = $bits;
            #[inline(always)]
            fn widen(self) -> $bits { let $v = self; $widen }
            #[inline(always)]
            fn narrow(bits: $bits) -> Self { bits as $type }
            #[inline(always)]
            unsafe fn write(warp: &mut Warp, slot: u32, value: &[$bits; LANES]) {
                // SAFETY: passed on to the caller.
                unsafe { warp.$write(slot, value) }
            }
        }
    )*};
}
elements! {
    u8, u32, write32, |v| u32::from(v);
    i8, u32, write32, |v| v as i32 as u32;
    u16, u32, write32, |v| u32::from(v);
    i16, u32, write32, |v| v as i32 as u32;
    u32, u32, write32, |v| v;
    u64, u64, write64, |v| v;
}

/// Space known when compiled, or found in the instruction.
const BY_INSTRUCTION: u32 = SPACE_BITS;

#[inline(always)]
fn space_of<const SPACE: u32>(ins: &Ins) -> u32 {
    if SPACE == BY_INSTRUCTION {
        ins.ext & SPACE_BITS
    } else {
        SPACE
    }
}

/// The checked addresses of an access: inline for the frequent ones, by a call for those that find their space in the
/// instruction.
#[inline(always)]
unsafe fn find<const SPACE: u32>(
    warp: &mut Warp,
    ip: *const Ins,
    slot: u32,
    bytes: u64,
    write: bool,
) -> Option<(Addresses, Shape)> {
    if SPACE == BY_INSTRUCTION {
        return prepare(warp, ip, slot, bytes, write);
    }
    if SPACE == space::SHARED {
        // SAFETY: the caller passes a valid instruction and its address operand.
        return unsafe { find_shared(warp, ip, &*ip, slot, bytes, write) };
    }
    // SAFETY: as above.
    let mut all = unsafe { addresses(warp, &*ip, slot) };
    let shape = resolve(warp, ip, &mut all, SPACE, bytes, write)?;
    Some((all, shape))
}

/// `ops`: N destinations, then the address.
struct Load<E, const N: usize, const SPACE: u32>(PhantomData<E>);

impl<E: Element, const N: usize, const SPACE: u32> Op for Load<E, N, SPACE> {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let space = space_of::<SPACE>(ins);
        let bytes = (size_of::<E>() * N) as u64;
        // SAFETY: the operand after the destinations is the address.
        let Some((all, shape)) = (unsafe { find::<SPACE>(warp, ip, ins.ops[N], bytes, false) })
        else {
            return std::ptr::null();
        };
        count(warp, &all, space, bytes, false);
        let zero = E::narrow(unsafe_zero()).widen();
        let mut value = [[zero; LANES]; N];
        if shape == Shape::Uniform {
            // SAFETY: the access has been checked.
            let words = unsafe { (all.0[0] as *const [E; N]).read() };
            for n in 0..N {
                value[n] = [words[n].widen(); LANES];
            }
        } else if N == 1 && shape == Shape::Contiguous {
            // SAFETY: the access has been checked for all 32 lanes.
            let words = unsafe { (all.0[0] as *const [E; LANES]).read() };
            for lane in 0..LANES {
                value[0][lane] = words[lane].widen();
            }
        } else if N == 4 && size_of::<E>() == 4 {
            // SAFETY: the access has been checked; the rows are 4 words long.
            unsafe { gather4(&all, value.as_mut_ptr().cast()) };
        } else {
            for lane in 0..LANES {
                // SAFETY: the access has been checked.
                let words = unsafe { (all.0[lane] as *const [E; N]).read() };
                for n in 0..N {
                    value[n][lane] = words[n].widen();
                }
            }
        }
        for n in 0..N {
            // SAFETY: the first N operands are destinations of this width.
            unsafe { E::write(warp, ins.ops[n], &value[n]) };
        }
        ip.wrapping_add(1)
    }
}

/// A zero of a register lane.
#[inline(always)]
fn unsafe_zero<T: Copy>() -> T {
    // SAFETY: only used with u32 and u64, for which zero bytes are a value.
    unsafe { std::mem::zeroed() }
}

/// Reads 4 words from each of 32 addresses into 4 rows of 32 words.
#[inline(always)]
unsafe fn gather4(all: &Addresses, rows: *mut [u32; LANES]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        for group in 0..LANES / 4 {
            // SAFETY: the caller has checked 16 bytes at each address; SSE2 is part of x86-64.
            let read =
                |lane: usize| unsafe { _mm_loadu_si128(all.0[4 * group + lane] as *const __m128i) };
            let (a, b, c, d) = (read(0), read(1), read(2), read(3));
            // SAFETY: SSE2 is part of x86-64.
            let (ab, cd) = unsafe { (_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d)) };
            // SAFETY: as above.
            let (ab_high, cd_high) =
                unsafe { (_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d)) };
            // SAFETY: as above.
            let words = unsafe {
                [
                    _mm_unpacklo_epi64(ab, cd),
                    _mm_unpackhi_epi64(ab, cd),
                    _mm_unpacklo_epi64(ab_high, cd_high),
                    _mm_unpackhi_epi64(ab_high, cd_high),
                ]
            };
            for (n, word) in words.into_iter().enumerate() {
                // SAFETY: `rows` has 4 rows of 32 words, and `group` is below 8.
                unsafe { _mm_storeu_si128(rows.add(n).cast::<__m128i>().add(group), word) };
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    for lane in 0..LANES {
        // SAFETY: the caller has checked 16 bytes at each address.
        let words = unsafe { (all.0[lane] as *const [u32; 4]).read() };
        for (n, word) in words.into_iter().enumerate() {
            // SAFETY: `rows` has 4 rows.
            unsafe { (*rows.add(n))[lane] = word };
        }
    }
}

/// `ops`: the address, then N sources.
struct Store<E, const N: usize, const SPACE: u32>(PhantomData<E>);

impl<E: Element, const N: usize, const SPACE: u32> Op for Store<E, N, SPACE> {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let space = space_of::<SPACE>(ins);
        let bytes = (size_of::<E>() * N) as u64;
        // SAFETY: the first operand is the address.
        let Some((all, shape)) = (unsafe { find::<SPACE>(warp, ip, ins.ops[0], bytes, true) })
        else {
            return std::ptr::null();
        };
        count(warp, &all, space, bytes, true);
        let zero = E::narrow(unsafe_zero());
        if N == 1 && shape == Shape::Contiguous {
            // SAFETY: the second operand is the value.
            let value = unsafe { warp.read::<E::Bits>(ins.ops[1]) };
            let mut words = [zero; LANES];
            for lane in 0..LANES {
                words[lane] = E::narrow(value[lane]);
            }
            // SAFETY: the access has been checked for all 32 lanes.
            unsafe { (all.0[0] as *mut [E; LANES]).write(words) };
            return ip.wrapping_add(1);
        }
        let mut values = [std::ptr::null::<E::Bits>(); N];
        for n in 0..N {
            values[n] = warp.slot(ins.ops[1 + n]);
        }
        let store = |lane: usize| {
            let mut words = [zero; N];
            for n in 0..N {
                // SAFETY: the N operands after the address are slots of 32 lanes.
                words[n] = E::narrow(unsafe { values[n].add(lane).read() });
            }
            // SAFETY: the access has been checked.
            unsafe { (all.0[lane] as *mut [E; N]).write(words) };
        };
        if warp.mask == FULL {
            for lane in 0..LANES {
                store(lane);
            }
        } else {
            let mut rest = warp.mask;
            while rest != 0 {
                store(rest.trailing_zeros() as usize);
                rest &= rest - 1;
            }
        }
        ip.wrapping_add(1)
    }
}

/// Accesses that kernels make all the time are compiled per space and for wide vectors.
fn load_of<E: Element, const N: usize>(space: u32) -> Handler {
    match space {
        space::GLOBAL => handler::<Load<E, N, { space::GLOBAL }>>(),
        space::SHARED => handler::<Load<E, N, { space::SHARED }>>(),
        _ => rare_load::<E, N>(),
    }
}

fn rare_load<E: Element, const N: usize>() -> Handler {
    plain_handler::<Load<E, N, BY_INSTRUCTION>>()
}

fn store_of<E: Element, const N: usize>(space: u32) -> Handler {
    match space {
        space::GLOBAL => handler::<Store<E, N, { space::GLOBAL }>>(),
        space::SHARED => handler::<Store<E, N, { space::SHARED }>>(),
        _ => rare_store::<E, N>(),
    }
}

fn rare_store<E: Element, const N: usize>() -> Handler {
    plain_handler::<Store<E, N, BY_INSTRUCTION>>()
}

/// The handler of a load of `count` elements of `bytes` bytes.
pub(crate) fn load(space: u32, bytes: u32, signed: bool, count: usize) -> Option<Handler> {
    Some(match (bytes, signed, count) {
        (1, false, 1) => rare_load::<u8, 1>(),
        (1, false, 2) => rare_load::<u8, 2>(),
        (1, false, 4) => rare_load::<u8, 4>(),
        (1, true, 1) => rare_load::<i8, 1>(),
        (1, true, 2) => rare_load::<i8, 2>(),
        (1, true, 4) => rare_load::<i8, 4>(),
        (2, false, 1) => load_of::<u16, 1>(space),
        (2, false, 2) => rare_load::<u16, 2>(),
        (2, false, 4) => rare_load::<u16, 4>(),
        (2, true, 1) => rare_load::<i16, 1>(),
        (2, true, 2) => rare_load::<i16, 2>(),
        (2, true, 4) => rare_load::<i16, 4>(),
        (4, _, 1) => load_of::<u32, 1>(space),
        (4, _, 2) => load_of::<u32, 2>(space),
        (4, _, 4) => load_of::<u32, 4>(space),
        (8, _, 1) => load_of::<u64, 1>(space),
        (8, _, 2) => load_of::<u64, 2>(space),
        _ => return None,
    })
}

/// The handler of a store of `count` elements of `bytes` bytes.
pub(crate) fn store(space: u32, bytes: u32, count: usize) -> Option<Handler> {
    Some(match (bytes, count) {
        (1, 1) => rare_store::<u8, 1>(),
        (1, 2) => rare_store::<u8, 2>(),
        (1, 4) => rare_store::<u8, 4>(),
        (2, 1) => store_of::<u16, 1>(space),
        (2, 2) => rare_store::<u16, 2>(),
        (2, 4) => rare_store::<u16, 4>(),
        (4, 1) => store_of::<u32, 1>(space),
        (4, 2) => store_of::<u32, 2>(space),
        (4, 4) => store_of::<u32, 4>(space),
        (8, 1) => store_of::<u64, 1>(space),
        (8, 2) => store_of::<u64, 2>(space),
        _ => return None,
    })
}
