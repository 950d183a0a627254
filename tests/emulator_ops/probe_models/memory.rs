//! Loads, stores, and what only caches notice.

use super::{Scene, type_bytes, words};
use neap::emulator::probes::{CONSTANTS, GIVEN};

pub fn model(scene: &Scene<'_>) -> Vec<Vec<u32>> {
    let parts = scene.parts();
    let ty = parts[parts.len() - 1];
    let count = match parts[parts.len() - 2] {
        "v2" => 2,
        "v4" => 4,
        _ => 1,
    };
    if scene.form == "discard.global.L2" {
        return scene.each(|_, row| {
            let mut all: Vec<u32> = (0..32).collect();
            all[0] = row[0] as u32;
            all
        });
    }
    let touches_caches = [
        "prefetch",
        "prefetchu",
        "applypriority",
        "createpolicy",
        "cp",
    ];
    if touches_caches.contains(&parts[0]) || scene.has("L2::cache_hint") {
        return scene.each(|_, row| vec![row[0] as u32]);
    }
    let bytes = type_bytes(ty);
    let at = count * bytes;
    let image = |row: &[u64]| -> Vec<u8> {
        row.iter()
            .flat_map(|word| (*word as u32).to_le_bytes())
            .collect()
    };
    match parts[0] {
        "ld" | "ldu" => scene.each(|thread, row| {
            if scene.has("param") {
                let given: Vec<u8> = GIVEN.iter().flat_map(|w| w.to_le_bytes()).collect();
                return loaded(&given[at..], ty, count);
            }
            if scene.has("const") {
                let all: Vec<u8> = CONSTANTS.iter().flat_map(|w| w.to_le_bytes()).collect();
                let places = 32 / at;
                return loaded(&all[thread % places * at + at..], ty, count);
            }
            loaded(&image(row)[at..], ty, count)
        }),
        "st" => scene.each(|_, row| {
            let mut stored = vec![0u8; 32];
            let source = image(row);
            for element in 0..count {
                // Registers of 32 bits each, or of two of them; a narrow store takes their low bits.
                let from = element * bytes.max(4);
                stored[at + element * bytes..][..bytes].copy_from_slice(&source[from..][..bytes]);
            }
            words(&stored)
        }),
        _ => panic!("{}: no model", scene.form),
    }
}

/// Registers of `count` elements at the start of `bytes`: narrow ones extended by their type to 32 bits.
fn loaded(bytes: &[u8], ty: &str, count: usize) -> Vec<u32> {
    let size = type_bytes(ty);
    let mut all = Vec::new();
    for element in bytes.chunks(size).take(count) {
        match (size, ty) {
            (1, "s8") => all.push(i32::from(element[0] as i8) as u32),
            (1, _) => all.push(element[0].into()),
            (2, "s16") => all.push(i32::from(i16::from_le_bytes([element[0], element[1]])) as u32),
            (2, _) => all.push(u16::from_le_bytes([element[0], element[1]]).into()),
            _ => all.extend(words(element)),
        }
    }
    all
}
