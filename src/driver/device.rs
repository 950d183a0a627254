//! A loaded driver and its devices.

use std::ffi::{CStr, c_int};
use std::fmt;

use super::{Api, CuResult, DevicePtr, DriverError, abi};

/// One loaded driver: NVIDIA's ([`Driver::cuda`]) or the emulator's (`Driver::emulator`).
#[derive(Clone)]
pub struct Driver {
    api: &'static Api,
    emulator: bool,
    used_bytes: UsedBytes,
    annotate: Option<Annotate>,
}

/// Whether a part of mapped memory is somebody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryUse {
    /// It was handed out: kernels may touch it.
    HandedOut,
    /// Nobody has it, or it was given back: touching it is a bug.
    Withheld,
}

/// Where a driver listens to what arenas say about parts of their memory; false when it does not.
pub(crate) type Annotate = fn(&Device, DevicePtr, u64, &str, MemoryUse) -> bool;

/// How a driver tells, without a context, how much of a device is in use.
pub(crate) type UsedBytes = fn(&Device) -> Option<u64>;

impl Driver {
    /// A driver over a filled table.
    pub(crate) fn from_api(
        api: &'static Api,
        emulator: bool,
        used_bytes: UsedBytes,
        annotate: Option<Annotate>,
    ) -> Driver {
        Driver {
            api,
            emulator,
            used_bytes,
            annotate,
        }
    }

    /// The table of entry points, for calls that have no handle.
    #[must_use]
    pub fn api(&self) -> &'static Api {
        self.api
    }

    /// True for the emulator. For reports only: no code path may depend on it.
    #[must_use]
    pub fn is_emulator(&self) -> bool {
        self.emulator
    }

    /// The CUDA version the driver implements, as `(major, minor)`.
    ///
    /// # Errors
    /// Whatever `cuDriverGetVersion` returns.
    pub fn version(&self) -> Result<(u32, u32), DriverError> {
        let mut version: c_int = 0;
        // SAFETY: the pointer is to a live local.
        let result = unsafe { (self.api.cu_driver_get_version)(&mut version) };
        self.check("cuDriverGetVersion", result, String::new)?;
        let version = version.max(0) as u32;
        Ok((version / 1000, version % 1000 / 10))
    }

    /// The number of devices the driver lists.
    ///
    /// # Errors
    /// Whatever `cuDeviceGetCount` returns.
    pub fn device_count(&self) -> Result<u32, DriverError> {
        let mut count: c_int = 0;
        // SAFETY: the pointer is to a live local.
        let result = unsafe { (self.api.cu_device_get_count)(&mut count) };
        self.check("cuDeviceGetCount", result, String::new)?;
        Ok(count.max(0) as u32)
    }

    /// The device of this ordinal.
    ///
    /// # Errors
    /// [`DriverError::NoSuchDevice`] beyond the devices there are, otherwise whatever the driver returns.
    pub fn device(&self, ordinal: u32) -> Result<Device, DriverError> {
        let count = self.device_count()?;
        if ordinal >= count {
            return Err(DriverError::NoSuchDevice { ordinal, count });
        }
        let mut raw = 0;
        // SAFETY: the pointer is to a live local.
        let result = unsafe { (self.api.cu_device_get)(&mut raw, ordinal as c_int) };
        self.check("cuDeviceGet", result, || format!("ordinal {ordinal}"))?;
        let mut device = Device {
            driver: self.clone(),
            ordinal,
            raw,
            name: String::new(),
            total_bytes: 0,
            granularity_bytes: 0,
        };
        device.name = device.read_name()?;
        device.total_bytes = device.read_total_bytes()?;
        device.granularity_bytes = device.read_granularity_bytes()?;
        Ok(device)
    }

    /// Turns a result code into an error that carries the call and its values.
    pub(crate) fn check(
        &self,
        call: &'static str,
        result: CuResult,
        values: impl FnOnce() -> String,
    ) -> Result<(), DriverError> {
        if result.is_success() {
            return Ok(());
        }
        let mut error = DriverError::from_call(call, result, values());
        if result.text().is_none()
            && let DriverError::Call { text, .. } = &mut error
            && let Some(known) = self.describe(result)
        {
            *text = known;
        }
        Err(error)
    }

    /// The driver's own name and text of a code that this build does not know.
    fn describe(&self, result: CuResult) -> Option<String> {
        let mut name = std::ptr::null();
        let mut text = std::ptr::null();
        // SAFETY: the pointer is to a live local.
        let named = unsafe { (self.api.cu_get_error_name)(result, &mut name) };
        // SAFETY: the pointer is to a live local.
        let described = unsafe { (self.api.cu_get_error_string)(result, &mut text) };
        if !named.is_success() || !described.is_success() || name.is_null() || text.is_null() {
            return None;
        }
        // SAFETY: the driver returned a NUL-terminated string that it keeps.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        // SAFETY: the driver returned a NUL-terminated string that it keeps.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        Some(format!("{name}, {text}"))
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("emulator", &self.emulator)
            .finish_non_exhaustive()
    }
}

