//! `cargo xtask test`: everything that checks the project, in the order in which mistakes are cheapest to hear of.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::binaries::build_with_tests;
use crate::run::{cargo, run};
use crate::system;
use crate::{matrices, phoenix_report};

#[derive(clap::Args)]
pub struct TestArgs {
    /// Leave out the formatter and the linter
    #[arg(long)]
    fast: bool,
}

/// Runs every check up to the first that fails, then prints what each took.
///
/// # Errors
/// The check that failed.
pub fn run_all(args: &TestArgs) -> Result<()> {
    let mut steps = Steps::default();
    let result = check(args, &mut steps);
    steps.print();
    result
}

fn check(args: &TestArgs, steps: &mut Steps) -> Result<()> {
    steps.time("system packages", || {
        system::install(&[system::VULKAN, system::VALIDATION].concat())?;
        system::install_fincore()
    })?;
    if !args.fast {
        steps.time("Rust components", system::install_rust_components)?;
        steps.cargo("format", &["fmt", "--all", "--check"])?;
        steps.cargo("lints", &["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"])?;
    }
    // The engine must build without what other packages bring to its dependencies.
    steps.cargo("engine alone", &["build", "--package", "unicorn-runtime", "--lib"])?;
    steps.time("programs and tests", build_with_tests)?;
    // One run tells of every test that fails, not only of the first.
    steps.time("tests", || run(on_software_device(cargo().args(["test", "--workspace", "--no-fail-fast"]))))?;
    steps.time("matrices", matrices::run_where_possible)?;
    // A feature of its own, so that no other binary can fail on purpose. Unit tests of all run again, in a second.
    let faults = ["test", "--workspace", "--features", "fault-injection", "--lib", "--test", "faults"];
    steps.time("faults", || run(on_software_device(cargo().args(faults))))?;
    steps.time("phoenix report", phoenix_report::run_where_possible)
}

/// Tests run on Mesa's software device, unless the environment names another.
fn on_software_device(command: &mut Command) -> &mut Command {
    match std::env::var_os("UNICORN_DEVICE") {
        Some(_) => command,
        None => command.env("UNICORN_DEVICE", "llvmpipe"),
    }
}

/// The steps that ran, with the time that each took.
#[derive(Default)]
struct Steps {
    taken: Vec<(&'static str, Duration)>,
}

impl Steps {
    fn cargo(&mut self, name: &'static str, arguments: &[&str]) -> Result<()> {
        self.time(name, || run(cargo().args(arguments)))
    }

    fn time(&mut self, name: &'static str, step: impl FnOnce() -> Result<()>) -> Result<()> {
        let started = Instant::now();
        let result = step();
        self.taken.push((name, started.elapsed()));
        result.with_context(|| format!("{name} failed"))
    }

    fn print(&self) {
        eprintln!();
        for (name, time) in &self.taken {
            eprintln!("{:>8.1} s  {name}", time.as_secs_f64());
        }
        let total: Duration = self.taken.iter().map(|(_, time)| time).sum();
        eprintln!("{:>8.1} s  in all", total.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_step_is_named_and_timed() {
        let mut steps = Steps::default();
        steps.time("good", || Ok(())).unwrap();
        let error = steps.time("bad", || anyhow::bail!("a reason")).unwrap_err();
        assert_eq!(format!("{error:#}"), "bad failed: a reason");
        assert_eq!(steps.taken.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["good", "bad"]);
    }
}
