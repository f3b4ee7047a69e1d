//! Loads a model for a command, with a progress bar and notes on stderr.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use indicatif::ProgressStyle;
use unicorn_artifact::{ArtifactView, MappedFile};

use crate::args::{CONSERVATIVE, DraftModel, LoadArgs, SpeculationArgs};
use crate::error::CliError;
use crate::files::{corrections_file, known_drivers, tuning_file, user_folders};
use crate::models::{self, Input};
use crate::report::text::printable;
use crate::simulated_npu;
use crate::terminal::output::{note, progress_bar};
use unicorn_runtime::npu::NpuUse;
use unicorn_runtime::{
    DeviceKind, DraftUse, KvCapacity, LoadError, LoadOptions, Model, NpuReport, Recovery, Speculation,
};

/// Loads `artifact` on the device that `args` choose, for sequences of `context_tokens` (`None`: the library's choice).
pub fn load(artifact: &Path, args: &LoadArgs, context_tokens: Option<u32>) -> Result<Model, CliError> {
    load_with(artifact, args, |options| options.context_tokens = context_tokens)
}

/// The same for generated text, which may begin before all weights are resident.
pub fn load_to_generate(
    artifact: &Path,
    args: &LoadArgs,
    context_tokens: Option<u32>,
    lazy: bool,
    draft: DraftUse,
) -> Result<Model, CliError> {
    load_with(artifact, args, |options| {
        (options.context_tokens, options.lazy, options.draft) = (context_tokens, lazy, draft);
    })
}

/// The same, for `slots` sequences at a time.
pub fn load_for(artifact: &Path, args: &LoadArgs, context_tokens: u32, slots: u32) -> Result<Model, CliError> {
    load_with(artifact, args, |options| (options.context_tokens, options.slots) = (Some(context_tokens), slots))
}

/// Loads for one sequence, so that the time of every dispatch is recorded.
pub fn load_profiled(artifact: &Path, args: &LoadArgs, context_tokens: u32, slots: u32) -> Result<Model, CliError> {
    load_with(artifact, args, |options| {
        (options.context_tokens, options.slots, options.profile) = (Some(context_tokens), slots, true);
    })
}

/// Loads for `slots` sequences, so that alternatives of the kernels can be measured; `None`: the memory is too small for that many.
pub fn load_candidates(
    artifact: &Path,
    args: &LoadArgs,
    context_tokens: u32,
    slots: u32,
) -> Result<Option<Model>, CliError> {
    let candidates = |options: &mut LoadOptions| {
        (options.context_tokens, options.slots, options.candidates) = (Some(context_tokens), slots, true);
    };
    unless_too_large(try_load(artifact, args, candidates), slots)
}

/// `None` for a memory that is too small for several sequences.
fn unless_too_large(loaded: Result<Model, LoadError>, slots: u32) -> Result<Option<Model>, CliError> {
    match loaded {
        Err(error) if slots > 1 && needs_memory(&error) => Ok(None),
        loaded => Ok(Some(loaded?)),
    }
}

/// Loads the model of an artifact, or its `draft` alone, for `slots` sequences, to compare the kernels that would run with others; `None`: the
/// memory is too small for that many. Kernels that an earlier test found wrong are tested again.
pub fn load_tested(
    artifact: &Path,
    args: &LoadArgs,
    draft: DraftUse,
    context_tokens: u32,
    slots: u32,
) -> Result<Option<Model>, CliError> {
    let is_tuned = !args.no_tune && draft != DraftUse::Alone;
    let tested = |options: &mut LoadOptions| {
        (options.context_tokens, options.slots, options.candidates) = (Some(context_tokens), slots, true);
        (options.draft, options.tuning) = (draft, if is_tuned { tuning_file::read(artifact) } else { None });
    };
    let args = if draft == DraftUse::Alone { &args_of_draft(args) } else { args };
    unless_too_large(try_load(artifact, args, tested), slots)
}

/// A draft runs the best of its targets for the device.
fn args_of_draft(args: &LoadArgs) -> LoadArgs {
    LoadArgs { target: None, ..args.clone() }
}

