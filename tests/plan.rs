//! `neap plan` against the byte-exact ideal: the five geometries of `tests/data/configs` at the lengths and KV sizes of
//! `tests/data/peer_sizing.out`, whose IDEAL column is read from the file itself.

use std::path::PathBuf;

use neap::kv::{
    AttentionKind, CarveReport, Geometry, KvDtype, PageSize, Plan, PlanError, PlanOptions, plan,
};
use serde_json::{Value, json};

const CONFIGS: [(&str, &str); 5] = [
    ("gpt-oss-20b", "gpt-oss-20b.json"),
    ("gpt-oss-120b", "gpt-oss-120b.json"),
    ("Gemma-3-27B", "gemma-3-27b-it.json"),
    ("MiMo-V2-Flash", "mimo-v2-flash.json"),
    ("Llama-3.1-8B", "llama-3.1-8b.json"),
];

fn data(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn config(model: &str) -> Value {
    let file = CONFIGS
        .iter()
        .find(|(name, _)| *name == model)
        .expect("a known model")
        .1;
    serde_json::from_str(&data(&format!("configs/{file}"))).unwrap()
}

fn options(kv_bytes: u64, lengths: &[u32]) -> PlanOptions {
    PlanOptions {
        kv_bytes,
        page_size: PageSize::new(16).unwrap(),
        dtype: KvDtype::Bf16,
        lengths: lengths.to_vec(),
        ..PlanOptions::default()
    }
}

fn planned(model: &str, kv_bytes: u64, lengths: &[u32]) -> Plan {
    plan(&config(model), &options(kv_bytes, lengths)).unwrap()
}

/// `(model, KV bytes, length, IDEAL requests)` of each row of the peers' table.
fn ideal_rows() -> Vec<(String, u64, u32, u64)> {
    let table = data("peer_sizing.out");
    let rows = table.lines().filter_map(|line| {
        let (head, rest) = line.split_once('|')?;
        let [model, gigabytes, length] = head
            .split_whitespace()
            .collect::<Vec<_>>()
            .try_into()
            .ok()?;
        let ideal = rest.split_whitespace().next()?;
        Some((
            model.to_owned(),
            gigabytes.parse::<u64>().ok()? * 1_000_000_000,
            length.parse().ok()?,
            ideal.parse().ok()?,
        ))
    });
    rows.collect()
}

#[test]
fn at_least_the_ideal_minus_one_in_all_sixty_rows() {
    let rows = ideal_rows();
    assert_eq!(
        rows.len(),
        60,
        "the table has five models, three sizes and four lengths"
    );
    let (mut worst_share, mut short) = (f64::INFINITY, 0);
    for (model, kv_bytes, length, ideal) in rows {
        let report = planned(&model, kv_bytes, &[length]).report;
        let requests = report.capacity[0].requests;
        assert!(
            requests + 1 >= ideal,
            "{model}, {kv_bytes} bytes, {length} tokens: {requests} of {ideal} requests"
        );
        assert!(
            requests <= ideal,
            "{model}, {kv_bytes} bytes, {length} tokens: {requests} exceed the bytes there are"
        );
        assert_eq!(report.capacity[0].tokens, requests * u64::from(length));
        short += u32::from(requests < ideal);
        if ideal > 0 {
            worst_share = worst_share.min(requests as f64 / ideal as f64);
        }
    }
    println!(
        "rows one request below the ideal: {short} of 60; least share of the ideal: {worst_share:.4}"
    );
}

#[test]
fn the_five_configurations_have_their_published_geometry() {
    /// Bytes a token and layer in bf16, layers, and window: tests/data/configs/README.md.
    type Group = (u64, usize, Option<u32>);
    let expected: [(&str, &[Group]); 5] = [
        ("gpt-oss-20b", &[(2_048, 12, None), (2_048, 12, Some(128))]),
        ("gpt-oss-120b", &[(2_048, 18, None), (2_048, 18, Some(128))]),
        (
            "Gemma-3-27B",
            &[(8_192, 10, None), (8_192, 52, Some(1_024))],
        ),
        ("MiMo-V2-Flash", &[(2_560, 9, None), (5_120, 39, Some(129))]),
        ("Llama-3.1-8B", &[(4_096, 32, None)]),
    ];
    for (model, groups) in expected {
        let read = Geometry::from_config(&config(model), PageSize::new(16).unwrap(), KvDtype::Bf16)
            .unwrap();
        let found = read
            .groups
            .iter()
            .map(|g| (g.layer_page_bytes() / 16, g.layers.len(), g.kind.window()))
            .collect::<Vec<_>>();
        assert_eq!(found, groups, "{model}");
        assert_eq!(read.groups[0].kind, AttentionKind::Full);
    }
}

#[test]
fn the_json_has_exactly_the_documented_fields() {
    let plan = planned("Gemma-3-27B", 100_000_000_000, &[1_024, 131_072]);
    let json = serde_json::to_value(&plan.report).unwrap();
    let keys = |value: &Value| {
        value
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(
        keys(&json),
        ["capacity", "pools", "slab_bytes", "tail_bytes"]
    );
    assert_eq!(
        keys(&json["pools"][0]),
        ["group", "layers", "page_bytes", "pages", "tokens"]
    );
    assert_eq!(keys(&json["capacity"][0]), ["length", "requests", "tokens"]);
    assert_eq!(
        (&json["pools"][0]["group"], &json["pools"][1]["group"]),
        (&json!("full"), &json!("swa"))
    );
    assert_eq!(
        (&json["pools"][0]["layers"], &json["pools"][1]["layers"]),
        (&json!(10), &json!(52))
    );
    assert_eq!(
        serde_json::from_value::<CarveReport>(json).unwrap(),
        plan.report
    );
}

#[test]
fn every_byte_is_in_a_pool_a_null_page_or_the_tail() {
    for (model, _) in CONFIGS {
        for kv_bytes in [
            3_000_000_000,
            10_000_000_000,
            40_000_000_000,
            100_000_000_000,
            150_754_820_096,
        ] {
            let report = planned(model, kv_bytes, &[]).report;
            let pools = report
                .pools
                .iter()
                .map(|pool| (pool.pages + 1) * pool.page_bytes)
                .sum::<u64>();
            assert_eq!(
                pools + report.tail_bytes,
                kv_bytes,
                "{model}, {kv_bytes} bytes"
            );
            assert!(report.tail_bytes < report.slab_bytes);
            assert!(
                report
                    .pools
                    .iter()
                    .all(|pool| pool.tokens == pool.pages * 16)
            );
        }
    }
}

#[test]
fn capacity_falls_with_length_and_grows_with_memory() {
    for (model, _) in CONFIGS {
        let lengths = [1, 16, 17, 128, 1_000, 1_024, 8_192, 32_768, 131_072];
        let requests = |kv_bytes| {
            let report = planned(model, kv_bytes, &lengths).report;
            report
                .capacity
                .iter()
                .map(|row| row.requests)
                .collect::<Vec<_>>()
        };
        let (small, large) = (requests(10_000_000_000), requests(40_000_000_000));
        assert!(small.is_sorted_by(|a, b| a >= b), "{model}: {small:?}");
        // A larger carve may have larger slabs, which cost less than 1/1,000 of it.
        let grows = |(small, large): (&u64, &u64)| small * 4 <= large + large / 1_000 + 4;
        assert!(
            small.iter().zip(&large).all(grows),
            "{model}: {small:?} {large:?}"
        );
    }
}

#[test]
fn the_table_names_groups_pools_and_lengths() {
    let text = planned("gpt-oss-20b", 40_000_000_000, &[8_192]).to_string();
    for expected in [
        "full: 12 layers, 8 KV heads of 64 + 64 bf16",
        "swa: 12 layers, window 128",
        "slab ",
        "8,192",
        "195",
    ] {
        assert!(text.contains(expected), "no `{expected}` in:\n{text}");
    }
    let lines = text.lines().skip(3).map(str::len).collect::<Vec<_>>();
    assert_eq!(
        (lines[0], lines[3]),
        (lines[1], lines[4]),
        "columns are aligned:\n{text}"
    );
}

#[test]
fn absurd_requests_are_sentences() {
    let cases = [
        (
            json!({"model_type": "llama", "hidden_size": 1_u64 << 63}),
            1_u64 << 30,
            "hidden_size",
        ),
        (
            json!({"model_type": "llama", "num_hidden_layers": 65_536, "head_dim": 1 << 20, "num_key_value_heads": 1}),
            u64::MAX,
            "1 TiB",
        ),
        (
            json!({"model_type": "llama", "num_hidden_layers": 65_536, "head_dim": 1 << 20, "num_key_value_heads": 1 << 20}),
            1,
            "4 GiB",
        ),
        (json!({"model_type": "llama"}), 0, "0 bytes"),
        (json!({"model_type": "llama"}), 1 << 20, "1048576 bytes"),
        (json!({"model_type": "llama"}), 1 << 63, "1 TiB"),
        (json!({"model_type": "llama"}), u64::MAX, "1 TiB"),
        (json!({"layer_types": [null]}), 1 << 30, "num_hidden_layers"),
        (json!("llama"), 1 << 30, "not a JSON object"),
    ];
    for (config, kv_bytes, expected) in cases {
        let error: PlanError = plan(&config, &options(kv_bytes, &[])).unwrap_err();
        let sentence = error.to_string();
        assert!(
            sentence.contains(expected) && !sentence.contains('\n'),
            "{config}: {sentence}"
        );
    }
}

#[test]
fn lengths_of_any_size_are_answered() {
    let plan = planned("Llama-3.1-8B", 40_000_000_000, &[0, 1, u32::MAX]);
    let requests = plan
        .report
        .capacity
        .iter()
        .map(|row| row.requests)
        .collect::<Vec<_>>();
    assert_eq!((requests[0], requests[2]), (0, 0));
    assert!(requests[1] > 10_000);
}
