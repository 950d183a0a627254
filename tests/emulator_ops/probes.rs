//! The probes that `neap selftest --record` runs: what the emulator computes for them is what scalar models say, or, for
//! elementwise ones, what the tests of their statement say (`elementwise::check_with` takes a probe's operands along);
//! all are written down and read back as they are; recordings of GPUs, as far as there are any, are what the emulator
//! computes.

use std::collections::{BTreeMap, HashSet};

use super::harness::{Memory, load};
use super::probe_models;
use neap::driver::TiledTensor;
use neap::emulator::exec::{ExecOptions, LaunchSpec, TensorMap, run};
use neap::emulator::probes::{
    FIXTURES, Family, GIVEN, Outcome, Probe, Recorded, Tolerance, all, elementwise, read,
};

pub fn emulate(probe: &Probe) -> Outcome {
    let mut memory = Memory::new(1 << 18);
    // What a device has at most.
    let text = probe.module(&probe.needs.target());
    let module = match load(&mut memory, &text) {
        Ok(module) => module,
        Err(error) => return Outcome::Refused(format!("{error}\n{text}")),
    };
    let (operands, _) = module.global("operands").expect("the operands");
    let (results, _) = module.global("results").expect("the results");
    memory.write(operands, &probe.operand_bytes());
    memory.write(results, &vec![0u8; probe.results_bytes()]);
    if let Some(map) = &probe.map {
        let (tensor, _) = module.global(map.variable).expect("the tensor");
        let (place, _) = module.global("map").expect("the map's place");
        memory.write(place, &encoded(&map.tensor, tensor));
    }
    let kernel = module.kernel("probe").expect("the kernel");
    let spec = LaunchSpec {
        kernel: &kernel,
        grid: [probe.blocks, 1, 1],
        block: [probe.threads, 1, 1],
        cluster: [0; 3],
        cooperative: None,
        dynamic_shared_bytes: 0,
        params: bytemuck::cast_slice(&GIVEN),
    };
    match run(&spec, &memory, &ExecOptions::default()) {
        Ok(_) => Outcome::Results(probe.results(&memory.get(results, probe.results_bytes()))),
        Err(fault) => Outcome::Failed(format!("{fault}\n{text}")),
    }
}

/// The emulator's tensor map.
fn encoded(tensor: &TiledTensor, address: u64) -> [u64; 16] {
    fn axes<T: Copy, U: From<u8>>(list: &[T], rest: u8, f: impl Fn(T) -> U) -> [U; 5] {
        std::array::from_fn(|axis| list.get(axis).map_or(U::from(rest), |&value| f(value)))
    }
    let [a, b, c, d, _] = axes(&tensor.strides, 0, |stride| stride);
    let map = TensorMap {
        data_type: tensor.element as u8,
        rank: tensor.dims.len() as u8,
        swizzle: tensor.swizzle().expect("a swizzle") as u8,
        nan_fill: tensor.nan_fill,
        address,
        dims: axes(&tensor.dims, 1, |size| size),
        strides: [a, b, c, d],
        box_dims: axes(&tensor.box_dims, 1, |size| size as u16),
        element_strides: axes(&tensor.element_strides, 1, |step| step as u8),
    };
    map.validate().expect("a map that the driver would take");
    map.encode()
}

fn results(probe: &Probe) -> Vec<u32> {
    match emulate(probe) {
        Outcome::Results(results) => results,
        outcome => panic!("{}: {outcome:?}", probe.form),
    }
}

#[test]
fn forms_are_told_apart() {
    let probes = all();
    let forms: HashSet<&str> = probes.iter().map(|probe| probe.form.as_str()).collect();
    assert_eq!(forms.len(), probes.len(), "a form is listed twice");
}

#[test]
fn every_probe_runs_and_is_read_back() {
    let mut text = String::from("device: the emulator\n");
    let mut wanted = Vec::new();
    for probe in all() {
        let outcome = Outcome::Results(results(&probe));
        text += &probe.record(&outcome);
        wanted.push(Recorded {
            operand_hash: probe.operand_hash(),
            form: probe.form,
            outcome,
        });
    }
    for outcome in [
        Outcome::Refused("needs sm_90a".into()),
        Outcome::Failed("it hangs".into()),
    ] {
        let probe = &all()[0];
        text += &probe.record(&outcome);
        wanted.push(Recorded {
            operand_hash: probe.operand_hash(),
            form: probe.form.clone(),
            outcome,
        });
    }
    assert_eq!(read(&text), wanted);
}

