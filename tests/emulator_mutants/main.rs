//! Mutation tests: every kernel of csrc with one thing broken in its PTX must be reported by the checked mode or give wrong
//! values. A mutant that does neither is a hole in the tests.
//!
//! Usually two mutants of each kind are run of a kernel; `NEAP_ALL_MUTANTS=1` runs every one, and `NEAP_MUTANTS_OF` those of one
//! kernel. Changes that no run could tell are left out by rules, which `equivalent` has; with all mutants they are run too, and must
//! survive.

mod equivalent;
mod listing;
mod mutate;
mod scenes;
#[path = "../support/mod.rs"]
mod support;

use mutate::{Mutant, Rule};
use neap::emulator::{self, CheckOptions, Profile};
use neap::kernels::images;
use scenes::{SCENES, Scene, Values};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use support::Rig;

/// Mutants of each kind that a kernel gets when not all are wanted.
const SAMPLED: usize = 2;

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
    // Each array has a mapping of its own.
    profile.granularity_bytes = 64 << 10;
    profile
}

/// Runs a scene with the given text of its kernel.
fn run(scene: &Scene, text: String) -> Result<Values, Outcome> {
    let mut texts = vec![text];
    texts.extend(scene.also.iter().map(|kernel| kernel_text(kernel)));
    let (rig, ordinal) =
        Rig::with_ptx(profile(), &texts).map_err(|error| Outcome::Refused(error.to_string()))?;
    rig.fence_arrays();
    let values = silently(|| (scene.run)(&rig));
    let reports = emulator::take_check_reports(ordinal);
    match (reports.first(), values) {
        (Some(report), _) => Err(Outcome::Reported(report.to_string())),
        (None, Some(values)) => Ok(values),
        (None, None) => Err(Outcome::Wrong),
    }
}

/// What `run` gives, or nothing where it panics. Panics of mutants are outcomes, not news: nothing is printed.
fn silently<T>(run: impl FnOnce() -> T) -> Option<T> {
    thread_local!(static SILENT: Cell<bool> = const { Cell::new(false) });
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !SILENT.get() {
                usual(info);
            }
        }));
    });
    SILENT.set(std::env::var_os("NEAP_MUTANT_PANICS").is_none());
    let result = catch_unwind(AssertUnwindSafe(run));
    SILENT.set(false);
    result.ok()
}

fn judge(scene: &Scene, expected: &Values, mutant: &Mutant) -> Outcome {
    match run(scene, mutant.text.clone()) {
        Err(outcome) => outcome,
        Ok(values) if values.agrees_with(expected) => Outcome::Survived,
        Ok(_) => Outcome::Wrong,
    }
}

/// Runs the mutants of the scenes that `chosen` picks.
fn hunt(chosen: fn(&str) -> bool) {
    let all = std::env::var_os("NEAP_ALL_MUTANTS").is_some();
    let only = std::env::var("NEAP_MUTANTS_OF").ok();
    let (mut wrong, mut killed) = (Vec::new(), 0);
    for scene in SCENES.iter().filter(|scene| chosen(scene.kernel)) {
        if only.as_ref().is_some_and(|only| only != scene.kernel) {
            continue;
        }
        let text = kernel_text(scene.kernel);
        let expected = run(scene, text.clone()).unwrap_or_else(|outcome| {
            panic!("{}, unchanged, must pass: {outcome:?}", scene.kernel)
        });
        let mut by_rule: BTreeMap<Rule, usize> = BTreeMap::new();
        for mutant in mutate::mutants(scene.kernel, &text, (!all).then_some(SAMPLED)) {
            let name = format!("{}: {}", scene.kernel, mutant.name);
            let words = match judge(scene, &expected, &mutant) {
                Outcome::Reported(text) => format!("reported: {text}"),
                Outcome::Refused(text) => format!("refused: {text}"),
                Outcome::Wrong => "wrong values".to_owned(),
                Outcome::Survived => "survived".to_owned(),
            };
            let words = &words[..words.len().min(150)];
            match (mutant.equivalent, words) {
                (Some(rule), "survived") => println!("{name}: equivalent: {rule}"),
                (Some(rule), _) => wrong.push(format!("{name}: {words}, against the rule: {rule}")),
                (None, "survived") => wrong.push(format!("{name}: SURVIVED")),
                (None, _) => {
                    killed += 1;
                    *by_rule.entry(mutant.rule).or_default() += 1;
                    println!("{name}: {words}");
                }
            }
        }
        for rule in Rule::ALL {
            match by_rule.get(&rule) {
                Some(count) => println!("{}: {rule:?}: {count} killed", scene.kernel),
                None => println!("{}: {rule:?}: n/a, no such construct", scene.kernel),
            }
        }
    }
    println!(
        "{killed} mutants killed, {} not as they should be",
        wrong.len()
    );
    assert!(wrong.is_empty(), "mutants:\n{}", wrong.join("\n"));
}

#[test]
fn no_mutant_of_attention_decode_survives() {
    hunt(|kernel| kernel.contains("decode") && !kernel.contains("gemm"));
}

#[test]
fn no_mutant_of_attention_prefill_survives() {
    hunt(|kernel| kernel.contains("paged_prefill"));
}

#[test]
fn no_mutant_of_matrix_products_survives() {
    hunt(|kernel| kernel.contains("gemm") || kernel.contains("gemv"));
}

#[test]
fn no_mutant_of_the_other_kernels_survives() {
    hunt(|kernel| {
        !["decode", "prefill", "gemm", "gemv"]
            .iter()
            .any(|part| kernel.contains(part))
    });
}

#[test]
fn every_kernel_has_a_scene() {
    for name in images().iter().flat_map(|image| image.kernel_names()) {
        assert!(
            SCENES.iter().any(|scene| scene.kernel == name),
            "{name} is not mutated"
        );
    }
}
