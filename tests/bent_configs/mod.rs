//! Configurations of real models bent out of shape, and plans for them with options of any value: an answer or one sentence.

use std::sync::LazyLock;

use neap::kv::{Caps, KvDtype, KvSequences, PageSize, Phase, PlanOptions, Policy, Shard, plan};
use serde_json::{Map, Value, json};

#[path = "../fuzzing/mod.rs"]
pub mod fuzzing;

use fuzzing::{Bytes, Choices};

/// Five real models, and the defaults of Hugging Face's configuration classes.
pub static CONFIGS: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let real = [
        include_str!("../data/configs/gemma-3-27b-it.json"),
        include_str!("../data/configs/gpt-oss-20b.json"),
        include_str!("../data/configs/gpt-oss-120b.json"),
        include_str!("../data/configs/llama-3.1-8b.json"),
        include_str!("../data/configs/mimo-v2-flash.json"),
    ];
    let parse = |text| serde_json::from_str::<Value>(text).expect("well-formed");
    let classes = parse(include_str!("../data/hf-config-defaults.json"));
    let classes = classes["classes"].as_object().expect("classes by name");
    let class = |(name, class): (&String, &Value)| {
        let mut fields = class["fields"].clone();
        fields["model_type"] = json!(name);
        fields
    };
    real.into_iter()
        .map(parse)
        .chain(classes.iter().map(class))
        .collect()
});

/// Names of all fields in them.
static FIELDS: LazyLock<Vec<String>> = LazyLock::new(|| {
    fn collect(value: &Value, names: &mut std::collections::BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                names.extend(fields.keys().cloned());
                fields.values().for_each(|value| collect(value, names));
            }
            Value::Array(values) => values.iter().for_each(|value| collect(value, names)),
            _ => {}
        }
    }
    let mut names = std::collections::BTreeSet::new();
    CONFIGS
        .iter()
        .for_each(|config| collect(config, &mut names));
    names.into_iter().collect()
});

const WORDS: [&str; 12] = [
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "indexed_attention",
    "minimax_m3_sparse",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
    "linear_attention",
    "attention",
    "",
    "\n",
    "LLSLLS",
];

/// Plans for the configuration and the options that `bytes` spell; returns 1 for a plan and 0 for a refusal.
pub fn run_bytes(bytes: &[u8]) -> u64 {
    spelled(&mut Bytes(bytes)).unwrap_or(0)
}

fn spelled(choices: &mut impl Choices) -> Option<u64> {
    let mut config = any_config(choices)?;
    for _ in 0..choices.below(6)? {
        bend(&mut config, choices, 0)?;
    }
    if choices.below(8)? == 0 {
        config = json!({"text_config": config});
    }
    let options = options(choices)?;
    Some(u64::from(answered(&config, &options)))
}

fn any_config(choices: &mut impl Choices) -> Option<Value> {
    let place = choices.below(CONFIGS.len() as u32)?;
    Some(CONFIGS[place as usize].clone())
}

/// Asks for a plan; true for one, false for a refusal in one sentence.
pub fn answered(config: &Value, options: &PlanOptions) -> bool {
    let plan = match plan(config, options) {
        Ok(plan) => plan,
        Err(error) => {
            let sentence = error.to_string();
            assert!(
                !sentence.is_empty() && !sentence.contains('\n'),
                "{sentence:?}"
            );
            return false;
        }
    };
    let kv_bytes = plan.carve.slab_total_bytes() + plan.report.tail_bytes;
    assert!(kv_bytes <= options.kv_bytes, "more than there is");
    assert!(!plan.to_string().is_empty());
    serde_json::to_string(&plan).expect("a plan is JSON");
    let drawing = plan.map("a plan", options.kv_bytes).to_svg();
    assert!(
        drawing.starts_with("<svg") && !drawing.contains("NaN"),
        "{drawing}"
    );
    // Its first slabs can be used.
    let slabs = plan.carve.slabs.min(64);
    let layout = plan.carve.layout().clone();
    if let Ok(mut kv) = KvSequences::new(plan.geometry, &layout, slabs, 2)
        && let Ok(id) = kv.create(9)
    {
        let mut updates = Vec::new();
        kv.append(id, 8, Phase::Prefill, &mut updates)
            .expect("the only sequence");
        let step = kv.begin_step();
        kv.complete_step(step).expect("a launched step");
        kv.append(id, 1, Phase::Decode, &mut updates)
            .expect("the only sequence");
        kv.allocator().audit().expect("a sound allocator");
    }
    true
}

