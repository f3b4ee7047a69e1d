//! The command line, as clap parses it: a file for each group of commands. Defaults are llama.cpp's where both have the option.
//!
//! Options are listed under the headings below. `-h` lists those of everyday use on one screen: all others have `hide_short_help`.

mod generate;
mod serve;

mod load;
mod sampling;
mod speculation;
mod structure;

mod bench;
mod profile;
mod quality;
mod selftest;
mod tune;

mod inspect;
mod store;
mod system;

mod completions;
mod output;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use unicorn_artifact::step::MAX_SAMPLERS;
use unicorn_terminal::with_short_help;

pub use bench::BenchArgs;
pub use completions::{CompletionsArgs, ManArgs};
pub use generate::{KeepArgs, RunArgs};
pub use inspect::{InspectArgs, ReplanArgs, Section};
pub use load::LoadArgs;
pub use output::OutputArgs;
pub use profile::ProfileArgs;
pub use quality::{LogitsArgs, PerplexityArgs};
pub use sampling::SamplingArgs;
pub use selftest::{CONSERVATIVE, NpuSelftestArgs, SelftestArgs};
pub use serve::{LogFormat, ReasoningFormatOption, ReasoningOption, ServeArgs};
pub use speculation::{DraftModel, SpeculationArgs};
pub use store::{GcArgs, ListArgs, PullArgs, RmArgs, TrustArgs, VerifyArgs};
pub use structure::{StructureArgs, format};
pub use system::{DevicesArgs, DoctorArgs, TopArgs};
pub use tune::TuneArgs;

/// What the command is mostly called with.
const COMMON: &str = "Common";
/// How the next token is sampled.
const SAMPLING: &str = "Sampling";
/// Which tokens are proposed, and how many.
const SPECULATION: &str = "Speculation";
/// Where weights and KV cache are placed, and how they get there.
const MEMORY: &str = "Memory";
/// Which device, and which target of the artifact.
const DEVICE: &str = "Device";
/// Who may use a server, and how much of it.
const ACCESS: &str = "Access";
/// What is changed to measure, or to find an error.
const EXPERT: &str = "Expert";

/// Most sequences that decode together: a step samples no more tokens.
const MAX_SEQUENCES: i64 = MAX_SAMPLERS as i64;

/// Examples of the help and of the man page. `cargo xtask release` runs them unchanged.
const EXAMPLES: &str = "Examples:
  unicorn-run smol.unicorn -n 32 why is the sky blue
  unicorn-run SmolLM2-135M-Instruct -n 32 --temp 0 -p \"Why is the sky blue?\"
  echo \"Why is the sky blue?\" | unicorn-run smol.unicorn -n 32 --quiet
  unicorn-run inspect smol.unicorn
  unicorn-run devices smol.unicorn
  unicorn-run bench smol.unicorn -p 32 -n 8
  unicorn-run serve smol.unicorn --parallel 2";

