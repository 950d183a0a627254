//! Several completions of one prompt: sequences that fork, and share the pages of what they have in common.
//!
//! The prompt is computed once. A fork holds the same pages, which are charged once; the page that both would write next is
//! copied at the start of the step in which the first of them does. Where there is no room for a fork, it waits as any request does, and is
//! computed from its prompt again, with the same result.

use crate::kv::SequenceId;

use super::runner::{Runner, admitted};
use super::scheduler::{Running, Waiting, finish_reason};
use super::serve::Engine;
use super::{EngineError, Event, Request, RequestId};

impl Runner {
    /// A sequence that continues from all tokens of `parent`; `None` while others hold too much.
    fn fork(
        &mut self,
        parent: SequenceId,
        max_tokens: u32,
    ) -> Result<Option<SequenceId>, EngineError> {
        let forked = self.sequences.fork(parent, max_tokens, &mut self.updates);
        self.note_updates();
        admitted(forked)
    }
}

impl Engine {
    /// Queues a request whose prompt is continued `completions` times. The k-th completion begins with the k-th most likely token, the
    /// lower id first among equals, and goes on greedily; the first is what [`Engine::submit`] gives. Returns one id a completion. Until the prompt
    /// has run, cancelling the first cancels all.
    ///
    /// # Errors
    /// As [`Engine::submit`]; or there are 0 completions, or more than the vocabulary has tokens.
    pub fn submit_completions(
        &mut self,
        request: Request,
        completions: u32,
    ) -> Result<Vec<RequestId>, EngineError> {
        let vocab_size = self.config().vocab_size;
        if !(1..=vocab_size).contains(&completions) {
            return Err(EngineError::Option {
                option: "completions",
                found: completions.into(),
                expected: format!("1 to the model's vocabulary, {vocab_size}"),
            });
        }
        let first = self.submit(request)?;
        let others = (0..u64::from(completions) - 1).map(|place| RequestId(first.0 + 1 + place));
        self.next_request += u64::from(completions) - 1;
        if let Some(waiting) = self.scheduler.waiting.back_mut() {
            waiting.completions = others.clone().collect();
        }
        Ok(std::iter::once(first).chain(others).collect())
    }

    /// Starts another completion from where a request stands, with `token` in place of the token that was generated last. It shares what the
    /// two have in common, and generates up to the same limits. No event is sent for `token`.
    ///
    /// # Errors
    /// [`EngineError::NothingToFork`] for a request that has generated nothing yet or has ended, [`EngineError::UnknownToken`],
    /// or an earlier step failed.
    pub fn fork(&mut self, request: RequestId, token: u32) -> Result<RequestId, EngineError> {
        self.check_usable()?;
        let vocab_size = self.config().vocab_size;
        let id = RequestId(self.next_request);
        let unknown = |position| EngineError::UnknownToken {
            token,
            position,
            vocab_size,
        };
        let running = &self.scheduler.running;
        let running = running
            .iter()
            .position(|running| running.id == request && running.tokens.len() > running.prompt_len);
        if let Some(index) = running {
            if token >= vocab_size {
                return Err(unknown(self.scheduler.running[index].tokens.len() - 1));
            }
            let place = self.scheduler.waiting.len();
            self.branch(index, id, token, place)?;
        } else {
            let mut waiting = self.scheduler.waiting.iter();
            let waiting =
                waiting.find(|waiting| waiting.id == request && !waiting.generated.is_empty());
            let Some(waiting) = waiting else {
                return Err(EngineError::NothingToFork { request });
            };
            let (generated, prompt) = (waiting.generated.len(), waiting.request.prompt.len());
            if token >= vocab_size {
                return Err(unknown(prompt + generated - 1));
            }
            let mut fork = Waiting {
                id,
                ..waiting.clone()
            };
            fork.generated[generated - 1] = token;
            self.scheduler.waiting.push_back(fork);
        }
        self.next_request += 1;
        Ok(id)
    }

    /// Starts the further completions of a request whose prompt has just run; its own first token is the last of its tokens.
    pub(super) fn start_completions(
        &mut self,
        index: usize,
        output_row: usize,
        events: &mut Vec<Event>,
    ) -> Result<(), EngineError> {
        let running = &mut self.scheduler.running[index];
        let ids = std::mem::take(&mut running.completions);
        let (Some(&chosen), false) = (running.tokens.last(), ids.is_empty()) else {
            return Ok(());
        };
        let logits = self.runner.logits(output_row)?;
        let mut place = 0;
        for (id, token) in ids.iter().zip(runners_up(&logits, chosen, ids.len())) {
            let running = &self.scheduler.running[index];
            let finished = finish_reason(running, token);
            events.push(Event {
                request: *id,
                token,
                finished,
            });
            if finished.is_none() && !self.branch(index, *id, token, place)? {
                place += 1;
            }
        }
        Ok(())
    }

    /// A request that differs from a running one in its last token: beside it if there is room, else waiting at `place`.
    fn branch(
        &mut self,
        index: usize,
        id: RequestId,
        token: u32,
        place: usize,
    ) -> Result<bool, EngineError> {
        let parent = &self.scheduler.running[index];
        let mut waiting = parent.clone().into_waiting();
        (waiting.id, waiting.completions) = (id, Vec::new());
        if let Some(last) = waiting.generated.last_mut() {
            *last = token;
        }
        // One that is being replayed after preemption has not run all that the two share.
        let level = parent.settled + 1 == parent.tokens.len();
        let (sequence, settled) = (parent.sequence, parent.settled);
        if level && self.scheduler.running.len() < self.runner.limits.max_seqs as usize {
            let promised = waiting.promise(self.admit_new_tokens);
            if let Some(sequence) = self.runner.fork(sequence, promised)? {
                let mut running = Running::new(waiting, sequence, promised);
                running.settled = settled;
                self.scheduler.running.push(running);
                return Ok(true);
            }
        }
        self.scheduler.waiting.insert(place, waiting);
        Ok(false)
    }
}

/// The `count` most likely tokens but `chosen`, the lower id first among equals.
fn runners_up(logits: &[f32], chosen: u32, count: usize) -> Vec<u32> {
    let mut tokens: Vec<u32> = (0..logits.len() as u32)
        .filter(|token| *token != chosen)
        .collect();
    let order = |a: &u32, b: &u32| {
        let likely = logits[*b as usize].total_cmp(&logits[*a as usize]);
        likely.then(a.cmp(b))
    };
    if count < tokens.len() {
        tokens.select_nth_unstable_by(count, order);
        tokens.truncate(count);
    }
    tokens.sort_unstable_by(order);
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runners_up_are_in_order_and_leave_the_chosen_out() {
        let logits = [1.0, 3.0, 3.0, -2.0, 2.0];
        assert_eq!(runners_up(&logits, 1, 3), [2, 4, 0]);
        assert_eq!(runners_up(&logits, 1, 9), [2, 4, 0, 3]);
        assert!(runners_up(&logits, 1, 0).is_empty());
    }
}
