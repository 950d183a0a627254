//! The state of one emulated device.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::sync::Arc;

use super::capture::Capture;
use super::failure::Failure;
use super::work::{Node, Program};
use crate::driver::CuResult;
use crate::emulator::check::Checker;
use crate::emulator::check::streams::{Footprint, StreamOrder};
use crate::emulator::exec::{Counters, KernelCode, ModuleCode};
use crate::emulator::mem::{Block, Memory};
use crate::emulator::{DeviceReport, LiveObjects, Profile};

pub(super) use super::queue::Stream;

/// Serial of the legacy default stream, which exists with the context.
pub(super) const LEGACY: u64 = 0;

/// The primary context.
#[derive(Debug)]
struct Context {
    generation: u64,
    references: u64,
    /// The code every call returns once work has gone wrong.
    sticky: Option<CuResult>,
}

/// A loaded module.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) code: ModuleCode,
    pub(super) charged_bytes: u64,
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
    Captured { capture: u64, nodes: Vec<usize> },
}

/// A graph and the serial of its first node's handle.
#[derive(Debug)]
pub(super) struct Graph {
    pub(super) nodes: Arc<[Node]>,
    pub(super) first_node: u64,
}

/// An executable graph.
#[derive(Debug)]
pub(super) struct GraphExec {
    pub(super) program: Arc<Program>,
    pub(super) charged_bytes: u64,
}

