//! Which kernels of a decode step do the matmul behind them, too (`unicorn_kernels::next`).
//!
//! ```text
//! before: zeroes the sums     maker + its next matmul: add to them     …     reader: a norm that begins with them
//! ```
//!
//! A norm by itself zeroes nothing: where norms are not folded into matmuls, gate and up do without down.

use std::collections::BTreeMap;

use unicorn_kernels::next::NextSpec;
use unicorn_kernels::{ActivationFormat, KernelSpec, Precision, Role};
use unicorn_spirv::Target;
use unicorn_spirv::target::NextTuning;

use super::{Operand, Step};
use crate::graph::ValueId;

/// What a matmul reads whose maker can do it.
const CODES: ActivationFormat = ActivationFormat::Codes(Precision::Int8);

/// Takes every matmul out of the steps of one row that the step before it can do, on targets whose kernels do.
pub fn merge(steps: &mut Vec<Step>, target: &Target) {
    let Some(tuning) = target.next else { return };
    let mut maker = 1;
    while maker + 1 < steps.len() {
        if let Some(merger) = Merger::of(steps, maker, tuning, target.shared_memory_bytes) {
            merger.apply(steps);
        }
        maker += 1;
    }
}

/// A step, and the matmul behind it that becomes a part of it.
struct Merger {
    maker: usize,
    reader: usize,
    weights: Operand,
    /// The matmul's result.
    sums: ValueId,
    /// Kernels of the step before, of the maker and of the reader as they become.
    specs: [KernelSpec; 3],
}

impl Merger {
    fn of(steps: &[Step], maker: usize, tuning: NextTuning, shared_memory_bytes: usize) -> Option<Merger> {
        let next = next_spec(&steps[maker + 1])?;
        let (made, of_matmul) = (by_role(&steps[maker]).remove(&Role::Encoded)?, by_role(&steps[maker + 1]));
        let Operand::Value(sums) = of_matmul[&Role::Output] else { return None };
        // Parts of a matrix that was cut all write there, and so more steps use it.
        let readers = users(steps, Operand::Value(sums));
        let reader = *readers.last()?;
        let is_between_them = users(steps, made) == [maker, maker + 1] && readers == [maker + 1, reader];
        let is_normed = by_role(&steps[reader]).get(&Role::InputQuads) == Some(&Operand::Value(sums));
        let clearing = steps[maker - 1].spec.clearing(next.layout.rows.next_multiple_of(4))?;
        let reading = steps[reader].spec.reading_sums()?;
        let mut merged = steps[maker].spec.with_next(next)?;
        if let KernelSpec::DecodeAttention(spec) = &mut merged {
            spec.words_ahead = tuning.words_ahead;
        }
        let fits = is_little(&merged, steps[maker].workgroups, tuning, shared_memory_bytes);
        (is_between_them && is_normed && fits).then_some(Merger {
            maker,
            reader,
            weights: of_matmul[&Role::Weights],
            sums,
            specs: [clearing, merged, reading],
        })
    }

    fn apply(self, steps: &mut Vec<Step>) {
        let sums = Operand::Sums(self.sums);
        let [clearing, merged, reading] = self.specs;
        rebind(&mut steps[self.maker - 1], clearing, &[(Role::ClearedSums, sums)]);
        rebind(&mut steps[self.maker], merged, &[(Role::NextWeights, self.weights), (Role::Sums, sums)]);
        rebind(&mut steps[self.reader], reading, &[(Role::InputSums, sums)]);
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
    let is_of_the_row = spec.output_first == 0 && !spec.row_from_step;
    let formats = (spec.input, spec.output) == (CODES, ActivationFormat::F32);
    (is_plain && is_of_the_row && formats && NextSpec::takes(&spec.layout)).then_some(NextSpec { layout: spec.layout })
}

/// Whether a kernel with its next matmul, in so many workgroups, has lanes and room for it, and adds few parts. All splits of an
/// attention read the weights, one of each head adds.
fn is_little(merged: &KernelSpec, workgroups: [usize; 3], tuning: NextTuning, shared_memory_bytes: usize) -> bool {
    let (next, held, shared_bytes, adding) = match merged {
        KernelSpec::MatMul(spec) if spec.output == CODES && spec.tile.columns * spec.tile.passes == 1 => {
            (&spec.next, spec.next_groups_per_lane(), spec.shared_bytes(), workgroups[1])
        }
        KernelSpec::DecodeAttention(spec) if spec.output == CODES => {
            (&spec.next, spec.next_groups_per_lane(), spec.shared_bytes(), workgroups[0])
        }
        _ => return false,
    };
    let added = next.as_ref().map_or(0, |next| next.layout.rows) * adding;
    added <= tuning.most_added && held <= tuning.most_groups && shared_bytes <= shared_memory_bytes
}

fn users(steps: &[Step], operand: Operand) -> Vec<usize> {
    (0..steps.len()).filter(|&at| steps[at].operands.contains(&operand)).collect()
}

fn by_role(step: &Step) -> BTreeMap<Role, Operand> {
    step.spec.bindings().iter().map(|binding| binding.role).zip(step.operands.iter().copied()).collect()
}

/// Gives a step another kernel, whose new roles have these operands.
fn rebind(step: &mut Step, spec: KernelSpec, new: &[(Role, Operand)]) {
    let mut operands = by_role(step);
    operands.extend(new.iter().copied());
    step.spec = spec;
    step.operands = step.spec.bindings().iter().map(|binding| operands[&binding.role]).collect();
}
