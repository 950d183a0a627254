//! Faults inside a launch.

use crate::{Device, kernel};
use neap::emulator::CheckKind;

/// Runs `body` with `GAP` replaced by `good`, which must pass under three orders, and by `bad`, which must be reported as
/// `kind`, whatever else follows from it.
pub fn pair(kind: CheckKind, grid: u32, block: u32, body: &str, good: &str, bad: &str) {
    for seed in [0, 1, 2] {
        let device = Device::new(seed);
        let params = [device.at(0), device.at(1 << 20)];
        device
            .stream
            .copy_to_device(device.at(0), &[0; 65536])
            .unwrap();
        device.run(
            &kernel(4096, &body.replace("GAP", good)),
            grid,
            block,
            params,
        );
        assert_eq!(device.kinds(), [], "without the fault, seed {seed}");
        device.run(
            &kernel(4096, &body.replace("GAP", bad)),
            grid,
            block,
            params,
        );
        let kinds = device.kinds();
        assert!(
            kinds.contains(&kind),
            "{kind} is not reported, seed {seed}: {kinds:?}"
        );
    }
}

const EXCHANGE: &str = "
mov.u32 %r0, s;
shl.b32 %r1, %t, 2;
add.u32 %r2, %r0, %r1;
st.shared.u32 [%r2], %t;
GAP
xor.b32 %r3, %r1, 128;
add.u32 %r4, %r0, %r3;
ld.shared.u32 %r5, [%r4];
st.global.u32 [%y], %r5;";

#[test]
fn a_missing_barrier() {
    pair(CheckKind::SharedRace, 2, 64, EXCHANGE, "bar.sync 0;", "");
    // The arrival of one side alone orders nothing for it.
    let named = "bar.sync 1, 64;";
    pair(
        CheckKind::SharedRace,
        2,
        64,
        EXCHANGE,
        named,
        "bar.warp.sync -1;",
    );
}

/// Warp 0 writes a word a lane and arrives at an mbarrier; warp 1 waits for it and reads.
#[test]
fn an_mbarrier_that_is_not_waited_for() {
    let body = "
mov.u32 %r0, s;
shl.b32 %r1, %t, 2;
add.u32 %r2, %r0, %r1;
setp.ne.u32 %p1, %t, 0;
@%p1 bra READY;
mbarrier.init.shared.b64 [%r0], 32;
READY:
bar.sync 0;
setp.ge.u32 %p2, %t, 32;
@%p2 bra CONSUME;
st.shared.u32 [%r2+256], %t;
mbarrier.arrive.shared.b64 %rd1, [%r0];
ret;
CONSUME:
GAP
ld.shared.u32 %r5, [%r2+128];
st.global.u32 [%y], %r5;";
    let wait = "W: mbarrier.try_wait.parity.shared.b64 %p3, [%r0], 0; @!%p3 bra W;";
    pair(
        CheckKind::SharedRace,
        2,
        64,
        body,
        wait,
        "bar.warp.sync -1;",
    );
}

#[test]
fn a_missing_second_barrier() {
    let body = format!("{EXCHANGE}\nSECOND\nst.shared.u32 [%r2], %r5;")
        .replace("GAP", "bar.sync 0;")
        .replace("SECOND", "GAP");
    pair(CheckKind::SharedRace, 1, 64, &body, "bar.sync 0;", "");
}

#[test]
fn producers_arrive_and_consumers_wait() {
    // Warp 0 writes and only arrives; warp 1 waits and reads. The other way round, nothing is ordered.
    let body = "
mov.u32 %r0, s;
setp.ge.u32 %p1, %t, 32;
and.b32 %r6, %t, 31;
shl.b32 %r1, %r6, 2;
add.u32 %r2, %r0, %r1;
@%p1 bra consumer;
st.shared.u32 [%r2], %t;
GAP
bra done;
consumer:
bar.sync 1, 64;
ld.shared.u32 %r5, [%r2];
st.global.u32 [%y], %r5;
done:";
    let late = "bar.arrive 1, 64;\nst.shared.u32 [%r2], %t;";
    pair(
        CheckKind::SharedRace,
        1,
        64,
        body,
        "bar.arrive 1, 64;",
        late,
    );
}

#[test]
fn a_missing_bar_warp_sync() {
    let body = EXCHANGE.replace("128", "4");
    pair(CheckKind::WarpRace, 1, 32, &body, "bar.warp.sync -1;", "");
}

#[test]
fn shared_memory_nobody_wrote() {
    let body = "
mov.u32 %r0, s;
shl.b32 %r1, %t, 2;
add.u32 %r2, %r0, %r1;
setp.lt.u32 %p1, %t, GAP;
@%p1 st.shared.u32 [%r2], %t;
ld.shared.u32 %r5, [%r2];
add.u32 %r5, %r5, 1;
st.global.u32 [%y], %r5;";
    pair(CheckKind::UninitialisedShared, 3, 64, body, "64", "63");
}

