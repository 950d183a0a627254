//! `atom` and `red`: every operation and type on a cell of the thread's own, where old and new value are known, and on one
//! cell that all threads share, where only what does not depend on their order is kept.

use super::{Family, Fill, Needs, Pattern, Probe};

/// Operation, type, and where a cell in global memory can have it.
const OPERATIONS: [(&str, &str, Needs); 41] = [
    ("add", "u32", Needs::AMPERE),
    ("add", "s32", Needs::AMPERE),
    ("add", "u64", Needs::AMPERE),
    ("add", "f32", Needs::AMPERE),
    ("add", "f64", Needs::AMPERE),
    ("add.noftz", "f16", Needs::AMPERE),
    ("add.noftz", "f16x2", Needs::AMPERE),
    ("add.noftz", "bf16", Needs::new(90, 78)),
    ("add.noftz", "bf16x2", Needs::new(90, 78)),
    ("min", "u32", Needs::AMPERE),
    ("min", "s32", Needs::AMPERE),
    ("min", "u64", Needs::AMPERE),
    ("min", "s64", Needs::AMPERE),
    ("max", "u32", Needs::AMPERE),
    ("max", "s32", Needs::AMPERE),
    ("max", "u64", Needs::AMPERE),
    ("max", "s64", Needs::AMPERE),
    ("inc", "u32", Needs::AMPERE),
    ("dec", "u32", Needs::AMPERE),
    ("and", "b32", Needs::AMPERE),
    ("and", "b64", Needs::AMPERE),
    ("or", "b32", Needs::AMPERE),
    ("or", "b64", Needs::AMPERE),
    ("xor", "b32", Needs::AMPERE),
    ("xor", "b64", Needs::AMPERE),
    ("exch", "b32", Needs::AMPERE),
    ("exch", "b64", Needs::AMPERE),
    ("exch", "b128", WIDE),
    ("cas", "b16", Needs::AMPERE),
    ("cas", "b32", Needs::AMPERE),
    ("cas", "b64", Needs::AMPERE),
    ("cas", "b128", WIDE),
    // Vectors, in global memory alone.
    ("add.v2", "f32", VECTOR),
    ("add.v4", "f32", VECTOR),
    ("add.noftz.v2", "f16", VECTOR),
    ("add.noftz.v4", "f16", VECTOR),
    ("add.noftz.v2", "bf16", VECTOR),
    ("add.noftz.v2", "f16x2", VECTOR),
    ("add.noftz.v4", "bf16x2", VECTOR),
    ("min.noftz.v2", "f16", VECTOR),
    ("max.noftz.v2", "bf16x2", VECTOR),
];

const WIDE: Needs = Needs::new(90, 83);
const VECTOR: Needs = Needs::new(90, 81);

/// Orderings and scopes, with the operation and type they are tried with.
const ORDERINGS: [&str; 15] = [
    "relaxed.cta",
    "relaxed.gpu",
    "relaxed.sys",
    "acquire.cta",
    "acquire.gpu",
    "acquire.sys",
    "release.cta",
    "release.gpu",
    "release.sys",
    "acq_rel.cta",
    "acq_rel.gpu",
    "acq_rel.sys",
    "relaxed.cluster",
    "release.cluster",
    "acq_rel.cluster",
];

pub(super) fn list(probes: &mut Vec<Probe>) {
    for (operation, ty, needs) in OPERATIONS {
        let vector = operation.contains(".v");
        for space in [".global", ".shared", "", ".shared::cluster"] {
            if vector && space != ".global" {
                continue;
            }
            let needs = if space == ".shared::cluster" {
                needs.and(Needs::HOPPER)
            } else {
                needs
            };
            probes.push(own(&format!("atom{space}"), operation, ty, needs));
            if !matches!(operation, "exch" | "cas") {
                probes.push(own(&format!("red{space}"), operation, ty, needs));
            }
        }
    }
    for ordering in ORDERINGS {
        let needs = if ordering.ends_with("cluster") {
            Needs::HOPPER
        } else {
            Needs::AMPERE
        };
        for space in ["global", "shared"] {
            let opcode = format!("atom.{ordering}.{space}");
            probes.push(own(&opcode, "add", "u32", needs));
            if ordering.starts_with("rel") {
                probes.push(own(&format!("red.{ordering}.{space}"), "max", "u64", needs));
            }
        }
        probes.push(own(&format!("atom.{ordering}.global"), "cas", "b32", needs));
    }
    for (operation, ty) in [
        ("add", "u32"),
        ("add", "u64"),
        ("add", "f32"),
        ("add", "f64"),
        ("min", "s32"),
        ("max", "u64"),
        ("and", "b32"),
        ("or", "b64"),
        ("xor", "b32"),
        ("inc", "u32"),
        ("dec", "u32"),
    ] {
        for space in ["global", "shared"] {
            for base in ["atom", "red"] {
                probes.push(met(base, space, operation, ty));
            }
        }
    }
    probes.push(tickets());
}

