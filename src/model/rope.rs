//! Rotary position embedding: the frequencies of one base and scaling rule.

use serde_json::Value;

/// How the plain frequencies are changed to reach longer contexts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Frequencies as they are.
    None,
    /// Every frequency divided by `factor`: positions are squeezed by it.
    Linear {
        /// The divisor.
        factor: f64,
    },
}

/// RoPE of one layer kind: `inv_freq[i] = theta^(-2i/head_dim)`, then scaled; half-split (NeoX) pairs `(i, i + head_dim/2)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// The base.
    pub theta: f64,
    /// The scaling rule.
    pub scaling: RopeScaling,
}

impl Rope {
    /// The frequencies in radians a token: `[head_dim / 2]` f32, computed in f64.
    pub fn inv_freq(&self, head_dim: u32) -> Vec<f32> {
        (0..head_dim / 2)
            .map(|pair| {
                let plain = self.theta.powf(-f64::from(2 * pair) / f64::from(head_dim));
                match self.scaling {
                    RopeScaling::None => plain as f32,
                    RopeScaling::Linear { factor } => (plain / factor) as f32,
                }
            })
            .collect()
    }

    /// Reads a `rope_parameters` or `rope_scaling` object; `theta` stands in where it names no base.
    ///
    /// # Errors
    /// The field's name, what was found and what is accepted, for a rule that is not known or a factor that is not positive.
    pub(super) fn from_json(
        field: &str,
        object: Option<&Value>,
        theta: Option<f64>,
    ) -> Result<Rope, (String, String, String)> {
        let get = |key: &str| {
            object
                .and_then(|value| value.get(key))
                .filter(|value| !value.is_null())
        };
        let theta = match get("rope_theta") {
            Some(value) => value.as_f64(),
            None => theta,
        };
        let theta = theta
            .filter(|base| base.is_finite() && *base > 1.0)
            .ok_or_else(|| {
                let found = get("rope_theta").map_or("missing".to_owned(), Value::to_string);
                (
                    format!("{field}.rope_theta"),
                    found,
                    "a number above 1".to_owned(),
                )
            })?;
        let kind = get("rope_type").or_else(|| get("type"));
        let scaling = match kind.map_or(Some("default"), Value::as_str) {
            Some("default") => RopeScaling::None,
            Some("linear") => {
                let factor = get("factor")
                    .and_then(Value::as_f64)
                    .filter(|factor| factor.is_finite() && *factor > 0.0);
                let factor = factor.ok_or_else(|| {
                    let found = get("factor").map_or("missing".to_owned(), Value::to_string);
                    (
                        format!("{field}.factor"),
                        found,
                        "a positive number".to_owned(),
                    )
                })?;
                RopeScaling::Linear { factor }
            }
            _ => {
                let found = kind.map_or("missing".to_owned(), Value::to_string);
                return Err((
                    format!("{field}.rope_type"),
                    found,
                    "\"default\" or \"linear\"".to_owned(),
                ));
            }
        };
        Ok(Rope { theta, scaling })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn frequencies_fall_from_one_and_scale_linearly() {
        let plain = Rope {
            theta: 10_000.0,
            scaling: RopeScaling::None,
        }
        .inv_freq(64);
        let scaled = Rope {
            theta: 10_000.0,
            scaling: RopeScaling::Linear { factor: 8.0 },
        }
        .inv_freq(64);
        assert_eq!((plain.len(), plain[0]), (32, 1.0));
        assert!(
            (plain[16] - 0.01).abs() < 1e-9,
            "10000^(-1/2) = 0.01, got {}",
            plain[16]
        );
        for (plain, scaled) in plain.iter().zip(&scaled) {
            assert!((plain / 8.0 - scaled).abs() <= f32::EPSILON * plain);
        }
    }

    #[test]
    fn unknown_rules_are_named() {
        let (field, found, _) = Rope::from_json(
            "rope_scaling",
            Some(&json!({"rope_type": "yarn"})),
            Some(1e6),
        )
        .unwrap_err();
        assert_eq!(
            (field.as_str(), found.as_str()),
            ("rope_scaling.rope_type", "\"yarn\"")
        );
        assert!(
            Rope::from_json("rope_scaling", Some(&json!({"type": "linear"})), Some(1e6)).is_err()
        );
        assert!(Rope::from_json("rope_scaling", None, None).is_err());
    }
}
