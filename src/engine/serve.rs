//! The engine: requests in, tokens out.

use crate::arena::{AllocationGate, Arena, Ledger};
use crate::driver::{DevicePtr, KernelNode, MemInfo};
use crate::kv::{CarveReport, KvError, KvSequences, Policy, SequenceId};
use crate::model::ModelConfig;

use super::runner::{Draft, Row, Runner, Segment};
use super::scheduler::{Chunk, Running, Scheduler, Waiting};
use super::{EngineError, Event, Request, RequestId, StartupTimings};
use crate::kernels::Phase;

/// A loaded model with its pools: takes requests, runs steps, hands out tokens.
///
/// Not shared between threads: one step at a time changes the pools and the graphs' buffers.
pub struct Engine {
    pub(super) runner: Runner,
    pub(super) scheduler: Scheduler<SequenceId>,
    pub(super) ledger: Ledger,
    pub(super) carve: CarveReport,
    pub(super) timings: StartupTimings,
    pub(super) eager: bool,
    /// Longest sequence the pools hold when it is alone.
    pub(super) pool_tokens: u32,
    pub(super) next_request: u64,
    /// Generated tokens that pages are promised for at a time.
    pub(super) admit_new_tokens: u32,
    pub(super) num_preemptions: u64,
    /// How the pools share the carve.
    pub(super) policy: Policy,
    /// Closed but while KV grows on demand.
    pub(super) gate: AllocationGate,
    /// Whether the KV memory is given back.
    pub(super) asleep: bool,
    /// What ended the engine's usefulness, if anything did.
    pub(super) failure: Option<String>,
}

/// Rounds of compaction tried for one step before requests are preempted.
const MAX_ROUNDS: u32 = 16;

/// What has been tried for a step that finds no pages.
#[derive(Debug, Default)]
struct MakingRoom {
    /// Rounds of compaction.
    rounds: u32,
}

/// A range of device addresses that never moves while the engine lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaRange {
    /// `weights`, `workspace` or `kv`.
    pub name: &'static str,
    /// First address.
    pub base: DevicePtr,
    /// Bytes backed by memory.
    pub bytes: u64,
}

impl Engine {
    /// Who holds the device's memory, from `cuMemGetInfo` around each start-up stage.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// What the leftover was carved into.
    pub fn carve(&self) -> &CarveReport {
        &self.carve
    }

    /// How long each start-up stage took.
    pub fn startup_timings(&self) -> &StartupTimings {
        &self.timings
    }

    /// The model's sizes and constants.
    pub fn config(&self) -> &ModelConfig {
        &self.runner.forward.config
    }

