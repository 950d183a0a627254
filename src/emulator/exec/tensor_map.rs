//! Tensor maps (`CUtensorMap`): what `cp.async.bulk.tensor` reads instead of an address.
//!
//! The driver's 128 bytes are opaque; this is the emulator's own encoding of them.

/// Bytes of an element by `CUtensorMapDataType`: u8, u16, u32, s32, u64, s64, f16, f32, f64, bf16, f32 flushed, tf32, tf32
/// flushed.
const ELEMENT_BYTES: [u8; 13] = [1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4];

const MARK: u64 = 0x6e65_6170_746d_6170;

/// A tiled tensor map (`cuTensorMapEncodeTiled`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// `CUtensorMapDataType`, 0 to 12.
    pub data_type: u8,
    /// Dimensions, 1 to 5.
    pub rank: u8,
    /// log2 of the swizzle's span in 16-byte units: 0 none, 1 for 32 bytes, 2 for 64, 3 for 128
    /// (`CUtensorMapSwizzle`'s first four values).
    pub swizzle: u8,
    /// Elements outside of a tensor of floats read as NaN instead of 0.
    pub nan_fill: bool,
    /// Address of the element at the origin, 16-byte aligned.
    pub address: u64,
    /// Elements in each dimension, the innermost first.
    pub dims: [u64; 5],
    /// Bytes from one element to the next in dimensions 1 to 4, multiples of 16.
    pub strides: [u64; 4],
    /// Elements of a box in each dimension, at most 256.
    pub box_dims: [u16; 5],
    /// Step between the elements that are copied, in elements, 1 to 8.
    pub element_strides: [u8; 5],
}

impl TensorMap {
    /// Bytes of an element.
    #[must_use]
    pub fn element_bytes(&self) -> u64 {
        ELEMENT_BYTES[usize::from(self.data_type).min(ELEMENT_BYTES.len() - 1)].into()
    }

    /// Why the driver would refuse this map, if it would.
    ///
    /// # Errors
    /// The first rule of `cuTensorMapEncodeTiled` that it breaks.
    pub fn validate(&self) -> Result<(), String> {
        let bytes = self.element_bytes();
        let rank = usize::from(self.rank);
        if !(1..=5).contains(&rank) || usize::from(self.data_type) >= ELEMENT_BYTES.len() {
            return Err(format!(
                "a tensor of {rank} dimensions and data type {}: 1 to 5 and 0 to 12 exist",
                self.data_type
            ));
        }
        if self.swizzle > 3 {
            return Err(format!("swizzle {} is not implemented", self.swizzle));
        }
        if !self.address.is_multiple_of(16) {
            return Err(format!(
                "the address {:#x} is not 16-byte aligned",
                self.address
            ));
        }
        for axis in 0..rank {
            let (size, part) = (self.dims[axis], self.box_dims[axis]);
            let step = self.element_strides[axis];
            if size == 0 || size > 1 << 32 || part == 0 || part > 256 || !(1..=8).contains(&step) {
                return Err(format!(
                    "dimension {axis}: {size} elements, a box of {part}, a step of {step}"
                ));
            }
            if axis > 0
                && (!self.strides[axis - 1].is_multiple_of(16) || self.strides[axis - 1] >= 1 << 40)
            {
                return Err(format!(
                    "dimension {axis}: a stride of {} bytes is not a multiple of 16 below 2^40",
                    self.strides[axis - 1]
                ));
            }
        }
        let inner = u64::from(self.box_dims[0]) * bytes;
        if !inner.is_multiple_of(16) || (self.swizzle > 0 && inner > 16 << self.swizzle) {
            return Err(format!(
                "{inner} bytes of the box's innermost dimension: a multiple of 16, and at most the swizzle's span, is needed"
            ));
        }
        Ok(())
    }

