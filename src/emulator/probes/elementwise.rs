//! Elementwise forms: a lane computes one row of operands.

use std::collections::HashSet;

use super::{Family, Fill, Needs, Probe, Tolerance, fill};

/// Operand widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

/// One elementwise form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elementwise {
    /// The statement; where several widths of registers share it, with the letters of operands and result behind it.
    pub form: String,
    /// PTX with `{d}` for the result and `{a}`, `{b}`, `{c}`, `{e}` for the operands.
    pub statement: &'static str,
    /// The operands.
    pub inputs: Vec<Kind>,
    /// The result.
    pub output: Kind,
}

const NAMES: [&str; 4] = ["{a}", "{b}", "{c}", "{e}"];

/// Threads of a block, of two.
const THREADS: u32 = 64;

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

    pub(super) fn mask(self) -> u64 {
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

    pub(super) fn load(self, number: usize, at: usize) -> String {
        let register = self.register(number);
        match self {
            Kind::Half => format!("ld.global.b16 {register}, [%in+{at}];"),
            Kind::Word => format!("ld.global.b32 {register}, [%in+{at}];"),
            Kind::Double => format!("ld.global.b64 {register}, [%in+{at}];"),
            Kind::Predicate => format!(
                "ld.global.b32 %r{number}, [%in+{at}]; setp.ne.u32 {register}, %r{number}, 0;"
            ),
        }
    }
}

/// All elementwise forms.
#[must_use]
pub fn elementwise() -> Vec<Elementwise> {
    let lines = include_str!("elementwise.txt").lines();
    let mut all: Vec<Elementwise> = Vec::new();
    let mut seen = HashSet::new();
    for line in lines {
        let Some(mut one) = parse(line) else {
            continue;
        };
        if !seen.insert(one.statement) {
            let kinds = line.split(' ').next().unwrap_or_default();
            one.form = format!("{} ({kinds})", one.statement);
        }
        all.push(one);
    }
    all
}

/// `HW>D statement`: letters of the operands, of the result, and the form.
fn parse(line: &'static str) -> Option<Elementwise> {
    let (kinds, statement) = line.split_once(' ')?;
    let (inputs, output) = kinds.split_once('>')?;
    Some(Elementwise {
        form: statement.to_owned(),
        statement,
        inputs: inputs.chars().map(Kind::of).collect::<Option<_>>()?,
        output: Kind::of(output.chars().next()?)?,
    })
}

impl From<&Elementwise> for Probe {
    fn from(form: &Elementwise) -> Probe {
        let mut statement = form.statement.replace("{d}", &form.output.register(10));
        for (index, kind) in form.inputs.iter().enumerate().take(NAMES.len()) {
            statement = statement.replace(NAMES[index], &kind.register(index + 1));
        }
        let keep = match form.output {
            Kind::Half => "cvt.u32.u16 %o0, %rs10;",
            Kind::Word => "mov.b32 %o0, %r10;",
            Kind::Double => "mov.b64 {%o0, %o1}, %rd10;",
            Kind::Predicate => "selp.b32 %o0, 1, 0, %p10;",
        };
        // Predicates and registers that statements with more than one part use.
        let before = "setp.ne.u32 %p7, %z, 0; setp.ne.u32 %p19, %z, 0; mov.b16 %rs40, 0; mov.b16 {%c1, %c2}, %rs40;";
        let opcode = principal(form.statement);
        let words = if form.output == Kind::Double { 2 } else { 1 };
        let inputs: Vec<Fill> = form
            .inputs
            .iter()
            .map(|&kind| Fill::Operand(kind))
            .collect();
        let mut probe = Probe::new(family(opcode), form.form.as_str(), words)
            .inputs(inputs)
            .needs(needs(opcode))
            .floats(result_type(opcode))
            .body(format!("{before}\n{statement};\n{keep}"));
        (probe.threads, probe.blocks) = (THREADS, 2);
        if is_approximate(opcode) {
            probe.tolerance = Tolerance::Approximate;
        }
        probe
    }
}

