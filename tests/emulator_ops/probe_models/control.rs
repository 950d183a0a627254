//! Models of branches, calls, the stack.

use super::Scene;

pub fn model(scene: &Scene<'_>) -> Vec<Vec<u32>> {
    scene.each(|thread, row| {
        let result = match scene.form {
            "exit (then a barrier)" if thread >= 32 => row[1] as u32,
            form if form.starts_with("setmaxnreg") && thread >= 128 => (row[0] ^ row[1]) as u32,
            form => one(form, row[0] as u32, row[1] as u32),
        };
        vec![result]
    })
}

fn sum(a: u32, b: u32) -> u32 {
    a.wrapping_add(b)
}

fn product(a: u32, b: u32) -> u32 {
    a.wrapping_mul(b)
}

/// The result of a thread with the operands `a` and `b`.
fn one(form: &str, a: u32, b: u32) -> u32 {
    let negative = (a as i32) < 0;
    let triple = sum(product(a, 3), b);
    match form {
        "bra" | "bra.uni" => a ^ 5,
        "@p bra" | "@!p bra" => sum(b, if a & 1 == 1 { sum(a, 7) } else { product(a, 3) }),
        "@p bra (no lane)" => sum(sum(a, b), 1),
        "bra (loop)" => (0..=a & 31).fold(b, |x, _| sum(product(x, 5), a)),
        "bra (loop in a loop)" => (0..=a & 7).rev().fold(b, |x, outer| {
            (0..=x & 3).fold(x, |x, _| sum(product(x, 5), outer))
        }),
        "bra (out of a loop, and to its start)" => {
            let mut x = b;
            for turn in 1..=20 {
                x = sum(product(x, 5), a);
                if x & 1 == 0 {
                    continue;
                }
                if x & 30 == 30 {
                    return sum(x, turn);
                }
                x ^= turn;
            }
            sum(x, 21)
        }
        "bra (into a loop)" => (0..=a & 7).fold(b, |x, turn| {
            let enters_behind = turn == 0 && b & 1 == 1;
            product(if enters_behind { x } else { sum(x, a) }, 3)
        }),
        "brx.idx" | "brx.idx.uni" => {
            let target = if form == "brx.idx" { a & 3 } else { 2 };
            let x = match target {
                0 => sum(b, 1),
                1 => product(b, 3),
                2 => !b ^ a,
                // The register is 0 until then.
                _ => a,
            };
            sum(x, 9)
        }
        "@p brx.idx" => match (a & 2, a & 1) {
            (0, _) => 86,
            (_, 0) => sum(b, 10),
            _ => sum(product(b, 3), 9),
        },
        "call (registers)" | "call.uni (registers)" | "call (parameters)" => triple,
        "call (divergent)" => sum(b, if negative { 5 } else { triple }),
        "@p call" => sum(1, if negative { b } else { 0 }),
        "call (structures)" => {
            let y = u64::from(b) | u64::from(a) << 32;
            let pair = u64::from(sum(a, a & 0xff)) | u64::from(b) << 32;
            let both = y ^ pair.wrapping_add(y);
            sum(product((both >> 32) as u32, 3), both as u32)
        }
        "call (a call in a call)" => product(sum(product(a, 5), b), 5),
        "call (recursion)" => recursion(a & 7, b),
        "call (a register, .callprototype)"
        | "call (a register, .calltargets)"
        | "call (a table's entry)" => {
            if negative {
                triple
            } else {
                a ^ b
            }
        }
        "ret (some lanes, in a function)" => sum(b, if negative { sum(a, 1) } else { triple }),
        "@p ret" | "@p exit" | "exit (divergent)" => {
            if negative {
                b
            } else {
                sum(a, b)
            }
        }
        "exit (in a function)" => {
            if negative {
                b
            } else {
                triple
            }
        }
        ".local (an array)" => {
            let element = |number: u32| sum(product(number, a), b);
            element(a & 15) ^ element(5)
        }
        ".local (in a recursion)" => arrays(a & 7, b),
        // An address that the instruction aligns to 16 bytes.
        "alloca.u64" => b,
        "stacksave.u64, stackrestore.u64" => sum(a, 1),
        "setmaxnreg.dec.sync.aligned.u32, setmaxnreg.inc.sync.aligned.u32"
        | "@p bra (all lanes)"
        | "ret.uni"
        | "exit (then a barrier)"
        | "nanosleep.u32"
        | "nanosleep.u32 register"
        | "pmevent"
        | "pmevent.mask"
        | "@p trap (no lane)"
        | "griddepcontrol.wait"
        | "griddepcontrol.launch_dependents" => sum(a, b),
        _ => panic!("{form}: no model"),
    }
}

fn recursion(depth: u32, x: u32) -> u32 {
    if depth == 0 {
        return x;
    }
    sum(product(recursion(depth - 1, product(x, 3)), 7), x)
}

/// As [`recursion`], of a value that each call keeps in an array of its own.
fn arrays(depth: u32, x: u32) -> u32 {
    let kept = [x, sum(x, depth)];
    let inner = if depth == 0 {
        0
    } else {
        arrays(depth - 1, product(x, 3))
    };
    sum(product(inner, 7), kept[(depth & 1) as usize])
}
