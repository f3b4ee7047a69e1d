//! One request while it is generated: the receiver of its tokens, which ends it and sends each token to its stream.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use dynamo_backend_common::AsyncEngineContext;
use tokio::sync::mpsc::UnboundedSender;
use unicorn_runtime::scheduler::{End, TokenReceiver};
use unicorn_runtime::{FillMask, HostSampled, HostSampler};
use unicorn_structure::ReplySampler;
use unicorn_text::TokenSampler;

/// What a stream gets. Not bounded: there is one event a token, and the context bounds those.
#[derive(Debug)]
pub(crate) enum Event {
    /// The cache has the first tokens of the prompt.
    Begun { cached_tokens: u32 },
    /// The next token; with the reason, if it is the last.
    Token { token: u32, sampled: Option<HostSampled>, end: Option<EndReason> },
    /// The sequence is as long as the context.
    ContextFull,
    /// A step failed, or no token may follow.
    Failed(String),
}

/// Why a token is the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// It is a stop token.
    Stop,
    /// There are as many tokens as were requested.
    MaxTokens,
}

/// When a sequence ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Limits {
    /// Tokens that end it.
    pub stop_tokens: Vec<u32>,
    /// Tokens before which no stop token is sampled.
    pub min_tokens: u32,
    /// `None`: as many as the context holds.
    pub max_tokens: Option<u32>,
}

/// Receives the tokens of one request. The other end of `events` is dropped when nobody reads the stream any more.
pub(crate) struct Sequence {
    events: UnboundedSender<Event>,
    context: Arc<dyn AsyncEngineContext>,
    limits: Limits,
    /// `None`: the device samples, as soon as there are `min_tokens`.
    sampler: Option<Box<ReplySampler>>,
    /// Samples the tokens before which there may be no stop token, where there is no other sampler.
    plain: HostSampler,
    n_tokens: u32,
    /// The next token with its probability, if that was requested.
    sampled: Option<HostSampled>,
    /// Why no token could be sampled.
    failure: Option<String>,
}

impl Sequence {
    pub(crate) fn new(
        events: UnboundedSender<Event>,
        context: Arc<dyn AsyncEngineContext>,
        limits: Limits,
        sampler: Option<Box<ReplySampler>>,
        plain: HostSampler,
    ) -> Sequence {
        Sequence { events, context, limits, sampler, plain, n_tokens: 0, sampled: None, failure: None }
    }

    fn may_not_stop(&self) -> bool {
        self.n_tokens < self.limits.min_tokens
    }

    /// A stream that is gone needs no event.
    fn send(&self, event: Event) {
        let _ = self.events.send(event);
    }

    fn sample_next(&mut self, tokens: &[u32], logits: &mut [f32]) -> Result<u32, String> {
        if self.may_not_stop() {
            self.limits.stop_tokens.iter().for_each(|&token| logits[token as usize] = f32::NEG_INFINITY);
        }
        let sampled = match &mut self.sampler {
            Some(sampler) => sampler.sample_with_logprobs(tokens, logits)?,
            None => self.plain.sample(self.n_tokens, tokens, logits, None).ok_or("no logit is a number")?,
        };
        let token = sampled.token;
        self.sampled = sampled.logprob.is_some().then_some(sampled);
        Ok(token)
    }
}

impl TokenReceiver for Sequence {
    fn begin(&mut self, cached_tokens: u32) {
        self.send(Event::Begun { cached_tokens });
    }

