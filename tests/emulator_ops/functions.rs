//! Device functions: calls, recursion, pointers, the stack, printf and assert.

use super::harness::{Launch, Memory, launch, load};
use neap::emulator::exec::{Fault, Output};
use std::sync::{Arc, Mutex};

const COMPILED: &str = include_str!("../data/ptx/functions.ptx");

fn fibonacci(n: i32) -> i32 {
    if n < 2 {
        n
    } else {
        fibonacci(n - 1) + fibonacci(n - 2)
    }
}

fn depth_first(above: [i32; 4], level: i32) -> i32 {
    let here: [i32; 4] = std::array::from_fn(|i| {
        above[i]
            .wrapping_mul(3)
            .wrapping_add(level)
            .wrapping_add(i as i32)
    });
    if level == 0 {
        return here[0] ^ here[1] ^ here[2] ^ here[3];
    }
    depth_first(here, level - 1).wrapping_add(here[level as usize & 3])
}

/// `None`: the thread ends.
fn early(x: i32) -> Option<i32> {
    if x % 5 == 0 {
        return Some(-x);
    }
    if x % 7 == 0 {
        return None;
    }
    let mut s = 0i32;
    for i in 0..x {
        if i == 11 {
            return Some(s + 1000);
        }
        s = s.wrapping_add(i * x);
    }
    Some(s)
}

#[test]
fn compiled_functions_return_what_the_host_computes() {
    let n = 200i32;
    let mut memory = Memory::new(1 << 17);
    let module = load(&mut memory, COMPILED).expect("it loads");
    let out = memory.put(&vec![55i32; 8 * n as usize]);
    let params = [out, n as u64];
    let how = Launch {
        grid: [3, 1, 1],
        block: [96, 1, 1],
        params: &params,
        ..Launch::default()
    };
    launch(&module, "functions", &memory, &how).unwrap();
    let got = memory.get::<i32>(out, 8 * n as usize);
    for i in 0..n {
        let short = |k: i32| i32::from((i * k) as i16);
        let operation = match i % 3 {
            0 => i + 7,
            1 => i - 7,
            _ => i * 7,
        };
        let last = early(i);
        let want = [
            i + (f64::from(i) * 0.5) as i32,
            (f64::from(i) * (f64::from(i) * 0.5)) as i32,
            short(1) + short(2) + short(3),
            fibonacci(i % 12),
            depth_first([i, i + 1, i + 2, i + 3], i % 6),
            operation,
            last.unwrap_or(-7),
            if last.is_some() { 1 } else { 55 },
        ];
        assert_eq!(got[8 * i as usize..][..8], want, "thread {i}");
    }
}

#[test]
fn printf_prints_as_c_does_when_the_launch_ends() {
    let mut memory = Memory::new(8192);
    let module = load(&mut memory, COMPILED).expect("it loads");
    let printed = Arc::new(Mutex::new(Vec::new()));
    let params = [(-42i32) as u32 as u64, std::f64::consts::PI.to_bits(), 0];
    let mut how = Launch {
        params: &params,
        ..Launch::default()
    };
    how.options.output = Output::Buffer(Arc::clone(&printed));
    launch(&module, "prints", &memory, &how).unwrap();
    let text = String::from_utf8(printed.lock().unwrap().clone()).unwrap();
    let line = |lane: u32| {
        format!("lane {lane}:   -42|ffffffd6|0003.142|3.141593e+00|3.14159|text|z|1099511627776%\n")
    };
    assert_eq!(text, line(0) + &line(1) + "no arguments\n");
}

