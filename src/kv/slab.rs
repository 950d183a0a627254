//! The slab: the unit in which pools take memory from the arena.
//!
//! Slabs of one size serve every pool, so the line between the pools moves a slab at a time without moving a
//! byte. Inside, each pool lays its pages out layer by layer; `layer_stride` is therefore a constant of the
//! pool, and it is captured into graphs. So the slab is chosen **before** capture, from an upper bound of what
//! there will be to carve.
//!
//! # What the choice costs
//! Let `P` be the number of pools, `S` the slab and `C` the bytes carved. Any set of sequences whose pages
//! weigh at most `C - P * S` fits, null pages and tail included, when pools pack without remainder: pool `i`
//! needs `ceil((n_i + 1) / k_i)` slabs of `k_i` pages, and
//! `sum ceil((n_i + 1) / k_i) * S <= sum n_i * page_i + P * S`. The solver keeps `P * S` at or below 1/64 of
//! `C` where pages allow, and grows a slab beyond the smallest exact one only while `P * S` stays below both
//! 1/1,024 of `C` and one request of 1,024 tokens.

use serde::Serialize;
use thiserror::Error;

use super::geometry::{ENTRY_REACH_BYTES, ENTRY_UNIT_BYTES, Geometry};

/// Length in bytes of one layer's pages in a slab that growth aims at: one 2 MiB device page.
pub const LAYER_CHUNK_TARGET_BYTES: u64 = 2 << 20;

/// The exact slab is affordable while all pools' slabs together are at most this share of the carve.
const EXACT_SHARE: u64 = 64;

/// Growth stops when all pools' slabs together would exceed this share of the carve.
const GROWTH_SHARE: u64 = 1_024;

/// Growth stops when all pools' slabs together would exceed a request of this many tokens.
const GROWTH_TOKENS: u32 = 1_024;

/// Slab sizes tried, in multiples of the largest page, when no exact slab is affordable.
const CANDIDATES: u64 = 4_096;

/// How one pool lays its pages out in a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PoolLayout {
    /// Bytes of one page, all layers of the group.
    pub page_bytes: u64,
    /// One layer's share of a page, and the distance between two neighbouring pages of a slab.
    pub layer_page_bytes: u64,
    /// Whole pages in a slab.
    pub pages_per_slab: u32,
    /// From one layer's pages to the next layer's, `pages_per_slab * layer_page_bytes`.
    pub layer_stride_bytes: u64,
    /// Bytes of a slab that hold no page of this pool.
    pub remainder_bytes: u64,
}

/// The slab and its layout for every pool, in group order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SlabLayout {
    /// Bytes of a slab, a multiple of 256.
    pub slab_bytes: u64,
    /// One layout a layer group.
    pub pools: Vec<PoolLayout>,
}

impl SlabLayout {
    /// A layout with a slab of the caller's choice; [`solve_slab`] chooses a good one.
    ///
    /// # Errors
    /// [`SlabError::TooSmall`] unless a page of every pool fits in a multiple of 256 bytes; [`SlabError::TooLarge`] when a
    /// slab would hold more than 2^32 pages.
    pub fn with_slab_bytes(geometry: &Geometry, slab_bytes: u64) -> Result<Self, SlabError> {
        let pages = geometry
            .groups
            .iter()
            .map(|g| (g.page_bytes(), g.layer_page_bytes()))
            .collect::<Vec<_>>();
        let largest = pages
            .iter()
            .map(|page| page.0)
            .max()
            .ok_or(SlabError::NoPools)?;
        if slab_bytes < largest || !slab_bytes.is_multiple_of(ENTRY_UNIT_BYTES) {
            return Err(SlabError::TooSmall {
                bytes: slab_bytes,
                largest_page_bytes: largest,
            });
        }
        Self::new(&pages, slab_bytes)
    }

