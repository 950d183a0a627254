//! Branches, divergence, barriers, warp-level exchange, special registers.

use super::harness::{Launch, Memory, kernel, launch, load, run_body};
use neap::emulator::exec::Fault;

fn lanes(body: &str, threads: u32, shared: u32) -> Vec<u32> {
    let mut memory = Memory::new(1 << 16);
    let out = memory.alloc(4 * threads as usize);
    let text = format!(
        "ld.param.u64 %rd1, [p0]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; mov.u32 %r2, 0;\n{body}\nst.global.u32 [%rd3], %r2;"
    );
    let how = Launch {
        params: &[out],
        block: [threads, 1, 1],
        shared,
        ..Launch::default()
    };
    run_body(&mut memory, &text, &how).unwrap_or_else(|fault| panic!("{fault}\n{body}"));
    memory.get(out, threads as usize)
}

fn expect(body: &str, threads: u32, model: impl Fn(u32) -> u32) {
    assert_eq!(
        lanes(body, threads, 256),
        (0..threads).map(model).collect::<Vec<_>>(),
        "{body}"
    );
}

fn fault(body: &str, threads: u32) -> Fault {
    let mut memory = Memory::new(1 << 16);
    let body = format!("mov.u32 %r1, %tid.x;\n{body}");
    run_body(
        &mut memory,
        &body,
        &Launch {
            block: [threads, 1, 1],
            shared: 1024,
            ..Launch::default()
        },
    )
    .expect_err("it must fault")
}

#[test]
fn if_else_and_nesting() {
    let body = "and.b32 %r3, %r1, 1; setp.eq.u32 %p1, %r3, 0; @%p1 bra EVEN;
        and.b32 %r4, %r1, 2; setp.eq.u32 %p2, %r4, 0; @!%p2 bra ODD2; add.u32 %r2, %r2, 10; bra ODD; ODD2: add.u32 %r2, %r2, 20; ODD: add.u32 %r2, %r2, 1; bra JOIN;
        EVEN: add.u32 %r2, %r2, 100; JOIN: add.u32 %r2, %r2, 1000;";
    for threads in [32, 64, 7] {
        expect(body, threads, |l| {
            1000 + if l % 2 == 0 {
                100
            } else if l & 2 == 0 {
                11
            } else {
                21
            }
        });
    }
}

#[test]
fn loops_with_a_trip_count_per_lane() {
    // Sum of 0..lane; then the reconverged warp shuffles, which needs all lanes.
    let body = "mov.u32 %r3, 0; setp.eq.u32 %p1, %r1, 0; @%p1 bra DONE;
        LOOP: add.u32 %r2, %r2, %r3; add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, %r1; @%p2 bra LOOP;
        DONE: shfl.sync.bfly.b32 %r4, %r2, 1, 31, 0xffffffff; mov.u32 %r2, %r4;";
    expect(body, 32, |l| (0..(l ^ 1)).sum());
    // A loop left in the middle, and one inside another.
    let body = "mov.u32 %r3, 0; OUTER: mov.u32 %r4, 0; INNER: setp.ge.u32 %p1, %r4, %r1; @%p1 bra LEFT; add.u32 %r2, %r2, 1; add.u32 %r4, %r4, 3; setp.lt.u32 %p2, %r4, 12; @%p2 bra INNER;
        LEFT: add.u32 %r3, %r3, 1; setp.lt.u32 %p3, %r3, 5; @%p3 bra OUTER; bar.sync 0;";
    expect(body, 64, |l| 5 * l.div_ceil(3).min(4));
}

