//! Loads and stores of every width, space and qualifier, and instructions about caches.

use super::{Family, Fill, Needs, Pattern, Probe};

/// Types of one element: name and bytes.
const TYPES: [(&str, usize); 15] = [
    ("b8", 1),
    ("u8", 1),
    ("s8", 1),
    ("b16", 2),
    ("u16", 2),
    ("s16", 2),
    ("b32", 4),
    ("u32", 4),
    ("s32", 4),
    ("f32", 4),
    ("b64", 8),
    ("u64", 8),
    ("s64", 8),
    ("f64", 8),
    ("b128", 16),
];

/// `%rd2`: a cache policy, for what takes a hint.
pub(super) const POLICY: &str = "createpolicy.fractional.L2::evict_last.b64 %rd2, 0f3F800000;";

/// A thread's operands: 32 bytes of noise, `%a0` to `%a7` and at `[%in]`.
pub(super) const IMAGE: [Fill; 8] = [Fill::Word(Pattern::Noise); 8];

/// Where each space's copy of the operands lies: its name in an opcode, PTX that puts it there, and its address.
const SPACES: [(&str, &str, &str); 6] = [
    ("global", "", "%in"),
    ("", "", "%in"),
    ("shared", SHARED, "%r0"),
    ("shared::cta", SHARED, "%r0"),
    ("shared::cluster", SHARED, "%r0"),
    ("local", LOCAL, "place"),
];

const SHARED: &str = "shl.b32 %r0, %t, 5; add.u32 %r0, %r0, %s; st.shared.v4.b32 [%r0], {%a0, %a1, %a2, %a3}; st.shared.v4.b32 [%r0+16], {%a4, %a5, %a6, %a7};\n";
const LOCAL: &str = ".local .align 16 .b8 place[32]; st.local.v4.b32 [place], {%a0, %a1, %a2, %a3}; st.local.v4.b32 [place+16], {%a4, %a5, %a6, %a7};\n";

/// Qualifiers of `ld.global`, with the types they are tried with.
const LOAD_QUALIFIERS: [&str; 24] = [
    "ld.global.ca",
    "ld.global.cg",
    "ld.global.cs",
    "ld.global.lu",
    "ld.global.cv",
    "ld.volatile.global",
    "ld.weak.global",
    "ld.relaxed.cta.global",
    "ld.relaxed.gpu.global",
    "ld.relaxed.sys.global",
    "ld.acquire.cta.global",
    "ld.acquire.gpu.global",
    "ld.acquire.sys.global",
    "ld.relaxed.cluster.global",
    "ld.acquire.cluster.global",
    "ld.mmio.relaxed.sys.global",
    "ld.global.L1::no_allocate",
    "ld.global.L1::evict_last",
    "ld.global.L2::64B",
    "ld.global.L2::128B",
    "ld.global.L2::256B",
    "ld.global.nc.L1::no_allocate.L2::128B",
    "ld.volatile.shared",
    "ld.relaxed.cta.shared",
];

const STORE_QUALIFIERS: [&str; 16] = [
    "st.global.wb",
    "st.global.cg",
    "st.global.cs",
    "st.global.wt",
    "st.volatile.global",
    "st.weak.global",
    "st.relaxed.cta.global",
    "st.relaxed.gpu.global",
    "st.relaxed.sys.global",
    "st.release.cta.global",
    "st.release.gpu.global",
    "st.release.sys.global",
    "st.relaxed.cluster.global",
    "st.release.cluster.global",
    "st.mmio.relaxed.sys.global",
    "st.global.L1::no_allocate",
];

