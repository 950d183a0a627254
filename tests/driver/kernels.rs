//! Modules, kernels and launches.

use bytemuck::{Pod, Zeroable};
use neap::driver::{
    Context, CuResult, DevicePtr, DriverError, Kernel, LaunchConfig, Module, Stream, TensorElement,
    TiledTensor,
};
use neap::emulator::{self, Profile};

use crate::{GRAIN, assert_nothing_left, code_of, context_on, mapped, tiny};

const PTX: &str = include_str!("kernels.ptx");

/// The parameters of every kernel in `kernels.ptx`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
struct Params {
    bytes_touched: u64,
    x: DevicePtr,
    y: DevicePtr,
    a: f32,
    n: u32,
}

fn params(x: DevicePtr, y: DevicePtr, n: u32) -> Params {
    Params {
        bytes_touched: 0,
        x,
        y,
        a: 2.0,
        n,
    }
}

fn config(grid: u32, block: u32) -> LaunchConfig {
    LaunchConfig {
        grid: [grid, 1, 1],
        block: [block, 1, 1],
        shared_bytes: 0,
    }
}

/// A device with the module loaded.
fn loaded(profile: Profile) -> (u32, Context, Stream, Module) {
    let (ordinal, context) = context_on(profile);
    let stream = Stream::new(&context).unwrap();
    let module = Module::load(&context, PTX.as_bytes()).unwrap();
    (ordinal, context, stream, module)
}

fn launch(
    stream: &Stream,
    kernel: &Kernel,
    config: LaunchConfig,
    params: &Params,
) -> Result<(), DriverError> {
    // SAFETY: the emulator checks every access of the kernels, which take these parameters.
    unsafe { stream.launch(kernel, config, params) }
}

#[test]
fn saxpy_runs_eagerly_and_from_a_graph() {
    let (ordinal, context, stream, module) = loaded(tiny());
    let saxpy = module.kernel("saxpy").unwrap();
    let block = mapped(&context, GRAIN);
    let n = 1000u32;
    let (x, y) = (block.base(), block.base().add(8192));
    let host_x: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let host_y: Vec<f32> = (0..n).map(|i| (i * i) as f32).collect();
    stream
        .copy_to_device(x, bytemuck::cast_slice(&host_x))
        .unwrap();
    let read = || {
        let mut out = vec![0f32; n as usize];
        stream
            .copy_to_host(bytemuck::cast_slice_mut(&mut out), y)
            .unwrap();
        out
    };
    let expected: Vec<f32> = (0..n).map(|i| (2 * i + i * i) as f32).collect();

    stream
        .copy_to_device(y, bytemuck::cast_slice(&host_y))
        .unwrap();
    let sent = params(x, y, n);
    launch(&stream, &saxpy, config(8, 128), &sent).unwrap();
    assert_eq!(read(), expected);

    stream.begin_capture().unwrap();
    launch(&stream, &saxpy, config(8, 128), &sent).unwrap();
    launch(&stream, &saxpy, config(4, 256), &sent).unwrap();
    let graph = stream.end_capture().unwrap();
    let nodes = graph.kernel_nodes().unwrap();
    assert_eq!(nodes.len(), 2);
    assert_eq!(nodes[0].name.as_deref(), Some("saxpy"));
    assert_eq!(nodes[0].params, bytemuck::bytes_of(&sent));
    assert_eq!((nodes[1].grid, nodes[1].block), ([4, 1, 1], [256, 1, 1]));

    let free = context.mem_info().unwrap().free_bytes;
    let exec = graph.instantiate().unwrap();
    let profile = tiny();
    assert_eq!(
        free - context.mem_info().unwrap().free_bytes,
        profile.graph_base_bytes + 2 * profile.graph_bytes_per_kernel_node
    );
    stream
        .copy_to_device(y, bytemuck::cast_slice(&host_y))
        .unwrap();
    exec.launch(&stream).unwrap();
    let twice: Vec<f32> = (0..n).map(|i| (4 * i + i * i) as f32).collect();
    assert_eq!(read(), twice);

    let report = emulator::report(ordinal);
    assert_eq!(report.kernels["saxpy"].launches, 3);
    assert_eq!(
        report.kernels["saxpy"].global_store_bytes,
        3 * 4 * u64::from(n)
    );
    drop((exec, graph, saxpy, module, block, stream));
    context.close().unwrap();
    assert_nothing_left(ordinal);
}

