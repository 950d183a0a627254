//! Where the line between the pools stands.
//!
//! `dynamic` moves it at run time, a slab at a time (I11), and is what neap does by itself. The static policies draw it
//! once, as other servers do, and give each layer group a run of neighbouring slabs: for runtimes that index pages
//! themselves, and to compare. The bytes and the strides are the same under every policy.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use thiserror::Error;

use super::carve::Carve;
use super::geometry::{AttentionKind, ENTRY_UNIT_BYTES, Geometry, GroupId, LayerGroup, PageEntry};
use super::slab::SlabLayout;

/// How the slabs of a carve are shared out among the pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Policy {
    /// By demand, at run time.
    #[default]
    Dynamic,
    /// Pools of windows and chunks hold `ratio` times the tokens of the pools that grow (SGLang's
    /// `swa_full_tokens_ratio`).
    Ratio(f64),
    /// Pools of windows, chunks and states hold what so many sequences need at most; the rest grows.
    Requests(u32),
    /// As many sequences as possible of a prompt and an output of these many tokens.
    Workload {
        /// Tokens of a prompt.
        prompt_tokens: u32,
        /// Tokens of an output.
        output_tokens: u32,
    },
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dynamic => f.write_str("dynamic"),
            Self::Ratio(ratio) => write!(f, "ratio({ratio})"),
            Self::Requests(requests) => write!(f, "requests({requests})"),
            Self::Workload {
                prompt_tokens,
                output_tokens,
            } => write!(f, "workload({prompt_tokens},{output_tokens})"),
        }
    }
}

impl FromStr for Policy {
    type Err = PolicyError;

    /// Reads what [`Policy`] displays: `dynamic`, `ratio(0.8)`, `requests(256)`, `workload(1024,256)`.
    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let unknown = || PolicyError::Unknown {
            text: text.to_owned(),
        };
        if text == "dynamic" {
            return Ok(Self::Dynamic);
        }
        let (name, arguments) = text
            .strip_suffix(')')
            .and_then(|text| text.split_once('('))
            .ok_or_else(unknown)?;
        let whole = |text: &str| text.trim().parse::<u32>().map_err(|_| unknown());
        match name {
            "ratio" => {
                let ratio = arguments.trim().parse().map_err(|_| unknown())?;
                Self::Ratio(ratio).checked()
            }
            "requests" => Self::Requests(whole(arguments)?).checked(),
            "workload" => {
                let (prompt, output) = arguments.split_once(',').ok_or_else(unknown)?;
                Self::Workload {
                    prompt_tokens: whole(prompt)?,
                    output_tokens: whole(output)?,
                }
                .checked()
            }
            _ => Err(unknown()),
        }
    }
}

/// Slabs of one pool under a static policy, side by side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FixedPool {
    /// Name of the layer group.
    pub group: String,
    /// The first slab of the pool's run.
    pub first_slab: u64,
    /// Slabs.
    pub slabs: u64,
    /// Pages, the null page excluded.
    pub pages: u64,
    /// Tokens those pages stand for; 0 for recurrent state, of which a page is a sequence's.
    pub tokens: u64,
}

/// A static split: one run of neighbouring slabs for each pool, in group order.
///
/// Null pages stay where captured graphs know them, at the start of slab `g` for group `g`. So the run of the last pool begins
/// at its null page, the runs of the others follow, and the slabs before it hold null pages alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FixedSplit {
    /// The pools.
    pub pools: Vec<FixedPool>,
}

impl FixedSplit {
    /// Where page `page` of a pool stands: what its block-table entry is. Page 0 is the null page, `1..=pages` are the pool's own.
    #[must_use]
    pub fn entry(&self, layout: &SlabLayout, group: GroupId, page: u64) -> Option<PageEntry> {
        let (pool, shape) = (
            self.pools.get(group.index())?,
            layout.pools.get(group.index())?,
        );
        if page > pool.pages {
            return None;
        }
        let last = group.index() + 1 == self.pools.len();
        let (first_slab, place) = match page {
            0 => (u64::from(group.0), 0),
            _ if last => (pool.first_slab, page),
            _ => (pool.first_slab, page - 1),
        };
        let in_slab = u64::from(shape.pages_per_slab);
        let slab = first_slab + place / in_slab;
        let inside = place % in_slab * (shape.layer_page_bytes / ENTRY_UNIT_BYTES);
        u32::try_from(slab * layout.slab_units() + inside)
            .ok()
            .map(PageEntry)
    }

