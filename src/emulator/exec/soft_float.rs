//! Floating-point arithmetic in integers, for every format, rounding and combination that no host instruction has.
//!
//! A finite value is `mantissa * 2^exponent` with a 128-bit mantissa. Operations keep every bit, or fold what lies below the
//! lowest kept bit into that bit ("sticky"), so that [`round`] rounds once and correctly.

/// A floating-point format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// Bits of the exponent field.
    pub exponent_bits: u32,
    /// Bits of the mantissa field.
    pub mantissa_bits: u32,
    /// What the largest exponent means.
    pub specials: Specials,
    /// Zero bits below the mantissa in the stored word.
    pub shift: u32,
}

/// What encodings with the largest exponent stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Specials {
    /// Infinity and NaN.
    Ieee,
    /// Numbers, but for all ones, which is NaN.
    OnlyNan,
    /// Numbers.
    None,
}

const fn format(exponent_bits: u32, mantissa_bits: u32, specials: Specials, shift: u32) -> Format {
    Format {
        exponent_bits,
        mantissa_bits,
        specials,
        shift,
    }
}

/// The formats of PTX by name; the position in this table is a format's number.
const FORMATS: [(&str, Format); 11] = [
    ("f16", format(5, 10, Specials::Ieee, 0)),
    ("bf16", format(8, 7, Specials::Ieee, 0)),
    ("f32", format(8, 23, Specials::Ieee, 0)),
    ("f64", format(11, 52, Specials::Ieee, 0)),
    ("tf32", format(8, 10, Specials::Ieee, 13)),
    ("e4m3", format(4, 3, Specials::OnlyNan, 0)),
    ("e5m2", format(5, 2, Specials::Ieee, 0)),
    ("e2m1", format(2, 1, Specials::None, 0)),
    ("e2m3", format(2, 3, Specials::None, 0)),
    ("e3m2", format(3, 2, Specials::None, 0)),
    ("ue8m0", format(8, 0, Specials::OnlyNan, 0)),
];

/// Number of `ue8m0`, which has neither sign nor zero.
pub(crate) const UE8M0: usize = 10;

impl Format {
    /// The number of the format of that name.
    pub(crate) fn number(name: &str) -> Option<usize> {
        FORMATS.iter().position(|(n, _)| *n == name)
    }

    /// The format of that number.
    pub(crate) fn of(number: usize) -> Format {
        FORMATS[number.min(FORMATS.len() - 1)].1
    }

    /// Bits of a value in a packed pair.
    pub(crate) fn bits(self) -> u32 {
        match (self.exponent_bits, self.mantissa_bits) {
            // Six-bit values take a byte each.
            (2, 3) | (3, 2) => 8,
            (8, 0) => 8,
            (e, m) => 1 + e + m + self.shift,
        }
    }

    fn sign_bit(self) -> u32 {
        self.exponent_bits + self.mantissa_bits + self.shift
    }

    fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    fn exponent_mask(self) -> u64 {
        (1 << self.exponent_bits) - 1
    }

    fn nan(self) -> u64 {
        match (self.specials, self.exponent_bits, self.mantissa_bits) {
            // The value with all bits but the sign set is the canonical NaN of the short formats and of f32.
            (Specials::Ieee, 11, _) => 0x7ff8_0000_0000_0000,
            (Specials::Ieee, 8, 10) => 0x7fff_ffff,
            (Specials::None, ..) => self.largest(),
            _ => (1 << (self.exponent_bits + self.mantissa_bits)) - 1,
        }
    }

    /// The largest finite magnitude.
    fn largest(self) -> u64 {
        let all = (1u64 << (self.exponent_bits + self.mantissa_bits)) - 1;
        let word = match self.specials {
            Specials::None => all,
            Specials::OnlyNan => all - 1,
            Specials::Ieee => all - (1 << self.mantissa_bits),
        };
        word << self.shift
    }
}

/// How to round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// `.rn`: to nearest, ties to even.
    Even,
    /// `.rz`: towards zero.
    Zero,
    /// `.rm`: towards negative infinity.
    Down,
    /// `.rp`: towards positive infinity.
    Up,
    /// `.rna`: to nearest, ties away from zero.
    Away,
}

impl Rounding {
    /// All, by number.
    pub(crate) const ALL: [Rounding; 5] = [
        Rounding::Even,
        Rounding::Zero,
        Rounding::Down,
        Rounding::Up,
        Rounding::Away,
    ];

