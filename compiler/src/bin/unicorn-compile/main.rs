//! The command line of `unicorn-compile`.

mod args;
mod explain;
mod interrupt;
mod native;
mod npu;
mod progress;
mod push;
mod threads;

use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use args::{Args, Command, MLIR, NATIVE, ReplanArgs, RetargetArgs, UpgradeArgs, VerifyArgs};
use clap::CommandFactory;
use progress::Bars;
use serde::Serialize;
use unicorn_artifact::printable::{printable, printable_lines};
use unicorn_compiler::import::open_model;
use unicorn_compiler::{
    Additions, CompileError, CompileOptions, Form, FormatPolicy, KvFormat, Machine, PlanReport, ReplanOptions, Source,
    Target, WeightsOption, check_export, check_kind, check_replaced, compile, export, is_artifact, plan, replan,
    reproduce, retarget, targets, write_text,
};
use unicorn_terminal::{columns, quoted_path, wrapped};

fn main() -> ExitCode {
    threads::keep_to_one_heap();
    let args = args::parsed();
    interrupt::fail_when_memory_runs_out();
    interrupt::leave_out_panics_of_trials();
    threads::start_pool_here();
    let result = match &args.command {
        Some(Command::Push(args)) => push::run(args),
        _ => compile_or_change(&args).map_err(|error| explain::explain(&error)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            progress::note(&format!("error: {message}"));
            ExitCode::FAILURE
        }
    }
}

/// Every command that only reads and writes files.
fn compile_or_change(args: &Args) -> Result<(), CompileError> {
    match &args.command {
        Some(Command::Replan(args)) => run_replan(args),
        Some(Command::Retarget(args)) => run_retarget(args),
        Some(Command::Upgrade(args)) => run_upgrade(args),
        Some(Command::Verify(args)) => run_verify(args),
        Some(Command::Completions { shell }) => print_completions(*shell),
        Some(Command::Man { folder }) => write_man_pages(folder),
        Some(Command::Push(_)) | None => run(args),
    }
}

fn print_completions(shell: clap_complete::Shell) -> Result<(), CompileError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "unicorn-compile", &mut script);
    say(&String::from_utf8_lossy(&script))
}

fn write_man_pages(folder: &Path) -> Result<(), CompileError> {
    let written = clap_mangen::generate_to(Args::command(), folder);
    written.map_err(|source| CompileError::Io { path: folder.to_owned(), source })
}

fn run(args: &Args) -> Result<(), CompileError> {
    let mut options = CompileOptions::default();
    let weights = WeightsOption::ALL.into_iter().find(|weights| weights.name() == args.weights);
    let group = args.group.parse().expect("clap took 32, 64 or 128");
    options.policy = FormatPolicy { weights: weights.expect("clap took one of them"), group };
    if !args.targets.is_empty() {
        options.targets = targets_named(&args.targets)?;
    }
    (options.fuse, options.vision, options.predictor) = (!args.no_fuse, !args.no_vision, !args.no_mtp);
    options.alternatives = args.alternatives || args.targets == [NATIVE];
    options.kv = if args.kv == "int8" { KvFormat::Int8 } else { KvFormat::F16 };
    let form_named = |name: &String| Form::ALL.into_iter().find(|form| form.name() == name);
    options.emit = args.emit.iter().filter_map(form_named).collect();
    let machine = Machine::named(&args.machine).and_then(|one| one.plan(&args.budget.clone().unwrap_or_default()));
    options.machine = machine.map_err(CompileError::of_machine)?;
    options.context_tokens = args.context;
    options.adapters = args.adapters.clone();
    options.draft.clone_from(&args.draft);
    options.projector.clone_from(&args.mmproj);
    options.image_min_tokens = args.image_min_tokens;
    options.image_max_tokens = args.image_max_tokens;
    let mut bars = Bars::new(args.quiet || args.json);
    bars.expects_text = args.synthetic.is_none();
    let source = match (&args.model, &args.synthetic) {
        (Some(model), _) => Source::Model(model),
        (None, Some(config)) => Source::Synthetic(config),
        (None, None) => unreachable!("clap requires one of them"),
    };
    options.npu = npu::requested(args)?;
    if args.emit.iter().any(|name| name == MLIR) {
        return npu::write_programs(args, source, &options, &mut bars);
    }
    if args.output.is_none() && !args.plan_only {
        // What is wrong with the model is said first.
        if let Source::Model(path) = source {
            drop(open_model(path)?);
        }
        let what = "artifact has no name, expected -o FILE, such as -o model.unicorn; --plan-only writes none".into();
        return Err(CompileError::Option { option: "output", what });
    }
    let Some(output) = args.output.as_ref().filter(|_| !args.plan_only) else {
        return plan_only(args, source, &options, &mut bars);
    };
    let export_to = args.export_dequantized.as_ref().zip(args.model.as_ref());
    if let Some((folder, model)) = export_to {
        check_export(model, folder)?;
    }
    if !args.force {
        check_replaced(source, output)?;
        check_kind(output)?;
    }
    let report = compile(source, output, &options, &mut bars)?;
    if let Some((folder, model)) = export_to {
        export(model, output, &options, folder, &mut bars)?;
    }
    bars.finish();
    if args.json {
        return print(true, args.quiet, &report);
    }
    if args.explain {
        npu::explain(&report.npu_programs)?;
    }
    if args.verbose {
        say(&format!("{}\n", report.details()))?;
    }
    let output = printable(&quoted_path(output)).into_owned();
    print(false, args.quiet, &format!("{report}\n  run it    unicorn-run {output}"))
}