#[test]
fn modules_cost_memory_and_hold_variables() {
    let (ordinal, context) = context_on(tiny());
    let before = context.mem_info().unwrap().free_bytes;
    let module = Module::load(&context, PTX.as_bytes()).unwrap();
    let taken = before - context.mem_info().unwrap().free_bytes;
    assert_eq!(taken, emulator::report(ordinal).module_bytes);
    assert!(
        taken >= tiny().module_base_bytes + PTX.len() as u64,
        "{taken}"
    );

    let (address, bytes) = module.global("total").unwrap();
    assert_eq!(bytes, 4);
    let stream = Stream::new(&context).unwrap();
    let mut read = [0u8; 4];
    stream.copy_to_host(&mut read, address).unwrap();
    assert_eq!(u32::from_le_bytes(read), 7);
    stream
        .copy_to_device(address, &42u32.to_le_bytes())
        .unwrap();
    let block = mapped(&context, GRAIN);
    let kernel = module.kernel("read_total").unwrap();
    launch(
        &stream,
        &kernel,
        config(1, 1),
        &params(DevicePtr::NULL, block.base(), 0),
    )
    .unwrap();
    stream.copy_to_host(&mut read, block.base()).unwrap();
    assert_eq!(u32::from_le_bytes(read), 42);

    assert_eq!(code_of(module.kernel("sgemm")), CuResult::NOT_FOUND);
    let detail = emulator::last_error_detail().unwrap();
    assert!(detail.contains("it has: saxpy"), "{detail}");
    assert_eq!(code_of(module.global("sum")), CuResult::NOT_FOUND);
    drop((kernel, block));
    module.close().unwrap();
    assert_eq!(context.mem_info().unwrap().free_bytes, before);
}

