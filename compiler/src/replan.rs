//! [`replan`]: a new memory plan for an artifact, whose weights do not change.

use std::path::{Path, PathBuf};

use unicorn_artifact::header::SectionKind;
use unicorn_artifact::machine::with_budget;
use unicorn_artifact::rewrite::{Change, NewKernels, NewPlan, rewrite};
use unicorn_artifact::{Account, ArtifactView, Budget, Machine, NpuSection, Plan, fit};

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
    check_control(options, &view)?;
    let of_model = NpuPart::of(path, &view, options, progress)?;
    let of_draft = view.draft.as_deref().map(|draft| {
        let part = NpuPart::of(path, draft, options, progress)?;
        let context_tokens = context_tokens.min(draft.meta.model.max_positions);
        let plan = replace(part.plan_before(draft), &machine, context_tokens)?;
        Ok((part, plan))
    });
    let of_draft = of_draft.transpose().map_err(CompileError::of_draft)?;
    let machine = of_draft.as_ref().map_or_else(|| machine.clone(), |(_, plan)| fit::beside(&machine, plan));
    let plan = replace(of_model.plan_before(&view), &machine, context_tokens)?;
    progress::check(progress.stage(Stage::Write, 1))?;
    let begun = |partial: &Path| progress.partial(Some(partial));
    let of_draft = of_draft.as_ref().map(|(part, plan)| part.change(plan));
    let replaced = rewrite(path, path, &of_model.change(&plan).with_draft(of_draft), begun);
    progress.partial(None);
    replaced.map_err(CompileError::io(path))?;
    // The new plan is in place: too late to cancel.
    let _ = progress.advance(1);
    Ok(Account::of(&plan))
}

/// Checks that control images are given once, and that there are programs for them, of the model or of its draft.
fn check_control(options: &ReplanOptions, view: &ArtifactView) -> Result<()> {
    let refused = |option, what: &str| Err(CompileError::Option { option, what: what.into() });
    let has_programs = |view: &ArtifactView| view.npu.as_ref().is_some_and(|section| !section.programs.is_empty());
    let has_any = !options.no_npu && (has_programs(view) || view.draft.as_deref().is_some_and(has_programs));
    match (&options.npu_control, &options.npu_peano) {
        (Some(_), Some(_)) => {
            refused("npu_peano", "control images are given, expected these or a compiler that makes them")
        }
        (images, peano) if (images.is_some() || peano.is_some()) && !has_any => {
            let option = if images.is_some() { "npu_control" } else { "npu_peano" };
            refused(option, "control images are of NPU programs, of which the artifact has none")
        }
        _ => Ok(()),
    }
}

/// What becomes of an NPU's part in a model or its draft.
#[derive(Default)]
struct NpuPart {
    /// What the model is without it.
    without: Option<WithoutNpu>,
    /// The section with other control images.
    section: Option<NpuSection>,
}

impl NpuPart {
    fn of(path: &Path, view: &ArtifactView, options: &ReplanOptions, progress: &mut dyn Progress) -> Result<NpuPart> {
        let Some(section) = &view.npu else { return Ok(NpuPart::default()) };
        if options.no_npu {
            return Ok(NpuPart { without: Some(without_npu(path, view, progress)?), section: None });
        }
        let section = match (&options.npu_control, &options.npu_peano) {
            _ if section.programs.is_empty() => None,
            (Some(folder), _) => Some(with_control(section, folder)?),
            (None, Some(folder)) => Some(with_cores(section, folder)?),
            (None, None) => None,
        };
        Ok(NpuPart { without: None, section })
    }

    /// The plan that is to be replaced.
    fn plan_before<'p>(&'p self, view: &'p ArtifactView) -> &'p Plan {
        self.without.as_ref().map_or(&view.plan, |without| &without.plan)
    }

    fn change(&self, plan: &Plan) -> Change {
        match &self.without {
            Some(WithoutNpu { meta, kernels, .. }) => {
                let removed =
                    [SectionKind::Npu, SectionKind::NpuWeights, SectionKind::NpuSteps, SectionKind::NpuSchedules];
                Change::from(NewKernels { meta, plan, kernels, npu: None }).without(&removed)
            }
            None => NewPlan { plan, npu: self.section.as_ref() }.into(),
        }
    }
}
