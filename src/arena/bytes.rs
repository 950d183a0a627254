//! Numbers of bytes for people.

use std::fmt;

/// Bytes in the largest binary unit that keeps them at or above one: `13.58 GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HumanBytes(pub u64);

impl fmt::Display for HumanBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut scaled = self.0 as f64;
        let mut unit = 0;
        while scaled >= 1024.0 && unit + 1 < UNITS.len() {
            scaled /= 1024.0;
            unit += 1;
        }
        let text = if unit == 0 {
            format!("{} B", self.0)
        } else {
            format!("{scaled:.2} {}", UNITS[unit])
        };
        f.pad(&text)
    }
}

/// An integer with its thousands set apart: `1,234,567`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grouped(pub u64);

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        let mut text = String::with_capacity(digits.len() * 4 / 3 + 1);
        for (place, digit) in digits.chars().enumerate() {
            if place > 0 && (digits.len() - place).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_and_units() {
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(|n| Grouped(n).to_string()),
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(format!("[{:>8}]", Grouped(1_000)), "[   1,000]");
        let human = [0, 1_023, 1_024, 14_579_000_000, u64::MAX].map(|n| HumanBytes(n).to_string());
        assert_eq!(
            human,
            ["0 B", "1023 B", "1.00 KiB", "13.58 GiB", "16777216.00 TiB"]
        );
    }
}
