//! The report of a compile, with figures that were measured in it.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use unicorn_artifact::account::size;
use unicorn_artifact::{Account, Budget, Machine, Meta, NpuDecision, Plan, TensorReport, fit, printable};

use crate::format_policy::{FormatPolicy, WeightsOption};
use crate::fuse::{FusedGraph, Matrix};
use crate::graph::MatrixRef;
use crate::import::Checkpoint;
use crate::pack::Errors;
use crate::progress::Stage;
use crate::quantize::ErrorSum;
use crate::{Planned, Written};

/// The results of a compile, measured in it. `Display` formats them for people, serde as one object.
#[derive(Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Name of the model: its folder's, or its file's without the extension.
    pub name: String,
    /// The model's name for its architecture.
    pub architecture: String,
    /// Numbers in all of the model's tensors.
    pub parameters: u64,
    /// Bytes of tensor data that were read.
    pub source_bytes: u64,
    /// Tensors of a vision tower or projector, which were left out.
    pub skipped_tensors: usize,
    /// Their bytes.
    pub skipped_bytes: u64,
    /// Modules of merged adapters that are parts of a vision tower or projector, which were left out.
    pub skipped_adapter_modules: usize,
    /// Matrices that the source has as INT4 in groups that the artifact's cannot be, and that were quantised again.
    pub requantized_tensors: usize,
    /// Length of the file.
    pub artifact_bytes: u64,
    /// Format of the weight matrices inside layers, such as `int4 in groups of 32`.
    pub weights: String,
    /// Packed weights with scales, zero points and padding.
    pub weight_bytes: u64,
    /// `weight_bytes`, but for tables that exist only in the file (RoPE), over parameters.
    pub bits_per_weight: f64,
    /// Bytes of weights that one decode step reads.
    pub weight_bytes_per_token: u64,
    /// sqrt(Σ error² / Σ weight²) over all quantised tensors.
    pub relative_error: f64,
    /// Where every byte is placed.
    pub account: Account,
    /// The machines that are known by name, and whether the artifact with its planned context fits each.
    pub machines: Vec<MachineFit>,
    /// Kinds of devices that there are kernels for.
    pub targets: Vec<String>,
    /// Whether the model came with a tokenizer.
    pub has_tokenizer: bool,
    /// Whether it came with a chat template.
    pub has_chat_template: bool,
    /// What was decided about the NPU; empty: there is none.
    pub npu: Vec<NpuDecision>,
    /// Of each shape of the products that an NPU could compute, for people: its place, why its tiles have their sizes, and the times that decide.
    pub npu_programs: Vec<String>,
    /// Bytes of weights in the NPU's layout, in addition to those that the GPU reads.
    pub npu_weight_bytes: u64,
    /// The model that makes drafts; `None`: there is none.
    pub draft: Option<DraftFigures>,
    /// The model's own head for drafts; `None`: there is none.
    pub predictor: Option<PredictorFigures>,
    /// Why the model's own head for drafts is not compiled, although it has one.
    pub predictor_left_out: Option<String>,
    /// How long each stage took, in order.
    pub seconds: Vec<(Stage, f64)>,
    /// One report for each source tensor, in the order of names.
    pub tensors: Vec<TensorFigures>,
}

/// A machine that is known by name.
#[derive(Debug, serde::Serialize)]
#[non_exhaustive]
pub struct MachineFit {
    /// Name of the machine, as for a plan.
    pub machine: String,
    /// Whether its memory is enough.
    pub fits: bool,
    /// Where it fits: an upper bound from the machine's bandwidths, at the end of the planned context.
    pub estimated_tokens_per_s: Option<f64>,
}

/// A draft that is packed into the artifact.
#[derive(Debug, serde::Serialize)]
#[non_exhaustive]
pub struct DraftFigures {
    /// Numbers in all of its tensors.
    pub parameters: u64,
    /// Bytes of its packed weights.
    pub weight_bytes: u64,
    /// What was decided about the NPU for its tokens; empty: there is none.
    pub npu: Vec<NpuDecision>,
    /// Where its bytes are placed, in addition to the model's.
    pub account: Account,
}

