//! Other divisions of attention's work among workgroups, and other numbers of lanes for `combine`.

use unicorn_kernels::attention::AttentionSpec;
use unicorn_kernels::combine::CombineSpec;
use unicorn_kernels::split::Split;
use unicorn_spirv::Target;

use super::has_lanes;

/// More and fewer splits, and fewer heads or rows a workgroup: more workgroups, each of which reads K and V again.
pub fn others(spec: &AttentionSpec, target: &Target) -> Vec<AttentionSpec> {
    let split = spec.split;
    let with = |heads_per_group: usize, split: Split| AttentionSpec { heads_per_group, split, ..spec.clone() };
    let heads = fewer_heads(spec.gqa, spec.heads_per_group);
    let specs = [
        with(spec.heads_per_group, Split { splits: split.max_splits, ..split }),
        with(spec.heads_per_group, Split { splits: split.splits / 2, ..split }),
        with(spec.heads_per_group, Split { splits: split.splits / 4, ..split }),
        with(heads, split),
        with(heads, Split { splits: split.splits / 2, ..split }),
        with(spec.heads_per_group, Split { rows_per_group: split.rows_per_group / 2, ..split }),
    ];
    let fits = |other: &AttentionSpec| {
        other.split.splits > 0 && other.split.rows_per_group > 0 && other.shared_bytes() <= target.shared_memory_bytes
    };
    specs.into_iter().filter(fits).collect()
}

pub fn particular(spec: &AttentionSpec) -> String {
    let (heads, rows) = (spec.heads_per_group, spec.split.rows_per_group);
    format!("{} splits, {heads} heads and {rows} rows a workgroup", spec.split.splits)
}

pub fn other_combines(spec: &CombineSpec, target: &Target) -> Vec<CombineSpec> {
    let lanes = [spec.lanes / 2, 2 * spec.lanes].into_iter();
    let enough = |lanes: &usize| has_lanes(target, *lanes) && *lanes >= spec.head_dim.div_ceil(4);
    lanes.filter(enough).map(|lanes| CombineSpec { lanes, ..spec.clone() }).collect()
}

/// The next smaller number of heads that share a KV head evenly.
fn fewer_heads(gqa: usize, heads_per_group: usize) -> usize {
    (1..heads_per_group).rev().find(|heads| gqa.is_multiple_of(*heads)).unwrap_or(1)
}
