//! Parameters of graph nodes, in the structures that the driver has for them.

use std::ffi::c_uint;

use super::arguments::Out;
use super::copies::Region;
use super::copy_calls::described_3d;
use super::entry::named;
use super::failure::Failure;
use super::graph_calls::kernel_params;
use super::launch_calls::LaunchAttributes;
use super::launches::LaunchShape;
use super::registry::{self, Kind};
use super::state::State;
use super::work::{Copy, Fill, HostCall, HostFunction, Place, Side, Work};
use crate::driver::CuResult;
use crate::driver::abi::{
    self, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1, CUDA_KERNEL_NODE_PARAMS_v2,
    CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUgraphNodeParams,
};

/// The parameters of a kernel node that an older program gives.
pub(super) fn newer(params: &CUDA_KERNEL_NODE_PARAMS_v1) -> CUDA_KERNEL_NODE_PARAMS_v2 {
    CUDA_KERNEL_NODE_PARAMS_v2 {
        func: params.func,
        gridDimX: params.gridDimX,
        gridDimY: params.gridDimY,
        gridDimZ: params.gridDimZ,
        blockDimX: params.blockDimX,
        blockDimY: params.blockDimY,
        blockDimZ: params.blockDimZ,
        sharedMemBytes: params.sharedMemBytes,
        kernelParams: params.kernelParams,
        extra: params.extra,
        kern: std::ptr::null_mut(),
        ctx: std::ptr::null_mut(),
    }
}

/// The parameters of a kernel node as an older program takes them.
pub(super) fn older(params: &CUDA_KERNEL_NODE_PARAMS_v2) -> CUDA_KERNEL_NODE_PARAMS_v1 {
    CUDA_KERNEL_NODE_PARAMS_v1 {
        func: params.func,
        gridDimX: params.gridDimX,
        gridDimY: params.gridDimY,
        gridDimZ: params.gridDimZ,
        blockDimX: params.blockDimX,
        blockDimY: params.blockDimY,
        blockDimZ: params.blockDimZ,
        sharedMemBytes: params.sharedMemBytes,
        kernelParams: params.kernelParams,
        extra: params.extra,
    }
}

/// A kernel node's launch.
pub(super) fn kernel(
    state: &mut State,
    params: &CUDA_KERNEL_NODE_PARAMS_v2,
) -> Result<Work, Failure> {
    let function = match registry::decode_parts(params.func as u64, Kind::Function) {
        Some((ordinal, serial)) if ordinal == state.ordinal => serial,
        _ => {
            let raw = if params.func.is_null() {
                params.kern as u64
            } else {
                params.func as u64
            };
            state.function_of_kernel(raw)?
        }
    };
    let shape = LaunchShape {
        grid: [params.gridDimX, params.gridDimY, params.gridDimZ],
        block: [params.blockDimX, params.blockDimY, params.blockDimZ],
        shared_bytes: params.sharedMemBytes,
    };
    let attributes = LaunchAttributes::default();
    // SAFETY: the caller passes one pointer a parameter, or a buffer that holds them all.
    let launch = unsafe {
        state.new_launch(
            function,
            shape,
            attributes,
            params.kernelParams,
            params.extra,
        )
    }?;
    Ok(Work::Kernel(std::sync::Arc::new(launch)))
}

/// A copy node's copy.
pub(super) fn copy(state: &mut State, params: &CUDA_MEMCPY3D) -> Result<Work, Failure> {
    let (from, to, extent): (Region, Region, _) = described_3d(params)?;
    match state.new_copy(from, to, extent)? {
        Some(copy) => Ok(Work::Copy(copy)),
        None => Err(Failure::invalid("a copy node copies at least one byte")),
    }
}

/// A fill node's fill.
pub(super) fn fill(state: &mut State, params: &CUDA_MEMSET_NODE_PARAMS) -> Result<Work, Failure> {
    let fill = Fill {
        destination: params.dst,
        value: params.value,
        element_bytes: params.elementSize as usize,
        count: params.width,
        rows: params.height,
        pitch: params.pitch,
    };
    match state.checked_fill(fill)? {
        Some(fill) => Ok(Work::Fill(fill)),
        None => Err(Failure::invalid("a fill node fills at least one element")),
    }
}

/// A host node's function.
pub(super) fn host(params: &CUDA_HOST_NODE_PARAMS) -> Result<Work, Failure> {
    let function = params.fn_.ok_or_else(|| Failure::null("the function"))?;
    Ok(Work::Host(HostCall {
        function: HostFunction::Plain(function),
        data: params.userData as usize,
    }))
}