impl Needs {
    /// What needs both.
    pub(super) fn and(self, other: Needs) -> Needs {
        Needs {
            capability: self.capability.max(other.capability),
            specific: self.specific || other.specific,
            ptx: self.ptx.max(other.ptx),
        }
    }
}

fn bytes(ty: &str) -> usize {
    match ty {
        "b128" => 16,
        "f64" | "u64" | "s64" | "b64" => 8,
        "f16" | "bf16" | "b16" => 2,
        _ => 4,
    }
}

/// The type whose NaNs count as one.
fn float(ty: &str) -> &'static str {
    ["f16", "bf16", "f16x2", "bf16x2", "f32", "f64"]
        .into_iter()
        .find(|name| *name == ty)
        .unwrap_or("")
}

/// Operands of an operation on a cell of its own: `count` elements of the cell, of b, and of c for `cas`, where the cell
/// often holds b. Elements of 2 bytes take 4.
pub(super) fn own_inputs(operation: &str, ty: &str) -> Vec<Fill> {
    let count = operation_count(operation);
    let sets = if operation == "cas" { 3 } else { 2 };
    let one = match bytes(ty) {
        16 => vec![Fill::Wide(Pattern::Edges); 2],
        8 => vec![Fill::Wide(Pattern::Edges)],
        _ => vec![Fill::Word(Pattern::Edges)],
    };
    let mut inputs: Vec<Fill> = Vec::new();
    for _ in 0..sets * count {
        inputs.extend(&one);
    }
    if operation == "cas" {
        inputs.push(match one[0] {
            Fill::Wide(_) => Fill::Wide(Pattern::Below(2)),
            _ => Fill::Word(Pattern::Below(2)),
        });
    }
    inputs
}

/// `add.noftz.v2` is two additions.
fn operation_count(operation: &str) -> usize {
    let (_, count) = operation.split_once(".v").unwrap_or((operation, "1"));
    count.parse().unwrap_or(1)
}

/// An operation on a cell of the thread's own. Results: for `atom` the old value, then the new one; each of the elements'
/// words, elements of 2 bytes in 4.
fn own(prefix: &str, operation: &str, ty: &str, needs: Needs) -> Probe {
    let count = operation_count(operation);
    let opcode = format!("{prefix}.{operation}.{ty}");
    let size = bytes(ty);
    let (class, words) = match size {
        16 => ("b128", 4),
        8 => ("b64", 2),
        2 => ("b16", 1),
        _ => ("b32", 1),
    };
    let inputs = own_inputs(operation, ty);
    let returns = prefix.starts_with("atom");
    let shared = prefix.contains("shared");
    let mut body = String::from(".reg .b128 %q<12>;\n");
    if size != 16 {
        body.clear();
    }
    // Elements in registers of their class: cell x0.., b x4.., c x8..
    let name = match size {
        16 => "%q",
        8 => "%b",
        2 => "%rs",
        _ => "%a",
    };
    let register = |set: usize, element: usize| match size {
        8 | 4 => format!("{name}{}", set * count + element),
        _ => format!("{name}{}", 4 * set + element),
    };
    let sets = if operation == "cas" { 3 } else { 2 };
    for set in 0..sets {
        for element in 0..count {
            let from = set * count + element;
            match size {
                16 => {
                    body += &format!(
                        "mov.b128 {}, {{%b{}, %b{}}}; ",
                        register(set, element),
                        2 * from,
                        2 * from + 1
                    )
                }
                2 => body += &format!("cvt.u16.u32 {}, %a{from}; ", register(set, element)),
                _ => {}
            }
        }
    }
    if operation == "cas" {
        // In every second row or so the cell holds what it is compared with.
        let pick = inputs.len() - 1;
        body += &if size >= 8 {
            format!("setp.ne.u64 %p1, %b{pick}, 0; ")
        } else {
            format!("setp.ne.u32 %p1, %a{pick}, 0; ")
        };
        body += &match size {
            16 => "@%p1 mov.b128 %q0, {%b2, %b3};".to_owned(),
            8 => format!("@%p1 mov.b64 {}, {};", register(0, 0), register(1, 0)),
            2 => format!("@%p1 mov.b16 {}, {};", register(0, 0), register(1, 0)),
            _ => format!("@%p1 mov.b32 {}, {};", register(0, 0), register(1, 0)),
        };
        body.push('\n');
    }
    // The cell: the last 16 bytes of the thread's results hold it in global memory.
    let old_words = if returns { words * count } else { 0 };
    let cell_at = (4 * (old_words + words * count)).next_multiple_of(16);
    let address = if shared {
        body += "shl.b32 %r50, %t, 4; add.u32 %r50, %r50, %s;\n";
        ("%r50", 0)
    } else {
        ("%out", cell_at)
    };
    let cell = |element: usize| format!("[{}+{}]", address.0, address.1 + size * element);
    let access = if shared { "shared" } else { "global" };
    for element in 0..count {
        body += &format!(
            "st.{access}.{class} {}, {}; ",
            cell(element),
            register(0, element)
        );
    }
    let list = |set: usize| {
        let all: Vec<String> = (0..count).map(|element| register(set, element)).collect();
        if count == 1 {
            all.concat()
        } else {
            format!("{{{}}}", all.join(", "))
        }
    };
    let more = if operation == "cas" {
        format!(", {}", list(2))
    } else {
        String::new()
    };
    // Old values take the cell's registers.
    let old = if returns {
        format!("{}, ", list(0))
    } else {
        String::new()
    };
    body += &format!("\n{opcode} {old}{}, {}{more};\n", cell(0), list(1));
    let mut at = 0;
    let mut keep = |body: &mut String, set: usize| {
        for element in 0..count {
            let r = register(set, element);
            *body += &match size {
                16 => format!(
                    "mov.b128 {{%rd10, %rd11}}, {r}; st.global.b64 [%out+{at}], %rd10; st.global.b64 [%out+{}], %rd11; ",
                    at + 8
                ),
                8 => format!("st.global.b64 [%out+{at}], {r}; "),
                2 => format!("cvt.u32.u16 %r51, {r}; st.global.b32 [%out+{at}], %r51; "),
                _ => format!("st.global.b32 [%out+{at}], {r}; "),
            };
            at += 4 * words;
        }
    };
    if returns {
        keep(&mut body, 0);
    }
    // The new value, through the register of b.
    body.push('\n');
    for element in 0..count {
        body += &format!(
            "ld.{access}.{class} {}, {}; ",
            register(1, element),
            cell(element)
        );
    }
    keep(&mut body, 1);
    if !shared {
        // What stood in the cell's place is no result.
        body += &format!("\nst.global.v4.b32 [%out+{cell_at}], {{%z, %z, %z, %z}};");
    }
    let total = if shared { cell_at / 4 } else { cell_at / 4 + 4 };
    let probe = Probe::new(Family::Atomic, opcode, 0)
        .inputs(inputs)
        .memory(total)
        .needs(needs)
        .floats(float(ty))
        .body(body)
        .threads(64);
    if shared { probe.shared(1024) } else { probe }
}

