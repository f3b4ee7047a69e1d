//! The rows of an inspection's tables: one struct a table, made from the artifact's records.

use super::kernels::{self, KernelRow};
use super::npu::NpuRows;
use serde::Serialize;
use serde_json::{Map, Value};
use unicorn_artifact::header::{Section, SectionKind, hex};
use unicorn_artifact::{
    Account, ArtifactView, Dispatch, LogitsRows, ModelMeta, Order, Plan, Program, TargetKernels, TensorReport,
};

#[derive(Serialize)]
pub struct Provenance<'a> {
    pub compiler_version: &'a str,
    /// Options in the artifact's order.
    pub options: Map<String, Value>,
    pub source_blake3: String,
}

impl<'a> Provenance<'a> {
    pub fn of(record: &'a unicorn_artifact::Provenance) -> Provenance<'a> {
        let option = |(name, value): &(String, String)| (name.clone(), Value::from(value.as_str()));
        Provenance {
            compiler_version: &record.compiler_version,
            options: record.options.iter().map(option).collect(),
            source_blake3: hex(&record.source_hash),
        }
    }
}

#[derive(Serialize)]
pub struct WeightRow<'a> {
    pub layer: Option<u32>,
    pub name: &'a str,
    pub len_bytes: u64,
    pub slice: u32,
    pub offset_bytes: u64,
    pub tier: &'static str,
    /// `attention`, `feed-forward`, `experts`, `embedding` or `other`.
    pub kind: &'static str,
    pub bytes_read_per_token: u64,
    /// Part of all bytes that a token reads, weights and KV; 1 is everything.
    pub share_of_traffic: f64,
    pub reason: &'a str,
}

/// What a weight is for, by the usual names of tensors.
fn kind(name: &str) -> &'static str {
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    match () {
        () if has(&["norm"]) => "other",
        () if has(&["expert"]) => "experts",
        () if has(&["attn", "attention"]) => "attention",
        () if has(&["mlp", "ffn", "feed_forward"]) => "feed-forward",
        () if has(&["embed", "lm_head"]) => "embedding",
        () => "other",
    }
}

pub fn weights(plan: &Plan, all_bytes_per_token: u64) -> Vec<WeightRow<'_>> {
    let rows = plan.weights.iter().map(|weight| WeightRow {
        layer: weight.layer,
        name: &weight.name,
        len_bytes: weight.len_bytes,
        slice: weight.slice,
        offset_bytes: weight.offset_bytes,
        // The reader has checked that the slice exists.
        tier: plan.slices[weight.slice as usize].tier.name(),
        kind: kind(&weight.name),
        bytes_read_per_token: weight.bytes_read_per_token,
        share_of_traffic: share(weight.bytes_read_per_token, all_bytes_per_token),
        reason: &weight.reason,
    });
    rows.collect()
}

fn share(part: u64, all: u64) -> f64 {
    part as f64 / all.max(1) as f64
}

/// The weights of one layer together; `None`: those outside of layers.
#[derive(Serialize)]
pub struct LayerRow {
    pub layer: Option<u32>,
    pub weights: usize,
    pub len_bytes: u64,
    pub bytes_read_per_token: u64,
    pub share_of_traffic: f64,
    /// Names of the tiers that hold them.
    pub tiers: Vec<&'static str>,
}

/// Layers in order; weights outside of layers come first.
pub fn layers(weights: &[WeightRow]) -> Vec<LayerRow> {
    let mut layers: Vec<Option<u32>> = weights.iter().map(|weight| weight.layer).collect();
    layers.sort_unstable();
    layers.dedup();
    let row = |layer: Option<u32>| {
        let of = || weights.iter().filter(move |weight| weight.layer == layer);
        let mut tiers: Vec<&str> = of().map(|weight| weight.tier).collect();
        tiers.sort_unstable();
        tiers.dedup();
        LayerRow {
            layer,
            weights: of().count(),
            len_bytes: of().map(|weight| weight.len_bytes).sum(),
            bytes_read_per_token: of().map(|weight| weight.bytes_read_per_token).sum(),
            share_of_traffic: of().map(|weight| weight.share_of_traffic).sum(),
            tiers,
        }
    };
    layers.into_iter().map(row).collect()
}