/// Runs a language model: a chat, or the answer to a prompt.
///
/// unicorn-run MODEL starts a chat on a Vulkan device, unicorn-run MODEL why is the sky blue answers.
///
/// MODEL is an artifact of unicorn-compile, a GGUF file or a Hugging Face folder. The latter two are compiled for this machine's
/// device when they are run first, and kept in $XDG_CACHE_HOME/unicorn/models. The prompt follows the model, or comes from -p, -f or
/// standard input; it is put into the model's chat template. The answer goes to stdout, figures and notes go to stderr.
#[derive(Debug, Parser)]
#[command(
    name = "unicorn-run",
    version,
    args_conflicts_with_subcommands = true,
    // If an option is given twice, the last one counts, as in llama.cpp: an alias may contain the first.
    args_override_self = true,
    subcommand_negates_reqs = true,
    arg_required_else_help = true,
    after_long_help = EXAMPLES,
    disable_help_flag = true,
    disable_version_flag = true
)]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl Args {
    /// The command line as it is parsed, and shown by `-h` and `--help`.
    pub fn shown() -> clap::Command {
        with_short_help(Args::command(), "unicorn-run")
    }

    /// The command line of this process; an error, help and the version end it.
    pub fn parsed() -> Args {
        Args::from_arg_matches(&Args::shown().get_matches()).unwrap_or_else(|error| error.exit())
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer a prompt, or chat; `run` itself may be left out
    #[command(visible_alias = "chat")]
    Run(Box<RunArgs>),
    /// Serve OpenAI's HTTP API, several requests at a time
    Serve(Box<ServeArgs>),
    /// Fetch an artifact from a registry, or a model from the Hugging Face Hub
    Pull(PullArgs),
    /// Verify the signature of an artifact
    Verify(VerifyArgs),
    /// List the artifacts that were fetched
    List(ListArgs),
    /// Remove artifacts that were fetched
    Rm(RmArgs),
    /// Remove what no name leads to, and what interrupted fetches left
    Gc(GcArgs),
    /// List the Vulkan devices, their features, and which targets of an artifact run on each
    Devices(DevicesArgs),
    /// Check this machine's drivers, limits and memory, and print what to change
    Doctor(DoctorArgs),
    /// Show the GPUs and every running unicorn-run: tokens/s, memory, clocks, power, KV pages
    Top(TopArgs),
    /// Show the contents of an artifact and its memory plan; needs no GPU
    Inspect(InspectArgs),
    /// Plan an artifact's memory again, for example with another budget
    Replan(ReplanArgs),
    /// Measure prefill and decode with random tokens
    Bench(BenchArgs),
    /// Measure every kernel of prefill and decode with the device's timestamps
    Profile(ProfileArgs),
    /// Find the fastest kernels on this device and save the result beside the artifact
    Tune(TuneArgs),
    /// Check every kernel on this device, and print a report to paste; takes about a minute
    Selftest(SelftestArgs),
    /// Check and time the NPU on an artifact's programs, and print a report to paste; takes minutes
    NpuSelftest(NpuSelftestArgs),
    /// Measure perplexity on a text, as llama-perplexity does
    Perplexity(PerplexityArgs),
    /// Write the logits of given tokens to a safetensors file
    Logits(LogitsArgs),
    /// Print a shell's completions, as in: source <(unicorn-run completions bash)
    Completions(CompletionsArgs),
    /// Write man pages
    #[command(hide = true)]
    Man(ManArgs),
    /// Keep a model loaded; `--keep-alive` starts it
    #[command(hide = true)]
    Keep(KeepArgs),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
        Args::shown().debug_assert();
    }

    #[test]
    fn an_artifact_needs_no_subcommand() {
        let args = Args::try_parse_from(["unicorn-run", "m.unicorn", "-p", "text", "-n", "64", "--temp", "0"]).unwrap();
        assert!(args.command.is_none());
        assert_eq!(args.run.artifact, Some("m.unicorn".into()));
        assert_eq!((args.run.n_predict, args.run.sampling.resolve().temperature), (Some(64), 0.0));
    }

    #[test]
    fn the_prompt_is_words_and_options_may_stand_between() {
        for command in [&[][..], &["run"], &["chat"]] {
            let line = ["m", "why", "is", "-n", "8", "the", "serve", "blue"];
            let args = Args::try_parse_from(["unicorn-run"].iter().chain(command).chain(&line)).unwrap();
            let run = match args.command {
                Some(Command::Run(run)) => *run,
                None => args.run,
                other => panic!("{other:?}"),
            };
            assert_eq!((run.words.join(" ").as_str(), run.n_predict), ("why is the serve blue", Some(8)));
        }
    }

    #[test]
    fn the_last_of_an_option_counts() {
        let args = Args::try_parse_from(["unicorn-run", "m", "-n", "8", "--temp", "1", "-n", "9"]).unwrap();
        assert_eq!(args.run.n_predict, Some(9));
        let line = ["unicorn-run", "bench", "m", "-n", "8", "-n", "9"];
        assert!(Args::try_parse_from(line).is_ok());
    }

    #[test]
    fn a_subcommand_needs_no_artifact_of_its_own() {
        let args = Args::try_parse_from(["unicorn-run", "devices", "--json"]).unwrap();
        assert!(matches!(args.command, Some(Command::Devices(DevicesArgs { artifact: None, json: true, .. }))));
        assert!(Args::try_parse_from(["unicorn-run", "m.unicorn", "-p", "text", "devices"]).is_err());
        assert!(Args::try_parse_from(["unicorn-run"]).is_err());
    }

    #[test]
    fn every_command_can_be_quiet_or_verbose() {
        for line in [&["unicorn-run", "m", "-q"][..], &["unicorn-run", "bench", "m", "--quiet"]] {
            assert!(Args::try_parse_from(line).unwrap().output.quiet, "{line:?}");
        }
        assert!(Args::try_parse_from(["unicorn-run", "tune", "-v", "m"]).unwrap().output.verbose);
        assert!(Args::try_parse_from(["unicorn-run", "m", "-q", "-v"]).is_err());
    }

    /// The names of the commands, and what most people need, on a terminal of 24 lines and 80 columns.
    #[test]
    fn short_help_fits_a_screen() {
        let short = Args::shown().render_help().to_string();
        assert!(short.lines().count() <= 24 && short.lines().all(|line| line.len() <= 80), "{short}");
        for name in ["serve", "pull", "npu-selftest", "--prompt", "--ctx", "--temp", "--device"] {
            assert!(short.contains(name), "{name} in:\n{short}");
        }
        let long = Args::shown().render_long_help().to_string();
        for heading in ["Commands", COMMON, SAMPLING, MEMORY, DEVICE, EXPERT] {
            assert_eq!(long.lines().filter(|line| *line == format!("{heading}:")).count(), 1, "{heading} in:\n{long}");
        }
    }
}