/// The model's own head that predicts the token behind the next one (multi-token prediction).
#[derive(Debug, serde::Serialize)]
#[non_exhaustive]
pub struct PredictorFigures {
    /// Bytes of its packed weights, without the embedding and the output head, which are the model's.
    pub weight_bytes: u64,
    /// Bytes of them that each decode step reads, also one without a draft.
    pub weight_bytes_per_token: u64,
}

/// The format and error of one packed source tensor.
#[derive(Debug, serde::Serialize)]
#[non_exhaustive]
pub struct TensorFigures {
    /// Its canonical name.
    pub name: String,
    /// Number format that it is packed in.
    pub format: String,
    /// Bytes, with scales and zero points.
    pub bits_per_weight: f32,
    /// sqrt(Σ error² / Σ weight²)
    pub relative_error: f32,
}

impl Report {
    pub(crate) fn new(
        planned: &Planned,
        policy: FormatPolicy,
        meta: &Meta,
        artifact: &Written,
        seconds: Vec<(Stage, f64)>,
    ) -> Report {
        let (checkpoint, plan, npu) = (&planned.checkpoint, &planned.placement.plan, planned.npu.as_ref());
        let is_rope = |name: &str| name.starts_with("rope.");
        let weight_bytes =
            plan.weights.iter().filter(|weight| !is_rope(&weight.name)).map(|weight| weight.len_bytes).sum();
        let mut total_error = ErrorSum::default();
        artifact.errors.values().for_each(|error| total_error.merge(error));
        let FormatPolicy { weights, group } = policy;
        let groups = if weights == WeightsOption::Int4 { format!(" in groups of {group}") } else { String::new() };
        Report {
            name: meta.model.name.clone(),
            weights: format!("{}{groups}", weights.name()),
            machines: machines(planned),
            targets: planned.selection.targets.iter().map(|target| target.target.name.into()).collect(),
            has_tokenizer: !checkpoint.tokenizer.tokenizer_json.is_empty(),
            has_chat_template: checkpoint.tokenizer.chat_template.is_some(),
            architecture: meta.model.architecture.clone(),
            parameters: meta.model.parameters,
            source_bytes: checkpoint.source_bytes,
            skipped_tensors: checkpoint.skipped.tensors,
            skipped_bytes: checkpoint.skipped.bytes,
            skipped_adapter_modules: checkpoint.skipped_adapter_modules,
            requantized_tensors: if weights == WeightsOption::Int4 { checkpoint.matrices_of_other_groups() } else { 0 },
            artifact_bytes: artifact.bytes,
            weight_bytes,
            bits_per_weight: weight_bytes as f64 * 8.0 / meta.model.parameters as f64,
            weight_bytes_per_token: meta.model.weight_bytes_per_token,
            relative_error: total_error.relative(),
            account: Account::of(plan),
            npu: npu.map_or(Vec::new(), |npu| npu.section.decisions.clone()),
            npu_programs: npu.map_or(Vec::new(), |npu| npu.explanations.clone()),
            npu_weight_bytes: npu.map_or(0, |npu| npu.section.slices.iter().sum()),
            draft: planned.draft.as_ref().map(|draft| DraftFigures::of(&draft.planned)),
            predictor: PredictorFigures::of(planned),
            predictor_left_out: checkpoint.predictor_left_out.clone(),
            seconds,
            tensors: meta.tensors.iter().map(TensorFigures::of).collect(),
        }
    }
}

impl DraftFigures {
    fn of(planned: &Planned) -> DraftFigures {
        let plan = planned.plan();
        DraftFigures {
            parameters: planned.checkpoint.config.parameters(),
            weight_bytes: plan.weights.iter().map(|weight| weight.len_bytes).sum(),
            npu: planned.npu.as_ref().map_or(Vec::new(), |npu| npu.section.decisions.clone()),
            account: Account::of(plan),
        }
    }

    /// `draft: qkv on the GPU: …` for each decision about the NPU.
    fn decided(&self) -> impl Iterator<Item = String> {
        self.npu.iter().map(|decision| format!("draft: {}", decided(decision)))
    }
}

/// `1.1 million parameters: 2.00 MiB of weights, 3.00 MiB of memory besides`
impl Display for DraftFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (millions, weights) = (self.parameters as f64 / 1e6, size(self.weight_bytes));
        let memory = size(self.account.bytes());
        write!(f, "{millions:.1} million parameters: {weights} of weights, {memory} of memory besides")
    }
}

