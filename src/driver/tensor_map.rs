//! Tensor maps: what bulk copies of tensors (`cp.async.bulk.tensor`) take instead of an address.

use super::{Context, DevicePtr, DriverError, abi};

/// Dimensions of a tensor at most.
const RANK: usize = 5;

/// Type of a tensor's elements; the numbers are `CUtensorMapDataType`'s.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u32)]
pub enum TensorElement {
    U8 = abi::CU_TENSOR_MAP_DATA_TYPE_UINT8,
    U16 = abi::CU_TENSOR_MAP_DATA_TYPE_UINT16,
    U32 = abi::CU_TENSOR_MAP_DATA_TYPE_UINT32,
    S32 = abi::CU_TENSOR_MAP_DATA_TYPE_INT32,
    U64 = abi::CU_TENSOR_MAP_DATA_TYPE_UINT64,
    S64 = abi::CU_TENSOR_MAP_DATA_TYPE_INT64,
    F16 = abi::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    F32 = abi::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    F64 = abi::CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
    Bf16 = abi::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
}

impl TensorElement {
    /// Bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            TensorElement::U8 => 1,
            TensorElement::U16 | TensorElement::F16 | TensorElement::Bf16 => 2,
            TensorElement::U32 | TensorElement::S32 | TensorElement::F32 => 4,
            TensorElement::U64 | TensorElement::S64 | TensorElement::F64 => 8,
        }
    }
}

/// A tiled tensor and the boxes that are copied of it, without an address yet. Lists begin with the innermost dimension.
///
/// Source: CUDA driver API, `cuTensorMapEncodeTiled`, which says what values are allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TiledTensor {
    /// Type of the elements.
    pub element: TensorElement,
    /// Elements in each dimension; the list's length is the tensor's rank, 1 to 5.
    pub dims: Vec<u64>,
    /// Bytes from one element to the next in each dimension but the innermost: multiples of 16.
    pub strides: Vec<u64>,
    /// Elements of a box in each dimension.
    pub box_dims: Vec<u32>,
    /// Step between the elements of a box that are copied, in each dimension.
    pub element_strides: Vec<u32>,
    /// Bytes of the swizzle in shared memory: 32, 64 or 128, or 0 for none.
    pub swizzle_bytes: u32,
    /// Elements of floats outside of the tensor read as NaN, not as 0.
    pub nan_fill: bool,
}

impl TiledTensor {
    /// `CUtensorMapSwizzle`, if there is one of these bytes.
    #[must_use]
    pub const fn swizzle(&self) -> Option<u32> {
        match self.swizzle_bytes {
            0 => Some(abi::CU_TENSOR_MAP_SWIZZLE_NONE),
            32 => Some(abi::CU_TENSOR_MAP_SWIZZLE_32B),
            64 => Some(abi::CU_TENSOR_MAP_SWIZZLE_64B),
            128 => Some(abi::CU_TENSOR_MAP_SWIZZLE_128B),
            _ => None,
        }
    }

    /// The 128 bytes that a kernel needs, 64-byte aligned where they lie, for a tensor at `address` (16-byte aligned).
    ///
    /// # Errors
    /// [`DriverError::Invalid`] for lists of other lengths than the rank's and for a swizzle that does not exist,
    /// [`DriverError::MissingSymbol`] from a driver without tensor maps, [`DriverError::Poisoned`], or whatever
    /// `cuTensorMapEncodeTiled` returns: `CUDA_ERROR_INVALID_VALUE` for values that are not allowed.
    pub fn encode(&self, context: &Context, address: DevicePtr) -> Result<[u64; 16], DriverError> {
        let rank = self.dims.len();
        let invalid = |what: String| Err(DriverError::Invalid { what });
        if !(1..=RANK).contains(&rank) {
            return invalid(format!("a tensor has 1 to {RANK} dimensions, not {rank}"));
        }
        for (what, length, wanted) in [
            ("strides", self.strides.len(), rank - 1),
            ("sizes of the box", self.box_dims.len(), rank),
            ("steps", self.element_strides.len(), rank),
        ] {
            if length != wanted {
                return invalid(format!(
                    "{length} {what} of a tensor of {rank} dimensions: {wanted} are needed"
                ));
            }
        }
        let Some(swizzle) = self.swizzle() else {
            return invalid(format!(
                "a swizzle of {} bytes: 0, 32, 64 and 128 exist",
                self.swizzle_bytes
            ));
        };
        const CALL: &str = "cuTensorMapEncodeTiled";
        let api = context.enter(CALL)?;
        let encode = api
            .cu_tensor_map_encode_tiled
            .ok_or(DriverError::MissingSymbol { symbol: CALL })?;
        let mut map = abi::CUtensorMap { opaque: [0; 16] };
        let fill = if self.nan_fill {
            abi::CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
        } else {
            abi::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
        };
        // SAFETY: the map is a live local of the right alignment, the lists are as long as the rank says, and the driver only
        // encodes the address.
        let result = unsafe {
            encode(
                &mut map,
                self.element as u32,
                rank as u32,
                address.0 as *mut std::ffi::c_void,
                self.dims.as_ptr(),
                self.strides.as_ptr(),
                self.box_dims.as_ptr(),
                self.element_strides.as_ptr(),
                abi::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                abi::CU_TENSOR_MAP_L2_PROMOTION_NONE,
                fill,
            )
        };
        context.check(CALL, result, || format!("{self:?} at {:#x}", address.0))?;
        Ok(map.opaque)
    }
}
