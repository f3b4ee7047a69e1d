//! One choice of a request while it is generated: the receiver of its tokens, which turns them into events for the response.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use unicorn_structure::ReplySampler;
use unicorn_text::unicorn_runtime::scheduler::{End, TokenReceiver};
use unicorn_text::unicorn_runtime::{FillMask, HostSampled};
use unicorn_text::{EndReason, OutputText, Piece, TextError, TokenSampler};

use crate::admission::QueuePlace;
use crate::api::error::ApiError;
use crate::choice_end::{ChoiceEnd, Times};
use crate::events::{Event, Events};
use crate::line_limits::LineLimits;
use crate::metrics::Metrics;
use crate::prompt_probabilities::PromptProbabilities;

/// Receives the tokens of one sequence. The other end of `events` is dropped when the client has disconnected.
pub(crate) struct Choice {
    index: u32,
    events: Events,
    output: OutputText,
    lines: LineLimits,
    metrics: Arc<Metrics>,
    /// Tokens of the prompt that were not in the cache.
    prompt_tokens: u32,
    begun: Instant,
    first_token: Option<Instant>,
    /// Number of tokens that speculation proposed, and number of those that were accepted.
    drafted: u32,
    accepted: u32,
    /// Text that waits for the client to read what was sent.
    text: String,
    /// Tokens since the last text that was sent.
    tokens: Vec<u32>,
    /// Probabilities of those tokens, if they were requested.
    probabilities: Vec<HostSampled>,
    /// `None`: those of the prompt were not requested.
    prompt: Option<PromptProbabilities>,
    /// `None`: the device samples, any token.
    sampler: Option<Box<ReplySampler>>,
    /// Why no token could be chosen.
    failure: Option<String>,
    place: QueuePlace,
}

impl Choice {
    /// Choice `index` of a request, whose prompt has `prompt_tokens`.
    pub(crate) fn new(
        index: u32,
        prompt_tokens: u32,
        events: Events,
        (output, lines): (OutputText, LineLimits),
        (sampler, prompt): (Option<Box<ReplySampler>>, Option<PromptProbabilities>),
        metrics: Arc<Metrics>,
        place: QueuePlace,
    ) -> Choice {
        Choice {
            index,
            events,
            output,
            lines,
            metrics,
            prompt_tokens,
            begun: Instant::now(),
            first_token: None,
            drafted: 0,
            accepted: 0,
            text: String::new(),
            tokens: Vec::new(),
            probabilities: Vec::new(),
            prompt,
            sampler,
            failure: None,
            place,
        }
    }

    /// Sends the events of the next piece; breaks when it is the last or the client has disconnected. The thread runs the steps of
    /// all requests: a decoder that panics ends this one.
    fn send_piece(&mut self, next: impl FnOnce(&mut OutputText) -> Result<Piece, TextError>) -> ControlFlow<()> {
        // After a panic the output is not used again.
        let Ok(piece) = catch_unwind(AssertUnwindSafe(|| next(&mut self.output))) else {
            self.send(Event::Failed(ApiError::failed("tokenizer of the artifact panicked while it decoded a token")));
            return ControlFlow::Break(());
        };
        match piece {
            Ok(Piece { mut text, mut end }) => {
                let decode = self.first_token.map_or(Duration::ZERO, |first| first.elapsed());
                if let Some(length) = self.lines.end_of(&text, decode) {
                    end = end.filter(|_| length == text.len()).or(Some(EndReason::MaxTokens));
                    text.truncate(length);
                }
                self.text += &text;
                // The text that it brought to its end is not its own.
                let stop_token = self.tokens.pop_if(|_| end == Some(EndReason::StopToken));
                let its_probability = stop_token.and_then(|_| self.probabilities.pop());
                if !self.text.is_empty() && (end.is_some() || self.events.have_room()) {
                    let text = std::mem::take(&mut self.text);
                    let tokens = std::mem::take(&mut self.tokens);
                    let probabilities = std::mem::take(&mut self.probabilities);
                    let times = self.times();
                    self.send(Event::Text { choice: self.index, text, tokens, probabilities, times });
                }
                self.tokens.extend(stop_token);
                self.probabilities.extend(its_probability);
                if let Some(reason) = end {
                    let end = self.end_of(reason);
                    self.metrics.count(self.prompt_tokens, &end);
                    self.send(Event::Ended { choice: self.index, end });
                }
                if end.is_some() || self.events.are_closed() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            }
            Err(error) => {
                self.send(Event::Failed(ApiError::failed(error.to_string())));
                ControlFlow::Break(())
            }
        }
    }

