//! Requests with a session and without one, and what the state machine sees of them.

use unicorn_artifact::step::is_image_row;

use super::machine::{Place, Placed, Running};
use super::receiver::TokenReceiver;
use crate::memory::kv_pages::BlockTable;
use crate::session::session::Session;
use crate::session::speculation::speculator::Speculator;
use crate::step::sampling::Sampling;

/// A request without a session.
pub struct Waiting<R> {
    pub place: Place,
    pub prompt: Vec<u32>,
    pub sampling: Sampling,
    pub receiver: R,
    /// Tokens that were sampled for it before it was preempted; `None`: it was not.
    pub resumes: Option<u32>,
}

/// A request with a session.
pub struct Active<R> {
    pub place: Place,
    pub session: Session,
    /// Whether the session's cache was cut to what it shares with the prompt.
    pub has_begun: bool,
    /// See [`Waiting::resumes`].
    pub resumes: Option<u32>,
    /// Lengths at which it is kept as a sequence that has ended, for later prompts; in order.
    pub beginnings: Vec<u32>,
    /// Tokens that are still to be appended: the rest of the prompt, or the newest token.
    pub rest: Vec<u32>,
    pub sampling: Sampling,
    pub receiver: R,
    /// `None`: it does not speculate.
    pub speculator: Option<Speculator>,
}

impl<R: TokenReceiver> Waiting<R> {
    /// The prompt whose beginning a session may have in its cache already.
    pub fn reused(&self) -> &[u32] {
        if self.receiver.reads_hidden_rows() { &[] } else { &self.prompt }
    }
}

impl<R> Placed for Waiting<R> {
    fn place(&self) -> Place {
        self.place
    }
}

impl<R> Placed for Active<R> {
    fn place(&self) -> Place {
        self.place
    }
}

impl<R: TokenReceiver> Running for Active<R> {
    fn has_begun(&self) -> bool {
        self.has_begun
    }

    fn n_cached(&self) -> u32 {
        self.session.len_tokens()
    }

    fn n_left(&self) -> usize {
        self.rest.len()
    }

    fn reads_rows(&self) -> bool {
        self.receiver.reads_hidden_rows() || self.receiver.reads_prompt_logits() && self.resumes.is_none()
    }

    fn shares_rest_of(&self, first: &Active<R>) -> bool {
        let cached = first.session.tokens();
        let page_tokens = first.session.sequence().page_tokens() as usize;
        let behind = self.rest.strip_prefix(cached).unwrap_or_default();
        first.rest.iter().zip(behind).take_while(|(one, other)| one == other).count() >= page_tokens
    }

    fn n_text(&self, n_tokens: usize) -> usize {
        self.rest[..n_tokens].iter().take_while(|&&token| !is_image_row(token)).count()
    }

    fn to_checkpoint(&self) -> Option<usize> {
        let has_state = self.session.tables().iter().any(BlockTable::is_state);
        let lens = self.beginnings.iter().filter(|_| has_state);
        lens.map(|len| len.saturating_sub(self.session.len_tokens()) as usize).find(|&n_tokens| n_tokens > 0)
    }
}