/// How a server loads its models.
#[derive(Clone)]
pub struct Serving {
    pub load: LoadArgs,
    /// Number of sequences that run at a time.
    pub slots: u32,
    /// Longest context of each sequence; `None`: the library's choice.
    pub context_tokens: Option<u32>,
    /// The shortest that the library may choose; `None`: its default.
    pub min_context_tokens: Option<u32>,
    /// Tokens in the KV caches of all sequences together.
    pub kv_capacity: KvCapacity,
    /// What becomes of a draft that is packed into the artifact.
    pub draft: DraftUse,
}

/// Longest time of several steps in one submission of a server, whose requests come at any time and wait for it, and whose streams get a token in each
/// step. Only steps of a millisecond and less are so short that the time between submissions counts.
const SERVED_MULTISTEP: Duration = Duration::from_millis(4);

/// The same for a server, which reads the cause of a failure.
pub fn load_to_serve(artifact: &Path, serving: &Serving) -> Result<Model, LoadError> {
    try_load(artifact, &serving.load, |options| {
        options.multistep = SERVED_MULTISTEP;
        options.min_context_tokens = serving.min_context_tokens.unwrap_or(options.min_context_tokens);
        (options.slots, options.context_tokens, options.kv_capacity, options.draft) =
            (serving.slots, serving.context_tokens, serving.kv_capacity, serving.draft);
    })
}

/// The sequences that `model` was loaded for, in words.
pub fn sequences(model: &Model) -> String {
    let (slots, context, all) = (model.slots(), model.context_tokens(), model.kv_tokens());
    if all < u64::from(slots) * u64::from(context) {
        return format!("{slots} sequences of up to {context} tokens, {all} together");
    }
    format!("{slots} sequences of {context} tokens")
}

/// Whether a model may be loaded once there is more memory.
pub fn needs_memory(error: &LoadError) -> bool {
    matches!(error, LoadError::Context { .. } | LoadError::InsufficientMemory(_) | LoadError::OutOfMemory { .. })
}

/// What becomes of a draft that is packed into an artifact, according to `args`, while the artifact's model is loaded.
pub fn packed_draft_use(args: &SpeculationArgs) -> DraftUse {
    if args.draft_model() == DraftModel::Packed { DraftUse::Beside } else { DraftUse::Unused }
}

/// The draft that is packed into `artifact`, for as many and as long sequences as `model`, which was loaded from there, has; `None`:
/// there is none.
pub fn load_packed_draft(artifact: &Path, load: &LoadArgs, model: &Model) -> Result<Option<Model>, LoadError> {
    let Some(max_tokens) = model.packed_draft_tokens() else { return Ok(None) };
    let draft = try_load(artifact, &args_of_draft(load), |options| {
        (options.draft, options.slots, options.state_copies) = (DraftUse::Alone, model.slots(), model.slots());
        options.context_tokens = Some(model.tokens_each().min(max_tokens));
    });
    draft.map(Some)
}

/// How sequences of `model` speculate with what comes with it: `packed`, the smaller model of its artifact, or its own head for drafts. `None`:
/// there is neither.
pub fn own_speculation(
    args: &SpeculationArgs,
    model: &Model,
    packed: Option<Model>,
) -> Result<Option<Speculation>, CliError> {
    let by_packed = packed.map(|draft| draft.speculation_for(model)).transpose()?;
    let by_model = by_packed.or_else(|| model.own_speculation());
    if by_model.is_none() && args.draft_model() == DraftModel::OwnHead {
        let name = printable(&model.meta().model.name);
        return Err(CliError::new(format!("{name} has no MTP head, expected one for --spec-type mtp: leave that out")));
    }
    Ok(args.resolve(by_model)?)
}

/// How sequences of `model`, which was loaded from `artifact`, speculate according to `args`. Loads the smaller model that makes drafts, for
/// as many and as long sequences as possible.
pub fn load_speculation(
    args: &SpeculationArgs,
    artifact: &Path,
    load: &LoadArgs,
    model: &Model,
) -> Result<Option<Speculation>, CliError> {
    let draft = match args.draft_model() {
        DraftModel::None => None,
        DraftModel::Packed => return own_speculation(args, model, load_packed_draft(artifact, load, model)?),
        DraftModel::OwnHead => return own_speculation(args, model, None),
        DraftModel::Other(path) => {
            let artifact = models::artifact(
                path,
                &LoadArgs { mmproj: None, image_min_tokens: None, image_max_tokens: None, ..load.clone() },
                Input::Tokens,
            )?;
            let context_tokens = model.tokens_each().min(max_positions(&artifact)?);
            Some(load_with(&artifact, &args_of_draft(load), |options| {
                (options.context_tokens, options.slots) = (Some(context_tokens), model.slots());
                options.state_copies = model.slots();
            })?)
        }
    };
    let by_model = draft.map(|draft| draft.speculation_for(model)).transpose()?;
    Ok(args.resolve(by_model)?)
}

