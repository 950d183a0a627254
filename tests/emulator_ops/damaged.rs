//! Damaged PTX: whatever the text, loading it ends with a module or an error, and what loads runs within its memory.

use super::elementwise::Noise;
use super::harness::{Launch, Memory, launch, load};

const TEXTS: [&str; 3] = [
    include_str!("../data/ptx/functions.ptx"),
    include_str!("../data/ptx/collective.ptx"),
    DENSE,
];

/// Many kinds of operands and directives in few bytes.
const DENSE: &str = ".version 8.0\n.target sm_90a\n.address_size 64\n\
    .global .align 8 .u64 table[2] = {generic(table), f}; .const .align 4 .f32 c[3] = {0f3F800000, 1.5, -2};\n\
    .extern .shared .align 16 .b8 dyn[]; .func (.param .b32 r) f(.param .align 4 .b8 a[8]) { .reg .b32 %r<2>; ld.param.b32 %r1, [a+4]; st.param.b32 [r], %r1; ret; }\n\
    .visible .entry k(.param .u64 p0, .param .align 8 .b8 s[16]) .maxntid 64, 1, 1 .reqnctapercluster 1 {\n\
    .reg .pred %p<4>; .reg .b16 %rs<4>; .reg .b32 %r<20>; .reg .b64 %rd<8>; .reg .f32 %f<8>; .reg .b128 %q<2>; .local .align 8 .b8 l[16];\n\
    mov.u32 %r1, %tid.x; ld.param.u64 %rd1, [p0]; ld.param.v2.u32 {%r2, %r3}, [s+8]; mov.u64 %rd2, l; add.s64 %rd3, %rd2, 8;\n\
    st.local.v2.u32 [%rd3], {%r1, %r2}; setp.lt.and.u32 %p1|%p2, %r1, 7, !%p3; @!%p1 bra L1; mad.wide.u32 %rd4, %r1, 4, %rd1; red.global.add.u32 [%rd4], 1;\n\
    L1: { .reg .b32 t; .param .align 4 .b8 a[8]; .param .b32 r; st.param.b32 [a+4], %r1; call.uni (r), f, (a); ld.param.b32 t, [r]; mov.b32 {%rs1, %rs2}, t; }\n\
    shfl.sync.bfly.b32 %r4|%p2, %r1, 1, 31, -1; lop3.b32 %r5, %r1, %r4, 0xff, 0x96; prmt.b32 %r6, %r5, %r4, 0x5410; cvt.rn.f32.s32 %f1, %r6; fma.rn.ftz.f32 %f2, %f1, %f1, 0f40000000;\n\
    mov.b128 %q1, {%rd1, %rd2}; T: .branchtargets L2, L3; and.b32 %r7, %r1, 1; brx.idx %r7, T; L2: bar.sync 0; L3: mbarrier.init.shared.b64 [dyn], 1; cp.async.ca.shared.global [dyn+16], [%rd1], 4; cp.async.wait_all;\n\
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [dyn+128], [%rd1, {%r1, %r2}], [dyn]; ret; }\n";

/// Words that turn up in PTX, to be put where they do not belong.
const WORDS: [&str; 24] = [
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ";",
    ",",
    "%r1",
    "%rd1",
    "%p1",
    "0xffffffffffffffff",
    "-1",
    ".param",
    ".reg",
    ".b128",
    ".align",
    "<4294967295>",
    "call",
    "_",
    "|",
    "!",
    "4294967296",
    "/*",
];

#[test]
fn damaged_modules_load_or_are_refused() {
    let mut noise = Noise(20_261_129);
    let (mut loaded, mut refused) = (0, 0);
    for round in 0..1500 {
        let original = TEXTS[if round % 3 == 0 {
            (noise.next() % 2) as usize
        } else {
            2
        }];
        let mut text = original.as_bytes().to_vec();
        for _ in 0..1 + noise.next() % 4 {
            let at = noise.next() as usize % text.len();
            match noise.next() % 6 {
                0 => text[at] = noise.next() as u8 & 0x7f,
                1 => {
                    text.remove(at);
                }
                2 => text.truncate(at.max(1)),
                3 => {
                    let word = WORDS[noise.next() as usize % WORDS.len()];
                    text.splice(at..at, word.bytes());
                }
                4 => {
                    let end = (at + noise.next() as usize % 40).min(text.len());
                    let piece = text[at..end].to_vec();
                    let to = noise.next() as usize % text.len();
                    text.splice(to..to, piece);
                }
                // A number becomes another one.
                _ => {
                    if let Some(digit) = text[at..].iter().position(u8::is_ascii_digit) {
                        text[at + digit] = b'0' + (noise.next() % 10) as u8;
                    }
                }
            }
            if text.is_empty() {
                text.push(b' ');
            }
        }
        let Ok(text) = String::from_utf8(text) else {
            continue;
        };
        let mut memory = Memory::new(1 << 16);
        let module = neap::emulator::exec::ModuleCode::load(&text, &mut |bytes, align| {
            (bytes < 1 << 14 && align <= 256).then(|| memory.alloc(bytes as usize))
        });
        let Ok(module) = module else {
            refused += 1;
            continue;
        };
        loaded += 1;
        let names: Vec<String> = module
            .kernel_names()
            .iter()
            .map(|n| n.to_string())
            .collect();
        if !names.iter().any(|name| name == "k") {
            continue;
        }
        // What it does is its own affair; that it stays inside of the memory it was given is not.
        let params = [memory.alloc(4096), 1, 2, 3, 4, 5, 6, 7];
        let mut how = Launch {
            shared: 4096,
            params: &params,
            ..Launch::default()
        };
        how.options.watchdog_branches = 1 << 12;
        let _ = launch(&module, "k", &memory, &how);
    }
    assert!(
        loaded > 50 && refused > 500,
        "{loaded} loaded, {refused} refused"
    );
}

#[test]
fn nesting_and_sizes_do_not_decide_the_stack_or_the_memory() {
    let deep = "{".repeat(100_000);
    let texts = [
        format!(".version 8.0\n.target sm_80\n.address_size 64\n.global .b32 x[] = {deep}"),
        format!(".version 8.0\n.target sm_80\n.address_size 64\n.entry k() {deep}"),
        format!(".version 8.0\n.target sm_80\n.address_size 64\n.entry k() {{ mov.b64 %rd1, {deep}"),
        ".version 8.0\n.target sm_80\n.address_size 64\n.entry k() { .reg .b32 %r<1048576>; .reg .b32 %s<1048576>; .reg .b32 %t<1048577>; ret; }".into(),
        ".version 8.0\n.target sm_80\n.address_size 64\n.entry k() { .local .b8 x[4294967295][4294967295][4294967295]; ret; }".into(),
        ".version 8.0\n.target sm_80\n.address_size 64\n.entry k() { { .param .b8 a[1048576]; } { .param .b8 a[1048577]; } ret; }".into(),
    ];
    for text in texts {
        assert!(load(&mut Memory::new(4096), &text).is_err());
    }
}
