//! Loads, stores, state spaces, atomics, variables, and what happens to addresses that are wrong.

use super::harness::{Launch, Memory, kernel, launch, load, run_body};
use neap::emulator::CheckKind;
use neap::emulator::exec::{AccessError, Fault, GranuleTable, Space};

const TID: &str = "mov.u32 %r50, %tid.x; cvt.u64.u32 %rd50, %r50;\nld.param.u64 %rd40, [p0]; ld.param.u64 %rd41, [p1];\n";

/// 32 lanes copy `bytes` bytes each from p0 to p1 with the given statements; lane l takes piece `order[l]`.
fn copies(bytes: usize, load_store: &str) {
    for stride in [1usize, 5, 0] {
        let mut memory = Memory::new(1 << 16);
        let data: Vec<u8> = (0..32 * 8 * bytes)
            .map(|i| (i * 37 + i / 256) as u8)
            .collect();
        let (source, target) = (memory.put(&data), memory.alloc(32 * bytes));
        let piece = format!(
            "mul.lo.u32 %r51, %r50, {stride}; mul.wide.u32 %rd51, %r51, {bytes}; add.s64 %rd51, %rd40, %rd51; mul.wide.u32 %rd52, %r50, {bytes}; add.s64 %rd52, %rd41, %rd52;\n"
        );
        for lanes in [32u32, 19] {
            run_body(
                &mut memory,
                &format!("{TID}{piece}{load_store}"),
                &Launch {
                    params: &[source, target],
                    block: [lanes, 1, 1],
                    ..Launch::default()
                },
            )
            .expect("it runs");
            for lane in 0..lanes as usize {
                let got = memory.get::<u8>(target + (lane * bytes) as u64, bytes);
                assert_eq!(
                    got,
                    data[lane * stride * bytes..][..bytes],
                    "{load_store}, lane {lane}, stride {stride}"
                );
            }
            memory.write(target, &vec![0u8; 32 * bytes]);
        }
    }
}

#[test]
fn every_width_of_load_and_store() {
    copies(1, "ld.global.u8 %rs1, [%rd51]; st.global.u8 [%rd52], %rs1;");
    copies(
        2,
        "ld.global.nc.u16 %rs1, [%rd51]; st.global.u16 [%rd52], %rs1;",
    );
    copies(4, "ld.global.f32 %f1, [%rd51]; st.global.f32 [%rd52], %f1;");
    copies(
        8,
        "ld.global.L1::no_allocate.b64 %rd1, [%rd51]; st.global.cs.b64 [%rd52], %rd1;",
    );
    copies(
        2,
        "ld.global.v2.u8 {%rs1, %rs2}, [%rd51]; st.global.v2.u8 [%rd52], {%rs1, %rs2};",
    );
    copies(
        4,
        "ld.global.v4.b8 {%rs1, %rs2, %rs3, %rs4}, [%rd51]; st.global.v4.b8 [%rd52], {%rs1, %rs2, %rs3, %rs4};",
    );
    copies(
        4,
        "ld.global.v2.u16 {%rs1, %rs2}, [%rd51]; st.global.v2.u16 [%rd52], {%rs1, %rs2};",
    );
    copies(
        8,
        "ld.global.v4.u16 {%rs1, %rs2, %rs3, %rs4}, [%rd51]; st.global.v4.u16 [%rd52], {%rs1, %rs2, %rs3, %rs4};",
    );
    copies(
        8,
        "ld.global.nc.v2.f32 {%f1, %f2}, [%rd51]; st.global.v2.f32 [%rd52], {%f1, %f2};",
    );
    copies(
        16,
        "ld.global.nc.v4.u32 {%r1, %r2, %r3, %r4}, [%rd51]; st.global.v4.u32 [%rd52], {%r1, %r2, %r3, %r4};",
    );
    copies(
        16,
        "ld.global.v2.u64 {%rd1, %rd2}, [%rd51]; st.global.v2.u64 [%rd52], {%rd1, %rd2};",
    );
    copies(
        16,
        ".reg .b128 %q<2>; ld.global.b128 %q0, [%rd51]; mov.b128 {%rd1, %rd2}, %q0; mov.b128 %q1, {%rd1, %rd2}; st.global.b128 [%rd52], %q1;",
    );
    copies(4, "ld.u32 %r1, [%rd51]; st.u32 [%rd52], %r1;");
    copies(
        4,
        "ld.volatile.global.u32 %r1, [%rd51]; st.release.gpu.global.u32 [%rd52], %r1;",
    );
    // The destination may be the address.
    copies(
        8,
        "ld.global.b64 %rd51, [%rd51]; st.global.b64 [%rd52], %rd51;",
    );
}

