//! Damaged PTX: whatever the text, loading it ends with a module or an error, and what loads runs within its memory.

use super::elementwise::Noise;
use super::harness::{Launch, Memory, launch, load};

const TEXTS: [&str; 3] = [
    include_str!("../data/ptx/functions.ptx"),
    include_str!("../data/ptx/collective.ptx"),
    DENSE,
];

/// Many kinds of operands and directives in few bytes.
const DENSE: &str = include_str!("../bent_ptx/dense.ptx");

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
        ".version 8.0\n.target sm_80\n.address_size 64\n.entry k() { fma.rn.f16; ret; }".into(),
    ];
    for text in texts {
        assert!(load(&mut Memory::new(4096), &text).is_err());
    }
    // Offsets at the ends of 64 bits, which fuzzing found.
    for (load_of, offset) in [
        ("u8", "9223372036854775807"),
        ("u32", "9223372036854775804"),
        ("u64", "-9223372036854775808"),
    ] {
        for base in ["p", "%rd1"] {
            let text = format!(
                ".version 8.0\n.target sm_80\n.address_size 64\n.entry k(.param .u64 o, .param .u64 p) {{ .reg .b64 %rd<3>; mov.b64 %rd1, p;\n\
                 ld.param.{load_of} %rd2, [{base}+{offset}]; ret; }}"
            );
            assert!(load(&mut Memory::new(4096), &text).is_err(), "{text}");
        }
    }
}
