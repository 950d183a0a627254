//! Entry points of copies.

use std::cell::Cell;
use std::ffi::{c_uint, c_void};

use cuda_driver_sys::{CUdeviceptr, CUstream};

use super::arguments::{In, Out, calls};
use super::capture::refuse_unsafe_call;
use super::context_calls::of_context;
use super::copies::{Extent, Region, Target};
use super::entry::{entry, wait};
use super::failure::Failure;
use super::streams::of_stream;
use crate::driver::CuResult;
use crate::driver::abi::{self, CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER};

/// A copy as its caller describes it: source, destination, extent.
type Described = (Region, Region, Extent);

/// A copy of `bytes` without gaps.
fn linear(from: Target, to: Target, bytes: usize) -> Described {
    (
        Region::linear(from, bytes),
        Region::linear(to, bytes),
        [bytes, 1, 1],
    )
}

/// Issues a copy into the default stream; it is complete on return unless both sides are a device's.
fn copy_now(call: &'static str, (from, to, extent): Described) -> Result<(), Failure> {
    refuse_unsafe_call(call)?;
    let (device, stream) = of_stream(0)?;
    wait(
        call,
        &device,
        |state| state.copy(stream, from, to, extent).map(|_| ()),
        |state| Ok(state.drain_stream(stream)),
    )
}

/// Issues a copy into a stream.
fn copy_in(call: &'static str, stream: u64, (from, to, extent): Described) -> Result<(), Failure> {
    let (device, stream) = of_stream(stream)?;
    let must_wait = Cell::new(false);
    wait(
        call,
        &device,
        |state| {
            must_wait.set(state.copy(stream, from, to, extent)?);
            Ok(())
        },
        |state| Ok(!must_wait.get() || state.drain_stream(stream)),
    )
}

pub(super) unsafe extern "C" fn memcpy_htod(
    destination: CUdeviceptr,
    source: *const c_void,
    bytes: usize,
) -> CuResult {
    entry("cuMemcpyHtoD", || {
        let copy = linear(
            Target::Host(source as usize),
            Target::Device(destination),
            bytes,
        );
        copy_now("cuMemcpyHtoD", copy)
    })
}

pub(super) unsafe extern "C" fn memcpy_dtoh(
    destination: *mut c_void,
    source: CUdeviceptr,
    bytes: usize,
) -> CuResult {
    entry("cuMemcpyDtoH", || {
        let copy = linear(
            Target::Device(source),
            Target::Host(destination as usize),
            bytes,
        );
        copy_now("cuMemcpyDtoH", copy)
    })
}

