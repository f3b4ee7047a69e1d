//! `cargo xtask manuals`: man pages and shell completions of both programs, which the programs write themselves.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::binaries::Binaries;
use crate::run::{read, run};

const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// Builds the programs and writes `man1/` and `completions/` below `target/manuals`.
///
/// # Errors
/// When a program does not build or does not write.
pub fn run_all() -> Result<()> {
    let (pages, completions) = write(&Binaries::build()?)?;
    eprintln!("man pages in {}, completions in {}", pages.display(), completions.display());
    Ok(())
}

/// The folders of the pages and of the completions.
///
/// # Errors
/// When a program does not write.
pub fn write(binaries: &Binaries) -> Result<(PathBuf, PathBuf)> {
    let (pages, completions) = (binaries.folder("manuals/man1")?, binaries.folder("manuals/completions")?);
    for program in [binaries.compiler_path(), binaries.runtime_path()] {
        run(Command::new(&program).arg("man").arg(&pages))?;
        let name = program.file_name().context("program has no name")?.to_string_lossy();
        for shell in SHELLS {
            let script = read(Command::new(&program).args(["completions", shell]))?;
            let file = completions.join(format!("{name}.{shell}"));
            std::fs::write(&file, script).with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    Ok((pages, completions))
}
