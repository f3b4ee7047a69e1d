//! What naga's words lack for kernels on matrix units, added to them; what they ask for in vain, taken away.
//!
//! - naga asks for f16 in buffers and in the interface wherever there is f16 at all. Our buffers are of 32-bit words.
//! - WGSL has no bitcast from u32 to two f16. Kernels write `vec2<f16>(unpack2x16float(word))`, through f32 and back; here
//!   that becomes the one OpBitcast that it means.
//! - Under the Vulkan memory model, which cooperative matrices ask for, an access is private to its lane unless it says
//!   otherwise, and a barrier moves nothing unless it says so. Accesses to workgroup memory and barriers say so here.
//! - Arrays in workgroup memory have no layout that anybody could see, so none may be declared.

use std::collections::{BTreeMap, BTreeSet};

use rspirv::dr::{Instruction, Module, Operand};
use rspirv::spirv::{
    Capability, Decoration, GlslStd450Op, MemoryAccess, MemoryModel, MemorySemantics, Op, StorageClass, Word,
};

/// Leaves modules alone that have neither.
pub fn mend(module: &mut Module) {
    drop_half_storage(module);
    bitcast_halves(module);
    let model = module.memory_model.as_ref().and_then(|model| model.operands.get(1));
    if model == Some(&Operand::MemoryModel(MemoryModel::Vulkan)) {
        hide_workgroup_layout(module);
        share_workgroup_memory(module);
        fill_barriers(module);
    }
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

fn bitcast_halves(module: &mut Module) {
    let is_unpack = |one: &Instruction| {
        one.operands.get(1) == Some(&Operand::LiteralExtInstInteger(GlslStd450Op::UnpackHalf2x16 as Word))
            && one.class.opcode == Op::ExtInst
    };
    let unpacked: BTreeMap<Word, Operand> = module
        .all_inst_iter()
        .filter(|one| is_unpack(one))
        .filter_map(|one| Some((one.result_id?, one.operands[2].clone())))
        .collect();
    for one in instructions(module).filter(|one| one.class.opcode == Op::FConvert) {
        if let Some(word) = one.operands[0].id_ref_any().and_then(|id| unpacked.get(&id)) {
            *one = Instruction::new(Op::Bitcast, one.result_type, one.result_id, vec![word.clone()]);
        }
    }
    let used: BTreeSet<Word> =
        module.all_inst_iter().flat_map(|one| &one.operands).filter_map(Operand::id_ref_any).collect();
    for block in module.functions.iter_mut().flat_map(|function| &mut function.blocks) {
        block.instructions.retain(|one| !is_unpack(one) || one.result_id.is_some_and(|id| used.contains(&id)));
    }
}

/// Types of pointers into workgroup memory.
fn workgroup_pointers(module: &Module) -> impl Iterator<Item = &Instruction> {
    let workgroup = Operand::StorageClass(StorageClass::Workgroup);
    let types = module.types_global_values.iter().filter(|one| one.class.opcode == Op::TypePointer);
    types.filter(move |one| one.operands[0] == workgroup)
}

fn hide_workgroup_layout(module: &mut Module) {
    let hidden: Vec<Operand> = workgroup_pointers(module).map(|one| one.operands[1].clone()).collect();
    let stride = Operand::Decoration(Decoration::ArrayStride);
    module.annotations.retain(|one| one.operands.get(1) != Some(&stride) || !hidden.contains(&one.operands[0]));
}

fn share_workgroup_memory(module: &mut Module) {
    let pointer_types: BTreeSet<Word> = workgroup_pointers(module).filter_map(|one| one.result_id).collect();
    let pointers: BTreeSet<Word> = module
        .all_inst_iter()
        .filter(|one| one.result_type.is_some_and(|kind| pointer_types.contains(&kind)))
        .filter_map(|one| one.result_id)
        .collect();
    for one in instructions(module) {
        let accesses = matches!(
            one.class.opcode,
            Op::Load | Op::Store | Op::CooperativeMatrixLoadKHR | Op::CooperativeMatrixStoreKHR
        );
        if accesses && one.operands[0].id_ref_any().is_some_and(|pointer| pointers.contains(&pointer)) {
            one.operands.push(Operand::MemoryAccess(MemoryAccess::NON_PRIVATE_POINTER));
        }
    }
}

fn fill_barriers(module: &mut Module) {
    let moves = MemorySemantics::WORKGROUP_MEMORY | MemorySemantics::MAKE_AVAILABLE | MemorySemantics::MAKE_VISIBLE;
    let constants: BTreeMap<Word, Instruction> = module
        .types_global_values
        .iter()
        .filter(|one| one.class.opcode == Op::Constant)
        .filter_map(|one| Some((one.result_id?, one.clone())))
        .collect();
    let mut next = module.header.as_ref().map_or(0, |header| header.bound);
    let mut filled: BTreeMap<Word, Instruction> = BTreeMap::new();
    for barrier in instructions(module).filter(|one| one.class.opcode == Op::ControlBarrier) {
        let Operand::IdMemorySemantics(semantics) = barrier.operands[2] else { continue };
        let constant = filled.entry(semantics).or_insert_with(|| {
            let mut constant = constants[&semantics].clone();
            constant.result_id = Some(next);
            next += 1;
            for operand in &mut constant.operands {
                if let Operand::LiteralBit32(bits) = operand {
                    *bits |= moves.bits();
                }
            }
            constant
        });
        barrier.operands[2] = Operand::IdMemorySemantics(constant.result_id.expect("set above"));
    }
    module.types_global_values.extend(filled.into_values());
    if let Some(header) = &mut module.header {
        header.bound = next;
    }
}

fn instructions(module: &mut Module) -> impl Iterator<Item = &mut Instruction> {
    let blocks = module.functions.iter_mut().flat_map(|function| &mut function.blocks);
    blocks.flat_map(|block| &mut block.instructions)
}
