//! What an emulated device claims to be, and what its driver objects cost.

use std::fmt;
use std::time::Duration;

use super::check::CheckOptions;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The properties of an emulated device. All fields are public: take a [named](Profile::named) one
/// and change what a test needs.
///
/// Sizes, SM counts, caches and clocks of the data-centre parts are NVIDIA's published figures;
/// `total_bytes` is what `nvidia-smi` shows. What contexts, modules and graphs cost is *typical*,
/// seen in start-up logs of servers on such cards, and differs between driver versions: it is there
/// to be non-zero and realistic in size, not to be exact.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// The name `cuDeviceGetName` returns; it says that the device is emulated.
    pub name: String,
    /// Bytes of device memory.
    pub total_bytes: u64,
    /// The grain: unit of physical memory and of mapping, a power of two and at least 4 KiB.
    pub granularity_bytes: u64,
    /// Bytes of device memory that other processes hold.
    pub foreign_bytes: u64,
    /// Compute capability, `(major, minor)`.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Bytes of the L2 cache.
    pub l2_bytes: u64,
    /// Shared memory a block may have without opting in, in bytes.
    pub shared_bytes_per_block: u32,
    /// Shared memory a block may have after opting in, in bytes.
    pub shared_bytes_per_block_optin: u32,
    /// Shared memory of one multiprocessor, in bytes.
    pub shared_bytes_per_sm: u32,
    /// Threads a multiprocessor holds.
    pub threads_per_sm: u32,
    /// Core clock in kHz.
    pub clock_khz: u32,
    /// Memory clock in kHz, as `cuDeviceGetAttribute` gives it.
    pub memory_clock_khz: u32,
    /// Width of the memory bus in bits.
    pub memory_bus_bits: u32,
    /// Device memory traffic of a copy, bytes read plus bytes written a second. Only the time model uses it.
    pub copy_bytes_per_second: f64,
    /// Dense bf16 tensor-core rate in operations a second. Only the time model uses it.
    pub bf16_flops: f64,
    /// Host link in bytes a second, each way. Only the time model uses it.
    pub link_bytes_per_second: f64,
    /// Device memory a context takes.
    pub context_bytes: u64,
    /// Device memory a module takes, before its image.
    pub module_base_bytes: u64,
    /// Device memory a module takes for each byte of its image.
    pub module_bytes_per_image_byte: f64,
    /// Device memory an executable graph takes, before its nodes.
    pub graph_base_bytes: u64,
    /// Device memory an executable graph takes for each kernel node.
    pub graph_bytes_per_kernel_node: u64,
    /// Fill fresh physical memory with 0xFF (a NaN in bf16 and f32), so that reads of memory nobody
    /// wrote show. Without it fresh memory reads 0.
    pub poison: bool,
    /// Poisoned memory that may be alive at once; what is created beyond reads 0. Poisoning touches
    /// host memory, and a 141 GB start-up must not.
    pub poison_limit_bytes: u64,
    /// Count memory sectors and bank conflicts of every launch (slower).
    pub counters: bool,
    /// Run in checked mode: find races, uninitialised reads, accesses out of bounds and leaks (many times slower).
    /// `NEAP_CHECK` in the environment sets it for every device that leaves it open.
    pub check: Option<CheckOptions>,
    /// CPU threads a launch may use; 0 is one per CPU.
    pub threads: usize,
    /// Run work that nobody waits for after at most this long, from a thread of the process; `None`
    /// leaves it until somebody waits, which shows missing synchronisation.
    pub progress: Option<Duration>,
    /// Backward branches one warp may take before a launch counts as hung.
    pub watchdog_branches: u64,
}

/// One line of the table of named profiles.
type Maker = fn() -> Profile;

/// The named profiles, in the order `names` lists them.
const NAMED: &[(&str, Maker)] = &[
    ("h200", h200),
    ("h100", h100),
    ("a100", a100),
    ("tiny", tiny),
];