    /// Tokens that end generation by the model's own account.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.config().eos_tokens
    }

    /// Longest sequence, prompt and generated tokens together: the model's, the option's or the pools' limit.
    pub fn max_tokens(&self) -> u32 {
        self.runner.limits.max_model_len.min(self.pool_tokens)
    }

    /// What the device says is free now.
    ///
    /// # Errors
    /// The driver call fails.
    pub fn memory_info(&self) -> Result<MemInfo, EngineError> {
        Ok(self.runner.context.mem_info()?)
    }

    /// The device address ranges that graphs may point into, backed parts only.
    pub fn arenas(&self) -> [ArenaRange; 3] {
        let range = |name, arena: &Arena| ArenaRange {
            name,
            base: arena.base(),
            bytes: arena.mapped_bytes(),
        };
        [
            range("weights", &self.runner.weights),
            range("workspace", &self.runner.workspace),
            range("kv", self.runner.kv.arena()),
        ]
    }

    /// Every kernel node of every captured graph, with its parameters.
    ///
    /// # Errors
    /// The driver call fails.
    pub fn captured_kernels(&self) -> Result<Vec<KernelNode>, EngineError> {
        let mut nodes = Vec::new();
        let graphs = self.runner.graphs.values();
        for captured in graphs.chain(&self.runner.moves_graph) {
            nodes.extend(captured.graph.kernel_nodes()?);
        }
        Ok(nodes)
    }

    /// The pages that resident sequences hold.
    pub fn kv(&self) -> &KvSequences {
        &self.runner.sequences
    }

    /// Queues a request.
    ///
    /// # Errors
    /// The prompt is empty, holds a token the model does not have, or can never be resident; or no token is asked for.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, EngineError> {
        self.check_usable()?;
        self.check_prompt(&request.prompt)?;
        if request.max_new_tokens == 0 {
            return Err(EngineError::NoNewTokens);
        }
        let id = RequestId(self.next_request);
        self.next_request += 1;
        // The last generated token is never run, so it needs no room.
        let wanted = request.prompt.len() as u64 + u64::from(request.max_new_tokens) - 1;
        let max_tokens = wanted.min(u64::from(self.max_tokens())) as u32;
        let waiting = Waiting {
            id,
            request,
            generated: Vec::new(),
            max_tokens,
            completions: Vec::new(),
        };
        self.scheduler.waiting.push_back(waiting);
        Ok(id)
    }

    /// Whether any request is waiting or running.
    pub fn has_work(&self) -> bool {
        self.scheduler.has_work()
    }

    /// Requests that hold pages.
    pub fn num_running(&self) -> usize {
        self.scheduler.running.len()
    }

    /// Requests that hold none yet.
    pub fn num_waiting(&self) -> usize {
        self.scheduler.waiting.len()
    }

    /// Times a running request gave its pages to older ones and started again.
    pub fn num_preemptions(&self) -> u64 {
        self.num_preemptions
    }

    /// Pages that were moved so that slabs became free: by compaction, and by shrinking.
    pub fn num_moved_pages(&self) -> u64 {
        self.runner.num_moved_pages
    }

    /// Ends a request early; its pages are free for the next step. An unknown or finished id is no error.
    ///
    /// # Errors
    /// An earlier step failed.
    pub fn cancel(&mut self, request: RequestId) -> Result<(), EngineError> {
        self.check_usable()?;
        self.scheduler
            .waiting
            .retain(|waiting| waiting.id != request);
        let waiting = self.scheduler.waiting.iter_mut();
        let waiting = waiting.map(|waiting| &mut waiting.completions);
        let running = self.scheduler.running.iter_mut();
        let running = running.map(|running| &mut running.completions);
        for completions in waiting.chain(running) {
            completions.retain(|completion| *completion != request);
        }
        if let Some(index) = self
            .scheduler
            .running
            .iter()
            .position(|running| running.id == request)
        {
            let running = self.scheduler.running.remove(index);
            self.runner.sequences.release(running.sequence)?;
        }
        Ok(())
    }

    /// One iteration: admits what fits, runs one decode step over every request whose prompt is done, then at most one prefill
    /// step. Returns one event a generated token.
    ///
    /// # Errors
    /// The engine sleeps; the next request does not fit into what KV memory is left; or a driver call fails, and then the engine refuses
    /// further work.
    pub fn step(&mut self) -> Result<Vec<Event>, EngineError> {
        self.check_usable()?;
        self.check_awake()?;
        self.admit()?;
        let stepped = self.try_step();
        self.remember_failure(stepped)
    }

    /// Runs the requests together to their ends; returns the generated tokens of each, in order.
    ///
    /// # Errors
    /// As [`Engine::submit`] and [`Engine::step`]; nothing stays queued after a refused request.
    pub fn generate(&mut self, requests: &[Request]) -> Result<Vec<Vec<u32>>, EngineError> {
        let mut ids = Vec::with_capacity(requests.len());
        for request in requests {
            match self.submit(request.clone()) {
                Ok(id) => ids.push(id),
                Err(error) => {
                    self.scheduler
                        .waiting
                        .retain(|waiting| !ids.contains(&waiting.id));
                    return Err(error);
                }
            }
        }
        let mut generated = vec![Vec::new(); ids.len()];
        let mut open = ids.len();
        while open > 0 {
            for event in self.step()? {
                if let Some(index) = ids.iter().position(|id| *id == event.request) {
                    generated[index].push(event.token);
                    open -= usize::from(event.finished.is_some());
                }
            }
        }
        Ok(generated)
    }

    /// Gives everything back to the device, and reports what a silent drop could only record.
    ///
    /// # Errors
    /// The first driver call that failed on the way.
    pub fn close(self) -> Result<(), EngineError> {
        let context = self.runner.context.clone();
        drop(self);
        match context.take_recorded_error() {
            Some(error) => Err(error.into()),
            None => Ok(context.close()?),
        }
    }

    fn try_step(&mut self) -> Result<Vec<Event>, EngineError> {
        let mut events = Vec::new();
        self.decode_step(&mut events)?;
        self.retire(&events)?;
        let decoded = events.len();
        self.prefill_step(&mut events)?;
        self.retire(&events[decoded..])?;
        Ok(events)
    }

    /// Starts waiting requests, in order, while what they need soon fits beside what is promised already (I8).
    fn admit(&mut self) -> Result<(), EngineError> {
        while self.scheduler.running.len() < self.runner.limits.max_seqs as usize {
            let Some(waiting) = self.scheduler.waiting.pop_front() else {
                break;
            };
            let promised = waiting.promise(self.admit_new_tokens);
            let started = self.runner.start_prompt(&waiting.request.prompt, promised);
            match started {
                Ok(Some(started)) => self.scheduler.running.push(
                    Running::new(waiting, started.sequence, promised)
                        .on_prefix(started.cached_tokens, &started.stops),
                ),
                refused => {
                    self.scheduler.waiting.push_front(waiting);
                    return match refused {
                        // KV is smaller than when it was accepted, having woken on a fuller device. Others go on.
                        Err(EngineError::Kv(KvError::NeverFits { .. }))
                            if !self.scheduler.running.is_empty() =>
                        {
                            Ok(())
                        }
                        refused => refused.map(|_| ()),
                    };
                }
            }
        }
        Ok(())
    }

    /// At most one prefill step: as many chunks as there are pages for.
    fn prefill_step(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        let mut room = MakingRoom::default();
        loop {
            let mut draft = self.runner.draft(Phase::Prefill);
            let chunks = self.scheduler.chunks();
            let mut planned = 0;
            for chunk in &chunks {
                let running = &self.scheduler.running[chunk.index];
                let end = running.settled + chunk.num_tokens;
                let segment = Segment {
                    sequence: running.sequence,
                    position: running.settled as u32,
                    tokens: &running.tokens[running.settled..end],
                    wants_output: end == running.prompt_len,
                };
                if !self.runner.add_segment(&mut draft, &segment)? {
                    break;
                }
                planned += 1;
            }
            if planned > 0 {
                return self.run_chunks(draft, &chunks[..planned], events);
            }
            if chunks.is_empty() {
                return Ok(());
            }
            self.make_room(&mut room)?;
        }
    }

    fn run_chunks(
        &mut self,
        draft: Draft,
        chunks: &[Chunk],
        events: &mut Vec<Event>,
    ) -> Result<(), EngineError> {
        let mut sampled = self.runner.run(draft)?.1.into_iter().enumerate();
        for chunk in chunks {
            let running = &mut self.scheduler.running[chunk.index];
            let wanted_output = running.settled + chunk.num_tokens == running.prompt_len;
            let next = if wanted_output { sampled.next() } else { None };
            events.extend(advance(
                running,
                chunk.num_tokens,
                next.map(|(_, token)| token),
            ));
            if let Some((output_row, _)) = next {
                self.start_completions(chunk.index, output_row, events)?;
            }
            let running = &mut self.scheduler.running[chunk.index];
            if let Some(stop) = running.take_stop() {
                self.runner
                    .cache_prompt(running.sequence, &running.tokens[..stop])?;
            }
        }
        Ok(())
    }

    /// One decode step over every request whose prompt is done; several where pages are so scarce that those of one part must run, and
    /// give up what they hold, before the next part finds its own.
    fn decode_step(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        let rows = self.scheduler.decoding();
        let mut room = MakingRoom::default();
        let mut next = 0;
        // A preempted request is the youngest, so what stands before it keeps its index.
        while rows
            .get(next)
            .is_some_and(|index| *index < self.scheduler.running.len())
        {
            let mut draft = self.runner.draft(Phase::Decode);
            let first = next;
            while let Some(index) = rows.get(next)
                && self.add_row(&mut draft, *index)?
            {
                next += 1;
            }
            if next == first {
                if rows[next] < self.scheduler.running.len() {
                    self.make_room(&mut room)?;
                }
                continue;
            }
            room = MakingRoom::default();
            let sampled = self.runner.run(draft)?.1;
            for (index, token) in rows[first..next].iter().zip(sampled) {
                let running = &mut self.scheduler.running[*index];
                events.extend(advance(running, 1, Some(token)));
            }
        }
        Ok(())
    }

    /// Adds the next token of a running request to a decode step; `false` when there is no page for it now, or when it was the
    /// youngest and its promise could not be raised.
    fn add_row(&mut self, draft: &mut Draft, index: usize) -> Result<bool, EngineError> {
        while let Some(running) = self.scheduler.running.get_mut(index) {
            let row = Row {
                sequence: running.sequence,
                position: running.settled as u32,
                token: running.tokens[running.settled],
            };
            if row.position < running.promised {
                return self.runner.add_row(draft, &row);
            }
            let more = running
                .promised
                .saturating_add(self.admit_new_tokens)
                .min(running.max_tokens);
            if self.runner.raise(running.sequence, more)? {
                running.promised = more;
            } else {
                self.preempt_youngest()?;
            }
        }
        Ok(false)
    }

    /// What is left to try for a step that nothing could be planned in, cached prefixes that nobody uses being gone: pages move together,
    /// then prefixes go that requests share, then the youngest request.
    fn make_room(&mut self, room: &mut MakingRoom) -> Result<(), EngineError> {
        if room.rounds < MAX_ROUNDS {
            room.rounds += 1;
            if self.runner.compact()? {
                return Ok(());
            }
            room.rounds = MAX_ROUNDS;
        }
        if self.runner.clear_prefixes()? {
            // What only the tree held in common with a request is that request's own now, and may move or be taken over.
            room.rounds = 0;
            return Ok(());
        }
        self.preempt_youngest()
    }

    /// Takes the pages of the request admitted last. It waits in front of all others and is recomputed when there is room.
    fn preempt_youngest(&mut self) -> Result<(), EngineError> {
        if self.scheduler.running.len() < 2 {
            // Admission promised a lone request all it may need.
            return Err(EngineError::Busy { found: 1, limit: 0 });
        }
        self.preempt()?;
        Ok(())
    }

    /// As [`Engine::preempt_youngest`], the last one included; `false` when none runs.
    pub(super) fn preempt(&mut self) -> Result<bool, EngineError> {
        let Some(running) = self.scheduler.running.pop() else {
            return Ok(false);
        };
        self.num_preemptions += 1;
        self.runner.sequences.release(running.sequence)?;
        self.scheduler.waiting.push_front(running.into_waiting());
        Ok(true)
    }

    /// Gives back the pages of requests that ended in this step.
    fn retire(&mut self, events: &[Event]) -> Result<(), EngineError> {
        for event in events.iter().filter(|event| event.finished.is_some()) {
            if let Some(index) = self
                .scheduler
                .running
                .iter()
                .position(|running| running.id == event.request)
            {
                let running = self.scheduler.running.remove(index);
                self.runner.sequences.release(running.sequence)?;
            }
        }
        Ok(())
    }

    pub(super) fn check_usable(&self) -> Result<(), EngineError> {
        match &self.failure {
            Some(cause) => Err(EngineError::Failed {
                cause: cause.clone(),
            }),
            None => Ok(()),
        }
    }

    /// A step that failed half-way leaves pages and tokens out of step with each other, for good.
    pub(super) fn remember_failure<T>(
        &mut self,
        result: Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        if let Err(error) = &result {
            self.failure = Some(error.to_string());
        }
        result
    }

    /// Checks a prompt that at least one token is to be generated for.
    pub(super) fn check_prompt(&self, prompt: &[u32]) -> Result<(), EngineError> {
        if prompt.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        let vocab_size = self.config().vocab_size;
        if let Some(position) = prompt.iter().position(|token| *token >= vocab_size) {
            return Err(EngineError::UnknownToken {
                token: prompt[position],
                position,
                vocab_size,
            });
        }
        let prompt_tokens = prompt.len() as u64;
        let too_long = |limit, limit_tokens: u32, remedy| EngineError::PromptTooLong {
            prompt_tokens,
            limit,
            limit_tokens: u64::from(limit_tokens),
            remedy,
        };
        let max_model_len = self.runner.limits.max_model_len;
        if prompt_tokens > u64::from(self.pool_tokens.min(max_model_len)) {
            return Err(if self.pool_tokens < max_model_len {
                too_long(
                    "the KV pools",
                    self.pool_tokens,
                    "free device memory, or lower --headroom",
                )
            } else {
                too_long(
                    "max_model_len",
                    max_model_len,
                    "raise max_model_len up to what the model was made for",
                )
            });
        }
        Ok(())
    }
}

fn advance(
    running: &mut Running<SequenceId>,
    num_tokens: usize,
    next: Option<u32>,
) -> Option<Event> {
    let request = running.id;
    running
        .advance(num_tokens, next)
        .map(|(token, finished)| Event {
            request,
            token,
            finished,
        })
}