    fn token(&mut self, token: u32) -> ControlFlow<()> {
        if let Some(sampler) = self.sampler.as_mut().filter(|_| self.failure.is_none()) {
            self.failure = guarded(|| sampler.observe(token)).err();
        }
        if let Some(failure) = self.failure.take() {
            self.send(Event::Failed(failure));
            return ControlFlow::Break(());
        }
        self.n_tokens += 1;
        let is_stop = self.n_tokens > self.limits.min_tokens && self.limits.stop_tokens.contains(&token);
        let end = match is_stop {
            true => Some(EndReason::Stop),
            false => (Some(self.n_tokens) == self.limits.max_tokens).then_some(EndReason::MaxTokens),
        };
        let sampled = self.sampled.take();
        self.send(Event::Token { token, sampled, end });
        if end.is_some() || self.is_closed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn samples_on_host(&self) -> bool {
        self.may_not_stop() || self.sampler.as_ref().is_some_and(|sampler| sampler.needs_logits())
    }

    fn is_masked(&self) -> bool {
        self.sampler.as_ref().is_some_and(|sampler| sampler.is_masked())
    }

    fn mask(&mut self) -> FillMask<'_> {
        let Sequence { sampler, failure, .. } = self;
        Box::new(move |allowed| {
            *failure = guarded(|| sampler.as_mut().map_or(Ok(()), |sampler| sampler.mask(allowed))).err();
        })
    }

    fn sample(&mut self, tokens: &[u32], logits: &mut [f32]) -> u32 {
        guarded(|| self.sample_next(tokens, logits)).unwrap_or_else(|failure| {
            self.failure = Some(failure);
            0
        })
    }

    fn is_closed(&self) -> bool {
        self.context.is_stopped() || self.events.is_closed()
    }

    fn end(&mut self, why: End<'_>) {
        match why {
            End::ContextFull => self.send(Event::ContextFull),
            // A sequence reads no hidden rows.
            End::Fed => {}
            End::Failed(error) => self.send(Event::Failed(error.to_string())),
        }
    }
}

/// The thread runs the steps of all requests: a grammar that panics ends its own. What it left behind is not used again.
fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("what may follow was not found out: a panic".into()))
}

#[cfg(test)]
mod tests {
    use dynamo_backend_common::testing::mock_context;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
    use unicorn_runtime::{HostSampling, Sampling};

    use super::*;

    fn sequence(limits: Limits) -> (Sequence, UnboundedReceiver<Event>, Arc<dyn AsyncEngineContext>) {
        let ((events, received), context) = (unbounded_channel(), mock_context());
        let plain = HostSampler::new(Sampling::default(), HostSampling::default());
        (Sequence::new(events, context.clone(), limits, None, plain), received, context)
    }

    #[test]
    fn a_cancelled_request_has_no_further_step() {
        let (mut cancelled, _events, context) = sequence(Limits::default());
        assert!(cancelled.token(1).is_continue());
        context.stop_generating();
        // One that waits is dropped, the step that runs is the last.
        assert!(cancelled.is_closed());
        assert!(cancelled.token(2).is_break());
    }

    #[test]
    fn a_stream_that_is_dropped_has_no_further_step() {
        let (mut left, events, _context) = sequence(Limits::default());
        assert!(left.token(1).is_continue());
        drop(events);
        assert!(left.is_closed() && left.token(2).is_break());
    }

    #[test]
    fn stop_tokens_are_sampled_only_behind_the_least_number_of_tokens() {
        let (mut short, mut events, _context) =
            sequence(Limits { stop_tokens: vec![2], min_tokens: 1, max_tokens: Some(9) });
        let logits = [0.0, 1.0, 5.0];
        assert!(short.samples_on_host());
        assert_eq!(short.sample(&[], &mut logits.clone()), 1);
        assert!(short.token(1).is_continue());
        assert!(!short.samples_on_host());
        assert_eq!(short.sample(&[1], &mut logits.clone()), 2);
        assert!(short.token(2).is_break());
        let ends = std::iter::from_fn(|| events.try_recv().ok()).map(|event| match event {
            Event::Token { end, .. } => end,
            other => panic!("{other:?}"),
        });
        assert_eq!(ends.collect::<Vec<_>>(), [None, Some(EndReason::Stop)]);
    }

    #[test]
    fn a_panic_ends_its_request_alone() {
        let failure = guarded::<()>(|| panic!("a grammar")).unwrap_err();
        assert!(failure.contains("panic"), "{failure}");
    }
}
