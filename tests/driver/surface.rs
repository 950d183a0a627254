//! The driver's surface beyond what neap itself calls, through the functions that the drop-in library exports.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};

use bytemuck::{Pod, Zeroable};
use neap::driver::{Context, CuResult, DevicePtr, LaunchConfig, Module, Stream};
use neap::emulator::{self, entry_point};

use crate::{GRAIN, assert_nothing_left, context_on, mapped, tiny};

const SCALE: &str = "\
.version 8.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 data, .param .f32 factor, .param .u32 count) {
  .reg .pred %p;
  .reg .b32 %r<6>;
  .reg .f32 %f<4>;
  .reg .b64 %d<4>;
  ld.param.u64 %d0, [data];
  ld.param.f32 %f0, [factor];
  ld.param.u32 %r0, [count];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.s32 %r4, %r1, %r2, %r3;
  setp.ge.u32 %p, %r4, %r0;
  @%p bra DONE;
  mul.wide.u32 %d1, %r4, 4;
  add.s64 %d2, %d0, %d1;
  ld.global.f32 %f1, [%d2];
  mul.f32 %f2, %f1, %f0;
  st.global.f32 [%d2], %f2;
DONE:
  ret;
}
";

#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct ScaleParams {
    data: DevicePtr,
    factor: f32,
    count: u32,
}

/// A module with the kernel `scale`, which takes its three parameters as one structure, as neap's kernels do.
pub fn scale_module(context: &Context) -> Module {
    let ptx = SCALE
        .replace(
            ".param .u64 data, .param .f32 factor, .param .u32 count",
            ".param .align 8 .b8 all[16]",
        )
        .replace("[data]", "[all]")
        .replace("[factor]", "[all+8]")
        .replace("[count]", "[all+12]");
    Module::load(context, ptx.as_bytes()).expect("good PTX")
}

/// Issues a launch of `scale` on one element.
pub fn launch_scale(module: &Module, stream: &Stream, data: DevicePtr) {
    let kernel = module.kernel("scale").expect("it is there");
    let params = ScaleParams {
        data,
        factor: 2.0,
        count: 1,
    };
    let config = LaunchConfig {
        grid: [1, 1, 1],
        block: [32, 1, 1],
        shared_bytes: 0,
    };
    // SAFETY: the emulator checks every access of the kernel, which takes these parameters.
    unsafe { stream.launch(&kernel, config, &params) }.expect("a launch that fits");
}

/// Calls an exported function by name with arguments of these types.
macro_rules! call {
    ($name:literal ( $($value:expr => $type:ty),* )) => {{
        let address = entry_point($name);
        // SAFETY: the exported function of this name has this signature, by NVIDIA's header.
        let function = unsafe {
            std::mem::transmute::<*const c_void, unsafe extern "C" fn($($type),*) -> CuResult>(address)
        };
        // SAFETY: all pointers are to live locals, or deliberately null.
        unsafe { function($($value),*) }
    }};
}

/// As `call!`, for a call that must succeed.
macro_rules! ok {
    ($name:literal ( $($value:expr => $type:ty),* )) => {
        assert_eq!(call!($name($($value => $type),*)), CuResult::SUCCESS, "{}: {:?}", $name, emulator::last_error_detail())
    };
}

fn set_current(context: u64) {
    ok!("cuCtxSetCurrent"(context => u64));
}

pub fn primary(ordinal: u32) -> u64 {
    let mut context = 0u64;
    ok!("cuInit"(0 => c_uint));
    ok!("cuDevicePrimaryCtxRetain"(&mut context => *mut u64, ordinal as c_int => c_int));
    set_current(context);
    context
}

pub fn release(ordinal: u32) {
    ok!("cuDevicePrimaryCtxRelease_v2"(ordinal as c_int => c_int));
}

pub fn alloc(bytes: usize) -> u64 {
    let mut pointer = 0u64;
    ok!("cuMemAlloc_v2"(&mut pointer => *mut u64, bytes => usize));
    pointer
}

pub fn read_word(pointer: u64) -> u32 {
    let mut word = 0u32;
    ok!("cuMemcpyDtoH_v2"(&mut word => *mut u32, pointer => u64, 4 => usize));
    word
}

