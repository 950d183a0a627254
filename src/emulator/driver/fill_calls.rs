//! Entry points of fills.

use std::ffi::c_uint;

use cuda_driver_sys::{CUdeviceptr, CUstream};

use super::arguments::calls;
use super::capture::refuse_unsafe_call;
use super::entry::{entry, on_device, wait};
use super::failure::Failure;
use super::streams::of_stream;
use super::work::Fill;
use crate::driver::CuResult;

/// A fill of `count` elements in a row.
fn linear(destination: u64, value: u32, element_bytes: usize, count: usize) -> Fill {
    Fill {
        destination,
        value,
        element_bytes,
        count,
        rows: 1,
        pitch: 0,
    }
}

fn fill_now(call: &'static str, fill: Fill) -> Result<(), Failure> {
    refuse_unsafe_call(call)?;
    let (device, stream) = of_stream(0)?;
    wait(
        call,
        &device,
        |state| state.fill(stream, fill),
        |state| Ok(state.drain_stream(stream)),
    )
}

fn fill_in(call: &'static str, stream: u64, fill: Fill) -> Result<(), Failure> {
    let (device, stream) = of_stream(stream)?;
    on_device(call, &device, |state| state.fill(stream, fill))
}

pub(super) unsafe extern "C" fn memset_d8_async(
    destination: CUdeviceptr,
    value: u8,
    count: usize,
    stream: CUstream,
) -> CuResult {
    entry("cuMemsetD8Async", || {
        let fill = linear(destination, u32::from(value), 1, count);
        fill_in("cuMemsetD8Async", stream as u64, fill)
    })
}

pub(super) unsafe extern "C" fn memset_d32_async(
    destination: CUdeviceptr,
    value: c_uint,
    count: usize,
    stream: CUstream,
) -> CuResult {
    entry("cuMemsetD32Async", || {
        let fill = linear(destination, value, 4, count);
        fill_in("cuMemsetD32Async", stream as u64, fill)
    })
}

/// Declares the fills of one element type: at once, in a stream, and both for rows with a pitch.
macro_rules! fills {
    ($($element:ty: $now:literal $now_name:ident, $later:literal $later_name:ident, $plane:literal $plane_name:ident, $plane_later:literal $plane_later_name:ident;)*) => {
        calls! { $(
            $now fn $now_name(destination: u64, value: $element, count: usize) {
                fill_now(CALL, linear(destination, u32::from(value), size_of::<$element>(), count))
            }

            $later fn $later_name(destination: u64, value: $element, count: usize, stream: u64) {
                fill_in(CALL, stream, linear(destination, u32::from(value), size_of::<$element>(), count))
            }

            $plane fn $plane_name(destination: u64, pitch: usize, value: $element, width: usize, height: usize) {
                let fill = linear(destination, u32::from(value), size_of::<$element>(), width);
                fill_now(CALL, Fill { rows: height, pitch, ..fill })
            }

            $plane_later fn $plane_later_name(
                destination: u64, pitch: usize, value: $element, width: usize, height: usize, stream: u64,
            ) {
                let fill = linear(destination, u32::from(value), size_of::<$element>(), width);
                fill_in(CALL, stream, Fill { rows: height, pitch, ..fill })
            }
        )* }
    };
}

fills! {
    u8: "cuMemsetD8_v2" memset_d8, "cuMemsetD8Async" memset_d8_in, "cuMemsetD2D8_v2" memset_2d_d8, "cuMemsetD2D8Async" memset_2d_d8_in;
    u16: "cuMemsetD16_v2" memset_d16, "cuMemsetD16Async" memset_d16_in, "cuMemsetD2D16_v2" memset_2d_d16, "cuMemsetD2D16Async" memset_2d_d16_in;
    u32: "cuMemsetD32_v2" memset_d32, "cuMemsetD32Async" memset_d32_in, "cuMemsetD2D32_v2" memset_2d_d32, "cuMemsetD2D32Async" memset_2d_d32_in;
}
