//! Embedding, norms, matrix products, rotary embedding, activation and argmax against f64 twins, and bit for bit against
//! themselves in other batches and buckets (I13).

mod support;

use half::bf16;
use neap::driver::DevicePtr;
use neap::kernels::{
    AddNormParams, ArgmaxParams, EmbedParams, GatedActParams, GemmParams, Phase, QkvRopeParams,
    StepHeader,
};
use support::oracle::{self, compare, linear, rms_norm, rotate};
use support::paged::PagedKv;
use support::random::Random;
use support::{Rig, bits, to_bf16, to_f32, untouched};

#[test]
fn embed_scales_table_rows() {
    let (rig, mut random) = (Rig::new(), Random::new("embed_scales_table_rows"));
    for hidden in [64, 192, 1028, 2560] {
        let (rows, bucket, vocab, scale) = (5u32, 8u32, 50u32, 13.875f32);
        let ids: Vec<u32> = (0..bucket).map(|_| random.below(vocab)).collect();
        let table = random.normals_bf16((vocab * hidden) as usize, 1.0);
        let residual = rig.poisoned::<f32>((bucket * hidden) as usize);
        let params = EmbedParams {
            header: rig.header_of_rows(rows),
            token_ids: rig.upload(&ids).pointer,
            table: rig.upload(&table).pointer,
            residual: residual.pointer,
            hidden,
            scale,
            ..EmbedParams::default()
        };
        // SAFETY: every array has the shape of its field for this bucket.
        unsafe { rig.kernels.embed(&rig.stream, bucket, &params) }.expect("launch");
        let found = residual.read(&rig);
        let (real, padding) = found.split_at((rows * hidden) as usize);
        for (row, id) in real.chunks_exact(hidden as usize).zip(&ids) {
            let source = &table[(id * hidden) as usize..][..hidden as usize];
            let expected: Vec<f32> = source.iter().map(|value| value.to_f32() * scale).collect();
            assert_eq!(bits(row), bits(&expected), "hidden {hidden}");
        }
        assert!(
            untouched(padding),
            "hidden {hidden}: padded rows were written"
        );
    }
}

/// Inputs of one add_norm case.
struct NormCase {
    hidden: u32,
    residual: Vec<f32>,
    y: Option<Vec<f32>>,
    post: Option<Vec<bf16>>,
    next: Option<Vec<bf16>>,
    offset: f32,
}

const EPS: f32 = 1e-6;

impl NormCase {
    fn random(
        random: &mut Random,
        rows: u32,
        hidden: u32,
        parts: [bool; 3],
        offset: f32,
    ) -> NormCase {
        let len = (rows * hidden) as usize;
        let [y, post, next] = parts;
        NormCase {
            hidden,
            residual: random.normals(len, 3.0),
            y: y.then(|| random.normals(len, 0.7)),
            post: post.then(|| random.normals_bf16(hidden as usize, 0.5)),
            next: next.then(|| random.normals_bf16(hidden as usize, 0.5)),
            offset,
        }
    }

    /// (residual, normed) in precision R.
    fn twin<R: oracle::Real>(&self) -> (Vec<R>, Vec<R>) {
        let hidden = self.hidden as usize;
        let (mut sums, mut normed) = (Vec::new(), Vec::new());
        for (row, residual) in self.residual.chunks_exact(hidden).enumerate() {
            let mut sum: Vec<R> = residual.iter().map(|&v| R::of(f64::from(v))).collect();
            if let Some(y) = &self.y {
                let mut v: Vec<R> = y[row * hidden..][..hidden]
                    .iter()
                    .map(|&v| R::of(f64::from(v)))
                    .collect();
                if let Some(post) = &self.post {
                    v = rms_norm(&v, post, self.offset, EPS);
                }
                for (sum, v) in sum.iter_mut().zip(v) {
                    *sum = sum.add(v);
                }
            }
            if let Some(next) = &self.next {
                normed.extend(
                    rms_norm(&sum, next, self.offset, EPS)
                        .into_iter()
                        .map(R::stored),
                );
            }
            sums.extend(sum);
        }
        (sums, normed)
    }

