//! The bundled model against Hugging Face: logits, hidden states, greedy text and perplexity.
//!
//! The rule throughout: neap may differ from the fp32 goldens by at most [`ERROR_RATIO`] times what Hugging Face's own bf16 run
//! differs. For logits that figure stands in the goldens; for hidden states, which have none, a host twin rounds where that run
//! rounds and supplies it.

// Each test crate uses a part of it.
#[allow(dead_code)]
mod gemma_twin;

use std::path::{Path, PathBuf};

use gemma_twin::{Precision, Twin};
use neap::driver::{Device, Driver};
use neap::emulator::{self, Profile};
use neap::engine::{Engine, EngineOptions, Request};
use safetensors::SafeTensors;
use serde_json::Value;

/// Allowed error over the error of Hugging Face's bf16 run.
const ERROR_RATIO: f32 = 1.5;
const PROMPTS: [&str; 7] = [
    "len1", "len5", "len63", "len64", "len65", "len200", "len700",
];
const STEPS: usize = 48;

fn bundled() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/gemma3-tiny-kjv")
}

fn device() -> Device {
    let ordinal = emulator::add_device(Profile::named("tiny").expect("a known profile"));
    Driver::emulator()
        .device(ordinal)
        .expect("the device just added")
}

fn engine(options: &EngineOptions) -> Engine {
    Engine::load(&device(), &bundled(), options, &mut |_| {}).expect("the bundled model loads")
}

/// The golden tensors and the JSON that goes with them.
struct Goldens {
    image: Vec<u8>,
    facts: Value,
}

impl Goldens {
    fn load() -> Goldens {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/goldens");
        let read = |name: &str| std::fs::read(dir.join(name)).expect("goldens are readable");
        let facts = serde_json::from_slice(&read("gemma3-tiny-kjv.json")).expect("goldens parse");
        Goldens {
            image: read("gemma3-tiny-kjv.safetensors"),
            facts,
        }
    }

    fn bytes(&self, name: &str) -> Vec<[u8; 4]> {
        let tensors = SafeTensors::deserialize(&self.image).expect("goldens parse");
        let data = tensors
            .tensor(name)
            .expect("a golden tensor of that name")
            .data();
        data.chunks_exact(4)
            .map(|four| four.try_into().expect("4 bytes"))
            .collect()
    }

    fn f32s(&self, name: &str) -> Vec<f32> {
        self.bytes(name)
            .into_iter()
            .map(f32::from_le_bytes)
            .collect()
    }

    fn ids(&self, name: &str) -> Vec<u32> {
        self.bytes(name)
            .into_iter()
            .map(u32::from_le_bytes)
            .collect()
    }

    /// The worst last-position logit difference of Hugging Face's bf16 run.
    fn bf16_error(&self, prompt: &str) -> f32 {
        let error = &self.facts["hf_bf16_run"][prompt]["max_abs_logit_diff_vs_fp32"];
        error.as_f64().expect("the figure is in the goldens") as f32
    }

    /// Worst logit difference at the last prompt position, and over all steps that `rows` covers and the goldens hold.
    fn logit_errors(&self, prompt: &str, rows: &[Vec<f32>]) -> (f32, f32) {
        let last = max_error(
            &rows[0],
            &self.f32s(&format!("{prompt}.prompt_last_logits")),
        );
        let full = self.f32s(&format!("{prompt}.step_full_logits"));
        let full = full.chunks_exact(rows[0].len()).zip([0, 1, 23, 47]);
        let mut steps = full
            .filter(|(_, step)| *step < rows.len())
            .map(|(golden, step)| max_error(&rows[step], golden))
            .fold(0.0, f32::max);
        let top_ids = self.ids(&format!("{prompt}.step_topk_ids"));
        let top_logits = self.f32s(&format!("{prompt}.step_topk_logits"));
        for (row, (ids, golden)) in rows
            .iter()
            .zip(top_ids.chunks_exact(20).zip(top_logits.chunks_exact(20)))
        {
            let found: Vec<f32> = ids.iter().map(|id| row[*id as usize]).collect();
            steps = steps.max(max_error(&found, golden));
        }
        (last, steps)
    }

    /// Golden top-1 minus top-2 logit of every step.
    fn margins(&self, prompt: &str) -> Vec<f32> {
        self.f32s(&format!("{prompt}.step_topk_logits"))
            .chunks_exact(20)
            .map(|top| top[0] - top[1])
            .collect()
    }
}

fn max_error(found: &[f32], golden: &[f32]) -> f32 {
    assert_eq!(found.len(), golden.len());
    // `f32::max` drops NaN, so NaN is made an infinite error first.
    let error = |(a, b): (&f32, &f32)| {
        if (a - b).is_nan() {
            f32::INFINITY
        } else {
            (a - b).abs()
        }
    };
    found.iter().zip(golden).map(error).fold(0.0, f32::max)
}

fn argmax(row: &[f32]) -> u32 {
    let best = row
        .iter()
        .enumerate()
        .max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    best.expect("a row of logits").0 as u32
}

