//! Integer instructions against models in 128-bit arithmetic, or bit by bit after the PTX ISA's pseudo code.

use super::elementwise::{D, H, INTEGERS, Kind, P, W, check};

fn sign(value: u64, bits: u32) -> i128 {
    i128::from((value << (64 - bits)) as i64 >> (64 - bits))
}

fn read(value: u64, bits: u32, signed: bool) -> i128 {
    if signed {
        sign(value, bits)
    } else {
        i128::from(value & (u64::MAX >> (64 - bits)))
    }
}

const TYPES: [(&str, Kind, u32, bool); 6] = [
    ("u16", H, 16, false),
    ("s16", H, 16, true),
    ("u32", W, 32, false),
    ("s32", W, 32, true),
    ("u64", D, 64, false),
    ("s64", D, 64, true),
];

#[test]
fn two_operand_arithmetic() {
    for (ty, kind, bits, signed) in TYPES {
        let r = |v: u64| read(v, bits, signed);
        let v = INTEGERS;
        check(
            &format!("add.{ty} {{d}}, {{a}}, {{b}}"),
            &[kind, kind],
            kind,
            v,
            |x| (r(x[0]) + r(x[1])) as u64,
        );
        check(
            &format!("sub.{ty} {{d}}, {{a}}, {{b}}"),
            &[kind, kind],
            kind,
            v,
            |x| (r(x[0]) - r(x[1])) as u64,
        );
        check(
            &format!("mul.lo.{ty} {{d}}, {{a}}, {{b}}"),
            &[kind, kind],
            kind,
            v,
            |x| r(x[0]).wrapping_mul(r(x[1])) as u64,
        );
        check(
            &format!("mul.hi.{ty} {{d}}, {{a}}, {{b}}"),
            &[kind, kind],
            kind,
            v,
            |x| {
                if signed {
                    ((r(x[0]) * r(x[1])) >> bits) as u64
                } else {
                    ((r(x[0]) as u128 * r(x[1]) as u128) >> bits) as u64
                }
            },
        );
        check(
            &format!("min.{ty} {{d}}, {{a}}, {{b}}"),
            &[kind, kind],
            kind,
            v,
            |x| r(x[0]).min(r(x[1])) as u64,
        );
        check(
            &format!("max.{ty} {{d}}, {{a}}, {{b}}"),
            &[kind, kind],
            kind,
            v,
            |x| r(x[0]).max(r(x[1])) as u64,
        );
        // Division by zero is unspecified; this emulator gives what hardware gives, all ones, and the dividend.
        check(
            &format!("div.{ty} {{d}}, {{a}}, {{b}}"),
            &[kind, kind],
            kind,
            v,
            |x| {
                if r(x[1]) == 0 {
                    u64::MAX
                } else {
                    (r(x[0]) / r(x[1])) as u64
                }
            },
        );
        check(
            &format!("rem.{ty} {{d}}, {{a}}, {{b}}"),
            &[kind, kind],
            kind,
            v,
            |x| {
                if r(x[1]) == 0 {
                    x[0]
                } else {
                    (r(x[0]) % r(x[1])) as u64
                }
            },
        );
        check(
            &format!("mad.lo.{ty} {{d}}, {{a}}, {{b}}, {{c}}"),
            &[kind, kind, kind],
            kind,
            v,
            |x| r(x[0]).wrapping_mul(r(x[1])).wrapping_add(r(x[2])) as u64,
        );
        for (name, test) in [
            ("eq", (|a, b| a == b) as fn(i128, i128) -> bool),
            ("ne", |a, b| a != b),
            ("lt", |a, b| a < b),
            ("le", |a, b| a <= b),
            ("gt", |a, b| a > b),
            ("ge", |a, b| a >= b),
        ] {
            check(
                &format!("setp.{name}.{ty} {{d}}, {{a}}, {{b}}"),
                &[kind, kind],
                P,
                v,
                |x| u64::from(test(r(x[0]), r(x[1]))),
            );
        }
        if bits < 64 {
            let wide = if bits == 16 { W } else { D };
            check(
                &format!("mul.wide.{ty} {{d}}, {{a}}, {{b}}"),
                &[kind, kind],
                wide,
                v,
                |x| (r(x[0]) * r(x[1])) as u64,
            );
            check(
                &format!("mad.wide.{ty} {{d}}, {{a}}, {{b}}, {{c}}"),
                &[kind, kind, wide],
                wide,
                v,
                |x| (r(x[0]) * r(x[1])).wrapping_add(i128::from(x[2])) as u64,
            );
        }
        // Shift amounts are unsigned 32-bit numbers, clamped to the width.
        check(
            &format!("shr.{ty} {{d}}, {{a}}, {{b}}"),
            &[kind, W],
            kind,
            v,
            |x| (r(x[0]) >> x[1].min(127)) as u64,
        );
    }
    for (ty, kind, bits) in [("b16", H, 16), ("b32", W, 32), ("b64", D, 64)] {
        let v = INTEGERS;
        check(
            &format!("shl.{ty} {{d}}, {{a}}, {{b}}"),
            &[kind, W],
            kind,
            v,
            |x| if x[1] < bits { x[0] << x[1] } else { 0 },
        );
        check(
            &format!("and.{ty} {{d}}, {{a}}, {{b}}"),
            &[kind, kind],
            kind,
            v,
            |x| x[0] & x[1],
        );
        check(
            &format!("or.{ty} {{d}}, {{a}}, {{b}}"),
            &[kind, kind],
            kind,
            v,
            |x| x[0] | x[1],
        );
        check(
            &format!("xor.{ty} {{d}}, {{a}}, {{b}}"),
            &[kind, kind],
            kind,
            v,
            |x| x[0] ^ x[1],
        );
        check(&format!("not.{ty} {{d}}, {{a}}"), &[kind], kind, v, |x| {
            !x[0]
        });
        check(&format!("cnot.{ty} {{d}}, {{a}}"), &[kind], kind, v, |x| {
            u64::from(x[0] == 0)
        });
        check(
            &format!("selp.{ty} {{d}}, {{a}}, {{b}}, {{c}}"),
            &[kind, kind, P],
            kind,
            v,
            |x| if x[2] & 1 != 0 { x[0] } else { x[1] },
        );
    }
}

