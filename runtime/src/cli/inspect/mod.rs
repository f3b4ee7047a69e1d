//! `inspect`: what an artifact holds and where its bytes will live. Needs no GPU.

mod page;

use std::collections::BTreeMap;

use artifacts::header::{Section, SectionKind, VERSION_MAJOR, VERSION_MINOR, decode_header, hex};
use artifacts::{
    ActivationPlan, ArtifactView, BufferPlan, KvGroupPlan, LogitsRows, MappedFile, ModelMeta, Plan, Program,
    TargetKernels, TensorReport, WeightPlan,
};
use serde::Serialize;
use serde_json::{Map, Value};

use super::args::InspectArgs;
use super::error::CliError;
use super::output::{print, print_json};

pub fn run(args: &InspectArgs) -> Result<(), CliError> {
    let path = &args.artifact;
    let file = MappedFile::open(path).map_err(|error| CliError::at(path, error))?;
    let view = ArtifactView::parse(file.bytes()).map_err(|error| CliError::at(path, error))?;
    let sections = decode_header(file.bytes()).map_err(|error| CliError::at(path, error))?;
    let inspection = Inspection::new(&view, &sections, file.bytes().len() as u64);
    match args.json {
        true => print_json(&inspection),
        false => print(&inspection.page()),
    }
}

/// Everything that `inspect` shows; `--json` prints it as it stands.
#[derive(Serialize)]
struct Inspection<'a> {
    file_bytes: u64,
    /// That this program reads; the artifact's major version is the same.
    format_version: String,
    model: &'a ModelMeta,
    provenance: Provenance<'a>,
    planned_context_tokens: u32,
    tiers: BTreeMap<&'static str, TierTotals>,
    weights: Vec<WeightRow<'a>>,
    kv_groups: Vec<KvRow<'a>>,
    arena_bytes: u64,
    activations: Vec<ActivationRow<'a>>,
    buffers: Vec<BufferRow<'a>>,
    kernel_modules: usize,
    kernel_module_bytes: u64,
    targets: Vec<TargetRow<'a>>,
    tensors: &'a [TensorReport],
    /// Over all tensors, by the number of their weights.
    mean_bits_per_weight: Option<f64>,
    sections: Vec<SectionRow>,
}

#[derive(Serialize)]
struct Provenance<'a> {
    compiler_version: &'a str,
    options: Map<String, Value>,
    source_blake3: String,
}

/// Bytes planned in one tier; KV is that of one sequence of the planned context.
#[derive(Default, Serialize)]
struct TierTotals {
    weight_bytes: u64,
    kv_bytes: u64,
    activation_bytes: u64,
    buffer_bytes: u64,
}

#[derive(Serialize)]
struct WeightRow<'a> {
    layer: Option<u32>,
    name: &'a str,
    len_bytes: u64,
    slice: u32,
    offset_bytes: u64,
    tier: &'static str,
    bytes_read_per_token: u64,
    reason: &'a str,
}

#[derive(Serialize)]
struct KvRow<'a> {
    /// `None`: all tokens are kept.
    window_tokens: Option<u32>,
    n_layers: u32,
    page_tokens: u32,
    page_bytes: u64,
    pages_per_sequence: u32,
    bytes_per_sequence: u64,
    tier: &'static str,
    reason: &'a str,
}

#[derive(Serialize)]
struct ActivationRow<'a> {
    name: &'a str,
    offset_bytes: u64,
    len_bytes: u64,
    first_use: u32,
    last_use: u32,
}

/// What the runtime makes besides.
#[derive(Serialize)]
struct BufferRow<'a> {
    name: &'a str,
    bytes: u64,
    tier: &'static str,
    reason: &'a str,
}

#[derive(Serialize)]
struct TargetRow<'a> {
    name: &'a str,
    vendor_id: Option<u32>,
    name_contains: &'a [String],
    subgroup_size: u32,
    shared_memory_bytes: u32,
    workgroup_invocations: u32,
    pipelines: Vec<&'a str>,
    programs: Vec<ProgramRow>,
}

#[derive(Serialize)]
struct ProgramRow {
    rows: u32,
    logits: &'static str,
    samples: bool,
    dispatches: usize,
    barriers: usize,
    weight_bytes: u64,
}