#[test]
fn narrow_loads_extend_and_narrow_stores_truncate() {
    let mut memory = Memory::new(1 << 16);
    let source = memory.put(&[0x80u8, 0xff, 0x7f, 0x12, 0xfe, 0xff, 0xff, 0x80]);
    let out = memory.alloc(256);
    let body = "ld.param.u64 %rd40, [p0]; ld.param.u64 %rd41, [p1];
        ld.global.s8 %r1, [%rd40]; st.global.s32 [%rd41], %r1;
        ld.global.u8 %r2, [%rd40]; st.global.s32 [%rd41+4], %r2;
        ld.global.s16 %r3, [%rd40+4]; st.global.s32 [%rd41+8], %r3;
        ld.global.u16 %r4, [%rd40+4]; st.global.s32 [%rd41+12], %r4;
        ld.global.s32 %rd1, [%rd40+4]; st.global.u64 [%rd41+16], %rd1;
        ld.global.u32 %rd2, [%rd40+4]; st.global.u64 [%rd41+24], %rd2;
        ld.global.s8 %rd3, [%rd40+1]; st.global.u64 [%rd41+32], %rd3;
        mov.u64 %rd4, 0x1122334455667788; st.global.u32 [%rd41+40], %rd4; st.global.u8 [%rd41+44], %rd4; st.global.u16 [%rd41+46], %rd4;";
    run_body(
        &mut memory,
        body,
        &Launch {
            params: &[source, out],
            block: [1, 1, 1],
            ..Launch::default()
        },
    )
    .expect("it runs");
    assert_eq!(memory.get::<i32>(out, 4), [-128, 128, -2, 0xfffe]);
    assert_eq!(
        memory.get::<i64>(out + 16, 3),
        [i64::from(0x80ff_fffeu32 as i32), 0x80ff_fffe, -1]
    );
    assert_eq!(memory.get::<u32>(out + 40, 1), [0x5566_7788]);
    assert_eq!(memory.get::<u8>(out + 44, 1), [0x88]);
    assert_eq!(memory.get::<u16>(out + 46, 1), [0x7788]);
}

