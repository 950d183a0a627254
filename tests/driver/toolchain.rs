//! What compilers and linkers hand to the driver beside plain modules.

use std::ffi::{CString, c_char, c_uint, c_void};

use neap::driver::CuResult;
use neap::emulator::{self, entry_point};

use crate::surface::{alloc, load, primary, read_word, release};
use crate::tiny;

const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

/// Links inputs of these kinds and loads the result.
fn link(inputs: &[(c_uint, &[u8])]) -> u64 {
    let (mut link, mut image, mut bytes, mut module) =
        (0u64, std::ptr::null::<c_void>(), 0usize, 0u64);
    ok!("cuLinkCreate_v2"(0 => c_uint, std::ptr::null() => *const u32, std::ptr::null() => *const u64, &mut link => *mut u64));
    let name = CString::new("part").unwrap();
    for (kind, data) in inputs {
        ok!("cuLinkAddData_v2"(
            link => u64, *kind => c_uint, data.as_ptr() => *const u8, data.len() => usize, name.as_ptr() => *const c_char,
            0 => c_uint, std::ptr::null() => *const u32, std::ptr::null() => *const u64
        ));
    }
    ok!("cuLinkComplete"(link => u64, &mut image => *mut *const c_void, &mut bytes => *mut usize));
    ok!("cuModuleLoadData"(&mut module => *mut u64, image => *const c_void));
    ok!("cuLinkDestroy"(link => u64));
    module
}

fn function(module: u64, name: &str) -> u64 {
    let (mut function, name) = (0u64, CString::new(name).unwrap());
    ok!("cuModuleGetFunction"(&mut function => *mut u64, module => u64, name.as_ptr() => *const c_char));
    function
}

fn launch(function: u64, out: u64) {
    let mut out = out;
    let mut params: [*mut c_void; 1] = [(&raw mut out).cast()];
    ok!("cuLaunchKernel"(
        function => u64, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 0 => u32, 0 => u64,
        params.as_mut_ptr() => *mut *mut c_void, std::ptr::null_mut() => *mut *mut c_void
    ));
}

#[test]
fn private_names_of_linked_modules_stay_apart_and_common_ones_are_one() {
    let ordinal = emulator::add_device(tiny());
    primary(ordinal);
    let part = |kernel: &str, value: u32| {
        format!(
            "{HEAD}.global .align 4 .u32 own = {value};\n.common .global .align 4 .u32 shared;\n\
             .func (.param .b32 r) get() {{ .reg .b32 %r<2>; ld.global.u32 %r1, [own]; st.param.b32 [r], %r1; ret; }}\n\
             .visible .entry {kernel}(.param .u64 out) {{ .reg .b32 %r<4>; .reg .b64 %d<2>; ld.param.u64 %d1, [out];\n\
             {{ .param .b32 a; call.uni (a), get; ld.param.b32 %r1, [a]; }} atom.global.add.u32 %r2, [shared], 1;\n\
             mad.lo.u32 %r1, %r2, 100, %r1; st.global.u32 [%d1], %r1; ret; }}\n"
        )
    };
    let (first, second) = (part("first", 7), part("second", 8));
    let module = link(&[(1, first.as_bytes()), (1, second.as_bytes())]);
    let out = alloc(64);
    for (name, want) in [("first", 7), ("second", 108), ("first", 207)] {
        launch(function(module, name), out);
        assert_eq!(read_word(out), want, "{name}");
    }
    release(ordinal);
}

