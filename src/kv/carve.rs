//! From measured bytes to slabs, and what they are good for.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::fit::FreeMemory;
use super::geometry::{ENTRY_REACH_BYTES, Geometry};
use super::slab::SlabLayout;
use crate::arena::Grouped;

/// The bytes given to KV, cut into slabs: `slabs * slab_bytes + tail_bytes = carved_bytes` (I5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Carve {
    /// Bytes given to KV.
    pub carved_bytes: u64,
    /// Whole slabs.
    pub slabs: u32,
    /// What is left below one slab.
    pub tail_bytes: u64,
    layout: SlabLayout,
}

impl Carve {
    /// Cuts `carved_bytes` into slabs.
    ///
    /// # Errors
    /// [`CarveError::TooSmall`] when not even a sequence of one token fits; [`CarveError::BeyondReach`] beyond the
    /// 1 TiB that block tables address.
    pub fn new(
        geometry: &Geometry,
        layout: &SlabLayout,
        carved_bytes: u64,
    ) -> Result<Self, CarveError> {
        if carved_bytes > ENTRY_REACH_BYTES {
            return Err(CarveError::BeyondReach {
                bytes: carved_bytes,
            });
        }
        let slabs = carved_bytes / layout.slab_bytes;
        let one_token = geometry.pages_for(1);
        if !FreeMemory::empty(layout, slabs).fits(&one_token) {
            let nothing = FreeMemory::empty(layout, layout.pools.len() as u64);
            let least = layout.pools.len() as u128 + nothing.slabs_needed(&one_token);
            let needed_bytes =
                u64::try_from(least * u128::from(layout.slab_bytes)).unwrap_or(u64::MAX);
            return Err(CarveError::TooSmall {
                bytes: carved_bytes,
                needed_bytes,
            });
        }
        // The reach is 2^32 units, and a slab is at least one.
        let slabs = u32::try_from(slabs).map_err(|_| CarveError::BeyondReach {
            bytes: carved_bytes,
        })?;
        Ok(Self {
            carved_bytes,
            slabs,
            tail_bytes: carved_bytes % layout.slab_bytes,
            layout: layout.clone(),
        })
    }

    /// The layout of the slabs.
    #[must_use]
    pub fn layout(&self) -> &SlabLayout {
        &self.layout
    }

    /// Bytes in whole slabs.
    #[must_use]
    pub fn slab_total_bytes(&self) -> u64 {
        self.carved_bytes - self.tail_bytes
    }

    /// What is free while no sequence holds a page.
    #[must_use]
    pub fn free_memory(&self) -> FreeMemory<'_> {
        FreeMemory::empty(&self.layout, u64::from(self.slabs))
    }

    /// Sequences of `tokens` tokens that are resident at once in steady decode: window pages included, null
    /// pages excluded.
    #[must_use]
    pub fn max_requests(&self, geometry: &Geometry, tokens: u32) -> u64 {
        self.free_memory().times(&geometry.pages_for(tokens))
    }

    /// The longest single sequence that fits, up to what the model was made for.
    #[must_use]
    pub fn longest_request_tokens(&self, geometry: &Geometry) -> u32 {
        self.free_memory()
            .longest_request_tokens(geometry, geometry.max_position_tokens.unwrap_or(u32::MAX))
    }

    /// Slabs of each pool when the line between the pools stands where as many sequences of
    /// `reference_tokens` as possible are resident; slabs that then remain go to the full pool, the one that
    /// longer sequences draw on.
    #[must_use]
    pub fn split(&self, geometry: &Geometry, reference_tokens: u32) -> Vec<u64> {
        let tokens = reference_tokens
            .min(self.longest_request_tokens(geometry))
            .max(1);
        let requests = self.max_requests(geometry, tokens);
        let mut slabs = geometry
            .pages_for(tokens)
            .iter()
            .zip(&self.layout.pools)
            .map(|(pages, pool)| {
                (pages.saturating_mul(requests).saturating_add(1))
                    .div_ceil(u64::from(pool.pages_per_slab))
            })
            .collect::<Vec<_>>();
        let rest = u64::from(self.slabs).saturating_sub(slabs.iter().sum());
        // Groups are ordered full first.
        if let Some(first) = slabs.first_mut() {
            *first += rest;
        }
        slabs
    }

    /// The report of this carve: pools split for `reference_tokens`, capacity at each of `lengths`.
    #[must_use]
    pub fn report(
        &self,
        geometry: &Geometry,
        reference_tokens: u32,
        lengths: &[u32],
    ) -> CarveReport {
        let pools = geometry
            .groups
            .iter()
            .zip(&self.layout.pools)
            .zip(self.split(geometry, reference_tokens));
        let pools = pools.map(|((group, pool), slabs)| {
            let pages = (slabs * u64::from(pool.pages_per_slab)).saturating_sub(1);
            PoolReport {
                group: group.name.clone(),
                layers: group.layers.len() as u64,
                page_bytes: group.page_bytes(),
                pages,
                tokens: group.tokens_of(pages),
            }
        });
        let capacity = lengths.iter().map(|&length| {
            let requests = self.max_requests(geometry, length);
            CapacityReport {
                length,
                requests,
                tokens: requests.saturating_mul(u64::from(length)),
            }
        });
        CarveReport {
            slab_bytes: self.layout.slab_bytes,
            pools: pools.collect(),
            tail_bytes: self.tail_bytes,
            capacity: capacity.collect(),
        }
    }
}

