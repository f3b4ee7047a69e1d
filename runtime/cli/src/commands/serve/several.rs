//! Models that are loaded when they are needed: where their files are, and how each is loaded.

use std::path::{Path, PathBuf};
use std::time::Duration;

use unicorn_runtime::{DraftUse, LoadError, Model, Speculation};
use unicorn_serve::{HttpListener, ModelServer, ModelSource, PoolOptions, ServeOptions, Server, Unloadable};

use super::{
    Prepared, enter_sandbox, prepare, refuse_synthetic, run_with_status, serve_at, serving_of, stop_by_signals,
};
use crate::args::{DraftModel, ServeArgs, SpeculationArgs};
use crate::error::CliError;
use crate::explain;
use crate::load::{Serving, load_packed_draft, load_to_serve, needs_memory, own_speculation, read, sequences};
use crate::models::{self, Input};
use crate::monitor::status::{self, StatusWriter};
use crate::report::text::printable;
use crate::terminal::output::note;

/// Serves the models of the command line by name.
pub fn run(args: &ServeArgs) -> Result<(), CliError> {
    if matches!(args.speculation.draft_model(), DraftModel::Other(_)) {
        return Err(CliError::new("--model-draft drafts for one model: expected MODEL, found --model or --models-dir"));
    }
    if let Some(option) = args.load.option_of_vision() {
        return Err(CliError::new(format!("{option} is of one model: expected MODEL, found --model or --models-dir")));
    }
    let mut files = files(args)?;
    for (_, model) in &mut files {
        models::check(model)?;
        if args.sandbox {
            // Compiled now: later, in the sandbox, neither the compiler's source nor its cache can be opened.
            *model = models::artifact(model, &args.load, Input::Text)?;
        }
    }
    let Prepared { options, listeners, traces: _traces } = prepare(args)?;
    let mut pool = PoolOptions::default();
    (pool.max_loaded, pool.pinned) = (args.models_max as usize, args.pin.clone());
    serve(args, files, pool, options, listeners, &args.pin)
}

/// Serves one model, which is loaded now, and unloaded after `--sleep-idle-seconds` without a request.
pub fn run_one(args: &ServeArgs, model: &Path) -> Result<(), CliError> {
    if matches!(args.speculation.draft_model(), DraftModel::Other(_)) {
        return Err(CliError::new("--model-draft keeps its model loaded: expected no --sleep-idle-seconds beside it"));
    }
    let artifact = models::artifact(model, &args.load, Input::Text)?;
    refuse_synthetic(&artifact)?;
    let name = match args.model_name() {
        Some(name) => name.clone(),
        None => read(&artifact, |view| view.meta.model.name.clone())?,
    };
    let Prepared { mut options, listeners, traces: _traces } = prepare(args)?;
    options.model_path = Some(model.display().to_string());
    options.aliases.clone_from(&args.alias);
    options.aliases.sort();
    options.tags.clone_from(&args.tags);
    let mut pool = PoolOptions::default();
    pool.any_name = true;
    let files = vec![(name.clone(), artifact)];
    serve(args, files, pool, options, listeners, &[name])
}

/// `at_once`: the models that are loaded before a request names them.
fn serve(
    args: &ServeArgs,
    files: Vec<(String, PathBuf)>,
    mut pool: PoolOptions,
    options: ServeOptions,
    listeners: Vec<HttpListener>,
    at_once: &[String],
) -> Result<(), CliError> {
    let names: Vec<String> = files.iter().map(|(name, _)| name.clone()).collect();
    pool.idle = args.sleep_idle_seconds.map(Duration::from_secs);
    let artifacts: Vec<PathBuf> = files.iter().map(|(_, artifact)| artifact.clone()).collect();
    let source = Files { files, serving: serving_of(args), speculation: args.speculation.clone() };
    let server = ModelServer::new(names.clone(), source, pool, options)?;

    let stopper = server.stopper();
    let serving = stop_by_signals(args, move || stopper.stop())?;
    if args.sandbox {
        status::make_folder();
        enter_sandbox(args, &artifacts.iter().map(PathBuf::as_path).collect::<Vec<_>>())?;
    }
    at_once.iter().for_each(|name| server.load(name));
    let listed = printable(&names.join(", ")).to_string();
    serve_at(listeners, args, &serving, &server.router(), |address| match names.len() {
        1 => format!("serving {listed} at {address}/v1: {} sequences", args.parallel),
        count => format!("serving {count} models at {address}/v1: {listed}"),
    })?;
    server.run();
    Ok(())
}

/// Names and files of the models: those of the command line, then those of the folder, by name.
fn files(args: &ServeArgs) -> Result<Vec<(String, PathBuf)>, CliError> {
    let mut files = args.models.clone();
    let Some(folder) = &args.models_dir else { return Ok(files) };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| CliError::at(folder, error))? {
        let path = entry.map_err(|error| CliError::at(folder, error))?.path();
        let is_model = path.extension().is_some_and(|ending| ending == "unicorn" || ending == "gguf");
        if let Some(name) = path.file_stem().and_then(|name| name.to_str()).filter(|_| is_model) {
            found.push((name.to_owned(), path));
        }
    }
    if found.is_empty() && files.is_empty() {
        return Err(CliError::at(folder, "expected artifacts (*.unicorn) or GGUF files in this folder, found none"));
    }
    found.sort();
    files.extend(found);
    Ok(files)
}

/// Why a model or its draft is not loaded, and whether it is the memory.
fn unloadable(error: &LoadError) -> Unloadable {
    Unloadable { message: explain::load_error(error), needs_memory: needs_memory(error) }
}

/// Models, by name.
struct Files {
    files: Vec<(String, PathBuf)>,
    serving: Serving,
    speculation: SpeculationArgs,
}

impl Files {
    fn file(&self, name: &str) -> &Path {
        let file = self.files.iter().find(|(known, _)| known == name);
        &file.expect("the pool has no other names").1
    }
}

impl ModelSource for Files {
    fn load(&self, name: &str, min_context_tokens: Option<u32>) -> Result<Model, Unloadable> {
        let unusable = |error: CliError| Unloadable { message: error.to_string(), needs_memory: false };
        let artifact = models::artifact(self.file(name), &self.serving.load, Input::Text).map_err(unusable)?;
        refuse_synthetic(&artifact).map_err(unusable)?;
        let serving = Serving { min_context_tokens, ..self.serving.clone() };
        let model = load_to_serve(&artifact, &serving).map_err(|error| unloadable(&error))?;
        note(format_args!("model {} is loaded: {}", printable(name), sequences(&model)));
        Ok(model)
    }

    fn speculation(&self, name: &str, model: &Model) -> Result<Option<Speculation>, Unloadable> {
        let unusable = |error: CliError| Unloadable { message: error.to_string(), needs_memory: false };
        if self.serving.draft == DraftUse::Unused {
            return match self.speculation.draft_model() {
                DraftModel::OwnHead => own_speculation(&self.speculation, model, None).map_err(unusable),
                _ => Ok(None),
            };
        }
        // It was compiled when the model was loaded.
        let load = &self.serving.load;
        let artifact = models::artifact(self.file(name), load, Input::Text).map_err(unusable)?;
        let packed = load_packed_draft(&artifact, load, model).map_err(|error| unloadable(&error))?;
        own_speculation(&self.speculation, model, packed).map_err(unusable)
    }

    fn run(&self, name: &str, model: &Model, server: Server) {
        let number = self.files.iter().position(|(known, _)| known == name);
        run_with_status(model, server, StatusWriter::of_several(model, name, number.unwrap_or_default()));
        note(format_args!("model {} is unloaded", printable(name)));
    }
}
