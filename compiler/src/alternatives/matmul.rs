//! Other tiles of matmuls without matrix units, for one row of a step and for a few.

use kernels::ActivationFormat;
use kernels::activations::ACTIVATION_GROUP;
use kernels::matmul::{MatMulSpec, MatMulTile};
use shaders_gen::Target;

use super::has_lanes;

pub fn others(spec: &MatMulSpec, target: &Target) -> Vec<MatMulSpec> {
    let tile = spec.tile;
    let tiles = match (tile.broadcast, tile.columns) {
        (true, _) => handed_round(tile),
        (false, 1) => of_one_row(tile),
        (false, _) => of_rows(tile),
    };
    let specs = tiles.into_iter().map(|tile| MatMulSpec { tile, ..spec.clone() });
    let fits = |other: &MatMulSpec| {
        has_lanes(target, other.tile.workgroup_size())
            && other.shared_bytes() <= target.shared_memory_bytes
            && is_sound(other)
    };
    specs.filter(fits).collect()
}

pub fn particular(spec: &MatMulSpec) -> String {
    let MatMulTile { columns, tiles_per_lane, k_slices, unroll, .. } = spec.tile;
    let lanes = spec.tile.workgroup_size();
    let columns = if columns > 1 { format!(", {columns} columns") } else { String::new() };
    format!("{lanes} lanes, {k_slices} a row, {tiles_per_lane} tiles{columns}, {unroll} ahead")
}

/// More loads under way, fewer lanes a row, fewer lanes a workgroup, more rows a lane.
fn of_one_row(tile: MatMulTile) -> Vec<MatMulTile> {
    vec![
        MatMulTile { unroll: 2 * tile.unroll, ..tile },
        MatMulTile { k_slices: tile.k_slices / 2, group_tiles: 2 * tile.group_tiles, ..tile },
        MatMulTile { k_slices: tile.k_slices / 4, group_tiles: 4 * tile.group_tiles, ..tile },
        MatMulTile { k_slices: tile.k_slices / 2, ..tile },
        MatMulTile { tiles_per_lane: 2 * tile.tiles_per_lane, ..tile },
    ]
}

/// Fewer loads under way, fewer rows a lane, fewer columns a lane, fewer lanes a row.
fn of_rows(tile: MatMulTile) -> Vec<MatMulTile> {
    vec![
        MatMulTile { unroll: tile.unroll / 2, ..tile },
        MatMulTile { tiles_per_lane: tile.tiles_per_lane / 2, group_tiles: 2 * tile.group_tiles, ..tile },
        MatMulTile { tiles_per_lane: tile.tiles_per_lane / 2, ..tile },
        MatMulTile { columns: tile.columns / 2, ..tile },
        MatMulTile { k_slices: tile.k_slices / 2, ..tile },
        MatMulTile { k_slices: tile.k_slices / 2, group_tiles: 2 * tile.group_tiles, ..tile },
    ]
}

/// Where neighbours hand activations round: fewer and more rows a lane, columns and lanes, and no handing round.
fn handed_round(tile: MatMulTile) -> Vec<MatMulTile> {
    vec![
        MatMulTile { tiles_per_lane: tile.tiles_per_lane / 2, ..tile },
        MatMulTile { tiles_per_lane: 2 * tile.tiles_per_lane, group_tiles: tile.group_tiles / 2, ..tile },
        MatMulTile { columns: tile.columns / 2, ..tile },
        MatMulTile { group_tiles: tile.group_tiles / 4, ..tile },
        MatMulTile { group_tiles: 2 * tile.group_tiles, ..tile },
        MatMulTile { broadcast: false, ..tile },
    ]
}

/// Lanes, rows, gate and up come out whole, and integers that a kernel makes in whole groups.
fn is_sound(spec: &MatMulSpec) -> bool {
    let tile = &spec.tile;
    let counted = [tile.columns, tile.tiles_per_lane, tile.k_slices, tile.group_tiles, tile.unroll];
    let pairs = spec.act_mul.is_none() || tile.tiles_per_lane.is_multiple_of(2);
    let whole_groups = spec.output == ActivationFormat::F32 || spec.group_rows().is_multiple_of(ACTIVATION_GROUP);
    // Loads ahead are a matter of integer activations, and of lanes that have as many groups of columns to read.
    let groups = spec.layout.cols.div_ceil(ACTIVATION_GROUP);
    let ahead = tile.unroll == 1 || (spec.input != ActivationFormat::F32 && tile.unroll * tile.k_slices <= groups);
    counted.iter().all(|&count| count > 0) && pairs && whole_groups && ahead
}
