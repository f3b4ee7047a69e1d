//! The draft: a smaller model that is compiled with the same options and packed into the artifact of the model whose tokens it
//! proposes.

use std::path::{Path, PathBuf};

use unicorn_artifact::fit;

use crate::error::{CompileError, Result};
use crate::import::{self, Checkpoint};
use crate::npu::NpuOptions;
use crate::options::CompileOptions;
use crate::progress::Stage;
use crate::{Planned, Source, Stages, design, planned_context};

/// A draft as it will be in the artifact.
pub(crate) struct PlannedDraft {
    /// Its Hugging Face folder or GGUF file.
    path: PathBuf,
    pub(crate) planned: Planned,
    /// The options of the model, as far as they concern the draft.
    pub(crate) options: CompileOptions,
}

impl PlannedDraft {
    /// Plans the draft at `path` for `model`, for the whole machine: it is placed before the model.
    ///
    /// # Errors
    /// When their tokenizers differ; errors of [`crate::plan`].
    pub(crate) fn of(
        path: &Path,
        model: &Checkpoint,
        options: &CompileOptions,
        stages: &mut Stages,
    ) -> Result<PlannedDraft> {
        stages.begin(Stage::Import, 1)?;
        let mut checkpoint = import::open(Source::Model(path))?;
        // It continues text; where there are images, the model is alone.
        checkpoint.leave_out_vision();
        checkpoint.leave_out_predictor();
        stages.end(1)?;
        check_vocabulary(path, &checkpoint, model)?;
        let context_tokens = planned_context(options.context_tokens, model.config.max_positions)?;
        let options = CompileOptions {
            context_tokens: Some(context_tokens.min(checkpoint.config.max_positions as u32)),
            adapters: Vec::new(),
            projector: None,
            npu: options.npu.as_ref().map(NpuOptions::of_draft),
            draft: None,
            emit: Vec::new(),
            ..options.clone()
        };
        let planned = design(&checkpoint.config, &options, stages)?.of(checkpoint, None);
        Ok(PlannedDraft { path: path.to_owned(), planned, options })
    }

    pub(crate) fn source(&self) -> Source<'_> {
        Source::Model(&self.path)
    }

    pub(crate) fn as_draft(&self) -> fit::Draft<'_> {
        fit::Draft { plan: self.planned.plan(), max_positions: self.planned.checkpoint.config.max_positions as u32 }
    }

    /// The options of the model, for the memory that the draft leaves.
    pub(crate) fn options_of_model(&self, options: &CompileOptions) -> CompileOptions {
        CompileOptions { machine: fit::beside(&options.machine, self.planned.plan()), ..options.clone() }
    }
}

/// A draft's tokens are the model's: by number, and so by their texts.
fn check_vocabulary(path: &Path, draft: &Checkpoint, model: &Checkpoint) -> Result<()> {
    let (found, expected) = (draft.config.vocab_size, model.config.vocab_size);
    if found != expected {
        let what = format!("draft has a vocabulary of {found} tokens, expected that of the model, {expected} tokens");
        return Err(CompileError::malformed(path, what));
    }
    match draft.tokenizer.tokenizer_json == model.tokenizer.tokenizer_json {
        true => Ok(()),
        false => Err(CompileError::malformed(path, "draft has another tokenizer than the model, expected the same")),
    }
}