    /// Whether the magnitude grows when the bits `rest` of `half * 2` are cut off.
    fn up(self, negative: bool, odd: bool, rest: u128, half: u128) -> bool {
        match self {
            Rounding::Even => rest > half || (rest == half && odd),
            Rounding::Away => rest >= half,
            Rounding::Zero => false,
            Rounding::Down => negative && rest != 0,
            Rounding::Up => !negative && rest != 0,
        }
    }
}

/// A value of any format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    Nan,
    Infinity {
        negative: bool,
    },
    /// Also zero, with a mantissa of 0.
    Finite {
        negative: bool,
        mantissa: u128,
        exponent: i32,
    },
}

/// Zero of a sign.
pub(crate) fn zero(negative: bool) -> Value {
    Value::Finite {
        negative,
        mantissa: 0,
        exponent: 0,
    }
}

impl Value {
    /// What `bits` stand for; with `flush`, subnormals are zero.
    pub(crate) fn decode(bits: u64, format: Format, flush: bool) -> Value {
        if format == Format::of(UE8M0) {
            return match bits & 0xff {
                0xff => Value::Nan,
                e => Value::Finite {
                    negative: false,
                    mantissa: 1,
                    exponent: e as i32 - 127,
                },
            };
        }
        let negative = bits >> format.sign_bit() & 1 != 0;
        let mantissa = bits >> format.shift & ((1 << format.mantissa_bits) - 1);
        let exponent = bits >> (format.shift + format.mantissa_bits) & format.exponent_mask();
        if exponent == format.exponent_mask() {
            match format.specials {
                Specials::Ieee if mantissa != 0 => return Value::Nan,
                Specials::Ieee => return Value::Infinity { negative },
                Specials::OnlyNan if mantissa == (1 << format.mantissa_bits) - 1 => {
                    return Value::Nan;
                }
                _ => {}
            }
        }
        let hidden = if exponent == 0 {
            0
        } else {
            1 << format.mantissa_bits
        };
        if hidden == 0 && (mantissa == 0 || flush) {
            return zero(negative);
        }
        Value::Finite {
            negative,
            mantissa: u128::from(mantissa | hidden),
            exponent: (exponent as i32).max(1) - format.bias() - format.mantissa_bits as i32,
        }
    }

    /// An integer.
    pub(crate) fn integer(value: i128) -> Value {
        Value::Finite {
            negative: value < 0,
            mantissa: value.unsigned_abs(),
            exponent: 0,
        }
    }

    /// Whether the sign bit is set.
    pub(crate) fn negative(self) -> bool {
        match self {
            Value::Nan => false,
            Value::Infinity { negative } | Value::Finite { negative, .. } => negative,
        }
    }

    /// Rounded to an integral value.
    pub(crate) fn integral(self, rounding: Rounding) -> Value {
        let Value::Finite {
            negative,
            mantissa,
            exponent,
        } = self
        else {
            return self;
        };
        if exponent >= 0 || mantissa == 0 {
            return self;
        }
        let cut = exponent.unsigned_abs();
        let (whole, rest, half) = if cut > 126 {
            (0, u128::from(mantissa != 0), 2)
        } else {
            let rest = mantissa & ((1 << cut) - 1);
            (mantissa >> cut, rest, 1 << (cut - 1))
        };
        let up = rounding.up(negative, whole & 1 != 0, rest, half);
        Value::Finite {
            negative,
            mantissa: whole + u128::from(up),
            exponent: 0,
        }
    }

    /// `.sat`: clamped to [0, 1], NaN to 0.
    pub(crate) fn saturate(self) -> Value {
        match self {
            Value::Nan => zero(false),
            other if other.negative() => zero(false),
            Value::Infinity { .. } => Value::integer(1),
            Value::Finite {
                mantissa, exponent, ..
            } => {
                let bits = 128 - mantissa.leading_zeros() as i32;
                if mantissa != 0 && bits + exponent > 0 {
                    Value::integer(1)
                } else {
                    self
                }
            }
        }
    }

    /// `.relu`: negative values become 0; NaN stays.
    pub(crate) fn relu(self) -> Value {
        if self.negative() { zero(false) } else { self }
    }
}

