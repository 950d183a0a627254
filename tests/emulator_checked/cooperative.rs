//! Faults inside cooperative launches, whose blocks run side by side and wait for each other.

use std::ffi::{c_uint, c_void};

use crate::{Device, kernel};
use neap::driver::{DevicePtr, MemoryUse};
use neap::emulator::{CheckKind, CheckReport};

impl Device {
    /// Launches the only kernel of a module with two pointers, its blocks side by side, and waits.
    fn cooperate(&self, ptx: &str, grid: u32, block: u32, mut params: [DevicePtr; 2]) {
        let text = format!("{ptx}\0");
        let (mut module, mut kernel) = (0u64, 0u64);
        ok!("cuModuleLoadData"(&mut module => *mut u64, text.as_ptr().cast() => *const c_void));
        ok!("cuModuleGetFunction"(&mut kernel => *mut u64, module => u64, c"k".as_ptr() => *const std::ffi::c_char));
        let mut list: [*mut c_void; 1] = [params.as_mut_ptr().cast()];
        ok!("cuLaunchCooperativeKernel"(
            kernel => u64, grid => c_uint, 1 => c_uint, 1 => c_uint, block => c_uint, 1 => c_uint, 1 => c_uint,
            0 => c_uint, 0 => u64, list.as_mut_ptr() => *mut *mut c_void
        ));
        self.context
            .synchronize()
            .expect("reports are only collected");
        ok!("cuModuleUnload"(module => u64));
    }
}

const MEET: &str = "bar.sync 0;";
const FENCE: &str = "fence.acq_rel.gpu;";
const WAIT: &str = "ld.acquire.gpu.u32 %g4, [%w+4];";

/// The barrier of a grid as CUDA's cooperative groups emit it, built of what makes its block meet, the fence before it
/// arrives, and the load with which it waits.
fn barrier(number: u32, meet: &str, fence: &str, wait: &str) -> String {
    format!(
        "
{meet}
setp.ne.u32 %p7, %t, 0;
@%p7 bra ARRIVED{number};
{fence}
mov.u32 %g0, %nctaid.x;
setp.ne.u32 %p6, %b, 0;
sub.u32 %g1, 0x80000001, %g0;
selp.b32 %g1, 1, %g1, %p6;
atom.add.u32 %g3, [%w+4], %g1;
AGAIN{number}:
{wait}
xor.b32 %g4, %g4, %g3;
setp.ge.s32 %p6, %g4, 0;
@%p6 bra AGAIN{number};
ARRIVED{number}:
bar.sync 0;"
    )
}

/// The grid's barrier, with nothing left out.
fn grid_barrier(number: u32) -> String {
    barrier(number, MEET, FENCE, WAIT)
}

/// A kernel as [`kernel`] makes it, that knows the workspace of its grid's barrier.
fn cooperative(body: &str) -> String {
    let (cluster, body) = match body.strip_prefix("// cluster") {
        Some(body) => ("// cluster", body),
        None => ("", body),
    };
    kernel(
        4096,
        &format!(
            "{cluster}
.reg .b32 %g<5>;
.reg .b64 %w;
mov.u32 %g0, %envreg1;
mov.u32 %g1, %envreg2;
mov.b64 %w, {{%g0, %g1}};
{body}"
        ),
    )
}

/// Runs `body` with `GAP` replaced by `good`, which must pass under five orders, and by `bad`, which must be reported as
/// `kind`.
fn pair(kind: CheckKind, grid: u32, block: u32, body: &str, good: &str, bad: &str) {
    for seed in [0, 1, 2, 3, 4] {
        let run = |gap: &str| {
            let device = Device::new(seed);
            let (x, y) = (device.at(0), device.at(1 << 20));
            device.stream.copy_to_device(x, &[0; 65536]).unwrap();
            let text = cooperative(&body.replace("GAP", gap));
            device.cooperate(&text, grid, block, [x, y]);
            device.kinds()
        };
        assert_eq!(run(good), [], "without the fault, seed {seed}");
        let kinds = run(bad);
        assert!(
            kinds.contains(&kind),
            "{kind} is not reported, seed {seed}: {kinds:?}"
        );
    }
}

