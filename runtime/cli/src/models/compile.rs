//! Compiles a model for the device of this machine that runs it, into the cache.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use rustix::fs::statvfs;
use unicorn_artifact::account::size;
use unicorn_compiler::import::open_model;
use unicorn_compiler::{
    CompileError, CompileOptions, Progress, Silent, Source, Stage, Target, compile, model_name, plan, targets,
};
use unicorn_runtime::{CancelToken, DeviceFacts, choose_device, devices, misfit};

use super::cache::CachedModel;
use super::identity::Identity;
use super::unusable;
use crate::args::LoadArgs;
use crate::error::CliError;
use crate::files::user_folders;
use crate::terminal::interrupt;
use crate::terminal::output::{note, progress_bar};

/// The artifact of the model at `source` with kernels for one target: `--target`, or the first that fits the device. Compiles it
/// unless the cache has it.
pub fn for_this_machine(source: &Path, load: &LoadArgs) -> Result<PathBuf, CliError> {
    // Without a device, what is wrong with the model comes first: no other device would run it.
    let device = device(load).or_else(|error| open_model(source).map_err(in_words).and(Err(error)))?;
    let target = target(&device, load.target.as_deref())?;
    let target_name = target.name;
    let mut options = CompileOptions::default();
    options.targets = vec![target];
    // For `tune`: few, as there is one target.
    options.alternatives = true;

    let folder = user_folders::cache().ok_or_else(|| {
        let source = source.display();
        CliError::new(format!(
            "{source} is not compiled, and there is no folder to keep its artifact in: neither XDG_CACHE_HOME nor HOME is an \
             absolute path; set one, or compile it yourself: unicorn-compile {source} -o MODEL.unicorn"
        ))
    })?;
    let folder = folder.join("models");
    let identity = Identity::of(source, &options).map_err(|error| CliError::at(source, error))?;
    let cached = CachedModel::new(folder, &name(source), target_name, &identity);
    if cached.is_there() {
        return Ok(cached.path().to_owned());
    }
    let _lock = cached.lock(|| note("another process compiles a model; waiting for it"))?;
    if !cached.is_there() {
        compile_into(&cached, source, &options, &device)?;
        cached.remove_older();
    }
    Ok(cached.path().to_owned())
}

/// Names of the targets that fit the device that `load` chooses.
pub fn fitting_targets(load: &LoadArgs) -> Result<Vec<String>, CliError> {
    let device = device(load)?;
    let fits = |target: &Target| misfit(&target.matches(), &device).is_none();
    Ok(targets().into_iter().filter(fits).map(|target| target.name.to_owned()).collect())
}

fn device(load: &LoadArgs) -> Result<DeviceFacts, CliError> {
    let Ok(choice) = load.device.as_deref().unwrap_or_default().parse();
    Ok(choose_device(&devices()?, &choice)?.clone())
}

/// The target called `name`, or else the first that fits the device, in the order in which an artifact has them.
fn target(device: &DeviceFacts, name: Option<&str>) -> Result<Target, CliError> {
    let known = targets();
    let misfit = |target: &Target| misfit(&target.matches(), device);
    let found = match name {
        Some(name) => known.iter().find(|target| target.name == name),
        None => known.iter().find(|target| misfit(target).is_none()),
    };
    found.cloned().ok_or_else(|| {
        let line = |target: &Target| match (name, misfit(target)) {
            (None, Some(reason)) => format!("\n  {}: {reason}", target.name),
            _ => format!("\n  {}: {}", target.name, target.about),
        };
        let lines: String = known.iter().map(line).collect();
        match name {
            Some(name) => CliError::new(format!("no target is called {name}; expected one of these:{lines}")),
            None => CliError::new(format!("no target fits {}:{lines}", device.name)),
        }
    })
}

