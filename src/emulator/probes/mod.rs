//! Probes of single instructions: tiny kernels that any CUDA device runs, over operands that are the same everywhere.
//!
//! The per-instruction tests compare the emulator with scalar models. A probe is an instruction in a kernel of plain PTX
//! whose result is the same on every device that follows the PTX ISA: its results on a real GPU, recorded once (`neap
//! selftest --record FILE`), are what the emulator has to give as well. [`all`] lists the forms. Elementwise ones (a lane
//! computes a row) stand in `elementwise.txt`, one line each; the others are made by the module of their family.

mod asynchronous;
mod atomic;
mod barrier;
mod control;
mod elementwise;
mod fill;
mod matrix;
mod memory;
mod recording;
mod space;
mod tensor;
mod warp;
mod warpgroup;
mod wmma;

pub use elementwise::{Elementwise, Kind, elementwise};
pub use fill::{Fill, Pattern};
pub use memory::CONSTANTS;
pub use recording::{FIXTURES, Outcome, Recorded, read};
pub use tensor::{Changed, Map};

use std::fmt;
use std::fmt::Write as _;

/// What a form belongs to, as the PTX ISA's chapters group them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Family {
    /// Integer and floating-point arithmetic.
    Arithmetic,
    /// Logic, shifts, fields of bits, permutations of bytes.
    Bits,
    /// `cvt`.
    Conversion,
    /// Comparisons, and selections by their result.
    Comparison,
    /// `mov`, packing and unpacking, special registers.
    Move,
    /// Loads and stores, and instructions about caches.
    Memory,
    /// Addresses of one space in another.
    Space,
    /// `atom` and `red`.
    Atomic,
    /// Exchange within a warp.
    Warp,
    /// Barriers, fences and mbarriers.
    Barrier,
    /// `ldmatrix`, `stmatrix`, `movmatrix`, `mma`, `wmma`.
    Matrix,
    /// `wgmma`.
    Warpgroup,
    /// Copies, stores and reductions that complete later.
    Asynchronous,
    /// Branches, calls, the stack.
    Control,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Arithmetic => "arithmetic",
            Family::Bits => "bits",
            Family::Conversion => "conversion",
            Family::Comparison => "comparison",
            Family::Move => "move",
            Family::Memory => "memory",
            Family::Space => "space",
            Family::Atomic => "atomic",
            Family::Warp => "warp",
            Family::Barrier => "barrier",
            Family::Matrix => "matrix",
            Family::Warpgroup => "warpgroup",
            Family::Asynchronous => "asynchronous",
            Family::Control => "control",
        })
    }
}

/// The first target and PTX version that have an instruction (the PTX ISA's "Target ISA Notes" and "PTX ISA Notes").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Needs {
    /// Compute capability: ten times the major number, and the minor one.
    pub capability: u32,
    /// The instruction is there in this architecture alone (`sm_90a`).
    pub specific: bool,
    /// PTX version: ten times the major number, and the minor one.
    pub ptx: u32,
}

impl Needs {
    pub(crate) const AMPERE: Needs = Needs::new(80, 78);
    pub(crate) const HOPPER: Needs = Needs::new(90, 80);
    pub(crate) const HOPPER_ONLY: Needs = Needs {
        specific: true,
        ..Needs::HOPPER
    };
    pub(crate) const BLACKWELL_ONLY: Needs = Needs {
        capability: 100,
        specific: true,
        ptx: 86,
    };

    pub(crate) const fn new(capability: u32, ptx: u32) -> Needs {
        Needs {
            capability,
            specific: false,
            ptx,
        }
    }

    /// This, from a PTX version on.
    pub(crate) const fn ptx(self, ptx: u32) -> Needs {
        Needs { ptx, ..self }
    }

    /// Whether a device of this compute capability (ten times the major number, and the minor one) has the instruction.
    #[must_use]
    pub fn runs_on(self, capability: u32) -> bool {
        if self.specific {
            capability == self.capability
        } else {
            capability >= self.capability
        }
    }

