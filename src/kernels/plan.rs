//! Work lists of the attention kernels, made on the host once a step.
//!
//! Everything here is a pure function of each row's or segment's own state: neighbours change where an item
//! stands in the list, never what is in it. That is what makes a row's result independent of its batch (I13).

use super::params::{DecodeItem, DecodeRow, PrefillItem};

/// Least keys a split.
const MIN_SPLIT_TOKENS: u32 = 256;

/// Most splits a row: the merge weighs one split a lane.
pub(super) const MAX_SPLITS: u32 = 32;

/// Query rows an item of prefill attention.
pub(super) const PREFILL_ROWS: u32 = 64;

/// One decoding sequence of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeRowInput {
    /// Row of the block table.
    pub seq_slot: u32,
    /// Keys of the sequence, the token being decoded included.
    pub kv_len: u32,
}

/// The tokens of one sequence in a prefill step: activation rows `row0..row0 + num_rows` at positions `pos0..`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillSegment {
    /// First activation row.
    pub row0: u32,
    /// Tokens.
    pub num_rows: u32,
    /// Position of the first token.
    pub pos0: u32,
    /// Row of the block table.
    pub seq_slot: u32,
}

/// First key that the newest of `kv_len` tokens sees.
fn first_visible(kv_len: u32, window: Option<u32>) -> u32 {
    window.map_or(0, |window| kv_len.saturating_sub(window))
}

/// Pieces `[begin, end)` falls into when cut at the multiples of `split_tokens`.
fn pieces(begin: u32, end: u32, split_tokens: u32) -> u32 {
    end.div_ceil(split_tokens) - begin / split_tokens
}

/// Keys a split of a row with `kv_len` keys: the least of 256, 512, ... that cuts what the row sees into at most 32
/// pieces at its multiples. A row that sees at most 256 keys is not cut at all, wherever its window lies.
#[must_use]
pub fn decode_split_tokens(kv_len: u32, window: Option<u32>) -> u32 {
    let begin = first_visible(kv_len, window);
    let mut split_tokens = MIN_SPLIT_TOKENS;
    while pieces(begin, kv_len, split_tokens) > MAX_SPLITS {
        split_tokens *= 2;
    }
    split_tokens
}

/// Writes the work of a decode step over one layer group: the items of all rows, and for each row where its own stand.
/// Both lists are cleared first.
pub fn plan_decode(
    rows: &[DecodeRowInput],
    window: Option<u32>,
    items: &mut Vec<DecodeItem>,
    item_rows: &mut Vec<DecodeRow>,
) {
    items.clear();
    item_rows.clear();
    for (row, input) in (0u32..).zip(rows) {
        let first_item = items.len() as u32;
        let mut begin = first_visible(input.kv_len, window);
        let split_tokens = if input.kv_len - begin <= MIN_SPLIT_TOKENS {
            u32::MAX
        } else {
            decode_split_tokens(input.kv_len, window)
        };
        while begin < input.kv_len {
            // The next multiple after `begin`, absolute: the same keys form a split whatever the row's age.
            let next = (begin / split_tokens + 1).saturating_mul(split_tokens);
            let end = next.min(input.kv_len);
            items.push(DecodeItem {
                row,
                seq_slot: input.seq_slot,
                kv_begin: begin,
                kv_end: end,
            });
            begin = end;
        }
        item_rows.push(DecodeRow {
            first_item,
            num_items: items.len() as u32 - first_item,
        });
    }
}

/// Items that [`plan_decode`] makes at most for `rows` rows of at most `max_len` keys each.
#[must_use]
pub fn max_decode_items(rows: u32, max_len: u32, window: Option<u32>) -> u32 {
    let visible = window.map_or(max_len, |window| window.min(max_len));
    let pieces = match window {
        _ if visible <= MIN_SPLIT_TOKENS => 1,
        // A window starts anywhere and so touches one split more than its length says.
        Some(window) if window < max_len => visible.div_ceil(MIN_SPLIT_TOKENS) + 1,
        _ => visible.div_ceil(MIN_SPLIT_TOKENS),
    };
    rows * pieces.min(MAX_SPLITS)
}

