//! The warp interpreter: loads PTX modules and runs their kernels on CPU threads.

// Lanes of several arrays move in step; an index says so better than zipped iterators, and vectorises.
#![allow(clippy::needless_range_loop)]

pub(crate) mod access;
mod approx;
pub(crate) mod async_copy;
pub(crate) mod atomics;
mod block;
pub(crate) mod bulk;
pub(crate) mod call;
mod checked;
pub(crate) mod cluster;
pub(crate) mod control;
pub(crate) mod convert;
mod counters;
mod fault;
pub(crate) mod float;
pub(crate) mod float16;
pub(crate) mod fused;
mod heap;
mod host_call;
pub(crate) mod integer;
mod integer_rare;
pub(crate) mod lane;
pub(crate) mod load_store;
pub(crate) mod matrix;
pub(crate) mod mbarrier;
mod memory;
#[cfg(target_arch = "x86_64")]
mod mma_x86;
pub(crate) mod op;
mod opcodes;
pub(crate) mod ops_extra;
mod output;
mod pool;
pub(crate) mod shuffle;
pub(crate) mod soft_float;
pub(crate) mod soft_ops;
#[cfg(target_arch = "x86_64")]
mod staging_x86;
pub(crate) mod tensor_core;
mod tensor_map;
mod traffic;
pub(crate) mod warp;
pub(crate) mod warp_sync;
pub(crate) mod warpgroup;
pub(crate) mod watch;
#[cfg(target_arch = "x86_64")]
mod wide;

pub use super::ptx::PtxError;
pub use counters::Counters;
pub use fault::{Fault, FaultSite, Space};
pub use heap::DeviceHeap;
pub use memory::{AccessError, DeviceMemory, GranuleTable};
pub use opcodes::{InstructionClass, OpcodeCounts, OpcodeTally};
pub use output::Output;
pub use tensor_map::TensorMap;

use super::check::streams::Footprint;
use super::check::{CheckOptions, Checker};
use super::ir::{Code, Program, Symbols, compile};
use super::ptx;
use block::{Arena, BlockRunner, Launch};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
pub(crate) use watch::describe_forbidden;

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

/// Where an instruction came from.
#[derive(Debug)]
struct StatementSite {
    line: u32,
    text: std::ops::Range<usize>,
    source: Option<String>,
}

/// A kernel, ready to run.
#[derive(Debug)]
#[non_exhaustive]
pub struct KernelCode {
    /// The entry point's name.
    pub name: String,
    /// Its parameters, in order.
    pub params: Vec<ParamSlot>,
    /// Bytes of the whole parameter block.
    pub param_bytes: usize,
    /// Bytes of shared memory that the kernel declares with a size.
    pub static_shared_bytes: u32,
    /// Bytes of stack per thread; of the kernel alone if [`KernelCode::recursive`].
    pub local_bytes: u32,
    /// How deep its calls go is not known before it runs (recursion, calls through pointers, `alloca`):
    /// [`ExecOptions::stack_bytes`] are added.
    pub recursive: bool,
    /// Blocks of a cluster in x, y, z, if the kernel declares them (`.reqnctapercluster`).
    pub cluster: Option<[u32; 3]>,
    /// Bytes of constant memory that its module takes.
    pub const_bytes: u64,
    /// It calls `malloc` or `free`.
    pub uses_heap: bool,
    /// Threads per block at most (`.maxntid` or `.reqntid`), if declared.
    pub max_threads: Option<u32>,
    /// Threads of a block in x, y, z, if declared (`.reqntid`): other launches are refused.
    pub required_block: Option<[u32; 3]>,
    /// 32-bit registers per thread that are live at once at most, by this loader's own allocation: not what ptxas would say.
    pub registers: u32,
    /// Instructions after lowering, join points included.
    pub instruction_count: usize,
    /// Bytes of register file per warp.
    pub register_file_bytes: u32,
    code: Code,
    statements: Vec<StatementSite>,
    text: Arc<str>,
}

// SAFETY: the handlers in `code` are plain functions, and nothing of a kernel changes after loading.
unsafe impl Send for KernelCode {}
// SAFETY: as above.
unsafe impl Sync for KernelCode {}

