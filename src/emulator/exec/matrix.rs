//! Tensor-core instructions: `ldmatrix` and `mma.sync`.
//!
//! Fragment layouts are those of the PTX ISA, with `g = lane / 4` and `t = lane % 4`:
//!
//! | m16n8k16, 16-bit A and B | element |
//! |---|---|
//! | A register r, half h | row `g + 8 * (r & 1)`, column `2 t + h + 8 * (r >> 1)` |
//! | B register r, half h | row (k) `2 t + h + 8 r`, column (n) `g` |
//! | C/D register r | row `g + 8 * (r >> 1)`, column `2 t + (r & 1)` |
//!
//! m16n8k8 is the same with only the first two A registers and the first B register. Products are summed in f32 in
//! ascending k with one FMA each, starting from C: deterministic, and not what a tensor core's adder tree would give.

use super::access::{Addresses, addresses, find_shared, resolve, space};
use super::control::converged;
use super::lane::{Bf16x2, F16x2, Lane};
use super::op::{Op, handler};
use super::warp::{Handler, Ins, LANES, Warp};
use crate::emulator::check::shared::Access;
use std::marker::PhantomData;

/// `ldmatrix.sync.aligned.m8n8.xN[.trans].shared.b16`. `ops`: N destinations, then the address.
pub(super) struct LoadMatrix<const N: usize, const TRANSPOSED: bool>;
impl<const N: usize, const TRANSPOSED: bool> Op for LoadMatrix<N, TRANSPOSED> {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        if !converged(warp) {
            let live = warp.live;
            return warp.fail_divergent(ip, live);
        }
        // SAFETY: the operand after the destinations is the address.
        let Some(all) = (unsafe { row_addresses::<N>(warp, ip, ins, ins.ops[N]) }) else {
            return std::ptr::null();
        };
        warp.counters.shared_requests += 1;
        if warp.count_memory {
            let mask = warp.mask;
            warp.mask = mask & (u32::MAX >> (32 - 8 * N));
            super::traffic::observe(warp, &all, space::SHARED, 16, Access::Collective);
            warp.mask = mask;
        }
        let mut rows = [[[0u32; 4]; 8]; N];
        for n in 0..N {
            for row in 0..8 {
                // SAFETY: the access has been checked.
                rows[n][row] = unsafe { (all.0[8 * n + row] as *const [u32; 4]).read() };
            }
        }
        for n in 0..N {
            let rows = if TRANSPOSED {
                transpose(rows[n])
            } else {
                rows[n]
            };
            // Lane 4 g + t takes words of row g in order.
            let mut value = [0u32; LANES];
            value.as_chunks_mut::<4>().0.copy_from_slice(&rows);
            // SAFETY: the first N operands are 32-bit destinations.
            unsafe { warp.write32(ins.ops[n], &value) };
        }
        ip.wrapping_add(1)
    }
}

/// Checked addresses of the rows of N matrices, which the first 8 N lanes give.
///
/// # Safety
/// `slot` is the address operand of `ins`, the instruction at `ip`.
#[inline(always)]
unsafe fn row_addresses<const N: usize>(
    warp: &mut Warp,
    ip: *const Ins,
    ins: &Ins,
    slot: u32,
) -> Option<Addresses> {
    if N == 4 {
        // SAFETY: passed on to the caller.
        let (all, _) = unsafe { find_shared(warp, ip, ins, slot, 16, false) }?;
        return Some(all);
    }
    // SAFETY: passed on to the caller.
    let mut all = unsafe { addresses(warp, ins, slot) };
    let first = all.0[0];
    for lane in 8 * N..LANES {
        all.0[lane] = first;
    }
    resolve(warp, ip, &mut all, space::SHARED, 16, false)?;
    Some(all)
}

