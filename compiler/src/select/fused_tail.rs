//! Which kernels of a decode step do the matmul behind them, too (`unicorn_kernels::fused_tail`).
//!
//! ```text
//! before: zeroes the sums     maker + its next matmul: add to them     …     reader: a norm that begins with them
//! ```
//!
//! A norm by itself zeroes nothing: where norms are not folded into matmuls, gate and up do without down.

use std::collections::BTreeMap;

use unicorn_kernels::fused_tail::FusedTailSpec;
use unicorn_kernels::{ActivationFormat, KernelSpec, Precision, Role};
use unicorn_spirv::Target;
use unicorn_spirv::target::FusedTailTuning;

use super::{KernelDispatch, Operand};
use crate::graph::ValueId;

/// What a matmul reads whose maker can do it.
const CODES: ActivationFormat = ActivationFormat::Quantized(Precision::Int8);

/// Takes every matmul out of the programs of one row that the dispatch before it can do, on targets whose kernels do.
pub fn merge(dispatches: &mut Vec<KernelDispatch>, target: &Target) {
    let Some(tuning) = target.fused_tail else { return };
    let mut maker = 1;
    while maker + 1 < dispatches.len() {
        if let Some(merger) = Merger::of(dispatches, maker, tuning, target.shared_memory_bytes) {
            merger.apply(dispatches);
        }
        maker += 1;
    }
}

/// A dispatch, and the matmul behind it that becomes a part of it.
struct Merger {
    maker: usize,
    reader: usize,
    weights: Operand,
    /// The matmul's result.
    sums: ValueId,
    /// Kernels of the dispatch before, of the maker and of the reader as they become.
    specs: [KernelSpec; 3],
}

impl Merger {
    fn of(
        dispatches: &[KernelDispatch],
        maker: usize,
        tuning: FusedTailTuning,
        shared_memory_bytes: usize,
    ) -> Option<Merger> {
        let next = next_spec(&dispatches[maker + 1])?;
        let (made, of_matmul) = (by_role(&dispatches[maker]).remove(&Role::Encoded)?, by_role(&dispatches[maker + 1]));
        let Operand::Value(sums) = of_matmul[&Role::Output] else { return None };
        // Parts of a matrix that was cut all write there, and so more dispatches use it.
        let readers = users(dispatches, Operand::Value(sums));
        let reader = *readers.last()?;
        let is_between_them = users(dispatches, made) == [maker, maker + 1] && readers == [maker + 1, reader];
        let is_normed = by_role(&dispatches[reader]).get(&Role::InputQuads) == Some(&Operand::Value(sums));
        let clearing = dispatches[maker - 1].spec.clearing(next.layout.rows.next_multiple_of(4))?;
        let reading = dispatches[reader].spec.reading_fixed_sums()?;
        let mut merged = dispatches[maker].spec.with_fused_tail(next)?;
        if let KernelSpec::DecodeAttention(spec) = &mut merged {
            spec.words_ahead = tuning.words_ahead;
        }
        let fits = is_little(&merged, dispatches[maker].workgroups, tuning, shared_memory_bytes);
        (is_between_them && is_normed && fits).then_some(Merger {
            maker,
            reader,
            weights: of_matmul[&Role::Weights],
            sums,
            specs: [clearing, merged, reading],
        })
    }

    fn apply(self, dispatches: &mut Vec<KernelDispatch>) {
        let sums = Operand::Sums(self.sums);
        let [clearing, merged, reading] = self.specs;
        rebind(&mut dispatches[self.maker - 1], clearing, &[(Role::ClearedFixedSums, sums)]);
        rebind(&mut dispatches[self.maker], merged, &[(Role::TailWeights, self.weights), (Role::FixedSums, sums)]);
        rebind(&mut dispatches[self.reader], reading, &[(Role::InputFixedSums, sums)]);
        let matmul = dispatches.remove(self.maker + 1);
        let maker = &mut dispatches[self.maker];
        maker.weight_bytes += matmul.weight_bytes;
        let (_, name) = matmul.label.split_once('.').unwrap_or(("", &matmul.label));
        maker.label = format!("{}+{name}", maker.label);
    }
}

/// The dispatch's matmul as a next one, if it can be.
fn next_spec(dispatch: &KernelDispatch) -> Option<FusedTailSpec> {
    let KernelSpec::MatMul(spec) = &dispatch.spec else { return None };
    let is_plain = spec.prologue.is_none() && spec.act_mul.is_none() && spec.softcap.is_none() && !spec.bias;
    let is_of_the_row = spec.output_first == 0 && !spec.row_from_step;
    let formats = (spec.input, spec.output) == (CODES, ActivationFormat::F32);
    (is_plain && is_of_the_row && formats && FusedTailSpec::takes(&spec.layout))
        .then_some(FusedTailSpec { layout: spec.layout })
}

/// Whether a kernel with its next matmul, in so many workgroups, has lanes and room for it, and adds few parts. All splits of an
/// attention read the weights, one of each head adds.
fn is_little(merged: &KernelSpec, workgroups: [usize; 3], tuning: FusedTailTuning, shared_memory_bytes: usize) -> bool {
    let (next, held, shared_bytes, adding) = match merged {
        KernelSpec::MatMul(spec) if spec.output == CODES && spec.tile.tokens_per_lane * spec.tile.passes == 1 => {
            (&spec.fused_tail, spec.tail_groups_per_lane(), spec.shared_bytes(), workgroups[1])
        }
        KernelSpec::DecodeAttention(spec) if spec.output == CODES => {
            (&spec.fused_tail, spec.tail_groups_per_lane(), spec.shared_bytes(), workgroups[0])
        }
        _ => return false,
    };
    let added = next.as_ref().map_or(0, |next| next.layout.rows) * adding;
    added <= tuning.max_added && held <= tuning.max_groups && shared_bytes <= shared_memory_bytes
}

fn users(dispatches: &[KernelDispatch], operand: Operand) -> Vec<usize> {
    (0..dispatches.len()).filter(|&at| dispatches[at].operands.contains(&operand)).collect()
}

fn by_role(dispatch: &KernelDispatch) -> BTreeMap<Role, Operand> {
    dispatch.spec.bindings().iter().map(|binding| binding.role).zip(dispatch.operands.iter().copied()).collect()
}

/// Gives a dispatch another kernel, whose new roles have these operands.
fn rebind(dispatch: &mut KernelDispatch, spec: KernelSpec, new: &[(Role, Operand)]) {
    let mut operands = by_role(dispatch);
    operands.extend(new.iter().copied());
    dispatch.spec = spec;
    dispatch.operands = dispatch.spec.bindings().iter().map(|binding| operands[&binding.role]).collect();
}