#[test]
fn a_register_nobody_wrote() {
    let body = "
setp.lt.u32 %p1, %t, GAP;
@%p1 mov.u32 %r5, 7;
add.u32 %r6, %r5, 1;
st.global.u32 [%y], %r6;";
    pair(CheckKind::UninitialisedRegister, 1, 64, body, "64", "40");
}

#[test]
fn an_asynchronous_copy_not_waited_for() {
    let body = "
mov.u32 %r0, s;
shl.b32 %r1, %t, 4;
add.u32 %r2, %r0, %r1;
mul.wide.u32 %rd1, %t, 16;
add.u64 %rd2, %x0, %rd1;
cp.async.cg.shared.global [%r2], [%rd2], 16;
cp.async.commit_group;
cp.async.cg.shared.global [%r2+2048], [%rd2+2048], 16;
cp.async.commit_group;
GAP
bar.sync 0;
ld.shared.u32 %r5, [%r2+2048];
st.global.u32 [%y], %r5;";
    let (good, bad) = ("cp.async.wait_group 0;", "cp.async.wait_group 1;");
    pair(CheckKind::CopyNotWaitedFor, 2, 64, body, good, bad);
    // Waiting makes a lane's own copies visible to itself alone.
    let body = body.replace("bar.sync 0;", "").replace(
        "ld.shared.u32 %r5, [%r2+2048];",
        "xor.b32 %r3, %r1, 512;\nadd.u32 %r4, %r0, %r3;\nld.shared.u32 %r5, [%r4];",
    );
    let (good, bad) = ("cp.async.wait_all;\nbar.sync 0;", "cp.async.wait_all;");
    pair(CheckKind::SharedRace, 2, 64, &body, good, bad);
}

#[test]
fn device_memory_nobody_wrote() {
    let body = "
ld.global.u32 %r5, [%x+GAP];
add.u32 %r5, %r5, 1;
st.global.u32 [%y], %r5;";
    pair(
        CheckKind::UninitialisedGlobal,
        2,
        64,
        body,
        "65024",
        "65028",
    );
}

/// Copies carry on what is undefined, byte by byte, and the load is reported that brought it to its use.
#[test]
fn a_copy_of_undefined_memory_is_no_use() {
    // 64 threads; the last two bytes of each word are written, but for the first thread's.
    let define = "
setp.eq.u32 %p1, %t, 0;
@%p1 bra done;
st.global.u16 [%x+2], %t;
done:";
    let shared = "
mov.u32 %r0, s;
shl.b32 %r1, %t, 2;
add.u32 %r2, %r0, %r1;";
    let ways = [
        "ld.global.u32 %r5, [%x];\nst.global.u32 [%y], %r5;".to_owned(),
        "ld.global.b32 %r5, [%x];
        mov.b32 {%r6, %r7}, %r5;
        mov.b32 %r8, {%r6, %r7};
        mov.b64 %rd1, {%r8, %r8};
        mov.b64 {%r9, _}, %rd1;
        setp.eq.u32 %p1, %t, 1000;
        selp.b32 %r9, %r5, %r9, %p1;
        st.global.v2.u8 [%y], {%r9, %r9};
        shr.u32 %r10, %t, 8;
        st.global.b32 [%y], %r9;"
            .replace("%r6, %r7", "%h0, %h1"),
        format!(
            "{shared}
            cp.async.ca.shared.global [%r2], [%x], 4;
            cp.async.wait_all;
            ld.shared.u32 %r5, [%r2];
            st.shared.u32 [%r2+1024], %r5;
            ld.shared.u32 %r6, [%r2+1024];
            st.global.u32 [%y], %r6;"
        ),
    ];
    let use_of = |offset: u32, ty: &str| {
        format!(
            "ld.global.{ty} %r5, [%y+{offset}];\nadd.u32 %r6, %r5, 1;\nst.global.u32 [%x], %r6;"
        )
    };
    for (seed, copy) in ways.iter().enumerate() {
        let device = Device::new(seed as u64);
        let params = [device.at(0), device.at(1 << 20)];
        let module = |body: &str| kernel(4096, &format!(".reg .b16 %h<4>;\n{body}"));
        device.run(&module(define), 1, 64, params);
        device.run(&module(copy), 1, 64, params);
        assert_eq!(device.kinds(), [], "way {seed} only copies");
        let host = &mut [0; 2];
        device
            .stream
            .copy_to_host(host, device.at((1 << 20) + 6))
            .unwrap();
        assert_eq!(device.kinds(), [], "written before it was copied");
        device
            .stream
            .copy_to_host(host, device.at((1 << 20) + 2))
            .unwrap();
        assert_eq!(device.kinds(), [CheckKind::UninitialisedGlobal]);
        let text = module(&use_of(0, "u16"));
        device.run(&text, 1, 64, params);
        let reports = device.reports();
        assert_eq!(reports.len(), 1, "{reports:?}");
        let line = |part: &str| 1 + text.lines().position(|l| l.contains(part)).unwrap() as u32;
        assert_eq!(reports[0].site.line, line("ld.global"));
        let user = format!("PTX line {}", line("add.u32 %r6"));
        assert!(reports[0].message.contains(&user), "{}", reports[0]);
        assert_eq!((reports[0].site.lane, reports[0].times), (0, 2));
        device.run(&module(&use_of(2, "u16")), 1, 64, params);
        assert_eq!(device.reports()[0].times, 1, "the first thread's alone");
    }
}

