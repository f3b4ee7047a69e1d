//! Test programs, each run separately, so that the time of each is known and all run although one fails.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::run::{cargo, read, run};

/// A program that cargo has built, as its messages describe it.
#[derive(Debug, PartialEq, Eq)]
pub struct Built {
    pub path: PathBuf,
    /// Name of the target: `e2e`, `unicorn_kernels`.
    pub name: String,
    /// `lib`, `bin`, `test`.
    pub kind: String,
    /// The folder of its package.
    pub package: PathBuf,
    /// Whether it consists of tests.
    pub is_test: bool,
}

impl Built {
    /// Name of the program for people.
    fn title(&self) -> String {
        if self.kind == "test" { self.name.clone() } else { format!("{}, unit tests", self.name) }
    }

    /// Runs as cargo runs it, behind `runner`, which is empty or a program with arguments.
    pub fn command(&self, runner: &[String]) -> Command {
        let mut command = match runner {
            [] => Command::new(&self.path),
            [program, arguments @ ..] => {
                let mut command = Command::new(program);
                command.args(arguments).arg(&self.path);
                command
            }
        };
        command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package);
        command
    }
}

/// Builds the targets that cargo's `arguments` select and returns their programs.
///
/// # Errors
/// When it does not build.
pub fn build(arguments: &[&str]) -> Result<Vec<Built>> {
    build_with(arguments, |_| ())
}

/// As [`build`], by a cargo that is prepared by `prepare`.
///
/// # Errors
/// When it does not build.
pub fn build_with(arguments: &[&str], prepare: impl FnOnce(&mut Command)) -> Result<Vec<Built>> {
    let mut command = cargo();
    prepare(&mut command);
    programs(&read(command.args(arguments).arg("--message-format=json-render-diagnostics"))?)
}

/// Runs the tests among `programs`, each prepared by `prepare`, and adds each one's time to `times`.
///
/// # Errors
/// Names all that failed, after all have run.
pub fn run_each(programs: &[Built], prepare: impl Fn(&mut Command), times: &mut Vec<(String, Duration)>) -> Result<()> {
    let mut failed = Vec::new();
    for suite in programs.iter().filter(|program| program.is_test) {
        let mut command = suite.command(&[]);
        prepare(&mut command);
        let started = Instant::now();
        if let Err(error) = run(&mut command) {
            eprintln!("{error:#}");
            failed.push(suite.title());
        }
        times.push((suite.title(), started.elapsed()));
    }
    if !failed.is_empty() {
        bail!("these suites failed: {}", failed.join("; "));
    }
    Ok(())
}

fn programs(messages: &str) -> Result<Vec<Built>> {
    let mut found = Vec::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line).context("message of cargo is not JSON")?;
        let Some(path) = message["executable"].as_str() else { continue };
        let text = |value: &Value| value.as_str().map(str::to_owned).context("message of cargo lacks a name");
        let manifest = text(&message["manifest_path"])?;
        found.push(Built {
            path: path.into(),
            name: text(&message["target"]["name"])?,
            kind: text(&message["target"]["kind"][0])?,
            package: Path::new(&manifest).parent().context("a manifest lies in a folder")?.to_owned(),
            is_test: message["profile"]["test"] == true,
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_program_is_read_from_cargos_output() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"kind":["lib"]},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"kind":["test"],"name":"e2e"},"manifest_path":"/w/tests/Cargo.toml","#,
            r#""profile":{"test":true},"executable":"/t/e2e-0123456789abcdef"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#
        );
        let [suite] = programs(messages).unwrap().try_into().unwrap();
        assert_eq!((suite.title().as_str(), suite.is_test), ("e2e", true));
        let command = suite.command(&["loader".into(), "--flag".into()]);
        assert_eq!(command.get_program(), "loader");
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["--flag", "/t/e2e-0123456789abcdef"]);
        assert_eq!(command.get_current_dir(), Some(Path::new("/w/tests")));
    }

    #[test]
    fn every_suite_runs_and_those_that_fail_are_named() {
        let suite = |path: &str| Built {
            path: path.into(),
            name: path.into(),
            kind: "test".into(),
            package: "/".into(),
            is_test: true,
        };
        let mut times = Vec::new();
        let suites = [suite("false"), suite("true"), suite("no-such-program")];
        let error = run_each(&suites, |_| (), &mut times).unwrap_err().to_string();
        assert_eq!(error, "these suites failed: false; no-such-program");
        assert_eq!(
            times.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
            ["false", "true", "no-such-program"]
        );
    }
}
