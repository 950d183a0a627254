//! `mma.sync` of every type and `wgmma` in every layout. Values are small enough for every product and sum to be exact, so
//! results are compared bit by bit.

#![allow(clippy::needless_range_loop)] // lanes, rows and columns index several arrays

use super::elementwise::Noise;
use super::harness::{Launch, Memory, run_body};
use super::matrix::warp;
use super::probe_models::matrix::bits;
use half::{bf16, f16};

/// A random value that every type of this width class holds, and its code.
fn value(ty: &str, noise: &mut Noise) -> (f64, u64) {
    let pick = noise.next();
    let small = (pick % 9) as i64 - 4;
    let x = small as f64;
    let code = match ty {
        "f16" => f16::from_f64(x).to_bits().into(),
        "bf16" => bf16::from_f64(x).to_bits().into(),
        // The tensor core does not read the low 13 bits.
        "tf32" => u64::from((x as f32).to_bits()) | (pick >> 40 & 0x1fff),
        "f64" => x.to_bits(),
        "s8" => small as u64 & 0xff,
        "s4" => small as u64 & 0xf,
        "u8" => return ((pick % 200) as f64, pick % 200),
        "u4" => return ((pick % 16) as f64, pick % 16),
        "b1" => return ((pick & 1) as f64, pick & 1),
        // Sign, then an exponent and mantissa for 1, 2, 3 and 4.
        "e4m3" | "e5m2" => {
            let table: [u64; 5] = if ty == "e4m3" {
                [0, 0x38, 0x40, 0x44, 0x48]
            } else {
                [0, 0x3c, 0x40, 0x42, 0x44]
            };
            table[small.unsigned_abs() as usize] | if small < 0 { 0x80 } else { 0 }
        }
        _ => panic!("{ty}"),
    };
    (x, code)
}

fn matrix(ty: &str, rows: usize, columns: usize, noise: &mut Noise) -> Vec<Vec<(f64, u64)>> {
    (0..rows)
        .map(|_| (0..columns).map(|_| value(ty, noise)).collect())
        .collect()
}

