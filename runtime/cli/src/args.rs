//! The command line, as clap sees it. Defaults are llama.cpp's where both have the option.

use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;

use clap::{Parser, Subcommand, value_parser};

use unicorn_artifact::Budget;
use unicorn_artifact::step::MAX_HISTORY;

use unicorn_runtime::{Sampling, UploadPath};

/// Generates text with a compiled model on a Vulkan device.
///
/// With a prompt (-p, --file, or standard input) the continuation goes to stdout and statistics to stderr. On a terminal
/// without a prompt, it starts a chat.
#[derive(Debug, Parser)]
#[command(name = "unicorn-run", version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve OpenAI's HTTP API, several requests at a time
    Serve(ServeArgs),
    /// List the Vulkan devices, their features, and which targets of an artifact run on each
    Devices(DevicesArgs),
    /// Check this machine's drivers, limits and memory, and print what to change
    Doctor(DoctorArgs),
    /// Show the GPUs and every running unicorn-run: tokens/s, memory, clocks, power, KV pages
    Top(TopArgs),
    /// Show the contents of an artifact and its memory plan; needs no GPU
    Inspect(InspectArgs),
    /// Plan an artifact's memory again, for example with another budget; runs unicorn-compile
    Replan(ReplanArgs),
    /// Measure prefill and decode with random tokens
    Bench(BenchArgs),
    /// Measure every kernel of prefill and decode with the device's timestamps
    Profile(ProfileArgs),
    /// Find the fastest kernels on this device and save the result beside the artifact
    Tune(TuneArgs),
    /// Measure perplexity on a text, as llama-perplexity does
    Perplexity(PerplexityArgs),
    /// Write the logits of given tokens to a safetensors file
    Logits(LogitsArgs),
}

#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Artifact made by unicorn-compile
    #[arg(required = true)]
    pub artifact: Option<PathBuf>,
    /// Prompt to continue
    #[arg(short, long, conflicts_with = "file", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// File that holds the prompt
    #[arg(short, long)]
    pub file: Option<PathBuf>,
    /// Continue the prompt as it is (the default with a prompt); without one, read it from standard input even on a terminal
    #[arg(long, conflicts_with = "chat")]
    pub raw: bool,
    /// Put the prompt into the model's chat template
    #[arg(long)]
    pub chat: bool,
    /// System message of a chat
    #[arg(long, value_name = "TEXT", conflicts_with = "raw", allow_hyphen_values = true)]
    pub system: Option<String>,
    /// Maximum number of tokens to generate [default: until a stop token or a full context]
    #[arg(short, long = "n-predict", value_name = "N")]
    pub n_predict: Option<u32>,
    /// Context in tokens [default: the model's maximum, or as much as fits the memory]
    #[arg(short, long = "ctx", value_name = "TOKENS", value_parser = value_parser!(u32).range(1..))]
    pub ctx: Option<u32>,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub load: LoadArgs,
    /// Start generating when the first layers are loaded, and load the rest during the first steps
    #[arg(long, conflicts_with = "load_alone")]
    pub lazy: bool,
    /// Print text and statistics as one JSON object on stdout
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    /// Artifact made by unicorn-compile
    pub artifact: PathBuf,
    /// Address to listen on; 0.0.0.0: all addresses of this machine, without access control
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0: any free one
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub port: u16,
    /// Number of sequences that are generated at a time; further requests wait
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(1..=64))]
    pub parallel: u32,
    /// Context of each sequence in tokens [default: the model's maximum, or as much as fits the memory for all of them]
    #[arg(short, long = "ctx", value_name = "TOKENS", value_parser = value_parser!(u32).range(1..))]
    pub ctx: Option<u32>,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub load: LoadArgs,
}

/// How the next token is sampled.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SamplingArgs {
    /// Temperature; 0: always the most likely token (greedy) [default: 0.8]
    #[arg(long, allow_negative_numbers = true, value_parser = not_negative)]
    pub temp: Option<f32>,
    /// Sample from the K most likely tokens; 0: all [default: 40]
    #[arg(long, value_name = "K")]
    pub top_k: Option<u32>,
    /// Sample from the most likely tokens whose probabilities add up to P; 1: all [default: 0.95]
    #[arg(long, value_name = "P", value_parser = part_of_one)]
    pub top_p: Option<f32>,
    /// Sample from tokens at least P times as likely as the most likely one; 0: all [default: 0.05]
    #[arg(long, value_name = "P", value_parser = probability)]
    pub min_p: Option<f32>,
    /// Penalty on recent tokens; 1: none [default: 1]
    #[arg(long, value_name = "FACTOR", value_parser = positive)]
    pub repeat_penalty: Option<f32>,
    /// Number of recent tokens that the repeat penalty applies to, at most 256 [default: 64]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(..=MAX_HISTORY as i64))]
    pub repeat_last_n: Option<u32>,
    /// Seed of sampling [default: a random one, which is printed]
    #[arg(short, long)]
    pub seed: Option<u64>,
}

