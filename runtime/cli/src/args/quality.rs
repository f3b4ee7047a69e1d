//! `perplexity` and `logits`: commands about what a model computes.

use std::path::PathBuf;

use clap::value_parser;

use super::{COMMON, LoadArgs};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct PerplexityArgs {
    /// Artifact, GGUF file or Hugging Face folder; what is not compiled yet is compiled once and kept in the cache
    #[arg(value_name = "MODEL", help_heading = None::<&str>)]
    pub artifact: PathBuf,
    /// Text to measure on
    #[arg(short, long, value_name = "TEXT")]
    pub file: PathBuf,
    /// Tokens in a chunk
    #[arg(short, long, value_name = "TOKENS", default_value_t = 512, value_parser = value_parser!(u32).range(4..))]
    pub ctx: u32,
    /// Maximum number of chunks to measure [default: all]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub chunks: Option<u32>,
    /// Save the logits of the scored tokens, as a base for other artifacts of the same model
    #[arg(long, value_name = "FILE")]
    pub save_logits: Option<PathBuf>,
    /// Compare with logits that --save-logits saved on the same text: KL divergence and same top token
    #[arg(long, value_name = "FILE")]
    pub kl_base: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub load: LoadArgs,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct LogitsArgs {
    /// Artifact, GGUF file or Hugging Face folder; what is not compiled yet is compiled once and kept in the cache
    #[arg(value_name = "MODEL", help_heading = None::<&str>)]
    pub artifact: PathBuf,
    /// safetensors file with `tokens`, i32, i64 or u32 [T]
    #[arg(long, value_name = "FILE")]
    pub tokens: PathBuf,
    /// safetensors file to write: `logits`, f32 [T, vocabulary]
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Maximum number of tokens in a step; 1 decodes one by one [default: the largest step of the artifact]
    #[arg(long, value_name = "TOKENS", value_parser = value_parser!(u32).range(1..))]
    pub chunk: Option<u32>,
    #[command(flatten)]
    pub load: LoadArgs,
}