/// Each thread writes a word, reads the one of the thread with its number in the next block, behind the barrier, and writes
/// its own again, behind another one.
fn exchange(first: &str, second: &str) -> String {
    format!(
        "
st.global.u32 [%y], %i;
{first}
add.u32 %r3, %b, 1;
mov.u32 %r4, %nctaid.x;
rem.u32 %r3, %r3, %r4;
mad.lo.u32 %r3, %r3, %n, %t;
mul.wide.u32 %rd1, %r3, 4;
add.u64 %rd2, %y0, %rd1;
ld.global.u32 %r5, [%rd2];
{second}
st.global.u32 [%y], %r5;"
    )
}

#[test]
fn blocks_meet_at_the_barrier_of_their_grid() {
    let (first, second) = (grid_barrier(1), grid_barrier(2));
    let (kind, no_fence) = (CheckKind::BlockRace, barrier(1, MEET, "", WAIT));
    // The read comes behind the other block's write, and its second write behind the read.
    pair(kind, 5, 64, &exchange("GAP", &second), &first, MEET);
    pair(kind, 5, 64, &exchange(&first, "GAP"), &second, MEET);
    pair(kind, 5, 64, &exchange("GAP", &second), &first, &no_fence);
    // The fence is one warp's: what the block's other warps wrote has to come before it.
    let alone = barrier(1, "", FENCE, WAIT);
    pair(kind, 5, 64, &exchange("GAP", &second), &first, &alone);
    // A plain load sees the value, and nothing of what came before it.
    let weak = barrier(1, MEET, FENCE, "ld.u32 %g4, [%w+4];");
    pair(kind, 5, 64, &exchange("GAP", &second), &first, &weak);
    let volatile = barrier(1, MEET, FENCE, "ld.volatile.u32 %g4, [%w+4];");
    pair(kind, 5, 64, &exchange("GAP", &second), &volatile, MEET);
}

#[test]
fn a_report_names_both_blocks() {
    let device = Device::new(0);
    let body = exchange(MEET, MEET);
    device.cooperate(&cooperative(&body), 3, 64, [device.at(0), device.at(65536)]);
    let reports: Vec<CheckReport> = device.reports();
    let race = reports
        .iter()
        .find(|report| report.kind == CheckKind::BlockRace)
        .expect("a race");
    let text = race.to_string();
    let other = |block: u32| text.contains(&format!("by block ({block},0,0)"));
    let [own, ..] = race.site.block;
    assert!((0..3).any(|block| block != own && other(block)), "{text}");
    assert!(!other(own), "{text}");
}

#[test]
fn warps_and_lanes_inside_a_block_are_told_apart_from_other_blocks() {
    let body = "
mov.u32 %r0, s;
shl.b32 %r1, %t, 2;
add.u32 %r2, %r0, %r1;
st.shared.u32 [%r2], %t;
GAP
xor.b32 %r3, %r1, 128;
add.u32 %r4, %r0, %r3;
ld.shared.u32 %r5, [%r4];
st.global.u32 [%y], %r5;";
    pair(CheckKind::SharedRace, 5, 64, body, MEET, "");
    let lanes = body.replace("128", "4");
    pair(CheckKind::WarpRace, 5, 32, &lanes, "bar.warp.sync -1;", "");
    let body = "
st.global.u32 [%y], %t;
GAP
xor.b64 %rd1, %o, 128;
add.u64 %rd2, %y0, %rd1;
ld.global.u32 %r5, [%rd2];
st.global.u32 [%x], %r5;";
    pair(CheckKind::GlobalRace, 5, 64, body, MEET, "");
}