#[test]
fn signs_and_bit_counts() {
    let v = INTEGERS;
    for (ty, kind, bits) in [("s16", H, 16), ("s32", W, 32), ("s64", D, 64)] {
        check(&format!("neg.{ty} {{d}}, {{a}}"), &[kind], kind, v, |x| {
            (-sign(x[0], bits)) as u64
        });
        check(&format!("abs.{ty} {{d}}, {{a}}"), &[kind], kind, v, |x| {
            sign(x[0], bits).unsigned_abs() as u64
        });
    }
    for (ty, kind, bits) in [("b32", W, 32u32), ("b64", D, 64)] {
        check(&format!("popc.{ty} {{d}}, {{a}}"), &[kind], W, v, |x| {
            (0..bits).map(|i| x[0] >> i & 1).sum()
        });
        check(&format!("clz.{ty} {{d}}, {{a}}"), &[kind], W, v, |x| {
            (0..bits)
                .find(|i| x[0] >> (bits - 1 - i) & 1 != 0)
                .unwrap_or(bits)
                .into()
        });
        check(&format!("brev.{ty} {{d}}, {{a}}"), &[kind], kind, v, |x| {
            (0..bits).fold(0, |r, i| r | (x[0] >> i & 1) << (bits - 1 - i))
        });
    }
    for (ty, kind, bits, signed) in TYPES.into_iter().filter(|t| t.2 >= 32) {
        let find = move |x: u64| {
            let x = if signed && sign(x, bits) < 0 { !x } else { x };
            (0..bits).rev().find(|i| x >> i & 1 != 0)
        };
        check(&format!("bfind.{ty} {{d}}, {{a}}"), &[kind], W, v, |x| {
            find(x[0]).map_or(u64::MAX, u64::from)
        });
        check(
            &format!("bfind.shiftamt.{ty} {{d}}, {{a}}"),
            &[kind],
            W,
            v,
            |x| find(x[0]).map_or(u64::MAX, |i| u64::from(bits - 1 - i)),
        );
    }
}

