//! Capturing and warming the pass of every bucket, before anything is known about the pools.
//!
//! A warm-up step runs one dummy token whose only key lies in the null pages, so that everything the driver loads or allocates lazily is
//! there before the leftover is measured.

use std::collections::BTreeMap;

use crate::driver::{PinnedBuffer, Stream};
use crate::kernels::{self, DecodeRowInput, Phase, PrefillSegment, TableUpdate};
use crate::kv::PageEntry;

use super::forward::Forward;
use super::runner::Captured;
use super::step::{Bucket, GroupWork, StepLayout, StepPlan};
use super::{EngineError, Progress};

/// What warm-up steps need.
pub(super) struct WarmUp<'a> {
    pub stream: &'a Stream,
    pub forward: &'a Forward,
    /// Host image of the step buffer.
    pub image: &'a mut PinnedBuffer,
    /// The null page of each layer group.
    pub null_pages: Vec<PageEntry>,
    /// The window of each layer group.
    pub windows: Vec<Option<u32>>,
}

impl WarmUp<'_> {
    /// Captures, uploads and runs a graph of every bucket, the largest first: what it makes the driver allocate serves the others.
    pub fn capture(
        &mut self,
        layouts: &BTreeMap<Bucket, StepLayout>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<BTreeMap<Bucket, Captured>, EngineError> {
        let mut graphs = BTreeMap::new();
        let total = layouts.len() as u32;
        for (done, (bucket, layout)) in (1..).zip(layouts.iter().rev()) {
            let captured = self.capture_one(layout)?;
            self.copy_in(layout)?;
            captured.exec.launch(self.stream)?;
            self.stream.synchronize()?;
            graphs.insert(*bucket, captured);
            progress(Progress::Capture { done, total });
        }
        Ok(graphs)
    }

    /// Runs the largest bucket of each phase without graphs.
    pub fn eagerly(&mut self, layouts: &BTreeMap<Bucket, StepLayout>) -> Result<(), EngineError> {
        for phase in [Phase::Prefill, Phase::Decode] {
            if let Some(layout) = layouts
                .values()
                .rfind(|layout| layout.bucket.phase == phase)
            {
                self.copy_in(layout)?;
                self.forward.issue(self.stream, layout)?;
                self.stream.synchronize()?;
            }
        }
        Ok(())
    }

    fn capture_one(&self, layout: &StepLayout) -> Result<Captured, EngineError> {
        self.stream.begin_capture()?;
        let issued = self.forward.issue(self.stream, layout);
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
        let used_bytes = self
            .dummy_step(layout.bucket.phase)
            .write(layout, self.image.as_mut_slice());
        // SAFETY: the device's step buffer has room for every bucket's image, and the caller waits before the next copy.
        unsafe {
            self.stream.copy_htod_async(
                self.forward.workspace.step,
                self.image.as_ptr(),
                used_bytes,
            )
        }?;
        Ok(())
    }

    /// Token 0 at position 0 of slot 0, whose first page is the null page of each group.
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