#[test]
fn shared_local_and_generic_addresses() {
    let mut memory = Memory::new(1 << 16);
    let out = memory.alloc(4 * 64 * 5);
    // Every lane writes its number everywhere, and reads its neighbour's shared word through a generic pointer.
    let body = ".shared .align 4 .b8 s[256]; .local .align 8 .b8 stack[16];
        ld.param.u64 %rd40, [p0]; mov.u32 %r50, %tid.x; mul.wide.u32 %rd50, %r50, 4; add.s64 %rd41, %rd40, %rd50;
        mov.u32 %r1, s; shl.b32 %r2, %r50, 2; add.s32 %r3, %r1, %r2; st.shared.u32 [%r3], %r50;
        mov.u64 %rd1, stack; cvta.local.u64 %rd2, %rd1; st.u32 [%rd2+8], %r50; st.local.u32 [%rd1+4], %r2;
        bar.sync 0;
        xor.b32 %r4, %r2, 4; cvt.u64.u32 %rd3, %r4; mov.u64 %rd4, s; cvta.shared.u64 %rd5, %rd4; add.s64 %rd6, %rd5, %rd3;
        ld.u32 %r5, [%rd6]; st.global.u32 [%rd41], %r5;
        ld.local.u32 %r6, [stack+8]; st.global.u32 [%rd41+256], %r6;
        ld.u32 %r7, [%rd2+4]; st.global.u32 [%rd41+512], %r7;
        and.b32 %r8, %r50, 1; setp.ne.u32 %p1, %r8, 0; selp.b64 %rd7, %rd6, %rd41, %p1; ld.u32 %r9, [%rd7]; st.global.u32 [%rd41+768], %r9;
        cvta.to.shared.u64 %rd8, %rd6; ld.shared.u32 %r10, [%rd8]; st.global.u32 [%rd41+1024], %r10;
        isspacep.shared %p2, %rd6; isspacep.global %p3, %rd6; isspacep.local %p4, %rd2; isspacep.global %p5, %rd41;
        not.pred %p3, %p3; and.pred %p2, %p2, %p3; and.pred %p2, %p2, %p4; and.pred %p2, %p2, %p5; @!%p2 trap;";
    run_body(
        &mut memory,
        body,
        &Launch {
            params: &[out],
            block: [64, 1, 1],
            ..Launch::default()
        },
    )
    .expect("it runs");
    let lanes = |f: fn(u32) -> u32| (0..64).map(f).collect::<Vec<u32>>();
    assert_eq!(memory.get::<u32>(out, 64), lanes(|l| l ^ 1));
    assert_eq!(memory.get::<u32>(out + 256, 64), lanes(|l| l));
    assert_eq!(memory.get::<u32>(out + 512, 64), lanes(|l| 4 * l));
    assert_eq!(memory.get::<u32>(out + 768, 64), lanes(|l| l ^ 1));
    assert_eq!(memory.get::<u32>(out + 1024, 64), lanes(|l| l ^ 1));
}

#[test]
fn variables_are_initialised_and_parameters_may_be_indexed() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64
        .const .align 4 .f32 table[4] = {0f3F800000, 2.0, -0f40400000, 4};
        .global .align 8 .u64 pointers[3] = {table, generic(table)+8, 7};
        .global .align 2 .b8 text[6] = {104, 105, -1, 0x21};
        .visible .entry k(.param .align 8 .b8 s[40]) {
        .reg .b64 %rd<20>; .reg .b32 %r<20>; .reg .f32 %f<8>;
        ld.param.u64 %rd1, [s]; ld.param.v2.u32 {%r1, %r2}, [s+8]; ld.param.s8 %r3, [s+16];
        mov.b64 %rd2, s; mov.u32 %r4, %tid.x; mul.wide.u32 %rd3, %r4, 8; add.s64 %rd4, %rd2, %rd3; ld.param.u64 %rd5, [%rd4+24];
        add.s64 %rd6, %rd1, %rd3; st.global.u64 [%rd6], %rd5;
        ld.global.u64 %rd7, [pointers+8]; ld.global.f32 %f1, [%rd7]; ld.const.f32 %f2, [table+4];
        mov.u64 %rd8, text; cvta.global.u64 %rd9, %rd8; ld.u8 %r5, [%rd9+2]; ld.global.u8 %r6, [text+5];
        st.global.f32 [%rd1+16], %f1; st.global.f32 [%rd1+20], %f2; st.global.u32 [%rd1+24], %r5; st.global.u32 [%rd1+28], %r6;
        st.global.u32 [%rd1+32], %r1; st.global.u32 [%rd1+36], %r2; st.global.s32 [%rd1+40], %r3; ret; }";
    let mut memory = Memory::new(1 << 16);
    let module = load(&mut memory, text).expect("it loads");
    let k = module.kernel("k").expect("it is there");
    assert_eq!(
        (k.param_bytes, k.params.len(), k.params[0].align),
        (40, 1, 8)
    );
    let (address, bytes) = module.global("pointers").expect("it is there");
    assert_eq!(bytes, 24);
    let (table, _) = module.global("table").expect("it is there");
    assert_eq!(memory.get::<u64>(address, 3), [table, table + 8, 7]);
    let out = memory.alloc(64);
    let params = [out, 5 | 6 << 32, 0x80, 111, 222];
    launch(
        &module,
        "k",
        &memory,
        &Launch {
            params: &params,
            block: [2, 1, 1],
            ..Launch::default()
        },
    )
    .expect("it runs");
    assert_eq!(memory.get::<u64>(out, 2), [111, 222]);
    assert_eq!(memory.get::<f32>(out + 16, 2), [-3.0, 2.0]);
    assert_eq!(memory.get::<i32>(out + 24, 5), [255, 0, 5, 6, -128]);
}

