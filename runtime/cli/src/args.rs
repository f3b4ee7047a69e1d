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
/// With a prompt (-p, --file, or standard input) the continuation goes to stdout and the figures to stderr. On a terminal
/// without a prompt, a chat begins.
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
    /// Answer requests over HTTP, as OpenAI's API has them, many at once
    Serve(ServeArgs),
    /// List the Vulkan devices, what each can do, and which targets of an artifact fit it
    Devices(DevicesArgs),
    /// Examine this machine: what is in the way of running models, and what to change
    Doctor(DoctorArgs),
    /// Watch the GPUs and every running unicorn-run: tokens/s, memory, clocks, power, KV pages
    Top(TopArgs),
    /// Show what an artifact holds and where its bytes will live; needs no GPU
    Inspect(InspectArgs),
    /// Give an artifact's bytes other places, which unicorn-compile does
    Replan(ReplanArgs),
    /// Time prefill and decode on made-up tokens
    Bench(BenchArgs),
    /// Time every kernel of prefill and decode by the device's clock
    Profile(ProfileArgs),
    /// Find the fastest kernels for decode on this device and keep them beside the artifact
    Tune(TuneArgs),
    /// Measure perplexity on a text by llama-perplexity's protocol
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
    /// Continue the prompt as it stands (the default with a prompt); without one, read it from standard input even on a terminal
    #[arg(long, conflicts_with = "chat")]
    pub raw: bool,
    /// Put the prompt into the model's chat template
    #[arg(long)]
    pub chat: bool,
    /// System message of a chat
    #[arg(long, value_name = "TEXT", conflicts_with = "raw", allow_hyphen_values = true)]
    pub system: Option<String>,
    /// Most tokens to generate [default: until a stop token or a full context]
    #[arg(short, long = "n-predict", value_name = "N")]
    pub n_predict: Option<u32>,
    /// Context in tokens [default: as long as the model was made for and memory holds]
    #[arg(short, long = "ctx", value_name = "TOKENS", value_parser = value_parser!(u32).range(1..))]
    pub ctx: Option<u32>,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub load: LoadArgs,
    /// Begin as soon as the first layers are loaded, and load the rest beside the first steps
    #[arg(long, conflicts_with = "load_alone")]
    pub lazy: bool,
    /// Print text and figures as one JSON object on stdout
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    /// Artifact made by unicorn-compile
    pub artifact: PathBuf,
    /// Address to answer at; 0.0.0.0 is all of this machine's, for whoever can reach them
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    pub host: String,
    /// Port to answer at; 0: any that is free
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub port: u16,
    /// Sequences at a time; further requests wait
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(1..=64))]
    pub parallel: u32,
    /// Context of each sequence in tokens [default: as long as the model was made for and memory holds for all of them]
    #[arg(short, long = "ctx", value_name = "TOKENS", value_parser = value_parser!(u32).range(1..))]
    pub ctx: Option<u32>,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub load: LoadArgs,
}

/// How the next token is drawn.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SamplingArgs {
    /// Temperature; 0 takes the most likely token (greedy) [default: 0.8]
    #[arg(long, allow_negative_numbers = true, value_parser = not_negative)]
    pub temp: Option<f32>,
    /// Draw from the K most likely tokens; 0: all [default: 40]
    #[arg(long, value_name = "K")]
    pub top_k: Option<u32>,
    /// Draw from the most likely tokens that together have probability P; 1: all [default: 0.95]
    #[arg(long, value_name = "P", value_parser = part_of_one)]
    pub top_p: Option<f32>,
    /// Draw from tokens at least P times as likely as the most likely one; 0: all [default: 0.05]
    #[arg(long, value_name = "P", value_parser = probability)]
    pub min_p: Option<f32>,
    /// Penalty on tokens that occurred lately; 1: none [default: 1]
    #[arg(long, value_name = "FACTOR", value_parser = positive)]
    pub repeat_penalty: Option<f32>,
    /// Tokens that the repeat penalty looks back at, up to 256 [default: 64]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(..=MAX_HISTORY as i64))]
    pub repeat_last_n: Option<u32>,
    /// Seed of the draws [default: a random one, which is printed]
    #[arg(short, long)]
    pub seed: Option<u64>,
}

