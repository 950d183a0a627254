//! Module images that are damaged or none at all: refused with a code, never a panic (which would give
//! `CUDA_ERROR_UNKNOWN`), never a read past their end.

use std::ffi::{c_char, c_int, c_uint, c_void};

use neap::driver::CuResult;
use neap::emulator::{self, entry_point};
use proptest::prelude::*;

use crate::tiny;

/// `CU_JIT_INPUT_PTX` and `CU_JIT_INPUT_FATBINARY`.
const KINDS: [c_uint; 2] = [1, 2];

const FATBINS: [&[u8]; 4] = [
    include_bytes!("../data/fatbin/none.fatbin"),
    include_bytes!("../data/fatbin/speed.fatbin"),
    include_bytes!("../data/fatbin/balance.fatbin"),
    include_bytes!("../data/fatbin/size.fatbin"),
];

/// Gives bytes to the linker, which is told how many there are, and loads what it makes of them.
fn link_and_load(kind: c_uint, bytes: &[u8]) -> CuResult {
    // SAFETY: the exported functions of these names have these signatures, by NVIDIA's header.
    let (create, add, complete, destroy, load, unload) = unsafe {
        (
            std::mem::transmute::<
                *const c_void,
                unsafe extern "C" fn(c_uint, *const u32, *const u64, *mut u64) -> CuResult,
            >(entry_point("cuLinkCreate_v2")),
            std::mem::transmute::<
                *const c_void,
                unsafe extern "C" fn(
                    u64,
                    c_uint,
                    *const u8,
                    usize,
                    *const c_char,
                    c_uint,
                    *const u32,
                    *const u64,
                ) -> CuResult,
            >(entry_point("cuLinkAddData_v2")),
            std::mem::transmute::<
                *const c_void,
                unsafe extern "C" fn(u64, *mut *const c_void, *mut usize) -> CuResult,
            >(entry_point("cuLinkComplete")),
            std::mem::transmute::<*const c_void, unsafe extern "C" fn(u64) -> CuResult>(
                entry_point("cuLinkDestroy"),
            ),
            std::mem::transmute::<
                *const c_void,
                unsafe extern "C" fn(*mut u64, *const c_void) -> CuResult,
            >(entry_point("cuModuleLoadData")),
            std::mem::transmute::<*const c_void, unsafe extern "C" fn(u64) -> CuResult>(
                entry_point("cuModuleUnload"),
            ),
        )
    };
    let (mut link, mut image, mut len, mut module) = (0u64, std::ptr::null(), 0usize, 0u64);
    let null = std::ptr::null();
    // SAFETY: all pointers are to live locals, and the bytes are as many as are told.
    let code = unsafe {
        assert_eq!(
            create(0, null, std::ptr::null(), &mut link),
            CuResult::SUCCESS
        );
        let mut code = add(
            link,
            kind,
            bytes.as_ptr(),
            bytes.len(),
            std::ptr::null(),
            0,
            null,
            std::ptr::null(),
        );
        if code.is_success() {
            code = complete(link, &mut image, &mut len);
        }
        if code.is_success() {
            code = load(&mut module, image);
        }
        if code.is_success() {
            code = unload(module);
        }
        assert_eq!(destroy(link), CuResult::SUCCESS);
        code
    };
    assert_ne!(code, CuResult::UNKNOWN, "the emulator panicked");
    code
}

fn with_context(body: impl FnOnce()) {
    let ordinal = emulator::add_device(tiny());
    let mut context = 0u64;
    // SAFETY: the exported functions of these names have these signatures, by NVIDIA's header.
    let (retain, set_current) = unsafe {
        (
            std::mem::transmute::<*const c_void, unsafe extern "C" fn(*mut u64, c_int) -> CuResult>(
                entry_point("cuDevicePrimaryCtxRetain"),
            ),
            std::mem::transmute::<*const c_void, unsafe extern "C" fn(u64) -> CuResult>(
                entry_point("cuCtxSetCurrent"),
            ),
        )
    };
    // SAFETY: the place is a live local.
    unsafe {
        assert_eq!(retain(&mut context, ordinal as c_int), CuResult::SUCCESS);
        assert_eq!(set_current(context), CuResult::SUCCESS);
    }
    body();
    assert_eq!(emulator::report(ordinal).live.modules, 0);
}

#[test]
fn whole_images_load() {
    with_context(|| {
        for fatbin in FATBINS {
            assert_eq!(link_and_load(2, fatbin), CuResult::SUCCESS);
        }
    });
}

#[test]
fn images_cut_short_are_refused() {
    with_context(|| {
        for fatbin in FATBINS {
            for len in 4..fatbin.len() {
                assert_ne!(link_and_load(2, &fatbin[..len]), CuResult::SUCCESS, "{len}");
            }
        }
    });
}

#[test]
fn damaged_and_random_images_are_refused_or_load() {
    with_context(|| {
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::with_cases(400)
        });
        let damage = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6);
        let damaged = (0..FATBINS.len(), damage).prop_map(|(which, changes)| {
            let mut bytes = FATBINS[which].to_vec();
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            bytes
        });
        let random = proptest::collection::vec(any::<u8>(), 0..200);
        let words = proptest::collection::vec(
            prop::sample::select(vec![
                ".version", "8.0", ".target", "sm_80", ".entry", "f", "(", ")", "{", "}", ";",
                ".reg", ".b32", "%r<4>", "%r0", "mov.u32", ",", "1", "ret", ".param", ".u64", "[",
                "]", "\n", "\"", "//", ".global", "=", ".align", "4",
            ]),
            0..60,
        )
        .prop_map(|words| words.join(" ").into_bytes());
        let bytes = prop_oneof![damaged, random, words];
        runner
            .run(&(bytes, 0..KINDS.len()), |(bytes, kind)| {
                link_and_load(KINDS[kind], &bytes);
                Ok(())
            })
            .unwrap();
    });
}