#[test]
fn early_exits() {
    // Lanes from 20 on leave; the rest meet at a barrier and a vote.
    let mut memory = Memory::new(1 << 16);
    let out = memory.put(&[7u32; 64]);
    let body = "ld.param.u64 %rd1, [p0]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;
        and.b32 %r4, %r1, 31; setp.ge.u32 %p1, %r4, 20; @%p1 bra OUT; bar.sync 0; vote.sync.ballot.b32 %r2, 1, 0xffffffff; st.global.u32 [%rd3], %r2; OUT: ret;";
    run_body(
        &mut memory,
        body,
        &Launch {
            params: &[out],
            block: [64, 1, 1],
            ..Launch::default()
        },
    )
    .expect("it runs");
    let want: Vec<u32> = (0..64)
        .map(|l| if l % 32 < 20 { 0xfffff } else { 7 })
        .collect();
    assert_eq!(memory.get::<u32>(out, 64), want);
    // An exit inside one arm of a branch: the others still meet behind it.
    expect(
        "setp.lt.u32 %p1, %r1, 16; @%p1 bra ARM; bra MEET; ARM: setp.eq.u32 %p2, %r1, 99; @%p2 exit; add.u32 %r2, %r2, 5; MEET: bar.sync 0; add.u32 %r2, %r2, 1;",
        32,
        |l| 1 + if l < 16 { 5 } else { 0 },
    );
}

#[test]
fn branch_tables() {
    let body = "and.b32 %r3, %r1, 3; TABLE: .branchtargets A, B, C, A; brx.idx %r3, TABLE; A: add.u32 %r2, %r2, 1; bra E; B: add.u32 %r2, %r2, 2; C: add.u32 %r2, %r2, 4; E: bar.sync 0;";
    expect(body, 32, |l| [1, 6, 4, 1][l as usize & 3]);
}

#[test]
fn shuffles() {
    // Every mode, in segments of 32, 16 and 8, with every distance; the predicate too.
    for mode in ["up", "down", "bfly", "idx"] {
        for width in [32u32, 16, 8] {
            for b in [0u32, 1, 3, 7, 8, 15, 31] {
                let segment = 32 - width;
                let c = segment << 8 | if mode == "up" { 0 } else { 31 };
                let body = format!(
                    "add.u32 %r3, %r1, 100; shfl.sync.{mode}.b32 %r2|%p1, %r3, {b}, {c}, 0xffffffff; @%p1 add.u32 %r2, %r2, 1000;"
                );
                expect(&body, 32, |lane| {
                    let base = lane / width * width;
                    let within = lane % width;
                    let from = match mode {
                        "up" => within.checked_sub(b),
                        "down" => Some(within + b).filter(|f| *f < width),
                        "bfly" => Some((lane ^ b).wrapping_sub(base))
                            .filter(|f| *f < width || (lane ^ b) < base),
                        _ => Some(b % width),
                    };
                    match from {
                        Some(from) => 1100 + base.wrapping_add(from),
                        None => 100 + lane,
                    }
                });
            }
        }
    }
    // A lane may take its own distance.
    expect(
        "mul.lo.u32 %r3, %r1, 7; shfl.sync.idx.b32 %r2, %r1, %r3, 31, -1;",
        32,
        |l| 7 * l % 32,
    );
}

#[test]
fn votes_matches_and_reductions() {
    expect(
        "and.b32 %r3, %r1, 5; setp.eq.u32 %p1, %r3, 5; vote.sync.ballot.b32 %r2, %p1, -1;",
        32,
        |_| (0..32).filter(|l| l & 5 == 5).fold(0, |m, l| m | 1 << l),
    );
    for (mode, test, want) in [
        ("any", "0", 0),
        ("any", "9", 1),
        ("all", "31", 0),
        ("uni", "0", 1),
        ("uni", "9", 0),
    ] {
        expect(
            &format!(
                "setp.lt.u32 %p1, %r1, {test}; vote.sync.{mode}.pred %p2, %p1, -1; selp.u32 %r2, 1, 0, %p2;"
            ),
            32,
            |_| want,
        );
    }
    expect(
        "setp.lt.u32 %p1, %r1, 32; vote.sync.all.pred %p2, %p1, -1; selp.u32 %r2, 1, 0, %p2;",
        32,
        |_| 1,
    );
    expect(
        "shr.u32 %r3, %r1, 2; match.any.sync.b32 %r2, %r3, -1;",
        32,
        |l| 15 << (l / 4 * 4),
    );
    expect(
        "mov.u32 %r3, 4; match.all.sync.b32 %r2|%p1, %r3, -1; @!%p1 mov.u32 %r2, 5;",
        32,
        |_| u32::MAX,
    );
    expect(
        "match.all.sync.b32 %r2|%p1, %r1, -1; @%p1 mov.u32 %r2, 5;",
        32,
        |_| 0,
    );
    expect("redux.sync.add.u32 %r2, %r1, -1;", 32, |_| 496);
    expect(
        "sub.s32 %r3, %r1, 9; redux.sync.min.s32 %r2, %r3, -1;",
        32,
        |_| -9i32 as u32,
    );
    expect(
        "xor.b32 %r3, %r1, 32; redux.sync.or.b32 %r2, %r3, -1;",
        32,
        |_| 63,
    );
    expect(
        "setp.lt.u32 %p1, %r1, 9; @!%p1 bra SKIP; activemask.b32 %r2; SKIP: bar.sync 0;",
        32,
        |l| if l < 9 { 511 } else { 0 },
    );
    // A part of the warp may exchange if its mask says so.
    expect(
        "setp.lt.u32 %p1, %r1, 8; @!%p1 bra SKIP; redux.sync.add.u32 %r2, %r1, 0xff; SKIP: bar.sync 0;",
        32,
        |l| if l < 8 { 28 } else { 0 },
    );
}

