//! [`reproduce`]: makes the parts of an artifact again and compares them with its content, so that nothing in it has to be
//! trusted. Hashes are not enough: who changes a kernel can also change its hash.
//!
//! ```text
//! config, options of the metadata ──► plan ──► kernels     compared with the sections: needs no weights
//! model's source ──► tokenizer, weights, figures of quantisation
//! ```

use std::fmt::{self, Display};
use std::path::Path;

use rayon::prelude::*;
use serde::Serialize;
use serde_json::Value;
use unicorn_artifact::{ArtifactView, NpuSection, TargetKernels};
use unicorn_spirv::{Target, target};

use crate::error::{CompileError, Result};
use crate::import::{self, Checkpoint, ModelConfig, map_artifact};
use crate::npu;
use crate::options::CompileOptions;
use crate::place::replace::replace;
use crate::progress::{self, Progress, Stage};
use crate::retarget::{compiled_for, options_of, recorded};
use crate::select;
use crate::weights::PackedWeight;
use crate::{Design, Planned, Source, Stages, design, meta, pack, synthesize};

/// Parts that were made again and found equal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Reproduced {
    /// Targets whose kernels were compared.
    pub targets: Vec<String>,
    /// Modules of these targets.
    pub modules: usize,
    /// Bytes of all weights, if they were made again; `None`: only their hashes were compared.
    pub weights_bytes: Option<u64>,
    /// Whether tokenizer and chat template were compared with those of the model's source.
    pub tokenizer: bool,
    /// The same of the draft, whose weights are compared with their hashes alone; `None`: the artifact has none.
    pub draft: Option<Box<Reproduced>>,
}

/// Makes plan and kernels of the artifact at `path` from the model's numbers in its metadata; with `from`, the model that it was compiled from, also
/// tokenizer, weights and metadata. Plan and kernels of a draft in it are made, too. Random weights need no source. Blocks for seconds, with `from` as long as a compile; writes
/// nothing.
///
/// # Errors
/// [`CompileError::Differs`] names the first part that differs from what this compiler makes; other errors are those of a compile,
/// and of a file that is not an artifact.
pub fn reproduce(path: &Path, from: Option<&Path>, progress: &mut dyn Progress) -> Result<Reproduced> {
    let file = map_artifact(path)?;
    let malformed = |what: String| CompileError::Malformed { path: path.to_owned(), what };
    let view = ArtifactView::parse(file.bytes()).map_err(|error| malformed(error.to_string()))?;
    let mut stages = Stages::new(progress);
    let mut reproduced = Artifact { path, view: &view }.reproduce(from, &mut stages)?;
    if let Some(view) = view.draft.as_deref() {
        let of_draft = Artifact { path, view }.reproduce(None, &mut stages);
        reproduced.draft = Some(Box::new(of_draft.map_err(CompileError::of_draft)?));
    }
    Ok(reproduced)
}