pub fn fill(pointer: u64, word: u32, count: usize) {
    ok!("cuMemsetD32_v2"(pointer => u64, word => u32, count => usize));
}

pub fn new_stream() -> u64 {
    let mut stream = 0u64;
    ok!("cuStreamCreate"(&mut stream => *mut u64, 1 => c_uint));
    stream
}

pub fn load(ptx: &str) -> u64 {
    let (mut module, text) = (0u64, CString::new(ptx).unwrap());
    ok!("cuModuleLoadData"(&mut module => *mut u64, text.as_ptr() => *const c_char));
    module
}

#[test]
fn names_lead_to_the_variant_that_a_version_of_cuda_had() {
    let resolve = |name: &str, version: c_int| {
        let (name, mut address, mut status) = (
            CString::new(name).unwrap(),
            std::ptr::null::<c_void>(),
            9u32,
        );
        let code = call!("cuGetProcAddress_v2"(
            name.as_ptr() => *const c_char, &mut address => *mut *const c_void, version => c_int, 0 => u64,
            &mut status => *mut u32
        ));
        assert_eq!(code, CuResult::SUCCESS);
        (address, status)
    };
    let cases = [
        ("cuMemAlloc", 13000, "cuMemAlloc_v2"),
        ("cuCtxCreate", 11000, "cuCtxCreate_v2"),
        ("cuCtxCreate", 13000, "cuCtxCreate_v4"),
        ("cuCtxSynchronize", 12000, "cuCtxSynchronize"),
        ("cuCtxSynchronize", 13000, "cuCtxSynchronize_v2"),
        (
            "cuGraphKernelNodeGetParams",
            11000,
            "cuGraphKernelNodeGetParams",
        ),
        (
            "cuGraphKernelNodeGetParams",
            12000,
            "cuGraphKernelNodeGetParams_v2",
        ),
        ("cuStreamGetCaptureInfo", 12000, "cuStreamGetCaptureInfo_v2"),
    ];
    for (name, version, symbol) in cases {
        assert_eq!(
            resolve(name, version),
            (entry_point(symbol), 0),
            "{name} {version}"
        );
    }
    assert_ne!(
        entry_point("cuCtxSynchronize"),
        entry_point("cuCtxSynchronize_v2")
    );
    assert_ne!(
        entry_point("cuLaunchKernel_ptsz"),
        entry_point("cuLaunchKernel")
    );
    assert_eq!(resolve("cuNoSuchCall", 13000), (std::ptr::null(), 1));
    assert_eq!(resolve("cuGraphAddNode", 12000), (std::ptr::null(), 2));
    // What the header has and the emulator does not offer is there, and says so.
    assert_eq!(resolve("cuTexObjectCreate", 13000).1, 0);
    let refused = call!("cuTexObjectCreate"(std::ptr::null() => *const c_void));
    assert_eq!(refused, CuResult::NOT_SUPPORTED);
}

#[test]
fn a_context_of_ones_own_takes_its_objects_with_it_and_leaves_the_others() {
    let ordinal = emulator::add_device(tiny());
    primary(ordinal);
    let kept = alloc(64);
    fill(kept, 7, 16);
    let mut own = 0u64;
    ok!("cuCtxCreate_v2"(&mut own => *mut u64, 0 => c_uint, ordinal as c_int => c_int));
    assert_eq!(
        emulator::report(ordinal).context_bytes,
        2 * tiny().context_bytes,
        "each context costs"
    );
    alloc(64);
    new_stream();
    load(SCALE);
    assert_eq!(emulator::report(ordinal).live.device_allocations, 2);
    ok!("cuCtxDestroy_v2"(own => u64));
    let report = emulator::report(ordinal);
    assert_eq!(
        (
            report.live.device_allocations,
            report.live.streams,
            report.live.modules
        ),
        (1, 0, 0),
        "{report}"
    );
    assert_eq!(
        (
            report.leaked.device_allocations,
            report.leaked.streams,
            report.leaked.modules
        ),
        (1, 1, 1),
        "{report}"
    );
    assert_eq!(read_word(kept), 7, "the primary context is current again");
    assert_eq!(
        call!("cuCtxSetCurrent"(own => u64)),
        CuResult::CONTEXT_IS_DESTROYED
    );
    ok!("cuMemFree_v2"(kept => u64));
    release(ordinal);
    assert_eq!(emulator::report(ordinal).used_bytes(), 0);
}