/// `mantissa` moved to the left as far as it goes, but for two bits of room.
fn normal(mantissa: u128, exponent: i32) -> (u128, i32) {
    let shift = mantissa.leading_zeros() as i32 - 2;
    if shift >= 0 {
        (mantissa << shift, exponent - shift)
    } else {
        (shift_sticky(mantissa, -shift as u32), exponent - shift)
    }
}

fn shift_sticky(mantissa: u128, by: u32) -> u128 {
    if by == 0 {
        mantissa
    } else if by > 127 {
        u128::from(mantissa != 0)
    } else {
        mantissa >> by | u128::from(mantissa & ((1 << by) - 1) != 0)
    }
}

/// `a + b`; an exact zero of opposite signs is negative when rounding down.
pub(crate) fn add(a: Value, b: Value, rounding: Rounding) -> Value {
    match (a, b) {
        (Value::Nan, _) | (_, Value::Nan) => Value::Nan,
        (Value::Infinity { negative: x }, Value::Infinity { negative: y }) if x != y => Value::Nan,
        (Value::Infinity { .. }, _) => a,
        (_, Value::Infinity { .. }) => b,
        (
            Value::Finite {
                negative: na,
                mantissa: ma,
                exponent: ea,
            },
            Value::Finite {
                negative: nb,
                mantissa: mb,
                exponent: eb,
            },
        ) => {
            let none = zero(if na == nb {
                na
            } else {
                rounding == Rounding::Down
            });
            match (ma, mb) {
                (0, 0) => return none,
                (0, _) => return b,
                (_, 0) => return a,
                _ => {}
            }
            let ((mut ma, ea), (mut mb, eb)) = (normal(ma, ea), normal(mb, eb));
            let exponent = ea.max(eb);
            ma = shift_sticky(ma, (exponent - ea) as u32);
            mb = shift_sticky(mb, (exponent - eb) as u32);
            let (negative, mantissa) = if na == nb {
                (na, ma + mb)
            } else if ma >= mb {
                (na, ma - mb)
            } else {
                (nb, mb - ma)
            };
            if mantissa == 0 {
                return none;
            }
            Value::Finite {
                negative,
                mantissa,
                exponent,
            }
        }
    }
}

/// `a * b`
pub(crate) fn multiply(a: Value, b: Value) -> Value {
    let negative = a.negative() != b.negative();
    match (a, b) {
        (Value::Nan, _) | (_, Value::Nan) => Value::Nan,
        (Value::Infinity { .. }, Value::Finite { mantissa: 0, .. })
        | (Value::Finite { mantissa: 0, .. }, Value::Infinity { .. }) => Value::Nan,
        (Value::Infinity { .. }, _) | (_, Value::Infinity { .. }) => Value::Infinity { negative },
        (
            Value::Finite {
                mantissa: ma,
                exponent: ea,
                ..
            },
            Value::Finite {
                mantissa: mb,
                exponent: eb,
                ..
            },
        ) => Value::Finite {
            negative,
            // Mantissas come from formats of at most 53 bits.
            mantissa: ma.wrapping_mul(mb),
            exponent: ea + eb,
        },
    }
}

/// `a / b`
pub(crate) fn divide(a: Value, b: Value) -> Value {
    let negative = a.negative() != b.negative();
    match (a, b) {
        (Value::Nan, _) | (_, Value::Nan) => Value::Nan,
        (Value::Infinity { .. }, Value::Infinity { .. }) => Value::Nan,
        (Value::Infinity { .. }, _) => Value::Infinity { negative },
        (_, Value::Infinity { .. }) => zero(negative),
        (
            Value::Finite {
                mantissa: ma,
                exponent: ea,
                ..
            },
            Value::Finite {
                mantissa: mb,
                exponent: eb,
                ..
            },
        ) => match (ma, mb) {
            (0, 0) => Value::Nan,
            (_, 0) => Value::Infinity { negative },
            (0, _) => zero(negative),
            _ => {
                let (ma, ea) = normal(ma, ea);
                let quotient = ma / mb;
                // The dividend has 126 bits and the divisor at most 53, so the quotient has bits to spare.
                let sticky = u128::from(ma % mb != 0);
                Value::Finite {
                    negative,
                    mantissa: quotient << 1 | sticky,
                    exponent: ea - eb - 1,
                }
            }
        },
    }
}