    /// Sequences of `tokens` tokens that are resident at once in steady decode: the scarcest pool decides.
    #[must_use]
    pub fn max_requests(&self, geometry: &Geometry, tokens: u32) -> u64 {
        let needs = geometry.pages_for(tokens);
        let pools = self.pools.iter().zip(needs).filter(|(_, need)| *need > 0);
        pools
            .map(|(pool, need)| pool.pages / need)
            .min()
            .unwrap_or(0)
    }
}

/// Whether a group's pool grows with the length of sequences.
fn grows(group: &LayerGroup) -> bool {
    group.kind.max_live_pages(group.tokens_per_page()).is_none()
}

impl Policy {
    /// The policy, if its numbers are possible.
    ///
    /// # Errors
    /// [`PolicyError::Ratio`] outside `(0, 1]`; [`PolicyError::Nothing`] for no request or no token.
    pub fn checked(self) -> Result<Self, PolicyError> {
        match self {
            Self::Ratio(ratio) if !(ratio > 0.0 && ratio <= 1.0) => {
                Err(PolicyError::Ratio { ratio })
            }
            Self::Requests(0)
            | Self::Workload {
                prompt_tokens: 0,
                output_tokens: 0,
            } => Err(PolicyError::Nothing {
                policy: self.to_string(),
            }),
            policy => Ok(policy),
        }
    }

    /// Sequences of `tokens` tokens that are resident at once.
    ///
    /// # Errors
    /// As [`Policy::split`].
    pub fn max_requests(
        self,
        geometry: &Geometry,
        carve: &Carve,
        tokens: u32,
    ) -> Result<u64, PolicyError> {
        match self.split(geometry, carve)? {
            Some(split) => Ok(split.max_requests(geometry, tokens)),
            None => Ok(carve.max_requests(geometry, tokens)),
        }
    }

    /// The runs of slabs of a static policy; `None` for `dynamic`. Slabs that rounding leaves over go to the first pool,
    /// the one that longer sequences draw on.
    ///
    /// # Errors
    /// As [`Policy::checked`]; [`PolicyError::TooLittle`] when some pool cannot hold one sequence.
    pub fn split(
        self,
        geometry: &Geometry,
        carve: &Carve,
    ) -> Result<Option<FixedSplit>, PolicyError> {
        let mut slabs = match self.checked()? {
            Self::Dynamic => return Ok(None),
            Self::Workload {
                prompt_tokens,
                output_tokens,
            } => {
                let tokens = prompt_tokens.saturating_add(output_tokens);
                largest(geometry, carve, &|group, requests| {
                    u64::from(group.pages_for(tokens)).saturating_mul(requests)
                })
            }
            Self::Requests(requests) => {
                let fixed = |group: &LayerGroup| {
                    let live = group.kind.max_live_pages(group.tokens_per_page());
                    live.map(|live| u64::from(live) * u64::from(requests))
                };
                largest(geometry, carve, &|group, tokens| {
                    fixed(group).unwrap_or_else(|| pages_of(group, tokens))
                })
            }
            Self::Ratio(ratio) => {
                let longest = u64::from(geometry.max_position_tokens.unwrap_or(u32::MAX));
                let growing = geometry.groups.iter().any(grows);
                largest(geometry, carve, &|group, tokens| {
                    if grows(group) || !growing {
                        return pages_of(group, tokens);
                    }
                    match group.kind {
                        // As many states as sequences of full length, and one at least.
                        AttentionKind::Recurrent { .. } => (tokens / longest).max(1),
                        _ => pages_of(group, (tokens as f64 * ratio) as u64),
                    }
                })
            }
        };
        let used = slabs.iter().map(|&n| u128::from(n)).sum::<u128>();
        let rest = u64::try_from(used)
            .ok()
            .and_then(|used| runs_slabs(carve).checked_sub(used))
            .ok_or_else(|| self.too_little(carve))?;
        if let Some(first) = slabs.first_mut() {
            *first += rest;
        }
        // The last run comes first: it begins at its null page.
        let last = slabs.len().saturating_sub(1);
        let mut first_slab = last as u64 + slabs.last().copied().unwrap_or(0);
        let mut pools = Vec::with_capacity(slabs.len());
        let shapes = geometry.groups.iter().zip(&carve.layout().pools);
        for (place, ((group, pool), slabs)) in shapes.zip(slabs).enumerate() {
            let nulls = u64::from(place == last);
            let pages = (slabs * u64::from(pool.pages_per_slab)).saturating_sub(nulls);
            if pages < u64::from(group.pages_for(1)) {
                return Err(self.too_little(carve));
            }
            pools.push(FixedPool {
                group: group.name.clone(),
                first_slab: if place == last {
                    last as u64
                } else {
                    first_slab
                },
                slabs,
                pages,
                tokens: group.tokens_of(pages),
            });
            first_slab += slabs;
        }
        Ok(Some(FixedSplit { pools }))
    }

