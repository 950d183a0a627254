//! Virtual memory management, plain allocation, accounting.

use std::sync::Arc;

use neap::driver::{
    Access, AddressReservation, Attribute, Context, CuResult, DevicePtr, Driver, DriverError,
    PhysicalAllocation, PinnedBuffer, Stream,
};
use neap::emulator::{self, CheckKind, Profile};

use crate::{
    GRAIN, MIB, assert_nothing_left, assert_reported, code_of, context_on, mapped, tiny,
    tiny_collecting,
};

#[test]
fn a_device_is_what_its_profile_says() {
    for name in Profile::names() {
        let profile = Profile::named(name).unwrap();
        let ordinal = emulator::add_device(profile.clone());
        let device = Driver::emulator().device(ordinal).unwrap();
        assert_eq!(device.name(), profile.name);
        assert!(device.name().contains("emulated"));
        assert_eq!(device.total_bytes(), profile.total_bytes);
        assert_eq!(device.granularity_bytes(), profile.granularity_bytes);
        assert_eq!(
            device.compute_capability().unwrap(),
            profile.compute_capability
        );
        let sms = device.attribute(Attribute::MultiprocessorCount).unwrap();
        assert_eq!(sms as u32, profile.sm_count);
    }
}

#[test]
fn one_handle_at_two_addresses_aliases() {
    let (ordinal, context) = context_on(tiny());
    let stream = Stream::new(&context).unwrap();
    let physical = Arc::new(PhysicalAllocation::new(&context, GRAIN).unwrap());
    let a = AddressReservation::new(&context, 4 * GRAIN, 0).unwrap();
    let b = AddressReservation::new(&context, GRAIN, 0).unwrap();
    a.map(2 * GRAIN, Arc::clone(&physical)).unwrap();
    b.map(0, Arc::clone(&physical)).unwrap();
    a.set_access(2 * GRAIN, GRAIN).unwrap();
    b.set_access(0, GRAIN).unwrap();
    assert_eq!(emulator::report(ordinal).physical_bytes, GRAIN);

    let written: Vec<u8> = (0..=255).collect();
    stream
        .copy_to_device(a.base().add(2 * GRAIN + 512), &written)
        .unwrap();
    let mut read = [0u8; 256];
    stream.copy_to_host(&mut read, b.base().add(512)).unwrap();
    assert_eq!(read.as_slice(), written);

    // The memory outlives its handle while it is mapped, and goes with its last mapping.
    drop(physical);
    a.unmap(2 * GRAIN, GRAIN).unwrap();
    assert_eq!(emulator::report(ordinal).physical_bytes, GRAIN);
    stream.copy_to_host(&mut read, b.base().add(512)).unwrap();
    assert_eq!(read.as_slice(), written);
    b.unmap(0, GRAIN).unwrap();
    assert_eq!(emulator::report(ordinal).physical_bytes, 0);
    drop((a, b, stream));
    context.close().unwrap();
    assert_nothing_left(ordinal);
}

#[test]
fn fresh_memory_reads_as_poison_also_after_reuse() {
    let (ordinal, context) = context_on(tiny_collecting());
    let stream = Stream::new(&context).unwrap();
    for _ in 0..3 {
        let block = mapped(&context, GRAIN);
        let mut read = [0u8; 64];
        let last = block.base().add(GRAIN - 64);
        stream.copy_to_host(&mut read, last).unwrap();
        assert_eq!(read, [0xFF; 64]);
        assert_reported(ordinal, &[CheckKind::UninitialisedGlobal]);
        stream.copy_to_device(last, &[7; 64]).unwrap();
        stream.copy_to_host(&mut read, last).unwrap();
        assert_eq!(read, [7; 64]);
    }
}

