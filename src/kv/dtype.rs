//! Element types of the cache, block scales included.

use std::fmt;

use serde::Serialize;

use super::geometry::GeometryError;

/// Element type of the cached rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum KvDtype {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    Fp16,
    /// 8-bit float, 4 exponent and 3 mantissa bits; one scale a tensor, held with the weights.
    Fp8E4m3,
    /// 8-bit float, 5 exponent and 2 mantissa bits; one scale a tensor, held with the weights.
    Fp8E5m2,
    /// 8-bit integer; one f32 scale a row (a token of one KV head), held in the page.
    Int8,
    /// 4-bit float, 2 exponent bits and 1 mantissa bit; one e4m3 scale for 16 elements, held in the page.
    Fp4E2m1,
    /// 8-bit float e4m3; one e8m0 scale for 32 elements, held in the page.
    Mxfp8,
}

/// Elements that one scale of fp4 e2m1 covers.
const FP4_BLOCK: u32 = 16;

/// Elements that one scale of mxfp8 covers.
const MXFP8_BLOCK: u32 = 32;

impl KvDtype {
    const NAMES: [(&'static str, Self); 10] = [
        ("bf16", Self::Bf16),
        ("fp16", Self::Fp16),
        ("fp8", Self::Fp8E4m3),
        ("fp8_e4m3", Self::Fp8E4m3),
        ("fp8_e5m2", Self::Fp8E5m2),
        ("int8", Self::Int8),
        ("fp4", Self::Fp4E2m1),
        ("fp4_e2m1", Self::Fp4E2m1),
        ("nvfp4", Self::Fp4E2m1),
        ("mxfp8", Self::Mxfp8),
    ];

    /// Bytes of the elements of one row of `dim` elements, scales not counted.
    #[must_use]
    pub const fn row_bytes(self, dim: u32) -> u64 {
        let dim = dim as u64;
        match self {
            Self::Bf16 | Self::Fp16 => 2 * dim,
            Self::Fp8E4m3 | Self::Fp8E5m2 | Self::Int8 | Self::Mxfp8 => dim,
            Self::Fp4E2m1 => dim.div_ceil(2),
        }
    }

    /// Bytes of the scales that go with one row of `dim` elements; 0 when the page holds none.
    #[must_use]
    pub const fn scale_bytes(self, dim: u32) -> u64 {
        match self {
            _ if dim == 0 => 0,
            Self::Bf16 | Self::Fp16 | Self::Fp8E4m3 | Self::Fp8E5m2 => 0,
            Self::Int8 => 4,
            Self::Fp4E2m1 => dim.div_ceil(FP4_BLOCK) as u64,
            Self::Mxfp8 => dim.div_ceil(MXFP8_BLOCK) as u64,
        }
    }
}

impl std::str::FromStr for KvDtype {
    type Err = GeometryError;

    fn from_str(name: &str) -> Result<Self, GeometryError> {
        Self::NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, dtype)| *dtype)
            .ok_or_else(|| GeometryError::Dtype {
                name: name.to_owned(),
            })
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
            Self::Fp8E4m3 => "fp8_e4m3",
            Self::Fp8E5m2 => "fp8_e5m2",
            Self::Int8 => "int8",
            Self::Fp4E2m1 => "fp4_e2m1",
            Self::Mxfp8 => "mxfp8",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_and_every_type_shows_one_that_is() {
        for (name, dtype) in KvDtype::NAMES {
            assert_eq!(name.parse(), Ok(dtype));
            assert_eq!(dtype.to_string().parse(), Ok(dtype));
        }
        let error = "int4".parse::<KvDtype>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "KV dtype `int4` is not known; choose bf16, fp16, fp8_e4m3 (fp8), fp8_e5m2, int8, fp4_e2m1 (fp4) or mxfp8"
        );
    }

    #[test]
    fn rows_and_their_scales() {
        let bytes = |dtype: KvDtype, dim| (dtype.row_bytes(dim), dtype.scale_bytes(dim));
        assert_eq!(bytes(KvDtype::Bf16, 128), (256, 0));
        assert_eq!(bytes(KvDtype::Fp8E5m2, 128), (128, 0));
        assert_eq!(bytes(KvDtype::Int8, 128), (128, 4));
        assert_eq!(bytes(KvDtype::Fp4E2m1, 128), (64, 8));
        assert_eq!(bytes(KvDtype::Mxfp8, 128), (128, 4));
        // Blocks that the row does not fill still have a scale.
        assert_eq!(bytes(KvDtype::Fp4E2m1, 97), (49, 7));
        assert_eq!(bytes(KvDtype::Mxfp8, 97), (97, 4));
        assert_eq!(bytes(KvDtype::Int8, 0), (0, 0));
        assert_eq!(bytes(KvDtype::Bf16, u32::MAX).0, 2 * u64::from(u32::MAX));
    }
}
