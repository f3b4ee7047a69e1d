//! The command line of `unicorn-compile`.

mod interrupt;
mod progress;

use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use progress::Bars;
use serde::Serialize;
use unicorn_artifact::view::is_artifact;
use unicorn_artifact::{Budget, cores, limits};
use unicorn_compiler::emit::Form;
use unicorn_compiler::import::Checkpoint;
use unicorn_compiler::machine::Machine;
use unicorn_compiler::replan::{ReplanOptions, replan};
use unicorn_compiler::report::PlanReport;
use unicorn_compiler::weights::{FormatPolicy, WeightsOption};
use unicorn_compiler::{CompileError, CompileOptions, Source, compile, export, outputs, plan};
use unicorn_kernels::KvFormat;
use unicorn_spirv::target;

/// Compiles a model into one artifact that unicorn-run makes resident and runs.
#[derive(Parser)]
#[command(name = "unicorn-compile", version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// A Hugging Face folder, or a .gguf file.
    #[arg(required_unless_present = "synthetic")]
    model: Option<PathBuf>,
    /// Random weights of the shape that this config.json describes, instead of a model: good for timing only.
    #[arg(long, value_name = "CONFIG.json", conflicts_with_all = ["model", "export_dequantized"])]
    synthetic: Option<PathBuf>,
    /// The artifact to write; with --plan-only, the plan, as text or with --json as JSON.
    #[arg(short, long, value_name = "FILE", required_unless_present = "plan_only")]
    output: Option<PathBuf>,
    /// Format of the weight matrices; embeddings and output head are one step finer (int8 with int4, f16 with int8).
    #[arg(long, value_enum, default_value = "int4")]
    weights: WeightsOption,
    /// Weights that share an INT4 scale and zero point.
    #[arg(long, value_parser = ["32", "64", "128"], default_value = "32")]
    group: String,
    /// Number format of the KV cache: int8 holds twice the tokens in the same memory.
    #[arg(long, value_parser = ["f16", "int8"], default_value = "f16")]
    kv: String,
    /// Device kinds to make kernels for; all of them if not given.
    #[arg(long = "target", value_name = "NAME", value_parser = target_names())]
    targets: Vec<String>,
    #[arg(long, value_name = "NAME|FILE", default_value = "generic", help = machine_help())]
    machine: String,
    /// Sizes that take the place of the machine's, such as vram=8GiB,gtt=20GiB.
    #[arg(long, value_name = "TIER=SIZE,…")]
    budget: Option<Budget>,
    /// Sequence, in tokens, that there must be room for [default: 8192, or as many as the model was made for].
    #[arg(long, value_name = "TOKENS")]
    context: Option<u32>,
    /// Only say where every byte would live; reads no weights, and writes nothing unless -o is given.
    #[arg(long, conflicts_with = "export_dequantized")]
    plan_only: bool,
    /// One kernel for each plain operation: slow, to check the fused graph against.
    #[arg(long)]
    no_fuse: bool,
    /// Leave out the other ways to run each kernel, from which unicorn-run tune chooses.
    #[arg(long)]
    no_alternatives: bool,
    /// Text forms to write beside the output, separated by commas; printed if there is no output.
    #[arg(long, value_enum, value_delimiter = ',')]
    emit: Vec<Form>,
    /// Also write a Hugging Face folder with the weights as the GPU will see them.
    #[arg(long, value_name = "DIR")]
    export_dequantized: Option<PathBuf>,
    /// Print nothing but errors.
    #[arg(short, long)]
    quiet: bool,
    /// Print the report as one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Give the bytes of an artifact other places; its weights stay as they are
    Replan(ReplanArgs),
}

#[derive(clap::Args)]
struct ReplanArgs {
    /// Artifact whose plan is replaced
    artifact: PathBuf,
    #[arg(long, value_name = "NAME|FILE", help = machine_help() + " [default: the one that the artifact was planned for]")]
    machine: Option<String>,
    /// Sizes that take the place of the machine's, such as vram=8GiB,gtt=20GiB
    #[arg(long, value_name = "TIER=SIZE,…")]
    budget: Option<Budget>,
    /// Sequence, in tokens, that there must be room for [default: as before]
    #[arg(long, value_name = "TOKENS")]
    context: Option<u32>,
    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,
    /// Print the sums of the new plan as one JSON object
    #[arg(long)]
    json: bool,
}