/// Which device, and how carefully.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct LoadArgs {
    /// Device number or part of its name, as `devices` lists them [default: the best GPU]
    #[arg(short, long, env = "UNICORN_DEVICE")]
    pub device: Option<String>,
    /// Target of the artifact, by name [default: the first that fits the device]
    #[arg(long, value_name = "NAME")]
    pub target: Option<String>,
    /// Most of each tier's memory to take, such as vram=8GiB,gtt=20GiB [default: all that is free]
    #[arg(long, value_name = "TIER=SIZE,…")]
    pub budget: Option<Budget>,
    /// How weights reach the device: import (the mapped file as it lies), map (read into device memory), host (read into host
    /// memory that the device takes) or staging (copied) [default: the fastest of the last three that exists]
    #[arg(long, value_name = "WAY")]
    pub residency: Option<UploadPath>,
    /// Compare the hashes of the weights with those of the artifact, on the device, where they lie (the default)
    #[arg(long, overrides_with = "no_verify")]
    pub verify: bool,
    /// Do not compare them
    #[arg(long, overrides_with = "verify")]
    pub no_verify: bool,
    /// Make kernels after the weights are there, not meanwhile: a slower start, whose rate of loading is the way's own
    #[arg(long)]
    pub load_alone: bool,
    /// Longest that one submission to the device may take, in milliseconds [default: 100]
    #[arg(long, value_name = "MS", value_parser = value_parser!(u32).range(1..))]
    pub submission_ms: Option<u32>,
    /// Compile every kernel anew, and leave nothing for the next start
    #[arg(long)]
    pub no_cache: bool,
    /// Run the compiler's choice of kernels, whatever `tune` found
    #[arg(long)]
    pub no_tune: bool,
    /// A barrier before every dispatch that depends on those before, also where its kernel could wait for them by itself
    #[arg(long)]
    pub barriers: bool,
}

#[derive(Debug, clap::Args)]
pub struct DevicesArgs {
    /// Artifact whose targets are compared with each device
    pub artifact: Option<PathBuf>,
    /// Measure how fast bytes get from this machine's memory to each device
    #[arg(long)]
    pub transfers: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct DoctorArgs {
    /// Artifact whose targets are compared with each device
    pub artifact: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Folder that stands for / where the kernel's files are read
    #[arg(long, hide = true, value_name = "FOLDER")]
    pub root: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub struct TopArgs {
    /// Print a line of JSON each time
    #[arg(long)]
    pub json: bool,
    /// Serve the figures to Prometheus at http://ADDR:PORT/metrics (port 0: any that is free), to whoever can reach it
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics: Option<String>,
    /// Pause between two looks, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = value_parser!(u32).range(100..))]
    pub interval_ms: u32,
    /// Look this many times [default: until q]
    #[arg(short = 'n', long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub count: Option<u32>,
    /// Folder that stands for / where the kernel's files are read
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
    /// Another artifact: show only what differs in it
    #[arg(long, value_name = "ARTIFACT")]
    pub diff: Option<PathBuf>,
    /// Write one self-contained page with a map of the memory
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
    /// Tokens of the prefill tests; 0: none
    #[arg(short = 'p', long, value_name = "TOKENS,…", default_value = "512", value_delimiter = ',', value_parser = value_parser!(u32).range(..=1 << 30))]
    pub n_prompt: Vec<u32>,
    /// Steps of a decode test
    #[arg(short = 'n', long, value_name = "TOKENS", default_value_t = 128, value_parser = value_parser!(u32).range(1..=1 << 20))]
    pub n_gen: u32,
    /// Tokens in the cache before a decode test of one sequence [default: 0, where there is no -s]
    #[arg(long = "depth", value_name = "TOKENS,…", value_delimiter = ',', value_parser = value_parser!(u32).range(..=1 << 30))]
    pub depths: Vec<u32>,
    /// Also decode so many sequences at once, from empty caches; tokens of all are counted
    #[arg(short, long, value_name = "N,…", value_delimiter = ',', value_parser = value_parser!(u32).range(1..=1024))]
    pub sequences: Vec<u32>,
    /// Runs of each test; the median is reported
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
    /// Sequences that decode together, each after the prompt
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
    /// Cached tokens that decode attends to meanwhile
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    pub depth: u32,
    /// Most sequences of a step [default: as many as a step takes and memory holds, with --quick 1]
    #[arg(short, long, value_name = "N", value_parser = value_parser!(u32).range(1..=64))]
    pub sequences: Option<u32>,
    /// Only decode of one sequence and the largest prefill
    #[arg(long)]
    pub quick: bool,
    /// Only kernels with this in their name; all others stay as the compiler chose them
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
    /// Most chunks to measure [default: all]
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
    /// Most tokens in a step; 1 decodes one by one [default: the largest step of the artifact]
    #[arg(long, value_name = "TOKENS", value_parser = value_parser!(u32).range(1..))]
    pub chunk: Option<u32>,
    #[command(flatten)]
    pub load: LoadArgs,
}

impl SamplingArgs {
    /// The options as given, the defaults for the rest. A seed that was not given is drawn anew at each call.
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
    /// clap's message, first line only, if there is no such option or the value does not fit it.
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

/// A command line of sampling options only, so that `/set` in a chat knows exactly those.
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
