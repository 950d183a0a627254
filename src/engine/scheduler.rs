//! Which tokens run in the next step: iteration-level scheduling on the host, without a driver call.

use std::collections::VecDeque;

use super::request::{FinishReason, Request, RequestId};

/// A request that holds no pages: not started yet, or preempted.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub id: RequestId,
    pub request: Request,
    /// What it had generated when it was preempted.
    pub generated: Vec<u32>,
    /// Longest it may grow, prompt included, in tokens that have keys in the pools.
    pub max_tokens: u32,
    /// Further completions, to be started when the prompt has run.
    pub completions: Vec<RequestId>,
}

impl Waiting {
    /// Tokens to be promised pages at admission: all that are known, and `ahead` more to generate.
    pub fn promise(&self, ahead: u32) -> u32 {
        let known = self.request.prompt.len() + self.generated.len();
        self.max_tokens.min((known as u32).saturating_add(ahead))
    }
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
    /// Tokens of the prompt at which its prefill stops to be cached, ascending.
    pub stops: VecDeque<usize>,
    /// Tokens that pages are promised for.
    pub promised: u32,
    pub max_new_tokens: u32,
    pub max_tokens: u32,
    pub stop_tokens: Vec<u32>,
    /// Further completions, to be started when the prompt has run.
    pub completions: Vec<RequestId>,
}

impl<S> Running<S> {
    pub fn new(waiting: Waiting, sequence: S, promised: u32) -> Running<S> {
        let Waiting {
            id,
            request,
            generated,
            max_tokens,
            completions,
        } = waiting;
        let prompt_len = request.prompt.len();
        let mut tokens = request.prompt;
        tokens.extend(generated);
        Running {
            id,
            sequence,
            tokens,
            prompt_len,
            settled: 0,
            stops: VecDeque::new(),
            promised,
            max_new_tokens: request.max_new_tokens,
            max_tokens,
            stop_tokens: request.stop_tokens,
            completions,
        }
    }

    /// The request as it stands, to start again.
    pub fn into_waiting(self) -> Waiting {
        let mut prompt = self.tokens;
        let generated = prompt.split_off(self.prompt_len);
        let request = Request {
            prompt,
            max_new_tokens: self.max_new_tokens,
            stop_tokens: self.stop_tokens,
        };
        Waiting {
            id: self.id,
            request,
            generated,
            max_tokens: self.max_tokens,
            completions: self.completions,
        }
    }

    /// The request on pages of a cached prefix, and with boundaries at which it is to be cached itself.
    pub fn on_prefix(mut self, cached_tokens: u32, stops: &[u32]) -> Running<S> {
        self.settled = cached_tokens as usize;
        self.stops = stops.iter().map(|stop| *stop as usize).collect();
        self
    }

    /// Takes the boundary that the request stands at, if it is one.
    pub fn take_stop(&mut self) -> Option<usize> {
        let stop = self
            .stops
            .front()
            .copied()
            .filter(|stop| *stop == self.settled)?;
        self.stops.pop_front();
        Some(stop)
    }

    /// Whether prompt tokens are still to be run.
    pub fn prefilling(&self) -> bool {
        self.settled < self.prompt_len
    }

    /// Notes that `num_tokens` more tokens have been run and that `next` was chosen after the last of them.
    ///
    /// Generated tokens of a preempted request are run again one by one, as they were the first time, and not as part of its
    /// prompt: the other phase's kernels add in another order, and a request's result must not depend on its neighbours. What
    /// is chosen after them is known already.
    pub fn advance(
        &mut self,
        num_tokens: usize,
        next: Option<u32>,
    ) -> Option<(u32, Option<FinishReason>)> {
        self.settled += num_tokens;
        if self.settled < self.tokens.len() {
            return None;
        }
        next.map(|token| (token, self.push(token)))
    }

    /// Takes the next generated token; says whether it was the last.
    fn push(&mut self, token: u32) -> Option<FinishReason> {
        self.tokens.push(token);
        finish_reason(self, token)
    }
}

/// Whether a request that stands where `running` does ends with `token` as its newest.
pub(super) fn finish_reason<S>(running: &Running<S>, token: u32) -> Option<FinishReason> {
    let generated = running.tokens.len() - running.prompt_len;
    if running.stop_tokens.contains(&token) {
        Some(FinishReason::Stop)
    } else if generated >= running.max_new_tokens as usize {
        Some(FinishReason::Length)
    } else if running.settled >= running.max_tokens as usize {
        Some(FinishReason::Capacity)
    } else {
        None
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

    /// The next prefill step: prompts in admission order, packed up to the largest bucket. A prompt is cut where the bucket is full
    /// and where it is to be cached.
    pub fn chunks(&self) -> Vec<Chunk> {
        let mut room = self.max_chunk_tokens;
        let mut chunks = Vec::new();
        for (index, running) in self
            .running
            .iter()
            .enumerate()
            .filter(|(_, running)| running.prefilling())
        {
            if room == 0 {
                break;
            }
            let end = running.stops.front().copied();
            let end = end.unwrap_or(running.prompt_len);
            let num_tokens = room.min(end - running.settled);
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
            generated: Vec::new(),
            max_tokens: 1000,
            completions: Vec::new(),
        }
    }

    fn running(prompt: usize, max_new_tokens: u32) -> Running<()> {
        Running::new(waiting(0, prompt, max_new_tokens), (), 1000)
    }

    #[test]
    fn prompts_are_packed_and_cut_at_the_bucket() {
        let mut scheduler = Scheduler::new(100);
        scheduler.running = [30, 150, 5].map(|prompt| running(prompt, 4)).into();
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
        scheduler.running[0].advance(30, Some(9));
        scheduler.running[1].advance(70, None);
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
        let mut request = running(3, 2);
        assert_eq!(request.advance(3, Some(5)), Some((5, None)));
        assert_eq!(
            request.advance(1, Some(6)),
            Some((6, Some(FinishReason::Length)))
        );
        assert_eq!(
            running(3, 2).advance(3, Some(1)),
            Some((1, Some(FinishReason::Stop)))
        );
        let mut request = Running {
            max_tokens: 3,
            ..running(3, 9)
        };
        assert_eq!(
            request.advance(3, Some(5)),
            Some((5, Some(FinishReason::Capacity)))
        );
    }

    #[test]
    fn a_preempted_request_runs_its_tokens_again_and_goes_on() {
        let mut request = running(3, 9);
        request.advance(3, Some(5));
        request.advance(1, Some(6));
        let waiting = request.into_waiting();
        assert_eq!(
            (waiting.request.prompt.len(), &waiting.generated[..]),
            (3, &[5, 6][..])
        );
        assert_eq!((waiting.promise(10), waiting.promise(u32::MAX)), (15, 1000));
        let mut again = Running::new(waiting, (), 15);
        assert!(again.prefilling());
        assert_eq!(again.advance(3, Some(5)), None, "the first token is known");
        assert_eq!(
            (again.prefilling(), again.tokens[again.settled]),
            (false, 5)
        );
        assert_eq!(again.advance(1, Some(6)), None);
        assert_eq!(again.tokens[again.settled], 6);
        assert_eq!(
            again.advance(1, Some(8)),
            Some((8, None)),
            "the next one is new"
        );
    }
}