impl PredictorFigures {
    fn of(planned: &Planned) -> Option<PredictorFigures> {
        let layer = planned.checkpoint.config.predictor_layer()? as u32;
        let weights = || planned.plan().weights.iter().filter(|weight| weight.layer == Some(layer));
        Some(PredictorFigures {
            weight_bytes: weights().map(|weight| weight.len_bytes).sum(),
            weight_bytes_per_token: weights().map(|weight| weight.bytes_read_per_token).sum(),
        })
    }
}

/// `2.00 MiB of weights, of which a token without a draft reads 1.00 MiB`
impl Display for PredictorFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (weights, read) = (size(self.weight_bytes), size(self.weight_bytes_per_token));
        write!(f, "{weights} of weights, of which a token without a draft reads {read}")
    }
}

/// Sums of a plan, and the plan itself. `Display` gives the sums for people, serde all of it.
#[derive(Debug, serde::Serialize)]
#[non_exhaustive]
pub struct PlanReport<'a> {
    /// The model's name for its architecture.
    pub architecture: &'a str,
    /// Numbers in all of the model's tensors.
    pub parameters: u64,
    /// Name of the machine that it was made for.
    pub machine: &'a str,
    /// Bytes of each tier.
    pub account: Account,
    /// A floor from the machine's bandwidths, not a measurement.
    pub estimated_tokens_per_s: Option<f64>,
    /// What was decided about the NPU; empty: there is none.
    pub npu: &'a [NpuDecision],
    /// Of each shape of the products that an NPU could compute, for people: its place, why its tiles have their sizes, and the times that decide.
    pub npu_programs: &'a [String],
    /// The model that makes drafts; `None`: there is none.
    pub draft: Option<DraftFigures>,
    /// The model's own head for drafts; `None`: there is none.
    pub predictor: Option<PredictorFigures>,
    /// Why the model's own head for drafts is not compiled, although it has one.
    pub predictor_left_out: Option<&'a str>,
    /// Where every byte would be placed.
    pub plan: &'a Plan,
}

impl PlanReport<'_> {
    /// The report of a plan.
    pub fn of(planned: &Planned) -> PlanReport<'_> {
        let plan = &planned.placement.plan;
        let account = Account::of(plan);
        PlanReport {
            architecture: &planned.checkpoint.config.architecture,
            parameters: planned.checkpoint.config.parameters(),
            machine: &plan.machine.name,
            estimated_tokens_per_s: account.estimated_tokens_per_s(),
            account,
            npu: planned.npu.as_ref().map_or(&[], |npu| &npu.section.decisions),
            npu_programs: planned.npu.as_ref().map_or(&[], |npu| &npu.explanations),
            draft: planned.draft.as_ref().map(|draft| DraftFigures::of(&draft.planned)),
            predictor: PredictorFigures::of(planned),
            predictor_left_out: planned.checkpoint.predictor_left_out.as_deref(),
            plan,
        }
    }

    /// The report as one JSON object, followed by a newline.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report is plain data") + "\n"
    }
}

impl Display for PlanReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (architecture, parameters, machine) = (self.architecture, self.parameters, self.machine);
        writeln!(f, "{architecture}: {parameters} parameters, {} tokens, on {machine}", self.account.context_tokens)?;
        write!(f, "{}", self.account)?;
        self.draft.iter().try_for_each(|draft| write!(f, "\ndraft: {draft}"))?;
        self.draft.iter().flat_map(DraftFigures::decided).try_for_each(|line| write!(f, "\n{line}"))?;
        self.predictor.iter().try_for_each(|head| write!(f, "\nMTP head: {head}"))?;
        self.predictor_left_out.iter().try_for_each(|why| write!(f, "\nMTP head: left out: {}", printable(why)))?;
        self.npu.iter().try_for_each(|decision| write!(f, "\n{}", decided(decision)))
    }
}

impl TensorFigures {
    fn of(tensor: &TensorReport) -> TensorFigures {
        TensorFigures {
            name: tensor.name.clone(),
            format: tensor.format.clone(),
            bits_per_weight: tensor.bits_per_weight,
            relative_error: tensor.relative_error,
        }
    }
}

