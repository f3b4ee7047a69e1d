//! Variables of cooperative matrices that start as zeros.

use std::collections::{BTreeMap, BTreeSet};

use rspirv::dr::{Instruction, Module, Operand};
use rspirv::spirv::{Op, Word};

use super::module::new_id;

/// Starts matrix variables by a store of zeros, and declares these zeros as composites, instead of OpConstantNull initializers: RADV
/// of Mesa 25.0 reads garbage from a matrix that is a constant null.
pub(crate) fn initialize_matrices(module: &mut Module) {
    let elements: BTreeMap<Word, Operand> = module
        .types_global_values
        .iter()
        .filter(|one| one.class.opcode == Op::TypeCooperativeMatrixKHR)
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
