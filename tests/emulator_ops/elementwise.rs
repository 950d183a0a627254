//! One-result instructions on every pair and triple of edge values, in full warps and under a guard.

use neap::emulator::probes::{self, Probe, elementwise};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use super::harness::{Launch, Memory, kernel, launch, load};
use super::{float, float_convert, float_rare, half_float, integer, integer_rare, short_formats};

/// Operand kinds: how values lie in memory and which registers hold them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// 16-bit
    H,
    /// 32-bit
    W,
    /// 64-bit
    D,
    /// predicate, as 0 or 1 in 32 bits
    P,
}
pub use Kind::{D, H, P, W};

impl Kind {
    fn register(self, index: usize) -> String {
        match self {
            H => format!("%rs{index}"),
            W => format!("%r{index}"),
            D => format!("%rd{index}"),
            P => format!("%p{index}"),
        }
    }
    fn mask(self) -> u64 {
        match self {
            H => 0xffff,
            W => 0xffff_ffff,
            D => u64::MAX,
            P => 1,
        }
    }
    fn load(self, index: usize, offset: usize) -> String {
        match self {
            H => format!("ld.global.u16 %rs{index}, [%rd50+{offset}];"),
            W => format!("ld.global.b32 %r{index}, [%rd50+{offset}];"),
            D => format!("ld.global.b64 %rd{index}, [%rd50+{offset}];"),
            P => format!(
                "ld.global.b32 %r{index}, [%rd50+{offset}];\nsetp.ne.u32 %p{index}, %r{index}, 0;"
            ),
        }
    }
}

/// Deterministic noise (splitmix64).
pub struct Noise(pub u64);
impl Noise {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

const SENTINEL: u64 = 0x5bd1_e995_a5a5_1234;

/// Runs `statement` (with `{d} {a} {b} {c}` ...) on all `operands` and compares with `expected` by `same`.
pub fn check_with(
    statement: &str,
    inputs: &[Kind],
    output: Kind,
    operands: &[Vec<u64>],
    expected: impl Fn(&[u64]) -> u64,
    same: impl Fn(&[u64], u64, u64) -> bool,
) {
    // What a recording of a GPU will be about has to fit the model, too.
    let operands = [operands, &probe(statement, inputs, output).rows].concat();
    check_some(statement, inputs, output, &operands, expected, same);
}

/// [`check_with`] for a model that holds for these operands alone.
pub fn check_some(
    statement: &str,
    inputs: &[Kind],
    output: Kind,
    operands: &[Vec<u64>],
    expected: impl Fn(&[u64]) -> u64,
    same: impl Fn(&[u64], u64, u64) -> bool,
) {
    let form = &probe(statement, inputs, output).form;
    let noted = CHECKED.with_borrow_mut(|checked| checked.as_mut().map(|all| all.insert(form)));
    if noted.is_some() {
        return;
    }
    let names = ["{a}", "{b}", "{c}", "{e}"];
    for guarded in [false, true] {
        let mut body = String::from(
            "mov.u32 %r90, %ctaid.x; mov.u32 %r91, %ntid.x; mov.u32 %r92, %tid.x; mad.lo.u32 %r93, %r90, %r91, %r92;\n\
             ld.param.u64 %rd51, [p0]; ld.param.u64 %rd52, [p1]; ld.param.u64 %rd55, [p2]; cvt.u64.u32 %rd54, %r93;\n\
             setp.ge.u64 %p19, %rd54, %rd55; @%p19 ret; mov.b16 %rs40, 0; .reg .b8 %c<8>; mov.b16 {%c1, %c2}, %rs40;\n\
             mad.wide.u32 %rd50, %r93, 32, %rd51; mad.wide.u32 %rd53, %r93, 8, %rd52;\n",
        );
        for (index, kind) in inputs.iter().enumerate() {
            body += &kind.load(index + 1, 8 * index);
            body.push('\n');
        }
        let d = output.register(10);
        body += &match output {
            H => format!("mov.b16 %rs10, {};\n", SENTINEL & 0xffff),
            W => format!("mov.b32 %r10, {};\n", SENTINEL & 0xffff_ffff),
            D => format!("mov.b64 %rd10, {SENTINEL};\n"),
            P => "setp.ne.u32 %p10, 0, 0;\n".into(),
        };
        // Lanes whose number has an odd count of ones.
        body += "popc.b32 %r94, %r92; and.b32 %r94, %r94, 1; setp.ne.u32 %p18, %r94, 0;\n";
        let mut text = statement.replace("{d}", &d);
        for (index, kind) in inputs.iter().enumerate() {
            text = text.replace(names[index], &kind.register(index + 1));
        }
        if guarded {
            text = text.replace("; ", "; @%p18 ");
        }
        body += &format!("{}{text};\n", if guarded { "@%p18 " } else { "" });
        body += match output {
            H => "cvt.u64.u16 %rd11, %rs10; st.global.b64 [%rd53], %rd11;",
            W => "cvt.u64.u32 %rd11, %r10; st.global.b64 [%rd53], %rd11;",
            D => "st.global.b64 [%rd53], %rd10;",
            P => "selp.b64 %rd11, 1, 0, %p10; st.global.b64 [%rd53], %rd11;",
        };
        let text = kernel(3, &body);
        let mut memory = Memory::new(operands.len() * 40 + 8192);
        let module =
            load(&mut memory, &text).unwrap_or_else(|error| panic!("{statement}: {error}"));
        let mut rows = vec![0u64; operands.len() * 4];
        for (row, values) in operands.iter().enumerate() {
            for (column, value) in values.iter().enumerate() {
                rows[4 * row + column] = value & inputs[column].mask();
            }
        }
        let input = memory.put(&rows);
        let out = memory.alloc(8 * operands.len());
        let params = [input, out, operands.len() as u64];
        let how = Launch {
            grid: [operands.len().div_ceil(256) as u32, 1, 1],
            block: [256, 1, 1],
            params: &params,
            ..Launch::default()
        };
        launch(&module, "k", &memory, &how).unwrap_or_else(|fault| panic!("{statement}: {fault}"));
        let results = memory.get::<u64>(out, operands.len());
        for (row, &got) in results.iter().enumerate() {
            let values = &rows[4 * row..4 * row + inputs.len()];
            let active = !guarded || (row % 256).count_ones() % 2 == 1;
            if active {
                let want = expected(values) & output.mask();
                assert!(
                    same(values, got, want),
                    "{statement} of {values:#x?}: got {got:#x}, want {want:#x}"
                );
            } else {
                let want = if output == P {
                    0
                } else {
                    SENTINEL & output.mask()
                };
                assert_eq!(got, want, "{statement}: an inactive lane was written");
            }
        }
    }
}

/// A form, and the operands of its probe as far as PTX says what comes of them.
struct Listed {
    form: String,
    rows: Vec<Vec<u64>>,
}

/// The probe with this statement.
fn probe(statement: &str, inputs: &[Kind], output: Kind) -> &'static Listed {
    type Key = (Vec<probes::Kind>, probes::Kind);
    static FORMS: OnceLock<HashMap<&str, Vec<(Key, Listed)>>> = OnceLock::new();
    let forms = FORMS.get_or_init(|| {
        let mut all: HashMap<&str, Vec<(Key, Listed)>> = HashMap::new();
        for form in elementwise() {
            let probe = Probe::from(&form);
            let mut rows = probe.operands();
            rows.retain(|row| !probe.leaves_open(row));
            let listed = Listed {
                form: form.form,
                rows,
            };
            let kinds = (form.inputs, form.output);
            all.entry(form.statement).or_default().push((kinds, listed));
        }
        all
    });
    let kind = |kind: &Kind| match kind {
        H => probes::Kind::Half,
        W => probes::Kind::Word,
        D => probes::Kind::Double,
        P => probes::Kind::Predicate,
    };
    let kinds = (inputs.iter().map(kind).collect(), kind(&output));
    let found = forms
        .get(statement)
        .and_then(|all| all.iter().find(|(key, _)| *key == kinds));
    let Some((_, listed)) = found else {
        panic!("`{statement}` is no probe: add a line to src/emulator/probes/elementwise.txt")
    };
    listed
}

