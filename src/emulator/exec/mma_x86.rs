//! `mma.m16n8k16` with bf16 operands on x86-64: the same sums in the same order as the portable form, laid out by shuffles
//! instead of lane by lane.
//!
//! Kernels pad: decode attention and narrow GEMMs leave rows 8 to 15 of A zero. Such a half is not computed where that
//! changes no bit: `fma(0, b, c)` is `c` for every finite b and every c that is neither -0 nor NaN.

use super::control::converged;
use super::fused;
use super::op::{has_avx2, has_avx512};
use super::warp::{FULL, Handler, Ins, LANES, Warp};
use super::wide::words;
use std::arch::x86_64::*;

/// Both halves of a pair without their signs.
const MAGNITUDES: i32 = 0x7fff_7fff;
/// The exponent of an f32.
const EXPONENT: i32 = 0x7f80_0000;
/// The upper half of a pair.
const UPPER: i32 = 0xffff_0000_u32 as i32;
const NEGATIVE_ZERO: i32 = i32::MIN;
/// The exponent of a bf16.
const EXPONENT_16: i16 = 0x7f80;
/// Classes of `vfpclassps`: quiet NaN, -0, signalling NaN.
const NEGATIVE_ZERO_OR_NAN: i32 = 0x85;

/// The handler for this CPU, if it has one of its own. `ops`, over two entries: 4 d, 4 a, 2 b, 4 c.
pub(super) fn handler() -> Option<Handler> {
    if has_avx512() {
        Some(avx512)
    } else {
        has_avx2().then_some(avx2 as Handler)
    }
}

/// The handler of two such instructions, one behind the other, if this CPU has one: they have the same A, and the second reads
/// nothing that the first writes.
pub(super) fn pair() -> Option<Handler> {
    has_avx512().then_some(avx512_pair as Handler)
}

/// Slot of operand `n`.
///
/// # Safety
/// The instruction has two entries.
#[inline(always)]
unsafe fn operand(ip: *const Ins, n: usize) -> u32 {
    // SAFETY: passed on to the caller.
    let ins = unsafe { &*ip.add(n / 8) };
    ins.ops[n % 8]
}

/// Eight rows of C, or of D: its even columns and its odd ones, each as lanes 0 to 15 and 16 to 31.
type Half = [[__m512; 2]; 2];

/// Adds `a b` for one k to `N` halves of `P` products. `LANE`, four times two bits, picks the lane of each quad of A that holds
/// the k, whose row in each B `row` gives by even and odd column.
#[inline]
#[target_feature(enable = "avx512f")]
fn step<const LANE: i32, const N: usize, const P: usize>(
    acc: &mut [[Half; N]; P],
    a: &[[__m512; 2]; N],
    row: [[__m512; 2]; P],
) {
    for half in 0..N {
        for part in 0..2 {
            let a = _mm512_shuffle_ps::<LANE>(a[half][part], a[half][part]);
            for product in 0..P {
                for odd in 0..2 {
                    let sum = &mut acc[product][half][odd][part];
                    *sum = _mm512_fmadd_ps(a, row[product][odd], *sum);
                }
            }
        }
    }
}

/// B, by k / 8, by even and odd column, and by even and odd k: four columns a k.
type Columns = [[[__m512; 2]; 2]; 2];

/// Adds `a b` to `N` halves, the first of which is half `FIRST`, of `P` products.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn accumulate<const N: usize, const FIRST: usize, const P: usize>(
    warp: &Warp,
    ip: *const Ins,
    mut acc: [[Half; N]; P],
    columns: &[Columns; P],
) -> [[Half; N]; P] {
    for r in 0..2 {
        let (mut low, mut high) = ([[_mm512_setzero_ps(); 2]; N], [[_mm512_setzero_ps(); 2]; N]);
        for half in 0..N {
            // SAFETY: the operand is a slot of 32 words.
            let pairs = unsafe { words(warp, operand(ip, 4 + 2 * r + FIRST + half)) };
            for part in 0..2 {
                let upper = _mm512_and_si512(pairs[part], _mm512_set1_epi32(UPPER));
                low[half][part] = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs[part]));
                high[half][part] = _mm512_castsi512_ps(upper);
            }
        }
        let row = |odd_k: usize, t: usize| {
            let mut row = [[_mm512_setzero_ps(); 2]; P];
            for product in 0..P {
                for odd in 0..2 {
                    let four = (&raw const columns[product][r][odd][odd_k]).cast::<__m128>();
                    // SAFETY: a quarter of a vector, aligned to its size.
                    row[product][odd] = _mm512_broadcast_f32x4(unsafe { four.add(t).read() });
                }
            }
            row
        };
        step::<0x00, N, P>(&mut acc, &low, row(0, 0));
        step::<0x00, N, P>(&mut acc, &high, row(1, 0));
        step::<0x55, N, P>(&mut acc, &low, row(0, 1));
        step::<0x55, N, P>(&mut acc, &high, row(1, 1));
        step::<0xaa, N, P>(&mut acc, &low, row(0, 2));
        step::<0xaa, N, P>(&mut acc, &high, row(1, 2));
        step::<0xff, N, P>(&mut acc, &low, row(0, 3));
        step::<0xff, N, P>(&mut acc, &high, row(1, 3));
    }
    acc
}

