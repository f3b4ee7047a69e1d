//! Calls in the place of an answer:
//!
//! ```text
//! free (reasoning) ──► the answer may begin ──► it begins: the answer's matcher alone
//!                          └── a token of what opens a call ──► the rest of that ──► calls
//! ```
//!
//! In harmony, the channel decides, which no matcher covers: whichever of both applies first is it.

use llguidance::toktrie::SimpleVob;

use super::Constraint;
use crate::vocabulary::Vocabulary;

/// Calls that a reply may have instead of its answer.
#[derive(Clone)]
pub(super) struct AlternativeCalls {
    calls: Constraint,
    /// Texts that calls begin with; in harmony, none.
    openers: &'static [&'static str],
    /// The beginning of one of them.
    begun: Vec<u8>,
    /// Its tokens.
    tokens: Vec<u32>,
    is_chosen: bool,
}

impl AlternativeCalls {
    pub(super) fn new(calls: Constraint, openers: &'static [&'static str]) -> AlternativeCalls {
        AlternativeCalls { calls, openers, begun: Vec::new(), tokens: Vec::new(), is_chosen: false }
    }

    /// Whether the reply has begun with a call, or with a part of what opens one.
    pub(super) fn has_begun(&self) -> bool {
        self.is_chosen || !self.begun.is_empty()
    }

    /// Whether some tokens may not follow, of a reply that has begun so.
    pub(super) fn applies(&self) -> bool {
        !self.is_chosen || self.calls.applies()
    }

    /// Tokens that may follow, of a reply that has begun so; `None`: all.
    pub(super) fn allowed(&mut self, vocabulary: &Vocabulary) -> Result<Option<SimpleVob>, String> {
        match self.is_chosen {
            true => self.calls.allowed(),
            false => {
                let mut mask = SimpleVob::alloc(vocabulary.len());
                self.permit(vocabulary, &mut mask);
                Ok(Some(mask))
            }
        }
    }

    /// Adds the tokens with which a call may begin, or its opener go on.
    pub(super) fn permit(&self, vocabulary: &Vocabulary, mask: &mut SimpleVob) {
        let rests = self.openers.iter().filter_map(|opener| opener.as_bytes().strip_prefix(self.begun.as_slice()));
        vocabulary.permit_beginnings(&rests.collect::<Vec<_>>(), mask);
    }

    /// Advances by a token of a reply that begins, or has begun, with a call.
    pub(super) fn observe(&mut self, token: u32, bytes: &[u8]) -> Result<(), String> {
        if self.is_chosen {
            return self.calls.observe(token);
        }
        self.begun.extend_from_slice(bytes);
        self.tokens.push(token);
        self.is_chosen = self.openers.iter().any(|opener| self.begun.starts_with(opener.as_bytes()));
        match self.is_chosen {
            true => self.tokens.iter().try_for_each(|&token| self.calls.observe(token)),
            false => Ok(()),
        }
    }

    /// In harmony: advances by a token before it is decided which of both the reply is.
    pub(super) fn look_for_call(&mut self, token: u32) -> Result<(), String> {
        if self.openers.is_empty() {
            self.calls.observe(token)?;
            self.is_chosen = self.calls.applies();
        }
        Ok(())
    }
}
