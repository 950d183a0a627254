//! f64 twins of the kernels, and the rule by which a kernel passes.

use half::bf16;

/// A precision to compute in: f64 for the oracle, f32 with bf16 where the kernel rounds for the naive twin. One body serves both.
pub trait Real: Copy {
    fn of(value: f64) -> Self;
    fn f64(self) -> f64;
    /// Rounds to bf16 in the naive twin; leaves the oracle's value alone.
    fn stored(self) -> Self;
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn map(self, f: fn(f64) -> f64) -> Self;
}

impl Real for f64 {
    fn of(value: f64) -> f64 {
        value
    }
    fn f64(self) -> f64 {
        self
    }
    fn stored(self) -> f64 {
        self
    }
    fn add(self, other: f64) -> f64 {
        self + other
    }
    fn mul(self, other: f64) -> f64 {
        self * other
    }
    fn div(self, other: f64) -> f64 {
        self / other
    }
    fn map(self, f: fn(f64) -> f64) -> f64 {
        f(self)
    }
}

impl Real for f32 {
    fn of(value: f64) -> f32 {
        value as f32
    }
    fn f64(self) -> f64 {
        f64::from(self)
    }
    fn stored(self) -> f32 {
        bf16::from_f32(self).to_f32()
    }
    fn add(self, other: f32) -> f32 {
        self + other
    }
    fn mul(self, other: f32) -> f32 {
        self * other
    }
    fn div(self, other: f32) -> f32 {
        self / other
    }
    fn map(self, f: fn(f64) -> f64) -> f32 {
        f(f64::from(self)) as f32
    }
}

/// How far a kernel and the naive twin are from the oracle.
#[derive(Debug, Clone, Copy)]
pub struct Errors {
    pub kernel_max: f64,
    pub naive_max: f64,
    pub kernel_rms: f64,
    pub naive_rms: f64,
}

/// Passes when the largest and the mean square error are at most twice the naive twin's, plus a few f32 roundings of the largest value.
pub fn compare(what: &str, kernel: &[f32], naive: &[f32], oracle: &[f64]) -> Errors {
    assert_eq!(kernel.len(), oracle.len(), "{what}");
    assert_eq!(naive.len(), oracle.len(), "{what}");
    let mut errors = Errors {
        kernel_max: 0.0,
        naive_max: 0.0,
        kernel_rms: 0.0,
        naive_rms: 0.0,
    };
    let mut largest = 0.0f64;
    for ((&kernel, &naive), &oracle) in kernel.iter().zip(naive).zip(oracle) {
        let (k, n) = (
            (f64::from(kernel) - oracle).abs(),
            (f64::from(naive) - oracle).abs(),
        );
        assert!(
            k.is_finite(),
            "{what}: the kernel gives {kernel} where {oracle} is right"
        );
        errors.kernel_max = errors.kernel_max.max(k);
        errors.naive_max = errors.naive_max.max(n);
        errors.kernel_rms += k * k;
        errors.naive_rms += n * n;
        largest = largest.max(oracle.abs());
    }
    let count = oracle.len().max(1) as f64;
    errors.kernel_rms = (errors.kernel_rms / count).sqrt();
    errors.naive_rms = (errors.naive_rms / count).sqrt();
    let noise = 4.0 * largest * f64::from(f32::EPSILON);
    println!(
        "{what}: max error {:.3e} (naive {:.3e}), rms {:.3e} (naive {:.3e}), largest value {largest:.3e}",
        errors.kernel_max, errors.naive_max, errors.kernel_rms, errors.naive_rms
    );
    assert!(
        errors.kernel_max <= 2.0 * errors.naive_max + noise,
        "{what}: largest error, {errors:?}"
    );
    assert!(
        errors.kernel_rms <= 2.0 * errors.naive_rms + noise,
        "{what}: mean square error, {errors:?}"
    );
    errors
}

/// `row / rms(row) * (offset + weight)`.
pub fn rms_norm<R: Real>(row: &[R], weight: &[bf16], offset: f32, eps: f32) -> Vec<R> {
    let squares = row.iter().fold(R::of(0.0), |sum, &v| sum.add(v.mul(v)));
    let mean = squares
        .div(R::of(row.len() as f64))
        .add(R::of(f64::from(eps)));
    let scale = mean.map(|v| 1.0 / v.sqrt());
    row.iter()
        .zip(weight)
        .map(|(&v, w)| {
            v.mul(scale)
                .mul(R::of(f64::from(offset)).add(R::of(w.to_f64())))
        })
        .collect()
}

