//! Capturing and warming the pass of every bucket, before anything is known about the pools.
//!
//! A warm-up step runs one dummy token whose only key lies in the null pages, so that everything the driver loads or allocates lazily is
//! there before the leftover is measured.

use std::collections::BTreeMap;

use crate::driver::Stream;
use crate::kernels::{self, DecodeRowInput, Phase, PrefillSegment, TableUpdate};
use crate::kv::PageEntry;

use super::forward::Forward;
use super::moves::Moves;
use super::runner::Captured;
use super::staging::Staging;
use super::step::{Bucket, GroupWork, StepLayout, StepPlan};
use super::{EngineError, Progress};

/// What warm-up steps need.
pub(super) struct WarmUp<'a> {
    pub stream: &'a Stream,
    pub forward: &'a Forward,
    pub moves: &'a Moves,
    pub staging: &'a mut Staging,
    /// The null page of each layer group.
    pub null_pages: Vec<PageEntry>,
    /// The window of each layer group.
    pub windows: Vec<Option<u32>>,
    /// Whether the dummy token is computed; without weights no step has a token.
    pub computes: bool,
}

impl WarmUp<'_> {
    /// Captures, uploads and runs a graph of every bucket, the largest first: what it makes the driver allocate serves the others.
    pub fn capture(
        &mut self,
        layouts: &[&StepLayout],
        progress: &mut dyn FnMut(Progress),
    ) -> Result<BTreeMap<Bucket, Captured>, EngineError> {
        let mut graphs = BTreeMap::new();
        let total = layouts.len() as u32;
        for (done, layout) in (1..).zip(layouts.iter().rev()) {
            let captured =
                self.capture_one(|warm_up| warm_up.forward.issue(warm_up.stream, layout))?;
            // Without anything to compute, the largest of each phase launches every kernel there is.
            let phase = layout.bucket.phase;
            if self.computes || graphs.keys().all(|bucket: &Bucket| bucket.phase != phase) {
                self.copy_in(layout)?;
                captured.exec.launch(self.stream)?;
                self.stream.synchronize()?;
            }
            graphs.insert(layout.bucket, captured);
            progress(Progress::Capture { done, total });
        }
        Ok(graphs)
    }

    /// Captures, uploads and runs the graph of table entries and page copies, with nothing to do.
    pub fn capture_moves(&mut self) -> Result<Captured, EngineError> {
        let captured =
            self.capture_one(|warm_up| warm_up.moves.issue(warm_up.stream, warm_up.forward))?;
        self.copy_no_moves()?;
        captured.exec.launch(self.stream)?;
        self.stream.synchronize()?;
        Ok(captured)
    }

    /// As [`WarmUp::capture_moves`], without a graph.
    pub fn issue_moves(&mut self) -> Result<(), EngineError> {
        self.copy_no_moves()?;
        self.moves.issue(self.stream, self.forward)?;
        Ok(self.stream.synchronize()?)
    }

    /// Runs the largest bucket of each phase without graphs.
    pub fn eagerly(&mut self, layouts: &[&StepLayout]) -> Result<(), EngineError> {
        for phase in [Phase::Prefill, Phase::Decode] {
            let mut layouts = layouts.iter();
            if let Some(layout) = layouts.rfind(|layout| layout.bucket.phase == phase) {
                self.copy_in(layout)?;
                self.forward.issue(self.stream, layout)?;
                self.stream.synchronize()?;
            }
        }
        Ok(())
    }

    fn capture_one(
        &self,
        issue: impl FnOnce(&Self) -> Result<(), EngineError>,
    ) -> Result<Captured, EngineError> {
        self.stream.begin_capture()?;
        let issued = issue(self);
        // The capture is ended whatever happened in it; a failed pass is the error that counts.
        let graph = self.stream.end_capture();
        if graph.is_err() && self.stream.is_capturing().unwrap_or(false) {
            // A stream left in capture would refuse everything that gives memory back.
            drop(self.stream.end_capture());
        }
        issued?;
        let graph = graph?;
        let exec = graph.instantiate()?;
        exec.upload(self.stream)?;
        Ok(Captured { exec, graph })
    }

    fn copy_in(&mut self, layout: &StepLayout) -> Result<(), EngineError> {
        let step = if self.computes {
            self.dummy_step(layout.bucket.phase)
        } else {
            self.empty_step(layout.bucket.phase)
        };
        let destination = self.forward.workspace.step;
        // SAFETY: the device's step buffer has room for every bucket's image; steps follow each other on the stream.
        unsafe {
            self.staging
                .copy(self.stream, destination, |image| step.write(layout, image))
        }?;
        Ok(())
    }

    fn copy_no_moves(&mut self) -> Result<(), EngineError> {
        let destination = self.forward.workspace.moves;
        // SAFETY: the moves buffer has room for the image; launches that read it come before or after it on the stream.
        unsafe {
            self.staging
                .copy(self.stream, destination, Moves::write_nothing)
        }?;
        Ok(())
    }

    /// Token 0 at position 0 of slot 0, whose first page is the null page of each group.
    fn empty_step(&self, phase: Phase) -> StepPlan {
        let nothing = |_: &Option<u32>| match phase {
            Phase::Decode => GroupWork::Decode {
                items: Vec::new(),
                rows: Vec::new(),
            },
            Phase::Prefill => GroupWork::Prefill { items: Vec::new() },
        };
        StepPlan {
            token_ids: Vec::new(),
            positions: Vec::new(),
            slots: vec![Vec::new(); self.windows.len()],
            gather_rows: Vec::new(),
            work: self.windows.iter().map(nothing).collect(),
            updates: Vec::new(),
            num_seqs: 0,
        }
    }

    fn dummy_step(&self, phase: Phase) -> StepPlan {
        let update = |(group, entry): (usize, &PageEntry)| TableUpdate {
            group: group as u32,
            seq_slot: 0,
            column: 0,
            entry: entry.0,
        };
        let work = |window: &Option<u32>| match phase {
            Phase::Decode => {
                let (mut items, mut rows) = (Vec::new(), Vec::new());
                kernels::plan_decode(
                    &[DecodeRowInput {
                        seq_slot: 0,
                        kv_len: 1,
                    }],
                    *window,
                    &mut items,
                    &mut rows,
                );
                GroupWork::Decode { items, rows }
            }
            Phase::Prefill => {
                let mut items = Vec::new();
                let segment = PrefillSegment {
                    seq_slot: 0,
                    row0: 0,
                    num_rows: 1,
                    pos0: 0,
                };
                kernels::plan_prefill(&[segment], &mut items);
                GroupWork::Prefill { items }
            }
        };
        StepPlan {
            token_ids: vec![0],
            positions: vec![0],
            slots: self
                .null_pages
                .iter()
                .map(|entry| vec![u64::from(entry.0) << 32])
                .collect(),
            gather_rows: vec![0],
            work: self.windows.iter().map(work).collect(),
            updates: self.null_pages.iter().enumerate().map(update).collect(),
            num_seqs: 1,
        }
    }
}