    /// Runs rows `first..first + rows` in a bucket; returns (residual, out) of the bucket.
    fn run(&self, rig: &Rig, first: u32, rows: u32, bucket: u32) -> (Vec<f32>, Vec<bf16>) {
        let (from, len) = (
            (first * self.hidden) as usize,
            (rows * self.hidden) as usize,
        );
        let padded = (bucket * self.hidden) as usize;
        let upload = |values: &[f32]| {
            let mut all = vec![f32::NAN; padded];
            all[..len].copy_from_slice(&values[from..from + len]);
            rig.upload(&all)
        };
        let residual = upload(&self.residual);
        let out = rig.poisoned::<bf16>(padded);
        let params = AddNormParams {
            header: rig.header_of_rows(rows),
            residual: residual.pointer,
            y: self
                .y
                .as_ref()
                .map_or(DevicePtr::NULL, |y| upload(y).pointer),
            post_weight: self
                .post
                .as_ref()
                .map_or(DevicePtr::NULL, |w| rig.upload(w).pointer),
            next_weight: self
                .next
                .as_ref()
                .map_or(DevicePtr::NULL, |w| rig.upload(w).pointer),
            out: if self.next.is_some() {
                out.pointer
            } else {
                DevicePtr::NULL
            },
            hidden: self.hidden,
            eps: EPS,
            weight_offset: self.offset,
            ..AddNormParams::default()
        };
        // SAFETY: every array has the shape of its field for this bucket.
        unsafe { rig.kernels.add_norm(&rig.stream, bucket, &params) }.expect("launch");
        (residual.read(rig), out.read(rig))
    }
}

#[test]
fn add_norm_matches_the_oracle() {
    let (rig, mut random) = (Rig::new(), Random::new("add_norm_matches_the_oracle"));
    let parts = [
        [false, false, true],
        [true, false, true],
        [true, true, true],
        [true, true, false],
        [true, false, false],
    ];
    for hidden in [64, 192, 1024, 1028, 2560, 5376, 16_384] {
        for (index, parts) in parts.into_iter().enumerate() {
            let rows = 3;
            let case = NormCase::random(
                &mut random,
                rows,
                hidden,
                parts,
                if index % 2 == 0 { 1.0 } else { 0.0 },
            );
            let (sums, normed) = case.twin::<f64>();
            let (naive_sums, naive_normed) = case.twin::<f32>();
            let (residual, out) = case.run(&rig, 0, rows, rows + 1);
            let real = (rows * hidden) as usize;
            compare(
                &format!("residual, H {hidden}, {parts:?}"),
                &residual[..real],
                &naive_sums,
                &sums,
            );
            if parts[2] {
                compare(
                    &format!("normed, H {hidden}, {parts:?}"),
                    &to_f32(&out[..real]),
                    &naive_normed,
                    &normed,
                );
            }
            assert!(
                residual[real..].iter().all(|v| v.is_nan()) && untouched(&out[real..]),
                "padded rows were written"
            );
        }
    }
}

#[test]
fn add_norm_rows_do_not_see_each_other() {
    let (rig, mut random) = (
        Rig::new(),
        Random::new("add_norm_rows_do_not_see_each_other"),
    );
    for hidden in [192, 2560] {
        let case = NormCase::random(&mut random, 5, hidden, [true; 3], 1.0);
        let (residual, out) = case.run(&rig, 0, 5, 8);
        for row in 0..5 {
            let (alone_residual, alone_out) = case.run(&rig, row, 1, 1);
            let at = (row * hidden) as usize..((row + 1) * hidden) as usize;
            assert_eq!(
                bits(&residual[at.clone()]),
                bits(&alone_residual),
                "row {row}"
            );
            assert_eq!(bits(&out[at]), bits(&alone_out), "row {row}");
        }
    }
}

