//! What naga's words lack for kernels on matrix units, added to them; what they ask for in vain, taken away.
//!
//! - naga asks for f16 in buffers and in the interface wherever there is f16 at all. Our buffers are of 32-bit words.
//! - WGSL has no bitcast between u32 and two f16. Kernels write `vec2<f16>(unpack2x16float(word))`, through f32 and back, or
//!   `pack2x16float(vec2<f32>(pair))`; here that becomes the one OpBitcast that it means.
//! - A matrix has the element type of the memory that it is loaded from. Kernels keep f16 in words of 16 bytes, so that
//!   each is one access, and load matrices of u32; here these become the matrices of f16 that they mean.
//! - A matrix of zeros as a constant null is not understood by every driver: variables start by a store of zeros.
//! - Under the Vulkan memory model, which cooperative matrices ask for, an access is private to its lane unless it says
//!   otherwise, and a barrier moves nothing unless it says so. Accesses to workgroup memory and barriers say so here.
//! - Arrays in workgroup memory have no layout that anybody could see, so none may be declared.

use std::collections::{BTreeMap, BTreeSet};

use rspirv::dr::{Instruction, Module, ModuleHeader, Operand};
use rspirv::spirv::{
    Capability, Decoration, GlslStd450Op, MemoryAccess, MemoryModel, MemorySemantics, Op, StorageClass, Word,
};

/// Leaves modules alone that have neither.
pub fn mend(module: &mut Module) {
    drop_half_storage(module);
    bitcast_halves(module);
    let model = module.memory_model.as_ref().and_then(|model| model.operands.get(1));
    if model == Some(&Operand::MemoryModel(MemoryModel::Vulkan)) {
        retype_matrices(module);
        store_zeros(module);
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
fn drop_unused(module: &mut Module, pure: impl Fn(&Instruction) -> bool) {
    let used: BTreeSet<Word> =
        module.all_inst_iter().flat_map(|one| &one.operands).filter_map(Operand::id_ref_any).collect();
    for block in module.functions.iter_mut().flat_map(|function| &mut function.blocks) {
        block.instructions.retain(|one| !pure(one) || one.result_id.is_some_and(|id| used.contains(&id)));
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

fn matrix_types(types: &mut [Instruction]) -> impl Iterator<Item = &mut Instruction> {
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
    let mut filled: BTreeMap<Word, Instruction> = BTreeMap::new();
    let mut header = module.header.take();
    for barrier in instructions(module).filter(|one| one.class.opcode == Op::ControlBarrier) {
        let Operand::IdMemorySemantics(semantics) = barrier.operands[2] else { continue };
        let constant = filled.entry(semantics).or_insert_with(|| {
            let mut constant = constants[&semantics].clone();
            constant.result_id = Some(new_id(&mut header));
            for operand in &mut constant.operands {
                if let Operand::LiteralBit32(bits) = operand {
                    *bits |= moves.bits();
                }
            }
            constant
        });
        barrier.operands[2] = Operand::IdMemorySemantics(constant.result_id.expect("set above"));
    }
    module.header = header;
    module.types_global_values.extend(filled.into_values());
}

/// An id that nobody has yet.
fn new_id(header: &mut Option<ModuleHeader>) -> Word {
    let header = header.as_mut().expect("a module that was parsed has a header");
    header.bound += 1;
    header.bound - 1
}

fn instructions(module: &mut Module) -> impl Iterator<Item = &mut Instruction> {
    let blocks = module.functions.iter_mut().flat_map(|function| &mut function.blocks);
    blocks.flat_map(|block| &mut block.instructions)
}