/// All threads of two warps on one cell; the result is the cell at the end, which no order changes.
fn met(base: &str, space: &str, operation: &str, ty: &str) -> Probe {
    let wide = bytes(ty) == 8;
    let class = if wide { "b64" } else { "b32" };
    let pattern = match ty {
        "f32" => Pattern::Small("f32"),
        "f64" => Pattern::Small("f64"),
        _ => Pattern::Noise,
    };
    let fill = if wide {
        Fill::Wide(pattern)
    } else {
        Fill::Word(pattern)
    };
    let value = if wide { "%b0" } else { "%a0" };
    let mut body = String::new();
    // The cell starts with zero, or with all ones for `and` and `min`.
    let start = if matches!(operation, "and" | "min") {
        "-1"
    } else {
        "0"
    };
    let operand = match operation {
        // One limit for all.
        "inc" | "dec" => "40",
        _ => value,
    };
    let cell = if space == "shared" { "[%s]" } else { "[%rd20]" };
    if space == "global" {
        body += "mov.u64 %rd20, cell{n};";
    }
    let load = if wide {
        "mov.b64 {%o0, %o1}, %rd21;"
    } else {
        "mov.b32 %o0, %r21;"
    };
    let (r, old) = if wide {
        ("%rd21", "%rd22")
    } else {
        ("%r21", "%r22")
    };
    let old = if base == "atom" {
        format!("{old}, ")
    } else {
        String::new()
    };
    let form = format!("{base}.{space}.{operation}.{ty}");
    body += &format!(
        "setp.eq.u32 %p1, %t, 0; mov.{class} {r}, {start}; @%p1 st.{space}.{class} {cell}, {r}; bar.sync 0;\n\
         {form} {old}{cell}, {operand}; bar.sync 0; ld.volatile.{space}.{class} {r}, {cell}; {load}"
    );
    let globals = ".global .align 16 .b8 cell{n}[16];\n";
    let probe = Probe::new(
        Family::Atomic,
        format!("{form} (all threads on one cell)"),
        if wide { 2 } else { 1 },
    );
    let probe = probe.inputs([fill]).threads(64).body(body);
    if space == "shared" {
        probe.shared(1024)
    } else {
        probe.globals(globals)
    }
}

/// Every thread draws a number; each is drawn once.
fn tickets() -> Probe {
    let body = "mov.u64 %rd20, cell{n}; atom.global.add.u32 %r21, [%rd20], 1; mov.u64 %rd21, results{n}; mad.wide.u32 %rd21, %r21, 16, %rd21; atom.global.add.u32 %r22, [%rd21], 1;";
    Probe::new(Family::Atomic, "atom.global.add.u32 (numbers drawn)", 0)
        .memory(1)
        .threads(64)
        .globals(".global .align 16 .b8 cell{n}[16];\n")
        .body(body)
}
