//! How a matmul is cut: the target's tuning fitted to a shape.

use unicorn_kernels::ActivationFormat;
use unicorn_kernels::activation_format::ACTIVATION_GROUP;
use unicorn_kernels::layout::TILE_ROWS;
use unicorn_kernels::matmul::{MatMulSpec, MatMulTile};
use unicorn_spirv::Target;

/// The tile of a matmul in a program of `rows` rows; `is_router`: of one that makes the logits of a choice of experts.
pub fn tile(target: &Target, spec: &MatMulSpec, rows: usize, is_router: bool) -> MatMulTile {
    let tuning = target.matmul;
    let columns = tuning.tokens_per_lane.min(rows.next_power_of_two());
    let one = columns == 1;
    let tiles_per_lane = if one { tuning.tiles_per_lane_one } else { tuning.tiles_per_lane_many };
    let tiles_per_lane = if spec.act_mul.is_some() { tiles_per_lane.next_multiple_of(2) } else { tiles_per_lane };
    let (lanes, shared_tiles) = match spec.prologue {
        Some(_) => {
            let tiles_per_unit = spec.layout.tiles() / target.compute_units;
            let quads = (spec.layout.cols / 4).next_power_of_two();
            (
                tuning.prologue_workgroup.min(quads.max(MIN_PROLOGUE_LANES)),
                tuning.prologue_tiles.min(1 << tiles_per_unit.max(1).ilog2()),
            )
        }
        None => (tuning.workgroup, 1),
    };
    let min_tiles = match spec.output {
        ActivationFormat::F32 => shared_tiles.max(1),
        // 32 rows of gate and 32 of up.
        _ => shared_tiles.max(2 * ACTIVATION_GROUP / TILE_ROWS),
    };
    // A lane without columns to read only waits.
    let runs_of_one = match spec.input {
        ActivationFormat::F32 => spec.layout.blocks_per_tile(),
        _ => spec.layout.cols.div_ceil(ACTIVATION_GROUP),
    };
    let lane_groups = lanes / TILE_ROWS;
    // A router has fewer workgroups than the device has units: the more lanes a row has, the fewer times one waits for weights.
    let most = if is_router { lane_groups } else { tuning.split_k };
    let most = most.min((lane_groups * tiles_per_lane / min_tiles).max(1));
    let parts = spec.experts.map_or(1, |experts| experts.lane_parts());
    let split_k = split_lanes(target, parts, runs_of_one, most);
    let group_tiles = (lane_groups / split_k).max(1);
    let at_a_time = match spec.prologue {
        Some(_) => {
            let lanes_per_unit = tuning.prologue_groups_per_unit * tuning.prologue_workgroup;
            lanes_per_unit / lanes * target.compute_units * group_tiles * tiles_per_lane
        }
        None => 0,
    };
    let passes = if at_a_time > 0 { spec.layout.tiles().div_ceil(at_a_time) } else { 1 };
    let workgroups = spec.layout.tiles().div_ceil(group_tiles * tiles_per_lane * passes);
    let lanes_of_one_unit = workgroups.div_ceil(target.compute_units) * TILE_ROWS * split_k * group_tiles;
    let own_runs = runs_of_one.div_ceil((split_k / parts).max(1));
    let at_once = match (&spec.prologue, one) {
        (Some(_), _) if passes == 1 && own_runs <= tuning.unroll_prologue_once => own_runs,
        (Some(_), _) => tuning.unroll_prologue,
        (None, true) => tuning.unroll_one.min(tuning.loads_per_unit / lanes_of_one_unit),
        (None, false) => tuning.unroll_many,
    };
    let is_integer = spec.input != ActivationFormat::F32;
    MatMulTile {
        tokens_per_lane: columns,
        tiles_per_lane,
        split_k,
        sharing: if one { tuning.sharing_one } else { tuning.sharing_many },
        unroll: unroll(at_once, own_runs),
        group_tiles,
        passes,
        early: one && is_integer && passes == 1 && lanes_of_one_unit <= tuning.early_lanes_per_unit,
    }
}

/// Lanes of a matrix row, each of whose `parts` has a power of two of them, at most one for each of its runs of columns: as many as `most`
/// permits for the power of two below `parts`, if a workgroup may have them.
fn split_lanes(target: &Target, parts: usize, runs_of_one: usize, most: usize) -> usize {
    let split_of = |of_part: usize| MatMulTile::split_of(parts * of_part, target.subgroup_size);
    let mut of_part = 1 << (most >> parts.ilog2()).min(runs_of_one).max(1).ilog2();
    while of_part > 1 && TILE_ROWS * split_of(of_part) > target.workgroup_invocations {
        of_part /= 2;
    }
    split_of(of_part)
}

/// Fewest lanes of a workgroup with a prologue, even for a short input: it also computes rows, which fewer lanes would do in turn.
const MIN_PROLOGUE_LANES: usize = 128;

/// Of a lane's `own` runs of columns, those that it has in flight: the fewest with which it needs no more rounds than with `max`.
fn unroll(max: usize, own: usize) -> usize {
    own.div_ceil(own.div_ceil(max.max(1)))
}

#[cfg(test)]
mod tests {
    use unicorn_spirv::target;

    use super::*;

    /// Experts of a row, the lanes of each, and all lanes: no more than a subgroup's are left over.
    #[test]
    fn lanes_of_a_row_are_divided_between_any_number_of_experts() {
        let lanes_of = |name: &str, experts| {
            let target = target::by_name(name).expect("a preset");
            split_lanes(&target, experts, 16, target.matmul.split_k)
        };
        assert_eq!([8, 9, 11, 5, 1].map(|experts| lanes_of("nvidia", experts)), [32, 36, 44, 40, 16]);
        // A workgroup has at most 256 invocations.
        for experts in 1..=32 {
            let lanes = lanes_of("rdna3", experts);
            assert!(lanes >= experts && TILE_ROWS * lanes <= 256, "{experts} experts: {lanes} lanes");
        }
        assert_eq!(lanes_of("rdna3", 8), 32);
    }
}
