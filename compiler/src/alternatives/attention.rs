//! Other ways to share attention's work out among workgroups, and lanes of what puts it together again.

use unicorn_artifact::step::MAX_SAMPLERS;
use unicorn_kernels::arrive::ARRIVALS;
use unicorn_kernels::attention::AttentionSpec;
use unicorn_kernels::combine::CombineSpec;
use unicorn_kernels::decode_attention::DecodeAttentionSpec;
use unicorn_kernels::split::Split;
use unicorn_spirv::Target;

use super::has_lanes;

/// Words under way in a lane: few, so that more lanes have room, and many, so that each waits less often.
const WORDS_AHEAD: [usize; 3] = [1, 8, 16];

/// More and fewer splits, and fewer heads or rows a workgroup: more workgroups, each of which reads K and V anew.
pub fn others(spec: &AttentionSpec, target: &Target) -> Vec<AttentionSpec> {
    let split = spec.split;
    let with = |heads_per_group: usize, split: Split| AttentionSpec { heads_per_group, split, ..spec.clone() };
    let heads = fewer_heads(spec.gqa, spec.heads_per_group);
    let specs = [
        with(spec.heads_per_group, Split { splits: split.room, ..split }),
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

/// More and fewer splits, heads and lanes a workgroup, and words under way. Twice the lanes look at twice the tokens: splits
/// halve.
pub fn other_decodes(spec: &DecodeAttentionSpec, target: &Target) -> Vec<DecodeAttentionSpec> {
    let split = spec.split;
    let with = |heads_per_group: usize, tile: usize, splits: usize| DecodeAttentionSpec {
        heads_per_group,
        split: Split { tile, splits, ..split },
        ..spec.clone()
    };
    let (heads, tile, splits) = (spec.heads_per_group, split.tile, split.splits);
    let (fewer, more) = (fewer_heads(spec.gqa, heads), more_heads(spec.gqa, heads));
    let more_splits = split.room.min(2 * splits);
    let specs = [
        with(fewer, tile, splits),
        with(more, tile, splits),
        with(heads, tile, splits / 2),
        with(heads, tile / 2, more_splits),
        with(heads, tile, more_splits),
        with(heads, 2 * tile, splits / 2),
    ];
    let words = WORDS_AHEAD.map(|words_ahead| DecodeAttentionSpec { words_ahead, ..spec.clone() });
    let fits = |other: &DecodeAttentionSpec| {
        other.split.splits > 0
            && other.split.is_partial() == split.is_partial()
            && has_lanes(target, other.split.tile)
            && other.shared_bytes() <= target.shared_memory_bytes
            && target.next.is_none_or(|tuning| other.next_groups_per_lane() <= tuning.most_groups)
            && other.arrivals_len(MAX_SAMPLERS) <= ARRIVALS
    };
    specs.into_iter().chain(words).filter(fits).collect()
}

pub fn decode_particular(spec: &DecodeAttentionSpec) -> String {
    let Split { splits, tile, .. } = spec.split;
    let (heads, words) = (spec.heads_per_group, spec.words_ahead);
    format!("{splits} splits, {heads} heads and {tile} lanes a workgroup, {words} words ahead")
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

/// The next larger number, or as many.
fn more_heads(gqa: usize, heads_per_group: usize) -> usize {
    (heads_per_group + 1..=gqa).find(|heads| gqa.is_multiple_of(*heads)).unwrap_or(heads_per_group)
}
