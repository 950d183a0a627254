//! Kernels that nvcc compiled (tests/data/ptx/*.cu) against the same computation on the host.

use super::elementwise::Noise;
use super::harness::{Launch, Memory, launch, load};
use half::{bf16, f16};
use neap::emulator::exec::Fault;

const ARITHMETIC: &str = include_str!("../data/ptx/arithmetic.ptx");
const COLLECTIVE: &str = include_str!("../data/ptx/collective.ptx");

fn close(name: &str, x: f64, got: f64, want: f64, ulps: f64, epsilon: f64) {
    let same = (got.is_nan() && want.is_nan()) || got == want;
    assert!(
        same || (got - want).abs() <= ulps * epsilon * want.abs() + 1e-37,
        "{name}({x:e}): {got:e}, want {want:e}"
    );
}

#[test]
fn single_precision_library_functions() {
    let mut noise = Noise(1);
    let mut x: Vec<f32> = (0..3000)
        .map(|_| ((noise.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * 20.0)
        .collect();
    // Large arguments take the slow path of the trigonometric reduction, through a local array.
    x.extend([
        0.0,
        -0.0,
        1.0,
        105_615.0,
        105_616.0,
        131_071.0,
        1e8,
        -3e12,
        3.3e38,
        1e-20,
        -1e-39,
        88.0,
        -104.0,
        f32::INFINITY,
        f32::NAN,
    ]);
    let mut memory = Memory::new(1 << 19);
    let module = load(&mut memory, ARITHMETIC).expect("it loads");
    let input = memory.put(&x);
    let out = memory.alloc(64 * x.len());
    let params = [input, out, x.len() as u64];
    let grid = [x.len().div_ceil(128) as u32, 1, 1];
    launch(
        &module,
        "float_math",
        &memory,
        &Launch {
            params: &params,
            grid,
            block: [128, 1, 1],
            ..Launch::default()
        },
    )
    .expect("it runs");
    let results = memory.get::<f32>(out, 16 * x.len());
    for (&x, got) in x.iter().zip(results.chunks(16)) {
        let v = f64::from(x);
        // The bounds are those of the CUDA C++ Programming Guide, in ulps.
        let check = |name: &str, index: usize, want: f64, ulps: f64| {
            close(
                name,
                v,
                f64::from(got[index]),
                f64::from(want as f32),
                ulps + 1.0,
                f64::from(f32::EPSILON),
            );
        };
        check("sin", 0, v.sin(), 2.0);
        check("cos", 1, v.cos(), 2.0);
        check("exp", 2, v.exp(), 2.0);
        check("log", 3, v.abs().ln(), 1.0);
        check("tanh", 4, v.tanh(), 2.0);
        check("pow", 6, v.abs().powf(f64::from(0.37f32)), 4.0);
        check("cbrt", 7, v.cbrt(), 1.0);
        check("log1p", 8, v.abs().ln_1p(), 1.0);
        check("fmod", 9, f64::from(x % 3.7f32), 0.0);
        check(
            "rint and floor",
            10,
            f64::from(x.round_ties_even() + x.floor() * 0.5),
            0.0,
        );
        check("sigmoid", 11, 1.0 / (1.0 + (-v).exp()), 64.0);
        check("atan2", 12, v.atan2(2.0), 3.0);
        check("hypot", 13, v.hypot(4.0), 3.0);
        check("exp2", 14, f64::from(x * 0.1f32).exp2(), 2.0);
        check("rsqrt", 15, f64::from(1.0 / (1.0 + x * x).sqrt()), 4.0);
        assert!(f64::from(got[5]).abs() <= 1.0 || x.is_nan(), "erf({x})");
    }
    let erf =
        |x: f32| f64::from(results[16 * memory_index(&memory, input, x, params[2] as usize) + 5]);
    assert!((erf(1.0) - 0.842_700_792_949_715).abs() < 2e-7);
}

fn memory_index(memory: &Memory, input: u64, x: f32, count: usize) -> usize {
    memory
        .get::<f32>(input, count)
        .iter()
        .position(|&v| v == x)
        .expect("it is among the arguments")
}

#[test]
fn double_precision() {
    let mut noise = Noise(2);
    let mut x: Vec<f64> = (0..2000)
        .map(|_| ((noise.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0) * 300.0)
        .collect();
    x.extend([0.0, 1.0, -2.5, 3.5, 1e-9]);
    let mut memory = Memory::new(1 << 19);
    let module = load(&mut memory, ARITHMETIC).expect("it loads");
    let input = memory.put(&x);
    let out = memory.alloc(64 * x.len());
    let grid = [x.len().div_ceil(64) as u32, 1, 1];
    let params = [input, out, x.len() as u64];
    launch(
        &module,
        "double_math",
        &memory,
        &Launch {
            params: &params,
            grid,
            block: [64, 1, 1],
            ..Launch::default()
        },
    )
    .expect("it runs");
    for (&v, got) in x.iter().zip(memory.get::<f64>(out, 8 * x.len()).chunks(8)) {
        let check = |name: &str, index: usize, want: f64, ulps: f64| {
            close(name, v, got[index], want, ulps, f64::EPSILON)
        };
        check("fma", 0, v.mul_add(1.5, -0.25), 0.0);
        check("exp", 1, (v * 0.1).exp(), 2.0);
        check("log", 2, (v.abs() + 1e-3).ln(), 2.0);
        check("sqrt", 3, v.abs().sqrt(), 0.0);
        check("division", 4, v / 7.25, 0.0);
        check(
            "min, max, copysign",
            5,
            v.min(2.0).mul_add(v.max(-1.0), 3f64.copysign(v)),
            0.0,
        );
        check("floor and ceil", 6, v.floor() + (v * 0.5).ceil(), 0.0);
        let wanted = (v as i64) as f64 + f64::from(v as i32 as u32) + f64::from(v as f32);
        check("conversions", 7, wanted, 0.0);
    }
}

fn integer_model(x: i64, y: i64) -> [i64; 20] {
    let (s, t) = (x as i32, y as i32);
    let y = if y == 0 { 3 } else { y };
    let t = if t == 0 { 5 } else { t };
    let (ux, uy, us, ut) = (x as u64, y as u64, s as u32, t as u32);
    let permuted = {
        let bytes = u64::from(us) | u64::from(ut) << 32;
        [1u32, 4, 2, 6].iter().enumerate().fold(0, |r, (i, pick)| {
            r | ((bytes >> (8 * pick)) as u32 & 255) << (8 * i)
        })
    };
    let both = u64::from(us) | u64::from(ut) << 32;
    let dot = (0..4).fold(11i32, |sum, i| {
        sum + i32::from((s >> (8 * i)) as i8) * i32::from((t >> (8 * i)) as i8)
    });
    let chosen = match s & 15 {
        0 => x.wrapping_add(1),
        1 => x.wrapping_mul(3),
        2 => y.wrapping_sub(x),
        3 => x ^ 0x1234,
        4 => x >> 3,
        5 => y.wrapping_mul(y),
        6 => !x,
        7 => x & y,
        9 => x | y,
        10 => x.wrapping_sub(77),
        12 => x.wrapping_neg(),
        _ => 42,
    };
    let (mut steps, mut v) = (0i64, us & 0xffff);
    while v > 1 && steps < 500 {
        v = if v & 1 != 0 { 3 * v + 1 } else { v / 2 };
        steps += 1;
    }
    let mut table: [u32; 8] = std::array::from_fn(|k| us.wrapping_mul(k as u32 + 1));
    let mut sum = 0u32;
    for k in 0..8 {
        let at = ((table[k] ^ ut) & 7) as usize;
        sum = sum.wrapping_mul(31).wrapping_add(table[at]);
        table[at] = table[at].wrapping_add(sum);
    }
    let wide = (u128::from(ux) * u128::from(uy))
        .wrapping_add(i128::from(s) as u128 & u128::from(u64::MAX));
    [
        x.wrapping_div(y),
        x.wrapping_rem(y),
        (ux / uy) as i64,
        s.wrapping_div(t).into(),
        s.wrapping_rem(t).into(),
        (us / ut).into(),
        i64::from(((s / 7) as u32).wrapping_add(us % 10)),
        ((u128::from(ux) * u128::from(uy)) >> 64) as i64,
        ((i128::from(x) * i128::from(y)) >> 64) as i64,
        (x.count_ones()
            + 100 * x.leading_zeros()
            + 10000 * if y == 0 { 0 } else { y.trailing_zeros() + 1 })
        .into(),
        i64::from(us.reverse_bits() ^ permuted),
        i64::from((both << (x & 31) >> 32) as u32) + i64::from((both >> (x & 31)) as u32),
        dot.into(),
        (x.wrapping_shl((y & 63) as u32)) ^ (x >> (y & 63)),
        (i64::from(s.min(t).wrapping_mul(3) as u32) as u32)
            .wrapping_add(us.max(ut))
            .into(),
        chosen,
        steps,
        sum.into(),
        (wide >> 64) as i64,
        (i64::from(x as i8) * i64::from(y as i16) + i64::from((x >> 8) as u8)) as i32 as i64,
    ]
}

#[test]
fn integers() {
    let mut noise = Noise(5);
    let edges = [
        0,
        1,
        -1,
        7,
        255,
        256,
        i64::MAX,
        i64::MIN,
        i64::from(i32::MIN),
        i64::from(i32::MAX),
        0x8000_0000,
        0x1_0000_0001,
        -77,
    ];
    let mut pairs: Vec<(i64, i64)> = edges
        .iter()
        .flat_map(|&a| edges.iter().map(move |&b| (a, b)))
        .collect();
    pairs.extend((0..2000).map(|_| {
        (
            noise.next() as i64 >> (noise.next() % 63),
            noise.next() as i64 >> (noise.next() % 63),
        )
    }));
    let mut memory = Memory::new(1 << 20);
    let module = load(&mut memory, ARITHMETIC).expect("it loads");
    let a = memory.put(&pairs.iter().map(|p| p.0).collect::<Vec<_>>());
    let b = memory.put(&pairs.iter().map(|p| p.1).collect::<Vec<_>>());
    let out = memory.alloc(160 * pairs.len());
    let grid = [pairs.len().div_ceil(96) as u32, 1, 1];
    let params = [a, b, out, pairs.len() as u64];
    launch(
        &module,
        "integer_math",
        &memory,
        &Launch {
            params: &params,
            grid,
            block: [96, 1, 1],
            ..Launch::default()
        },
    )
    .expect("it runs");
    for (&(x, y), got) in pairs
        .iter()
        .zip(memory.get::<i64>(out, 20 * pairs.len()).chunks(20))
    {
        let want = integer_model(x, y);
        for index in 0..20 {
            // INT_MIN / -1 is undefined in CUDA C++.
            let overflow = (y == -1 && x == i64::MIN) || (y as i32 == -1 && x as i32 == i32::MIN);
            assert!(
                got[index] == want[index] || (overflow && index < 7),
                "result {index} of {x:#x}, {y:#x}: {:#x}, want {:#x}",
                got[index],
                want[index]
            );
        }
    }
}

#[test]
fn sums_histograms_and_counts_over_blocks() {
    let mut noise = Noise(9);
    let n = 5000usize;
    let x: Vec<f32> = (0..n).map(|_| (noise.next() % 17) as f32 - 8.0).collect();
    let weights = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3];
    for block in [[32u32, 1, 1], [40, 3, 1], [256, 1, 1]] {
        let threads = (block[0] * block[1]) as usize;
        let mut memory = Memory::new(1 << 17);
        let module = load(&mut memory, COLLECTIVE).expect("it loads");
        let input = memory.put(&x);
        let (out, histogram) = (memory.alloc(64), memory.put(&[0u32; 64]));
        let params = [input, out, histogram, n as u64];
        let grid = [7, 1, 1];
        let result = launch(
            &module,
            "block_sums",
            &memory,
            &Launch {
                params: &params,
                grid,
                block,
                ..Launch::default()
            },
        );
        // A last warp with fewer than 32 lanes: the shuffles' missing lanes never existed, so they are not waited for.
        result.expect("it runs");
        let mut sums = [0f64; 7];
        let mut bins = [0u32; 64];
        for (i, v) in x.iter().enumerate() {
            sums[i / threads % 7] += f64::from(v * weights[i & 15] as f32);
            bins[((i as u32).wrapping_mul(2_654_435_761) >> 26) as usize] += 1;
        }
        if threads.is_multiple_of(32) {
            let got: Vec<f64> = memory
                .get::<f32>(out, 7)
                .into_iter()
                .map(f64::from)
                .collect();
            assert_eq!(got, sums, "sums of small integers are exact");
        }
        assert_eq!(memory.get::<u32>(histogram, 64), bins);
        launch(
            &module,
            "read_total",
            &memory,
            &Launch {
                params: &[out],
                block: [1, 1, 1],
                ..Launch::default()
            },
        )
        .expect("it runs");
        assert_eq!(
            memory.get::<u64>(out, 1),
            [1000 + 7 * threads.div_ceil(3) as u64]
        );
    }
}

#[test]
fn a_scan_with_barriers_in_a_loop_and_an_early_exit() {
    let x: Vec<i32> = (0..200).map(|i| (i * 37 % 101) - 50).collect();
    let mut memory = Memory::new(1 << 16);
    let module = load(&mut memory, COLLECTIVE).expect("it loads");
    let input = memory.put(&x);
    let out = memory.alloc(4 * 256);
    let params = [input, out, 200];
    launch(
        &module,
        "scan",
        &memory,
        &Launch {
            params: &params,
            block: [256, 1, 1],
            shared: 1024,
            ..Launch::default()
        },
    )
    .expect("it runs");
    let want: Vec<i32> = x
        .iter()
        .scan(0, |sum, v| {
            *sum += v;
            Some(*sum)
        })
        .collect();
    assert_eq!(memory.get::<i32>(out, 200), want);
    assert_eq!(
        memory.get::<u32>(out + 800, 56),
        [u32::MAX; 56],
        "nothing behind the end is written"
    );
    // Without its shared memory the kernel is stopped at the CUDA source line that touches it.
    let fault = launch(
        &module,
        "scan",
        &memory,
        &Launch {
            params: &params,
            block: [256, 1, 1],
            shared: 512,
            ..Launch::default()
        },
    )
    .expect_err("too little");
    let Fault::OutOfBounds {
        site, limit: 512, ..
    } = &fault
    else {
        panic!("{fault}")
    };
    let source = site.source.as_deref().expect("compiled with -lineinfo");
    assert!(
        source.starts_with("tests/data/ptx/collective.cu:"),
        "{fault}"
    );
}

#[test]
fn packed_sixteen_bit_arithmetic() {
    let mut noise = Noise(21);
    let n = 500usize;
    let mut halves = |_| f16::from_f32((noise.next() % 4001) as f32 / 1000.0 - 2.0).to_bits();
    let a: Vec<u16> = (0..2 * n).map(&mut halves).collect();
    let b: Vec<u16> = (0..2 * n).map(&mut halves).collect();
    let mut noise = Noise(22);
    let mut brains = |_| bf16::from_f32((noise.next() % 4001) as f32 / 1000.0 - 2.0).to_bits();
    let c: Vec<u16> = (0..2 * n).map(&mut brains).collect();
    let d: Vec<u16> = (0..2 * n).map(&mut brains).collect();
    let mut memory = Memory::new(1 << 17);
    let module = load(&mut memory, COLLECTIVE).expect("it loads");
    let [pa, pb, pc, pd] = [&a, &b, &c, &d].map(|values| memory.put(values));
    let (out_h, out_b, out_f) = (
        memory.alloc(12 * n),
        memory.alloc(12 * n),
        memory.alloc(8 * n),
    );
    let params = [pa, pb, out_h, pc, pd, out_b, out_f, n as u64];
    launch(
        &module,
        "halves",
        &memory,
        &Launch {
            params: &params,
            grid: [4, 1, 1],
            block: [128, 1, 1],
            ..Launch::default()
        },
    )
    .expect("it runs");
    let (h, w, f) = (
        memory.get::<u16>(out_h, 6 * n),
        memory.get::<u16>(out_b, 6 * n),
        memory.get::<f32>(out_f, 2 * n),
    );
    let half = |bits: u16| f16::from_bits(bits).to_f64();
    let brain = |bits: u16| bf16::from_bits(bits).to_f64();
    let round_h = |x: f64| f16::from_f64(x).to_bits();
    let round_b = |x: f64| bf16::from_f64(x).to_bits();
    for i in 0..n {
        for part in 0..2 {
            let (a, b, c, d) = (
                half(a[2 * i + part]),
                half(b[2 * i + part]),
                brain(c[2 * i + part]),
                brain(d[2 * i + part]),
            );
            // Exact in f64, so rounded once.
            assert_eq!(h[6 * i + part], round_h(a * b + a));
            let square = f16::from_bits(round_h(b * b)).to_f64();
            assert_eq!(
                f16::from_bits(h[6 * i + 2 + part]).to_f64(),
                f16::from_bits(round_h(a + square)).to_f64()
            );
            assert_eq!(f16::from_bits(h[6 * i + 4 + part]).to_f64(), (-a).max(b));
            assert_eq!(w[6 * i + part], round_b(c * d + c));
            assert_eq!(
                bf16::from_bits(w[6 * i + 2 + part]).to_f64(),
                bf16::from_bits(round_b(c * d)).to_f64()
            );
            let mixed = if part == 0 {
                c as f32 * 1.01
            } else {
                d as f32 - 0.3
            };
            assert_eq!(w[6 * i + 4 + part], bf16::from_f32(mixed).to_bits());
        }
        assert_eq!(f[2 * i], (half(a[2 * i]) + brain(c[2 * i + 1])) as f32);
        let (got, want) = (f64::from(f[2 * i + 1]), half(b[2 * i]).exp2());
        assert!((got - want).abs() <= want * 2f64.powi(-10), "{got} {want}");
    }
}
