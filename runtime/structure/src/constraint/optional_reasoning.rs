//! Reasoning that a model may write or leave out before an answer that has to match something: what it begins with may be written
//! although the answer cannot begin so.

use llguidance::toktrie::SimpleVob;
use unicorn_text::{ReasoningMarks, ReplyFormat};

use crate::vocabulary::Vocabulary;

/// The beginning of such reasoning.
#[derive(Clone)]
pub(super) struct OptionalReasoning {
    marks: ReasoningMarks,
    /// Bytes of the opener that were written.
    n_begun: usize,
}

impl OptionalReasoning {
    /// `None`: the reply to `format` does not reason, does so already, or follows reasoning.
    pub(super) fn of(format: &ReplyFormat) -> Option<OptionalReasoning> {
        let is_optional = !format.harmony && format.thinks == Some(false) && !format.has_thought;
        is_optional.then_some(OptionalReasoning { marks: format.marks, n_begun: 0 })
    }

    pub(super) fn has_begun(&self) -> bool {
        self.n_begun > 0
    }

    /// Adds the tokens with which the opener begins or goes on.
    pub(super) fn permit(&self, vocabulary: &Vocabulary, mask: &mut SimpleVob) {
        vocabulary.permit_beginnings(&[self.rest()], mask);
    }

    /// Whether a token of these bytes belongs to the opener.
    pub(super) fn takes(&mut self, bytes: &[u8]) -> bool {
        let is_taken = !bytes.is_empty() && (self.rest().starts_with(bytes) || bytes.starts_with(self.rest()));
        self.n_begun += if is_taken { bytes.len() } else { 0 };
        is_taken
    }

    /// What ends the reasoning, once its opener is written.
    pub(super) fn closer_behind_opener(&self) -> Option<&'static str> {
        (self.n_begun >= self.marks.opener().len()).then_some(self.marks.closer())
    }

    fn rest(&self) -> &'static [u8] {
        &self.marks.opener().as_bytes()[self.n_begun..]
    }
}