/// Nine lines: what the artifact is, its size, what a token reads, where it fits; with a draft, a head for drafts or an NPU, what of it.
impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millions = self.parameters as f64 / 1e6;
        writeln!(f, "{}: {}, {millions:.1} million parameters", printable(&self.name), printable(&self.architecture))?;
        writeln!(f, "  artifact  {}, made from {}", size(self.artifact_bytes), size(self.source_bytes))?;
        let (bits, error) = (self.bits_per_weight, self.relative_error);
        let skipped = match self.skipped_tensors {
            0 => String::new(),
            tensors => {
                format!("; {tensors} tensors that text does not need are left out, {}", size(self.skipped_bytes))
            }
        };
        let of_adapters = match self.skipped_adapter_modules {
            0 => String::new(),
            modules => format!("; {modules} modules of adapters that text does not need are left out"),
        };
        let requantized = match self.requantized_tensors {
            0 => String::new(),
            tensors => {
                format!("; {tensors} matrices whose groups are not ours (desc_act, parts of heads) are quantised again")
            }
        };
        writeln!(
            f,
            "  weights   {}: {}, {bits:.2} bits each, relative error {error:.4}{requantized}{skipped}{of_adapters}",
            size(self.weight_bytes),
            self.weights
        )?;
        let (read, context) = (self.weight_bytes_per_token, self.account.context_tokens);
        let kv_read = size(self.account.bytes_read_per_token().saturating_sub(read));
        writeln!(f, "  a token   reads {} of weights, and {kv_read} of KV cache at {context} tokens", size(read))?;
        writeln!(f, "  memory    {} with a context of {context} tokens", size(self.account.bytes()))?;
        if let Some(draft) = &self.draft {
            writeln!(f, "  draft     {draft}")?;
            draft.decided().try_for_each(|line| writeln!(f, "            {line}"))?;
        }
        if let Some(head) = &self.predictor {
            writeln!(f, "  MTP head  {head}")?;
        }
        if let Some(why) = &self.predictor_left_out {
            writeln!(f, "  MTP head  left out: {}", printable(why))?;
        }
        writeln!(f, "  fits      {}", self.fits())?;
        writeln!(f, "  runs on   {}", self.targets.join(", "))?;
        writeln!(f, "  text      {}", self.text())?;
        if !self.npu.is_empty() {
            writeln!(f, "  npu       {} of weights, a second copy in system memory", size(self.npu_weight_bytes))?;
            self.npu.iter().try_for_each(|decision| writeln!(f, "            {}", decided(decision)))?;
        }
        write!(f, "  made in   {:.1} s", self.seconds.iter().map(|(_, seconds)| seconds).sum::<f64>())
    }
}

/// A decision, such as `ffn on the NPU: …`.
pub(crate) fn decided(decision: &NpuDecision) -> String {
    let where_to = if decision.on_npu { "NPU" } else { "GPU" };
    format!("{} on the {where_to}: {}", decision.work, decision.reason)
}

impl Report {
    /// Each matrix with its format and error, then the sums of each memory, then each machine that is known by name, then the time of each
    /// stage: lines for people.
    pub fn details(&self) -> String {
        let matrices = self.tensors.iter().filter(|tensor| tensor.format != VECTOR_FORMAT);
        let matrices = matrices.map(|tensor| {
            let TensorFigures { name, format, bits_per_weight: bits, relative_error: error } = tensor;
            format!("{name:<48} {format:>8} {bits:6.3} bits/weight, relative error {error:.5}")
        });
        let stages: Vec<String> = self.seconds.iter().map(|(name, seconds)| format!("{name} {seconds:.2} s")).collect();
        let sums = [self.account.to_string()].into_iter().chain(self.machine_lines());
        matrices.chain(sums).chain([stages.join(", ")]).collect::<Vec<_>>().join("\n")
    }