    /// The target that has just what is needed, such as `sm_90a`.
    #[must_use]
    pub fn target(self) -> String {
        format!(
            "sm_{}{}",
            self.capability,
            if self.specific { "a" } else { "" }
        )
    }
}

/// How close two devices' results of a probe have to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tolerance {
    /// Bit for bit: PTX leaves nothing open, or operands are such that nothing is rounded.
    Exact,
    /// An approximation of f32 or f16 values: devices may differ within the error that PTX states for the instruction.
    Approximate,
}

/// One form of an instruction in a kernel of its own.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The form: a statement with `{d}` for the result and `{a}`, `{b}`, `{c}`, `{e}` for operands, or an opcode.
    pub form: String,
    /// What it belongs to.
    pub family: Family,
    /// Where it exists.
    pub needs: Needs,
    /// How its results are compared.
    pub tolerance: Tolerance,
    /// Operands of a thread, column by column.
    pub inputs: Vec<Fill>,
    /// Threads of a block.
    pub threads: u32,
    /// Blocks of the grid.
    pub blocks: u32,
    /// Blocks of a cluster, declared by the kernel itself.
    pub cluster: u32,
    /// Result words (32 bits) of a thread.
    pub words: usize,
    /// What the module's variable `map`, 64-byte aligned, has to hold before the launch.
    pub map: Option<Map>,
    /// Leading result words that are the registers `%o0`, ...; the body stores the others itself.
    stored: usize,
    /// The floating-point type of the results, whose NaNs all count as one.
    floats: Option<&'static str>,
    shared_bytes: u32,
    /// Registers of a thread that the kernel declares, 0 for none.
    registers: u32,
    /// Text of the module before the kernel; `{n}` stands for what makes a name unique.
    globals: String,
    body: String,
}

/// Bytes of the kernels' one parameter.
pub const GIVEN_BYTES: usize = 32;

/// The kernels' one parameter, `given`.
pub const GIVEN: [u32; GIVEN_BYTES / 4] = [
    0x8877_6655,
    0x4433_2211,
    0xfffe_fdfc,
    0x7f80_8182,
    0x3f80_0000,
    0xbff0_0000,
    0x0000_8001,
    0xdead_beef,
];

/// All probes, family by family in the order of their making; forms are unique.
#[must_use]
pub fn all() -> Vec<Probe> {
    let mut probes: Vec<Probe> = elementwise().iter().map(Probe::from).collect();
    memory::list(&mut probes);
    space::list(&mut probes);
    atomic::list(&mut probes);
    warp::list(&mut probes);
    barrier::list(&mut probes);
    matrix::list(&mut probes);
    wmma::list(&mut probes);
    warpgroup::list(&mut probes);
    asynchronous::list(&mut probes);
    tensor::list(&mut probes);
    control::list(&mut probes);
    probes
}

/// Modules that hold the kernels of all `probes`, one a target and PTX version: the target and the text. For a compiler
/// to check.
#[must_use]
pub fn modules(probes: &[Probe]) -> Vec<(Needs, String)> {
    let mut all: Vec<(Needs, String)> = Vec::new();
    for (number, probe) in probes.iter().enumerate() {
        let known = all.iter().position(|(needs, _)| *needs == probe.needs);
        let index = known.unwrap_or_else(|| {
            let head = header(&probe.needs.target(), probe.needs.ptx);
            all.push((probe.needs, head));
            all.len() - 1
        });
        // The form is there for a compiler's messages to be understood.
        all[index].1 += &format!("// {}\n{}", probe.form, probe.entry(&number.to_string()));
    }
    all
}

fn header(target: &str, ptx: u32) -> String {
    format!(
        ".version {}.{}\n.target {target}\n.address_size 64\n",
        ptx / 10,
        ptx % 10
    )
}

/// The PTX version that knows a target.
fn version_for(target: &str) -> u32 {
    let digits: String = target.chars().filter(char::is_ascii_digit).collect();
    match digits.parse::<u32>() {
        Ok(..=89) => 78,
        Ok(90) => 80,
        _ => 86,
    }
}

