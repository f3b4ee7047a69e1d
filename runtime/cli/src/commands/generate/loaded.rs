//! A model that is loaded to generate text, with what is created once for all texts.

use std::path::Path;
use std::sync::Arc;

use unicorn_runtime::{Model, Speculation};
use unicorn_structure::{AnswerStructure, Structure};
use unicorn_text::{AnswerConstraint, Tokenizer};

use super::early_tokenizer::EarlyTokenizer;
use crate::args::RunArgs;
use crate::error::CliError;
use crate::load::{load_speculation, load_to_generate, packed_draft_use};

pub struct Loaded {
    pub model: Model,
    pub tokenizer: Tokenizer,
    pub speculation: Option<Speculation>,
}

impl Loaded {
    /// Loads for sequences of `context_tokens`; `None`: the library's choice.
    ///
    /// # Errors
    /// When the model, its tokenizer or its draft model cannot be loaded.
    pub fn open(artifact: &Path, context_tokens: Option<u32>, args: &RunArgs) -> Result<Loaded, CliError> {
        let tokenizer = EarlyTokenizer::begin(artifact);
        let draft = packed_draft_use(&args.speculation);
        let model = load_to_generate(artifact, &args.load, context_tokens, args.lazy, draft)?;
        let tokenizer = tokenizer.of(&model)?;
        let speculation = load_speculation(&args.speculation, artifact, &args.load, &model)?;
        Ok(Loaded { model, tokenizer, speculation })
    }

    /// The constraint that makes answers match `structure`.
    ///
    /// # Errors
    /// For a structure that is wrong or too large.
    pub fn constraint(&self, structure: &Structure) -> Result<Arc<dyn AnswerConstraint>, CliError> {
        let constraint = AnswerStructure::new(structure, &self.model, &self.tokenizer);
        Ok(Arc::new(constraint.map_err(|error| CliError::new(format!("structure of the answer: {error}")))?))
    }
}
