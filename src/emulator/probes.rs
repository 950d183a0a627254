//! Probes of single instructions: tiny kernels that any CUDA device runs, over operands that are the same everywhere.
//!
//! The per-instruction tests compare the emulator with scalar models. A probe is the same instruction without a model: its
//! results on a real GPU, recorded once (`neap selftest --record FILE`), are what the emulator has to give as well.
//! [`all`] lists the forms, one line each in `probes.txt`; every elementwise test checks that its form is in the list.

use std::fmt::Write as _;

/// Operand widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 16 bits.
    Half,
    /// 32 bits.
    Word,
    /// 64 bits.
    Double,
    /// A predicate, as 0 or 1.
    Predicate,
}

/// One form of an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// PTX with `{d}` for the result and `{a}`, `{b}`, `{c}`, `{e}` for the operands.
    pub statement: &'static str,
    /// The operands.
    pub inputs: Vec<Kind>,
    /// The result.
    pub output: Kind,
}

/// Recordings of real GPUs that are checked in: device name and the text of `neap selftest --record`. There is none yet.
pub const FIXTURES: &[(&str, &str)] = &[];

/// Rows of operands that a probe computes.
pub const ROWS: usize = 128;

/// Operands of a row.
const COLUMNS: usize = 4;

const NAMES: [&str; COLUMNS] = ["{a}", "{b}", "{c}", "{e}"];

impl Kind {
    fn of(letter: char) -> Option<Kind> {
        Some(match letter {
            'H' => Kind::Half,
            'W' => Kind::Word,
            'D' => Kind::Double,
            'P' => Kind::Predicate,
            _ => return None,
        })
    }

    fn mask(self) -> u64 {
        match self {
            Kind::Half => 0xffff,
            Kind::Word => 0xffff_ffff,
            Kind::Double => u64::MAX,
            Kind::Predicate => 1,
        }
    }

    fn register(self, number: usize) -> String {
        match self {
            Kind::Half => format!("%rs{number}"),
            Kind::Word => format!("%r{number}"),
            Kind::Double => format!("%rd{number}"),
            Kind::Predicate => format!("%p{number}"),
        }
    }

    fn load(self, number: usize, offset: usize) -> String {
        let register = self.register(number);
        match self {
            Kind::Half => format!("ld.global.b16 {register}, [%rd50+{offset}];"),
            Kind::Word => format!("ld.global.b32 {register}, [%rd50+{offset}];"),
            Kind::Double => format!("ld.global.b64 {register}, [%rd50+{offset}];"),
            Kind::Predicate => format!(
                "ld.global.b32 %r{number}, [%rd50+{offset}]; setp.ne.u32 {register}, %r{number}, 0;"
            ),
        }
    }
}

/// All probes, in the order of their statements.
#[must_use]
pub fn all() -> Vec<Probe> {
    include_str!("probes.txt")
        .lines()
        .filter_map(parse)
        .collect()
}

/// `HW>D statement`: letters of the operands, of the result, and the form.
fn parse(line: &'static str) -> Option<Probe> {
    let (kinds, statement) = line.split_once(' ')?;
    let (inputs, output) = kinds.split_once('>')?;
    Some(Probe {
        statement,
        inputs: inputs.chars().map(Kind::of).collect::<Option<_>>()?,
        output: Kind::of(output.chars().next()?)?,
    })
}

/// Edge values of every width and type: integers around powers of two, floats around 0, 1, infinity and NaN.
const EDGES: [u64; 40] = [
    0,
    1,
    2,
    7,
    31,
    32,
    33,
    63,
    64,
    65,
    255,
    0x3c00,
    0x3f80,
    0x7bff,
    0x7c00,
    0x7e00,
    0x7fff,
    0x8000,
    0xbc00,
    0xffff,
    0x0001_0000,
    0x007f_ffff,
    0x0080_0000,
    0x3f00_0000,
    0x3f80_0000,
    0x3f80_0001,
    0x4b00_0001,
    0x7f7f_ffff,
    0x7f80_0000,
    0x7fc0_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xbf80_0000,
    0xff80_0000,
    0xffff_ffff,
    0x3ff0_0000_0000_0000,
    0x7fef_ffff_ffff_ffff,
    0x7ff0_0000_0000_0000,
    0x8000_0000_0000_0000,
    u64::MAX,
];

