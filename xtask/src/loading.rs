//! `cargo xtask loading`: how fast weights become resident by each upload path, compared with the rates of disk, memory and device,
//! all in one run. `bench-gpu.sh --loading` is the same on a machine without cargo.

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

const UPLOAD_PATHS: [&str; 4] = ["import", "map", "host", "staging"];

/// Rates of one medium or path, one for each round, in 10⁹ bytes a second.
#[derive(Default)]
struct Rates(Vec<f64>);

/// The rates of one path, and the memory to which it loaded the weights.
#[derive(Default)]
struct PathRates {
    nothing_cached: Rates,
    all_cached: Rates,
    /// Name of that memory, as unicorn-run prints it.
    to: String,
}

/// Rates of disk, memory and device.
#[derive(Default)]
struct Media {
    disk: Rates,
    disk_past_cache: Rates,
    page_cache: Rates,
    fresh_memory: Rates,
    copied: Rates,
    copied_to_host: Rates,
    mapped_device: Rates,
    mapped_host: Rates,
}

/// Prints a line a medium and a line a path, medians of the rounds so far after each, so that an interrupted run has printed some. Each round
/// measures every one of them.
///
/// # Errors
/// When a program fails; a path that the device does not have is left out with a note.
pub fn run_all(args: &LoadingArgs) -> Result<()> {
    let runtime = match &args.runtime {
        Some(program) => program.clone(),
        None => Binaries::build()?.runtime().get_program().into(),
    };
    let mut media = Media::default();
    let mut paths: [PathRates; 4] = Default::default();
    for round in 1..=args.rounds {
        let mut device = None;
        // The rate of a disk depends on earlier reads: it is measured first in every other round.
        let disk_first = round % 2 == 0;
        if disk_first {
            media.measure_disk(&args.artifact)?;
        }
        for (path, rates) in UPLOAD_PATHS.into_iter().zip(&mut paths) {
            match rates.measure(&runtime, args, path) {
                Ok(name) => device = Some(name),
                Err(error) => eprintln!("{path} is left out: {error:#}"),
            }
        }
        if !disk_first {
            media.measure_disk(&args.artifact)?;
        }
        media.measure_memory(&runtime, &args.artifact, &device.context("no path exists on this device")?)?;
        println!("after round {round} of {}", args.rounds);
        print(&media, &paths);
    }
    Ok(())
}

fn print(media: &Media, paths: &[PathRates; 4]) {
    for (name, rates) in media.named() {
        if let Some(rate) = rates.median() {
            println!("{name:<32}{rate:>8.2} GB/s");
        }
    }
    for (path, rates) in UPLOAD_PATHS.into_iter().zip(paths) {
        let [from_disk, from_cache] = media.of(path, &rates.to);
        let lines =
            [("nothing cached", &rates.nothing_cached, from_disk), ("all cached", &rates.all_cached, from_cache)];
        for (cached, rates_so, (name, medium)) in lines {
            let Some(rate) = rates_so.median() else { continue };
            let part = medium.median().map(|medium| format!(", {:.0} % of {name}", 100.0 * rate / medium));
            println!("{:<32}{rate:>8.2} GB/s{}", format!("{path}, {cached}"), part.unwrap_or_default());
        }
        if !rates.to.is_empty() {
            println!("  {}", rates.to);
        }
    }
}

impl PathRates {
    /// Loads twice; gives the device's name.
    fn measure(&mut self, runtime: &Path, args: &LoadingArgs, path: &str) -> Result<String> {
        forget(&args.artifact)?;
        let figures = load(runtime, args, path)?;
        self.nothing_cached.0.push(load_rate(&figures)?);
        read_once(&args.artifact, &[])?;
        let figures = load(runtime, args, path)?;
        self.all_cached.0.push(load_rate(&figures)?);
        let text = |key: &str| figures[key].as_str().map(String::from).with_context(|| format!("figures lack {key}"));
        self.to = text("load_upload_path")?;
        text("device")
    }
}

impl Media {
    fn measure_disk(&mut self, artifact: &Path) -> Result<()> {
        let bytes = len_bytes(artifact)?;
        forget(artifact)?;
        self.disk.0.push(rate(bytes, || read_once(artifact, &[]))?);
        match rate(bytes, || read_once(artifact, &["iflag=direct"])) {
            Ok(rate) => self.disk_past_cache.0.push(rate),
            Err(error) => eprintln!("reads past the cache are left out: {error:#}"),
        }
        Ok(())
    }

