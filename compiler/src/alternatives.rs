//! Other kernels with the same result, from which `unicorn-run tune` chooses on the user's device. Only targets whose own numbers
//! were not measured (`Target::is_measured`) have them, so there are none of kernels that only measured targets use.
//!
//! ```text
//! KernelSpec ─┬─ matmul      lanes, rows and tokens a lane, loads in flight
//!             ├─ lane_tile   tiles of a workgroup and of a lane, of GEMMs without matrix units
//!             ├─ matrices    tiles of gemm and flash
//!             ├─ attention   splits, heads and rows a workgroup; combine's lanes
//!             └─ norm        lanes
//! program ────── whether norms are prologues of matmuls
//! ```

mod attention;
mod lane_tile;
mod matmul;
mod matrices;

use unicorn_kernels::KernelSpec;
use unicorn_kernels::norm::NormSpec;
use unicorn_spirv::Target;

use crate::import::ModelConfig;
use crate::pipeline_name::pipeline_name;
use crate::select::{PROGRAMS, ProgramKind};

/// Kernels with the same bindings and, but for the order of sums, the same results as `spec`, each once, that the target
/// has lanes and memory for.
pub fn alternatives(spec: &KernelSpec, target: &Target) -> Vec<KernelSpec> {
    let others: Vec<KernelSpec> = match spec {
        KernelSpec::MatMul(spec) => matmul::others(spec, target).into_iter().map(KernelSpec::MatMul).collect(),
        KernelSpec::DotGemm(spec) => {
            lane_tile::other_dot_gemms(spec, target).into_iter().map(KernelSpec::DotGemm).collect()
        }
        KernelSpec::FloatGemm(spec) => {
            lane_tile::other_float_gemms(spec, target).into_iter().map(KernelSpec::FloatGemm).collect()
        }
        KernelSpec::Gemm(spec) => matrices::other_gemms(spec, target).into_iter().map(KernelSpec::Gemm).collect(),
        KernelSpec::Flash(spec) => matrices::other_flashes(spec, target).into_iter().map(KernelSpec::Flash).collect(),
        KernelSpec::Attention(spec) => attention::others(spec, target).into_iter().map(KernelSpec::Attention).collect(),
        KernelSpec::Combine(spec) => {
            attention::other_combines(spec, target).into_iter().map(KernelSpec::Combine).collect()
        }
        KernelSpec::Norm(spec) => other_norms(spec, target).into_iter().map(KernelSpec::Norm).collect(),
        _ => Vec::new(),
    };
    let mut found = Vec::new();
    for other in others {
        if other != *spec && !found.contains(&other) {
            found.push(other);
        }
    }
    found
}

/// Every program of a target for a model. With `alternatives`, each program that decodes is followed
/// by the same with another list of kernels: norms that are folded into matmuls become dispatches, or the reverse.
pub(crate) fn programs(target: &Target, config: &ModelConfig, alternatives: bool) -> Vec<(ProgramKind, Target)> {
    let mut programs = Vec::new();
    let of_images = config.vision.as_ref().map(|vision| ProgramKind::makes_image_rows(vision.image_rows));
    let is_of_model =
        |kind: &ProgramKind| (!kind.images || of_images.is_some()) && (!kind.predicts() || config.predictor);
    let kinds = PROGRAMS.into_iter().filter(is_of_model).chain(of_images);
    let mut kinds: Vec<ProgramKind> = kinds.collect();
    // In the order in which an artifact's reader puts them together again.
    kinds.sort_by_key(|kind| (kind.predicts(), kind.is_mixed()));
    for kind in kinds {
        let decodes = kind.rows == 1 && kind.samples() && !kind.predicts();
        let long_context =
            target.long_context().filter(|(from_tokens, _)| decodes && *from_tokens < config.max_positions);
        let long_context = long_context.map(|(from_tokens, target)| (ProgramKind { from_tokens, ..kind }, target));
        for (kind, target) in [(kind, target.clone())].into_iter().chain(long_context) {
            programs.push((kind, target.clone()));
            if alternatives && decodes {
                let mut other = target.clone();
                other.norm.fold = !target.norm.fold;
                programs.push((kind, other));
            }
        }
    }
    programs
}

/// The pipeline's name and what is particular to this alternative.
pub(crate) fn alternative_name(spec: &KernelSpec) -> String {
    let name = pipeline_name(spec);
    let particular = match spec {
        KernelSpec::MatMul(spec) => matmul::particular(spec),
        KernelSpec::DotGemm(spec) => lane_tile::particular(&spec.tile),
        KernelSpec::FloatGemm(spec) => lane_tile::particular(&spec.tile),
        KernelSpec::Gemm(spec) => matrices::gemm_particular(spec),
        KernelSpec::Flash(spec) => format!("{} subgroups", spec.tile.subgroups),
        KernelSpec::Attention(spec) => attention::particular(spec),
        KernelSpec::Combine(spec) => format!("{} lanes", spec.lanes),
        KernelSpec::Norm(spec) => format!("{} lanes", spec.lanes),
        _ => return name,
    };
    format!("{name}, {particular}")
}

/// Quads of a row that one lane of a norm holds at most, with up to three operands of each in as many registers.
const NORM_QUADS: usize = 12;

fn other_norms(spec: &NormSpec, target: &Target) -> Vec<NormSpec> {
    let lanes = [spec.lanes / 2, 2 * spec.lanes, 4 * spec.lanes];
    let quads = spec.width.div_ceil(4);
    let useful = |lanes: &usize| lanes.is_multiple_of(8) && *lanes < 2 * quads && quads.div_ceil(*lanes) <= NORM_QUADS;
    let lanes = lanes.into_iter().filter(|lanes| has_lanes(target, *lanes)).filter(useful);
    lanes.map(|lanes| NormSpec { lanes, ..spec.clone() }).collect()
}

/// Whether a workgroup of the target can have `lanes` lanes, in whole subgroups.
fn has_lanes(target: &Target, lanes: usize) -> bool {
    (1..=target.workgroup_invocations).contains(&lanes) && lanes.is_multiple_of(target.subgroup_size.max(1) as usize)
}