    fn new(page_bytes: &[(u64, u64)], slab_bytes: u64) -> Result<Self, SlabError> {
        let pools = page_bytes.iter().map(|&(page_bytes, layer_page_bytes)| {
            let pages = slab_bytes / page_bytes;
            let pages_per_slab =
                u32::try_from(pages).map_err(|_| SlabError::TooLarge { bytes: slab_bytes })?;
            Ok(PoolLayout {
                page_bytes,
                layer_page_bytes,
                pages_per_slab,
                // At most `slab_bytes`.
                layer_stride_bytes: pages * layer_page_bytes,
                remainder_bytes: slab_bytes - pages * page_bytes,
            })
        });
        Ok(Self {
            slab_bytes,
            pools: pools.collect::<Result<_, _>>()?,
        })
    }

    /// Whether every pool fills a slab to the last byte (I6).
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.pools.iter().all(|pool| pool.remainder_bytes == 0)
    }

    /// The slab in units of block-table entries (256 bytes).
    #[must_use]
    pub const fn slab_units(&self) -> u64 {
        self.slab_bytes / ENTRY_UNIT_BYTES
    }

    /// Bytes that hold the first slab of every pool, where the null pages live: what must be mapped before capture.
    #[must_use]
    pub fn null_bytes(&self) -> u64 {
        // Each slab is at most 1 TiB and there are at most as many pools as layers.
        self.slab_bytes * self.pools.len() as u64
    }

    /// Bytes that may be lost to partly used slabs, null pages and tail together, `pools * slab_bytes`.
    #[must_use]
    pub fn rounding_bound_bytes(&self) -> u64 {
        self.null_bytes()
    }
}

/// Chooses the slab for `geometry` and at most `carve_bound_bytes` of KV memory.
///
/// # Errors
/// [`SlabError::TooLarge`] when one page exceeds what block tables can address.
pub fn solve_slab(geometry: &Geometry, carve_bound_bytes: u64) -> Result<SlabLayout, SlabError> {
    let pages = geometry
        .groups
        .iter()
        .map(|g| (g.page_bytes(), g.layer_page_bytes()))
        .collect::<Vec<_>>();
    let pools = pages.len() as u64;
    let largest = pages
        .iter()
        .map(|page| page.0)
        .max()
        .ok_or(SlabError::NoPools)?;
    if largest > ENTRY_REACH_BYTES {
        return Err(SlabError::TooLarge { bytes: largest });
    }
    let bound = carve_bound_bytes.min(ENTRY_REACH_BYTES);
    let exact_limit = (bound / EXACT_SHARE / pools).max(largest);
    let exact = pages
        .iter()
        .try_fold(1, |multiple, page| lcm(multiple, page.0))
        .filter(|&bytes| bytes <= exact_limit);
    let slab_bytes = match exact {
        Some(unit) => {
            let request = u64::try_from(geometry.request_bytes(GROWTH_TOKENS)).unwrap_or(u64::MAX);
            let limit = (bound / GROWTH_SHARE).min(request) / pools;
            // The factor that brings the shortest layer chunk to the target.
            let wanted = pages.iter().map(|&(page, layer_page)| {
                LAYER_CHUNK_TARGET_BYTES.div_ceil((unit / page).saturating_mul(layer_page).max(1))
            });
            unit * wanted.max().unwrap_or(1).min(limit / unit).max(1)
        }
        None => least_loss(&pages, largest, bound),
    };
    SlabLayout::new(&pages, slab_bytes)
}

/// The multiple of the largest page whose remainders and rounding together can cost least of `bound`.
fn least_loss(pages: &[(u64, u64)], largest: u64, bound: u64) -> u64 {
    let loss = |slab: u64| {
        let rounding = u128::from(slab) * pages.len() as u128;
        let remainder = pages.iter().map(|page| slab % page.0).max().unwrap_or(0);
        rounding + u128::from(bound) * u128::from(remainder) / u128::from(slab)
    };
    let candidates = (bound / pages.len() as u64 / largest).clamp(1, CANDIDATES);
    (1..=candidates)
        .map(|multiple| multiple * largest)
        .min_by_key(|&slab| loss(slab))
        .unwrap_or(largest)
}

fn lcm(a: u64, b: u64) -> Option<u64> {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x.max(1)).checked_mul(b)
}

