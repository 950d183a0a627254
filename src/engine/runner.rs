//! The device side of an engine: pages for a step's tokens, one copy in, one graph launch, one copy out.

use std::collections::BTreeMap;

use crate::arena::Arena;
use crate::driver::{Context, Graph, GraphExec, PinnedBuffer, Stream};
use crate::kernels::{self, DecodeRowInput, Phase, PrefillSegment, TableUpdate};
use crate::kv::{
    self, GroupId, KvArena, KvError, KvSequences, PageMove, PageWatch, PrefixTree, SequenceId,
    StepId,
};

use super::EngineError;
use super::forward::{Forward, LastBranch, Tap};
use super::moves::Moves;
use super::options::{Limits, bucket_for};
use super::staging::Staging;
use super::step::{Bucket, GroupWork, StepLayout, StepPlan};

/// Consecutive tokens of one sequence, a prompt or a part of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment<'a> {
    pub sequence: SequenceId,
    /// Position of the first token: how many the sequence has settled.
    pub position: u32,
    pub tokens: &'a [u32],
    /// Whether the logits of the last token are wanted.
    pub wants_output: bool,
}

/// One decoding sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub sequence: SequenceId,
    /// Position of the token: how many the sequence has settled.
    pub position: u32,
    pub token: u32,
}

/// A captured pass: the graph, which tests walk, and what is launched.
pub(super) struct Captured {
    pub exec: GraphExec,
    pub graph: Graph,
}

/// Everything a step touches. Fields are dropped in order: graphs before the memory they name, memory before the context.
pub(super) struct Runner {
    pub graphs: BTreeMap<Bucket, Captured>,
    /// Of [`Moves::issue`]; `None` in eager mode.
    pub moves_graph: Option<Captured>,
    pub moves: Moves,
    pub layouts: BTreeMap<Bucket, StepLayout>,
    pub forward: Forward,
    pub sequences: KvSequences,
    /// Cached prefixes, if they are to be cached.
    pub prefixes: Option<PrefixTree>,
    pub limits: Limits,
    /// Window of each layer group.
    pub windows: Vec<Option<u32>>,
    /// Table entries that come from the KV side next.
    pub updates: Vec<kv::TableUpdate>,
    /// Table entries to write before the next step, in order.
    pub pending: Vec<TableUpdate>,
    /// Pages that compaction and shrinking moved.
    pub num_moved_pages: u64,
    /// Host images of the step buffer and of the moves buffer.
    pub staging: Staging,
    /// `[max output rows]` u32.
    pub sampled_image: PinnedBuffer,
    /// Tells the emulator's checked mode which pages are in use.
    pub page_watch: Option<PageWatch>,
    pub kv: KvArena,
    pub workspace: Arena,
    pub weights: Arena,
    pub stream: Stream,
    pub context: Context,
}

/// A step being planned: sequences join one after the other while there are pages.
pub(super) struct Draft {
    phase: Phase,
    plan: StepPlan,
    prefill: Vec<PrefillSegment>,
    decode: Vec<DecodeRowInput>,
    /// Settled tokens of each sequence once the step has completed.
    settles: Vec<(SequenceId, u32)>,
}

impl Draft {
    /// Sequences in the step.
    pub fn len(&self) -> usize {
        self.settles.len()
    }
}

impl Runner {
    /// Admits a sequence of at most `max_tokens` tokens; `None` while others hold too much.
    pub fn start(&mut self, max_tokens: u32) -> Result<Option<SequenceId>, EngineError> {
        admitted(self.sequences.create(max_tokens))
    }