#[test]
fn gathered_norm_reads_rows_and_leaves_the_residual() {
    let (rig, mut random) = (
        Rig::new(),
        Random::new("gathered_norm_reads_rows_and_leaves_the_residual"),
    );
    for hidden in [192u32, 2560] {
        let case = NormCase::random(&mut random, 6, hidden, [true; 3], 1.0);
        let (_, whole) = case.run(&rig, 0, 6, 6);
        let residual = rig.upload(&case.residual);
        let out = rig.poisoned::<bf16>((4 * hidden) as usize);
        let gather = [5u32, 0, 3, 77];
        let params = AddNormParams {
            header: rig.header(StepHeader {
                num_tokens: 6,
                num_outputs: 3,
                ..StepHeader::default()
            }),
            residual: residual.pointer,
            y: rig.upload(case.y.as_ref().expect("given")).pointer,
            post_weight: rig.upload(case.post.as_ref().expect("given")).pointer,
            next_weight: rig.upload(case.next.as_ref().expect("given")).pointer,
            out: out.pointer,
            gather_rows: rig.upload(&gather).pointer,
            hidden,
            eps: EPS,
            weight_offset: 1.0,
            ..AddNormParams::default()
        };
        // SAFETY: every array has the shape of its field; the fourth gathered row is past num_outputs.
        unsafe { rig.kernels.add_norm(&rig.stream, 4, &params) }.expect("launch");
        let found = out.read(&rig);
        for (row, source) in gather.iter().take(3).enumerate() {
            let expected = &whole[(source * hidden) as usize..((source + 1) * hidden) as usize];
            assert_eq!(
                bits(&found[row * hidden as usize..][..hidden as usize]),
                bits(expected),
                "row {row}"
            );
        }
        assert!(
            untouched(&found[3 * hidden as usize..]),
            "a padded output row was written"
        );
        assert_eq!(
            bits(&residual.read(&rig)),
            bits(&case.residual),
            "gathering must not write the residual"
        );
    }
}

/// One product: x [rows, k], w [n, k].
struct Product {
    n: u32,
    k: u32,
    x: Vec<bf16>,
    w: Vec<bf16>,
    bias: Option<Vec<bf16>>,
    softcap: f32,
}

impl Product {
    fn random(random: &mut Random, rows: u32, n: u32, k: u32, bias: bool, softcap: f32) -> Product {
        Product {
            n,
            k,
            x: random.normals_bf16((rows * k) as usize, 1.0),
            w: random.normals_bf16((n * k) as usize, 1.0 / f64::from(k).sqrt()),
            bias: bias.then(|| random.normals_bf16(n as usize, 1.0)),
            softcap,
        }
    }

    fn twin<R: oracle::Real>(&self) -> Vec<R> {
        linear(
            &self.x,
            &self.w,
            self.k as usize,
            self.bias.as_deref(),
            self.softcap,
        )
    }

    /// Runs rows `first..first + rows` in a bucket; returns y [bucket, n]. Rows past the real ones hold NaN inputs.
    fn run(
        &self,
        rig: &Rig,
        phase: Phase,
        first: u32,
        rows: u32,
        bucket: u32,
        from_outputs: bool,
    ) -> Vec<f32> {
        let k = self.k as usize;
        let mut x = vec![bf16::NAN; bucket as usize * k];
        x[..rows as usize * k].copy_from_slice(&self.x[first as usize * k..][..rows as usize * k]);
        let y = rig.poisoned::<f32>((bucket * self.n) as usize);
        let counts = StepHeader {
            num_tokens: if from_outputs { bucket } else { rows },
            num_outputs: if from_outputs { rows } else { bucket },
            ..StepHeader::default()
        };
        let params = GemmParams {
            header: rig.header(counts),
            x: rig.upload(&x).pointer,
            weight: rig.upload(&self.w).pointer,
            bias: self
                .bias
                .as_ref()
                .map_or(DevicePtr::NULL, |bias| rig.upload(bias).pointer),
            y: y.pointer,
            n: self.n,
            k: self.k,
            softcap: self.softcap,
            rows_from: u32::from(from_outputs),
            ..GemmParams::default()
        };
        // SAFETY: every array has the shape of its field for this bucket.
        unsafe { rig.kernels.gemm(&rig.stream, phase, bucket, &params) }.expect("launch");
        y.read(rig)
    }
}