/// Instructions that tell the caches something: the opcode, its operands, and where it exists. The thread's operands are
/// as they were behind it.
const CACHES: [(&str, &str, Needs); 20] = [
    ("prefetch.global.L1", "[%in]", Needs::AMPERE),
    ("prefetch.global.L2", "[%in]", Needs::AMPERE),
    ("prefetch.global.L2::evict_last", "[%in]", Needs::AMPERE),
    ("prefetch.global.L2::evict_normal", "[%in]", Needs::AMPERE),
    ("prefetch.L1", "[%in]", Needs::AMPERE),
    ("prefetch.L2", "[%in]", Needs::AMPERE),
    ("prefetchu.L1", "[%in]", Needs::AMPERE),
    ("prefetch.local.L1", "[place]", Needs::AMPERE),
    (
        "applypriority.global.L2::evict_normal",
        "[%rd0], 128",
        Needs::AMPERE,
    ),
    (
        "applypriority.L2::evict_normal",
        "[%rd0], 128",
        Needs::AMPERE,
    ),
    (
        "createpolicy.fractional.L2::evict_last.b64",
        "%rd1, 0f3F800000",
        Needs::AMPERE,
    ),
    (
        "createpolicy.fractional.L2::evict_first.b64",
        "%rd1, 0f3F000000",
        Needs::AMPERE,
    ),
    (
        "createpolicy.fractional.L2::evict_unchanged.b64",
        "%rd1",
        Needs::AMPERE,
    ),
    (
        "createpolicy.fractional.L2::evict_last.L2::evict_first.b64",
        "%rd1, 0f3F000000",
        Needs::AMPERE,
    ),
    (
        "createpolicy.range.global.L2::evict_last.L2::evict_first.b64",
        "%rd1, [%in], 256, 512",
        Needs::AMPERE,
    ),
    ("createpolicy.cvt.L2.b64", "%rd1, 0", Needs::AMPERE),
    (
        "cp.async.bulk.prefetch.L2.global",
        "[%in], 32",
        Needs::HOPPER,
    ),
    (
        "ld.global.L2::cache_hint.b32",
        "%r1, [%in], %rd2",
        Needs::AMPERE,
    ),
    (
        "ld.global.nc.L1::no_allocate.L2::cache_hint.b32",
        "%r1, [%in], %rd2",
        Needs::AMPERE,
    ),
    (
        "st.global.L2::cache_hint.b32",
        "[%in], %a0, %rd2",
        Needs::AMPERE,
    ),
];

pub(super) fn list(probes: &mut Vec<Probe>) {
    for (space, setup, address) in SPACES {
        for vector in [1, 2, 4] {
            for (ty, bytes) in TYPES {
                if vector * bytes <= 16 {
                    let opcode = opcode("ld", space, vector, ty);
                    probes.push(load(&opcode, setup, address, vector, bytes));
                    let opcode = self::opcode("st", space, vector, ty);
                    probes.push(store(&opcode, space, vector, bytes));
                }
            }
        }
    }
    for vector in [1, 2, 4] {
        for (ty, bytes) in TYPES {
            if vector * bytes <= 16 {
                let opcode = opcode("ld", "global.nc", vector, ty);
                probes.push(load(&opcode, "", "%in", vector, bytes));
                let opcode = self::opcode("ld", "const", vector, ty);
                probes.push(constant(&opcode, vector, bytes));
                let opcode = self::opcode("ld", "param", vector, ty);
                probes.push(load(&opcode, "", "given", vector, bytes));
            }
        }
    }
    for ty in [("u8", 1), ("u32", 4), ("b64", 8)] {
        probes.push(load(&format!("ldu.global.{}", ty.0), "", "%in", 1, ty.1));
        for qualifier in LOAD_QUALIFIERS {
            let shared = qualifier.ends_with("shared");
            let (setup, address) = if shared { (SHARED, "%r0") } else { ("", "%in") };
            let opcode = format!("{qualifier}.{}", ty.0);
            probes.push(load(&opcode, setup, address, 1, ty.1));
        }
        for qualifier in STORE_QUALIFIERS {
            let opcode = format!("{qualifier}.{}", ty.0);
            probes.push(store(&opcode, "global", 1, ty.1));
        }
    }
    for (opcode, operands, needs) in CACHES {
        probes.push(cache(opcode, operands, needs));
    }
    // What is discarded is undefined until it is written again: the thread writes it.
    let body = "and.b64 %rd0, %out, -128; bar.warp.sync -1; @%p1 discard.global.L2 [%rd0], 128; bar.warp.sync -1; st.global.b32 [%out], %a0;";
    let probe = Probe::new(Family::Memory, "discard.global.L2", 0).memory(32);
    let body = format!("setp.eq.u32 %p1, %lane, %lane; {body}");
    probes.push(probe.inputs([Fill::Word(Pattern::Noise)]).body(format!(
        "{body} mov.u32 %r0, 1; L{{n}}: mad.wide.u32 %rd1, %r0, 4, %out; st.global.b32 [%rd1], %r0; add.u32 %r0, %r0, 1; setp.lt.u32 %p2, %r0, 32; @%p2 bra L{{n}};"
    )));
}

