//! Loops that stay loops.
//!
//! A driver that unrolls a loop trades instructions that are executed for instructions that are fetched. A kernel of a step runs for
//! some microseconds and then not again before a layer later, when its code has left the caches that are near: what it does not have, it
//! does not wait for. Where unrolling pays, kernels write it out themselves.

use rspirv::dr::{Module, Operand};
use rspirv::spirv::{LoopControl, Op};

use crate::mend::instructions;

/// Asks the driver to unroll nothing.
pub fn keep(module: &mut Module) {
    for merge in instructions(module).filter(|one| one.class.opcode == Op::LoopMerge) {
        merge.operands[2] = Operand::LoopControl(LoopControl::DONT_UNROLL);
    }
}
