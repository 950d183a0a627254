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

use super::access::{addresses, resolve, space};
use super::control::converged;
use super::lane::{Bf16x2, F16x2, Lane};
use super::op::{Op, handler};
use super::warp::{Handler, Ins, LANES, Warp};
use crate::emulator::check::shared::Access;
use std::marker::PhantomData;

/// `ldmatrix.sync.aligned.m8n8.xN[.trans].shared.b16`. `ops`: N destinations, then the address.
struct LoadMatrix<const N: usize, const TRANSPOSED: bool>;
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
        let mut all = unsafe { addresses(warp, ins, ins.ops[N]) };
        // Only the first 8 N lanes give addresses.
        let first = all.0[0];
        for lane in 8 * N..LANES {
            all.0[lane] = first;
        }
        if resolve(warp, ip, &mut all, space::SHARED, 16, false).is_none() {
            return std::ptr::null();
        }
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
            let mut value = [0u32; LANES];
            if TRANSPOSED {
                // Lane 4 g + t takes column g of rows 2 t and 2 t + 1.
                for pair in 0..4 {
                    for word in 0..4 {
                        let (upper, lower) = (rows[n][2 * pair][word], rows[n][2 * pair + 1][word]);
                        value[8 * word + pair] = (upper & 0xffff) | lower << 16;
                        value[8 * word + 4 + pair] = upper >> 16 | (lower & 0xffff_0000);
                    }
                }
            } else {
                for row in 0..8 {
                    for word in 0..4 {
                        value[4 * row + word] = rows[n][row][word];
                    }
                }
            }
            // SAFETY: the first N operands are 32-bit destinations.
            unsafe { warp.write32(ins.ops[n], &value) };
        }
        ip.wrapping_add(1)
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