/// What `printf` makes of one argument, with glibc's answers beside it.
#[test]
fn printf_conversions() {
    let word = |v: i32| u64::from(v as u32);
    let cases: &[(&str, u64, bool, &str)] = &[
        ("%d", word(-5), false, "-5"),
        ("%+05d", word(42), false, "+0042"),
        ("% d", word(7), false, " 7"),
        ("%-6d|", word(7), false, "7     |"),
        ("%.4d", word(-12), false, "-0012"),
        ("%8.3d|", word(9), false, "     009|"),
        ("%u", word(-1), false, "4294967295"),
        ("%hhd", word(0x1ff), false, "-1"),
        ("%hu", word(-1), false, "65535"),
        ("%#x", word(255), false, "0xff"),
        ("%#010X", word(255), false, "0X000000FF"),
        ("%o", word(8), false, "10"),
        ("%#o", word(8), false, "010"),
        ("%c%%", word(65), false, "A%"),
        ("%lld", (-3i64) as u64, true, "-3"),
        ("%zu", u64::MAX, true, "18446744073709551615"),
        ("%p", 0xabc, true, "0xabc"),
        ("%f", 1.5f64.to_bits(), true, "1.500000"),
        ("%.0f", 2.5f64.to_bits(), true, "2"),
        ("%#.0f", 3f64.to_bits(), true, "3."),
        ("%+.2e", 12345.678f64.to_bits(), true, "+1.23e+04"),
        ("%G", 1e-10f64.to_bits(), true, "1E-10"),
        ("%g", 100000f64.to_bits(), true, "100000"),
        ("%g", 1000000f64.to_bits(), true, "1e+06"),
        ("%.3g", 0.00012345f64.to_bits(), true, "0.000123"),
        ("%#g", 1f64.to_bits(), true, "1.00000"),
        ("%08.2f", (-1.5f64).to_bits(), true, "-0001.50"),
        ("%5.1f|", f64::INFINITY.to_bits(), true, "  inf|"),
        ("%05f", f64::NAN.to_bits(), true, "  nan"),
        ("%a", 1f64.to_bits(), true, "0x1p+0"),
        ("%a", 0.1f64.to_bits(), true, "0x1.999999999999ap-4"),
        ("%.2a", 0.1f64.to_bits(), true, "0x1.9ap-4"),
    ];
    for &(format, argument, wide, want) in cases {
        let bytes: Vec<String> = format.bytes().chain([0]).map(|b| b.to_string()).collect();
        let store = if wide { "b64" } else { "b32" };
        let register = if wide { "%rd1" } else { "%r1" };
        let text = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n\
             .extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n\
             .global .align 1 .b8 text[{}] = {{{}}};\n\
             .visible .entry k(.param .u64 p0) {{\n.reg .b32 %r<4>; .reg .b64 %rd<6>; .reg .pred %p<2>;\n\
             .local .align 8 .b8 list[16];\n\
             ld.param.{store} {register}, [p0]; mov.u32 %r2, %tid.x; setp.ne.u32 %p1, %r2, 0; @%p1 ret;\n\
             st.local.{store} [list], {register}; mov.u64 %rd2, list; cvta.local.u64 %rd3, %rd2;\n\
             mov.u64 %rd4, text; cvta.global.u64 %rd4, %rd4;\n\
             {{ .param .b64 a; .param .b64 b; .param .b32 r;\n\
             st.param.b64 [a], %rd4; st.param.b64 [b+0], %rd3; call.uni (r), vprintf, (a, b); ld.param.b32 %r3, [r+0]; }}\n\
             ret; }}",
            bytes.len(),
            bytes.join(", ")
        );
        let mut memory = Memory::new(8192);
        let module = load(&mut memory, &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let printed = Arc::new(Mutex::new(Vec::new()));
        let params = [argument];
        let mut how = Launch {
            params: &params,
            ..Launch::default()
        };
        how.options.output = Output::Buffer(Arc::clone(&printed));
        launch(&module, "k", &memory, &how).unwrap();
        let got = String::from_utf8(printed.lock().unwrap().clone()).unwrap();
        assert_eq!(got, want, "{format}");
    }
}

