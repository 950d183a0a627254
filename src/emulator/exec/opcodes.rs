//! How often each opcode of a kernel ran.

use super::KernelCode;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What an instruction does, as profilers group them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum InstructionClass {
    /// Arithmetic and comparisons of 16-bit and 32-bit floats.
    Float,
    /// Arithmetic and comparisons of 64-bit floats.
    Double,
    /// Approximations: `ex2`, `rcp`, `tanh`, ...
    Special,
    /// Arithmetic, logic and comparisons of integers and predicates.
    Integer,
    /// `cvt`.
    Conversion,
    /// Moves and selections.
    Move,
    /// Loads and stores of every space, copies, prefetches.
    Memory,
    /// Atomic operations and reductions in memory.
    Atomic,
    /// Tensor-core instructions and what moves their operands.
    Matrix,
    /// Exchange between the lanes of a warp.
    Exchange,
    /// Barriers, fences, mbarriers and waits.
    Synchronization,
    /// Branches, calls, exits.
    Control,
}

impl InstructionClass {
    /// The class of a PTX opcode, `fma.rn.f32`.
    #[must_use]
    pub fn of(opcode: &str) -> InstructionClass {
        use InstructionClass::*;
        let mut parts = opcode.split('.');
        let base = parts.next().unwrap_or_default();
        let has = |part: &str| opcode.split('.').skip(1).any(|other| other == part);
        match base {
            "mma" | "wgmma" | "ldmatrix" | "stmatrix" | "movmatrix"
                if !has("fence") && !has("wait_group") =>
            {
                Matrix
            }
            "wmma" if has("load") || has("store") => Memory,
            "wmma" => Matrix,
            "atom" | "red" => Atomic,
            "cp" if has("commit_group") || has("wait_group") || has("wait_all") => Synchronization,
            "ld" | "ldu" | "st" | "cp" | "prefetch" | "prefetchu" | "discard" | "tensormap" => {
                Memory
            }
            "bar" | "barrier" | "membar" | "fence" | "mbarrier" | "wgmma" | "nanosleep"
            | "griddepcontrol" => Synchronization,
            "shfl" | "vote" | "match" | "redux" | "activemask" | "elect" => Exchange,
            "bra" | "brx" | "call" | "ret" | "exit" | "trap" | "brkpt" => Control,
            "mov" | "selp" | "slct" | "cvta" | "mapa" => Move,
            "cvt" => Conversion,
            "ex2" | "lg2" | "sin" | "cos" | "tanh" | "rcp" | "rsqrt" | "sqrt" => Special,
            _ if has("f64") => Double,
            _ if ["f32", "f16", "bf16", "f16x2", "bf16x2"]
                .into_iter()
                .any(has) =>
            {
                Float
            }
            _ => Integer,
        }
    }
}

/// Warp-level executions of one kernel's instructions by opcode. An instruction counts as the statement it came from; moves
/// that the loader propagated away do not count.
pub type OpcodeCounts = BTreeMap<String, u64>;

/// Collects [`OpcodeCounts`] by kernel name from the launches that have it in their [`ExecOptions`](super::ExecOptions).
#[derive(Clone, Debug, Default)]
pub struct OpcodeTally(Arc<Mutex<BTreeMap<String, OpcodeCounts>>>);

impl OpcodeTally {
    /// What has been counted so far.
    #[must_use]
    pub fn kernels(&self) -> BTreeMap<String, OpcodeCounts> {
        self.lock().clone()
    }

    /// Adds how often each instruction of `kernel` ran.
    pub(super) fn add(&self, kernel: &KernelCode, executed: &[u64]) {
        let mut kernels = self.lock();
        let counts = kernels.entry(kernel.name.clone()).or_default();
        for (ins, &times) in kernel.code.instructions.iter().zip(executed) {
            if times == 0 {
                continue;
            }
            let text = &kernel.text[kernel.statements[ins.statement as usize].text.clone()];
            let mut words = text.split_whitespace();
            let opcode = words
                .find(|word| !word.starts_with('@'))
                .unwrap_or_default()
                .trim_end_matches(';');
            match counts.get_mut(opcode) {
                Some(count) => *count += times,
                None => {
                    counts.insert(opcode.to_owned(), times);
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, OpcodeCounts>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