/// Which device, and how the model is loaded.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct LoadArgs {
    /// Device number or part of its name, as `devices` lists them [default: the best GPU]
    #[arg(short, long, env = "UNICORN_DEVICE")]
    pub device: Option<String>,
    /// Name of the artifact's target to run [default: the first that fits the device]
    #[arg(long, value_name = "NAME")]
    pub target: Option<String>,
    /// Memory budget of each tier, such as vram=8GiB,gtt=20GiB [default: all free memory]
    #[arg(long, value_name = "TIER=SIZE,…")]
    pub budget: Option<Budget>,
    /// Upload path of the weights: import (the mapped file itself), map (read into mapped device memory), host (read into host
    /// memory that is imported) or staging (copied on the device) [default: the fastest of the last three that the device supports]
    #[arg(long, value_name = "PATH")]
    pub residency: Option<UploadPath>,
    /// Verify the weights in device memory against the artifact's hashes (the default)
    #[arg(long, overrides_with = "no_verify")]
    pub verify: bool,
    /// Do not verify the weights
    #[arg(long, overrides_with = "verify")]
    pub no_verify: bool,
    /// Compile kernels after the weights are loaded, not at the same time: a slower start, in which nothing disturbs the measured
    /// loading rate
    #[arg(long)]
    pub load_alone: bool,
    /// Longest time of one submission to the device, in milliseconds [default: 100]
    #[arg(long, value_name = "MS", value_parser = value_parser!(u32).range(1..))]
    pub submission_ms: Option<u32>,
    /// Compile every kernel again, and write no cache for the next start
    #[arg(long)]
    pub no_cache: bool,
    /// Run the compiler's choice of kernels, not the result of `tune`
    #[arg(long)]
    pub no_tune: bool,
    /// Synchronise dispatches with barriers only, without counters
    #[arg(long)]
    pub barriers: bool,
}

