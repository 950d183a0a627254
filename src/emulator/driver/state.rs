//! The state of one emulated device.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::CString;
use std::sync::Arc;
use std::thread::ThreadId;

use super::allocations::{Allocation, HostBuffer, Pool};
use super::capture::Capture;
use super::contexts::Contexts;
use super::failure::Failure;
use super::faults;
use super::graphs::{Graph, GraphExec};
use super::host_functions::HostFunctions;
use crate::driver::CuResult;
use crate::emulator::check::Checker;
use crate::emulator::check::streams::{Footprint, StreamOrder};
use crate::emulator::exec::{
    Counters, DeviceHeap, GRID_WORKSPACE_BYTES, KernelCode, ModuleCode, OpcodeTally,
};
use crate::emulator::faults::Faults;
use crate::emulator::mem::{Block, Memory};
use crate::emulator::{DeviceReport, LiveObjects, Profile};

pub(super) use super::queue::Stream;

/// Serial of the legacy default stream, which exists with the context.
pub(super) const LEGACY: u64 = 0;

/// A loaded module.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) code: ModuleCode,
    pub(super) charged_bytes: u64,
    /// Registers of a thread at most, as the loader was asked for.
    pub(super) max_registers: Option<u32>,
    pub(super) globals: Vec<Block>,
    /// Functions handed out, by name.
    pub(super) functions: HashMap<String, u64>,
}

/// A kernel that was asked for by name.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) module: u64,
    pub(super) name: CString,
    pub(super) code: Arc<KernelCode>,
    /// Dynamic shared memory a launch may ask for.
    pub(super) max_dynamic_shared_bytes: u32,
    pub(super) max_registers: Option<u32>,
    /// Preferred share of shared memory in per cent, -1 for none; a hint.
    pub(super) carveout: i32,
    /// Clusters of more blocks than every device has are allowed.
    pub(super) non_portable_cluster: bool,
}

/// What an event stands for.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// Never recorded: complete.
    New,
    /// Recorded behind work of a stream.
    Recorded {
        stream: u64,
        ticket: u64,
        /// Modelled time, once the work before it has run.
        time_us: Option<f64>,
    },
    /// Recorded inside a capture, behind these nodes.
    Captured { capture: u64, nodes: Vec<u64> },
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) ordinal: u32,
    pub(super) profile: Profile,
    pub(super) contexts: Contexts,
    next_serial: u64,
    memory: Option<Memory>,
    pub(super) streams: HashMap<u64, Stream>,
    pub(super) events: HashMap<u64, Event>,
    /// Events created with `CU_EVENT_DISABLE_TIMING`.
    pub(super) untimed_events: HashSet<u64>,
    /// Streams that stand for a thread's default stream, by thread.
    pub(super) thread_streams: HashMap<ThreadId, u64>,
    pub(super) modules: HashMap<u64, Module>,
    pub(super) functions: HashMap<u64, Function>,
    pub(super) graphs: HashMap<u64, Graph>,
    /// Graph of each node.
    pub(super) graph_of_node: HashMap<u64, u64>,
    pub(super) execs: HashMap<u64, GraphExec>,
    pub(super) captures: HashMap<u64, Capture>,
    /// Nodes that a capturing stream's next one comes after, as they were told last.
    pub(super) told_dependencies: HashMap<u64, Vec<u64>>,
    /// Linear, managed and pool allocations by address.
    pub(super) device_allocations: BTreeMap<u64, Allocation>,
    /// Page-locked host buffers by address.
    pub(super) pinned: BTreeMap<u64, HostBuffer>,
    /// Bytes of managed memory, which is not held against the device's.
    pub(super) managed_bytes: u64,
    pub(super) pools: BTreeMap<u64, Pool>,
    pub(super) default_pool: Option<u64>,
    /// The pool that was made current with `cuDeviceSetMemPool`.
    pub(super) current_pool: Option<u64>,
    /// Allocations of graphs by address: memory that is there for as long as the device is.
    pub(super) graph_allocations: BTreeMap<u64, Allocation>,
    /// Memory of the heap from which kernels allocate, once one does.
    pub(super) heap: Option<(Block, Arc<DeviceHeap>)>,
    /// What cooperative launches take for the barrier of their grid: host memory that all devices may use.
    pub(super) grid_workspace: Option<Box<[u64; GRID_WORKSPACE_BYTES / 8]>>,
    pub(super) kernels: BTreeMap<String, Counters>,
    pub(super) opcodes: OpcodeTally,
    /// Counters of executable graphs by number.
    pub(super) graph_counters: BTreeMap<u64, Counters>,
    /// Graphs instantiated so far.
    pub(super) graphs_made: u64,
    pub(super) busy_us: f64,
    calls: BTreeMap<&'static str, u64>,
    pub(super) faults: Faults,
    peak_used_bytes: u64,
    pub(super) leaked: LiveObjects,
    pub(super) fault: Option<String>,
    /// The checked mode, where the profile asks for it.
    pub(super) check: Option<Arc<Checker>>,
    /// Order between streams, for the checked mode.
    pub(super) stream_order: StreamOrder,
    /// Ticket of the work that runs.
    pub(super) running: u64,
    pub(super) host_functions: HostFunctions,
    /// What the running work touched so far, for the checked mode.
    pub(super) touched: Footprint,
}