#[test]
fn sizes_and_addresses_must_be_multiples_of_the_granularity() {
    let (_, context) = context_on(tiny());
    for bytes in [0, 1, GRAIN - 1, GRAIN + 4096] {
        let error = PhysicalAllocation::new(&context, bytes).unwrap_err();
        assert_eq!(error.code(), Some(CuResult::INVALID_VALUE));
        let text = error.to_string();
        assert!(text.contains(&format!("{bytes} bytes")), "{text}");
        assert!(text.contains("granularity 2097152 bytes"), "{text}");
        let reserved = AddressReservation::new(&context, bytes, 0);
        assert_eq!(code_of(reserved), CuResult::INVALID_VALUE);
    }
    let reservation = AddressReservation::new(&context, 4 * GRAIN, 0).unwrap();
    let physical = Arc::new(PhysicalAllocation::new(&context, GRAIN).unwrap());
    let off_grain = reservation.map(4096, Arc::clone(&physical));
    assert_eq!(code_of(off_grain), CuResult::INVALID_VALUE);
    let odd_alignment = AddressReservation::new(&context, GRAIN, 3 * GRAIN);
    assert_eq!(code_of(odd_alignment), CuResult::INVALID_VALUE);
    let outside = reservation
        .map(4 * GRAIN, Arc::clone(&physical))
        .unwrap_err();
    assert!(matches!(outside, DriverError::Invalid { .. }), "{outside}");
    let aligned = AddressReservation::new(&context, GRAIN, 64 * MIB).unwrap();
    assert_eq!(aligned.base().0 % (64 * MIB), 0);
}

#[test]
fn mapping_twice_and_cutting_pieces_is_refused() {
    let (_, context) = context_on(tiny());
    let reservation = AddressReservation::new(&context, 8 * GRAIN, 0).unwrap();
    let two = || Arc::new(PhysicalAllocation::new(&context, 2 * GRAIN).unwrap());
    reservation.map(0, two()).unwrap();
    reservation.map(2 * GRAIN, two()).unwrap();
    assert_eq!(
        code_of(reservation.map(GRAIN, two())),
        CuResult::ALREADY_MAPPED
    );
    for (offset, bytes) in [
        (0, GRAIN),
        (GRAIN, GRAIN),
        (GRAIN, 2 * GRAIN),
        (0, 3 * GRAIN),
        (0, 6 * GRAIN),
    ] {
        let unmapped = reservation.unmap(offset, bytes);
        assert_eq!(code_of(unmapped), CuResult::INVALID_VALUE);
        let access = reservation.set_access(offset, bytes);
        assert_eq!(code_of(access), CuResult::INVALID_VALUE);
    }
    assert_eq!(reservation.mapped_bytes(), 4 * GRAIN);
    // Whole pieces go, together or one by one, and their place can be used again.
    reservation.unmap(0, 4 * GRAIN).unwrap();
    assert_eq!(reservation.mapped_bytes(), 0);
    reservation.map(GRAIN, two()).unwrap();
}

#[test]
fn access_is_needed_and_its_kind_is_checked() {
    let (_, context) = context_on(tiny());
    let stream = Stream::new(&context).unwrap();
    let reservation = AddressReservation::new(&context, 4 * GRAIN, 0).unwrap();
    let base = reservation.base();
    let read = || {
        let mut bytes = [0u8; 8];
        stream.copy_to_host(&mut bytes, base)
    };
    let write = || stream.copy_to_device(base, &[1; 8]);
    assert_eq!(code_of(read()), CuResult::INVALID_VALUE);
    let detail = emulator::last_error_detail().unwrap();
    assert!(detail.contains("reserved"), "{detail}");

    let physical = Arc::new(PhysicalAllocation::new(&context, GRAIN).unwrap());
    reservation.map(0, physical).unwrap();
    assert_eq!(code_of(read()), CuResult::INVALID_VALUE);
    reservation.set_access(0, GRAIN).unwrap();
    write().unwrap();
    reservation.set_access_to(0, GRAIN, Access::Read).unwrap();
    read().unwrap();
    assert_eq!(code_of(write()), CuResult::INVALID_VALUE);
    let detail = emulator::last_error_detail().unwrap();
    assert!(detail.contains("does not allow"), "{detail}");
    reservation.set_access(0, GRAIN).unwrap();
    // One byte past the piece.
    let past = stream.copy_to_device(base.add(GRAIN - 4), &[1; 8]);
    assert_eq!(code_of(past), CuResult::INVALID_VALUE);
    reservation.set_access_to(0, GRAIN, Access::None).unwrap();
    assert_eq!(code_of(read()), CuResult::INVALID_VALUE);
}