/// B's words: k / 8, lanes 0 to 15 and 16 to 31.
type Words = [[__m512i; 2]; 2];

/// Lays out B by columns.
#[inline]
#[target_feature(enable = "avx512f")]
fn columns(b: &Words) -> Columns {
    let mut columns = [[[_mm512_setzero_ps(); 2]; 2]; 2];
    // Lane 4 g + t holds rows 2 t and 2 t + 1 of column g.
    let even = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
    for r in 0..2 {
        for odd in 0..2 {
            let order = _mm512_add_epi32(even, _mm512_set1_epi32(4 * odd as i32));
            let pairs = _mm512_permutex2var_epi32(b[r][0], order, b[r][1]);
            let upper = _mm512_and_si512(pairs, _mm512_set1_epi32(UPPER));
            columns[r][odd] = [
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)),
                _mm512_castsi512_ps(upper),
            ];
        }
    }
    columns
}

/// Whether every B is finite.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn finite<const P: usize>(b: &[Words; P]) -> bool {
    let exponent = _mm512_set1_epi16(EXPONENT_16);
    let mut largest = _mm512_setzero_si512();
    for words in b {
        for register in words {
            for pairs in register {
                largest = _mm512_max_epu16(largest, _mm512_and_si512(*pairs, exponent));
            }
        }
    }
    _mm512_cmpeq_epi16_mask(largest, exponent) == 0
}

/// Whether half `HALF` of A is zero.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn is_zero<const HALF: usize>(warp: &Warp, ip: *const Ins) -> bool {
    // SAFETY: the operands are slots of 32 words.
    let [[a0, a1], [b0, b1]] = unsafe {
        [
            words(warp, operand(ip, 4 + HALF)),
            words(warp, operand(ip, 6 + HALF)),
        ]
    };
    let any = _mm512_or_si512(_mm512_or_si512(a0, a1), _mm512_or_si512(b0, b1));
    _mm512_test_epi32_mask(any, _mm512_set1_epi32(MAGNITUDES)) == 0
}

/// Whether adding zeros of either sign leaves half `HALF` of every C as it is.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn stays<const HALF: usize, const P: usize>(c: &[[Half; 2]; P]) -> bool {
    let mut odd_ones = 0;
    for halves in c {
        for column in &halves[HALF] {
            for part in column {
                odd_ones |= _mm512_fpclass_ps_mask::<NEGATIVE_ZERO_OR_NAN>(*part);
            }
        }
    }
    odd_ones == 0
}

/// [`products`] of one instruction.
///
/// # Safety
/// As for every handler; the CPU has AVX-512F, BW and DQ.
#[target_feature(enable = "avx512f,avx512bw,avx512dq")]
unsafe fn avx512(warp: &mut Warp, ip: *const Ins) -> *const Ins {
    // SAFETY: passed on to the caller.
    unsafe { products::<1>(warp, ip) }
}