/// `mma` of 32-bit registers: `a_i`, `b_i` and `c_i` placed by the PTX ISA's formulas.
fn check_mma(m: usize, k: usize, a_type: &str, b_type: &str, d_type: &str, suffix: &str) {
    let mut noise = Noise((m * k) as u64);
    let a = matrix(a_type, m, k, &mut noise);
    let b = matrix(b_type, k, 8, &mut noise);
    let c = matrix(if d_type == "s32" { "s8" } else { "f16" }, m, 8, &mut noise);
    let e = 32 / bits(a_type);
    let (a_count, b_count) = (m * k / 32 / e, k * 8 / 32 / e);
    let d_count = if d_type == "f16" { m / 8 } else { m / 4 };
    let mut inputs = vec![[0u32; 32]; a_count + b_count + d_count];
    for lane in 0..32 {
        let (group, thread) = (lane / 4, lane % 4);
        for i in 0..a_count * e {
            // Blocks of e elements alternate between the two halves of the rows, then move on in k.
            let block = i / e;
            let row = group + if m == 16 && block % 2 == 1 { 8 } else { 0 };
            let far = if m == 16 { block / 2 } else { block };
            let column = thread * e + i % e + 4 * e * far;
            let shift = bits(a_type) * (i % e);
            inputs[block][lane] |= (a[row][column].1 as u32) << shift;
        }
        for i in 0..b_count * e {
            let row = thread * e + i % e + 4 * e * (i / e);
            let shift = bits(b_type) * (i % e);
            inputs[a_count + i / e][lane] |= (b[row][group].1 as u32) << shift;
        }
        for i in 0..d_count {
            let slot = &mut inputs[a_count + b_count + i][lane];
            if d_type == "f16" {
                let pair = [0, 1].map(|j| c[group + 8 * i][2 * thread + j].1 as u32);
                *slot = pair[0] | pair[1] << 16;
            } else {
                let x = c[group + if i < 2 { 0 } else { 8 }][2 * thread + i % 2].0;
                *slot = if d_type == "s32" {
                    x as i32 as u32
                } else {
                    (x as f32).to_bits()
                };
            }
        }
    }
    let names = |from: usize, count: usize| {
        let list: Vec<String> = (from..from + count).map(|n| format!("%r{n}")).collect();
        format!("{{{}}}", list.join(","))
    };
    let form =
        format!("mma.sync.aligned.m{m}n8k{k}.row.col.{d_type}.{a_type}.{b_type}.{d_type}{suffix}");
    let body = format!(
        "{form} {}, {}, {}, {};",
        names(40, d_count),
        names(0, a_count),
        names(a_count, b_count),
        names(a_count + b_count, d_count)
    );
    let got = warp(&body, &inputs, d_count, &[]);
    let model = |row: usize, column: usize| {
        let products = (0..k).map(|i| {
            if suffix.starts_with(".xor") {
                f64::from(u8::from(a[row][i].0 != b[i][column].0))
            } else {
                a[row][i].0 * b[i][column].0
            }
        });
        c[row][column].0 + products.sum::<f64>()
    };
    for lane in 0..32 {
        let (group, thread) = (lane / 4, lane % 4);
        for i in 0..d_count {
            if d_type == "f16" {
                for j in 0..2 {
                    let want = f16::from_f64(model(group + 8 * i, 2 * thread + j));
                    let bits = (got[i][lane] >> (16 * j)) as u16;
                    assert_eq!(bits, want.to_bits(), "{form} lane {lane} d{i}");
                }
            } else {
                let x = model(group + if i < 2 { 0 } else { 8 }, 2 * thread + i % 2);
                let want = if d_type == "s32" {
                    x as i32 as u32
                } else {
                    (x as f32).to_bits()
                };
                assert_eq!(got[i][lane], want, "{form} lane {lane} d{i}");
            }
        }
    }
}

#[test]
fn mma_of_every_type() {
    for k in [8, 16] {
        check_mma(16, k, "f16", "f16", "f16", "");
    }
    for k in [4, 8] {
        check_mma(16, k, "tf32", "tf32", "f32", "");
    }
    for a in ["e4m3", "e5m2"] {
        for b in ["e4m3", "e5m2"] {
            check_mma(16, 32, a, b, "f32", "");
            check_mma(16, 16, a, b, "f16", "");
        }
    }
    for a in ["s8", "u8"] {
        for b in ["s8", "u8"] {
            check_mma(8, 16, a, b, "s32", "");
            check_mma(16, 16, a, b, "s32", "");
            check_mma(16, 32, a, b, "s32", "");
        }
    }
    for (a, b) in [("s4", "s4"), ("u4", "s4"), ("u4", "u4")] {
        check_mma(8, 32, a, b, "s32", "");
        check_mma(16, 32, a, b, "s32", "");
        check_mma(16, 64, a, b, "s32", "");
    }
    for suffix in [".and.popc", ".xor.popc"] {
        check_mma(8, 128, "b1", "b1", "s32", suffix);
        check_mma(16, 128, "b1", "b1", "s32", suffix);
        check_mma(16, 256, "b1", "b1", "s32", suffix);
    }
}

#[test]
fn integer_accumulators_wrap_or_saturate() {
    // 0x7f7f7f7f in s8 is 127 four times: 32 products of 127 * 127.
    let inputs = [[0x7f7f_7f7f; 32], [0x7fff_ffff; 32]];
    for (form, want) in [
        ("", 0x7fff_ffffu32.wrapping_add(32 * 127 * 127)),
        (".satfinite", 0x7fff_ffff),
    ] {
        let body = format!(
            "mma.sync.aligned.m16n8k32.row.col{form}.s32.s8.s8.s32 {{%r40,%r41,%r42,%r43}}, {{%r0,%r0,%r0,%r0}}, {{%r0,%r0}}, {{%r1,%r1,%r1,%r1}};"
        );
        let got = warp(&body, &inputs, 4, &[]);
        assert!(got.iter().flatten().all(|&v| v == want), "{form}");
    }
}

