//! `cargo xtask phoenix-report` sets the driver up and runs this: the kernels of two models on RADV's null device, held
//! against their rules and the golden report. By hand, with the driver's variables set:
//! `cargo run -p tests --bin phoenix-report -- [--bless] [--subgroup-size LANES] [--dump FOLDER]`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tests::phoenix::estimate::{METHOD, estimates};
use tests::phoenix::golden::{self, Comparison};
use tests::phoenix::rules::broken;
use tests::phoenix::table::{LEGEND, alternatives_table, table};
use tests::phoenix::{CompiledModel, Kernel, second_start};
use unicorn_runtime::DeviceFacts;

const TARGET: &str = "rdna3";
const MODELS: [&str; 2] = ["gemma-3-27b", "llama-3-8b"];

fn main() -> ExitCode {
    match Arguments::parse(std::env::args().skip(1)).and_then(|arguments| run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Default)]
struct Arguments {
    bless: bool,
    /// Instead of the target's; then nothing is compared.
    subgroup_size: Option<u32>,
    /// Where each kernel's machine code goes.
    dump: Option<PathBuf>,
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let device = device()?;
    let mut target = unicorn_spirv::target::by_name(TARGET).expect("a preset");
    target.subgroup_size = arguments.subgroup_size.unwrap_or(target.subgroup_size);
    let models = MODELS.map(|name| {
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("benches/shapes/{name}.json"));
        CompiledModel::of(&config, &target, &device).map_err(|error| format!("{name}: {error}"))
    });
    let models = models.into_iter().collect::<Result<Vec<_>, String>>()?;
    if let Some(folder) = &arguments.dump {
        dump(folder, &models)?;
    }

    let head = format!("Kernels of target {TARGET} for {}, {}\n\n{LEGEND}", device.name, device.driver);
    let estimated: String = models.iter().map(estimates).collect();
    let (own, others) = (table(&models), alternatives_table(&models));
    let report = format!("{head}{own}\n{METHOD}\n{estimated}\n{others}");
    print!("{report}");

    let wrong: Vec<String> = models
        .iter()
        .flat_map(|model| [broken(&model.name, &model.kernels), broken(&model.name, &model.alternatives)].concat())
        .collect();
    if !wrong.is_empty() {
        return Err(format!("kernels break their rules:\n{}", wrong.join("\n")));
    }
    let wrong: Vec<String> = models.iter().flat_map(|model| second_start::broken(model, &device)).collect();
    if !wrong.is_empty() {
        return Err(format!("pipeline cache does not do its work:\n{}", wrong.join("\n")));
    }
    if arguments.subgroup_size.is_some() {
        return Ok(());
    }
    let path = golden::path();
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
            "report differs from {}; if it should, cargo xtask phoenix-report --bless and read the diff:\n{lines}",
            path.display()
        )),
    }
}

/// RADV's device for the 780M, with or without its hardware.
fn device() -> Result<DeviceFacts, String> {
    let devices = unicorn_runtime::devices().map_err(|error| error.to_string())?;
    let names: Vec<String> = devices.iter().map(|device| format!("{} ({})", device.name, device.driver)).collect();
    let is_phoenix = |device: &DeviceFacts| device.driver.starts_with("radv") && device.name.contains("PHOENIX");
    devices.into_iter().find(is_phoenix).ok_or(format!(
        "device is missing: expected RADV with RADV_FORCE_FAMILY=phoenix, found {}; cargo xtask phoenix-report sets it up",
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
        let mut arguments = Arguments::default();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("option {word} has no value"));
            match word.as_str() {
                "--bless" => arguments.bless = true,
                "--subgroup-size" => {
                    let text = value()?;
                    let lanes = text.parse().map_err(|_| format!("subgroup size: expected a number, found {text}"))?;
                    arguments.subgroup_size = Some(lanes);
                }
                "--dump" => arguments.dump = Some(value()?.into()),
                _ => return Err(format!("option {word} is unknown")),
            }
        }
        Ok(arguments)
    }
}
