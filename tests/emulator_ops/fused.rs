//! Instructions that the loader joins: the same values and counts as one after the other. A guard keeps an instruction from
//! being joined, so every program runs in both forms.

use super::elementwise::Noise;
use super::harness::{Launch, Memory, run_body};
use neap::emulator::exec::Counters;

/// Runs `body` for two warps, the second one not full, which leaves its 64-bit result in `%rd9`. Thread i finds words
/// i, i + 64, ... of `inputs` in `%r0`, `%r1`, ...; `%rd2` is an address of no account.
fn run(body: &str, inputs: &[u32]) -> (Vec<u64>, Counters) {
    const THREADS: usize = 47;
    let mut memory = Memory::new(1 << 16);
    let input = memory.put(inputs);
    let output = memory.alloc(8 * THREADS);
    let mut text = String::from(
        "ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; mov.u32 %r90, %tid.x; setp.lt.u32 %p1, %r90, 1000; mul.wide.u32 %rd4, %r90, 4; add.s64 %rd1, %rd1, %rd4;\n",
    );
    for index in 0..inputs.len() / 64 {
        text += &format!("ld.global.u32 %r{index}, [%rd1+{}];\n", 256 * index);
    }
    text += body;
    text += "shl.b64 %rd5, %rd4, 1; ld.param.u64 %rd6, [p1]; add.s64 %rd6, %rd6, %rd5; @%p1 st.global.u64 [%rd6], %rd9;";
    let how = Launch {
        params: &[input, output],
        block: [THREADS as u32, 1, 1],
        ..Launch::default()
    };
    let counters = run_body(&mut memory, &text, &how).unwrap_or_else(|fault| panic!("{fault}"));
    (memory.get(output, THREADS), counters)
}

/// Runs `body` as it is and with every `@` guarded, compares results and counts, and returns the results.
fn both_ways(body: &str, inputs: &[u32]) -> Vec<u64> {
    let (joined, counts) = run(&body.replace('@', ""), inputs);
    let (apart, expected) = run(&body.replace('@', "@%p1 "), inputs);
    assert_eq!(joined, apart, "{body}");
    assert_eq!(
        counts.warp_instructions, expected.warp_instructions,
        "{body}"
    );
    assert_eq!(counts.active_lanes, expected.active_lanes, "{body}");
    joined
}

/// Words that are often near each other or at the ends of their range.
fn words(count: usize, seed: u64) -> Vec<u32> {
    let mut noise = Noise(seed);
    let mut word = || {
        let bits = noise.next();
        let base = [0, 1 << 31, u32::MAX, bits as u32][(bits >> 32) as usize % 4];
        base.wrapping_add((bits >> 40) as u32 % 5).wrapping_sub(2)
    };
    (0..64 * count).map(|_| word()).collect()
}

