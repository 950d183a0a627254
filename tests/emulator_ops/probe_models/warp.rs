//! Models of exchange within a warp.

use super::Scene;

/// Lanes of the forms of some lanes: 0 to 19 but 7 and 11.
const PARTIAL: u32 = 0x000f_f77f;

pub fn model(scene: &Scene<'_>) -> Vec<Vec<u32>> {
    let partial = scene.form.ends_with("(some lanes)");
    let mask = if partial { PARTIAL } else { u32::MAX };
    let lanes: Vec<usize> = (0..32).filter(|lane| mask >> lane & 1 != 0).collect();
    scene.each(|thread, _| {
        let (warp, lane) = (thread / 32, thread % 32);
        if !lanes.contains(&lane) {
            return Vec::new();
        }
        let of = |lane: usize| -> &[u64] { &scene.rows[32 * warp + lane] };
        // A bit for each lane of the mask where `f` holds.
        let ballot = |f: &dyn Fn(usize) -> bool| -> u32 {
            lanes
                .iter()
                .filter(|&&lane| f(lane))
                .map(|lane| 1 << lane)
                .sum()
        };
        let parts = scene.parts();
        match parts[0] {
            "shfl" => shuffle(scene, partial, lane, &of),
            "vote" if scene.has("ballot") => {
                let negated = u64::from(scene.form.contains("negated"));
                vec![ballot(&|lane| of(lane)[0] & 1 != negated)]
            }
            "vote" => {
                let holds = ballot(&|lane| match limit(scene) {
                    Some(limit) => of(lane)[0] < limit,
                    None => lane != 7,
                });
                vec![u32::from(match parts[2] {
                    "all" => holds == mask,
                    "any" => holds != 0,
                    _ => holds == mask || holds == 0,
                })]
            }
            "match" if scene.has("any") => {
                vec![ballot(&|other| of(other)[0] & 3 == of(lane)[0] & 3)]
            }
            // The second warp's values are all 77.
            "match" => {
                let value = |lane: usize| of(lane)[0] as u32 >> lane;
                let equal = warp == 1 || lanes.iter().all(|&other| value(other) == value(lane));
                vec![if equal { mask } else { 0 }, equal.into()]
            }
            "redux" => {
                let all = lanes.iter().map(|&lane| of(lane)[0] as u32);
                let signed = scene.has("s32");
                let reduced = all.reduce(|a, b| match parts[2] {
                    "add" => a.wrapping_add(b),
                    "min" if signed => (a as i32).min(b as i32) as u32,
                    "max" if signed => (a as i32).max(b as i32) as u32,
                    "min" => a.min(b),
                    "max" => a.max(b),
                    "and" => a & b,
                    "or" => a | b,
                    _ => a ^ b,
                });
                vec![reduced.expect("a lane")]
            }
            // One lane is elected, all agree on it, it is in the mask, and it is the one that is told so.
            "elect" => vec![1, 1, 1, 0],
            "activemask" => vec![mask],
            // The word of the lane before, where there is one.
            "bar" => {
                let from = if lane > 0 && lanes.contains(&(lane - 1)) {
                    lane - 1
                } else {
                    lane
                };
                vec![of(from)[0] as u32]
            }
            _ => panic!("{}: no model", scene.form),
        }
    })
}

/// The number behind "below" in the form.
fn limit(scene: &Scene<'_>) -> Option<u64> {
    let (_, rest) = scene.form.split_once("below ")?;
    rest.split(' ').next()?.parse().ok()
}

/// PTX ISA, "shfl.sync".
fn shuffle<'a>(
    scene: &Scene<'_>,
    partial: bool,
    lane: usize,
    of: &dyn Fn(usize) -> &'a [u64],
) -> Vec<u32> {
    let mode = scene.parts()[2];
    if partial {
        let source = match mode {
            "up" => lane.checked_sub(1),
            "down" => Some(lane + 1),
            "bfly" => Some(lane ^ 1),
            _ => Some(5),
        };
        let source = source
            .filter(|source| PARTIAL >> source & 1 != 0)
            .unwrap_or(lane);
        return vec![of(source)[0] as u32];
    }
    let (_, width) = scene.form.split_once("(width ").expect("a width");
    let digits = width.split([' ', ')']).next().expect("digits");
    let width: usize = digits.parse().expect("a number");
    let distance = of(lane)[1] as usize % 32;
    let first = lane / width * width;
    let source = match mode {
        "up" => lane.checked_sub(distance).filter(|&source| source >= first),
        "down" => Some(lane + distance),
        "bfly" => Some(lane ^ distance),
        _ => Some(first + distance % width),
    };
    // Only the end of the segment bounds the others: "bfly" may reach into a segment before.
    let source = source.filter(|&source| source < first + width);
    let mut all = vec![
        of(source.unwrap_or(lane))[0] as u32,
        source.is_some().into(),
    ];
    all.truncate(scene.words);
    all
}