impl Probe {
    /// A probe of one warp without shared memory whose results are `stored` registers `%o0`, ...
    pub(super) fn new(family: Family, form: impl Into<String>, stored: usize) -> Probe {
        Probe {
            form: form.into(),
            family,
            needs: Needs::AMPERE,
            tolerance: Tolerance::Exact,
            inputs: Vec::new(),
            threads: 32,
            blocks: 1,
            cluster: 1,
            words: stored,
            map: None,
            stored,
            floats: None,
            shared_bytes: 0,
            registers: 0,
            globals: String::new(),
            body: String::new(),
        }
    }

    pub(super) fn body(self, body: impl Into<String>) -> Probe {
        Probe {
            body: body.into(),
            ..self
        }
    }

    pub(super) fn inputs(self, inputs: impl Into<Vec<Fill>>) -> Probe {
        Probe {
            inputs: inputs.into(),
            ..self
        }
    }

    pub(super) fn needs(self, needs: Needs) -> Probe {
        Probe { needs, ..self }
    }

    pub(super) fn threads(self, threads: u32) -> Probe {
        Probe { threads, ..self }
    }

    pub(super) fn shared(self, shared_bytes: u32) -> Probe {
        Probe {
            shared_bytes,
            ..self
        }
    }

    /// Registers that each thread has at first.
    pub(super) fn registers(self, registers: u32) -> Probe {
        Probe { registers, ..self }
    }

    /// A grid of one cluster of so many blocks.
    pub(super) fn cluster(self, blocks: u32) -> Probe {
        Probe {
            blocks,
            cluster: blocks,
            ..self
        }
    }

    /// Result words that the body stores itself, behind the registers.
    pub(super) fn memory(self, words: usize) -> Probe {
        Probe {
            words: self.stored + words,
            ..self
        }
    }

    /// A tensor map for the kernel.
    pub(super) fn mapped(self, map: Map) -> Probe {
        Probe {
            map: Some(map),
            ..self
        }
    }

    pub(super) fn globals(self, globals: impl Into<String>) -> Probe {
        Probe {
            globals: globals.into(),
            ..self
        }
    }

    pub(super) fn floats(self, ty: &'static str) -> Probe {
        let floats = fill::is_float(ty).then_some(ty);
        Probe { floats, ..self }
    }

    /// Threads of the grid: rows of operands and results.
    #[must_use]
    pub fn rows(&self) -> usize {
        (self.threads * self.blocks) as usize
    }

    /// Bytes from one thread's operands to the next one's.
    fn row_bytes(&self) -> usize {
        let bytes: usize = self.inputs.iter().map(|fill| fill.bytes()).sum();
        bytes.next_multiple_of(32)
    }

    /// Bytes from one thread's results to the next one's.
    fn result_bytes(&self) -> usize {
        (4 * self.words).next_multiple_of(16)
    }

    /// The operands, thread by thread, one value a column.
    #[must_use]
    pub fn operands(&self) -> Vec<Vec<u64>> {
        fill::rows(&self.form, &self.inputs, self.rows())
    }

    /// [`Probe::operands`] as they lie in the variable `operands`.
    #[must_use]
    pub fn operand_bytes(&self) -> Vec<u8> {
        let stride = self.row_bytes();
        let mut bytes = vec![0; stride * self.rows()];
        for (row, values) in self.operands().iter().enumerate() {
            let mut at = row * stride;
            for (fill, value) in self.inputs.iter().zip(values) {
                let all = value.to_le_bytes();
                bytes[at..at + fill.bytes()].copy_from_slice(&all[..fill.bytes()]);
                at += fill.bytes();
            }
        }
        bytes
    }

    /// Bytes of the variable `results`.
    #[must_use]
    pub fn results_bytes(&self) -> usize {
        self.result_bytes() * self.rows()
    }

