//! Entry points of tensor maps.

use std::ffi::{c_uint, c_void};

use super::arguments::{In, Out, calls};
use super::failure::Failure;
use crate::driver::CuResult;
use crate::driver::abi::{self, CUtensorMap};
use crate::emulator::exec::TensorMap;

/// Dimensions of a tensor at most.
const RANK: usize = 5;

/// Writes a map, if the driver would take it.
fn put(place: Out<CUtensorMap>, map: &TensorMap) -> Result<(), Failure> {
    map.validate().map_err(Failure::invalid)?;
    place
        .cast::<[u64; 16]>()
        .put(map.encode(), "the tensor map")
}

/// Values of the dimensions, and `rest` where there are none.
fn by_axis<T: Copy>(given: &[T], rest: T) -> [T; RANK] {
    std::array::from_fn(|axis| given.get(axis).copied().unwrap_or(rest))
}

calls! {
    "cuTensorMapEncodeTiled" fn tensor_map_encode_tiled(
        map: *mut CUtensorMap, data_type: c_uint, rank: c_uint, address: *mut c_void, dims: *const u64,
        strides: *const u64, box_dims: *const c_uint, element_strides: *const c_uint, interleave: c_uint,
        swizzle: c_uint, promotion: c_uint, fill: c_uint,
    ) {
        let map: Out<CUtensorMap> = Out::at(map as u64);
        map.required("the tensor map")?;
        let count = rank as usize;
        if !(1..=RANK).contains(&count) {
            return Err(Failure::invalid(format!("a tensor has 1 to {RANK} dimensions, not {rank}")));
        }
        let known = interleave <= abi::CU_TENSOR_MAP_INTERLEAVE_32B
            && swizzle <= abi::CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B
            && promotion <= abi::CU_TENSOR_MAP_L2_PROMOTION_L2_256B
            && fill <= abi::CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
            && data_type <= abi::CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B;
        if !known {
            return Err(Failure::invalid("an option of the tensor map is none that there is"));
        }
        if interleave != abi::CU_TENSOR_MAP_INTERLEAVE_NONE
            || swizzle > abi::CU_TENSOR_MAP_SWIZZLE_128B
            || data_type > abi::CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ
        {
            return Err(Failure::new(
                CuResult::NOT_SUPPORTED,
                "interleaved layouts, swizzles beyond 128 bytes and packed types are not emulated",
            ));
        }
        let narrow = |value: c_uint| value.min(u16::MAX.into()) as u16;
        let box_dims: Vec<u16> = In::of(box_dims).list(count, "the box")?.into_iter().map(narrow).collect();
        let steps = In::of(element_strides).list(count, "the elements' strides")?;
        let steps: Vec<u8> = steps.into_iter().map(|step| step.min(255) as u8).collect();
        let outer = In::of(strides).list(count - 1, "the strides")?;
        let built = TensorMap {
            data_type: data_type as u8,
            rank: rank as u8,
            swizzle: swizzle as u8,
            nan_fill: fill == abi::CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA,
            address: address as u64,
            dims: by_axis(&In::of(dims).list(count, "the dimensions")?, 1),
            strides: std::array::from_fn(|axis| outer.get(axis).copied().unwrap_or(0)),
            box_dims: by_axis(&box_dims, 1),
            element_strides: by_axis(&steps, 1),
        };
        put(map, &built)
    }

    "cuTensorMapReplaceAddress" fn tensor_map_replace_address(map: Out<CUtensorMap>, address: u64) {
        let words = map.cast::<[u64; 16]>().get("the tensor map")?;
        let known = TensorMap::decode(&words).ok_or_else(|| Failure::invalid("the 128 bytes are no tensor map"))?;
        put(map, &TensorMap { address, ..known })
    }
}
