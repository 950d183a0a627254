//! `ldmatrix`, `mma.sync` and `cp.async`, against the index formulas of the PTX ISA and deliberately broken programs.

#![allow(clippy::needless_range_loop)] // lanes, rows and columns index several arrays

use super::elementwise::Noise;
use super::harness::{Launch, Memory, kernel, launch, load, on_purpose, run_body};
use half::{bf16, f16};
use neap::emulator::CheckKind;
use neap::emulator::exec::Fault;

/// One warp: lane-indexed registers in, lane-indexed registers out.
pub fn warp(body: &str, inputs: &[[u32; 32]], outputs: usize, shared: &[u8]) -> Vec<[u32; 32]> {
    let mut memory = Memory::new(1 << 18);
    let flat: Vec<u32> = inputs.iter().flatten().copied().collect();
    let input = if flat.is_empty() {
        0
    } else {
        memory.put(&flat)
    };
    let image = if shared.is_empty() {
        0
    } else {
        memory.put(shared)
    };
    let out = memory.alloc(128 * outputs);
    let mut text = String::from(
        "ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; ld.param.u64 %rd3, [p2]; mov.u32 %r90, %tid.x; mul.wide.u32 %rd4, %r90, 4; add.s64 %rd1, %rd1, %rd4; add.s64 %rd2, %rd2, %rd4; add.s64 %rd3, %rd3, %rd4; shl.b32 %r91, %r90, 2; mov.u32 %r92, dyn; add.u32 %r91, %r91, %r92;\n",
    );
    for word in 0..shared.len() / 128 {
        text += &format!(
            "ld.global.u32 %r93, [%rd3+{0}]; st.shared.u32 [%r91+{0}], %r93;\n",
            128 * word
        );
    }
    text += "bar.sync 0;\n";
    for index in 0..inputs.len() {
        text += &format!("ld.global.u32 %r{index}, [%rd1+{}];\n", 128 * index);
    }
    text += body;
    for index in 0..outputs {
        text += &format!("\nst.global.u32 [%rd2+{}], %r{};", 128 * index, 40 + index);
    }
    run_body(
        &mut memory,
        &text,
        &Launch {
            params: &[input, out, image],
            shared: shared.len().max(16) as u32,
            ..Launch::default()
        },
    )
    .unwrap_or_else(|fault| panic!("{fault}"));
    memory
        .get::<u32>(out, 32 * outputs)
        .chunks(32)
        .map(|c| c.try_into().expect("32 lanes"))
        .collect()
}

#[test]
fn ldmatrix_layouts() {
    // 32 rows of 8 numbered 16-bit elements, at scattered 16-byte places: row r of the table at 16 * place(r).
    let place = |row: usize| (row * 7 + 3) % 32;
    let mut shared = vec![0u8; 512];
    for row in 0..32 {
        for column in 0..8 {
            let value = (row * 8 + column) as u16;
            shared[16 * place(row) + 2 * column..][..2].copy_from_slice(&value.to_le_bytes());
        }
    }
    let addresses: [u32; 32] = std::array::from_fn(|lane| 16 * place(lane) as u32);
    for count in [1usize, 2, 4] {
        for trans in ["", ".trans"] {
            let list: Vec<String> = (0..count).map(|n| format!("%r{}", 40 + n)).collect();
            // Lanes that give no address may hold nonsense.
            let given: [u32; 32] = std::array::from_fn(|lane| {
                if lane < 8 * count {
                    addresses[lane]
                } else {
                    0xdead_beef
                }
            });
            let body = format!(
                "mov.u32 %r1, dyn; add.u32 %r0, %r0, %r1; ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{}}}, [%r0];",
                list.join(",")
            );
            let got = warp(&body, &[given], count, &shared);
            for (matrix, registers) in got.iter().enumerate() {
                for (lane, &register) in registers.iter().enumerate() {
                    for half in 0..2 {
                        // PTX ISA, "ldmatrix": thread l holds elements 2 (l % 4) and the next of row l / 4 of the matrix, or
                        // of its transpose.
                        let (row, column) = (lane / 4, 2 * (lane % 4) + half);
                        let (row, column) = if trans.is_empty() {
                            (row, column)
                        } else {
                            (column, row)
                        };
                        let want = ((8 * matrix + row) * 8 + column) as u32;
                        assert_eq!(
                            register >> (16 * half) & 0xffff,
                            want,
                            "x{count}{trans}, matrix {matrix}, lane {lane}, half {half}"
                        );
                    }
                }
            }
        }
    }
    // The destination may overwrite the address.
    let got = warp(
        "mov.u32 %r1, dyn; add.u32 %r40, %r0, %r1; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r41,%r40,%r42,%r43}, [%r40];",
        &[addresses],
        4,
        &shared,
    );
    assert_eq!(got[1][0] & 0xffff, 0);
    assert_eq!(got[0][5] & 0xffff, (8 + 1) * 8 + 2);
    let fault = run_body(
        &mut Memory::new(4096),
        "mov.u32 %r1, 8; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r1];",
        &Launch {
            shared: 1024,
            ..Launch::default()
        },
    );
    assert!(
        matches!(fault, Err(Fault::Misaligned { bytes: 16, .. })),
        "{fault:?}"
    );
}

