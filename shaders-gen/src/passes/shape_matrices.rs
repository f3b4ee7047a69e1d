//! Sides of cooperative matrices that naga cannot write.

use std::ops::Range;

use rspirv::dr::{Instruction, Module, Operand};
use rspirv::spirv::{CooperativeMatrixUse, Op};
use unicorn_kernels::fragment_shape::FragmentShape;

use super::module::u32_constant;

/// Operands of OpTypeCooperativeMatrixKHR: element, scope, rows, columns, use.
const SIDES: Range<usize> = 2..4;
const USE: usize = 4;

/// Gives each type of cooperative matrices the sides that its use in products of `shape` has: naga 30 writes square ones alone.
pub(crate) fn shape_matrices(module: &mut Module, shape: FragmentShape) {
    let FragmentShape { m, n, k } = shape;
    if shape == FragmentShape::square(m) {
        return;
    }
    let sides_of_uses = [
        (CooperativeMatrixUse::MatrixAKHR, [m, k]),
        (CooperativeMatrixUse::MatrixBKHR, [k, n]),
        (CooperativeMatrixUse::MatrixAccumulatorKHR, [m, n]),
    ];
    let sides_of_uses = sides_of_uses.map(|(of, sides)| {
        let of = Operand::IdRef(u32_constant(module, of as u32));
        (of, sides.map(|side| Operand::IdRef(u32_constant(module, side as u32))))
    });
    let is_matrix = |one: &Instruction| one.class.opcode == Op::TypeCooperativeMatrixKHR;
    for matrix in module.types_global_values.iter_mut().filter(|one| is_matrix(one)) {
        let sides = sides_of_uses.iter().find(|(of, _)| *of == matrix.operands[USE]);
        let (_, sides) = sides.expect("a matrix is left or right of a product, or a sum");
        matrix.operands.splice(SIDES, sides.iter().cloned());
    }
    declare_before_matrices(module, &sides_of_uses.map(|(_, sides)| sides).concat());
}

/// Moves constants in front of the first type of matrices, which may use them.
fn declare_before_matrices(module: &mut Module, constants: &[Operand]) {
    let is_one = |one: &Instruction| one.result_id.is_some_and(|id| constants.contains(&Operand::IdRef(id)));
    let (moved, mut others): (Vec<_>, Vec<_>) =
        std::mem::take(&mut module.types_global_values).into_iter().partition(is_one);
    let first = others.iter().position(|one| one.class.opcode == Op::TypeCooperativeMatrixKHR);
    let first = first.unwrap_or(others.len());
    others.splice(first..first, moved);
    module.types_global_values = others;
}
