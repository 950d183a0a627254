//! Runs thread blocks: sets up warps, schedules them, and makes barriers work.

use super::access::SPACE_BITS;
use super::async_copy::AsyncQueue;
use super::bulk::BulkQueue;
use super::call::{Calls, Line};
use super::counters::Counters;
use super::fault::{Fault, FaultSite};
use super::memory::DeviceMemory;
use super::warp::{BarrierRequest, LANES, Scratch, Stop, Warp, run_by_opcode, run_fn};
use super::watch::Watch;
use super::{ExecOptions, KernelCode, LaunchSpec};
use crate::emulator::ir::{Constant, ConstantSlot, Special};
use crate::emulator::ptx::RegClass;

/// Memory of a worker thread, kept from launch to launch.
#[derive(Default)]
pub(super) struct Arena {
    lines: Vec<Line>,
}

impl Arena {
    fn reserve(&mut self, bytes: usize) -> *mut u8 {
        let lines = bytes.div_ceil(128);
        if self.lines.len() < lines {
            self.lines.resize(lines, Line([0xFF; 128]));
        }
        self.lines.as_mut_ptr().cast()
    }
}

/// Rounds over a cluster's warps in which each of them only waited for an mbarrier, before that counts as a deadlock.
const IDLE_ROUNDS: u32 = 1 << 12;

/// Alignment of register files, stacks and the blocks' shared memory, in bytes.
pub(super) const SHARED_ALIGN: u32 = 128;

/// Backward branches before blocks of a cooperative launch let each other run: they spin at the grid's barrier.
const COOPERATIVE_TURN: u64 = 16;

/// What all blocks of a launch share.
pub(super) struct Launch<'a> {
    pub(super) spec: &'a LaunchSpec<'a>,
    pub(super) memory: &'a dyn DeviceMemory,
    pub(super) options: &'a ExecOptions,
}

/// A worker's warps, ready for one block after another of the same launch.
pub(super) struct BlockRunner<'a> {
    launch: &'a Launch<'a>,
    kernel: &'a KernelCode,
    /// Of all blocks that run together (a cluster, or the grid of a cooperative launch), one after the other.
    warps: Vec<Warp>,
    warps_per_block: usize,
    /// Blocks of a cluster in x, y, z.
    cluster: [u32; 3],
    /// Index of each block that runs.
    blocks: Vec<[u32; 3]>,
    /// A queue a cluster, in memory that the warps point to.
    bulk: Vec<BulkQueue>,
    run: unsafe fn(&mut Warp),
    /// Executions by instruction, if they are counted; the warps point to it.
    executed: Vec<u64>,
    shared_bytes: usize,
    /// Register files of the warps, and the bytes from one to the next.
    registers: *mut u8,
    register_stride: usize,
    /// What the blocks so far have printed.
    output: Vec<u8>,
    /// Constants that change from block to block.
    block_constants: Vec<ConstantSlot>,
    /// The checked mode's eyes; null without.
    watch: *mut Watch<'static>,
}

#[derive(Clone, Copy, Default)]
struct BarrierState {
    threads: u32,
    votes: u32,
    voters: u32,
    expected: u32,
}