/// What of a product is out of the ordinary.
#[derive(Clone, Debug, Default)]
struct Scene {
    /// Rows of A that hold zeros of both signs, and what their rows of C begin with.
    zero_rows: std::ops::Range<usize>,
    c: Vec<f32>,
    /// B holds an infinity.
    infinite_b: bool,
    /// Which of the two products has these B and C.
    second: usize,
}

/// `D = A B + C` for two B and C through PTX and in f64, from matrices laid out by the ISA's formulas for `a_i`, `b_i`, `c_i`.
/// The two instructions follow each other, which the loader may use.
fn check_mma(ty: &str, k: usize, seed: u64, scene: Scene) {
    let mut noise = Noise(seed);
    let mut value = || {
        let x = (noise.next() % 4001) as f32 / 500.0 - 4.0;
        if ty == "bf16" {
            (f32::from(bf16::from_f32(x)), bf16::from_f32(x).to_bits())
        } else {
            (f32::from(f16::from_f32(x)), f16::from_f32(x).to_bits())
        }
    };
    let mut a: Vec<Vec<(f32, u16)>> = (0..16).map(|_| (0..k).map(|_| value()).collect()).collect();
    let mut matrices = |rows: usize| -> [Vec<[(f32, u16); 8]>; 2] {
        std::array::from_fn(|_| {
            (0..rows)
                .map(|_| std::array::from_fn(|_| value()))
                .collect()
        })
    };
    let mut b = matrices(k);
    let mut c = matrices(16).map(|rows| -> Vec<[f32; 8]> {
        let scaled = rows.into_iter().map(|row| row.map(|(x, _)| x * 3.7));
        scaled.collect()
    });
    for row in scene.zero_rows.clone() {
        a[row] = (0..k)
            .map(|x| if x % 3 == 0 { (-0.0, 0x8000) } else { (0.0, 0) })
            .collect();
        for (column, x) in scene.c.iter().enumerate() {
            c[scene.second][row][column] = *x;
        }
    }
    if scene.infinite_b {
        b[scene.second][k - 1][7] = (f32::INFINITY, if ty == "bf16" { 0x7f80 } else { 0x7c00 });
    }
    let (registers_a, registers_b) = (k / 4, k / 8);
    let b_at = |product: usize| registers_a + product * (registers_b + 4);
    let mut inputs = vec![[0u32; 32]; b_at(2)];
    for lane in 0..32 {
        let (group, thread) = (lane / 4, lane % 4);
        for i in 0..2 * registers_a {
            // row = group for 0 <= i < 2 || 4 <= i < 6, else group + 8; col = thread * 2 + (i & 1) for i < 4, + 8 for i >= 4
            let row = if i < 2 || (4..6).contains(&i) {
                group
            } else {
                group + 8
            };
            let column = thread * 2 + (i & 1) + if i >= 4 { 8 } else { 0 };
            inputs[i / 2][lane] |= u32::from(a[row][column].1) << (16 * (i & 1));
        }
        for product in 0..2 {
            for i in 0..2 * registers_b {
                let row = thread * 2 + (i & 1) + if i >= 2 { 8 } else { 0 };
                inputs[b_at(product) + i / 2][lane] |=
                    u32::from(b[product][row][group].1) << (16 * (i & 1));
            }
            for i in 0..4 {
                let row = if i < 2 { group } else { group + 8 };
                inputs[b_at(product) + registers_b + i][lane] =
                    c[product][row][thread * 2 + (i & 1)].to_bits();
            }
        }
    }
    let names = |from: usize, count: usize| {
        (from..from + count)
            .map(|n| format!("%r{n}"))
            .collect::<Vec<_>>()
            .join(",")
    };
    let one = |product: usize| {
        format!(
            "mma.sync.aligned.m16n8k{k}.row.col.f32.{ty}.{ty}.f32 {{{}}}, {{{}}}, {{{}}}, {{{}}};",
            names(40 + 4 * product, 4),
            names(0, registers_a),
            names(b_at(product), registers_b),
            names(b_at(product) + registers_b, 4)
        )
    };
    let got = warp(&(one(0) + &one(1)), &inputs, 8, &[]);
    for (lane, n) in (0..32).flat_map(|lane| (0..8).map(move |n| (lane, n))) {
        let (product, i) = (n / 4, n % 4);
        let (b, c) = (&b[product], &c[product]);
        let (row, column) = (lane / 4 + if i < 2 { 0 } else { 8 }, lane % 4 * 2 + (i & 1));
        let exact: f64 = f64::from(c[row][column])
            + (0..k)
                .map(|x| f64::from(a[row][x].0) * f64::from(b[x][column].0))
                .sum::<f64>();
        let result = f32::from_bits(got[n][lane]);
        assert!(
            !exact.is_finite() || (f64::from(result) - exact).abs() < 1e-4,
            "{ty} k{k} product {product} row {row} column {column}: {result} for {exact}"
        );
        // In ascending k, one FMA each: the order is part of the emulator's contract.
        let ordered = (0..k).fold(c[row][column], |s, x| {
            a[row][x].0.mul_add(b[x][column].0, s)
        });
        assert!(
            result.to_bits() == ordered.to_bits() || result.is_nan() && ordered.is_nan(),
            "{ty} k{k} product {product} row {row} column {column}: {result} for {ordered}, {scene:?}"
        );
    }
}