/// `x . w^T + bias`, softcapped; x: [rows, k], w: [n, k].
pub fn linear<R: Real>(
    x: &[bf16],
    w: &[bf16],
    k: usize,
    bias: Option<&[bf16]>,
    softcap: f32,
) -> Vec<R> {
    let n = w.len() / k;
    let mut y = Vec::with_capacity(x.len() / k * n);
    for row in x.chunks_exact(k) {
        for (column, weights) in w.chunks_exact(k).enumerate() {
            let mut sum = R::of(0.0);
            for (a, b) in row.iter().zip(weights) {
                sum = sum.add(R::of(a.to_f64()).mul(R::of(b.to_f64())));
            }
            if let Some(bias) = bias {
                sum = sum.add(R::of(bias[column].to_f64()));
            }
            if softcap > 0.0 {
                let cap = R::of(f64::from(softcap));
                sum = sum.div(cap).map(f64::tanh).mul(cap);
            }
            y.push(sum);
        }
    }
    y
}

/// What attention needs to know beside its tensors.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    pub num_q_heads: usize,
    pub num_kv_heads: usize,
    pub head_dim: usize,
    pub window: Option<u32>,
    pub sm_scale: f32,
    pub softcap: f32,
}

/// One query row at `position` over keys and values [tokens, Hkv, D]; q: [Hq, D]; returns [Hq, D], rounded to bf16 in the naive
/// twin, which also rounds its probabilities as the kernel does.
pub fn attention<R: Real>(
    shape: &Attention,
    q: &[bf16],
    k: &[bf16],
    v: &[bf16],
    position: u32,
    sinks: Option<&[bf16]>,
) -> Vec<R> {
    let (d, hkv) = (shape.head_dim, shape.num_kv_heads);
    let first = shape
        .window
        .map_or(0, |window| (position + 1).saturating_sub(window)) as usize;
    let mut out = Vec::with_capacity(q.len());
    for (head, query) in q.chunks_exact(d).enumerate() {
        let kv_head = head / (shape.num_q_heads / hkv);
        let row = |tensor: &[bf16], token: usize, dim: usize| {
            R::of(tensor[(token * hkv + kv_head) * d + dim].to_f64())
        };
        let mut scores = Vec::new();
        for token in first..=position as usize {
            let mut dot = R::of(0.0);
            for (dim, value) in query.iter().enumerate() {
                dot = dot.add(R::of(value.to_f64()).mul(row(k, token, dim)));
            }
            let mut score = dot.mul(R::of(f64::from(shape.sm_scale)));
            if shape.softcap > 0.0 {
                let cap = R::of(f64::from(shape.softcap));
                score = score.div(cap).map(f64::tanh).mul(cap);
            }
            scores.push(score);
        }
        let sink = sinks.map(|sinks| sinks[head].to_f64());
        let top = scores
            .iter()
            .map(|s| s.f64())
            .chain(sink)
            .fold(f64::NEG_INFINITY, f64::max);
        let minus_top = R::of(-top);
        let weights: Vec<R> = scores
            .iter()
            .map(|s| s.add(minus_top).map(f64::exp))
            .collect();
        let mut total = weights.iter().fold(R::of(0.0), |sum, &w| sum.add(w));
        if let Some(sink) = sink {
            total = total.add(R::of((sink - top).exp()));
        }
        for dim in 0..d {
            let mut sum = R::of(0.0);
            for (i, weight) in weights.iter().enumerate() {
                sum = sum.add(weight.stored().mul(row(v, first + i, dim)));
            }
            out.push(sum.div(total).stored());
        }
    }
    out
}

/// NeoX rotation of one head at `position`.
pub fn rotate<R: Real>(head: &[R], inv_freq: &[f32], position: u32, factor: f32) -> Vec<R> {
    let half = head.len() / 2;
    let mut out = vec![R::of(0.0); head.len()];
    for i in 0..half {
        // The angle is exact in both: what the naive twin shows is the error of rotating, not of a careless angle.
        let angle = f64::from(position) * f64::from(inv_freq[i]);
        let (sin, cos) = angle.sin_cos();
        let (sin, cos) = (
            R::of(sin * f64::from(factor)),
            R::of(cos * f64::from(factor)),
        );
        let (low, high) = (head[i], head[i + half]);
        out[i] = low.mul(cos).add(high.mul(sin).mul(R::of(-1.0)));
        out[i + half] = high.mul(cos).add(low.mul(sin));
    }
    out
}