    /// Promises a sequence pages for `max_tokens` tokens; `false` while others hold too much.
    pub fn raise(&mut self, sequence: SequenceId, max_tokens: u32) -> Result<bool, EngineError> {
        match self.sequences.raise(sequence, max_tokens) {
            Ok(()) => Ok(true),
            Err(KvError::NoRoomNow { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// An empty step.
    pub fn draft(&self, phase: Phase) -> Draft {
        let plan = StepPlan {
            slots: vec![Vec::new(); self.windows.len()],
            ..StepPlan::default()
        };
        Draft {
            phase,
            plan,
            prefill: Vec::new(),
            decode: Vec::new(),
            settles: Vec::new(),
        }
    }

    /// Adds prompt tokens to a prefill step; `false` when there are no pages for them now.
    pub fn add_segment(
        &mut self,
        draft: &mut Draft,
        segment: &Segment,
    ) -> Result<bool, EngineError> {
        let row0 = draft.plan.token_ids.len() as u32;
        let num_rows = segment.tokens.len() as u32;
        if !self.append(draft, segment.sequence, segment.position, segment.tokens)? {
            return Ok(false);
        }
        if segment.wants_output {
            draft.plan.gather_rows.push(row0 + num_rows - 1);
        }
        let seq_slot = segment.sequence.seq_slot();
        draft.prefill.push(PrefillSegment {
            seq_slot,
            row0,
            num_rows,
            pos0: segment.position,
        });
        Ok(true)
    }

    /// Adds one token of a sequence to a decode step; `false` when there is no page for it now.
    pub fn add_row(&mut self, draft: &mut Draft, row: &Row) -> Result<bool, EngineError> {
        if !self.append(draft, row.sequence, row.position, &[row.token])? {
            return Ok(false);
        }
        draft.plan.gather_rows.push(draft.decode.len() as u32);
        draft.decode.push(DecodeRowInput {
            seq_slot: row.sequence.seq_slot(),
            kv_len: row.position + 1,
        });
        Ok(true)
    }

    /// Takes pages for more tokens of a sequence and notes table updates and slots.
    fn append(
        &mut self,
        draft: &mut Draft,
        sequence: SequenceId,
        position: u32,
        tokens: &[u32],
    ) -> Result<bool, EngineError> {
        let phase = match draft.phase {
            Phase::Decode => kv::Phase::Decode,
            Phase::Prefill => kv::Phase::Prefill,
        };
        let num_tokens = tokens.len() as u32;
        loop {
            match self
                .sequences
                .append(sequence, num_tokens, phase, &mut self.updates)
            {
                Ok(()) => break,
                Err(KvError::OutOfPages { .. }) if self.evict()? => {}
                Err(KvError::OutOfPages { .. }) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        draft
            .plan
            .updates
            .extend(self.updates.drain(..).map(table_update));
        for (group, slots) in (0..).map(GroupId).zip(&mut draft.plan.slots) {
            self.sequences.push_slots(sequence, group, slots)?;
        }
        draft.plan.token_ids.extend(tokens);
        draft.plan.positions.extend(position..position + num_tokens);
        draft.plan.num_seqs += 1;
        draft.settles.push((sequence, position + num_tokens));
        Ok(true)
    }

    /// Notes the table entries of new sequences and of moved pages, to be written before the next step.
    pub fn note_updates(&mut self) {
        self.pending
            .extend(self.updates.drain(..).map(table_update));
    }

    /// Writes the table entries that are pending and makes the copies of a step, before anything of it runs.
    pub fn prepare(&mut self, copies: &[PageMove]) -> Result<(), EngineError> {
        if let Some(watch) = &mut self.page_watch {
            watch.hand_out(self.sequences.allocator());
        }
        let (stream, forward, moves) = (&self.stream, &self.forward, &self.moves);
        let graph = &self.moves_graph;
        let launch = || match graph {
            Some(graph) => Ok(graph.exec.launch(stream)?),
            None => moves.issue(stream, forward),
        };
        moves.run(
            stream,
            forward,
            &mut self.staging,
            &self.pending,
            copies,
            launch,
        )?;
        // What moved away is read by the copies just launched, and by nothing after them.
        if let Some(watch) = &mut self.page_watch {
            watch.withhold(self.sequences.allocator());
        }
        self.pending.clear();
        Ok(())
    }

    /// Launches what comes before a step and copies the step in.
    fn begin(&mut self, bucket: Bucket, plan: &StepPlan) -> Result<StepId, EngineError> {
        let copies = self.sequences.page_copies().to_vec();
        let step = self.sequences.begin_step();
        self.prepare(&copies)?;
        self.copy_in(bucket, plan)?;
        Ok(step)
    }

    /// Runs a step and waits for it; returns its bucket and the greedy next token of each output row.
    pub fn run(&mut self, mut draft: Draft) -> Result<(Bucket, Vec<u32>), EngineError> {
        let (bucket, plan) = self.plan(&mut draft)?;
        let step = self.begin(bucket, &plan)?;
        match self.graphs.get(&bucket) {
            Some(graph) => graph.exec.launch(&self.stream)?,
            None => self.forward.issue(&self.stream, &self.layouts[&bucket])?,
        }
        let sampled = self.sampled(plan.gather_rows.len())?;
        self.settle(step, &draft)?;
        Ok((bucket, sampled))
    }

    /// As [`Runner::run`] without graphs and without the output head: `tap` looks at the workspace on the way, and the last
    /// branch is added.
    pub fn run_tapped(&mut self, mut draft: Draft, tap: Tap) -> Result<Bucket, EngineError> {
        let (bucket, plan) = self.plan(&mut draft)?;
        let step = self.begin(bucket, &plan)?;
        self.forward
            .issue_layers(&self.stream, &self.layouts[&bucket], Some(tap))?;
        self.stream.synchronize()?;
        self.settle(step, &draft)?;
        Ok(bucket)
    }

    /// Runs the output head again for other rows of the last prefill step, which was of `bucket`.
    pub fn outputs_of_rows(
        &mut self,
        bucket: Bucket,
        rows: &[u32],
        last: LastBranch,
    ) -> Result<(), EngineError> {
        // No tokens: only `num_outputs` and the rows to gather matter to the output head.
        let plan = StepPlan {
            gather_rows: rows.to_vec(),
            ..StepPlan::default()
        };
        self.copy_in(bucket, &plan)?;
        self.forward
            .issue_outputs(&self.stream, &self.layouts[&bucket], last)?;
        Ok(self.stream.synchronize()?)
    }

    /// Logits of output row `row` of the last step, `[vocab]`.
    pub fn logits(&mut self, row: usize) -> Result<Vec<f32>, EngineError> {
        let mut logits = vec![0f32; self.forward.config.vocab_size as usize];
        let image: &mut [u8] = bytemuck::cast_slice_mut(&mut logits);
        let source = self
            .forward
            .workspace
            .logits
            .add((row * image.len()) as u64);
        self.stream.copy_to_host(image, source)?;
        Ok(logits)
    }

    /// Chooses the bucket and the attention work.
    fn plan(&self, draft: &mut Draft) -> Result<(Bucket, StepPlan), EngineError> {
        let buckets = match draft.phase {
            Phase::Decode => &self.limits.decode_buckets,
            Phase::Prefill => &self.limits.prefill_buckets,
        };
        let num_tokens = draft.plan.token_ids.len();
        let largest = buckets.last().copied().unwrap_or(0);
        let rows = bucket_for(buckets, num_tokens as u32).ok_or(EngineError::PassTooLong {
            found: num_tokens,
            limit: largest,
        })?;
        let mut plan = std::mem::take(&mut draft.plan);
        for window in &self.windows {
            plan.work.push(match draft.phase {
                Phase::Decode => {
                    let (mut items, mut rows) = (Vec::new(), Vec::new());
                    kernels::plan_decode(&draft.decode, *window, &mut items, &mut rows);
                    GroupWork::Decode { items, rows }
                }
                Phase::Prefill => {
                    let mut items = Vec::new();
                    kernels::plan_prefill(&draft.prefill, &mut items);
                    GroupWork::Prefill { items }
                }
            });
        }
        Ok((
            Bucket {
                phase: draft.phase,
                rows,
            },
            plan,
        ))
    }

    fn copy_in(&mut self, bucket: Bucket, plan: &StepPlan) -> Result<(), EngineError> {
        let layout = &self.layouts[&bucket];
        // SAFETY: the device's step buffer has room for every bucket's image; steps follow each other on the stream.
        unsafe {
            self.staging
                .copy(&self.stream, self.forward.workspace.step, |image| {
                    plan.write(layout, image)
                })
        }?;
        Ok(())
    }

    /// Waits for the step and reads the chosen tokens.
    fn sampled(&mut self, rows: usize) -> Result<Vec<u32>, EngineError> {
        let bytes = rows * size_of::<u32>();
        if bytes > 0 {
            let source = self.forward.workspace.sampled;
            // SAFETY: the pinned image holds the largest number of output rows and is not read before `synchronize`.
            unsafe {
                self.stream
                    .copy_dtoh_async(self.sampled_image.as_mut_ptr(), source, bytes)
            }?;
        }
        self.stream.synchronize()?;
        let image = self.sampled_image.as_slice()[..bytes].chunks_exact(4);
        Ok(image
            .map(|id| u32::from_ne_bytes([id[0], id[1], id[2], id[3]]))
            .collect())
    }

    /// The step has completed and nothing is rolled back: pages that no later query sees are free for the next one.
    fn settle(&mut self, step: StepId, draft: &Draft) -> Result<(), EngineError> {
        self.sequences.complete_step(step)?;
        for (sequence, tokens) in &draft.settles {
            self.sequences.settle(*sequence, *tokens)?;
        }
        Ok(())
    }
}

fn table_update(update: kv::TableUpdate) -> TableUpdate {
    TableUpdate {
        group: update.group,
        seq_slot: update.seq_slot,
        column: update.column,
        entry: update.entry,
    }
}

/// A sequence, or `None` where it must wait for others.
pub(super) fn admitted(
    outcome: Result<SequenceId, KvError>,
) -> Result<Option<SequenceId>, EngineError> {
    match outcome {
        Ok(sequence) => Ok(Some(sequence)),
        Err(KvError::NoRoomNow { .. } | KvError::NoSlot { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
