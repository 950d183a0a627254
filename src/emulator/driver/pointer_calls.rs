//! Entry points that say what an address is.

use std::ffi::{c_int, c_uint};

use super::allocations::{Origin, device_of_pinned};
use super::arguments::{In, Out, calls};
use super::failure::Failure;
use super::registry::{self, Kind};
use crate::driver::abi;

/// `CU_DEVICE_CPU` and `CU_DEVICE_INVALID`.
const DEVICE_CPU: c_int = -1;
const DEVICE_INVALID: c_int = -2;

/// What is known of an address.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// One of `CU_MEMORYTYPE_*`.
    kind: u32,
    ordinal: u32,
    context: u64,
    begin: u64,
    bytes: u64,
    serial: u64,
    managed: bool,
    has_ipc_handle: bool,
    sync_copies: bool,
    pool: u64,
    handle_types: u32,
}

/// What an address is, if it is anything that the driver gave or registered.
fn known(pointer: u64) -> Option<Known> {
    if let Some(device) = registry::device_of_address(pointer) {
        let mut state = device.lock();
        let allocation = state.allocation_at(pointer).copied();
        let (begin, bytes) = state.range_at(pointer)?;
        let context = state.contexts.primary().map_or(0, |generation| {
            registry::handle(Kind::Context, device.ordinal, generation)
        });
        let pool = match allocation.map(|allocation| allocation.origin) {
            Some(Origin::Pool(serial)) => serial,
            _ => 0,
        };
        return Some(Known {
            kind: abi::CU_MEMORYTYPE_DEVICE,
            ordinal: device.ordinal,
            // Memory of virtual memory management belongs to the process, not to a context.
            context: if allocation.is_some() { context } else { 0 },
            begin,
            bytes,
            serial: allocation.map_or(begin, |allocation| allocation.serial),
            managed: allocation.is_some_and(|allocation| allocation.origin == Origin::Managed),
            has_ipc_handle: allocation
                .is_some_and(|allocation| allocation.origin == Origin::Linear),
            sync_copies: allocation.is_some_and(|allocation| allocation.sync_copies),
            pool: match pool {
                0 => 0,
                serial => registry::handle(Kind::Pool, device.ordinal, serial),
            },
            handle_types: state.pools.get(&pool).map_or(0, |pool| pool.handle_types),
        });
    }
    let device = device_of_pinned(pointer)?;
    let state = device.lock();
    let (begin, buffer) = state.pinned_at(pointer)?;
    let generation = state.contexts.primary();
    Some(Known {
        kind: abi::CU_MEMORYTYPE_HOST,
        ordinal: device.ordinal,
        context: generation.map_or(0, |g| registry::handle(Kind::Context, device.ordinal, g)),
        begin,
        bytes: buffer.bytes as u64,
        serial: buffer.serial,
        managed: false,
        has_ipc_handle: false,
        sync_copies: false,
        pool: 0,
        handle_types: 0,
    })
}

/// The value of an attribute, and its bytes.
fn value_of(attribute: c_uint, pointer: u64, known: &Known) -> Result<(u64, usize), Failure> {
    let flag = |value: bool| (u64::from(value), 4);
    let is_host = known.kind == abi::CU_MEMORYTYPE_HOST;
    Ok(match attribute {
        abi::CU_POINTER_ATTRIBUTE_CONTEXT => (known.context, 8),
        abi::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => (u64::from(known.kind), 4),
        abi::CU_POINTER_ATTRIBUTE_DEVICE_POINTER => (pointer, 8),
        abi::CU_POINTER_ATTRIBUTE_HOST_POINTER if is_host || known.managed => (pointer, 8),
        abi::CU_POINTER_ATTRIBUTE_HOST_POINTER => {
            return Err(Failure::invalid("device memory has no host address"));
        }
        abi::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS => flag(known.sync_copies),
        abi::CU_POINTER_ATTRIBUTE_BUFFER_ID => (u64::from(known.ordinal) << 40 | known.serial, 8),
        abi::CU_POINTER_ATTRIBUTE_IS_MANAGED => flag(known.managed),
        abi::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => (u64::from(known.ordinal), 4),
        abi::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
        | abi::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => (known.begin, 8),
        abi::CU_POINTER_ATTRIBUTE_RANGE_SIZE | abi::CU_POINTER_ATTRIBUTE_MAPPING_SIZE => {
            (known.bytes, 8)
        }
        abi::CU_POINTER_ATTRIBUTE_MAPPED => flag(true),
        abi::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => (u64::from(known.handle_types), 8),
        abi::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => flag(known.has_ipc_handle),
        abi::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE => flag(false),
        abi::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => {
            (u64::from(abi::CU_MEM_ACCESS_FLAGS_PROT_READWRITE), 4)
        }
        abi::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => (known.pool, 8),
        abi::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => (known.serial, 8),
        other => {
            return Err(Failure::invalid(format!(
                "the emulator has no value for pointer attribute {other}"
            )));
        }
    })
}