/// A call that is to fail.
#[derive(Debug)]
struct Injection {
    call: &'static str,
    calls_left: u64,
    code: CuResult,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) ordinal: u32,
    pub(super) profile: Profile,
    context: Option<Context>,
    generation: u64,
    next_serial: u64,
    memory: Option<Memory>,
    pub(super) streams: HashMap<u64, Stream>,
    pub(super) events: HashMap<u64, Event>,
    pub(super) modules: HashMap<u64, Module>,
    pub(super) functions: HashMap<u64, Function>,
    pub(super) graphs: HashMap<u64, Graph>,
    /// Graph by the serial of its first node's handle.
    pub(super) graph_of_node: BTreeMap<u64, u64>,
    pub(super) execs: HashMap<u64, GraphExec>,
    pub(super) captures: HashMap<u64, Capture>,
    pub(super) device_allocations: HashMap<u64, Block>,
    /// Page-locked host buffers: address to mapped bytes.
    pub(super) pinned: HashMap<u64, usize>,
    pub(super) kernels: BTreeMap<String, Counters>,
    pub(super) busy_us: f64,
    calls: BTreeMap<&'static str, u64>,
    injections: Vec<Injection>,
    peak_used_bytes: u64,
    leaked: LiveObjects,
    fault: Option<String>,
    /// The checked mode, where the profile asks for it.
    pub(super) check: Option<Arc<Checker>>,
    /// Order between streams, for the checked mode.
    pub(super) stream_order: StreamOrder,
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
            ordinal,
            profile,
            context: None,
            generation: 0,
            next_serial: 1,
            memory: None,
            streams: HashMap::new(),
            events: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            graphs: HashMap::new(),
            graph_of_node: BTreeMap::new(),
            execs: HashMap::new(),
            captures: HashMap::new(),
            device_allocations: HashMap::new(),
            pinned: HashMap::new(),
            kernels: BTreeMap::new(),
            busy_us: 0.0,
            calls: BTreeMap::new(),
            injections: Vec::new(),
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
        first
    }

    /// Counts a call, and fails it where a test asked for that.
    pub(super) fn begin(&mut self, call: &'static str) -> Result<(), Failure> {
        *self.calls.entry(call).or_insert(0) += 1;
        let Some(at) = self.injections.iter().position(|i| i.call == call) else {
            return Ok(());
        };
        self.injections[at].calls_left -= 1;
        if self.injections[at].calls_left > 0 {
            return Ok(());
        }
        let code = self.injections.remove(at).code;
        if code.is_sticky() {
            self.poison(code, format!("{code} was injected into {call}"));
        }
        Err(Failure::new(code, format!("injected into {call}")))
    }

    /// Makes the `nth` call from now fail.
    pub(super) fn inject(&mut self, call: &'static str, nth: u64, code: CuResult) {
        self.injections.push(Injection {
            call,
            calls_left: nth.max(1),
            code,
        });
    }

    /// Refuses when earlier work has gone wrong.
    pub(super) fn alive(&self) -> Result<(), Failure> {
        match self.context.as_ref().and_then(|context| context.sticky) {
            Some(code) => Err(Failure {
                code,
                detail: self.fault.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Ends the context's life: what is queued never runs, and every later call returns `code`.
    pub(super) fn poison(&mut self, code: CuResult, fault: String) {
        for stream in self.streams.values_mut() {
            stream.discard();
        }
        if let Some(context) = &mut self.context {
            context.sticky.get_or_insert(code);
        }
        self.fault = Some(fault);
    }

    pub(super) fn fault(&self) -> Option<String> {
        self.fault.clone()
    }

    /// True where the context of this generation is the one alive.
    pub(super) fn context_is(&self, generation: u64) -> bool {
        self.context
            .as_ref()
            .is_some_and(|context| context.generation == generation)
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

    /// Retains the primary context, making it on first use; gives its generation.
    pub(super) fn retain(&mut self) -> Result<u64, Failure> {
        if let Some(context) = &mut self.context {
            if let Some(code) = context.sticky {
                return Err(code.into());
            }
            context.references += 1;
            return Ok(context.generation);
        }
        self.room_for(self.profile.context_bytes, "the context")?;
        self.memory()?;
        self.generation += 1;
        self.context = Some(Context {
            generation: self.generation,
            references: 1,
            sticky: None,
        });
        self.streams.insert(LEGACY, Stream::new(true));
        self.note_peak();
        Ok(self.generation)
    }

    /// Gives one reference back. The last one destroys the context and all that is in it; physical
    /// memory and address reservations belong to the process and stay.
    pub(super) fn release(&mut self) -> Result<(), Failure> {
        let Some(context) = &mut self.context else {
            return Err(Failure::new(
                CuResult::INVALID_CONTEXT,
                "the primary context is not retained",
            ));
        };
        context.references -= 1;
        if context.references > 0 {
            return Ok(());
        }
        self.drain_all();
        let left = LiveObjects {
            reservations: 0,
            physical_allocations: 0,
            mappings: 0,
            ..self.live()
        };
        self.leaked.accumulate(&left);
        self.check_leaks(&left);
        self.context = None;
        self.stream_order = StreamOrder::default();
        self.streams.clear();
        self.events.clear();
        self.functions.clear();
        self.graphs.clear();
        self.graph_of_node.clear();
        self.execs.clear();
        for (_, capture) in self.captures.drain() {
            capture.forget();
        }
        let blocks: Vec<Block> = self
            .modules
            .drain()
            .flat_map(|(_, module)| module.globals)
            .chain(self.device_allocations.drain().map(|(_, block)| block))
            .collect();
        for block in blocks {
            self.memory()?.free_block(block)?;
        }
        let pinned: Vec<u64> = self.pinned.keys().copied().collect();
        for address in pinned {
            self.free_pinned(address)?;
        }
        Ok(())
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
        match self.context {
            Some(_) => self.profile.context_bytes,
            None => 0,
        }
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
    }

    fn live(&self) -> LiveObjects {
        let blocks = self.device_allocations.len()
            + self
                .modules
                .values()
                .map(|m| m.globals.len())
                .sum::<usize>();
        let memory = self.memory.as_ref();
        let count = |read: fn(&Memory) -> u64| memory.map_or(0, read);
        LiveObjects {
            context_references: self.context.as_ref().map_or(0, |c| c.references),
            modules: self.modules.len() as u64,
            streams: self.streams.keys().filter(|&&id| id != LEGACY).count() as u64,
            events: self.events.len() as u64,
            graphs: self.graphs.len() as u64,
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
            modelled_busy_us: self.busy_us,
            fault: self.fault(),
        }
    }
}
