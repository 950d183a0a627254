//! Models of barriers, fences and mbarriers.

use super::Scene;

pub fn model(scene: &Scene<'_>) -> Vec<Vec<u32>> {
    let operand = |thread: usize| scene.rows[thread][0] as u32;
    let parts = scene.parts();
    match parts[0] {
        "bar" | "barrier" if scene.has("cluster") => scene.each(|row, _| {
            // The same thread of the next block.
            vec![operand((row + scene.threads) % scene.rows.len())]
        }),
        "bar" | "barrier" if scene.has("arrive") => scene.each(|thread, _| {
            if thread < 64 {
                vec![operand(thread ^ 65)]
            } else {
                Vec::new()
            }
        }),
        "bar" | "barrier" if scene.has("red") => reduction(scene, &operand),
        "bar" | "barrier" if scene.form.contains("number") => {
            scene.each(|thread, _| vec![operand(thread ^ 32)])
        }
        "bar" | "barrier" => scene.each(|thread, _| vec![operand((thread + 33) % 128)]),
        // The second warp reads what thread 0 has written.
        "fence" | "membar" => scene.each(|thread, _| {
            if thread < 32 {
                Vec::new()
            } else {
                vec![operand(0)]
            }
        }),
        "mbarrier" if scene.form.contains("(64 threads") => {
            let sum = (0..64).map(operand).fold(0, u32::wrapping_add);
            scene.each(|_, _| vec![sum.wrapping_mul(9 + 3 + 1)])
        }
        // The same thread of the other block.
        "mbarrier" if scene.has("shared::cluster") => scene.each(|row, _| vec![operand(row ^ 32)]),
        "mbarrier" => {
            let seen = alone(scene.form);
            scene.each(|thread, _| {
                if thread == 0 {
                    seen.clone()
                } else {
                    Vec::new()
                }
            })
        }
        _ => panic!("{}: no model", scene.form),
    }
}

fn reduction(scene: &Scene<'_>, operand: &dyn Fn(usize) -> u32) -> Vec<Vec<u32>> {
    if scene.form.contains("!p") {
        return scene.each(|thread, _| {
            let half = thread / 64 * 64;
            let count = (half..half + 64)
                .filter(|&other| operand(other) % 256 >= 100)
                .count();
            vec![count as u32]
        });
    }
    let limit = match scene.form.rsplit('(').next() {
        Some("none)") => 0,
        Some("some)") => 128,
        _ => 256,
    };
    let count = (0..128)
        .filter(|&thread| operand(thread) % 256 < limit)
        .count();
    let reduced = match () {
        () if scene.has("popc") => count as u32,
        () if scene.has("and") => u32::from(count == 128),
        () => u32::from(count > 0),
    };
    scene.each(|thread, _| vec![operand((thread + 33) % 128), reduced])
}

/// What thread 0, alone on an mbarrier of 5 arrivals, sees.
fn alone(form: &str) -> Vec<u32> {
    match form {
        "mbarrier.arrive.shared.b64"
        | "mbarrier.arrive.shared::cta.b64"
        | "mbarrier.arrive.release.cta.shared.b64"
        | "mbarrier.arrive.b64" => vec![0],
        // 3 arrivals of 5, then 2 more.
        "mbarrier.arrive.shared.b64 count" => vec![0, 1],
        // The count before the arrivals, and a phase that is not complete.
        "mbarrier.arrive.noComplete.shared.b64" | "mbarrier.arrive_drop.noComplete.shared.b64" => {
            vec![5, 0]
        }
        // 1 and 4 arrivals of 5, then 3 and 1 of 4.
        "mbarrier.arrive_drop.shared.b64" => vec![0, 1, 0, 1],
        // All have arrived; 96, 64 and 0 bytes are missing.
        "mbarrier.arrive.expect_tx.shared.b64" => vec![0, 0, 1],
        "mbarrier.expect_tx.relaxed.cta.shared.b64" => vec![0, 1],
        // The phase before the first one counts as complete, and is odd.
        "mbarrier.test_wait.parity.shared.b64" => vec![0, 1, 1, 0],
        "mbarrier.inval.shared.b64" => vec![77],
        _ => panic!("{form}: no model"),
    }
}
