//! Which tokens run in the next step: iteration-level scheduling on the host, without a driver call.

use std::collections::VecDeque;

use super::request::{FinishReason, Request, RequestId};

/// A request that holds no pages: not started yet.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub id: RequestId,
    pub request: Request,
    /// Longest it may grow, prompt included, in tokens that have keys in the pools.
    pub max_tokens: u32,
}

/// A request that holds pages.
#[derive(Clone, Debug)]
pub(super) struct Running<S> {
    pub id: RequestId,
    pub sequence: S,
    /// Prompt, then generated tokens.
    pub tokens: Vec<u32>,
    pub prompt_len: usize,
    /// Tokens whose keys are in the pools.
    pub settled: usize,
    pub max_new_tokens: u32,
    pub max_tokens: u32,
    pub stop_tokens: Vec<u32>,
}

impl<S> Running<S> {
    pub fn new(waiting: Waiting, sequence: S) -> Running<S> {
        let Waiting {
            id,
            request,
            max_tokens,
        } = waiting;
        Running {
            id,
            sequence,
            prompt_len: request.prompt.len(),
            tokens: request.prompt,
            settled: 0,
            max_new_tokens: request.max_new_tokens,
            max_tokens,
            stop_tokens: request.stop_tokens,
        }
    }

    /// The request as it stands, to start again: what was generated is prompt now.
    pub fn into_waiting(self) -> Waiting {
        let generated = (self.tokens.len() - self.prompt_len) as u32;
        let request = Request {
            prompt: self.tokens,
            max_new_tokens: self.max_new_tokens - generated,
            stop_tokens: self.stop_tokens,
        };
        Waiting {
            id: self.id,
            request,
            max_tokens: self.max_tokens,
        }
    }

    /// Whether prompt tokens are still to be run.
    pub fn prefilling(&self) -> bool {
        self.settled < self.prompt_len
    }

    /// Takes the next generated token; says whether it was the last.
    pub fn push(&mut self, token: u32) -> Option<FinishReason> {
        self.tokens.push(token);
        let generated = self.tokens.len() - self.prompt_len;
        if self.stop_tokens.contains(&token) {
            Some(FinishReason::Stop)
        } else if generated >= self.max_new_tokens as usize {
            Some(FinishReason::Length)
        } else if self.settled >= self.max_tokens as usize {
            Some(FinishReason::Capacity)
        } else {
            None
        }
    }
}

/// Requests in arrival order, and those that hold pages.
#[derive(Debug)]
pub(super) struct Scheduler<S> {
    pub waiting: VecDeque<Waiting>,
    pub running: Vec<Running<S>>,
    max_chunk_tokens: usize,
}

/// Prompt tokens of one running request that go into the next prefill step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Index into [`Scheduler::running`].
    pub index: usize,
    pub num_tokens: usize,
}

impl<S> Scheduler<S> {
    pub fn new(max_chunk_tokens: u32) -> Scheduler<S> {
        Scheduler {
            waiting: VecDeque::new(),
            running: Vec::new(),
            max_chunk_tokens: max_chunk_tokens as usize,
        }
    }

    pub fn has_work(&self) -> bool {
        !self.waiting.is_empty() || !self.running.is_empty()
    }

    /// The next prefill step: prompts in admission order, packed up to the largest bucket. A prompt is cut where the bucket is full.
    pub fn chunks(&self) -> Vec<Chunk> {
        let mut room = self.max_chunk_tokens;
        let mut chunks = Vec::new();
        for (index, running) in self
            .running
            .iter()
            .enumerate()
            .filter(|(_, running)| running.prefilling())
        {
            let num_tokens = room.min(running.prompt_len - running.settled);
            if num_tokens == 0 {
                break;
            }
            chunks.push(Chunk { index, num_tokens });
            room -= num_tokens;
        }
        chunks
    }

    /// Indices of the requests that decode in the next step.
    pub fn decoding(&self) -> Vec<usize> {
        (0..self.running.len())
            .filter(|index| !self.running[*index].prefilling())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(id: u64, prompt: usize, max_new_tokens: u32) -> Waiting {
        let request = Request {
            prompt: vec![7; prompt],
            max_new_tokens,
            stop_tokens: vec![1],
        };
        Waiting {
            id: RequestId(id),
            request,
            max_tokens: 1000,
        }
    }

    #[test]
    fn prompts_are_packed_and_cut_at_the_bucket() {
        let mut scheduler = Scheduler::new(100);
        for (id, prompt) in [(0, 30), (1, 150), (2, 5)] {
            scheduler
                .running
                .push(Running::new(waiting(id, prompt, 4), ()));
        }
        assert_eq!(
            scheduler.chunks(),
            [
                Chunk {
                    index: 0,
                    num_tokens: 30
                },
                Chunk {
                    index: 1,
                    num_tokens: 70
                }
            ]
        );
        scheduler.running[0].settled = 30;
        scheduler.running[1].settled = 70;
        assert_eq!(
            scheduler.chunks(),
            [
                Chunk {
                    index: 1,
                    num_tokens: 80
                },
                Chunk {
                    index: 2,
                    num_tokens: 5
                }
            ]
        );
        assert_eq!(scheduler.decoding(), [0]);
    }

    #[test]
    fn a_request_ends_by_stop_token_length_or_capacity() {
        let mut running = Running::new(waiting(0, 3, 2), ());
        running.settled = 3;
        assert_eq!(running.push(5), None);
        assert_eq!(running.push(6), Some(FinishReason::Length));
        let mut running = Running::new(waiting(0, 3, 2), ());
        assert_eq!(running.push(1), Some(FinishReason::Stop));
        let mut running = Running::new(
            Waiting {
                max_tokens: 3,
                ..waiting(0, 3, 9)
            },
            (),
        );
        running.settled = 3;
        assert_eq!(running.push(5), Some(FinishReason::Capacity));
    }
}