impl State {
    pub(super) fn new(ordinal: u32, profile: Profile) -> State {
        let check = profile.check.map(|options| Arc::new(Checker::new(options)));
        State {
            check,
            stream_order: StreamOrder::default(),
            touched: Footprint::default(),
            running: 0,
            host_functions: HostFunctions::default(),
            ordinal,
            profile,
            contexts: Contexts::default(),
            next_serial: 1,
            memory: None,
            streams: HashMap::new(),
            events: HashMap::new(),
            untimed_events: HashSet::new(),
            thread_streams: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            graphs: HashMap::new(),
            graph_of_node: HashMap::new(),
            execs: HashMap::new(),
            captures: HashMap::new(),
            told_dependencies: HashMap::new(),
            device_allocations: BTreeMap::new(),
            pinned: BTreeMap::new(),
            managed_bytes: 0,
            pools: BTreeMap::new(),
            default_pool: None,
            current_pool: None,
            graph_allocations: BTreeMap::new(),
            heap: None,
            grid_workspace: None,
            kernels: BTreeMap::new(),
            opcodes: OpcodeTally::default(),
            graph_counters: BTreeMap::new(),
            graphs_made: 0,
            busy_us: 0.0,
            calls: BTreeMap::new(),
            faults: Faults::default(),
            peak_used_bytes: 0,
            leaked: LiveObjects::default(),
            fault: None,
        }
    }

    /// A number no object of this device had before.
    pub(super) fn serial(&mut self) -> u64 {
        self.serials(1)
    }

    /// The number that [`State::serial`] gives next.
    pub(super) fn peek_serial(&self) -> u64 {
        self.next_serial
    }

    /// The first of `count` consecutive numbers.
    pub(super) fn serials(&mut self, count: usize) -> u64 {
        let first = self.next_serial;
        self.next_serial += count as u64;
        self.contexts.own(self.ordinal, first);
        first
    }

    /// Counts a call, and fails it where a plan asks for that.
    pub(super) fn begin(&mut self, call: &'static str) -> Result<(), Failure> {
        *self.calls.entry(call).or_insert(0) += 1;
        if self.faults.is_empty() {
            return Ok(());
        }
        let fault = self.faults.call(call);
        self.take_foreign(fault.foreign_bytes);
        let Some(code) = fault.code else {
            return Ok(());
        };
        if code.is_sticky() {
            self.poison(code, format!("{code} was injected into {call}"));
        }
        Err(Failure::new(code, format!("injected into {call}")))
    }

    /// Another process takes device memory, or gives it back where negative.
    pub(super) fn take_foreign(&mut self, bytes: i64) {
        self.profile.foreign_bytes = self.profile.foreign_bytes.saturating_add_signed(bytes);
    }

    pub(super) fn fault(&self) -> Option<String> {
        self.fault.clone()
    }

    /// The device's memory, made on first use.
    pub(super) fn memory(&mut self) -> Result<&mut Memory, Failure> {
        if self.memory.is_none() {
            let memory = Memory::new(&self.profile, self.check.clone()).map_err(|error| {
                Failure::new(
                    CuResult::OPERATING_SYSTEM,
                    format!("the host cannot reserve the device's address space: {error}"),
                )
            })?;
            if let Some(device) = super::registry::device(self.ordinal) {
                let _ = device.space.set(Arc::clone(memory.space()));
            }
            self.memory = Some(memory);
        }
        self.memory.as_mut().ok_or_else(|| CuResult::UNKNOWN.into())
    }