/// A property of a device, read by [`Device::attribute`]. The values are NVIDIA's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum Attribute {
    /// Threads a block may have.
    MaxThreadsPerBlock = abi::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
    /// Bytes of shared memory a block may have without opting in.
    MaxSharedBytesPerBlock = abi::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK,
    /// Bytes of shared memory a block may have after opting in per kernel.
    MaxSharedBytesPerBlockOptin = abi::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
    /// Bytes of shared memory of one multiprocessor.
    MaxSharedBytesPerMultiprocessor = abi::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
    /// Lanes of a warp.
    WarpSize = abi::CU_DEVICE_ATTRIBUTE_WARP_SIZE,
    /// Streaming multiprocessors.
    MultiprocessorCount = abi::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
    /// Threads a multiprocessor holds.
    MaxThreadsPerMultiprocessor = abi::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
    /// Core clock in kHz.
    ClockKhz = abi::CU_DEVICE_ATTRIBUTE_CLOCK_RATE,
    /// Bytes of the L2 cache.
    L2Bytes = abi::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE,
    /// Major compute capability.
    ComputeCapabilityMajor = abi::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
    /// Minor compute capability.
    ComputeCapabilityMinor = abi::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    /// 1 where virtual memory management (`cuMemCreate`, `cuMemMap`, ...) works.
    VirtualMemoryManagement = abi::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    /// Blocks in the x dimension of a grid.
    MaxGridX = abi::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
    /// Blocks in the y dimension of a grid.
    MaxGridY = abi::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
    /// Blocks in the z dimension of a grid.
    MaxGridZ = abi::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z,
}

/// One device of a driver. Holds no driver object; cheap to clone.
#[derive(Clone, Debug)]
pub struct Device {
    driver: Driver,
    ordinal: u32,
    raw: cuda_driver_sys::CUdevice,
    name: String,
    total_bytes: u64,
    granularity_bytes: u64,
}

impl Device {
    /// Says what a part of mapped device memory is, in a noun phrase, and whether it may be touched. Only the emulator's
    /// checked mode listens; there, work issued from now on that touches withheld memory is reported.
    pub fn annotate(&self, address: DevicePtr, bytes: u64, name: &str, memory_use: MemoryUse) {
        if let Some(annotate) = self.driver.annotate {
            annotate(self, address, bytes, name, memory_use);
        }
    }

    /// Whether anybody listens to [`Device::annotate`].
    #[must_use]
    pub fn is_annotated(&self) -> bool {
        self.driver
            .annotate
            .is_some_and(|annotate| annotate(self, DevicePtr::NULL, 0, "", MemoryUse::HandedOut))
    }

    /// The driver the device belongs to.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Its position in the driver's list.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// The name the driver gives it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of device memory, as the driver counts them.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// The grain: least unit, in bytes, in which physical memory is created and mapped.
    #[must_use]
    pub fn granularity_bytes(&self) -> u64 {
        self.granularity_bytes
    }

    /// The value of one property.
    ///
    /// # Errors
    /// Whatever `cuDeviceGetAttribute` returns.
    pub fn attribute(&self, attribute: Attribute) -> Result<i32, DriverError> {
        let mut value = 0;
        // SAFETY: the pointer is to a live local.
        let result = unsafe {
            (self.driver.api().cu_device_get_attribute)(&mut value, attribute as u32, self.raw)
        };
        self.driver
            .check("cuDeviceGetAttribute", result, || format!("{attribute:?}"))?;
        Ok(value)
    }

