//! Mutation tests: every kernel of csrc with one thing broken in its PTX must be reported by the checked mode or give wrong
//! values. A mutant that does neither is a hole in the tests.
//!
//! Copies and masks that a kernel has many of, one like the other, are sampled; `NEAP_ALL_MUTANTS=1` breaks each of them.

mod mutate;
mod scenes;
#[path = "../support/mod.rs"]
mod support;

use mutate::{Mutant, Rule};
use neap::emulator::{self, CheckOptions, Profile};
use neap::kernels::images;
use scenes::{SCENES, Scene, Values};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use support::Rig;

/// Mutants that survive, by kernel and instruction. Some change nothing that could be seen: rows past the end are read from
/// the first row instead and never stored. The others are gaps of the scenes: early exits where the grid fits exactly, a ring
/// of stages that turns only for larger k, a row of a tile that no scene ends in.
const KNOWN_SURVIVORS: &[(&str, &str)] = &[
    (
        "paged_decode_bf16_d256_g8",
        "selp.b32 \t%r353, 16, 0, %p40;",
    ),
    ("gemm_prefill_bf16_64x64", "selp.b32 \t%r71, 16, 0, %p24;"),
    ("gemm_prefill_bf16_64x64", "selp.b32 \t%r115, 16, 0, %p9;"),
    ("gemm_prefill_bf16_64x64", "selp.b32 \t%r177, 16, 0, %p18;"),
    ("gemm_prefill_bf16_64x64", "@%p20 bra \t$L__BB0_128;"),
    ("gemm_prefill_bf16_128x128", "selp.b32 \t%r73, 16, 0, %p24;"),
    ("gemm_prefill_bf16_128x128", "selp.b32 \t%r123, 16, 0, %p9;"),
    (
        "gemm_prefill_bf16_128x128",
        "selp.b32 \t%r230, 16, 0, %p18;",
    ),
    (
        "gemm_prefill_bf16_128x128",
        "selp.b32 \t%r789, 0, %r748, %p91;",
    ),
    (
        "gemm_prefill_bf16_128x128",
        "selp.b32 \t%r790, 0, %r749, %p92;",
    ),
    ("gemm_prefill_bf16_128x128", "@%p20 bra \t$L__BB1_192;"),
    ("gemm_decode_bf16_t8", "@%p2 bra \t$L__BB0_43;"),
    ("gemm_decode_bf16_t8", "@%p13 bra \t$L__BB0_43;"),
    ("gemm_decode_bf16_t16", "@%p2 bra \t$L__BB1_87;"),
    ("gemm_decode_bf16_t16", "@%p45 bra \t$L__BB1_87;"),
    ("gemm_decode_bf16_t16", "@%p24 bra \t$L__BB1_87;"),
    ("gemm_decode_bf16_t32", "@%p2 bra \t$L__BB2_147;"),
    ("gemm_decode_bf16_t32", "@%p68 bra \t$L__BB2_147;"),
    ("gemm_decode_bf16_t32", "@%p25 bra \t$L__BB2_147;"),
    ("gemm_decode_bf16_t64", "@%p2 bra \t$L__BB3_260;"),
    ("gemm_decode_bf16_t64", "@%p109 bra \t$L__BB3_260;"),
    ("gemm_decode_bf16_t64", "@%p22 bra \t$L__BB3_260;"),
    ("gemv_bf16", "@%p52 bra \t$L__BB0_30;"),
    ("add_norm_v1", "@%p24 bra \t$L__BB0_26;"),
    ("add_norm_v4", "@%p43 bra \t$L__BB1_56;"),
    ("argmax", "@%p57 bra \t$L__BB0_60;"),
    ("embed", "@%p2 bra \t$L__BB0_4;"),
    ("qkv_rope_d64", "@%p9 bra \t$L__BB0_11;"),
    ("qkv_rope_append_d64", "@%p10 bra \t$L__BB1_19;"),
    ("page_copy", "ld.global.nc.u32 \t%a, [%t];"),
];

/// What became of a mutant.
#[derive(Debug)]
enum Outcome {
    /// The checked mode, with its words.
    Reported(String),
    /// The loader refused it.
    Refused(String),
    /// Values of the output that differ.
    Wrong,
    Survived,
}

/// The text of one kernel alone, with what its module declares before it.
fn kernel_text(kernel: &str) -> String {
    let image = images()
        .iter()
        .find(|image| image.kernel_names().any(|name| name == kernel))
        .unwrap_or_else(|| panic!("no image holds {kernel}"));
    let text = String::from_utf8_lossy(image.ptx);
    let text = text.trim_end_matches('\0');
    let first = text.find(".visible .entry").expect("an entry");
    let start = text
        .find(&format!(".visible .entry {kernel}("))
        .expect("the entry");
    let end = start + text[start..].find("\n}").expect("its end") + 3;
    let end = end.min(text.len());
    format!("{}{}\n", &text[..first], &text[start..end])
}