/// The transpose of 8 by 8 16-bit elements: three perfect shuffles, each of which moves the index by one bit.
#[inline(always)]
fn transpose(mut rows: [[u32; 4]; 8]) -> [[u32; 4]; 8] {
    for _ in 0..3 {
        let mut next = [[0; 4]; 8];
        for i in 0..4 {
            [next[2 * i], next[2 * i + 1]] = interleave(rows[i], rows[i + 4]);
        }
        rows = next;
    }
    rows
}

/// The 16-bit elements of two rows in turn.
#[inline(always)]
fn interleave(a: [u32; 4], b: [u32; 4]) -> [[u32; 4]; 2] {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128i, _mm_unpackhi_epi16, _mm_unpacklo_epi16};
        let (a, b): (__m128i, __m128i) = (bytemuck::cast(a), bytemuck::cast(b));
        // SAFETY: SSE2 is part of x86-64.
        let both = unsafe { [_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b)] };
        bytemuck::cast(both)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let (a, b): ([u16; 8], [u16; 8]) = (bytemuck::cast(a), bytemuck::cast(b));
        let both: [u16; 16] = std::array::from_fn(|i| if i % 2 == 0 { a[i / 2] } else { b[i / 2] });
        bytemuck::cast(both)
    }
}

/// A packed pair of 16-bit floats.
trait Pair: Lane<Bits = u32> {
    fn split(self) -> (f32, f32);
}
impl Pair for F16x2 {
    #[inline(always)]
    fn split(self) -> (f32, f32) {
        (self.0, self.1)
    }
}
impl Pair for Bf16x2 {
    #[inline(always)]
    fn split(self) -> (f32, f32) {
        (self.0, self.1)
    }
}

/// Operands in row order, for the multiplication.
#[repr(C, align(64))]
struct Tiles<const K: usize> {
    a: [[f32; K]; 16],
    b: [[f32; 8]; K],
    c: [[f32; 8]; 16],
}

/// `mma.sync.aligned.m16n8kK.row.col.f32.{f16,bf16}.{f16,bf16}.f32`. `ops`, over two entries: 4 d, K/4 a, K/8 b, 4 c.
struct Mma<P, const K: usize>(PhantomData<P>);
impl<P: Pair, const K: usize> Op for Mma<P, K> {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction; this one has two entries.
        let (ins, second) = unsafe { (&*ip, &*ip.add(1)) };
        if !converged(warp) {
            let live = warp.live;
            return warp.fail_divergent(ip, live);
        }
        let op = |n: usize| if n < 8 { ins.ops[n] } else { second.ops[n - 8] };
        let mut tiles = Tiles::<K> {
            a: [[0.0; K]; 16],
            b: [[0.0; 8]; K],
            c: [[0.0; 8]; 16],
        };
        let (registers_a, registers_b) = (K / 4, K / 8);
        for r in 0..registers_a {
            // SAFETY: the operand is a slot of 32 lanes.
            let bits = unsafe { warp.read::<u32>(op(4 + r)) };
            let (row, column) = (8 * (r & 1), 8 * (r >> 1));
            for g in 0..8 {
                for t in 0..4 {
                    let (low, high) = P::get(bits[4 * g + t]).split();
                    tiles.a[g + row][column + 2 * t] = low;
                    tiles.a[g + row][column + 2 * t + 1] = high;
                }
            }
        }
        for r in 0..registers_b {
            // SAFETY: the operand is a slot of 32 lanes.
            let bits = unsafe { warp.read::<u32>(op(4 + registers_a + r)) };
            for g in 0..8 {
                for t in 0..4 {
                    let (low, high) = P::get(bits[4 * g + t]).split();
                    tiles.b[8 * r + 2 * t][g] = low;
                    tiles.b[8 * r + 2 * t + 1][g] = high;
                }
            }
        }
        for half in 0..2 {
            // SAFETY: the operands are slots of 32 lanes.
            let (even, odd) = unsafe {
                let first = 4 + registers_a + registers_b + 2 * half;
                (warp.read::<f32>(op(first)), warp.read::<f32>(op(first + 1)))
            };
            for g in 0..8 {
                for t in 0..4 {
                    tiles.c[g + 8 * half][2 * t] = even[4 * g + t];
                    tiles.c[g + 8 * half][2 * t + 1] = odd[4 * g + t];
                }
            }
        }
        multiply(&mut tiles);
        for half in 0..2 {
            let mut even = [0u32; LANES];
            let mut odd = [0u32; LANES];
            for g in 0..8 {
                for t in 0..4 {
                    even[4 * g + t] = tiles.c[g + 8 * half][2 * t].to_bits();
                    odd[4 * g + t] = tiles.c[g + 8 * half][2 * t + 1].to_bits();
                }
            }
            // SAFETY: the first four operands are 32-bit destinations.
            unsafe { warp.write32(ins.ops[2 * half], &even) };
            // SAFETY: as above.
            unsafe { warp.write32(ins.ops[2 * half + 1], &odd) };
        }
        warp.counters.mma_ops += 1;
        warp.counters.mma_macs += (16 * 8 * K) as u64;
        ip.wrapping_add(2)
    }
}

