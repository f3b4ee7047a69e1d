//! Cooperative matrices of int8, which naga does not know.
//!
//! Kernels keep int8 in words of i32 and load matrices of those, as high and as wide as their products; here they become
//! matrices of int8, as deep as the device has them. A chain of products that begins with zeros is added up in int32 here, and
//! becomes the f32 that the kernel takes it for at its end.

use std::collections::{BTreeMap, BTreeSet};

use rspirv::dr::{Instruction, Module, Operand};
use rspirv::spirv::{Capability, CooperativeMatrixOperands, Op, Word};

use crate::matrices::{matrix_types, new_id};
use crate::mend::drop_unused;

/// Operands of OpTypeCooperativeMatrixKHR.
const ELEMENT: usize = 0;
const ROWS: usize = 2;
const COLUMNS: usize = 3;
const USE: usize = 4;
/// The use of a matrix on the left.
const MATRIX_A: u32 = 0;

/// The same module with products of int8 where it loads matrices from i32.
///
/// # Panics
/// If it loads none, or a sum does not begin with zeros: kernels are ours.
pub fn multiply(module: &mut Module, depth: usize) {
    let types = Types::declare(module, depth);
    let is_load = |one: &&Instruction| one.class.opcode == Op::CooperativeMatrixLoadKHR;
    let loads = module.all_inst_iter().filter(is_load);
    let integers = loads.filter(|one| one.result_type.is_some_and(|kind| types.operands.contains(&kind)));
    let integers: BTreeSet<Word> = integers.filter_map(|one| one.result_id).collect();
    // Integer sums of those that the kernel takes for f32; of zeros, zeros.
    let mut sums: BTreeMap<Word, Word> = types.zeros.clone();
    let mut header = module.header.take();
    for block in module.functions.iter_mut().flat_map(|function| &mut function.blocks) {
        let mended = std::mem::take(&mut block.instructions).into_iter().flat_map(|mut one| {
            let left = one.operands.first().and_then(Operand::id_ref_any);
            if one.class.opcode != Op::CooperativeMatrixMulAddKHR || !left.is_some_and(|id| integers.contains(&id)) {
                return vec![one];
            }
            let added = one.operands[2].id_ref_any().and_then(|id| sums.get(&id));
            one.operands[2] = Operand::IdRef(*added.expect("sums of integers begin with zeros"));
            one.operands.push(Operand::CooperativeMatrixOperands(signed()));
            let (taken_for, sum) = (one.result_id.expect("a product has an id"), new_id(&mut header));
            sums.insert(taken_for, sum);
            let float = one.result_type.replace(types.sum);
            one.result_id = Some(sum);
            let converted = Instruction::new(Op::ConvertSToF, float, Some(taken_for), vec![Operand::IdRef(sum)]);
            vec![one, converted]
        });
        block.instructions = mended.collect();
    }
    module.header = header;
    drop_unused(module, |one| one.class.opcode == Op::ConvertSToF);
}

/// What a module declares for matrices of integers.
struct Types {
    /// Matrices of int8.
    operands: BTreeSet<Word>,
    /// Matrices of int32.
    sum: Word,
    /// Zeros of f32 to zeros of int32.
    zeros: BTreeMap<Word, Word>,
}

impl Types {
    /// Declares them, and makes int8 of i32 in those that are there.
    fn declare(module: &mut Module, depth: usize) -> Types {
        let [unsigned, signed] = [0, 1].map(|sign| word_type(module, sign));
        let [byte, deep, sum, zero] = [(); 4].map(|()| new_id(&mut module.header));
        let left_use = constants(module, MATRIX_A);
        let mut operands = BTreeSet::new();
        for one in matrix_types(&mut module.types_global_values) {
            if one.operands[ELEMENT] == Operand::IdRef(signed) {
                let along = if left_use.contains(&one.operands[USE]) { COLUMNS } else { ROWS };
                one.operands[ELEMENT] = Operand::IdRef(byte);
                one.operands[along] = Operand::IdRef(deep);
                operands.extend(one.result_id);
            }
        }
        let values = &mut module.types_global_values;
        let is_float = |one: &&mut Instruction| !one.result_id.is_some_and(|id| operands.contains(&id));
        let float = matrix_types(values).find(is_float).expect("products are matrices").clone();
        let zeros =
            values.iter().filter(|one| one.class.opcode == Op::ConstantNull && one.result_type == float.result_id);
        let zeros = zeros.filter_map(|one| Some((one.result_id?, zero))).collect();
        let mut of_sum = float.operands.clone();
        of_sum[ELEMENT] = Operand::IdRef(signed);
        let type_int = vec![Operand::LiteralBit32(8), Operand::LiteralBit32(1)];
        let depth = vec![Operand::LiteralBit32(depth as u32)];
        let is_matrix = |one: &Instruction| one.class.opcode == Op::TypeCooperativeMatrixKHR;
        // Before the first that needs them.
        let first = values.iter().position(is_matrix).expect("products are matrices");
        let new = [
            Instruction::new(Op::TypeInt, None, Some(byte), type_int),
            Instruction::new(Op::Constant, Some(unsigned), Some(deep), depth),
            Instruction::new(float.class.opcode, None, Some(sum), of_sum),
            Instruction::new(Op::ConstantNull, Some(sum), Some(zero), vec![]),
        ];
        values.splice(first..first, new);
        let int8 = vec![Operand::Capability(Capability::Int8)];
        module.capabilities.push(Instruction::new(Op::Capability, None, None, int8));
        Types { operands, sum, zeros }
    }
}

/// The type of 32-bit integers, signed (1) or not (0).
fn word_type(module: &Module, sign: u32) -> Word {
    let wanted = [Operand::LiteralBit32(32), Operand::LiteralBit32(sign)];
    let mut types = module.types_global_values.iter().filter(|one| one.class.opcode == Op::TypeInt);
    let found = types.find(|one| one.operands[..] == wanted).and_then(|one| one.result_id);
    found.expect("kernels have integers of both kinds")
}

/// Constants of this value, as operands.
fn constants(module: &Module, value: u32) -> Vec<Operand> {
    let constants = module.types_global_values.iter().filter(|one| one.class.opcode == Op::Constant);
    let found = constants.filter(|one| one.operands[..] == [Operand::LiteralBit32(value)]);
    found.filter_map(|one| one.result_id.map(Operand::IdRef)).collect()
}

/// Everything in a product of matrices is signed.
fn signed() -> CooperativeMatrixOperands {
    CooperativeMatrixOperands::MATRIX_A_SIGNED_COMPONENTS_KHR
        | CooperativeMatrixOperands::MATRIX_B_SIGNED_COMPONENTS_KHR
        | CooperativeMatrixOperands::MATRIX_C_SIGNED_COMPONENTS_KHR
        | CooperativeMatrixOperands::MATRIX_RESULT_SIGNED_COMPONENTS_KHR
}