#[test]
fn absent_lanes_are_divergence() {
    let lone = "setp.lt.u32 %p1, %r1, 8; @!%p1 bra SKIP;";
    for instruction in [
        "shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;",
        "vote.sync.ballot.b32 %r2, %p1, -1;",
        "redux.sync.add.u32 %r2, %r1, 0xffff;",
        "bar.sync 0;",
        "mov.u32 %r3, 0; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r3];",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r1,%r1,%r1}, {%r1,%r1}, {%f1,%f2,%f3,%f4};",
    ] {
        let fault = fault(&format!("{lone}{instruction} SKIP: bar.sync 0;"), 32);
        let Fault::Divergence { site, message } = &fault else {
            panic!("{instruction}: {fault}")
        };
        assert_eq!(site.lane, 8, "{fault}");
        assert!(message.contains("0x000000ff"), "{fault}");
    }
}

#[test]
fn barriers_order_the_warps() {
    // Each round, every thread reads the word its successor wrote in the round before.
    let body = "mov.u32 %r10, dyn; shl.b32 %r3, %r1, 2; add.u32 %r3, %r10, %r3; add.u32 %r4, %r1, 1; setp.eq.u32 %p1, %r4, 128; selp.u32 %r4, 0, %r4, %p1; shl.b32 %r4, %r4, 2; add.u32 %r4, %r10, %r4;
        mov.u32 %r5, %r1; mov.u32 %r6, 0;
        ROUND: st.shared.u32 [%r3], %r5; bar.sync 0; ld.shared.u32 %r5, [%r4]; bar.sync 0; add.u32 %r6, %r6, 1; setp.lt.u32 %p2, %r6, 9; @%p2 bra ROUND; mov.u32 %r2, %r5;";
    assert_eq!(
        lanes(body, 128, 512),
        (0..128).map(|l| (l + 9) % 128).collect::<Vec<u32>>()
    );
    // Named barriers of two warps each.
    let body = "shr.u32 %r3, %r1, 6; add.u32 %r3, %r3, 1; mov.u32 %r10, dyn; shl.b32 %r4, %r1, 2; add.u32 %r4, %r10, %r4; st.shared.u32 [%r4], %r1; bar.sync %r3, 64; xor.b32 %r5, %r4, 128; ld.shared.u32 %r2, [%r5];";
    assert_eq!(
        lanes(body, 128, 512),
        (0..128).map(|l| l ^ 32).collect::<Vec<u32>>()
    );
    // A producer warp that only arrives.
    let body = "mov.u32 %r10, dyn; shr.u32 %r3, %r1, 5; setp.eq.u32 %p1, %r3, 1; @%p1 bra PRODUCE; bar.sync 1, 64; ld.shared.u32 %r2, [%r10]; bra END; PRODUCE: mov.u32 %r4, 77; st.shared.u32 [%r10], %r4; bar.arrive 1, 64; END: bar.sync 0;";
    assert_eq!(
        lanes(body, 64, 64),
        (0..64)
            .map(|l| if l < 32 { 77 } else { 0 })
            .collect::<Vec<u32>>()
    );
    for (operation, want) in [
        ("popc.u32 %r2", 70),
        ("and.pred %p2", 0),
        ("or.pred %p2", 1),
    ] {
        let select = if operation.starts_with("popc") {
            ""
        } else {
            "selp.u32 %r2, 1, 0, %p2;"
        };
        expect(
            &format!("setp.lt.u32 %p1, %r1, 70; bar.red.{operation}, 0, %p1; {select}"),
            128,
            |_| want,
        );
    }
    expect(
        "setp.lt.u32 %p1, %r1, 70; barrier.cta.red.popc.aligned.u32 %r2, 3, !%p1;",
        128,
        |_| 58,
    );
}

