//! `tune`.

use std::path::PathBuf;

use clap::value_parser;

use super::{COMMON, LoadArgs, MAX_SEQUENCES};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct TuneArgs {
    /// Artifact, GGUF file or Hugging Face folder; the winners go to ARTIFACT.tune.json
    #[arg(value_name = "MODEL", help_heading = None::<&str>)]
    pub artifact: PathBuf,
    /// Rounds, in each of which every candidate is measured [default: 5, with --quick 2]
    #[arg(short, long, value_name = "N", value_parser = value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// Most steps of a candidate in a round, which end after 0.3 s; medians of all steps are compared
    #[arg(short = 'n', long, value_name = "N", default_value_t = 16, value_parser = value_parser!(u32).range(1..=1 << 16))]
    pub steps: u32,
    /// Cached tokens during the decode measurements
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    pub depth: u32,
    /// Maximum number of sequences of a step [default: as many as a step takes and fit the memory, with --quick 1]
    #[arg(short, long, value_name = "N", value_parser = value_parser!(u32).range(1..=MAX_SEQUENCES))]
    pub sequences: Option<u32>,
    /// Tune only decode of one sequence and the largest prefill, in about 40 s
    #[arg(long)]
    pub quick: bool,
    /// Tune only kernels whose name contains NAME
    #[arg(long, value_name = "NAME")]
    pub only: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub load: LoadArgs,
}