#[test]
fn mma_of_doubles() {
    for (m, k) in [(8usize, 4usize), (16, 4), (16, 8), (16, 16)] {
        let mut noise = Noise(k as u64);
        let a = matrix("f64", m, k, &mut noise);
        let b = matrix("f64", k, 8, &mut noise);
        let c = matrix("f64", m, 8, &mut noise);
        let (a_count, b_count, d_count) = (m * k / 32, k / 4, m / 4);
        let mut inputs = vec![0u64; 32 * (a_count + b_count + d_count)];
        for lane in 0..32 {
            let (group, thread) = (lane / 4, lane % 4);
            for i in 0..a_count {
                let row = group + if m == 16 && i % 2 == 1 { 8 } else { 0 };
                let column = thread + 4 * if m == 16 { i / 2 } else { i };
                inputs[32 * i + lane] = a[row][column].1;
            }
            for i in 0..b_count {
                inputs[32 * (a_count + i) + lane] = b[thread + 4 * i][group].1;
            }
            for i in 0..d_count {
                let row = group + if i < 2 { 0 } else { 8 };
                inputs[32 * (a_count + b_count + i) + lane] = c[row][2 * thread + i % 2].1;
            }
        }
        let mut memory = Memory::new(1 << 16);
        let (input, out) = (memory.put(&inputs), memory.alloc(256 * d_count));
        let mut body = String::from(
            "ld.param.u64 %rd50, [p0]; ld.param.u64 %rd51, [p1]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd52, %r1, 8; add.u64 %rd50, %rd50, %rd52; add.u64 %rd51, %rd51, %rd52;\n",
        );
        for i in 0..a_count + b_count + d_count {
            body += &format!("ld.global.f64 %fd{i}, [%rd50+{}];\n", 256 * i);
        }
        let names = |from: usize, count: usize| {
            let list: Vec<String> = (from..from + count).map(|n| format!("%fd{n}")).collect();
            format!("{{{}}}", list.join(","))
        };
        body += &format!(
            "mma.sync.aligned.m{m}n8k{k}.row.col.f64.f64.f64.f64 {}, {}, {}, {};\n",
            names(40, d_count),
            names(0, a_count),
            names(a_count, b_count),
            names(a_count + b_count, d_count)
        );
        for i in 0..d_count {
            body += &format!("st.global.f64 [%rd51+{}], %fd{};\n", 256 * i, 40 + i);
        }
        let params = [input, out];
        let how = Launch {
            params: &params,
            ..Launch::default()
        };
        run_body(&mut memory, &body, &how).unwrap();
        let got = memory.get::<f64>(out, 32 * d_count);
        for lane in 0..32 {
            for i in 0..d_count {
                let row = lane / 4 + if i < 2 { 0 } else { 8 };
                let column = lane % 4 * 2 + i % 2;
                let want =
                    c[row][column].0 + (0..k).map(|x| a[row][x].0 * b[x][column].0).sum::<f64>();
                assert_eq!(got[32 * i + lane], want, "m{m} k{k} lane {lane} d{i}");
            }
        }
    }
}

/// How an operand of `wgmma` lies in shared memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    /// Rows of the span in K, with the swizzle of this many bytes (16: none, cores one after the other).
    KMajor(usize),
    /// Rows of the span in M or N (16-bit types only).
    MnMajor(usize),
}

