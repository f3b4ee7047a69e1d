//! [`replan`]: a new memory plan for an artifact, whose weights do not change.

use std::path::{Path, PathBuf};

use unicorn_artifact::header::SectionKind;
use unicorn_artifact::machine::with_budget;
use unicorn_artifact::rewrite::{Change, NewKernels, NewPlan, rewrite};
use unicorn_artifact::{Account, ArtifactView, Budget, Machine, fit};

use crate::error::{CompileError, Result};
use crate::import::map_artifact;
use crate::npu::{with_control, with_cores};
use crate::place::replace::replace;
use crate::planned_context;
use crate::progress::{self, Progress, Stage};
use crate::retarget::{WithoutNpu, without_npu};

/// What is to change; what is not given stays as the artifact has it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ReplanOptions {
    /// `None`: the one that the artifact was planned for.
    pub machine: Option<Machine>,
    /// Sizes that replace the machine's.
    pub budget: Budget,
    /// Tokens of the sequence that must fit; `None`: as before.
    pub context_tokens: Option<u32>,
    /// Removes the NPU's programs, steps and weights: the GPU computes everything. Kernels are made again, for which the model's
    /// files are not needed.
    pub no_npu: bool,
    /// A folder with the control image of each NPU program, NAME.pdi, which the artifact gets; `None`: as before.
    pub npu_control: Option<PathBuf>,
    /// An installation of Peano (llvm-aie), which makes machine code of each NPU program's cores; `None`: as before.
    pub npu_peano: Option<PathBuf>,
}

/// Makes another plan for the artifact at `path` and replaces its plan section, with `no_npu` all that concerns an NPU, and with
/// `npu_control` or `npu_peano` the control images of its programs. A draft in it gets another plan, too. Returns the sums of the model's plan.
///
/// # Errors
/// When it is not an artifact, when it does not fit the machine, when a control image is missing or none of its program, and when
/// the file cannot be written. The artifact is then unchanged.
pub fn replan(path: &Path, options: &ReplanOptions, progress: &mut dyn Progress) -> Result<Account> {
    let file = map_artifact(path)?;
    let view = ArtifactView::parse(file.bytes())
        .map_err(|error| CompileError::Malformed { path: path.to_owned(), what: error.to_string() })?;
    let machine = match &options.machine {
        Some(machine) => machine.plan(&options.budget),
        // The draft was planned for the whole machine.
        None => {
            let planned = view.draft.as_ref().map_or(&view.plan, |draft| &draft.plan);
            with_budget(&options.budget, planned.machine.clone())
        }
    };
    let machine = machine.map_err(CompileError::of_machine)?;
    let context_tokens = match options.context_tokens {
        Some(requested) => planned_context(Some(requested), view.meta.model.max_positions as usize)?,
        None => view.plan.planned_context_tokens,
    };
    let without_npu = match options.no_npu && view.npu.is_some() {
        true => Some(without_npu(path, &view, progress)?),
        false => None,
    };
    let section = view.npu.as_ref().filter(|_| without_npu.is_none());
    let with_control = match (&options.npu_control, &options.npu_peano, section) {
        (None, None, _) => None,
        (Some(folder), None, Some(section)) => Some(with_control(section, folder)?),
        (None, Some(folder), Some(section)) => Some(with_cores(section, folder)?),
        (Some(_), Some(_), _) => {
            let what = "control images are given, expected these or a compiler that makes them".into();
            return Err(CompileError::Option { option: "npu_peano", what });
        }
        (images, _, None) => {
            let what = "control images are of NPU programs, of which the artifact has none".into();
            let option = if images.is_some() { "npu_control" } else { "npu_peano" };
            return Err(CompileError::Option { option, what });
        }
    };
    let before = without_npu.as_ref().map_or(&view.plan, |without| &without.plan);
    let draft = view.draft.as_ref().map(|draft| {
        let context_tokens = context_tokens.min(draft.meta.model.max_positions);
        replace(&draft.plan, &machine, context_tokens).map_err(CompileError::of_draft)
    });
    let draft = draft.transpose()?;
    let machine = draft.as_ref().map_or_else(|| machine.clone(), |draft| fit::beside(&machine, draft));
    let plan = replace(before, &machine, context_tokens)?;
    progress::check(progress.stage(Stage::Write, 1))?;
    let begun = |partial: &Path| progress.partial(Some(partial));
    let change = match &without_npu {
        Some(WithoutNpu { meta, kernels, .. }) => {
            let removed = [SectionKind::Npu, SectionKind::NpuWeights, SectionKind::NpuSteps, SectionKind::NpuSchedules];
            Change::from(NewKernels { meta, plan: &plan, kernels, npu: None }).without(&removed)
        }
        None => NewPlan { plan: &plan, npu: with_control.as_ref() }.into(),
    };
    let of_draft = draft.as_ref().map(|plan| NewPlan { plan, npu: None }.into());
    let replaced = rewrite(path, path, &change.with_draft(of_draft), begun);
    progress.partial(None);
    replaced.map_err(CompileError::io(path))?;
    // The new plan is in place: too late to cancel.
    let _ = progress.advance(1);
    Ok(Account::of(&plan))
}