#[test]
fn gemm_matches_the_oracle() {
    let (rig, mut random) = (Rig::new(), Random::new("gemm_matches_the_oracle"));
    for (rows, bucket, n, k, bias, softcap) in [
        (1, 1, 192, 256, false, 0.0),
        (3, 8, 512, 192, true, 0.0),
        (8, 8, 64, 2048, false, 30.0),
        (13, 16, 40, 512, true, 5.0),
        (29, 32, 200, 96, false, 0.0),
        (61, 64, 72, 544, true, 0.0),
        (70, 128, 1032, 160, false, 0.0),
        (150, 256, 1096, 72, true, 2.0),
        (5, 5, 33, 64, true, 0.0),
        (6, 8, 24, 100, false, 3.0),
        (9, 9, 7, 31, true, 0.0),
    ] {
        let product = Product::random(&mut random, rows, n, k, bias, softcap);
        let (oracle, naive) = (product.twin::<f64>(), product.twin::<f32>());
        for (phase, from_outputs) in [(Phase::Decode, false), (Phase::Prefill, true)] {
            let y = product.run(&rig, phase, 0, rows, bucket, from_outputs);
            let (real, padding) = y.split_at((rows * n) as usize);
            compare(
                &format!("{phase:?} gemm {rows} x {n} x {k}"),
                real,
                &naive,
                &oracle,
            );
            assert!(
                untouched(padding),
                "{phase:?} {rows} x {n} x {k}: padded rows were written"
            );
        }
    }
}

/// Every instance of a phase gives a row the same bits, alone and among others.
#[test]
fn gemm_rows_do_not_depend_on_batch_or_bucket() {
    let (rig, mut random) = (
        Rig::new(),
        Random::new("gemm_rows_do_not_depend_on_batch_or_bucket"),
    );
    for (n, k) in [(192, 512), (1032, 96), (48, 2048), (33, 70)] {
        let product = Product::random(&mut random, 70, n, k, true, 0.0);
        let row = |y: &[f32], row: u32| bits(&y[(row * n) as usize..((row + 1) * n) as usize]);
        for (phase, buckets) in [
            (Phase::Decode, [8, 16, 32, 64, 128, 256]),
            (Phase::Prefill, [64, 64, 128, 256, 512, 512]),
        ] {
            let whole = product.run(&rig, phase, 0, 70, buckets[5], false);
            for (bucket, rows) in buckets.into_iter().zip([1, 9, 20, 64, 70, 70]) {
                let first = random.below(71 - rows);
                let part = product.run(&rig, phase, first, rows, bucket, false);
                for index in 0..rows {
                    assert_eq!(
                        row(&part, index),
                        row(&whole, first + index),
                        "{phase:?} {n} x {k}, {rows} rows in {bucket}"
                    );
                }
            }
        }
    }
}

struct Rope {
    num_q_heads: u32,
    num_kv_heads: u32,
    head_dim: u32,
    qkv: Vec<f32>,
    positions: Vec<u32>,
    inv_freq: Vec<f32>,
    norms: Option<[Vec<bf16>; 2]>,
    factor: f32,
}

