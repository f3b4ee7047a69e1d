//! What receives the tokens of a request, and decides how they are chosen.

use std::ops::ControlFlow;

use crate::error::RunError;
use crate::session::model_state::Shared;
use crate::step::masks::FillMask;

/// Receives the tokens of a request. Its methods are called by [`crate::scheduler::Scheduler::tick`] between two steps, with nothing locked: they
/// delay the next step, and may call everything.
pub trait TokenReceiver {
    /// The prompt is about to be fed, to a session whose cache has the first `cached_tokens` of it.
    fn begin(&mut self, cached_tokens: u32);

    /// The cache has the first `n_tokens` of the prompt. Is called after each step that fed some of it, before the first token; not for
    /// tokens that are computed again because pages ran out.
    fn fed(&mut self, _n_tokens: u32) {}

    /// Receives the next token. `Break` ends the request; no method is called afterwards.
    fn token(&mut self, token: u32) -> ControlFlow<()>;

    /// Whether [`TokenReceiver::sample`] samples the next token, on the host, instead of the device. It may change with each token. No
    /// steps run ahead while such a request decodes, which costs all requests time.
    fn samples_on_host(&self) -> bool {
        false
    }

    /// Whether the device may sample only some tokens next, which [`TokenReceiver::mask`] finds. It may change with each token, which costs all
    /// requests the step that runs ahead. Where a draft is verified, and for artifacts without [`crate::Model::takes_masks`],
    /// [`TokenReceiver::sample`] samples instead.
    fn is_masked(&self) -> bool {
        false
    }

    /// Whether [`TokenReceiver::is_masked`] may hold for some token of the request. Where the model has recurrent state, which a step that ran ahead
    /// has changed, all tokens of such a request have a mask.
    fn may_be_masked(&self) -> bool {
        self.is_masked()
    }

    /// What finds the tokens that may be sampled next. It runs on some thread while the device computes the logits, with the model locked: it
    /// may not use the model. The device waits for it, where it takes longer than a step. Where a step did not run, this is called again. Where no token is allowed, one is received that has no
    /// meaning.
    fn mask(&mut self) -> FillMask<'_> {
        Box::new(|_| {})
    }

    /// Samples the token that follows `tokens` by its logits, one for each token of the vocabulary. It is then received like others.
    fn sample(&mut self, _tokens: &[u32], _logits: &mut [f32]) -> u32 {
        0
    }

    /// Whether [`TokenReceiver::hidden_row`] takes the prompt's hidden rows, and no token. Such a prompt is fed from its first token on, by
    /// a session that is cleared afterwards.
    fn reads_hidden_rows(&self) -> bool {
        false
    }

    /// The next token's hidden state, see [`crate::Session::feed_with_hidden_rows`]. After the last one, [`End::Fed`] follows; a preempted request
    /// begins again with [`TokenReceiver::begin`].
    fn hidden_row(&mut self, _row: &[f32]) {}

    /// Whether [`TokenReceiver::prompt_logits`] takes the logits of the prompt. Such a prompt is fed from its first token on, and
    /// [`TokenReceiver::sample`] samples the token that follows.
    fn reads_prompt_logits(&self) -> bool {
        false
    }

    /// The logits of the token that follows `position` of the prompt, one for each token of the vocabulary. A request that is preempted before
    /// its first token begins again with [`TokenReceiver::begin`].
    fn prompt_logits(&mut self, _position: u32, _logits: &[f32]) {}

    /// Adds to the counts of its drafts: with the tokens of one that is about to be verified, and with each accepted token, just before
    /// that is received.
    fn drafted(&mut self, _proposed: u32, _accepted: u32) {}

    /// Whether the tokens are not needed any more. Requests without a token yet are dropped then, and no method is called
    /// afterwards.
    fn is_closed(&self) -> bool;

    /// The request ended, although [`TokenReceiver::token`] did not end it.
    fn end(&mut self, why: End<'_>);
}

/// Why a request ended early.
#[derive(Debug)]
pub enum End<'e> {
    /// The sequence is as long as the model was loaded for.
    ContextFull,
    /// The prompt was fed to a receiver of hidden rows.
    Fed,
    /// A step failed, or the prompt was refused.
    Failed(&'e RunError),
}

/// Where the tokens of a model's receivers are sampled.
#[derive(Clone, Copy)]
pub struct SamplingPlaces {
    takes_masks: bool,
    has_state: bool,
}

impl SamplingPlaces {
    /// Those of this model.
    pub fn of(shared: &Shared) -> SamplingPlaces {
        SamplingPlaces { takes_masks: shared.takes_masks, has_state: shared.has_state() }
    }

    /// Whether the host samples a receiver's next token, by its logits.
    pub fn samples_on_host(self, receiver: &impl TokenReceiver) -> bool {
        receiver.samples_on_host() || !self.takes_masks && self.has_mask(receiver)
    }

    /// Whether the device samples a receiver's next token, among some.
    pub fn is_masked(self, receiver: &impl TokenReceiver) -> bool {
        self.has_mask(receiver) && !self.samples_on_host(receiver)
    }

    fn has_mask(self, receiver: &impl TokenReceiver) -> bool {
        if self.has_state { receiver.may_be_masked() } else { receiver.is_masked() }
    }
}
