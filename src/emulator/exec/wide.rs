//! Registers as AVX-512 vectors.

use super::warp::Warp;
use std::arch::x86_64::*;

/// Lanes 0 to 15 and 16 to 31 of a slot of 32 words.
///
/// # Safety
/// `slot` is a slot of 32 lanes of 32 bits in the warp's register file.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn words(warp: &Warp, slot: u32) -> [__m512i; 2] {
    let slot = warp.slot::<__m512i>(slot);
    // SAFETY: passed on to the caller; slots are aligned to 64 bytes.
    unsafe { [_mm512_load_si512(slot), _mm512_load_si512(slot.add(1))] }
}

/// [`words`] that the instruction before may have written: most handlers write half a vector at a time, and a CPU forwards no
/// store to a load that is wider.
///
/// # Safety
/// As for [`words`].
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn fresh_words(warp: &Warp, slot: u32) -> [__m512i; 2] {
    let slot = warp.slot::<__m256i>(slot);
    // SAFETY: passed on to the caller; slots are aligned to 64 bytes.
    unsafe { [halves(slot), halves(slot.add(2))] }
}

/// Lanes 0 to 7, 8 to 15 and so on of a slot of 32 double words, read as by [`fresh_words`].
///
/// # Safety
/// `slot` is a slot of 32 lanes of 64 bits in the warp's register file.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn fresh_double_words(warp: &Warp, slot: u32) -> [__m512i; 4] {
    let slot = warp.slot::<__m256i>(slot);
    let mut vectors = [_mm512_setzero_si512(); 4];
    for (part, vector) in vectors.iter_mut().enumerate() {
        // SAFETY: passed on to the caller; slots are aligned to 64 bytes.
        *vector = unsafe { halves(slot.add(2 * part)) };
    }
    vectors
}

/// A vector of which each half is loaded.
///
/// # Safety
/// `at` points to two aligned halves.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn halves(at: *const __m256i) -> __m512i {
    // Volatile, since the compiler makes one load of them otherwise.
    // SAFETY: passed on to the caller.
    let (low, high) = unsafe { (at.read_volatile(), at.add(1).read_volatile()) };
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}
