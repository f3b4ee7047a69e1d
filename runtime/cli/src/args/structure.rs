//! What answers have to match, with llama-cli's names, and Ollama's `--format`.

use std::fs;
use std::path::PathBuf;

use unicorn_structure::{Structure, StructureError};

use super::SAMPLING;
use crate::error::CliError;

/// One at most.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = SAMPLING)]
#[group(multiple = false)]
pub struct StructureArgs {
    /// JSON schema that the answer has to match, or json for any object
    #[arg(long, visible_alias = "format", value_name = "SCHEMA", value_parser = format, hide_short_help = true)]
    pub json_schema: Option<Structure>,
    /// File that holds the schema
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub json_schema_file: Option<PathBuf>,
    /// Grammar that the answer has to match, in llama.cpp's GBNF or llguidance's form of Lark
    #[arg(long, value_name = "GRAMMAR", value_parser = grammar, hide_short_help = true)]
    pub grammar: Option<Structure>,
    /// File that holds the grammar
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub grammar_file: Option<PathBuf>,
}

impl StructureArgs {
    /// The structure, read out of its file if it is in one; `None`: any answer will do.
    ///
    /// # Errors
    /// Errors of the file, and when the text is not a schema or grammar.
    pub fn resolve(&self) -> Result<Option<Structure>, CliError> {
        let read = |path: &PathBuf, parse: fn(&str) -> Result<Structure, StructureError>| {
            let text = fs::read_to_string(path).map_err(|error| CliError::at(path, error))?;
            parse(&text).map_err(|error| CliError::at(path, error))
        };
        Ok(match (&self.json_schema_file, &self.grammar_file) {
            (Some(path), _) => Some(read(path, format)?),
            (_, Some(path)) => Some(read(path, grammar)?),
            (None, None) => self.json_schema.clone().or_else(|| self.grammar.clone()),
        })
    }
}

/// `json`, or a schema.
pub fn format(text: &str) -> Result<Structure, StructureError> {
    if text.trim() == "json" { Ok(Structure::any_object()) } else { Structure::from_schema_text(text) }
}

fn grammar(text: &str) -> Result<Structure, StructureError> {
    Structure::from_grammar(text.to_owned())
}