/// [`products`] of two instructions with the same A; of the first alone where somebody looks at each.
///
/// # Safety
/// As for every handler, of both; the CPU has AVX-512F, BW and DQ.
#[target_feature(enable = "avx512f,avx512bw,avx512dq")]
unsafe fn avx512_pair(warp: &mut Warp, ip: *const Ins) -> *const Ins {
    if !warp.watch.is_null() {
        // SAFETY: passed on to the caller.
        return unsafe { products::<1>(warp, ip) };
    }
    fused::count(warp, 1);
    // SAFETY: passed on to the caller.
    if unsafe { is_zero::<0>(warp, ip) || is_zero::<1>(warp, ip) } {
        // SAFETY: passed on to the caller.
        return unsafe { products::<2>(warp, ip) };
    }
    // Both halves of both would not fit the registers.
    // SAFETY: passed on to the caller.
    let next = unsafe { products::<1>(warp, ip) };
    if next.is_null() {
        return next;
    }
    // SAFETY: as above.
    unsafe { products::<1>(warp, next) }
}

/// `P` instructions one behind the other, with the same A, none of which reads what another writes. Lanes stay where they are,
/// A is broadcast within the quads that share a row, B across the quads.
///
/// # Safety
/// As for a handler of each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq")]
unsafe fn products<const P: usize>(warp: &mut Warp, ip: *const Ins) -> *const Ins {
    if !converged(warp) {
        let live = warp.live;
        return warp.fail_divergent(ip, live);
    }
    let mut b = [[[_mm512_setzero_si512(); 2]; 2]; P];
    let mut c = [[[[_mm512_setzero_ps(); 2]; 2]; 2]; P];
    let mut laid_out = [[[[_mm512_setzero_ps(); 2]; 2]; 2]; P];
    for product in 0..P {
        let ip = ip.wrapping_add(2 * product);
        for r in 0..2 {
            // SAFETY: the loader made these instructions of two entries, whose operands are slots of 32 words.
            b[product][r] = unsafe { words(warp, operand(ip, 8 + r)) };
        }
        for n in 0..4 {
            // SAFETY: as above.
            let [low, high] = unsafe { words(warp, operand(ip, 10 + n)) };
            c[product][n / 2][n % 2] = [_mm512_castsi512_ps(low), _mm512_castsi512_ps(high)];
        }
        laid_out[product] = columns(&b[product]);
    }
    // Kept in memory, from where parts are broadcast without a shuffle.
    let columns = std::hint::black_box(&laid_out);
    // Halves of the results that are those of C.
    // SAFETY: as above.
    let mut still = unsafe { [is_zero::<0>(warp, ip), is_zero::<1>(warp, ip)] };
    if still != [false; 2] {
        let finite = finite(&b);
        still[0] &= finite && stays::<0, P>(&c);
        still[1] &= finite && stays::<1, P>(&c);
    }
    match still {
        // SAFETY: as above.
        [false, false] => c = unsafe { accumulate::<2, 0, P>(warp, ip, c, columns) },
        // SAFETY: as above.
        [false, true] => unsafe { one_half::<0, P>(warp, ip, &mut c, columns) },
        // SAFETY: as above.
        [true, false] => unsafe { one_half::<1, P>(warp, ip, &mut c, columns) },
        [true, true] => {}
    }
    for product in 0..P {
        for n in 0..4 {
            // SAFETY: the first four operands are destinations.
            let slot = unsafe { operand(ip.wrapping_add(2 * product), n) };
            for part in 0..2 {
                let value = c[product][n / 2][n % 2][part];
                let target = warp.slot::<f32>(slot).wrapping_add(16 * part);
                if warp.mask == FULL {
                    // SAFETY: they are slots of 32 words, which are aligned.
                    unsafe { _mm512_store_ps(target, value) };
                } else {
                    let mask = (warp.mask >> (16 * part)) as __mmask16;
                    // SAFETY: as above.
                    unsafe { _mm512_mask_store_ps(target, mask, value) };
                }
            }
        }
    }
    warp.counters.mma_ops += P as u64;
    warp.counters.mma_macs += P as u64 * (16 * 8 * 16);
    ip.wrapping_add(2 * P)
}

/// [`accumulate`] for one half.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn one_half<const HALF: usize, const P: usize>(
    warp: &Warp,
    ip: *const Ins,
    sums: &mut [[Half; 2]; P],
    columns: &[Columns; P],
) {
    let mut acc = [[[[_mm512_setzero_ps(); 2]; 2]; 1]; P];
    for product in 0..P {
        acc[product][0] = sums[product][HALF];
    }
    // SAFETY: passed on to the caller.
    let acc = unsafe { accumulate::<1, HALF, P>(warp, ip, acc, columns) };
    for product in 0..P {
        sums[product][HALF] = acc[product][0];
    }
}

