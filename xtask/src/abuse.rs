//! `cargo xtask abuse`: fuzz targets with AddressSanitizer, Vulkan calls that fail, then abuse of the compiler, of loading and of the server
//! on the software device, and load.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::binaries::Binaries;
use crate::run::{cargo, run};
use crate::suites;
use crate::test::{self, on_software_device};

#[derive(clap::Args)]
pub struct AbuseArgs {
    /// Model folder to serve [default: the small model of the tests]
    model: Option<PathBuf>,
    /// Clients of the load
    #[arg(long, default_value_t = 16)]
    clients: u32,
    /// Minutes of load
    #[arg(long, default_value_t = 5)]
    minutes: u32,
    /// Seconds for each fuzz target
    #[arg(long, default_value_t = 20)]
    fuzz_seconds: u32,
}

/// Folders of `tests/fuzz/regressions`, by which the targets are named.
const REGRESSIONS: &str = "tests/fuzz/regressions";
const HOST: &str = "x86_64-unknown-linux-gnu";
/// libFuzzer's instrumentation, as cargo-fuzz sets it.
const FUZZ_FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Zsanitizer=address -Cdebug-assertions";

/// Runs everything up to the first finding.
///
/// # Errors
/// The first finding, or a build that fails.
pub fn run_all(args: &AbuseArgs) -> Result<()> {
    let binaries = Binaries::build()?;
    fuzz(args.fuzz_seconds)?;
    println!("Vulkan calls that fail, one at a time, while models load and run");
    let prepare = |command: &mut Command| {
        on_software_device(command);
    };
    suites::run_each(&suites::build(&test::FAULTS)?, prepare, &mut Vec::new())?;
    run(cargo().args(["build", "--release", "--package", "tests", "--bin", "abuse"]))?;
    let artifact = binaries.folder("abuse")?.join("model.unicorn");
    let model = args.model.clone().unwrap_or("tests/models/gemma3-2m-draft".into());
    run(&mut binaries.compile(&model, &artifact))?;
    let mut abuse = Command::new(binaries.runtime_path().with_file_name("abuse"));
    abuse
        .arg(binaries.runtime_path())
        .arg(&artifact)
        .args([args.clients, args.minutes].map(|number| number.to_string()))
        .arg(binaries.compiler_path())
        .arg(&model);
    run(on_software_device(&mut abuse))
}

fn fuzz(seconds: u32) -> Result<()> {
    run(cargo().args(["run", "--package", "tests", "--bin", "fuzz-seeds"]))?;
    let mut build = cargo();
    build.args(["build", "--manifest-path", "tests/fuzz/Cargo.toml", "--target", HOST]);
    // Sanitizers are not stable options; the runtime that they need comes with every toolchain.
    build.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", FUZZ_FLAGS);
    run(build.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1").env("CARGO_PROFILE_DEV_DEBUG", "0"))?;
    println!("| fuzz target, with AddressSanitizer | inputs | findings | time |\n|---|---|---|---|");
    for entry in std::fs::read_dir(REGRESSIONS).with_context(|| format!("folder cannot be read: {REGRESSIONS}"))? {
        let regressions = entry?.path();
        let target = regressions.file_name().context("a folder has a name")?.to_owned();
        let begun = Instant::now();
        let corpus = Path::new("tests/fuzz/corpus").join(&target);
        // Some targets have no seeds.
        std::fs::create_dir_all(&corpus).with_context(|| format!("cannot make {}", corpus.display()))?;
        let mut fuzzer = Command::new(Path::new("tests/fuzz/target").join(HOST).join("debug").join(&target));
        fuzzer.arg(corpus).arg(regressions).arg(format!("-max_total_time={seconds}"));
        // Modules that are compiled twice, by build scripts, define the same constants.
        fuzzer.args(["-print_final_stats=1", "-rss_limit_mb=4096"]).env("ASAN_OPTIONS", "detect_odr_violation=0");
        fuzzer.env("LSAN_OPTIONS", "suppressions=tests/fuzz/leaks.txt");
        let output = fuzzer.output().with_context(|| format!("{} did not start", target.display()))?;
        let report = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            bail!("fuzz target {} found something after {:.0?}:\n{report}", target.display(), begun.elapsed());
        }
        let inputs = executed(&report).with_context(|| format!("{} printed no statistics", target.display()))?;
        println!("| {} | {inputs} | none | {:.0} s |", target.display(), begun.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Inputs that libFuzzer's statistics count.
fn executed(report: &str) -> Option<u64> {
    let line = report.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_those_that_libfuzzer_counted() {
        assert_eq!(executed("Done 7 runs\nstat::number_of_executed_units: 1234\nstat::peak_rss_mb: 9\n"), Some(1234));
        assert_eq!(executed("INFO: Seed: 1234\n"), None);
    }
}