impl Rope {
    fn random(random: &mut Random, head_dim: u32, positions: &[u32], norms: bool) -> Rope {
        let (num_q_heads, num_kv_heads) = (4, 2);
        let width = (num_q_heads + 2 * num_kv_heads) * head_dim;
        let base = [10_000.0f64, 1_000_000.0][random.below(2) as usize];
        Rope {
            num_q_heads,
            num_kv_heads,
            head_dim,
            qkv: random.normals(positions.len() * width as usize, 1.5),
            positions: positions.to_vec(),
            inv_freq: (0..head_dim / 2)
                .map(|i| base.powf(-2.0 * f64::from(i) / f64::from(head_dim)) as f32)
                .collect(),
            norms: norms.then(|| [0, 1].map(|_| random.normals_bf16(head_dim as usize, 0.3))),
            factor: if norms { 1.0 } else { 1.25 },
        }
    }

    /// (q, k, v), each [T, heads, D].
    fn twin<R: oracle::Real>(&self) -> [Vec<R>; 3] {
        let (d, hq, hkv) = (
            self.head_dim as usize,
            self.num_q_heads as usize,
            self.num_kv_heads as usize,
        );
        let mut out = [Vec::new(), Vec::new(), Vec::new()];
        for (index, head) in self.qkv.chunks_exact(d).enumerate() {
            let (token, head_index) = (index / (hq + 2 * hkv), index % (hq + 2 * hkv));
            let which = usize::from(head_index >= hq) + usize::from(head_index >= hq + hkv);
            let mut values: Vec<R> = head.iter().map(|&v| R::of(f64::from(v))).collect();
            if which < 2 {
                if let Some(norms) = &self.norms {
                    values = rms_norm(&values, &norms[which], 1.0, EPS);
                }
                values = rotate(&values, &self.inv_freq, self.positions[token], self.factor);
            }
            out[which].extend(values.into_iter().map(R::stored));
        }
        out
    }

    fn params(&self, rig: &Rig, header: DevicePtr) -> QkvRopeParams {
        let norm = |which: usize| {
            self.norms
                .as_ref()
                .map_or(DevicePtr::NULL, |norms| rig.upload(&norms[which]).pointer)
        };
        QkvRopeParams {
            header,
            qkv: rig.upload(&self.qkv).pointer,
            q_norm: norm(0),
            k_norm: norm(1),
            inv_freq: rig.upload(&self.inv_freq).pointer,
            positions: rig.upload(&self.positions).pointer,
            num_q_heads: self.num_q_heads,
            num_kv_heads: self.num_kv_heads,
            head_dim: self.head_dim,
            eps: EPS,
            weight_offset: 1.0,
            attention_factor: self.factor,
            ..QkvRopeParams::default()
        }
    }

    fn run_prefill(&self, rig: &Rig, rows: u32) -> [Vec<bf16>; 3] {
        let bucket = self.positions.len();
        let array = |heads: u32| rig.poisoned::<bf16>(bucket * (heads * self.head_dim) as usize);
        let (q, k, v) = (
            array(self.num_q_heads),
            array(self.num_kv_heads),
            array(self.num_kv_heads),
        );
        let params = QkvRopeParams {
            q: q.pointer,
            k: k.pointer,
            v: v.pointer,
            ..self.params(rig, rig.header_of_rows(rows))
        };
        // SAFETY: every array has the shape of its field for this bucket.
        unsafe {
            rig.kernels
                .qkv_rope(&rig.stream, Phase::Prefill, bucket as u32, &params)
        }
        .expect("launch");
        [q.read(rig), k.read(rig), v.read(rig)]
    }
}

#[test]
fn qkv_rope_matches_the_oracle() {
    let (rig, mut random) = (Rig::new(), Random::new("qkv_rope_matches_the_oracle"));
    let mut positions = vec![0, 1, 63, 64, 65, 4095, 32_767, 131_071, 1_000_000];
    positions.extend((0..7).map(|_| random.below(131_072)));
    for head_dim in [64, 128, 256] {
        for norms in [false, true] {
            let rope = Rope::random(&mut random, head_dim, &positions, norms);
            let found = rope.run_prefill(&rig, positions.len() as u32);
            let (oracle, naive) = (rope.twin::<f64>(), rope.twin::<f32>());
            for (index, name) in ["q", "k", "v"].into_iter().enumerate() {
                let what = format!("{name}, D {head_dim}, norms {norms}");
                compare(&what, &to_f32(&found[index]), &naive[index], &oracle[index]);
            }
        }
    }
}

