//! `ldmatrix`, `stmatrix`, and `mma.sync` of every shape and type: one warp, operands whose sums are exact.

use super::{Family, Fill, Needs, Pattern, Probe, fill};

pub(super) fn list(probes: &mut Vec<Probe>) {
    moves(probes);
    for (shape, d, a, b, needs) in products() {
        let opcode = format!("mma.sync.aligned.{shape}.row.col.{d}.{a}.{b}.{d}");
        if a == "b1" {
            for operation in ["and", "xor"] {
                let opcode = format!("{opcode}.{operation}.popc");
                probes.push(product(&opcode, shape, (d, a, b), false).needs(needs));
            }
            continue;
        }
        probes.push(product(&opcode, shape, (d, a, b), false).needs(needs));
        if d == "s32" {
            let opcode = format!("mma.sync.aligned.{shape}.row.col.satfinite.{d}.{a}.{b}.{d}");
            probes.push(product(&opcode, shape, (d, a, b), true).needs(needs));
        }
    }
}

/// Rows at scattered places, one a lane: loaded as fragments, or stored from them and read back.
fn moves(probes: &mut Vec<Probe>) {
    let place = "mad.lo.u32 %r0, %t, 7, 3; and.b32 %r0, %r0, 31; shl.b32 %r0, %r0, 4; add.u32 %r0, %r0, %s;";
    for count in [1, 2, 4] {
        for trans in ["", ".trans"] {
            let (read, given) = (names("%o", 0, count), names("%a", 0, count));
            let load = format!("ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16");
            let body = format!(
                "{place} st.shared.v4.b32 [%r0], {{%a0, %a1, %a2, %a3}}; bar.sync 0; {load} {read}, [%r0];"
            );
            let store = format!("stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16");
            let back = format!(
                "{place} st.shared.v4.b32 [%r0], {{%z, %z, %z, %z}}; bar.sync 0; {store} [%r0], {given}; bar.sync 0; ld.shared.v4.b32 {{%o0, %o1, %o2, %o3}}, [%r0];"
            );
            for (form, words, body, needs) in [
                (load, count, body, Needs::AMPERE),
                (store, 4, back, Needs::HOPPER),
            ] {
                let probe = Probe::new(Family::Matrix, form, words)
                    .needs(needs)
                    .shared(512);
                probes.push(probe.inputs([Fill::Word(Pattern::Noise); 4]).body(body));
            }
        }
    }
    let opcode = "movmatrix.sync.aligned.m8n8.trans.b16";
    let probe = Probe::new(Family::Matrix, opcode, 1).inputs([Fill::Word(Pattern::Noise)]);
    probes.push(probe.body(format!("{opcode} %o0, %a0;")));
}

/// Shapes, and types of D, A and B.
fn products() -> Vec<(
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    Needs,
)> {
    let mut all = Vec::new();
    let ampere = Needs::AMPERE;
    for shape in ["m16n8k8", "m16n8k16"] {
        for (d, ty) in [("f16", "f16"), ("f32", "f16"), ("f32", "bf16")] {
            all.push((shape, d, ty, ty, ampere));
        }
    }
    for shape in ["m16n8k4", "m16n8k8"] {
        all.push((shape, "f32", "tf32", "tf32", ampere));
    }
    for a in ["e4m3", "e5m2"] {
        for b in ["e4m3", "e5m2"] {
            for (shape, d) in [
                ("m16n8k16", "f16"),
                ("m16n8k16", "f32"),
                ("m16n8k32", "f16"),
                ("m16n8k32", "f32"),
            ] {
                let plain = (shape, d) == ("m16n8k32", "f32");
                all.push((shape, d, a, b, Needs::new(89, if plain { 84 } else { 87 })));
            }
        }
    }
    for (types, shapes) in [
        (["s8", "u8"], ["m8n8k16", "m16n8k16", "m16n8k32"]),
        (["s4", "u4"], ["m8n8k32", "m16n8k32", "m16n8k64"]),
    ] {
        for (a, b) in types
            .iter()
            .flat_map(|a| types.iter().map(move |b| (*a, *b)))
        {
            all.extend(shapes.map(|shape| (shape, "s32", a, b, ampere)));
        }
    }
    for shape in ["m8n8k128", "m16n8k128", "m16n8k256"] {
        all.push((shape, "s32", "b1", "b1", ampere));
    }
    all.push(("m8n8k4", "f64", "f64", "f64", ampere));
    for shape in ["m16n8k4", "m16n8k8", "m16n8k16"] {
        all.push((shape, "f64", "f64", "f64", Needs::HOPPER));
    }
    all
}

/// The numbers of a shape, such as `m16n8k16`.
pub(super) fn sizes(shape: &str) -> [u32; 3] {
    let mut numbers = shape.split(['m', 'n', 'k']).filter_map(|n| n.parse().ok());
    std::array::from_fn(|_| numbers.next().unwrap_or(0))
}

/// A list of registers.
pub(super) fn names(register: &str, from: usize, count: usize) -> String {
    let list: Vec<String> = (from..from + count)
        .map(|n| format!("{register}{n}"))
        .collect();
    format!("{{{}}}", list.join(", "))
}

/// Columns: the registers of A, of B, of C. What may saturate has factors without a sign and C close to the end, so that
/// the order of the sum does not matter.
fn product(
    opcode: &str,
    shape: &str,
    (d, a, b): (&'static str, &'static str, &'static str),
    saturate: bool,
) -> Probe {
    let [m, _, k] = sizes(shape).map(|size| size as usize);
    let bits = fill::bits(a) as usize;
    let register = bits.max(32);
    let (a_count, b_count) = (m * k * bits / 32 / register, 8 * k * bits / 32 / register);
    let d_count = if d == "f16" { m / 8 } else { m / 4 };
    let wide = d == "f64";
    let fill = |ty| {
        let pattern = Pattern::Small(ty);
        if wide {
            Fill::Wide(pattern)
        } else {
            Fill::Word(pattern)
        }
    };
    let mut inputs = vec![fill(a); a_count];
    inputs.extend(vec![fill(b); b_count]);
    inputs.extend(vec![fill(d); d_count]);
    let (given, result) = if wide { ("%b", "%rd") } else { ("%a", "%o") };
    let mut body = String::new();
    if saturate {
        for register in 0..a_count + b_count {
            let ty = if register < a_count { a } else { b };
            let mask = match ty {
                "s8" => "0x7f7f7f7f",
                "s4" => "0x77777777",
                _ => continue,
            };
            body += &format!("and.b32 %a{register}, %a{register}, {mask}; ");
        }
        for register in a_count + b_count..inputs.len() {
            body += &format!(
                "or.b32 %a{register}, %a{register}, 0x7fff0000; and.b32 %a{register}, %a{register}, 0x7fffffff; "
            );
        }
    }
    body += &format!(
        "{opcode} {}, {}, {}, {};",
        names(result, 0, d_count),
        names(given, 0, a_count),
        names(given, a_count, b_count),
        names(given, a_count + b_count, d_count)
    );
    if wide {
        for n in 0..d_count {
            body += &format!(" mov.b64 {{%o{}, %o{}}}, %rd{n};", 2 * n, 2 * n + 1);
        }
    }
    let words = if wide { 2 * d_count } else { d_count };
    Probe::new(Family::Matrix, opcode, words)
        .inputs(inputs)
        .body(body)
}