/// The plan without the model: its sums on stdout, the plan itself in the output file.
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
    if args.explain {
        npu::explain(report.npu_programs)?;
    }
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
    options.no_npu = args.no_npu;
    options.npu_control.clone_from(&args.npu_control);
    options.npu_peano.clone_from(&args.npu_peano);
    let mut bars = Bars::new(args.quiet || args.json);
    let account = replan(&args.artifact, &options, &mut bars)?;
    bars.finish();
    print(args.json, args.quiet, &account)
}

fn run_retarget(args: &RetargetArgs) -> Result<(), CompileError> {
    let output = output_of(&args.artifact, args.output.as_ref(), args.force)?;
    let mut bars = Bars::new(args.quiet || args.json);
    let additions = Additions { targets: targets_named(&args.targets)?, alternatives: args.alternatives };
    let retargeted = retarget(&args.artifact, output, &additions, &mut bars)?;
    bars.finish();
    print(args.json, args.quiet, &retargeted)
}

/// Makes all parts except weights again from the model's numbers in the metadata, for the targets that the artifact has.
fn run_upgrade(args: &UpgradeArgs) -> Result<(), CompileError> {
    let output = output_of(&args.artifact, args.output.as_ref(), args.force)?;
    let mut bars = Bars::new(args.quiet || args.json);
    let upgraded = retarget(&args.artifact, output, &Additions::default(), &mut bars)?;
    bars.finish();
    print(args.json, args.quiet, &upgraded)
}

/// The file that the changed artifact is written to: `output`, or the artifact itself, whose kind is checked when it is read.
fn output_of<'a>(artifact: &'a Path, output: Option<&'a PathBuf>, force: bool) -> Result<&'a Path, CompileError> {
    match output {
        Some(output) if !force => check_kind(output).map(|()| output.as_path()),
        output => Ok(output.map_or(artifact, PathBuf::as_path)),
    }
}

/// The targets, each once, with those of this machine's devices in place of `native`.
fn targets_named(names: &[String]) -> Result<Vec<Target>, CompileError> {
    let native = if names.iter().any(|name| name == NATIVE) { native::target_names()? } else { Vec::new() };
    let is_named = |target: &Target| names.iter().any(|name| name == target.name) || native.contains(&target.name);
    Ok(targets().into_iter().filter(is_named).collect())
}

fn run_verify(args: &VerifyArgs) -> Result<(), CompileError> {
    let mut bars = Bars::new(args.quiet || args.json);
    let reproduced = reproduce(&args.artifact, args.from.as_deref(), &mut bars)?;
    bars.finish();
    print(args.json, args.quiet, &reproduced)
}

fn print<T: Display + Serialize>(json: bool, quiet: bool, report: &T) -> Result<(), CompileError> {
    match (json, quiet) {
        (true, _) => write(&(serde_json::to_string_pretty(report).expect("a report is plain data") + "\n")),
        (false, true) => Ok(()),
        (false, false) => say(&format!("{report}\n")),
    }
}

/// Prints text for people, in which names come from files; on a terminal, its lines are broken at the terminal's width.
fn say(text: &str) -> Result<(), CompileError> {
    write(&wrapped(&printable_lines(text), columns(std::io::stdout())))
}

/// Prints to stdout; a closed pipe (`| head`) is not an error.
fn write(text: &str) -> Result<(), CompileError> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(CompileError::Io { path: PathBuf::from("stdout"), source: error })
        }
        _ => Ok(()),
    }
}
