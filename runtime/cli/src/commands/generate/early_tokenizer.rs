//! The tokenizer, parsed while the model is loaded: both take tenths of a second, and loading leaves cores idle while it opens the
//! device.

use std::path::Path;
use std::thread::{self, JoinHandle};

use unicorn_artifact::TokenizerSection;
use unicorn_runtime::Model;
use unicorn_text::{TextError, Tokenizer};

use crate::load;

/// A tokenizer that a thread parses.
pub struct EarlyTokenizer {
    /// `None`: the system started no thread.
    parsing: Option<JoinHandle<Option<Parsed>>>,
}

struct Parsed {
    /// What was parsed: the artifact may be replaced before it is loaded.
    section: TokenizerSection,
    tokenizer: Result<Tokenizer, TextError>,
}

impl EarlyTokenizer {
    /// Begins to parse the tokenizer of `artifact`. Whatever is wrong with the file is left to the load.
    pub fn begin(artifact: &Path) -> EarlyTokenizer {
        let artifact = artifact.to_owned();
        let parse = move || {
            let section = load::read(&artifact, |view| view.tokenizer.clone()).ok()?;
            Some(Parsed { tokenizer: Tokenizer::new(&section), section })
        };
        EarlyTokenizer { parsing: thread::Builder::new().name("tokenizer".into()).spawn(parse).ok() }
    }

    /// The tokenizer of `model`.
    ///
    /// # Errors
    /// As [`Tokenizer::new`].
    pub fn of(self, model: &Model) -> Result<Tokenizer, TextError> {
        let section = model.tokenizer_section();
        let parsed = self.parsing.and_then(|thread| thread.join().ok().flatten());
        match parsed.filter(|parsed| parsed.section == *section) {
            Some(parsed) => parsed.tokenizer,
            None => Tokenizer::new(section),
        }
    }
}