/// The longest context of the model, read before it is loaded.
pub fn max_positions(artifact: &Path) -> Result<u32, CliError> {
    read(artifact, |view| view.meta.model.max_positions)
}

/// Reads something from an artifact without loading it.
pub fn read<T>(artifact: &Path, get: impl FnOnce(&ArtifactView<'_>) -> T) -> Result<T, CliError> {
    let file = MappedFile::open(artifact).map_err(|error| CliError::at(artifact, error))?;
    let view = ArtifactView::parse(file.bytes()).map_err(|error| CliError::at(artifact, error))?;
    Ok(get(&view))
}

fn load_with(artifact: &Path, args: &LoadArgs, change: impl FnOnce(&mut LoadOptions)) -> Result<Model, CliError> {
    Ok(try_load(artifact, args, change)?)
}

/// Loads with the options of the command line, `change`d for the command.
fn try_load(artifact: &Path, args: &LoadArgs, change: impl FnOnce(&mut LoadOptions)) -> Result<Model, LoadError> {
    let Ok(device) = args.device.as_deref().unwrap_or_default().parse();
    let mut options = LoadOptions::default();
    options.device = device;
    options.target = args.target.clone();
    options.budget = args.budget.clone().unwrap_or_default();
    options.residency = args.residency;
    options.direct_io = args.direct_io;
    options.barriers = args.barriers;
    options.npu = if args.npu_optional { NpuUse::Optional } else { NpuUse::Required };
    if let Some(opener) = &args.npu_driver {
        options.npu_opener = opener.clone();
    }
    simulated_npu::choose(&mut options);
    options.load_alone = args.load_alone;
    options.verify_weights = !args.no_verify;
    options.submission = args.submission_ms.map(|bound| Duration::from_millis(bound.into()));
    options.cache_folder = if args.no_cache { None } else { user_folders::cache() };
    change(&mut options);
    let context_is_given = options.context_tokens.is_some();
    let is_measurement = options.candidates;
    // The tuning beside an artifact is of its model; corrections of a draft have a file of their own.
    let is_draft = options.draft == DraftUse::Alone;
    let corrected = if is_draft { corrections_file::of_draft(artifact) } else { artifact.to_owned() };
    if !args.no_tune && !is_measurement && !is_draft {
        options.tuning = tuning_file::read(artifact);
    }
    let corrections = if is_measurement { None } else { corrections_file::read(&corrected) };
    options.corrections = corrections.as_ref().map(|(_, corrections)| corrections.clone());
    let bar = progress_bar().with_style(
        ProgressStyle::with_template("loading {bar:40} {bytes}/{total_bytes} {bytes_per_sec}")
            .expect("the template is a constant"),
    );
    let loaded = Model::load_with_progress(artifact, &options, &mut |done_bytes, total_bytes| {
        bar.set_length(total_bytes);
        bar.set_position(done_bytes);
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    let model = loaded?;
    if is_software(&model) {
        note(format_args!("software device: {}: all measurements are of the CPU", model.device().name));
    }
    for why in &model.report().left_out {
        note(format_args!("target {} runs: {why}", model.report().target));
    }
    let NpuReport { driver, products, memory, note: why } = &model.report().npu;
    if let Some(driver) = driver {
        let memory = memory.map_or(String::new(), |memory| format!("; {memory}"));
        note(format_args!("NPU by {driver}: computes {products} products of prefill{memory}"));
    }
    if let Some(why) = why {
        note(format_args!("the GPU does the NPU's work: {why}"));
    }
    if let Some(why) = &model.report().pipelines.note {
        note(format_args!("pipeline cache: {why}"));
    }
    if let Some(why) = &model.report().tuning.note {
        note(format_args!("tuning is not used: {}: {why}", tuning_file::path_for(artifact).display()));
    }
    match (&model.report().corrections.note, &corrections) {
        (Some(why), _) => {
            note(format_args!(
                "result of selftest is not used: {}: {why}",
                corrections_file::path_for(&corrected).display()
            ));
        }
        (None, Some((file, _))) => {
            let of = if is_draft { "draft: " } else { "" };
            file.lines().iter().for_each(|line| note(format_args!("{of}{line}")));
        }
        (None, None) => {}
    }
    if !args.no_cache && !is_measurement && !is_draft {
        offer_selftest(&model, artifact);
    }
    if let Some(shorter) = shorter_context(&model, context_is_given) {
        note(shorter);
    }
    if model.meta().model.synthetic {
        let name = printable(&model.meta().model.name);
        note(format_args!("synthetic weights: {name} is good for timing, not for text"));
    }
    Ok(model)
}

/// Notes the first start on a device with its driver, on which a kernel may be wrong that was right elsewhere.
fn offer_selftest(model: &Model, artifact: &Path) {
    let facts = model.device();
    // Conservative kernels could only be compared with themselves.
    let has_others = model.report().target != CONSERVATIVE;
    if is_software(model) || !has_others || known_drivers::find(facts).is_some() {
        return;
    }
    note(format_args!(
        "first start on {} with {}: unicorn-run selftest {} checks every kernel there in about a minute",
        facts.name,
        facts.driver,
        artifact.display()
    ));
    if let Err(error) = known_drivers::remember(facts, None) {
        note(format_args!("this driver is not recorded: {error}"));
    }
}

/// Why the context is shorter than the model's; `None`: it is not, or the user asked for it.
fn shorter_context(model: &Model, is_given: bool) -> Option<String> {
    let context = ContextLengths::of(model);
    if is_given || context.loaded >= context.models {
        return None;
    }
    Some(context.why_shorter(is_software(model)))
}

/// How to get a longer context, or why there is none.
pub fn longer_context(model: &Model) -> String {
    ContextLengths::of(model).longer()
}

/// Contexts in tokens.
struct ContextLengths {
    loaded: u32,
    /// What fits the memory, at most the model's.
    fitting: u32,
    models: u32,
}

impl ContextLengths {
    fn of(model: &Model) -> ContextLengths {
        let (loaded, fitting) = (model.context_tokens(), model.max_context_tokens());
        ContextLengths { loaded, fitting, models: model.meta().model.max_positions }
    }

    fn why_shorter(&self, is_software: bool) -> String {
        let why = if is_software { "the default of software devices" } else { "which leaves part of the memory free" };
        format!("context {} of the model's {} tokens, {why}; {}", self.loaded, self.models, self.longer())
    }

    fn longer(&self) -> String {
        let ContextLengths { loaded, fitting, models } = *self;
        match () {
            () if loaded >= models => "it is the model's longest".to_owned(),
            () if loaded >= fitting => "a longer one does not fit the memory".to_owned(),
            () if fitting < models => format!("-c {fitting} gives the longest that fits the memory"),
            () => format!("-c {fitting} gives the model's longest"),
        }
    }
}

/// Notes each recovery of a lost device since the last call.
pub fn note_recoveries(model: &Model) {
    for recovery in model.take_recoveries() {
        let Recovery { cause, seconds, barriers, without_npu, .. } = recovery;
        let barriers = if barriers { ", with barriers between all dispatches" } else { "" };
        if without_npu {
            note(format_args!(
                "NPU failed ({cause}); the model was loaded again in {seconds:.2} s, the GPU does all of its work, and \
                 generation continued"
            ));
            continue;
        }
        note(format_args!(
            "device was lost ({cause}); the model was loaded again in {seconds:.2} s{barriers}, and generation continued"
        ));
    }
}

/// Whether the model's Vulkan device runs on the CPU.
pub fn is_software(model: &Model) -> bool {
    model.device().kind == DeviceKind::Cpu
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_context_names_the_option_and_the_most_that_fits() {
        let lengths = |loaded, fitting| ContextLengths { loaded, fitting, models: 8192 };
        assert_eq!(
            lengths(4096, 8192).why_shorter(true),
            "context 4096 of the model's 8192 tokens, the default of software devices; -c 8192 gives the model's longest"
        );
        assert_eq!(
            lengths(5120, 6400).why_shorter(false),
            "context 5120 of the model's 8192 tokens, which leaves part of the memory free; \
             -c 6400 gives the longest that fits the memory"
        );
        assert_eq!(lengths(6400, 6400).longer(), "a longer one does not fit the memory");
        assert_eq!(lengths(8192, 8192).longer(), "it is the model's longest");
    }
}
