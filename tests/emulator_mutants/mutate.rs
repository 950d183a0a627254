//! Mutants of a kernel's PTX, one change each.

use crate::equivalent::{guard_only_saves_work, size_is_free, warp_has_met};
use crate::listing::{Line, Listing};

/// Kinds of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    DroppedBarrier,
    DroppedWarpSync,
    LaxWait,
    PageOffByOne,
    WindowOffByOne,
    MissingTailPredicate,
    MissingAbsenceTest,
    MissingFence,
    SwappedStages,
}

impl Rule {
    pub const ALL: [Rule; 9] = [
        Rule::DroppedBarrier,
        Rule::DroppedWarpSync,
        Rule::LaxWait,
        Rule::PageOffByOne,
        Rule::WindowOffByOne,
        Rule::MissingTailPredicate,
        Rule::MissingAbsenceTest,
        Rule::MissingFence,
        Rule::SwappedStages,
    ];
}

pub struct Mutant {
    pub rule: Rule,
    pub name: String,
    pub text: String,
    /// The rule that says that nothing can tell the mutant from the kernel.
    pub equivalent: Option<&'static str>,
}

/// Mutants of a kernel: all, equivalent ones included, or of each kind `sampled` of the others at equal distances.
pub fn mutants(kernel: &str, text: &str, sampled: Option<usize>) -> Vec<Mutant> {
    let listing = Listing::of(text);
    let mut changes = Vec::new();
    for at in 0..listing.lines().len() {
        changes_at(kernel, &listing, at, &mut changes);
    }
    changes.extend(unclamped_rows(&listing));
    if let Some(sampled) = sampled {
        changes.retain(|change| change.equivalent.is_none());
        changes = sample(changes, sampled);
    }
    changes
        .into_iter()
        .map(|change| change.apply(&listing))
        .collect()
}

/// One line replaced, or the copies that the compiler made of one.
struct Change {
    rule: Rule,
    kind: &'static str,
    lines: Vec<(usize, String)>,
    equivalent: Option<&'static str>,
}

impl Change {
    fn apply(self, listing: &Listing) -> Mutant {
        let mut text = String::new();
        for (at, line) in listing.lines().iter().enumerate() {
            let changed = self.lines.iter().find(|(changed, _)| *changed == at);
            text.push_str(changed.map_or(line.text, |(_, replacement)| replacement));
            text.push('\n');
        }
        let at = self.lines[0].0;
        let code = listing.lines()[at].text.trim();
        Mutant {
            rule: self.rule,
            name: format!("{}, line {} `{code}`", self.kind, at + 1),
            text,
            equivalent: self.equivalent,
        }
    }
}

/// Of each kind the first, the last and those between at equal distances.
fn sample(changes: Vec<Change>, sampled: usize) -> Vec<Change> {
    let mut kinds: Vec<(&str, Vec<Change>)> = Vec::new();
    for change in changes {
        match kinds.iter_mut().find(|(kind, _)| *kind == change.kind) {
            Some((_, alike)) => alike.push(change),
            None => kinds.push((change.kind, vec![change])),
        }
    }
    let chosen = kinds.into_iter().flat_map(|(_, alike)| {
        let (last, steps) = (alike.len() - 1, sampled.max(2) - 1);
        let keep: Vec<usize> = match sampled {
            1 => vec![last / 2],
            _ => (0..sampled).map(|step| step * last / steps).collect(),
        };
        let picked = alike.into_iter().enumerate();
        picked
            .filter(move |(at, _)| keep.contains(at))
            .map(|(_, change)| change)
    });
    chosen.collect()
}