/// A kernel over the device run time library's barrier, as numba emits it: every thread adds 1 to a counter, waits for the
/// grid, and stores whether it sees all.
const GRID_SYNC: &str = ".version 8.0\n.target sm_80\n.address_size 64\n\
    .extern .func (.param .b64 handle) cudaCGGetIntrinsicHandle(.param .b32 scope);\n\
    .extern .func (.param .b32 error) cudaCGSynchronize(.param .b64 handle, .param .b32 flags);\n\
    .visible .entry k(.param .u64 out) { .reg .pred %p<2>; .reg .b32 %r<12>; .reg .b64 %d<6>;\n\
    ld.param.u64 %d1, [out]; red.global.add.u32 [%d1], 1;\n\
    { .param .b32 a; .param .b64 r; st.param.b32 [a], 1; call.uni (r), cudaCGGetIntrinsicHandle, (a); ld.param.b64 %d2, [r]; }\n\
    { .param .b64 a; .param .b32 b; .param .b32 r; st.param.b64 [a], %d2; st.param.b32 [b], 0;\n\
    call.uni (r), cudaCGSynchronize, (a, b); ld.param.b32 %r1, [r]; }\n\
    ld.volatile.global.u32 %r2, [%d1]; shl.b32 %r1, %r1, 16; add.u32 %r2, %r2, %r1; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %tid.x; mov.u32 %r5, %ntid.x;\n\
    mad.lo.u32 %r6, %r3, %r5, %r4; mad.wide.u32 %d3, %r6, 4, %d1; st.global.u32 [%d3+4], %r2; ret; }\n";

#[test]
fn the_device_run_time_librarys_grid_barrier_is_there_in_ptx() {
    let ordinal = emulator::add_device(tiny());
    primary(ordinal);
    // As ar writes it: a member of this name is in no other archive.
    let archive = b"!<arch>\ncuda_device_runtime.o/0           0     0     644     8         `\n\x7fELF\x02\x01\x01\0";
    const LIBRARY: c_uint = 4;
    let module = link(&[(1, GRID_SYNC.as_bytes()), (LIBRARY, archive)]);
    let kernel = function(module, "k");
    let (blocks, threads) = (4u32, 48u32);
    let count = blocks * threads;
    let out = alloc(4096);
    ok!("cuMemsetD32_v2"(out => u64, 0 => u32, 1 => usize));
    let mut argument = out;
    let mut params: [*mut c_void; 1] = [(&raw mut argument).cast()];
    for round in 1..3 {
        ok!("cuLaunchCooperativeKernel"(
            kernel => u64, blocks => u32, 1 => u32, 1 => u32, threads => u32, 1 => u32, 1 => u32, 0 => u32, 0 => u64,
            params.as_mut_ptr() => *mut *mut c_void
        ));
        for place in 0..count {
            assert_eq!(read_word(out + 4 + 4 * u64::from(place)), round * count);
        }
    }
    // Not launched as cooperative, the barrier says so.
    launch(kernel, out);
    assert_eq!(read_word(out + 4), (1 << 16) + 2 * count + 1);
    release(ordinal);
}

#[test]
fn a_function_tells_the_constant_memory_of_its_module_and_the_heap_goes_with_the_context() {
    let ordinal = emulator::add_device(tiny());
    primary(ordinal);
    let module = load(&format!(
        "{HEAD}.const .align 8 .b8 table[272];\n.const .f32 one = 1.0;\n\
         .extern .func (.param .b64 pointer) malloc(.param .b64 bytes);\n\
         .visible .entry k(.param .u64 out) {{ .reg .b64 %d<3>; ld.param.u64 %d1, [out];\n\
         {{ .param .b64 a; .param .b64 r; st.param.b64 [a], 64; call.uni (r), malloc, (a); ld.param.b64 %d2, [r]; }}\n\
         st.global.u64 [%d1], %d2; ret; }}\n"
    ));
    let kernel = function(module, "k");
    let mut bytes = 0i32;
    ok!("cuFuncGetAttribute"(&mut bytes => *mut i32, 2 => c_uint, kernel => u64));
    assert_eq!(bytes, 276);
    let free = || emulator::report(ordinal).free_bytes;
    let (before, out) = (free(), alloc(64));
    const HEAP_LIMIT: c_uint = 2;
    ok!("cuCtxSetLimit"(HEAP_LIMIT => c_uint, 4 << 20 => usize));
    launch(kernel, out);
    assert_ne!(read_word(out), 0);
    assert_eq!(before - free(), 6 << 20, "the allocation and the heap");
    assert_eq!(call!("cuMemFree_v2"(out => u64)), CuResult::SUCCESS);
    release(ordinal);
    assert_eq!(emulator::report(ordinal).used_bytes(), 0);
}