    fn too_little(self, carve: &Carve) -> PolicyError {
        PolicyError::TooLittle {
            policy: self.to_string(),
            bytes: carve.carved_bytes,
        }
    }
}

/// Slabs that runs may take: all but those that hold null pages alone.
fn runs_slabs(carve: &Carve) -> u64 {
    let alone = carve.layout().pools.len().saturating_sub(1);
    u64::from(carve.slabs).saturating_sub(alone as u64)
}

/// Slabs of each pool for the largest count whose `pages` fit; for a count of 0 when not even those do.
fn largest(
    geometry: &Geometry,
    carve: &Carve,
    pages: &dyn Fn(&LayerGroup, u64) -> u64,
) -> Vec<u64> {
    let pools = || geometry.groups.iter().zip(&carve.layout().pools);
    let last = carve.layout().pools.len().saturating_sub(1);
    let slabs = |count: u64| {
        let needs = pools().enumerate().map(|(place, (group, pool))| {
            let with_null = pages(group, count).saturating_add(u64::from(place == last));
            with_null.div_ceil(u64::from(pool.pages_per_slab))
        });
        needs.collect::<Vec<_>>()
    };
    let fits = |count: u64| {
        let needed = slabs(count).iter().map(|&n| u128::from(n)).sum::<u128>();
        needed <= u128::from(runs_slabs(carve))
    };
    // No pool holds more than every slab full of its pages.
    let most = pools().map(|(group, pool)| {
        let pages = u64::from(carve.slabs).saturating_mul(u64::from(pool.pages_per_slab));
        pages.max(group.tokens_of(pages))
    });
    let (mut low, mut high) = (0, most.max().unwrap_or(0));
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) {
            low = middle
        } else {
            high = middle - 1
        }
    }
    slabs(low)
}

/// Pages that hold `tokens` tokens.
fn pages_of(group: &LayerGroup, tokens: u64) -> u64 {
    tokens.div_ceil(u64::from(group.tokens_per_page()))
}

/// Upper bounds on a carve, whatever the device has free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// Tokens resident at most, over all sequences.
    pub tokens: Option<u64>,
    /// Sequences resident at most.
    pub requests: Option<u32>,
    /// Bytes of KV at most.
    pub bytes: Option<u64>,
}

