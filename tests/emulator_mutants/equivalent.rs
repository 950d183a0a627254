//! Changes that change nothing: rules, each with the reason why no run of a kernel could tell. With all mutants wanted, those that a
//! rule excuses are run too, and must survive.

use crate::listing::Listing;

/// A rule's name and its test of the line that a mutation would change.
type Rule = (&'static str, fn(&Listing, usize) -> bool);

fn first_that_holds(rules: &[Rule], listing: &Listing, at: usize) -> Option<&'static str> {
    let holds = rules.iter().find(|(_, holds)| holds(listing, at));
    holds.map(|&(name, _)| name)
}

/// The rule by which a guard may go without anything a launch reads or writes being different.
pub fn guard_only_saves_work(listing: &Listing, at: usize) -> Option<&'static str> {
    const RULES: &[Rule] = &[
        (
            "past the rows of sized copies",
            past_the_rows_of_sized_copies,
        ),
        ("accesses have their bounds", accesses_have_their_bounds),
        ("above every thread", above_every_thread),
        ("first of an item's tiles", first_of_an_items_tiles),
        ("past the tiles there are", past_the_tiles_there_are),
        ("stores of rows not loaded", stores_of_rows_not_loaded),
    ];
    first_that_holds(RULES, listing, at)
}

/// The rule by which a copy whose size `at` chooses is the same without the choice.
pub fn size_is_free(listing: &Listing, at: usize) -> Option<&'static str> {
    const RULES: &[Rule] = &[
        ("row replaced by the first", row_replaced_by_the_first),
        ("first row of a later tile", first_row_of_a_later_tile),
    ];
    first_that_holds(RULES, listing, at)
}

/// The rule by which a warp's meeting at `at` may go.
pub fn warp_has_met(listing: &Listing, at: usize) -> Option<&'static str> {
    first_that_holds(&[("warp has met", met_since_it_wrote)], listing, at)
}

/// The exit of a block behind the last row, in a kernel whose copies compare with the same number of rows: such a block copies
/// zeros, and its stores have that bound too.
fn past_the_rows_of_sized_copies(listing: &Listing, at: usize) -> bool {
    let Some(guard) = listing.guard_of(at) else {
        return false;
    };
    let guard = &listing.lines()[guard];
    let rows = guard.operand(2);
    // The exit of a whole block: the block's place in the grid comes just before it.
    let exits = listing.skipped(at).is_some_and(|skipped| {
        skipped
            .iter()
            .any(|line| line.opcode.starts_with("cp.async.wait"))
    });
    exits
        && rows.starts_with('%')
        && sizes(listing).any(|(_, size)| {
            let mut comparisons = listing.comparisons(size).into_iter();
            comparisons.any(|comparison| comparison.operand(2) == rows)
        })
}

/// `selp` lines that choose between 16 bytes and none, with the line that gives their predicate.
fn sizes<'a>(listing: &'a Listing) -> impl Iterator<Item = (usize, usize)> + 'a {
    (0..listing.lines().len()).filter_map(|at| {
        let line = &listing.lines()[at];
        let chosen = [line.operand(1), line.operand(2)];
        (line.opcode == "selp.b32" && matches!(chosen, ["16", "0"] | ["0", "16"]))
            .then(|| listing.definition(at, line.operand(3)))
            .flatten()
            .map(|predicate| (at, predicate))
    })
}

/// A tile of rows past the end: the number of rows, or what follows from it, is compared with a constant. Loads of rows past the end
/// are clamped to the last row and every store has a bound of its own, so skipping the tile saves time only.
fn past_the_tiles_there_are(listing: &Listing, at: usize) -> bool {
    listing.guard_of(at).is_some_and(|guard| {
        let line = &listing.lines()[guard];
        line.is_bound()
            && line.operand(2).parse::<u32>().is_ok()
            && follows_from_rows(listing, guard, line.operand(1), 6)
    })
}

/// Whether a register's value comes, in at most `steps` steps, from the number of rows that the launch's header holds.
fn follows_from_rows(listing: &Listing, at: usize, register: &str, steps: usize) -> bool {
    let Some(at) = listing.definition(at, register) else {
        return false;
    };
    let line = &listing.lines()[at];
    line.opcode == "ld.global.u32"
        || steps > 0
            && matches!(
                line.opcode,
                "add.s32" | "sub.s32" | "shr.u32" | "min.u32" | "selp.b32"
            )
            && (1..line.operands.len())
                .any(|index| follows_from_rows(listing, at, line.operand(index), steps - 1))
}

/// Copies of a tile that is not there, each with a size that is 0 for rows that are not: they fill with zeros what nobody reads or
/// writes any more. So with the addresses of such a tile: each has a bound of its own, all are none, and nobody copies from them.
fn accesses_have_their_bounds(listing: &Listing, at: usize) -> bool {
    let Some(skipped) = listing.skipped(at) else {
        return false;
    };
    let lines = listing.lines();
    let behind = at + 1..at + 1 + skipped.len();
    let accesses: Vec<usize> = behind
        .clone()
        .filter(|&at| lines[at].touches_memory())
        .collect();
    let sized = |at: usize| {
        let size = listing.definition(at, lines[at].operand(3));
        size.is_some_and(|size| sizes(listing).any(|(at, _)| at == size))
    };
    let bounded = |access: usize| {
        behind.clone().take_while(|&at| at < access).any(|at| {
            listing
                .skipped(at)
                .is_some_and(|skipped| at + skipped.len() >= access)
                && listing.bounded(at)
        })
    };
    let all = |holds: &dyn Fn(usize) -> bool| accesses.iter().all(|&at| holds(at));
    let copies = all(&|at| lines[at].opcode.starts_with("cp.async.cg") && sized(at))
        && !lines[at..]
            .iter()
            .any(|line| line.opcode.starts_with("st.shared"));
    let loads = |at: usize| lines[at].opcode.starts_with("ld.global");
    let addresses = accesses.iter().any(|&at| loads(at))
        && all(&|at| loads(at) && bounded(at) || lines[at].opcode == "st.shared.u64")
        && listing.paired_table_bytes().is_some();
    !accesses.is_empty() && (copies || addresses)
}