#[test]
fn peers_copy_at_once_and_kernels_reach_a_peer_only_when_they_may() {
    let (near, far) = (emulator::add_device(tiny()), emulator::add_device(tiny()));
    let far_context = primary(far);
    let target = alloc(4096);
    fill(target, 1.5f32.to_bits(), 1024);
    let near_context = primary(near);
    let source = alloc(4096);
    fill(source, 2.5f32.to_bits(), 1024);
    let mut possible = 0;
    ok!("cuDeviceCanAccessPeer"(&mut possible => *mut c_int, near as c_int => c_int, far as c_int => c_int));
    assert_eq!(possible, 1);
    ok!("cuMemcpyPeer"(
        target + 8 => u64, far_context => u64, source => u64, near_context => u64, 4 => usize
    ));
    set_current(far_context);
    assert_eq!(
        [0, 8].map(|at| f32::from_bits(read_word(target + at))),
        [1.5, 2.5]
    );

    // A kernel of one device on memory of the other.
    set_current(near_context);
    let (module, name) = (load(SCALE), CString::new("scale").unwrap());
    let mut function = 0u64;
    ok!("cuModuleGetFunction"(&mut function => *mut u64, module => u64, name.as_ptr() => *const c_char));
    let (mut data, mut factor, mut count) = (target, 2.0f32, 4u32);
    let mut launch = || {
        let mut params: [*mut c_void; 3] = [
            (&raw mut data).cast(),
            (&raw mut factor).cast(),
            (&raw mut count).cast(),
        ];
        call!("cuLaunchKernel"(
            function => u64, 1 => u32, 1 => u32, 1 => u32, 32 => u32, 1 => u32, 1 => u32, 0 => u32, 0 => u64,
            params.as_mut_ptr() => *mut *mut c_void, std::ptr::null_mut() => *mut *mut c_void
        ))
    };
    ok!("cuCtxEnablePeerAccess"(far_context => u64, 0 => c_uint));
    assert_eq!(
        call!("cuCtxEnablePeerAccess"(far_context => u64, 0 => c_uint)),
        CuResult::PEER_ACCESS_ALREADY_ENABLED
    );
    assert_eq!(launch(), CuResult::SUCCESS);
    ok!("cuCtxSynchronize"());
    assert_eq!(f32::from_bits(read_word(target + 8)), 5.0);
    ok!("cuCtxDisablePeerAccess"(far_context => u64));
    assert_eq!(launch(), CuResult::SUCCESS);
    assert_eq!(call!("cuCtxSynchronize"()), CuResult::ILLEGAL_ADDRESS);
    release(near);
    release(far);
}

#[test]
fn work_of_one_device_waits_for_an_event_of_another() {
    let (first, second) = (emulator::add_device(tiny()), emulator::add_device(tiny()));
    let first_context = primary(first);
    let (from, producer, mut event) = (alloc(64), new_stream(), 0u64);
    fill(from, 1, 16);
    ok!("cuMemsetD32Async"(from => u64, 9 => u32, 16 => usize, producer => u64));
    ok!("cuEventCreate"(&mut event => *mut u64, 2 => c_uint));
    ok!("cuEventRecord"(event => u64, producer => u64));
    primary(second);
    let (to, consumer) = (alloc(64), new_stream());
    ok!("cuStreamWaitEvent"(consumer => u64, event => u64, 0 => c_uint));
    ok!("cuMemcpyDtoDAsync_v2"(to => u64, from => u64, 64 => usize, consumer => u64));
    ok!("cuStreamSynchronize"(consumer => u64));
    assert_eq!(read_word(to), 9);
    set_current(first_context);
    release(first);
    release(second);
}

