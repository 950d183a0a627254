//! Division of 32-bit integers by a divisor that is known long before: one multiplication instead of a division.

/// Divides by a constant of run time.
#[derive(Clone, Copy, Debug)]
pub(super) struct FastDiv {
    /// `ceil(2^64 / divisor)`, 0 for a divisor of one.
    multiplier: u64,
    divisor: u32,
}

impl FastDiv {
    /// Division by `divisor`, which is taken as one when it is zero.
    pub const fn new(divisor: u32) -> Self {
        let divisor = if divisor == 0 { 1 } else { divisor };
        // Exact for every 32-bit dividend: the error of the multiplier is below 2^-32 of it.
        let multiplier = (u64::MAX / divisor as u64).wrapping_add(1);
        Self {
            multiplier,
            divisor,
        }
    }

    /// Quotient and remainder of `dividend`.
    #[inline]
    pub const fn div_rem(self, dividend: u32) -> (u32, u32) {
        if self.multiplier == 0 {
            return (dividend, 0);
        }
        let quotient = ((self.multiplier as u128 * dividend as u128) >> 64) as u32;
        (quotient, dividend - quotient * self.divisor)
    }
}

#[cfg(test)]
mod tests {
    use super::FastDiv;

    #[test]
    fn agrees_with_division_at_every_edge() {
        let edges = [
            1,
            2,
            3,
            7,
            255,
            256,
            641,
            65_535,
            65_536,
            1 << 31,
            u32::MAX - 1,
            u32::MAX,
        ];
        for divisor in edges {
            let by = FastDiv::new(divisor);
            let multiples = (0..64).flat_map(|shift| {
                let multiple = divisor.wrapping_mul(1 << (shift % 32));
                [multiple.wrapping_sub(1), multiple, multiple.wrapping_add(1)]
            });
            for dividend in multiples.chain(edges).chain([0]) {
                assert_eq!(
                    by.div_rem(dividend),
                    (dividend / divisor, dividend % divisor)
                );
            }
        }
    }
}