/// Why there is no slab.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SlabError {
    /// Nothing to lay out.
    #[error("a model without layer groups needs no slab; check the geometry")]
    NoPools,
    /// A slab that cannot hold a page.
    #[error(
        "a slab of {bytes} bytes is not possible; give a multiple of 256 of at least {largest_page_bytes} bytes"
    )]
    TooSmall {
        /// Bytes asked for.
        bytes: u64,
        /// The largest page.
        largest_page_bytes: u64,
    },
    /// One page or slab exceeds the reach of a block-table entry.
    #[error(
        "{bytes} bytes in one page exceed the 1 TiB that block tables can address; use a smaller page size"
    )]
    TooLarge {
        /// The bytes asked for.
        bytes: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::geometry::{AttentionKind, KvDtype, LayerSpec, PageSize};

    fn geometry(full: (usize, u32), swa: (usize, u32)) -> Geometry {
        let spec = |kind, dim| LayerSpec {
            kind,
            num_kv_heads: 1,
            k_head_dim: dim,
            v_head_dim: dim,
        };
        let mut layers = vec![spec(AttentionKind::Full, full.1); full.0];
        layers.extend(vec![
            spec(AttentionKind::Sliding { window: 128 }, swa.1);
            swa.0
        ]);
        Geometry::new(&layers, PageSize::new(16).unwrap(), KvDtype::Bf16, None).unwrap()
    }

    #[test]
    fn exact_slabs_pack_every_pool_without_remainder() {
        let geometry = geometry((10, 512), (52, 512));
        for bound in [2_u64 << 30, 10_000_000_000, 100_000_000_000] {
            let layout = solve_slab(&geometry, bound).unwrap();
            assert!(layout.is_exact());
            assert!(layout.rounding_bound_bytes() <= bound / 64);
            for pool in &layout.pools {
                let layers = pool.page_bytes / pool.layer_page_bytes;
                assert_eq!(
                    layers * pool.layer_stride_bytes + pool.remainder_bytes,
                    layout.slab_bytes
                );
            }
        }
    }

    #[test]
    fn equal_pages_grow_towards_the_layer_chunk_and_stop_there() {
        let narrow = geometry((4, 64), (4, 64));
        let small = solve_slab(&narrow, 64 << 20).unwrap();
        let large = solve_slab(&narrow, 64 << 30).unwrap();
        assert!(small.slab_bytes < large.slab_bytes);
        // One request of 1,024 tokens bounds the growth of so small a model.
        assert!(u128::from(large.rounding_bound_bytes()) <= narrow.request_bytes(1_024));
        let wide = geometry((32, 2_048), (32, 2_048));
        let huge = solve_slab(&wide, 1 << 40).unwrap();
        assert_eq!(huge.pools[0].layer_stride_bytes, LAYER_CHUNK_TARGET_BYTES);
    }

    #[test]
    fn coprime_pages_take_the_least_remainder() {
        // 29 and 31 layers of coprime shares: the exact slab would be 29 * 31 * 37 * 41 units.
        let geometry = geometry((29, 37 * 4), (31, 41 * 4));
        let bound = 64 << 20;
        let layout = solve_slab(&geometry, bound).unwrap();
        assert!(!layout.is_exact());
        let worst = layout
            .pools
            .iter()
            .map(|pool| pool.remainder_bytes)
            .max()
            .unwrap();
        assert!(worst * 100 < layout.slab_bytes * 3, "{layout:?}");
        assert!(solve_slab(&geometry, 1 << 40).unwrap().is_exact());
    }

    #[test]
    fn the_smallest_bound_still_gives_a_slab() {
        let geometry = geometry((1, 64), (5, 64));
        for bound in [0, 1, 4_096, 1 << 20] {
            let layout = solve_slab(&geometry, bound).unwrap();
            assert!(layout.pools.iter().all(|pool| pool.pages_per_slab >= 1));
        }
    }

    #[test]
    fn pages_beyond_the_reach_are_refused() {
        let spec = LayerSpec {
            kind: AttentionKind::Full,
            num_kv_heads: 1 << 10,
            k_head_dim: 1 << 12,
            v_head_dim: 1,
        };
        let geometry = Geometry::new(
            &vec![spec; 1 << 16],
            PageSize::new(128).unwrap(),
            KvDtype::Bf16,
            None,
        )
        .unwrap();
        assert!(matches!(
            solve_slab(&geometry, u64::MAX),
            Err(SlabError::TooLarge { .. })
        ));
    }
}