#[test]
fn a_stream_waits_for_a_value_that_the_host_writes() {
    let ordinal = emulator::add_device(tiny());
    primary(ordinal);
    let (data, stream, mut flag) = (alloc(64), new_stream(), 0u64);
    ok!("cuMemHostAlloc"(&mut flag => *mut u64, 64 => usize, 0 => c_uint));
    fill(data, 1, 16);
    ok!("cuStreamWaitValue32_v2"(stream => u64, flag => u64, 5 => u32, 0 => c_uint));
    ok!("cuMemsetD32Async"(data => u64, 2 => u32, 16 => usize, stream => u64));
    assert_eq!(call!("cuStreamQuery"(stream => u64)), CuResult::NOT_READY);
    assert_eq!(read_word(data), 1);
    let address = flag as usize;
    let writer = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(5));
        // SAFETY: the buffer lives until the streams are drained.
        let flag = unsafe { &*(address as *const std::sync::atomic::AtomicU32) };
        flag.store(6, std::sync::atomic::Ordering::SeqCst);
    });
    ok!("cuStreamSynchronize"(stream => u64));
    writer.join().unwrap();
    assert_eq!(read_word(data), 2);
    release(ordinal);
}

unsafe extern "C" fn call_the_driver(result: *mut c_void) {
    let mut free = [0usize; 2];
    let code = call!("cuMemGetInfo_v2"(&mut free[0] => *mut usize, &mut free[1] => *mut usize));
    // SAFETY: the test passes a place for the result.
    unsafe { result.cast::<CuResult>().write(code) };
}

#[test]
fn a_host_function_runs_in_its_place_and_may_not_call_the_driver() {
    let ordinal = emulator::add_device(tiny());
    primary(ordinal);
    let (stream, mut result) = (new_stream(), CuResult::SUCCESS);
    ok!("cuLaunchHostFunc"(
        stream => u64, call_the_driver => unsafe extern "C" fn(*mut c_void), (&raw mut result).cast() => *mut c_void
    ));
    ok!("cuStreamSynchronize"(stream => u64));
    assert_eq!(result, CuResult::NOT_PERMITTED);
    release(ordinal);
}

#[test]
fn a_capture_can_be_watched_steered_and_aimed_at_a_graph() {
    let ordinal = emulator::add_device(tiny());
    primary(ordinal);
    let (data, stream, mut graph) = (alloc(64), new_stream(), 0u64);
    let (mut root, mut empty) = (0u64, 0u64);
    ok!("cuGraphCreate"(&mut graph => *mut u64, 0 => c_uint));
    ok!("cuGraphAddEmptyNode"(&mut root => *mut u64, graph => u64, std::ptr::null() => *const u64, 0 => usize));
    ok!("cuStreamBeginCaptureToGraph"(
        stream => u64, graph => u64, &root => *const u64, std::ptr::null() => *const c_void, 1 => usize, 2 => c_uint
    ));
    ok!("cuMemsetD32Async"(data => u64, 3 => u32, 16 => usize, stream => u64));
    let (mut status, mut id, mut told, mut nodes, mut count) =
        (0u32, 0u64, 0u64, std::ptr::null::<u64>(), 0usize);
    ok!("cuStreamGetCaptureInfo_v2"(
        stream => u64, &mut status => *mut u32, &mut id => *mut u64, &mut told => *mut u64,
        &mut nodes => *mut *const u64, &mut count => *mut usize
    ));
    assert_eq!((status, told, count), (1, graph, 1));
    // SAFETY: the list is valid until the next call on the stream.
    let fill_node = unsafe { nodes.read() };
    ok!("cuGraphAddEmptyNode"(&mut empty => *mut u64, graph => u64, &fill_node => *const u64, 1 => usize));
    ok!("cuStreamUpdateCaptureDependencies"(stream => u64, &empty => *const u64, 1 => usize, 1 => c_uint));
    ok!("cuMemsetD32Async"(data => u64, 4 => u32, 8 => usize, stream => u64));
    let mut ended = 0u64;
    ok!("cuStreamEndCapture"(stream => u64, &mut ended => *mut u64));
    assert_eq!(ended, graph);
    let (mut from, mut to, mut edges) = ([0u64; 8], [0u64; 8], 8usize);
    ok!("cuGraphGetEdges"(graph => u64, from.as_mut_ptr() => *mut u64, to.as_mut_ptr() => *mut u64, &mut edges => *mut usize));
    assert_eq!(edges, 3);
    assert_eq!(
        (from[0], to[0], from[1], to[1]),
        (root, fill_node, fill_node, empty)
    );
    let mut exec = 0u64;
    ok!("cuGraphInstantiateWithFlags"(&mut exec => *mut u64, graph => u64, 0 => u64));
    ok!("cuGraphLaunch"(exec => u64, stream => u64));
    ok!("cuStreamSynchronize"(stream => u64));
    assert_eq!((read_word(data), read_word(data + 32)), (4, 3));
    // The exec's last fill can be switched off.
    ok!("cuGraphNodeSetEnabled"(exec => u64, to[2] => u64, 0 => c_uint));
    ok!("cuGraphLaunch"(exec => u64, stream => u64));
    ok!("cuStreamSynchronize"(stream => u64));
    assert_eq!(read_word(data), 3);
    ok!("cuGraphExecDestroy"(exec => u64));
    ok!("cuGraphDestroy"(graph => u64));
    assert_eq!(emulator::report(ordinal).live.graphs, 0);
    release(ordinal);
}

