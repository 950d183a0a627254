//! The warp interpreter: loads PTX modules and runs their kernels on CPU threads.

mod counters;
mod fault;
mod memory;

pub use super::ptx::PtxError;
pub use counters::Counters;
pub use fault::{Fault, FaultSite, Space};
pub use memory::{AccessError, DeviceMemory, GranuleTable};

use std::sync::Arc;

/// One parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamSlot {
    /// Offset in the parameter block, in bytes.
    pub offset: usize,
    /// Size in bytes.
    pub bytes: usize,
    /// Alignment in bytes.
    pub align: usize,
}

/// A kernel, ready to run.
#[derive(Debug)]
pub struct KernelCode {
    /// The entry point's name.
    pub name: String,
    /// Its parameters, in order.
    pub params: Vec<ParamSlot>,
    /// Bytes of the whole parameter block.
    pub param_bytes: usize,
    /// Bytes of shared memory that the kernel declares with a size.
    pub static_shared_bytes: u32,
    /// Bytes of stack per thread.
    pub local_bytes: u32,
    /// Threads per block at most (`.maxntid` or `.reqntid`), if declared.
    pub max_threads: Option<u32>,
    /// 32-bit registers per thread that are live at once at most, by this loader's own allocation: not what ptxas would say.
    pub registers: u32,
}

/// A loaded PTX module.
#[derive(Debug)]
pub struct ModuleCode {
    kernels: Vec<Arc<KernelCode>>,
}

impl ModuleCode {
    /// Parses and lowers `ptx`. `alloc_global(bytes, align)` provides the addresses of module-scope variables, which must be
    /// writable host memory of this process for as long as the module lives; they are initialised here.
    ///
    /// # Errors
    /// The first statement that does not parse or that the interpreter does not implement, with its line.
    pub fn load(
        _ptx: &str,
        _alloc_global: &mut dyn FnMut(u64, u64) -> Option<u64>,
    ) -> Result<ModuleCode, PtxError> {
        Err(PtxError {
            line: 1,
            message: "the loader is not there yet".into(),
        })
    }

    /// The kernel of that name.
    pub fn kernel(&self, name: &str) -> Option<Arc<KernelCode>> {
        self.kernels.iter().find(|k| k.name == name).cloned()
    }

    /// Names of all kernels, in the order of the text.
    pub fn kernel_names(&self) -> Vec<&str> {
        self.kernels.iter().map(|k| k.name.as_str()).collect()
    }

    /// Address and bytes of a module-scope `.global` or `.const` variable.
    pub fn global(&self, _name: &str) -> Option<(u64, u64)> {
        None
    }
}

/// One kernel launch.
#[derive(Clone, Copy, Debug)]
pub struct LaunchSpec<'a> {
    /// The kernel.
    pub kernel: &'a KernelCode,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Bytes of `extern .shared` memory.
    pub dynamic_shared_bytes: u32,
    /// The parameter block, laid out as [`KernelCode::params`] says.
    pub params: &'a [u8],
}

/// How to run launches.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ExecOptions {
    /// CPU threads at most, the calling one included; 0 = one per CPU.
    pub threads: usize,
    /// Backward branches that one warp may take before the launch counts as hung.
    pub watchdog_branches: u64,
    /// Fill registers and shared memory with 0xFF before each block.
    pub poison: bool,
    /// Also count sectors, unique bytes and shared-memory wavefronts.
    pub counters: bool,
    /// Value of `%nsmid`; `%smid` of a block is its index modulo this.
    pub sm_count: u32,
}

impl Default for ExecOptions {
    fn default() -> Self {
        ExecOptions {
            threads: 0,
            watchdog_branches: 1 << 32,
            poison: true,
            counters: false,
            sm_count: 132,
        }
    }
}

/// Runs a launch to its end.
///
/// # Errors
/// The fault that stopped it. Blocks that had already run keep their effects, as on hardware.
pub fn run(
    spec: &LaunchSpec<'_>,
    _memory: &dyn DeviceMemory,
    _options: &ExecOptions,
) -> Result<Counters, Fault> {
    Err(Fault::InvalidLaunch {
        kernel: spec.kernel.name.clone(),
        message: "the interpreter is not there yet".into(),
    })
}