fn fault_of(memory: &mut Memory, body: &str, params: &[u64], block: u32) -> Fault {
    run_body(
        memory,
        body,
        &Launch {
            params,
            block: [block, 1, 1],
            ..Launch::default()
        },
    )
    .expect_err("it must fault")
}

#[test]
fn wrong_addresses_are_faults_that_say_where() {
    let mut memory = Memory::new(3 * 4096);
    let good = memory.alloc(4096);
    let read_only = memory.alloc(4096);
    let reserved = memory.alloc(4096);
    memory.set_flags(read_only, 4096, GranuleTable::READ | GranuleTable::RESERVED);
    memory.set_flags(reserved, 4096, GranuleTable::RESERVED);
    // Lane 21 of warp 1 uses p1, the others p0.
    let pick = "ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 53; selp.b64 %rd3, %rd2, %rd1, %p1;\n";
    for (address, reason) in [
        (0, AccessError::Null),
        (8, AccessError::Null),
        (good - 16, AccessError::Unmapped),
        (reserved, AccessError::ReservedOnly),
        (1 << 45, AccessError::Unmapped),
    ] {
        for (access, write) in [
            ("ld.global.u32 %r2, [%rd3];", false),
            ("st.global.u32 [%rd3], %r1;", true),
            ("ld.u32 %r2, [%rd3];", false),
            ("atom.global.add.u32 %r2, [%rd3], 1;", true),
        ] {
            let fault = fault_of(
                &mut memory,
                &format!("{pick}{access}"),
                &[good, address],
                64,
            );
            let Fault::IllegalAddress {
                site,
                space,
                address: at,
                bytes,
                write: w,
                reason: why,
            } = &fault
            else {
                panic!("{fault}")
            };
            assert_eq!(
                (*space, *at, *bytes, *w, *why),
                (Space::Global, address, 4, write, reason),
                "{fault}"
            );
            assert_eq!(
                (site.kernel.as_str(), site.block, site.warp, site.lane),
                ("k", [0, 0, 0], 1, 21),
                "{fault}"
            );
            assert!(
                site.statement.starts_with(&access[..8]) && site.line > 5,
                "{fault}"
            );
        }
    }
    let fault = fault_of(
        &mut memory,
        &format!("{pick}st.global.u32 [%rd3], %r1;"),
        &[good, read_only],
        64,
    );
    assert!(
        matches!(
            fault,
            Fault::IllegalAddress {
                reason: AccessError::Denied,
                write: true,
                ..
            }
        ),
        "{fault}"
    );
    let fault = fault_of(
        &mut memory,
        &format!("{pick}ld.global.v4.u32 {{%r2,%r3,%r4,%r5}}, [%rd3];"),
        &[good, good + 8],
        64,
    );
    assert!(
        matches!(&fault, Fault::Misaligned { site, space: Space::Global, bytes: 16, .. } if site.lane == 21),
        "{fault}"
    );
    // An inactive lane's address does not matter.
    run_body(
        &mut memory,
        &format!("{pick}@!%p1 ld.global.u32 %r2, [%rd3];"),
        &Launch {
            params: &[good, 0],
            block: [64, 1, 1],
            ..Launch::default()
        },
    )
    .expect("masked");
    let text = fault.to_string();
    assert!(
        text.contains("kernel k") && text.contains("lane 21") && text.contains("PTX line"),
        "{text}"
    );
}

