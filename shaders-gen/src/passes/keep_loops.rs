//! Loops that the driver should not unroll.

use rspirv::dr::{Module, Operand};
use rspirv::spirv::{LoopControl, Op};

use super::module::instructions;

/// Sets DontUnroll on every loop, for targets with [`keeps_loops`](crate::Target::keeps_loops).
///
/// Unrolling trades executed instructions for fetched ones. A decode kernel runs for some microseconds and then not again until
/// the next layer, when its code has left the instruction caches: the shorter its code, the less it waits for instruction fetches.
/// Where unrolling pays, kernels are unrolled by their template.
pub(crate) fn keep_loops(module: &mut Module) {
    for merge in instructions(module).filter(|one| one.class.opcode == Op::LoopMerge) {
        merge.operands[2] = Operand::LoopControl(LoopControl::DONT_UNROLL);
    }
}
