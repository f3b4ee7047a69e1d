//! The text form of a plain graph, for `--emit graph` and for messages.

use std::fmt::{self, Display};

use unicorn_kernels::gated_norm::GatedForm;
use unicorn_kernels::route::{ExpertGroups, Scores};

use super::streams::joined;
use super::{CachePart, ColumnsBlock, ColumnsPart, MatrixRef, ModelGraph, Op, VectorRef};

/// One line an operation: `%out name[width] = op %inputs weights`.
impl Display for ModelGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for node in &self.nodes {
            let outs = node.op.outs();
            for out in &outs {
                let value = &self.values[out.0];
                write!(f, "%{} {}[{}] ", out.0, value.name, value.width)?;
            }
            write!(f, "{}{}", if outs.is_empty() { "" } else { "= " }, node.op.verb())?;
            for input in node.op.inputs() {
                write!(f, " %{}", input.0)?;
            }
            writeln!(f, "{}", node.op.details())?;
        }
        writeln!(f, "logits %{}", self.logits.0)?;
        self.predicted.map_or(Ok(()), |logits| writeln!(f, "predicted %{}", logits.0))?;
        self.image_rows.map_or(Ok(()), |rows| writeln!(f, "image rows %{}", rows.0))
    }
}

impl Op {
    fn verb(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::Norm { .. } => "norm",
            Op::MatMul { .. } => "matmul",
            Op::Bias { .. } => "bias",
            Op::HeadNorm { .. } => "head_norm",
            Op::Rope { .. } => "rope",
            Op::CacheWrite { part: CachePart::Keys, .. } => "write_keys",
            Op::CacheWrite { part: CachePart::Values, .. } => "write_values",
            Op::CacheWrite { part: CachePart::Latent, .. } => "write_latent",
            Op::Attention { .. } => "attention",
            Op::Add { .. } => "add",
            Op::ActMul { .. } => "act_mul",
            Op::Scale { .. } => "scale",
            Op::SoftCap { .. } => "soft_cap",
            Op::Route { .. } => "route",
            Op::EveryMatrix { .. } => "every_matrix",
            Op::HeadColumns { .. } => "head_columns",
            Op::ExpertMatMul { .. } => "expert_matmul",
            Op::ExpertSum { .. } => "expert_sum",
            Op::Gate { .. } => "gate",
            Op::ShortConv { .. } => "short_conv",
            Op::PreviousRow { .. } => "previous_row",
            Op::KeepRow { .. } => "keep_row",
            Op::DeltaRule { .. } => "delta_rule",
            Op::GatedNorm { .. } => "gated_norm",
            Op::Patches { .. } => "patches",
            Op::LayerNorm { .. } => "layer_norm",
            Op::RowBias { .. } => "row_bias",
            Op::Activate { .. } => "activate",
            Op::ImagePositions { .. } => "image_positions",
            Op::ImageRope { .. } => "image_rope",
            Op::ImageFeatures { .. } => "image_features",
            Op::ImageAttention { .. } => "image_attention",
            Op::ImagePool { .. } => "image_pool",
            Op::SparseActMul { .. } => "sparse_act_mul",
            Op::Streams(op) => op.verb(),
        }
    }

    fn details(&self) -> String {
        match self {
            Op::Embed { table, scale, .. } => format!(" {table} scale={scale}"),
            Op::Norm { weight, .. }
            | Op::HeadNorm { weight: Some(weight), .. }
            | Op::GatedNorm { weight, form: GatedForm::Silu, .. } => format!(" {weight}"),
            Op::GatedNorm { weight, form: GatedForm::Sum, .. } => format!(" Sum {weight}"),
            Op::HeadNorm { weight: None, .. } => String::new(),
            Op::Scale { factor, .. } => format!(" {factor}"),
            Op::MatMul { matrix, .. } | Op::ExpertMatMul { matrix, bias: None, .. } => format!(" {matrix}"),
            Op::ExpertMatMul { matrix, bias: Some(bias), .. } => format!(" {matrix} + {bias}"),
            Op::Route { chosen, scores, normalized, factor, scale, choice_bias, groups, .. } => {
                let vector =
                    |vector: &Option<VectorRef>| vector.as_ref().map_or(String::new(), |one| format!(" {one}"));
                let routing = routing(*scores, *factor, *groups);
                format!(" chosen={chosen} normalized={normalized}{routing}{}{}", vector(scale), vector(choice_bias))
            }
            Op::EveryMatrix { matrices, .. } => format!(" {matrices}"),
            Op::HeadColumns { blocks, .. } => format!(" {}", columns(blocks)),
            Op::Bias { bias, .. } | Op::RowBias { bias, .. } => format!(" {bias}"),
            Op::LayerNorm { weight, bias, .. } => format!(" {weight} {bias}"),
            Op::Activate { activation, .. } => format!(" {activation:?}"),
            Op::ImagePositions { learned, positions, side, .. } => {
                format!(" {learned} positions={positions} side={side}")
            }
            Op::ImageRope { n_heads, .. } => format!(" heads={n_heads}"),
            Op::ImageFeatures { first, .. } => format!(" first={first}"),
            Op::ImageAttention { n_heads, scale, .. } => format!(" heads={n_heads} scale={scale}"),
            Op::ImagePool { across, side, .. } => format!(" across={across} side={side}"),
            Op::ShortConv { taps, form, .. } => format!(" {form:?} {taps}"),
            Op::DeltaRule { decay_rate, decay_bias, .. } => format!(" {decay_rate} {decay_bias}"),
            Op::Rope { rope, .. } => format!(" rope={rope}"),
            Op::Attention { scale, growth, sinks, .. } => {
                let growth = growth
                    .map_or(String::new(), |growth| format!(" growth={} each {}", growth.beta.get(), growth.interval));
                let sinks = sinks.as_ref().map_or(String::new(), |sinks| format!(" sinks={sinks}"));
                format!(" scale={scale}{growth}{sinks}")
            }
            Op::ActMul { activation, up_column: 0, .. } => format!(" {activation:?}"),
            Op::ActMul { activation, up_column, .. } => format!(" {activation:?} up_column={up_column}"),
            Op::SparseActMul { activation, deviations, .. } => format!(" {activation:?} deviations={deviations}"),
            Op::Streams(op) => op.weights().map_or(String::new(), |weights| joined(weights)),
            Op::SoftCap { cap, .. } => format!(" cap={cap}"),
            Op::CacheWrite { .. } | Op::Add { .. } | Op::ExpertSum { .. } | Op::Gate { .. } | Op::Patches { .. } => {
                String::new()
            }
            Op::PreviousRow { .. } | Op::KeepRow { .. } => String::new(),
        }
    }
}