/// Decode puts the very bits into the pages that prefill leaves in its buffers, and nothing anywhere else.
#[test]
fn fused_append_equals_the_prefill_variant() {
    let (rig, mut random) = (
        Rig::new(),
        Random::new("fused_append_equals_the_prefill_variant"),
    );
    for (head_dim, page_size) in [(64, 16), (64, 1), (128, 64), (256, 4)] {
        let lengths = [70u32, 1, 16, 33, 129];
        let positions: Vec<u32> = lengths.iter().map(|len| len - 1).chain([5, 5]).collect();
        let rope = Rope::random(&mut random, head_dim, &positions, true);
        let [expected_q, expected_k, expected_v] = rope.run_prefill(&rig, 5);

        let pages = 260 / page_size + 8;
        let mut kv = PagedKv::new(&rig, &mut random, page_size, 2, head_dim, 5, pages);
        for (slot, len) in lengths.iter().enumerate() {
            kv.assign(slot, len - 1, *len);
        }
        // Sequence 3 asks not to be written; rows 5 and 6 are padding and point at sequence 0's slot.
        let mut slots: Vec<u64> = (0..5)
            .map(|slot| kv.slot(slot, lengths[slot] - 1))
            .collect();
        slots.extend([slots[0]; 2]);
        slots[3] = u64::MAX;
        let (layer, mut expected) = (1, kv.contents(&rig));
        for (token, slot) in slots
            .iter()
            .take(5)
            .enumerate()
            .filter(|(token, _)| *token != 3)
        {
            for (is_value, tensor) in [(false, &expected_k), (true, &expected_v)] {
                for head in 0..2 {
                    let at = kv.row_index(layer, *slot, head, is_value);
                    let row = (token * 2 + head as usize) * head_dim as usize;
                    expected[at..at + head_dim as usize]
                        .copy_from_slice(&tensor[row..row + head_dim as usize]);
                }
            }
        }
        let q = rig.poisoned::<bf16>(expected_q.len());
        let params = QkvRopeParams {
            q: q.pointer,
            slots: rig.upload(&slots).pointer,
            kv: kv.view(layer),
            ..rope.params(&rig, rig.header_of_rows(5))
        };
        // SAFETY: every array has the shape of its field; slots name tokens of assigned pages.
        unsafe { rig.kernels.qkv_rope(&rig.stream, Phase::Decode, 7, &params) }.expect("launch");
        assert_eq!(bits(&q.read(&rig)), bits(&expected_q), "D {head_dim}: q");
        assert!(
            bits(&kv.contents(&rig)) == bits(&expected),
            "D {head_dim}, page size {page_size}: pages"
        );
    }
}