impl Artifact<'_> {
    /// Of one model; its draft is another.
    fn reproduce(&self, from: Option<&Path>, stages: &mut Stages) -> Result<Reproduced> {
        let Artifact { path, view } = *self;
        let malformed = |what: String| CompileError::malformed(path, what);
        let config = ModelConfig::decode(&view.meta.provenance.config);
        let config = config.map_err(|what| malformed(format!("description of the model: {what}")))?;
        let options = options_of(view, &recorded_targets(view)).map_err(malformed)?;
        options.check()?;
        if let (Some(_), Some(adapters)) = (from, recorded(view, "adapters")) {
            let what = format!(
                "{adapters} LoRA adapters are merged into the artifact, expected none to compare its weights with a model"
            );
            return Err(malformed(what));
        }
        if let (Some(_), Some(projector)) = (from, recorded(view, "projector")) {
            let what = format!(
                "the vision tower of the artifact is {projector}, expected that of its model to compare its weights with the model"
            );
            return Err(malformed(what));
        }
        let is_synthetic = view.meta.model.synthetic;
        let source = match from {
            Some(model) if is_synthetic => {
                let what = "weights of the artifact are random, expected no model to compare them with".into();
                return Err(CompileError::Malformed { path: model.to_owned(), what });
            }
            Some(model) => Source::Model(model),
            None => Source::Synthetic(path),
        };
        let checkpoint = match from {
            Some(model) => {
                let mut checkpoint = import::open_model(model)?;
                if config.vision.is_none() {
                    checkpoint.leave_out_vision();
                }
                if !config.predictor {
                    checkpoint.leave_out_predictor();
                }
                // A compile may have requested another number than the model's own.
                if let (Some(found), Some(of_artifact)) = (&mut checkpoint.config.vision, &config.vision) {
                    found.take_size_of(of_artifact);
                }
                checkpoint
            }
            None => Checkpoint::without_weights(config.clone(), view.tokenizer.clone()),
        };
        self.same("model", &checkpoint.config, &config)?;
        self.same("images", &select::image_section(&config), &view.image)?;
        let design = self.plan(&config, &options, stages)?;
        let planned = design.of(checkpoint, None);
        let npu = stages.npu_section(planned.npu.as_ref(), planned.npu_selection.as_ref(), &planned.placement)?;
        self.compare_npu(npu)?;
        let modules = self.compare_kernels(&planned, stages)?;
        self.check_hashes()?;
        let made_weights = is_synthetic || from.is_some();
        let importance = stages.importance(source, &planned, &options)?;
        let mut errors = pack::Errors::new();
        if made_weights {
            let Planned { checkpoint, verified, .. } = &planned;
            let fill = |weight: &PackedWeight, sink: Sink<'_>| match source {
                Source::Model(_) => pack::pack(weight, verified.graph(), &importance, checkpoint, &mut errors, sink),
                Source::Synthetic(_) => synthesize::synthesize(weight, verified.graph(), &checkpoint.config, sink),
            };
            self.compare_weights(&planned, fill, stages)?;
            self.compare_npu_weights(&planned, source)?;
        }
        if from.is_some() {
            self.same("tokenizer", &planned.checkpoint.tokenizer, &view.tokenizer)?;
        }
        self.compare_meta(source, &planned, &options, &errors, from.is_some())?;
        Ok(Reproduced {
            targets: view.kernels.targets.iter().map(|target| target.name.clone()).collect(),
            modules,
            weights_bytes: made_weights.then(|| view.weights().iter().map(|section| section.len_bytes).sum()),
            tokenizer: from.is_some(),
            draft: None,
        })
    }
}

/// Targets that it was compiled for and that this compiler has; it may hold the kernels of fewer.
fn recorded_targets(view: &ArtifactView) -> Vec<Target> {
    recorded(view, "targets").unwrap_or_default().split(',').filter_map(target::by_name).collect()
}

/// Takes the bytes of a weight in order.
type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// An artifact that is compared with what was made again.
struct Artifact<'a> {
    path: &'a Path,
    view: &'a ArtifactView<'a>,
}