    fn end_of(&mut self, reason: EndReason) -> ChoiceEnd {
        ChoiceEnd {
            reason,
            stop_string: self.output.stopped_by().map(str::to_owned),
            tokens: self.output.n_tokens(),
            rest: std::mem::take(&mut self.tokens),
            probabilities: std::mem::take(&mut self.probabilities),
            prompt_probabilities: self.prompt.as_mut().map(PromptProbabilities::take).unwrap_or_default(),
            drafted: self.drafted,
            accepted: self.accepted,
            times: self.times(),
        }
    }

    fn times(&self) -> Times {
        match self.first_token {
            Some(first) => Times { prompt: first - self.begun, decode: first.elapsed() },
            None => Times { prompt: self.begun.elapsed(), decode: Duration::ZERO },
        }
    }

    /// Sends the beginning, the last text or the end, for which room is reserved, or an event for which there is room.
    fn send(&self, event: Event) {
        self.events.send(event);
    }

    /// Sends an event without which a response is whole, too, if there is room.
    fn send_progress(&self, event: Event) {
        if self.events.have_room() {
            self.events.send(event);
        }
    }
}

const PANICKED: &str = "what may follow was not found out: a panic";

impl TokenReceiver for Choice {
    fn begin(&mut self, cached_tokens: u32) {
        self.begun = Instant::now();
        self.prompt.iter_mut().for_each(PromptProbabilities::begin);
        self.prompt_tokens -= cached_tokens;
        self.metrics.count_cached(cached_tokens);
        self.send(Event::Started { choice: self.index, cached_tokens, waited: self.place.taken_for() });
    }

    fn fed(&mut self, n_tokens: u32) {
        self.send_progress(Event::Fed { choice: self.index, fed_tokens: n_tokens, times: self.times() });
    }

    fn token(&mut self, token: u32) -> ControlFlow<()> {
        self.metrics.health.works();
        self.first_token.get_or_insert_with(Instant::now);
        self.tokens.push(token);
        if let Some(sampler) = &mut self.sampler
            && self.failure.is_none()
        {
            let observed = catch_unwind(AssertUnwindSafe(|| sampler.observe(token)));
            self.failure = observed.unwrap_or_else(|_| Err(PANICKED.to_owned())).err();
        }
        if let Some(failure) = self.failure.take() {
            self.send(Event::Failed(ApiError::failed(format!("structure of the reply: {failure}"))));
            return ControlFlow::Break(());
        }
        self.send_piece(|output| output.push(token))
    }

    fn samples_on_host(&self) -> bool {
        self.sampler.as_ref().is_some_and(|sampler| sampler.needs_logits())
    }

    fn is_masked(&self) -> bool {
        self.may_be_masked() && self.sampler.as_ref().is_some_and(|sampler| sampler.applies())
    }

    fn may_be_masked(&self) -> bool {
        self.sampler.as_ref().is_some_and(|sampler| sampler.is_masked())
    }

