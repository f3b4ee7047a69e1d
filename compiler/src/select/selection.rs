//! [`Selection`]: every kernel of an artifact, chosen once. `place` gives its operands addresses, `kernel_set` makes SPIR-V of
//! its kernels.

use std::collections::BTreeMap;

use rayon::prelude::*;
use unicorn_artifact::LogitsRows;
use unicorn_kernels::KernelSpec;
use unicorn_kernels::bandwidth_probe::BandwidthProbeSpec;
use unicorn_kernels::checksum::ChecksumSpec;
use unicorn_kernels::fragments::FragmentsSpec;
use unicorn_spirv::Target;

use super::npu::NpuProducts;
use super::{KernelDispatch, PROGRAMS, ProgramKind, SelectOptions, select, stride};
use crate::alternatives;
use crate::import::ModelConfig;
use crate::verify::VerifiedGraph;
use crate::weights::PackedWeights;

/// The kernels and programs of every target.
pub struct Selection {
    /// In the order of the targets that were requested.
    pub targets: Vec<TargetSelection>,
    /// Rows of the logits buffer: of the largest program that gives logits of all rows, or as many as hold an image's rows.
    pub(crate) logits_rows: usize,
    /// Tokens that a step appends at most: rows of the largest program whose rows are tokens.
    pub(crate) chunk_tokens: usize,
}

/// The kernels and programs of one target.
pub struct TargetSelection {
    /// The device description that they were selected for.
    pub target: Target,
    /// No two of them for the same purpose run the same kernels.
    pub programs: Vec<SelectedProgram>,
    /// Each distinct kernel once: those of the programs in the order of their first use, then those that the runtime runs by
    /// itself.
    pub kernels: Vec<SelectedKernel>,
    /// Index into `kernels`; `None` in a selection for steps on an NPU.
    pub(crate) checksum: Option<usize>,
    /// Index into `kernels`; `None` in a selection for steps on an NPU.
    pub(crate) bandwidth_probe: Option<usize>,
    /// Index into `kernels`, on targets with matrix units.
    pub(crate) fragments: Option<usize>,
}

/// A kernel, and the kernels by which `unicorn-run tune` may replace it.
pub struct SelectedKernel {
    /// The kernel that is used unless a tuning file names an alternative.
    pub spec: KernelSpec,
    /// Kernels of the same result and bindings; empty where there is none.
    pub alternatives: Vec<KernelSpec>,
}

/// One program's dispatches, in order.
pub struct SelectedProgram {
    /// The steps that it is for.
    pub kind: ProgramKind,
    /// What a step submits, in order.
    pub dispatches: Vec<KernelDispatch>,
    /// Index into [`TargetSelection::kernels`], one a dispatch.
    pub(crate) kernels: Vec<usize>,
    /// Parts of equally many rows that an NPU takes one after the other; 1 in programs without an NPU.
    pub(crate) npu_parts: usize,
}

impl Selection {
    /// Chooses all kernels of all programs of all `targets`, and their alternatives.
    pub fn of(
        graph: &VerifiedGraph,
        config: &ModelConfig,
        weights: &PackedWeights,
        targets: &[Target],
        options: SelectOptions,
    ) -> Selection {
        let of_target = |target: &Target| TargetSelection::of(graph, config, weights, target, options);
        let targets: Vec<TargetSelection> = targets.par_iter().map(of_target).collect();
        let programs = targets.iter().flat_map(|target| &target.programs).map(|program| program.kind);
        let of_tokens = programs.filter(|kind| kind.logits != LogitsRows::Image);
        Selection {
            logits_rows: LOGITS_ROWS.max(logits_rows_of_image(config)),
            chunk_tokens: of_tokens.map(|kind| kind.rows).max().unwrap_or(1),
            targets,
        }
    }
}

impl Selection {
    /// Programs in which an NPU computes products, and their kernels: of the NPU programs' rows, and of multiples of them.
    pub(crate) fn of_npu(
        graph: &VerifiedGraph,
        config: &ModelConfig,
        weights: &PackedWeights,
        targets: &[Target],
        options: SelectOptions,
        npu: &NpuProducts,
    ) -> Selection {
        // `tune` measures only the target's own programs.
        let options = SelectOptions { alternatives: false, ..options };
        let kinds: Vec<ProgramKind> = PROGRAMS
            .into_iter()
            // A batch of one is one sequence's decode.
            .filter(|kind| {
                let is_of_text = !kind.images && !kind.is_mixed() && !kind.predicts();
                (!kind.batch || kind.rows == 1) && kind.logits != LogitsRows::Hidden && is_of_text
            })
            .filter(|kind| npu.serves(kind.rows))
            .collect();
        let of_target = |target: &Target| {
            let mut found = TargetSelection::empty(target);
            let mut kernel_of_spec = BTreeMap::new();
            for kind in &kinds {
                let dispatches = select(graph, config, weights, target, *kind, options, Some(npu));
                found.add_program(*kind, dispatches, npu.parts(kind.rows), options, &mut kernel_of_spec);
            }
            found
        };
        let chunk_tokens = kinds.iter().map(|kind| kind.rows).max().unwrap_or(npu.rows);
        Selection { targets: targets.par_iter().map(of_target).collect(), logits_rows: 1, chunk_tokens }
    }
}

