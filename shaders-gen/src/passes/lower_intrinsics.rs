//! Intrinsics: operations that naga's WGSL lacks, called by name.
//!
//! `kernels/src/wgsl/intrinsics.wgsl` declares each as a function, with its meaning. naga writes such a function, and an
//! OpFunctionCall for each call; here each call becomes the instructions of that name, and the functions are dropped. A function of that
//! file without a lowering is an error, and `check` refuses a module that still has one.
//!
//! Where naga 30 does not allow the operation's parameters, the call is still explicit, and the pass reads its argument as the
//! declaration describes:
//!
//! - naga does not allow a pointer into workgroup memory as a parameter. A load of a matrix takes the first element by value
//!   (`coop_load_half_a(tile[i], stride)`), and the pass takes the pointer from the OpLoad of that argument.
//! - Functions have a fixed number of parameters. Words of a lane are passed as an array, and the pass takes them from the
//!   OpCompositeConstruct.

use std::collections::{BTreeMap, BTreeSet};

use rspirv::dr::{Function, Instruction, Module, Operand};
use rspirv::spirv::{CooperativeMatrixLayout, MemorySemantics, Op, Scope, StorageClass, Word};

use super::apply_vulkan_memory_model::request_vulkan_memory_model;
use super::module::{declared_type, new_id, u32_constant};
use crate::check::mismatch;
use crate::error::EmitError;

/// Replaces calls of intrinsics by instructions, and drops the intrinsics with the types and constants that only they used.
///
/// # Errors
/// When an intrinsic has no lowering, or a call's argument is not of the kind that its declaration describes.
pub(crate) fn lower_intrinsics(module: &mut Module) -> Result<(), EmitError> {
    let mut intrinsics: BTreeMap<Word, Lower> = BTreeMap::new();
    for (id, name) in intrinsic_functions(module) {
        let lower = lowering(&name).ok_or_else(|| mismatch("intrinsic", "one with a lowering", &name))?;
        intrinsics.insert(id, lower);
    }
    if intrinsics.is_empty() {
        return Ok(());
    }
    let used_before = used_ids(module);
    let is_intrinsic = |function: &Function| function.def_id().is_some_and(|id| intrinsics.contains_key(&id));
    let mut functions = std::mem::take(&mut module.functions);
    functions.retain(|function| !is_intrinsic(function));
    for function in &mut functions {
        Calls { module, intrinsics: &intrinsics, sources: BTreeMap::new(), fragment: None }.lower(function)?;
    }
    module.functions = functions;
    drop_unused_declarations(module, &used_before);
    Ok(())
}

/// Functions of a module that have the name of an intrinsic.
pub(crate) fn intrinsic_functions(module: &Module) -> Vec<(Word, String)> {
    let functions: BTreeSet<Word> = module.functions.iter().filter_map(Function::def_id).collect();
    let named = module.debug_names.iter().filter_map(|one| match &one.operands[..] {
        [Operand::IdRef(id), Operand::LiteralString(name)] if functions.contains(id) => Some((*id, name.clone())),
        _ => None,
    });
    named.filter(|(_, name)| unicorn_kernels::intrinsics::names().any(|intrinsic| intrinsic == name)).collect()
}

/// Instructions in place of one call.
type Lower = fn(&mut Calls, &Call) -> Result<Vec<Instruction>, EmitError>;

fn lowering(name: &str) -> Option<Lower> {
    Some(match name {
        "device_fence" => |calls, _| Ok(device_fence(calls)),
        "workgroup_and_storage_barrier" => |calls, _| Ok(workgroup_and_storage_barrier(calls)),
        "bitcast_half2" | "bitcast_word" => |_, call| Ok(vec![call.becomes(Op::Bitcast, call.arguments.clone())]),
        "coop_multiply_elements" => |_, call| Ok(vec![call.becomes(Op::FMul, call.arguments.clone())]),
        "coop_load_half_a" => |calls, call| coop_load(calls, call, CooperativeMatrixLayout::RowMajorKHR),
        "coop_load_half_a_columns" | "coop_load_half_b" | "coop_load_half_b_u32" => {
            |calls, call| coop_load(calls, call, CooperativeMatrixLayout::ColumnMajorKHR)
        }
        "coop_half_b_from_lanes" => coop_half_b_from_lanes,
        _ => return None,
    })
}

/// An OpFunctionCall of an intrinsic.
struct Call {
    result_type: Option<Word>,
    result_id: Option<Word>,
    arguments: Vec<Operand>,
}

impl Call {
    /// The instruction with the call's result.
    fn becomes(&self, opcode: Op, operands: Vec<Operand>) -> Instruction {
        Instruction::new(opcode, self.result_type, self.result_id, operands)
    }
}