#[test]
fn mma_layouts() {
    for seed in 0..3 {
        for (ty, k) in [("bf16", 16), ("f16", 16), ("bf16", 8), ("f16", 8)] {
            check_mma(ty, k, seed, Scene::default());
        }
    }
}

/// Padding rows are not computed where that changes nothing: not where C holds -0 or NaN or B an infinity.
#[test]
fn mma_with_rows_of_zeros() {
    let odd = [
        -0.0,
        0.0,
        f32::NAN,
        f32::INFINITY,
        1e-40,
        f32::from_bits(0x7f80_0001),
    ];
    for zero_rows in [0..8, 8..16, 0..16, 0..7, 9..16] {
        for c in [
            vec![],
            vec![0.0; 8],
            odd.to_vec(),
            vec![-0.0],
            vec![f32::NAN],
        ] {
            for (infinite_b, second) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
                let (zero_rows, c) = (zero_rows.clone(), c.clone());
                let scene = Scene {
                    zero_rows,
                    c,
                    infinite_b,
                    second,
                };
                check_mma("bf16", 16, 7, scene);
            }
        }
    }
}

#[test]
fn mma_may_accumulate_in_place_and_sees_nan_and_infinity() {
    let one = 0x3f80_3f80u32;
    let inputs = [[one; 32]; 1];
    let body = "mov.f32 %f1, 0f00000000; mov.u32 %r1, 0; mov.u32 %r40, 0; mov.u32 %r41, 0; mov.u32 %r42, 0; mov.u32 %r43, 0; LOOP: mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r40,%r41,%r42,%r43}, {%r0,%r0,%r0,%r0}, {%r0,%r0}, {%r40,%r41,%r42,%r43}; add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 10; @%p1 bra LOOP;";
    let got = warp(body, &inputs, 4, &[]);
    assert!(got.iter().flatten().all(|&v| f32::from_bits(v) == 160.0));
    let mut a = [0u32; 32];
    a[0] = 0x7fc0;
    a[4] = 0x7f80;
    let body = "mov.u32 %r2, 0; mov.u32 %r3, 0; mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r40,%r41,%r42,%r43}, {%r0,%r2,%r2,%r2}, {%r1,%r1}, {%r3,%r3,%r3,%r3};";
    let got = warp(body, &[a, [one; 32]], 4, &[]);
    for lane in 0..32 {
        let value = f32::from_bits(got[0][lane]);
        assert!(match lane / 4 {
            0 => value.is_nan(),
            1 => value == f32::INFINITY,
            _ => value == 0.0,
        });
        assert_eq!(got[2][lane], 0);
    }
}