#[test]
fn bit_fields() {
    // Positions and lengths from 0 beyond the width; the upper bytes of the operands do not count.
    let v = &[
        0,
        1,
        4,
        7,
        8,
        16,
        31,
        32,
        33,
        40,
        63,
        64,
        65,
        200,
        255,
        256 + 5,
        0xdead_beef,
        0x1234_5678_9abc_def0,
        u64::MAX,
        1 << 63,
    ];
    for (ty, kind, bits, signed) in TYPES.into_iter().filter(|t| t.2 >= 32) {
        check(
            &format!("bfe.{ty} {{d}}, {{a}}, {{b}}, {{c}}"),
            &[kind, W, W],
            kind,
            v,
            |x| {
                let (position, length) = ((x[1] & 255) as u32, (x[2] & 255) as u32);
                let top = if !signed || length == 0 {
                    0
                } else {
                    x[0] >> (position + length - 1).min(bits - 1) & 1
                };
                (0..bits).fold(0, |r, i| {
                    let bit = if i < length && position + i < bits {
                        x[0] >> (position + i) & 1
                    } else {
                        top
                    };
                    r | bit << i
                })
            },
        );
    }
    for (ty, kind, bits) in [("b32", W, 32u32), ("b64", D, 64)] {
        check(
            &format!("bfi.{ty} {{d}}, {{a}}, {{b}}, {{c}}, {{e}}"),
            &[kind, kind, W, W],
            kind,
            v,
            |x| {
                let (position, length) = ((x[2] & 255) as u32, (x[3] & 255) as u32);
                (0..length)
                    .filter(|i| position + i < bits)
                    .fold(x[1], |r, i| {
                        (r & !(1 << (position + i))) | (x[0] >> i & 1) << (position + i)
                    })
            },
        );
    }
}

#[test]
fn permutes_shuffles_and_tables() {
    let v = &[
        0,
        0x3210,
        0x7654,
        0xba98,
        0xfedc,
        0x0123,
        1,
        2,
        3,
        31,
        32,
        33,
        0x8081_8283,
        0x0102_0304,
        0xf1f2_7374,
        u64::MAX,
    ];
    let byte = |x: &[u64], pick: u64| -> u64 {
        let word = if pick & 4 != 0 { x[1] } else { x[0] };
        word >> (8 * (pick & 3)) & 255
    };
    check("prmt.b32 {d}, {a}, {b}, {c}", &[W, W, W], W, v, |x| {
        (0..4).fold(0, |r, i| {
            let pick = x[2] >> (4 * i) & 15;
            let byte = byte(x, pick & 7);
            let byte = if pick & 8 == 0 {
                byte
            } else if byte & 128 != 0 {
                255
            } else {
                0
            };
            r | byte << (8 * i)
        })
    });
    let pick4 =
        |x: &[u64], picks: [u64; 4]| (0..4).fold(0, |r, i| r | byte(x, picks[i] & 7) << (8 * i));
    check("prmt.b32.f4e {d}, {a}, {b}, {c}", &[W, W, W], W, v, |x| {
        let c = x[2] & 3;
        pick4(x, [c, c + 1, c + 2, c + 3])
    });
    check("prmt.b32.b4e {d}, {a}, {b}, {c}", &[W, W, W], W, v, |x| {
        let c = x[2] & 3;
        pick4(x, [c, c + 7, c + 6, c + 5])
    });
    check("prmt.b32.rc8 {d}, {a}, {b}, {c}", &[W, W, W], W, v, |x| {
        pick4(x, [x[2] & 3; 4])
    });
    check("prmt.b32.ecl {d}, {a}, {b}, {c}", &[W, W, W], W, v, |x| {
        let c = x[2] & 3;
        pick4(x, [c, c.max(1), c.max(2), 3])
    });
    check("prmt.b32.ecr {d}, {a}, {b}, {c}", &[W, W, W], W, v, |x| {
        let c = x[2] & 3;
        pick4(x, [0, c.min(1), c.min(2), c])
    });
    check("prmt.b32.rc16 {d}, {a}, {b}, {c}", &[W, W, W], W, v, |x| {
        let c = 2 * (x[2] & 1);
        pick4(x, [c, c + 1, c, c + 1])
    });
    let both = |x: &[u64]| u128::from(x[1] << 32 | x[0]);
    check("shf.l.wrap.b32 {d}, {a}, {b}, {c}", &[W, W, W], W, v, |x| {
        ((both(x) << (x[2] & 31)) >> 32) as u64
    });
    check(
        "shf.l.clamp.b32 {d}, {a}, {b}, {c}",
        &[W, W, W],
        W,
        v,
        |x| ((both(x) << x[2].min(32)) >> 32) as u64,
    );
    check("shf.r.wrap.b32 {d}, {a}, {b}, {c}", &[W, W, W], W, v, |x| {
        (both(x) >> (x[2] & 31)) as u64
    });
    check(
        "shf.r.clamp.b32 {d}, {a}, {b}, {c}",
        &[W, W, W],
        W,
        v,
        |x| (both(x) >> x[2].min(32)) as u64,
    );
    for table in [0u64, 0x80, 0xfe, 0x96, 0x3c, 0xca, 0xff, 0x1e, 0xe8] {
        check(
            &format!("lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {table}"),
            &[W, W, W],
            W,
            v,
            |x| {
                (0..32).fold(0, |r, i| {
                    let index = (x[0] >> i & 1) << 2 | (x[1] >> i & 1) << 1 | (x[2] >> i & 1);
                    r | (table >> index & 1) << i
                })
            },
        );
    }
    check("sad.u32 {d}, {a}, {b}, {c}", &[W, W, W], W, v, |x| {
        x[2].wrapping_add(x[0].abs_diff(x[1]))
    });
    check("sad.s32 {d}, {a}, {b}, {c}", &[W, W, W], W, v, |x| {
        x[2].wrapping_add((sign(x[0], 32) - sign(x[1], 32)).unsigned_abs() as u64)
    });
    check("add.sat.s32 {d}, {a}, {b}", &[W, W], W, INTEGERS, |x| {
        (sign(x[0], 32) + sign(x[1], 32)).clamp(i32::MIN.into(), i32::MAX.into()) as u64
    });
    check("sub.sat.s32 {d}, {a}, {b}", &[W, W], W, INTEGERS, |x| {
        (sign(x[0], 32) - sign(x[1], 32)).clamp(i32::MIN.into(), i32::MAX.into()) as u64
    });
    check("dp4a.s32.s32 {d}, {a}, {b}, {c}", &[W, W, W], W, v, |x| {
        (0..4).fold(sign(x[2], 32), |s, i| {
            s + sign(x[0] >> (8 * i), 8) * sign(x[1] >> (8 * i), 8)
        }) as u64
    });
}

