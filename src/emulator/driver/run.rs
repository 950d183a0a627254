//! Running device work: the seam to the interpreter, and copies and fills.

use std::sync::Arc;

use super::faults;
use super::state::State;
use super::work::{Launch, Work};
use crate::driver::CuResult;
use crate::emulator::exec::{self, ExecOptions, Fault, LaunchSpec};
use crate::emulator::mem::Space;
use crate::emulator::{LaunchFault, ModelTime};

/// Why a unit of work does not end well, or not now.
#[derive(Debug)]
pub(super) enum Stop {
    /// A failure of work that has been accepted: it ends the context's life.
    Fault(CuResult, String),
    /// What it waits for has not happened.
    NotYet,
    /// What this item of a graph waits for has not happened; those before it have run.
    NotYetAt(usize),
    /// It never ends.
    Hangs,
}

impl State {
    /// Runs one unit of work to its end and gives its modelled time in microseconds.
    pub(super) fn run_work(&mut self, work: &Work) -> Result<f64, Stop> {
        match work {
            Work::Kernel(launch) => self.run_kernel(launch, None),
            Work::Graph {
                program,
                start,
                number,
            } => {
                let outcome = match self.check.clone() {
                    Some(checker) => self.run_checked_program(&checker, program, *start, *number),
                    None => self.run_program(program, *start, *number),
                };
                outcome.map_err(|(item, stop)| match stop {
                    Stop::NotYet => Stop::NotYetAt(item),
                    stop => stop,
                })
            }
            Work::Record(_) | Work::Wait | Work::Allocate { .. } | Work::Child(_) => Ok(0.0),
            Work::WaitFor(event) => match self.event_complete(*event, true) {
                Ok(true) => Ok(0.0),
                _ => Err(Stop::NotYet),
            },
            Work::Hang => Err(Stop::Hangs),
            Work::Copy(copy) => self.run_copy(copy),
            Work::Fill(fill) => self.run_fill(fill),
            Work::Host(call) => match self.host_functions.run(self.running, *call) {
                true => Ok(0.0),
                false => Err(Stop::NotYet),
            },
            Work::Value(value) => self.run_value(value),
            // A graph's own memory stays for its next launch.
            Work::Free(address) if self.graph_allocations.contains_key(address) => Ok(0.0),
            Work::Free(address) => {
                // A graph that frees what is free already faults on hardware as well.
                self.free_allocation(*address).map_err(|failure| {
                    Stop::Fault(failure.code, failure.detail.unwrap_or_default())
                })?;
                Ok(0.0)
            }
        }
    }

    /// Runs a launch, of the graph with that number or of none.
    pub(super) fn run_kernel(&mut self, launch: &Launch, graph: Option<u64>) -> Result<f64, Stop> {
        let name = &launch.code.name;
        match self.faults.launch(name).or_else(|| faults::of_launch(name)) {
            Some(LaunchFault::Hangs) => return Err(Stop::Hangs),
            Some(LaunchFault::Ends(code)) => {
                return Err(Stop::Fault(
                    code,
                    format!("{code} was injected into a launch of {name}"),
                ));
            }
            None => {}
        }
        let space = self.space()?;
        let heap = self.heap_for(&launch.code)?;
        let cooperative = match launch.cooperative {
            true => Some(self.grid_workspace()?),
            false => None,
        };
        let options = ExecOptions {
            threads: self.profile.threads,
            watchdog_branches: self.profile.watchdog_branches,
            poison: self.profile.poison,
            counters: self.profile.counters,
            opcodes: self.profile.counters.then(|| self.opcodes.clone()),
            sm_count: self.profile.sm_count,
            heap,
            check: self.check.clone(),
            ..ExecOptions::default()
        };
        let spec = LaunchSpec {
            kernel: &launch.code,
            grid: launch.grid,
            block: launch.block,
            cluster: launch.cluster.unwrap_or([0; 3]),
            cooperative,
            dynamic_shared_bytes: launch.shared_bytes,
            params: &launch.params,
        };
        let (result, footprint) = exec::run_traced(&spec, space.as_ref(), &options);
        if self.check.is_some() {
            self.touched.absorb(footprint);
        }
        let counters = result.map_err(|fault| Stop::Fault(code_of(&fault), fault.to_string()))?;
        if let Some(graph) = graph {
            *self.graph_counters.entry(graph).or_default() += counters;
        }
        match self.kernels.get_mut(&launch.code.name) {
            Some(total) => *total += counters,
            None => {
                self.kernels.insert(launch.code.name.clone(), counters);
            }
        }
        Ok(ModelTime::new(&self.profile, &counters, false).total_us())
    }

    pub(super) fn space(&mut self) -> Result<Arc<Space>, Stop> {
        match self.memory() {
            Ok(memory) => Ok(Arc::clone(memory.space())),
            Err(failure) => Err(Stop::Fault(
                failure.code,
                failure.detail.unwrap_or_default(),
            )),
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
