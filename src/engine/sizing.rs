//! From a carve to pools: the split policy, what it holds, and how it stands in the ledger. `neap plan` uses the same functions.

use crate::arena::KvShare;
use crate::kv::policy::FixedSplit;
use crate::kv::{CapacityReport, Carve, CarveReport, Geometry, Policy, PoolReport, SlabLayout};

use super::EngineError;

/// What a policy makes of a carve.
#[derive(Clone, Debug)]
pub(super) struct Pools {
    /// The pools of a static policy.
    pub split: Option<FixedSplit>,
    pub report: CarveReport,
    /// Slab bytes of each pool, their line where the longest sequence puts it under the dynamic policy.
    pub shares: Vec<KvShare>,
    /// The longest sequence they hold.
    pub longest_tokens: u32,
}

impl Pools {
    /// Splits `carve`; capacity is reported at each of `lengths`.
    pub fn new(
        policy: Policy,
        geometry: &Geometry,
        carve: &Carve,
        max_model_len: u32,
        lengths: &[u32],
    ) -> Result<Pools, EngineError> {
        let mut report = carve.report(geometry, max_model_len, lengths);
        let split = policy.split(geometry, carve)?;
        let slabs = match &split {
            None => carve.split(geometry, max_model_len),
            Some(split) => slabs_of(split),
        };
        let longest_tokens = match &split {
            None => carve.longest_request_tokens(geometry),
            Some(split) => {
                report.pools = geometry
                    .groups
                    .iter()
                    .zip(&split.pools)
                    .map(|(group, pool)| PoolReport {
                        group: pool.group.clone(),
                        layers: group.layers.len() as u64,
                        page_bytes: group.page_bytes(),
                        pages: pool.pages,
                        tokens: pool.tokens,
                    })
                    .collect();
                report.capacity = lengths
                    .iter()
                    .map(|&length| {
                        let requests = split.max_requests(geometry, length);
                        CapacityReport {
                            length,
                            requests,
                            tokens: requests.saturating_mul(length.into()),
                        }
                    })
                    .collect();
                longest(split, geometry)
            }
        };
        Ok(Pools {
            shares: shares(geometry, carve.layout(), &slabs),
            split,
            report,
            longest_tokens,
        })
    }
}

/// Slabs of each pool, those that hold null pages alone included.
fn slabs_of(split: &FixedSplit) -> Vec<u64> {
    let last = split.pools.len().saturating_sub(1);
    let pools = split.pools.iter().enumerate();
    pools
        .map(|(place, pool)| pool.slabs + u64::from(place != last))
        .collect()
}

fn shares(geometry: &Geometry, layout: &SlabLayout, slabs: &[u64]) -> Vec<KvShare> {
    let share = |(group, slabs): (&crate::kv::LayerGroup, &u64)| KvShare {
        group: group.name.clone(),
        bytes: slabs * layout.slab_bytes,
    };
    geometry.groups.iter().zip(slabs).map(share).collect()
}

/// The longest sequence that fits alone, up to what the model was made for.
fn longest(split: &FixedSplit, geometry: &Geometry) -> u32 {
    let (mut low, mut high) = (0, geometry.max_position_tokens.unwrap_or(u32::MAX));
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if split.max_requests(geometry, middle) > 0 {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}
