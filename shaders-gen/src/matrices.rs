//! Cooperative matrices in naga's words, mended.
//!
//! - A matrix has the element type of the memory that it is loaded from. Kernels keep f16 in words of 16 bytes, so that
//!   each is one access, and load matrices of u32; here these become the matrices of f16 that they mean.
//! - WGSL does not multiply two matrices element by element. Kernels that mean such a product write a difference, which
//!   none means otherwise; here it becomes the one OpFMul.
//! - A matrix of zeros as a constant null is garbage to RADV of Mesa 25.0: variables start by a store of zeros instead.
//! - Weights that lanes have in registers: see `fragments`.

use std::collections::{BTreeMap, BTreeSet};

use rspirv::dr::{Instruction, Module, ModuleHeader, Operand};
use rspirv::spirv::{Capability, Op, Word};

use crate::mend::instructions;
use crate::{check, fragments};
use unicorn_kernels::KernelSpec;

/// Leaves modules without matrices alone.
pub fn mend(module: &mut Module, spec: &KernelSpec) {
    if check::capabilities(module).contains(&Capability::CooperativeMatrixKHR) {
        retype_matrices(module);
        multiply_elements(module);
        if spec.lanes_hold_fragments() {
            fragments::from_registers(module);
        }
        store_zeros(module);
    }
}

fn retype_matrices(module: &mut Module) {
    let scalar = |module: &Module, opcode: Op, bits: u32| -> Option<Operand> {
        let mut types = module.types_global_values.iter().filter(|one| one.class.opcode == opcode);
        types.find(|one| one.operands[0] == Operand::LiteralBit32(bits))?.result_id.map(Operand::IdRef)
    };
    let (Some(word), Some(half)) = (scalar(module, Op::TypeInt, 32), scalar(module, Op::TypeFloat, 16)) else { return };
    for one in matrix_types(&mut module.types_global_values) {
        if one.operands[0] == word {
            one.operands[0] = half.clone();
        }
    }
}

fn multiply_elements(module: &mut Module) {
    let matrices: BTreeSet<Word> =
        matrix_types(&mut module.types_global_values).filter_map(|one| one.result_id).collect();
    for one in instructions(module) {
        if one.class.opcode == Op::FSub && one.result_type.is_some_and(|kind| matrices.contains(&kind)) {
            let operands = std::mem::take(&mut one.operands);
            *one = Instruction::new(Op::FMul, one.result_type, one.result_id, operands);
        }
    }
}

pub(crate) fn matrix_types(types: &mut [Instruction]) -> impl Iterator<Item = &mut Instruction> {
    types.iter_mut().filter(|one| one.class.opcode == Op::TypeCooperativeMatrixKHR)
}

fn store_zeros(module: &mut Module) {
    let elements: BTreeMap<Word, Operand> = matrix_types(&mut module.types_global_values)
        .filter_map(|one| Some((one.result_id?, one.operands[0].clone())))
        .collect();
    let is_zeros = |one: &Instruction| {
        one.class.opcode == Op::ConstantNull && one.result_type.is_some_and(|kind| elements.contains_key(&kind))
    };
    let zeros: BTreeSet<Word> =
        module.types_global_values.iter().filter(|one| is_zeros(one)).filter_map(|one| one.result_id).collect();
    let constants = std::mem::take(&mut module.types_global_values).into_iter().flat_map(|one| {
        let element = one.result_type.and_then(|kind| elements.get(&kind)).filter(|_| is_zeros(&one));
        let Some(element) = element.and_then(Operand::id_ref_any) else { return vec![one] };
        let zero = new_id(&mut module.header);
        let parts = vec![Operand::IdRef(zero)];
        vec![
            Instruction::new(Op::ConstantNull, Some(element), Some(zero), vec![]),
            Instruction::new(Op::ConstantComposite, one.result_type, one.result_id, parts),
        ]
    });
    module.types_global_values = constants.collect();
    for block in module.functions.iter_mut().flat_map(|function| &mut function.blocks) {
        let is_variable = |one: &Instruction| one.class.opcode == Op::Variable;
        let mut stores = Vec::new();
        for variable in block.instructions.iter_mut().take_while(|one| is_variable(one)) {
            let start = variable.operands.get(1).and_then(Operand::id_ref_any).filter(|id| zeros.contains(id));
            if let (Some(start), Some(variable_id)) = (start, variable.result_id) {
                variable.operands.truncate(1);
                let operands = vec![Operand::IdRef(variable_id), Operand::IdRef(start)];
                stores.push(Instruction::new(Op::Store, None, None, operands));
            }
        }
        let behind = block.instructions.iter().take_while(|one| is_variable(one)).count();
        block.instructions.splice(behind..behind, stores);
    }
}

/// An id that nobody has yet.
pub(crate) fn new_id(header: &mut Option<ModuleHeader>) -> Word {
    let header = header.as_mut().expect("a module that was parsed has a header");
    header.bound += 1;
    header.bound - 1
}
