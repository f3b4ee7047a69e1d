//! Builds of the project's programs: the two for users in release mode, and all test programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::run::{cargo, run};
use crate::suites::{self, Built};

/// The folder that cargo builds into, and the programs in it.
pub struct Binaries {
    target: PathBuf,
}

impl Binaries {
    /// Builds `unicorn-compile` and `unicorn-run`.
    ///
    /// # Errors
    /// When they do not build.
    pub fn build() -> Result<Binaries> {
        let target = target_folder()?;
        run(cargo().args([
            "build",
            "--release",
            "--package",
            "unicorn-compiler",
            "--package",
            "unicorn-run",
            "--bins",
        ]))?;
        Ok(Binaries { target })
    }

    /// A folder for results, made if it is missing.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.target.join(name);
        std::fs::create_dir_all(&folder).with_context(|| format!("folder cannot be made: {}", folder.display()))?;
        Ok(folder)
    }

    pub fn compiler_path(&self) -> PathBuf {
        self.target.join("release/unicorn-compile")
    }

    pub fn compile(&self, model: &Path, artifact: &Path) -> Command {
        let mut command = Command::new(self.compiler_path());
        command.arg(model).arg("--output").arg(artifact);
        command
    }

    pub fn runtime_path(&self) -> PathBuf {
        self.target.join("release/unicorn-run")
    }

    pub fn runtime(&self) -> Command {
        Command::new(self.runtime_path())
    }
}

/// A simulated NPU, which `unicorn-run` uses only where `UNICORN_NPU` asks for it.
const SIMULATED_NPU: [&str; 2] = ["--features", "unicorn-run/npu-simulator"];

/// Builds all programs and tests, without optimising them much. Always all, because cargo builds shared crates again for each
/// selection of packages that needs other features of them.
///
/// # Errors
/// When they do not build.
pub fn build_with_tests() -> Result<()> {
    run(cargo().args(["build", "--workspace", "--bins", "--tests", "--examples"]).args(SIMULATED_NPU))
}

/// The test programs among those of [`build_with_tests`].
///
/// # Errors
/// When they do not build.
pub fn tests() -> Result<Vec<Built>> {
    let all = ["test", "--workspace", "--lib", "--bins", "--tests", "--no-run"];
    suites::build(&[&all[..], &SIMULATED_NPU].concat())
}

/// The folder that cargo builds into, wherever it is on this machine.
///
/// # Errors
/// When cargo did not build and start this program.
pub fn target_folder() -> Result<PathBuf> {
    let own = std::env::current_exe().context("path of xtask is unknown")?;
    // Cargo puts this program at target/debug/xtask.
    let target = own.ancestors().nth(2).context("xtask does not lie in a target folder; start it with cargo xtask")?;
    Ok(target.to_owned())
}