/// Writes the work of a prefill step to `items`, cleared first. It is the same for every layer group: the kernel derives the keys of an item
/// from the group's window. Late rows, which see most keys, come first in each segment.
pub fn plan_prefill(segments: &[PrefillSegment], items: &mut Vec<PrefillItem>) {
    items.clear();
    for segment in segments {
        for tile in (0..segment.num_rows.div_ceil(PREFILL_ROWS)).rev() {
            let skipped = tile * PREFILL_ROWS;
            items.push(PrefillItem {
                row0: segment.row0 + skipped,
                num_rows: (segment.num_rows - skipped).min(PREFILL_ROWS),
                q_pos0: segment.pos0 + skipped,
                seq_slot: segment.seq_slot,
                chunk_row0: segment.row0,
                chunk_pos0: segment.pos0,
            });
        }
    }
}

/// Items that [`plan_prefill`] makes at most for `tokens` tokens in at most `segments` segments.
#[must_use]
pub fn max_prefill_items(tokens: u32, segments: u32) -> u32 {
    // Each segment but none of its tokens may cost a partly filled item.
    let segments = segments.min(tokens);
    segments + (tokens - segments) / PREFILL_ROWS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(rows: &[DecodeRowInput], window: Option<u32>) -> (Vec<DecodeItem>, Vec<DecodeRow>) {
        let (mut items, mut item_rows) = (Vec::new(), Vec::new());
        plan_decode(rows, window, &mut items, &mut item_rows);
        (items, item_rows)
    }

    fn ranges(kv_len: u32, window: Option<u32>) -> Vec<(u32, u32)> {
        let row = DecodeRowInput {
            seq_slot: 0,
            kv_len,
        };
        let (items, _) = decode(&[row], window);
        items
            .iter()
            .map(|item| (item.kv_begin, item.kv_end))
            .collect()
    }

    #[test]
    fn window_edges() {
        assert_eq!(ranges(1, Some(64)), [(0, 1)]);
        assert_eq!(ranges(63, Some(64)), [(0, 63)]);
        assert_eq!(ranges(64, Some(64)), [(0, 64)]);
        assert_eq!(ranges(65, Some(64)), [(1, 65)]);
        assert_eq!(ranges(300, Some(64)), [(236, 300)]);
        assert_eq!(ranges(7, Some(1)), [(6, 7)]);
        assert_eq!(ranges(512, Some(512)), [(0, 256), (256, 512)]);
        assert_eq!(ranges(600, Some(512)), [(88, 256), (256, 512), (512, 600)]);
    }

    #[test]
    fn splits_of_full_attention() {
        assert_eq!(ranges(256, None), [(0, 256)]);
        assert_eq!(ranges(257, None), [(0, 256), (256, 257)]);
        assert_eq!(ranges(8192, None).len(), 32);
        let longer = ranges(8193, None);
        assert_eq!(longer.len(), 17);
        assert_eq!(longer[0], (0, 512));
        assert_eq!(longer[16], (8192, 8193));
        assert_eq!(ranges(131_072, None).len(), 32);
    }

    #[test]
    fn split_sizes() {
        for (kv_len, window, split_tokens) in [
            (1, None, 256),
            (8192, None, 256),
            (8193, None, 512),
            (16_384, None, 512),
            (131_072, None, 4096),
            (131_073, None, 8192),
            (131_072, Some(1024), 256),
            (131_071, Some(8192), 512),
            (131_072, Some(8192), 256),
            (u32::MAX, None, 1 << 27),
        ] {
            assert_eq!(
                decode_split_tokens(kv_len, window),
                split_tokens,
                "{kv_len} {window:?}"
            );
        }
    }

    #[test]
    fn rows_find_their_items() {
        let rows = [(3, 700), (0, 5), (9, 256)]
            .map(|(seq_slot, kv_len)| DecodeRowInput { seq_slot, kv_len });
        let (items, item_rows) = decode(&rows, None);
        let expected = [(0, 3), (3, 1), (4, 1)].map(|(first_item, num_items)| DecodeRow {
            first_item,
            num_items,
        });
        assert_eq!(item_rows, expected);
        assert_eq!(
            items.iter().map(|item| item.row).collect::<Vec<_>>(),
            [0, 0, 0, 1, 2]
        );
        assert_eq!(
            items.iter().map(|item| item.seq_slot).collect::<Vec<_>>(),
            [3, 3, 3, 0, 9]
        );
    }

    #[test]
    fn prefill_items() {
        let segments = [
            PrefillSegment {
                row0: 0,
                num_rows: 130,
                pos0: 512,
                seq_slot: 4,
            },
            PrefillSegment {
                row0: 130,
                num_rows: 1,
                pos0: 0,
                seq_slot: 2,
            },
        ];
        let mut items = Vec::new();
        plan_prefill(&segments, &mut items);
        let found: Vec<_> = items
            .iter()
            .map(|item| (item.row0, item.num_rows, item.q_pos0, item.seq_slot))
            .collect();
        assert_eq!(
            found,
            [
                (128, 2, 640, 4),
                (64, 64, 576, 4),
                (0, 64, 512, 4),
                (130, 1, 0, 2)
            ]
        );
        let chunks: Vec<_> = items
            .iter()
            .map(|item| (item.chunk_row0, item.chunk_pos0))
            .collect();
        assert_eq!(chunks, [(0, 512), (0, 512), (0, 512), (130, 0)]);
    }

    proptest! {
        /// The items of a row are its visible keys, once each, ascending, cut at absolute positions, within the bounds.
        #[test]
        fn decode_items_cover_what_a_row_sees(
            lengths in prop::collection::vec(1u32..200_000, 1..20),
            window in prop::option::of(prop_oneof![1u32..600, 1u32..100_000]),
        ) {
            let rows: Vec<_> = (0u32..).zip(&lengths).map(|(seq_slot, &kv_len)| DecodeRowInput { seq_slot, kv_len }).collect();
            let (items, item_rows) = decode(&rows, window);
            let longest = lengths.iter().copied().max().unwrap_or(0);
            prop_assert!(items.len() as u32 <= max_decode_items(rows.len() as u32, longest, window));
            for (row, found) in rows.iter().zip(&item_rows) {
                let own = &items[found.first_item as usize..][..found.num_items as usize];
                prop_assert!((1..=MAX_SPLITS).contains(&found.num_items));
                prop_assert_eq!(own[0].kv_begin, first_visible(row.kv_len, window));
                prop_assert_eq!(own[own.len() - 1].kv_end, row.kv_len);
                let split_tokens = decode_split_tokens(row.kv_len, window);
                for pair in own.windows(2) {
                    prop_assert_eq!(pair[0].kv_end, pair[1].kv_begin);
                    prop_assert_eq!(pair[1].kv_begin % split_tokens, 0);
                }
                // Alone it gets the same ranges.
                let alone: Vec<_> = own.iter().map(|item| (item.kv_begin, item.kv_end)).collect();
                prop_assert_eq!(ranges(row.kv_len, window), alone);
            }
        }

        /// The bound holds for every length up to the maximum, not only for the longest.
        #[test]
        fn item_bound_holds_below_the_maximum(
            max_len in 1u32..300_000, share in 0.0f64..1.0, window in prop::option::of(1u32..100_000),
        ) {
            let kv_len = ((f64::from(max_len) * share) as u32).max(1);
            prop_assert!(ranges(kv_len, window).len() as u32 <= max_decode_items(1, max_len, window));
        }

        /// Prefill items tile the segments exactly, within the bound.
        #[test]
        fn prefill_items_tile_the_segments(lengths in prop::collection::vec(1u32..300, 1..12), spare in 0u32..100) {
            let mut segments = Vec::new();
            let mut row0 = 0;
            for (seq_slot, &num_rows) in (0u32..).zip(&lengths) {
                segments.push(PrefillSegment { row0, num_rows, pos0: 7 * seq_slot, seq_slot });
                row0 += num_rows;
            }
            let mut items = Vec::new();
            plan_prefill(&segments, &mut items);
            prop_assert!(items.len() as u32 <= max_prefill_items(row0 + spare, segments.len() as u32));
            let mut covered = vec![0u32; row0 as usize];
            for item in &items {
                prop_assert!((1..=PREFILL_ROWS).contains(&item.num_rows));
                prop_assert_eq!(item.q_pos0 - item.chunk_pos0, item.row0 - item.chunk_row0);
                for row in item.row0..item.row0 + item.num_rows {
                    covered[row as usize] += 1;
                }
            }
            prop_assert!(covered.iter().all(|&count| count == 1));
        }
    }
}