/// Changes one value somewhere inside.
fn bend(value: &mut Value, choices: &mut impl Choices, depth: u32) -> Option<()> {
    let kind = choices.below(16)?;
    match value {
        Value::Object(fields) if depth < 8 => match kind {
            0 => {
                let name = nth_key(fields, choices)?;
                fields.remove(&name);
            }
            1..=3 => {
                let name = FIELDS[choices.below(FIELDS.len() as u32)? as usize].clone();
                fields.insert(name, any_value(choices, depth)?);
            }
            _ => {
                let name = nth_key(fields, choices)?;
                if let Some(inner) = fields.get_mut(&name) {
                    bend(inner, choices, depth + 1)?;
                }
            }
        },
        Value::Array(values) if depth < 8 && !values.is_empty() => {
            let place = choices.below(values.len() as u32)? as usize;
            match kind {
                0 => drop(values.remove(place)),
                1 => values.truncate(place),
                2 => values.extend(values.clone()),
                3 => *value = any_value(choices, depth)?,
                _ => bend(&mut values[place], choices, depth + 1)?,
            }
        }
        _ => *value = any_value(choices, depth)?,
    }
    Some(())
}

fn nth_key(fields: &Map<String, Value>, choices: &mut impl Choices) -> Option<String> {
    let place = choices.below(fields.len().max(1) as u32)?;
    Some(
        fields
            .keys()
            .nth(place as usize)
            .cloned()
            .unwrap_or_default(),
    )
}

fn any_value(choices: &mut impl Choices, depth: u32) -> Option<Value> {
    Some(match choices.below(16)? {
        0 => Value::Null,
        1 => json!(choices.below(2)? == 1),
        2 => json!(WORDS[choices.below(WORDS.len() as u32)? as usize]),
        3 => json!(-i64::from(choices.below(300)?)),
        4 => json!(i64::MIN),
        5 => json!(f64::from(choices.below(1_000)?) / 7.0),
        6 => json!(10_f64.powi(choices.below(616)? as i32 - 308)),
        7 if depth < 4 => {
            let length = choices.below(20)?;
            let values = (0..length).map(|_| any_value(choices, depth + 1));
            Value::Array(values.collect::<Option<_>>()?)
        }
        8 if depth < 4 => {
            let name = FIELDS[choices.below(FIELDS.len() as u32)? as usize].clone();
            json!({name: any_value(choices, depth + 1)?})
        }
        9..=11 => json!(any_size(choices)?),
        _ => json!(choices.below(300)?),
    })
}

/// A power of two up to 2^63, or one more or less.
fn any_size(choices: &mut impl Choices) -> Option<u64> {
    let power = 1_u64 << choices.below(64)?;
    Some(match choices.below(4)? {
        0 => power - 1,
        1 => power.wrapping_add(1),
        2 => u64::MAX - power,
        _ => power,
    })
}

fn any_u32(choices: &mut impl Choices) -> Option<u32> {
    Some(any_size(choices)? as u32)
}

fn options(choices: &mut impl Choices) -> Option<PlanOptions> {
    let dtypes = [
        KvDtype::Bf16,
        KvDtype::Fp8E4m3,
        KvDtype::Int8,
        KvDtype::Fp4E2m1,
        KvDtype::Mxfp8,
    ];
    let mut options = PlanOptions {
        kv_bytes: match choices.below(2)? {
            0 => 40_000_000_000,
            _ => any_size(choices)?,
        },
        dtype: dtypes[choices.below(5)? as usize],
        ..PlanOptions::default()
    };
    if let Ok(page_size) = PageSize::new(any_size(choices)?) {
        options.page_size = page_size;
    }
    for _ in 0..choices.below(3)? {
        options.lengths.push(any_u32(choices)?);
    }
    if choices.below(4)? == 0 {
        let layers = choices.below(2)? == 0;
        options.shard = Shard {
            tensor_parallel: any_u32(choices)?,
            layers: if layers {
                Some(any_u32(choices)?..any_u32(choices)?)
            } else {
                None
            },
        };
    }
    if choices.below(8)? == 0 {
        let mut draft = any_config(choices)?;
        bend(&mut draft, choices, 0)?;
        options.draft = Some(draft);
    }
    for _ in 0..choices.below(3)? {
        options.policies.push(match choices.below(4)? {
            0 => Policy::Dynamic,
            1 => Policy::Ratio(f64::from_bits(any_size(choices)?)),
            2 => Policy::Requests(any_u32(choices)?),
            _ => Policy::Workload {
                prompt_tokens: any_u32(choices)?,
                output_tokens: any_u32(choices)?,
            },
        });
    }
    if choices.below(4)? == 0 {
        options.caps = Caps {
            tokens: Some(any_size(choices)?),
            requests: Some(any_u32(choices)?),
            bytes: Some(any_size(choices)?),
        };
    }
    Some(options)
}
