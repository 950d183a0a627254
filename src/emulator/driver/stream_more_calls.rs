//! Entry points of what streams are and of what they run beside kernels and copies.

use std::ffi::{c_int, c_uint, c_void};

use super::arguments::{In, Out, calls};
use super::entry::{named, on_device};
use super::failure::Failure;
use super::registry::{self, Kind};
use super::state::State;
use super::stream_calls;
use super::streams::of_stream;
use super::work::{HostCall, HostFunction, MemoryValue, ValueOp, Work};
use crate::driver::CuResult;
use crate::driver::abi::{self, CUstreamBatchMemOpParams};

/// The context that streams without one of their own are told to be of.
fn context_of(state: &State) -> u64 {
    let current = registry::current();
    match registry::decode_parts(current, Kind::Context) {
        Some((ordinal, _)) if ordinal == state.ordinal => current,
        _ => state.contexts.primary().map_or(0, |generation| {
            registry::handle(Kind::Context, state.ordinal, generation)
        }),
    }
}

/// What a stream does with a value, by the flags of a wait.
fn wait_op(flags: c_uint) -> Result<ValueOp, Failure> {
    match flags & 0x3FFF_FFFF {
        abi::CU_STREAM_WAIT_VALUE_GEQ => Ok(ValueOp::WaitGreaterEqual),
        abi::CU_STREAM_WAIT_VALUE_EQ => Ok(ValueOp::WaitEqual),
        abi::CU_STREAM_WAIT_VALUE_AND => Ok(ValueOp::WaitAnd),
        abi::CU_STREAM_WAIT_VALUE_NOR => Ok(ValueOp::WaitNor),
        other => Err(Failure::invalid(format!("no kind of wait {other}"))),
    }
}

fn value_in(
    call: &'static str,
    stream: u64,
    op: ValueOp,
    address: u64,
    value: u64,
    bytes: usize,
) -> Result<(), Failure> {
    let (device, stream) = of_stream(stream)?;
    on_device(call, &device, |state| {
        let value = state.checked_value(MemoryValue {
            op,
            address,
            value,
            bytes,
        })?;
        state.issue(stream, Work::Value(value))
    })
}

/// What one element of `cuStreamBatchMemOp` asks for; nothing where it is a barrier, which order implies.
fn batch_op(params: &CUstreamBatchMemOpParams) -> Result<Option<MemoryValue>, Failure> {
    // SAFETY: every member of the union begins with the operation.
    let operation = unsafe { params.operation };
    let (wide, is_wait) = match operation {
        abi::CU_STREAM_MEM_OP_WAIT_VALUE_32 => (false, true),
        abi::CU_STREAM_MEM_OP_WAIT_VALUE_64 => (true, true),
        abi::CU_STREAM_MEM_OP_WRITE_VALUE_32 => (false, false),
        abi::CU_STREAM_MEM_OP_WRITE_VALUE_64 => (true, false),
        abi::CU_STREAM_MEM_OP_BARRIER | abi::CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES => {
            return Ok(None);
        }
        other => return Err(Failure::invalid(format!("no operation {other}"))),
    };
    let (address, value, op) = if is_wait {
        // SAFETY: the operation says which member of the union the caller filled.
        let wait = unsafe { params.waitValue };
        // SAFETY: both members are integers of the same place; the narrow one is its low half.
        let value = unsafe { wait.__bindgen_anon_1.value64 };
        (wait.address, value, wait_op(wait.flags)?)
    } else {
        // SAFETY: as above.
        let write = unsafe { params.writeValue };
        // SAFETY: as above.
        let value = unsafe { write.__bindgen_anon_1.value64 };
        (write.address, value, ValueOp::Write)
    };
    Ok(Some(MemoryValue {
        op,
        address,
        value: if wide { value } else { value & 0xFFFF_FFFF },
        bytes: if wide { 8 } else { 4 },
    }))
}