pub(super) unsafe extern "C" fn memcpy_htod_async(
    destination: CUdeviceptr,
    source: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> CuResult {
    entry("cuMemcpyHtoDAsync", || {
        let copy = linear(
            Target::Host(source as usize),
            Target::Device(destination),
            bytes,
        );
        copy_in("cuMemcpyHtoDAsync", stream as u64, copy)
    })
}

pub(super) unsafe extern "C" fn memcpy_dtoh_async(
    destination: *mut c_void,
    source: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CuResult {
    entry("cuMemcpyDtoHAsync", || {
        let copy = linear(
            Target::Device(source),
            Target::Host(destination as usize),
            bytes,
        );
        copy_in("cuMemcpyDtoHAsync", stream as u64, copy)
    })
}

pub(super) unsafe extern "C" fn memcpy_dtod_async(
    destination: CUdeviceptr,
    source: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CuResult {
    entry("cuMemcpyDtoDAsync", || {
        let copy = linear(Target::Device(source), Target::Device(destination), bytes);
        copy_in("cuMemcpyDtoDAsync", stream as u64, copy)
    })
}

/// One side of a pitched copy: memory, offset in it, pitch of a row, rows of a plane.
struct Pitched {
    kind: c_uint,
    host: *const c_void,
    device: CUdeviceptr,
    offset: [usize; 3],
    pitch: usize,
    height: usize,
}

impl Pitched {
    fn region(&self, width: usize) -> Result<Region, Failure> {
        let pitch = if self.pitch == 0 { width } else { self.pitch };
        let plane = pitch * self.height;
        let [x, y, z] = self.offset;
        let offset = x + y * pitch + z * plane;
        let target = match self.kind {
            abi::CU_MEMORYTYPE_HOST => Target::Host(self.host as usize + offset),
            abi::CU_MEMORYTYPE_DEVICE => Target::Device(self.device + offset as u64),
            abi::CU_MEMORYTYPE_UNIFIED => Target::Unified(self.device + offset as u64),
            abi::CU_MEMORYTYPE_ARRAY => {
                return Err(Failure::new(
                    CuResult::NOT_SUPPORTED,
                    "arrays are not emulated",
                ));
            }
            other => return Err(Failure::invalid(format!("no memory type {other}"))),
        };
        Ok(Region {
            target,
            pitch,
            plane,
        })
    }
}

/// Source, destination and extent of a 2D copy.
pub(super) fn described_2d(copy: &CUDA_MEMCPY2D) -> Result<Described, Failure> {
    let from = Pitched {
        kind: copy.srcMemoryType,
        host: copy.srcHost,
        device: copy.srcDevice,
        offset: [copy.srcXInBytes, copy.srcY, 0],
        pitch: copy.srcPitch,
        height: copy.Height,
    };
    let to = Pitched {
        kind: copy.dstMemoryType,
        host: copy.dstHost,
        device: copy.dstDevice,
        offset: [copy.dstXInBytes, copy.dstY, 0],
        pitch: copy.dstPitch,
        height: copy.Height,
    };
    let width = copy.WidthInBytes;
    Ok((
        from.region(width)?,
        to.region(width)?,
        [width, copy.Height, 1],
    ))
}

/// Source, destination and extent of a 3D copy.
pub(super) fn described_3d(copy: &CUDA_MEMCPY3D) -> Result<Described, Failure> {
    let from = Pitched {
        kind: copy.srcMemoryType,
        host: copy.srcHost,
        device: copy.srcDevice,
        offset: [copy.srcXInBytes, copy.srcY, copy.srcZ],
        pitch: copy.srcPitch,
        height: copy.srcHeight.max(copy.Height),
    };
    let to = Pitched {
        kind: copy.dstMemoryType,
        host: copy.dstHost,
        device: copy.dstDevice,
        offset: [copy.dstXInBytes, copy.dstY, copy.dstZ],
        pitch: copy.dstPitch,
        height: copy.dstHeight.max(copy.Height),
    };
    let width = copy.WidthInBytes;
    let extent = [width, copy.Height, copy.Depth];
    Ok((from.region(width)?, to.region(width)?, extent))
}

/// Source, destination and extent of a 3D copy between devices.
fn described_peer(copy: &CUDA_MEMCPY3D_PEER) -> Result<Described, Failure> {
    described_3d(&CUDA_MEMCPY3D {
        srcXInBytes: copy.srcXInBytes,
        srcY: copy.srcY,
        srcZ: copy.srcZ,
        srcLOD: copy.srcLOD,
        srcMemoryType: copy.srcMemoryType,
        srcHost: copy.srcHost,
        srcDevice: copy.srcDevice,
        srcArray: copy.srcArray,
        reserved0: std::ptr::null_mut(),
        srcPitch: copy.srcPitch,
        srcHeight: copy.srcHeight,
        dstXInBytes: copy.dstXInBytes,
        dstY: copy.dstY,
        dstZ: copy.dstZ,
        dstLOD: copy.dstLOD,
        dstMemoryType: copy.dstMemoryType,
        dstHost: copy.dstHost,
        dstDevice: copy.dstDevice,
        dstArray: copy.dstArray,
        reserved1: std::ptr::null_mut(),
        dstPitch: copy.dstPitch,
        dstHeight: copy.dstHeight,
        WidthInBytes: copy.WidthInBytes,
        Height: copy.Height,
        Depth: copy.Depth,
    })
}

calls! {
    "cuMemcpy" fn memcpy(destination: u64, source: u64, bytes: usize) {
        copy_now(CALL, linear(Target::Unified(source), Target::Unified(destination), bytes))
    }

    "cuMemcpyAsync" fn memcpy_async(destination: u64, source: u64, bytes: usize, stream: u64) {
        copy_in(CALL, stream, linear(Target::Unified(source), Target::Unified(destination), bytes))
    }

    "cuMemcpyDtoD_v2" fn memcpy_dtod(destination: u64, source: u64, bytes: usize) {
        copy_now(CALL, linear(Target::Device(source), Target::Device(destination), bytes))
    }

    "cuMemcpyPeer" fn memcpy_peer(
        destination: u64, to: u64, source: u64, from: u64, bytes: usize,
    ) {
        of_context(to)?;
        of_context(from)?;
        copy_now(CALL, linear(Target::Device(source), Target::Device(destination), bytes))
    }

    "cuMemcpyPeerAsync" fn memcpy_peer_async(
        destination: u64, to: u64, source: u64, from: u64, bytes: usize, stream: u64,
    ) {
        of_context(to)?;
        of_context(from)?;
        copy_in(CALL, stream, linear(Target::Device(source), Target::Device(destination), bytes))
    }

    "cuMemcpy2D_v2" fn memcpy_2d(copy: In<CUDA_MEMCPY2D>) {
        copy_now(CALL, described_2d(&copy.get("the copy")?)?)
    }

    "cuMemcpy2DUnaligned_v2" fn memcpy_2d_unaligned(copy: In<CUDA_MEMCPY2D>) {
        copy_now(CALL, described_2d(&copy.get("the copy")?)?)
    }

    "cuMemcpy2DAsync_v2" fn memcpy_2d_async(copy: In<CUDA_MEMCPY2D>, stream: u64) {
        copy_in(CALL, stream, described_2d(&copy.get("the copy")?)?)
    }

    "cuMemcpy3D_v2" fn memcpy_3d(copy: In<CUDA_MEMCPY3D>) {
        copy_now(CALL, described_3d(&copy.get("the copy")?)?)
    }

    "cuMemcpy3DAsync_v2" fn memcpy_3d_async(copy: In<CUDA_MEMCPY3D>, stream: u64) {
        copy_in(CALL, stream, described_3d(&copy.get("the copy")?)?)
    }

    "cuMemcpy3DPeer" fn memcpy_3d_peer(copy: In<CUDA_MEMCPY3D_PEER>) {
        copy_now(CALL, described_peer(&copy.get("the copy")?)?)
    }

    "cuMemcpy3DPeerAsync" fn memcpy_3d_peer_async(copy: In<CUDA_MEMCPY3D_PEER>, stream: u64) {
        copy_in(CALL, stream, described_peer(&copy.get("the copy")?)?)
    }

    /// Copies one after the other, in the order they stand in; attributes are hints and are ignored.
    "cuMemcpyBatchAsync_v2" fn memcpy_batch_async(
        destinations: In<u64>, sources: In<u64>, bytes: In<usize>, count: usize,
        attributes: In<abi::CUmemcpyAttributes>, indices: In<usize>, attribute_count: usize, stream: u64,
    ) {
        let _ = (attributes, indices, attribute_count);
        batch(CALL, destinations, sources, bytes, count, stream)
    }

    "cuMemcpyBatchAsync" fn memcpy_batch_async_v1(
        destinations: In<u64>, sources: In<u64>, bytes: In<usize>, count: usize,
        attributes: In<abi::CUmemcpyAttributes>, indices: In<usize>, attribute_count: usize,
        failed: Out<usize>, stream: u64,
    ) {
        let _ = (attributes, indices, attribute_count, failed);
        batch(CALL, destinations, sources, bytes, count, stream)
    }
}

fn batch(
    call: &'static str,
    destinations: In<u64>,
    sources: In<u64>,
    bytes: In<usize>,
    count: usize,
    stream: u64,
) -> Result<(), Failure> {
    if matches!(stream, 0 | 1) || count == 0 {
        return Err(Failure::invalid(
            "a batch of copies needs a stream that is not the legacy default one, and a copy",
        ));
    }
    let destinations = destinations.list(count, "the destinations")?;
    let sources = sources.list(count, "the sources")?;
    let bytes = bytes.list(count, "the sizes")?;
    for ((to, from), bytes) in destinations.into_iter().zip(sources).zip(bytes) {
        copy_in(
            call,
            stream,
            linear(Target::Unified(from), Target::Unified(to), bytes),
        )?;
    }
    Ok(())
}