#[test]
fn teacher_forced_logits_stay_within_the_bf16_rule() {
    let goldens = Goldens::load();
    let mut engine = engine(&EngineOptions::default());
    let (mut judged, mut near_ties) = (0, 0);
    for prompt in PROMPTS {
        let ids = goldens.ids(&format!("{prompt}.input_ids"));
        let decoded = goldens.ids(&format!("{prompt}.decoded_ids"));
        let rows = engine
            .logits_for(&ids, &decoded[..STEPS - 1])
            .expect("runs");
        assert_eq!(rows.len(), STEPS);
        let allowed = ERROR_RATIO * goldens.bf16_error(prompt);
        let (last, steps) = goldens.logit_errors(prompt, &rows);
        println!(
            "{prompt}: last position {last:.4}, all steps {steps:.4}, Hugging Face bf16 {:.4}, allowed {allowed:.4}",
            goldens.bf16_error(prompt)
        );
        assert!(
            last <= allowed && steps <= allowed,
            "{prompt}: {last} and {steps} exceed {allowed}"
        );

        for (step, margin) in goldens.margins(prompt).into_iter().enumerate() {
            if margin > 2.0 * allowed {
                assert_eq!(
                    argmax(&rows[step]),
                    decoded[step],
                    "{prompt} step {step}, margin {margin}"
                );
                judged += 1;
            } else {
                let verdict = if argmax(&rows[step]) == decoded[step] {
                    "equal"
                } else {
                    "different"
                };
                println!(
                    "  not judged: {prompt} step {step}, margin {margin:.4}, top token {verdict}"
                );
                near_ties += 1;
            }
        }
    }
    println!("top token: {judged} positions judged, all equal; {near_ties} too close to judge");
    assert_eq!(judged + near_ties, PROMPTS.len() * STEPS);
    assert!(
        judged > PROMPTS.len() * STEPS / 2,
        "only {judged} positions could be judged"
    );
}

#[test]
fn the_twin_agrees_with_hugging_face() {
    let goldens = Goldens::load();
    let twin = Twin::load(&bundled());
    for prompt in ["len5", "len63", "len65"] {
        let ids = goldens.ids(&format!("{prompt}.input_ids"));
        let golden = goldens.f32s(&format!("{prompt}.prompt_last_logits"));
        let exact = max_error(&twin.last_logits(&ids, Precision::Float32), &golden);
        let rounded = max_error(&twin.last_logits(&ids, Precision::Bfloat16), &golden);
        let theirs = goldens.bf16_error(prompt);
        println!("{prompt}: fp32 {exact:.6}, bf16 {rounded:.4}, Hugging Face bf16 {theirs:.4}");
        assert!(exact <= 2e-4, "{prompt}: {exact}");
        // Two sound bf16 runs differ in the order of their sums, not in the size of their errors.
        assert!(
            (0.4..2.5).contains(&(rounded / theirs)),
            "{prompt}: {rounded} against {theirs}"
        );
    }
}

#[test]
fn the_rule_notices_the_mistakes_it_is_for() {
    let goldens = Goldens::load();
    let worst_ratio = |edit: &dyn Fn(&mut Value)| {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let source = bundled();
        let mut config: Value =
            serde_json::from_slice(&std::fs::read(source.join("config.json")).expect("readable"))
                .expect("parses");
        edit(&mut config);
        std::fs::write(dir.path().join("config.json"), config.to_string()).expect("writes");
        std::fs::copy(
            source.join("model.safetensors"),
            dir.path().join("model.safetensors"),
        )
        .expect("copies");
        let options = EngineOptions {
            max_seqs: 1,
            ..EngineOptions::default()
        };
        let mut engine = Engine::load(&device(), dir.path(), &options, &mut |_| {}).expect("loads");
        let ratio = |prompt: &&str| {
            let ids = goldens.ids(&format!("{prompt}.input_ids"));
            let decoded = goldens.ids(&format!("{prompt}.decoded_ids"));
            let rows = engine.logits_for(&ids, &decoded[..12]).expect("runs");
            goldens.logit_errors(prompt, &rows).1 / goldens.bf16_error(prompt)
        };
        ["len64", "len65", "len200"]
            .iter()
            .map(ratio)
            .fold(0.0, f32::max)
    };
    let right = worst_ratio(&|_| {});
    println!("as it is: {right:.2} of Hugging Face's bf16 error");
    assert!(right <= ERROR_RATIO);
    let all =
        |kind: &'static str| move |config: &mut Value| config["layer_types"] = vec![kind; 6].into();
    let theta = |kind: &'static str, theta: f64| {
        move |config: &mut Value| config["rope_parameters"][kind]["rope_theta"] = theta.into()
    };
    type Mistake<'a> = (&'a str, &'a dyn Fn(&mut Value));
    let mistakes: [Mistake; 7] = [
        ("window 63", &|config| config["sliding_window"] = 63.into()),
        ("window 65", &|config| config["sliding_window"] = 65.into()),
        ("all layers sliding", &all("sliding_attention")),
        ("all layers full", &all("full_attention")),
        (
            "global base on sliding layers",
            &theta("sliding_attention", 1e6),
        ),
        ("local base on full layers", &theta("full_attention", 1e4)),
        ("attention scale of another width", &|config| {
            config["query_pre_attn_scalar"] = 192.into()
        }),
    ];
    for (name, edit) in mistakes {
        let ratio = worst_ratio(edit);
        println!("{name}: {ratio:.2}");
        assert!(ratio > ERROR_RATIO, "{name} goes unnoticed: {ratio}");
    }
}

