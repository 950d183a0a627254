//! The probes that `neap selftest --record` runs: all load, run and are written down and read back as they are; recordings
//! of GPUs, as far as there are any, are what the emulator computes.

use super::harness::{Memory, load};
use neap::emulator::exec::{ExecOptions, LaunchSpec, run};
use neap::emulator::probes::{FIXTURES, Outcome, Probe, ROWS, all, read};

fn emulate(probe: &Probe) -> Outcome {
    let mut memory = Memory::new(1 << 15);
    let module = match load(&mut memory, &probe.module("sm_90a")) {
        Ok(module) => module,
        Err(error) => return Outcome::Refused(error.to_string()),
    };
    let (operands, _) = module.global("operands").expect("the operands");
    let (results, _) = module.global("results").expect("the results");
    memory.write(operands, &probe.operand_words());
    let kernel = module.kernel("probe").expect("the kernel");
    let spec = LaunchSpec {
        kernel: &kernel,
        grid: [2, 1, 1],
        block: [64, 1, 1],
        cluster: [0; 3],
        cooperative: None,
        dynamic_shared_bytes: 0,
        params: &(ROWS as u32).to_le_bytes(),
    };
    run(&spec, &memory, &ExecOptions::default()).expect("it runs");
    Outcome::Results(memory.get(results, ROWS))
}

#[test]
fn every_probe_runs_and_is_read_back() {
    let probes = all();
    assert!(probes.len() > 500, "{} probes", probes.len());
    let mut text = String::from("device: the emulator\n");
    let mut wanted = Vec::new();
    for probe in &probes {
        let outcome = emulate(probe);
        let Outcome::Results(results) = &outcome else {
            panic!("{}: {outcome:?}", probe.statement);
        };
        // Truth tables of nothing and of everything are forms, too.
        let constant = probe.statement.starts_with("lop3");
        assert!(
            constant || results.iter().any(|r| *r != results[0]),
            "{}: one result for every row",
            probe.statement
        );
        text += &probe.record(&outcome);
        wanted.push((probe.statement.to_owned(), outcome));
    }
    assert_eq!(read(&text), wanted);
}

/// Approximations of transcendental functions differ between devices within PTX's bounds.
fn is_approximate(form: &str) -> bool {
    ["ex2", "lg2", "sin", "cos", "tanh", "rsqrt", "approx"]
        .iter()
        .any(|name| form.starts_with(name) || form.contains(".approx"))
}

#[test]
fn recordings_of_gpus_are_what_the_emulator_computes() {
    for (device, text) in FIXTURES {
        for (form, outcome) in read(text) {
            let Outcome::Results(recorded) = outcome else {
                continue;
            };
            let probe = all().into_iter().find(|probe| probe.statement == form);
            let probe = probe.unwrap_or_else(|| panic!("{device}: `{form}` is no probe"));
            if !is_approximate(&form) {
                assert_eq!(
                    emulate(&probe),
                    Outcome::Results(recorded),
                    "{device}: {form}"
                );
            }
        }
    }
}
