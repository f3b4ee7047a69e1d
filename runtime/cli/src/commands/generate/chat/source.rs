//! The model of a chat, and how it was loaded.

use std::path::{Path, PathBuf};

use crate::args::LoadArgs;
use crate::error::CliError;
use crate::load;
use crate::models::{self, Input};

#[derive(Clone)]
pub struct Source {
    /// The model as the user named it.
    pub model: PathBuf,
    pub artifact: PathBuf,
    /// Context of the conversation, in tokens; `None`: the library's choice.
    pub context_tokens: Option<u32>,
}

impl Source {
    /// Finds the artifact of `model`, which is fetched or compiled if it has to be; nothing is loaded.
    ///
    /// # Errors
    /// When `model` is not a model, or has no chat template.
    pub fn of(model: &Path, context_tokens: Option<u32>, load: &LoadArgs) -> Result<Source, CliError> {
        let artifact = models::artifact(model, load, Input::Text)?;
        if load::read(&artifact, |view| view.tokenizer.chat_template.is_none())? {
            return Err(CliError::at(model, "the model has no chat template, expected one that can chat"));
        }
        Ok(Source { model: model.to_owned(), artifact, context_tokens })
    }
}

/// Whether `/load NAME` may mean a model: a path, or a name in a registry or on the hub.
pub fn may_be_model(name: &str) -> bool {
    let ends = [".unicorn", ".gguf"].iter().any(|extension| name.ends_with(extension));
    ends || name.contains(['/', ':']) || Path::new(name).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_name_is_a_conversation() {
        for model in ["smol.unicorn", "./smol", "hf:o/n", "oci://r/n:t", "b.gguf", "/"] {
            assert!(may_be_model(model), "{model}");
        }
        assert!(!may_be_model("islands") && !may_be_model("v1.2"));
    }
}
