//! The command line, as clap reads it.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use unicorn_compiler::{Adapter, Budget, Form, Machine, WeightsOption, targets};
use unicorn_terminal::with_short_help;

/// Also of the man page: `cargo xtask release` runs them as they are.
const EXAMPLES: &str = "Examples:
  unicorn-compile SmolLM2-135M-Instruct -o smol.unicorn
  unicorn-compile SmolLM2-135M-Instruct -o smol-int8.unicorn --weights int8 --target generic
  unicorn-compile SmolLM2-135M-Instruct --plan-only --machine phoenix-32gb
  unicorn-compile retarget smol.unicorn --target intel
  unicorn-compile verify smol.unicorn --from SmolLM2-135M-Instruct";

/// What the program is mostly called with.
const COMMON: &str = "Common";
/// What is added to a model, or left out of it.
const MODEL: &str = "Model";
/// Which memory the artifact is planned for.
const MEMORY: &str = "Memory";
/// Kernels for which devices, and an NPU's part.
const DEVICE: &str = "Device";
/// What is changed to measure, or to find an error.
const EXPERT: &str = "Expert";

/// Compiles a model into one artifact that unicorn-run makes resident and runs.
// Options are listed under the headings above. `-h` lists those of everyday use on one screen: all others have `hide_short_help`.
#[derive(Parser)]
#[command(
    name = "unicorn-compile",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    arg_required_else_help = true,
    after_long_help = EXAMPLES,
    next_help_heading = COMMON
)]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Command>,
    /// A Hugging Face folder, or a .gguf file
    #[arg(required_unless_present = "synthetic", help_heading = None::<&str>)]
    pub model: Option<PathBuf>,
    /// Artifact to write
    ///
    /// With --plan-only, the plan, as text or with --json as JSON.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Format of the weights: int4, int8, f16
    ///
    /// That of the matrices; embeddings and output head are one step finer (int8 with int4, f16 with int8).
    #[arg(long, value_name = "FORMAT", value_parser = WeightsOption::ALL.map(WeightsOption::name), default_value = "int4", hide_possible_values = true)]
    pub weights: String,
    #[arg(long = "target", value_name = "NAME", value_parser = target_names(), hide_possible_values = true, help = TARGET_HELP, long_help = target_help())]
    pub targets: Vec<String>,
    /// Tokens that there must be room for [default: 8192]
    ///
    /// Or as many as the model was made for, if those are fewer.
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<u32>,
    /// Only print where every byte would be placed
    ///
    /// Reads no weights, and writes nothing unless -o is given.
    #[arg(long, conflicts_with = "export_dequantized")]
    pub plan_only: bool,
    /// Replace an existing file that is no artifact
    #[arg(long)]
    pub force: bool,
    /// Also print each tensor's format and error
    ///
    /// Also what lies in which memory, all machines on which it fits, and how long each stage took.
    #[arg(short, long, conflicts_with_all = ["quiet", "json"])]
    pub verbose: bool,
    /// Print nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
    /// Print the report as one JSON object
    #[arg(long)]
    pub json: bool,
    /// Random weights of the shape that this config.json describes, instead of a model: good for timing only
    #[arg(long, value_name = "CONFIG.json", conflicts_with_all = ["model", "export_dequantized"], help_heading = MODEL, hide_short_help = true)]
    pub synthetic: Option<PathBuf>,
    /// LoRA adapter to merge into the weights, as PEFT writes it, times SCALE [default: 1]; may be given again
    #[arg(long = "lora", value_name = "DIR[:SCALE]", value_parser = Adapter::parse, conflicts_with = "synthetic", help_heading = MODEL, hide_short_help = true)]
    pub adapters: Vec<Adapter>,
    /// Smaller model with the same tokenizer, a Hugging Face folder or a .gguf file, to pack into the artifact: unicorn-run verifies its
    /// continuations, several tokens in one step
    #[arg(long, value_name = "MODEL", conflicts_with = "synthetic", help_heading = MODEL, hide_short_help = true)]
    pub draft: Option<PathBuf>,
    /// Leave out the head that predicts the token behind the next one (multi-token prediction): its drafts are then not verified
    #[arg(long, help_heading = MODEL, hide_short_help = true)]
    pub no_mtp: bool,
    /// Leave out a vision tower: the model then takes text alone, and is smaller
    #[arg(long, help_heading = MODEL, hide_short_help = true)]
    pub no_vision: bool,
    /// GGUF file with the model's vision tower and projector, which llama.cpp has beside that of the text model
    #[arg(long, value_name = "FILE", conflicts_with_all = ["synthetic", "no_vision"], help_heading = MODEL, hide_short_help = true)]
    pub mmproj: Option<PathBuf>,
    /// Fewest tokens of an image, for a model that takes images of any size (Qwen3-VL): smaller pictures are scaled up [default: as few as the model has]
    #[arg(long, value_name = "N", conflicts_with = "no_vision", value_parser = clap::value_parser!(u32).range(1..), help_heading = MODEL, hide_short_help = true)]
    pub image_min_tokens: Option<u32>,
    /// Most tokens of an image, for a model that takes images of any size (Qwen3-VL): one for 32 × 32 pixels, larger pictures are scaled down. More
    /// take more memory [default: as many as the model permits, 1024 at most]
    #[arg(long, value_name = "N", conflicts_with = "no_vision", value_parser = clap::value_parser!(u32).range(1..), help_heading = MODEL, hide_short_help = true)]
    pub image_max_tokens: Option<u32>,
    /// Weights that share an INT4 scale and zero point
    #[arg(long, value_parser = ["32", "64", "128"], default_value = "32", help_heading = MODEL, hide_short_help = true)]
    pub group: String,
    /// Number format of the KV cache: int8 holds twice the tokens in the same memory
    #[arg(long, value_parser = ["f16", "int8"], default_value = "f16", help_heading = MEMORY, hide_short_help = true)]
    pub kv: String,
    #[arg(long, value_name = "NAME|FILE", default_value = "generic", help = machine_help(), help_heading = MEMORY, hide_short_help = true)]
    pub machine: String,
    /// Sizes that replace the machine's, such as vram=8GiB,gtt=20GiB
    #[arg(long, value_name = "TIER=SIZE,…", help_heading = MEMORY, hide_short_help = true)]
    pub budget: Option<Budget>,
    /// Also make the alternatives of each kernel, from which unicorn-run tune chooses; --target native makes them, too
    #[arg(long, help_heading = DEVICE, hide_short_help = true)]
    pub alternatives: bool,
    /// Also give the artifact NPU programs of the model's prefill, with weights packed for them; with --emit mlir, write those of all products
    /// and of attention as MLIR and no artifact: FILE.SHAPE.mlir and FILE.SHAPE.generic.mlir
    #[arg(long, value_name = "DEVICE", value_parser = ["phoenix"], help_heading = DEVICE, hide_short_help = true)]
    pub npu: Option<String>,
    /// What the NPU does, whatever the estimate, separated by commas: qkv, output, ffn or none; or draft, all products of a step of one token,
    /// of the model that --draft names, or of this one for a model that makes drafts [default: what is faster there by the estimate]
    #[arg(long, value_name = "WORK", requires = "npu", value_delimiter = ',', value_parser = NPU_FOR, help_heading = DEVICE, hide_short_help = true)]
    pub npu_for: Vec<String>,
    /// Columns of the NPU that a program takes
    #[arg(long, value_name = "1-4", default_value = "4", requires = "npu", value_parser = clap::value_parser!(u8).range(1..=4), help_heading = DEVICE, hide_short_help = true)]
    pub npu_columns: u8,
    /// Tokens that a program computes: 1, 8, 64, 128, 256 or 512. Parts of 8 of a step of 64, and of 64, 128 or 256 of a step of 512, are divided between GPU
    /// and NPU, which compute at once
    #[arg(long, value_name = "TOKENS", default_value = "256", requires = "npu", value_parser = PossibleValuesParser::new(NPU_ROWS).map(|rows| rows.parse::<u16>().expect("each is a number")), hide_possible_values = true, help_heading = DEVICE, hide_short_help = true)]
    pub npu_rows: u16,
    /// Also print of each NPU program which limit decided the sizes of its tiles, and of each product the times by which it is given to the NPU or not
    #[arg(long, requires = "npu", conflicts_with_all = ["quiet", "json"], help_heading = DEVICE, hide_short_help = true)]
    pub explain: bool,
    /// Compile the cores of the NPU's programs with Peano (llvm-aie), AMD's compiler for them: a folder that has bin/clang++. Without it the
    /// programs start no core and do not run on an NPU; replan --npu-peano adds it later
    #[arg(long, value_name = "DIR", requires = "npu", help_heading = DEVICE, hide_short_help = true)]
    pub npu_peano: Option<PathBuf>,
    /// Version of mlir-aie's dialects that the MLIR is for
    #[arg(long, value_name = "YEAR", value_parser = ["2024", "2026"], default_value = "2026", requires = "npu", help_heading = DEVICE, hide_short_help = true)]
    pub npu_dialect: String,
    /// One kernel for each plain operation: slow, to check the fused graph against
    #[arg(long, help_heading = EXPERT, hide_short_help = true)]
    pub no_fuse: bool,
    /// Text forms to write beside the output, separated by commas; printed if there is no output
    #[arg(long, value_name = "FORM", value_parser = form_names(), value_delimiter = ',', help_heading = EXPERT, hide_short_help = true)]
    pub emit: Vec<String>,
    /// Also write a Hugging Face folder with the weights as the GPU will see them
    #[arg(long, value_name = "DIR", help_heading = EXPERT, hide_short_help = true)]
    pub export_dequantized: Option<PathBuf>,
}