impl Artifact<'_> {
    fn differs(&self, what: String) -> CompileError {
        let made_by = &self.view.meta.provenance.compiler_version;
        let other_version = (made_by != env!("CARGO_PKG_VERSION")).then(|| made_by.clone());
        CompileError::Differs { path: self.path.to_owned(), what, other_version }
    }

    /// Names the first field that differs.
    fn same<T: PartialEq + Serialize>(&self, what: &str, expected: &T, found: &T) -> Result<()> {
        if expected == found {
            return Ok(());
        }
        let values = [expected, found].map(|value| serde_json::to_value(value).unwrap_or_default());
        let [expected, found] = &values;
        Err(self.differs(difference(what, expected, found).unwrap_or_else(|| format!("{what} differs"))))
    }

    /// Makes the plan again, for the machine that it names or for the one that the artifact was compiled for: then `replan` has
    /// moved its slices since, each as a whole.
    fn plan(&self, config: &ModelConfig, options: &CompileOptions, stages: &mut Stages) -> Result<Design> {
        let found = &self.view.plan;
        let mut closest = None;
        for machine in [Some(found.machine.clone()), compiled_for(self.view)].into_iter().flatten() {
            let Ok(design) = design(config, &CompileOptions { machine, ..options.clone() }, stages) else { continue };
            let plan = design.placement.plan.clone();
            let moved = replace(&plan, &found.machine, found.planned_context_tokens).ok();
            if plan == *found || moved.as_ref() == Some(found) {
                return Ok(design);
            }
            closest = moved.or(Some(plan));
        }
        match closest {
            Some(plan) => self.same("plan", &plan, found).and(Err(self.differs("plan differs".into()))),
            None => Err(self.differs("plan is for a machine that has no room for the model".into())),
        }
    }

    /// The number of modules. An artifact may hold fewer targets than it was compiled for.
    fn compare_kernels(&self, planned: &Planned, stages: &mut Stages) -> Result<usize> {
        let made = stages.kernels(&planned.selection, &planned.placement)?;
        let mut modules = 0;
        for found in &self.view.kernels.targets {
            let Some(expected) = made.targets.iter().find(|target| target.name == found.name) else {
                return Err(self.differs(format!("target {} is none of those in its metadata", found.name)));
            };
            modules += self.compare_target(expected, found)?;
        }
        Ok(modules)
    }

    fn compare_target(&self, expected: &TargetKernels, found: &TargetKernels) -> Result<usize> {
        let unpacked = |target: &TargetKernels| {
            target.modules.unpack_all().map_err(|error| self.differs(format!("target {}: {error}", found.name)))
        };
        let (expected_modules, found_modules) = (unpacked(expected)?, unpacked(found)?);
        for (number, (expected, found_words)) in expected_modules.iter().zip(&found_modules).enumerate() {
            let Some(word) = first_difference(expected, found_words) else { continue };
            let shown = |words: &[u32]| words.get(word).map_or("none".into(), |word| format!("{word:#010x}"));
            let (expected, found_word) = (shown(expected), shown(found_words));
            let kernel = kernel_of(found, number);
            let what = format!("word {word} of the kernel {kernel} of target {}", found.name);
            return Err(self.differs(format!("{what} is {found_word}, expected {expected}")));
        }
        // Frames may be compressed differently by another version of zstd: what they hold was compared.
        let without_frames = |target: &TargetKernels| {
            let mut target = target.clone();
            target.modules.frames.iter_mut().for_each(|frame| frame.zstd.clear());
            target
        };
        let what = format!("target {}", found.name);
        self.same(&what, &without_frames(expected), &without_frames(found))?;
        Ok(found_modules.len())
    }

    fn check_hashes(&self) -> Result<()> {
        let all = self.view.weights().par_iter().chain(self.view.npu_weights());
        let wrong = all.find_map_any(|section| section.verify().err());
        wrong.map_or(Ok(()), |error| {
            Err(CompileError::Malformed { path: self.path.to_owned(), what: error.to_string() })
        })
    }

    /// The plan has been compared: it has the place of each weight.
    fn compare_weights(
        &self,
        planned: &Planned,
        mut fill: impl FnMut(&PackedWeight, Sink<'_>) -> Result<()>,
        stages: &mut Stages,
    ) -> Result<()> {
        let placement = &planned.placement.weights;
        stages.begin(Stage::Weights, placement.weights.iter().map(|weight| weight.len_bytes).sum())?;
        let mut ends = vec![0; placement.slices.len()];
        for (weight, &id) in placement.weights.iter().zip(&placement.ids) {
            let slice = weight.slice as usize;
            let stored = self.view.weights()[slice].bytes;
            let begin = weight.offset_bytes as usize;
            if let Some(at) = stored[ends[slice]..begin].iter().position(|&byte| byte != 0) {
                let at = ends[slice] + at;
                let what = format!("byte {at} of weight section {slice}, before {}, is {}", weight.name, stored[at]);
                return Err(self.differs(format!("{what}, expected 0")));
            }
            ends[slice] = begin + weight.len_bytes as usize;
            let stored = &stored[begin..ends[slice]];
            let mut done = 0;
            let progress = &mut *stages.progress;
            fill(planned.weights.get(id), &mut |bytes| {
                let found = &stored[done..done + bytes.len()];
                if let Some(at) = first_difference(bytes, found) {
                    let what = format!("byte {} of weight {} is {}", done + at, weight.name, found[at]);
                    return Err(self.differs(format!("{what}, expected {}", bytes[at])));
                }
                done += bytes.len();
                progress::check(progress.advance(bytes.len() as u64))
            })?;
        }
        stages.end(0)
    }

    /// Programs and products. The decisions follow from the machine of the compile, which `replan` may have changed since; they are what was recorded
    /// with the options.
    fn compare_npu(&self, made: Option<NpuSection>) -> Result<()> {
        let found = self.view.npu.as_ref();
        let (Some(mut expected), Some(found)) = (made.clone(), found) else {
            let (expected, found) = (made.map_or("none", |_| "one"), found.map_or("none", |_| "one"));
            return if expected == found {
                Ok(())
            } else {
                Err(self.differs(format!("npu section is {found}, expected {expected}")))
            };
        };
        // Kernels are compared as those of other programs. Earlier versions of `retarget` added targets without steps.
        let made = std::mem::take(&mut expected.steps);
        for found in &found.steps {
            let name = &found.kernels.name;
            let Some(expected) = made.iter().find(|steps| steps.kernels.name == *name) else {
                return Err(self.differs(format!("target {name} of the NPU's steps is none of those in its metadata")));
            };
            self.compare_target(&expected.kernels, &found.kernels)?;
            self.same(&format!("commands of the NPU's steps of target {name}"), &expected.commands, &found.commands)?;
        }
        expected.decisions.clone_from(&found.decisions);
        // A user's tools have made them.
        npu::keep_control(&mut expected, found);
        self.same("npu", &expected, &NpuSection { steps: Vec::new(), ..found.clone() })
    }

    /// As [`Artifact::compare_weights`]: the section has been compared.
    fn compare_npu_weights(&self, planned: &Planned, source: Source) -> Result<()> {
        let Some(npu) = &planned.npu else { return Ok(()) };
        let mut end = (0, 0);
        for (product, matrix) in npu.section.products.iter().zip(&npu.matrices) {
            let stored = self.view.npu_weights()[product.slice as usize].bytes;
            let begin = product.offset_bytes as usize;
            let gap = if end.0 == product.slice { end.1 } else { 0 };
            if let Some(at) = stored[gap..begin].iter().position(|&byte| byte != 0) {
                let what = format!("byte {} of NPU weight section {}", gap + at, product.slice);
                return Err(self.differs(format!(
                    "{what}, before {}, is {}, expected 0",
                    product.name,
                    stored[gap + at]
                )));
            }
            end = (product.slice, begin + product.len_bytes as usize);
            let (stored, mut done) = (&stored[begin..end.1], 0);
            npu::pack(matrix, planned.verified.graph(), source, &planned.checkpoint, &mut |bytes| {
                if let Some(at) = first_difference(bytes, &stored[done..done + bytes.len()]) {
                    let found = stored[done + at];
                    let what = format!("byte {} of the NPU's weight {} is {found}", done + at, product.name);
                    return Err(self.differs(format!("{what}, expected {}", bytes[at])));
                }
                done += bytes.len();
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Without the model's source, only what follows from the description is known.
    fn compare_meta(
        &self,
        source: Source,
        planned: &Planned,
        options: &CompileOptions,
        errors: &pack::Errors,
        has_source: bool,
    ) -> Result<()> {
        let found = &self.view.meta;
        let mut expected = meta(source, planned, options, errors);
        // The name of a folder or file, which may have changed, and a version, whose differences were reported above.
        expected.model.name.clone_from(&found.model.name);
        expected.model.synthetic = found.model.synthetic;
        expected.provenance.compiler_version.clone_from(&found.provenance.compiler_version);
        // The plan has the current machine and context; these are those of the compile.
        for (option, value) in &mut expected.provenance.options {
            if let Some(found) =
                recorded(self.view, option).filter(|_| ["machine", "context"].contains(&option.as_str()))
            {
                found.clone_into(value);
            }
        }
        // Files beside the model, with which a source is refused.
        for (at, option) in found.provenance.options.iter().enumerate() {
            if ["adapters", "projector"].contains(&option.0.as_str()) {
                let options = &mut expected.provenance.options;
                options.insert(at.min(options.len()), option.clone());
            }
        }
        if !has_source {
            expected.provenance.source_hash = found.provenance.source_hash;
            expected.tensors.clone_from(&found.tensors);
        }
        self.same("metadata", &expected, found)
    }
}

/// The pipeline that uses a module, for people.
fn kernel_of(target: &TargetKernels, number: usize) -> String {
    let uses = |module: u32| module as usize == number;
    for pipeline in &target.pipelines {
        if uses(pipeline.module) {
            return format!("`{}`", pipeline.name);
        }
        if let Some(alternative) = pipeline.alternatives.iter().find(|alternative| uses(alternative.module)) {
            return format!("`{}`, alternative `{}`,", pipeline.name, alternative.name);
        }
    }
    format!("number {number}")
}

/// Where two lists differ, or the shorter one ends.
fn first_difference<T: PartialEq>(expected: &[T], found: &[T]) -> Option<usize> {
    let differing = expected.iter().zip(found).position(|(one, other)| one != other);
    differing.or_else(|| (expected.len() != found.len()).then(|| expected.len().min(found.len())))
}

/// The first place in which two values differ, as in `plan.weights[3].offset_bytes is 0, expected 256`.
fn difference(place: &str, expected: &Value, found: &Value) -> Option<String> {
    match (expected, found) {
        (Value::Object(expected), Value::Object(found)) => {
            expected.iter().find_map(|(name, value)| difference(&format!("{place}.{name}"), value, found.get(name)?))
        }
        (Value::Array(expected), Value::Array(found)) if expected.len() == found.len() => {
            let mut pairs = expected.iter().zip(found).enumerate();
            pairs.find_map(|(index, (one, other))| difference(&format!("{place}[{index}]"), one, other))
        }
        (Value::Array(expected), Value::Array(found)) => {
            Some(format!("{place} has {} entries, expected {}", found.len(), expected.len()))
        }
        (expected, found) if expected != found => {
            Some(format!("{place} is {}, expected {}", short(found), short(expected)))
        }
        _ => None,
    }
}

/// A value in a message: tokenizers are long.
fn short(value: &Value) -> String {
    const LETTERS: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(LETTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

impl Display for Reproduced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let targets = self.targets.join(", ");
        writeln!(f, "  kernels   {} modules of {targets}: as this compiler makes them", self.modules)?;
        writeln!(f, "  plan      as this compiler makes it")?;
        match self.weights_bytes {
            Some(bytes) => writeln!(f, "  weights   {bytes} bytes: as this compiler makes them")?,
            None => writeln!(f, "  weights   match their hashes; not compared with a model")?,
        }
        let tokenizer = if self.tokenizer { "as in the model" } else { "not compared with a model" };
        write!(f, "  tokenizer {tokenizer}")?;
        self.draft.iter().try_for_each(|draft| write!(f, "\ndraft\n{draft}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_difference_is_named_by_its_place() {
        let of = |expected: Value, found: Value| difference("plan", &expected, &found);
        assert_eq!(of(json!({ "a": [1, { "b": 2 }] }), json!({ "a": [1, { "b": 2 }] })), None);
        let inner = of(json!({ "a": [1, { "b": 2 }] }), json!({ "a": [1, { "b": 3 }] }));
        assert_eq!(inner.as_deref(), Some("plan.a[1].b is 3, expected 2"));
        assert_eq!(of(json!([1]), json!([])).as_deref(), Some("plan has 0 entries, expected 1"));
        let long = of(json!("x"), json!("é".repeat(100))).unwrap();
        assert!(long.chars().count() < 100 && long.ends_with("…, expected \"x\""), "{long}");
        assert_eq!((first_difference(&[1, 2], &[1, 3]), first_difference(&[1], &[1, 2])), (Some(1), Some(1)));
        assert_eq!(first_difference(&[1, 2], &[1, 2]), None);
    }
}