/// What a carve holds, in numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarveReport {
    /// Bytes of a slab.
    pub slab_bytes: u64,
    /// The pools, their line where the reference length puts it; it moves at run time.
    pub pools: Vec<PoolReport>,
    /// Bytes below one slab, in no pool.
    pub tail_bytes: u64,
    /// Sequences resident at once, by length. Each row may use every slab, so rows are alternatives.
    pub capacity: Vec<CapacityReport>,
}

/// One pool of a [`CarveReport`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolReport {
    /// Name of the layer group.
    pub group: String,
    /// Layers in the group.
    pub layers: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Pages, the null page excluded.
    pub pages: u64,
    /// Tokens those pages stand for; 0 for recurrent state, of which a page is a sequence's.
    pub tokens: u64,
}

/// Capacity at one length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapacityReport {
    /// Tokens of each sequence.
    pub length: u32,
    /// Sequences resident at once in steady decode.
    pub requests: u64,
    /// `length * requests`.
    pub tokens: u64,
}

impl fmt::Display for CarveReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self
            .pools
            .iter()
            .map(|pool| pool.group.len())
            .max()
            .unwrap_or(0)
            .max("pool".len());
        writeln!(
            f,
            "slab {} bytes, tail {} bytes",
            Grouped(self.slab_bytes),
            Grouped(self.tail_bytes)
        )?;
        writeln!(
            f,
            "{:width$} {:>7} {:>13} {:>12} {:>14}",
            "pool", "layers", "page bytes", "pages", "tokens"
        )?;
        for pool in &self.pools {
            let [page_bytes, pages, tokens] =
                [pool.page_bytes, pool.pages, pool.tokens].map(Grouped);
            writeln!(
                f,
                "{:width$} {:>7} {page_bytes:>13} {pages:>12} {tokens:>14}",
                pool.group, pool.layers
            )?;
        }
        if !self.capacity.is_empty() {
            writeln!(f, "{:>12} {:>12} {:>14}", "length", "requests", "tokens")?;
        }
        for row in &self.capacity {
            let [length, requests, tokens] =
                [u64::from(row.length), row.requests, row.tokens].map(Grouped);
            writeln!(f, "{length:>12} {requests:>12} {tokens:>14}")?;
        }
        Ok(())
    }
}