#[derive(Serialize)]
struct SectionRow {
    kind: String,
    index: u32,
    offset_bytes: u64,
    len_bytes: u64,
    blake3: String,
}

impl<'a> Inspection<'a> {
    fn new(view: &'a ArtifactView<'_>, sections: &[Section], file_bytes: u64) -> Inspection<'a> {
        let plan = &view.plan;
        let kv_groups = kv_rows(plan, &view.kernels.targets);
        Inspection {
            file_bytes,
            format_version: format!("{VERSION_MAJOR}.{VERSION_MINOR}"),
            model: &view.meta.model,
            provenance: Provenance {
                compiler_version: &view.meta.provenance.compiler_version,
                options: options(&view.meta.provenance.options),
                source_blake3: hex(&view.meta.provenance.source_hash),
            },
            planned_context_tokens: plan.planned_context_tokens,
            tiers: tier_totals(plan, &kv_groups),
            weights: weight_rows(plan),
            kv_groups,
            arena_bytes: plan.arena_bytes,
            activations: activation_rows(plan),
            buffers: buffer_rows(plan),
            kernel_modules: view.kernels.modules.len(),
            kernel_module_bytes: view.kernels.modules.iter().map(|words| 4 * words.len() as u64).sum(),
            targets: view.kernels.targets.iter().map(target_row).collect(),
            tensors: &view.meta.tensors,
            mean_bits_per_weight: mean_bits_per_weight(&view.meta.tensors),
            sections: sections.iter().map(section_row).collect(),
        }
    }
}

/// In the artifact's order.
fn options(pairs: &[(String, String)]) -> Map<String, Value> {
    pairs.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect()
}

fn tier_totals(plan: &Plan, kv_groups: &[KvRow<'_>]) -> BTreeMap<&'static str, TierTotals> {
    let mut tiers: BTreeMap<&str, TierTotals> = BTreeMap::new();
    for slice in &plan.slices {
        tiers.entry(slice.tier.name()).or_default().weight_bytes += slice.bytes;
    }
    for group in kv_groups {
        tiers.entry(group.tier).or_default().kv_bytes += group.bytes_per_sequence;
    }
    tiers.entry(plan.arena_tier.name()).or_default().activation_bytes += plan.arena_bytes;
    for buffer in &plan.buffers {
        tiers.entry(buffer.tier.name()).or_default().buffer_bytes += buffer.bytes;
    }
    tiers
}

fn weight_rows<'a>(plan: &'a Plan) -> Vec<WeightRow<'a>> {
    let row = |weight: &'a WeightPlan| WeightRow {
        layer: weight.layer,
        name: &weight.name,
        len_bytes: weight.len_bytes,
        slice: weight.slice,
        offset_bytes: weight.offset_bytes,
        // The reader has checked that the slice exists.
        tier: plan.slices[weight.slice as usize].tier.name(),
        bytes_read_per_token: weight.bytes_read_per_token,
        reason: &weight.reason,
    };
    plan.weights.iter().map(row).collect()
}

fn kv_rows<'a>(plan: &'a Plan, targets: &[TargetKernels]) -> Vec<KvRow<'a>> {
    let chunk_tokens = targets.iter().flat_map(|target| &target.programs).map(|program| program.rows).max();
    let row = |group: &'a KvGroupPlan| {
        let pages = group.pages_per_sequence(plan.planned_context_tokens, chunk_tokens.unwrap_or(1));
        KvRow {
            window_tokens: group.window_tokens,
            n_layers: group.n_layers,
            page_tokens: group.page_tokens,
            page_bytes: group.page_bytes,
            pages_per_sequence: pages,
            bytes_per_sequence: group.bytes(pages),
            tier: group.tier.name(),
            reason: &group.reason,
        }
    };
    plan.kv_groups.iter().map(row).collect()
}

fn activation_rows<'a>(plan: &'a Plan) -> Vec<ActivationRow<'a>> {
    let row = |activation: &'a ActivationPlan| ActivationRow {
        name: &activation.name,
        offset_bytes: activation.offset_bytes,
        len_bytes: activation.len_bytes,
        first_use: activation.first_use,
        last_use: activation.last_use,
    };
    plan.activations.iter().map(row).collect()
}

