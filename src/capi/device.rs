//! Opening a device from C.

use std::ffi::c_char;

use bytemuck::{Pod, Zeroable};

use super::sized::{self, out, text};
use super::status::{Failure, NeapStatus, entry};
use crate::device_choice::DeviceChoice;
use crate::driver::Device;
use crate::emulator;

/// An open device. Engines made from it keep what they need of it, so it may be closed before them.
pub struct NeapDevice {
    pub(super) device: Device,
}

/// What a device is. Set `struct_size` before the call.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct NeapDeviceInfo {
    /// sizeof(NeapDeviceInfo).
    pub struct_size: usize,
    /// Device memory in bytes.
    pub total_bytes: u64,
    /// Physical granularity of device memory in bytes.
    pub granularity_bytes: u64,
    /// Driver objects that exist on an emulated device, 0 on a CUDA device: what a program has yet to close.
    pub live_objects: u64,
    /// Compute capability, major number.
    pub compute_capability_major: u32,
    /// Compute capability, minor number.
    pub compute_capability_minor: u32,
    /// 1 when this is the emulator, 0 on a CUDA device.
    pub is_emulator: u32,
    /// The ordinal among the driver's devices.
    pub ordinal: u32,
    /// The name, NUL-terminated.
    pub name: [c_char; 128],
}

// SAFETY: the first field is the size.
unsafe impl sized::Sized for NeapDeviceInfo {
    const NAME: &'static str = "NeapDeviceInfo";
    const FIRST_BYTES: usize = size_of::<NeapDeviceInfo>();
}

/// Opens a device: "auto", "cuda", "cuda:N", "emu" or "emu:PROFILE"; "auto" takes the first CUDA device, or the
/// emulator where there is none. Close it with `neap_device_close`.
///
/// # Safety
/// `name` is NUL-terminated; `device` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_device_open(
    name: *const c_char,
    device: *mut *mut NeapDevice,
) -> NeapStatus {
    entry(|| {
        // SAFETY: the caller passes the address of a pointer or null.
        let slot = unsafe { out("device", device) }?;
        *slot = std::ptr::null_mut();
        // SAFETY: the caller passes a NUL-terminated text or null.
        let name = unsafe { text("name", name) }?;
        let choice: DeviceChoice = name.parse().map_err(Failure::argument)?;
        let device = choice
            .open()
            .map_err(|error| Failure::new(NeapStatus::Device, error))?;
        *slot = Box::into_raw(Box::new(NeapDevice { device }));
        Ok(())
    })
}

/// Tells what a device is.
///
/// # Safety
/// `device` is a live device; `info` points to as many writable bytes as its `struct_size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_device_info(
    device: *const NeapDevice,
    info: *mut NeapDeviceInfo,
) -> NeapStatus {
    entry(|| {
        // SAFETY: the caller passes a live device or null.
        let device = &unsafe { device.as_ref() }
            .ok_or_else(|| Failure::argument("device is null"))?
            .device;
        let (major, minor) = device
            .compute_capability()
            .map_err(|error| Failure::new(NeapStatus::Device, error))?;
        let is_emulator = device.driver().is_emulator();
        let mut value = NeapDeviceInfo {
            struct_size: size_of::<NeapDeviceInfo>(),
            total_bytes: device.total_bytes(),
            granularity_bytes: device.granularity_bytes(),
            live_objects: if is_emulator {
                emulator::report(device.ordinal()).live_objects()
            } else {
                0
            },
            compute_capability_major: major,
            compute_capability_minor: minor,
            is_emulator: u32::from(is_emulator),
            ordinal: device.ordinal(),
            name: [0; 128],
        };
        copy_name(device.name(), &mut value.name);
        // SAFETY: the caller's struct has the bytes its struct_size says.
        unsafe { sized::write(info, &value) }
    })
}

/// Copies a name into a NUL-terminated field, cut at a character boundary when it is too long.
pub(super) fn copy_name(name: &str, field: &mut [c_char]) {
    let mut bytes = name.len().min(field.len() - 1);
    while !name.is_char_boundary(bytes) {
        bytes -= 1;
    }
    field.fill(0);
    for (slot, byte) in field.iter_mut().zip(name.as_bytes()[..bytes].iter()) {
        *slot = *byte as c_char;
    }
}

/// Closes a device; null is accepted. The handle is gone whatever is returned.
///
/// # Safety
/// `device` is null or a live device that nothing uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_device_close(device: *mut NeapDevice) -> NeapStatus {
    entry(|| {
        if !device.is_null() {
            // SAFETY: the pointer came from Box::into_raw in neap_device_open, and the caller gives it up.
            drop(unsafe { Box::from_raw(device) });
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::copy_name;

    #[test]
    fn names_are_cut_at_characters_and_terminated() {
        let mut field = [7; 5];
        copy_name("aäöü", &mut field);
        assert_eq!(field.map(|unit| unit as u8), *b"a\xc3\xa4\0\0");
    }
}
