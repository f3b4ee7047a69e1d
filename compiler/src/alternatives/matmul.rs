//! Other tiles of matmuls without matrix units, for one row of a step and for a few.

use unicorn_kernels::ActivationFormat;
use unicorn_kernels::activation_format::ACTIVATION_GROUP;
use unicorn_kernels::matmul::{ExpertsSpec, MatMulSpec, MatMulTile, Sharing};
use unicorn_spirv::Target;

use super::has_lanes;

/// Other tiles that the target has lanes and memory for.
pub fn others(spec: &MatMulSpec, target: &Target) -> Vec<MatMulSpec> {
    let tile = spec.tile;
    let tiles = match (tile.sharing, tile.tokens_per_lane) {
        (Sharing::Own, 1) => of_one_row(tile, spec.subgroup_size),
        (Sharing::Own, _) => of_rows(tile),
        // Only the software device, whose numbers were measured, has lanes that share rows.
        _ => Vec::new(),
    };
    let specs = tiles.into_iter().map(|tile| MatMulSpec { tile, ..spec.clone() });
    let fits = |other: &MatMulSpec| {
        has_lanes(target, other.tile.workgroup_size())
            && other.shared_bytes() <= target.shared_memory_bytes
            && target.fused_tail.is_none_or(|tuning| other.tail_groups_per_lane() <= tuning.max_groups)
            && is_sound(other)
    };
    specs.filter(fits).collect()
}

pub fn particular(spec: &MatMulSpec) -> String {
    let MatMulTile { tokens_per_lane, tiles_per_lane, split_k, unroll, passes, .. } = spec.tile;
    let lanes = spec.tile.workgroup_size();
    let tokens = if tokens_per_lane > 1 { format!(", {tokens_per_lane} tokens a lane") } else { String::new() };
    let passes = if passes > 1 { format!(", {passes} passes") } else { String::new() };
    format!("{lanes} lanes, {split_k} a row, {tiles_per_lane} tiles{tokens}, unroll {unroll}{passes}")
}

/// More loads in flight, fewer lanes a row, fewer lanes a workgroup, more rows a lane, other numbers of passes.
fn of_one_row(tile: MatMulTile, subgroup_size: u32) -> Vec<MatMulTile> {
    let split_by = |parts: usize| match tile.split_k / parts {
        0 => 0,
        lanes => MatMulTile::split_of(lanes, subgroup_size),
    };
    vec![
        MatMulTile { unroll: 2 * tile.unroll, ..tile },
        MatMulTile { split_k: split_by(2), group_tiles: 2 * tile.group_tiles, ..tile },
        MatMulTile { split_k: split_by(4), group_tiles: 4 * tile.group_tiles, ..tile },
        MatMulTile { split_k: split_by(2), ..tile },
        MatMulTile { tiles_per_lane: 2 * tile.tiles_per_lane, ..tile },
        MatMulTile { passes: tile.passes / 2, ..tile },
        MatMulTile { passes: 2 * tile.passes, ..tile },
    ]
}

/// Fewer loads in flight, or more than one, fewer rows a lane, fewer tokens a lane, fewer lanes a row.
fn of_rows(tile: MatMulTile) -> Vec<MatMulTile> {
    vec![
        MatMulTile { unroll: if tile.unroll > 1 { tile.unroll / 2 } else { 2 }, ..tile },
        MatMulTile { tiles_per_lane: tile.tiles_per_lane / 2, group_tiles: 2 * tile.group_tiles, ..tile },
        MatMulTile { tiles_per_lane: tile.tiles_per_lane / 2, ..tile },
        MatMulTile { tokens_per_lane: tile.tokens_per_lane / 2, ..tile },
        MatMulTile { split_k: tile.split_k / 2, ..tile },
        MatMulTile { split_k: tile.split_k / 2, group_tiles: 2 * tile.group_tiles, ..tile },
    ]
}

/// Lanes, rows, gate and up come out whole, and integers that a kernel makes in whole groups.
fn is_sound(spec: &MatMulSpec) -> bool {
    let tile = &spec.tile;
    let counted = [tile.tokens_per_lane, tile.tiles_per_lane, tile.split_k, tile.group_tiles, tile.unroll, tile.passes];
    let passes = tile.passes == 1 || (spec.prologue.is_some() && spec.fused_tail.is_none());
    let pairs = spec.act_mul.is_none() || tile.tiles_per_lane.is_multiple_of(2);
    let whole_groups = spec.output == ActivationFormat::F32 || spec.group_rows().is_multiple_of(ACTIVATION_GROUP);
    // Loads ahead are a matter of integer activations, and of lanes that have as many groups of columns to read.
    let groups = spec.layout.cols.div_ceil(ACTIVATION_GROUP);
    let ahead =
        tile.unroll == 1 || (spec.input != ActivationFormat::F32 && tile.unroll * spec.column_lanes() <= groups);
    // The table of rows by expert is cut into tiles of this many rows.
    let rows_of_expert = |experts: ExpertsSpec| experts.tiles.map_or(1, |tiles| tiles.tile_rows);
    let cut = spec.experts.is_none_or(|experts| rows_of_expert(experts) == tile.tokens_per_lane);
    // Experts whose products are summed have the same number of lanes each.
    let adds_up = tile.split_k == MatMulTile::split_of(tile.split_k, spec.subgroup_size);
    let divided = adds_up && spec.experts.is_none_or(|experts| tile.split_k >= experts.lane_parts());
    counted.iter().all(|&count| count > 0) && divided && cut && pairs && whole_groups && ahead && passes
}