fn buffer_rows<'a>(plan: &'a Plan) -> Vec<BufferRow<'a>> {
    let row = |buffer: &'a BufferPlan| BufferRow {
        name: &buffer.name,
        bytes: buffer.bytes,
        tier: buffer.tier.name(),
        reason: &buffer.reason,
    };
    plan.buffers.iter().map(row).collect()
}

fn target_row(target: &TargetKernels) -> TargetRow<'_> {
    let program = |program: &Program| ProgramRow {
        rows: program.rows,
        logits: match program.logits {
            LogitsRows::None => "none",
            LogitsRows::One => "one",
            LogitsRows::All => "all",
        },
        samples: program.samples,
        dispatches: program.dispatches.len(),
        barriers: program.dispatches.iter().filter(|dispatch| dispatch.barrier_before).count(),
        weight_bytes: program.dispatches.iter().map(|dispatch| dispatch.weight_bytes).sum(),
    };
    TargetRow {
        name: &target.name,
        vendor_id: target.matches.vendor_id,
        name_contains: &target.matches.name_contains,
        subgroup_size: target.matches.subgroup_size,
        shared_memory_bytes: target.matches.shared_memory_bytes,
        workgroup_invocations: target.matches.workgroup_invocations,
        pipelines: target.pipelines.iter().map(|pipeline| pipeline.name.as_str()).collect(),
        programs: target.programs.iter().map(program).collect(),
    }
}

fn section_row(section: &Section) -> SectionRow {
    SectionRow {
        kind: SectionKind::from_u32(section.kind)
            .map_or(format!("unknown {}", section.kind), |kind| kind.name().into()),
        index: section.index,
        offset_bytes: section.offset_bytes,
        len_bytes: section.len_bytes,
        blake3: hex(&section.hash),
    }
}

/// `None` without tensors.
fn mean_bits_per_weight(tensors: &[TensorReport]) -> Option<f64> {
    let weights = |tensor: &TensorReport| tensor.rows as f64 * tensor.cols as f64;
    let total: f64 = tensors.iter().map(weights).sum();
    let bits: f64 = tensors.iter().map(|tensor| weights(tensor) * f64::from(tensor.bits_per_weight)).sum();
    (total > 0.0).then(|| bits / total)
}

#[cfg(test)]
mod tests {
    use artifacts::{MachinePlan, SlicePlan, Tier};

    use super::*;

    #[test]
    fn bits_are_weighed_by_the_number_of_weights() {
        let tensor = |rows, bits_per_weight| TensorReport {
            name: "t".into(),
            rows,
            cols: 2,
            format: "f16".into(),
            bits_per_weight,
            relative_error: 0.0,
        };
        assert_eq!(mean_bits_per_weight(&[tensor(3, 4.0), tensor(1, 16.0)]), Some(7.0));
        assert_eq!(mean_bits_per_weight(&[]), None);
    }

    #[test]
    fn tiers_add_up_weights_cache_and_activations() {
        let plan = Plan {
            machine: MachinePlan::default(),
            slices: vec![SlicePlan { bytes: 100, tier: Tier::Vram }, SlicePlan { bytes: 50, tier: Tier::Gtt }],
            weights: vec![],
            kv_groups: vec![KvGroupPlan {
                window_tokens: None,
                n_layers: 2,
                page_tokens: 16,
                page_bytes: 10,
                tier: Tier::Vram,
                reason: "read each step".into(),
            }],
            activations: vec![],
            arena_bytes: 7,
            arena_tier: Tier::Vram,
            logits_rows: 1,
            logits_stride: 3,
            buffers: vec![BufferPlan { name: "logits".into(), bytes: 12, tier: Tier::Gtt, reason: "small".into() }],
            planned_context_tokens: 32,
            planned_chunk_tokens: 1,
        };
        let kv = kv_rows(&plan, &[]);
        assert_eq!(kv[0].bytes_per_sequence, 2 * 10 * 2 * 2);
        let tiers = tier_totals(&plan, &kv);
        let vram = &tiers["vram"];
        assert_eq!((vram.weight_bytes, vram.kv_bytes, vram.activation_bytes, vram.buffer_bytes), (100, 80, 7, 0));
        assert_eq!((tiers["gtt"].weight_bytes, tiers["gtt"].buffer_bytes), (50, 12));
    }
}