fn changes_at(kernel: &str, listing: &Listing, at: usize, changes: &mut Vec<Change>) {
    let line = &listing.lines()[at];
    let mut add = |rule: Rule, kind: &'static str, replacement: String, equivalent| {
        changes.push(Change {
            rule,
            kind,
            lines: vec![(at, replacement)],
            equivalent,
        });
    };
    if line.opcode.starts_with("bar.sync") {
        add(
            Rule::DroppedBarrier,
            "bar.sync dropped",
            String::new(),
            None,
        );
    }
    if line.opcode.starts_with("bar.warp.sync") {
        let equivalent = warp_has_met(listing, at);
        add(
            Rule::DroppedWarpSync,
            "bar.warp.sync dropped",
            String::new(),
            equivalent,
        );
    }
    if line.opcode == "cp.async.wait_group"
        && let Ok(groups) = line.operand(0).parse::<u32>()
    {
        let lax = format!("cp.async.wait_group {};", groups + 1);
        add(Rule::LaxWait, "wait_group one too lax", lax, None);
    }
    if line.opcode.starts_with("membar") || line.opcode.starts_with("fence.") {
        add(Rule::MissingFence, "fence dropped", String::new(), None);
    }
    if let Some((kind, replacement)) = next_page(kernel, listing, at) {
        add(Rule::PageOffByOne, kind, replacement, None);
    }
    for (kind, replacement) in moved_window(kernel, line) {
        add(Rule::WindowOffByOne, kind, replacement, None);
    }
    if let Some(replacement) = copied_in_full(line) {
        let equivalent = size_is_free(listing, at);
        add(
            Rule::MissingTailPredicate,
            "copy in full",
            replacement,
            equivalent,
        );
    }
    if let Some(replacement) = unmasked_score(line) {
        add(
            Rule::MissingTailPredicate,
            "score not masked",
            replacement,
            None,
        );
    }
    if skips_a_tail(listing, at) {
        let equivalent = guard_only_saves_work(listing, at);
        add(
            Rule::MissingTailPredicate,
            "tail not skipped",
            String::new(),
            equivalent,
        );
    }
    if skips_what_is_absent(listing, at) {
        add(
            Rule::MissingAbsenceTest,
            "absent operand used",
            String::new(),
            None,
        );
    }
    if let Some((kind, replacement)) = swapped_stages(listing, at) {
        add(Rule::SwappedStages, kind, replacement, None);
    }
}

/// The instruction, and behind it one that adds to a register it wrote.
fn moved(line: &Line, class: &str, register: &str, by: i64) -> String {
    format!("{}\nadd.{class} {register}, {register}, {by};", line.text)
}

/// The entry of the next page, or of one 256 bytes behind, where the kernel takes an entry from memory.
fn next_page(kernel: &str, listing: &Listing, at: usize) -> Option<(&'static str, String)> {
    let line = &listing.lines()[at];
    let register = line.registers(0).next()?;
    match (kernel, line.opcode) {
        (_, "ld.global.nc.u32") if kernel.starts_with("paged_") => {
            // A column is a key shifted by the page's size.
            let near = &listing.lines()[at.saturating_sub(8)..at];
            let column = near
                .iter()
                .any(|line| line.opcode == "shr.u32" && line.operand(2).starts_with('%'));
            column.then(|| ("page off by one", line.text.replace("];", "+4];")))
        }
        (_, "ld.global.u64") if kernel.contains("append") => {
            Some(("page off by one", moved(line, "s64", register, 1 << 32)))
        }
        ("page_copy", "ld.global.nc.u32") => {
            let guarded = listing.lines()[..at]
                .iter()
                .any(|line| line.opcode == "min.u32");
            let kind = if guarded {
                "page off by one"
            } else {
                "one pair more"
            };
            Some((kind, moved(line, "u32", register, 1)))
        }
        ("table_update", "ld.global.nc.v4.u32") => {
            let column = line.registers(0).nth(2)?;
            Some(("page off by one", moved(line, "u32", column, 1)))
        }
        _ => None,
    }
}

/// Window bounds moved by one: what decode takes from its item, and prefill from its parameter.
fn moved_window(kernel: &str, line: &Line) -> Vec<(&'static str, String)> {
    if kernel.starts_with("paged_decode") && line.opcode == "ld.global.nc.v4.u32" {
        let parts: Vec<&str> = line.registers(0).collect();
        let [_, _, first, end] = parts[..] else {
            return Vec::new();
        };
        return vec![
            ("window begins one later", moved(line, "s32", first, 1)),
            ("window begins one earlier", moved(line, "s32", first, -1)),
            ("window ends one later", moved(line, "s32", end, 1)),
            ("window ends one earlier", moved(line, "s32", end, -1)),
        ];
    }
    // `window` is at byte 140 of the parameters, 132 behind the header's address.
    if kernel.starts_with("paged_prefill")
        && line.opcode == "ld.param.u32"
        && line.operand(1).ends_with("+132]")
        && let Some(register) = line.registers(0).next()
    {
        return vec![
            ("window one wider", moved(line, "s32", register, 1)),
            ("window one narrower", moved(line, "s32", register, -1)),
        ];
    }
    Vec::new()
}

/// `cp.async` of a row that is not there, not filled with zeros.
fn copied_in_full(line: &Line) -> Option<String> {
    let chosen = [line.operand(1), line.operand(2)];
    let size = line.opcode == "selp.b32" && matches!(chosen, ["16", "0"] | ["0", "16"]);
    size.then(|| format!("mov.u32 {}, 16;", line.operand(0)))
}