/// The calls of one function.
struct Calls<'a> {
    /// The module without its functions.
    module: &'a mut Module,
    intrinsics: &'a BTreeMap<Word, Lower>,
    /// OpLoads and OpCompositeConstructs of the function, by result: arguments that stand for their operands.
    sources: BTreeMap<Word, Instruction>,
    /// The function's variable in which fragments are assembled, once there is one, and its type.
    fragment: Option<(Word, Word)>,
}

impl Calls<'_> {
    fn lower(mut self, function: &mut Function) -> Result<(), EmitError> {
        for block in &mut function.blocks {
            let mut lowered = Vec::new();
            for one in std::mem::take(&mut block.instructions) {
                let callee = (one.class.opcode == Op::FunctionCall).then(|| one.operands[0].id_ref_any()).flatten();
                if let Some(lower) = callee.and_then(|id| self.intrinsics.get(&id)) {
                    let Instruction { result_type, result_id, mut operands, .. } = one;
                    let call = Call { result_type, result_id, arguments: operands.split_off(1) };
                    lowered.extend(lower(&mut self, &call)?);
                    continue;
                }
                if let (Op::Load | Op::CompositeConstruct, Some(id)) = (one.class.opcode, one.result_id) {
                    self.sources.insert(id, one.clone());
                }
                lowered.push(one);
            }
            block.instructions = lowered;
        }
        if let (Some((variable, kind)), Some(first)) = (self.fragment, function.blocks.first_mut()) {
            let operands = vec![Operand::StorageClass(StorageClass::Function)];
            first.instructions.insert(0, Instruction::new(Op::Variable, Some(kind), Some(variable), operands));
        }
        self.drop_unused_sources(function);
        Ok(())
    }

    /// The instruction that makes an argument.
    fn source(&self, argument: &Operand, opcode: Op) -> Result<&Instruction, EmitError> {
        let source = argument.id_ref_any().and_then(|id| self.sources.get(&id));
        let found = || mismatch("argument of an intrinsic", format!("{opcode:?}"), format!("{source:?}"));
        source.filter(|one| one.class.opcode == opcode).ok_or_else(found)
    }

    fn drop_unused_sources(&self, function: &mut Function) {
        let operands = function.all_inst_iter().flat_map(|one| &one.operands);
        let used: BTreeSet<Word> = operands.filter_map(Operand::id_ref_any).collect();
        let is_unused = |id: Word| self.sources.contains_key(&id) && !used.contains(&id);
        for block in &mut function.blocks {
            block.instructions.retain(|one| !one.result_id.is_some_and(is_unused));
        }
    }
}

/// OpMemoryBarrier. In the GLSL450 memory model a fence orders coherent accesses, and others may be served by a cache that it
/// does not invalidate: on an H200, dispatches synchronised by counters then read the previous layer's activations. Therefore
/// kernels use the Vulkan model.
fn device_fence(calls: &mut Calls) -> Vec<Instruction> {
    request_vulkan_memory_model(calls.module);
    let scope = u32_constant(calls.module, Scope::Device as u32);
    let semantics = MemorySemantics::ACQUIRE_RELEASE | MemorySemantics::UNIFORM_MEMORY;
    let semantics = u32_constant(calls.module, semantics.bits());
    let operands = vec![Operand::IdScope(scope), Operand::IdMemorySemantics(semantics)];
    vec![Instruction::new(Op::MemoryBarrier, None, None, operands)]
}

fn workgroup_and_storage_barrier(calls: &mut Calls) -> Vec<Instruction> {
    let scope = u32_constant(calls.module, Scope::Workgroup as u32);
    let semantics =
        MemorySemantics::ACQUIRE_RELEASE | MemorySemantics::UNIFORM_MEMORY | MemorySemantics::WORKGROUP_MEMORY;
    let semantics = u32_constant(calls.module, semantics.bits());
    let operands = vec![Operand::IdScope(scope), Operand::IdScope(scope), Operand::IdMemorySemantics(semantics)];
    vec![Instruction::new(Op::ControlBarrier, None, None, operands)]
}

fn coop_load(calls: &mut Calls, call: &Call, layout: CooperativeMatrixLayout) -> Result<Vec<Instruction>, EmitError> {
    let pointer = calls.source(&call.arguments[0], Op::Load)?.operands[0].clone();
    let layout = Operand::IdRef(u32_constant(calls.module, layout as u32));
    Ok(vec![call.becomes(Op::CooperativeMatrixLoadKHR, vec![pointer, layout, call.arguments[1].clone()])])
}

