//! Makes an input on which something fails shorter.

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

/// A shorter input on which `run` still panics: pieces are cut out, halving in size, until no single byte can be spared.
pub fn shrink(input: &[u8], run: impl Fn(&[u8])) -> Vec<u8> {
    let fails = |input: &[u8]| catch_unwind(AssertUnwindSafe(|| run(input))).is_err();
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    let mut input = input.to_vec();
    let mut piece = input.len().next_power_of_two() / 2;
    while piece > 0 {
        let before = input.len();
        let mut begin = 0;
        while begin < input.len() {
            let end = (begin + piece).min(input.len());
            let shorter = [&input[..begin], &input[end..]].concat();
            if fails(&shorter) {
                input = shorter;
            } else {
                begin = end;
            }
        }
        if piece > 1 || input.len() == before {
            piece /= 2;
        }
    }
    set_hook(hook);
    input
}

#[test]
fn an_input_shrinks_to_what_fails() {
    let input = (0..=255).collect::<Vec<u8>>();
    let fails = |input: &[u8]| assert!(!(input.contains(&7) && input.contains(&200)));
    assert_eq!(shrink(&input, fails), [7, 200]);
}
