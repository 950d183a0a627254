//! Entry points of launches with attributes.

use std::ffi::{c_uint, c_void};

use super::arguments::{In, calls};
use super::entry::{named, on_device};
use super::failure::Failure;
use super::launches::{LaunchShape, launch};
use super::limits;
use super::registry::Kind;
use super::state::State;
use super::streams::of_stream;
use crate::driver::CuResult;
use crate::driver::abi::{self, CUlaunchAttribute, CUlaunchConfig};

/// What a launch's attributes ask for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LaunchAttributes {
    /// Blocks of a cluster in x, y and z.
    pub(super) cluster: Option<[u32; 3]>,
    /// All blocks must be resident at once.
    pub(super) cooperative: bool,
    /// Event recorded when the launch has begun or is complete.
    event: Option<u64>,
}

/// Reads attributes of a launch. What is a hint is taken and left alone.
pub(super) fn attributes_of(list: &[CUlaunchAttribute]) -> Result<LaunchAttributes, Failure> {
    let mut known = LaunchAttributes::default();
    for attribute in list {
        let value = &attribute.value;
        match attribute.id {
            abi::CU_LAUNCH_ATTRIBUTE_COOPERATIVE => {
                // SAFETY: the id says which member of the union the caller filled.
                known.cooperative = unsafe { value.cooperative } != 0;
            }
            abi::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
                // SAFETY: as above.
                let dimension = unsafe { value.clusterDim };
                known.cluster = Some([dimension.x, dimension.y, dimension.z]);
            }
            abi::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT => {
                // SAFETY: as above.
                known.event = Some(unsafe { value.programmaticEvent }.event as u64);
            }
            abi::CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT => {
                // SAFETY: as above.
                known.event = Some(unsafe { value.launchCompletionEvent }.event as u64);
            }
            // A launch that may begin early begins when the one before is complete: always allowed.
            abi::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            | abi::CU_LAUNCH_ATTRIBUTE_IGNORE
            | abi::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
            | abi::CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE
            | abi::CU_LAUNCH_ATTRIBUTE_PRIORITY
            | abi::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP
            | abi::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN
            | abi::CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION
            | abi::CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => {}
            abi::CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE => {
                return Err(Failure::new(
                    CuResult::NOT_SUPPORTED,
                    "kernel nodes that kernels change are not emulated",
                ));
            }
            other => {
                return Err(Failure::invalid(format!("no launch attribute {other}")));
            }
        }
    }
    Ok(known)
}

/// The cluster that a launch configuration asks for.
pub(super) fn cluster_of(config: &CUlaunchConfig) -> Result<Option<[u32; 3]>, Failure> {
    let list =
        In::of(config.attrs.cast_const()).list(config.numAttrs as usize, "the attributes")?;
    Ok(attributes_of(&list)?.cluster)
}

impl State {
    /// Refuses clusters and cooperative launches that the device could not hold.
    pub(super) fn check_attributes(
        &mut self,
        function: u64,
        shape: &LaunchShape,
        attributes: &LaunchAttributes,
    ) -> Result<(), Failure> {
        let (major, _) = self.profile.compute_capability;
        if let Some(cluster) = attributes.cluster {
            let blocks: u64 = cluster.iter().map(|&n| u64::from(n)).product();
            let known = self.known_function(function)?;
            let most = if known.non_portable_cluster {
                limits::CLUSTER_BLOCKS_OPTIN
            } else {
                limits::CLUSTER_BLOCKS
            };
            if major < 9 && blocks > 1 {
                return Err(Failure::new(
                    CuResult::INVALID_CLUSTER_SIZE,
                    "the device has no clusters",
                ));
            }
            let divides = shape
                .grid
                .iter()
                .zip(cluster)
                .all(|(&n, c)| c > 0 && n.is_multiple_of(c));
            if blocks == 0 || blocks > u64::from(most) || !divides {
                return Err(Failure::new(
                    CuResult::INVALID_CLUSTER_SIZE,
                    format!(
                        "clusters of {cluster:?} blocks: at most {most}, which must divide the grid {:?}",
                        shape.grid
                    ),
                ));
            }
        }
        if attributes.cooperative {
            let resident = super::occupancy_calls::resident_blocks(self, function, shape)?;
            let blocks: u64 = shape.grid.iter().map(|&n| u64::from(n)).product();
            if blocks > resident {
                return Err(Failure::new(
                    CuResult::COOPERATIVE_LAUNCH_TOO_LARGE,
                    format!("{blocks} blocks must be resident at once and {resident} can be"),
                ));
            }
        }
        Ok(())
    }
}

calls! {
    "cuLaunchKernelEx" fn launch_kernel_ex(
        config: In<CUlaunchConfig>, function: u64, params: *mut *mut c_void, extra: *mut *mut c_void,
    ) {
        let config = config.get("the configuration")?;
        let list = In::of(config.attrs.cast_const()).list(config.numAttrs as usize, "the attributes")?;
        let attributes = attributes_of(&list)?;
        let shape = LaunchShape {
            grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
            block: [config.blockDimX, config.blockDimY, config.blockDimZ],
            shared_bytes: config.sharedMemBytes,
        };
        // SAFETY: the caller passes one pointer a parameter, or a buffer that holds them all.
        unsafe { launch(CALL, function, shape, attributes, config.hStream as u64, params, extra) }?;
        if let Some(event) = attributes.event {
            let (device, stream) = of_stream(config.hStream as u64)?;
            let (owner, event) = named(event, Kind::Event, "event")?;
            if owner.ordinal != device.ordinal {
                return Err(Failure::handle("event"));
            }
            on_device(CALL, &device, |state| state.record_event(event, stream))?;
        }
        Ok(())
    }

    "cuLaunchCooperativeKernel" fn launch_cooperative_kernel(
        function: u64, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: u64,
        params: *mut *mut c_void,
    ) {
        let shape = LaunchShape {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared_bytes,
        };
        let attributes = LaunchAttributes { cooperative: true, ..LaunchAttributes::default() };
        // SAFETY: the caller passes one pointer a parameter.
        unsafe { launch(CALL, function, shape, attributes, stream, params, std::ptr::null_mut()) }
    }
}
