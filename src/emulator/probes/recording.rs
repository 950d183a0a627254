//! What is written down of a run, and read again.

use std::fmt::Write as _;

use super::{Probe, fill};

/// Recordings of real GPUs that are checked in: device name and the text of `neap selftest --record`. There is none yet.
pub const FIXTURES: &[(&str, &str)] = &[];

/// How a probe went on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The device does not have the instruction, or its driver does not know it.
    Refused(String),
    /// The launch failed: an instruction that does not do what the PTX ISA says, or a mistake in the probe.
    Failed(String),
    /// The result words, thread by thread.
    Results(Vec<u32>),
}

/// A probe's run, as it was read from a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// [`Probe::form`].
    pub form: String,
    /// [`Probe::operand_hash`] at the time.
    pub operand_hash: u64,
    /// How it went.
    pub outcome: Outcome,
}

impl Probe {
    /// FNV-1a of the operands and the parameter: a recording of other operands says nothing.
    #[must_use]
    pub fn operand_hash(&self) -> u64 {
        let mut bytes = self.operand_bytes();
        bytes.extend(super::GIVEN.iter().flat_map(|word| word.to_le_bytes()));
        fill::fnv1a(&bytes)
    }

    /// What is written down of a run: the form, a hash of the operands, then the result words of a thread a line, in
    /// hexadecimal.
    #[must_use]
    pub fn record(&self, outcome: &Outcome) -> String {
        let mut text = format!("form {}\noperands {:x}\n", self.form, self.operand_hash());
        // Writing to a string does not fail.
        match outcome {
            Outcome::Refused(reason) => {
                let _ = writeln!(text, "refused {}", one_line(reason));
            }
            Outcome::Failed(reason) => {
                let _ = writeln!(text, "failed {}", one_line(reason));
            }
            Outcome::Results(results) => {
                for row in results.chunks(self.words.max(1)) {
                    text.push('=');
                    for word in row {
                        let _ = write!(text, " {word:x}");
                    }
                    text.push('\n');
                }
            }
        }
        text
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Reads a recording. Lines that belong to no form are ignored, so that headers may say anything.
#[must_use]
pub fn read(text: &str) -> Vec<Recorded> {
    let mut found: Vec<Recorded> = Vec::new();
    for line in text.lines() {
        if let Some(form) = line.strip_prefix("form ") {
            found.push(Recorded {
                form: form.to_owned(),
                operand_hash: 0,
                outcome: Outcome::Results(Vec::new()),
            });
            continue;
        }
        let Some(last) = found.last_mut() else {
            continue;
        };
        if let Some(hash) = line.strip_prefix("operands ") {
            last.operand_hash = u64::from_str_radix(hash.trim(), 16).unwrap_or(0);
        } else if let Some(reason) = line.strip_prefix("refused ") {
            last.outcome = Outcome::Refused(reason.to_owned());
        } else if let Some(reason) = line.strip_prefix("failed ") {
            last.outcome = Outcome::Failed(reason.to_owned());
        } else if let (Outcome::Results(results), Some(words)) =
            (&mut last.outcome, line.strip_prefix('='))
        {
            let words = words.split_whitespace();
            results.extend(words.filter_map(|word| u32::from_str_radix(word, 16).ok()));
        }
    }
    found
}
