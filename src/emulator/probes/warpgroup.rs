//! `wgmma`: one warpgroup, operands whose sums are exact.
//!
//! Each of the 128 threads stores 64 bytes of A and 64 of B, so that their images are 8 KiB of elements each, whatever the
//! layout; what a product reads of them is up to its descriptors. Behind a form stand the layouts: `none` or the bytes of
//! the swizzle, `+` the bytes by which the start moves along a row, `MN` where that is the major dimension, `far` where the
//! two strides of the layout without swizzle take each other's place; and which operand is negated.
//!
//! A product is made twice: into registers full of ones whose contents do not count (scale-d 0), and added to its result.

use super::matrix::names;
use super::{Family, Fill, Needs, Pattern, Probe};

/// Bytes of the image of one operand.
const IMAGE_BYTES: u32 = 8192;
/// Result words of a thread: register `i` of D goes into word `i % WORDS`.
const WORDS: usize = 4;
/// How a word takes a register up: it is multiplied by this, and the register is added.
const FOLD: u32 = 31;

/// Where an operand lies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A fragment (A only).
    Registers,
    /// An image in shared memory.
    Shared {
        /// Bytes of the swizzle; 16 is none.
        span: u32,
        /// M or N is the major dimension, instead of K.
        mn: bool,
        /// Without a swizzle: the core matrices that are neighbours along the rows lie behind each other.
        far: bool,
        /// Where the start lies in a row of the span, in bytes.
        start: u32,
    },
}

impl Place {
    const NONE: Place = Place::k(16);

    /// K-major.
    const fn k(span: u32) -> Place {
        Place::Shared {
            span,
            mn: false,
            far: false,
            start: 0,
        }
    }

    /// MN-major.
    const fn mn(span: u32) -> Place {
        Place::Shared {
            span,
            mn: true,
            far: false,
            start: 0,
        }
    }

    const fn far(mn: bool) -> Place {
        Place::Shared {
            span: 16,
            mn,
            far: true,
            start: 0,
        }
    }

    const fn from(span: u32, start: u32) -> Place {
        Place::Shared {
            span,
            mn: false,
            far: false,
            start,
        }
    }

    fn is_mn(self) -> bool {
        matches!(self, Place::Shared { mn: true, .. })
    }

    fn name(self) -> String {
        let Place::Shared {
            span,
            mn,
            far,
            start,
        } = self
        else {
            return "registers".into();
        };
        let mut name = match span {
            16 => "none".to_owned(),
            span => format!("{span}B"),
        };
        if start > 0 {
            name += &format!("+{start}");
        }
        if mn {
            name += " MN";
        }
        if far {
            name += " far";
        }
        name
    }

    /// The matrix descriptor of an image of `rows` rows at the start of shared memory (PTX ISA, "Matrix Descriptor Format").
    fn descriptor(self, rows: u32) -> u64 {
        let Place::Shared {
            span,
            mn,
            far,
            start,
        } = self
        else {
            return 0;
        };
        // From one group of 8 rows to the next, or along K: cores of 128 bytes are neighbours one way or the other.
        let (near, apart) = (128, 16 * rows);
        let (leading, stride) = match (span, mn) {
            (16, _) if mn == far => (near, 256),
            (16, _) => (apart, near),
            (_, true) => (16 * span, 8 * span),
            (_, false) => (16, 8 * span),
        };
        let mode: u64 = match span {
            16 => 0,
            32 => 3,
            64 => 2,
            _ => 1,
        };
        u64::from(start / 16)
            | u64::from(leading / 16) << 16
            | u64::from(stride / 16) << 32
            | mode << 62
    }
}

/// A product: types of D, A and B, the width, where its operands lie.
#[derive(Clone, Copy)]
struct Product {
    d: &'static str,
    a: &'static str,
    b: &'static str,
    n: u32,
    place_a: Place,
    place_b: Place,
    negate: (bool, bool),
    saturate: bool,
}

