//! Entry points of stream-ordered allocation and its pools.
//!
//! Memory is taken when the call is made and given back when the stream gets there; nothing is cached, so a
//! pool holds exactly what is used of it.

use std::ffi::{c_int, c_uint, c_void};

use super::allocations::{Origin, Pool};
use super::arguments::{In, Out, calls};
use super::device_calls::of_device;
use super::entry::{give_back, named, on_device};
use super::failure::Failure;
use super::registry::{self, Kind};
use super::state::State;
use super::streams::of_stream;
use super::work::Work;
use crate::driver::CuResult;
use crate::driver::abi::{self, CUmemAccessDesc, CUmemLocation, CUmemPoolProps};

impl State {
    /// The device's default pool, made on first use.
    fn default_pool(&mut self) -> u64 {
        match self.default_pool {
            Some(pool) => pool,
            None => {
                let pool = self.new_pool(0, 0);
                self.default_pool = Some(pool);
                pool
            }
        }
    }

    /// The pool that `cuMemAllocAsync` takes from.
    fn current_pool(&mut self) -> u64 {
        match self
            .current_pool
            .filter(|pool| self.pools.contains_key(pool))
        {
            Some(pool) => pool,
            None => self.default_pool(),
        }
    }

    fn new_pool(&mut self, limit_bytes: u64, handle_types: u32) -> u64 {
        let serial = self.serial();
        self.pools.insert(
            serial,
            Pool {
                reuse: [1; 3],
                limit_bytes,
                handle_types,
                ..Pool::default()
            },
        );
        serial
    }

    fn pool(&mut self, serial: u64) -> Result<&mut Pool, Failure> {
        self.pools
            .get_mut(&serial)
            .ok_or_else(|| Failure::invalid("the handle names no pool of this device"))
    }

    /// Takes memory from a pool for a stream.
    fn allocate_in_stream(&mut self, stream: u64, pool: u64, bytes: u64) -> Result<u64, Failure> {
        let (used, limit) = {
            let pool = self.pool(pool)?;
            (pool.used_bytes, pool.limit_bytes)
        };
        if limit > 0 && used + bytes > limit {
            return Err(Failure::new(
                CuResult::OUT_OF_MEMORY,
                format!("the pool may hold {limit} bytes and {used} are used"),
            ));
        }
        if self.stream(stream)?.capture.is_some() {
            let address = self.graph_allocation(bytes)?;
            self.issue(stream, Work::Allocate { address, bytes })?;
            return Ok(address);
        }
        self.new_allocation(bytes, Origin::Pool(pool))
    }

    /// Frees stream-ordered memory once the stream gets there.
    fn free_in_stream(&mut self, stream: u64, address: u64) -> Result<(), Failure> {
        let of_graph = self.graph_allocations.contains_key(&address);
        if !self.device_allocations.contains_key(&address) && !of_graph {
            return Err(Failure::invalid("no allocation begins at this address"));
        }
        self.issue(stream, Work::Free(address))
    }
}

fn of_pool(pool: u64) -> Result<(std::sync::Arc<registry::EmulatedDevice>, u64), Failure> {
    named(pool, Kind::Pool, "pool").map_err(|_| Failure::invalid("the handle names no pool"))
}

/// The device that a location names; others than devices hold no pools here.
fn of_location(
    location: CUmemLocation,
) -> Result<std::sync::Arc<registry::EmulatedDevice>, Failure> {
    if location.type_ != abi::CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(Failure::new(
            CuResult::NOT_SUPPORTED,
            "only pools of device memory are emulated",
        ));
    }
    of_device(location.id)
}

fn put_default_pool(call: &'static str, pool: Out<u64>, device: c_int) -> Result<(), Failure> {
    let device = of_device(device)?;
    let mut state = device.lock();
    state.begin(call)?;
    let serial = state.default_pool();
    pool.put(
        registry::handle(Kind::Pool, device.ordinal, serial),
        "the pool",
    )
}