fn compile_into(
    cached: &CachedModel,
    source: &Path,
    options: &CompileOptions,
    device: &DeviceFacts,
) -> Result<(), CliError> {
    let output = cached.path();
    let begun = Instant::now();
    let planned = plan(Source::Model(source), options, &mut Silent).map_err(in_words)?;
    let predicted_bytes = planned.plan().slices.iter().map(|slice| slice.bytes).sum();
    check_space(output, predicted_bytes)?;
    // Before it is announced: from then on, Ctrl-C cancels.
    interrupt::catch()?;
    note(format_args!(
        "compiling {} for {}, once: about {} in {}",
        source.display(),
        device.name,
        size(predicted_bytes),
        output.display()
    ));
    let mut progress = CompileProgress { bar: compile_bar(), cancel: interrupt::token() };
    let compiled = compile(Source::Model(source), output, options, &mut progress);
    progress.bar.finish_and_clear();
    interrupt::release();
    let report = compiled.map_err(in_words)?;
    note(format_args!("compiled in {:.1} s: {}", begun.elapsed().as_secs_f64(), size(report.artifact_bytes)));
    Ok(())
}

/// Refuses to begin where the file system has too little space for the weights.
fn check_space(output: &Path, needed_bytes: u64) -> Result<(), CliError> {
    let folder = output.parent().unwrap_or(Path::new("."));
    // Where the file system does not report it, the write does.
    let Ok(found) = statvfs(folder) else { return Ok(()) };
    let free_bytes = found.f_bavail.saturating_mul(found.f_frsize);
    if free_bytes < needed_bytes {
        return Err(CliError::new(format!(
            "compiled model takes about {}, and {} has {} free; free some space, or set XDG_CACHE_HOME to a folder on another \
             disk",
            size(needed_bytes),
            folder.display(),
            size(free_bytes)
        )));
    }
    Ok(())
}

fn in_words(error: CompileError) -> CliError {
    match error {
        CompileError::Cancelled => CliError::Interrupted,
        error => unusable::in_words(&error),
    }
}

fn compile_bar() -> ProgressBar {
    let template = "compiling: {msg:10} {bar:40} {percent:>3} %";
    progress_bar().with_style(ProgressStyle::with_template(template).expect("the template is a constant"))
}

/// A bar for each stage; Ctrl-C cancels.
struct CompileProgress {
    bar: ProgressBar,
    cancel: CancelToken,
}

impl CompileProgress {
    fn flow(&self) -> ControlFlow<()> {
        if self.cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl Progress for CompileProgress {
    fn stage(&mut self, stage: Stage, total: u64) -> ControlFlow<()> {
        self.bar.set_length(total);
        self.bar.set_position(0);
        self.bar.set_message(stage.name());
        self.flow()
    }

    fn advance(&mut self, amount: u64) -> ControlFlow<()> {
        self.bar.inc(amount);
        self.flow()
    }
}

/// The source's name without its extension, as part of a file name.
fn name(source: &Path) -> String {
    // The last part of a path such as `.` is not a name; a link has its own name.
    let resolved = || std::fs::canonicalize(source).unwrap_or(source.to_owned());
    let name = source.file_name().map_or_else(|| model_name(&resolved()), |_| model_name(source));
    let plain = |letter: char| if letter.is_ascii_alphanumeric() || "-_".contains(letter) { letter } else { '-' };
    name.chars().map(plain).take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_without_space_is_refused_with_both_sizes() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("m.unicorn");
        assert!(check_space(&output, 1 << 10).is_ok());
        let Err(CliError::Failed(message)) = check_space(&output, 1 << 50) else { panic!("refused") };
        assert!(message.starts_with("compiled model takes about 1048576.00 GiB, and "), "{message}");
        assert!(message.contains(" free; free some space, or set XDG_CACHE_HOME"), "{message}");
    }

    #[test]
    fn names_of_sources_become_names_of_files() {
        assert_eq!(name(Path::new("models/SmolLM2-135M.Q8_0.gguf")), "SmolLM2-135M-Q8_0");
        assert_eq!(name(Path::new("a/ß \n")), "---");
        // As the hub's programs keep a repository.
        let commit = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(name(&Path::new("hub/models--owner--SmolLM2-135M/snapshots").join(commit)), "SmolLM2-135M");
    }
}