/// Stores the two halves of each word to consecutive elements of a matrix variable, and loads the matrix.
fn coop_half_b_from_lanes(calls: &mut Calls, call: &Call) -> Result<Vec<Instruction>, EmitError> {
    let words = calls.source(&call.arguments[0], Op::CompositeConstruct)?.operands.clone();
    let matrix = call.result_type.expect("a call has a type");
    let types = &calls.module.types_global_values;
    let half = types.iter().find(|one| one.result_id == Some(matrix)).map(|one| one.operands[0].clone());
    let half = half.expect("matrices have elements");
    let half_type = half.id_ref_any().expect("a type is an id");
    let function = Operand::StorageClass(StorageClass::Function);
    let half_pointer = declared_type(calls.module, Op::TypePointer, vec![function.clone(), half.clone()]);
    let pair_type = declared_type(calls.module, Op::TypeVector, vec![half, Operand::LiteralBit32(2)]);
    let matrix_pointer = declared_type(calls.module, Op::TypePointer, vec![function, Operand::IdRef(matrix)]);
    let header = &mut calls.module.header;
    let (variable, _) = *calls.fragment.get_or_insert_with(|| (new_id(header), matrix_pointer));
    let id = Operand::IdRef;
    let mut code = Vec::new();
    for (index, word) in words.into_iter().enumerate() {
        let pair = new_id(&mut calls.module.header);
        code.push(Instruction::new(Op::Bitcast, Some(pair_type), Some(pair), vec![word]));
        for half in 0..2 {
            let number = u32_constant(calls.module, 2 * index as u32 + half);
            let [value, element] = [(); 2].map(|()| new_id(&mut calls.module.header));
            let part = vec![id(pair), Operand::LiteralBit32(half)];
            code.push(Instruction::new(Op::CompositeExtract, Some(half_type), Some(value), part));
            let place = vec![id(variable), id(number)];
            code.push(Instruction::new(Op::AccessChain, Some(half_pointer), Some(element), place));
            code.push(Instruction::new(Op::Store, None, None, vec![id(element), id(value)]));
        }
    }
    code.push(call.becomes(Op::Load, vec![id(variable)]));
    Ok(code)
}

/// Ids that instructions refer to, as types or as operands.
fn used_ids(module: &Module) -> BTreeSet<Word> {
    let globals = module.types_global_values.iter().chain(&module.entry_points).chain(&module.execution_modes);
    let functions = module.functions.iter().flat_map(Function::all_inst_iter);
    let ids = |one: &Instruction| {
        one.operands.iter().filter_map(Operand::id_ref_any).chain(one.result_type).collect::<Vec<_>>()
    };
    globals.chain(functions).flat_map(ids).collect()
}

/// Drops declarations that were used before and are no longer, with their names and decorations.
fn drop_unused_declarations(module: &mut Module, used_before: &BTreeSet<Word>) {
    loop {
        let used = used_ids(module);
        let is_dropped =
            |one: &Instruction| one.result_id.is_some_and(|id| used_before.contains(&id) && !used.contains(&id));
        let dropped: BTreeSet<Word> =
            module.types_global_values.iter().filter(|one| is_dropped(one)).filter_map(|one| one.result_id).collect();
        if dropped.is_empty() {
            return;
        }
        let is_of_dropped = |one: &Instruction| one.operands[0].id_ref_any().is_some_and(|id| dropped.contains(&id));
        module.types_global_values.retain(|one| !one.result_id.is_some_and(|id| dropped.contains(&id)));
        module.annotations.retain(|one| !is_of_dropped(one));
        module.debug_names.retain(|one| !is_of_dropped(one));
    }
}

#[cfg(test)]
mod tests {
    use rspirv::spirv::{Capability, Decoration, MemoryAccess, MemoryModel};
    use unicorn_kernels::intrinsics::{declaration, names};

    use super::*;
    use crate::passes::apply_vulkan_memory_model;
    use crate::{check, target, wgsl};

    /// The module that naga makes of this WGSL and of the intrinsics that it calls.
    fn module(source: &str, intrinsics: &[&str]) -> Module {
        let declarations =
            intrinsics.iter().map(|name| declaration(name).expect("declared").replace("${MATRIX}", "coop_mat16x16"));
        let source = format!("{source}\n{}", declarations.collect::<String>());
        let target = target::by_name("nvidia").expect("a preset");
        check::parse(&wgsl::compile(&source, &target).expect("valid WGSL")).expect("a module")
    }

    fn count(module: &Module, opcode: Op) -> usize {
        module.all_inst_iter().filter(|one| one.class.opcode == opcode).count()
    }

    #[test]
    fn every_intrinsic_has_a_lowering() {
        for name in names() {
            assert!(lowering(name).is_some(), "{name}");
        }
    }

