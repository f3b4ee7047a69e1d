//! `cargo xtask loading`: how fast weights become resident in each way, beside what the disk, the memory and the page cache
//! can do, all in one run.

use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::binaries::Binaries;
use crate::run::{read, run};

#[derive(clap::Args)]
pub struct LoadingArgs {
    /// Artifact whose weights are loaded; a large one, such as `unicorn-compile --synthetic` makes
    artifact: PathBuf,
    /// Device number or part of its name [default: the best GPU]
    #[arg(short, long, env = "UNICORN_DEVICE")]
    device: Option<String>,
    /// unicorn-run to measure [default: the one that is built first, in release mode]
    #[arg(long, value_name = "PROGRAM")]
    runtime: Option<PathBuf>,
    /// Rounds; the median is printed
    #[arg(short, long, default_value_t = 3)]
    rounds: usize,
}

const WAYS: [&str; 4] = ["import", "map", "host", "staging"];

/// Prints a line a medium and a line a way. In each round every one of them takes its turn.
///
/// # Errors
/// When a program fails; a way that the device does not have is left out and said.
pub fn run_all(args: &LoadingArgs) -> Result<()> {
    let runtime = match &args.runtime {
        Some(program) => program.clone(),
        None => Binaries::build()?.runtime().get_program().into(),
    };
    let artifact = &args.artifact;
    let bytes = fs::metadata(artifact).with_context(|| format!("{} cannot be read", artifact.display()))?.len();
    let mut media: [Vec<f64>; 4] = Default::default();
    let mut ways: [[Vec<f64>; 2]; 4] = Default::default();
    for _ in 0..args.rounds {
        forget(artifact)?;
        media[0].push(rate(bytes, || read_once(artifact, &[]))?);
        media[1].push(rate(bytes, || read_once(artifact, &["iflag=direct"]))?);
        read_once(artifact, &[])?;
        media[2].push(rate(bytes, || read_once(artifact, &[]))?);
        media[3].push(copy_rate(bytes as usize));
        for (way, rates) in WAYS.into_iter().zip(&mut ways) {
            for (is_warm, rates) in [false, true].into_iter().zip(rates) {
                if is_warm {
                    read_once(artifact, &[])?
                } else {
                    forget(artifact)?
                }
                match load(&runtime, args, way) {
                    Ok(rate) => rates.push(rate),
                    Err(error) => eprintln!("{way} is left out: {error:#}"),
                }
            }
        }
    }
    let [cold, direct, warm, copy] = media.each_mut().map(|rates| median(rates));
    println!("dd, nothing cached      {cold:>6.2} GB/s");
    println!("dd, past the cache      {direct:>6.2} GB/s");
    println!("dd, all cached          {warm:>6.2} GB/s");
    println!("copy to fresh memory    {copy:>6.2} GB/s");
    for (way, rates) in WAYS.into_iter().zip(&mut ways) {
        let [from_disk, from_cache] = rates.each_mut().map(|rates| median(rates));
        if rates.iter().any(Vec::is_empty) {
            continue;
        }
        println!(
            "{way:<8} nothing cached {from_disk:>6.2} GB/s, {:>4.0} % of dd; all cached {from_cache:>6.2} GB/s, {:>4.0} % of a copy",
            100.0 * from_disk / if way == "host" { direct } else { cold },
            100.0 * from_cache / copy
        );
    }
    Ok(())
}

/// 10⁹ bytes a second of weights becoming resident.
fn load(runtime: &Path, args: &LoadingArgs, way: &str) -> Result<f64> {
    let mut command = Command::new(runtime);
    command.arg("bench").arg(&args.artifact).args(["--json", "--no-verify", "-p", "1", "-n", "1", "-r", "1"]);
    command.args(["--residency", way]);
    if let Some(device) = &args.device {
        command.args(["--device", device]);
    }
    let figures: Value = serde_json::from_str(&read(&mut command)?).context("figures of unicorn-run are not JSON")?;
    figures["load_gb_per_s"].as_f64().context("figures of unicorn-run lack load_gb_per_s")
}

/// 10⁹ bytes a second.
fn rate(bytes: u64, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    work()?;
    Ok(bytes as f64 / begin.elapsed().as_secs_f64() / 1e9)
}

fn read_once(file: &Path, flags: &[&str]) -> Result<()> {
    run(dd().arg(argument("if", file)).args(["of=/dev/null", "bs=8M"]).args(flags))
}

/// Drops the file from the page cache.
fn forget(file: &Path) -> Result<()> {
    run(dd().arg(argument("of", file)).args(["oflag=nocache", "conv=notrunc,fdatasync", "count=0"]))
}

fn dd() -> Command {
    let mut command = Command::new("dd");
    command.arg("status=none");
    command
}

fn argument(name: &str, path: &Path) -> std::ffi::OsString {
    let mut argument = std::ffi::OsString::from(format!("{name}="));
    argument.push(path);
    argument
}

/// On all cores, into memory that was not touched before, as weights go.
fn copy_rate(bytes: usize) -> f64 {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let source = vec![1u8; bytes / cores];
    let begin = Instant::now();
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| drop(black_box(black_box(&source).clone())));
        }
    });
    (cores * source.len()) as f64 / begin.elapsed().as_secs_f64() / 1e9
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(f64::NAN)
}