/// A child node's graph: a copy that belongs to the node.
pub(super) fn child(state: &mut State, graph: u64) -> Result<Work, Failure> {
    let (ordinal, id) =
        registry::decode_parts(graph, Kind::Graph).ok_or_else(|| Failure::handle("graph"))?;
    if ordinal != state.ordinal {
        return Err(Failure::handle("graph"));
    }
    Ok(Work::Child(state.clone_graph(id, true)?))
}

/// The serial of an event of this device.
pub(super) fn event(state: &State, event: u64) -> Result<u64, Failure> {
    match registry::decode_parts(event, Kind::Event) {
        Some((ordinal, serial))
            if ordinal == state.ordinal && state.events.contains_key(&serial) =>
        {
            Ok(serial)
        }
        _ => Err(Failure::handle("event")),
    }
}

/// A free node's allocation.
pub(super) fn free(state: &State, pointer: u64) -> Result<Work, Failure> {
    if state.graph_allocations.contains_key(&pointer)
        || state.device_allocations.contains_key(&pointer)
    {
        return Ok(Work::Free(pointer));
    }
    Err(Failure::invalid("no allocation begins at this address"))
}

/// The work of a node whose parameters come in the structure for all kinds; what the call tells back is
/// written into it.
pub(super) fn generic(state: &mut State, params: Out<CUgraphNodeParams>) -> Result<Work, Failure> {
    let mut known = params.get("the parameters")?;
    let union = &known.__bindgen_anon_1;
    match known.type_ {
        abi::CU_GRAPH_NODE_TYPE_KERNEL => {
            // SAFETY: the type says which member of the union the caller filled.
            let from = unsafe { union.kernel };
            let params = CUDA_KERNEL_NODE_PARAMS_v2 {
                func: from.func,
                gridDimX: from.gridDimX,
                gridDimY: from.gridDimY,
                gridDimZ: from.gridDimZ,
                blockDimX: from.blockDimX,
                blockDimY: from.blockDimY,
                blockDimZ: from.blockDimZ,
                sharedMemBytes: from.sharedMemBytes,
                kernelParams: from.kernelParams,
                extra: from.extra,
                kern: from.kern,
                ctx: from.ctx,
            };
            kernel(state, &params)
        }
        // SAFETY: as above.
        abi::CU_GRAPH_NODE_TYPE_MEMCPY => copy(state, &unsafe { union.memcpy }.copyParams),
        abi::CU_GRAPH_NODE_TYPE_MEMSET => {
            // SAFETY: as above.
            let from = unsafe { union.memset };
            let params = CUDA_MEMSET_NODE_PARAMS {
                dst: from.dst,
                pitch: from.pitch,
                value: from.value,
                elementSize: from.elementSize,
                width: from.width,
                height: from.height,
            };
            fill(state, &params)
        }
        abi::CU_GRAPH_NODE_TYPE_HOST => {
            // SAFETY: as above.
            let from = unsafe { union.host };
            host(&CUDA_HOST_NODE_PARAMS {
                fn_: from.fn_,
                userData: from.userData,
            })
        }
        abi::CU_GRAPH_NODE_TYPE_GRAPH => {
            // SAFETY: as above.
            let graph = unsafe { union.graph }.graph as u64;
            let work = child(state, graph)?;
            if let Work::Child(own) = work {
                known.__bindgen_anon_1.graph.graph =
                    state.graph_handle(own) as cuda_driver_sys::CUgraph;
                params.put_if_wanted(known);
            }
            Ok(work)
        }
        abi::CU_GRAPH_NODE_TYPE_EMPTY => Ok(Work::Wait),
        abi::CU_GRAPH_NODE_TYPE_EVENT_RECORD => {
            // SAFETY: as above.
            let handle = unsafe { union.eventRecord }.event as u64;
            Ok(Work::Record(event(state, handle)?))
        }
        abi::CU_GRAPH_NODE_TYPE_WAIT_EVENT => {
            // SAFETY: as above.
            let handle = unsafe { union.eventWait }.event as u64;
            Ok(Work::WaitFor(event(state, handle)?))
        }
        abi::CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
            // SAFETY: as above.
            let bytes = unsafe { union.alloc }.bytesize as u64;
            let address = state.graph_allocation(bytes)?;
            known.__bindgen_anon_1.alloc.dptr = address;
            params.put_if_wanted(known);
            Ok(Work::Allocate { address, bytes })
        }
        // SAFETY: as above.
        abi::CU_GRAPH_NODE_TYPE_MEM_FREE => free(state, unsafe { union.free }.dptr),
        other => Err(Failure::new(
            CuResult::NOT_SUPPORTED,
            format!("graph nodes of kind {other} are not emulated"),
        )),
    }
}

