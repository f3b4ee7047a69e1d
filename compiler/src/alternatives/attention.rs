//! Other ways to share attention's work out among workgroups, and lanes of what puts it together again.

use artifacts::step::MAX_SAMPLERS;
use kernels::arrive::ARRIVALS;
use kernels::attention::AttentionSpec;
use kernels::combine::CombineSpec;
use kernels::decode_attention::{DecodeAttentionSpec, DecodeMatrices};
use kernels::split::Split;
use shaders_gen::Target;

use super::has_lanes;
use crate::select::shared_heads;

/// Few enough that more lanes have room.
const FEW_WORDS_AHEAD: usize = 4;

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
/// halve. And the same on matrix units.
pub fn other_decodes(spec: &DecodeAttentionSpec, target: &Target) -> Vec<DecodeAttentionSpec> {
    let split = spec.split;
    let with = |heads_per_group: usize, tile: usize, splits: usize| DecodeAttentionSpec {
        heads_per_group,
        split: Split { tile, splits, ..split },
        ..spec.clone()
    };
    let (heads, tile, splits) = (spec.heads_per_group, split.tile, split.splits);
    let (fewer, more) = (fewer_heads(spec.gqa, heads), more_heads(spec.gqa, heads));
    let words_ahead = if spec.words_ahead > FEW_WORDS_AHEAD { FEW_WORDS_AHEAD } else { 4 * FEW_WORDS_AHEAD };
    let more_splits = split.room.min(2 * splits);
    let specs = [
        with(fewer, tile, splits),
        with(more, tile, splits),
        with(heads, tile, splits / 2),
        with(heads, tile / 2, more_splits),
        DecodeAttentionSpec { words_ahead, ..with(heads, tile, more_splits) },
        DecodeAttentionSpec { words_ahead, ..with(more, tile, more_splits) },
        with(heads, 2 * tile, splits / 2),
        with(fewer, 2 * tile, splits / 2),
        with(fewer, tile / 2, more_splits),
    ];
    let fits = |other: &DecodeAttentionSpec| {
        other.split.splits > 0
            && other.split.is_partial() == split.is_partial()
            && other.is_whole()
            && has_lanes(target, other.lanes())
            && other.matrices.is_none_or(|matrices| other.heads_per_group <= matrices.side)
            && other.shared_bytes() <= target.shared_memory_bytes
            && target.next.is_none_or(|tuning| other.next_groups_per_lane() <= tuning.most_groups)
            && other.arrivals_len(MAX_SAMPLERS) <= ARRIVALS
    };
    specs.into_iter().chain(decodes_on_matrices(spec, target)).filter(fits).collect()
}

/// With all query heads of a KV head, or as many as a matrix has rows. Of few splits: each begins and ends with more to do.
fn decodes_on_matrices(spec: &DecodeAttentionSpec, target: &Target) -> Vec<DecodeAttentionSpec> {
    let Some(tuning) = target.matrix else { return Vec::new() };
    let matrices = DecodeMatrices { side: tuning.fragment, lanes_hold_fragments: target.fragments().is_some() };
    if !matrices.takes(&spec.cache, spec.subgroup_size) {
        return Vec::new();
    }
    let heads_per_group = shared_heads(spec.gqa, matrices.side);
    // As many workgroups as before, or as many as there is room for what they leave.
    let splits = (spec.split.splits * heads_per_group / spec.heads_per_group).clamp(1, spec.split.room);
    let with = |subgroups: usize, splits: usize| DecodeAttentionSpec {
        heads_per_group,
        split: Split { tile: subgroups * matrices.side, splits, ..spec.split },
        matrices: Some(matrices),
        ..spec.clone()
    };
    [with(8, splits.div_ceil(4)), with(4, splits.div_ceil(2)), with(2, splits)].to_vec()
}

pub fn decode_particular(spec: &DecodeAttentionSpec) -> String {
    let (splits, heads, lanes) = (spec.split.splits, spec.heads_per_group, spec.lanes());
    let under_way = match spec.matrices {
        Some(_) => "on matrix units".to_owned(),
        None => format!("{} words ahead", spec.words_ahead),
    };
    format!("{splits} splits, {heads} heads and {lanes} lanes a workgroup, {under_way}")
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