impl KernelCode {
    /// The statement on one line.
    fn text_of(&self, site: &StatementSite) -> String {
        self.text[site.text.clone()]
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    }
}

/// A loaded PTX module.
#[derive(Debug)]
pub struct ModuleCode {
    kernels: Vec<Arc<KernelCode>>,
    globals: Vec<(String, u64, u64)>,
}

impl ModuleCode {
    /// Parses and lowers `ptx`; a NUL ends the text. `alloc_global(bytes, align)` provides the addresses of module-scope
    /// variables, which must be writable host memory of this process for as long as the module lives; they are
    /// initialised here.
    ///
    /// # Errors
    /// The first statement that does not parse or that the interpreter does not implement, with its line.
    pub fn load(
        ptx: &str,
        alloc_global: &mut dyn FnMut(u64, u64) -> Option<u64>,
    ) -> Result<ModuleCode, PtxError> {
        let text: Arc<str> = ptx.into();
        let module = ptx::parse(ptx)?;
        let (symbols, globals) = Symbols::of_module(&module, alloc_global)?;
        let constants = module
            .variables
            .iter()
            .filter(|variable| variable.space == ptx::VarSpace::Const);
        let const_bytes = constants.filter_map(|variable| variable.bytes).sum();
        let mut kernels = Vec::with_capacity(module.entries.len());
        for entry in &module.entries {
            let Program {
                code,
                symbols,
                sizes,
                routines,
            } = compile(&module, entry, &symbols, ptx)?;
            let param = |variable: &ptx::Variable| ParamSlot {
                offset: symbols
                    .get(&variable.name)
                    .map_or(0, |symbol| symbol.address as usize),
                bytes: variable.bytes.unwrap_or(0) as usize,
                align: variable.align as usize,
            };
            let file = |number: u32| {
                module
                    .files
                    .iter()
                    .find(|(n, _)| *n == number)
                    .map(|(_, name)| name.as_str())
            };
            let site = |statement: &ptx::Statement| StatementSite {
                line: statement.line,
                text: statement.text.clone(),
                source: statement
                    .loc
                    .and_then(|(number, line)| Some(format!("{}:{line}", file(number)?))),
            };
            kernels.push(Arc::new(KernelCode {
                name: entry.name.clone(),
                params: entry.params.iter().map(param).collect(),
                param_bytes: sizes.param as usize,
                static_shared_bytes: sizes.shared,
                local_bytes: code.frame_bytes + code.stack_bytes.unwrap_or(0),
                recursive: code.stack_bytes.is_none(),
                cluster: entry.cluster,
                const_bytes,
                uses_heap: code
                    .sites
                    .iter()
                    .any(|site| matches!(site.callee, call::Callee::Malloc | call::Callee::Free)),
                max_threads: entry.max_threads,
                required_block: entry.required_block,
                registers: code.pressure(),
                instruction_count: code.instructions.len(),
                register_file_bytes: code.kernel.register_bytes,
                code,
                statements: routines
                    .iter()
                    .flat_map(|r| &r.statements)
                    .map(site)
                    .collect(),
                text: Arc::clone(&text),
            }));
        }
        Ok(ModuleCode { kernels, globals })
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
    pub fn global(&self, name: &str) -> Option<(u64, u64)> {
        self.globals
            .iter()
            .find(|(n, ..)| n == name)
            .map(|&(_, address, bytes)| (address, bytes))
    }

    /// Address and bytes of the module-scope variable that holds an address.
    #[must_use]
    pub fn global_at(&self, address: u64) -> Option<(u64, u64)> {
        let holds = |&&(_, begin, bytes): &&(String, u64, u64)| address.wrapping_sub(begin) < bytes;
        let found = self.globals.iter().find(holds);
        found.map(|&(_, begin, bytes)| (begin, bytes))
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
    /// Blocks of a cluster in x, y, z; zeros leave it to the kernel, whose default is one block.
    pub cluster: [u32; 3],
    /// Runs all blocks side by side, so that they can wait for each other; the address of memory of
    /// [`GRID_WORKSPACE_BYTES`], all zeros before the launch, which their barrier takes.
    pub cooperative: Option<u64>,
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
    /// Also count executions by opcode.
    pub opcodes: Option<OpcodeTally>,
    /// Bytes of stack per thread for calls whose depth is not known when a kernel is loaded (`CU_LIMIT_STACK_SIZE`).
    pub stack_bytes: u32,
    /// Where `printf` of kernels goes when the launch has ended.
    pub output: Output,
    /// Value of `%nsmid`; `%smid` of a block is its index modulo this.
    pub sm_count: u32,
    /// Where `malloc` of kernels allocates; without, it gives null.
    pub heap: Option<Arc<DeviceHeap>>,
    /// Run in checked mode: on the calling thread, one block after another but for those that may wait for each other.
    pub check: Option<Arc<Checker>>,
}

impl Default for ExecOptions {
    fn default() -> Self {
        ExecOptions {
            threads: 0,
            watchdog_branches: 1 << 32,
            poison: true,
            counters: false,
            opcodes: None,
            stack_bytes: 16 << 10,
            output: Output::Stdout,
            sm_count: 132,
            heap: None,
            check: None,
        }
    }
}

/// Bytes that a cooperative launch wants for the barrier of its grid.
pub const GRID_WORKSPACE_BYTES: usize = 16;

impl ExecOptions {
    /// These options, in checked mode.
    #[must_use]
    pub fn checked(mut self, options: CheckOptions) -> ExecOptions {
        self.check = Some(Arc::new(Checker::new(options)));
        self
    }
}

/// Blocks of a cluster at most (the portable limit is 8; 16 have to be asked for on hardware).
const CLUSTER_LIMIT: u32 = 16;

/// Blocks of a cooperative launch at most; no device holds as many at a time.
const COOPERATIVE_LIMIT: u128 = 1 << 16;

impl LaunchSpec<'_> {
    /// Blocks of a cluster in x, y, z.
    fn cluster_dims(&self) -> [u32; 3] {
        if self.cluster == [0; 3] {
            self.kernel.cluster.unwrap_or([1; 3])
        } else {
            self.cluster
        }
    }

    fn validate(&self) -> Result<(), String> {
        let threads = self.block.iter().map(|&n| u64::from(n)).product::<u64>();
        let blocks = self.grid.iter().map(|&n| u128::from(n)).product::<u128>();
        if threads == 0 || blocks == 0 {
            return Err(format!(
                "a grid of {:?} blocks of {:?} threads is empty",
                self.grid, self.block
            ));
        }
        if blocks > u128::from(u64::MAX) {
            return Err(format!("a grid of {:?} blocks is too large", self.grid));
        }
        if self.cooperative.is_some() && blocks > COOPERATIVE_LIMIT {
            return Err(format!(
                "a cooperative grid of {blocks} blocks, of which at most {COOPERATIVE_LIMIT} run side by side"
            ));
        }
        let cluster = self.cluster_dims();
        let ranks = cluster.iter().map(|&n| u64::from(n)).product::<u64>();
        if ranks == 0 || ranks > u64::from(CLUSTER_LIMIT) {
            return Err(format!(
                "clusters of {cluster:?} blocks, where 1 to {CLUSTER_LIMIT} are possible"
            ));
        }
        if self
            .kernel
            .cluster
            .is_some_and(|declared| declared != cluster)
        {
            return Err(format!(
                "clusters of {cluster:?} blocks, where the kernel declares {:?}",
                self.kernel.cluster.unwrap_or([1; 3])
            ));
        }
        if (0..3).any(|axis| !self.grid[axis].is_multiple_of(cluster[axis])) {
            return Err(format!(
                "a grid of {:?} blocks does not consist of clusters of {cluster:?}",
                self.grid
            ));
        }
        let limit = self.kernel.max_threads.unwrap_or(1024).min(1024);
        if threads > u64::from(limit) {
            return Err(format!(
                "blocks of {:?} threads, where at most {limit} threads are allowed",
                self.block
            ));
        }
        if let Some(required) = self.kernel.required_block
            && required != self.block
        {
            return Err(format!(
                "blocks of {:?} threads, where the kernel requires {required:?}",
                self.block
            ));
        }
        if self.params.len() < self.kernel.param_bytes {
            let (given, wanted) = (self.params.len(), self.kernel.param_bytes);
            return Err(format!(
                "{given} bytes of parameters, where it takes {wanted}"
            ));
        }
        let shared =
            u64::from(self.kernel.static_shared_bytes) + u64::from(self.dynamic_shared_bytes);
        if shared > 1 << 20 {
            return Err(format!(
                "{shared} bytes of shared memory per block are more than any device has"
            ));
        }
        Ok(())
    }
}

/// Fewer blocks than this run on the calling thread alone: waking another one takes longer.
const INLINE_BLOCKS: u64 = 2;

thread_local! {
    static ARENA: RefCell<Arena> = RefCell::default();
}

/// CPUs that this process may use. Asked once: the answer takes several system calls and a read of the control group's files.
fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Runs a launch to its end.
///
/// # Errors
/// The fault that stopped it. Blocks that had already run keep their effects, as on hardware.
pub fn run(
    spec: &LaunchSpec<'_>,
    memory: &dyn DeviceMemory,
    options: &ExecOptions,
) -> Result<Counters, Fault> {
    run_traced(spec, memory, options).0
}

/// [`run`], with what the launch touched of device memory: nothing without [`ExecOptions::check`].
pub(crate) fn run_traced(
    spec: &LaunchSpec<'_>,
    memory: &dyn DeviceMemory,
    options: &ExecOptions,
) -> (Result<Counters, Fault>, Footprint) {
    if let Err(message) = spec.validate() {
        let kernel = spec.kernel.name.clone();
        return (
            Err(Fault::InvalidLaunch { kernel, message }),
            Footprint::default(),
        );
    }
    let launch = Launch {
        spec,
        memory,
        options,
    };
    match &options.check {
        Some(checker) => ARENA.with_borrow_mut(|arena| checked::run(&launch, checker, arena)),
        None => (run_parallel(&launch), Footprint::default()),
    }
}

/// Runs blocks on as many threads as the options allow.
fn run_parallel(launch: &Launch<'_>) -> Result<Counters, Fault> {
    let (spec, options) = (launch.spec, launch.options);
    let ranks = spec.cluster_dims().iter().product::<u32>();
    // Clusters, in fact, where there are any, or the whole grid.
    let blocks = match spec.cooperative {
        Some(_) => 1,
        None => spec.grid.iter().map(|&n| u64::from(n)).product::<u64>() / u64::from(ranks.max(1)),
    };
    let threads = match options.threads {
        0 => processors(),
        n => n,
    };
    let next = AtomicU64::new(0);
    let total = Mutex::new((Counters::default(), None::<(u64, Box<Fault>)>));
    let printed = Mutex::new(Vec::new());
    let work = || {
        let mut counters = Counters::default();
        let mut fault = None;
        ARENA.with_borrow_mut(|arena| {
            let mut block = next.fetch_add(1, Ordering::Relaxed);
            if block >= blocks {
                return;
            }
            let mut runner = BlockRunner::new(launch, arena);
            while block < blocks {
                if let Err(found) = runner.run(block, &mut counters) {
                    // No further block begins.
                    next.store(blocks, Ordering::Relaxed);
                    fault = Some((block, found));
                    break;
                }
                block = next.fetch_add(1, Ordering::Relaxed);
            }
            runner.tell_opcodes();
            runner.take_output(&printed);
        });
        let mut total = total
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        total.0 += counters;
        if let Some((block, found)) = fault
            && total.1.as_ref().is_none_or(|(other, _)| block < *other)
        {
            total.1 = Some((block, found));
        }
    };
    let helpers = if blocks < INLINE_BLOCKS {
        0
    } else {
        threads.min(blocks as usize) - 1
    };
    pool::run(helpers, &work);
    let (mut counters, fault) = total
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    counters.launches = 1;
    options.output.write(&printed);
    match fault {
        Some((_, fault)) => Err(*fault),
        None => Ok(counters),
    }
}
