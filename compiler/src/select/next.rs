//! Which kernels of a decode step do the matmul behind them, too (`kernels::next`).
//!
//! ```text
//! before: zeroes the sums     maker + its next matmul: add to them     …     reader: a norm that begins with them
//! ```

use std::collections::BTreeMap;

use kernels::activations::ACTIVATION_GROUP;
use kernels::next::NextSpec;
use kernels::{ActivationFormat, KernelSpec, Precision, Role};
use shaders_gen::target::NextTuning;

use super::{Operand, Step};
use crate::graph::ValueId;

/// What a matmul reads whose maker can do it.
const CODES: ActivationFormat = ActivationFormat::Codes(Precision::Int8);

/// Takes every matmul out of the steps of one row that the step before it can do.
pub fn merge(steps: &mut Vec<Step>, tuning: NextTuning) {
    let mut maker = 1;
    while maker + 1 < steps.len() {
        if let Some(merger) = Merger::of(steps, maker, tuning) {
            merger.apply(steps);
        }
        maker += 1;
    }
}

/// A step, and the matmul behind it that becomes a part of it.
struct Merger {
    maker: usize,
    next: NextSpec,
    weights: Operand,
    /// The matmul's result.
    sums: ValueId,
    reader: usize,
}

impl Merger {
    fn of(steps: &mut [Step], maker: usize, tuning: NextTuning) -> Option<Merger> {
        let next = next_spec(&steps[maker + 1])?;
        let (made, of_matmul) = (operands(&steps[maker]).remove(&Role::Encoded)?, operands(&steps[maker + 1]));
        let Operand::Value(sums) = of_matmul[&Role::Output] else { return None };
        let readers = users(steps, Operand::Value(sums));
        let reader = *readers.last()?;
        let is_between_them = users(steps, made) == [maker, maker + 1] && readers == [maker + 1, reader];
        let is_normed = operands(&steps[reader]).get(&Role::InputQuads) == Some(&Operand::Value(sums));
        let fits = is_little(&steps[maker], &next, tuning);
        let is_zeroed = steps[maker - 1].spec.clears().is_some_and(|clears| *clears == 0);
        (is_between_them && is_normed && fits && is_zeroed && steps[reader].spec.first_norm().is_some())
            .then_some(Merger { maker, next, weights: of_matmul[&Role::Weights], sums, reader })
    }

    fn apply(self, steps: &mut Vec<Step>) {
        let (sums, rows) = (Operand::Sums(self.sums), self.next.layout.rows);
        rebind(&mut steps[self.maker - 1], &[(Role::ClearedSums, sums)], |spec| {
            *spec.clears().expect("it can") = rows.next_multiple_of(4);
        });
        rebind(&mut steps[self.maker], &[(Role::NextWeights, self.weights), (Role::Sums, sums)], |spec| {
            *spec.next_matmul().expect("it can") = Some(self.next);
        });
        rebind(&mut steps[self.reader], &[(Role::InputSums, sums)], |spec| {
            spec.first_norm().expect("it has one").sums = true;
        });
        let matmul = steps.remove(self.maker + 1);
        let maker = &mut steps[self.maker];
        maker.weight_bytes += matmul.weight_bytes;
        let (_, name) = matmul.label.split_once('.').unwrap_or(("", &matmul.label));
        maker.label = format!("{}+{name}", maker.label);
    }
}

/// The step's matmul as a next one, if it can be.
fn next_spec(step: &Step) -> Option<NextSpec> {
    let KernelSpec::MatMul(spec) = &step.spec else { return None };
    let is_plain = spec.prologue.is_none() && spec.act_mul.is_none() && spec.softcap.is_none() && !spec.bias;
    let is_whole = spec.output_first == 0 && spec.output_rows() == spec.layout.rows && !spec.row_from_step;
    let formats = (spec.input, spec.output) == (CODES, ActivationFormat::F32);
    (is_plain && is_whole && formats && NextSpec::takes(&spec.layout)).then_some(NextSpec { layout: spec.layout })
}

/// Whether the maker's workgroups have lanes and room for it.
fn is_little(maker: &Step, next: &NextSpec, tuning: NextTuning) -> bool {
    // Lanes and groups of a workgroup, and how many of them add something.
    let (lanes, groups, adding) = match &maker.spec {
        KernelSpec::MatMul(spec) if spec.output == CODES && spec.tile.columns * spec.tile.passes == 1 => {
            (spec.tile.workgroup_size(), spec.group_rows() / ACTIVATION_GROUP, maker.workgroups[1])
        }
        KernelSpec::DecodeAttention(spec) if spec.output == CODES => {
            (spec.split.tile, spec.result_groups(), maker.workgroups[0])
        }
        _ => return false,
    };
    next.layout.rows * adding <= tuning.most_added && next.groups_per_lane(lanes, groups) <= tuning.most_groups
}

fn users(steps: &[Step], operand: Operand) -> Vec<usize> {
    (0..steps.len()).filter(|&at| steps[at].operands.contains(&operand)).collect()
}

fn operands(step: &Step) -> BTreeMap<Role, Operand> {
    step.spec.bindings().iter().map(|binding| binding.role).zip(step.operands.iter().copied()).collect()
}

/// Changes a step's kernel, whose new roles have these operands.
fn rebind(step: &mut Step, new: &[(Role, Operand)], change: impl FnOnce(&mut KernelSpec)) {
    let mut by_role = operands(step);
    by_role.extend(new.iter().copied());
    change(&mut step.spec);
    step.operands = step.spec.bindings().iter().map(|binding| by_role[&binding.role]).collect();
}
