//! Embedding, norms, activation and argmax against f64 twins, and bit for bit against themselves in other batches and
//! buckets (I13).

mod support;

use half::bf16;
use neap::driver::DevicePtr;
use neap::kernels::{AddNormParams, ArgmaxParams, EmbedParams, GatedActParams, StepHeader};
use support::oracle::{self, compare, rms_norm};
use support::random::Random;
use support::{Rig, bits, to_f32, untouched};

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
