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

use super::{KernelDispatch, ProgramKind, SelectOptions, select};
use crate::alternatives;
use crate::import::ModelConfig;
use crate::verify::VerifiedGraph;
use crate::weights::PackedWeights;

/// The kernels and programs of every target.
pub struct Selection {
    /// In the order of the targets that were requested.
    pub targets: Vec<TargetSelection>,
    /// Rows of the logits buffer: of the largest program that gives logits of all rows.
    pub logits_rows: usize,
    /// Tokens that a step appends at most: rows of the largest program.
    pub chunk_tokens: usize,
}

/// The kernels and programs of one target.
pub struct TargetSelection {
    pub target: Target,
    /// No two of them for the same purpose run the same kernels.
    pub programs: Vec<SelectedProgram>,
    /// Each distinct kernel once: those of the programs in the order of their first use, then those that the runtime runs by
    /// itself.
    pub kernels: Vec<SelectedKernel>,
    /// Index into `kernels`.
    pub checksum: usize,
    /// Index into `kernels`.
    pub bandwidth_probe: usize,
    /// Index into `kernels`, on targets with matrix units.
    pub fragments: Option<usize>,
}

/// A kernel, and what `unicorn-run tune` may put in its place.
pub struct SelectedKernel {
    pub spec: KernelSpec,
    pub alternatives: Vec<KernelSpec>,
}

/// One program's dispatches, in order.
pub struct SelectedProgram {
    pub kind: ProgramKind,
    pub dispatches: Vec<KernelDispatch>,
    /// Index into [`TargetSelection::kernels`], one a dispatch.
    pub kernels: Vec<usize>,
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
        let programs = || targets.iter().flat_map(|target| &target.programs).map(|program| program.kind);
        let of_all_rows = programs().filter(|kind| kind.logits == LogitsRows::All);
        Selection {
            logits_rows: of_all_rows.map(|kind| kind.rows).max().unwrap_or(1),
            chunk_tokens: programs().map(|kind| kind.rows).max().unwrap_or(1),
            targets,
        }
    }
}

impl TargetSelection {
    fn of(
        graph: &VerifiedGraph,
        config: &ModelConfig,
        weights: &PackedWeights,
        target: &Target,
        options: SelectOptions,
    ) -> TargetSelection {
        // Those whose numbers were measured have none to tune.
        let options = SelectOptions { alternatives: options.alternatives && !target.is_measured, ..options };
        let mut found = TargetSelection {
            target: target.clone(),
            programs: Vec::new(),
            kernels: Vec::new(),
            checksum: 0,
            bandwidth_probe: 0,
            fragments: None,
        };
        let mut kernel_of_spec = BTreeMap::new();
        for (kind, target) in alternatives::programs(target, config.max_positions, options.alternatives) {
            let dispatches = select(graph, config, weights, &target, kind, options);
            if found.has_program(kind, &dispatches) {
                continue;
            }
            let kernels = dispatches.iter().map(|dispatch| match kernel_of_spec.get(&dispatch.spec) {
                Some(&kernel) => kernel,
                None => {
                    let kernel = found.add_kernel(dispatch.spec.clone(), options);
                    kernel_of_spec.insert(dispatch.spec.clone(), kernel);
                    kernel
                }
            });
            let kernels = kernels.collect();
            found.programs.push(SelectedProgram { kind, dispatches, kernels });
        }
        found.checksum = found.add_kernel(KernelSpec::Checksum(ChecksumSpec {}), options);
        found.bandwidth_probe = found.add_kernel(KernelSpec::BandwidthProbe(BandwidthProbeSpec {}), options);
        let fragments = target.fragments().map(|fragment| KernelSpec::Fragments(FragmentsSpec { fragment }));
        found.fragments = fragments.map(|spec| found.add_kernel(spec, options));
        found
    }

    /// Whether there is a program for `kind` with these kernels: another list of kernels may come out as the same, as may
    /// the one for a long context.
    fn has_program(&self, kind: ProgramKind, dispatches: &[KernelDispatch]) -> bool {
        let serves = |other: ProgramKind| other == kind || other == ProgramKind { from_tokens: 0, ..kind };
        let runs_the_same = |other: &SelectedProgram| {
            let specs = dispatches.iter().map(|dispatch| &dispatch.spec);
            other.dispatches.iter().map(|dispatch| &dispatch.spec).eq(specs)
        };
        self.programs.iter().any(|other| serves(other.kind) && runs_the_same(other))
    }

    /// Adds a kernel that is not there yet and returns its index.
    fn add_kernel(&mut self, spec: KernelSpec, options: SelectOptions) -> usize {
        let alternatives =
            if options.alternatives { alternatives::alternatives(&spec, &self.target) } else { Vec::new() };
        self.kernels.push(SelectedKernel { spec, alternatives });
        self.kernels.len() - 1
    }
}
