//! The contexts of one device: the primary one, and those that a program makes beside it.
//!
//! They share the device's default stream and its fate: after an error that ends a context's life, all of the
//! device's contexts return it until the last is gone or the primary one is reset.

use std::collections::{BTreeMap, BTreeSet};

use super::failure::Failure;
use super::registry::{self, Kind};
use super::state::{LEGACY, State, Stream};
use crate::driver::{CuResult, abi};
use crate::emulator::LiveObjects;
use crate::emulator::check::streams::StreamOrder;

/// Flags a context can have.
const FLAGS: u32 = abi::CU_CTX_SCHED_MASK
    | abi::CU_CTX_MAP_HOST
    | abi::CU_CTX_LMEM_RESIZE_TO_MAX
    | abi::CU_CTX_COREDUMP_ENABLE
    | abi::CU_CTX_USER_COREDUMP_ENABLE
    | abi::CU_CTX_SYNC_MEMOPS;

/// Which contexts of a device are alive.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    /// The primary context: generation and references.
    primary: Option<(u64, u64)>,
    /// Flags of the primary context, which may be set before it is made.
    primary_flags: u32,
    /// Further contexts: generation to what they have.
    others: BTreeMap<u64, Other>,
    newest: u64,
    /// The code every call returns once work has gone wrong.
    sticky: Option<CuResult>,
    /// Values of `cuCtxSetLimit`.
    pub(super) limits: BTreeMap<u32, usize>,
    pub(super) cache_config: u32,
    pub(super) shared_config: u32,
    /// Devices whose memory kernels of this one may touch.
    pub(super) peers: BTreeSet<u32>,
}

/// A context beside the primary one.
#[derive(Debug, Default)]
struct Other {
    flags: u32,
    /// Serials of what was made while it was current.
    owned: BTreeSet<u64>,
}

impl Contexts {
    /// Contexts alive.
    pub(super) fn alive(&self) -> usize {
        self.others.len() + usize::from(self.primary.is_some())
    }

    /// References to contexts: those of the primary one, and one for each other.
    pub(super) fn references(&self) -> u64 {
        self.primary.map_or(0, |(_, references)| references) + self.others.len() as u64
    }

    /// The primary context's generation, while it is alive.
    pub(super) fn primary(&self) -> Option<u64> {
        self.primary.map(|(generation, _)| generation)
    }

    pub(super) fn primary_flags(&self) -> u32 {
        self.primary_flags
    }

    /// Flags of the context of this generation.
    pub(super) fn flags(&self, generation: u64) -> u32 {
        self.others
            .get(&generation)
            .map_or(self.primary_flags, |other| other.flags)
    }

    /// Sets the flags of the primary context, or of the one of this generation.
    pub(super) fn set_flags(&mut self, generation: Option<u64>, flags: u32) -> Result<(), Failure> {
        if flags & !FLAGS != 0 {
            return Err(Failure::invalid(format!("no context flags {flags:#x}")));
        }
        match generation.and_then(|generation| self.others.get_mut(&generation)) {
            Some(other) => other.flags = flags,
            None => self.primary_flags = flags,
        }
        Ok(())
    }

    /// Notes the maker of a new object, which is the calling thread's current context.
    pub(super) fn own(&mut self, ordinal: u32, serial: u64) {
        if self.others.is_empty() {
            return;
        }
        if let Some((device, generation)) =
            registry::decode_parts(registry::current(), Kind::Context)
            && device == ordinal
            && let Some(other) = self.others.get_mut(&generation)
        {
            other.owned.insert(serial);
        }
    }

    fn is_alive(&self, generation: u64) -> bool {
        self.primary() == Some(generation) || self.others.contains_key(&generation)
    }
}

