//! Models of addresses of one space in another.

use super::Scene;
use neap::emulator::probes::{CONSTANTS, GIVEN};

pub fn model(scene: &Scene<'_>) -> Vec<Vec<u32>> {
    let form = scene.form;
    let parts = scene.parts();
    let blocks = scene.rows.len() / scene.threads;
    let word = |space: &str, thread: usize| match space {
        "const" => CONSTANTS[thread % 8],
        "param" => GIVEN[thread % 8],
        _ => scene.rows[thread][0] as u32,
    };
    if blocks == 2 {
        return scene.each(|thread, _| {
            let (block, other) = (thread / scene.threads, 1 - thread / scene.threads);
            let of = |block: usize| word("shared", block * scene.threads + thread % scene.threads);
            match parts[0] {
                "getctarank" => vec![other as u32, block as u32],
                // `.shared` without more is the block's own.
                "isspacep" => match parts[1] {
                    "shared" | "shared::cta" => vec![0, 1],
                    "shared::cluster" => vec![1, 1],
                    _ => vec![0, 0],
                },
                _ if form.ends_with("(own rank)") => vec![of(block)],
                _ if form.ends_with("(rank 1)") => vec![of(1)],
                _ => vec![of(other)],
            }
        });
    }
    let inside = form
        .split_once('(')
        .map_or("", |(_, rest)| rest.trim_end_matches(')'));
    match (parts[0], parts[1]) {
        ("cvta", "to") => scene.each(|thread, _| vec![word(parts[2], thread), 1]),
        ("cvta", "shared::cta" | "shared::cluster") => {
            scene.each(|thread, _| vec![word("shared", thread), 1])
        }
        ("cvta", space) => scene.each(|thread, _| vec![word(space, thread), 4]),
        ("isspacep", of) => {
            let is = match of {
                // The window of kernel parameters lies in the global one.
                "global" => matches!(inside, "global" | "param"),
                "shared" | "shared::cta" | "shared::cluster" => inside == "shared",
                "param" | "param::entry" => inside == "param",
                _ => inside == of,
            };
            scene.each(|thread, _| vec![u32::from(is), word(inside, thread)])
        }
        ("st", "b32") => scene.each(|thread, _| vec![(thread % 32) as u32]),
        ("st", "u8") => scene.each(|thread, row| {
            let lane = (thread % 32) as u32;
            vec![row[0] as u32 & 0xffff_00ff | lane << 8]
        }),
        ("atom", "add") => scene.each(|thread, row| {
            let old = row[0] as u32;
            vec![old.wrapping_add((thread % 32) as u32), old.wrapping_add(1)]
        }),
        _ => panic!("{form}: no model"),
    }
}