/// The image of a matrix of `rows` x `k` elements, and its descriptor without the start address; by the layout's picture,
/// as a tensor copy would write it.
fn image(matrix: &[Vec<(f64, u64)>], bytes: usize, layout: Layout) -> (Vec<u8>, u64) {
    let (rows, k) = (matrix.len(), matrix[0].len());
    let mut image = vec![0u8; (rows * k * bytes).next_multiple_of(1024) * 2];
    let xor = |offset: usize, span: usize| {
        let row = offset / 128;
        match span {
            128 => offset ^ (row % 8) << 4,
            64 => offset ^ (row % 4) << 4,
            32 => offset ^ (row % 2) << 4,
            _ => offset,
        }
    };
    let place = |row: usize, column: usize| match layout {
        Layout::KMajor(16) => {
            row / 8 * 256 + column * bytes / 16 * 128 + row % 8 * 16 + column * bytes % 16
        }
        Layout::KMajor(span) => xor(row * span + column * bytes, span),
        // Cores of 8 k by 8 mn: 128 bytes in mn order, 8 rows of k.
        Layout::MnMajor(16) => {
            row / 8 * 128 + column / 8 * 128 * (rows / 8) + column % 8 * 16 + row % 8 * 2
        }
        Layout::MnMajor(span) => {
            let wide = span / 2;
            xor(
                row / wide * (k * span) + column * span + row % wide * 2,
                span,
            )
        }
    };
    for (row, line) in matrix.iter().enumerate() {
        for (column, &(_, code)) in line.iter().enumerate() {
            let at = place(row, column);
            image[at..at + bytes].copy_from_slice(&code.to_le_bytes()[..bytes]);
        }
    }
    let (leading, stride, mode) = match layout {
        Layout::KMajor(16) => (128, 256, 0u64),
        Layout::KMajor(span) => (
            16,
            8 * span,
            [0, 3, 2, 1][span.trailing_zeros() as usize - 4],
        ),
        Layout::MnMajor(16) => (128 * (rows / 8), 128, 0),
        Layout::MnMajor(span) => (
            k * span,
            8 * span,
            [0, 3, 2, 1][span.trailing_zeros() as usize - 4],
        ),
    };
    let descriptor = (leading as u64 / 16) << 16 | (stride as u64 / 16) << 32 | mode << 62;
    (image, descriptor)
}

