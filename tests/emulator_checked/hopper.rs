//! Faults inside launches of sm_90: clusters, mbarriers, and what goes on behind a warp's back.

use crate::kernels::pair;
use crate::{Device, kernel};
use neap::emulator::CheckKind;

/// Waits for the phase of that parity of the mbarrier at `%r0`.
fn wait(parity: u32) -> String {
    format!(
        "W{parity}: mbarrier.try_wait.parity.shared.b64 %p3, [%r0], {parity}; @!%p3 bra W{parity};"
    )
}

/// The first thread makes two mbarriers at `%r0` = `s` for so many arrivals; `%r2` is the thread's word behind it.
fn barrier(arrivals: u32) -> String {
    format!(
        "
mov.u32 %r0, s;
shl.b32 %r1, %t, 2;
add.u32 %r2, %r0, %r1;
setp.ne.u32 %p1, %t, 0;
@%p1 bra READY;
mbarrier.init.shared.b64 [%r0], {arrivals};
mbarrier.init.shared.b64 [%r0+8], {arrivals};
READY:
bar.sync 0;"
    )
}

const CLUSTER: &str = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;";
const RELAXED: &str = "barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;";

/// As `pair`, in clusters of two blocks.
fn cluster_pair(kind: CheckKind, body: &str, good: &str, bad: &str) {
    let body = format!("// cluster\n{body}");
    pair(kind, 4, 32, &body, good, bad);
}

/// Each block reads what its neighbour wrote into its own shared memory.
#[test]
fn blocks_of_a_cluster_meet_at_its_barrier() {
    let body = "
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
    cluster_pair(CheckKind::SharedRace, body, CLUSTER, "bar.sync 0;");
    // A relaxed arrival orders what came before a fence, and nothing else.
    let fenced = format!("fence.acq_rel.cluster;\n{RELAXED}");
    cluster_pair(CheckKind::SharedRace, body, &fenced, RELAXED);
    // The barrier in two phases: the second write races with the read behind the first.
    let again = body.replace(
        "st.global.u32 [%y], %r5;",
        "SECOND\nst.shared.u32 [%r2], 7;",
    );
    let again = again.replace("GAP", CLUSTER).replace("SECOND", "GAP");
    cluster_pair(CheckKind::SharedRace, &again, CLUSTER, "");
}

#[test]
fn a_report_names_the_block_of_the_cluster() {
    let device = Device::new(0);
    let body = "// cluster
mov.u32 %r0, s;
st.shared.u32 [%r0], %t;
setp.ne.u32 %p1, %b, 2;
@%p1 bra done;
mapa.shared::cluster.u32 %r4, %r0, 1;
ld.shared::cluster.u32 %r5, [%r4];
st.global.u32 [%y], %r5;
done:
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;";
    device.run(&kernel(64, body), 4, 1, [device.at(0), device.at(65536)]);
    let reports = device.reports();
    assert_eq!(reports.len(), 1, "{reports:?}");
    // Whichever came second stands in the site, the other one in the words.
    let text = reports[0].to_string();
    assert!(text.contains("of block (3,0,0)"), "{text}");
    assert!(matches!(reports[0].site.block, [2 | 3, 0, 0]), "{text}");
}

/// Warp 1 reads what warp 0 wrote before it arrived for the second phase.
#[test]
fn a_phase_of_an_mbarrier_orders_what_was_released_for_it() {
    let body = format!(
        "{}
mbarrier.arrive.shared.b64 %rd1, [%r0];
{}
setp.ge.u32 %p2, %t, 64;
@%p2 bra OTHER;
setp.ge.u32 %p2, %t, 32;
@%p2 bra CONSUME;
st.shared.u32 [%r2+256], %t;
OTHER:
mbarrier.arrive.shared.b64 %rd1, [%r0];
ret;
CONSUME:
mbarrier.arrive.shared.b64 %rd1, [%r0];
GAP
ld.shared.u32 %r5, [%r2+128];
st.global.u32 [%y], %r5;",
        barrier(96),
        wait(0),
    );
    pair(CheckKind::SharedRace, 2, 96, &body, &wait(1), "");
}

const FILL: &str = "
@%p1 bra FILLED;
mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r0], 256;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0+256], [%x0], 256, [%r0];
FILLED:";