/// A side of a copy as its node's parameters have it: kind, host address, device address, pitch, rows of a plane.
fn side(side: &Side) -> (c_uint, usize, u64, usize, usize) {
    let rows = side.plane.checked_div(side.pitch).unwrap_or(0);
    match &side.place {
        Place::Device(address) => (abi::CU_MEMORYTYPE_DEVICE, 0, *address, side.pitch, rows),
        Place::Host { address, .. } => (abi::CU_MEMORYTYPE_HOST, *address, 0, side.pitch, rows),
        Place::Snapshot(bytes) => (
            abi::CU_MEMORYTYPE_HOST,
            bytes.as_ptr() as usize,
            0,
            side.pitch,
            rows,
        ),
    }
}

/// A copy as its node's parameters have it.
pub(super) fn copy_params(copy: &Copy) -> CUDA_MEMCPY3D {
    let (from_kind, from_host, from_device, from_pitch, from_rows) = side(&copy.from);
    let (to_kind, to_host, to_device, to_pitch, to_rows) = side(&copy.to);
    CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: from_kind,
        srcHost: from_host as *const _,
        srcDevice: from_device,
        srcArray: std::ptr::null_mut(),
        reserved0: std::ptr::null_mut(),
        srcPitch: from_pitch,
        srcHeight: from_rows,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: to_kind,
        dstHost: to_host as *mut _,
        dstDevice: to_device,
        dstArray: std::ptr::null_mut(),
        reserved1: std::ptr::null_mut(),
        dstPitch: to_pitch,
        dstHeight: to_rows,
        WidthInBytes: copy.width,
        Height: copy.rows,
        Depth: copy.planes,
    }
}

/// A fill as its node's parameters have it.
pub(super) fn fill_params(fill: &Fill) -> CUDA_MEMSET_NODE_PARAMS {
    CUDA_MEMSET_NODE_PARAMS {
        dst: fill.destination,
        pitch: fill.pitch,
        value: fill.value,
        elementSize: fill.element_bytes as c_uint,
        width: fill.count,
        height: fill.rows,
    }
}

/// A node in few words.
pub(super) fn label(work: &Work) -> String {
    match work {
        Work::Kernel(launch) => {
            let params = kernel_params(0, launch);
            format!(
                "{} grid {}x{}x{} block {}x{}x{} shared {}",
                launch.code.name,
                params.gridDimX,
                params.gridDimY,
                params.gridDimZ,
                params.blockDimX,
                params.blockDimY,
                params.blockDimZ,
                params.sharedMemBytes
            )
        }
        Work::Copy(copy) => format!("MEMCPY {} x {} x {}", copy.width, copy.rows, copy.planes),
        Work::Fill(fill) => format!("MEMSET {:#x} = {:#x}", fill.destination, fill.value),
        Work::Host(_) => "HOST".to_owned(),
        Work::Child(_) | Work::Graph { .. } => "GRAPH".to_owned(),
        Work::Record(_) => "EVENT_RECORD".to_owned(),
        Work::WaitFor(_) => "EVENT_WAIT".to_owned(),
        Work::Value(_) => "MEM_OP".to_owned(),
        Work::Allocate { bytes, .. } => format!("MEM_ALLOC {bytes}"),
        Work::Free(address) => format!("MEM_FREE {address:#x}"),
        Work::Wait | Work::Hang => "EMPTY".to_owned(),
    }
}

/// A node's host function as its parameters have it.
pub(super) fn host_params(call: &HostCall) -> Result<CUDA_HOST_NODE_PARAMS, Failure> {
    match call.function {
        HostFunction::Plain(function) => Ok(CUDA_HOST_NODE_PARAMS {
            fn_: Some(function),
            userData: call.data as *mut _,
        }),
        HostFunction::Callback(..) => Err(Failure::invalid("the node is not a host node")),
    }
}

/// Device and serial of a node.
pub(super) fn of_node(
    node: u64,
) -> Result<(std::sync::Arc<registry::EmulatedDevice>, u64), Failure> {
    named(node, Kind::Node, "graph node")
}