#[derive(Serialize)]
pub struct KvRow<'a> {
    /// `None`: all tokens are kept.
    pub window_tokens: Option<u32>,
    pub n_layers: u32,
    pub page_tokens: u32,
    /// A page is a sequence's recurrent state.
    pub is_state: bool,
    pub page_bytes: u64,
    pub pages_per_sequence: u32,
    pub bytes_per_sequence: u64,
    pub bytes_read_per_token: u64,
    pub share_of_traffic: f64,
    pub tier: &'static str,
    pub reason: &'a str,
}

pub fn kv_groups(plan: &Plan, all_bytes_per_token: u64) -> Vec<KvRow<'_>> {
    let rows = plan.kv_groups.iter().map(|group| {
        let pages = group.pages_per_sequence(plan.planned_context_tokens, plan.planned_chunk_tokens);
        let bytes_read_per_token = group.bytes_read_per_token(plan.planned_context_tokens);
        KvRow {
            window_tokens: group.window_tokens,
            n_layers: group.n_layers,
            page_tokens: group.page_tokens,
            is_state: group.is_state(),
            page_bytes: group.page_bytes,
            pages_per_sequence: pages,
            bytes_per_sequence: group.bytes(pages),
            bytes_read_per_token,
            share_of_traffic: share(bytes_read_per_token, all_bytes_per_token),
            tier: group.tier.name(),
            reason: &group.reason,
        }
    });
    rows.collect()
}

#[derive(Serialize)]
pub struct ActivationRow<'a> {
    pub name: &'a str,
    pub offset_bytes: u64,
    pub len_bytes: u64,
    pub first_use: u32,
    pub last_use: u32,
    pub tier: &'static str,
    pub reason: &'a str,
}

pub fn activations(plan: &Plan) -> Vec<ActivationRow<'_>> {
    let rows = plan.activations.iter().map(|activation| ActivationRow {
        name: &activation.name,
        offset_bytes: activation.offset_bytes,
        len_bytes: activation.len_bytes,
        first_use: activation.first_use,
        last_use: activation.last_use,
        tier: plan.arena_tier.name(),
        reason: &activation.reason,
    });
    rows.collect()
}

/// Buffers that the runtime creates in addition.
#[derive(Serialize)]
pub struct BufferRow<'a> {
    pub name: &'a str,
    pub bytes: u64,
    pub tier: &'static str,
    pub reason: &'a str,
}

pub fn buffers(plan: &Plan) -> Vec<BufferRow<'_>> {
    let rows = plan.buffers.iter().map(|buffer| BufferRow {
        name: &buffer.name,
        bytes: buffer.bytes,
        tier: buffer.tier.name(),
        reason: &buffer.reason,
    });
    rows.collect()
}

#[derive(Serialize)]
pub struct TargetRow<'a> {
    pub name: &'a str,
    pub classes: Vec<String>,
    pub subgroup_size: u32,
    pub shared_memory_bytes: u32,
    pub workgroup_invocations: u32,
    pub pipelines: Vec<&'a str>,
    pub programs: Vec<ProgramRow>,
    /// The dispatches of one decode step with sampling.
    pub decode: Vec<DispatchRow<'a>>,
    /// The same by kernel, and those of prefill.
    pub kernels: Vec<KernelRow<'a>>,
}

#[derive(Serialize)]
pub struct ProgramRow {
    pub rows: u32,
    pub logits: &'static str,
    pub samples: bool,
    /// Cached tokens from which on it runs instead of the one that is otherwise the same.
    pub from_tokens: u32,
    pub dispatches: usize,
    pub barriers: usize,
    pub weight_bytes: u64,
}

#[derive(Serialize)]
pub struct DispatchRow<'a> {
    pub label: &'a str,
    pub kernel: &'a str,
    pub workgroups: [u32; 3],
    pub weight_bytes: u64,
    /// KV cache that it reads at the end of the planned context.
    pub kv_bytes: u64,
    /// `free`, `barrier` or `counter`.
    pub order: &'static str,
}

