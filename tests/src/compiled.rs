//! Models compiled in this process, most of them random.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use unicorn_compiler::{CompileOptions, Form, Source, Target, compile};

pub use unicorn_compiler::Silent;

use crate::tiny_model::TinyModel;

/// An artifact, and beside it the folder of the random model that it was made from; both are deleted when the value is dropped.
pub struct Compiled {
    folder: TempDir,
}

impl Compiled {
    /// Writes `model` and compiles it.
    ///
    /// # Panics
    /// If the compiler refuses it.
    pub fn of(model: &TinyModel, options: &CompileOptions) -> Compiled {
        let compiled = Compiled { folder: tempfile::tempdir().expect("a temporary folder") };
        let model_folder = compiled.folder.path().join("model");
        model.write(&model_folder);
        compiled.make(&model_folder, options)
    }

    /// Compiles the model in `folder`.
    ///
    /// # Panics
    /// If the compiler refuses it.
    pub fn of_folder(folder: &Path, options: &CompileOptions) -> Compiled {
        Compiled { folder: tempfile::tempdir().expect("a temporary folder") }.make(folder, options)
    }

    fn make(self, model: &Path, options: &CompileOptions) -> Compiled {
        compile(Source::Model(model), &self.artifact_path(), options, &mut Silent)
            .unwrap_or_else(|error| panic!("{} does not compile: {error}", model.display()));
        self
    }

    pub fn artifact(&self) -> Vec<u8> {
        std::fs::read(self.artifact_path()).expect("the artifact was just written")
    }

    /// A text form that `options.emit` requested.
    pub fn text(&self, form: &str) -> String {
        std::fs::read_to_string(unicorn_compiler::beside(&self.artifact_path(), form))
            .expect("the form was just written")
    }

    pub fn artifact_path(&self) -> PathBuf {
        self.folder.path().join("model.unicorn")
    }
}

/// The default options for these targets.
pub fn options(targets: Vec<Target>, emit: Vec<Form>) -> CompileOptions {
    with(CompileOptions::default(), |options| {
        options.targets = targets;
        options.emit = emit;
    })
}

/// `options` with a change.
pub fn with(mut options: CompileOptions, change: impl FnOnce(&mut CompileOptions)) -> CompileOptions {
    change(&mut options);
    options
}

/// A config.json for [`Source::Synthetic`]: a Llama of eight layers, whose weights are many more bytes than a test would write.
pub fn eight_layers(vocab_size: usize, hidden_size: usize) -> String {
    format!(
        r#"{{
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": {vocab_size}, "hidden_size": {hidden_size},
    "intermediate_size": 8192, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 16,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "max_position_embeddings": 512,
    "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": 2
}}"#
    )
}
