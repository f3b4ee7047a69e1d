//! Compiles a model for the device of this machine that runs it, into the cache.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use unicorn_artifact::account::size;
use unicorn_compiler::import::open_model;
use unicorn_compiler::{
    CompileError, CompileOptions, Prediction, Progress, Source, Stage, Target, compile, model_name, targets,
};
use unicorn_runtime::{CancelToken, DeviceFacts, choose_device, devices, misfit};

use super::Input;
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
pub fn for_this_machine(source: &Path, load: &LoadArgs, input: Input) -> Result<PathBuf, CliError> {
    // Without a device, what is wrong with the model comes first: no other device would run it.
    let device = device(load).or_else(|error| open_model(source).map_err(in_words).and(Err(error)))?;
    let target = target(&device, load.target.as_deref())?;
    let target_name = target.name;
    let mut options = CompileOptions::default();
    options.targets = vec![target];
    // For `tune`: few, as there is one target.
    options.alternatives = true;
    let whole = |path: &PathBuf| path.canonicalize().map_err(|error| CliError::at(path, error));
    options.projector = load.mmproj.as_ref().map(whole).transpose()?;
    options.image_min_tokens = load.image_min_tokens;
    options.image_max_tokens = load.image_max_tokens;

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
    let mut has_tokenizer = cached.has_tokenizer();
    if has_tokenizer.is_none() {
        let _lock = cached.lock(|| note("another process compiles a model; waiting for it"))?;
        has_tokenizer = cached.has_tokenizer();
        if has_tokenizer.is_none() {
            compile_into(&cached, source, &options, &device, input)?;
            cached.remove_older();
        }
    }
    match has_tokenizer {
        Some(false) if input == Input::Text => Err(no_tokenizer(source)),
        _ => Ok(cached.path().to_owned()),
    }
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
    input: Input,
) -> Result<(), CliError> {
    let output = cached.path();
    let begun = Instant::now();
    // Before the compile is announced: from then on, Ctrl-C cancels.
    let caught = interrupt::catch_within()?;
    let mut progress = CompileProgress {
        announcement: format!("compiling {} for {}, once", source.display(), device.name),
        output,
        input,
        lacks_tokenizer: false,
        bar: ProgressBar::hidden(),
        cancel: interrupt::token(),
    };
    let compiled = compile(Source::Model(source), output, options, &mut progress);
    progress.bar.finish_and_clear();
    drop(caught);
    if progress.lacks_tokenizer {
        return Err(no_tokenizer(source));
    }
    let report = compiled.map_err(in_words)?;
    note(format_args!("compiled in {:.1} s: {}", begun.elapsed().as_secs_f64(), size(report.artifact_bytes)));
    Ok(())
}

fn no_tokenizer(source: &Path) -> CliError {
    let remedy = "put tokenizer.json beside its config.json, or take a GGUF file that has a tokenizer";
    CliError::at(
        source,
        format!("model has no tokenizer, expected one that reads text: {remedy}; `logits` and `bench` work without"),
    )
}

fn in_words(error: CompileError) -> CliError {
    match error {
        CompileError::Cancelled => CliError::Interrupted,
        CompileError::DiskFull { .. } => {
            CliError::new(format!("{error}; free some space, or set XDG_CACHE_HOME to a folder on another disk"))
        }
        error => unusable::in_words(&error),
    }
}

fn compile_bar() -> ProgressBar {
    let template = "compiling: {msg:10} {bar:40} {percent:>3} %";
    progress_bar().with_style(ProgressStyle::with_template(template).expect("the template is a constant"))
}

/// Announces the compile once its size is known, and then shows a bar for each stage; Ctrl-C cancels.
struct CompileProgress<'a> {
    /// What is compiled, for which device.
    announcement: String,
    output: &'a Path,
    input: Input,
    /// Set where text is to be read and the model has no tokenizer: the compile is then cancelled.
    lacks_tokenizer: bool,
    bar: ProgressBar,
    cancel: CancelToken,
}

impl CompileProgress<'_> {
    fn flow(&self) -> ControlFlow<()> {
        if self.cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl Progress for CompileProgress<'_> {
    fn stage(&mut self, stage: Stage, total: u64) -> ControlFlow<()> {
        self.bar.set_length(total);
        self.bar.set_position(0);
        self.bar.set_message(stage.name());
        self.flow()
    }

    fn planned(&mut self, prediction: &Prediction) -> ControlFlow<()> {
        self.lacks_tokenizer = self.input == Input::Text && !prediction.has_tokenizer;
        if self.lacks_tokenizer {
            return ControlFlow::Break(());
        }
        let (announcement, output) = (&self.announcement, self.output.display());
        note(format_args!("{announcement}: about {} in {output}", size(prediction.artifact_bytes)));
        self.bar = compile_bar();
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
    fn names_of_sources_become_names_of_files() {
        assert_eq!(name(Path::new("models/SmolLM2-135M.Q8_0.gguf")), "SmolLM2-135M-Q8_0");
        assert_eq!(name(Path::new("a/ß \n")), "---");
        // As the hub's programs keep a repository.
        let commit = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(name(&Path::new("hub/models--owner--SmolLM2-135M/snapshots").join(commit)), "SmolLM2-135M");
    }
}
