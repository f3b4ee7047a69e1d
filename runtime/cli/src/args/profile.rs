//! `profile`.

use std::path::PathBuf;

use clap::value_parser;

use super::{COMMON, LoadArgs, MAX_SEQUENCES};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct ProfileArgs {
    /// Artifact, GGUF file or Hugging Face folder; what is not compiled yet is compiled once and kept in the cache
    #[arg(value_name = "MODEL", help_heading = None::<&str>)]
    pub artifact: PathBuf,
    /// Tokens of the prompt
    #[arg(short = 'p', long, value_name = "TOKENS", default_value_t = 512, value_parser = value_parser!(u32).range(1..=1 << 30))]
    pub n_prompt: u32,
    /// Decode steps after the prompt
    #[arg(short = 'n', long, value_name = "TOKENS", default_value_t = 16, value_parser = value_parser!(u32).range(1..=1 << 30))]
    pub n_gen: u32,
    /// Number of sequences that decode together, each after the prompt
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=MAX_SEQUENCES))]
    pub sequences: u32,
    /// Also measure decode steps that process this many tokens of another prompt
    #[arg(long, value_name = "TOKENS", value_parser = value_parser!(u32).range(1..=1 << 16))]
    pub beside: Option<u32>,
    /// Also measure what makes rows of an image, for a model that takes images
    #[arg(long)]
    pub image: bool,
    /// Write the timeline of all dispatches, for chrome://tracing or Perfetto
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,
    /// Print what the driver reports of each kernel: registers, code size and other statistics. Kernels are compiled once more for it
    #[arg(long)]
    pub kernel_statistics: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub load: LoadArgs,
}