#[test]
fn predicates() {
    let v = &[0, 1];
    for (name, f) in [
        ("and", (|a, b| a & b) as fn(u64, u64) -> u64),
        ("or", |a, b| a | b),
        ("xor", |a, b| a ^ b),
    ] {
        check(
            &format!("{name}.pred {{d}}, {{a}}, {{b}}"),
            &[P, P],
            P,
            v,
            |x| f(x[0], x[1]),
        );
        check(
            &format!("setp.lt.{name}.u32 {{d}}, {{a}}, {{b}}, {{c}}"),
            &[W, W, P],
            P,
            INTEGERS,
            |x| f(u64::from(x[0] < x[1]), x[2]),
        );
        check(
            &format!("setp.lt.{name}.u32 {{d}}, {{a}}, {{b}}, !{{c}}"),
            &[W, W, P],
            P,
            INTEGERS,
            |x| f(u64::from(x[0] < x[1]), 1 - x[2]),
        );
        check(
            &format!("setp.lt.{name}.s32 %p11|{{d}}, {{a}}, {{b}}, {{c}}"),
            &[W, W, P],
            P,
            INTEGERS,
            |x| f(u64::from(sign(x[0], 32) >= sign(x[1], 32)), x[2]),
        );
    }
    check("not.pred {d}, {a}", &[P], P, v, |x| 1 - x[0]);
    check("set.lt.u32.s32 {d}, {a}, {b}", &[W, W], W, INTEGERS, |x| {
        if sign(x[0], 32) < sign(x[1], 32) {
            u64::MAX
        } else {
            0
        }
    });
    check(
        "slct.b32.s32 {d}, {a}, {b}, {c}",
        &[W, W, W],
        W,
        INTEGERS,
        |x| if sign(x[2], 32) >= 0 { x[0] } else { x[1] },
    );
}