calls! {
    "cuStreamCreate" fn stream_create(stream: *mut cuda_driver_sys::CUstream, flags: c_uint) {
        // SAFETY: the place is null or a valid pointer, as both calls want it.
        let code = unsafe { stream_calls::stream_create_with_priority(stream, flags, 0) };
        if code.is_success() {
            return Ok(());
        }
        Err(Failure { code, detail: registry::detail() })
    }

    "cuStreamGetPriority" fn stream_get_priority(stream: u64, priority: Out<c_int>) {
        let (device, stream) = of_stream(stream)?;
        on_device(CALL, &device, |state| priority.put(state.stream(stream)?.priority, "the priority"))
    }

    "cuStreamGetFlags" fn stream_get_flags(stream: u64, flags: Out<c_uint>) {
        let (device, stream) = of_stream(stream)?;
        on_device(CALL, &device, |state| {
            flags.put(c_uint::from(!state.stream(stream)?.blocking), "the flags")
        })
    }

    "cuStreamGetDevice" fn stream_get_device(stream: u64, ordinal: Out<c_int>) {
        let (device, stream) = of_stream(stream)?;
        on_device(CALL, &device, |state| {
            state.stream(stream)?;
            ordinal.put(state.ordinal as c_int, "the device")
        })
    }

    "cuStreamGetId" fn stream_get_id(stream: u64, id: Out<u64>) {
        let (device, stream) = of_stream(stream)?;
        on_device(CALL, &device, |state| {
            state.stream(stream)?;
            id.put(u64::from(state.ordinal) << 48 | stream, "the id")
        })
    }

    "cuStreamGetCtx" fn stream_get_ctx(stream: u64, context: Out<u64>) {
        let (device, stream) = of_stream(stream)?;
        on_device(CALL, &device, |state| {
            state.stream(stream)?;
            context.put(context_of(state), "the context")
        })
    }

    "cuStreamGetCtx_v2" fn stream_get_ctx_v2(stream: u64, context: Out<u64>, green: Out<u64>) {
        let (device, stream) = of_stream(stream)?;
        on_device(CALL, &device, |state| {
            state.stream(stream)?;
            green.put_if_wanted(0);
            context.put(context_of(state), "the context")
        })
    }

    "cuStreamGetGreenCtx" fn stream_get_green_ctx(stream: u64, green: Out<u64>) {
        of_stream(stream)?;
        green.put(0, "the context")
    }

    "cuLaunchHostFunc" fn launch_host_func(
        stream: u64, function: Option<unsafe extern "C" fn(*mut c_void)>, data: usize,
    ) {
        let function = function.ok_or_else(|| Failure::null("the function"))?;
        let (device, stream) = of_stream(stream)?;
        on_device(CALL, &device, |state| {
            state.issue(stream, Work::Host(HostCall { function: HostFunction::Plain(function), data }))
        })
    }

    "cuStreamAddCallback" fn stream_add_callback(
        stream: u64, function: Option<unsafe extern "C" fn(u64, CuResult, *mut c_void)>, data: usize, flags: c_uint,
    ) {
        if flags != 0 {
            return Err(Failure::invalid("the flags must be 0"));
        }
        let function = function.ok_or_else(|| Failure::null("the function"))?;
        let handle = stream;
        let (device, stream) = of_stream(stream)?;
        on_device(CALL, &device, |state| {
            if state.stream(stream)?.capture.is_some() {
                return Err(Failure::new(
                    CuResult::STREAM_CAPTURE_UNSUPPORTED,
                    "a callback cannot be captured: cuLaunchHostFunc can",
                ));
            }
            let function = HostFunction::Callback(function, handle);
            state.issue(stream, Work::Host(HostCall { function, data }))
        })
    }

    "cuStreamWriteValue32_v2" fn stream_write_value_32(stream: u64, address: u64, value: u32, flags: c_uint) {
        let _ = flags;
        value_in(CALL, stream, ValueOp::Write, address, u64::from(value), 4)
    }

    "cuStreamWriteValue64_v2" fn stream_write_value_64(stream: u64, address: u64, value: u64, flags: c_uint) {
        let _ = flags;
        value_in(CALL, stream, ValueOp::Write, address, value, 8)
    }

    "cuStreamWaitValue32_v2" fn stream_wait_value_32(stream: u64, address: u64, value: u32, flags: c_uint) {
        value_in(CALL, stream, wait_op(flags)?, address, u64::from(value), 4)
    }

    "cuStreamWaitValue64_v2" fn stream_wait_value_64(stream: u64, address: u64, value: u64, flags: c_uint) {
        value_in(CALL, stream, wait_op(flags)?, address, value, 8)
    }

    "cuStreamBatchMemOp_v2" fn stream_batch_mem_op(
        stream: u64, count: c_uint, list: In<CUstreamBatchMemOpParams>, flags: c_uint,
    ) {
        if flags != 0 || count > 256 {
            return Err(Failure::invalid("the flags must be 0, and at most 256 operations can be given"));
        }
        let list = list.list(count as usize, "the operations")?;
        let operations = list.iter().map(batch_op).collect::<Result<Vec<_>, _>>()?;
        let (device, stream) = of_stream(stream)?;
        on_device(CALL, &device, |state| {
            let operations = operations
                .into_iter()
                .flatten()
                .map(|value| state.checked_value(value))
                .collect::<Result<Vec<_>, _>>()?;
            operations.into_iter().try_for_each(|value| state.issue(stream, Work::Value(value)))
        })
    }

    "cuEventRecordWithFlags" fn event_record_with_flags(event: u64, stream: u64, flags: c_uint) {
        if flags > 1 {
            return Err(Failure::invalid(format!("no flags {flags:#x}")));
        }
        let (device, stream) = of_stream(stream)?;
        let (owner, event) = named(event, Kind::Event, "event")?;
        if owner.ordinal != device.ordinal {
            return Err(Failure::handle("event"));
        }
        on_device(CALL, &device, |state| state.record_event(event, stream))
    }

    "cuThreadExchangeStreamCaptureMode" fn thread_exchange_capture_mode(mode: Out<c_uint>) {
        let wanted = super::capture::mode_of(mode.get("the mode")?)?;
        let before = super::capture::exchange_thread_mode(wanted);
        mode.put(super::capture::mode_number(before), "the mode")
    }

    /// Attributes of streams are hints: those that can be set are forgotten.
    "cuStreamSetAttribute" fn stream_set_attribute(stream: u64, attribute: c_uint, value: In<abi::CUlaunchAttributeValue>) {
        value.get("the value")?;
        let (device, stream) = of_stream(stream)?;
        let known = [
            abi::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
            abi::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY,
            abi::CU_LAUNCH_ATTRIBUTE_PRIORITY,
            abi::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP,
            abi::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
        ];
        if !known.contains(&attribute) {
            return Err(Failure::invalid(format!("no stream attribute {attribute}")));
        }
        on_device(CALL, &device, |state| state.stream(stream).map(|_| ()))
    }

    "cuStreamGetAttribute" fn stream_get_attribute(
        stream: u64, attribute: c_uint, value: Out<abi::CUlaunchAttributeValue>,
    ) {
        let (device, stream) = of_stream(stream)?;
        let priority = on_device(CALL, &device, |state| Ok(state.stream(stream)?.priority))?;
        // SAFETY: a union of integers and structures of integers, for which all zeros are valid.
        let mut known: abi::CUlaunchAttributeValue = unsafe { std::mem::zeroed() };
        match attribute {
            abi::CU_LAUNCH_ATTRIBUTE_PRIORITY => known.priority = priority,
            abi::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY => known.syncPolicy = 1,
            abi::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
            | abi::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP
            | abi::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN => {}
            other => return Err(Failure::invalid(format!("no stream attribute {other}"))),
        }
        value.put(known, "the value")
    }

    "cuStreamCopyAttributes" fn stream_copy_attributes(to: u64, from: u64) {
        of_stream(to)?;
        of_stream(from).map(|_| ())
    }
}
