//! What a compile did, in figures that were measured in it.

use std::fmt::{self, Display};

use unicorn_artifact::{Account, Meta, Plan, TensorReport};

use crate::fuse::FusedGraph;
use crate::import::Checkpoint;
use crate::pack::Errors;
use crate::progress::Stage;
use crate::quantize::ErrorSum;
use crate::weights::FormatPolicy;
use crate::{Planned, Written};

/// What a compile made, measured in it. `Display` gives it for people, serde as one object.
#[derive(Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Report {
    /// As the model names it.
    pub architecture: String,
    /// Numbers in all of the model's tensors.
    pub parameters: u64,
    /// Bytes of tensor data that were read.
    pub source_bytes: u64,
    /// Tensors of a vision tower or projector, which were left out.
    pub skipped_tensors: usize,
    /// Their bytes.
    pub skipped_bytes: u64,
    /// Length of the file.
    pub artifact_bytes: u64,
    /// Packed weights with scales, zero points and padding.
    pub weight_bytes: u64,
    /// `weight_bytes`, but for tables that exist only in the file (RoPE), over parameters.
    pub bits_per_weight: f64,
    /// Bytes of weights that one decode step reads.
    pub weight_bytes_per_token: u64,
    /// sqrt(Σ error² / Σ weight²) over all quantised tensors.
    pub relative_error: f64,
    /// Where it all will lie.
    pub account: Account,
    /// How long each stage took, in order.
    pub seconds: Vec<(Stage, f64)>,
    /// One a source tensor, in the order of names.
    pub tensors: Vec<TensorFigures>,
}

/// What became of one source tensor.
#[derive(Debug, serde::Serialize)]
#[non_exhaustive]
pub struct TensorFigures {
    /// Its canonical name.
    pub name: String,
    /// Number format that it is packed in.
    pub format: String,
    /// With scales and zero points.
    pub bits_per_weight: f32,
    /// sqrt(Σ error² / Σ weight²)
    pub relative_error: f32,
}

impl Report {
    pub(crate) fn new(planned: &Planned, meta: &Meta, artifact: &Written, seconds: Vec<(Stage, f64)>) -> Report {
        let (checkpoint, plan) = (&planned.checkpoint, &planned.placement.plan);
        let is_rope = |name: &str| name.starts_with("rope.");
        let weight_bytes =
            plan.weights.iter().filter(|weight| !is_rope(&weight.name)).map(|weight| weight.len_bytes).sum();
        let mut total_error = ErrorSum::default();
        artifact.errors.values().for_each(|error| total_error.merge(error));
        Report {
            architecture: meta.model.architecture.clone(),
            parameters: meta.model.parameters,
            source_bytes: checkpoint.source_bytes,
            skipped_tensors: checkpoint.skipped.tensors,
            skipped_bytes: checkpoint.skipped.bytes,
            artifact_bytes: artifact.bytes,
            weight_bytes,
            bits_per_weight: weight_bytes as f64 * 8.0 / meta.model.parameters as f64,
            weight_bytes_per_token: meta.model.weight_bytes_per_token,
            relative_error: total_error.relative(),
            account: Account::of(plan),
            seconds,
            tensors: meta.tensors.iter().map(TensorFigures::of).collect(),
        }
    }
}

/// Sums of a plan, and the plan itself. `Display` gives the sums for people, serde all of it.
#[derive(Debug, serde::Serialize)]
#[non_exhaustive]
pub struct PlanReport<'a> {
    /// As the model names it.
    pub architecture: &'a str,
    /// Numbers in all of the model's tensors.
    pub parameters: u64,
    /// Name of the machine that it was made for.
    pub machine: &'a str,
    /// Bytes of each tier.
    pub account: Account,
    /// A floor from the machine's bandwidths, not a measurement.
    pub estimated_tokens_per_s: Option<f64>,
    /// Where every byte would live.
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
            plan,
        }
    }

    /// The whole as one JSON object, with a newline behind it.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report is plain data") + "\n"
    }
}

impl Display for PlanReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (architecture, parameters, machine) = (self.architecture, self.parameters, self.machine);
        writeln!(f, "{architecture}: {parameters} parameters, {} tokens, on {machine}", self.account.context_tokens)?;
        write!(f, "{}", self.account)
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

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        for tensor in &self.tensors {
            if tensor.format != VECTOR_FORMAT {
                let (bits, error) = (tensor.bits_per_weight, tensor.relative_error);
                writeln!(
                    f,
                    "{:<48} {:>8} {bits:6.3} bits/weight, relative error {error:.5}",
                    tensor.name, tensor.format
                )?;
            }
        }
        writeln!(f, "{}: {} parameters, {:.1} MiB read", self.architecture, self.parameters, mib(self.source_bytes))?;
        if self.skipped_tensors > 0 {
            let bytes = mib(self.skipped_bytes);
            writeln!(f, "skipped {} tensors of the vision tower and projector, {bytes:.1} MiB", self.skipped_tensors)?;
        }
        writeln!(
            f,
            "artifact {:.1} MiB, weights {:.1} MiB ({:.3} bits/weight), {:.1} MiB read per token, relative error {:.5}",
            mib(self.artifact_bytes),
            mib(self.weight_bytes),
            self.bits_per_weight,
            mib(self.weight_bytes_per_token),
            self.relative_error,
        )?;
        // Without a machine there is nothing to fill.
        if self.account.tiers.iter().any(|tier| tier.budget_bytes.is_some()) {
            writeln!(f, "{}", self.account)?;
        }
        let stages: Vec<String> = self.seconds.iter().map(|(name, s)| format!("{name} {s:.2} s")).collect();
        let total: f64 = self.seconds.iter().map(|(_, s)| s).sum();
        write!(f, "{total:.2} s: {}", stages.join(", "))
    }
}

const VECTOR_FORMAT: &str = "f32";

/// One report a source tensor, in the order of names.
pub fn tensor_reports(
    checkpoint: &Checkpoint,
    graph: &FusedGraph,
    policy: FormatPolicy,
    errors: &Errors,
) -> Vec<TensorReport> {
    errors
        .iter()
        .map(|(name, error)| {
            let tensor = &checkpoint.tensors[name];
            let matrix = graph.matrices.iter().find(|matrix| matrix.parts.iter().any(|part| part.tensor == *name));
            let (format, bits) = match matrix.map(|matrix| policy.format(matrix)) {
                Some(format) => {
                    let block_bits = (format.block_words() * 16 * 8) as f32;
                    (format.name(), block_bits / (format.block_cols() * unicorn_kernels::layout::TILE_ROWS) as f32)
                }
                None => (VECTOR_FORMAT.into(), 32.0),
            };
            TensorReport {
                name: name.clone(),
                rows: tensor.rows as u64,
                cols: tensor.cols as u64,
                format,
                bits_per_weight: bits,
                relative_error: error.relative() as f32,
            }
        })
        .collect()
}