#[test]
fn barriers_that_never_complete_are_reported() {
    let fault1 = fault(
        "shr.u32 %r3, %r1, 5; setp.eq.u32 %p1, %r3, 0; @%p1 bra A; bar.sync 1; bra B; A: bar.sync 2; B: mov.u32 %r4, 1;",
        64,
    );
    assert!(
        matches!(&fault1, Fault::BarrierDivergence { message, .. } if message.contains("warp 0 at barrier 2") && message.contains("warp 1 at barrier 1")),
        "{fault1}"
    );
    let fault2 = fault("bar.sync 1, 96;", 64);
    assert!(
        matches!(&fault2, Fault::BarrierDivergence { .. }),
        "{fault2}"
    );
    // A warp that has exited counts as arrived.
    expect(
        "shr.u32 %r3, %r1, 5; setp.eq.u32 %p1, %r3, 9; @%p1 exit; bar.sync 0; mov.u32 %r2, 3;",
        64,
        |_| 3,
    );
}

#[test]
fn hangs_and_traps_are_reported() {
    let hang = fault("FOREVER: bra FOREVER;", 32);
    assert!(
        matches!(&hang, Fault::Watchdog { site, .. } if site.statement.contains("bra FOREVER")),
        "{hang}"
    );
    let hang = fault(
        "mov.u32 %r3, dyn; st.shared.u32 [%r3], 0; SPIN: ld.volatile.shared.u32 %r4, [%r3]; setp.eq.u32 %p1, %r4, 0; @%p1 bra SPIN;",
        32,
    );
    assert!(matches!(&hang, Fault::Watchdog { .. }), "{hang}");
    let trap = fault("setp.eq.u32 %p1, %r1, 37; @%p1 trap;", 64);
    assert!(
        matches!(&trap, Fault::Trap { site } if site.warp == 1 && site.lane == 5),
        "{trap}"
    );
}

#[test]
fn a_warp_may_wait_for_another_of_its_block() {
    let body = "mov.u32 %r10, dyn; setp.eq.u32 %p3, %r1, 0; @%p3 st.shared.u32 [%r10], 0; bar.sync 0; setp.ge.u32 %p1, %r1, 32; @%p1 bra SET;
        SPIN: nanosleep.u32 20; ld.volatile.shared.u32 %r4, [%r10]; setp.eq.u32 %p2, %r4, 0; @%p2 bra SPIN; mov.u32 %r2, %r4; bra END;
        SET: mov.u32 %r5, 9; st.volatile.shared.u32 [%r10], %r5; END: bar.sync 0;";
    assert_eq!(
        lanes(body, 64, 64),
        (0..64)
            .map(|l| if l < 32 { 9 } else { 0 })
            .collect::<Vec<u32>>()
    );
}