    /// The compute capability, `(major, minor)`: `(9, 0)` for sm_90.
    ///
    /// # Errors
    /// Whatever `cuDeviceGetAttribute` returns.
    pub fn compute_capability(&self) -> Result<(u32, u32), DriverError> {
        let major = self.attribute(Attribute::ComputeCapabilityMajor)?;
        let minor = self.attribute(Attribute::ComputeCapabilityMinor)?;
        Ok((major.max(0) as u32, minor.max(0) as u32))
    }

    /// Bytes of the device in use, read without a context: before one is retained, what others hold.
    /// From NVIDIA's management library on a real device, `None` where that cannot tell.
    #[must_use]
    pub fn used_bytes_before_context(&self) -> Option<u64> {
        (self.driver.used_bytes)(self)
    }

    /// The device's PCI address, `domain:bus:device.function`.
    ///
    /// # Errors
    /// Whatever `cuDeviceGetPCIBusId` returns.
    pub fn pci_bus_id(&self) -> Result<String, DriverError> {
        let mut id = [0u8; 32];
        // SAFETY: the buffer is as long as said.
        let result = unsafe {
            (self.driver.api().cu_device_get_pci_bus_id)(
                id.as_mut_ptr().cast(),
                id.len() as c_int,
                self.raw,
            )
        };
        self.driver
            .check("cuDeviceGetPCIBusId", result, String::new)?;
        Ok(text_of(&id))
    }

    /// The driver's handle.
    pub(super) fn raw(&self) -> cuda_driver_sys::CUdevice {
        self.raw
    }

    /// The properties with which neap creates physical memory: pinned, on this device, not exported.
    pub(super) fn allocation_properties(&self) -> abi::CUmemAllocationProp {
        // SAFETY: the struct is plain integers, byte arrays and one nullable pointer, for all of which
        // zero is a valid value (and the one the driver documents as the default).
        let mut properties: abi::CUmemAllocationProp = unsafe { std::mem::zeroed() };
        properties.type_ = abi::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = self.location();
        properties
    }

    /// This device as a memory location.
    pub(super) fn location(&self) -> abi::CUmemLocation {
        abi::CUmemLocation {
            type_: abi::CU_MEM_LOCATION_TYPE_DEVICE,
            id: self.raw,
        }
    }

    fn read_name(&self) -> Result<String, DriverError> {
        let mut name = [0u8; 256];
        // SAFETY: the buffer is as long as said.
        let result = unsafe {
            (self.driver.api().cu_device_get_name)(
                name.as_mut_ptr().cast(),
                name.len() as c_int,
                self.raw,
            )
        };
        self.driver.check("cuDeviceGetName", result, String::new)?;
        Ok(text_of(&name))
    }

    fn read_total_bytes(&self) -> Result<u64, DriverError> {
        let mut bytes = 0usize;
        // SAFETY: the pointer is to a live local.
        let result = unsafe { (self.driver.api().cu_device_total_mem)(&mut bytes, self.raw) };
        self.driver.check("cuDeviceTotalMem", result, String::new)?;
        Ok(bytes as u64)
    }

    fn read_granularity_bytes(&self) -> Result<u64, DriverError> {
        let properties = self.allocation_properties();
        let mut bytes = 0usize;
        // SAFETY: both pointers are to live locals.
        let result = unsafe {
            (self.driver.api().cu_mem_get_allocation_granularity)(
                &mut bytes,
                &properties,
                abi::CU_MEM_ALLOC_GRANULARITY_MINIMUM,
            )
        };
        self.driver
            .check("cuMemGetAllocationGranularity", result, String::new)?;
        Ok(bytes as u64)
    }
}

/// The text before a buffer's first NUL.
fn text_of(buffer: &[u8]) -> String {
    let end = buffer.iter().position(|&byte| byte == 0);
    String::from_utf8_lossy(&buffer[..end.unwrap_or(buffer.len())]).into_owned()
}
