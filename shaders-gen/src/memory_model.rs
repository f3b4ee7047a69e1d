//! What the Vulkan memory model, which cooperative matrices and fences ask for, wants to be told.
//!
//! - An access is private to its lane unless it says otherwise: those to workgroup memory, and to buffers by which workgroups tell
//!   each other something (`@coherent`, a word that the model does not know), say so here.
//! - A barrier moves nothing unless it says so. Here all do.
//! - Its widest scope that needs no feature is the queue's, which is where all our workgroups are.

use std::collections::{BTreeMap, BTreeSet};

use rspirv::dr::{Instruction, Module, Operand};
use rspirv::spirv::{
    AddressingModel, Capability, Decoration, MemoryAccess, MemoryModel, MemorySemantics, Op, Scope, Word,
};

use crate::matrices::new_id;
use crate::mend::{constant, instructions, points_to, unsigned, workgroup_pointers};

/// Gives a module the Vulkan memory model, if it has another.
pub fn ask_for(module: &mut Module) {
    if !is_vulkan(module) {
        let operands =
            vec![Operand::AddressingModel(AddressingModel::Logical), Operand::MemoryModel(MemoryModel::Vulkan)];
        module.memory_model = Some(Instruction::new(Op::MemoryModel, None, None, operands));
        let capability = vec![Operand::Capability(Capability::VulkanMemoryModel)];
        module.capabilities.push(Instruction::new(Op::Capability, None, None, capability));
        let extension = vec![Operand::LiteralString("SPV_KHR_vulkan_memory_model".into())];
        module.extensions.push(Instruction::new(Op::Extension, None, None, extension));
    }
}

/// Leaves modules of the plain memory model alone.
pub fn mend(module: &mut Module) {
    if is_vulkan(module) {
        share_memory(module);
        fill_barriers(module);
        narrow_scopes(module);
    }
}

fn is_vulkan(module: &Module) -> bool {
    let model = module.memory_model.as_ref().and_then(|model| model.operands.get(1));
    model == Some(&Operand::MemoryModel(MemoryModel::Vulkan))
}

fn share_memory(module: &mut Module) {
    let pointer_types: BTreeSet<Word> = workgroup_pointers(module).filter_map(|one| one.result_id).collect();
    let coherent = Operand::Decoration(Decoration::Coherent);
    let (told, others) =
        std::mem::take(&mut module.annotations).into_iter().partition(|one| one.operands.get(1) == Some(&coherent));
    module.annotations = others;
    let told: Vec<Instruction> = told;
    let mut pointers: BTreeSet<Word> = told.iter().filter_map(|one| one.operands[0].id_ref_any()).collect();
    // A pointer comes after the one that it is derived from.
    for one in module.all_inst_iter() {
        let derived = one.class.opcode == Op::AccessChain && points_to(one, &pointers);
        if derived || one.result_type.is_some_and(|kind| pointer_types.contains(&kind)) {
            pointers.extend(one.result_id);
        }
    }
    for one in instructions(module) {
        let accesses = matches!(
            one.class.opcode,
            Op::Load | Op::Store | Op::CooperativeMatrixLoadKHR | Op::CooperativeMatrixStoreKHR
        );
        if accesses && points_to(one, &pointers) {
            one.operands.push(Operand::MemoryAccess(MemoryAccess::NON_PRIVATE_POINTER));
        }
    }
}

fn fill_barriers(module: &mut Module) {
    let moves = MemorySemantics::MAKE_AVAILABLE | MemorySemantics::MAKE_VISIBLE;
    let constants: BTreeMap<Word, Instruction> = module
        .types_global_values
        .iter()
        .filter(|one| one.class.opcode == Op::Constant)
        .filter_map(|one| Some((one.result_id?, one.clone())))
        .collect();
    let mut filled: BTreeMap<(Word, u32), Instruction> = BTreeMap::new();
    let mut header = module.header.take();
    for barrier in instructions(module) {
        let (at, moves) = match barrier.class.opcode {
            Op::ControlBarrier => (2, moves | MemorySemantics::WORKGROUP_MEMORY),
            Op::MemoryBarrier => (1, moves),
            _ => continue,
        };
        let Operand::IdMemorySemantics(semantics) = barrier.operands[at] else { continue };
        let constant = filled.entry((semantics, moves.bits())).or_insert_with(|| {
            let mut constant = constants[&semantics].clone();
            constant.result_id = Some(new_id(&mut header));
            for operand in &mut constant.operands {
                if let Operand::LiteralBit32(bits) = operand {
                    *bits |= moves.bits();
                }
            }
            constant
        });
        barrier.operands[at] = Operand::IdMemorySemantics(constant.result_id.expect("set above"));
    }
    module.header = header;
    module.types_global_values.extend(filled.into_values());
}

/// Fences and atomics of the device become those of the queue.
fn narrow_scopes(module: &mut Module) {
    let device: BTreeSet<Word> = module
        .types_global_values
        .iter()
        .filter(|one| one.operands == [Operand::LiteralBit32(Scope::Device as u32)])
        .filter_map(|one| one.result_id)
        .collect();
    let is_wide = |operand: &Operand| matches!(operand, Operand::IdScope(id) if device.contains(id));
    if !module.all_inst_iter().any(|one| one.operands.iter().any(is_wide)) {
        return;
    }
    let kind = unsigned(module);
    let queue = constant(module, kind, Scope::QueueFamily as u32);
    for operand in instructions(module).flat_map(|one| &mut one.operands).filter(|operand| is_wide(operand)) {
        *operand = Operand::IdScope(queue);
    }
}