/// The opcode that a statement is about: its first that does more than move.
fn principal(statement: &str) -> &str {
    let opcodes = statement
        .split("; ")
        .filter_map(|part| part.split(' ').next());
    let mut about = opcodes.filter(|opcode| !opcode.starts_with("mov."));
    about
        .next()
        .unwrap_or_else(|| statement.split(' ').next().unwrap_or_default())
}

fn family(opcode: &str) -> Family {
    let base = opcode.split('.').next().unwrap_or_default();
    match base {
        "cvt" => Family::Conversion,
        "setp" | "set" | "selp" | "slct" | "testp" => Family::Comparison,
        "mov" => Family::Move,
        "and" | "or" | "xor" | "not" | "cnot" | "lop3" | "shl" | "shr" | "shf" | "bfe" | "bfi"
        | "bfind" | "bmsk" | "szext" | "brev" | "popc" | "clz" | "fns" | "prmt" => Family::Bits,
        _ => Family::Arithmetic,
    }
}

/// PTX ISA, the instructions' target notes.
fn needs(opcode: &str) -> Needs {
    let parts: Vec<&str> = opcode.split('.').collect();
    let has = |part: &str| parts.contains(&part);
    let any = |names: &[&str]| names.iter().any(|name| has(name));
    let base = parts[0];
    if any(&["e2m1x2", "e2m3x2", "e3m2x2", "ue8m0x2"]) {
        Needs::BLACKWELL_ONLY
    } else if any(&["e4m3x2", "e5m2x2"]) {
        Needs::new(89, 81)
    } else if any(&["s16x2", "u16x2"]) {
        Needs::HOPPER
    } else if matches!(base, "add" | "sub" | "mul" | "set" | "setp") && any(&["bf16", "bf16x2"])
        || base == "cvt" && has("bf16") && !has("f32")
        || base == "cvt" && has("tf32") && !has("rna")
    {
        Needs::new(90, 78)
    } else if has("xorsign") {
        Needs::new(86, 78)
    } else if base == "lop3" && has("or") {
        Needs::AMPERE.ptx(82)
    } else {
        Needs::AMPERE
    }
}

/// The type of the result, where it is a floating-point type.
fn result_type(opcode: &str) -> &'static str {
    let mut parts = opcode.split('.');
    let base = parts.next().unwrap_or_default();
    let types: Vec<&str> = parts
        .filter(|part| fill::is_float(part) || is_integer(part))
        .collect();
    let ty = match base {
        // What moves or compares bits keeps NaNs as they are, or makes none.
        "mov" | "selp" | "slct" | "setp" | "testp" | "copysign" => None,
        "cvt" | "set" => types.first(),
        _ => types.last(),
    };
    match ty.copied() {
        Some("f16") => "f16",
        Some("bf16") => "bf16",
        Some("f16x2") => "f16x2",
        Some("bf16x2") => "bf16x2",
        Some("f32") => "f32",
        Some("f64") => "f64",
        _ => "",
    }
}

fn is_integer(part: &str) -> bool {
    let digits = part.trim_start_matches(['s', 'u', 'b']);
    digits.len() < part.len() && digits.parse::<u32>().is_ok()
}

/// Approximations of transcendental functions and reciprocals differ between devices within PTX's bounds.
fn is_approximate(opcode: &str) -> bool {
    let base = opcode.split('.').next().unwrap_or_default();
    matches!(base, "ex2" | "lg2" | "sin" | "cos" | "tanh" | "rsqrt")
        || opcode
            .split('.')
            .any(|part| part == "approx" || part == "full")
}

/// Whether the PTX ISA leaves the result of these operands open: integer "div" and "rem" by zero yield an unspecified,
/// machine-specific value, and the base of "fns" has to be a bit's number.
pub(super) fn leaves_open(form: &str, operands: &[u64]) -> bool {
    let opcode = principal(form);
    let (base, ty) = (opcode.split('.').next(), opcode.rsplit('.').next());
    match base {
        Some("div" | "rem") => ty.is_some_and(is_integer) && operands[1] == 0,
        Some("fns") => operands[1] > 31,
        _ => false,
    }
}
