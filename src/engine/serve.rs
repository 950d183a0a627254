//! The engine: requests in, tokens out.

use crate::arena::{Arena, Ledger};
use crate::driver::{DevicePtr, KernelNode, MemInfo};
use crate::kv::{CarveReport, KvSequences, SequenceId};
use crate::model::ModelConfig;

use super::runner::{Row, Runner, Segment};
use super::scheduler::{Running, Scheduler, Waiting};
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
    /// What ended the engine's usefulness, if anything did.
    pub(super) failure: Option<String>,
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
        for captured in self.runner.graphs.values() {
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

    /// Ends a request early; its pages are free for the next step. An unknown or finished id is no error.
    ///
    /// # Errors
    /// An earlier step failed.
    pub fn cancel(&mut self, request: RequestId) -> Result<(), EngineError> {
        self.check_usable()?;
        self.scheduler
            .waiting
            .retain(|waiting| waiting.id != request);
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
    /// A driver call fails. The engine then refuses further work.
    pub fn step(&mut self) -> Result<Vec<Event>, EngineError> {
        self.check_usable()?;
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
        self.admit()?;
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
            match self.runner.start(promised)? {
                Some(sequence) => self
                    .scheduler
                    .running
                    .push(Running::new(waiting, sequence, promised)),
                None => {
                    self.scheduler.waiting.push_front(waiting);
                    break;
                }
            }
        }
        Ok(())
    }

    fn prefill_step(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        let mut draft = self.runner.draft(Phase::Prefill);
        let mut ran = Vec::new();
        for chunk in self.scheduler.chunks() {
            // A preempted request is the youngest, so what stands before it keeps its index.
            while let Some(running) = self.scheduler.running.get(chunk.index) {
                let end = running.settled + chunk.num_tokens;
                let segment = Segment {
                    sequence: running.sequence,
                    position: running.settled as u32,
                    tokens: &running.tokens[running.settled..end],
                    wants_output: end == running.prompt_len,
                };
                if self.runner.add_segment(&mut draft, &segment)? {
                    ran.push(chunk);
                    break;
                }
                self.preempt_youngest()?;
            }
        }
        if ran.is_empty() {
            return Ok(());
        }
        let mut sampled = self.runner.run(draft)?.1.into_iter();
        for chunk in ran {
            let running = &mut self.scheduler.running[chunk.index];
            let wanted_output = running.settled + chunk.num_tokens == running.prompt_len;
            let next = if wanted_output { sampled.next() } else { None };
            events.extend(advance(running, chunk.num_tokens, next));
        }
        Ok(())
    }

    fn decode_step(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        let mut draft = self.runner.draft(Phase::Decode);
        let mut ran = Vec::new();
        for index in self.scheduler.decoding() {
            while let Some(running) = self.scheduler.running.get_mut(index) {
                let row = Row {
                    sequence: running.sequence,
                    position: running.settled as u32,
                    token: running.tokens[running.settled],
                };
                if row.position == running.promised {
                    let more = running
                        .promised
                        .saturating_add(self.admit_new_tokens)
                        .min(running.max_tokens);
                    if self.runner.raise(running.sequence, more)? {
                        running.promised = more;
                    } else {
                        self.preempt_youngest()?;
                        continue;
                    }
                }
                if self.runner.add_row(&mut draft, &row)? {
                    ran.push(index);
                    break;
                }
                self.preempt_youngest()?;
            }
        }
        if ran.is_empty() {
            return Ok(());
        }
        let sampled = self.runner.run(draft)?.1;
        for (index, token) in ran.into_iter().zip(sampled) {
            let running = &mut self.scheduler.running[index];
            events.extend(advance(running, 1, Some(token)));
        }
        Ok(())
    }

    /// Takes the pages of the request admitted last. It waits in front of all others and is recomputed when there is room.
    fn preempt_youngest(&mut self) -> Result<(), EngineError> {
        if self.scheduler.running.len() < 2 {
            // Admission promised a lone request all it may need.
            return Err(EngineError::Busy { found: 1, limit: 0 });
        }
        if let Some(running) = self.scheduler.running.pop() {
            self.num_preemptions += 1;
            self.runner.sequences.release(running.sequence)?;
            self.scheduler.waiting.push_front(running.into_waiting());
        }
        Ok(())
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
