//! What operations run on.

use neap::kv::AttentionKind;

use super::Setup;

/// One of each kind of trouble.
pub const SETUPS: [Setup; 10] = [
    setup(
        "exact slabs",
        &[(1, AttentionKind::Full, 64), (5, sliding(64), 64)],
        16,
        3,
        24,
        500,
        31,
    ),
    setup(
        "pages of one token",
        &[(1, AttentionKind::Full, 64), (2, sliding(9), 64)],
        1,
        70,
        8,
        120,
        3,
    ),
    setup(
        "slabs with a remainder",
        &[(3, AttentionKind::Full, 64), (7, sliding(33), 96)],
        8,
        2,
        30,
        250,
        0,
    ),
    setup(
        "slabs of one page",
        &[(1, AttentionKind::Full, 64), (1, sliding(20), 64)],
        4,
        1,
        90,
        130,
        7,
    ),
    setup(
        "a window of one token",
        &[(1, AttentionKind::Full, 64), (1, sliding(1), 64)],
        4,
        8,
        24,
        130,
        2,
    ),
    setup(
        "all layers slide",
        &[(4, sliding(31), 64)],
        8,
        5,
        14,
        400,
        15,
    ),
    setup(
        "three pools",
        &[
            (2, AttentionKind::Full, 64),
            (3, sliding(16), 64),
            (5, sliding(100), 32),
        ],
        8,
        4,
        40,
        300,
        15,
    ),
    setup(
        "latent rows and chunks",
        &[
            (2, AttentionKind::Latent { index_dim: 16 }, 64),
            (3, AttentionKind::Chunked { chunk: 37 }, 64),
        ],
        8,
        3,
        40,
        250,
        15,
    ),
    setup(
        "compressed rows beside windows",
        &[
            (
                2,
                AttentionKind::Compressed {
                    ratio: 4,
                    index_dim: 0,
                },
                64,
            ),
            (2, AttentionKind::BlockSparse { index_dim: 32 }, 64),
            (3, sliding(16), 64),
        ],
        4,
        5,
        60,
        200,
        0,
    ),
    setup(
        "recurrent state",
        &[
            (1, AttentionKind::Full, 64),
            (2, sliding(40), 64),
            (3, AttentionKind::Recurrent { head_bytes: 4_096 }, 64),
        ],
        8,
        4,
        20,
        250,
        9,
    ),
];

const fn sliding(window: u32) -> AttentionKind {
    AttentionKind::Sliding { window }
}

const fn setup(
    name: &'static str,
    groups: &'static [(usize, AttentionKind, u32)],
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
