//! What operations run on.

use super::Setup;

/// One of each kind of trouble.
pub const SETUPS: [Setup; 7] = [
    setup(
        "exact slabs",
        &[(1, None, 64), (5, Some(64), 64)],
        16,
        3,
        24,
        500,
        31,
    ),
    setup(
        "pages of one token",
        &[(1, None, 64), (2, Some(9), 64)],
        1,
        70,
        8,
        120,
        3,
    ),
    setup(
        "slabs with a remainder",
        &[(3, None, 64), (7, Some(33), 96)],
        8,
        2,
        30,
        250,
        0,
    ),
    setup(
        "slabs of one page",
        &[(1, None, 64), (1, Some(20), 64)],
        4,
        1,
        90,
        130,
        7,
    ),
    setup(
        "a window of one token",
        &[(1, None, 64), (1, Some(1), 64)],
        4,
        8,
        24,
        130,
        2,
    ),
    setup("all layers slide", &[(4, Some(31), 64)], 8, 5, 14, 400, 15),
    setup(
        "three pools",
        &[(2, None, 64), (3, Some(16), 64), (5, Some(100), 32)],
        8,
        4,
        40,
        300,
        15,
    ),
];

const fn setup(
    name: &'static str,
    groups: &'static [(usize, Option<u32>, u32)],
    page_tokens: u32,
    slab_pages: u64,
    slabs: u32,
    longest: u32,
    rewind: u32,
) -> Setup {
    Setup {
        name,
        groups,
        page_tokens,
        slab_pages,
        slabs,
        longest,
        rewind,
        audit_every: 257,
    }
}