impl State {
    /// Refuses when earlier work has gone wrong.
    pub(super) fn alive(&self) -> Result<(), Failure> {
        match self.contexts.sticky {
            Some(code) => Err(Failure {
                code,
                detail: self.fault.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Ends the contexts' life: what is queued never runs, and every later call returns `code`.
    pub(super) fn poison(&mut self, code: CuResult, fault: String) {
        for stream in self.streams.values_mut() {
            stream.discard();
        }
        if self.contexts.alive() > 0 {
            self.contexts.sticky.get_or_insert(code);
        }
        self.fault = Some(fault);
    }

    /// True where a context of this generation is alive.
    pub(super) fn context_is(&self, generation: u64) -> bool {
        self.contexts.is_alive(generation)
    }

    /// Retains the primary context, making it on first use; gives its generation.
    pub(super) fn retain(&mut self) -> Result<u64, Failure> {
        if let Some((generation, references)) = &mut self.contexts.primary {
            if let Some(code) = self.contexts.sticky {
                return Err(code.into());
            }
            *references += 1;
            return Ok(*generation);
        }
        let generation = self.new_context()?;
        self.contexts.primary = Some((generation, 1));
        self.note_peak();
        Ok(generation)
    }

    /// Makes a context beside the primary one; gives its generation.
    pub(super) fn create_context(&mut self, flags: u32) -> Result<u64, Failure> {
        if flags & !FLAGS != 0 {
            return Err(Failure::invalid(format!("no context flags {flags:#x}")));
        }
        let generation = self.new_context()?;
        let other = Other {
            flags,
            owned: BTreeSet::new(),
        };
        self.contexts.others.insert(generation, other);
        self.note_peak();
        Ok(generation)
    }

    fn new_context(&mut self) -> Result<u64, Failure> {
        self.alive()?;
        self.room_for(self.profile.context_bytes, "the context")?;
        self.memory()?;
        if self.contexts.alive() == 0 {
            self.streams.insert(LEGACY, Stream::new(true, 0));
        }
        self.contexts.newest += 1;
        Ok(self.contexts.newest)
    }

    /// Gives one reference to the primary context back. The last one destroys the context and all that is in
    /// it; physical memory and address reservations belong to the process and stay.
    pub(super) fn release(&mut self) -> Result<(), Failure> {
        let Some((_, references)) = &mut self.contexts.primary else {
            return Err(Failure::new(
                CuResult::INVALID_CONTEXT,
                "the primary context is not retained",
            ));
        };
        *references -= 1;
        if *references > 0 {
            return Ok(());
        }
        self.reset_primary()
    }

    /// Destroys the primary context, whoever retains it; the error that ended its life goes with it.
    pub(super) fn reset_primary(&mut self) -> Result<(), Failure> {
        if self.contexts.primary.is_none() {
            return Ok(());
        }
        self.drain_all();
        let kept: BTreeSet<u64> = self
            .contexts
            .others
            .values()
            .flat_map(|other| other.owned.iter().copied())
            .collect();
        let outcome = self.sweep(&|serial| !kept.contains(&serial));
        self.contexts.primary = None;
        self.last_context_gone();
        outcome
    }

    /// Destroys a context beside the primary one and what was made in it.
    pub(super) fn destroy_context(&mut self, generation: u64) -> Result<(), Failure> {
        if self.contexts.primary() == Some(generation) {
            return Err(Failure::new(
                CuResult::INVALID_CONTEXT,
                "the primary context is released, not destroyed",
            ));
        }
        let Some(other) = self.contexts.others.remove(&generation) else {
            return Err(Failure::new(
                CuResult::CONTEXT_IS_DESTROYED,
                "the context was destroyed",
            ));
        };
        self.drain_all();
        let outcome = self.sweep(&|serial| other.owned.contains(&serial));
        self.last_context_gone();
        outcome
    }

    fn last_context_gone(&mut self) {
        if self.contexts.alive() > 0 {
            return;
        }
        for (_, allocation) in std::mem::take(&mut self.graph_allocations) {
            if let Ok(memory) = self.memory() {
                // The context is gone either way; memory that cannot be unmapped stays counted as used.
                let _ = memory.free_block(allocation.block);
            }
        }
        if let Some((block, _)) = self.heap.take()
            && let Ok(memory) = self.memory()
        {
            // As above.
            let _ = memory.free_block(block);
        }
        self.stream_order = StreamOrder::default();
        self.contexts.sticky = None;
        self.contexts.limits.clear();
        self.contexts.peers.clear();
        self.streams.clear();
    }

    /// Removes the objects of a context that goes, by serial, and counts what its maker left behind.
    fn sweep(&mut self, goes: &dyn Fn(u64) -> bool) -> Result<(), Failure> {
        let before = self.live();
        self.streams.retain(|&id, _| id == LEGACY || !goes(id));
        self.events.retain(|&id, _| !goes(id));
        self.functions.retain(|_, function| !goes(function.module));
        let graphs: Vec<u64> = self.graphs.keys().copied().filter(|&id| goes(id)).collect();
        graphs.into_iter().for_each(|id| self.remove_graph(id));
        self.execs.retain(|&id, _| !goes(id));
        let captures: Vec<u64> = self
            .captures
            .keys()
            .copied()
            .filter(|&id| goes(id))
            .collect();
        for id in captures {
            if let Some(capture) = self.captures.remove(&id) {
                capture.forget();
            }
        }
        let modules: Vec<u64> = self
            .modules
            .keys()
            .copied()
            .filter(|&id| goes(id))
            .collect();
        for id in modules {
            self.remove_module(id)?;
        }
        let addresses = |state: &State| -> Vec<u64> {
            let allocations = state.device_allocations.iter();
            allocations
                .filter(|(_, allocation)| goes(allocation.serial))
                .map(|(&address, _)| address)
                .collect()
        };
        for address in addresses(self) {
            self.free_allocation(address)?;
        }
        let pinned: Vec<u64> = self
            .pinned
            .iter()
            .filter(|(_, buffer)| goes(buffer.serial))
            .map(|(&address, _)| address)
            .collect();
        let after = self.live();
        for address in pinned {
            self.free_pinned(address)?;
        }
        let left = LiveObjects {
            context_references: 0,
            modules: before.modules - after.modules,
            streams: before.streams - after.streams,
            events: before.events - after.events,
            graphs: before.graphs - after.graphs,
            graph_execs: before.graph_execs - after.graph_execs,
            reservations: 0,
            physical_allocations: 0,
            mappings: 0,
            device_allocations: before.device_allocations - after.device_allocations,
            pinned_buffers: before.pinned_buffers - self.live().pinned_buffers,
        };
        self.leaked.accumulate(&left);
        self.check_leaks(&left);
        Ok(())
    }
}