    /// Bytes of device memory nobody holds.
    pub(super) fn free_bytes(&self) -> u64 {
        self.profile
            .total_bytes
            .saturating_sub(self.profile.foreign_bytes + self.used_bytes())
    }

    /// Refuses what does not fit into the device's memory.
    pub(super) fn room_for(&self, bytes: u64, what: &str) -> Result<(), Failure> {
        let free = self.free_bytes();
        let limits = [
            self.faults.memory_limit_bytes(),
            faults::memory_limit_bytes(),
        ];
        let limit = limits.into_iter().flatten().min();
        if let Some(limit) = limit.filter(|limit| self.used_bytes() + bytes > *limit) {
            return Err(Failure::new(
                CuResult::OUT_OF_MEMORY,
                format!("{what} needs {bytes} bytes and a fault plan ends memory at {limit}"),
            ));
        }
        if bytes <= free {
            return Ok(());
        }
        Err(Failure::new(
            CuResult::OUT_OF_MEMORY,
            format!("{what} needs {bytes} bytes of device memory and {free} are free"),
        ))
    }

    /// Keeps the peak up to date; called after anything that takes memory.
    pub(super) fn note_peak(&mut self) {
        self.peak_used_bytes = self.peak_used_bytes.max(self.used_bytes());
    }

    /// Bytes other processes or this one hold before a context of ours: all but what it costs.
    pub(super) fn used_without_context_bytes(&self) -> u64 {
        self.profile.foreign_bytes + self.used_bytes() - self.context_bytes()
    }

    fn used_bytes(&self) -> u64 {
        self.context_bytes() + self.module_bytes() + self.graph_bytes() + self.physical_bytes()
            - self.global_bytes()
    }

    fn context_bytes(&self) -> u64 {
        self.profile.context_bytes * self.contexts.alive() as u64
    }

    fn module_bytes(&self) -> u64 {
        let charged: u64 = self.modules.values().map(|m| m.charged_bytes).sum();
        charged + self.global_bytes()
    }

    fn global_bytes(&self) -> u64 {
        let globals = self.modules.values().flat_map(|module| &module.globals);
        globals.map(|block| block.bytes).sum()
    }

    fn graph_bytes(&self) -> u64 {
        self.execs.values().map(|exec| exec.charged_bytes).sum()
    }

    /// Physical memory in use, variables of modules included.
    fn physical_bytes(&self) -> u64 {
        self.memory
            .as_ref()
            .map_or(0, |memory| memory.physical.in_use_bytes())
            - self.managed_bytes
    }

    pub(super) fn live(&self) -> LiveObjects {
        let blocks = self.device_allocations.len()
            + self.graph_allocations.len()
            + self
                .modules
                .values()
                .map(|m| m.globals.len())
                .sum::<usize>()
            + usize::from(self.heap.is_some());
        let memory = self.memory.as_ref();
        let count = |read: fn(&Memory) -> u64| memory.map_or(0, read);
        LiveObjects {
            context_references: self.contexts.references(),
            modules: self.modules.len() as u64,
            streams: self.made_streams() as u64,
            events: self.events.len() as u64,
            graphs: self.graphs.values().filter(|graph| !graph.owned).count() as u64,
            graph_execs: self.execs.len() as u64,
            reservations: count(Memory::reservation_count) - blocks as u64,
            physical_allocations: count(|memory| memory.physical.held()),
            mappings: count(Memory::piece_count) - blocks as u64,
            device_allocations: self.device_allocations.len() as u64,
            pinned_buffers: self.pinned.len() as u64,
        }
    }

    pub(super) fn report(&self) -> DeviceReport {
        DeviceReport {
            name: self.profile.name.clone(),
            total_bytes: self.profile.total_bytes,
            free_bytes: self.free_bytes(),
            foreign_bytes: self.profile.foreign_bytes,
            context_bytes: self.context_bytes(),
            module_bytes: self.module_bytes(),
            graph_bytes: self.graph_bytes(),
            physical_bytes: self.physical_bytes() - self.global_bytes(),
            peak_used_bytes: self.peak_used_bytes,
            poisoned_bytes: self
                .memory
                .as_ref()
                .map_or(0, |memory| memory.physical.poisoned_bytes()),
            live: self.live(),
            leaked: self.leaked,
            calls: self.calls.clone(),
            kernels: self.kernels.clone(),
            opcodes: self.opcodes.kernels(),
            graphs: self.graph_counters.clone(),
            modelled_busy_us: self.busy_us,
            fault: self.fault(),
        }
    }
}