/// m16n8k16 with bf16 operands for AVX2: the same sums in the same order, laid out by shuffles instead of lane by lane.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn mma_bf16_avx2(warp: &mut Warp, ip: *const Ins) -> *const Ins {
    use std::arch::x86_64::*;

    #[repr(C, align(64))]
    struct Operands {
        a: [[f32; 16]; 16],
        b: [__m256; 16],
    }
    // SAFETY: the run loop passes a valid instruction; this one has two entries.
    let (ins, second) = unsafe { (&*ip, &*ip.add(1)) };
    if !converged(warp) {
        let live = warp.live;
        return warp.fail_divergent(ip, live);
    }
    let op = |n: usize| if n < 8 { ins.ops[n] } else { second.ops[n - 8] };
    let mut tiles = Operands {
        a: [[0.0; 16]; 16],
        b: [_mm256_setzero_ps(); 16],
    };
    for r in 0..4 {
        let bits = warp.slot::<__m128i>(op(4 + r));
        for g in 0..8 {
            // Four words are eight neighbours of one row.
            // SAFETY: the operand is a slot of 32 words.
            let words = unsafe { _mm_load_si128(bits.add(g)) };
            let row = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(words));
            let target = &mut tiles.a[g + 8 * (r & 1)][8 * (r >> 1)];
            // SAFETY: eight elements from column 0 or 8 of a row of sixteen.
            unsafe { _mm256_storeu_si256((target as *mut f32).cast(), row) };
        }
    }
    for r in 0..2 {
        let bits = warp.slot::<__m128i>(op(8 + r));
        // SAFETY: the operand is a slot of 32 words.
        let pair = |g: usize| unsafe { _mm256_loadu2_m128i(bits.add(g + 4), bits.add(g)) };
        let (w0, w1, w2, w3) = (pair(0), pair(1), pair(2), pair(3));
        let (low01, low23) = (_mm256_unpacklo_epi32(w0, w1), _mm256_unpacklo_epi32(w2, w3));
        let (high01, high23) = (_mm256_unpackhi_epi32(w0, w1), _mm256_unpackhi_epi32(w2, w3));
        let columns = [
            _mm256_unpacklo_epi64(low01, low23),
            _mm256_unpackhi_epi64(low01, low23),
            _mm256_unpacklo_epi64(high01, high23),
            _mm256_unpackhi_epi64(high01, high23),
        ];
        for (t, column) in columns.into_iter().enumerate() {
            let upper = _mm256_set1_epi32(0xffff_0000u32 as i32);
            tiles.b[8 * r + 2 * t] = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(column));
            tiles.b[8 * r + 2 * t + 1] = _mm256_castsi256_ps(_mm256_and_si256(column, upper));
        }
    }
    for half in 0..2 {
        let (even, odd) = (
            warp.slot::<f32>(op(10 + 2 * half)),
            warp.slot::<f32>(op(11 + 2 * half)),
        );
        let mut acc = [_mm256_setzero_ps(); 8];
        for g in (0..8).step_by(2) {
            // SAFETY: the operands are slots of 32 words.
            let (e, o) = unsafe {
                (
                    _mm256_load_ps(even.add(4 * g)),
                    _mm256_load_ps(odd.add(4 * g)),
                )
            };
            let (low, high) = (_mm256_unpacklo_ps(e, o), _mm256_unpackhi_ps(e, o));
            acc[g] = _mm256_permute2f128_ps::<0x20>(low, high);
            acc[g + 1] = _mm256_permute2f128_ps::<0x31>(low, high);
        }
        for k in 0..16 {
            let b = tiles.b[k];
            for (g, acc) in acc.iter_mut().enumerate() {
                let a = _mm256_broadcast_ss(&tiles.a[g + 8 * half][k]);
                *acc = _mm256_fmadd_ps(a, b, *acc);
            }
        }
        let (even, odd) = (
            warp.slot::<f32>(op(2 * half)),
            warp.slot::<f32>(op(2 * half + 1)),
        );
        let mut columns = [[0u32; LANES]; 2];
        for g in (0..8).step_by(2) {
            let low = _mm256_permute2f128_ps::<0x20>(acc[g], acc[g + 1]);
            let high = _mm256_permute2f128_ps::<0x31>(acc[g], acc[g + 1]);
            let (e, o) = (
                _mm256_shuffle_ps::<0x88>(low, high),
                _mm256_shuffle_ps::<0xdd>(low, high),
            );
            let (to_even, to_odd) = if warp.mask == u32::MAX {
                (even.wrapping_add(4 * g), odd.wrapping_add(4 * g))
            } else {
                let [first, second] = &mut columns;
                (
                    first[4 * g..].as_mut_ptr().cast(),
                    second[4 * g..].as_mut_ptr().cast(),
                )
            };
            // SAFETY: the destinations are slots of 32 words, or the arrays that stand in for them.
            unsafe { _mm256_storeu_ps(to_even, e) };
            // SAFETY: as above.
            unsafe { _mm256_storeu_ps(to_odd, o) };
        }
        if warp.mask != u32::MAX {
            // SAFETY: the first four operands are 32-bit destinations.
            unsafe { warp.write32(ins.ops[2 * half], &columns[0]) };
            // SAFETY: as above.
            unsafe { warp.write32(ins.ops[2 * half + 1], &columns[1]) };
        }
    }
    warp.counters.mma_ops += 1;
    warp.counters.mma_macs += 16 * 8 * 16;
    ip.wrapping_add(2)
}

/// The handler of `ldmatrix` with `count` matrices.
pub(crate) fn load_matrix(count: usize, transposed: bool) -> Option<Handler> {
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
    if (shape, ty) == ("m16n8k16", "bf16") && super::op::has_avx2() {
        return Some((mma_bf16_avx2, 4, 2));
    }
    Some(match (shape, ty) {
        ("m16n8k16", "bf16") => (handler::<Mma<Bf16x2, 16>>(), 4, 2),
        ("m16n8k16", "f16") => (handler::<Mma<F16x2, 16>>(), 4, 2),
        ("m16n8k8", "bf16") => (handler::<Mma<Bf16x2, 8>>(), 2, 1),
        ("m16n8k8", "f16") => (handler::<Mma<F16x2, 8>>(), 2, 1),
        _ => return None,
    })
}
