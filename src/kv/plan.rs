//! `neap plan`: what a configuration gets out of so many bytes of KV, with no weights and no device.

use std::fmt;

use serde::Serialize;
use serde_json::Value;
use thiserror::Error;

use super::carve::{CapacityReport, Carve, CarveError, CarveReport};
use super::config::{self, ConfigError};
use super::geometry::{
    AttentionKind, Geometry, GeometryError, KvDtype, LayerGroup, PageSize, Shard,
};
use super::map::MemoryMap;
use super::peers::{self, PeerCapacity};
use super::policy::{Caps, FixedPool, Policy};
use super::slab::{SlabError, solve_slab};
use crate::arena::Grouped;

/// Lengths reported unless others are asked for; the model's longest is added, longer ones are left out.
pub const DEFAULT_LENGTHS: [u32; 3] = [1_024, 8_192, 32_768];

/// Split policies compared unless others are asked for.
pub const DEFAULT_POLICIES: [Policy; 3] =
    [Policy::Dynamic, Policy::Ratio(0.8), Policy::Requests(256)];

/// What to plan for.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanOptions {
    /// Bytes for KV, null pages and tail included. Nothing is subtracted from it: for a whole device, pass what is
    /// left after weights, workspace, graphs and headroom.
    pub kv_bytes: u64,
    /// Tokens per page.
    pub page_size: PageSize,
    /// Element type of K and V.
    pub dtype: KvDtype,
    /// Element types of single layer groups, by name.
    pub group_dtypes: Vec<(String, KvDtype)>,
    /// Lengths to report, in tokens; none for [`DEFAULT_LENGTHS`].
    pub lengths: Vec<u32>,
    /// The part of the model that the device holds.
    pub shard: Shard,
    /// A draft model's parsed `config.json`.
    pub draft: Option<Value>,
    /// Split policies to compare; none for [`DEFAULT_POLICIES`].
    pub policies: Vec<Policy>,
    /// Upper bounds on what may be resident.
    pub caps: Caps,
}

impl Default for PlanOptions {
    /// Pages of 16 tokens in bf16 of the whole model, and no memory.
    fn default() -> Self {
        Self {
            kv_bytes: 0,
            page_size: PageSize::DEFAULT,
            dtype: KvDtype::Bf16,
            group_dtypes: Vec::new(),
            lengths: Vec::new(),
            shard: Shard::WHOLE,
            draft: None,
            policies: Vec::new(),
            caps: Caps::default(),
        }
    }
}

/// What one split policy makes of the carve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PolicyReport {
    /// The policy, as it is written.
    pub policy: String,
    /// Slabs of each pool under a static policy; empty for `dynamic`.
    pub pools: Vec<FixedPool>,
    /// Sequences resident at once, by length; empty when the policy cannot be followed.
    pub capacity: Vec<CapacityReport>,
    /// Why the policy cannot be followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// The outcome of [`plan`]. Its text is the table of `neap plan`; it serializes to the JSON: the fields of its `report`, then
/// `policies` and `servers`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// The layer groups.
    #[serde(skip)]
    pub geometry: Geometry,
    /// The carve.
    #[serde(skip)]
    pub carve: Carve,
    /// Slab, pools, tail and capacity.
    #[serde(flatten)]
    pub report: CarveReport,
    /// Capacity by split policy.
    pub policies: Vec<PolicyReport>,
    /// Models of other servers' rules for the same bytes; `None` when they do not cover the model's layers.
    pub servers: Option<Vec<PeerCapacity>>,
    /// The length that the pools of `report` are split for.
    #[serde(skip)]
    pub reference_tokens: u32,
}

/// Sizes KV for a parsed `config.json`.
///
/// # Errors
/// [`PlanError`], a sentence naming the field or value at fault.
pub fn plan(config: &Value, options: &PlanOptions) -> Result<Plan, PlanError> {
    let (page_size, dtype) = (options.page_size, options.dtype);
    let mut geometry = Geometry::from_config_sharded(config, page_size, dtype, &options.shard)?;
    if let Some(draft) = &options.draft {
        let shard = Shard {
            layers: None,
            ..options.shard.clone()
        };
        let draft = Geometry::from_config_sharded(draft, page_size, dtype, &shard)?;
        geometry = geometry.with_draft(&draft)?;
    }
    for (group, dtype) in &options.group_dtypes {
        geometry = geometry.with_group_dtype(group, *dtype)?;
    }
    let layout = solve_slab(&geometry, options.kv_bytes)?;
    let kv_bytes = options.caps.apply(&geometry, &layout, options.kv_bytes);
    let carve = Carve::new(&geometry, &layout, kv_bytes)?;
    let longest = geometry.max_position_tokens;
    let lengths = if options.lengths.is_empty() {
        let shorter = DEFAULT_LENGTHS
            .into_iter()
            .filter(|&length| longest.is_none_or(|longest| length < longest));
        shorter.chain(longest).collect()
    } else {
        options.lengths.clone()
    };
    let reference_tokens = longest.or(lengths.iter().copied().max()).unwrap_or(1);
    let report = carve.report(&geometry, reference_tokens, &lengths);
    let policies = if options.policies.is_empty() {
        &DEFAULT_POLICIES[..]
    } else {
        &options.policies
    };
    let policies = policies
        .iter()
        .map(|&policy| policy_report(policy, &geometry, &carve, &lengths))
        .collect();
    let servers = peers::compare(&geometry, config::model_type(config), kv_bytes, &lengths);
    Ok(Plan {
        geometry,
        carve,
        report,
        policies,
        servers,
        reference_tokens,
    })
}

