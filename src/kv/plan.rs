//! `neap plan`: what a configuration gets out of so many bytes of KV, with no weights and no device.

use std::fmt;

use serde_json::Value;
use thiserror::Error;

use super::carve::{Carve, CarveError, CarveReport};
use super::config::ConfigError;
use super::geometry::{Geometry, KvDtype, PageSize};
use super::slab::{SlabError, solve_slab};

/// Lengths reported unless others are asked for; the model's longest is added, longer ones are left out.
pub const DEFAULT_LENGTHS: [u32; 3] = [1_024, 8_192, 32_768];

/// What to plan for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// Bytes for KV, null pages and tail included. Nothing is subtracted from it: for a whole device, pass what is
    /// left after weights, workspace, graphs and headroom.
    pub kv_bytes: u64,
    /// Tokens per page.
    pub page_size: PageSize,
    /// Element type of K and V.
    pub dtype: KvDtype,
    /// Lengths to report, in tokens; none for [`DEFAULT_LENGTHS`].
    pub lengths: Vec<u32>,
}

/// The outcome of [`plan`]. Its text is the table of `neap plan`, its `report` the JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The layer groups.
    pub geometry: Geometry,
    /// The carve.
    pub carve: Carve,
    /// Slab, pools, tail and capacity; serializes to the JSON of `neap plan`.
    pub report: CarveReport,
}

/// Sizes KV for a parsed `config.json`.
///
/// # Errors
/// [`PlanError`], a sentence naming the field or value at fault.
pub fn plan(config: &Value, options: &PlanOptions) -> Result<Plan, PlanError> {
    let geometry = Geometry::from_config(config, options.page_size, options.dtype)?;
    let layout = solve_slab(&geometry, options.kv_bytes)?;
    let carve = Carve::new(&geometry, &layout, options.kv_bytes)?;
    let longest = geometry.max_position_tokens;
    let lengths = if options.lengths.is_empty() {
        let shorter = DEFAULT_LENGTHS
            .into_iter()
            .filter(|&length| longest.is_none_or(|longest| length < longest));
        shorter.chain(longest).collect()
    } else {
        options.lengths.clone()
    };
    let reference = longest.or(lengths.iter().copied().max()).unwrap_or(1);
    let report = carve.report(&geometry, reference, &lengths);
    Ok(Plan {
        geometry,
        carve,
        report,
    })
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for group in &self.geometry.groups {
            let window = group
                .kind
                .window()
                .map_or_else(String::new, |window| format!(", window {window}"));
            writeln!(
                f,
                "{}: {} layers{window}, {} KV heads of {} + {} {}, pages of {} tokens",
                group.name,
                group.layers.len(),
                group.num_kv_heads,
                group.k_head_dim,
                group.v_head_dim,
                group.dtype,
                self.geometry.page_size.tokens()
            )?;
        }
        self.report.fmt(f)
    }
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The configuration gives no geometry.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no slab for it.
    #[error(transparent)]
    Slab(#[from] SlabError),
    /// The bytes make no carve.
    #[error(transparent)]
    Carve(#[from] CarveError),
}