#[test]
fn shared_and_local_bounds() {
    let mut memory = Memory::new(4096);
    for (body, shared, ok) in [
        ("mov.u32 %r2, 60; st.shared.u32 [%r2], %r2;", 64, true),
        ("mov.u32 %r2, 64; st.shared.u32 [%r2], %r2;", 64, false),
        (
            "mov.u32 %r2, 56; st.shared.v2.u32 [%r2], {%r2, %r2};",
            64,
            true,
        ),
        ("mov.u32 %r2, 60; ld.shared.u32 %r3, [%r2+4];", 64, false),
        ("mov.u32 %r2, 0; ld.shared.u32 %r3, [%r2+-4];", 64, false),
        (
            ".local .align 4 .b8 stack[16]; ld.local.u32 %r3, [stack+12];",
            0,
            true,
        ),
        (
            ".local .align 4 .b8 stack[16]; ld.local.u32 %r3, [stack+16];",
            0,
            false,
        ),
        ("mov.u32 %r2, 0; ld.shared.u32 %r3, [%r2];", 0, false),
    ] {
        let result = run_body(
            &mut memory,
            body,
            &Launch {
                shared,
                ..Launch::default()
            },
        );
        match result {
            Ok(_) => assert!(ok, "{body}"),
            Err(fault) => assert!(
                !ok && matches!(fault, Fault::OutOfBounds { .. }),
                "{body}: {fault}"
            ),
        }
    }
    let fault = run_body(
        &mut memory,
        "mov.u32 %r2, 2; ld.shared.u32 %r3, [%r2];",
        &Launch {
            shared: 64,
            ..Launch::default()
        },
    )
    .expect_err("misaligned");
    assert!(
        matches!(
            fault,
            Fault::Misaligned {
                space: Space::Shared,
                ..
            }
        ),
        "{fault}"
    );
}

#[test]
fn dynamic_shared_memory_follows_the_static_part_at_its_alignment() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.extern .shared .align 512 .b8 dyn[];
        .visible .entry k(.param .u64 p0) { .reg .b32 %r<4>; .reg .b64 %rd<4>; .shared .align 4 .b8 s[20];
        ld.param.u64 %rd1, [p0]; mov.u32 %r1, dyn; mov.u32 %r2, s; mov.u32 %r3, %dynamic_smem_size;
        st.global.u32 [%rd1], %r1; st.global.u32 [%rd1+4], %r2; st.global.u32 [%rd1+8], %r3; st.shared.u32 [dyn+1020], %r1; ret; }";
    let mut memory = Memory::new(4096);
    let module = load(&mut memory, text).expect("it loads");
    let out = memory.alloc(16);
    launch(
        &module,
        "k",
        &memory,
        &Launch {
            params: &[out],
            shared: 1024,
            ..Launch::default()
        },
    )
    .expect("it runs");
    assert_eq!(memory.get::<u32>(out, 3), [512, 0, 1024]);
}

#[test]
fn poison_shows_what_was_never_written() {
    let mut memory = Memory::new(4096);
    let out = memory.alloc(512);
    let body = "ld.param.u64 %rd1, [p0]; mov.u32 %r1, dyn; ld.shared.u32 %r2, [%r1]; st.global.u32 [%rd1], %r2; st.global.f32 [%rd1+4], %f7;";
    let mut how = Launch {
        params: &[out],
        shared: 64,
        ..Launch::default()
    };
    how.collect();
    run_body(&mut memory, body, &how).expect("it runs");
    how.assert_reported(&[CheckKind::UninitialisedRegister]);
    assert_eq!(memory.get::<u32>(out, 2), [u32::MAX, u32::MAX]);
    assert!(memory.get::<f32>(out, 2).iter().all(|v| v.is_nan()));
    // Nor does a block see what the one before it wrote through a generic address that names the block's rank.
    let body = "ld.param.u64 %rd1, [p0]; mov.u32 %r1, dyn; mov.u32 %r3, %ctaid.x; setp.eq.u32 %p1, %r3, 1; @%p1 bra READ;
        cvta.shared.u64 %rd2, 0; cvt.u64.u32 %rd3, %r1; add.u64 %rd2, %rd2, %rd3; mapa.u64 %rd4, %rd2, 0; st.u32 [%rd4], 7; ret;
        READ: ld.shared.u32 %r2, [%r1]; st.global.u32 [%rd1], %r2;";
    let mut how = Launch {
        params: &[out],
        grid: [2, 1, 1],
        shared: 64,
        ..Launch::default()
    };
    how.options.threads = 1;
    run_body(&mut memory, body, &how).expect("it runs");
    assert_eq!(memory.get::<u32>(out, 1), [u32::MAX]);
}