    #[test]
    fn a_module_with_an_intrinsic_left_is_refused() {
        let source = "@compute @workgroup_size(1) fn main() { device_fence(); }";
        let mut module = module(source, &["device_fence"]);
        let error = check::check_intrinsics(&module).expect_err("not lowered").to_string();
        assert!(error.contains("device_fence"), "{error}");
        lower_intrinsics(&mut module).expect("known intrinsics");
        check::check_intrinsics(&module).expect("all are lowered");
        assert_eq!((count(&module, Op::Function), count(&module, Op::FunctionCall)), (1, 0));
    }

    #[test]
    fn one_invocation_fences_for_its_workgroup() {
        let source = "@group(0) @binding(0) var<storage, read_write> words: array<atomic<u32>, 2>;
            @compute @workgroup_size(64) fn main(@builtin(local_invocation_index) lane: u32) {
                workgroup_and_storage_barrier();
                if (lane == 0u) { device_fence(); atomicAdd(&words[0], 1u); }
            }";
        let mut module = module(source, &["device_fence", "workgroup_and_storage_barrier"]);
        lower_intrinsics(&mut module).expect("known intrinsics");
        assert_eq!((count(&module, Op::MemoryBarrier), count(&module, Op::ControlBarrier)), (1, 1));
    }

    #[test]
    fn accesses_to_coherent_buffers_are_not_private() {
        let source = "@group(0) @binding(0) @coherent var<storage, read_write> exchanged: array<u32, 64>;
            @group(0) @binding(1) var<storage, read> own: array<u32, 64>;
            @compute @workgroup_size(64) fn main(@builtin(local_invocation_index) lane: u32) {
                exchanged[lane] += own[lane];
                if (lane == 0u) { device_fence(); }
            }";
        let mut module = module(source, &["device_fence"]);
        lower_intrinsics(&mut module).expect("known intrinsics");
        apply_vulkan_memory_model(&mut module);
        let model = module.memory_model.as_ref().expect("a memory model");
        assert_eq!(model.operands[1], Operand::MemoryModel(MemoryModel::Vulkan));
        assert!(check::capabilities(&module).contains(&Capability::VulkanMemoryModel));
        let shared = Operand::MemoryAccess(MemoryAccess::NON_PRIVATE_POINTER);
        let count = |opcode, is_shared: bool| {
            let all = module.all_inst_iter().filter(|one| one.class.opcode == opcode);
            all.filter(|one| one.operands.contains(&shared) == is_shared).count()
        };
        assert_eq!((count(Op::Store, true), count(Op::Store, false)), (1, 0));
        assert_eq!((count(Op::Load, true), count(Op::Load, false) >= 1), (1, true));
        let coherent = Operand::Decoration(Decoration::Coherent);
        assert!(module.annotations.iter().all(|one| !one.operands.contains(&coherent)));
    }

    #[test]
    fn matrices_are_loaded_from_the_place_of_their_first_element() {
        let source = "enable f16;
            enable wgpu_cooperative_matrix;
            const LANE_WORDS: u32 = 4u;
            var<workgroup> tile: array<vec4<u32>, 64>;
            var<workgroup> product: array<f32, 256>;
            @compute @workgroup_size(32) fn main(@builtin(local_invocation_index) lane: u32) {
                let left = coop_load_half_a(tile[lane], 2u);
                let right = coop_half_b_from_lanes(array<u32, LANE_WORDS>(lane, lane, 1u, lane));
                var sums: coop_mat16x16<f32, C>;
                sums = coopMultiplyAdd(left, right, sums);
                coopStoreT(coop_multiply_elements(sums, sums), &product[0], 16u);
            }";
        let intrinsics = ["coop_load_half_a", "coop_half_b_from_lanes", "coop_multiply_elements"];
        let mut module = module(source, &intrinsics);
        lower_intrinsics(&mut module).expect("known intrinsics");
        assert_eq!(count(&module, Op::CooperativeMatrixLoadKHR), 1);
        assert_eq!((count(&module, Op::FMul), count(&module, Op::Bitcast)), (1, 4));
        // Neither the load of a word nor the array of words is left, with its type.
        assert_eq!((count(&module, Op::CompositeConstruct), count(&module, Op::FunctionCall)), (0, 0));
        let arrays = module.types_global_values.iter().filter(|one| one.class.opcode == Op::TypeArray);
        assert_eq!(arrays.count(), 2);
    }

    #[test]
    fn an_argument_that_names_no_place_is_refused() {
        let source = "enable f16;
            enable wgpu_cooperative_matrix;
            var<workgroup> product: array<f32, 256>;
            @compute @workgroup_size(32) fn main(@builtin(local_invocation_index) lane: u32) {
                let left = coop_load_half_a(vec4<u32>(lane), 2u);
                var sums: coop_mat16x16<f32, C>;
                coopStoreT(sums, &product[0], 16u);
            }";
        let error = lower_intrinsics(&mut module(source, &["coop_load_half_a"])).expect_err("no load").to_string();
        assert!(error.contains("Load"), "{error}");
    }
}