#[test]
fn addresses_outside_of_everything_are_refused() {
    let (_, context) = context_on(tiny());
    let stream = Stream::new(&context).unwrap();
    let block = mapped(&context, GRAIN);
    for address in [
        DevicePtr(0),
        DevicePtr(8),
        DevicePtr(block.base().0 - 8),
        block.base().add(GRAIN),
        DevicePtr(u64::MAX - 3),
    ] {
        let copied = stream.copy_to_device(address, &[0; 16]);
        assert_eq!(code_of(copied), CuResult::INVALID_VALUE, "{address}");
    }
    stream.copy_to_device(block.base(), &[0; 16]).unwrap();
}

#[test]
fn memory_is_counted_to_the_byte_and_runs_out() {
    let mut profile = tiny();
    profile.foreign_bytes = 100 * MIB;
    let context_bytes = profile.context_bytes;
    let (ordinal, context) = context_on(profile);
    let info = context.mem_info().unwrap();
    assert_eq!(info.total_bytes, 512 * MIB);
    assert_eq!(info.free_bytes, 412 * MIB - context_bytes);
    assert_eq!(
        context.device().used_bytes_before_context(),
        Some(100 * MIB)
    );

    let most = info.free_bytes / GRAIN * GRAIN;
    let all = PhysicalAllocation::new(&context, most).unwrap();
    assert_eq!(
        context.mem_info().unwrap().free_bytes,
        info.free_bytes - most
    );
    let error = PhysicalAllocation::new(&context, GRAIN).unwrap_err();
    assert!(error.is_out_of_memory());
    let text = error.to_string();
    assert!(
        text.contains("CUDA_ERROR_OUT_OF_MEMORY (2)") && text.contains("2097152 bytes"),
        "{text}"
    );
    // Out of memory is not the end of a context.
    assert!(context.poison().is_none());
    drop(all);
    assert_eq!(context.mem_info().unwrap(), info);
    PhysicalAllocation::new(&context, most)
        .unwrap()
        .close()
        .unwrap();
    assert_eq!(
        emulator::report(ordinal).peak_used_bytes,
        most + context_bytes
    );
}

#[test]
fn a_device_too_small_for_a_context_says_so() {
    let mut profile = tiny();
    profile.foreign_bytes = profile.total_bytes - profile.context_bytes + 1;
    let ordinal = emulator::add_device(profile);
    let device = Driver::emulator().device(ordinal).unwrap();
    let error = Context::retain_primary(&device).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    assert_nothing_left(ordinal);
}

/// A whole H200 can be mapped on a small host: pages cost nothing until touched, and mappings of
/// consecutive pieces merge, so that the host's limit of 65,530 mappings is not met.
#[test]
fn an_h200_maps_grain_by_grain() {
    let mut profile = Profile::named("h200").unwrap();
    profile.poison = false;
    let (ordinal, context) = context_on(profile);
    let stream = Stream::new(&context).unwrap();
    let bytes = context.mem_info().unwrap().free_bytes / GRAIN * GRAIN;
    let reservation = AddressReservation::new(&context, bytes, 0).unwrap();
    for offset in (0..bytes).step_by(GRAIN as usize) {
        let grain = PhysicalAllocation::new(&context, GRAIN).unwrap();
        reservation.map(offset, Arc::new(grain)).unwrap();
    }
    reservation.set_access(0, bytes).unwrap();
    assert!(bytes / GRAIN > 70_000);
    assert!(context.mem_info().unwrap().free_bytes < GRAIN);
    let last = reservation.base().add(bytes - 8);
    stream
        .copy_to_device(last, &[1, 2, 3, 4, 5, 6, 7, 8])
        .unwrap();
    let mut read = [0u8; 8];
    stream.copy_to_host(&mut read, last).unwrap();
    assert_eq!(read, [1, 2, 3, 4, 5, 6, 7, 8]);
    drop((reservation, stream));
    context.close().unwrap();
    assert_nothing_left(ordinal);
}