#[test]
fn sums_of_addresses() {
    let inputs = words(4, 1);
    let word = |n: usize, thread: usize| u64::from(inputs[64 * n + thread]);
    let wide =
        "mul.wide.u32 %rd11, %r0, %r1; mul.wide.u32 %rd12, %r2, %r3; mul.wide.u32 %rd13, %r1, %r2;";
    let factor = |thread: usize| {
        [
            word(0, thread) * word(1, thread),
            word(2, thread) * word(3, thread),
            word(1, thread) * word(2, thread),
        ]
    };
    type Model<'a> = &'a dyn Fn(u64, [u64; 3]) -> u64;
    let sum = |terms: &[u64]| {
        terms
            .iter()
            .fold(0, |sum: u64, &term| sum.wrapping_add(term))
    };
    let cases: [(&str, Model<'_>); 7] = [
        (
            "@cvt.u64.u32 %rd14, %r3; @add.s64 %rd9, %rd11, %rd14;",
            &|x, [a, ..]| sum(&[x, a]),
        ),
        (
            "@cvt.u64.u32 %rd14, %r3; @add.s64 %rd15, %rd11, %rd14; @add.u64 %rd9, %rd15, %rd12;",
            &|x, [a, b, _]| sum(&[x, a, b]),
        ),
        (
            "@cvt.u64.u32 %rd14, %r3; @add.s64 %rd15, %rd11, %rd14; @add.s64 %rd16, %rd15, %rd12; @add.s64 %rd9, %rd13, %rd16;",
            &|x, [a, b, c]| sum(&[x, a, b, c]),
        ),
        (
            "@add.s64 %rd15, %rd11, %rd12; @add.s64 %rd16, %rd12, %rd13; @add.s64 %rd9, %rd15, %rd16;",
            &|_, [a, b, c]| sum(&[a, b, b, c]),
        ),
        // A result that is read twice stays.
        (
            "@cvt.u64.u32 %rd14, %r3; @add.s64 %rd15, %rd11, %rd14; @add.s64 %rd9, %rd15, %rd15;",
            &|x, [a, ..]| sum(&[x, a, x, a]),
        ),
        // So does one whose operand changes before the sum is taken.
        (
            "@add.s64 %rd15, %rd11, %rd12; @add.s64 %rd11, %rd13, 1; @add.s64 %rd9, %rd15, %rd11;",
            &|_, [a, b, c]| sum(&[a, b, c, 1]),
        ),
        // More terms than one instruction takes.
        (
            "@cvt.u64.u32 %rd14, %r3; @add.s64 %rd15, %rd11, %rd14; @add.s64 %rd16, %rd15, %rd12; @add.s64 %rd17, %rd13, %rd16; @add.s64 %rd18, %rd17, 7; @add.s64 %rd9, %rd18, %rd12;",
            &|x, [a, b, c]| sum(&[x, a, b, c, 7, b]),
        ),
    ];
    for (body, model) in cases {
        let got = both_ways(&format!("{wide} {body}"), &inputs);
        for (thread, &result) in got.iter().enumerate() {
            let expected = model(word(3, thread), factor(thread));
            assert_eq!(result, expected, "thread {thread} of {body}");
        }
    }
}

#[test]
fn sums_under_divergence() {
    let inputs = words(2, 2);
    let body = "mov.u64 %rd9, 5; mul.wide.u32 %rd11, %r0, %r1; and.b32 %r80, %r90, 1; setp.eq.u32 %p2, %r80, 0; @%p2 bra EVEN; cvt.u64.u32 %rd14, %r1; add.s64 %rd15, %rd11, %rd14; add.s64 %rd9, %rd15, %rd9; EVEN:";
    let (got, _) = run(body, &inputs);
    for (thread, &result) in got.iter().enumerate() {
        let (a, b) = (u64::from(inputs[thread]), u64::from(inputs[64 + thread]));
        let odd = (a * b).wrapping_add(b).wrapping_add(5);
        assert_eq!(
            result,
            if thread % 2 == 0 { 5 } else { odd },
            "thread {thread}"
        );
    }
}

#[test]
fn tests_of_a_range() {
    let inputs = words(4, 3);
    let holds = |order: &str, signed: bool, a: u32, b: u32| {
        let key = |x: u32| {
            if signed {
                i64::from(x as i32)
            } else {
                x.into()
            }
        };
        match order {
            "lt" => key(a) < key(b),
            "le" => key(a) <= key(b),
            "gt" => key(a) > key(b),
            _ => key(a) >= key(b),
        }
    };
    for ty in ["u32", "s32"] {
        for first in ["lt", "le", "gt", "ge"] {
            for second in ["lt", "le", "gt", "ge"] {
                for join in ["and", "or"] {
                    let body = format!(
                        "@setp.{first}.{ty} %p2, %r0, %r1; @setp.{second}.{ty} %p3, %r2, %r3; @{join}.pred %p4, %p2, %p3; selp.u32 %r70, 1, 0, %p4; cvt.u64.u32 %rd9, %r70;"
                    );
                    let got = both_ways(&body, &inputs);
                    for (thread, &result) in got.iter().enumerate() {
                        let word = |n: usize| inputs[64 * n + thread];
                        let one = holds(first, ty == "s32", word(0), word(1));
                        let two = holds(second, ty == "s32", word(2), word(3));
                        let expected = if join == "and" { one & two } else { one | two };
                        assert_eq!(result, u64::from(expected), "thread {thread} of {body}");
                    }
                }
            }
        }
    }
}
