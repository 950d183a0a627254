//! Running device work: the seam to the interpreter, and copies and fills.

use super::state::State;
use super::work::{HostSource, Launch, Work};
use crate::driver::CuResult;
use crate::emulator::exec::{self, Counters, DeviceMemory, ExecOptions, Fault, LaunchSpec};
use crate::emulator::mem::Space;

/// A failure of work that has been accepted: it ends the context's life.
pub(super) type WorkFault = (CuResult, String);

/// Modelled time of a launch beside its memory traffic and arithmetic.
const LAUNCH_US: f64 = 2.0;

impl State {
    /// Runs one unit of work to its end and gives its modelled time in microseconds.
    pub(super) fn run_work(&mut self, work: &Work) -> Result<f64, WorkFault> {
        match work {
            Work::Kernel(launch) => self.run_kernel(launch),
            Work::Graph(program) => match self.check.clone() {
                Some(checker) => self.run_checked_graph(&checker, &program.work, &program.after),
                None => program
                    .work
                    .iter()
                    .try_fold(0.0, |busy, work| Ok(busy + self.run_work(work)?)),
            },
            Work::Record(_) | Work::Wait => Ok(0.0),
            Work::ToDevice {
                destination,
                source,
                bytes,
            } => {
                let space = self.space()?;
                check(&space, *destination, *bytes, true, "copy to device")?;
                self.check_access("copy to device", *destination, *bytes as u64, true)?;
                let source = match source {
                    HostSource::Snapshot(copy) => copy.as_ptr(),
                    HostSource::Pinned(address) => {
                        check_pinned(&space, *address, *bytes)?;
                        *address as *const u8
                    }
                    HostSource::Pageable(address) => *address as *const u8,
                };
                // SAFETY: the destination was checked to be mapped and writable, and device addresses
                // are host addresses; the source is a copy, or memory that the caller of the driver
                // call keeps readable until the copy is complete.
                unsafe { std::ptr::copy(source, *destination as *mut u8, *bytes) };
                Ok(*bytes as f64 / self.profile.link_bytes_per_second * 1e6)
            }
            Work::ToHost {
                destination,
                pinned,
                source,
                bytes,
            } => {
                let space = self.space()?;
                check(&space, *source, *bytes, false, "copy to host")?;
                self.check_access("copy to host", *source, *bytes as u64, false)?;
                if *pinned {
                    check_pinned(&space, *destination, *bytes)?;
                }
                // SAFETY: the source was checked to be mapped and readable; the destination is memory
                // that the caller of the driver call keeps writable until the copy is complete.
                unsafe { std::ptr::copy(*source as *const u8, *destination as *mut u8, *bytes) };
                Ok(*bytes as f64 / self.profile.link_bytes_per_second * 1e6)
            }
            Work::Within {
                destination,
                source,
                bytes,
            } => {
                let space = self.space()?;
                check(&space, *source, *bytes, false, "copy's source")?;
                check(&space, *destination, *bytes, true, "copy's destination")?;
                self.check_copy(*destination, *source, *bytes as u64)?;
                // SAFETY: both ranges were checked to be mapped with the rights needed.
                unsafe { std::ptr::copy(*source as *const u8, *destination as *mut u8, *bytes) };
                Ok(2.0 * *bytes as f64 / self.profile.copy_bytes_per_second * 1e6)
            }
            Work::Fill {
                destination,
                value,
                width,
                count,
            } => {
                let space = self.space()?;
                check(&space, *destination, width * count, true, "fill")?;
                self.check_access("fill", *destination, (width * count) as u64, true)?;
                if *width == 1 {
                    // SAFETY: the range was checked to be mapped and writable.
                    unsafe { (*destination as *mut u8).write_bytes(*value as u8, *count) };
                } else {
                    let first = *destination as *mut u32;
                    for index in 0..*count {
                        // SAFETY: the range was checked to be mapped and writable, and the call
                        // refused an address that is not a multiple of 4.
                        unsafe { first.add(index).write(*value) };
                    }
                }
                Ok((width * count) as f64 / self.profile.copy_bytes_per_second * 1e6)
            }
        }
    }

    fn run_kernel(&mut self, launch: &Launch) -> Result<f64, WorkFault> {
        let space = self.space()?;
        let options = ExecOptions {
            threads: self.profile.threads,
            watchdog_branches: self.profile.watchdog_branches,
            poison: self.profile.poison,
            counters: self.profile.counters,
            sm_count: self.profile.sm_count,
            check: self.check.clone(),
            ..ExecOptions::default()
        };
        let spec = LaunchSpec {
            kernel: &launch.code,
            grid: launch.grid,
            block: launch.block,
            cluster: [0; 3],
            dynamic_shared_bytes: launch.shared_bytes,
            params: &launch.params,
        };
        let (result, footprint) = exec::run_traced(&spec, space.as_ref(), &options);
        if self.check.is_some() {
            self.touched.absorb(footprint);
        }
        let counters = result.map_err(|fault| (code_of(&fault), fault.to_string()))?;
        match self.kernels.get_mut(&launch.code.name) {
            Some(total) => *total += counters,
            None => {
                self.kernels.insert(launch.code.name.clone(), counters);
            }
        }
        Ok(self.modelled_us(&counters))
    }

    /// The longer of memory traffic at copy bandwidth and tensor-core work at the peak rate.
    fn modelled_us(&self, counters: &Counters) -> f64 {
        let loaded = match counters.global_load_unique_bytes {
            0 => counters.global_load_bytes,
            unique => unique,
        };
        let bytes = loaded + counters.global_store_bytes + counters.async_copy_bytes;
        let memory = bytes as f64 / self.profile.copy_bytes_per_second;
        let tensor = 2.0 * counters.mma_macs as f64 / self.profile.bf16_flops;
        LAUNCH_US + memory.max(tensor) * 1e6
    }

    fn space(&mut self) -> Result<std::sync::Arc<Space>, WorkFault> {
        match self.memory() {
            Ok(memory) => Ok(std::sync::Arc::clone(memory.space())),
            Err(failure) => Err((failure.code, failure.detail.unwrap_or_default())),
        }
    }
}

/// The code under which a kernel's fault surfaces at the next synchronisation.
fn code_of(fault: &Fault) -> CuResult {
    match fault {
        Fault::IllegalAddress { .. } | Fault::OutOfBounds { .. } => CuResult::ILLEGAL_ADDRESS,
        Fault::Misaligned { .. } => CuResult::MISALIGNED_ADDRESS,
        Fault::Assertion { .. } => CuResult::ASSERT,
        Fault::Watchdog { .. } => CuResult::LAUNCH_TIMEOUT,
        _ => CuResult::LAUNCH_FAILED,
    }
}

/// Checks a copy's or fill's device range when it runs: what was mapped at the call may be gone.
fn check(
    space: &Space,
    address: u64,
    bytes: usize,
    write: bool,
    what: &str,
) -> Result<(), WorkFault> {
    space.check(address, bytes as u64, write).map_err(|reason| {
        (
            CuResult::ILLEGAL_ADDRESS,
            format!("{what}: {bytes} bytes at {address:#x} cannot be accessed: {reason}"),
        )
    })
}

/// Page-locked memory may have been freed since the copy was captured.
fn check_pinned(space: &Space, address: usize, bytes: usize) -> Result<(), WorkFault> {
    if space.is_pinned(address as u64, bytes as u64) {
        return Ok(());
    }
    Err((
        CuResult::ILLEGAL_ADDRESS,
        format!(
            "copy: {bytes} bytes at {address:#x} were page-locked host memory, which was freed"
        ),
    ))
}
