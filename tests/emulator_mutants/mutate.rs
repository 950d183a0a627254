//! Mutants of a kernel's PTX, one change each.

/// Kinds of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    DroppedBarrier,
    DroppedWarpSync,
    LaxWait,
    PageOffByOne,
    WindowOffByOne,
    MissingTailPredicate,
    SwappedStages,
}

impl Rule {
    pub const ALL: [Rule; 7] = [
        Rule::DroppedBarrier,
        Rule::DroppedWarpSync,
        Rule::LaxWait,
        Rule::PageOffByOne,
        Rule::WindowOffByOne,
        Rule::MissingTailPredicate,
        Rule::SwappedStages,
    ];
}

pub struct Mutant {
    pub rule: Rule,
    pub name: String,
    pub text: String,
}

/// Mutants of one name that a kernel gets when not all are wanted.
const SAMPLED: usize = 3;

/// Whether the line stands behind the loop of a pipelined attention kernel: all copies have been waited for there, what is
/// left are empty groups, and the warps are alone with their own results. Breaking a wait there changes nothing.
fn behind_the_loop(kernel: &str, lines: &[&str], at: usize) -> bool {
    kernel.starts_with("paged_")
        && !lines[at..]
            .iter()
            .any(|line| line.trim().starts_with("cp.async.cg"))
        && !lines[at..]
            .iter()
            .any(|line| line.trim().starts_with("cp.async.commit"))
}

