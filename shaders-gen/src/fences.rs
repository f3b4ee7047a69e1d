//! Fences: what one lane says to other workgroups, for all of its own.
//!
//! naga's `storageBarrier` is a fence of every lane for the whole device, the dearest there is. WGSL has none of one lane alone,
//! and kernels have no use for `textureBarrier`, so that is its name here. In a module that has one,
//!
//! - `textureBarrier()` is OpMemoryBarrier: what was written before in this workgroup is there for all workgroups, and what
//!   others made so is there for it;
//! - `storageBarrier()` is a barrier of the workgroup, of its memory and of buffers: behind it all lanes see what the lane
//!   with the fence saw, and before it, that lane speaks for all.
//!
//! Such a module has the Vulkan memory model (`memory_model`). In the plain one a fence orders what is coherent, and the rest may come from
//! a cache that nothing empties: on an H200 dispatches of a chain then read activations of the layer before.

use rspirv::dr::{Instruction, Module, Operand};
use rspirv::spirv::{MemorySemantics, Op, Scope, Word};

use crate::memory_model;
use crate::mend::{constant, instructions, unsigned};

/// The module with fences where it asks for them.
pub fn mend(module: &mut Module) {
    let semantics_of = |module: &Module, id: Word| {
        let constant = module.types_global_values.iter().find(|one| one.result_id == Some(id));
        match constant.and_then(|one| one.operands.first()) {
            Some(Operand::LiteralBit32(bits)) => MemorySemantics::from_bits_truncate(*bits),
            _ => MemorySemantics::empty(),
        }
    };
    let all = module.all_inst_iter().filter(|one| one.class.opcode == Op::ControlBarrier);
    let semantics: Vec<MemorySemantics> = all
        .map(|one| one.operands[2].id_ref_any().map_or(MemorySemantics::empty(), |id| semantics_of(module, id)))
        .collect();
    if !semantics.iter().any(|one| one.contains(MemorySemantics::IMAGE_MEMORY)) {
        return;
    }
    memory_model::ask_for(module);
    let kind = unsigned(module);
    let moves = MemorySemantics::ACQUIRE_RELEASE | MemorySemantics::UNIFORM_MEMORY;
    let device = constant(module, kind, Scope::Device as u32);
    let workgroup = constant(module, kind, Scope::Workgroup as u32);
    let of_buffers = constant(module, kind, moves.bits());
    let of_both = constant(module, kind, (moves | MemorySemantics::WORKGROUP_MEMORY).bits());
    let barriers = instructions(module).filter(|one| one.class.opcode == Op::ControlBarrier);
    for (barrier, semantics) in barriers.zip(semantics) {
        if semantics.contains(MemorySemantics::IMAGE_MEMORY) {
            let operands = vec![Operand::IdScope(device), Operand::IdMemorySemantics(of_buffers)];
            *barrier = Instruction::new(Op::MemoryBarrier, None, None, operands);
        } else if semantics.contains(MemorySemantics::UNIFORM_MEMORY) {
            barrier.operands[1] = Operand::IdScope(workgroup);
            barrier.operands[2] = Operand::IdMemorySemantics(of_both);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check, target, wgsl};

    #[test]
    fn one_lane_speaks_for_its_workgroup() {
        let source = "@group(0) @binding(0) var<storage, read_write> words: array<atomic<u32>, 2>;
            @compute @workgroup_size(64) fn main(@builtin(local_invocation_index) lane: u32) {
                storageBarrier();
                if (lane == 0u) { textureBarrier(); atomicAdd(&words[0], 1u); }
            }";
        let target = target::by_name("generic").expect("a preset");
        let mut module = check::parse(&wgsl::compile(source, &target).unwrap()).unwrap();
        mend(&mut module);
        let count = |op| module.all_inst_iter().filter(|one| one.class.opcode == op).count();
        assert_eq!((count(Op::MemoryBarrier), count(Op::ControlBarrier)), (1, 1));
    }

    #[test]
    fn what_workgroups_tell_each_other_is_no_lanes_own() {
        let source = "@group(0) @binding(0) @coherent var<storage, read_write> told: array<u32, 64>;
            @group(0) @binding(1) var<storage, read> own: array<u32, 64>;
            @compute @workgroup_size(64) fn main(@builtin(local_invocation_index) lane: u32) {
                told[lane] += own[lane];
                if (lane == 0u) { textureBarrier(); }
            }";
        let target = target::by_name("nvidia").expect("a preset");
        let mut module = check::parse(&wgsl::compile(source, &target).unwrap()).unwrap();
        mend(&mut module);
        memory_model::mend(&mut module);
        let model = module.memory_model.as_ref().expect("a memory model");
        assert_eq!(model.operands[1], Operand::MemoryModel(rspirv::spirv::MemoryModel::Vulkan));
        assert!(check::capabilities(&module).contains(&rspirv::spirv::Capability::VulkanMemoryModel));
        let shared = Operand::MemoryAccess(rspirv::spirv::MemoryAccess::NON_PRIVATE_POINTER);
        let count = |op, is_shared: bool| {
            let all = module.all_inst_iter().filter(|one| one.class.opcode == op);
            all.filter(|one| one.operands.contains(&shared) == is_shared).count()
        };
        assert_eq!((count(Op::Store, true), count(Op::Store, false)), (1, 0));
        assert_eq!((count(Op::Load, true), count(Op::Load, false) >= 1), (1, true));
        let coherent = Operand::Decoration(rspirv::spirv::Decoration::Coherent);
        assert!(module.annotations.iter().all(|one| !one.operands.contains(&coherent)));
    }
}
