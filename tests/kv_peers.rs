//! The models of other servers' sizing rules against the figures that the references print (`tests/data/peer_sizing.out`,
//! `tests/data/sglang_sizing.out`) and against public log lines.

use neap::kv::peers::{Kind, compare, kinds, sglang, tensorrt_llm, vllm};
use neap::kv::reserve::StaticReserve;
use neap::kv::{Geometry, KvDtype, PageSize};
use serde_json::json;

const GIB: f64 = (1_u64 << 30) as f64;

fn data(name: &str) -> String {
    let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// `layers`, KV heads, K and V dims in bf16, window.
fn kind(layers: u64, heads: u64, k_dim: u64, v_dim: u64, window: Option<u32>) -> Kind {
    Kind {
        layers,
        k_bytes: heads * k_dim * 2,
        v_bytes: heads * v_dim * 2,
        window,
    }
}

/// The five models of the reference, with its windows, and their longest sequence.
fn model(name: &str) -> (Vec<Kind>, u64) {
    match name {
        "gpt-oss-20b" => (
            vec![kind(12, 8, 64, 64, None), kind(12, 8, 64, 64, Some(128))],
            131_072,
        ),
        "gpt-oss-120b" => (
            vec![kind(18, 8, 64, 64, None), kind(18, 8, 64, 64, Some(128))],
            131_072,
        ),
        "Gemma-3-27B" => (
            vec![
                kind(10, 16, 128, 128, None),
                kind(52, 16, 128, 128, Some(1_024)),
            ],
            131_072,
        ),
        "MiMo-V2-Flash" => (
            vec![kind(9, 4, 192, 128, None), kind(39, 8, 192, 128, Some(128))],
            262_144,
        ),
        "Llama-3.1-8B" => (vec![kind(32, 8, 128, 128, None)], 131_072),
        other => panic!("{other}"),
    }
}

#[test]
fn vllm_and_tensorrt_llm_in_all_sixty_rows() {
    let table = data("peer_sizing.out");
    let mut rows = 0;
    for line in table.lines() {
        let fields = line
            .split(['|', ' '])
            .filter(|field| !field.is_empty())
            .collect::<Vec<_>>();
        let [
            name,
            gigabytes,
            length,
            _ideal,
            _tokens,
            logged,
            running,
            _,
            v1,
            ..,
        ] = fields[..]
        else {
            continue;
        };
        let (Ok(gigabytes), Ok(length)) = (gigabytes.parse::<u64>(), length.parse::<u64>()) else {
            continue;
        };
        let whole = |field: &str| field.parse::<u64>().unwrap();
        let columns = line.split('|').collect::<Vec<_>>();
        let first = |column: usize| whole(columns[column].split_whitespace().next().unwrap());
        let (kinds, max_len) = model(name);
        let bytes = gigabytes * 1_000_000_000;
        let plan = vllm::Plan::new(&kinds, bytes, vllm::Config::default());
        assert_eq!(
            plan.logged_requests(length),
            whole(logged),
            "vLLM logged: {line}"
        );
        assert_eq!(
            plan.running_requests(length),
            whole(running),
            "vLLM running: {line}"
        );
        assert_eq!(
            tensorrt_llm::V1::new(&kinds, bytes, max_len).requests(length),
            whole(v1),
            "V1: {line}"
        );
        assert_eq!(
            tensorrt_llm::V2::new(&kinds, bytes, None).requests(length),
            first(4),
            "V2: {line}"
        );
        let tuned = tensorrt_llm::V2::new(&kinds, bytes, Some(length));
        assert_eq!(tuned.requests(length), first(5), "V2 tuned: {line}");
        rows += 1;
    }
    assert_eq!(rows, 60);
}

#[test]
fn the_single_numbers_that_they_log() {
    let table = data("peer_sizing.out");
    let mut rows = 0;
    for line in table
        .lines()
        .filter(|line| line.contains("GB vLLM blocks="))
    {
        let fields = line.split_whitespace().collect::<Vec<_>>();
        let (kinds, max_len) = model(fields[0]);
        let bytes = fields[1].parse::<u64>().unwrap() * 1_000_000_000;
        let after = |mark: &str| {
            let rest = line.split(mark).nth(1).unwrap().trim_start();
            let digits = rest.chars().take_while(|c| c.is_ascii_digit() || *c == ',');
            digits
                .filter(char::is_ascii_digit)
                .collect::<String>()
                .parse::<u64>()
                .unwrap()
        };
        let list = |mark: &str| {
            let rest = line.split(mark).nth(1).unwrap();
            let inside = rest.split([']', '}']).next().unwrap();
            inside
                .split(',')
                .map(|item| item.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
                .collect::<Vec<_>>()
        };
        let plan = vllm::Plan::new(&kinds, bytes, vllm::Config::default());
        assert_eq!(plan.blocks, after("blocks="), "{line}");
        assert_eq!(plan.logged_tokens(max_len), after("logged="), "{line}");
        let v1 = tensorrt_llm::V1::new(&kinds, bytes, max_len);
        assert_eq!(
            v1.blocks().iter().map(|&n| n as f64).collect::<Vec<_>>(),
            list("blocks(32)={"),
            "{line}"
        );
        let v2 = tensorrt_llm::V2::new(&kinds, bytes, None);
        assert_eq!(
            v2.slots.iter().map(|&n| n as f64).collect::<Vec<_>>(),
            list("slots=["),
            "{line}"
        );
        for (ratio, expected) in v2.ratios.iter().zip(list("ratio=[")) {
            assert!((ratio - expected).abs() < 5e-5, "{line}");
        }
        assert_eq!(v2.grain_bytes >> 20, after("grain="), "{line}");
        rows += 1;
    }
    assert_eq!(rows, 15);
}

#[test]
fn vllm_s_groups_and_padding() {
    let plan =
        |name: &str| vllm::Plan::new(&model(name).0, 100_000_000_000, vllm::Config::default());
    let layers = |name: &str| {
        plan(name)
            .groups
            .iter()
            .map(|group| group.layers)
            .collect::<Vec<_>>()
    };
    assert_eq!(layers("Gemma-3-27B"), [10, 9, 9, 9, 9, 8, 8]);
    assert_eq!(layers("MiMo-V2-Flash"), [9, 8, 8, 8, 8, 7]);
    assert_eq!(
        [
            plan("Gemma-3-27B").padding_layers(),
            plan("MiMo-V2-Flash").padding_layers()
        ],
        [8, 6]
    );
    assert_eq!(plan("MiMo-V2-Flash").groups[0].block_tokens, 32);
    assert_eq!(plan("gpt-oss-20b").block_bytes, 12 * 16 * 2_048);
}

#[test]
fn public_log_lines_are_reproduced() {
    let logged = |kinds: &[Kind], gib: f64| {
        vllm::Plan::new(kinds, (gib * GIB) as u64, vllm::Config::default()).old_logged_tokens()
    };
    // gpt-oss-120b, 5.38 GiB: 78,384 tokens. The log rounds to hundredths of a GiB.
    let gpt_oss = model("gpt-oss-120b").0;
    assert!((logged(&gpt_oss, 5.375)..=logged(&gpt_oss, 5.385)).contains(&78_384));
    // Gemma 4 31B, 24.54 GiB: 26,800 tokens.
    let gemma4 = [
        kind(10, 4, 512, 512, None),
        kind(50, 16, 256, 256, Some(1_024)),
    ];
    assert!((logged(&gemma4, 24.535)..=logged(&gemma4, 24.545)).contains(&26_800));
    // The same model, 37,392 tokens logged: 1.53 sequences of 262,144.
    let config = vllm::Config {
        max_batched_tokens: 2_048,
        concurrent_batches: 1,
        ..vllm::Config::default()
    };
    let groups = vllm::Plan::new(&gemma4, 1 << 30, config);
    let bytes = 37_392 / 16 * groups.groups.len() as u64 * groups.block_bytes;
    let plan = vllm::Plan::new(&gemma4, bytes, config);
    let concurrency = plan.blocks as f64 / plan.admission_blocks(262_144) as f64;
    assert!((concurrency - 1.53).abs() < 0.005, "{concurrency}");
}

/// A case of `sglang_sizing.out`: the model on one rank, weights in GiB, context, vision tower and its prefill graphs.
struct Server {
    kinds: Vec<Kind>,
    rule: sglang::Rule,
    weights_gib: f64,
    context: u64,
    reserve: StaticReserve,
    vision: bool,
}

fn server(name: &str, ranks: u32, card_mib: u64) -> Server {
    let mut reserve = StaticReserve::of_card(card_mib, ranks);
    let rule = sglang::Rule::default();
    let (base, weights_gib, context) = match name {
        "gpt-oss-20b" => ("gpt-oss-20b", 13.2, 131_072),
        "gpt-oss-120b" => ("gpt-oss-120b", 64.4, 131_072),
        "MiMo-V2-Flash" => ("MiMo-V2-Flash", 308.0, 262_144),
        _ => ("Gemma-3-27B", 51.1, 131_072),
    };
    let mut kinds = model(base).0;
    let share = |heads: u64| (heads / u64::from(ranks)).max(1);
    if base == "MiMo-V2-Flash" {
        kinds = vec![
            kind(9, share(4), 192, 128, None),
            kind(39, share(8), 192, 128, Some(128)),
        ];
    }
    let vision = name.contains("VLM");
    if vision {
        reserve.prefill_graphs = neap::kv::reserve::PrefillGraphs::Off;
        reserve.vision_tower = Some((27, 1_152));
    }
    let rule = sglang::Rule {
        stores_windows: base != "Gemma-3-27B",
        window_excludes_query: base != "MiMo-V2-Flash",
        ..rule
    };
    Server {
        kinds,
        rule,
        weights_gib: weights_gib / f64::from(ranks),
        context,
        reserve,
        vision,
    }
}

fn number_after(line: &str, mark: &str) -> f64 {
    let rest = line
        .split(mark)
        .nth(1)
        .unwrap_or_else(|| panic!("no {mark} in {line}"))
        .trim_start();
    let text = rest
        .chars()
        .take_while(|c| c.is_ascii_digit() || *c == '.')
        .collect::<String>();
    text.trim_end_matches('.').parse().unwrap()
}

impl Server {
    /// `(P, A)`: GiB free before the weights and after them, with the reference's assumptions.
    fn free(&self) -> (f64, f64) {
        let before = self.reserve.card_mib as f64 / 1_024.0 - 1.0;
        (before, before - self.weights_gib - 0.3)
    }

    fn images_gib(&self) -> f64 {
        if self.vision { 100.0 / 1_024.0 } else { 0.0 }
    }

    fn budget(&self, fraction: f64) -> u64 {
        let (before, after) = self.free();
        ((after - before * (1.0 - fraction) - self.images_gib()) * GIB) as u64
    }

    /// The split after capture with graphs of 2 GiB; `headroom` in GiB beside it.
    fn after_capture(&self, max_running: Option<u64>) -> (f64, u64, sglang::Split) {
        let (before, after) = self.free();
        let fraction = self.reserve.after_capture_fraction();
        let reserved = self.rule.split(&self.kinds, self.budget(fraction)).unwrap();
        let rows = sglang::request_rows(reserved.full_tokens, self.context, max_running);
        let gap = u64::from(self.reserve.decode_max_batch.unwrap()) < rows;
        let mut headroom = before * (1.0 - fraction);
        if gap {
            headroom = headroom.max(self.reserve.activation_mib() / 1_024.0);
        }
        let requests = ((rows + 1) * (self.context + 4) * 4) as f64 / GIB;
        let mapping = (8 * (reserved.full_tokens + self.rule.page_tokens + 1)) as f64 / GIB;
        let buffers = 2 * self.kinds.iter().map(|kind| kind.layers).sum::<u64>();
        let first_pages = (buffers * (2 << 20)) as f64 / GIB;
        let free = after - 2.0 - requests - mapping - first_pages;
        let left = (free - headroom - self.images_gib()).max(0.0);
        let budget = (left * GIB) as u64 + (first_pages * GIB) as u64;
        let split = self
            .rule
            .split_capped(&self.kinds, budget, Some(reserved.full_tokens))
            .unwrap();
        (headroom, budget, split)
    }
}

#[test]
fn sglang_before_and_after_capture_in_all_ten_cases() {
    let text = data("sglang_sizing.out");
    let mut seen = 0;
    for case in text
        .split("\n== ")
        .skip(1)
        .filter(|case| case.contains("fallback: reserved"))
    {
        let head = case.lines().next().unwrap();
        let name = if head.contains("VLM") {
            "gemma VLM"
        } else {
            head.split(' ').next().unwrap()
        };
        let ranks = number_after(head, " tp") as u32;
        let card_mib = if head.contains("H100") {
            81_559
        } else {
            143_771
        };
        let server = server(name, ranks, card_mib);
        let line = |mark: &str| case.lines().find(|line| line.contains(mark));
        let same = |split: sglang::Split, line: &str| {
            assert_eq!(
                split.full_tokens as f64,
                number_after(line, "-> full="),
                "{head}\n{line}"
            );
            assert_eq!(
                split.swa_tokens as f64,
                number_after(line, " swa="),
                "{head}\n{line}"
            );
        };
        let fallback = line("fallback:").unwrap();
        assert_eq!(
            server.reserve.reserved_mib(),
            number_after(fallback, "reserved="),
            "{head}"
        );
        assert!(
            (server.reserve.fraction() - number_after(fallback, "mfs=")).abs() < 6e-4,
            "{head}"
        );
        let budget = server.budget(server.reserve.fraction());
        let split = server.rule.split(&server.kinds, budget).unwrap();
        same(split, fallback);
        assert!(
            (split.cell_bytes - number_after(fallback, "cell=")).abs() < 0.06,
            "{head}"
        );
        // The budget function that the start-up uses says the same, to the truncation.
        let (before, after) = server.free();
        let bytes = |gib: f64| (gib * GIB) as u64;
        let ours = server
            .reserve
            .kv_budget_bytes(bytes(before), bytes(after - server.images_gib()));
        assert!(ours.abs_diff(budget) <= 2, "{ours} {budget}");
        if server.vision {
            seen += 1;
            continue;
        }
        let default = line("post, default args").unwrap();
        let (headroom, _, split) = server.after_capture(None);
        same(split, default);
        assert!(
            (headroom - number_after(default, "headroom=")).abs() < 0.006,
            "{head}"
        );
        let asked = line("post, --max-running-requests").unwrap();
        let (_, budget, split) = server.after_capture(Some(256));
        same(split, asked);
        assert!(
            (budget as f64 / GIB - number_after(asked, "budget=")).abs() < 0.006,
            "{head}"
        );
        let requests = line("concurrent requests").unwrap();
        for tokens in [2_048, 8_192, 32_768] {
            let expected = number_after(requests, &format!("L={tokens}: sglang "));
            assert_eq!(
                server.rule.requests(&server.kinds, split, tokens) as f64,
                expected,
                "{head} {tokens}"
            );
        }
        if let Some(need) = line("worst-case need") {
            let expected = number_after(need, "2 chunks = ");
            assert_eq!(
                server.rule.swa_tokens_for(&server.kinds, 256) as f64,
                expected,
                "{head}"
            );
        }
        seen += 1;
    }
    assert_eq!(seen, 10);
}

/// The server's draft layers are held at the upper bound and charged again in the cell (W7).
#[test]
fn sglang_charges_a_draft_twice() {
    let mut server = server("gpt-oss-120b", 2, 81_559);
    server.kinds = vec![kind(18, 4, 64, 64, None), kind(18, 4, 64, 64, Some(128))];
    let rule = sglang::Rule {
        draft_layers: 1,
        ..server.rule
    };
    let before = 81_559.0 / 1_024.0 - 1.8;
    let after = before - server.weights_gib - 1.0;
    let fraction = server.reserve.after_capture_fraction();
    let slack = before * (1.0 - fraction);
    let reserved = rule
        .split(&server.kinds, ((after - slack) * GIB) as u64)
        .unwrap();
    let draft = (reserved.full_tokens + 1) * server.kinds[0].token_bytes();
    let budget = ((after - 2.0 - slack) * GIB) as u64;
    let cap = Some(reserved.full_tokens);
    let twice = rule
        .split_capped(&server.kinds, budget - draft, cap)
        .unwrap();
    let once = rule.split_capped(&server.kinds, budget, cap).unwrap();
    assert_eq!(
        (twice.full_tokens, once.full_tokens),
        (1_244_770, 1_285_127)
    );
}

#[test]
fn families_stored_as_full_and_kinds_not_covered() {
    assert!(sglang::stores_windows("gpt_oss") && !sglang::stores_windows("gemma3_text"));
    let geometry =
        |config| Geometry::from_config(&config, PageSize::new(16).unwrap(), KvDtype::Bf16).unwrap();
    assert_eq!(kinds(&geometry(json!({"model_type": "deepseek_v4"}))), None);
    let gemma = geometry(json!({"model_type": "gemma3_text"}));
    assert_eq!(kinds(&gemma).unwrap().len(), 2);
    let rows = compare(&gemma, "gemma3_text", 10_000_000_000, &[1_024, 0, 32_768]).unwrap();
    assert_eq!(
        rows.iter().map(|row| row.length).collect::<Vec<_>>(),
        [1_024, 32_768]
    );
    assert!(rows[1].sglang < rows[1].vllm);
    assert_eq!(compare(&gemma, "gemma3_text", 0, &[1]).unwrap()[0].vllm, 0);
}
