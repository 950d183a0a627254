//! Sliding-window arithmetic. Positions are 0-based and a window counts the query itself:
//! the query at position `q` sees keys `[max(0, q - W + 1), q]`.

use super::geometry::AttentionKind;

/// First key position that the query at `position` sees under `window_tokens`.
#[must_use]
pub fn first_visible(position: u32, window_tokens: u32) -> u32 {
    let first = (u64::from(position) + 1).saturating_sub(u64::from(window_tokens));
    // At most `position` for any window of one token or more.
    u32::try_from(first).unwrap_or(u32::MAX)
}

/// Whether pages of a layer of `kind` die before their sequence does.
#[must_use]
pub const fn pages_die(kind: AttentionKind) -> bool {
    matches!(
        kind,
        AttentionKind::Sliding { .. } | AttentionKind::Chunked { .. }
    )
}

/// Settled tokens at which page `column` of a layer of `kind` dies: no later query sees a key of it. `None` if it never does.
#[must_use]
pub fn death_of_page(kind: AttentionKind, column: u32, page_tokens: u32) -> Option<u32> {
    let end = (u64::from(column) + 1) * u64::from(page_tokens);
    let tokens = match kind {
        AttentionKind::Sliding { window } => end + u64::from(window) - 1,
        // With the first chunk that begins at its end or later.
        AttentionKind::Chunked { chunk } => end.next_multiple_of(u64::from(chunk.max(1))),
        _ => return None,
    };
    Some(u32::try_from(tokens).unwrap_or(u32::MAX))
}

/// Pages wholly below the first key that the next query (position `settled_tokens`) can see:
/// `max(0, n - W + 1) / page_tokens` (I9).
#[must_use]
pub fn dead_pages(settled_tokens: u32, window_tokens: u32, page_tokens: u32) -> u32 {
    first_visible(settled_tokens, window_tokens) / page_tokens.max(1)
}

/// The most pages that the keys of one query touch, whatever its alignment:
/// `ceil((W - 1) / page_tokens) + 1` (I10).
#[must_use]
pub fn max_live_pages(window_tokens: u32, page_tokens: u32) -> u32 {
    window_tokens
        .saturating_sub(1)
        .div_ceil(page_tokens.max(1))
        .saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c24_the_window_counts_the_query_itself() {
        assert_eq!([first_visible(3, 4), first_visible(4, 4)], [0, 1]);
        assert_eq!(
            [127, 128, 129, 130, 131].map(|q| first_visible(q, 128)),
            [0, 1, 2, 3, 4]
        );
        assert_eq!(first_visible(1024, 1024), 1);
        assert_eq!(first_visible(u32::MAX, 1), u32::MAX);
    }

    #[test]
    fn c25_a_page_dies_with_the_last_query_that_reads_it() {
        for n in 127..=142 {
            assert_eq!(dead_pages(n, 128, 16), 0, "n = {n}");
        }
        assert_eq!(dead_pages(143, 128, 16), 1);
        assert_eq!(dead_pages(158, 128, 16), 1);
        assert_eq!(dead_pages(159, 128, 16), 2);
    }

    #[test]
    fn c26_settled_tokens_decide_and_scheduled_ones_do_not() {
        assert_eq!(dead_pages(158, 128, 32), 0);
        assert_eq!(dead_pages(159, 128, 32), 1);
    }

    #[test]
    fn c30_live_pages_at_the_worst_alignment() {
        assert_eq!(max_live_pages(128, 32), 5);
        assert_eq!(max_live_pages(1024, 32), 33);
        assert_eq!(max_live_pages(1, 32), 1);
        assert_eq!(max_live_pages(128, 16), 9);
        assert_eq!(max_live_pages(1024, 16), 65);
    }

    #[test]
    fn c33_a_long_prompt_sees_its_last_window_only() {
        assert_eq!(first_visible(9_999, 4_096), 5_904);
    }

    #[test]
    fn a_page_dies_when_it_is_counted_dead() {
        for (window, page) in [(1, 1), (1, 16), (4, 4), (128, 16), (100, 16), (1_024, 32)] {
            let kind = AttentionKind::Sliding { window };
            for column in 0..200 {
                let death = death_of_page(kind, column, page).unwrap();
                assert_eq!(dead_pages(death, window, page), column + 1);
                assert_eq!(dead_pages(death - 1, window, page), column);
            }
            assert_eq!(death_of_page(kind, u32::MAX, 256), Some(u32::MAX));
        }
        for (chunk, page) in [(8, 4), (10, 4), (7, 16), (8_192, 16)] {
            let kind = AttentionKind::Chunked { chunk };
            for column in 0..200 {
                let death = death_of_page(kind, column, page).unwrap();
                assert!(kind.first_visible(death) / page > column);
                assert!(kind.first_visible(death - 1) / page <= column);
            }
        }
        assert_eq!(death_of_page(AttentionKind::Full, 0, 16), None);
    }

    #[test]
    fn bounds_agree_with_counting() {
        for page in [1, 2, 3, 7, 16] {
            for window in 1..40 {
                let mut most = 0;
                for position in 0..200 {
                    let first = first_visible(position, window) / page;
                    most = most.max(position / page - first + 1);
                    let dead = (0..=position / page)
                        .take_while(|p| (p + 1) * page <= first_visible(position, window));
                    assert_eq!(dead.count() as u32, dead_pages(position, window, page));
                }
                assert!(most <= max_live_pages(window, page));
                // Reached by some alignment as soon as a page holds more than one token.
                if page > 1 || window == 1 {
                    assert!(most + 1 >= max_live_pages(window, page));
                }
            }
        }
    }
}