impl Probe {
    /// The operands, row by row, one value an operand: every edge, then edges and noise of every magnitude.
    #[must_use]
    pub fn operands(&self) -> Vec<Vec<u64>> {
        // FNV-1a of the statement seeds splitmix64, so that a probe's rows do not depend on the others.
        let mut state = self
            .statement
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
            });
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        (0..ROWS)
            .map(|row| {
                let one = |(column, kind): (usize, &Kind)| {
                    let (pick, noise) = (next(), next());
                    let value = if row >= ROWS - 8 {
                        // Equal operands.
                        EDGES[5 * (ROWS - row) % EDGES.len()]
                    } else if row < EDGES.len() {
                        // Every edge once in every operand.
                        EDGES[(row * (2 * column + 1) + 7 * column) % EDGES.len()]
                    } else if pick & 1 == 0 {
                        EDGES[(pick >> 8) as usize % EDGES.len()]
                    } else {
                        noise >> (pick >> 8 & 63)
                    };
                    value & kind.mask()
                };
                self.inputs.iter().enumerate().map(one).collect()
            })
            .collect()
    }

    /// [`Probe::operands`] as the kernel reads them: four 64-bit words a row.
    #[must_use]
    pub fn operand_words(&self) -> Vec<u64> {
        let mut words = Vec::with_capacity(ROWS * COLUMNS);
        for row in self.operands() {
            words.extend((0..COLUMNS).map(|column| row.get(column).copied().unwrap_or(0)));
        }
        words
    }

    /// A PTX module for `target` (such as `sm_90a`) with the variables `operands` ([`ROWS`] times 32 bytes) and `results`
    /// ([`ROWS`] times 8 bytes), and the kernel `probe`, whose one 32-bit parameter is the number of rows.
    #[must_use]
    pub fn module(&self, target: &str) -> String {
        let mut text = format!(
            ".version {}\n.target {target}\n.address_size 64\n\
             .visible .global .align 16 .b8 operands[{}];\n.visible .global .align 16 .b8 results[{}];\n\
             .visible .entry probe(.param .u32 rows) {{\n\
             .reg .pred %p<20>;\n.reg .b16 %rs<60>;\n.reg .b32 %r<100>;\n.reg .b64 %rd<60>;\n.reg .f32 %f<60>;\n.reg .f64 %fd<60>;\n\
             ld.param.u32 %r95, [rows]; mov.u32 %r90, %ctaid.x; mov.u32 %r91, %ntid.x; mov.u32 %r92, %tid.x; mad.lo.u32 %r93, %r90, %r91, %r92;\n\
             setp.ge.u32 %p19, %r93, %r95; @%p19 ret;\n\
             mov.u64 %rd51, operands; mov.u64 %rd52, results; mad.wide.u32 %rd50, %r93, 32, %rd51; mad.wide.u32 %rd53, %r93, 8, %rd52;\n\
             setp.ne.u32 %p18, 0, 1; setp.ne.u32 %p7, 0, 0;\n",
            version_for(target),
            ROWS * COLUMNS * 8,
            ROWS * 8
        );
        let mut statement = self.statement.replace("{d}", &self.output.register(10));
        for (index, kind) in self.inputs.iter().enumerate().take(COLUMNS) {
            text += &kind.load(index + 1, 8 * index);
            text.push('\n');
            statement = statement.replace(NAMES[index], &kind.register(index + 1));
        }
        text += &statement;
        text += ";\n";
        text += match self.output {
            Kind::Half => "cvt.u64.u16 %rd11, %rs10; st.global.b64 [%rd53], %rd11;",
            Kind::Word => "cvt.u64.u32 %rd11, %r10; st.global.b64 [%rd53], %rd11;",
            Kind::Double => "st.global.b64 [%rd53], %rd10;",
            Kind::Predicate => "selp.b64 %rd11, 1, 0, %p10; st.global.b64 [%rd53], %rd11;",
        };
        text += "\nret;\n}\n";
        text
    }

    /// What is written down of a run: the form, then a line a row, operands and result in hexadecimal.
    #[must_use]
    pub fn record(&self, outcome: &Outcome) -> String {
        let mut text = format!("form {}\n", self.statement);
        match outcome {
            Outcome::Refused(reason) => {
                let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
                // Writing to a string does not fail.
                let _ = writeln!(text, "refused {reason}");
            }
            Outcome::Results(results) => {
                for (row, result) in self.operands().iter().zip(results) {
                    for value in row {
                        let _ = write!(text, "{value:x} ");
                    }
                    let _ = writeln!(text, "= {:x}", result & self.output.mask());
                }
            }
        }
        text
    }
}

/// The PTX version that knows a target.
fn version_for(target: &str) -> &'static str {
    let digits: String = target.chars().filter(char::is_ascii_digit).collect();
    match digits.parse::<u32>() {
        Ok(..=89) => "7.8",
        Ok(90) => "8.0",
        _ => "8.6",
    }
}

/// How a probe went on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The device does not have the instruction, or its driver does not know it.
    Refused(String),
    /// The results, one a row.
    Results(Vec<u64>),
}

/// Reads recordings: statements with their outcomes. Lines that are neither are ignored, so that headers may say anything.
#[must_use]
pub fn read(text: &str) -> Vec<(String, Outcome)> {
    let mut found: Vec<(String, Outcome)> = Vec::new();
    for line in text.lines() {
        if let Some(form) = line.strip_prefix("form ") {
            found.push((form.to_owned(), Outcome::Results(Vec::new())));
        } else if let Some((_, outcome)) = found.last_mut() {
            if let Some(reason) = line.strip_prefix("refused ") {
                *outcome = Outcome::Refused(reason.to_owned());
            } else if let (Outcome::Results(results), Some((_, result))) =
                (outcome, line.split_once("= "))
                && let Ok(result) = u64::from_str_radix(result.trim(), 16)
            {
                results.push(result);
            }
        }
    }
    found
}