impl Caps {
    /// The bytes that the caps leave of `carve_bytes`: no more than whole slabs for what may ever be resident, whatever the
    /// lengths of the sequences.
    #[must_use]
    pub fn apply(&self, geometry: &Geometry, layout: &SlabLayout, carve_bytes: u64) -> u64 {
        let capped = carve_bytes.min(self.bytes.unwrap_or(u64::MAX));
        let Some(slabs) = self.slabs(geometry, layout) else {
            return capped;
        };
        let bytes = slabs.saturating_mul(u128::from(layout.slab_bytes));
        capped.min(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// Slabs that the capped tokens and sequences can fill; `None` when some pool has no bound.
    fn slabs(&self, geometry: &Geometry, layout: &SlabLayout) -> Option<u128> {
        let pools = geometry.groups.iter().zip(&layout.pools);
        pools
            .map(|(group, pool)| {
                // Each sequence may leave one page partly used.
                let by_tokens = self.tokens.map(|tokens| {
                    let sequences = u64::from(self.requests.unwrap_or(1)).min(tokens);
                    match group.kind {
                        AttentionKind::Recurrent { .. } => {
                            u64::from(self.requests.unwrap_or(u32::MAX))
                        }
                        _ => pages_of(group, tokens).saturating_add(sequences.saturating_sub(1)),
                    }
                });
                let live = group.kind.max_live_pages(group.tokens_per_page());
                let by_requests = live.zip(self.requests);
                let by_requests = by_requests.map(|(live, n)| u64::from(live) * u64::from(n));
                let pages = match (by_tokens, by_requests) {
                    (Some(tokens), Some(requests)) => tokens.min(requests),
                    (bound, other) => bound.or(other)?,
                };
                let with_null = pages.saturating_add(1);
                Some(u128::from(
                    with_null.div_ceil(u64::from(pool.pages_per_slab)),
                ))
            })
            .sum()
    }
}

/// The carve that all tensor-parallel ranks of a stage can make: the least of what they measured.
///
/// # Errors
/// [`PolicyError::NoRanks`] without a measurement; [`PolicyError::RanksDiverge`] when the largest exceeds the least by more
/// than `tolerance` of itself, which means that something runs on one device and not on the others.
pub fn agree(measured_bytes: &[u64], tolerance: f64) -> Result<u64, PolicyError> {
    let (Some(&least), Some(&most)) = (measured_bytes.iter().min(), measured_bytes.iter().max())
    else {
        return Err(PolicyError::NoRanks);
    };
    if (most - least) as f64 > most as f64 * tolerance {
        let rank = measured_bytes.iter().position(|&bytes| bytes == least);
        return Err(PolicyError::RanksDiverge {
            rank: rank.unwrap_or(0),
            least,
            most,
        });
    }
    Ok(least)
}

/// Sequences of `tokens` tokens that are resident at once on every pipeline stage.
#[must_use]
pub fn stages_max_requests(stages: &[(&Geometry, &Carve)], tokens: u32) -> u64 {
    let stages = stages.iter();
    stages
        .map(|(geometry, carve)| carve.max_requests(geometry, tokens))
        .min()
        .unwrap_or(0)
}

/// Why a policy cannot be followed.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// Not a policy.
    #[error(
        "`{text}` is no split policy; write dynamic, ratio(0.8), requests(256) or workload(1024,256)"
    )]
    Unknown {
        /// What was given.
        text: String,
    },
    /// Ratio out of range.
    #[error(
        "a ratio of {ratio} window tokens to full tokens is not possible; choose one above 0 and at most 1"
    )]
    Ratio {
        /// What was given.
        ratio: f64,
    },
    /// A policy for nobody.
    #[error("{policy} plans for no request or no token; give at least one")]
    Nothing {
        /// The policy.
        policy: String,
    },
    /// Some pool would hold no sequence.
    #[error(
        "{policy} leaves a pool without room for one sequence in {bytes} bytes of KV; use the dynamic policy or more memory"
    )]
    TooLittle {
        /// The policy.
        policy: String,
        /// Bytes of the carve.
        bytes: u64,
    },
    /// No measurement.
    #[error("no rank has measured its memory; give one measurement a rank")]
    NoRanks,
    /// One rank has much less memory than another.
    #[error(
        "rank {rank} has {least} bytes left for KV and another {most}; free what else runs on its device, or allow for the difference"
    )]
    RanksDiverge {
        /// The rank with the least.
        rank: usize,
        /// Its bytes.
        least: u64,
        /// The most that a rank has.
        most: u64,
    },
}