thread_local! {
    /// While this is a set, checks only say which form they are about.
    static CHECKED: RefCell<Option<HashSet<&'static str>>> = const { RefCell::new(None) };
}

/// Elementwise probes have no models of their own: the tests of their statements take the probes' operands along. So
/// every form has to be in a test.
#[test]
fn every_elementwise_form_is_in_a_test() {
    CHECKED.set(Some(HashSet::new()));
    let tests = [
        float::TESTS,
        float_convert::TESTS,
        float_rare::TESTS,
        half_float::TESTS,
        integer::TESTS,
        integer_rare::TESTS,
        short_formats::TESTS,
    ];
    for test in tests.concat() {
        test();
    }
    let checked = CHECKED.take().unwrap_or_default();
    let all = elementwise().into_iter().map(|form| form.form);
    let unchecked: Vec<String> = all
        .filter(|form| !checked.contains(form.as_str()))
        .collect();
    assert!(unchecked.is_empty(), "in no test: {unchecked:#?}");
}

/// Bit-exact form of [`check_with`].
pub fn check(
    statement: &str,
    inputs: &[Kind],
    output: Kind,
    values: &[u64],
    expected: impl Fn(&[u64]) -> u64,
) {
    check_with(
        statement,
        inputs,
        output,
        &combine(values, inputs.len()),
        expected,
        |_, got, want| got == want,
    );
}

/// All pairs (or triples, thinned) of values, and some noise.
pub fn combine(values: &[u64], count: usize) -> Vec<Vec<u64>> {
    let mut noise = Noise(count as u64);
    let mut rows: Vec<Vec<u64>> = vec![vec![]];
    for _ in 0..count.min(2) {
        rows = rows
            .iter()
            .flat_map(|row| values.iter().map(move |v| [&row[..], &[*v]].concat()))
            .collect();
    }
    if count > 2 {
        let pairs = rows;
        rows = Vec::new();
        for pair in &pairs {
            for _ in 0..4 {
                let mut row = pair.clone();
                while row.len() < count {
                    row.push(values[(noise.next() % values.len() as u64) as usize]);
                }
                // Rotate, so that every position sees every pair.
                let shift = (noise.next() % count as u64) as usize;
                row.rotate_left(shift);
                rows.push(row);
            }
        }
    }
    for _ in 0..200 {
        rows.push(
            (0..count)
                .map(|_| noise.next() >> (noise.next() % 64))
                .collect(),
        );
    }
    rows
}

pub const INTEGERS: &[u64] = &[
    0,
    1,
    2,
    3,
    5,
    7,
    8,
    15,
    16,
    17,
    31,
    32,
    33,
    63,
    64,
    65,
    127,
    128,
    255,
    256,
    257,
    0x7fff,
    0x8000,
    0x8001,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    0x8000_0001,
    0xffff_fffe,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0x8000_0000_0000_0001,
    0xffff_ffff_ffff_fff0,
    0xffff_ffff_ffff_ffff,
];