impl<'a> TargetRow<'a> {
    pub fn of(target: &'a TargetKernels, plan: &Plan) -> TargetRow<'a> {
        let decode = kernels::decode(target);
        let dispatches = decode.map_or([].as_slice(), |program| &program.dispatches);
        let kv_bytes = decode.map_or(Vec::new(), |program| kernels::kv_bytes(program, plan));
        TargetRow {
            name: &target.name,
            classes: target.matches.classes.iter().map(ToString::to_string).collect(),
            subgroup_size: target.matches.subgroup_size,
            shared_memory_bytes: target.matches.shared_memory_bytes,
            workgroup_invocations: target.matches.workgroup_invocations,
            pipelines: target.pipelines.iter().map(|pipeline| pipeline.name.as_str()).collect(),
            programs: target.programs.iter().map(ProgramRow::of).collect(),
            decode: dispatches.iter().zip(kv_bytes).map(|(one, kv)| DispatchRow::of(one, kv, target)).collect(),
            kernels: kernels::kernels(target, plan),
        }
    }
}

impl ProgramRow {
    fn of(program: &Program) -> ProgramRow {
        ProgramRow {
            rows: program.rows,
            logits: match program.logits {
                LogitsRows::None => "none",
                LogitsRows::One => "one",
                LogitsRows::All => "all",
                LogitsRows::Hidden => "hidden rows",
                LogitsRows::Image => "rows of an image",
                LogitsRows::Samplers => "one a sequence",
                LogitsRows::SamplersBesideTwo => "one a sequence, two prompts",
                LogitsRows::Predicted => "one of a draft",
            },
            samples: program.samples,
            from_tokens: program.from_tokens,
            dispatches: program.dispatches.len(),
            barriers: program.dispatches.iter().filter(|dispatch| dispatch.order == Order::Barrier).count(),
            weight_bytes: program.dispatches.iter().map(|dispatch| dispatch.weight_bytes).sum(),
        }
    }
}

impl<'a> DispatchRow<'a> {
    fn of(dispatch: &'a Dispatch, kv_bytes: u64, target: &'a TargetKernels) -> DispatchRow<'a> {
        DispatchRow {
            label: &dispatch.label,
            // The reader has checked that the pipeline exists.
            kernel: &target.pipelines[dispatch.pipeline as usize].name,
            workgroups: dispatch.workgroups,
            weight_bytes: dispatch.weight_bytes,
            kv_bytes,
            order: match dispatch.order {
                Order::Free => "free",
                Order::Barrier => "barrier",
                Order::CounterSync => "counter",
            },
        }
    }
}

/// The model's own head that predicts the token behind the next one.
#[derive(Serialize)]
pub struct PredictorRow {
    /// Bytes of its weights, without the embedding and the output head, which are the model's.
    pub weight_bytes: u64,
    /// Bytes of them that each token reads, also without a draft.
    pub bytes_read_per_token: u64,
}

impl PredictorRow {
    /// Of an artifact with programs that predict: the layer behind the model's last.
    pub fn of(view: &ArtifactView<'_>) -> Option<PredictorRow> {
        let mut programs = view.kernels.targets.iter().flat_map(|target| &target.programs);
        programs.find(|program| program.logits == LogitsRows::Predicted)?;
        let n_layers = view.meta.model.n_layers;
        let weights = || view.plan.weights.iter().filter(|weight| weight.layer == Some(n_layers));
        Some(PredictorRow {
            weight_bytes: weights().map(|weight| weight.len_bytes).sum(),
            bytes_read_per_token: weights().map(|weight| weight.bytes_read_per_token).sum(),
        })
    }
}

/// The draft that is packed into an artifact.
#[derive(Serialize)]
pub struct DraftRow<'a> {
    pub model: &'a ModelMeta,
    /// Bytes of its weights.
    pub weight_bytes: u64,
    /// Bytes and traffic by tier, with the KV cache of one sequence of its planned context.
    pub account: Account,
    /// `None`: it has no NPU programs.
    pub npu: Option<NpuRows<'a>>,
}

impl<'a> DraftRow<'a> {
    pub fn of(draft: &'a ArtifactView<'_>) -> DraftRow<'a> {
        let weight_bytes = draft.plan.weights.iter().map(|weight| weight.len_bytes).sum();
        let npu = draft.npu.as_ref().map(NpuRows::of);
        DraftRow { model: &draft.meta.model, weight_bytes, account: Account::of(&draft.plan), npu }
    }
}

#[derive(Serialize)]
pub struct SectionRow {
    pub kind: String,
    pub index: u32,
    pub offset_bytes: u64,
    pub len_bytes: u64,
    pub blake3: String,
}

