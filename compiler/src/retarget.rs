//! [`retarget`]: more kernels in an artifact, whose weights do not change.

use std::fmt::{self, Display};
use std::path::Path;

use serde::Serialize;
use unicorn_artifact::account::size;
use unicorn_artifact::rewrite::{Change, NewKernels, rewrite};
use unicorn_artifact::{ArtifactView, Budget, Kernels, Machine, MachinePlan, Meta, NpuProgram, NpuSection, Plan, fit};
use unicorn_kernels::KvFormat;
use unicorn_kernels::npu::tile::LAYOUT;
use unicorn_spirv::{Target, target};

use crate::error::{CompileError, Result};
use crate::format_policy::{FormatPolicy, WeightsOption};
use crate::import::{ModelConfig, map_artifact};
use crate::npu::{NpuOptions, NpuWork, keep_control};
use crate::place::replace::replace;
use crate::progress::{Progress, Stage};
use crate::{CompileOptions, Design, NPU_LAYOUT, Stages, design, target_names};

/// Kernels that [`retarget`] adds. The default adds none: what the artifact has is made again.
#[derive(Clone, Debug, Default)]
pub struct Additions {
    /// Targets to make kernels for, besides those that the artifact has.
    pub targets: Vec<Target>,
    /// Whether all targets get alternatives of their kernels, where the artifact has none.
    pub alternatives: bool,
}

/// The targets of an artifact that [`retarget`] wrote.
#[derive(Clone, Debug, Serialize)]
pub struct Retargeted {
    /// All targets, in the order in which a device chooses.
    pub targets: Vec<&'static str>,
    /// The targets that were added.
    pub added: Vec<&'static str>,
    /// Length of the artifact.
    pub artifact_bytes: u64,
}

const OTHER_WEIGHTS: &str =
    "its weights have a layout that this version of the compiler does not use; compile the model again";

/// Adds kernels to those of the artifact at `path`, and writes it to `output`, which may be the same file. The result is the same
/// as a compile with all of them by this version of the compiler. A draft in it gets the same.
///
/// # Errors
/// When it is not an artifact, when its weights have a layout that this version of the compiler does not use, and when the file
/// cannot be written. The file at `output` is then unchanged.
pub fn retarget(path: &Path, output: &Path, added: &Additions, progress: &mut dyn Progress) -> Result<Retargeted> {
    let file = map_artifact(path)?;
    let view = ArtifactView::parse(file.bytes()).map_err(|error| CompileError::malformed(path, error.to_string()))?;
    let mut stages = Stages::new(progress);
    let rebuilt = RebuiltParts::of(path, &view, added, &mut stages)?;
    let draft = view
        .draft
        .as_deref()
        .map(|draft| RebuiltParts::of(path, draft, added, &mut stages).map_err(CompileError::of_draft));
    let draft = draft.transpose()?;

    stages.begin(Stage::Write, 1)?;
    let change = Change::from(rebuilt.kernels()).with_draft(draft.map(|draft| draft.kernels().into()));
    let replaced = rewrite(path, output, &change, |partial| progress.partial(Some(partial)));
    progress.partial(None);
    let artifact_bytes = replaced.map_err(CompileError::io(output))?;
    // The artifact is complete: too late to cancel.
    let _ = progress.advance(1);
    let names: Vec<&str> = rebuilt.options.targets_in_order().iter().map(|target| target.name).collect();
    let is_new = |name: &&&str| view.kernels.targets.iter().all(|before| before.name != **name);
    Ok(Retargeted { added: names.iter().filter(is_new).copied().collect(), targets: names, artifact_bytes })
}

/// The parts of a model that are made again; its weights stay.
struct RebuiltParts {
    options: CompileOptions,
    meta: Meta,
    plan: Plan,
    kernels: Kernels,
    npu: Option<NpuSection>,
}

impl RebuiltParts {
    /// Of the model of the artifact at `path`, or of its draft.
    fn of(path: &Path, view: &ArtifactView, added: &Additions, stages: &mut Stages) -> Result<RebuiltParts> {
        let malformed = |what: String| CompileError::malformed(path, what);
        let config = ModelConfig::decode(&view.meta.provenance.config).map_err(malformed)?;
        let mut options = options_of(view, &added.targets).map_err(malformed)?;
        options.alternatives |= added.alternatives;
        options.check()?;
        let (design, plan) =
            same_weights(view, &config, options.clone(), stages)?.ok_or_else(|| malformed(OTHER_WEIGHTS.into()))?;
        let kernels = stages.kernels(&design.selection, &design.placement)?;
        let npu = stages.npu_section(design.npu.as_ref(), design.npu_selection.as_ref(), &design.placement)?;
        let npu = npu.map(|made| same_npu_weights(path, view, made)).transpose()?;
        let meta = meta(&view.meta, &config, &options);
        Ok(RebuiltParts { options, meta, plan, kernels, npu })
    }