impl Profile {
    /// The profile of this name: `h200`, `h100`, `a100`, or `tiny` (512 MiB with an H200's rules).
    #[must_use]
    pub fn named(name: &str) -> Option<Profile> {
        NAMED
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, make)| make())
    }

    /// All names that [`Profile::named`] knows.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        NAMED.iter().map(|(name, _)| *name).collect()
    }

    /// Device memory a module of `image_bytes` takes.
    pub(crate) fn module_bytes(&self, image_bytes: usize) -> u64 {
        self.module_base_bytes
            + (image_bytes as f64 * self.module_bytes_per_image_byte).ceil() as u64
    }

    /// Device memory an executable graph of `kernel_nodes` takes.
    pub(crate) fn graph_bytes(&self, kernel_nodes: usize) -> u64 {
        self.graph_base_bytes + self.graph_bytes_per_kernel_node * kernel_nodes as u64
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.compute_capability;
        write!(
            f,
            "{}: {} MiB, sm_{major}{minor}, {} SMs",
            self.name,
            self.total_bytes / MIB,
            self.sm_count
        )
    }
}

/// H200 SXM: 143,771 MiB, 132 SMs at 1,980 MHz, 60 MB L2; copy 4.3 TB/s and bf16 GEMM 788 TFLOP/s as measured.
fn h200() -> Profile {
    Profile {
        name: "NVIDIA H200 (emulated)".to_owned(),
        total_bytes: 143_771 * MIB,
        granularity_bytes: 2 * MIB,
        foreign_bytes: 0,
        compute_capability: (9, 0),
        sm_count: 132,
        l2_bytes: 60 * MIB,
        shared_bytes_per_block: 48 * KIB as u32,
        shared_bytes_per_block_optin: 227 * KIB as u32,
        shared_bytes_per_sm: 228 * KIB as u32,
        threads_per_sm: 2048,
        clock_khz: 1_980_000,
        memory_clock_khz: 3_201_000,
        memory_bus_bits: 6144,
        copy_bytes_per_second: 4.3e12,
        bf16_flops: 788e12,
        link_bytes_per_second: 55e9,
        // A context with no module on Hopper: about half a gigabyte, most of it local-memory and
        // channel set-up for 132 SMs.
        context_bytes: 500 * MIB,
        module_base_bytes: 2 * MIB,
        module_bytes_per_image_byte: 1.0,
        // Instantiating takes a pool of a grain, and the upload some tens of KiB for each kernel node.
        graph_base_bytes: 2 * MIB,
        graph_bytes_per_kernel_node: 64 * KIB,
        poison: true,
        poison_limit_bytes: 256 * MIB,
        counters: false,
        check: None,
        threads: 0,
        progress: None,
        watchdog_branches: 1 << 32,
    }
}

/// H100 SXM: 81,559 MiB of HBM3.
fn h100() -> Profile {
    Profile {
        name: "NVIDIA H100 80GB HBM3 (emulated)".to_owned(),
        total_bytes: 81_559 * MIB,
        l2_bytes: 50 * MIB,
        memory_clock_khz: 2_619_000,
        memory_bus_bits: 5120,
        copy_bytes_per_second: 2.9e12,
        ..h200()
    }
}

/// A100 SXM 80 GB.
fn a100() -> Profile {
    Profile {
        name: "NVIDIA A100-SXM4-80GB (emulated)".to_owned(),
        total_bytes: 81_920 * MIB,
        compute_capability: (8, 0),
        sm_count: 108,
        l2_bytes: 40 * MIB,
        shared_bytes_per_block_optin: 163 * KIB as u32,
        shared_bytes_per_sm: 164 * KIB as u32,
        clock_khz: 1_410_000,
        memory_clock_khz: 1_593_000,
        memory_bus_bits: 5120,
        copy_bytes_per_second: 1.7e12,
        bf16_flops: 270e12,
        link_bytes_per_second: 25e9,
        context_bytes: 420 * MIB,
        ..h200()
    }
}

/// 512 MiB under an H200's rules, with costs scaled down to match: what tests use.
fn tiny() -> Profile {
    Profile {
        name: "neap tiny (emulated)".to_owned(),
        total_bytes: 512 * MIB,
        context_bytes: 8 * MIB,
        module_base_bytes: MIB,
        graph_base_bytes: 256 * KIB,
        graph_bytes_per_kernel_node: 4 * KIB,
        ..h200()
    }
}