#[test]
fn atomics() {
    let mut memory = Memory::new(1 << 16);
    let cells = memory.put(&[
        0u32,
        100,
        100,
        0x8000_0000,
        0x7fff_ffff,
        0,
        0xffff_ffff,
        0,
        5,
        3,
        0,
        0,
    ]);
    let wide = memory.put(&[0u64, u64::MAX, 0]);
    let old = memory.alloc(4 * 256);
    let body = "ld.param.u64 %rd1, [p0]; ld.param.u64 %rd2, [p1]; ld.param.u64 %rd3, [p2];
        mov.u32 %r1, %tid.x; mov.u32 %r10, %ctaid.x; mov.u32 %r11, %ntid.x; mad.lo.u32 %r1, %r10, %r11, %r1; cvt.u64.u32 %rd10, %r1; add.u32 %r2, %r1, 1; cvt.rn.f32.u32 %f1, %r2;
        atom.global.add.u32 %r3, [%rd1], 1; mul.wide.u32 %rd4, %r3, 4; add.s64 %rd5, %rd3, %rd4; atom.global.exch.b32 %r4, [%rd5], 1;
        red.global.min.u32 [%rd1+4], %r1; red.global.max.u32 [%rd1+8], %r2; red.global.max.s32 [%rd1+12], %r2; red.global.min.s32 [%rd1+16], %r2;
        red.relaxed.gpu.global.add.f32 [%rd1+20], %f1; red.global.and.b32 [%rd1+24], 0xf0; red.global.or.b32 [%rd1+28], %r1;
        atom.global.inc.u32 %r5, [%rd1+32], 6; atom.global.dec.u32 %r6, [%rd1+36], 6; atom.cas.b32 %r7, [%rd1+40], 0, %r2; red.global.xor.b32 [%rd1+44], %r1;
        atom.global.add.u64 %rd6, [%rd2], %rd10; red.global.min.u64 [%rd2+8], %rd10; red.add.u64 [%rd2+16], 3;";
    let how = Launch {
        params: &[cells, wide, old],
        block: [64, 1, 1],
        grid: [4, 1, 1],
        ..Launch::default()
    };
    let counters = run_body(&mut memory, body, &how).expect("it runs");
    let got = memory.get::<u32>(cells, 12);
    let f = memory.get::<f32>(cells + 20, 1)[0];
    assert_eq!(got[..5], [256, 0, 256, 256, 1]);
    assert_eq!(f, (1..=256).sum::<u32>() as f32);
    // inc wraps behind 6: 7 states from 5 on; dec: from 3 down to 0, then 6.
    let inc = (0..256).fold(5u32, |v, _| if v >= 6 { 0 } else { v + 1 });
    let dec = (0..256).fold(3u32, |v, _| if v == 0 || v > 6 { 6 } else { v - 1 });
    assert_eq!((got[6], got[7], got[8], got[9]), (0xf0, 255, inc, dec));
    assert!((1..=256).contains(&got[10]));
    assert_eq!(got[11], (0..256).fold(0, |x, y| x ^ y));
    assert_eq!(memory.get::<u64>(wide, 3), [255 * 128, 0, 3 * 256]);
    assert!(
        memory.get::<u32>(old, 256).iter().all(|&v| v == 1),
        "each old value was handed out once"
    );
    assert_eq!(counters.atomics, 256 * 16);
}