/// With AVX2: rows of C in registers, B's rows beside each other, elements of A broadcast.
///
/// # Safety
/// As for every handler; the CPU has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2(warp: &mut Warp, ip: *const Ins) -> *const Ins {
    #[repr(C, align(64))]
    struct Operands {
        a: [[f32; 16]; 16],
        b: [__m256; 16],
    }
    if !converged(warp) {
        let live = warp.live;
        return warp.fail_divergent(ip, live);
    }
    // SAFETY: the loader made this instruction of two entries.
    let op = |n: usize| unsafe { operand(ip, n) };
    let mut tiles = Operands {
        a: [[0.0; 16]; 16],
        b: [_mm256_setzero_ps(); 16],
    };
    let mut magnitudes = [_mm_setzero_si128(); 2];
    for r in 0..4 {
        let bits = warp.slot::<__m128i>(op(4 + r));
        for g in 0..8 {
            // Four words are eight neighbours of one row.
            // SAFETY: the operand is a slot of 32 words.
            let words = unsafe { _mm_load_si128(bits.add(g)) };
            magnitudes[r & 1] = _mm_or_si128(magnitudes[r & 1], words);
            let row = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(words));
            let target = &mut tiles.a[g + 8 * (r & 1)][8 * (r >> 1)];
            // SAFETY: eight elements from column 0 or 8 of a row of sixteen.
            unsafe { _mm256_storeu_si256((target as *mut f32).cast(), row) };
        }
    }
    let exponent = _mm256_set1_epi32(EXPONENT);
    let mut special = _mm256_setzero_si256();
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
            let upper = _mm256_and_si256(column, _mm256_set1_epi32(UPPER));
            for (odd, value) in [_mm256_slli_epi32::<16>(column), upper]
                .into_iter()
                .enumerate()
            {
                let infinite = _mm256_cmpeq_epi32(_mm256_and_si256(value, exponent), exponent);
                special = _mm256_or_si256(special, infinite);
                tiles.b[8 * r + 2 * t + odd] = _mm256_castsi256_ps(value);
            }
        }
    }
    for half in 0..2 {
        let (even, odd) = (
            warp.slot::<f32>(op(10 + 2 * half)),
            warp.slot::<f32>(op(11 + 2 * half)),
        );
        let mut acc = [_mm256_setzero_ps(); 8];
        let mut special = special;
        for g in (0..8).step_by(2) {
            // SAFETY: the operands are slots of 32 words.
            let (e, o) = unsafe {
                (
                    _mm256_load_ps(even.add(4 * g)),
                    _mm256_load_ps(odd.add(4 * g)),
                )
            };
            for c in [e, o] {
                let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(c, c));
                let zero = _mm256_set1_epi32(NEGATIVE_ZERO);
                let zero = _mm256_cmpeq_epi32(_mm256_castps_si256(c), zero);
                special = _mm256_or_si256(special, _mm256_or_si256(nan, zero));
            }
            let (low, high) = (_mm256_unpacklo_ps(e, o), _mm256_unpackhi_ps(e, o));
            acc[g] = _mm256_permute2f128_ps::<0x20>(low, high);
            acc[g + 1] = _mm256_permute2f128_ps::<0x31>(low, high);
        }
        let idle = _mm_testz_si128(magnitudes[half], _mm_set1_epi32(MAGNITUDES)) != 0
            && _mm256_testz_si256(special, special) != 0;
        if !idle {
            for k in 0..16 {
                let b = tiles.b[k];
                for (g, acc) in acc.iter_mut().enumerate() {
                    let a = _mm256_broadcast_ss(&tiles.a[g + 8 * half][k]);
                    *acc = _mm256_fmadd_ps(a, b, *acc);
                }
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
            let (to_even, to_odd) = if warp.mask == FULL {
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
        if warp.mask != FULL {
            // SAFETY: the first four operands are 32-bit destinations.
            unsafe { warp.write32(op(2 * half), &columns[0]) };
            // SAFETY: as above.
            unsafe { warp.write32(op(2 * half + 1), &columns[1]) };
        }
    }
    warp.counters.mma_ops += 1;
    warp.counters.mma_macs += 16 * 8 * 16;
    ip.wrapping_add(2)
}