#[test]
fn child_graphs_are_copies_and_run_where_they_stand() {
    let ordinal = emulator::add_device(tiny());
    primary(ordinal);
    let (data, stream) = (alloc(64), new_stream());
    let capture = |word: u32| {
        let mut graph = 0u64;
        ok!("cuStreamBeginCapture_v2"(stream => u64, 2 => c_uint));
        ok!("cuMemsetD32Async"(data => u64, word => u32, 16 => usize, stream => u64));
        ok!("cuStreamEndCapture"(stream => u64, &mut graph => *mut u64));
        graph
    };
    let (inner, other, mut outer) = (capture(1), capture(2), 0u64);
    let (mut child, mut copy) = (0u64, 0u64);
    ok!("cuGraphCreate"(&mut outer => *mut u64, 0 => c_uint));
    ok!("cuGraphAddChildGraphNode"(
        &mut child => *mut u64, outer => u64, std::ptr::null() => *const u64, 0 => usize, inner => u64
    ));
    ok!("cuGraphChildGraphNodeGetGraph"(child => u64, &mut copy => *mut u64));
    assert_ne!(copy, inner);
    assert_eq!(
        call!("cuGraphDestroy"(copy => u64)),
        CuResult::INVALID_VALUE,
        "it belongs to the node"
    );
    ok!("cuGraphDestroy"(inner => u64));
    let mut exec = 0u64;
    ok!("cuGraphInstantiateWithFlags"(&mut exec => *mut u64, outer => u64, 0 => u64));
    let run = || {
        ok!("cuGraphLaunch"(exec => u64, stream => u64));
        ok!("cuStreamSynchronize"(stream => u64));
        read_word(data)
    };
    assert_eq!(run(), 1);
    ok!("cuGraphExecChildGraphNodeSetParams"(exec => u64, child => u64, other => u64));
    assert_eq!(run(), 2);
    for graph in [other, outer] {
        ok!("cuGraphDestroy"(graph => u64));
    }
    ok!("cuGraphExecDestroy"(exec => u64));
    assert_eq!(emulator::report(ordinal).live.graphs, 0);
    release(ordinal);
}

