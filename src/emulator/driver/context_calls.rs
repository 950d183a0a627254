//! Entry points of contexts beyond retaining the primary one.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use super::arguments::{In, Out, calls};
use super::device_calls::of_device;
use super::entry::{give_back_idle, named, on_current, settled, wait};
use super::failure::Failure;
use super::limits;
use super::registry::{self, EmulatedDevice, Kind};
use super::state::LEGACY;
use crate::driver::CuResult;
use crate::driver::abi;

/// `cuCtxGetApiVersion` of a context that `cuCtxCreate_v2` and later made.
const API_VERSION: c_uint = 3020;

/// The device and generation of a context that must be alive; null is the current one.
pub(super) fn of_context(context: u64) -> Result<(Arc<EmulatedDevice>, u64), Failure> {
    let raw = if context == 0 {
        registry::current()
    } else {
        context
    };
    let (device, generation) = named(raw, Kind::Context, "context")
        .map_err(|_| Failure::new(CuResult::INVALID_CONTEXT, "the handle names no context"))?;
    if !device.lock().context_is(generation) {
        return Err(Failure::new(
            CuResult::CONTEXT_IS_DESTROYED,
            "the context was destroyed",
        ));
    }
    Ok((device, generation))
}

fn create(
    call: &'static str,
    context: Out<u64>,
    flags: c_uint,
    device: c_int,
) -> Result<(), Failure> {
    context.required("the context")?;
    let device = of_device(device)?;
    let mut state = device.lock();
    state.begin(call)?;
    let generation = state.create_context(flags)?;
    let handle = registry::handle(Kind::Context, device.ordinal, generation);
    registry::push_current(handle);
    context.put(handle, "the context")
}

/// The default of a limit, where the device has it.
fn default_limit(limit: c_uint, capability: (u32, u32), l2_bytes: u64) -> Result<usize, Failure> {
    Ok(match limit {
        abi::CU_LIMIT_STACK_SIZE => 1024,
        abi::CU_LIMIT_PRINTF_FIFO_SIZE => 1 << 20,
        abi::CU_LIMIT_MALLOC_HEAP_SIZE => super::device_runtime::HEAP_BYTES,
        abi::CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT => 2048,
        abi::CU_LIMIT_MAX_L2_FETCH_GRANULARITY => 64,
        abi::CU_LIMIT_PERSISTING_L2_CACHE_SIZE if capability >= (8, 0) => {
            let _ = l2_bytes;
            0
        }
        abi::CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH => {
            return Err(Failure::new(
                CuResult::UNSUPPORTED_LIMIT,
                "devices of compute capability 9.0 and newer have no such limit",
            ));
        }
        other if other < abi::CU_LIMIT_MAX => {
            return Err(Failure::new(
                CuResult::UNSUPPORTED_LIMIT,
                format!("the device has no limit {other}"),
            ));
        }
        other => return Err(Failure::invalid(format!("no limit {other}"))),
    })
}