    fn mask(&mut self) -> FillMask<'_> {
        let Choice { sampler, failure, .. } = self;
        Box::new(move |allowed| {
            let Some(sampler) = sampler else { return };
            let masked = catch_unwind(AssertUnwindSafe(|| sampler.mask(allowed)));
            *failure = masked.unwrap_or_else(|_| Err(PANICKED.to_owned())).err();
        })
    }

    fn sample(&mut self, tokens: &[u32], logits: &mut [f32]) -> u32 {
        let Some(sampler) = &mut self.sampler else { return 0 };
        // The thread runs the steps of all requests: a grammar that panics ends this one.
        let chosen = catch_unwind(AssertUnwindSafe(|| sampler.sample_with_logprobs(tokens, logits)));
        match chosen.unwrap_or_else(|_| Err(PANICKED.to_owned())) {
            Ok(chosen) => {
                let token = chosen.token;
                if chosen.logprob.is_some() {
                    self.probabilities.push(chosen);
                }
                token
            }
            Err(failure) => {
                self.failure = Some(failure);
                0
            }
        }
    }

    fn reads_prompt_logits(&self) -> bool {
        self.prompt.is_some()
    }

    fn prompt_logits(&mut self, position: u32, logits: &[f32]) {
        self.prompt.iter_mut().for_each(|prompt| prompt.add(position, logits));
    }

    fn drafted(&mut self, proposed: u32, accepted: u32) {
        self.drafted += proposed;
        self.accepted += accepted;
        self.metrics.count_drafted(proposed, accepted);
    }

    fn is_closed(&self) -> bool {
        self.events.are_closed()
    }

    fn end(&mut self, why: End<'_>) {
        match why {
            End::ContextFull => drop(self.send_piece(|output| output.end(EndReason::ContextFull))),
            // A choice reads no hidden rows.
            End::Fed => {}
            End::Failed(error) => {
                self.metrics.health.fails(error);
                self.send(Event::Failed(ApiError::failed(error.to_string())));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;
    use tokio::sync::mpsc::Receiver;
    use unicorn_text::{StopConditions, Tokenizer, TokenizerSection};

    use super::*;

    /// The decoder cuts a space from both ends of each token: of a token that is one space, a part that begins behind its end.
    const PANICS_AT_1: &str = r#"{
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Strip", "content": " ", "start": 1, "stop": 1},
        "model": {"type": "BPE", "vocab": {"a": 0, " ": 1}, "merges": []}
    }"#;

    /// A choice and what its client receives.
    fn choice(conditions: StopConditions) -> (Choice, Receiver<Event>) {
        let section = TokenizerSection { tokenizer_json: PANICS_AT_1.into(), ..TokenizerSection::default() };
        let tokenizer = Tokenizer::new(&section).unwrap();
        let place = QueuePlace::new(Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap());
        let (events, received) = Events::channel(1);
        let output = OutputText::new(&tokenizer, &[], conditions);
        let choice = Choice::new(0, 1, events, (output, LineLimits::default()), (None, None), Arc::default(), place);
        (choice, received)
    }

    #[test]
    fn what_waits_for_a_slow_client_is_bounded_and_whole() {
        const TOKENS: u32 = 10_000;
        let mut conditions = StopConditions::default();
        conditions.max_tokens = Some(TOKENS);
        let (mut choice, mut received) = choice(conditions);
        choice.begin(0);
        choice.fed(1);
        for number in 1..=TOKENS {
            assert_eq!(choice.token(0).is_continue(), number < TOKENS);
        }
        assert!(received.len() < 80, "{} events wait", received.len());
        let (mut text, mut tokens, mut has_ended) = (String::new(), 0, false);
        while let Ok(event) = received.try_recv() {
            match event {
                Event::Text { text: piece, tokens: of_piece, .. } => {
                    text += &piece;
                    tokens += of_piece.len();
                }
                Event::Ended { end, .. } => {
                    tokens += end.rest.len();
                    has_ended = true;
                }
                Event::Started { .. } | Event::Fed { .. } => {}
                Event::Failed(error) => panic!("{error:?}"),
            }
        }
        assert_eq!((text.len(), tokens, has_ended), (TOKENS as usize, TOKENS as usize, true));
    }

    #[test]
    fn a_decoder_that_panics_ends_its_request_alone() {
        let (mut choice, mut received) = choice(StopConditions::default());
        assert!(choice.token(0).is_continue());
        let Ok(Event::Text { choice: 0, text, tokens, .. }) = received.try_recv() else { panic!("expected a text") };
        assert_eq!((&*text, &tokens[..]), ("a", &[0][..]));
        assert!(choice.token(1).is_break());
        let Ok(Event::Failed(error)) = received.try_recv() else { panic!("expected an error") };
        assert!(error.status == 500 && error.message.contains("panicked"), "{error:?}");
    }
}