/// The command line of this process; an error, help and the version end it.
pub fn parsed() -> Args {
    let matches = command().get_matches();
    Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// As it is parsed, and shown by `-h` and `--help`.
fn command() -> clap::Command {
    let command = with_short_help(Args::command(), "unicorn-compile");
    // Clap adds two options, under a heading of its own.
    command.mut_args(|one| match one.get_id().as_str() {
        "help" | "version" => one.help_heading(COMMON),
        _ => one,
    })
}

#[derive(Subcommand)]
pub enum Command {
    /// Plan an artifact's memory again, for another machine or budget; weights are not changed
    Replan(ReplanArgs),
    /// Add kernels for more targets to an artifact, without the model that it was compiled from
    Retarget(RetargetArgs),
    /// Rebuild the plan and kernels of an artifact with this version of the compiler; weights are not changed
    Upgrade(UpgradeArgs),
    /// Verify an artifact: rebuild its kernels, and with --from its weights, and compare
    Verify(VerifyArgs),
    /// Send an artifact to an OCI registry, from which unicorn-run pulls it
    Push(PushArgs),
    /// Print a shell's completions, as in: source <(unicorn-compile completions bash)
    // It prints nothing else; quiet is an option of every command.
    #[command(arg = clap::Arg::new("quiet").short('q').long("quiet").action(clap::ArgAction::SetTrue).help(QUIET_HELP))]
    Completions {
        /// Shell to print completions for
        shell: clap_complete::Shell,
    },
    /// Write man pages
    #[command(hide = true)]
    Man {
        /// Folder to write a page for each command to
        folder: PathBuf,
    },
}

#[derive(clap::Args)]
pub struct ReplanArgs {
    /// Artifact whose plan is replaced
    pub artifact: PathBuf,
    #[arg(long, value_name = "NAME|FILE", help = machine_help() + " [default: the one that the artifact was planned for]")]
    pub machine: Option<String>,
    /// Sizes that replace the machine's, such as vram=8GiB,gtt=20GiB
    #[arg(long, value_name = "TIER=SIZE,…")]
    pub budget: Option<Budget>,
    /// Sequence, in tokens, that there must be room for [default: as before]
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<u32>,
    /// Leave out the NPU's programs and weights, so that the GPU computes everything
    #[arg(long)]
    pub no_npu: bool,
    /// Give each NPU program its control image, NAME.pdi of this folder, which mlir-aie's aiecc makes of the program's MLIR; NAME.insts.bin, where it
    /// is there too, has to be the program's instructions
    #[arg(long, value_name = "DIR", conflicts_with = "no_npu")]
    pub npu_control: Option<PathBuf>,
    /// Compile the cores of each NPU program with Peano (llvm-aie), AMD's compiler for them: a folder that has bin/clang++
    #[arg(long, value_name = "DIR", conflicts_with_all = ["no_npu", "npu_control"])]
    pub npu_peano: Option<PathBuf>,
    /// Print nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
    /// Print the sums of the new plan as one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
pub struct RetargetArgs {
    /// Artifact that lacks kernels for a device
    pub artifact: PathBuf,
    /// Targets to make kernels for besides those that the artifact has; native: those that this machine's devices take
    #[arg(long = "target", value_name = "NAME", value_parser = target_names(), required_unless_present = "alternatives")]
    pub targets: Vec<String>,
    /// Also make the alternatives of each kernel, from which unicorn-run tune chooses
    #[arg(long)]
    pub alternatives: bool,
    /// Artifact to write [default: the same file, replaced when the new one is whole]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Replace the output file even if it is no artifact
    #[arg(long)]
    pub force: bool,
    /// Print nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
    /// Print the targets as one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
pub struct UpgradeArgs {
    /// Artifact that an earlier version made
    pub artifact: PathBuf,
    /// Artifact to write [default: the same file, replaced when the new one is whole]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Replace the output file even if it is no artifact
    #[arg(long)]
    pub force: bool,
    /// Print nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
    /// Print the targets as one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
pub struct VerifyArgs {
    /// Artifact to verify
    pub artifact: PathBuf,
    /// Hugging Face folder or .gguf file that it was compiled from: weights and tokenizer are compared, too
    #[arg(long, value_name = "MODEL")]
    pub from: Option<PathBuf>,
    /// Print nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
    /// Print what was compared as one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
pub struct PushArgs {
    /// Artifact to send
    pub artifact: PathBuf,
    /// Name that it gets: oci://REGISTRY/NAME:TAG
    #[arg(value_name = "REF")]
    pub reference: String,
    /// Sign the artifact with this private key: PEM, on the curve P-256 or P-384
    #[arg(long, value_name = "KEY")]
    pub sign: Option<PathBuf>,
    /// Certificates of the key as PEM, its own first; repeatable
    #[arg(long = "certificate", value_name = "FILE", requires = "sign")]
    pub certificates: Vec<PathBuf>,
    /// The registry has no TLS
    #[arg(long)]
    pub plain_http: bool,
    /// Print nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
    /// Print the manifest's digest and what was sent as one JSON object
    #[arg(long)]
    pub json: bool,
}

fn machine_help() -> String {
    let names = Machine::presets().collect::<Vec<_>>().join(", ");
    format!("Machine to plan memory for: {names}, or a file that describes one")
}

/// The kinds of this machine's devices, among names of targets.
pub const NATIVE: &str = "native";

fn target_names() -> Vec<&'static str> {
    targets().iter().map(|target| target.name).chain([NATIVE]).collect()
}

const QUIET_HELP: &str = "Print nothing but errors";
const TARGET_HELP: &str = "Device to make kernels for, repeatable; or native";

fn target_help() -> String {
    let names = target_names().join(", ");
    format!("{TARGET_HELP}: those of this machine\n\nOne of {names}. Without it, there are kernels for the common ones")
}

/// Work of --npu-for.
const NPU_FOR: [&str; 5] = ["qkv", "output", "ffn", "none", "draft"];

/// Values of --npu-rows: [`NpuOptions::ROWS`](unicorn_compiler::NpuOptions::ROWS).
const NPU_ROWS: [&str; 6] = ["1", "8", "64", "128", "256", "512"];

/// The form that --npu writes.
pub const MLIR: &str = "mlir";

fn form_names() -> PossibleValuesParser {
    let forms = Form::ALL.into_iter().map(|form| PossibleValue::new(form.name()).help(form.about()));
    forms
        .chain([PossibleValue::new(MLIR).help("NPU programs; with --npu, and nothing else is written")])
        .collect::<Vec<_>>()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
        command().debug_assert();
    }

    #[test]
    fn rows_of_npu_programs_are_those_of_the_library() {
        let rows: Vec<usize> = NPU_ROWS.iter().map(|rows| rows.parse().unwrap()).collect();
        assert_eq!(rows, unicorn_compiler::NpuOptions::ROWS);
        let parsed =
            |rows: &str| Args::try_parse_from(["unicorn-compile", "m", "--npu", "phoenix", "--npu-rows", rows]);
        assert_eq!(parsed("128").map(|args| args.npu_rows).unwrap(), 128);
        let error = parsed("100").err().expect("no step has rows for it").to_string();
        assert!(error.contains("1, 8, 64, 128, 256, 512"), "{error}");
        let help = command().render_long_help().to_string();
        assert!(help.replace("\n          ", " ").contains("1, 8, 64, 128, 256 or 512"), "{help}");
    }

    /// What most people need, on a terminal of 24 lines and 80 columns.
    #[test]
    fn short_help_fits_a_screen() {
        let short = command().render_help().to_string();
        assert!(short.lines().count() <= 24 && short.lines().all(|line| line.len() <= 80), "{short}");
        for name in ["replan", "verify", "--output", "--weights", "--target", "--quiet"] {
            assert!(short.contains(name), "{name} in:\n{short}");
        }
        let long = command().render_long_help().to_string();
        for heading in ["Commands", COMMON, MODEL, MEMORY, DEVICE, EXPERT] {
            assert_eq!(long.lines().filter(|line| *line == format!("{heading}:")).count(), 1, "{heading} in:\n{long}");
        }
        assert!(!long.contains("\nOptions:"), "{long}");
    }
}
