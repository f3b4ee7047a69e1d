//! `cargo xtask fresh`: README's two commands on a system that has only what README requires.
//!
//! ```text
//! target/fresh/base                 Debian, minbase: gcc, git, certificates; made once
//! target/fresh/root                 its copy, made for each run and removed after a run that succeeds
//!   opt/rust                        this machine's Rust toolchain, mounted read-only
//!   root/unicorn                    a clone of HEAD: changes that are not committed are not tested
//! ```
//!
//! Nothing of what this machine has set up to reach its registries enters the clone.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::binaries::target_folder;
use crate::root::{RELEASE, Root};
use crate::run::{read, run};

#[derive(clap::Args)]
pub struct FreshArgs {
    /// Commands of `cargo xtask` to run, in this order
    #[arg(value_name = "COMMAND", default_values = ["demo", "test"])]
    commands: Vec<String>,
    /// Keep the root after a run that succeeds
    #[arg(long)]
    keep: bool,
}

/// What README names, and the certificates without which git and cargo reach nothing.
const PACKAGES: &str = "gcc,libc6-dev,git,ca-certificates";
/// Where the clone lies, as seen from within the root.
const CLONE: &str = "root/unicorn";

/// Makes the root and runs the commands in it, up to the first that fails.
///
/// # Errors
/// Without the right to mount, when a package cannot be had, or when a command fails in the root, which is then kept.
pub fn run_all(args: &FreshArgs) -> Result<()> {
    let root = Root::fresh(&target_folder()?.join("fresh"), PACKAGES, Some(toolchain()?))?;
    clone_head(root.path())?;
    for command in &args.commands {
        run(&mut root.command(CLONE, &["cargo", "xtask", command]))
            .with_context(|| format!("`cargo xtask {command}` fails in {}, which is kept", root.path().display()))?;
    }
    println!("in a fresh Debian {RELEASE}: {} succeeded", args.commands.join(", "));
    if args.keep { Ok(()) } else { root.remove() }
}

/// The toolchain that runs us, which has cargo beside the compiler.
fn toolchain() -> Result<PathBuf> {
    let sysroot = PathBuf::from(read(Command::new("rustc").args(["--print", "sysroot"]))?.trim());
    let cargo = sysroot.join("bin/cargo");
    ensure!(cargo.exists(), "{} is missing, expected a toolchain as rustup installs it", cargo.display());
    Ok(sysroot)
}

/// A clone that shares nothing with this repository.
fn clone_head(root: &Path) -> Result<()> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in no repository")?;
    let changed = read(Command::new("git").arg("-C").arg(repository).args(["status", "--porcelain"]))?;
    if !changed.is_empty() {
        eprintln!("not committed, and so not tested:\n{changed}");
    }
    let clone = root.join(CLONE);
    run(Command::new("git").args(["init", "--quiet"]).arg(&clone))?;
    run(Command::new("git")
        .arg("-C")
        .arg(&clone)
        .args(["fetch", "--quiet", "--depth=1"])
        .arg(format!("file://{}", repository.display()))
        .arg("HEAD"))?;
    run(Command::new("git").arg("-C").arg(&clone).args(["checkout", "--quiet", "FETCH_HEAD"]))
}
