//! Answers of a chat, or of one prompt, that have to match something.

use std::fmt;
use std::sync::Arc;

use unicorn_text::unicorn_runtime::{Model, Sampling};
use unicorn_text::{AnswerConstraint, ReplyFormat, TokenSampler, Tokenizer};

use crate::constraint::{Constraint, Start};
use crate::error::StructureError;
use crate::grammar::Structure;
use crate::sampler::ReplySampler;
use crate::vocabulary::Vocabulary;

/// What each answer of a chat has to match, behind its reasoning.
pub struct AnswerStructure {
    /// Constraint of an answer that has not begun.
    constraint: Constraint,
}

impl AnswerStructure {
    /// Answers of `model` that match `structure`. Blocks for as long as the vocabulary takes to read, tenths of a second.
    ///
    /// # Errors
    /// For a structure that is wrong or too large, and a model without a stop token.
    pub fn new(structure: &Structure, model: &Model, tokenizer: &Tokenizer) -> Result<AnswerStructure, StructureError> {
        let stop_tokens = &model.tokenizer_section().stop_ids;
        let vocabulary = Arc::new(Vocabulary::new(tokenizer, model.meta().model.vocab_size, stop_tokens));
        let constraint = Constraint::whole(vocabulary, structure, Start::at_once())?;
        Ok(AnswerStructure { constraint })
    }
}

impl fmt::Debug for AnswerStructure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswerStructure").finish_non_exhaustive()
    }
}

impl AnswerConstraint for AnswerStructure {
    fn sampler(&self, sampling: &Sampling, format: &ReplyFormat) -> Box<dyn TokenSampler> {
        let constraint = self.constraint.clone().behind(Start::without_choice(format));
        Box::new(ReplySampler::constrained(sampling, constraint))
    }
}