    fn kernels(&self) -> NewKernels<'_> {
        let RebuiltParts { meta, plan, kernels, npu, .. } = self;
        NewKernels { meta, plan, kernels, npu: npu.as_ref() }
    }
}

/// The NPU section as this version makes it, with the decisions of the compile, and control images of programs that are the same.
///
/// # Errors
/// When its weights differ from the artifact's.
fn same_npu_weights(path: &Path, view: &ArtifactView, mut made: NpuSection) -> Result<NpuSection> {
    let none = "its metadata names an NPU, and it has no section for one; compile the model again";
    let found = view.npu.as_ref().ok_or_else(|| CompileError::malformed(path, none))?;
    let shapes = |section: &NpuSection| {
        let shape = |program: &NpuProgram| (program.shape, program.activation.clone());
        section.programs.iter().map(shape).collect::<Vec<_>>()
    };
    let is_of_layout = recorded(view, NPU_LAYOUT) == Some(LAYOUT.to_string().as_str());
    if !is_of_layout || made.products != found.products || made.slices != found.slices || shapes(&made) != shapes(found)
    {
        return Err(CompileError::OtherNpuWeights { path: path.to_owned() });
    }
    keep_control(&mut made, found);
    Ok(NpuSection { decisions: found.decisions.clone(), ..made })
}

/// The parts of an artifact that differ without NPU programs.
pub(crate) struct WithoutNpu {
    pub meta: Meta,
    pub plan: Plan,
    pub kernels: Kernels,
}

/// The parts other than weights that a compile without `--npu` would have written for the artifact at `path`.
///
/// # Errors
/// Errors of [`retarget`].
pub(crate) fn without_npu(path: &Path, view: &ArtifactView, progress: &mut dyn Progress) -> Result<WithoutNpu> {
    let malformed = |what: String| CompileError::malformed(path, what);
    let config = ModelConfig::decode(&view.meta.provenance.config).map_err(malformed)?;
    let options = CompileOptions { npu: None, ..options_of(view, &[]).map_err(malformed)? };
    let mut stages = Stages::new(progress);
    let (design, plan) =
        same_weights(view, &config, options.clone(), &mut stages)?.ok_or_else(|| malformed(OTHER_WEIGHTS.into()))?;
    let kernels = stages.kernels(&design.selection, &design.placement)?;
    let mut meta = meta(&view.meta, &config, &options);
    meta.provenance.options.retain(|(name, _)| name != "npu" && !name.starts_with("npu-"));
    Ok(WithoutNpu { meta, plan, kernels })
}

/// The options that the artifact was compiled with, with `targets` added.
pub(crate) fn options_of(view: &ArtifactView, targets: &[Target]) -> std::result::Result<CompileOptions, String> {
    let value = |name: &str| {
        recorded(view, name).ok_or_else(|| format!("it does not record with which option {name} it was compiled"))
    };
    let unknown =
        |name: &str, value: &str| format!("it was compiled with {name} {value}, which this version does not have");
    let flag = |name: &str| value(name).and_then(|text| text.parse::<bool>().map_err(|_| unknown(name, text)));
    let weights = value("weights")?;
    let group = value("group")?;
    let kv = value("kv")?;

    let mut all: Vec<Target> = Vec::new();
    for before in &view.kernels.targets {
        all.push(target::by_name(&before.name).ok_or_else(|| unknown("target", &before.name))?);
    }
    all.extend(targets.iter().filter(|new| view.kernels.targets.iter().all(|before| before.name != new.name)).cloned());
    Ok(CompileOptions {
        policy: FormatPolicy {
            weights: WeightsOption::ALL
                .into_iter()
                .find(|option| option.name() == weights)
                .ok_or_else(|| unknown("weights", weights))?,
            group: group.parse().map_err(|_| unknown("group", group))?,
        },
        targets: all,
        fuse: flag("fuse")?,
        kv: [KvFormat::F16, KvFormat::Int8]
            .into_iter()
            .find(|format| format.name() == kv)
            .ok_or_else(|| unknown("kv", kv))?,
        alternatives: flag("alternatives")?,
        machine: view.plan.machine.clone(),
        context_tokens: Some(view.plan.planned_context_tokens),
        npu: npu_of(view)?,
        ..CompileOptions::default()
    })
}