/// `c += a b`, eight rows at a time so that their accumulators stay in registers.
#[inline(always)]
fn multiply<const K: usize>(tiles: &mut Tiles<K>) {
    for block in 0..2 {
        let mut acc = [[0f32; 8]; 8];
        acc.copy_from_slice(&tiles.c[8 * block..8 * block + 8]);
        for k in 0..K {
            let b = tiles.b[k];
            for row in 0..8 {
                let a = tiles.a[8 * block + row][k];
                for n in 0..8 {
                    acc[row][n] = a.mul_add(b[n], acc[row][n]);
                }
            }
        }
        tiles.c[8 * block..8 * block + 8].copy_from_slice(&acc);
    }
}

/// The handler of `ldmatrix` with `count` matrices.
pub(crate) fn load_matrix(count: usize, transposed: bool) -> Option<Handler> {
    #[cfg(target_arch = "x86_64")]
    if count == 4
        && let Some(handler) = super::staging_x86::load_matrix(transposed)
    {
        return Some(handler);
    }
    Some(match (count, transposed) {
        (1, false) => handler::<LoadMatrix<1, false>>(),
        (2, false) => handler::<LoadMatrix<2, false>>(),
        (4, false) => handler::<LoadMatrix<4, false>>(),
        (1, true) => handler::<LoadMatrix<1, true>>(),
        (2, true) => handler::<LoadMatrix<2, true>>(),
        (4, true) => handler::<LoadMatrix<4, true>>(),
        _ => return None,
    })
}

/// The handler of `mma.sync` with f32 accumulators, and its A and B register counts.
pub(crate) fn mma(shape: &str, ty: &str) -> Option<(Handler, usize, usize)> {
    #[cfg(target_arch = "x86_64")]
    if (shape, ty) == ("m16n8k16", "bf16")
        && let Some(handler) = super::mma_x86::handler()
    {
        return Some((handler, 4, 2));
    }
    Some(match (shape, ty) {
        ("m16n8k16", "bf16") => (handler::<Mma<Bf16x2, 16>>(), 4, 2),
        ("m16n8k16", "f16") => (handler::<Mma<F16x2, 16>>(), 4, 2),
        ("m16n8k8", "bf16") => (handler::<Mma<Bf16x2, 8>>(), 2, 1),
        ("m16n8k8", "f16") => (handler::<Mma<F16x2, 8>>(), 2, 1),
        _ => return None,
    })
}

/// The handler of two such products one behind the other, the second of which reads nothing that the first writes, with
/// the same A; if there is one.
pub(crate) fn mma_pair(shape: &str, ty: &str) -> Option<Handler> {
    #[cfg(target_arch = "x86_64")]
    if (shape, ty) == ("m16n8k16", "bf16") {
        return super::mma_x86::pair();
    }
    let _ = (shape, ty);
    None
}