/// Mutants of a kernel: all, or of each name the first, the last and one between.
pub fn mutants(kernel: &str, text: &str, all: bool) -> Vec<Mutant> {
    let mutants = every_mutant(kernel, text);
    if all {
        return mutants;
    }
    let kind = |mutant: &Mutant| mutant.name.split(',').next().unwrap_or("").to_owned();
    let mut chosen = Vec::new();
    let mut rest = mutants;
    while let Some(first) = rest.first() {
        let wanted = kind(first);
        let (alike, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(|m| kind(m) == wanted);
        let last = alike.len() - 1;
        let keep = [0, last / 2, last];
        let sampled = alike.len() > SAMPLED;
        let picked = alike.into_iter().enumerate();
        chosen.extend(
            picked
                .filter(|(at, _)| !sampled || keep.contains(at))
                .map(|(_, m)| m),
        );
        rest = others;
    }
    chosen
}

/// Whether only rows of more than 8,192 tokens run the line: with head_dim 64 a warp takes at most two tiles of a split of 256
/// tokens, so its ring of two stages does not turn and no third tile's page is fetched. The same lines of head_dim 128 and 256
/// are reached.
fn out_of_reach(kernel: &str, lines: &[&str], at: usize) -> bool {
    kernel.starts_with("paged_decode_bf16_d64")
        && lines[..at]
            .iter()
            .any(|line| line.trim().starts_with("cp.async.wait_group"))
}

fn every_mutant(kernel: &str, text: &str) -> Vec<Mutant> {
    let lines: Vec<&str> = text.lines().collect();
    let mut all = Vec::new();
    let mut add = |rule: Rule, at: usize, what: &str, replacement: String| {
        let mut changed: Vec<&str> = lines.clone();
        changed[at] = &replacement;
        all.push(Mutant {
            rule,
            name: format!("{what}, line {} `{}`", at + 1, lines[at].trim()),
            text: changed.join("\n") + "\n",
        });
    };
    for (at, line) in lines.iter().enumerate() {
        let code = line.trim();
        if code.starts_with("bar.sync") {
            add(Rule::DroppedBarrier, at, "bar.sync dropped", String::new());
        }
        let behind = behind_the_loop(kernel, &lines, at);
        if code.starts_with("bar.warp.sync") && !behind {
            add(
                Rule::DroppedWarpSync,
                at,
                "bar.warp.sync dropped",
                String::new(),
            );
        }
        if let Some(groups) = number_after(code, "cp.async.wait_group")
            && !behind
        {
            add(
                Rule::LaxWait,
                at,
                "wait_group one too lax",
                format!("cp.async.wait_group {};", groups + 1),
            );
        }
        let reached = !out_of_reach(kernel, &lines, at);
        if let Some(replacement) = next_page(kernel, code)
            && reached
        {
            add(Rule::PageOffByOne, at, "page off by one", replacement);
        }
        for (what, replacement) in moved_window(kernel, code) {
            add(Rule::WindowOffByOne, at, what, replacement);
        }
        if let Some(replacement) = copied_in_full(kernel, code) {
            add(Rule::MissingTailPredicate, at, "copy in full", replacement);
        }
        if let Some(replacement) = unmasked_score(code) {
            add(
                Rule::MissingTailPredicate,
                at,
                "score not masked",
                replacement,
            );
        }
        if let Some(replacement) = turned_ring(&lines, at)
            && reached
        {
            add(Rule::SwappedStages, at, "stages swapped", replacement);
        }
    }
    for at in tails(&lines) {
        add(
            Rule::MissingTailPredicate,
            at,
            "tail not skipped",
            String::new(),
        );
    }
    all
}

fn number_after(code: &str, what: &str) -> Option<u32> {
    code.strip_prefix(what)?
        .trim()
        .trim_end_matches(';')
        .parse()
        .ok()
}

/// The operand of `code` number `index`, for an instruction with plain operands.
fn operand(code: &str, index: usize) -> Option<&str> {
    let (_, operands) = code.split_once(char::is_whitespace)?;
    let operand = operands.trim_end_matches(';').split(',').nth(index)?;
    Some(operand.trim())
}

/// The entry of the next page, or of one 256 bytes behind, where the kernel takes an entry from memory.
fn next_page(kernel: &str, code: &str) -> Option<String> {
    let paged = kernel.starts_with("paged_");
    if paged && code.starts_with("ld.global.nc.u32") {
        return Some(code.replace("];", "+4];"));
    }
    let moved = |register: &str, class: &str, by: u64| {
        Some(format!("{code}\nadd.{class} {register}, {register}, {by};"))
    };
    if kernel.contains("append") && code.starts_with("ld.global.u64") {
        return moved(operand(code, 0)?, "s64", 1 << 32);
    }
    if kernel == "page_copy" && code.starts_with("ld.global.nc.u32") {
        return moved(operand(code, 0)?, "u32", 1);
    }
    if kernel == "table_update" && code.starts_with("ld.global.nc.v4.u32") {
        let column = code.split(['{', ',', '}']).nth(3)?;
        return moved(column.trim(), "u32", 1);
    }
    None
}

/// Window bounds moved by one: what decode takes from its item, and prefill from its parameter.
fn moved_window(kernel: &str, code: &str) -> Vec<(&'static str, String)> {
    let moved = |register: &str, by: &str| format!("{code}\nadd.s32 {register}, {register}, {by};");
    if kernel.starts_with("paged_decode") && code.starts_with("ld.global.nc.v4.u32") {
        let part = |index: usize| code.split(['{', ',', '}']).nth(index).unwrap_or("").trim();
        let (first, end) = (part(3), part(4));
        return vec![
            ("window begins one later", moved(first, "1")),
            ("window begins one earlier", moved(first, "-1")),
            ("window ends one later", moved(end, "1")),
            ("window ends one earlier", moved(end, "-1")),
        ];
    }
    // `window` is at byte 140 of the parameters, 132 behind the header's address.
    if kernel.starts_with("paged_prefill")
        && code.starts_with("ld.param.u32")
        && code.contains("+132]")
        && let Some(register) = operand(code, 0)
    {
        return vec![
            ("window one wider", moved(register, "1")),
            ("window one narrower", moved(register, "-1")),
        ];
    }
    Vec::new()
}

/// `cp.async` of a row that is not there, not filled with zeros. Not of a query row in prefill: it reads the chunk's first row
/// instead and stores nothing, so that nobody could tell.
fn copied_in_full(kernel: &str, code: &str) -> Option<String> {
    let kind = code.strip_prefix("selp.b32")?.trim();
    let (register, rest) = kind.split_once(',')?;
    let chosen: Vec<&str> = rest.split(',').map(str::trim).collect();
    let query = kernel.starts_with("paged_prefill") && chosen[..2] == ["16", "0"];
    (!query && matches!(chosen[..2], ["16", "0"] | ["0", "16"]))
        .then(|| format!("mov.u32 {register}, 16;"))
}

/// A score that the mask leaves as it is.
fn unmasked_score(code: &str) -> Option<String> {
    let rest = code.strip_prefix("selp.f32")?.trim();
    let parts: Vec<&str> = rest
        .trim_end_matches(';')
        .split(',')
        .map(str::trim)
        .collect();
    let [d, a, b, _] = parts[..] else {
        return None;
    };
    let score = match (a, b) {
        ("0fFF800000", score) | (score, "0fFF800000") => score,
        _ => return None,
    };
    (score == d).then(|| format!("mov.f32 {d}, {score};"))
}

/// A ring of stages that goes on at stage 1 instead of 0.
fn turned_ring(lines: &[&str], at: usize) -> Option<String> {
    let code = lines[at].trim();
    let rest = code.strip_prefix("selp.b32")?.trim();
    let parts: Vec<&str> = rest
        .trim_end_matches(';')
        .split(',')
        .map(str::trim)
        .collect();
    let [d, "0", stage, p] = parts[..] else {
        return None;
    };
    if !stage.starts_with("%r") {
        return None;
    }
    let compare =
        lines[..at].iter().rev().take(3).find(|line| {
            line.trim().starts_with("setp.eq.s32") && line.contains(&format!("{p},"))
        })?;
    let stages = operand(compare.trim(), 2)?;
    matches!(stages, "2" | "3" | "4").then(|| format!("selp.b32 {d}, 1, {stage}, {p};"))
}

/// Conditional branches that skip what lies past the end: to the end of the kernel, before its first label.
fn tails(lines: &[&str]) -> Vec<usize> {
    let code = |at: usize| lines[at].trim();
    let Some(open) = (0..lines.len()).find(|&at| code(at) == "{") else {
        return Vec::new();
    };
    // The label that `ret` stands behind.
    let Some(ret) = (0..lines.len()).rev().find(|&at| code(at) == "ret;") else {
        return Vec::new();
    };
    let Some(last) = (open..ret).rev().find(|&at| code(at).ends_with(':')) else {
        return Vec::new();
    };
    let end = code(last).trim_end_matches(':');
    (open..ret)
        .filter(|&at| {
            code(at).starts_with('@')
                && code(at)
                    .trim_end_matches(';')
                    .split_whitespace()
                    .next_back()
                    .is_some_and(|target| target == end)
        })
        .collect()
}