fn opcode(base: &str, space: &str, vector: usize, ty: &str) -> String {
    let space = if space.is_empty() {
        String::new()
    } else {
        format!(".{space}")
    };
    let vector = if vector == 1 {
        String::new()
    } else {
        format!(".v{vector}")
    };
    format!("{base}{space}{vector}.{ty}")
}

/// Where an opcode exists.
fn needs(opcode: &str) -> Needs {
    let has = |part: &str| opcode.split('.').any(|p| p == part);
    let needs = if has("shared::cluster") || has("cluster") {
        Needs::HOPPER
    } else if has("mmio") {
        Needs::AMPERE.ptx(82)
    } else {
        Needs::AMPERE
    };
    if has("b128") {
        Needs { ptx: 83, ..needs }
    } else {
        needs
    }
}

fn braces(list: Vec<String>) -> String {
    if list.len() == 1 {
        list.concat()
    } else {
        format!("{{{}}}", list.join(", "))
    }
}

/// A load from the second place of its size in 32 bytes at `address`; results are registers of 32 bits, or of 64.
fn load(opcode: &str, setup: &str, address: &str, vector: usize, bytes: usize) -> Probe {
    let at = vector * bytes;
    let words = if bytes <= 4 {
        vector
    } else {
        vector * bytes / 4
    };
    let body = match bytes {
        16 => format!(
            ".reg .b128 %q; {opcode} %q, [{address}+{at}]; mov.b128 {{%rd10, %rd11}}, %q; {}",
            split(2)
        ),
        8 => {
            let list = (0..vector).map(|i| format!("%rd{}", 10 + i)).collect();
            format!(
                "{opcode} {}, [{address}+{at}]; {}",
                braces(list),
                split(vector)
            )
        }
        _ => {
            let list = (0..vector).map(|i| format!("%o{i}")).collect();
            format!("{opcode} {}, [{address}+{at}];", braces(list))
        }
    };
    let inputs = if address == "given" {
        &[][..]
    } else {
        &IMAGE[..]
    };
    let probe = Probe::new(Family::Memory, opcode, words).inputs(inputs);
    let shared = if setup == SHARED { 1024 } else { 0 };
    probe
        .needs(needs(opcode))
        .shared(shared)
        .body(format!("{setup}{body}"))
}

/// `%rd10` and the registers behind it into result words.
fn split(count: usize) -> String {
    (0..count)
        .map(|i| format!("mov.b64 {{%o{}, %o{}}}, %rd{};", 2 * i, 2 * i + 1, 10 + i))
        .collect()
}