impl Product {
    fn new(types: (&'static str, &'static str, &'static str), n: u32) -> Product {
        Product {
            d: types.0,
            a: types.1,
            b: types.2,
            n,
            place_a: Place::NONE,
            place_b: Place::NONE,
            negate: (false, false),
            saturate: false,
        }
    }

    fn of(self, place_a: Place, place_b: Place) -> Product {
        Product {
            place_a,
            place_b,
            ..self
        }
    }

    /// Registers of D.
    fn registers(&self) -> usize {
        let n = self.n as usize;
        if self.d == "f16" { n / 4 } else { n / 2 }
    }

    fn opcode(&self) -> String {
        let k = match self.a {
            "tf32" => 8,
            "f16" | "bf16" => 16,
            "b1" => 256,
            _ => 32,
        };
        let saturate = if self.saturate { ".satfinite" } else { "" };
        let operation = if self.a == "b1" { ".and.popc" } else { "" };
        format!(
            "wgmma.mma_async.sync.aligned.m64n{}k{k}{saturate}.{}.{}.{}{operation}",
            self.n, self.d, self.a, self.b
        )
    }

    fn form(&self) -> String {
        let mut form = format!(
            "{} (A {}, B {}",
            self.opcode(),
            self.place_a.name(),
            self.place_b.name()
        );
        for (name, negated) in [("A", self.negate.0), ("B", self.negate.1)] {
            if negated {
                form += &format!(", -{name}");
            }
        }
        form + ")"
    }

    /// Behind scale-d: signs, and whether 16-bit operands in shared memory are MN-major.
    fn flags(&self) -> String {
        if self.d == "s32" {
            return String::new();
        }
        let sign = |negated| if negated { -1 } else { 1 };
        let mut flags = format!(", {}, {}", sign(self.negate.0), sign(self.negate.1));
        if matches!(self.a, "f16" | "bf16") {
            if self.place_a != Place::Registers {
                flags += &format!(", {}", u32::from(self.place_a.is_mn()));
            }
            flags += &format!(", {}", u32::from(self.place_b.is_mn()));
        }
        flags
    }

    /// `wgmma` into the registers from `%d{first}` on; `keep` is the predicate scale-d.
    fn statement(&self, first: usize, keep: &str) -> String {
        let d = names("%d", first, self.registers());
        let a = match self.place_a {
            Place::Registers => "{%a0, %a1, %a2, %a3}",
            Place::Shared { .. } => "%rd0",
        };
        format!(
            "{} {d}, {a}, %rd1, {keep}{};\n",
            self.opcode(),
            self.flags()
        )
    }

    /// PTX behind which the images lie in shared memory and `%rd0` and `%rd1` are their descriptors.
    fn images(&self) -> String {
        let mut text = String::from("shl.b32 %r0, %t, 6; add.u32 %r0, %r0, %s;\n");
        for column in 0..32 {
            if self.saturate {
                // Small factors without a sign, so that the order of the sum does not matter.
                text += &format!("and.b32 %a{column}, %a{column}, 0x0f0f0f0f; ");
            }
        }
        for quad in 0..8 {
            let at = if quad < 4 {
                16 * quad
            } else {
                IMAGE_BYTES + 16 * (quad - 4)
            };
            let [x, y, z, w] = [0, 1, 2, 3].map(|i| 4 * quad + i);
            text += &format!("st.shared.v4.b32 [%r0+{at}], {{%a{x}, %a{y}, %a{z}, %a{w}}};\n");
        }
        text + &format!(
            "fence.proxy.async; bar.sync 0; shr.u32 %r1, %s, 4; cvt.u64.u32 %rd2, %r1;\n\
             add.u64 %rd0, %rd2, {:#x}; add.u64 %rd1, %rd2, {:#x};\n\
             setp.ne.u32 %p1, %z, 0; setp.eq.u32 %p2, %z, 0; .reg .b32 %d<{}>;\n",
            self.place_a.descriptor(64),
            self.place_b.descriptor(self.n) + u64::from(IMAGE_BYTES / 16),
            self.registers() + 4
        )
    }

    /// Registers of D into the result words. The sign of a zero is open: adding 0 takes it off.
    fn results(&self) -> String {
        let mut text = String::new();
        for register in 0..self.registers() {
            let word = register % WORDS;
            match self.d {
                "f32" => text += &format!("add.rn.f32 %d{register}, %d{register}, 0f00000000; "),
                "f16" => text += &format!("add.rn.f16x2 %d{register}, %d{register}, %z; "),
                _ => {}
            }
            text += &format!("mad.lo.u32 %o{word}, %o{word}, {FOLD}, %d{register};\n");
        }
        text
    }

    fn probe(&self) -> Probe {
        let mut body = self.images();
        for register in 0..self.registers() {
            body += &if self.saturate {
                // 2049 to 4096 below the largest value.
                format!(
                    "mad.lo.u32 %r2, %t, 37, {}; and.b32 %r2, %r2, 2047; add.u32 %d{register}, %r2, 0x7ffff000;\n",
                    101 * register
                )
            } else {
                format!("mov.b32 %d{register}, -1; ")
            };
        }
        body += "\nwgmma.fence.sync.aligned;\n";
        if !self.saturate {
            body += &self.statement(0, "%p1");
        }
        body += &self.statement(0, "%p2");
        body += "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\n";
        body += &self.results();
        self.kernel(self.form(), self.registers().min(WORDS), body)
    }

    fn kernel(&self, form: String, words: usize, body: String) -> Probe {
        let (a, b) = (Pattern::Small(self.a), Pattern::Small(self.b));
        let mut inputs = vec![Fill::Word(a); 16];
        inputs.extend([Fill::Word(b); 16]);
        let probe = Probe::new(Family::Warpgroup, form, words).inputs(inputs);
        let mixed = self.d == "s32" && self.a != self.b;
        let ptx = if mixed { 84 } else { 80 };
        let probe = probe.needs(Needs::HOPPER_ONLY.ptx(ptx)).threads(128);
        probe.shared(2 * IMAGE_BYTES).body(body)
    }
}

/// Types of D, A and B.
const TYPES: [(&str, &str, &str); 17] = [
    ("f16", "f16", "f16"),
    ("f32", "f16", "f16"),
    ("f32", "bf16", "bf16"),
    ("f32", "tf32", "tf32"),
    ("f16", "e4m3", "e4m3"),
    ("f16", "e4m3", "e5m2"),
    ("f16", "e5m2", "e4m3"),
    ("f16", "e5m2", "e5m2"),
    ("f32", "e4m3", "e4m3"),
    ("f32", "e4m3", "e5m2"),
    ("f32", "e5m2", "e4m3"),
    ("f32", "e5m2", "e5m2"),
    ("s32", "s8", "s8"),
    ("s32", "s8", "u8"),
    ("s32", "u8", "s8"),
    ("s32", "u8", "u8"),
    ("s32", "b1", "b1"),
];

/// Widths: every multiple of 8 up to 256; of integers, every multiple of 16, and 8 and 24.
fn widths(d: &str) -> impl Iterator<Item = u32> {
    let integer = d == "s32";
    (8..=256)
        .step_by(8)
        .filter(move |n| !integer || n % 16 == 0 || *n <= 24)
}

/// Layouts of 16-bit operands whose images hold 64 rows.
const LAYOUTS: [Place; 10] = [
    Place::NONE,
    Place::far(false),
    Place::k(32),
    Place::k(64),
    Place::k(128),
    Place::mn(16),
    Place::far(true),
    Place::mn(32),
    Place::mn(64),
    Place::mn(128),
];

pub(super) fn list(probes: &mut Vec<Probe>) {
    let mut all: Vec<Product> = Vec::new();
    // Every width of every combination of types; operands without a swizzle, then A in registers.
    for types in TYPES {
        for n in widths(types.0) {
            let product = Product::new(types, n);
            all.push(product);
            all.push(product.of(Place::Registers, Place::NONE));
            if types.0 == "s32" && types.1 != "b1" && matches!(n, 8 | 64 | 256) {
                let saturate = Product {
                    saturate: true,
                    ..product
                };
                all.push(saturate);
                all.push(saturate.of(Place::Registers, Place::NONE));
            }
        }
    }
    // Every pair of layouts, and the fragment with every layout.
    for types in [TYPES[1], TYPES[2]] {
        for b in LAYOUTS {
            for a in LAYOUTS.into_iter().chain([Place::Registers]) {
                if !(b == Place::NONE && matches!(a, Place::NONE | Place::Registers)) {
                    all.push(Product::new(types, 64).of(a, b));
                }
            }
        }
    }
    // Layouts of types that are K-major only.
    for types in TYPES {
        if matches!(types.1, "f16" | "bf16") {
            continue;
        }
        for place in &LAYOUTS[1..5] {
            all.push(Product::new(types, 64).of(*place, *place));
        }
    }
    // A swizzled row holds several products' worth of K.
    for types in [TYPES[1], TYPES[3], TYPES[8], TYPES[12]] {
        for (span, start) in [(64, 32), (128, 32), (128, 64), (128, 96)] {
            let place = Place::from(span, start);
            all.push(Product::new(types, 64).of(place, place));
            all.push(Product::new(types, 64).of(Place::k(span), place));
        }
    }
    // Signs.
    for types in &TYPES[..12] {
        for negate in [(true, false), (false, true), (true, true)] {
            for a in [Place::NONE, Place::Registers] {
                all.push(Product {
                    negate,
                    ..Product::new(*types, 16).of(a, Place::NONE)
                });
            }
        }
    }
    probes.extend(all.iter().map(Product::probe));
    groups(probes);
}

/// Two groups: one is waited for, the other may go on; then that one is waited for.
fn groups(probes: &mut Vec<Probe>) {
    let product = Product::new(TYPES[1], 8);
    let body = format!(
        "{}wgmma.fence.sync.aligned;\n{}wgmma.commit_group.sync.aligned;\n{}wgmma.commit_group.sync.aligned;\n\
         wgmma.wait_group.sync.aligned 1;\n{}wgmma.wait_group.sync.aligned 0;\n{}",
        product.images(),
        product.statement(0, "%p1"),
        product.statement(4, "%p1"),
        (0..4)
            .map(|i| format!("add.rn.f32 %o{i}, %d{i}, 0f00000000; "))
            .collect::<String>(),
        (4..8)
            .map(|i| format!("add.rn.f32 %o{i}, %d{i}, 0f00000000; "))
            .collect::<String>(),
    );
    probes.push(product.kernel("wgmma.wait_group.sync.aligned 1".into(), 8, body));
}