    /// The 128 bytes of a `CUtensorMap`.
    #[must_use]
    pub fn encode(&self) -> [u64; 16] {
        let mut words = [0; 16];
        words[1] = MARK;
        words[0] = u64::from(self.data_type)
            | u64::from(self.rank) << 8
            | u64::from(self.swizzle) << 16
            | u64::from(self.nan_fill) << 24;
        words[2] = self.address;
        words[3..8].copy_from_slice(&self.dims);
        words[8..12].copy_from_slice(&self.strides);
        for axis in 0..5 {
            words[12 + axis / 4] |= u64::from(self.box_dims[axis]) << (16 * (axis % 4));
            words[14] |= u64::from(self.element_strides[axis]) << (8 * axis);
        }
        words
    }

    /// Where a field of `tensormap.replace`, in dimension `axis` if it has several, lies in [`TensorMap::encode`]'s bytes, and
    /// how many it has. Strides are counted from the second dimension on.
    pub(crate) fn field(name: &str, axis: u64) -> Option<(i64, u32)> {
        let axes = match name {
            "global_dim" | "box_dim" | "element_stride" => 5,
            "global_stride" => 4,
            _ => 1,
        };
        if axis >= axes {
            return None;
        }
        let axis = axis as i64;
        Some(match name {
            "elemtype" => (0, 1),
            "rank" => (1, 1),
            "swizzle_mode" => (2, 1),
            "fill_mode" => (3, 1),
            "global_address" => (16, 8),
            "global_dim" => (24 + 8 * axis, 8),
            "global_stride" => (64 + 8 * axis, 8),
            "box_dim" => (96 + 2 * axis, 2),
            "element_stride" => (112 + axis, 1),
            _ => return None,
        })
    }

    /// What [`TensorMap::encode`] wrote; `None` for anything else.
    #[must_use]
    pub fn decode(words: &[u64; 16]) -> Option<TensorMap> {
        let mut map = TensorMap {
            data_type: words[0] as u8,
            rank: (words[0] >> 8) as u8,
            swizzle: (words[0] >> 16) as u8,
            nan_fill: words[0] >> 24 & 1 != 0,
            address: words[2],
            dims: [0; 5],
            strides: [0; 4],
            box_dims: [0; 5],
            element_strides: [0; 5],
        };
        map.dims.copy_from_slice(&words[3..8]);
        map.strides.copy_from_slice(&words[8..12]);
        for axis in 0..5 {
            map.box_dims[axis] = (words[12 + axis / 4] >> (16 * (axis % 4))) as u16;
            map.element_strides[axis] = (words[14] >> (8 * axis)) as u8;
        }
        (words[1] == MARK && map.validate().is_ok()).then_some(map)
    }

    /// Elements of a box in each dimension that are copied.
    pub(super) fn extent(&self) -> [u64; 5] {
        let mut extent = [1; 5];
        for axis in 0..usize::from(self.rank) {
            extent[axis] =
                u64::from(self.box_dims[axis]).div_ceil(u64::from(self.element_strides[axis]));
        }
        extent
    }

    /// The bits of an element outside of the tensor.
    pub(super) fn fill(&self) -> u64 {
        if !self.nan_fill {
            return 0;
        }
        match self.data_type {
            6 => 0x7fff,
            9 => 0x7fff,
            7 | 10..=12 => 0x7fff_ffff,
            8 => 0x7fff_ffff_ffff_ffff,
            _ => 0,
        }
    }

    /// The PTX type of elements, for reductions.
    pub(super) fn reduction_type(&self) -> &'static str {
        match self.data_type {
            2 => "u32",
            3 => "s32",
            4 => "u64",
            5 => "s64",
            6 => "f16",
            7 | 10 => "f32",
            8 => "f64",
            9 => "bf16",
            _ => "",
        }
    }
}

/// Where the byte at `offset` of shared memory lies under a swizzle: 16-byte units change places within their row of the
/// span, by the row's number among eight rows of 128 bytes.
pub(super) fn swizzled(offset: u64, swizzle: u8) -> u64 {
    let mask = (1u64 << swizzle) - 1;
    offset ^ (offset >> 7 & mask) << 4
}