#[test]
fn shared_atomics_and_packed_halves() {
    let mut memory = Memory::new(1 << 16);
    let out = memory.alloc(64);
    let body = "ld.param.u64 %rd1, [p0]; mov.u32 %r1, dyn; mov.u32 %r2, %tid.x; setp.eq.u32 %p1, %r2, 0; @%p1 st.shared.u32 [%r1], 0; @%p1 st.shared.u64 [%r1+8], 0; @%p1 st.shared.u32 [%r1+16], 0; bar.sync 0;
        atom.shared.add.u32 %r3, [%r1], %r2; cvt.u64.u32 %rd2, %r2; atom.shared.max.u64 %rd3, [%r1+8], %rd2; red.shared.add.noftz.bf16x2 [%r1+16], 0x3f803f00; bar.sync 0;
        ld.shared.u32 %r4, [%r1]; ld.shared.u64 %rd4, [%r1+8]; ld.shared.u32 %r5, [%r1+16]; st.global.u32 [%rd1], %r4; st.global.u32 [%rd1+4], %r5; st.global.u64 [%rd1+8], %rd4;";
    run_body(
        &mut memory,
        body,
        &Launch {
            params: &[out],
            block: [128, 1, 1],
            shared: 32,
            ..Launch::default()
        },
    )
    .expect("it runs");
    // 128 halves and 128 ones, exact in bf16 up to 64 and 128.
    assert_eq!(memory.get::<u32>(out, 2), [127 * 64, 0x4300_4280]);
    assert_eq!(memory.get::<u64>(out + 8, 1), [127]);
}

#[test]
fn traffic_is_counted() {
    let mut memory = Memory::new(1 << 16);
    let data = memory.alloc(8192);
    let run = |memory: &mut Memory, body: &str| {
        let mut how = Launch {
            params: &[data],
            shared: 8192,
            ..Launch::default()
        };
        how.options.counters = true;
        run_body(
            memory,
            &format!(
                "ld.param.u64 %rd1, [p0]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; {body}"
            ),
            &how,
        )
        .expect("it runs")
    };
    let c = run(
        &mut memory,
        "add.s64 %rd3, %rd1, %rd2; ld.global.u32 %r2, [%rd3];",
    );
    assert_eq!(
        (
            c.global_load_requests,
            c.global_load_bytes,
            c.global_load_sectors,
            c.global_load_unique_bytes
        ),
        (1, 128, 4, 128)
    );
    let c = run(
        &mut memory,
        "add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3+16], %r1;",
    );
    assert_eq!(
        (
            c.global_store_requests,
            c.global_store_sectors,
            c.global_store_unique_bytes
        ),
        (1, 5, 128)
    );
    let c = run(
        &mut memory,
        "shl.b64 %rd3, %rd2, 5; add.s64 %rd3, %rd1, %rd3; ld.global.u32 %r2, [%rd3];",
    );
    assert_eq!(
        (c.global_load_sectors, c.global_load_unique_bytes),
        (32, 128)
    );
    let c = run(
        &mut memory,
        "ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd1];",
    );
    assert_eq!(
        (
            c.global_load_bytes,
            c.global_load_sectors,
            c.global_load_unique_bytes
        ),
        (512, 1, 16)
    );
    for (shift, wavefronts) in [(2, 1), (3, 2), (4, 4), (7, 32)] {
        let c = run(
            &mut memory,
            &format!("shl.b32 %r2, %r1, {shift}; ld.shared.u32 %r3, [%r2];"),
        );
        assert_eq!(
            (
                c.shared_requests,
                c.shared_wavefronts,
                c.shared_ideal_wavefronts
            ),
            (1, wavefronts, 1),
            "stride 2^{shift}"
        );
    }
    // 16-byte accesses are served a quarter warp at a time.
    let c = run(
        &mut memory,
        "shl.b32 %r2, %r1, 4; ld.shared.v4.u32 {%r3, %r4, %r5, %r6}, [%r2];",
    );
    assert_eq!((c.shared_wavefronts, c.shared_ideal_wavefronts), (4, 4));
    let c = run(&mut memory, "mov.u32 %r2, 0; ld.shared.u32 %r3, [%r2];");
    assert_eq!(c.shared_wavefronts, 1);
}

#[test]
fn a_full_module_text_may_end_with_nul() {
    let text = format!("{}\0garbage", kernel(0, "mov.u32 %r1, 1;"));
    load(&mut Memory::new(4096), &text).expect("the text ends at the NUL");
}