#[test]
fn what_a_kernel_can_have_is_checked_at_launch() {
    let (_, context, stream, module) = loaded(tiny());
    let block = mapped(&context, GRAIN);
    let sent = params(block.base(), block.base(), 0);
    let saxpy = module.kernel("saxpy").unwrap();
    let limited = module.kernel("limited").unwrap();
    let shaped = module.kernel("shaped").unwrap();
    assert_eq!(shaped.max_threads().unwrap(), 32);
    assert_eq!(limited.max_threads().unwrap(), 64);
    assert_eq!(limited.static_shared_bytes().unwrap(), 1024);
    assert_eq!(saxpy.max_threads().unwrap(), 1024);
    assert_eq!(saxpy.param_bytes(), Some(32));
    let refused: &[(&Kernel, [u32; 3], [u32; 3])] = &[
        (&saxpy, [0, 1, 1], [32, 1, 1]),
        (&saxpy, [1, 65_536, 1], [32, 1, 1]),
        (&saxpy, [1, 1, 65_536], [32, 1, 1]),
        (&saxpy, [1 << 31, 1, 1], [32, 1, 1]),
        (&saxpy, [1, 1, 1], [0, 1, 1]),
        (&saxpy, [1, 1, 1], [1025, 1, 1]),
        (&saxpy, [1, 1, 1], [64, 32, 1]),
        (&saxpy, [1, 1, 1], [1, 1, 65]),
        (&limited, [1, 1, 1], [96, 1, 1]),
        (&shaped, [1, 1, 1], [32, 1, 1]),
        (&shaped, [1, 1, 1], [8, 2, 1]),
    ];
    for &(kernel, grid, block) in refused {
        let config = LaunchConfig {
            grid,
            block,
            shared_bytes: 0,
        };
        let error = launch(&stream, kernel, config, &sent).unwrap_err();
        assert_eq!(error.code(), Some(CuResult::INVALID_VALUE), "{config:?}");
        assert!(error.to_string().contains(kernel.name()), "{error}");
    }
    launch(&stream, &limited, config(3, 64), &sent).unwrap();
    let exact = LaunchConfig {
        grid: [2, 1, 1],
        block: [8, 4, 1],
        shared_bytes: 0,
    };
    launch(&stream, &shaped, exact, &sent).unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn dynamic_shared_memory_beyond_48_kib_needs_opting_in() {
    let (_, context, stream, module) = loaded(tiny());
    let block = mapped(&context, GRAIN);
    let reverse = module.kernel("reverse").unwrap();
    let with = |shared_bytes| LaunchConfig {
        grid: [1, 1, 1],
        block: [256, 1, 1],
        shared_bytes,
    };
    let sent = params(DevicePtr::NULL, block.base(), 256);
    launch(&stream, &reverse, with(1024), &sent).unwrap();
    launch(&stream, &reverse, with(48 << 10), &sent).unwrap();
    let beyond = launch(&stream, &reverse, with((48 << 10) + 1), &sent);
    assert_eq!(code_of(beyond), CuResult::INVALID_VALUE);
    assert_eq!(
        code_of(reverse.set_max_dynamic_shared_bytes((227 << 10) + 1)),
        CuResult::INVALID_VALUE
    );
    reverse.set_max_dynamic_shared_bytes(227 << 10).unwrap();
    launch(&stream, &reverse, with(227 << 10), &sent).unwrap();
    let mut out = [0u32; 256];
    stream
        .copy_to_host(bytemuck::cast_slice_mut(&mut out), block.base())
        .unwrap();
    let expected: Vec<u32> = (0..256).rev().collect();
    assert_eq!(out.as_slice(), expected);
    // A block with too little shared memory for what its kernel does is a fault, not a wrong result.
    launch(&stream, &reverse, with(512), &sent).unwrap();
    assert_eq!(code_of(stream.synchronize()), CuResult::ILLEGAL_ADDRESS);
}

#[test]
fn a_struct_of_another_size_is_refused_before_the_launch() {
    let (ordinal, _context, stream, module) = loaded(tiny());
    let saxpy = module.kernel("saxpy").unwrap();
    // SAFETY: the launch is refused: the sizes differ.
    let error = unsafe { stream.launch(&saxpy, config(1, 1), &[0u64; 3]) }.unwrap_err();
    assert!(matches!(error, DriverError::Invalid { .. }));
    let text = error.to_string();
    assert!(
        text.contains("saxpy takes 32 bytes") && text.contains("24 were given"),
        "{text}"
    );
    assert_eq!(emulator::report(ordinal).calls_of("cuLaunchKernel"), 0);
}

#[test]
fn faults_surface_at_the_wait_with_kernel_and_address() {
    let (ordinal, context, stream, module) = loaded(tiny());
    let saxpy = module.kernel("saxpy").unwrap();
    let block = mapped(&context, GRAIN);
    let past = block.base().add(GRAIN - 64);
    launch(
        &stream,
        &saxpy,
        config(1, 32),
        &params(block.base(), past, 32),
    )
    .unwrap();
    let error = stream.synchronize().unwrap_err();
    assert_eq!(error.code(), Some(CuResult::ILLEGAL_ADDRESS));
    let fault = emulator::last_fault(ordinal).unwrap();
    let address = format!("{:#x}", block.base().0 + GRAIN);
    for part in ["saxpy", "PTX line", address.as_str()] {
        assert!(fault.contains(part), "{part} is not in: {fault}");
    }
    assert!(matches!(
        context.synchronize().unwrap_err(),
        DriverError::Poisoned { .. }
    ));
}

#[test]
fn each_kind_of_fault_has_its_code() {
    let mut profile = tiny();
    profile.watchdog_branches = 10_000;
    let fault_of = |kernel: &str, x: u64| {
        let (_, context, stream, module) = loaded(profile.clone());
        let block = mapped(&context, GRAIN);
        let kernel = module.kernel(kernel).unwrap();
        let sent = params(DevicePtr(x), block.base(), 32);
        launch(&stream, &kernel, config(1, 32), &sent).unwrap();
        code_of(stream.synchronize())
    };
    assert_eq!(fault_of("saxpy", 0), CuResult::ILLEGAL_ADDRESS);
    assert_eq!(
        fault_of("saxpy", 0x7000_0000_0000),
        CuResult::ILLEGAL_ADDRESS
    );
    assert_eq!(fault_of("spin", 0), CuResult::LAUNCH_TIMEOUT);
    assert_eq!(fault_of("stop", 0), CuResult::LAUNCH_FAILED);

    let (_, context, stream, module) = loaded(profile);
    let block = mapped(&context, GRAIN);
    let kernel = module.kernel("saxpy").unwrap();
    let odd = params(block.base().add(2), block.base().add(64), 8);
    launch(&stream, &kernel, config(1, 32), &odd).unwrap();
    assert_eq!(code_of(stream.synchronize()), CuResult::MISALIGNED_ADDRESS);
}

#[test]
fn kernels_may_use_pinned_host_memory_to_its_last_byte() {
    let (_, context, stream, module) = loaded(tiny());
    let saxpy = module.kernel("saxpy").unwrap();
    let block = mapped(&context, GRAIN);
    stream.copy_to_device(block.base(), &[0; 64]).unwrap();
    let mut host = neap::driver::PinnedBuffer::new(&context, 64).unwrap();
    host.as_mut_slice()
        .copy_from_slice(bytemuck::cast_slice(&[1.5f32; 16]));
    let x = DevicePtr(host.as_ptr() as u64);
    launch(&stream, &saxpy, config(1, 32), &params(x, block.base(), 16)).unwrap();
    let mut out = [0f32; 16];
    stream
        .copy_to_host(bytemuck::cast_slice_mut(&mut out), block.base())
        .unwrap();
    assert_eq!(out, [3.0; 16]);
    launch(&stream, &saxpy, config(1, 32), &params(x, block.base(), 17)).unwrap();
    assert_eq!(code_of(stream.synchronize()), CuResult::ILLEGAL_ADDRESS);
}

#[test]
fn refused_images_say_why() {
    let (ordinal, context) = context_on(tiny());
    let unknown = PTX.replace("fma.rn.f32", "frobnicate.rn.f32");
    let line = 1 + unknown[..unknown.find("frobnicate").unwrap()]
        .matches('\n')
        .count();
    let error = Module::load(&context, unknown.as_bytes()).unwrap_err();
    assert_eq!(error.code(), Some(CuResult::INVALID_PTX));
    let text = error.to_string();
    assert!(
        text.contains(&format!("PTX line {line}")) && text.contains("frobnicate"),
        "{text}"
    );
    assert!(
        emulator::last_error_detail()
            .unwrap()
            .contains("frobnicate")
    );

    let newer = PTX.replace("sm_80", "sm_100");
    let error = Module::load(&context, newer.as_bytes()).unwrap_err();
    assert_eq!(error.code(), Some(CuResult::INVALID_PTX));
    assert!(error.to_string().contains("sm_100"), "{error}");

    let cubin = b"\x7fELF\x02\x01\x01\x41\x08";
    let error = Module::load(&context, cubin).unwrap_err();
    assert_eq!(error.code(), Some(CuResult::NO_BINARY_FOR_GPU));
    assert!(error.to_string().contains("cubin"), "{error}");

    // Nothing of a refused module stays.
    assert_eq!(emulator::report(ordinal).module_bytes, 0);
    assert_eq!(emulator::report(ordinal).physical_bytes, 0);
    context.close().unwrap();
    assert_nothing_left(ordinal);
}

#[test]
fn a_graph_whose_module_was_unloaded_is_refused() {
    let (_, context, stream, module) = loaded(tiny());
    let block = mapped(&context, GRAIN);
    let saxpy = module.kernel("saxpy").unwrap();
    stream.begin_capture().unwrap();
    launch(
        &stream,
        &saxpy,
        config(1, 32),
        &params(block.base(), block.base(), 1),
    )
    .unwrap();
    let exec = stream.end_capture().unwrap().instantiate().unwrap();
    let held = module.clone().close().unwrap_err();
    assert!(matches!(held, DriverError::InUse { .. }), "{held}");
    drop((saxpy, module));
    assert_eq!(code_of(exec.launch(&stream)), CuResult::INVALID_HANDLE);
    let detail = emulator::last_error_detail().unwrap();
    assert!(detail.contains("saxpy was unloaded"), "{detail}");
    stream.synchronize().unwrap();
}

#[test]
fn tensor_maps_are_encoded_or_refused_in_a_sentence() {
    let (_, context) = context_on(tiny());
    let block = mapped(&context, GRAIN);
    let tensor = TiledTensor {
        element: TensorElement::Bf16,
        dims: vec![64, 10],
        strides: vec![128],
        box_dims: vec![32, 8],
        element_strides: vec![1, 1],
        swizzle_bytes: 64,
        nan_fill: false,
    };
    let map = tensor.encode(&context, block.base()).unwrap();
    let moved = tensor
        .encode(&context, DevicePtr(block.base().0 + 256))
        .unwrap();
    assert_ne!(map, moved);
    type Change = fn(&mut TiledTensor);
    let mistakes: [(Change, &str); 7] = [
        (|t| t.dims.clear(), "1 to 5 dimensions, not 0"),
        (
            |t| t.strides.clear(),
            "0 strides of a tensor of 2 dimensions: 1 are needed",
        ),
        (|t| t.box_dims.push(1), "3 sizes of the box"),
        (
            |t| t.swizzle_bytes = 48,
            "a swizzle of 48 bytes: 0, 32, 64 and 128 exist",
        ),
        // What the driver refuses names the call.
        (|t| t.swizzle_bytes = 32, "cuTensorMapEncodeTiled"),
        (|t| t.strides[0] = 120, "cuTensorMapEncodeTiled"),
        (|t| t.box_dims[1] = 257, "cuTensorMapEncodeTiled"),
    ];
    for (change, said) in mistakes {
        let mut wrong = tensor.clone();
        change(&mut wrong);
        let error = wrong
            .encode(&context, block.base())
            .unwrap_err()
            .to_string();
        assert!(error.contains(said), "{error}");
    }
    let odd = DevicePtr(block.base().0 + 8);
    assert_eq!(
        code_of(tensor.encode(&context, odd)),
        CuResult::INVALID_VALUE
    );
}