#[test]
fn gated_activation_matches_the_oracle() {
    fn twin<R: oracle::Real>(gate_up: &[f32], columns: usize, silu: bool) -> Vec<R> {
        let gelu = |x: f64| {
            0.5 * x
                * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
        };
        let act: fn(f64) -> f64 = if silu {
            |x| x / (1.0 + (-x).exp())
        } else {
            gelu
        };
        let rows = gate_up.chunks_exact(2 * columns);
        rows.flat_map(|row| {
            (0..columns).map(move |i| {
                let gate = R::of(f64::from(row[i])).map(act);
                gate.mul(R::of(f64::from(row[columns + i]))).stored()
            })
        })
        .collect()
    }
    let (rig, mut random) = (
        Rig::new(),
        Random::new("gated_activation_matches_the_oracle"),
    );
    for (columns, silu) in [(512, false), (512, true), (2564, false), (68, true)] {
        let (rows, bucket) = (5usize, 8usize);
        let mut gate_up = random.normals(bucket * 2 * columns, 3.0);
        // Both tails, where exponentials over- and underflow.
        for (value, extreme) in gate_up
            .iter_mut()
            .zip([-1e4, -200.0, -90.0, -12.0, 0.0, 12.0, 90.0, 1e4])
        {
            *value = extreme;
        }
        let out = rig.poisoned::<bf16>(bucket * columns);
        let params = GatedActParams {
            header: rig.header_of_rows(rows as u32),
            gate_up: rig.upload(&gate_up).pointer,
            out: out.pointer,
            intermediate: columns as u32,
            activation: u32::from(silu),
            ..GatedActParams::default()
        };
        // SAFETY: every array has the shape of its field for this bucket.
        unsafe { rig.kernels.gated_act(&rig.stream, bucket as u32, &params) }.expect("launch");
        let found = out.read(&rig);
        let (real, padding) = found.split_at(rows * columns);
        let inputs = &gate_up[..rows * 2 * columns];
        let (oracle, naive) = (
            twin::<f64>(inputs, columns, silu),
            twin::<f32>(inputs, columns, silu),
        );
        // Rows apart, so that the extremes of row 0 do not widen the tolerance of the others.
        for row in 0..rows {
            let at = row * columns..(row + 1) * columns;
            let what = format!("I {columns}, silu {silu}, row {row}");
            compare(
                &what,
                &to_f32(&real[at.clone()]),
                &naive[at.clone()],
                &oracle[at],
            );
        }
        assert!(untouched(padding), "padded rows were written");
    }
}

#[test]
fn argmax_breaks_ties_low_and_ignores_nan() {
    let (rig, mut random) = (
        Rig::new(),
        Random::new("argmax_breaks_ties_low_and_ignores_nan"),
    );
    for vocab in [4096usize, 4097, 50_257, 3, 1] {
        let rows = 7;
        let mut logits = random.normals(rows * vocab, 1.0);
        let mut expected = Vec::new();
        for (index, row) in logits.chunks_exact_mut(vocab).enumerate() {
            match index {
                // Ties.
                0 => row.fill(2.5),
                1 => {
                    let (low, high) = (vocab / 3, vocab - 1);
                    row[low] = 9.0;
                    row[high] = 9.0;
                }
                // NaN beside numbers, alone, and infinities.
                2 => row.iter_mut().step_by(2).for_each(|v| *v = f32::NAN),
                3 => row.fill(f32::NAN),
                4 => row.fill(f32::NEG_INFINITY),
                5 => row[vocab / 2] = f32::INFINITY,
                _ => {}
            }
            let mut best = (f32::NEG_INFINITY, None);
            for (id, &value) in row.iter().enumerate() {
                if value > best.0 || (value == best.0 && best.1.is_none()) {
                    best = (value, Some(id as u32));
                }
            }
            expected.push(best.1.unwrap_or(0));
        }
        let ids = rig.poisoned::<u32>(rows + 2);
        let params = ArgmaxParams {
            header: rig.header(StepHeader {
                num_outputs: rows as u32,
                ..StepHeader::default()
            }),
            logits: rig.upload(&logits).pointer,
            ids: ids.pointer,
            vocab: vocab as u32,
            ..ArgmaxParams::default()
        };
        // SAFETY: every array has the shape of its field; rows 7 and 8 are past num_outputs.
        unsafe { rig.kernels.argmax(&rig.stream, rows as u32 + 2, &params) }.expect("launch");
        let found = ids.read(&rig);
        assert_eq!(&found[..rows], expected, "vocab {vocab}");
        assert!(untouched(&found[rows..]), "padded rows were written");
    }
}

/// The conversions the tests lean on.
#[test]
fn test_support_rounds_to_nearest_even() {
    assert_eq!(
        to_bf16(&[1.0, 1.003_906_25, 1.011_718_75]),
        [0x3f80, 0x3f80, 0x3f82].map(bf16::from_bits)
    );
}