#[derive(Debug, clap::Args)]
pub struct DevicesArgs {
    /// Artifact whose targets are checked against each device
    pub artifact: Option<PathBuf>,
    /// Measure the transfer rates between this machine's memory and each device
    #[arg(long)]
    pub transfers: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct DoctorArgs {
    /// Artifact whose targets are checked against each device
    pub artifact: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Root folder of the kernel's files in tests
    #[arg(long, hide = true, value_name = "FOLDER")]
    pub root: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub struct TopArgs {
    /// Print a line of JSON for each sample
    #[arg(long)]
    pub json: bool,
    /// Serve metrics for Prometheus at http://ADDR:PORT/metrics, without access control; port 0: any free one
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics: Option<String>,
    /// Time between two samples, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = value_parser!(u32).range(100..))]
    pub interval_ms: u32,
    /// Number of samples to take [default: until q]
    #[arg(short = 'n', long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub count: Option<u32>,
    /// Root folder of the kernel's files in tests
    #[arg(long, hide = true, value_name = "FOLDER")]
    pub root: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub struct ReplanArgs {
    /// Artifact, and options as `unicorn-compile replan --help` lists them, such as --budget vram=8GiB,gtt=20GiB
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARTIFACT [OPTIONS]")]
    pub arguments: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
pub struct InspectArgs {
    /// Artifact made by unicorn-compile
    pub artifact: PathBuf,
    /// Another artifact: show only the differences
    #[arg(long, value_name = "ARTIFACT")]
    pub diff: Option<PathBuf>,
    /// Write a self-contained HTML page with a map of the memory
    #[arg(long, value_name = "FILE", conflicts_with_all = ["diff", "json"])]
    pub html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    /// Artifact made by unicorn-compile
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
    #[arg(short, long, value_name = "N,…", value_delimiter = ',', value_parser = value_parser!(u32).range(1..=1024))]
    pub sequences: Vec<u32>,
    /// Number of runs of each test; the median is reported
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    #[command(flatten)]
    pub load: LoadArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct ProfileArgs {
    /// Artifact made by unicorn-compile
    pub artifact: PathBuf,
    /// Tokens of the prompt
    #[arg(short = 'p', long, value_name = "TOKENS", default_value_t = 512, value_parser = value_parser!(u32).range(1..=1 << 30))]
    pub n_prompt: u32,
    /// Decode steps after the prompt
    #[arg(short = 'n', long, value_name = "TOKENS", default_value_t = 16, value_parser = value_parser!(u32).range(1..=1 << 30))]
    pub n_gen: u32,
    /// Number of sequences that decode together, each after the prompt
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=1 << 16))]
    pub sequences: u32,
    /// Write the timeline of all dispatches, for chrome://tracing or Perfetto
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,
    #[command(flatten)]
    pub load: LoadArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct TuneArgs {
    /// Artifact made by unicorn-compile; the winners go to ARTIFACT.tune.json
    pub artifact: PathBuf,
    /// Times that every candidate gets its turn [default: 5, with --quick 2]
    #[arg(short, long, value_name = "N", value_parser = value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// Most steps of a turn, which ends after 0.3 s; medians of all steps are compared
    #[arg(short = 'n', long, value_name = "N", default_value_t = 16, value_parser = value_parser!(u32).range(1..=1 << 16))]
    pub steps: u32,
    /// Cached tokens during the decode measurements
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    pub depth: u32,
    /// Maximum number of sequences of a step [default: as many as a step takes and fit the memory, with --quick 1]
    #[arg(short, long, value_name = "N", value_parser = value_parser!(u32).range(1..=64))]
    pub sequences: Option<u32>,
    /// Tune only decode of one sequence and the largest prefill
    #[arg(long)]
    pub quick: bool,
    /// Tune only kernels whose name contains NAME
    #[arg(long, value_name = "NAME")]
    pub only: Option<String>,
    #[command(flatten)]
    pub load: LoadArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct PerplexityArgs {
    /// Artifact made by unicorn-compile
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
    #[command(flatten)]
    pub load: LoadArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct LogitsArgs {
    /// Artifact made by unicorn-compile
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

impl SamplingArgs {
    /// The options as given, the defaults for the rest. Without a seed, each call gets a random one.
    pub fn resolve(&self) -> Sampling {
        Sampling {
            temperature: self.temp.unwrap_or(0.8),
            top_k: self.top_k.unwrap_or(40),
            top_p: self.top_p.unwrap_or(0.95),
            min_p: self.min_p.unwrap_or(0.05),
            repeat_penalty: self.repeat_penalty.unwrap_or(1.0),
            repeat_last_n: self.repeat_last_n.unwrap_or(64),
            seed: self.seed.unwrap_or_else(random_seed),
        }
    }

    /// Sets one option by the name that it has on the command line, without the dashes.
    ///
    /// # Errors
    /// The first line of clap's message, if there is no such option or the value is outside its range.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let mut line = SamplingLine { sampling: self.clone() };
        line.try_update_from(["set".to_owned(), format!("--{name}={value}")]).map_err(|error| {
            let message = error.to_string();
            let first = message.lines().next().unwrap_or_default();
            first.trim_start_matches("error: ").to_owned()
        })?;
        *self = line.sampling;
        Ok(())
    }
}

/// A command line of sampling options only, which are those of `/set` in a chat.
#[derive(Parser)]
#[command(disable_help_flag = true)]
struct SamplingLine {
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// Different at each call: the standard library's hash keys are random. 32 bits are easier to type again.
pub fn random_seed() -> u64 {
    u64::from(RandomState::new().build_hasher().finish() as u32)
}

fn probability(text: &str) -> Result<f32, String> {
    number(text, "a number from 0 to 1", |value| (0.0..=1.0).contains(&value))
}

fn part_of_one(text: &str) -> Result<f32, String> {
    number(text, "a number above 0 and at most 1", |value| value > 0.0 && value <= 1.0)
}

fn not_negative(text: &str) -> Result<f32, String> {
    number(text, "a number of at least 0", |value| value >= 0.0)
}

fn positive(text: &str) -> Result<f32, String> {
    number(text, "a number above 0", |value| value > 0.0)
}

fn number(text: &str, expected: &str, fits: impl Fn(f32) -> bool) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value.is_finite() && fits(value) => Ok(value),
        _ => Err(format!("expected {expected}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn an_artifact_needs_no_subcommand() {
        let args = Args::try_parse_from(["unicorn-run", "m.unicorn", "-p", "text", "-n", "64", "--temp", "0"]).unwrap();
        assert!(args.command.is_none());
        assert_eq!(args.run.artifact, Some("m.unicorn".into()));
        assert_eq!((args.run.n_predict, args.run.sampling.resolve().temperature), (Some(64), 0.0));
    }

    #[test]
    fn a_subcommand_needs_no_artifact_of_its_own() {
        let args = Args::try_parse_from(["unicorn-run", "devices", "--json"]).unwrap();
        assert!(matches!(args.command, Some(Command::Devices(DevicesArgs { artifact: None, json: true, .. }))));
        assert!(Args::try_parse_from(["unicorn-run", "m.unicorn", "-p", "text", "devices"]).is_err());
        assert!(Args::try_parse_from(["unicorn-run"]).is_err());
    }

    #[test]
    fn options_can_be_set_one_by_one() {
        let mut sampling = Args::try_parse_from(["unicorn-run", "m", "--top-k", "3"]).unwrap().run.sampling;
        sampling.set("temp", "0.7").unwrap();
        assert_eq!((sampling.temp, sampling.top_k, sampling.top_p), (Some(0.7), Some(3), None));
        assert!(sampling.set("top-p", "7").unwrap_err().contains("expected a number above 0 and at most 1"));
        assert!(sampling.set("colour", "blue").unwrap_err().contains("--colour"));
        assert!(sampling.set("repeat-last-n", "257").is_err());
    }

    #[test]
    fn seeds_differ_unless_given() {
        let mut sampling = Args::try_parse_from(["unicorn-run", "m"]).unwrap().run.sampling;
        assert_ne!(sampling.resolve().seed, sampling.resolve().seed);
        sampling.set("seed", "42").unwrap();
        assert_eq!(sampling.resolve().seed, 42);
    }
}