#[test]
fn warps_of_a_block_that_meet_in_device_memory() {
    let body = "
st.global.u32 [%y], %t;
GAP
mul.wide.u32 %rd1, %i, 4;
xor.b64 %rd1, %rd1, 128;
add.u64 %rd2, %y0, %rd1;
ld.global.u32 %r5, [%rd2];
st.global.u32 [%x], %r5;";
    pair(CheckKind::GlobalRace, 2, 64, body, "bar.sync 0;", "");
}

#[test]
fn blocks_that_meet_in_device_memory() {
    // Each thread writes its own word, or its neighbour block's as well.
    let body = "
st.global.u32 [%y], %t;
st.global.u32 [%y+GAP], %t;";
    pair(CheckKind::BlockRace, 4, 32, body, "65536", "128");
}

#[test]
fn a_missing_fence_before_an_atomic() {
    // The last block to count itself reads what all have written.
    let body = "
setp.ne.u32 %p1, %t, 0;
st.global.u32 [%y], %t;
bar.sync 0;
@%p1 bra wait;
GAP
atom.global.add.u32 %r5, [%x0], 1;
mov.u32 %r6, s;
st.shared.u32 [%r6], %r5;
wait:
bar.sync 0;
mov.u32 %r6, s;
ld.shared.u32 %r5, [%r6];
setp.ne.u32 %p2, %r5, 3;
@%p2 bra done;
xor.b32 %r8, %b, 1;
mul.wide.u32 %rd3, %r8, 128;
add.u64 %rd1, %y0, %rd3;
ld.global.u32 %r7, [%rd1];
add.u64 %rd2, %x0, %o;
st.global.u32 [%rd2+4], %r7;
done:";
    for seed in [1, 2, 3] {
        for (fence, expected) in [("membar.gl;", false), ("", true)] {
            let device = Device::new(seed);
            let params = [device.at(0), device.at(65536)];
            device
                .stream
                .copy_to_device(device.at(0), &[0; 65536])
                .unwrap();
            device.run(&kernel(16, &body.replace("GAP", fence)), 4, 32, params);
            let kinds = device.kinds();
            let found = kinds.contains(&CheckKind::BlockRace);
            assert_eq!(found, expected, "fence {fence:?}, seed {seed}: {kinds:?}");
        }
    }
}

#[test]
fn atomics_do_not_race_with_each_other() {
    let body = "
atom.global.add.u32 %r5, [%x0], 1;
mov.u32 %r0, s;
setp.ne.u32 %p1, %t, 0;
@!%p1 st.shared.u32 [%r0], %t;
bar.sync 0;
atom.shared.add.u32 %r6, [%r0], 1;
GAP
ld.shared.u32 %r6, [%r0];";
    pair(CheckKind::SharedRace, 3, 64, body, "bar.sync 0;", "");
}

#[test]
fn a_barrier_that_not_all_warps_reach() {
    let device = Device::new(5);
    let body = "
setp.ge.u32 %p1, %t, 32;
@%p1 bra other;
bar.sync 0;
bra done;
other:
bar.sync 1;
done:";
    device.launch(
        &device.stream,
        &kernel(4, body),
        1,
        64,
        [device.at(0), device.at(0)],
    );
    assert!(
        device.stream.synchronize().is_err(),
        "a deadlock is a fault in any mode"
    );
    assert_eq!(device.kinds(), [CheckKind::Divergence]);
}

#[test]
fn a_report_names_its_place() {
    let device = Device::new(0);
    let ptx = kernel(512, &EXCHANGE.replace("GAP", ""))
        .replace("ld.shared.u32 %r5", ".loc 1 42 3\nld.shared.u32 %r5")
        + ".file 1 \"exchange.cu\"\n";
    device.run(&ptx, 3, 64, [device.at(0), device.at(65536)]);
    let reports = device.reports();
    let line = 1 + ptx
        .lines()
        .position(|line| line.contains("ld.shared"))
        .unwrap() as u32;
    let report = reports
        .iter()
        .find(|report| report.site.line == line && report.kind == CheckKind::SharedRace)
        .unwrap();
    assert_eq!(report.site.source.as_deref(), Some("exchange.cu:42"));
    assert_eq!(
        (report.site.kernel.as_str(), report.site.block),
        ("k", [0, 0, 0])
    );
    assert_eq!((report.site.warp, report.site.lane), (1, 0));
    let text = report.to_string();
    for part in [
        "not ordered by a barrier",
        "by warp 0",
        &format!("PTX line {line}"),
    ] {
        assert!(text.contains(part), "{part:?} is missing in {text:?}");
    }
}
