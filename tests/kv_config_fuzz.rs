//! Configurations and plan options of any value are answered, with a plan or with one sentence.

mod bent_configs;

use bent_configs::fuzzing::{Choices, Random, run_inputs};
use bent_configs::{CONFIGS, answered, run_bytes};
use neap::kv::PlanOptions;
use serde_json::{Value, json};

#[test]
fn bent_configurations_are_answered() {
    let mut random = Random(1);
    let mut below = |bound| random.below(bound).unwrap();
    let mut plans = 0;
    for _ in 0..5_000 {
        let length = 1 + below(400);
        let bytes = (0..length).map(|_| below(256) as u8).collect::<Vec<_>>();
        plans += run_bytes(&bytes);
    }
    // Most bytes spell something that still is a model.
    assert!((500..5_000).contains(&plans), "{plans} plans");
}

/// Every number of every configuration at every power of two, its neighbours and below zero.
#[test]
fn sizes_up_to_2_to_the_63_are_answered() {
    let options = PlanOptions {
        kv_bytes: 40_000_000_000,
        lengths: vec![1_024, u32::MAX],
        ..PlanOptions::default()
    };
    let mut refused = 0;
    for config in CONFIGS.iter() {
        let mut paths = Vec::new();
        numbers(config, &mut String::new(), &mut paths);
        assert!(!paths.is_empty());
        for path in &paths {
            for bit in [0, 1, 16, 31, 32, 53, 62, 63] {
                for size in [(1_u64 << bit) - 1, 1 << bit] {
                    let mut config = config.clone();
                    *config.pointer_mut(path).unwrap() = json!(size);
                    refused += u32::from(!answered(&config, &options));
                }
            }
            let mut config = config.clone();
            *config.pointer_mut(path).unwrap() = json!(-1);
            answered(&config, &options);
        }
    }
    assert!(refused > 1_000, "{refused} refused");
}

/// JSON pointers to the numbers in `value`, of an array the first two.
fn numbers(value: &Value, path: &mut String, paths: &mut Vec<String>) {
    let length = path.len();
    let mut inside = |name: &str, value: &Value| {
        path.push('/');
        path.push_str(&name.replace('~', "~0").replace('/', "~1"));
        numbers(value, path, paths);
        path.truncate(length);
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| inside(name, value)),
        Value::Array(values) => {
            for (place, value) in values.iter().take(2).enumerate() {
                inside(&place.to_string(), value);
            }
        }
        Value::Number(_) => paths.push(path.clone()),
        _ => {}
    }
}

/// What the fuzz target does: `cargo test --release --test kv_config_fuzz -- --ignored a_minute`.
#[test]
#[ignore = "takes a minute"]
fn a_minute_of_configurations() {
    assert!(run_inputs(600, run_bytes) > 1_000);
}
