//! Other ways to cut the kernels that decode: what `unicorn-run tune` chooses from on the user's device, where the target's
//! own numbers are those of another.

use kernels::activations::ACTIVATION_GROUP;
use kernels::matmul::{MatMulSpec, MatMulTile, Sharing};
use kernels::{ActivationFormat, KernelSpec};
use shaders_gen::Target;

use crate::kernel_set::pipeline_name;

/// Kernels with the same bindings and, but for the order of sums, the same results as `spec`, each once: matmuls of one row,
/// which read all the weights of a step. None where lanes hand activations round, as on a CPU.
pub fn alternatives(spec: &KernelSpec, target: &Target) -> Vec<KernelSpec> {
    let KernelSpec::MatMul(matmul) = spec else { return Vec::new() };
    if matmul.tile.columns > 1 || matmul.tile.sharing != Sharing::Own {
        return Vec::new();
    }
    let mut found: Vec<KernelSpec> = Vec::new();
    for tile in tiles(matmul.tile) {
        let other = MatMulSpec { tile, ..matmul.clone() };
        let fits = is_sound(&other)
            && tile.workgroup_size() <= target.workgroup_invocations
            && tile.workgroup_size().is_multiple_of(target.subgroup_size.max(1) as usize)
            && other.shared_bytes() <= target.shared_memory_bytes;
        let other = KernelSpec::MatMul(other);
        if fits && other != *spec && !found.contains(&other) {
            found.push(other);
        }
    }
    found
}

/// The pipeline's name and what is different.
pub fn alternative_name(spec: &KernelSpec) -> String {
    let name = pipeline_name(spec);
    let KernelSpec::MatMul(spec) = spec else { return name };
    let MatMulTile { tiles_per_lane, k_slices, unroll, .. } = spec.tile;
    format!("{name}, {} lanes, {k_slices} a row, {tiles_per_lane} tiles, {unroll} ahead", spec.tile.workgroup_size())
}

/// More loads under way, fewer lanes a row, fewer lanes a workgroup, more rows a lane.
fn tiles(tile: MatMulTile) -> [MatMulTile; 5] {
    [
        MatMulTile { unroll: 2 * tile.unroll, ..tile },
        MatMulTile { k_slices: tile.k_slices / 2, group_tiles: 2 * tile.group_tiles, ..tile },
        MatMulTile { k_slices: tile.k_slices / 4, group_tiles: 4 * tile.group_tiles, ..tile },
        MatMulTile { k_slices: tile.k_slices / 2, ..tile },
        MatMulTile { tiles_per_lane: 2 * tile.tiles_per_lane, ..tile },
    ]
}

/// Lanes and rows come out whole, and integers that a kernel makes in whole groups.
fn is_sound(spec: &MatMulSpec) -> bool {
    let whole_groups = spec.output == ActivationFormat::F32 || spec.group_rows().is_multiple_of(ACTIVATION_GROUP);
    // Loads ahead are a matter of integer activations, and of lanes that have as many groups of columns to read.
    let groups = spec.layout.cols.div_ceil(ACTIVATION_GROUP);
    let ahead = spec.tile.unroll == 1
        || (spec.input != ActivationFormat::F32 && spec.tile.unroll * spec.tile.k_slices <= groups);
    spec.tile.k_slices > 0 && whole_groups && ahead
}