/// Writes a value of 4 or 8 bytes.
fn put(data: Out<u8>, (value, bytes): (u64, usize)) -> Result<(), Failure> {
    data.required("the data")?;
    data.put_list(value.to_le_bytes().into_iter().take(bytes));
    Ok(())
}

/// What `cuPointerGetAttributes` writes for an address that is nothing.
fn nothing(attribute: c_uint) -> (u64, usize) {
    match attribute {
        abi::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => (DEVICE_INVALID as u32 as u64, 4),
        abi::CU_POINTER_ATTRIBUTE_CONTEXT
        | abi::CU_POINTER_ATTRIBUTE_DEVICE_POINTER
        | abi::CU_POINTER_ATTRIBUTE_HOST_POINTER
        | abi::CU_POINTER_ATTRIBUTE_BUFFER_ID
        | abi::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
        | abi::CU_POINTER_ATTRIBUTE_RANGE_SIZE
        | abi::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES
        | abi::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
        | abi::CU_POINTER_ATTRIBUTE_MAPPING_SIZE
        | abi::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR
        | abi::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => (0, 8),
        _ => (0, 4),
    }
}

/// Writes an attribute of managed memory: it lives on no processor in particular.
pub(super) fn range_attribute(
    data: Out<c_int>,
    bytes: usize,
    attribute: c_uint,
) -> Result<(), Failure> {
    data.required("the data")?;
    if bytes == 0 || !bytes.is_multiple_of(4) {
        return Err(Failure::invalid(format!("{bytes} bytes hold no attribute")));
    }
    match attribute {
        abi::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY => data.put(0, "the data"),
        abi::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION
        | abi::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION => {
            data.put(DEVICE_INVALID, "the data")
        }
        abi::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY => {
            data.put_list(std::iter::repeat_n(DEVICE_INVALID, bytes / 4));
            Ok(())
        }
        abi::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE
        | abi::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE => {
            data.put(abi::CU_MEM_LOCATION_TYPE_INVALID as c_int, "the data")
        }
        abi::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID
        | abi::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID => data.put(DEVICE_CPU, "the data"),
        other => Err(Failure::invalid(format!("no range attribute {other}"))),
    }
}

calls! {
    "cuPointerGetAttribute" fn pointer_get_attribute(data: Out<u8>, attribute: c_uint, pointer: u64) {
        let Some(known) = known(pointer) else {
            return Err(Failure::invalid(format!("{pointer:#x} is no memory of the driver")));
        };
        put(data, value_of(attribute, pointer, &known)?)
    }

    "cuPointerGetAttributes" fn pointer_get_attributes(
        count: c_uint, attributes: In<c_uint>, data: In<Out<u8>>, pointer: u64,
    ) {
        let attributes = attributes.list(count as usize, "the attributes")?;
        let data = data.list(count as usize, "the data")?;
        let known = known(pointer);
        for (attribute, data) in attributes.into_iter().zip(data) {
            let value = known
                .as_ref()
                .and_then(|known| value_of(attribute, pointer, known).ok())
                .unwrap_or_else(|| nothing(attribute));
            put(data, value)?;
        }
        Ok(())
    }

    "cuPointerSetAttribute" fn pointer_set_attribute(value: In<c_uint>, attribute: c_uint, pointer: u64) {
        if attribute != abi::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS {
            return Err(Failure::invalid(format!("pointer attribute {attribute} cannot be set")));
        }
        let value = value.get("the value")?;
        let unknown = || Failure::invalid("no allocation begins at this address");
        let device = registry::device_of_address(pointer).ok_or_else(unknown)?;
        let mut state = device.lock();
        state.begin(CALL)?;
        let allocation = state.device_allocations.get_mut(&pointer).ok_or_else(unknown)?;
        allocation.sync_copies = value != 0;
        Ok(())
    }
}
