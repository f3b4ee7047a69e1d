//! `cargo xtask radv-report` sets the driver up and runs this for each family: the kernels of its target on RADV's null device are
//! compared with their rules and the golden report. By hand, with the driver's variables set:
//! `cargo run -p tests --bin radv-report -- --family NAME [--bless] [--subgroup-size LANES] [--dump FOLDER]`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tests::radv::estimate::{estimates, method};
use tests::radv::family::{FAMILIES, Family};
use tests::radv::golden::{self, Comparison};
use tests::radv::rules::broken;
use tests::radv::table::{LEGEND, alternatives_table, table};
use tests::radv::{CompiledModel, Kernel, second_start};
use unicorn_runtime::DeviceFacts;

/// The family whose report has all models, alternatives and the pipeline cache's starts.
const FULL: &str = "phoenix";
const MODELS: [&str; 3] = ["gemma-3-27b", "llama-3-8b", "qwen3-30b-a3b"];

fn main() -> ExitCode {
    match Arguments::parse(std::env::args().skip(1)).and_then(|arguments| run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

struct Arguments {
    family: &'static Family,
    bless: bool,
    /// Subgroup size instead of the target's; then nothing is compared.
    subgroup_size: Option<u32>,
    /// Folder to which each kernel's machine code is written.
    dump: Option<PathBuf>,
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let family = arguments.family;
    let device = device(family)?;
    let mut target = family.target();
    let is_full = family.name == FULL;
    target.subgroup_size = arguments.subgroup_size.unwrap_or(target.subgroup_size);
    let models = &MODELS[if is_full { 0 } else { 1 }..];
    let models = models.iter().map(|name| {
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("benches/shapes/{name}.json"));
        CompiledModel::of(&config, &target, &device, is_full).map_err(|error| format!("{name}: {error}"))
    });
    let models = models.collect::<Result<Vec<_>, String>>()?;
    if let Some(folder) = &arguments.dump {
        dump(folder, &models)?;
    }

    let head = format!("Kernels of target {} for {}, {}\n\n{LEGEND}", target.name, device.name, device.driver);
    let estimated: String = models.iter().map(|model| estimates(model, family)).collect();
    let own = table(&models);
    let others = if is_full { format!("\n{}", alternatives_table(&models)) } else { String::new() };
    let report = format!("{head}{own}\n{}\n{estimated}{others}", method(family));
    print!("{report}");

    let wrong: Vec<String> = models
        .iter()
        .flat_map(|model| {
            [&model.kernels, &model.alternatives].map(|kernels| broken(&model.name, kernels, family)).concat()
        })
        .collect();
    if !wrong.is_empty() {
        return Err(format!("kernels break their rules:\n{}", wrong.join("\n")));
    }
    let started = models.iter().filter(|_| is_full);
    let wrong: Vec<String> = started.flat_map(|model| second_start::broken(model, &device)).collect();
    if !wrong.is_empty() {
        return Err(format!("pipeline cache does not do its work:\n{}", wrong.join("\n")));
    }
    if arguments.subgroup_size.is_some() {
        return Ok(());
    }
    let path = golden::path(family.name);
    if arguments.bless {
        return std::fs::write(&path, report).map_err(|error| format!("{}: {error}", path.display()));
    }
    let golden = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    match golden::compare(&golden, &report) {
        Comparison::Same => Ok(()),
        Comparison::OtherDriver => {
            eprintln!("report is not compared: {} was made by another driver", path.display());
            Ok(())
        }
        Comparison::Differs(lines) => Err(format!(
            "report differs from {}; if it should, cargo xtask radv-report --bless and read the diff:\n{lines}",
            path.display()
        )),
    }
}

/// RADV's device of the family, with or without its hardware.
fn device(family: &Family) -> Result<DeviceFacts, String> {
    let devices = unicorn_runtime::devices().map_err(|error| error.to_string())?;
    let names: Vec<String> = devices.iter().map(|device| format!("{} ({})", device.name, device.driver)).collect();
    let is_it = |device: &DeviceFacts| device.driver.starts_with("radv") && device.name.contains(family.chip);
    devices.into_iter().find(is_it).ok_or(format!(
        "device is missing: expected RADV with RADV_FORCE_FAMILY={}, found {}; cargo xtask radv-report sets it up",
        family.name,
        if names.is_empty() { "none".into() } else { names.join(", ") }
    ))
}

/// Writes `MODEL.INDEX.NAME.s` for every kernel.
fn dump(folder: &Path, models: &[CompiledModel]) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for model in models {
        for (index, kernel) in model.kernels.iter().enumerate() {
            let path = folder.join(format!("{}.{index}.{}.s", model.name, file_name(kernel)));
            std::fs::write(&path, kernel.assembly()).map_err(|error| format!("{}: {error}", path.display()))?;
        }
    }
    Ok(())
}

fn file_name(kernel: &Kernel) -> String {
    kernel.name.replace([' ', '/'], "-").replace('×', "x")
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
        let mut family = None;
        let mut arguments = Arguments { family: &FAMILIES[0], bless: false, subgroup_size: None, dump: None };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("option {word} has no value"));
            match word.as_str() {
                "--bless" => arguments.bless = true,
                "--family" => family = Some(value()?),
                "--subgroup-size" => {
                    let text = value()?;
                    let lanes = text.parse().map_err(|_| format!("subgroup size: expected a number, found {text}"))?;
                    arguments.subgroup_size = Some(lanes);
                }
                "--dump" => arguments.dump = Some(value()?.into()),
                _ => return Err(format!("option {word} is unknown")),
            }
        }
        let names = FAMILIES.iter().map(|family| family.name).collect::<Vec<_>>().join(", ");
        let named = family.as_deref().and_then(Family::named);
        arguments.family = named.ok_or(format!("--family: expected one of {names}, found {family:?}"))?;
        Ok(arguments)
    }
}