/// How experts are chosen and weighted where it is not among all and by shares of a softmax.
pub(crate) fn routing(scores: Scores, factor: f32, groups: Option<ExpertGroups>) -> String {
    let scores = if scores == Scores::Sigmoid { " scores=Sigmoid" } else { "" };
    let factor = if factor == 1.0 { String::new() } else { format!(" factor={factor}") };
    let groups = groups.map_or(String::new(), |ExpertGroups { count, kept, best_of }| {
        format!(" groups={kept}/{count} best_of={best_of}")
    });
    format!("{scores}{factor}{groups}")
}

/// Heads and what they are made of: `16×(%5[0..512] %3[128..192])`.
pub(crate) fn columns(blocks: &[ColumnsBlock]) -> String {
    let part = |part: &ColumnsPart| format!("%{}[{}..{}]", part.value.0, part.first, part.first + part.width);
    let block = |block: &ColumnsBlock| {
        format!("{}×({})", block.n_heads, block.parts.iter().map(part).collect::<Vec<_>>().join(" "))
    };
    blocks.iter().map(block).collect::<Vec<_>>().join(" ")
}

impl Display for MatrixRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let experts = self.experts.map_or(String::new(), |experts| format!("{experts} × "));
        write!(f, "{}({experts}{}, {})", self.tensor, self.rows, self.cols)
    }
}

impl Display for VectorRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scale {
            1.0 => {}
            scale => write!(f, "{scale}×")?,
        }
        match self.offset {
            0.0 => write!(f, "{}", self.tensor),
            offset => write!(f, "{offset}+{}", self.tensor),
        }
    }
}
