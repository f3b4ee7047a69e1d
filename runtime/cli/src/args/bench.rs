//! `bench`.

use std::path::PathBuf;

use clap::value_parser;

use super::{COMMON, LoadArgs, MAX_SEQUENCES};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct BenchArgs {
    /// Artifact, GGUF file or Hugging Face folder; what is not compiled yet is compiled once and kept in the cache
    #[arg(value_name = "MODEL", help_heading = None::<&str>)]
    pub artifact: PathBuf,
    /// Tokens of each prefill test; 0: none
    #[arg(short = 'p', long, value_name = "TOKENS,…", default_value = "512", value_delimiter = ',', value_parser = value_parser!(u32).range(..=1 << 30))]
    pub n_prompt: Vec<u32>,
    /// Steps of each decode test
    #[arg(short = 'n', long, value_name = "TOKENS", default_value_t = 128, value_parser = value_parser!(u32).range(1..=1 << 20))]
    pub n_gen: u32,
    /// Cached tokens at the start of a decode test of one sequence [default: 0 without -s]
    #[arg(long = "depth", value_name = "TOKENS,…", value_delimiter = ',', value_parser = value_parser!(u32).range(..=1 << 30))]
    pub depths: Vec<u32>,
    /// Also decode N sequences together, from empty caches; the rate counts the tokens of all
    #[arg(short, long, value_name = "N,…", value_delimiter = ',', value_parser = value_parser!(u32).range(1..=MAX_SEQUENCES))]
    pub sequences: Vec<u32>,
    /// Also time what makes rows of an image, for a model that takes images
    #[arg(long)]
    pub image: bool,
    /// Number of runs of each test; the median is reported
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// Write a chart: decode over depth, throughput over sequences
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub load: LoadArgs,
}
