//! The command line of `unicorn-compile`.

mod interrupt;
mod progress;
mod threads;

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Parser, Subcommand};
use progress::Bars;
use serde::Serialize;
use unicorn_compiler::{
    Budget, CompileError, CompileOptions, Form, FormatPolicy, KvFormat, Machine, PlanReport, Remedy, ReplanOptions,
    Source, WeightsOption, check_export, check_replaced, compile, export, is_artifact, plan, replan, targets,
    write_text,
};

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
    #[arg(long, value_parser = WeightsOption::ALL.map(WeightsOption::name), default_value = "int4")]
    weights: String,
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
    #[arg(long, value_name = "FORM", value_parser = form_names(), value_delimiter = ',')]
    emit: Vec<String>,
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
    targets().iter().map(|target| target.name).collect()
}

fn form_names() -> PossibleValuesParser {
    Form::ALL.map(|form| PossibleValue::new(form.name()).help(form.about())).into()
}

fn main() -> ExitCode {
    threads::keep_to_one_heap();
    let args = Args::parse();
    interrupt::fail_when_memory_runs_out();
    threads::start_pool_here();
    let result = match &args.command {
        Some(Command::Replan(args)) => run_replan(args),
        None => run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A stderr that takes nothing (a log on a full disk) must not end in a panic.
            let _ = writeln!(std::io::stderr(), "error: {}", with_flags(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error with what to type: the library knows no command line.
fn with_flags(error: &CompileError) -> String {
    match error {
        CompileError::Option { option, what } => {
            let flag = match *option {
                "group" => "--group",
                "targets" => "--target",
                "context_tokens" => "--context",
                "machine" => "--machine",
                "budget" => "--budget",
                _ => return what.clone(),
            };
            format!("{what} ({flag})")
        }
        CompileError::DoesNotFit { what, remedies } if !remedies.is_empty() => {
            let flags: Vec<String> = remedies.iter().map(flags_of).collect();
            format!("{what}\n  try {}", flags.join(" or "))
        }
        other => other.to_string(),
    }
}

fn flags_of(remedy: &Remedy) -> String {
    match remedy {
        Remedy::Context(tokens) => format!("--context {tokens}"),
        Remedy::Kv(format) => format!("--kv {}", format.name()),
        Remedy::Weights(FormatPolicy { weights, group }) => format!("--weights {} --group {group}", weights.name()),
        Remedy::Memory { tier, bytes } => format!("--budget {}={}MiB", tier.name(), bytes >> 20),
        other => format!("{other:?}"),
    }
}

fn run(args: &Args) -> Result<(), CompileError> {
    let mut options = CompileOptions::default();
    let weights = WeightsOption::ALL.into_iter().find(|weights| weights.name() == args.weights);
    let group = args.group.parse().expect("clap took 32, 64 or 128");
    options.policy = FormatPolicy { weights: weights.expect("clap took one of them"), group };
    if !args.targets.is_empty() {
        options.targets.retain(|target| args.targets.iter().any(|name| name == target.name));
    }
    options.fuse = !args.no_fuse;
    options.alternatives = !args.no_alternatives;
    options.kv = if args.kv == "int8" { KvFormat::Int8 } else { KvFormat::F16 };
    let form_named = |name: &String| Form::ALL.into_iter().find(|form| form.name() == name);
    options.emit = args.emit.iter().filter_map(form_named).collect();
    let machine = Machine::named(&args.machine).and_then(|one| one.plan(&args.budget.clone().unwrap_or_default()));
    options.machine = machine.map_err(CompileError::of_machine)?;
    options.context_tokens = args.context;
    let mut bars = Bars::new(args.quiet || args.json);
    let source = match (&args.model, &args.synthetic) {
        (Some(model), _) => Source::Model(model),
        (None, Some(config)) => Source::Synthetic(config),
        (None, None) => unreachable!("clap wants one of them"),
    };
    let Some(output) = args.output.as_ref().filter(|_| !args.plan_only) else {
        return plan_only(args, source, &options, &mut bars);
    };
    let export_to = args.export_dequantized.as_ref().zip(args.model.as_ref());
    if let Some((folder, model)) = export_to {
        check_export(model, folder)?;
    }
    let report = compile(source, output, &options, &mut bars)?;
    if let Some((folder, model)) = export_to {
        export(model, output, &options, folder, &mut bars)?;
    }
    bars.finish();
    print(args.json, args.quiet, &report)
}

/// The plan without the model: its sums on stdout, itself in the output file.
fn plan_only(args: &Args, source: Source, options: &CompileOptions, bars: &mut Bars) -> Result<(), CompileError> {
    // The same command without --plan-only may have made it.
    if let Some(output) = args.output.as_ref().filter(|output| is_artifact(output)) {
        let what = "file is an artifact, expected a name for the plan".into();
        return Err(CompileError::Malformed { path: output.clone(), what });
    }
    if let Some(output) = &args.output {
        check_replaced(source, output)?;
    }
    let planned = plan(source, options, bars)?;
    bars.finish();
    let report = PlanReport::of(&planned);
    print(args.json, args.quiet, &report)?;
    if let Some(output) = &args.output {
        let text = if args.json { report.json() } else { Form::Plan.text(&planned) };
        write_text(output, &text)?;
    }
    for form in &options.emit {
        let text = form.text(&planned);
        match &args.output {
            Some(output) => {
                let path = unicorn_compiler::beside(output, form.name());
                write_text(&path, &text)?;
            }
            None => say(&text)?,
        }
    }
    Ok(())
}

fn run_replan(args: &ReplanArgs) -> Result<(), CompileError> {
    let mut options = ReplanOptions::default();
    options.machine = args.machine.as_deref().map(Machine::named).transpose().map_err(CompileError::of_machine)?;
    options.budget = args.budget.clone().unwrap_or_default();
    options.context_tokens = args.context;
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
            Err(CompileError::Io { path: PathBuf::from("stdout"), source: error })
        }
        _ => Ok(()),
    }
}