/// Why there is no carve.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CarveError {
    /// Not even a sequence of one token fits.
    #[error(
        "{bytes} bytes of KV memory are too little for one page of each pool and the null pages; {needed_bytes} are \
         needed: free device memory, lower the headroom, or use a smaller page size"
    )]
    TooSmall {
        /// Bytes there are.
        bytes: u64,
        /// Bytes that the smallest carve takes.
        needed_bytes: u64,
    },
    /// More than block tables can address.
    #[error(
        "{bytes} bytes of KV memory exceed the 1 TiB that block tables can address; set a lower limit"
    )]
    BeyondReach {
        /// Bytes asked for.
        bytes: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::geometry::{AttentionKind, KvDtype, LayerSpec, PageSize};
    use crate::kv::slab::solve_slab;

    fn geometry(full: (usize, u32, u32), swa: (usize, u32, u32), window: u32) -> Geometry {
        let spec = |kind, (_, num_kv_heads, dim): (usize, u32, u32)| LayerSpec {
            kind,
            num_kv_heads,
            k_head_dim: dim,
            v_head_dim: dim,
        };
        let mut layers = vec![spec(AttentionKind::Full, full); full.0];
        layers.extend(vec![spec(AttentionKind::Sliding { window }, swa); swa.0]);
        Geometry::new(&layers, PageSize::new(16).unwrap(), KvDtype::Bf16, None).unwrap()
    }

    fn carve(geometry: &Geometry, bytes: u64) -> Carve {
        Carve::new(geometry, &solve_slab(geometry, bytes).unwrap(), bytes).unwrap()
    }

    #[test]
    fn c01_sliding_layers_are_neither_charged_in_full_nor_left_out() {
        let geometry = geometry((18, 8, 64), (18, 8, 64), 128);
        let carve = carve(&geometry, 5_776_731_013);
        let tokens = carve.longest_request_tokens(&geometry);
        // The byte-exact figure is 156,544; slabs, null pages and tail may cost less than their stated bound.
        let bound_tokens = carve.layout().rounding_bound_bytes() / 589_824 * 16 + 16;
        assert!(
            tokens <= 156_544 && u64::from(tokens) + bound_tokens >= 156_544,
            "{tokens}"
        );
    }

    #[test]
    fn c02_a_wide_window_group_leaves_the_rest_to_full_layers() {
        let geometry = geometry((10, 4, 512), (50, 16, 256), 1_024);
        let bytes = 26_349_624_360;
        assert_eq!(geometry.request_bytes(262_144), 22_326_804_480);
        let carve = carve(&geometry, bytes);
        assert_eq!(carve.max_requests(&geometry, 262_144), 1);
        let tokens = u64::from(carve.longest_request_tokens(&geometry));
        let bound_tokens = carve.layout().rounding_bound_bytes() / 1_310_720 * 16 + 16;
        assert!(
            tokens <= 311_248 && tokens + bound_tokens >= 311_248,
            "{tokens}"
        );
    }

    #[test]
    fn c03_reported_tokens_are_length_times_requests() {
        let geometry = geometry((10, 16, 128), (52, 16, 128), 1_024);
        let carve = carve(&geometry, 40_000_000_000);
        let report = carve.report(&geometry, 131_072, &[1_024, 8_192, 32_768, 131_072]);
        for row in &report.capacity {
            assert_eq!(row.requests, carve.max_requests(&geometry, row.length));
            assert_eq!(row.tokens, row.requests * u64::from(row.length));
        }
    }

    #[test]
    fn c13_pools_are_not_given_equal_bytes() {
        let geometry = geometry((12, 8, 64), (12, 8, 64), 128);
        let carve = carve(&geometry, 40_000_000_000);
        assert!(
            carve.max_requests(&geometry, 8_192) >= 194,
            "static equal bytes hold 99, the ideal is 195"
        );
        let pools = carve.report(&geometry, 8_192, &[]).pools;
        assert!(pools[1].pages * pools[1].page_bytes < 1_000_000_000);
    }

    #[test]
    fn the_split_spends_every_slab_and_the_bytes_close() {
        for (full, swa, window) in [
            ((10, 16, 128), (52, 16, 128), 1_024),
            ((9, 4, 160), (39, 8, 160), 128),
        ] {
            let geometry = geometry(full, swa, window);
            for bytes in [3_000_000_000, 10_000_000_000, 100_000_000_000] {
                let carve = carve(&geometry, bytes);
                assert_eq!(
                    u64::from(carve.slabs) * carve.layout().slab_bytes + carve.tail_bytes,
                    bytes
                );
                let report = carve.report(&geometry, 131_072, &[]);
                let pools = report
                    .pools
                    .iter()
                    .map(|pool| (pool.pages + 1) * pool.page_bytes)
                    .sum::<u64>();
                assert!(carve.layout().is_exact());
                assert_eq!(pools + report.tail_bytes, bytes);
            }
        }
    }

    #[test]
    fn too_little_and_too_much_are_sentences() {
        let geometry = geometry((1, 2, 64), (5, 2, 64), 64);
        let layout = solve_slab(&geometry, 1 << 20).unwrap();
        let error = Carve::new(&geometry, &layout, 0).unwrap_err();
        let CarveError::TooSmall { needed_bytes, .. } = error else {
            panic!("{error}")
        };
        assert!(Carve::new(&geometry, &layout, needed_bytes - 1).is_err());
        assert_eq!(
            Carve::new(&geometry, &layout, needed_bytes)
                .unwrap()
                .max_requests(&geometry, 1)
                .min(1),
            1
        );
        for bytes in [(1 << 40) + 1, 1 << 63, u64::MAX] {
            assert_eq!(
                Carve::new(&geometry, &layout, bytes).unwrap_err(),
                CarveError::BeyondReach { bytes }
            );
        }
        assert!(Carve::new(&geometry, &layout, 1 << 40).is_ok());
    }
}