fn profile() -> Profile {
    let mut profile = Profile::named("tiny").expect("a known profile");
    profile.check = Some(CheckOptions::with_seed(7));
    // The shadow knows what nobody wrote; poison would only take time.
    profile.poison_limit_bytes = 0;
    profile.watchdog_branches = 1 << 16;
    profile
}

/// Runs a scene with the given text of its kernel.
fn run(scene: &Scene, text: String) -> Result<Values, Outcome> {
    let mut texts = vec![text];
    texts.extend(scene.also.iter().map(|kernel| kernel_text(kernel)));
    let (rig, ordinal) =
        Rig::with_ptx(profile(), &texts).map_err(|error| Outcome::Refused(error.to_string()))?;
    let values = catch_unwind(AssertUnwindSafe(|| (scene.run)(&rig)));
    let reports = emulator::take_check_reports(ordinal);
    match (reports.first(), values) {
        (Some(report), _) => Err(Outcome::Reported(report.to_string())),
        (None, Ok(values)) => Ok(values),
        (None, Err(_)) => Err(Outcome::Wrong),
    }
}

fn judge(scene: &Scene, expected: &Values, mutant: &Mutant) -> Outcome {
    match run(scene, mutant.text.clone()) {
        Err(outcome) => outcome,
        Ok(values) if values.agrees_with(expected) => Outcome::Survived,
        Ok(_) => Outcome::Wrong,
    }
}

/// Runs all mutants of the scenes that `chosen` picks.
fn hunt(chosen: fn(&Scene) -> bool) {
    // Panics of mutants are outcomes, not news.
    std::panic::set_hook(Box::new(|info| {
        if std::thread::current()
            .name()
            .is_some_and(|name| name == "main")
        {
            eprintln!("{info}");
        }
    }));
    let (mut survivors, mut killed) = (Vec::new(), 0);
    for scene in SCENES.iter().filter(|scene| chosen(scene)) {
        let text = kernel_text(scene.kernel);
        let expected = run(scene, text.clone()).unwrap_or_else(|outcome| {
            panic!("{}, unchanged, must pass: {outcome:?}", scene.kernel)
        });
        let mut by_rule: BTreeMap<Rule, usize> = BTreeMap::new();
        let all = std::env::var_os("NEAP_ALL_MUTANTS").is_some();
        for mutant in mutate::mutants(scene.kernel, &text, all) {
            *by_rule.entry(mutant.rule).or_default() += 1;
            let name = format!("{}: {}", scene.kernel, mutant.name);
            let outcome = judge(scene, &expected, &mutant);
            match &outcome {
                Outcome::Survived => {
                    let known = |(kernel, code): &(&str, &str)| {
                        *kernel == scene.kernel && mutant.name.contains(code)
                    };
                    if KNOWN_SURVIVORS.iter().any(known) {
                        println!("{name}: survived, as is known");
                    } else {
                        survivors.push(name);
                    }
                }
                other => {
                    killed += 1;
                    let text = match other {
                        Outcome::Reported(text) => format!("reported: {text}"),
                        Outcome::Refused(text) => format!("refused: {text}"),
                        _ => "wrong values".to_owned(),
                    };
                    println!("{name}: {}", &text[..text.len().min(150)]);
                }
            }
        }
        for rule in Rule::ALL {
            if !by_rule.contains_key(&rule) {
                println!(
                    "{}: {rule:?}: n/a, the kernel has no such construct",
                    scene.kernel
                );
            }
        }
    }
    let _ = std::panic::take_hook();
    println!("{killed} mutants killed, {} survived", survivors.len());
    assert!(
        survivors.is_empty(),
        "mutants survived:\n{}",
        survivors.join("\n")
    );
}

#[test]
fn no_mutant_of_attention_decode_survives() {
    hunt(|scene| scene.kernel.contains("decode") && !scene.kernel.contains("gemm"));
}

#[test]
fn no_mutant_of_attention_prefill_survives() {
    hunt(|scene| scene.kernel.contains("paged_prefill"));
}

#[test]
fn no_mutant_of_matrix_products_survives() {
    hunt(|scene| scene.kernel.contains("gemm") || scene.kernel.contains("gemv"));
}

#[test]
fn no_mutant_of_the_other_kernels_survives() {
    hunt(|scene| {
        !["decode", "prefill", "gemm", "gemv"]
            .iter()
            .any(|part| scene.kernel.contains(part))
    });
}

/// Every source file of csrc has a kernel under mutation; instances of one template beyond those share its text.
#[test]
fn every_kernel_has_a_scene() {
    for image in images() {
        assert!(
            image
                .kernel_names()
                .any(|name| SCENES.iter().any(|scene| scene.kernel == name)),
            "no kernel of {} is mutated",
            image.name
        );
    }
    let fences = images().iter().filter(|image| {
        let text = String::from_utf8_lossy(image.ptx);
        text.contains("membar") || text.contains("fence.")
    });
    assert_eq!(fences.count(), 0, "a kernel has a fence now: mutate it");
}