/// A bound that no thread reaches: a constant, or a multiple of one, that is at least the threads of a block.
fn above_every_thread(listing: &Listing, at: usize) -> bool {
    let threads = listing
        .lines()
        .iter()
        .find(|line| line.opcode == ".maxntid");
    let threads = threads.and_then(|line| line.operand(0).parse::<u32>().ok());
    let (Some(threads), Some(guard)) = (threads, listing.guard_of(at)) else {
        return false;
    };
    let line = &listing.lines()[guard];
    let made_by = |index: usize| {
        let at = listing.definition(guard, line.operand(index))?;
        Some(&listing.lines()[at])
    };
    let limit = match line.opcode {
        "setp.gt.u32" => line.operand(2).parse::<u32>().ok().map(|last| last + 1),
        "setp.ge.u32" => made_by(2)
            .filter(|multiple| multiple.opcode == "shl.b32")
            .and_then(|multiple| multiple.operand(2).parse::<u32>().ok())
            .and_then(|bits| 1_u32.checked_shl(bits)),
        _ => None,
    };
    let of_threads = made_by(1)
        .is_some_and(|number| number.opcode == "mov.u32" && number.operand(1) == "%tid.x");
    of_threads && limit.is_some_and(|limit| limit >= threads)
}

/// The first turn of prefill's loop over an item's tiles, from the tile of the first key to that of the last: an item has a row, and
/// the row sees its own key.
fn first_of_an_items_tiles(listing: &Listing, at: usize) -> bool {
    let Some(guard) = listing.guard_of(at) else {
        return false;
    };
    let tile_keys = |index: usize| {
        let tile = listing.definition(guard, listing.lines()[guard].operand(index))?;
        let tile = &listing.lines()[tile];
        (tile.opcode == "shr.u32").then(|| tile.operand(2))
    };
    let bits = tile_keys(1);
    listing.paired_table_bytes().is_some()
        && listing.lines()[guard].opcode == "setp.ge.u32"
        && bits.is_some_and(|bits| !bits.starts_with('%'))
        && bits == tile_keys(2)
}

/// Stores to shared memory by rows of an mma whose operands a bound by the same limit left at zero: a row of the result depends on
/// its own row of operands alone, and nobody reads the rows that are not there.
fn stores_of_rows_not_loaded(listing: &Listing, at: usize) -> bool {
    let only = |at: usize, opcode: &str| {
        let mut accesses = listing
            .skipped(at)
            .into_iter()
            .flatten()
            .filter(|line| line.touches_memory())
            .peekable();
        accesses.peek().is_some() && accesses.all(|line| line.opcode.starts_with(opcode))
    };
    let limit = |at: usize| {
        let guard = &listing.lines()[listing.guard_of(at)?];
        guard.is_bound().then(|| guard.operand(2))
    };
    limit(at).is_some()
        && only(at, "st.shared")
        && (0..at).any(|load| limit(load) == limit(at) && only(load, "ld.global"))
}

/// The predicate is one comparison and also chooses the row: a row that is not there is the item's first row instead, a row of
/// the left operand whose results are not stored.
fn row_replaced_by_the_first(listing: &Listing, at: usize) -> bool {
    let predicate = listing.lines()[at].operand(3);
    let single = listing
        .definition(at, predicate)
        .is_some_and(|at| listing.lines()[at].is_bound());
    single
        && listing.lines()[..at].iter().any(|line| {
            line.opcode == "selp.b32" && line.operand(3) == predicate && line.operand(2) == "0"
        })
}

/// The first row of a tile behind a warp's first: it is not before the range, which begins in a first tile, and it is below the
/// range's end, or there would be no tile. Its key is the tile's number times a power of two.
fn first_row_of_a_later_tile(listing: &Listing, at: usize) -> bool {
    let in_loop = listing.lines()[..at]
        .iter()
        .any(|line| line.opcode.starts_with("cp.async.wait_group"));
    let both = listing.definition(at, listing.lines()[at].operand(3));
    in_loop
        && both.is_some_and(|both| {
            let line = &listing.lines()[both];
            line.opcode == "and.pred"
                && [1, 2].iter().all(|&index| {
                    listing
                        .definition(both, line.operand(index))
                        .is_some_and(|bound| {
                            let key = listing.lines()[bound].operand(1);
                            listing
                                .definition(bound, key)
                                .is_some_and(|key| listing.lines()[key].opcode == "shl.b32")
                        })
                })
        })
}

/// A meeting behind which nothing changes hands: since the last barrier the warp only read shared memory, by
/// `ldmatrix` and `mma`, which are meetings of the warp themselves.
fn met_since_it_wrote(listing: &Listing, at: usize) -> bool {
    let since = listing.lines()[..at]
        .iter()
        .rev()
        .take_while(|line| !line.opcode.starts_with("bar."));
    let mut memory = since.filter(|line| line.touches_memory());
    memory
        .next()
        .is_some_and(|line| line.opcode.starts_with("ldmatrix"))
}
