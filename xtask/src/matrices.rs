//! `cargo xtask matrices`: kernels on cooperative matrices against their twins, on a CPU.
//!
//! The software device of Debian's releases multiplies no matrices, and their spirv-val does not know them. Those of
//! Debian's development do both. They are unpacked with all their libraries, and test programs run under the dynamic
//! loader that lies among these, because it has to be as new as they are.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::binaries::target_folder;
use crate::debian;
use crate::run::run;
use crate::suites::{self, Built};
use crate::test::Skipped;

/// The suite that has them, and the packages whose dependencies hold the rest.
const SUITE: &str = "sid";
const PACKAGES: [&str; 3] = ["mesa-vulkan-drivers", "libvulkan1", "spirv-tools"];
/// Tests to run there: the program, and parts of the tests' names.
const TESTS: [(&str, &[&str]); 4] = [
    ("differential", &["gemm", "flash", "alternatives::of_rdna3"]),
    ("tune", &["any_mix_of_alternatives_of_rdna3"]),
    ("e2e", &["register_gemms"]),
    ("filetests", &["valid"]),
];

/// As one of all tests: skipped on a system that gets no packages from Debian.
///
/// # Errors
/// As [`run_tests`].
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
    let tree = Tree::unpacked(&target_folder()?.join("matrices"))?;
    let (loader, libraries) = (tree.loader()?, tree.libraries()?);
    let validator = format!(
        "#!/bin/sh\nexec '{}' --library-path '{}' '{}' \"$@\"\n",
        loader.display(),
        libraries.display(),
        tree.root.join("usr/bin/spirv-val").display()
    );
    let programs = tree.program("spirv-val", &validator)?;
    let path = std::env::var("PATH").unwrap_or_default();
    let runner = [loader.display().to_string(), "--library-path".into(), libraries.display().to_string()];
    let built = suites::build(&["test", "--workspace", "--lib", "--bins", "--tests", "--no-run"])?;
    for (test, parts) in TESTS {
        let is_wanted = |one: &&Built| one.kind == "test" && one.name == test;
        let suite = built.iter().find(is_wanted).with_context(|| format!("cargo builds no test {test}"))?;
        let mut command = suite.command(&runner);
        prepare(command.args(parts));
        // Here nothing is skipped: this device is for the checks that are skipped elsewhere.
        command.env("UNICORN_STRICT", "all");
        command.env("VK_DRIVER_FILES", tree.root.join("usr/share/vulkan/icd.d/lvp_icd.json"));
        command.env("UNICORN_DEVICE", "llvmpipe").env("PATH", format!("{}:{path}", programs.display()));
        let started = Instant::now();
        let result = run(&mut command);
        times.push((format!("{test} with {}", parts.join(", ")), started.elapsed()));
        result?;
    }
    Ok(())
}

/// Packages unpacked as they would lie below `/`.
struct Tree {
    root: PathBuf,
}

impl Tree {
    fn unpacked(root: &Path) -> Result<Tree> {
        if !root.exists() {
            let install = ["install", "--download-only", "--yes", "--no-install-recommends"];
            debian::unpack(root, &[SUITE], install.into_iter().chain(PACKAGES).map(str::to_owned))
                .with_context(|| format!("a software device with matrices cannot be had from Debian {SUITE}"))?;
        }
        Ok(Tree { root: root.to_owned() })
    }

    /// `ld-linux` of the tree's own C library.
    fn loader(&self) -> Result<PathBuf> {
        let is_loader =
            |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-linux"));
        self.find(&["usr/lib64", "usr/lib"], is_loader).context("dynamic loader is missing")
    }

    /// The folder that most libraries lie in, the driver's among them.
    fn libraries(&self) -> Result<PathBuf> {
        self.find(&["usr/lib"], |path| path.join("libvulkan_lvp.so").exists()).context("libvulkan_lvp.so is missing")
    }

    fn find(&self, folders: &[&str], wanted: impl Fn(&Path) -> bool) -> Result<PathBuf> {
        let entries = folders.iter().filter_map(|folder| std::fs::read_dir(self.root.join(folder)).ok()).flatten();
        let mut paths = entries.filter_map(Result::ok).map(|entry| entry.path());
        paths.find(|path| wanted(path)).with_context(|| {
            format!("{} is not what it should be; remove that folder and try again", self.root.display())
        })
    }

    /// Writes a script that runs a program of the tree; gives the folder of such scripts.
    fn program(&self, name: &str, script: &str) -> Result<PathBuf> {
        let folder = self.root.join("programs");
        let path = folder.join(name);
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(&folder)?;
            std::fs::write(&path, script)?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
        };
        write().with_context(|| format!("cannot write {}", path.display()))?;
        Ok(folder)
    }
}