#[test]
fn two_modules_link_into_one() {
    let caller = ".version 8.0\n.target sm_80\n.address_size 64\n\
        .extern .func (.param .b32 r) twice(.param .b32 x);\n\
        .visible .entry main(.param .u64 out) {\n .reg .b32 %r<4>;\n .reg .b64 %d<2>;\n\
        ld.param.u64 %d0, [out];\n mov.u32 %r0, 21;\n { .param .b32 p0; .param .b32 p1;\n\
        st.param.b32 [p0], %r0;\n call.uni (p1), twice, (p0);\n ld.param.b32 %r1, [p1]; }\n\
        st.global.u32 [%d0], %r1;\n ret;\n}\n";
    let callee = ".version 8.0\n.target sm_80\n.address_size 64\n\
        .visible .func (.param .b32 r) twice(.param .b32 x) {\n .reg .b32 %r<3>;\n\
        ld.param.b32 %r0, [x];\n add.s32 %r1, %r0, %r0;\n st.param.b32 [r], %r1;\n ret;\n}\n";
    let ordinal = emulator::add_device(tiny());
    primary(ordinal);
    let (mut link, mut image, mut bytes, mut module, mut function) =
        (0u64, std::ptr::null::<c_void>(), 0usize, 0u64, 0u64);
    ok!("cuLinkCreate_v2"(0 => c_uint, std::ptr::null() => *const u32, std::ptr::null() => *const u64, &mut link => *mut u64));
    for ptx in [caller, callee] {
        let name = CString::new("part").unwrap();
        ok!("cuLinkAddData_v2"(
            link => u64, 1 => c_uint, ptx.as_ptr() => *const u8, ptx.len() => usize, name.as_ptr() => *const c_char,
            0 => c_uint, std::ptr::null() => *const u32, std::ptr::null() => *const u64
        ));
    }
    ok!("cuLinkComplete"(link => u64, &mut image => *mut *const c_void, &mut bytes => *mut usize));
    ok!("cuModuleLoadData"(&mut module => *mut u64, image => *const c_void));
    ok!("cuLinkDestroy"(link => u64));
    let name = CString::new("main").unwrap();
    ok!("cuModuleGetFunction"(&mut function => *mut u64, module => u64, name.as_ptr() => *const c_char));
    let mut out = alloc(64);
    let data = out;
    let mut params: [*mut c_void; 1] = [(&raw mut out).cast()];
    ok!("cuLaunchKernel"(
        function => u64, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 0 => u32, 0 => u64,
        params.as_mut_ptr() => *mut *mut c_void, std::ptr::null_mut() => *mut *mut c_void
    ));
    assert_eq!(read_word(data), 42);
    // Machine code is refused by name.
    ok!("cuLinkCreate_v2"(0 => c_uint, std::ptr::null() => *const u32, std::ptr::null() => *const u64, &mut link => *mut u64));
    let elf = b"\x7fELF\x02\x01\x01";
    let refused = call!("cuLinkAddData_v2"(
        link => u64, 0 => c_uint, elf.as_ptr() => *const u8, elf.len() => usize, name.as_ptr() => *const c_char,
        0 => c_uint, std::ptr::null() => *const u32, std::ptr::null() => *const u64
    ));
    assert_eq!(refused, CuResult::NO_BINARY_FOR_GPU);
    release(ordinal);
}

#[test]
fn managed_memory_is_the_hosts_too_and_may_exceed_the_device() {
    let ordinal = emulator::add_device(tiny());
    primary(ordinal);
    let free = emulator::report(ordinal).free_bytes;
    let mut pointer = 0u64;
    ok!("cuMemAllocManaged"(&mut pointer => *mut u64, tiny().total_bytes as usize + 64 => usize, 1 => c_uint));
    assert_eq!(emulator::report(ordinal).free_bytes, free);
    // SAFETY: managed memory is readable and writable on the host.
    unsafe { (pointer as *mut u32).write(11) };
    assert_eq!(read_word(pointer), 11);
    fill(pointer, 12, 1);
    // SAFETY: as above, and the fill is complete.
    assert_eq!(unsafe { (pointer as *const u32).read() }, 12);
    ok!("cuMemFree_v2"(pointer => u64));
    release(ordinal);
    assert_eq!(emulator::report(ordinal).used_bytes(), 0);
}