#[test]
fn a_bulk_copy_that_is_not_waited_for() {
    let body = format!(
        "{}{FILL}
GAP
ld.shared.u32 %r5, [%r2+256];
st.global.u32 [%y], %r5;",
        barrier(1)
    );
    pair(
        CheckKind::CopyNotWaitedFor,
        2,
        64,
        &body,
        &wait(0),
        "bar.sync 0;",
    );
    // One warp's wait orders nothing for the other.
    let one_warp = format!(
        "setp.ge.u32 %p2, %t, 32;\n@%p2 bra PAST;\n{}\nPAST:",
        wait(0)
    );
    let device = Device::new(0);
    device
        .stream
        .copy_to_device(device.at(0), &[0; 65536])
        .unwrap();
    let text = kernel(4096, &body.replace("GAP", &one_warp));
    device.run(&text, 2, 64, [device.at(0), device.at(1 << 20)]);
    let kinds = device.kinds();
    assert!(
        kinds.contains(&CheckKind::SharedRace) || kinds.contains(&CheckKind::CopyNotWaitedFor),
        "{kinds:?}"
    );
}

#[test]
fn a_bulk_copy_into_a_buffer_that_is_still_read() {
    let body = format!(
        "{}{FILL}
{}
ld.shared.u32 %r5, [%r2+256];
GAP
{}
{}
ld.shared.u32 %r6, [%r2+256];
add.u32 %r5, %r5, %r6;
st.global.u32 [%y], %r5;",
        barrier(1),
        wait(0),
        FILL.replace("FILLED", "AGAIN").replace("[%r0]", "[%r0+8]"),
        wait(0).replace("[%r0]", "[%r0+8]").replace("W0", "W1"),
    );
    pair(CheckKind::SharedRace, 2, 64, &body, "bar.sync 0;", "");
}

#[test]
fn a_bulk_store_reads_until_it_is_waited_for_and_writes_for_longer() {
    let body = "
mov.u32 %r0, s;
shl.b32 %r1, %t, 2;
add.u32 %r2, %r0, %r1;
mul.wide.u32 %rd2, %b, 256;
add.u64 %rd2, %y0, %rd2;
st.shared.u32 [%r2], %t;
fence.proxy.async.shared::cta;
bar.sync 0;
setp.ne.u32 %p1, %t, 0;
@%p1 bra STORED;
cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r0], 256;
cp.async.bulk.commit_group;
GAP
STORED:
bar.sync 0;";
    let reuse = format!("{body}\nst.shared.u32 [%r2], 0;");
    let read = "cp.async.bulk.wait_group.read 0;";
    pair(CheckKind::SharedRace, 2, 64, &reuse, read, "");
    let late = "cp.async.bulk.wait_group.read 1;";
    pair(CheckKind::SharedRace, 2, 64, &reuse, read, late);
    let result = format!("{body}\nld.global.u32 %r5, [%y];\nst.global.u32 [%x], %r5;");
    let whole = "cp.async.bulk.wait_group 0;";
    pair(CheckKind::GlobalRace, 2, 64, &result, whole, read);
}

/// Bulk copies carry on what is undefined: half of what they bring was written.
#[test]
fn a_bulk_copy_of_undefined_memory_is_no_use() {
    let device = Device::new(1);
    device
        .stream
        .copy_to_device(device.at(0), &[1; 128])
        .unwrap();
    let body = format!(
        "{}{FILL}
{}
fence.proxy.async.shared::cta;
bar.sync 0;
@%p1 bra STORED;
cp.async.bulk.global.shared::cta.bulk_group [%y0], [%r0+256], 256;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
STORED:",
        barrier(1),
        wait(0)
    );
    let params = [device.at(0), device.at(1 << 20)];
    device.run(&kernel(4096, &body), 1, 64, params);
    assert_eq!(device.kinds(), []);
    let mut bytes = [0; 129];
    let target = device.at(1 << 20);
    device
        .stream
        .copy_to_host(&mut bytes[..128], target)
        .unwrap();
    assert_eq!((device.kinds(), bytes[127]), (vec![], 1));
    device.stream.copy_to_host(&mut bytes, target).unwrap();
    assert_eq!(device.kinds(), [CheckKind::UninitialisedGlobal]);
}

