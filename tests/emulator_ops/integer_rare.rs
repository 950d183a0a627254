//! Integer instructions that compilers hardly ever emit.

use super::elementwise::{D, H, INTEGERS, W, check};

fn signed(x: u64, bits: u32) -> i64 {
    (x << (64 - bits)) as i64 >> (64 - bits)
}

#[test]
fn packed_sixteen_bit_extremes() {
    for (ty, is_signed) in [("u16x2", false), ("s16x2", true)] {
        for (name, max) in [("min", false), ("max", true)] {
            check(
                &format!("{name}.{ty} {{d}}, {{a}}, {{b}}"),
                &[W, W],
                W,
                INTEGERS,
                |x| {
                    let one = |s: u32| {
                        let v = |w: u64| {
                            let half = w >> s & 0xffff;
                            if is_signed {
                                signed(half, 16)
                            } else {
                                half as i64
                            }
                        };
                        let (a, b) = (v(x[0]), v(x[1]));
                        (if (a > b) == max { a } else { b }) as u64 & 0xffff
                    };
                    one(0) | one(16) << 16
                },
            );
        }
    }
    check("max.relu.s16x2 {d}, {a}, {b}", &[W, W], W, INTEGERS, |x| {
        let one = |s: u32| {
            let v = |w: u64| signed(w >> s & 0xffff, 16);
            v(x[0]).max(v(x[1])).max(0) as u64
        };
        one(0) | one(16) << 16
    });
}

#[test]
fn high_halves_and_sums_of_differences() {
    let v = INTEGERS;
    check("mad.hi.u16 {d}, {a}, {b}, {c}", &[H, H, H], H, v, |x| {
        ((x[0] * x[1]) >> 16) + x[2]
    });
    check("mad.hi.s16 {d}, {a}, {b}, {c}", &[H, H, H], H, v, |x| {
        (((signed(x[0], 16) * signed(x[1], 16)) >> 16) as u64).wrapping_add(x[2])
    });
    check("mad.hi.sat.s32 {d}, {a}, {b}, {c}", &[W, W, W], W, v, |x| {
        let high = (signed(x[0], 32) * signed(x[1], 32)) >> 32;
        (high + signed(x[2], 32)).clamp(i32::MIN.into(), i32::MAX.into()) as u64
    });
    check("mul24.hi.u32 {d}, {a}, {b}", &[W, W], W, v, |x| {
        ((x[0] & 0xff_ffff) * (x[1] & 0xff_ffff)) >> 16
    });
    check("mul24.hi.s32 {d}, {a}, {b}", &[W, W], W, v, |x| {
        ((signed(x[0], 24) * signed(x[1], 24)) >> 16) as u64
    });
    check(
        "mad24.hi.sat.s32 {d}, {a}, {b}, {c}",
        &[W, W, W],
        W,
        v,
        |x| {
            let high = i64::from(((signed(x[0], 24) * signed(x[1], 24)) >> 16) as i32);
            (high + signed(x[2], 32)).clamp(i32::MIN.into(), i32::MAX.into()) as u64
        },
    );
    check("sad.u16 {d}, {a}, {b}, {c}", &[H, H, H], H, v, |x| {
        x[2] + x[0].abs_diff(x[1])
    });
    check("sad.s64 {d}, {a}, {b}, {c}", &[D, D, D], D, v, |x| {
        x[2].wrapping_add((x[0] as i64).abs_diff(x[1] as i64))
    });
}

#[test]
fn dot_products() {
    for (a_type, a_signed) in [("u32", false), ("s32", true)] {
        for (b_type, b_signed) in [("u32", false), ("s32", true)] {
            let part = |x: u64, bits: u32, is_signed: bool| {
                if is_signed {
                    signed(x, bits)
                } else {
                    (x & ((1 << bits) - 1)) as i64
                }
            };
            check(
                &format!("dp4a.{a_type}.{b_type} {{d}}, {{a}}, {{b}}, {{c}}"),
                &[W, W, W],
                W,
                INTEGERS,
                |x| {
                    (0..4).fold(x[2], |sum, i| {
                        let product =
                            part(x[0] >> (8 * i), 8, a_signed) * part(x[1] >> (8 * i), 8, b_signed);
                        sum.wrapping_add(product as u64)
                    })
                },
            );
            for (half, base) in [("lo", 0), ("hi", 16)] {
                check(
                    &format!("dp2a.{half}.{a_type}.{b_type} {{d}}, {{a}}, {{b}}, {{c}}"),
                    &[W, W, W],
                    W,
                    INTEGERS,
                    |x| {
                        (0..2).fold(x[2], |sum, i| {
                            let product = part(x[0] >> (16 * i), 16, a_signed)
                                * part(x[1] >> (base + 8 * i), 8, b_signed);
                            sum.wrapping_add(product as u64)
                        })
                    },
                );
            }
        }
    }
}

#[test]
fn extensions_searches_and_tests() {
    for (mode, clamp) in [("clamp", true), ("wrap", false)] {
        for (ty, is_signed) in [("u32", false), ("s32", true)] {
            check(
                &format!("szext.{mode}.{ty} {{d}}, {{a}}, {{b}}"),
                &[W, W],
                W,
                INTEGERS,
                |x| {
                    let n = if clamp { x[1].min(32) } else { x[1] & 31 } as u32;
                    match n {
                        0 => 0,
                        32 => x[0],
                        _ if is_signed => signed(x[0], n) as u64,
                        _ => x[0] & ((1 << n) - 1),
                    }
                },
            );
        }
    }
    // PTX ISA, "Integer Arithmetic Instructions: fns", its pseudo code.
    let offsets: Vec<Vec<u64>> = [0u64, 1, 0x8000_0001, 0xffff_ffff, 0xaaaa_5555, 0x00ff_0f00]
        .iter()
        .flat_map(|&mask| {
            (0..32u64).flat_map(move |base| {
                [-40i32, -9, -2, -1, 0, 1, 2, 8, 33]
                    .map(|offset| vec![mask, base, u64::from(offset as u32)])
            })
        })
        .collect();
    super::elementwise::check_with(
        "fns.b32 {d}, {a}, {b}, {c}",
        &[W, W, W],
        W,
        &offsets,
        |x| {
            let (mask, base, offset) = (x[0], x[1] as i64, i64::from(x[2] as i32));
            let set = |i: i64| (0..32).contains(&i) && mask >> i & 1 != 0;
            let found = match offset {
                0 => Some(base).filter(|&i| set(i)),
                1.. => (base..32).filter(|&i| set(i)).nth(offset as usize - 1),
                _ => (0..=base)
                    .rev()
                    .filter(|&i| set(i))
                    .nth((-offset) as usize - 1),
            };
            found.map_or(u64::MAX, |i| i as u64)
        },
        |_, got, want| got == want,
    );
    check(
        "lop3.or.b32 {d}|%p7, {a}, {b}, {c}, 0x80, %p19; selp.u32 %r80, 1, 0, %p7; add.u32 {d}, {d}, %r80",
        &[W, W, W],
        W,
        &[0, 1, 2, 3, u64::MAX],
        |x| {
            let and = x[0] & x[1] & x[2] & 0xffff_ffff;
            and + u64::from(and != 0)
        },
    );
}

/// Tests of statements.
pub const TESTS: &[fn()] = &[
    packed_sixteen_bit_extremes,
    high_halves_and_sums_of_differences,
    dot_products,
    extensions_searches_and_tests,
];