impl Selection {
    /// Most parts in which an NPU takes the rows of a step.
    pub(crate) fn npu_parts(&self) -> usize {
        self.targets.iter().flat_map(|target| &target.programs).map(|program| program.npu_parts).max().unwrap_or(1)
    }
}

/// Rows of the largest program that gives logits of all rows.
const LOGITS_ROWS: usize = {
    let (mut rows, mut at) = (1, 0);
    while at < PROGRAMS.len() {
        if matches!(PROGRAMS[at].logits, LogitsRows::All) && PROGRAMS[at].rows > rows {
            rows = PROGRAMS[at].rows;
        }
        at += 1;
    }
    rows
};

/// Rows of logits that are at least as long as all rows of an image; 0: the model takes none.
fn logits_rows_of_image(config: &ModelConfig) -> usize {
    let Some(vision) = &config.vision else { return 0 };
    (vision.image_rows * stride(vision.row_width(config.hidden_size))).div_ceil(stride(config.vocab_size))
}

/// Whether the buffer of logits has room for `rows` hidden rows.
fn hidden_rows_fit(config: &ModelConfig, rows: usize) -> bool {
    rows * stride(config.hidden_size) <= LOGITS_ROWS * stride(config.vocab_size)
}

impl TargetSelection {
    fn empty(target: &Target) -> TargetSelection {
        TargetSelection {
            target: target.clone(),
            programs: Vec::new(),
            kernels: Vec::new(),
            checksum: None,
            bandwidth_probe: None,
            fragments: None,
        }
    }

    fn of(
        graph: &VerifiedGraph,
        config: &ModelConfig,
        weights: &PackedWeights,
        target: &Target,
        options: SelectOptions,
    ) -> TargetSelection {
        // Targets whose numbers were measured have no alternatives.
        let options = SelectOptions { alternatives: options.alternatives && !target.is_measured, ..options };
        let mut found = TargetSelection::empty(target);
        let mut kernel_of_spec = BTreeMap::new();
        for (kind, target) in alternatives::programs(target, config, options.alternatives) {
            if kind.logits == LogitsRows::Hidden && !hidden_rows_fit(config, kind.rows)
                // Their kernels take rows of one sequence, or a row of each.
                || kind.is_mixed() && config.layers.iter().any(|layer| layer.is_recurrent)
            {
                continue;
            }
            let dispatches = select(graph, config, weights, &target, kind, options, None);
            if !found.has_program(kind, &dispatches) {
                found.add_program(kind, dispatches, 1, options, &mut kernel_of_spec);
            }
        }
        found.checksum = Some(found.add_kernel(KernelSpec::Checksum(ChecksumSpec {}), options));
        found.bandwidth_probe = Some(found.add_kernel(KernelSpec::BandwidthProbe(BandwidthProbeSpec {}), options));
        let fragments = target.fragments().map(|fragment| KernelSpec::Fragments(FragmentsSpec { fragment }));
        found.fragments = fragments.map(|spec| found.add_kernel(spec, options));
        found
    }

    /// Whether there is a program for `kind` with these kernels: another list of kernels, or the one for a long context, may be the
    /// same.
    fn has_program(&self, kind: ProgramKind, dispatches: &[KernelDispatch]) -> bool {
        let serves = |other: ProgramKind| other == kind || other == ProgramKind { from_tokens: 0, ..kind };
        let runs_the_same = |other: &SelectedProgram| {
            let specs = dispatches.iter().map(|dispatch| &dispatch.spec);
            other.dispatches.iter().map(|dispatch| &dispatch.spec).eq(specs)
        };
        self.programs.iter().any(|other| serves(other.kind) && runs_the_same(other))
    }

    fn add_program(
        &mut self,
        kind: ProgramKind,
        dispatches: Vec<KernelDispatch>,
        npu_parts: usize,
        options: SelectOptions,
        kernel_of_spec: &mut BTreeMap<KernelSpec, usize>,
    ) {
        let kernels = dispatches.iter().map(|dispatch| match kernel_of_spec.get(&dispatch.spec) {
            Some(&kernel) => kernel,
            None => {
                let kernel = self.add_kernel(dispatch.spec.clone(), options);
                kernel_of_spec.insert(dispatch.spec.clone(), kernel);
                kernel
            }
        });
        let kernels = kernels.collect();
        self.programs.push(SelectedProgram { kind, dispatches, kernels, npu_parts });
    }

    /// Adds a kernel, if it is new, and returns its index.
    fn add_kernel(&mut self, spec: KernelSpec, options: SelectOptions) -> usize {
        let alternatives =
            if options.alternatives { alternatives::alternatives(&spec, &self.target) } else { Vec::new() };
        self.kernels.push(SelectedKernel { spec, alternatives });
        self.kernels.len() - 1
    }
}