calls! {
    "cuCtxCreate_v2" fn ctx_create(context: Out<u64>, flags: c_uint, device: c_int) {
        create(CALL, context, flags, device)
    }

    "cuCtxCreate_v3" fn ctx_create_v3(
        context: Out<u64>, affinity: In<abi::CUexecAffinityParam>, count: c_int, flags: c_uint, device: c_int,
    ) {
        if affinity.optional().is_some() || count != 0 {
            return Err(Failure::new(CuResult::UNSUPPORTED_EXEC_AFFINITY, "execution affinity is not emulated"));
        }
        create(CALL, context, flags, device)
    }

    "cuCtxCreate_v4" fn ctx_create_v4(
        context: Out<u64>, params: In<abi::CUctxCreateParams>, flags: c_uint, device: c_int,
    ) {
        if let Some(params) = params.optional() {
            if params.numExecAffinityParams != 0 {
                return Err(Failure::new(CuResult::UNSUPPORTED_EXEC_AFFINITY, "execution affinity is not emulated"));
            }
            if !params.cigParams.is_null() {
                return Err(Failure::new(CuResult::NOT_SUPPORTED, "CUDA in graphics is not emulated"));
            }
        }
        create(CALL, context, flags, device)
    }

    "cuCtxDestroy_v2" fn ctx_destroy(context: u64) {
        if context == 0 {
            return Err(Failure::new(CuResult::INVALID_CONTEXT, "the context is null"));
        }
        let (device, generation) = of_context(context)?;
        device.lock().begin(CALL)?;
        let mut state = settled(&device);
        state.destroy_context(generation)?;
        drop(state);
        // As the driver: a destroyed context that was current is popped.
        if registry::current() == context {
            registry::pop_current();
        }
        Ok(())
    }

    "cuCtxPushCurrent_v2" fn ctx_push_current(context: u64) {
        if context == 0 {
            return Err(Failure::new(CuResult::INVALID_CONTEXT, "the context is null"));
        }
        of_context(context)?;
        registry::push_current(context);
        Ok(())
    }

    "cuCtxPopCurrent_v2" fn ctx_pop_current(context: Out<u64>) {
        let popped = registry::pop_current()
            .ok_or_else(|| Failure::new(CuResult::INVALID_CONTEXT, "no context is current on this thread"))?;
        context.put_if_wanted(popped);
        Ok(())
    }

    "cuCtxGetDevice" fn ctx_get_device(device: Out<c_int>) {
        device.put(registry::current_device()?.ordinal as c_int, "the device")
    }

    "cuCtxGetDevice_v2" fn ctx_get_device_of(device: Out<c_int>, context: u64) {
        device.put(of_context(context)?.0.ordinal as c_int, "the device")
    }

    "cuCtxGetFlags" fn ctx_get_flags(flags: Out<c_uint>) {
        let (device, generation) = of_context(0)?;
        let known = device.lock().contexts.flags(generation);
        flags.put(known, "the flags")
    }

    "cuCtxSetFlags" fn ctx_set_flags(flags: c_uint) {
        let (device, generation) = of_context(0)?;
        device.lock().contexts.set_flags(Some(generation), flags)
    }

    "cuCtxGetId" fn ctx_get_id(context: u64, id: Out<u64>) {
        let (device, generation) = of_context(context)?;
        id.put(u64::from(device.ordinal) << 32 | generation, "the id")
    }

    "cuCtxGetApiVersion" fn ctx_get_api_version(context: u64, version: Out<c_uint>) {
        of_context(context)?;
        version.put(API_VERSION, "the version")
    }

    "cuCtxSynchronize_v2" fn ctx_synchronize_of(context: u64) {
        let (device, _) = of_context(context)?;
        wait(CALL, &device, |state| state.refuse_wait_for_context(), |state| Ok(state.drain_all()))
    }

    "cuCtxGetStreamPriorityRange" fn ctx_get_stream_priority_range(least: Out<c_int>, greatest: Out<c_int>) {
        registry::current_device()?;
        least.put_if_wanted(limits::LOWEST_PRIORITY);
        greatest.put_if_wanted(limits::HIGHEST_PRIORITY);
        Ok(())
    }

    "cuCtxGetLimit" fn ctx_get_limit(value: Out<usize>, limit: c_uint) {
        on_current(CALL, |state| {
            let default = default_limit(limit, state.profile.compute_capability, state.profile.l2_bytes)?;
            value.put(state.contexts.limits.get(&limit).copied().unwrap_or(default), "the value")
        })
    }

    /// Values are kept and told; the emulator's stacks and buffers grow as they need.
    "cuCtxSetLimit" fn ctx_set_limit(limit: c_uint, value: usize) {
        on_current(CALL, |state| {
            default_limit(limit, state.profile.compute_capability, state.profile.l2_bytes)?;
            state.contexts.limits.insert(limit, value);
            Ok(())
        })
    }

    "cuCtxGetCacheConfig" fn ctx_get_cache_config(config: Out<c_uint>) {
        on_current(CALL, |state| config.put(state.contexts.cache_config, "the configuration"))
    }

    "cuCtxSetCacheConfig" fn ctx_set_cache_config(config: c_uint) {
        on_current(CALL, |state| {
            if config > abi::CU_FUNC_CACHE_PREFER_EQUAL {
                return Err(Failure::invalid(format!("no cache configuration {config}")));
            }
            state.contexts.cache_config = config;
            Ok(())
        })
    }

    "cuCtxGetSharedMemConfig" fn ctx_get_shared_config(config: Out<c_uint>) {
        on_current(CALL, |state| config.put(state.contexts.shared_config.max(1), "the configuration"))
    }

    "cuCtxSetSharedMemConfig" fn ctx_set_shared_config(config: c_uint) {
        on_current(CALL, |state| {
            if config > 2 {
                return Err(Failure::invalid(format!("no shared-memory configuration {config}")));
            }
            state.contexts.shared_config = config;
            Ok(())
        })
    }

    "cuCtxResetPersistingL2Cache" fn ctx_reset_persisting_l2() {
        on_current(CALL, |_| Ok(()))
    }

    "cuCtxGetExecAffinity" fn ctx_get_exec_affinity(affinity: Out<abi::CUexecAffinityParam>, kind: c_uint) {
        let _ = (affinity, kind);
        Err(Failure::new(CuResult::UNSUPPORTED_EXEC_AFFINITY, "execution affinity is not emulated"))
    }

    "cuCtxAttach" fn ctx_attach(context: Out<u64>, flags: c_uint) {
        if flags != 0 {
            return Err(Failure::invalid("the flags must be 0"));
        }
        of_context(0)?;
        context.put(registry::current(), "the context")
    }

    "cuCtxDetach" fn ctx_detach(context: u64) {
        of_context(context).map(|_| ())
    }

    "cuCtxEnablePeerAccess" fn ctx_enable_peer_access(context: u64, flags: c_uint) {
        if flags != 0 {
            return Err(Failure::invalid("the flags must be 0"));
        }
        let (peer, _) = of_context(context)?;
        set_peer(CALL, &peer, true)
    }

    "cuCtxDisablePeerAccess" fn ctx_disable_peer_access(context: u64) {
        let (peer, _) = of_context(context)?;
        set_peer(CALL, &peer, false)
    }

    "cuCtxRecordEvent" fn ctx_record_event(context: u64, event: u64) {
        let (device, _) = of_context(context)?;
        let (owner, event) = named(event, Kind::Event, "event")?;
        if owner.ordinal != device.ordinal {
            return Err(Failure::handle("event"));
        }
        super::entry::on_device(CALL, &device, |state| state.record_event(event, LEGACY))
    }

    "cuDevicePrimaryCtxGetState" fn primary_ctx_get_state(device: c_int, flags: Out<c_uint>, active: Out<c_int>) {
        let device = of_device(device)?;
        let state = device.lock();
        flags.put(state.contexts.primary_flags(), "the flags")?;
        active.put(c_int::from(state.contexts.primary().is_some()), "the state")
    }

    "cuDevicePrimaryCtxSetFlags_v2" fn primary_ctx_set_flags(device: c_int, flags: c_uint) {
        of_device(device)?.lock().contexts.set_flags(None, flags)
    }

    "cuDevicePrimaryCtxReset_v2" fn primary_ctx_reset(device: c_int) {
        let device = of_device(device)?;
        give_back_idle(CALL, &device, |state| state.reset_primary())
    }
}

/// Lets the current context's kernels use a peer's memory, or no longer.
fn set_peer(call: &'static str, peer: &Arc<EmulatedDevice>, enabled: bool) -> Result<(), Failure> {
    let device = registry::current_device()?;
    if peer.ordinal == device.ordinal {
        return Err(Failure::new(
            CuResult::INVALID_DEVICE,
            "a device is no peer of itself",
        ));
    }
    let space = Arc::clone(peer.lock().memory()?.space());
    super::entry::on_device(call, &device, |state| {
        let changed = if enabled {
            state.contexts.peers.insert(peer.ordinal)
        } else {
            state.contexts.peers.remove(&peer.ordinal)
        };
        if !changed {
            let code = if enabled {
                CuResult::PEER_ACCESS_ALREADY_ENABLED
            } else {
                CuResult::PEER_ACCESS_NOT_ENABLED
            };
            return Err(code.into());
        }
        state.memory()?.space().set_peer(&space, enabled);
        Ok(())
    })
}