#[test]
fn hidden_states_agree_layer_by_layer() {
    let goldens = Goldens::load();
    let ids = goldens.ids("hidden80.input_ids");
    let options = EngineOptions {
        eager: true,
        ..EngineOptions::default()
    };
    let states = engine(&options).hidden_states(&ids).expect("runs");
    let twin = Twin::load(&bundled());
    let (exact, rounded) = (
        twin.forward(&ids, Precision::Float32),
        twin.forward(&ids, Precision::Bfloat16),
    );

    let embed = max_error(&states.embed, &goldens.f32s("hidden80.embed"));
    println!("embed: {embed:.6}");
    assert!(
        embed <= 1e-5,
        "the embedding is exact but for the rounding of one product: {embed}"
    );

    let check = |name: &str, found: &[f32], exact: &[f32], rounded: &[f32]| {
        let golden = goldens.f32s(&format!("hidden80.{name}"));
        let scale = golden
            .iter()
            .fold(0.0, |max: f32, value| max.max(value.abs()));
        let (error, twin) = (max_error(found, &golden), max_error(rounded, &golden));
        println!("{name}: {error:.5}, bf16 twin {twin:.5}, largest value {scale:.2}");
        let exact = max_error(exact, &golden);
        assert!(
            exact <= 1e-4 * scale,
            "{name}: the twin itself is off by {exact}"
        );
        assert!(
            error <= ERROR_RATIO * twin,
            "{name}: {error} exceeds {ERROR_RATIO} x {twin}"
        );
    };
    for (layer, states) in states.layers.iter().enumerate() {
        let (exact, rounded) = (&exact.layers[layer], &rounded.layers[layer]);
        check(
            &format!("layer{layer}.attn_out"),
            &states.attention_output,
            &exact.attn_out,
            &rounded.attn_out,
        );
        check(
            &format!("layer{layer}.out"),
            &states.residual,
            &exact.out,
            &rounded.out,
        );
    }
    check(
        "final_norm",
        &states.final_norm,
        &exact.final_norm,
        &rounded.final_norm,
    );
    assert_eq!(states.layers.len(), 6);
}

#[test]
fn greedy_text_is_equal_up_to_the_first_near_tie() {
    let goldens = Goldens::load();
    let mut engine = engine(&EngineOptions::default());
    let request = |prompt: &str| Request {
        prompt: goldens.ids(&format!("{prompt}.input_ids")),
        max_new_tokens: STEPS as u32,
        // The goldens were made without stopping.
        stop_tokens: Vec::new(),
    };
    let generated = engine.generate(&PROMPTS.map(request)).expect("runs");
    for (prompt, found) in PROMPTS.into_iter().zip(generated) {
        let golden = goldens.ids(&format!("{prompt}.decoded_ids"));
        let allowed = 2.0 * ERROR_RATIO * goldens.bf16_error(prompt);
        let sure = goldens
            .margins(prompt)
            .iter()
            .take_while(|margin| **margin > allowed)
            .count();
        let equal = found
            .iter()
            .zip(&golden)
            .take_while(|(a, b)| a == b)
            .count();
        println!("{prompt}: {equal} of {STEPS} tokens equal, the first near-tie is at {sure}");
        assert_eq!(found.len(), STEPS);
        assert!(
            equal >= sure,
            "{prompt}: differs at {equal}, before the first near-tie at {sure}"
        );
    }
}

#[test]
fn held_out_perplexity_is_within_three_in_a_thousand() {
    let goldens = Goldens::load();
    let mut engine = engine(&EngineOptions::default());
    let mut nll = Vec::new();
    for window in 0..2 {
        let ids = goldens.ids(&format!("ppl.window{window}.input_ids"));
        let found = engine.score(&ids).expect("runs");
        let golden = goldens.f32s(&format!("ppl.window{window}.nll"));
        println!(
            "window {window}: worst target {:.4} nats off",
            max_error(&found, &golden)
        );
        nll.extend(found);
    }
    assert_eq!(nll.len(), 2046);
    let ppl = (nll.iter().map(|nats| f64::from(*nats)).sum::<f64>() / nll.len() as f64).exp();
    let golden = goldens.facts["perplexity"]["ppl"]
        .as_f64()
        .expect("the figure is in the goldens");
    println!(
        "perplexity {ppl:.4}, golden {golden:.4}, {:+.3} %",
        (ppl / golden - 1.0) * 100.0
    );
    assert!(
        (ppl / golden - 1.0).abs() <= 0.003,
        "{ppl} against {golden}"
    );
}
