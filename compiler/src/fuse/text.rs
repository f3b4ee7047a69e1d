//! The text form of a fused graph, for `--emit fused` and for messages.

use std::fmt::{self, Display};

use unicorn_kernels::gated_norm::GatedForm;
use unicorn_kernels::heads::HeadsPart;

use super::{FusedGraph, FusedOp, VectorId};
use crate::graph::{VectorRef, columns, routing};

/// One line an operation, as the plain graph's.
impl Display for FusedGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for node in &self.nodes {
            for out in node.op.outputs() {
                let value = &self.values[out.0];
                write!(f, "%{} {}[{}] ", out.0, value.name, value.width)?;
            }
            write!(f, "= {}", self.describe(&node.op))?;
            for input in node.op.inputs() {
                write!(f, " %{}", input.0)?;
            }
            writeln!(f)?;
        }
        writeln!(f, "logits %{}", self.logits.0)?;
        self.predicted.map_or(Ok(()), |logits| writeln!(f, "predicted %{}", logits.0))?;
        self.image_rows.map_or(Ok(()), |rows| writeln!(f, "image rows %{}", rows.0))
    }
}

impl FusedGraph {
    /// One line: what the operation does, with which weights.
    pub(crate) fn describe(&self, op: &FusedOp) -> String {
        let vector = |id: &VectorId| {
            let parts: Vec<String> = self.vectors[id.0].parts.iter().map(VectorRef::to_string).collect();
            parts.join("+")
        };
        let optional = |name: &str, id: &Option<VectorId>| {
            id.as_ref().map_or(String::new(), |id| format!(" {name}={}", vector(id)))
        };
        match op {
            FusedOp::Embed { table, scale, .. } => format!("embed {} scale={scale}", self.matrices[table.0].name),
            FusedOp::Norm(step) => {
                let sum = if step.residual.is_some() { " add" } else { "" };
                let sum = if step.scale_sum { " scaled add" } else { sum };
                let weight = step.weight.as_ref().map_or(String::new(), |weight| format!(" {}", vector(weight)));
                format!("norm{sum}{weight}{}", optional("post", &step.post_weight))
            }
            FusedOp::MatMul { matrix, bias, act_mul, softcap, .. } => {
                let act_mul = act_mul.map_or(String::new(), |activation| format!(" act_mul={activation:?}"));
                let softcap = softcap.map_or(String::new(), |cap| format!(" cap={cap}"));
                format!("matmul {}{}{act_mul}{softcap}", self.matrices[matrix.0].name, optional("bias", bias))
            }
            FusedOp::Heads(step) => {
                let parts: Vec<String> = step.parts.iter().map(describe_part).collect();
                let norms = optional("q_norm", &step.query_norm) + &optional("k_norm", &step.key_norm);
                let values = if step.values_are_keys { " values=keys" } else { "" };
                format!("heads {}{norms}{values}", parts.join(" "))
            }
            FusedOp::Route { chosen, shared, scores, normalized, factor, scale, choice_bias, groups, .. } => {
                let shared = match shared.count {
                    0 => String::new(),
                    count => format!(" shared={count}{}", if shared.gated { " gated" } else { "" }),
                };
                let (scale, bias) = (optional("scale", scale), optional("bias", choice_bias));
                let routing = routing(*scores, *factor, *groups);
                format!("route chosen={chosen}{shared} normalized={normalized}{routing}{scale}{bias}")
            }
            FusedOp::EveryMatrix { matrices, .. } => format!("every_matrix {matrices}"),
            FusedOp::HeadColumns { blocks, .. } => format!("head_columns {}", columns(blocks)),
            FusedOp::ExpertMatMul { matrix, act_mul, .. } => {
                let act_mul = act_mul.map_or(String::new(), |activation| format!(" act_mul={activation:?}"));
                format!("expert_matmul {}{act_mul}", self.matrices[matrix.0].name)
            }
            FusedOp::ExpertSum { .. } => "expert_sum".into(),
            FusedOp::Attention { .. } => "attention".into(),
            FusedOp::ShortConv { taps, form, .. } => format!("short_conv {form:?} {}", vector(taps)),
            FusedOp::PreviousRow { .. } => "previous_row".into(),
            FusedOp::KeepRow { .. } => "keep_row".into(),
            FusedOp::DeltaRule(step) => {
                let (rate, bias) = (vector(&step.decay_rate), vector(&step.decay_bias));
                format!("delta_rule {rate} {bias} columns={},{}", step.decay.first, step.strength.first)
            }
            FusedOp::GatedNorm { gate, weight, form: GatedForm::Silu, .. } => {
                format!("gated_norm {} column={}", vector(weight), gate.first)
            }
            FusedOp::GatedNorm { weight, form: GatedForm::Sum, .. } => format!("norm_sum {}", vector(weight)),
            FusedOp::SparseActMul { activation, deviations, .. } => {
                format!("sparse_act_mul {activation:?} deviations={deviations}")
            }
            FusedOp::Streams(op) => {
                let weights = op.weights().map_or(String::new(), |weights| format!(" {}", vector(weights)));
                format!("{}{weights}", op.verb())
            }
            FusedOp::Patches { .. } => "patches".into(),
            FusedOp::LayerNorm { weight_and_bias, .. } => format!("layer_norm {}", vector(weight_and_bias)),
            FusedOp::ImagePositions { learned, positions, side, .. } => {
                format!("image_positions {} positions={positions} side={side}", vector(learned))
            }
            FusedOp::ImageRope { n_heads, .. } => format!("image_rope heads={n_heads}"),
            FusedOp::ImageFeatures { first, .. } => format!("image_features first={first}"),
            FusedOp::ImageAttention { sources, n_heads, scale, .. } => {
                let columns: Vec<String> = sources.iter().map(|(_, first)| first.to_string()).collect();
                format!("image_attention heads={n_heads} scale={scale} columns={}", columns.join(","))
            }
            FusedOp::ImagePool { across, side, .. } => format!("image_pool across={across} side={side}"),
            FusedOp::Elementwise { op, bias, .. } => format!("elementwise {op:?}{}", optional("bias", bias)),
        }
    }
}

fn describe_part(part: &HeadsPart) -> String {
    let norm = if part.norm.is_some() { "norm+" } else { "" };
    let rope = if part.rope { "rope+" } else { "" };
    let growth = if part.growth.is_some() { "growth+" } else { "" };
    format!("{}×{norm}{rope}{growth}scale({})→{:?}", part.n_heads, part.scale.get(), part.to)
}
