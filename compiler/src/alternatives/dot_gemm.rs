//! Other tiles of matmuls by packed dot products: fewer results a lane take fewer registers, a smaller workgroup leaves room for a second one.

use unicorn_kernels::dot_gemm::{DotGemmSpec, DotGemmTile};
use unicorn_spirv::Target;

use super::has_lanes;

pub fn others(spec: &DotGemmSpec, target: &Target) -> Vec<DotGemmSpec> {
    let tile = spec.tile;
    let (half_matrix, half_step) = (tile.matrix_rows / 2, tile.step_rows / 2);
    let tiles = [
        DotGemmTile { step_rows: half_step, ..tile },
        DotGemmTile { step_rows: 2 * tile.step_rows, ..tile },
        DotGemmTile { matrix_rows: half_matrix, ..tile },
        DotGemmTile { step_rows: half_step, lane_rows: tile.lane_rows / 2, ..tile },
        DotGemmTile { matrix_rows: half_matrix, lane_tiles: tile.lane_tiles / 2, ..tile },
        DotGemmTile { matrix_rows: half_matrix, step_rows: half_step, ..tile },
    ];
    let fits = |tile: &DotGemmTile| {
        tile.is_whole()
            && has_lanes(target, tile.lanes())
            && tile.shared_bytes(spec.product.input) <= target.shared_memory_bytes
    };
    tiles.into_iter().filter(fits).map(|tile| DotGemmSpec { tile, ..spec.clone() }).collect()
}

pub fn particular(spec: &DotGemmSpec) -> String {
    let DotGemmTile { matrix_rows, step_rows, lane_tiles, lane_rows } = spec.tile;
    format!("{matrix_rows} × {step_rows}, {lane_tiles} × {lane_rows} a lane")
}