/// Each block stores into its neighbour's shared memory, of which an mbarrier there is told.
#[test]
fn an_asynchronous_store_that_is_not_waited_for() {
    let body = format!(
        "{}
@%p1 bra TOLD;
mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r0], 128;
TOLD:
{CLUSTER}
mov.u32 %r3, %cluster_ctarank;
xor.b32 %r3, %r3, 1;
mapa.shared::cluster.u32 %r4, %r2, %r3;
mapa.shared::cluster.u32 %r5, %r0, %r3;
st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r4+256], %t, [%r5];
GAP
ld.shared.u32 %r6, [%r2+256];
st.global.u32 [%y], %r6;
{CLUSTER}",
        barrier(1)
    );
    cluster_pair(CheckKind::SharedRace, &body, &wait(0), CLUSTER);
}

/// A 64 x 8 x 16 product of operands that all threads write; `%rd3` and `%rd4` are its descriptors.
const OPERANDS: &str = "
mov.u32 %r0, s;
shl.b32 %r1, %t, 2;
add.u32 %r2, %r0, %r1;
st.shared.u32 [%r2], 0;
st.shared.u32 [%r2+512], 0;
st.shared.u32 [%r2+1024], 0;
st.shared.u32 [%r2+1536], 0;
st.shared.u32 [%r2+2048], 0;
fence.proxy.async.shared::cta;
bar.sync 0;
shr.u32 %r3, %r0, 4;
cvt.u64.u32 %rd2, %r3;
or.b64 %rd3, %rd2, 0x0000001000080000;
add.u64 %rd4, %rd3, 128;
setp.ne.u32 %p2, %t, %t;
mov.f32 %f0, 0f00000000;
mov.f32 %f1, 0f00000000;
mov.f32 %f2, 0f00000000;
mov.f32 %f3, 0f00000000;";
const PRODUCT: &str = "
wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %rd3, %rd4, %p2, 1, 1, 0, 0;
wgmma.commit_group.sync.aligned;";
const FENCE: &str = "wgmma.fence.sync.aligned;";
const DONE: &str = "wgmma.wait_group.sync.aligned 0;";

#[test]
fn a_matrix_product_that_is_not_waited_for() {
    let use_result = "st.global.f32 [%y], %f0;";
    let body = format!("{OPERANDS}\n{FENCE}{PRODUCT}\nGAP\n{use_result}");
    let late = "wgmma.wait_group.sync.aligned 1;";
    pair(CheckKind::ResultNotWaitedFor, 1, 128, &body, DONE, late);
    // A second product may add to the first one's result; only the first is known to be complete.
    // Descriptors are read at once, and may change.
    let body =
        format!("{OPERANDS}\n{FENCE}{PRODUCT}\nadd.u64 %rd4, %rd4, 0;{PRODUCT}\nGAP\n{use_result}");
    pair(CheckKind::ResultNotWaitedFor, 1, 128, &body, DONE, late);
}

#[test]
fn a_matrix_product_without_a_fence() {
    let body = format!("{OPERANDS}\nGAP{PRODUCT}\n{DONE}\nst.global.f32 [%y], %f0;");
    pair(CheckKind::MissingFence, 1, 128, &body, FENCE, "");
}

#[test]
fn operands_of_a_matrix_product_overwritten_too_early() {
    let body = format!(
        "{OPERANDS}\n{FENCE}{PRODUCT}\nGAP\nbar.sync 0;\nst.shared.u32 [%r2+2048], 1;\n{DONE}"
    );
    pair(CheckKind::SharedRace, 1, 128, &body, DONE, "");
    // The operands must be there before the product begins.
    let body = OPERANDS.replace("bar.sync 0;", "GAP");
    let body = format!("{body}\n{FENCE}{PRODUCT}\n{DONE}");
    pair(
        CheckKind::SharedRace,
        1,
        128,
        &body,
        "bar.sync 0;",
        "bar.warp.sync -1;",
    );
}

/// Warps of a block that meet through a word in device memory, as blocks do.
#[test]
fn a_flag_between_warps_needs_a_fence() {
    let body = "
setp.ge.u32 %p1, %t, 32;
@%p1 bra CONSUME;
st.global.u32 [%y], %t;
GAP
setp.eq.u32 %p2, %t, 0;
@%p2 atom.global.exch.b32 %r6, [%x0], 1;
ret;
CONSUME:
W: ld.volatile.global.u32 %r5, [%x0];
setp.eq.u32 %p3, %r5, 0;
@%p3 bra W;
membar.gl;
ld.global.u32 %r6, [%y+-128];
st.global.u32 [%x], %r6;";
    pair(CheckKind::GlobalRace, 1, 64, body, "membar.gl;", "");
}