/// The work that the NPU was given; `None`: the artifact has no NPU section.
fn npu_of(view: &ArtifactView) -> std::result::Result<Option<NpuOptions>, String> {
    if recorded(view, "npu").is_none() {
        return Ok(None);
    }
    let number = |name: &str| {
        let value = recorded(view, name).and_then(|text| text.parse::<usize>().ok());
        value.ok_or_else(|| format!("it does not record with which option {name} it was compiled"))
    };
    let works = recorded(view, "npu-for").unwrap_or_default();
    let work = NpuWork::ALL.into_iter().filter(|work| works.split(',').any(|name| name == work.name())).collect();
    let (rows, columns) = (number("npu-rows")?, number("npu-columns")?);
    Ok(Some(NpuOptions::default().with(|npu| (npu.rows, npu.columns, npu.work) = (rows, columns, Some(work)))))
}

/// The value of an option that the artifact was compiled with.
pub(crate) fn recorded<'v>(view: &'v ArtifactView, name: &str) -> Option<&'v str> {
    let found = view.meta.provenance.options.iter().find(|(option, _)| option == name);
    found.map(|(_, value)| value.as_str())
}

/// The machine that the artifact was compiled for, where this version has it, with the memory that its draft leaves.
pub(crate) fn compiled_for(view: &ArtifactView) -> Option<MachinePlan> {
    let machine = Machine::named(recorded(view, "machine")?).ok()?.plan(&Budget::default()).ok()?;
    let Some(draft) = &view.draft else { return Some(machine) };
    let draft = fit::on(&draft.plan, &machine, draft.plan.planned_context_tokens).ok()?;
    Some(fit::beside(&machine, &draft))
}

/// A plan for new targets in which every weight has its place in the artifact; `None`: there is none.
///
/// Which weights share a slice depends on the machine that the artifact was compiled for. `replan` may have moved the slices to
/// another machine's memory since: then the plan is made for the first machine and its slices are moved again.
fn same_weights(
    view: &ArtifactView,
    config: &ModelConfig,
    mut options: CompileOptions,
    stages: &mut Stages,
) -> Result<Option<(Design, Plan)>> {
    let now = options.machine.clone();
    for machine in [Some(now.clone()), compiled_for(view)].into_iter().flatten() {
        options.machine = machine;
        let Ok(design) = design(config, &options, stages) else { continue };
        let plan = &design.placement.plan;
        if lies_like(plan, &view.plan) {
            let plan = if options.machine == now {
                plan.clone()
            } else {
                replace(plan, &now, view.plan.planned_context_tokens)?
            };
            return Ok(Some((design, plan)));
        }
    }
    Ok(None)
}

fn lies_like(plan: &Plan, other: &Plan) -> bool {
    let slices = |plan: &Plan| plan.slices.iter().map(|slice| slice.bytes).collect::<Vec<_>>();
    let places = |plan: &Plan| {
        let place = |weight: &unicorn_artifact::plan::WeightPlan| {
            (weight.name.clone(), weight.slice, weight.offset_bytes, weight.len_bytes)
        };
        plan.weights.iter().map(place).collect::<Vec<_>>()
    };
    slices(plan) == slices(other) && places(plan) == places(other)
}

fn meta(before: &Meta, config: &ModelConfig, options: &CompileOptions) -> Meta {
    let mut meta = before.clone();
    // As this version records it, whatever version recorded it before.
    meta.provenance.config = config.encode();
    meta.provenance.compiler_version = env!("CARGO_PKG_VERSION").into();
    for (name, value) in &mut meta.provenance.options {
        match name.as_str() {
            "targets" => *value = target_names(options),
            "alternatives" => *value = options.alternatives.to_string(),
            _ => {}
        }
    }
    meta
}

impl Display for Retargeted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let added = if self.added.is_empty() { "none, rebuilt".into() } else { self.added.join(", ") };
        writeln!(f, "  targets   {}", self.targets.join(", "))?;
        writeln!(f, "  new       {added}")?;
        write!(f, "  artifact  {}", size(self.artifact_bytes))
    }
}
