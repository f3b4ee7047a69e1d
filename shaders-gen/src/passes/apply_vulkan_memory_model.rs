//! The Vulkan memory model, which cooperative matrices and device fences require.

use std::collections::{BTreeMap, BTreeSet};

use rspirv::dr::{Instruction, Module, Operand};
use rspirv::spirv::{
    AddressingModel, Capability, Decoration, MemoryAccess, MemoryModel, MemorySemantics, Op, Scope, Word,
};

use super::module::{instructions, new_id, points_to, u32_constant, workgroup_pointers};

/// Completes a module that declares the Vulkan memory model; one with the GLSL450 model is not changed.
///
/// - An access is private to its invocation unless it is NonPrivatePointer: accesses to workgroup memory and to `@coherent` buffers, and those
///   of whole matrices, get that operand, and the Coherent decoration, which this model lacks, is removed.
/// - A barrier makes writes available and visible only if its semantics include that: here every barrier's do.
/// - The Device scope needs a feature of its own; QueueFamily, the widest scope without one, includes every submitted
///   workgroup, because all run on one queue.
pub(crate) fn apply_vulkan_memory_model(module: &mut Module) {
    if has_vulkan_memory_model(module) {
        mark_shared_accesses(module);
        complete_barriers(module);
        narrow_scopes(module);
    }
}

/// Declares the Vulkan memory model, if the module has another.
pub(super) fn request_vulkan_memory_model(module: &mut Module) {
    if !has_vulkan_memory_model(module) {
        let operands =
            vec![Operand::AddressingModel(AddressingModel::Logical), Operand::MemoryModel(MemoryModel::Vulkan)];
        module.memory_model = Some(Instruction::new(Op::MemoryModel, None, None, operands));
        let capability = vec![Operand::Capability(Capability::VulkanMemoryModel)];
        module.capabilities.push(Instruction::new(Op::Capability, None, None, capability));
        let extension = vec![Operand::LiteralString("SPV_KHR_vulkan_memory_model".into())];
        module.extensions.push(Instruction::new(Op::Extension, None, None, extension));
    }
}

fn has_vulkan_memory_model(module: &Module) -> bool {
    let model = module.memory_model.as_ref().and_then(|model| model.operands.get(1));
    model == Some(&Operand::MemoryModel(MemoryModel::Vulkan))
}

fn mark_shared_accesses(module: &mut Module) {
    let pointer_types: BTreeSet<Word> = workgroup_pointers(module).filter_map(|one| one.result_id).collect();
    let coherent = Operand::Decoration(Decoration::Coherent);
    let (shared, others): (Vec<Instruction>, Vec<Instruction>) =
        std::mem::take(&mut module.annotations).into_iter().partition(|one| one.operands.get(1) == Some(&coherent));
    module.annotations = others;
    let mut pointers: BTreeSet<Word> = shared.iter().filter_map(|one| one.operands[0].id_ref_any()).collect();
    // A pointer comes after the one that it is derived from.
    for one in module.all_inst_iter() {
        let derived = one.class.opcode == Op::AccessChain && points_to(one, &pointers);
        if derived || one.result_type.is_some_and(|kind| pointer_types.contains(&kind)) {
            pointers.extend(one.result_id);
        }
    }
    for one in instructions(module) {
        let is_shared = match one.class.opcode {
            Op::Load | Op::Store => points_to(one, &pointers),
            // A matrix is that of a subgroup: which lane accesses which element is not specified.
            Op::CooperativeMatrixLoadKHR | Op::CooperativeMatrixStoreKHR => true,
            _ => false,
        };
        if is_shared {
            one.operands.push(Operand::MemoryAccess(MemoryAccess::NON_PRIVATE_POINTER));
        }
    }
}

fn complete_barriers(module: &mut Module) {
    let moves = MemorySemantics::MAKE_AVAILABLE | MemorySemantics::MAKE_VISIBLE;
    let constants: BTreeMap<Word, Instruction> = module
        .types_global_values
        .iter()
        .filter(|one| one.class.opcode == Op::Constant)
        .filter_map(|one| Some((one.result_id?, one.clone())))
        .collect();
    let mut completed: BTreeMap<(Word, u32), Instruction> = BTreeMap::new();
    let mut header = module.header.take();
    for barrier in instructions(module) {
        let (at, moves) = match barrier.class.opcode {
            Op::ControlBarrier => (2, moves | MemorySemantics::WORKGROUP_MEMORY),
            Op::MemoryBarrier => (1, moves),
            _ => continue,
        };
        let Operand::IdMemorySemantics(semantics) = barrier.operands[at] else { continue };
        let constant = completed.entry((semantics, moves.bits())).or_insert_with(|| {
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
    module.types_global_values.extend(completed.into_values());
}

/// Replaces the Device scope of fences and atomics by QueueFamily.
fn narrow_scopes(module: &mut Module) {
    let device: BTreeSet<Word> = module
        .types_global_values
        .iter()
        .filter(|one| one.operands == [Operand::LiteralBit32(Scope::Device as u32)])
        .filter_map(|one| one.result_id)
        .collect();
    let is_device = |operand: &Operand| matches!(operand, Operand::IdScope(id) if device.contains(id));
    if !module.all_inst_iter().any(|one| one.operands.iter().any(is_device)) {
        return;
    }
    let queue = u32_constant(module, Scope::QueueFamily as u32);
    for operand in instructions(module).flat_map(|one| &mut one.operands).filter(|operand| is_device(operand)) {
        *operand = Operand::IdScope(queue);
    }
}
