//! Fault plans: calls, memory, other processes, launches.

use neap::driver::{CuResult, PhysicalAllocation, Stream};
use neap::emulator::{self, FaultPlan, LaunchFault};

use crate::surface::{launch_scale, scale_module};
use crate::{GRAIN, MIB, assert_nothing_left, code_of, context_on, mapped, tiny};

#[test]
fn memory_runs_out_at_the_byte_a_plan_names() {
    let (ordinal, context) = context_on(tiny());
    let used = emulator::report(ordinal).used_bytes();
    emulator::add_faults(ordinal, FaultPlan::new().limit_memory(used + 3 * GRAIN));
    let free = context.mem_info().unwrap().free_bytes;
    let held: Vec<_> = (0..3)
        .map(|_| PhysicalAllocation::new(&context, GRAIN).unwrap())
        .collect();
    let refused = PhysicalAllocation::new(&context, GRAIN);
    assert_eq!(code_of(refused), CuResult::OUT_OF_MEMORY);
    assert_eq!(
        context.mem_info().unwrap().free_bytes,
        free - 3 * GRAIN,
        "what is told stays what a device without the plan tells"
    );
    drop(held);
    PhysicalAllocation::new(&context, GRAIN).unwrap();
}

#[test]
fn another_process_takes_memory_between_two_calls_and_gives_it_back() {
    let (ordinal, context) = context_on(tiny());
    let plan = FaultPlan::new()
        .foreign_before("cuMemGetInfo", 2, 64 * MIB as i64)
        .foreign_before("cuMemGetInfo", 3, -(32 * MIB as i64));
    emulator::add_faults(ordinal, plan);
    let free = |_| context.mem_info().unwrap().free_bytes;
    let [first, second, third, fourth] = [0, 1, 2, 3].map(free);
    assert_eq!(first - second, 64 * MIB);
    assert_eq!(third - second, 32 * MIB);
    assert_eq!(third, fourth, "each rule acts once");
    assert_eq!(emulator::report(ordinal).foreign_bytes, 32 * MIB);
}

#[test]
fn a_launch_that_a_plan_names_faults_and_the_error_sticks() {
    for code in [
        CuResult::ILLEGAL_ADDRESS,
        CuResult::MISALIGNED_ADDRESS,
        CuResult::LAUNCH_TIMEOUT,
        CuResult::ASSERT,
        CuResult::LAUNCH_FAILED,
    ] {
        let (ordinal, context) = context_on(tiny());
        let module = scale_module(&context);
        let stream = Stream::new(&context).unwrap();
        let block = mapped(&context, GRAIN);
        stream.copy_to_device(block.base(), &[0; 4]).unwrap();
        let plan = FaultPlan::new().fail_launch(Some("scale"), 3, LaunchFault::Ends(code));
        emulator::add_faults(ordinal, plan);
        for _ in 0..2 {
            launch_scale(&module, &stream, block.base());
            stream.synchronize().unwrap();
        }
        launch_scale(&module, &stream, block.base());
        assert!(context.poison().is_none(), "faults surface at a wait");
        assert_eq!(code_of(stream.synchronize()), code);
        let fault = emulator::last_fault(ordinal).unwrap();
        assert!(fault.contains("injected into a launch of scale"), "{fault}");
        assert_eq!(
            PhysicalAllocation::new(&context, GRAIN).unwrap_err().code(),
            Some(code),
            "sticky"
        );
        drop((stream, module, block));
        context.close().unwrap();
        assert_nothing_left(ordinal);
    }
}

#[test]
fn a_hanging_launch_never_completes_and_other_streams_go_on() {
    let (ordinal, context) = context_on(tiny());
    let module = scale_module(&context);
    let (hung, other) = (
        Stream::new(&context).unwrap(),
        Stream::new(&context).unwrap(),
    );
    let block = mapped(&context, GRAIN);
    other.copy_to_device(block.base(), &[0; 4]).unwrap();
    emulator::add_faults(
        ordinal,
        FaultPlan::new().fail_launch(None, 1, LaunchFault::Hangs),
    );
    launch_scale(&module, &hung, block.base());
    for _ in 0..3 {
        assert!(!hung.query().unwrap());
    }
    launch_scale(&module, &other, block.base());
    other.synchronize().unwrap();
    assert!(!hung.query().unwrap());
    // A program that gives up on the device gets rid of it.
    drop((hung, other, module, block));
    context.close().unwrap();
    assert_nothing_left(ordinal);
}

#[test]
fn a_plan_reads_the_environments_text() {
    let (ordinal, context) = context_on(tiny());
    let plan: FaultPlan = "cuMemCreate#2=2; cuMemCreate#3=801".parse().unwrap();
    emulator::add_faults(ordinal, plan);
    let codes: Vec<_> = (0..4)
        .map(|_| {
            PhysicalAllocation::new(&context, GRAIN)
                .err()
                .and_then(|error| error.code())
        })
        .collect();
    assert_eq!(
        codes,
        [
            None,
            Some(CuResult::OUT_OF_MEMORY),
            Some(CuResult::NOT_SUPPORTED),
            None
        ]
    );
}