fn put_current_pool(call: &'static str, pool: Out<u64>, device: c_int) -> Result<(), Failure> {
    let device = of_device(device)?;
    let mut state = device.lock();
    state.begin(call)?;
    let serial = state.current_pool();
    pool.put(
        registry::handle(Kind::Pool, device.ordinal, serial),
        "the pool",
    )
}

fn set_current_pool(call: &'static str, device: c_int, pool: u64) -> Result<(), Failure> {
    let device = of_device(device)?;
    let (owner, serial) = of_pool(pool)?;
    if owner.ordinal != device.ordinal {
        return Err(Failure::invalid("the pool is another device's"));
    }
    let mut state = device.lock();
    state.begin(call)?;
    state.pool(serial)?;
    state.current_pool = Some(serial);
    Ok(())
}

calls! {
    "cuMemAllocAsync" fn mem_alloc_async(pointer: Out<u64>, bytes: usize, stream: u64) {
        pointer.required("the pointer")?;
        let (device, stream) = of_stream(stream)?;
        on_device(CALL, &device, |state| {
            let pool = state.current_pool();
            pointer.put(state.allocate_in_stream(stream, pool, bytes as u64)?, "the pointer")
        })
    }

    "cuMemAllocFromPoolAsync" fn mem_alloc_from_pool_async(pointer: Out<u64>, bytes: usize, pool: u64, stream: u64) {
        pointer.required("the pointer")?;
        let (device, stream) = of_stream(stream)?;
        let (owner, pool) = of_pool(pool)?;
        if owner.ordinal != device.ordinal {
            return Err(Failure::new(CuResult::NOT_SUPPORTED, "a pool serves streams of its own device"));
        }
        on_device(CALL, &device, |state| {
            pointer.put(state.allocate_in_stream(stream, pool, bytes as u64)?, "the pointer")
        })
    }

    "cuMemFreeAsync" fn mem_free_async(pointer: u64, stream: u64) {
        if pointer == 0 {
            return Ok(());
        }
        let (device, stream) = of_stream(stream)?;
        give_back(CALL, &device, |state| state.free_in_stream(stream, pointer))
    }

    "cuDeviceGetDefaultMemPool" fn device_get_default_mem_pool(pool: Out<u64>, device: c_int) {
        put_default_pool(CALL, pool, device)
    }

    "cuDeviceGetMemPool" fn device_get_mem_pool(pool: Out<u64>, device: c_int) {
        put_current_pool(CALL, pool, device)
    }

    "cuDeviceSetMemPool" fn device_set_mem_pool(device: c_int, pool: u64) {
        set_current_pool(CALL, device, pool)
    }

    "cuMemGetDefaultMemPool" fn mem_get_default_mem_pool(pool: Out<u64>, location: In<CUmemLocation>, kind: c_uint) {
        let _ = kind;
        put_default_pool(CALL, pool, of_location(location.get("the location")?)?.ordinal as c_int)
    }

    "cuMemGetMemPool" fn mem_get_mem_pool(pool: Out<u64>, location: In<CUmemLocation>, kind: c_uint) {
        let _ = kind;
        put_current_pool(CALL, pool, of_location(location.get("the location")?)?.ordinal as c_int)
    }

    "cuMemSetMemPool" fn mem_set_mem_pool(location: In<CUmemLocation>, kind: c_uint, pool: u64) {
        let _ = kind;
        set_current_pool(CALL, of_location(location.get("the location")?)?.ordinal as c_int, pool)
    }

    "cuMemPoolCreate" fn mem_pool_create(pool: Out<u64>, properties: In<CUmemPoolProps>) {
        pool.required("the pool")?;
        let properties = properties.get("the properties")?;
        if properties.allocType != abi::CU_MEM_ALLOCATION_TYPE_PINNED {
            return Err(Failure::new(CuResult::NOT_SUPPORTED, "only pools of pinned device memory are emulated"));
        }
        let shared = properties.handleTypes;
        if shared & !abi::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR != 0 {
            return Err(Failure::new(CuResult::NOT_SUPPORTED, format!("no handles of kind {shared}")));
        }
        let device = of_location(properties.location)?;
        let mut state = device.lock();
        state.begin(CALL)?;
        let serial = state.new_pool(properties.maxSize as u64, shared);
        pool.put(registry::handle(Kind::Pool, device.ordinal, serial), "the pool")
    }

    "cuMemPoolDestroy" fn mem_pool_destroy(pool: u64) {
        let (device, serial) = of_pool(pool)?;
        give_back(CALL, &device, |state| {
            if state.default_pool == Some(serial) {
                return Err(Failure::invalid("the default pool cannot be destroyed"));
            }
            // What was taken from it lives on until it is freed.
            state.pools.remove(&serial).map(|_| ()).ok_or_else(|| Failure::invalid("the handle names no pool"))
        })
    }

    "cuMemPoolTrimTo" fn mem_pool_trim_to(pool: u64, bytes: usize) {
        let _ = bytes;
        let (device, serial) = of_pool(pool)?;
        device.lock().pool(serial).map(|_| ())
    }

    "cuMemPoolGetAttribute" fn mem_pool_get_attribute(pool: u64, attribute: c_uint, value: Out<c_void>) {
        value.required("the value")?;
        let (device, serial) = of_pool(pool)?;
        let mut state = device.lock();
        state.begin(CALL)?;
        let pool = *state.pool(serial)?;
        let wide = match attribute {
            1..=3 => {
                value.cast::<c_int>().put_if_wanted(pool.reuse[attribute as usize - 1]);
                return Ok(());
            }
            abi::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => pool.release_threshold_bytes,
            abi::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT | abi::CU_MEMPOOL_ATTR_USED_MEM_CURRENT => pool.used_bytes,
            abi::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH | abi::CU_MEMPOOL_ATTR_USED_MEM_HIGH => pool.used_high_bytes,
            other => return Err(Failure::invalid(format!("no pool attribute {other}"))),
        };
        value.cast::<u64>().put_if_wanted(wide);
        Ok(())
    }

    "cuMemPoolSetAttribute" fn mem_pool_set_attribute(pool: u64, attribute: c_uint, value: Out<c_void>) {
        let (device, serial) = of_pool(pool)?;
        let mut state = device.lock();
        state.begin(CALL)?;
        let pool = state.pool(serial)?;
        match attribute {
            1..=3 => pool.reuse[attribute as usize - 1] = value.cast::<c_int>().get("the value")?,
            abi::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => {
                pool.release_threshold_bytes = value.cast::<u64>().get("the value")?;
            }
            abi::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH | abi::CU_MEMPOOL_ATTR_USED_MEM_HIGH => {
                if value.cast::<u64>().get("the value")? != 0 {
                    return Err(Failure::invalid("a high-water mark can only be set to 0"));
                }
                pool.used_high_bytes = pool.used_bytes;
            }
            other => return Err(Failure::invalid(format!("pool attribute {other} cannot be set"))),
        }
        Ok(())
    }

    "cuMemPoolSetAccess" fn mem_pool_set_access(pool: u64, access: In<CUmemAccessDesc>, count: usize) {
        let (device, serial) = of_pool(pool)?;
        device.lock().pool(serial)?;
        for access in access.list(count, "the descriptions")? {
            let other = of_location(access.location)?;
            if other.ordinal == device.ordinal && access.flags != abi::CU_MEM_ACCESS_FLAGS_PROT_READWRITE {
                return Err(Failure::invalid("a pool's own device keeps its access"));
            }
        }
        Ok(())
    }

    "cuMemPoolGetAccess" fn mem_pool_get_access(flags: Out<c_uint>, pool: u64, location: In<CUmemLocation>) {
        let (device, serial) = of_pool(pool)?;
        device.lock().pool(serial)?;
        let other = of_location(location.get("the location")?)?;
        let known = if other.ordinal == device.ordinal {
            abi::CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        } else {
            abi::CU_MEM_ACCESS_FLAGS_PROT_NONE
        };
        flags.put(known, "the flags")
    }
}