#[test]
fn pools_count_what_is_taken_and_give_back_in_stream_order() {
    let ordinal = emulator::add_device(tiny());
    primary(ordinal);
    let (mut pool, stream, mut pointer) = (0u64, new_stream(), 0u64);
    ok!("cuDeviceGetDefaultMemPool"(&mut pool => *mut u64, ordinal as c_int => c_int));
    let used = || {
        let mut bytes = 0u64;
        ok!("cuMemPoolGetAttribute"(pool => u64, 7 => c_uint, &mut bytes => *mut u64));
        bytes
    };
    ok!("cuMemAllocAsync"(&mut pointer => *mut u64, 1000 => usize, stream => u64));
    assert_eq!(used(), 1000);
    ok!("cuMemFreeAsync"(pointer => u64, stream => u64));
    assert_eq!(used(), 1000, "the stream has not come to it");
    ok!("cuStreamSynchronize"(stream => u64));
    assert_eq!(used(), 0);
    // In a graph the address is the graph's, launch after launch.
    let mut graph = 0u64;
    ok!("cuStreamBeginCapture_v2"(stream => u64, 2 => c_uint));
    ok!("cuMemAllocAsync"(&mut pointer => *mut u64, 64 => usize, stream => u64));
    ok!("cuMemsetD32Async"(pointer => u64, 5 => u32, 16 => usize, stream => u64));
    ok!("cuMemFreeAsync"(pointer => u64, stream => u64));
    ok!("cuStreamEndCapture"(stream => u64, &mut graph => *mut u64));
    let mut exec = 0u64;
    ok!("cuGraphInstantiateWithFlags"(&mut exec => *mut u64, graph => u64, 1 => u64));
    for _ in 0..3 {
        ok!("cuGraphLaunch"(exec => u64, stream => u64));
    }
    ok!("cuStreamSynchronize"(stream => u64));
    assert_eq!(read_word(pointer), 5);
    release(ordinal);
    assert_eq!(emulator::report(ordinal).used_bytes(), 0);
}

#[test]
fn library_kernels_stand_for_a_function_in_every_context() {
    let (first, second) = (emulator::add_device(tiny()), emulator::add_device(tiny()));
    let first_context = primary(first);
    let (mut library, mut kernel, text) = (0u64, 0u64, CString::new(SCALE).unwrap());
    ok!("cuLibraryLoadData"(
        &mut library => *mut u64, text.as_ptr() => *const c_char, std::ptr::null() => *const u32,
        std::ptr::null() => *const u64, 0 => c_uint, std::ptr::null() => *const u32, std::ptr::null() => *const u64,
        0 => c_uint
    ));
    let name = CString::new("scale").unwrap();
    ok!("cuLibraryGetKernel"(&mut kernel => *mut u64, library => u64, name.as_ptr() => *const c_char));
    for (ordinal, context) in [(first, first_context), (second, primary(second))] {
        set_current(context);
        let data = alloc(64);
        fill(data, 1.5f32.to_bits(), 16);
        let (mut pointer, mut factor, mut count) = (data, 3.0f32, 16u32);
        let mut params: [*mut c_void; 3] = [
            (&raw mut pointer).cast(),
            (&raw mut factor).cast(),
            (&raw mut count).cast(),
        ];
        // A kernel goes where a function does.
        ok!("cuLaunchKernel"(
            kernel => u64, 1 => u32, 1 => u32, 1 => u32, 32 => u32, 1 => u32, 1 => u32, 0 => u32, 0 => u64,
            params.as_mut_ptr() => *mut *mut c_void, std::ptr::null_mut() => *mut *mut c_void
        ));
        assert_eq!(f32::from_bits(read_word(data + 60)), 4.5);
        ok!("cuMemFree_v2"(data => u64));
        assert_eq!(emulator::report(ordinal).live.modules, 1);
    }
    ok!("cuLibraryUnload"(library => u64));
    for ordinal in [first, second] {
        assert_eq!(emulator::report(ordinal).live.modules, 0);
        release(ordinal);
    }
    assert_eq!(
        call!("cuLibraryGetKernel"(&mut kernel => *mut u64, library => u64, name.as_ptr() => *const c_char)),
        CuResult::INVALID_HANDLE
    );
}

#[test]
fn work_nobody_waits_for_runs_where_the_profile_asks_for_progress() {
    let mut profile = tiny();
    profile.progress = Some(std::time::Duration::from_millis(1));
    let (ordinal, context) = context_on(profile);
    let block = mapped(&context, GRAIN);
    let stream = Stream::new(&context).unwrap();
    // SAFETY: the range is mapped and writable.
    unsafe { stream.memset_d32_async(block.base(), 77, 4) }.unwrap();
    let raw = block.base().0;
    let patience = std::time::Instant::now();
    loop {
        // SAFETY: device memory of the emulator is memory of the process; the word is written once.
        let word = unsafe { (raw as *const u32).read_volatile() };
        if word == 77 {
            break;
        }
        assert!(patience.elapsed().as_secs() < 20, "the work does not run");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    drop((stream, block));
    context.close().unwrap();
    assert_nothing_left(ordinal);
}
