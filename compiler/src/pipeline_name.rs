//! Names of kernels, for tables and profiles.

use unicorn_kernels::fused_tail::FusedTailSpec;
use unicorn_kernels::gemm::Product;
use unicorn_kernels::split::{Split, StepRows};
use unicorn_kernels::{ActivationFormat, KernelSpec, WeightLayout};

/// Family and shape, short enough for a table. A kernel that multiplies by a matrix names its `ROWS×COLS`, from which
/// profiles work out its flops.
pub fn pipeline_name(spec: &KernelSpec) -> String {
    match spec {
        KernelSpec::MatMul(spec) => {
            let layout = &spec.layout;
            let before = match (&spec.experts, &spec.choice) {
                (Some(_), Some(_)) => "route+expert ",
                (Some(_), None) => "expert ",
                (None, _) if spec.prologue.is_some() => "norm+",
                (None, _) => "",
            };
            let (rows, cols, format) = (layout.rows, layout.cols, layout.format.name());
            let next = if spec.is_router() { " +route".into() } else { next_name(spec.fused_tail.as_ref()) };
            format!("{before}matmul {rows}×{cols} {format} {} ×{}{next}", spec.input.name(), spec.tile.tokens_per_lane)
        }
        KernelSpec::DotGemm(spec) => {
            let WeightLayout { rows, cols, format } = spec.product.layout;
            let activations = ActivationFormat::Quantized(spec.product.input).name();
            format!("dot gemm {rows}×{cols} {} {activations} ×{}", format.name(), spec.tile.step_rows)
        }
        KernelSpec::FloatGemm(spec) => {
            let WeightLayout { rows, cols, format } = spec.product.layout;
            format!("float gemm {rows}×{cols} {} ×{}", format.name(), spec.tile.step_rows)
        }
        KernelSpec::Gemm(spec) => {
            let WeightLayout { rows, cols, format } = spec.product.layout;
            let experts = of_experts(&spec.product);
            format!("{experts}gemm {rows}×{cols} {} ×{}", format.name(), spec.tile.step_rows)
        }
        KernelSpec::RegisterGemm(spec) => {
            let WeightLayout { rows, cols, format } = spec.product.layout;
            let experts = of_experts(&spec.product);
            format!("{experts}register gemm {rows}×{cols} {} ×{} /{}", format.name(), spec.tile.step_rows, spec.splits)
        }
        KernelSpec::Attention(spec) => {
            let heads = if spec.prologue.is_some() { "heads+" } else { "" };
            let Split { rows_per_group, rows, splits, .. } = spec.split;
            format!("{heads}attention {} ×{rows_per_group} /{splits}{}", spec.cache.format.name(), rows_name(rows))
        }
        KernelSpec::DecodeAttention(spec) => {
            let next = next_name(spec.fused_tail.as_ref());
            let Split { rows, splits, .. } = spec.split;
            format!("decode attention {} /{splits}{}{next}", spec.cache.format.name(), rows_name(rows))
        }
        KernelSpec::Flash(spec) => {
            let queries = spec.tile.queries(&spec.cache);
            let keys = if spec.patches.is_some() { "patches" } else { spec.cache.format.name() };
            format!("flash {keys} ×{queries}{}", rows_name(spec.rows))
        }
        other => other.name().into(),
    }
}

fn rows_name(rows: StepRows) -> &'static str {
    match rows {
        StepRows::All => "",
        StepRows::EachApart => " each apart",
        StepRows::Apart => " apart",
        StepRows::Behind => " behind",
    }
}

fn of_experts(product: &Product) -> &'static str {
    if product.experts.is_some() { "expert " } else { "" }
}

/// Name of the matmul at the end of a kernel, empty if it has none.
fn next_name(next: Option<&FusedTailSpec>) -> String {
    let name =
        |next: &FusedTailSpec| format!(" +{}×{} {}", next.layout.rows, next.layout.cols, next.layout.format.name());
    next.map_or(String::new(), name)
}
