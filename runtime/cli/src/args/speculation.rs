//! Speculation options, with llama-server's names.

use std::path::{Path, PathBuf};

use clap::{ValueEnum, value_parser};

use unicorn_runtime::{RunError, Speculation};

use super::SPECULATION;

/// How tokens are proposed before the model samples them.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = SPECULATION)]
pub struct SpeculationArgs {
    /// Propose tokens that the model then verifies, several in one step: ngram-simple proposes what followed the last tokens where they
    /// stood before; mtp: those of the model's own head for them (multi-token prediction); none: no tokens, also not by a draft or a
    /// head in the artifact
    #[arg(long, value_name = "TYPE", value_enum, hide_short_help = true)]
    pub spec_type: Option<SpeculationType>,
    /// Artifact, GGUF file or folder of a smaller model with the same tokenizer, whose continuations the model verifies; none: no such
    /// model [default: the draft that is packed into the artifact, or the model's own head for drafts, if there is one]
    #[arg(
        long,
        aliases = ["draft", "spec-draft-model"],
        value_name = "MODEL",
        conflicts_with = "spec_type",
        hide_short_help = true
    )]
    pub model_draft: Option<PathBuf>,
    /// Most tokens of a draft; how many of them are verified follows how many were accepted
    #[arg(
        long,
        alias = "spec-draft-n-max",
        value_name = "N",
        default_value_t = 7,
        value_parser = value_parser!(u32).range(1..=Speculation::MAX_DRAFT_TOKENS as i64),
        hide_short_help = true
    )]
    pub draft_max: u32,
    /// Fewest tokens of a draft; shorter ones are not verified
    #[arg(long, alias = "spec-draft-n-min", value_name = "N", default_value_t = 1, hide_short_help = true)]
    pub draft_min: u32,
    /// Fewest last tokens that must have stood before, for ngram-simple
    #[arg(
        long,
        alias = "spec-ngram-simple-size-n",
        value_name = "N",
        default_value_t = 2,
        value_parser = value_parser!(u32).range(1..=16),
        hide_short_help = true
    )]
    pub spec_ngram_size_n: u32,
}

/// Who proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SpeculationType {
    /// No speculation.
    None,
    /// The text itself.
    NgramSimple,
    /// The model's own head.
    Mtp,
}

/// The smaller model whose continuations are verified, or what makes drafts in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftModel<'a> {
    /// The one that is packed into the artifact, or the model's own head, if there is one.
    Packed,
    /// The model's own head.
    OwnHead,
    /// This one.
    Other(&'a Path),
    None,
}

/// The value of `--model-draft` that is no model.
const NO_MODEL: &str = "none";

impl SpeculationArgs {
    /// Whether tokens are to be proposed, whatever the artifact has.
    pub fn is_requested(&self) -> bool {
        let is_of_type = matches!(self.spec_type, Some(SpeculationType::NgramSimple | SpeculationType::Mtp));
        is_of_type || matches!(self.draft_model(), DraftModel::Other(_))
    }

    /// The smaller model to use.
    pub fn draft_model(&self) -> DraftModel<'_> {
        match &self.model_draft {
            Some(none) if none.as_os_str() == NO_MODEL => DraftModel::None,
            Some(model) => DraftModel::Other(model),
            None if self.spec_type == Some(SpeculationType::Mtp) => DraftModel::OwnHead,
            None if self.spec_type.is_some() => DraftModel::None,
            None => DraftModel::Packed,
        }
    }

    /// `None`: no speculation. `by_model`: that of the smaller model, or of the model's own head.
    ///
    /// # Errors
    /// If a draft's fewest tokens are more than its most.
    pub fn resolve(&self, by_model: Option<Speculation>) -> Result<Option<Speculation>, RunError> {
        let speculation = match (by_model, self.spec_type) {
            (Some(speculation), _) => speculation,
            (None, None | Some(SpeculationType::None | SpeculationType::Mtp)) => return Ok(None),
            (None, Some(SpeculationType::NgramSimple)) => Speculation::ngram(self.spec_ngram_size_n),
        };
        let speculation =
            speculation.with(|one| (one.max_tokens, one.min_tokens) = (self.draft_max, self.draft_min.max(1)));
        speculation.check().map(|()| Some(speculation))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::Args;

    fn speculation(options: &[&str]) -> Option<String> {
        let args = Args::try_parse_from(["unicorn-run", "m"].iter().chain(options)).unwrap();
        args.run.speculation.resolve(None).unwrap().map(|one| format!("{} to {}", one.min_tokens, one.max_tokens))
    }

    #[test]
    fn a_packed_draft_is_used_unless_another_way_is_named() {
        let draft = |options: &[&str]| {
            let args = Args::try_parse_from(["unicorn-run", "m"].iter().chain(options)).unwrap();
            let speculation = args.run.speculation;
            (format!("{:?}", speculation.draft_model()), speculation.is_requested())
        };
        assert_eq!(draft(&[]), ("Packed".into(), false));
        assert_eq!(draft(&["--draft-max", "4"]), ("Packed".into(), false));
        assert_eq!(draft(&["--draft", "none"]), ("None".into(), false));
        assert_eq!(draft(&["--spec-type", "none"]), ("None".into(), false));
        assert_eq!(draft(&["--spec-type", "ngram-simple"]), ("None".into(), true));
        assert_eq!(draft(&["--spec-type", "mtp"]), ("OwnHead".into(), true));
        assert_eq!(draft(&["--draft", "./none"]), ("Other(\"./none\")".into(), true));
    }

    #[test]
    fn options_of_llama_server_are_known() {
        assert_eq!(speculation(&[]), None);
        assert_eq!(speculation(&["--spec-type", "ngram-simple"]).as_deref(), Some("1 to 7"));
        let all = ["--spec-type", "ngram-simple", "--draft-max", "16", "--spec-draft-n-min", "2"];
        assert_eq!(speculation(&all).as_deref(), Some("2 to 16"));
        assert!(Args::try_parse_from(["unicorn-run", "m", "--draft-max", "64"]).is_err());
        let both = ["unicorn-run", "m", "--model-draft", "d", "--spec-type", "ngram-simple"];
        assert!(Args::try_parse_from(both).is_err());
        let wrong = ["unicorn-run", "m", "--spec-type", "ngram-simple", "--draft-min", "8"];
        let error = Args::try_parse_from(wrong).unwrap().run.speculation.resolve(None).unwrap_err();
        assert_eq!(error.to_string(), "fewest tokens of a draft must be no more than its most, found 8");
    }
}