/// Products with the same A follow each other, and the second uses what the first gives: as C, as B, as A; and the first
/// overwrites what the second has for A. Half of A is zero, as where pairs are made.
#[test]
fn mma_that_uses_the_one_before() {
    const FORM: &str = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32";
    let zero = "mov.u32 %r4, 0;";
    let run = |first: &str, second: &str, outputs: usize| {
        let apart = format!("{zero} {first} bar.warp.sync -1; {second}");
        let inputs = [[0x3f80_4000u32; 32], [0x3f80_bf80; 32]];
        let next = warp(&format!("{zero} {first} {second}"), &inputs, outputs, &[]);
        assert_eq!(
            next,
            warp(&apart, &inputs, outputs, &[]),
            "{first} {second}"
        );
        next
    };
    let first = format!(
        "{FORM} {{%r40,%r41,%r42,%r43}}, {{%r0,%r4,%r0,%r4}}, {{%r1,%r0}}, {{%r4,%r4,%r4,%r4}};"
    );
    let second = format!(
        "{FORM} {{%r44,%r45,%r46,%r47}}, {{%r0,%r4,%r0,%r4}}, {{%r1,%r0}}, {{%r40,%r41,%r42,%r43}};"
    );
    let got = run(&first, &second, 8);
    assert!(got[0].iter().all(|&bits| f32::from_bits(bits) != 0.0));
    assert!((0..32).all(|lane| f32::from_bits(got[4][lane]) == 2.0 * f32::from_bits(got[0][lane])));
    let second = format!(
        "{FORM} {{%r44,%r45,%r46,%r47}}, {{%r0,%r4,%r0,%r4}}, {{%r40,%r41}}, {{%r4,%r4,%r4,%r4}};"
    );
    run(&first, &second, 8);
    let in_place = format!(
        "{FORM} {{%r0,%r40,%r41,%r42}}, {{%r0,%r4,%r0,%r4}}, {{%r1,%r1}}, {{%r4,%r4,%r4,%r4}};"
    );
    let second = format!(
        "{FORM} {{%r43,%r44,%r45,%r46}}, {{%r0,%r4,%r0,%r4}}, {{%r1,%r1}}, {{%r4,%r4,%r4,%r4}};"
    );
    run(&in_place, &second, 7);
}

