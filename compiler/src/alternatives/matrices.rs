//! Other tiles of the kernels on matrix units.

use unicorn_kernels::flash::{FlashSpec, FlashTile};
use unicorn_kernels::gemm::{GemmSpec, GemmTile};
use unicorn_spirv::Target;

use super::has_lanes;

/// Most sums of a subgroup, in f32 for each of 32 lanes: more leave too few registers for the operands.
const SUMS_PER_LANE: usize = 128;

pub fn other_gemms(spec: &GemmSpec, target: &Target) -> Vec<GemmSpec> {
    let tile = spec.tile;
    let (across, down) = (tile.subgroups_across, tile.subgroups_down);
    let tiles = [
        GemmTile { double_buffered: !tile.double_buffered, ..tile },
        GemmTile { k: 96 - tile.k, ..tile },
        GemmTile { k: 96 - tile.k, double_buffered: !tile.double_buffered, ..tile },
        GemmTile { matrix_rows: tile.matrix_rows / 2, ..tile },
        GemmTile { step_rows: tile.step_rows / 2, ..tile },
        GemmTile { step_rows: 2 * tile.step_rows, ..tile },
        GemmTile { subgroups_across: 2 * across, ..tile },
        GemmTile { subgroups_across: 2 * across, subgroups_down: down / 2, ..tile },
    ];
    // The table of rows by expert is cut into tiles of this many rows.
    let is_cut = spec.product.experts.is_some();
    let fits = |tile: &GemmTile| {
        (!is_cut || tile.step_rows == spec.tile.step_rows)
            && tile.shared_bytes() <= target.shared_memory_bytes
            && tile.is_whole()
            && tile.step_rows * tile.matrix_rows <= 32 * SUMS_PER_LANE * tile.subgroups()
    };
    let specs = tiles.into_iter().filter(fits).map(|tile| GemmSpec { tile, ..spec.clone() });
    specs.filter(|spec| has_lanes(target, spec.lanes()) && spec.shares_out()).collect()
}

pub fn gemm_particular(spec: &GemmSpec) -> String {
    let GemmTile { matrix_rows, step_rows, k, subgroups_across, subgroups_down, double_buffered, .. } = spec.tile;
    let buffers = if double_buffered { "two buffers" } else { "one buffer" };
    format!("{matrix_rows} × {step_rows} × {k}, {subgroups_across} × {subgroups_down} subgroups, {buffers}")
}

pub fn other_flashes(spec: &FlashSpec, target: &Target) -> Vec<FlashSpec> {
    let subgroups = spec.tile.subgroups;
    let tiles = [subgroups / 2, 2 * subgroups].map(|subgroups| FlashTile { subgroups, ..spec.tile });
    let fits = |tile: &FlashTile| {
        has_lanes(target, tile.subgroups * spec.subgroup_size as usize)
            && tile.takes(&spec.cache)
            && tile.shared_bytes(&spec.cache) <= target.shared_memory_bytes
    };
    tiles.into_iter().filter(fits).map(|tile| spec.with_tile(tile)).collect()
}