    fn measure_memory(&mut self, runtime: &Path, artifact: &Path, device: &str) -> Result<()> {
        let bytes = len_bytes(artifact)?;
        read_once(artifact, &[])?;
        self.page_cache.0.push(rate(bytes, || read_once(artifact, &[]))?);
        self.fresh_memory.0.push(copy_rate(bytes as usize));
        let devices = read(Command::new(runtime).args(["devices", "--json", "--transfers"]))?;
        let devices: Value = serde_json::from_str(&devices).context("devices of unicorn-run are not JSON")?;
        let mut listed = devices.as_array().into_iter().flatten();
        let row = listed.find(|row| row["name"] == device).with_context(|| format!("{device} is not listed"))?;
        let transfers = [
            (&mut self.copied, "copied_gb_per_s"),
            (&mut self.copied_to_host, "copied_to_host_gb_per_s"),
            (&mut self.mapped_device, "mapped_device_gb_per_s"),
            (&mut self.mapped_host, "mapped_host_gb_per_s"),
        ];
        for (rates, key) in transfers {
            rates.0.extend(row["transfers"][key].as_f64());
        }
        Ok(())
    }

    fn named(&self) -> [(&'static str, &Rates); 8] {
        [
            ("dd, nothing cached", &self.disk),
            ("dd, past the cache", &self.disk_past_cache),
            ("dd, all cached", &self.page_cache),
            ("copy to fresh memory", &self.fresh_memory),
            ("copies by the device", &self.copied),
            ("its copies to host memory", &self.copied_to_host),
            ("mapped device memory", &self.mapped_device),
            ("mapped host memory", &self.mapped_host),
        ]
    }

    /// Upper bounds of a path, from the disk and from the page cache; `to`: the memory to which it loaded the weights.
    fn of(&self, path: &str, to: &str) -> [(&'static str, &Rates); 2] {
        let [disk, past_cache, _, fresh_memory, copied, copied_to_host, mapped_device, mapped_host] = self.named();
        let device_local = to.contains("device-local");
        match path {
            // Nothing is copied, which is the least work of any path.
            "import" => [disk, fresh_memory],
            "host" => [past_cache, fresh_memory],
            // Written by all cores and copied by the device at the same time: the slower of the two.
            "staging" => {
                let copies = if device_local { copied } else { copied_to_host };
                let written = mapped_host.1.median().unwrap_or(f64::INFINITY);
                [past_cache, if copies.1.median().is_some_and(|rate| rate > written) { mapped_host } else { copies }]
            }
            _ if device_local => [past_cache, mapped_device],
            _ => [past_cache, mapped_host],
        }
    }
}

impl Rates {
    /// `None`: nothing was measured.
    fn median(&self) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }
}

/// unicorn-run's report of a load.
fn load(runtime: &Path, args: &LoadingArgs, path: &str) -> Result<Value> {
    let mut command = Command::new(runtime);
    command.arg("bench").arg(&args.artifact).args(["--json", "--no-verify", "-p", "1", "-n", "1", "-r", "1"]);
    command.args(["--load-alone", "--direct-io", "--residency", path]);
    if let Some(device) = &args.device {
        command.args(["--device", device]);
    }
    serde_json::from_str(&read(&mut command)?).context("figures of unicorn-run are not JSON")
}

/// The rate at which weights became resident.
fn load_rate(figures: &Value) -> Result<f64> {
    figures["load_gb_per_s"].as_f64().context("figures of unicorn-run lack load_gb_per_s")
}

/// 10⁹ bytes a second.
fn rate(bytes: u64, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    work()?;
    Ok(bytes as f64 / begin.elapsed().as_secs_f64() / 1e9)
}

fn len_bytes(file: &Path) -> Result<u64> {
    Ok(fs::metadata(file).with_context(|| format!("{} cannot be read", file.display()))?.len())
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

/// Copies on all cores into memory that was not accessed before, as in loading.
fn copy_rate(bytes: usize) -> f64 {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let source = vec![1u8; bytes / cores];
    let begin = Instant::now();
    let copies: Vec<Vec<u8>> = thread::scope(|scope| {
        let copying: Vec<_> = (0..cores).map(|_| scope.spawn(|| black_box(&source).clone())).collect();
        copying.into_iter().map(|thread| thread.join().expect("a copy does not panic")).collect()
    });
    let seconds = begin.elapsed().as_secs_f64();
    copies.iter().map(Vec::len).sum::<usize>() as f64 / seconds / 1e9
}