#[test]
fn special_registers() {
    let text = kernel(1, "ld.param.u64 %rd1, [p0];
        mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z; mov.u32 %r4, %ntid.x; mov.u32 %r5, %ntid.y; mov.u32 %r6, %ntid.z;
        mov.u32 %r7, %ctaid.x; mov.u32 %r8, %ctaid.y; mov.u32 %r9, %ctaid.z; mov.u32 %r10, %nctaid.x; mov.u32 %r11, %nctaid.y; mov.u32 %r12, %nctaid.z;
        mov.u32 %r13, %laneid; mov.u32 %r14, %warpid; mov.u32 %r15, %lanemask_lt; mov.u32 %r16, %lanemask_ge; mov.u32 %r17, %lanemask_eq;
        mad.lo.u32 %r20, %r9, %r11, %r8; mad.lo.u32 %r20, %r20, %r10, %r7; mul.lo.u32 %r21, %r4, %r5; mul.lo.u32 %r21, %r21, %r6;
        mad.lo.u32 %r22, %r3, %r5, %r2; mad.lo.u32 %r22, %r22, %r4, %r1; mad.lo.u32 %r23, %r20, %r21, %r22; mul.wide.u32 %rd2, %r23, 32; add.s64 %rd3, %rd1, %rd2;
        st.global.v4.u32 [%rd3], {%r20, %r22, %r13, %r14}; st.global.v4.u32 [%rd3+16], {%r15, %r16, %r17, %r12};");
    let mut memory = Memory::new(1 << 20);
    let module = load(&mut memory, &text).expect("it loads");
    let (grid, block) = ([3, 2, 2], [5, 3, 4]);
    let out = memory.alloc(12 * 60 * 32);
    launch(
        &module,
        "k",
        &memory,
        &Launch {
            params: &[out],
            grid,
            block,
            ..Launch::default()
        },
    )
    .expect("it runs");
    for cta in 0..12u32 {
        for thread in 0..60u32 {
            let got = memory.get::<u32>(out + u64::from(cta * 60 + thread) * 32, 8);
            let lane = thread % 32;
            let lt = (1u64 << lane) as u32 - 1;
            assert_eq!(got, [cta, thread, lane, thread / 32, lt, !lt, 1 << lane, 2]);
        }
    }
}

#[test]
fn launches_that_do_not_fit_are_refused() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a) .maxntid 64, 1, 1 { ret; }";
    let mut memory = Memory::new(4096);
    let module = load(&mut memory, text).expect("it loads");
    assert_eq!(
        module.kernel("k").expect("it is there").max_threads,
        Some(64)
    );
    for how in [
        Launch {
            block: [65, 1, 1],
            params: &[0],
            ..Launch::default()
        },
        Launch {
            block: [0, 1, 1],
            params: &[0],
            ..Launch::default()
        },
        Launch {
            grid: [1, 0, 1],
            params: &[0],
            ..Launch::default()
        },
        Launch {
            params: &[],
            ..Launch::default()
        },
    ] {
        let fault = launch(&module, "k", &memory, &how).expect_err("it does not fit");
        assert!(matches!(fault, Fault::InvalidLaunch { .. }), "{fault}");
    }
}

#[test]
fn scopes_hide_registers_and_labels() {
    let body = "{ .reg .b32 %r2; .reg .pred p; setp.lt.u32 p, %r1, 4; mov.u32 %r2, 55; @p bra L; mov.u32 %r2, 66; L: mov.u32 %r30, %r2; } { L: .reg .b32 q; mov.b32 q, 1; add.u32 %r30, %r30, q; } mov.u32 %r2, %r30;";
    expect(body, 32, |l| if l < 4 { 56 } else { 67 });
}

#[test]
fn counters_do_not_depend_on_threads() {
    let text = kernel(
        1,
        "ld.param.u64 %rd1, [p0]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, 0; LOOP: add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, %r2; @%p1 bra LOOP; and.b32 %r4, %r1, 3; setp.eq.u32 %p2, %r4, 0; @%p2 bra X; add.u32 %r3, %r3, 2; X: bar.sync 0; red.global.add.u32 [%rd1], %r3;",
    );
    let mut results = Vec::new();
    for threads in [1, 2, 5] {
        let mut memory = Memory::new(4096);
        let module = load(&mut memory, &text).expect("it loads");
        let out = memory.put(&[0u32]);
        let mut how = Launch {
            params: &[out],
            grid: [97, 1, 1],
            block: [64, 1, 1],
            ..Launch::default()
        };
        how.options.threads = threads;
        let counters = launch(&module, "k", &memory, &how).expect("it runs");
        assert_eq!(
            (
                counters.launches,
                counters.blocks,
                counters.barriers,
                counters.divergent_branches
            ),
            (1, 97, 194, 194)
        );
        results.push((counters, memory.get::<u32>(out, 1)));
    }
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
}