#[test]
fn cp_async_copies_zero_fills_and_waits() {
    let mut memory = Memory::new(1 << 16);
    let data: Vec<u8> = (0..1024).map(|i| (i * 11 + 5) as u8).collect();
    let source = memory.put(&data);
    let out = memory.alloc(1024);
    for (form, bytes) in [("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16), ("cg.L2", 16)] {
        let opcode = match form {
            "cg.L2" => "cp.async.cg.shared.global.L2::128B".to_string(),
            other => format!("cp.async.{other}.shared.global"),
        };
        // Lane l copies min(l, bytes) bytes; a lane with none of them points to nowhere.
        let body = format!(
            "ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, {bytes}; add.s64 %rd4, %rd1, %rd3; mul.lo.u32 %r2, %r1, {bytes}; mov.u32 %r3, dyn; add.u32 %r2, %r2, %r3;
             min.u32 %r4, %r1, {bytes}; setp.eq.u32 %p1, %r1, 0; @%p1 mov.u64 %rd4, 8; {opcode} [%r2], [%rd4], {bytes}, %r4; cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;
             mov.u32 %r5, 0; COPY: mul.lo.u32 %r6, %r1, {bytes}; add.u32 %r6, %r6, %r5; add.u32 %r7, %r6, %r3; ld.shared.u32 %r8, [%r7]; cvt.u64.u32 %rd5, %r6; add.s64 %rd6, %rd2, %rd5; st.global.u32 [%rd6], %r8; add.u32 %r5, %r5, 4; setp.lt.u32 %p2, %r5, {bytes}; @%p2 bra COPY;"
        );
        let counters = run_body(
            &mut memory,
            &body,
            &Launch {
                params: &[source, out],
                shared: 1024,
                ..Launch::default()
            },
        )
        .unwrap_or_else(|f| panic!("{f}"));
        assert_eq!(counters.async_copy_bytes, 32 * bytes as u64);
        for lane in 0..32 {
            let got = memory.get::<u8>(out + (lane * bytes) as u64, bytes);
            let kept = lane.min(bytes);
            assert_eq!(
                got[..kept],
                data[lane * bytes..][..kept],
                "{form} lane {lane}"
            );
            assert!(got[kept..].iter().all(|&b| b == 0), "{form} lane {lane}");
        }
    }
    let fault = run_body(
        &mut memory,
        "mov.u32 %r1, 0; mov.u64 %rd1, 16; cp.async.cg.shared.global [%r1], [%rd1], 16;",
        &Launch {
            shared: 1024,
            ..Launch::default()
        },
    );
    assert!(
        matches!(&fault, Err(Fault::IllegalAddress { write: false, .. })),
        "{fault:?}"
    );
    let fault = run_body(
        &mut memory,
        "ld.param.u64 %rd1, [p0]; mov.u32 %r1, 1016; cp.async.cg.shared.global [%r1], [%rd1], 16;",
        &Launch {
            params: &[source],
            shared: 1024,
            ..Launch::default()
        },
    );
    assert!(matches!(&fault, Err(Fault::Misaligned { .. })), "{fault:?}");
    let refused = load(
        &mut memory,
        &kernel(
            0,
            "mov.u32 %r1, 0; mov.u64 %rd1, 0; cp.async.cg.shared.global [%r1], [%rd1], 8;",
        ),
    );
    assert!(refused.is_err());
}

/// Whole warps, whose addresses are looked at all at once: what they may reach and what not, whichever lane it is.
#[test]
fn whole_warps_reach_the_edges() {
    const BYTES: u32 = 512;
    let run = |instruction: &str, offsets: &[u32; 32], sources: &[u64; 32], memory: &mut Memory| {
        let tables = [memory.put(offsets), memory.put(sources)];
        let out = memory.alloc(BYTES as usize);
        let body = format!(
            "ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; ld.param.u64 %rd3, [p2]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd5, %r1, 4; add.s64 %rd1, %rd1, %rd5; ld.global.u32 %r2, [%rd1]; mul.wide.u32 %rd5, %r1, 8; add.s64 %rd2, %rd2, %rd5; ld.global.u64 %rd4, [%rd2];
             mul.wide.u32 %rd5, %r1, 16; add.s64 %rd3, %rd3, %rd5; shl.b32 %r3, %r1, 4; mov.u32 %r9, 16; {instruction} st.global.v4.u32 [%rd3], {{%r4,%r5,%r6,%r7}};"
        );
        let launch = Launch {
            params: &[tables[0], tables[1], out],
            shared: BYTES,
            ..Launch::default()
        };
        run_body(memory, &body, &launch).map(|_| memory.get::<u32>(out, BYTES as usize / 4))
    };
    let copy = |size: &str| {
        format!(
            "cp.async.cg.shared.global [%r2+16], [%rd4+-32], 16{size}; cp.async.wait_all; bar.sync 0; ld.shared.v4.u32 {{%r4,%r5,%r6,%r7}}, [%r3];"
        )
    };
    // Fills shared memory with its own offsets first.
    let load = "add.u32 %r4, %r3, 4; add.u32 %r5, %r3, 8; add.u32 %r6, %r3, 12; st.shared.v4.u32 [%r3], {%r3,%r4,%r5,%r6}; bar.sync 0; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4,%r5,%r6,%r7}, [%r2+16];";
    let order = |lane: usize| 5 * lane % 32;
    let offsets: [u32; 32] = std::array::from_fn(|lane| (16 * order(lane) as u32).wrapping_sub(16));
    let mut memory = Memory::new(1 << 17);
    let data: Vec<u32> = (0..4096).collect();
    let data = memory.put(&data);
    // In one granule, and in three.
    for stride in [16, 256] {
        let sources = std::array::from_fn(|lane| data + stride * lane as u64 + 32);
        for size in ["", ", %r9"] {
            let got = run(&copy(size), &offsets, &sources, &mut memory).expect("it runs");
            for lane in 0..32 {
                let want: [u32; 4] =
                    std::array::from_fn(|i| (stride as usize * lane / 4 + i) as u32);
                assert_eq!(got[4 * order(lane)..][..4], want, "lane {lane}");
            }
        }
    }
    let sources = [data + 32; 32];
    let got = run(load, &offsets, &sources, &mut memory).expect("it runs");
    for (i, word) in got.iter().enumerate() {
        let (lane, matrix) = (i / 4, i % 4);
        let row = order(8 * matrix + lane / 4);
        assert_eq!(
            *word as usize,
            16 * row + 4 * (lane % 4),
            "lane {lane}, matrix {matrix}"
        );
    }

    for lane in [0, 17, 31] {
        for instruction in [copy(""), copy(", %r9"), load.to_string()] {
            let mut fault_of = |offset: u32| {
                let mut offsets = offsets;
                offsets[lane] = offset;
                let fault =
                    run(&instruction, &offsets, &sources, &mut memory).expect_err("a fault");
                assert_eq!(
                    fault.site().expect("a place").lane as usize,
                    lane,
                    "{fault}"
                );
                fault
            };
            for outside in [BYTES - 16, 1 << 20, 1 << 31, u32::MAX - 31] {
                let fault = fault_of(outside);
                assert!(matches!(fault, Fault::OutOfBounds { .. }), "{fault}");
            }
            let fault = fault_of(8);
            assert!(matches!(fault, Fault::Misaligned { .. }), "{fault}");
        }
        for (source, misaligned) in [(data + 40, true), (64, false)] {
            let mut sources = sources;
            sources[lane] = source;
            let fault = run(&copy(""), &offsets, &sources, &mut memory).expect_err("a fault");
            assert_eq!(
                fault.site().expect("a place").lane as usize,
                lane,
                "{fault}"
            );
            let right = match fault {
                Fault::Misaligned { .. } => misaligned,
                Fault::IllegalAddress { .. } => !misaligned,
                _ => false,
            };
            assert!(right, "{fault}");
        }
    }
}

/// A two-stage pipeline that sums `steps` tiles of 512 bytes a warp; `wait` and `barrier` are what a mutation changes.
fn pipeline(wait: &str, barrier: &str) -> Result<Vec<f32>, Fault> {
    const STEPS: usize = 6;
    let mut memory = Memory::new(1 << 16);
    let data: Vec<f32> = (0..STEPS * 256).map(|i| i as f32).collect();
    let source = memory.put(&data);
    let out = memory.alloc(4 * 64);
    // 64 threads; stage s at s * 1024. Each thread copies 16 bytes a step and reads words that the other warp copied.
    let text = kernel(2, &format!(
        "ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 4; mov.u32 %r3, dyn; add.u32 %r2, %r2, %r3; cvt.u64.u32 %rd3, %r2; mov.u32 %r5, dyn; cvt.u64.u32 %rd9, %r5; sub.s64 %rd3, %rd3, %rd9; add.s64 %rd4, %rd1, %rd3;
         cp.async.cg.shared.global [%r2], [%rd4], 16; cp.async.commit_group;
         mov.u32 %r4, 0; mov.f32 %f1, 0f00000000;
         STEP: add.u32 %r6, %r4, 1; and.b32 %r7, %r6, 1; shl.b32 %r7, %r7, 10; add.u32 %r8, %r2, %r7; mul.wide.u32 %rd5, %r6, 1024; add.s64 %rd6, %rd4, %rd5;
         setp.lt.u32 %p1, %r6, {STEPS}; @!%p1 bra NONE; cp.async.cg.shared.global [%r8], [%rd6], 16; NONE: cp.async.commit_group;
         {wait} {barrier}
         and.b32 %r9, %r4, 1; shl.b32 %r9, %r9, 10; xor.b32 %r10, %r1, 32; shl.b32 %r10, %r10, 4; add.u32 %r10, %r10, %r9; add.u32 %r10, %r10, %r3;
         ld.shared.v4.f32 {{%f2, %f3, %f4, %f5}}, [%r10]; add.f32 %f1, %f1, %f2; add.f32 %f1, %f1, %f3; add.f32 %f1, %f1, %f4; add.f32 %f1, %f1, %f5;
         bar.sync 0; add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, {STEPS}; @%p2 bra STEP;
         mul.wide.u32 %rd7, %r1, 4; add.s64 %rd8, %rd2, %rd7; st.global.f32 [%rd8], %f1;"
    ));
    let module = load(&mut memory, &text).expect("it loads");
    launch(
        &module,
        "k",
        &memory,
        &Launch {
            params: &[source, out],
            block: [64, 1, 1],
            shared: 2048,
            ..Launch::default()
        },
    )?;
    let got = memory.get::<f32>(out, 64);
    Ok(got
        .iter()
        .enumerate()
        .map(|(t, v)| {
            v - (0..STEPS)
                .flat_map(|s| (0..4).map(move |i| (s * 256 + (t ^ 32) * 4 + i) as f32))
                .sum::<f32>()
        })
        .collect())
}

#[test]
fn a_late_copy_makes_pipeline_mistakes_visible() {
    let right = pipeline("cp.async.wait_group 1;", "bar.sync 0;").expect("it runs");
    assert!(right.iter().all(|&error| error == 0.0), "{right:?}");
    // One group too many left open: hardware may well have finished the copy, this device never has.
    for wait in ["cp.async.wait_group 2;", ""] {
        let late = on_purpose(pipeline(wait, "bar.sync 0;"), CheckKind::CopyNotWaitedFor);
        assert!(
            late.iter().flatten().all(|error| error.is_nan()),
            "{late:?}"
        );
    }
    // The barrier between wait and use dropped: the warp that runs first reads what the other has not copied yet.
    let unordered = pipeline("cp.async.wait_group 1;", "");
    // Which of the two the checked mode meets first depends on the order of the warps.
    let kind = match &unordered {
        Err(Fault::Checked { report }) if report.kind == CheckKind::CopyNotWaitedFor => report.kind,
        _ => CheckKind::SharedRace,
    };
    if let Some(unordered) = on_purpose(unordered, kind) {
        assert!(unordered.iter().any(|error| *error != 0.0), "{unordered:?}");
    }
}

#[test]
fn wmma_forms_that_do_not_exist_are_refused() {
    let eight = "{%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}";
    let doubles = "{%fd1, %fd2}, {%fd3}, {%fd4}, {%fd1, %fd2}";
    for (statement, said) in [
        (
            "wmma.load.a.sync.aligned.row.m16n16k16.f16 {%r1, %r2}, [%rd1], 16;".to_owned(),
            "2 registers in a fragment of 8",
        ),
        (
            format!("wmma.load.a.sync.aligned.row.m16n16k8.f16 {eight}, [%rd1], 16;"),
            "is not implemented",
        ),
        (
            format!("wmma.load.c.sync.aligned.row.m16n16k16.f16 {eight}, [%rd1], 16;"),
            "8 registers in a fragment of 4",
        ),
        (
            "wmma.load.b.sync.aligned.row.m8n8k32.s4 {%r1}, [%rd1], 32;".to_owned(),
            "is not implemented",
        ),
        (
            format!("@%p1 wmma.store.d.sync.aligned.row.m16n16k16.f32 [%rd1], {eight}, 16;"),
            "guarded",
        ),
        (
            format!("wmma.mma.sync.aligned.row.col.m8n8k4.f64.f64.f64.f64.rz {doubles};"),
            "is not implemented",
        ),
        (
            format!(
                "wmma.mma.sync.aligned.row.col.m16n16k16.f32.bf16.bf16.f32 {eight}, {eight}, {eight}, {eight};"
            ),
            "wrong number of registers",
        ),
    ] {
        let text = kernel(0, &statement);
        let error = load(&mut Memory::new(4096), &text).expect_err(&statement);
        assert!(error.message.contains(said), "{statement}: {error}");
    }
}