/// The square root.
pub(crate) fn square_root(a: Value) -> Value {
    match a {
        Value::Nan | Value::Infinity { negative: true } => Value::Nan,
        Value::Infinity { .. } => a,
        Value::Finite { mantissa: 0, .. } => a,
        Value::Finite { negative: true, .. } => Value::Nan,
        Value::Finite {
            mantissa, exponent, ..
        } => {
            let (mut mantissa, mut exponent) = normal(mantissa, exponent);
            if exponent & 1 != 0 {
                mantissa <<= 1;
                exponent -= 1;
            }
            // Digit by digit; the mantissa has at least 125 bits, the root at least 62.
            let (mut root, mut bit, mut rest) = (0u128, 1u128 << 126, mantissa);
            while bit != 0 {
                if rest >= root + bit {
                    rest -= root + bit;
                    root = (root >> 1) + bit;
                } else {
                    root >>= 1;
                }
                bit >>= 2;
            }
            Value::Finite {
                negative: false,
                mantissa: root << 1 | u128::from(rest != 0),
                exponent: exponent / 2 - 1,
            }
        }
    }
}

/// How values beyond the largest one are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overflow {
    /// Infinity, or the largest value when rounding towards it; NaN in a format without infinity.
    Infinity,
    /// `.satfinite`: the largest value.
    Largest,
}

/// The bits of a value in a format. With `flush`, subnormal results are zero.
pub(crate) fn round(
    value: Value,
    format: Format,
    rounding: Rounding,
    overflow: Overflow,
    flush: bool,
) -> u64 {
    if format == Format::of(UE8M0) {
        return round_to_power(value, rounding, overflow);
    }
    let sign = |negative: bool| u64::from(negative) << format.sign_bit();
    let beyond = |negative: bool| {
        let word = match (overflow, format.specials) {
            (Overflow::Largest, _) | (_, Specials::None) => format.largest(),
            (_, Specials::OnlyNan) => format.nan(),
            _ => format.largest() + (1 << format.shift),
        };
        word | sign(negative)
    };
    match value {
        Value::Nan => format.nan(),
        Value::Infinity { negative } => beyond(negative),
        Value::Finite {
            negative,
            mantissa: 0,
            ..
        } => sign(negative),
        Value::Finite {
            negative,
            mantissa,
            exponent,
        } => {
            let length = 128 - mantissa.leading_zeros() as i32;
            // Exponent of the lowest bit that the format keeps.
            let lowest = 1 - format.bias() - format.mantissa_bits as i32;
            let unit = (exponent + length - 1 - format.mantissa_bits as i32).max(lowest);
            let cut = unit - exponent;
            let (mut kept, rest, half) = if cut <= 0 {
                (mantissa << -cut, 0, 1)
            } else if cut > 126 {
                (0, 1, 2)
            } else {
                let rest = mantissa & ((1 << cut) - 1);
                (mantissa >> cut, rest, 1 << (cut - 1))
            };
            if rounding.up(negative, kept & 1 != 0, rest, half) {
                kept += 1;
            }
            // A carry out of the mantissa lands in the exponent field, where it belongs.
            let field = (unit - lowest) as u64;
            let subnormal = kept < 1 << format.mantissa_bits;
            let word = if subnormal {
                kept as u64
            } else {
                (field << format.mantissa_bits) + kept as u64
            };
            if subnormal && flush {
                return sign(negative);
            }
            let word = word << format.shift;
            if word > format.largest() {
                let towards_zero = match rounding {
                    Rounding::Zero => true,
                    Rounding::Down => !negative,
                    Rounding::Up => negative,
                    _ => false,
                };
                if towards_zero {
                    return format.largest() | sign(negative);
                }
                return beyond(negative);
            }
            word | sign(negative)
        }
    }
}

/// `ue8m0`: the power of two below (or, rounding up, above) a magnitude.
fn round_to_power(value: Value, rounding: Rounding, overflow: Overflow) -> u64 {
    match value {
        Value::Nan => 0xff,
        Value::Infinity { .. } if overflow == Overflow::Largest => 0xfe,
        Value::Infinity { .. } => 0xff,
        Value::Finite { mantissa: 0, .. } => 0,
        Value::Finite {
            mantissa, exponent, ..
        } => {
            let length = 128 - mantissa.leading_zeros() as i32;
            let exact = mantissa.is_power_of_two();
            let power = exponent + length - 1 + i32::from(rounding == Rounding::Up && !exact);
            match power + 127 {
                255.. if overflow == Overflow::Infinity => 0xff,
                field => field.clamp(0, 254) as u64,
            }
        }
    }
}