#[test]
fn plain_allocation_is_counted_by_call_so_that_tests_can_forbid_it() {
    let (ordinal, context) = context_on(tiny());
    let before = context.mem_info().unwrap().free_bytes;
    assert_eq!(emulator::report(ordinal).calls_of("cuMemAlloc"), 0);
    let api = Driver::emulator().api();
    let mut pointer = 0;
    // SAFETY: the pointer is to a live local.
    let result = unsafe { (api.cu_mem_alloc)(&mut pointer, 1000) };
    assert_eq!(result, CuResult::SUCCESS);
    let report = emulator::report(ordinal);
    assert_eq!(report.calls_of("cuMemAlloc"), 1);
    assert_eq!(report.live.device_allocations, 1);
    assert_eq!(report.live.reservations + report.live.mappings, 0);
    assert_eq!(before - context.mem_info().unwrap().free_bytes, GRAIN);
    // SAFETY: the address was allocated above.
    let result = unsafe { (api.cu_mem_free)(pointer) };
    assert_eq!(result, CuResult::SUCCESS);
    // SAFETY: freeing twice is an error the emulator reports.
    let result = unsafe { (api.cu_mem_free)(pointer) };
    assert_eq!(result, CuResult::INVALID_VALUE);
    assert_eq!(context.mem_info().unwrap().free_bytes, before);
}

#[test]
fn pinned_buffers_take_no_device_memory_and_start_at_zero() {
    let (ordinal, context) = context_on(tiny());
    let before = context.mem_info().unwrap();
    let mut buffer = PinnedBuffer::new(&context, 5000).unwrap();
    assert_eq!(context.mem_info().unwrap(), before);
    assert!(buffer.as_slice().iter().all(|&byte| byte == 0));
    assert_eq!(buffer.as_slice().len(), 5000);
    buffer.as_mut_slice()[4999] = 9;
    assert_eq!(emulator::report(ordinal).live.pinned_buffers, 1);
    buffer.close().unwrap();
    let error = PinnedBuffer::new(&context, 0).unwrap_err();
    assert!(matches!(error, DriverError::Invalid { .. }));
    context.close().unwrap();
    assert_nothing_left(ordinal);
}

#[test]
fn what_outlives_its_context_is_reported_as_leaked() {
    let (ordinal, context) = context_on(tiny());
    let api = Driver::emulator().api();
    let mut pointer = 0;
    // SAFETY: the pointer is to a live local.
    let result = unsafe { (api.cu_mem_alloc)(&mut pointer, 1) };
    assert_eq!(result, CuResult::SUCCESS);
    let mut event = std::ptr::null_mut();
    // SAFETY: the pointer is to a live local.
    let result = unsafe { (api.cu_event_create)(&mut event, 0) };
    assert_eq!(result, CuResult::SUCCESS);
    context.close().unwrap();
    let report = emulator::report(ordinal);
    assert_eq!(report.live.total(), 0);
    assert_eq!(
        (report.leaked.events, report.leaked.device_allocations),
        (1, 1)
    );
    assert_eq!(report.live_objects(), 2);
    assert_eq!(report.leaked.to_string(), "1 events, 1 device allocations");
    assert_eq!(report.used_bytes(), 0);
}
