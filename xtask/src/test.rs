//! `cargo xtask test`: everything that checks the project, cheap checks first.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::binaries::{self, build_with_tests, target_folder};
use crate::run::{cargo, run};
use crate::skipped::Skipped;
use crate::{deny, matrices, npu, radv_report, suites, system};

#[derive(clap::Args)]
pub struct TestArgs {
    /// Leave out the formatter and the linter
    #[arg(long)]
    fast: bool,
}

/// Runs every check up to the first that fails. If all succeed, prints what was skipped and what each check took.
///
/// # Errors
/// The check that failed.
pub fn run_all(args: &TestArgs) -> Result<()> {
    let skipped = Skipped::none_yet(&target_folder()?.join("skipped.txt"))?;
    let mut steps = Steps::default();
    // What a step prints before it fails is to stand last.
    check(args, &skipped, &mut steps)?;
    skipped.print()?;
    steps.print();
    Ok(())
}

fn check(args: &TestArgs, skipped: &Skipped, steps: &mut Steps) -> Result<()> {
    steps.time("system packages", |_| {
        system::install(&[&system::VULKAN[..], &system::VALIDATION, &system::REGISTRY, &system::SCHEMAS].concat())?;
        if let Err(error) = system::install_package_managers() {
            eprintln!("{error:#}; tests that need client libraries are skipped");
        }
        system::install_fincore()
    })?;
    if !args.fast {
        steps.time("Rust components", |_| system::install_rust_components())?;
        steps.cargo("format", &["fmt", "--all", "--check"])?;
        steps.cargo("lints", &["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"])?;
    }
    steps.time("dependencies", |_| deny::run_where_possible(skipped))?;
    // The engine must build without what other packages bring to its dependencies.
    steps.cargo("engine alone", &["check", "--package", "unicorn-runtime", "--lib"])?;
    steps.time("programs and tests", |_| build_with_tests())?;
    let prepare = |command: &mut Command| {
        on_software_device(skipped.reported_by(command));
    };
    steps.time("tests", |times| {
        // Examples are programs that one of the tests starts.
        suites::run_each(&binaries::tests()?, prepare, times)
    })?;
    steps.time("documentation", |_| {
        let mut doc = cargo();
        doc.args(["doc", "--workspace", "--lib", "--no-deps", "--exclude", "tests"]);
        run(doc.env("RUSTDOCFLAGS", "--deny warnings"))
    })?;
    steps.time("examples in the documentation", |_| {
        let mut doc = cargo();
        prepare(doc.args(["test", "--workspace", "--doc"]));
        run(&mut doc)
    })?;
    steps.time("matrices", |times| matrices::run_where_possible(skipped, times))?;
    steps.time("NPU streams and containers", |_| npu::compare_with_tools_where_possible(skipped))?;
    steps.time("NPU driver's structs", |_| npu::compare_headers_where_possible(skipped))?;
    steps.time("RADV reports", |_| radv_report::run_where_possible(skipped))?;
    steps.time("faults, and NPU programs with MLIR", |times| {
        let selection = [&FAULTS[..], npu::mlir_where_possible(skipped)?].concat();
        suites::run_each(&suites::build_with(&selection, npu::find_mlir)?, prepare, times)
    })
}

/// Tests in which Vulkan calls fail: a feature of its own, so that no other binary can fail on purpose.
pub const FAULTS: [&str; 7] = ["test", "--workspace", "--no-run", "--features", "fault-injection", "--test", "faults"];

/// Tests run on Mesa's software device, unless the environment names another.
pub fn on_software_device(command: &mut Command) -> &mut Command {
    match std::env::var_os("UNICORN_DEVICE") {
        Some(_) => command,
        None => command.env("UNICORN_DEVICE", "llvmpipe"),
    }
}

/// The steps that ran, with the time that each took.
#[derive(Default)]
struct Steps {
    taken: Vec<Step>,
}

struct Step {
    name: &'static str,
    time: Duration,
    /// Suites, where the step has some.
    parts: Vec<(String, Duration)>,
}

impl Steps {
    fn cargo(&mut self, name: &'static str, arguments: &[&str]) -> Result<()> {
        self.time(name, |_| run(cargo().args(arguments)))
    }

    fn time(
        &mut self,
        name: &'static str,
        step: impl FnOnce(&mut Vec<(String, Duration)>) -> Result<()>,
    ) -> Result<()> {
        let started = Instant::now();
        let mut parts = Vec::new();
        let result = step(&mut parts);
        self.taken.push(Step { name, time: started.elapsed(), parts });
        result.with_context(|| format!("{name} failed"))
    }

    fn print(&self) {
        eprintln!();
        for Step { name, time, parts } in &self.taken {
            eprintln!("{:>8.1} s  {name}", time.as_secs_f64());
            for (part, time) in parts {
                eprintln!("{:>18.1} s  {part}", time.as_secs_f64());
            }
        }
        let total: Duration = self.taken.iter().map(|step| step.time).sum();
        eprintln!("{:>8.1} s  in all", total.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn a_failing_step_is_named_and_timed() {
        let mut steps = Steps::default();
        steps.time("good", |_| Ok(())).unwrap();
        let error = steps.time("bad", |_| bail!("a reason")).unwrap_err();
        assert_eq!(format!("{error:#}"), "bad failed: a reason");
        assert_eq!(steps.taken.iter().map(|step| step.name).collect::<Vec<_>>(), ["good", "bad"]);
    }
}