fn check_wgmma(types: (&str, &str, &str), n: usize, a_layout: Option<Layout>, b_layout: Layout) {
    let (a_type, b_type, d_type) = types;
    let bytes = bits(a_type) / 8;
    let k = 32 / bytes;
    let mut noise = Noise((n + k) as u64);
    let a = matrix(a_type, 64, k, &mut noise);
    let b = matrix(b_type, n, k, &mut noise);
    let (b_image, b_bits) = image(&b, bytes, b_layout);
    let (a_image, a_bits) = match a_layout {
        Some(layout) => image(&a, bytes, layout),
        None => (Vec::new(), 0),
    };
    let b_start = a_image.len().next_multiple_of(1024);
    let mut shared = a_image;
    shared.resize(b_start, 0);
    shared.extend(b_image);
    let d_count = if d_type == "f16" { n / 4 } else { n / 2 };
    // Fragments of A for the form with registers.
    let e = 32 / bits(a_type);
    let mut fragments = vec![0u32; 4 * 128];
    for thread in 0..128 {
        let (lane, first) = (thread % 32, thread / 32 * 16);
        for i in 0..4 * e {
            let row = first + lane / 4 + if i / e % 2 == 1 { 8 } else { 0 };
            let column = lane % 4 * e + i % e + 4 * e * (i / e / 2);
            fragments[128 * (i / e) + thread] |=
                (a[row][column].1 as u32) << (bits(a_type) * (i % e));
        }
    }
    let mut memory = Memory::new(1 << 19);
    let source = memory.put(&shared);
    let registers = memory.put(&fragments);
    let out = memory.alloc(512 * d_count);
    let mut body = String::from(
        "ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; ld.param.u64 %rd3, [p2]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd4, %r1, 4;\n\
         add.u64 %rd5, %rd1, %rd4; add.u64 %rd2, %rd2, %rd4; add.u64 %rd3, %rd3, %rd4; shl.b32 %r2, %r1, 2; mov.u32 %r3, dyn; add.u32 %r2, %r2, %r3;\n",
    );
    body += &format!(".reg .b32 %d<{d_count}>;\n");
    for word in 0..shared.len() / 512 {
        body += &format!(
            "ld.global.u32 %r4, [%rd5+{0}]; st.shared.u32 [%r2+{0}], %r4;\n",
            512 * word
        );
    }
    for r in 0..4 {
        body += &format!("ld.global.u32 %r{}, [%rd2+{}];\n", 10 + r, 512 * r);
    }
    let d: Vec<String> = (0..d_count).map(|i| format!("%d{i}")).collect();
    for register in &d {
        body += &format!("mov.b32 {register}, 0;\n");
    }
    let integer = d_type == "s32";
    let short = bytes == 2;
    let minor = |layout: Layout| u32::from(matches!(layout, Layout::MnMajor(_)));
    let flags = match (integer, short, a_layout) {
        (true, ..) => String::new(),
        (_, true, Some(layout)) => format!(", 1, -1, {}, {}", minor(layout), minor(b_layout)),
        (_, true, None) => format!(", 1, -1, {}", minor(b_layout)),
        _ => ", 1, -1".into(),
    };
    let a_operand = if a_layout.is_some() {
        "%rd10"
    } else {
        "{%r10, %r11, %r12, %r13}"
    };
    // Twice: D = A B, then D = A B + D.
    body += &format!(
        "bar.sync 0; fence.proxy.async; mov.b64 %rd10, {a_bits}; mov.b64 %rd11, {}; setp.ne.u32 %p1, 0, 0; setp.eq.u32 %p2, 0, 0;\n\
         wgmma.fence.sync.aligned;\n",
        b_bits | (b_start as u64) >> 4
    );
    let form = format!("wgmma.mma_async.sync.aligned.m64n{n}k{k}.{d_type}.{a_type}.{b_type}");
    for p in ["%p1", "%p2"] {
        body += &format!(
            "{form} {{{}}}, {a_operand}, %rd11, {p}{flags};\n",
            d.join(",")
        );
    }
    body += "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\n";
    for (i, register) in d.iter().enumerate() {
        body += &format!("st.global.b32 [%rd3+{}], {register};\n", 512 * i);
    }
    let params = [source, registers, out];
    let how = Launch {
        block: [128, 1, 1],
        shared: shared.len() as u32,
        params: &params,
        ..Launch::default()
    };
    run_body(&mut memory, &body, &how).unwrap_or_else(|fault| panic!("{form}: {fault}"));
    let got = memory.get::<u32>(out, 128 * d_count);
    let sign = if integer { 2.0 } else { -2.0 };
    let model = |row: usize, column: usize| {
        sign * (0..k).map(|i| a[row][i].0 * b[column][i].0).sum::<f64>()
    };
    for thread in 0..128 {
        let (lane, first) = (thread % 32, thread / 32 * 16);
        for i in 0..d_count {
            let what = format!("{form} {a_layout:?} {b_layout:?} thread {thread} d{i}");
            let bits = got[128 * i + thread];
            if d_type == "f16" {
                for j in 0..2 {
                    let row = first + lane / 4 + 8 * (i % 2);
                    let want = model(row, i / 2 * 8 + lane % 4 * 2 + j);
                    let got = f16::from_bits((bits >> (16 * j)) as u16);
                    assert_eq!(got.to_f64(), want, "{what}");
                }
                continue;
            }
            let row = first + lane / 4 + 8 * (i / 2 % 2);
            let x = model(row, i / 4 * 8 + lane % 4 * 2 + i % 2);
            let want = if integer {
                x as i32 as u32
            } else {
                // A sum of zeros of either sign is compared as a number.
                assert_eq!(f64::from(f32::from_bits(bits)), x, "{what}");
                continue;
            };
            assert_eq!(bits, want, "{what}");
        }
    }
}

