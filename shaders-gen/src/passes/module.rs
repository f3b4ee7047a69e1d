//! Shared functions of the passes: new ids, types and constants, and iteration over instructions.

use std::collections::BTreeSet;

use rspirv::dr::{Instruction, Module, ModuleHeader, Operand};
use rspirv::spirv::{Op, StorageClass, Word};

/// Types of pointers into workgroup memory.
pub(super) fn workgroup_pointers(module: &Module) -> impl Iterator<Item = &Instruction> {
    let workgroup = Operand::StorageClass(StorageClass::Workgroup);
    let types = module.types_global_values.iter().filter(|one| one.class.opcode == Op::TypePointer);
    types.filter(move |one| one.operands[0] == workgroup)
}

/// Instructions of all functions.
pub(super) fn instructions(module: &mut Module) -> impl Iterator<Item = &mut Instruction> {
    let blocks = module.functions.iter_mut().flat_map(|function| &mut function.blocks);
    blocks.flat_map(|block| &mut block.instructions)
}

/// An unused id. Takes only the header, so that the caller can hold references into the module.
pub(super) fn new_id(header: &mut Option<ModuleHeader>) -> Word {
    let header = header.as_mut().expect("a module that was parsed has a header");
    header.bound += 1;
    header.bound - 1
}

/// The constant of type u32 with this value, declared if there is none.
pub(super) fn u32_constant(module: &mut Module, value: u32) -> Word {
    let kind = declared_type(module, Op::TypeInt, vec![Operand::LiteralBit32(32), Operand::LiteralBit32(0)]);
    let operands = vec![Operand::LiteralBit32(value)];
    let is_same = |one: &&Instruction| {
        one.class.opcode == Op::Constant && one.result_type == Some(kind) && one.operands == operands
    };
    if let Some(id) = module.types_global_values.iter().find(is_same).and_then(|one| one.result_id) {
        return id;
    }
    let id = new_id(&mut module.header);
    module.types_global_values.push(Instruction::new(Op::Constant, Some(kind), Some(id), operands));
    id
}

/// The declared type with this opcode and these operands. SPIR-V forbids two declarations of one type, so a new one is added
/// only where there is none.
pub(super) fn declared_type(module: &mut Module, opcode: Op, operands: Vec<Operand>) -> Word {
    let found = module.types_global_values.iter().find(|one| one.class.opcode == opcode && one.operands == operands);
    if let Some(id) = found.and_then(|one| one.result_id) {
        return id;
    }
    let id = new_id(&mut module.header);
    module.types_global_values.push(Instruction::new(opcode, None, Some(id), operands));
    id
}

/// Whether an instruction's first operand is one of these pointers.
pub(super) fn points_to(one: &Instruction, pointers: &BTreeSet<Word>) -> bool {
    one.operands.first().and_then(Operand::id_ref_any).is_some_and(|pointer| pointers.contains(&pointer))
}
