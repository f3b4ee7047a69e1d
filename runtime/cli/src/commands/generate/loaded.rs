//! A model that is loaded to generate text, with what is created once for all texts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

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
    /// When its load began, or the start that found it loaded.
    pub started: Instant,
    artifact: PathBuf,
    context_tokens: Option<u32>,
}

impl Loaded {
    /// Loads for sequences of `context_tokens`; `None`: the library's choice.
    ///
    /// # Errors
    /// When the model, its tokenizer or its draft model cannot be loaded.
    pub fn open(artifact: &Path, context_tokens: Option<u32>, args: &RunArgs) -> Result<Loaded, CliError> {
        let started = Instant::now();
        let tokenizer = EarlyTokenizer::begin(artifact);
        let draft = packed_draft_use(&args.speculation);
        let model = load_to_generate(artifact, &args.load, context_tokens, args.lazy, draft)?;
        let tokenizer = tokenizer.of(&model)?;
        let speculation = load_speculation(&args.speculation, artifact, &args.load, &model)?;
        Ok(Loaded { model, tokenizer, speculation, started, artifact: artifact.to_owned(), context_tokens })
    }

    /// Whether it was loaded from `artifact` for sequences of `context_tokens`.
    pub fn is_of(&self, artifact: &Path, context_tokens: Option<u32>) -> bool {
        self.artifact == artifact && self.context_tokens == context_tokens
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

/// The model that a command, or a chat, has at the moment.
///
/// # Panics
/// While none is loaded: a chat that changes to another model asks for none meanwhile.
pub fn current(loaded: &Option<Loaded>) -> &Loaded {
    loaded.as_ref().expect("a model is loaded")
}
