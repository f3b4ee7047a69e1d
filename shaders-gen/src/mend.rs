//! What naga's words ask for in vain, taken away, and what WGSL cannot say, put in its place.
//!
//! - naga asks for f16 in buffers and in the interface wherever there is f16 at all. Our buffers are of 32-bit words.
//! - Arrays in workgroup memory have no layout that anybody could see, so none may be declared.
//! - WGSL has no bitcast between u32 and two f16. Kernels write `vec2<f16>(unpack2x16float(word))`, through f32 and back, or
//!   `pack2x16float(vec2<f32>(pair))`; here that becomes the one OpBitcast that it means.
//! - Fences of one lane are in `fences`.
//! - What kernels on matrix units need besides is in `matrices`, what the Vulkan memory model wants to be told in `memory_model`.

use std::collections::{BTreeMap, BTreeSet};

use rspirv::dr::{Instruction, Module, Operand};
use rspirv::spirv::{Capability, Decoration, GlslStd450Op, Op, StorageClass, Word};

use crate::matrices::new_id;
use crate::{fences, matrices, memory_model};
use unicorn_kernels::KernelSpec;

/// The same module, meaning what its kernel means.
pub fn mend(module: &mut Module, spec: &KernelSpec) {
    drop_half_storage(module);
    hide_workgroup_layout(module);
    bitcast_halves(module);
    fences::mend(module);
    matrices::mend(module, spec);
    memory_model::mend(module);
}

fn drop_half_storage(module: &mut Module) {
    let in_vain = [
        Capability::StorageBuffer16BitAccess,
        Capability::UniformAndStorageBuffer16BitAccess,
        Capability::StorageInputOutput16,
    ];
    let is_one = |one: &Instruction| in_vain.iter().any(|&it| one.operands[0] == Operand::Capability(it));
    module.capabilities.retain(|one| !is_one(one));
    let extension = Operand::LiteralString("SPV_KHR_16bit_storage".into());
    module.extensions.retain(|one| one.operands[0] != extension);
}

fn hide_workgroup_layout(module: &mut Module) {
    let hidden: Vec<Operand> = workgroup_pointers(module).map(|one| one.operands[1].clone()).collect();
    let stride = Operand::Decoration(Decoration::ArrayStride);
    module.annotations.retain(|one| one.operands.get(1) != Some(&stride) || !hidden.contains(&one.operands[0]));
}

fn bitcast_halves(module: &mut Module) {
    let extended = |one: &Instruction, which: GlslStd450Op| {
        one.class.opcode == Op::ExtInst && one.operands[1] == Operand::LiteralExtInstInteger(which as Word)
    };
    let is_unpack = |one: &Instruction| extended(one, GlslStd450Op::UnpackHalf2x16);
    let operand_of = |wanted: &dyn Fn(&Instruction) -> bool, operand: usize| -> BTreeMap<Word, Operand> {
        let found = module.all_inst_iter().filter(|one| wanted(one));
        found.filter_map(|one| Some((one.result_id?, one.operands[operand].clone()))).collect()
    };
    let words_of_unpacked = operand_of(&is_unpack, 2);
    let halves_of_widened = operand_of(&|one| one.class.opcode == Op::FConvert, 0);
    for one in instructions(module) {
        let meant = if one.class.opcode == Op::FConvert {
            one.operands[0].id_ref_any().and_then(|id| words_of_unpacked.get(&id))
        } else if extended(one, GlslStd450Op::PackHalf2x16) {
            one.operands[2].id_ref_any().and_then(|id| halves_of_widened.get(&id))
        } else {
            None
        };
        if let Some(operand) = meant {
            *one = Instruction::new(Op::Bitcast, one.result_type, one.result_id, vec![operand.clone()]);
        }
    }
    drop_unused(module, |one| is_unpack(one) || one.class.opcode == Op::FConvert);
}

/// Takes away such instructions as nobody reads.
pub(crate) fn drop_unused(module: &mut Module, pure: impl Fn(&Instruction) -> bool) {
    let used: BTreeSet<Word> =
        module.all_inst_iter().flat_map(|one| &one.operands).filter_map(Operand::id_ref_any).collect();
    for block in module.functions.iter_mut().flat_map(|function| &mut function.blocks) {
        block.instructions.retain(|one| !pure(one) || one.result_id.is_some_and(|id| used.contains(&id)));
    }
}

/// Types of pointers into workgroup memory.
pub(crate) fn workgroup_pointers(module: &Module) -> impl Iterator<Item = &Instruction> {
    let workgroup = Operand::StorageClass(StorageClass::Workgroup);
    let types = module.types_global_values.iter().filter(|one| one.class.opcode == Op::TypePointer);
    types.filter(move |one| one.operands[0] == workgroup)
}

/// Instructions of all functions.
pub(crate) fn instructions(module: &mut Module) -> impl Iterator<Item = &mut Instruction> {
    let blocks = module.functions.iter_mut().flat_map(|function| &mut function.blocks);
    blocks.flat_map(|block| &mut block.instructions)
}

/// The type u32: every module's workgroup number has it.
pub(crate) fn unsigned(module: &Module) -> Word {
    let is_unsigned = |one: &&Instruction| {
        one.class.opcode == Op::TypeInt && one.operands == [Operand::LiteralBit32(32), Operand::LiteralBit32(0)]
    };
    let found = module.types_global_values.iter().find(is_unsigned).and_then(|one| one.result_id);
    found.expect("a kernel knows its workgroup's number")
}

/// A new constant of that type.
pub(crate) fn constant(module: &mut Module, kind: Word, value: u32) -> Word {
    let id = new_id(&mut module.header);
    let operands = vec![Operand::LiteralBit32(value)];
    module.types_global_values.push(Instruction::new(Op::Constant, Some(kind), Some(id), operands));
    id
}

/// Whether an instruction's pointer is one of these.
pub(crate) fn points_to(one: &Instruction, pointers: &BTreeSet<Word>) -> bool {
    one.operands.first().and_then(Operand::id_ref_any).is_some_and(|pointer| pointers.contains(&pointer))
}
