//! Which kernels of a decode step also compute the matmul behind them (`unicorn_kernels::fused_tail`).
//!
//! ```text
//! before: zeroes the sums     producer + its next matmul: add to them     …     reader: a norm that begins with them
//! ```
//!
//! A norm with a dispatch of its own zeroes nothing: where norms are not folded into matmuls, gate and up have no fused down.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use unicorn_kernels::fused_tail::FusedTailSpec;
use unicorn_kernels::{ActivationFormat, KernelSpec, Precision, Role};
use unicorn_spirv::Target;
use unicorn_spirv::target::FusedTailTuning;

use super::{KernelDispatch, Operand};
use crate::graph::ValueId;

/// The input of a matmul that its producer can compute.
const CODES: ActivationFormat = ActivationFormat::Quantized(Precision::Int8);

/// The dispatches of a program of one row, without each matmul that the dispatch before it can compute on this target.
pub fn merge(dispatches: Vec<KernelDispatch>, target: &Target) -> Vec<KernelDispatch> {
    let Some(tuning) = target.fused_tail else { return dispatches };
    let users = users(&dispatches);
    let mut merged: Vec<KernelDispatch> = Vec::with_capacity(dispatches.len());
    let mut rest = VecDeque::from(dispatches);
    while !rest.is_empty() {
        if let Some(before) = merged.last_mut()
            && let Some(merger) = Merger::of(before, rest.make_contiguous(), &users, tuning, target.shared_memory_bytes)
        {
            merger.apply(before, &mut rest);
        }
        merged.extend(rest.pop_front());
    }
    merged
}

/// A dispatch, and the matmul behind it that becomes a part of it: the first two of the remaining dispatches.
struct Merger {
    /// Index, among the remaining dispatches, of the reader of the result.
    reader: usize,
    weights: Operand,
    /// The matmul's result.
    sums: ValueId,
    /// The new kernels of the dispatch before, of the producer and of the reader.
    specs: [KernelSpec; 3],
}

impl Merger {
    /// `rest` are the dispatches behind `before`; `users` counts those of each operand in the whole program.
    fn of(
        before: &KernelDispatch,
        rest: &[KernelDispatch],
        users: &BTreeMap<Operand, usize>,
        tuning: FusedTailTuning,
        shared_memory_bytes: usize,
    ) -> Option<Merger> {
        let [producer, matmul, behind @ ..] = rest else { return None };
        let next = next_spec(matmul)?;
        let (made, of_matmul) = (by_role(producer).remove(&Role::Encoded)?, by_role(matmul));
        let Operand::Value(sums) = of_matmul[&Role::Output] else { return None };
        // All parts of a cut matrix write there, so that more dispatches use it.
        let is_between_them = users[&made] == 2 && matmul.operands.contains(&made) && users[&Operand::Value(sums)] == 2;
        if !is_between_them {
            return None;
        }
        let reader = behind.iter().position(|dispatch| dispatch.operands.contains(&Operand::Value(sums)))?;
        let is_normed = by_role(&behind[reader]).get(&Role::InputQuads) == Some(&Operand::Value(sums));
        let clearing = before.spec.clearing(next.layout.rows.next_multiple_of(4))?;
        let reading = behind[reader].spec.reading_fixed_sums()?;
        let mut merged = producer.spec.with_fused_tail(next)?;
        if let KernelSpec::DecodeAttention(spec) = &mut merged {
            spec.words_ahead = tuning.words_ahead;
        }
        let fits = is_little(&merged, producer.workgroups, tuning, shared_memory_bytes);
        (is_normed && fits).then_some(Merger {
            reader: reader + 2,
            weights: of_matmul[&Role::Weights],
            sums,
            specs: [clearing, merged, reading],
        })
    }

    fn apply(self, before: &mut KernelDispatch, rest: &mut VecDeque<KernelDispatch>) {
        let sums = Operand::Sums(self.sums);
        let [clearing, merged, reading] = self.specs;
        rebind(before, clearing, &[(Role::ClearedFixedSums, sums)]);
        rebind(&mut rest[0], merged, &[(Role::TailWeights, self.weights), (Role::FixedSums, sums)]);
        rebind(&mut rest[self.reader], reading, &[(Role::InputFixedSums, sums)]);
        let matmul = rest.remove(1).expect("a matmul is behind its producer");
        let producer = &mut rest[0];
        producer.weight_bytes += matmul.weight_bytes;
        let (_, name) = matmul.label.split_once('.').unwrap_or(("", &matmul.label));
        producer.label = format!("{}+{name}", producer.label);
    }
}

/// The dispatch's matmul as the next one of another kernel, if that is possible.
fn next_spec(dispatch: &KernelDispatch) -> Option<FusedTailSpec> {
    let KernelSpec::MatMul(spec) = &dispatch.spec else { return None };
    let is_plain = spec.prologue.is_none() && spec.act_mul.is_none() && spec.softcap.is_none() && !spec.bias;
    let is_of_the_row = spec.output_first == 0 && !spec.row_from_step && spec.experts.is_none();
    let formats = (spec.input, spec.output) == (CODES, ActivationFormat::F32);
    (is_plain && is_of_the_row && formats && FusedTailSpec::takes(&spec.layout))
        .then_some(FusedTailSpec { layout: spec.layout })
}

/// Whether a kernel, in `workgroups` workgroups, has lanes and memory for its next matmul and adds few parts. All splits of an
/// attention read the weights; one of each head adds.
fn is_little(merged: &KernelSpec, workgroups: [usize; 3], tuning: FusedTailTuning, shared_memory_bytes: usize) -> bool {
    let (tail, groups, shared_bytes, adding) = match merged {
        KernelSpec::MatMul(spec) if spec.output == CODES && spec.tile.tokens_per_lane * spec.tile.passes == 1 => {
            (&spec.fused_tail, spec.tail_groups_per_lane(), spec.shared_bytes(), workgroups[1])
        }
        KernelSpec::DecodeAttention(spec) if spec.output == CODES => {
            (&spec.fused_tail, spec.tail_groups_per_lane(), spec.shared_bytes(), workgroups[0])
        }
        _ => return false,
    };
    let added = tail.as_ref().map_or(0, |tail| tail.layout.rows) * adding;
    added <= tuning.max_added && groups <= tuning.max_groups && shared_bytes <= shared_memory_bytes
}

/// How many dispatches use each operand.
fn users(dispatches: &[KernelDispatch]) -> BTreeMap<Operand, usize> {
    let mut users = BTreeMap::new();
    for dispatch in dispatches {
        for operand in dispatch.operands.iter().copied().collect::<BTreeSet<Operand>>() {
            *users.entry(operand).or_insert(0) += 1;
        }
    }
    users
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
