//! Scalar models of the probes that are no elementwise statements, written from the PTX ISA: what each thread's result words
//! are for its operands.

mod asynchronous;
mod atomic;
mod barrier;
mod control;
pub mod matrix;
mod memory;
mod space;
mod tensor;
mod warp;
mod warpgroup;
mod wmma;

use neap::emulator::probes::{Family, Probe};

/// The result words of all threads, one after the other.
pub fn expected(probe: &Probe) -> Vec<u32> {
    let scene = Scene {
        form: &probe.form,
        rows: probe.operands(),
        threads: probe.threads as usize,
        words: probe.words,
    };
    let rows = match probe.family {
        Family::Memory => memory::model(&scene),
        Family::Atomic => atomic::model(&scene),
        Family::Warp => warp::model(&scene),
        Family::Barrier => barrier::model(&scene),
        Family::Matrix => matrix::model(&scene),
        Family::Space => space::model(&scene),
        Family::Warpgroup => warpgroup::model(&scene),
        Family::Asynchronous => match &probe.map {
            Some(map) => tensor::model(&scene, map),
            None => asynchronous::model(&scene),
        },
        Family::Control => control::model(&scene),
        family => panic!("{}: no models of the family `{family}`", probe.form),
    };
    assert_eq!(
        rows.len(),
        probe.rows(),
        "{}: threads of the model",
        probe.form
    );
    let mut all = Vec::new();
    for row in rows {
        assert!(
            row.len() <= probe.words,
            "{}: {} words",
            probe.form,
            row.len()
        );
        all.extend(&row);
        all.resize(all.len() + probe.words - row.len(), 0);
    }
    // The bytes of the results, so that what is left open is left open here, too.
    let stride = (4 * probe.words).next_multiple_of(16);
    let mut bytes = Vec::new();
    for row in all.chunks(probe.words) {
        let start = bytes.len();
        bytes.extend(row.iter().flat_map(|word| word.to_le_bytes()));
        bytes.resize(start + stride, 0);
    }
    probe.results(&bytes)
}

/// A probe and its operands.
pub struct Scene<'a> {
    pub form: &'a str,
    /// One value a column, thread by thread.
    pub rows: Vec<Vec<u64>>,
    /// Threads of a block.
    pub threads: usize,
    /// Result words of a thread.
    pub words: usize,
}

impl Scene<'_> {
    /// The opcode's parts, without what is said in brackets behind it.
    pub fn parts(&self) -> Vec<&str> {
        let opcode = self.form.split(' ').next().expect("an opcode");
        opcode.split('.').collect()
    }

    pub fn has(&self, part: &str) -> bool {
        self.parts().contains(&part)
    }

    /// The words that `f` makes of each thread's number and operands.
    pub fn each(&self, f: impl Fn(usize, &[u64]) -> Vec<u32>) -> Vec<Vec<u32>> {
        self.rows
            .iter()
            .enumerate()
            .map(|(thread, row)| f(thread, row))
            .collect()
    }
}

/// Bytes of an element.
pub fn type_bytes(ty: &str) -> usize {
    match ty {
        "b8" | "u8" | "s8" => 1,
        "b16" | "u16" | "s16" | "f16" | "bf16" => 2,
        "b64" | "u64" | "s64" | "f64" => 8,
        "b128" => 16,
        _ => 4,
    }
}

/// Words of little-endian bytes.
pub fn words(bytes: &[u8]) -> Vec<u32> {
    let one = |c: &[u8]| u32::from_le_bytes(c.try_into().expect("4 bytes"));
    bytes.chunks(4).map(one).collect()
}