impl SectionRow {
    pub fn of(section: &Section) -> SectionRow {
        let kind = SectionKind::from_u32(section.kind);
        SectionRow {
            kind: kind.map_or(format!("unknown {}", section.kind), |kind| kind.name().into()),
            index: section.index,
            offset_bytes: section.offset_bytes,
            len_bytes: section.len_bytes,
            blake3: hex(&section.hash),
        }
    }
}

/// Errors of quantisation, over all tensors that have an error.
#[derive(Debug, PartialEq, Serialize)]
pub struct Quantisation {
    pub tensors: usize,
    /// Mean of their relative errors, weighted by the number of weights.
    pub mean_relative_error: f64,
    /// The tensor with the largest error.
    pub worst: String,
    pub worst_relative_error: f64,
}

/// `None` if no tensor has an error.
pub fn quantisation(tensors: &[TensorReport]) -> Option<Quantisation> {
    let lossy: Vec<&TensorReport> = tensors.iter().filter(|tensor| tensor.relative_error > 0.0).collect();
    let weights = |tensor: &TensorReport| tensor.rows as f64 * tensor.cols as f64;
    let error = |tensor: &TensorReport| f64::from(tensor.relative_error);
    let total: f64 = lossy.iter().copied().map(weights).sum();
    let worst = lossy.iter().max_by(|one, other| one.relative_error.total_cmp(&other.relative_error))?;
    Some(Quantisation {
        tensors: lossy.len(),
        mean_relative_error: lossy.iter().map(|tensor| weights(tensor) * error(tensor)).sum::<f64>() / total,
        worst: worst.name.clone(),
        worst_relative_error: error(worst),
    })
}

/// `None` without tensors.
pub fn mean_bits_per_weight(tensors: &[TensorReport]) -> Option<f64> {
    let weights = |tensor: &TensorReport| tensor.rows as f64 * tensor.cols as f64;
    let total: f64 = tensors.iter().map(weights).sum();
    let bits: f64 = tensors.iter().map(|tensor| weights(tensor) * f64::from(tensor.bits_per_weight)).sum();
    (total > 0.0).then(|| bits / total)
}

#[cfg(test)]
mod tests {
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
    fn quantising_cost_is_of_tensors_that_lost_something() {
        let tensor = |name: &str, rows, relative_error| {
            let (name, format) = (name.into(), String::new());
            TensorReport { name, rows, cols: 1, format, bits_per_weight: 4.5, relative_error }
        };
        let tensors = [tensor("a", 1, 0.5), tensor("b", 3, 0.25), tensor("c", 9, 0.0)];
        let found = quantisation(&tensors).unwrap();
        assert_eq!((found.tensors, found.mean_relative_error), (2, 1.25 / 4.0));
        assert_eq!((found.worst.as_str(), found.worst_relative_error), ("a", 0.5));
        assert_eq!(quantisation(&tensors[2..]), None);
    }

    #[test]
    fn weights_have_a_kind() {
        let kinds =
            ["layers.0.self_attn.q_proj.weight", "layers.0.self_attn.q_norm.weight", "layers.1.mlp.up_proj.weight"];
        assert_eq!(kinds.map(kind), ["attention", "other", "feed-forward"]);
        let kinds = ["layers.1.mlp.experts.3.up_proj.weight", "embed_tokens.weight", "rope.0"];
        assert_eq!(kinds.map(kind), ["experts", "embedding", "other"]);
    }

    #[test]
    fn layers_add_up_their_weights() {
        let weight = |layer, tier, bytes_read_per_token| WeightRow {
            layer,
            name: "w",
            len_bytes: 10,
            slice: 0,
            offset_bytes: 0,
            tier,
            kind: "other",
            bytes_read_per_token,
            share_of_traffic: share(bytes_read_per_token, 40),
            reason: "",
        };
        let rows = [weight(Some(1), "vram", 10), weight(None, "gtt", 0), weight(Some(1), "gtt", 10)];
        let layers = layers(&rows);
        assert_eq!(layers.iter().map(|row| row.layer).collect::<Vec<_>>(), [None, Some(1)]);
        let last = &layers[1];
        assert_eq!((last.weights, last.len_bytes, last.share_of_traffic), (2, 20, 0.5));
        assert_eq!(last.tiers, ["gtt", "vram"]);
    }
}