#[test]
fn a_failed_assertion_says_what_and_where() {
    let mut memory = Memory::new(8192);
    let module = load(&mut memory, COMPILED).expect("it loads");
    for (limit, holds) in [(32u64, true), (30, false)] {
        let params = [limit];
        let how = Launch {
            params: &params,
            ..Launch::default()
        };
        match launch(&module, "checks", &memory, &how) {
            Ok(_) => assert!(holds),
            Err(Fault::Assertion { site, message }) => {
                assert!(!holds);
                assert_eq!(site.lane, 30);
                assert!(
                    message.contains("static_cast<int>(threadIdx.x) < limit"),
                    "{message}"
                );
                assert!(message.contains("functions.cu:"), "{message}");
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn endless_recursion_overflows_the_stack() {
    let mut memory = Memory::new(8192);
    let module = load(&mut memory, COMPILED).expect("it loads");
    let params = [memory.put(&[1i32; 64])];
    let how = Launch {
        params: &params,
        ..Launch::default()
    };
    match launch(&module, "endless", &memory, &how) {
        Err(Fault::StackOverflow { depth, bytes, .. }) => {
            assert!((100..2000).contains(&depth), "{depth}");
            assert!(bytes > 16 << 10);
        }
        other => panic!("{other:?}"),
    }
}

/// Runs kernel `k` of a module with an output word a lane.
fn lanes(text: &str, threads: u32) -> Result<Vec<u32>, Fault> {
    let mut memory = Memory::new(8192);
    let module = load(&mut memory, text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let out = memory.alloc(4 * threads as usize);
    let how = Launch {
        block: [threads, 1, 1],
        params: &[out],
        ..Launch::default()
    };
    launch(&module, "k", &memory, &how)?;
    Ok(memory.get(out, threads as usize))
}

const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";
const STORE: &str = "ld.param.u64 %rd1, [p0]; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r2; ret;";

#[test]
fn parameters_may_be_registers_and_numbers() {
    let text = format!(
        "{HEAD}.func (.reg .b32 r, .reg .b64 w) f(.reg .b32 a, .reg .b32 b) {{\n\
         .reg .pred p; setp.gt.u32 p, a, 10; @p bra over; add.u32 r, a, b; cvt.u64.u32 w, a; ret;\n\
         over: mov.u32 r, 77; mov.u64 w, 5; ret; }}\n\
         .visible .entry k(.param .u64 p0) {{ .reg .b32 %r<9>; .reg .b64 %rd<9>;\n\
         mov.u32 %r1, %tid.x; call (%r2, %rd3), f, (%r1, 1000); cvt.u32.u64 %r3, %rd3; add.u32 %r2, %r2, %r3; {STORE} }}"
    );
    for (lane, got) in lanes(&text, 32).unwrap().into_iter().enumerate() {
        let lane = lane as u32;
        let want = if lane > 10 { 82 } else { 2 * lane + 1000 };
        assert_eq!(got, want, "lane {lane}");
    }
}

#[test]
fn a_guarded_call_runs_for_some_lanes_and_special_registers_are_those_of_the_thread() {
    let text = format!(
        "{HEAD}.func (.param .b32 r) f() {{ .reg .b32 %r<9>;\n\
         mov.u32 %r1, %laneid; mov.u32 %r2, %tid.x; mov.u32 %r3, %ctaid.x; mad.lo.u32 %r1, %r1, 100, %r2; add.u32 %r1, %r1, %r3;\n\
         activemask.b32 %r4; popc.b32 %r4, %r4; mad.lo.u32 %r1, %r4, 100000, %r1; st.param.b32 [r], %r1; ret; }}\n\
         .visible .entry k(.param .u64 p0) {{ .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<3>; .param .b32 r;\n\
         mov.u32 %r1, %tid.x; mov.u32 %r2, 5; and.b32 %r3, %r1, 3; setp.eq.u32 %p1, %r3, 0;\n\
         st.param.b32 [r], %r2; @%p1 call (r), f; ld.param.b32 %r2, [r]; {STORE} }}"
    );
    for (thread, got) in lanes(&text, 64).unwrap().into_iter().enumerate() {
        let thread = thread as u32;
        let want = if thread.is_multiple_of(4) {
            800_000 + thread % 32 * 100 + thread
        } else {
            5
        };
        assert_eq!(got, want, "thread {thread}");
    }
}

#[test]
fn variable_arrays_on_the_stack() {
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 p0) {{ .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<3>;\n\
         mov.u32 %r1, %tid.x; stacksave.u64 %rd6; and.b32 %r3, %r1, 7; add.u32 %r3, %r3, 1; shl.b32 %r3, %r3, 2; cvt.u64.u32 %rd3, %r3;\n\
         alloca.u64 %rd4, %rd3, 16; alloca.u64 %rd5, 8; st.local.u64 [%rd5], %rd5; add.u64 %rd7, %rd4, %rd3;\n\
         st.local.u32 [%rd7+-4], %r1; st.local.u32 [%rd4], %r1; ld.local.u64 %rd8, [%rd5]; sub.u64 %rd8, %rd8, %rd5; cvt.u32.u64 %r4, %rd8;\n\
         ld.local.u32 %r2, [%rd7+-4]; add.u32 %r2, %r2, %r4; stackrestore.u64 %rd6; alloca.u64 %rd8, 16; setp.ne.u64 %p1, %rd8, %rd4; selp.u32 %r4, 1000, 0, %p1; add.u32 %r2, %r2, %r4; {STORE} }}"
    );
    let want: Vec<u32> = (0..32).collect();
    assert_eq!(lanes(&text, 32).unwrap(), want);
}

#[test]
fn a_call_of_what_is_no_function_is_refused_or_a_fault() {
    let call = |what: &str| {
        format!(
            "{HEAD}.extern .func elsewhere(.param .b32 a);\n.func known() {{ ret; }}\n\
             .visible .entry k(.param .u64 p0) {{ .reg .b32 %r<9>; .reg .b64 %rd<9>;\n{what} ret; }}"
        )
    };
    let mut memory = Memory::new(4096);
    for (what, reason) in [
        ("call nowhere;", "`nowhere` is not declared"),
        (
            "{ .param .b32 a; call elsewhere, (a); }",
            "`elsewhere` is not defined in this module",
        ),
    ] {
        let error = load(&mut memory, &call(what)).expect_err(what).to_string();
        assert!(
            error.contains(reason) && error.contains("line 7"),
            "{error}"
        );
    }
    let fault = lanes(
        &call("mov.u64 %rd1, known; add.u64 %rd1, %rd1, 1; proto: .callprototype _ (); call %rd1, (), proto;"),
        32,
    )
    .unwrap_err();
    assert!(fault.to_string().contains("is not a function"), "{fault}");
    let fault = lanes(
        &call("{ .param .b32 a; st.param.b32 [a], 1; mov.u64 %rd1, known; proto: .callprototype _ (.param .b32 _); call %rd1, (a), proto; }"),
        32,
    )
    .unwrap_err();
    assert!(fault.to_string().contains("0 parameters"), "{fault}");
}

#[test]
fn a_declaration_may_stand_before_its_definition() {
    let text = format!(
        "{HEAD}.extern .global .align 4 .b32 shared_word;\n.extern .func (.param .b32 r) f();\n\
         .visible .entry k(.param .u64 p0) {{ .reg .b32 %r<9>; .reg .b64 %rd<9>; .param .b32 r;\n\
         mov.u32 %r1, %tid.x; call (r), f; ld.param.b32 %r2, [r]; {STORE} }}\n\
         .version 8.0\n.target sm_80\n.address_size 64\n.visible .global .align 4 .b32 shared_word = 99;\n\
         .visible .func (.param .b32 r) f() {{ .reg .b32 %r<2>; ld.global.b32 %r1, [shared_word]; st.param.b32 [r], %r1; ret; }}"
    );
    assert_eq!(lanes(&text, 32).unwrap(), [99; 32]);
}