    /// The result words, thread by thread, from the bytes of the variable `results`. What PTX leaves open is 0 in them, and
    /// every NaN is the type's canonical one.
    #[must_use]
    pub fn results(&self, bytes: &[u8]) -> Vec<u32> {
        let mut words = Vec::with_capacity(self.words * self.rows());
        for row in bytes.chunks(self.result_bytes().max(1)) {
            let all = row.chunks_exact(4).take(self.words);
            words.extend(all.map(|word| word.iter().rev().fold(0, |w, b| w << 8 | u32::from(*b))));
        }
        if let Some(ty) = self.floats {
            fill::canonical_nans(ty, &mut words);
        }
        if self.family <= Family::Move {
            let rows = self.operands();
            for (row, result) in rows.iter().zip(words.chunks_mut(self.words)) {
                if self.leaves_open(row) {
                    result.fill(0);
                }
            }
        }
        words
    }

    /// Whether the PTX ISA leaves open what an elementwise form gives for these operands.
    #[must_use]
    pub fn leaves_open(&self, operands: &[u64]) -> bool {
        elementwise::leaves_open(&self.form, operands)
    }

    /// A PTX module for `target` (such as `sm_90a`) with the variables `operands` and `results` and the kernel `probe`,
    /// whose one parameter is [`GIVEN`].
    #[must_use]
    pub fn module(&self, target: &str) -> String {
        header(target, version_for(target).max(self.needs.ptx)) + &self.entry("")
    }

    /// The kernel and its variables, with `suffix` behind their names.
    fn entry(&self, suffix: &str) -> String {
        let mut text = self.globals.replace("{n}", suffix);
        if self.map.is_some() {
            text += &format!(".visible .global .align 64 .b8 map{suffix}[128];\n");
        }
        let (inputs, results) = (self.row_bytes() * self.rows(), self.results_bytes());
        // Writing to a string does not fail.
        let _ = write!(
            text,
            ".visible .global .align 32 .b8 operands{suffix}[{}];\n.visible .global .align 32 .b8 results{suffix}[{}];\n\
             .visible .entry probe{suffix}(.param .align 16 .b8 given[{GIVEN_BYTES}])\n.reqntid {}, 1, 1\n",
            inputs.max(32),
            results.max(32),
            self.threads
        );
        if self.cluster > 1 {
            let _ = writeln!(text, ".reqnctapercluster {}, 1, 1", self.cluster);
        }
        if self.registers > 0 {
            let _ = writeln!(text, ".maxnreg {}", self.registers);
        }
        let _ = write!(
            text,
            "{{\n.reg .pred %p<20>; .reg .b8 %c<8>; .reg .b16 %rs<60>; .reg .b32 %r<100>; .reg .b64 %rd<60>;\n\
             .reg .b32 %a<{0}>; .reg .b64 %b<{0}>; .reg .b32 %o<{1}>; .reg .b32 %t, %lane, %block, %row, %s, %z; .reg .b64 %in, %out;\n",
            self.inputs.len().max(1),
            self.stored.max(1)
        );
        if self.shared_bytes > 0 {
            let _ = writeln!(
                text,
                ".shared .align 1024 .b8 mem[{}]; mov.u32 %s, mem;",
                self.shared_bytes
            );
        }
        let _ = write!(
            text,
            "mov.u32 %z, 0; mov.u32 %t, %tid.x; mov.u32 %lane, %laneid; mov.u32 %block, %ctaid.x; mad.lo.u32 %row, %block, {}, %t;\n\
             mov.u64 %in, operands{suffix}; mad.wide.u32 %in, %row, {}, %in; mov.u64 %out, results{suffix}; mad.wide.u32 %out, %row, {}, %out;\n",
            self.threads,
            self.row_bytes(),
            self.result_bytes()
        );
        let mut at = 0;
        for (column, fill) in self.inputs.iter().enumerate() {
            text += &fill.load(column, at);
            text.push('\n');
            at += fill.bytes();
        }
        for word in 0..self.stored {
            let _ = write!(text, "mov.b32 %o{word}, 0; ");
        }
        text += "\n";
        text += &self.body.replace("{n}", suffix);
        text += "\n";
        for word in 0..self.stored {
            let _ = writeln!(text, "st.global.b32 [%out+{}], %o{word};", 4 * word);
        }
        text += "ret;\n}\n";
        text
    }
}