fn policy_report(
    policy: Policy,
    geometry: &Geometry,
    carve: &Carve,
    lengths: &[u32],
) -> PolicyReport {
    let report = |pools, capacity, refused| PolicyReport {
        policy: policy.to_string(),
        pools,
        capacity,
        refused,
    };
    let split = match policy.split(geometry, carve) {
        Ok(split) => split,
        Err(error) => return report(Vec::new(), Vec::new(), Some(error.to_string())),
    };
    let capacity = lengths.iter().map(|&length| {
        let requests = match &split {
            Some(split) => split.max_requests(geometry, length),
            None => carve.max_requests(geometry, length),
        };
        CapacityReport {
            length,
            requests,
            tokens: requests.saturating_mul(u64::from(length)),
        }
    });
    let capacity = capacity.collect();
    report(
        split.map_or_else(Vec::new, |split| split.pools),
        capacity,
        None,
    )
}

impl Plan {
    /// The memory of a device of `total_bytes` before and after the carve; what exceeds the carve is held by others.
    #[must_use]
    pub fn map(&self, title: impl Into<String>, total_bytes: u64) -> MemoryMap {
        let taken = total_bytes.saturating_sub(self.carve.carved_bytes);
        MemoryMap::of_carve(
            title,
            &self.geometry,
            &self.carve,
            self.reference_tokens,
            taken,
        )
    }
}

/// One line on a layer group.
fn describe(group: &LayerGroup) -> String {
    let (name, layers, dtype) = (&group.name, group.layers.len(), group.dtype);
    let index = match group.kind.index_dim() {
        0 => String::new(),
        dim => format!(", index keys of {dim}"),
    };
    let kind = match group.kind {
        AttentionKind::Sliding { window } => format!(", window {window}"),
        AttentionKind::Chunked { chunk } => format!(", chunks of {chunk}"),
        AttentionKind::Compressed { ratio, .. } => format!(", one row for {ratio} tokens"),
        AttentionKind::Recurrent { .. } => {
            let bytes = Grouped(group.page_bytes());
            return format!("{name}: {layers} layers, a state of {bytes} bytes a sequence");
        }
        _ => String::new(),
    };
    let rows = if group.v_head_dim == 0 {
        format!("rows of {}", group.k_head_dim)
    } else {
        format!(
            "{} KV heads of {} + {}",
            group.num_kv_heads, group.k_head_dim, group.v_head_dim
        )
    };
    let tokens = group.tokens_per_page();
    format!("{name}: {layers} layers{kind}, {rows} {dtype}{index}, pages of {tokens} tokens")
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for group in &self.geometry.groups {
            writeln!(f, "{}", describe(group))?;
        }
        if !self.geometry.shared_layers.is_empty() {
            let shared = self.geometry.shared_layers.len();
            writeln!(
                f,
                "{shared} layers read the KV of an earlier one and keep none"
            )?;
        }
        self.report.fmt(f)?;
        self.write_policies(f)?;
        self.write_servers(f)
    }
}

impl Plan {
    fn write_policies(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nrequests at once, by policy of the split")?;
        write!(f, "{:>12}", "length")?;
        for report in &self.policies {
            write!(f, " {:>18}", report.policy)?;
        }
        writeln!(f)?;
        for (place, row) in self.report.capacity.iter().enumerate() {
            write!(f, "{:>12}", Grouped(u64::from(row.length)))?;
            for report in &self.policies {
                match report.capacity.get(place) {
                    Some(row) => write!(f, " {:>18}", Grouped(row.requests))?,
                    None => write!(f, " {:>18}", "-")?,
                }
            }
            writeln!(f)?;
        }
        for reason in self
            .policies
            .iter()
            .filter_map(|report| report.refused.as_ref())
        {
            writeln!(f, "{reason}")?;
        }
        Ok(())
    }

    fn write_servers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(servers) = &self.servers else {
            return writeln!(
                f,
                "\nother servers' rules are modelled for full and sliding layers only"
            );
        };
        writeln!(
            f,
            "\nrequests at once in the same bytes, by models of the rules of SGLang 0.5.23, vLLM 0.33.0 and TensorRT-LLM"
        )?;
        let heads = [
            "neap",
            "SGLang",
            "vLLM logs",
            "vLLM runs",
            "TensorRT v1",
            "TensorRT v2",
        ];
        write!(f, "{:>12}", "length")?;
        for head in heads {
            write!(f, " {head:>12}")?;
        }
        writeln!(f)?;
        for row in servers {
            let ours = self
                .report
                .capacity
                .iter()
                .find(|own| own.length == row.length);
            let columns = [
                ours.map_or(0, |own| own.requests),
                row.sglang,
                row.vllm_logged,
                row.vllm,
                row.tensorrt_llm_v1,
                row.tensorrt_llm_v2,
            ];
            write!(f, "{:>12}", Grouped(u64::from(row.length)))?;
            for requests in columns {
                write!(f, " {:>12}", Grouped(requests))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The configuration gives no geometry.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The groups cannot be changed or joined as asked.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// There is no slab for it.
    #[error(transparent)]
    Slab(#[from] SlabError),
    /// The bytes make no carve.
    #[error(transparent)]
    Carve(#[from] CarveError),
}
