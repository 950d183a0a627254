//! Reproducible random inputs.

use half::bf16;

/// splitmix64; the seed is printed so that a failing test's output says how to repeat it.
pub struct Random {
    state: u64,
}

impl Random {
    /// Seeds from `NEAP_TEST_SEED`, or from the clock.
    pub fn new(test: &str) -> Random {
        let seed = match std::env::var("NEAP_TEST_SEED") {
            Ok(text) => text.parse().expect("NEAP_TEST_SEED is a number"),
            Err(_) => std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(1, |time| time.as_nanos() as u64 % 1_000_000_007),
        };
        println!("{test}: NEAP_TEST_SEED={seed}");
        Random { state: seed }
    }

    /// The same numbers in every run.
    pub fn fixed(seed: u64) -> Random {
        Random { state: seed }
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u32
    }

    /// Uniform in (0, 1].
    pub fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    pub fn normal(&mut self, sigma: f64) -> f32 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        (sigma * radius * (std::f64::consts::TAU * self.unit()).cos()) as f32
    }

    pub fn normals(&mut self, len: usize, sigma: f64) -> Vec<f32> {
        (0..len).map(|_| self.normal(sigma)).collect()
    }

    pub fn normals_bf16(&mut self, len: usize, sigma: f64) -> Vec<bf16> {
        (0..len)
            .map(|_| bf16::from_f32(self.normal(sigma)))
            .collect()
    }

    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            values.swap(last, self.below(last as u32 + 1) as usize);
        }
    }
}