/// Row numbers that may lie past the last row, which is one less than a number of rows from the step's header or from the parameters:
/// all that are clamped to the one, and all that are clamped to the other.
fn unclamped_rows(listing: &Listing) -> Vec<Change> {
    let lines = listing.lines();
    let mut found: Vec<(&str, Vec<(usize, String)>)> = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let last = listing
            .definition(at, line.operand(2))
            .filter(|&last| lines[last].opcode == "add.s32" && lines[last].operand(2) == "-1");
        let rows = last.and_then(|last| listing.definition(last, lines[last].operand(1)));
        let Some(rows) = rows.filter(|_| line.opcode == "min.u32") else {
            continue;
        };
        let from = if lines[rows].opcode.starts_with("ld.global") {
            "header"
        } else {
            "parameters"
        };
        let change = (
            at,
            format!("mov.u32 {}, {};", line.operand(0), line.operand(1)),
        );
        match found.iter_mut().find(|(known, _)| *known == from) {
            Some((_, changes)) => changes.push(change),
            None => found.push((from, vec![change])),
        }
    }
    let changes = found.into_iter().map(|(_, lines)| Change {
        rule: Rule::MissingTailPredicate,
        kind: "rows not clamped",
        lines,
        equivalent: None,
    });
    changes.collect()
}

/// A score that the mask leaves as it is.
fn unmasked_score(line: &Line) -> Option<String> {
    const MINUS_INFINITY: &str = "0fFF800000";
    let (to, chosen) = (line.operand(0), [line.operand(1), line.operand(2)]);
    let masked = line.opcode == "selp.f32" && chosen.contains(&MINUS_INFINITY);
    (masked && chosen.contains(&to)).then(|| format!("mov.f32 {to}, {to};"))
}

/// A branch past loads or stores, taken where an unsigned comparison finds them out of bounds.
fn skips_a_tail(listing: &Listing, at: usize) -> bool {
    let skipped = listing.skipped(at).unwrap_or_default();
    skipped.iter().any(Line::touches_memory) && listing.bounded(at)
}

/// A branch past loads or stores, taken where an address is null or a slot says that nothing is written.
fn skips_what_is_absent(listing: &Listing, at: usize) -> bool {
    let skipped = listing.skipped(at).unwrap_or_default();
    let guard = listing.guard_of(at).map(|guard| &listing.lines()[guard]);
    skipped.iter().any(Line::touches_memory)
        && guard.is_some_and(|guard| {
            matches!(guard.opcode, "setp.eq.s64" | "setp.eq.u64")
                && matches!(guard.operand(2), "0" | "-1")
        })
}

/// A ring of stages that goes on, or begins, at the wrong one; the wrong half of a pair of tables.
fn swapped_stages(listing: &Listing, at: usize) -> Option<(&'static str, String)> {
    let line = &listing.lines()[at];
    match line.opcode {
        "selp.b32" if turns(listing, at) => {
            let [to, _, stage, end] = line.operands[..] else {
                return None;
            };
            Some((
                "ring turned to stage 1",
                format!("selp.b32 {to}, 1, {stage}, {end};"),
            ))
        }
        "mov.u32" if line.operand(1).parse::<u32>().is_ok() => {
            let stage = line.operand(0);
            let begins = (at + 1..listing.lines().len())
                .any(|other| turns(listing, other) && listing.lines()[other].operand(0) == stage);
            let other = if line.operand(1) == "0" { 1 } else { 0 };
            begins.then(|| {
                (
                    "ring begun at another stage",
                    format!("mov.u32 {stage}, {other};"),
                )
            })
        }
        "and.b32" => {
            let half: u32 = line.operand(2).parse().ok()?;
            (Some(2 * half) == listing.paired_table_bytes()).then(|| {
                let to = line.operand(0);
                let swapped = format!("{}\nxor.b32 {to}, {to}, {half};", line.text);
                ("other half of a pair of tables", swapped)
            })
        }
        _ => None,
    }
}

/// Whether line `at` takes a stage back to 0 at the ring's end.
fn turns(listing: &Listing, at: usize) -> bool {
    let line = &listing.lines()[at];
    line.opcode == "selp.b32"
        && line.operand(1) == "0"
        && line.operand(2).starts_with("%r")
        && listing
            .definition(at, line.operand(3))
            .is_some_and(|compare| {
                let compare = &listing.lines()[compare];
                compare.opcode == "setp.eq.s32" && matches!(compare.operand(2), "2" | "3" | "4")
            })
}
