//! `cargo xtask matrices`: kernels on cooperative matrices against their twins, on a CPU.
//!
//! The software device of Debian's releases multiplies no matrices, and their spirv-val lacks the extension. Those of
//! Debian's development version support both. They are unpacked with all their libraries, and test programs run under
//! the dynamic loader among these, because it must be as new as they are.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::binaries::{self, target_folder};
use crate::debian::{self, Archive, Tree};
use crate::run::run;
use crate::skipped::Skipped;
use crate::suites::Built;

/// The suite that has them, and the packages whose dependencies hold the rest.
const SUITE: &str = "sid";
const PACKAGES: [&str; 3] = ["mesa-vulkan-drivers", "libvulkan1", "spirv-tools"];
/// Tests to run there: the program, and parts of the tests' names.
const TESTS: [(&str, &[&str]); 5] = [
    ("differential", &["gemm", "flash", "in_chunks", "alternatives::of_rdna3"]),
    ("tune", &["any_mix_of_alternatives_of_rdna3"]),
    ("e2e", &["register_gemms", "rows_beside_prompts"]),
    ("npu_queues", &["matrix_units"]),
    ("filetests", &["valid"]),
];

/// Runs as a part of all tests: skipped on a system that gets no packages from Debian.
///
/// # Errors
/// Errors of [`run_tests`].
pub fn run_where_possible(skipped: &Skipped, times: &mut Vec<(String, Duration)>) -> Result<()> {
    if debian::release().is_none() {
        return skipped.skip("Debian packages", "kernels on matrix units did not run: this is no Debian");
    }
    let prepare = |command: &mut Command| {
        skipped.reported_by(command);
    };
    run_tests(prepare, times)
}

/// Fetches the software device if it is not there yet and runs the tests on it, each program prepared by `prepare`.
///
/// # Errors
/// When the packages cannot be had, or a test fails or is skipped.
pub fn run_tests(prepare: impl Fn(&mut Command), times: &mut Vec<(String, Duration)>) -> Result<()> {
    let tree = Tree::unpacked(&target_folder()?.join("matrices"), Archive::Debian, &[SUITE], &PACKAGES)
        .with_context(|| format!("a software device with matrices cannot be had from Debian {SUITE}"))?;
    // Most libraries lie beside the driver.
    let (loader, libraries) = (tree.loader()?, tree.libraries("libvulkan_lvp.so")?);
    let programs = tree.program("spirv-val", &libraries)?;
    let programs = programs.parent().context("a program lies in a folder")?;
    let path = std::env::var("PATH").unwrap_or_default();
    let runner = [loader.display().to_string(), "--library-path".into(), libraries.display().to_string()];
    let built = binaries::tests()?;
    for (test, parts) in TESTS {
        let is_wanted = |one: &&Built| one.kind == "test" && one.name == test;
        let suite = built.iter().find(is_wanted).with_context(|| format!("cargo builds no test {test}"))?;
        let mut command = suite.command(&runner);
        prepare(command.args(parts));
        // Here nothing is skipped: this device is for the checks that are skipped elsewhere.
        command.env("UNICORN_STRICT", "all");
        command.env("VK_DRIVER_FILES", tree.path("usr/share/vulkan/icd.d/lvp_icd.json"));
        command.env("UNICORN_DEVICE", "llvmpipe").env("PATH", format!("{}:{path}", programs.display()));
        let started = Instant::now();
        let result = run(&mut command);
        times.push((format!("{test} with {}", parts.join(", ")), started.elapsed()));
        result?;
    }
    Ok(())
}