fn machine_help() -> String {
    let names = Machine::presets().collect::<Vec<_>>().join(", ");
    format!("Machine to plan memory for: {names}, or a file that describes one")
}

fn target_names() -> Vec<&'static str> {
    target::presets().iter().map(|target| target.name).collect()
}

fn main() -> ExitCode {
    limits::keep_to_one_heap();
    let args = Args::parse();
    interrupt::fail_when_memory_runs_out();
    cores::start_pool_here();
    let result = match &args.command {
        Some(Command::Replan(args)) => run_replan(args),
        None => run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A stderr that takes nothing (a log on a full disk) must not end in a panic.
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), CompileError> {
    let wanted = |name: &str| args.targets.is_empty() || args.targets.iter().any(|target| target == name);
    let policy = FormatPolicy { weights: args.weights, group: args.group.parse().expect("clap took 32, 64 or 128") };
    let options = CompileOptions {
        policy,
        targets: target::presets().into_iter().filter(|target| wanted(target.name)).collect(),
        fuse: !args.no_fuse,
        alternatives: !args.no_alternatives,
        kv: if args.kv == "int8" { KvFormat::Int8 } else { KvFormat::F16 },
        emit: args.emit.clone(),
        machine: Machine::named(&args.machine)?.plan(&args.budget.clone().unwrap_or_default())?,
        context_tokens: args.context,
    };
    let mut bars = Bars::new(args.quiet || args.json);
    let source = match (&args.model, &args.synthetic) {
        (Some(model), _) => Source::Model(model),
        (None, Some(config)) => Source::Synthetic(config),
        (None, None) => unreachable!("clap wants one of them"),
    };
    let Some(output) = args.output.as_ref().filter(|_| !args.plan_only) else {
        return plan_only(args, source, &options, &mut bars);
    };
    outputs::check_artifact(source, output)?;
    let export_to = args.export_dequantized.as_ref().zip(args.model.as_ref());
    if let Some((folder, model)) = export_to {
        outputs::check_export(model, folder)?;
    }
    let report = compile(source, output, &options, &mut bars)?;
    if let Some((folder, model)) = export_to {
        let checkpoint = Checkpoint::open(model)?;
        export::export(&checkpoint, output, policy, options.fuse, folder, &mut bars)?;
    }
    bars.finish();
    print(args.json, args.quiet, &report)
}

/// The plan without the model: its sums on stdout, itself in the output file.
fn plan_only(args: &Args, source: Source, options: &CompileOptions, bars: &mut Bars) -> Result<(), CompileError> {
    // The same command without --plan-only may have made it.
    if let Some(output) = args.output.as_ref().filter(|output| is_artifact(output)) {
        return Err(CompileError::malformed(output, "file is an artifact, expected a name for the plan"));
    }
    if let Some(output) = &args.output {
        outputs::check_replaced(source, output)?;
    }
    let planned = plan(source, options, bars)?;
    bars.finish();
    let report = PlanReport::of(&planned);
    print(args.json, args.quiet, &report)?;
    if let Some(output) = &args.output {
        let text = if args.json { report.json() } else { Form::Plan.text(&planned) };
        outputs::write_text(output, &text)?;
    }
    for form in &options.emit {
        let text = form.text(&planned);
        match &args.output {
            Some(output) => {
                let path = unicorn_compiler::beside(output, form.name());
                outputs::write_text(&path, &text)?;
            }
            None => say(&text)?,
        }
    }
    Ok(())
}

fn run_replan(args: &ReplanArgs) -> Result<(), CompileError> {
    let options = ReplanOptions {
        machine: args.machine.as_deref().map(Machine::named).transpose()?,
        budget: args.budget.clone().unwrap_or_default(),
        context_tokens: args.context,
    };
    let mut bars = Bars::new(args.quiet || args.json);
    let account = replan(&args.artifact, &options, &mut bars)?;
    bars.finish();
    print(args.json, args.quiet, &account)
}

fn print<T: Display + Serialize>(json: bool, quiet: bool, report: &T) -> Result<(), CompileError> {
    match (json, quiet) {
        (true, _) => say(&(serde_json::to_string_pretty(report).expect("a report is plain data") + "\n")),
        (false, true) => Ok(()),
        (false, false) => say(&format!("{report}\n")),
    }
}

/// Prints to stdout; a reader that has gone (`| head`) is no mistake of ours.
fn say(text: &str) -> Result<(), CompileError> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(CompileError::io(Path::new("stdout"))(error))
        }
        _ => Ok(()),
    }
}