/// A store of registers to the second place of its size in 32 bytes of zeros, all of which are the result.
fn store(opcode: &str, space: &str, vector: usize, bytes: usize) -> Probe {
    let at = vector * bytes;
    let setup = match bytes {
        16 => {
            ".reg .b128 %q; mov.b64 %rd10, {%a0, %a1}; mov.b64 %rd11, {%a2, %a3}; mov.b128 %q, {%rd10, %rd11};"
        }
        8 => "mov.b64 %rd10, {%a0, %a1}; mov.b64 %rd11, {%a2, %a3};",
        _ => "",
    };
    let list = (0..vector).map(|i| match bytes {
        16 => "%q".into(),
        8 => format!("%rd{}", 10 + i),
        _ => format!("%a{i}"),
    });
    let value = braces(list.collect());
    let probe = Probe::new(Family::Memory, opcode, 0)
        .inputs(&IMAGE[..4])
        .memory(8)
        .needs(needs(opcode));
    let zeros = "{%z, %z, %z, %z}";
    // Spaces that are not the results' are read back.
    let (before, address, load) = match space {
        "global" | "" => return probe.body(format!("{setup} {opcode} [%out+{at}], {value};")),
        "local" => (".local .align 16 .b8 place[32];", "place", "ld.local"),
        _ => (
            "shl.b32 %r0, %t, 5; add.u32 %r0, %r0, %s;",
            "%r0",
            "ld.shared",
        ),
    };
    let clear = load.replace("ld", "st");
    let probe = if space == "local" {
        probe
    } else {
        probe.shared(1024)
    };
    probe.body(format!(
        "{before} {setup} {clear}.v4.b32 [{address}], {zeros}; {clear}.v4.b32 [{address}+16], {zeros};\n\
         {opcode} [{address}+{at}], {value};\n\
         {load}.v4.b32 {{%r10, %r11, %r12, %r13}}, [{address}]; {load}.v4.b32 {{%r14, %r15, %r16, %r17}}, [{address}+16];\n\
         st.global.v4.b32 [%out], {{%r10, %r11, %r12, %r13}}; st.global.v4.b32 [%out+16], {{%r14, %r15, %r16, %r17}};"
    ))
}

/// Words of the constant bank, of which a thread reads some.
pub const CONSTANTS: [u32; 16] = [
    0x0302_0100,
    0x8786_8584,
    0xfb0a_0908,
    0x0f8e_0d0c,
    0x3f80_0000,
    0xff80_0001,
    0x8000_0000,
    0x7fff_ffff,
    0x1234_5678,
    0x9abc_def0,
    0xffff_ffff,
    0x0000_0000,
    0x3ff0_0000,
    0xbfe0_0000,
    0x00ff_00ff,
    0x80ff_7f01,
];

/// A load of constants at places that differ between threads.
fn constant(opcode: &str, vector: usize, bytes: usize) -> Probe {
    let list: Vec<String> = CONSTANTS.iter().map(|word| format!("{word:#x}")).collect();
    let table = format!(
        ".const .align 16 .b32 constants{{n}}[16] = {{{}}};\n",
        list.join(", ")
    );
    let places = 32 / (vector * bytes);
    let setup = format!(
        "and.b32 %r0, %t, {}; mul.lo.u32 %r0, %r0, {}; mov.u64 %rd0, constants{{n}}; cvt.u64.u32 %rd1, %r0; add.u64 %rd0, %rd0, %rd1;\n",
        places - 1,
        vector * bytes
    );
    let probe = load(opcode, "", "%rd0", vector, bytes);
    let body = format!("{setup}{}", probe.body);
    probe.inputs([]).globals(table).body(body)
}

/// The thread's operands behind an instruction about caches.
fn cache(opcode: &str, operands: &str, needs: Needs) -> Probe {
    let mut before = String::from("and.b64 %rd0, %in, -128;");
    if operands.contains("place") {
        before += ".local .align 16 .b8 place[32]; st.local.b32 [place], %a0;";
    }
    if opcode.contains("cache_hint") {
        before += POLICY;
    }
    let body = format!("{before} {opcode} {operands}; ld.global.b32 %o0, [%in];");
    let body = if opcode == "createpolicy.cvt.L2.b64" {
        // The immediate is a property made by the CUDA runtime: a normal access.
        body.replace("%rd1, 0;", "%rd1, 0x14F0000000000000;")
    } else {
        body
    };
    Probe::new(Family::Memory, opcode, 1)
        .inputs(&IMAGE[..1])
        .needs(needs)
        .body(body)
}