    /// How many machines it fits, which not, and the least and the greatest estimate: `8 of 8 known machines; at most 322 tokens/s on
    /// phoenix-16gb, 3617 on nvidia`.
    fn fits(&self) -> String {
        let (fitting, others): (Vec<&MachineFit>, Vec<&MachineFit>) = self.machines.iter().partition(|fit| fit.fits);
        let others = match &others[..] {
            [] => String::new(),
            others => format!(", not {}", names(others)),
        };
        let mut rates: Vec<(f64, &str)> =
            fitting.iter().filter_map(|fit| Some((fit.estimated_tokens_per_s?, fit.machine.as_str()))).collect();
        rates.sort_by(|one, other| one.0.total_cmp(&other.0));
        let rates = match rates[..] {
            [] => String::new(),
            [(rate, machine)] => format!("; at most {rate:.0} tokens/s on {machine}"),
            [(slowest, first), .., (fastest, last)] => {
                format!("; at most {slowest:.0} tokens/s on {first}, {fastest:.0} on {last}")
            }
        };
        format!("{} of {} known machines{others}{rates}", fitting.len(), self.machines.len())
    }

    /// Each machine with its estimate, on a line of its own.
    fn machine_lines(&self) -> Vec<String> {
        let line = |fit: &MachineFit| match (fit.fits, fit.estimated_tokens_per_s) {
            (false, _) => format!("{:<16} does not fit", fit.machine),
            (true, None) => format!("{:<16} fits", fit.machine),
            (true, Some(rate)) => format!("{:<16} fits, at most {rate:.0} tokens/s", fit.machine),
        };
        self.machines.iter().map(line).collect()
    }

    fn text(&self) -> &'static str {
        match (self.has_tokenizer, self.has_chat_template) {
            (true, true) => "tokenizer and chat template",
            (true, false) => "tokenizer, no chat template: it continues texts",
            (false, _) => "no tokenizer: it runs on token ids alone",
        }
    }
}

fn names(machines: &[&MachineFit]) -> String {
    machines.iter().map(|fit| fit.machine.as_str()).collect::<Vec<_>>().join(", ")
}

/// Whether a plan, with its draft's, fits each machine that has limits.
fn machines(planned: &Planned) -> Vec<MachineFit> {
    let plan = planned.plan();
    let draft = planned.draft.as_ref().map(|draft| draft.as_draft());
    let machine = |name: &'static str| {
        let machine = Machine::named(name).ok()?.plan(&Budget::default()).ok()?;
        let has_limits = machine.gpu_tiers().any(|tier| tier.budget_bytes.is_some());
        let placed = fit::on_both(plan, draft, &machine, plan.planned_context_tokens).ok().map(|(plan, _)| plan);
        let estimate = placed.as_ref().and_then(|plan| Account::of(plan).estimated_tokens_per_s());
        has_limits.then(|| MachineFit {
            machine: name.into(),
            fits: placed.is_some(),
            estimated_tokens_per_s: estimate,
        })
    };
    Machine::presets().filter_map(machine).collect()
}

const VECTOR_FORMAT: &str = "f32";

/// One report for each source tensor, in the order of names.
pub fn tensor_reports(
    checkpoint: &Checkpoint,
    graph: &FusedGraph,
    policy: FormatPolicy,
    errors: &Errors,
) -> Vec<TensorReport> {
    // A table that is the head as well is one matrix, and no other tensor is in two.
    let parts =
        graph.matrices.iter().flat_map(|matrix| matrix.sources().map(move |part| (&part.tensor, (part, matrix))));
    let matrix_of: BTreeMap<&String, (&MatrixRef, &Matrix)> = parts.collect();
    errors
        .iter()
        .map(|(name, error)| {
            let found = matrix_of.get(name);
            let (rows, cols) = match found {
                Some((part, _)) => (part.rows * part.experts.unwrap_or(1), part.cols),
                None => {
                    // Biases of experts are reported together, as a row each.
                    let of_stack = checkpoint.config.experts.as_ref().filter(|_| name.contains('*'));
                    let tensor = &checkpoint.tensors[&name.replace('*', "0")];
                    (of_stack.map_or(tensor.rows, |experts| experts.count), tensor.cols)
                }
            };
            let (format, bits) = match found.map(|(_, matrix)| policy.format(matrix, &checkpoint.config)) {
                Some(format) => {
                    let block_bits = (format.block_words() * 16 * 8) as f32;
                    (format.name(), block_bits / (format.block_cols() * unicorn_kernels::layout::TILE_ROWS) as f32)
                }
                None => (VECTOR_FORMAT.into(), 32.0),
            };
            TensorReport {
                name: name.clone(),
                rows: rows as u64,
                cols: cols as u64,
                format,
                bits_per_weight: bits,
                relative_error: error.relative() as f32,
            }
        })
        .collect()
}