#[test]
fn memory_nobody_wrote() {
    let last_words = "
ld.global.u32 %r5, [%x+GAP];
add.u32 %r5, %r5, 1;
st.global.u32 [%y], %r5;";
    // 5 blocks of 64 threads, of whose words 65,536 bytes are written.
    let (good, bad) = ("64256", "64260");
    pair(CheckKind::UninitialisedGlobal, 5, 64, last_words, good, bad);
    // What another block writes behind the barrier counts.
    let body = exchange(&grid_barrier(1), &grid_barrier(2));
    let body = format!("setp.ge.u32 %p1, %i, GAP;\n@!%p1 bra WRITE;\nbra READ;\nWRITE:{body}")
        .replacen(
            "st.global.u32 [%y], %i;",
            "st.global.u32 [%y], %i;\nREAD:",
            1,
        );
    let body = body.replace(
        "st.global.u32 [%y], %r5;",
        "add.u32 %r5, %r5, 1;\nst.global.u32 [%x], %r5;",
    );
    pair(CheckKind::UninitialisedGlobal, 5, 64, &body, "320", "319");
    let shared = "
mov.u32 %r0, s;
shl.b32 %r1, %t, 2;
add.u32 %r2, %r0, %r1;
setp.lt.u32 %p1, %t, GAP;
@%p1 st.shared.u32 [%r2], %t;
ld.shared.u32 %r5, [%r2];
add.u32 %r5, %r5, 1;
st.global.u32 [%y], %r5;";
    pair(CheckKind::UninitialisedShared, 5, 64, shared, "64", "63");
}

#[test]
fn outside_of_what_was_handed_out() {
    let device = Device::new(1);
    let page = device.at(65536);
    let annotate = |address, bytes, what| {
        let own = device.context.device();
        own.annotate(address, bytes, "a page", what);
    };
    annotate(page, 4096, MemoryUse::Withheld);
    annotate(page, 1280, MemoryUse::HandedOut);
    let body = exchange(&grid_barrier(1), &grid_barrier(2));
    device.cooperate(&cooperative(&body), 5, 64, [page, page]);
    assert_eq!(device.kinds(), []);
    device.cooperate(&cooperative(&body), 6, 64, [page, page]);
    let kinds = device.kinds();
    assert!(kinds.contains(&CheckKind::OutOfBounds), "{kinds:?}");
}

/// The clusters of a cooperative grid have a barrier each, which orders nothing between them.
#[test]
fn clusters_of_a_grid_have_their_own_barriers() {
    let cluster = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;";
    // The neighbour in the cluster, then the block with that place in the next cluster.
    let neighbour = exchange("GAP", cluster).replace("add.u32 %r3, %b, 1;", "xor.b32 %r3, %b, 1;");
    let body = format!("// cluster\n{neighbour}");
    pair(CheckKind::BlockRace, 6, 64, &body, cluster, MEET);
    let further = exchange("GAP", &grid_barrier(2)).replace("%b, 1;", "%b, 2;");
    let body = format!("// cluster\n{further}");
    pair(
        CheckKind::BlockRace,
        6,
        64,
        &body,
        &grid_barrier(1),
        cluster,
    );
    let shared = "// cluster
mov.u32 %r0, s;
shl.b32 %r1, %t, 2;
add.u32 %r2, %r0, %r1;
st.shared.u32 [%r2], %t;
mov.u32 %r3, %cluster_ctarank;
xor.b32 %r3, %r3, 1;
mapa.shared::cluster.u32 %r4, %r2, %r3;
GAP
ld.shared::cluster.u32 %r5, [%r4];
st.global.u32 [%y], %r5;
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;";
    pair(CheckKind::SharedRace, 6, 64, shared, cluster, MEET);
}

/// Many rounds: what lies behind is compared and forgotten, and the last round's fault is still found.
#[test]
fn a_long_life_of_a_grid() {
    let body = format!(
        "
mov.u32 %r9, 0;
ROUND:
{}
setp.eq.u32 %p1, %r9, 500;
@%p1 bra LAST;
{}
LAST:
add.u32 %r9, %r9, 1;
setp.le.u32 %p2, %r9, 500;
@%p2 bra ROUND;
GAP
ld.global.u32 %r5, [%rd2];
add.u64 %rd3, %x, 8192;
st.global.u32 [%rd3], %r5;",
        exchange(&grid_barrier(1), &grid_barrier(2)),
        grid_barrier(3),
    );
    let device = Device::new(7);
    for (gap, expected) in [(grid_barrier(4), false), (String::new(), true)] {
        let text = cooperative(&body.replace("GAP", &gap));
        device.cooperate(&text, 4, 1024, [device.at(0), device.at(1 << 20)]);
        let kinds = device.kinds();
        assert_eq!(kinds.contains(&CheckKind::BlockRace), expected, "{kinds:?}");
    }
}
