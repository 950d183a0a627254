//! Matrix products, rotary embedding and fused append against f64 twins, and bit for bit against themselves in other
//! batches and buckets (I13).

mod support;

use half::bf16;
use neap::driver::DevicePtr;
use neap::kernels::{GemmParams, Phase, QkvRopeParams, StepHeader};
use support::oracle::{self, compare, linear, rms_norm, rotate};
use support::paged::PagedKv;
use support::random::Random;
use support::{Rig, bits, random_cases, to_f32, untouched};

const EPS: f32 = 1e-6;

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

/// Random shapes, aligned for the tensor cores or not. `NEAP_TEST_CASES` runs more of them.
#[test]
fn random_products_match_the_oracle() {
    let (rig, mut random) = (Rig::new(), Random::new("random_products_match_the_oracle"));
    for _ in 0..random_cases(16) {
        let aligned = random.below(3) > 0;
        let (n, k) = if aligned {
            (8 * (1 + random.below(30)), 32 * (1 + random.below(40)))
        } else {
            (1 + random.below(100), 1 + random.below(300))
        };
        let rows = 8 + random.below(83);
        let bucket = rows + random.below(200);
        let softcap = [0.0, 4.0][random.below(2) as usize];
        let biased = random.below(2) == 0;
        let product = Product::random(&mut random, rows, n, k, biased, softcap);
        let (oracle, naive) = (product.twin::<f64>(), product.twin::<f32>());
        for phase in [Phase::Decode, Phase::Prefill] {
            let y = product.run(&rig, phase, 0, rows, bucket, false);
            let (real, padding) = y.split_at((rows * n) as usize);
            compare(
                &format!("{phase:?} {rows} of {bucket} x {n} x {k}"),
                real,
                &naive,
                &oracle,
            );
            assert!(
                untouched(padding),
                "{phase:?} {rows} x {n} x {k}: padded rows were written"
            );
        }
        rig.reset();
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

/// The conversions the tests lean on: a tie goes to the even neighbour.
#[test]
fn test_inputs_round_to_nearest_even() {
    let ties = [0x3f80_0000, 0x3f80_8000, 0x3f81_8000].map(f32::from_bits);
    let rounded = ties.map(|tie| bf16::from_f32(tie).to_bits());
    assert_eq!(rounded, [0x3f80, 0x3f80, 0x3f82]);
}