/// A probe that gives one result whatever its operands are would tell little.
#[test]
fn elementwise_results_depend_on_the_operands() {
    for form in elementwise() {
        let results = results(&Probe::from(&form));
        // Truth tables of nothing and of everything are forms, too.
        let constant = form.statement.starts_with("lop3");
        assert!(
            constant || results.iter().any(|r| *r != results[0]),
            "{}: one result for every row",
            form.statement
        );
    }
}

#[test]
fn probes_give_what_their_models_say() {
    let statements: HashSet<String> = elementwise().into_iter().map(|form| form.form).collect();
    let mut wrong = Vec::new();
    let mut count = BTreeMap::new();
    for probe in all() {
        if statements.contains(&probe.form) {
            continue;
        }
        *count.entry(probe.family).or_insert(0) += 1;
        let got = match emulate(&probe) {
            Outcome::Results(results) => results,
            outcome => {
                wrong.push(format!("{}: {outcome:?}", probe.form));
                continue;
            }
        };
        let want = probe_models::expected(&probe);
        if let Some(at) = (0..want.len().max(got.len())).find(|&at| got.get(at) != want.get(at)) {
            let thread = at / probe.words;
            wrong.push(format!(
                "{}: thread {thread}, word {}: {:x?}, the model says {:x?}; operands {:x?}",
                probe.form,
                at % probe.words,
                &got[thread * probe.words..][..probe.words.min(16)],
                &want[thread * probe.words..][..probe.words.min(16)],
                probe.operands()[thread]
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {count:?}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// The forms that nvcc makes of kernels like ours, for sm_80 and sm_90a, a line each.
const OF_KERNELS: &str = include_str!("kernel_opcodes.txt");

#[test]
fn what_compilers_make_of_kernels_is_probed() {
    let mut probed: HashSet<String> = HashSet::new();
    for form in elementwise() {
        let statements = form
            .statement
            .split("; ")
            .filter_map(|part| part.split(' ').next());
        probed.extend(statements.map(str::to_owned));
    }
    // Instructions that only work together are in each other's probes.
    for probe in all().iter().filter(|probe| probe.family > Family::Move) {
        let text = probe.module(&probe.needs.target());
        let statements = text.split([';', '\n', '{', '}']).map(|part| {
            let part = part.rsplit(": ").next().unwrap_or_default().trim();
            let part = part.strip_prefix('@').map_or(part, |rest| {
                rest.split_once(' ').map_or("", |(_, statement)| statement)
            });
            part.split_whitespace()
                .next()
                .unwrap_or_default()
                .to_owned()
        });
        probed.extend(statements);
    }
    // PTX ISA: `.shared` is `.shared::cta`.
    let probed: HashSet<String> = probed
        .iter()
        .map(|opcode| opcode.replace("shared::cta", "shared"))
        .collect();
    let missing: Vec<&str> = OF_KERNELS
        .lines()
        .filter(|opcode| !probed.contains(&opcode.replace("shared::cta", "shared")))
        .collect();
    assert!(missing.is_empty(), "no probe has {missing:#?}");
}

#[test]
fn recordings_of_gpus_are_what_the_emulator_computes() {
    let probes = all();
    for (device, text) in FIXTURES {
        for recorded in read(text) {
            let form = &recorded.form;
            let probe = probes.iter().find(|probe| probe.form == *form);
            let probe = probe.unwrap_or_else(|| panic!("{device}: `{form}` is no probe"));
            assert_eq!(
                recorded.operand_hash,
                probe.operand_hash(),
                "{device}: `{form}` was recorded with other operands: record it again"
            );
            match recorded.outcome {
                Outcome::Results(results) if probe.tolerance == Tolerance::Exact => {
                    assert_eq!(
                        emulate(probe),
                        Outcome::Results(results),
                        "{device}: {form}"
                    );
                }
                Outcome::Failed(reason) => panic!("{device}: {form}: {reason}"),
                _ => {}
            }
        }
    }
}