#[test]
fn wgmma_layouts() {
    let f16_f32 = ("f16", "f16", "f32");
    for span in [16, 32, 64, 128] {
        // Only a span of 32 bytes holds exactly the 16 elements of k; wider ones are rows of more k than one product takes.
        if span <= 32 {
            check_wgmma(
                f16_f32,
                16,
                Some(Layout::KMajor(span)),
                Layout::KMajor(span),
            );
        }
        check_wgmma(f16_f32, 64, None, Layout::MnMajor(span));
        check_wgmma(
            f16_f32,
            128,
            Some(Layout::MnMajor(span)),
            Layout::KMajor(32),
        );
    }
    check_wgmma(f16_f32, 256, None, Layout::KMajor(32));
}

#[test]
fn wgmma_of_every_type() {
    let plain = Some(Layout::KMajor(16));
    let b = Layout::KMajor(32);
    for types in [
        ("f16", "f16", "f16"),
        ("bf16", "bf16", "f32"),
        ("tf32", "tf32", "f32"),
        ("e4m3", "e5m2", "f32"),
        ("e5m2", "e4m3", "f16"),
        ("s8", "u8", "s32"),
        ("u8", "u8", "s32"),
    ] {
        check_wgmma(types, 32, plain, b);
        check_wgmma(types, 8, None, b);
    }
}

/// Rows of 128 bytes hold four products' worth of k: the start address moves on by 32 bytes within the swizzled row.
#[test]
fn wgmma_walks_along_a_swizzled_row() {
    let mut noise = Noise(4);
    let (n, k) = (8usize, 64usize);
    let a = matrix("bf16", 64, k, &mut noise);
    let b = matrix("bf16", n, k, &mut noise);
    let (mut shared, a_bits) = image(&a, 2, Layout::KMajor(128));
    let b_start = shared.len().next_multiple_of(1024);
    shared.resize(b_start, 0);
    let (b_image, b_bits) = image(&b, 2, Layout::KMajor(128));
    shared.extend(b_image);
    let mut memory = Memory::new(1 << 17);
    let source = memory.put(&shared);
    let out = memory.alloc(512 * 4);
    let mut body = String::from(
        "ld.param.u64 %rd1, [p0]; ld.param.u64 %rd3, [p1]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd4, %r1, 4;\n\
         add.u64 %rd5, %rd1, %rd4; add.u64 %rd3, %rd3, %rd4; shl.b32 %r2, %r1, 2; mov.u32 %r3, dyn; add.u32 %r2, %r2, %r3;\n",
    );
    for word in 0..shared.len() / 512 {
        body += &format!(
            "ld.global.u32 %r4, [%rd5+{0}]; st.shared.u32 [%r2+{0}], %r4;\n",
            512 * word
        );
    }
    body += "bar.sync 0;\n";
    for step in 0..4u64 {
        body += &format!(
            "mov.b64 %rd10, {}; mov.b64 %rd11, {}; setp.ne.u32 %p1, {step}, 0;\n\
             wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{%f0,%f1,%f2,%f3}}, %rd10, %rd11, %p1, 1, 1, 0, 0;\n",
            a_bits + 2 * step,
            (b_bits | (b_start as u64) >> 4) + 2 * step
        );
    }
    body += "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\n";
    for i in 0..4 {
        body += &format!("st.global.f32 [%rd3+{}], %f{i};\n", 512 * i);
    }
    let params = [source, out];
    let how = Launch {
        block: [128, 1, 1],
        shared: shared.len() as u32,
        params: &params,
        ..Launch::default()
    };
    run_body(&mut memory, &body, &how).unwrap();
    let got = memory.get::<f32>(out, 512);
    for thread in 0..128 {
        for i in 0..4 {
            let row = thread / 32 * 16 + thread % 32 / 4 + 8 * (i / 2);
            let column = thread % 4 * 2 + i % 2;
            let want: f64 = (0..k).map(|x| a[row][x].0 * b[column][x].0).sum();
            assert_eq!(
                f64::from(got[128 * i + thread]),
                want,
                "thread {thread} d{i}"
            );
        }
    }
}
