//! The command line of `unicorn-compile`.

mod progress;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use compiler::emit::Form;
use compiler::import::Checkpoint;
use compiler::weights::{FormatPolicy, WeightsOption};
use compiler::{CompileError, CompileOptions, Source, compile, export};
use kernels::KvFormat;
use progress::Bars;
use shaders_gen::target;

/// Compiles a model into one artifact that unicorn-run makes resident and runs.
#[derive(Parser)]
#[command(name = "unicorn-compile", version)]
struct Args {
    /// A Hugging Face folder, or a .gguf file.
    #[arg(required_unless_present = "synthetic")]
    model: Option<PathBuf>,
    /// Random weights of the shape that this config.json describes, instead of a model: good for timing only.
    #[arg(long, value_name = "CONFIG.json", conflicts_with_all = ["model", "export_dequantized"])]
    synthetic: Option<PathBuf>,
    /// The artifact to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
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
    /// One kernel for each plain operation: slow, to check the fused graph against.
    #[arg(long)]
    no_fuse: bool,
    /// Text forms to write beside the artifact, separated by commas.
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

fn target_names() -> Vec<&'static str> {
    target::presets().iter().map(|target| target.name).collect()
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
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
        kv: if args.kv == "int8" { KvFormat::Int8 } else { KvFormat::F16 },
        emit: args.emit.clone(),
    };
    let mut bars = Bars::new(args.quiet || args.json);
    let source = match (&args.model, &args.synthetic) {
        (Some(model), _) => Source::Model(model),
        (None, Some(config)) => Source::Synthetic(config),
        (None, None) => unreachable!("clap wants one of them"),
    };
    let report = compile(source, &args.output, &options, &mut bars)?;
    bars.finish();
    if let (Some(folder), Some(model)) = (&args.export_dequantized, &args.model) {
        let checkpoint = Checkpoint::open(model)?;
        export::export(&checkpoint, &args.output, policy, options.fuse, folder)?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report).expect("a report is plain data"));
    } else if !args.quiet {
        println!("{report}");
    }
    Ok(())
}