#[test]
fn packing_and_widths() {
    let v = INTEGERS;
    check("mov.b32 {d}, {{a}, {b}}", &[H, H], W, v, |x| {
        x[1] << 16 | x[0]
    });
    check("mov.b64 {d}, {{a}, {b}}", &[W, W], D, v, |x| {
        x[1] << 32 | x[0]
    });
    check(
        "mov.b64 {d}, {{a}, {b}, {c}, {e}}",
        &[H, H, H, H],
        D,
        v,
        |x| x[3] << 48 | x[2] << 32 | x[1] << 16 | x[0],
    );
    check("mov.b32 {{d}, _}, {a}", &[W], H, v, |x| x[0]);
    check("mov.b32 {_, {d}}, {a}", &[W], H, v, |x| x[0] >> 16);
    check("mov.b64 {%r40, {d}}, {a}", &[D], W, v, |x| x[0] >> 32);
    check("mov.b64 {%rs40, %rs41, {d}, _}, {a}", &[D], H, v, |x| {
        x[0] >> 32
    });
    for (from, kind, bits, signed) in TYPES {
        for (to, to_kind, to_bits, _) in TYPES {
            check(
                &format!("cvt.{to}.{from} {{d}}, {{a}}"),
                &[kind],
                to_kind,
                v,
                |x| read(x[0], bits, signed) as u64,
            );
            // Where every value fits, ptxas refuses `.sat`.
            let to_signed = to.starts_with('s');
            if (to_signed == signed && to_bits >= bits) || (to_signed && to_bits > bits) {
                continue;
            }
            check(
                &format!("cvt.sat.{to}.{from} {{d}}, {{a}}"),
                &[kind],
                to_kind,
                v,
                |x| {
                    let (low, high) = if to.starts_with('s') {
                        (-(1i128 << (to_bits - 1)), (1i128 << (to_bits - 1)) - 1)
                    } else {
                        (0, (1i128 << to_bits) - 1)
                    };
                    read(x[0], bits, signed).clamp(low, high) as u64
                },
            );
        }
    }
    // Sources may be wider than the type, and 8-bit results are extended to the register.
    check("cvt.u32.u8 {d}, {a}", &[W], W, v, |x| x[0] & 255);
    check("cvt.s32.s8 {d}, {a}", &[W], W, v, |x| sign(x[0], 8) as u64);
    check("cvt.s64.s8 {d}, {a}", &[H], D, v, |x| sign(x[0], 8) as u64);
    check("cvt.u32.u16 {d}, {a}", &[D], W, v, |x| x[0] & 0xffff);
    check("cvt.s32.s32 {d}, {a}", &[W], D, v, |x| {
        sign(x[0], 32) as u64
    });
}

#[test]
fn carry_chains() {
    let v = INTEGERS;
    let both =
        |low: u64, high: u64, bits: u32| -> u128 { u128::from(low) | u128::from(high) << bits };
    for (kind, bits, r) in [(W, 32, "r"), (D, 64, "rd")] {
        // The upper half of a double-width sum, difference and multiply-add.
        let low = if bits == 32 { "u32" } else { "u64" };
        let mask = u128::MAX >> (128 - 2 * bits);
        check(
            &format!("add.cc.{low} %{r}20, {{a}}, {{b}}; addc.{low} {{d}}, {{c}}, {{e}}"),
            &[kind; 4],
            kind,
            v,
            |x| {
                ((both(x[0], x[2], bits).wrapping_add(both(x[1], x[3], bits)) & mask) >> bits)
                    as u64
            },
        );
        check(
            &format!("sub.cc.{low} %{r}20, {{a}}, {{b}}; subc.{low} {{d}}, {{c}}, {{e}}"),
            &[kind; 4],
            kind,
            v,
            |x| {
                ((both(x[0], x[2], bits).wrapping_sub(both(x[1], x[3], bits)) & mask) >> bits)
                    as u64
            },
        );
        check(
            &format!(
                "mad.lo.cc.{low} %{r}20, {{a}}, {{b}}, {{c}}; madc.hi.{low} {{d}}, {{a}}, {{b}}, {{e}}"
            ),
            &[kind; 4],
            kind,
            v,
            |x| {
                let product = u128::from(x[0]) * u128::from(x[1]);
                ((product.wrapping_add(both(x[2], x[3], bits)) & mask) >> bits) as u64
            },
        );
    }
}

/// Tests of statements.
pub const TESTS: &[fn()] = &[
    two_operand_arithmetic,
    signs_and_bit_counts,
    bit_fields,
    permutes_shuffles_and_tables,
    predicates,
    packing_and_widths,
    carry_chains,
];