impl<'a> BlockRunner<'a> {
    pub(super) fn new(launch: &'a Launch<'a>, arena: &mut Arena) -> BlockRunner<'a> {
        let spec = launch.spec;
        let kernel = spec.kernel;
        let threads = spec.block.iter().product::<u32>();
        let warps_per_block = threads.div_ceil(LANES as u32) as usize;
        let cluster = spec.cluster_dims();
        let ranks = cluster.iter().product::<u32>() as usize;
        let together = match spec.cooperative {
            Some(_) => spec.grid.iter().product::<u32>() as usize,
            None => ranks,
        };
        let turn_branches = match spec.cooperative {
            Some(_) => COOPERATIVE_TURN,
            None => super::control::YIELD_BRANCHES,
        };
        let warps = warps_per_block * together;
        let round = |bytes: usize| bytes.next_multiple_of(SHARED_ALIGN as usize);
        let registers = round(kernel.code.kernel.register_bytes as usize);
        let mut local_bytes = kernel.local_bytes;
        if kernel.recursive {
            local_bytes = local_bytes.saturating_add(launch.options.stack_bytes.min(1 << 20)) & !15;
        }
        let local = round(local_bytes as usize * LANES);
        let shared_bytes = (kernel.static_shared_bytes + spec.dynamic_shared_bytes) as usize;
        let base =
            arena.reserve(warps * (registers + local) + together * round(shared_bytes) + 128);
        let shared = base.wrapping_add(warps * (registers + local));
        let table = launch.memory.granules();
        // SAFETY: only the lifetime changes: the launch outlives its warps, which are dropped with this runner.
        let memory = unsafe {
            std::mem::transmute::<*const (dyn DeviceMemory + 'a), *const (dyn DeviceMemory + 'static)>(
                launch.memory,
            )
        };
        let by_opcode = launch.options.opcodes.is_some();
        let counted = kernel.code.instructions.len() * usize::from(by_opcode);
        let mut executed = vec![0; counted];
        let mut bulk: Vec<BulkQueue> = Vec::new();
        bulk.resize_with(together / ranks, BulkQueue::default);
        let queues = bulk.as_mut_ptr();
        let new_warp = |position: usize| Warp {
            regs: base.wrapping_add(position * registers),
            mask: 0,
            active: 0,
            live: 0,
            code: kernel.code.instructions.as_ptr(),
            resume: std::ptr::null(),
            stop: Stop::Done,
            stack: Vec::new(),
            parked: Vec::new(),
            scratch: Scratch([0; LANES]),
            shared: shared.wrapping_add(position / warps_per_block * round(shared_bytes)),
            shared_bytes: shared_bytes as u32,
            // What earlier launches left in the arena is poisoned by the first reset.
            shared_touched: true,
            local: base.wrapping_add(warps * registers + position * local),
            local_bytes,
            params: spec.params.as_ptr(),
            param_bytes: kernel.param_bytes as u32,
            granule_base: table.base(),
            granule_shift: table.shift(),
            granule_count: table.len() as u64,
            granule_flags: table.flags(),
            memory,
            queue: AsyncQueue::default(),
            barrier: BarrierRequest::default(),
            barrier_votes: (0, 0),
            branches: 0,
            yield_at: turn_branches,
            turn_branches,
            watchdog: launch.options.watchdog_branches.max(1),
            counters: Counters::default(),
            more_lanes: 0,
            count_memory: launch.options.counters,
            count_traffic: launch.options.counters,
            watch: std::ptr::null_mut(),
            fault: None,
            index: (position % warps_per_block) as u32,
            position: position as u32,
            place: (position / warps_per_block) as u32,
            rank: (position / warps_per_block % ranks) as u32,
            cluster_ranks: ranks as u32,
            cluster_shared: shared
                .wrapping_add(position / warps_per_block / ranks * ranks * round(shared_bytes)),
            cluster_stride: round(shared_bytes) as u32,
            cluster_arrived: false,
            cluster_owes: false,
            bulk: queues.wrapping_add(position / warps_per_block / ranks),
            program: &raw const kernel.code,
            calls: Calls::with_heap(launch.options.heap.clone()),
            returned: 0,
            floor: 0,
            frame: 0,
            top: kernel.code.frame_bytes,
            output: Vec::new(),
            executed: if by_opcode {
                executed.as_mut_ptr()
            } else {
                std::ptr::null_mut()
            },
        };
        let warps: Vec<Warp> = (0..warps).map(new_warp).collect();
        let (block_constants, fixed): (Vec<ConstantSlot>, Vec<ConstantSlot>) = kernel
            .code
            .kernel
            .constants
            .iter()
            .copied()
            .partition(|slot| {
                matches!(
                    slot.constant,
                    Constant::Special(Special::Ctaid(_) | Special::ClusterId(_) | Special::SmId)
                )
            });
        let runner = BlockRunner {
            launch,
            kernel,
            warps,
            warps_per_block,
            cluster,
            blocks: vec![[0; 3]; together],
            bulk,
            run: if by_opcode { run_by_opcode } else { run_fn() },
            executed,
            shared_bytes,
            registers: base,
            register_stride: registers,
            output: Vec::new(),
            block_constants,
            watch: std::ptr::null_mut(),
        };
        for warp in &runner.warps {
            for slot in &fixed {
                runner.write_constant(warp, slot, [0; 3], 0);
            }
        }
        runner
    }

    /// Runs blocks in checked mode from here on; `watch` must outlive the runner.
    pub(super) fn watch(&mut self, watch: &mut Watch<'a>) {
        self.watch = std::ptr::from_mut(watch).cast();
        self.run = super::checked::run_warp;
        for warp in &mut self.warps {
            warp.watch = self.watch;
            warp.count_memory = true;
        }
    }

    /// Blocks that run together.
    pub(super) fn ranks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// The watch.
    ///
    /// # Safety
    /// [`BlockRunner::watch`] was called, and nothing else uses the watch while the reference is in use.
    pub(super) unsafe fn watched(&mut self) -> &mut Watch<'a> {
        // SAFETY: passed on to the caller; only the lifetime was cast away.
        unsafe { &mut *self.watch.cast::<Watch<'a>>() }
    }

    /// Tells the watch, if there is one.
    fn tell(&mut self, what: impl FnOnce(&mut Watch<'a>)) {
        if !self.watch.is_null() {
            // SAFETY: a watch that was set outlives the runner, and no handler runs at this time.
            what(unsafe { self.watched() });
        }
    }

    fn write_constant(&self, warp: &Warp, slot: &ConstantSlot, block: [u32; 3], linear: u64) {
        let value = |lane: u32| -> u64 {
            match slot.constant {
                // Written at each call.
                Constant::Frame(_) => 0,
                Constant::Bits(bits) => bits,
                Constant::Param {
                    offset,
                    bytes,
                    signed,
                } => {
                    let (offset, bytes) = (offset as usize, bytes as usize);
                    let mut buffer = [0; 8];
                    buffer[..bytes]
                        .copy_from_slice(&self.launch.spec.params[offset..offset + bytes]);
                    let bits = u64::from_le_bytes(buffer);
                    let unused = 64 - 8 * bytes as u32;
                    if signed {
                        ((bits << unused) as i64 >> unused) as u64
                    } else {
                        bits
                    }
                }
                Constant::Special(special) => self.special(special, warp, lane, block, linear),
            }
        };
        let first = value(0);
        let differs = slot.constant.differs_by_lane();
        match slot.class {
            RegClass::Pred => {
                // SAFETY: the slot lies in this warp's register file.
                unsafe { *warp.slot::<u32>(slot.offset) = first as u32 };
            }
            RegClass::B16 | RegClass::B32 => {
                let mut lanes = [first as u32; LANES];
                for lane in (0..LANES).filter(|_| differs) {
                    lanes[lane] = value(lane as u32) as u32;
                }
                // SAFETY: as above.
                unsafe { *warp.slot::<[u32; LANES]>(slot.offset) = lanes };
            }
            RegClass::B64 | RegClass::B128 => {
                let mut lanes = [first; LANES];
                for lane in (0..LANES).filter(|_| differs) {
                    lanes[lane] = value(lane as u32);
                }
                // SAFETY: as above.
                unsafe { *warp.slot::<[u64; LANES]>(slot.offset) = lanes };
            }
        }
    }

    fn special(
        &self,
        special: Special,
        warp: &Warp,
        lane: u32,
        block: [u32; 3],
        linear: u64,
    ) -> u64 {
        let spec = self.launch.spec;
        let thread = warp.index * LANES as u32 + lane;
        let [x, y, _] = spec.block;
        let value = match special {
            Special::Tid(0) => thread % x,
            Special::Tid(1) => thread / x % y,
            Special::Tid(_) => thread / x / y,
            Special::Ntid(axis) => spec.block[axis as usize],
            Special::Ctaid(axis) => block[axis as usize],
            Special::Nctaid(axis) => spec.grid[axis as usize],
            Special::LaneId => lane,
            Special::WarpId => warp.index,
            Special::WarpCount => self.warps_per_block as u32,
            Special::LaneMaskEq => 1 << lane,
            Special::LaneMaskLe => u32::MAX >> (31 - lane),
            Special::LaneMaskLt => (1 << lane) - 1,
            Special::LaneMaskGe => u32::MAX << lane,
            Special::LaneMaskGt => (u32::MAX << lane) & !(1 << lane),
            Special::SmId => (linear % u64::from(self.launch.options.sm_count.max(1))) as u32,
            Special::SmCount => self.launch.options.sm_count.max(1),
            Special::GridId | Special::Zero => 0,
            Special::ClusterRank => warp.rank,
            Special::ClusterRanks => warp.cluster_ranks,
            Special::ExplicitCluster => u32::from(warp.cluster_ranks > 1),
            Special::ClusterId(axis) => block[axis as usize] / self.cluster[axis as usize],
            Special::ClusterCount(axis) => spec.grid[axis as usize] / self.cluster[axis as usize],
            Special::ClusterBlock(axis) => self.rank_index(warp.rank)[axis as usize],
            Special::ClusterBlocks(axis) => self.cluster[axis as usize],
            Special::DynamicSharedBytes => spec.dynamic_shared_bytes,
            Special::TotalSharedBytes => self.shared_bytes as u32,
            Special::Workspace(half) => {
                (spec.cooperative.unwrap_or(0) >> (32 * u32::from(half))) as u32
            }
        };
        u64::from(value)
    }

    /// Number of a block in the grid.
    fn linear(&self, block: [u32; 3]) -> u64 {
        let [grid_x, grid_y, _] = self.launch.spec.grid.map(u64::from);
        let [x, y, z] = block.map(u64::from);
        x + grid_x * (y + grid_y * z)
    }

    /// Index of a block in its cluster.
    fn rank_index(&self, rank: u32) -> [u32; 3] {
        let [x, y, _] = self.cluster;
        [rank % x, rank / x % y, rank / x / y]
    }

    /// Runs cluster number `linear` (a block, without clusters), or number 0 and all others of a cooperative launch, and adds
    /// what was done to `counters`.
    pub(super) fn run(&mut self, linear: u64, counters: &mut Counters) -> Result<(), Box<Fault>> {
        let grid = self.launch.spec.grid;
        let clusters = [0, 1, 2].map(|axis| u64::from(grid[axis] / self.cluster[axis]));
        let ranks = self.blocks.len() / self.bulk.len();
        for place in 0..self.blocks.len() {
            let linear = linear + (place / ranks) as u64;
            let cluster = [
                linear % clusters[0],
                linear / clusters[0] % clusters[1],
                linear / clusters[0] / clusters[1],
            ];
            let inside = self.rank_index((place % ranks) as u32);
            self.blocks[place] =
                [0, 1, 2].map(|axis| cluster[axis] as u32 * self.cluster[axis] + inside[axis]);
            self.reset(place);
        }
        self.bulk.iter_mut().for_each(BulkQueue::clear);
        let (block, linear) = (self.blocks[0], self.linear(self.blocks[0]));
        let shared = self.warps[0].cluster_shared as u64;
        self.tell(|watch| watch.begin_block(linear, block, shared));
        let result = self.schedule();
        self.tell(Watch::end_block);
        for warp in &mut self.warps {
            let lanes = &mut warp.counters.active_lanes;
            *lanes = lanes.wrapping_add(std::mem::take(&mut warp.more_lanes));
            *counters += warp.counters;
            warp.counters = Counters::default();
            self.output.append(&mut warp.output);
        }
        counters.blocks += self.blocks.len() as u64;
        result
    }

    /// Readies the warps of the block of that place.
    fn reset(&mut self, place: usize) {
        let block = self.blocks[place];
        let linear = self.linear(block);
        let warps = place * self.warps_per_block..(place + 1) * self.warps_per_block;
        let threads = self.launch.spec.block.iter().product::<u32>();
        let code = &self.kernel.code;
        // Blocks of a cluster write to each other's shared memory.
        let touched = self.blocks.len() > 1
            || self.warps[warps.clone()]
                .iter()
                .any(|warp| warp.shared_touched);
        if self.launch.options.poison && touched {
            let shared = self.warps[warps.start].shared;
            // SAFETY: the arena holds this many bytes of shared memory.
            unsafe { std::ptr::write_bytes(shared, 0xFF, self.shared_bytes) };
        }
        for warp in &mut self.warps[warps.clone()] {
            let first = warp.index * LANES as u32;
            let present = (threads - first).min(LANES as u32);
            warp.live = if present == 32 {
                u32::MAX
            } else {
                (1 << present) - 1
            };
            warp.active = warp.live;
            warp.mask = warp.live;
            warp.shared_touched = false;
            warp.stack.clear();
            warp.parked.clear();
            warp.queue.clear();
            warp.resume = warp.code;
            warp.stop = Stop::Ready;
            warp.branches = 0;
            warp.yield_at = warp.turn_branches;
            warp.regs = self
                .registers
                .wrapping_add(warp.position as usize * self.register_stride);
            warp.calls.reset();
            (warp.returned, warp.floor, warp.frame) = (0, 0, 0);
            warp.top = code.frame_bytes;
            (warp.cluster_arrived, warp.cluster_owes) = (false, false);
            if self.launch.options.poison {
                // Registers that are written before they are read need none.
                if code.kernel.reads_unset {
                    let free = warp.regs.wrapping_add(code.kernel.constant_bytes as usize);
                    // SAFETY: the register file has this many bytes behind its constants.
                    unsafe {
                        std::ptr::write_bytes(
                            free,
                            0xFF,
                            (code.kernel.register_bytes - code.kernel.constant_bytes) as usize,
                        )
                    };
                }
                // SAFETY: the arena holds the warp's stacks.
                unsafe {
                    std::ptr::write_bytes(warp.local, 0xFF, warp.local_bytes as usize * LANES)
                };
            }
        }
        for index in warps {
            for slot in &self.block_constants {
                self.write_constant(&self.warps[index], slot, block, linear);
            }
            self.prepare_functions(index, block, linear);
        }
    }

    /// Makes the register files that functions begin with.
    fn prepare_functions(&mut self, index: usize, block: [u32; 3], linear: u64) {
        let functions = &self.kernel.code.functions;
        let mut templates = std::mem::take(&mut self.warps[index].calls.templates);
        for (number, (routine, _)) in functions.iter().enumerate() {
            let lines = (routine.register_bytes as usize).div_ceil(128);
            if templates.len() <= number {
                templates.push(vec![Line([0xFF; 128]); lines].into_boxed_slice());
            }
            // Constants are written through the warp, as if the function ran.
            let kernel_registers = self.warps[index].regs;
            self.warps[index].regs = templates[number].as_mut_ptr().cast();
            for slot in &routine.constants {
                self.write_constant(&self.warps[index], slot, block, linear);
            }
            self.warps[index].regs = kernel_registers;
        }
        self.warps[index].calls.templates = templates;
    }

    /// Hands over what has been counted by instruction, if it was wanted.
    pub(super) fn tell_opcodes(&self) {
        if let Some(opcodes) = &self.launch.options.opcodes {
            opcodes.add(self.kernel, &self.executed);
        }
    }

    /// Moves what the warps printed to the launch's output.
    pub(super) fn take_output(&mut self, printed: &std::sync::Mutex<Vec<u8>>) {
        if self.output.is_empty() {
            return;
        }
        printed
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .append(&mut self.output);
    }

    fn schedule(&mut self) -> Result<(), Box<Fault>> {
        let mut barriers = vec![[BarrierState::default(); 16]; self.blocks.len()];
        let mut order: Vec<usize> = (0..self.warps.len()).collect();
        // Rounds in which every warp only found an mbarrier incomplete.
        let mut idle_rounds = 0u32;
        loop {
            let (mut progress, mut waits) = (false, true);
            self.tell(|watch| watch.shuffle(&mut order));
            for &index in &order {
                while matches!(
                    self.warps[index].stop,
                    Stop::Ready | Stop::Yield | Stop::Wait
                ) {
                    progress = true;
                    let warp = &mut self.warps[index];
                    // SAFETY: the warp was set up for this kernel by `new` and `reset`.
                    unsafe { (self.run)(warp) };
                    waits &= warp.stop == Stop::Wait;
                    match warp.stop {
                        Stop::Fault => return Err(self.complete(index)),
                        Stop::Barrier(id) => {
                            let request = warp.barrier;
                            let place = warp.place as usize;
                            let state = &mut barriers[place][usize::from(id)];
                            // A barrier counts warps, as hardware does.
                            state.threads += LANES as u32;
                            state.votes += request.votes;
                            state.voters += warp.live.count_ones();
                            state.expected = request.threads;
                            self.tell(|watch| watch.arrive(place, id, index));
                            if request.arrive_only {
                                self.warps[index].stop = Stop::Ready;
                                self.release(place, &mut barriers[place]);
                                continue;
                            }
                            break;
                        }
                        Stop::Done => {
                            self.tell(|watch| watch.exit(index));
                            break;
                        }
                        Stop::Yield | Stop::Wait | Stop::Cluster | Stop::Ready => break,
                    }
                }
            }
            for (place, barriers) in barriers.iter_mut().enumerate() {
                progress |= self.release(place, barriers);
            }
            progress |= self.release_cluster();
            if self.warps.iter().all(|warp| warp.stop == Stop::Done) {
                // Copies that nobody waited for still arrive.
                self.bulk.iter_mut().for_each(BulkQueue::finish);
                return Ok(());
            }
            idle_rounds = if waits { idle_rounds + 1 } else { 0 };
            if !progress || idle_rounds > IDLE_ROUNDS {
                return Err(self.deadlock());
            }
        }
    }

    /// Lets the warps of clusters go on all of whose warps have arrived at the cluster's barrier; warps that have exited count.
    fn release_cluster(&mut self) -> bool {
        let mut released = false;
        let warps_per_cluster = self.warps.len() / self.bulk.len();
        // SAFETY: a watch that was set outlives the runner, and no handler runs at this time.
        let mut watch = unsafe { self.watch.as_mut() };
        for (cluster, warps) in self.warps.chunks_mut(warps_per_cluster).enumerate() {
            let mut running = warps.iter().filter(|w| w.stop != Stop::Done).peekable();
            if running.peek().is_none() || !running.all(|warp| warp.cluster_arrived) {
                continue;
            }
            released = true;
            for warp in warps {
                warp.cluster_arrived = false;
                if warp.stop == Stop::Cluster {
                    warp.stop = Stop::Ready;
                }
            }
            if let Some(watch) = watch.as_deref_mut() {
                watch.cluster_complete(cluster);
            }
        }
        released
    }

    /// Lets the warps of complete barriers of a block go on.
    fn release(&mut self, place: usize, barriers: &mut [BarrierState; 16]) -> bool {
        let warps = &mut self.warps[place * self.warps_per_block..][..self.warps_per_block];
        let running = warps.iter().filter(|warp| warp.stop != Stop::Done).count() as u32;
        let mut released = false;
        // SAFETY: a watch that was set outlives the runner, and no handler runs at this time.
        let mut watch = unsafe { self.watch.as_mut() };
        for (id, state) in barriers
            .iter_mut()
            .enumerate()
            .filter(|(_, state)| state.threads > 0)
        {
            // Warps that have exited count as arrived.
            let expected = if state.expected == 0 {
                running * LANES as u32
            } else {
                state.expected
            };
            if state.threads < expected {
                continue;
            }
            for warp in warps
                .iter_mut()
                .filter(|warp| warp.stop == Stop::Barrier(id as u8))
            {
                warp.stop = Stop::Ready;
                warp.barrier_votes = (state.votes, state.voters);
                released = true;
                if let Some(watch) = watch.as_deref_mut() {
                    watch.leave(place, id, warp.position as usize);
                }
            }
            if let Some(watch) = watch.as_deref_mut() {
                watch.reset_barrier(place, id);
            }
            *state = BarrierState::default();
        }
        released
    }

    fn deadlock(&mut self) -> Box<Fault> {
        let mut waiting = Vec::new();
        let mut first = None;
        for (index, warp) in self.warps.iter().enumerate() {
            let (what, at) = match warp.stop {
                Stop::Barrier(id) => (format!("barrier {id}"), warp.resume.wrapping_sub(1)),
                Stop::Wait => ("an mbarrier".into(), warp.resume.wrapping_sub(1)),
                Stop::Cluster => ("the cluster's barrier".into(), warp.resume),
                _ => continue,
            };
            let line = self.kernel.statements[self.statement(warp, at)].line;
            let block = if self.blocks.len() > 1 {
                format!(" of block {:?}", self.blocks[warp.place as usize])
            } else {
                String::new()
            };
            waiting.push(format!(
                "warp {}{block} at {what} (PTX line {line})",
                warp.index
            ));
            first.get_or_insert((index, at));
        }
        let (index, at) = first.unwrap_or((0, self.warps[0].resume));
        let site = Box::new(FaultSite {
            warp: self.warps[index].index,
            ..FaultSite::default()
        });
        let message = format!("no other warp will arrive; {} wait", waiting.join(", "));
        let warp = &mut self.warps[index];
        warp.resume = at;
        warp.fault = Some(Box::new(Fault::BarrierDivergence { site, message }));
        self.complete(index)
    }

    fn statement(&self, warp: &Warp, at: *const super::warp::Ins) -> usize {
        let instructions = &self.kernel.code.instructions;
        instructions[(warp.pc(at) as usize).min(instructions.len() - 1)].statement as usize
    }

    /// Fills in where the fault of a warp happened.
    fn complete(&mut self, index: usize) -> Box<Fault> {
        let warp = &mut self.warps[index];
        let block = self.blocks[warp.place as usize];
        let at = warp.resume;
        let mut fault = warp.fault.take().unwrap_or_else(|| {
            Box::new(Fault::InvalidLaunch {
                kernel: String::new(),
                message: "a warp stopped without a cause".into(),
            })
        });
        let statement = self.statement(&self.warps[index], at);
        if let (Some(site), Some(statement)) =
            (fault.site_mut(), self.kernel.statements.get(statement))
        {
            site.kernel = self.kernel.name.clone();
            site.block = block;
            site.line = statement.line;
            site.statement = self.kernel.text_of(statement);
            site.source = statement.source.clone();
        }
        fault
    }
}

const _: () = assert!(SPACE_BITS == 7);
