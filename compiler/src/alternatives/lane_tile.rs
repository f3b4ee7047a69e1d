//! Other tiles of GEMMs without matrix units: fewer results a lane take fewer registers, a smaller workgroup leaves room for a
//! second one. A lane has at most eight tiles: more results than 8 × 8 do not fit its registers.

use unicorn_kernels::dot_gemm::DotGemmSpec;
use unicorn_kernels::float_gemm::FloatGemmSpec;
use unicorn_kernels::lane_tile::LaneTile;
use unicorn_spirv::Target;

use super::has_lanes;

pub fn other_dot_gemms(spec: &DotGemmSpec, target: &Target) -> Vec<DotGemmSpec> {
    let fits = |tile: &LaneTile| {
        tile.is_whole() && DotGemmSpec::shared_bytes(tile, spec.product.input) <= target.shared_memory_bytes
    };
    others(spec.tile, target).filter(fits).map(|tile| DotGemmSpec { tile, ..spec.clone() }).collect()
}

pub fn other_float_gemms(spec: &FloatGemmSpec, target: &Target) -> Vec<FloatGemmSpec> {
    let fits =
        |tile: &LaneTile| FloatGemmSpec::fits(tile) && FloatGemmSpec::shared_bytes(tile) <= target.shared_memory_bytes;
    others(spec.tile, target).filter(fits).map(|tile| FloatGemmSpec { tile, ..spec.clone() }).collect()
}

/// Tiles that the target has lanes for.
fn others(tile: LaneTile, target: &Target) -> impl Iterator<Item = LaneTile> {
    let (half_matrix, half_step) = (tile.matrix_rows / 2, tile.step_rows / 2);
    let tiles = [
        LaneTile { step_rows: half_step, ..tile },
        LaneTile { step_rows: 2 * tile.step_rows, ..tile },
        LaneTile { matrix_rows: half_matrix, ..tile },
        LaneTile { step_rows: half_step, lane_rows: tile.lane_rows / 2, ..tile },
        LaneTile { matrix_rows: half_matrix, lane_tiles: tile.lane_tiles / 2, ..tile },
        LaneTile { matrix_rows: half_matrix, step_rows: half_step, ..tile },
        LaneTile { matrix_rows: 2 * tile.matrix_rows, lane_tiles: 2 * tile.lane_tiles, ..tile },
    ];
    tiles.into_iter().filter(|tile| tile.is_whole() && tile.lane_tiles <= 8 && has_lanes(target, tile.lanes()))
}

pub fn particular(tile: &LaneTile) -> String {
    let LaneTile { matrix_rows, step_rows, lane_tiles, lane_rows } = tile;
    format!("{matrix_rows} × {step_rows}, {lane_tiles} × {lane_rows} a lane")
}
