//! The types of operands and results, instruction by instruction.

use super::grammar::scope::{DEVICE, QUEUE_FAMILY, SUBGROUP, WORKGROUP};
use super::grammar::{EXTENDED, Kind, PACK_HALF, Rule, UNPACK_HALF, op};
use super::types::{Id, Type, Types, class};
use super::{Checked, Instruction, ensure, mismatch};
use crate::modules::{MatrixElement, MatrixShape};

/// The only memory operand in use: NonPrivatePointer, of the Vulkan memory model.
const NON_PRIVATE: u32 = 32;
/// Memory scopes.
const SCOPES: [u32; 4] = [DEVICE, WORKGROUP, SUBGROUP, QUEUE_FAMILY];
/// Acquire, release, both; memory of buffers, subgroups and workgroups; availability and visibility.
const SEMANTICS: u32 = 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 0x2000 | 0x4000;
/// Row-major and column-major.
const LAYOUTS: u32 = 2;
/// A matrix's use: left operand, right operand, sum.
const LEFT: u32 = 0;
const RIGHT: u32 = 1;
const SUM: u32 = 2;

/// Checks the operands of an instruction of a function, except of those that divide it into blocks.
pub fn check(types: &Types, instruction: &Instruction) -> Checked {
    let Instruction { shape, words } = *instruction;
    match shape.rule {
        Rule::Own => return check_by_opcode(types, instruction),
        Rule::Same(kind) => {
            let of = words[0];
            ensure(types.lanes(of)?.0 == kind, "a result of another kind", format_args!("type {of}"))?;
            same(types, of, &words[2..])?;
        }
        Rule::Integers => {
            let result = types.lanes(words[0])?;
            ensure(result.0 == Kind::Int, "integers", format_args!("type {}", words[0]))?;
            for &operand in &words[2..] {
                ensure(
                    lanes(types, operand)? == result,
                    "integers of the result's width",
                    format_args!("id {operand}"),
                )?;
            }
        }
        Rule::Shift => {
            let result = types.lanes(words[0])?;
            let (kind, _, count) = lanes(types, words[3])?;
            let is_right =
                result.0 == Kind::Int && lanes(types, words[2])? == result && (kind, count) == (Kind::Int, result.2);
            ensure(is_right, "integers of as many lanes", shape.name)?;
        }
        Rule::Compare(kind) => {
            let (of_result, _, count) = types.lanes(words[0])?;
            let (left, right) = (lanes(types, words[2])?, lanes(types, words[3])?);
            let is_right = of_result == Kind::Bool && left == right && (left.0, left.2) == (kind, count);
            ensure(is_right, "operands of one kind, a boolean result", format_args!("{left:?}, {right:?}"))?;
        }
        Rule::Convert(from, to) => {
            let (result, operand) = (types.lanes(words[0])?, lanes(types, words[2])?);
            let is_right = (result.0, operand.0) == (to, from) && result.2 == operand.2;
            ensure(
                is_right && same_sides(types, words[0], types.value(words[2])?),
                "lanes of another kind",
                shape.name,
            )?;
        }
        Rule::Declaration | Rule::Flow => return mismatch("an instruction of a block", shape.name),
    }
    Ok(())
}

fn same(types: &Types, of: u32, operands: &[u32]) -> Checked {
    for &operand in operands {
        ensure(types.value(operand)? == of, "operands of the result's type", format_args!("id {operand}"))?;
    }
    Ok(())
}

/// Whether both are matrices of the same size and use, or neither is a matrix.
fn same_sides(types: &Types, one: u32, other: u32) -> bool {
    let sides = |of: u32| match types.type_of_id(of) {
        Ok(Type::Matrix { rows, columns, usage, .. }) => Some((*rows, *columns, *usage)),
        _ => None,
    };
    sides(one) == sides(other)
}

/// The operands of an instruction that has a rule of its own.
fn check_by_opcode(types: &Types, instruction: &Instruction) -> Checked {
    let is_right = match instruction.shape.opcode {
        op::EXT_INST | op::FUNCTION_CALL => check_call(types, instruction)?,
        op::LOAD..=op::ARRAY_LENGTH => check_memory(types, instruction)?,
        op::VECTOR_EXTRACT_DYNAMIC..=op::COMPOSITE_EXTRACT => check_composite(types, instruction)?,
        op::CONTROL_BARRIER..=op::ATOMIC_U_MAX => check_synchronization(types, instruction)?,
        op::SUBGROUP_BROADCAST..=op::SUBGROUP_F_MAX => check_subgroup(types, instruction)?,
        op::MATRIX_LOAD..=op::MATRIX_MUL_ADD => check_matrix(types, instruction)?,
        _ => check_arithmetic(types, instruction)?,
    };
    ensure(is_right, "operands that match the result", instruction.shape.name)
}

/// Functions that are called: of GLSL.std.450, and of the module.
fn check_call(types: &Types, Instruction { shape, words }: &Instruction) -> Checked<bool> {
    Ok(match (shape.opcode, *words) {
        (op::EXT_INST, &[of, _, set, number, ref operands @ ..]) => {
            ensure(matches!(types.get(set)?, Id::Import), "GLSL.std.450", format_args!("id {set}"))?;
            extended(types, of, number, operands)?;
            true
        }
        (op::FUNCTION_CALL, &[of, _, function, ref arguments @ ..]) => {
            let Id::Function { returns, parameters } = types.get(function)? else {
                return mismatch("a function that is defined before", format_args!("id {function}"));
            };
            let is_call = *returns == of && parameters.len() == arguments.len();
            ensure(is_call, "the function's result and parameters", format_args!("id {function}"))?;
            for (&argument, parameter) in arguments.iter().zip(parameters) {
                types.writable(argument)?;
                ensure(
                    types.value(argument)? == *parameter,
                    "arguments of the parameters' types",
                    format_args!("id {argument}"),
                )?;
            }
            true
        }
        _ => false,
    })
}

/// Memory that one invocation reads and writes, and pointers to it.
fn check_memory(types: &Types, Instruction { shape, words }: &Instruction) -> Checked<bool> {
    Ok(match (shape.opcode, *words) {
        (op::LOAD, &[of, _, pointer, ref access @ ..]) => {
            memory_operand(types, access)?;
            types.pointer(pointer)?.1 == of && types.is_data(of)
        }
        (op::STORE, &[pointer, value, ref access @ ..]) => {
            memory_operand(types, access)?;
            types.writable(pointer)?;
            let (class, to) = types.pointer(pointer)?;
            let is_written = !matches!(class, class::INPUT | class::PUSH_CONSTANT);
            is_written && to == types.value(value)? && types.is_data(to)
        }
        (op::ACCESS_CHAIN, &[of, _, base, ref indices @ ..]) => {
            let (class, mut to) = types.pointer(base)?;
            for &index in indices {
                to = element(types, to, index)?;
            }
            *types.type_of_id(of)? == Type::Pointer { class, to }
        }
        (op::ARRAY_LENGTH, &[of, _, pointer, member]) => {
            let Type::Struct { members } = types.type_of_id(types.pointer(pointer)?.1)? else {
                return mismatch("a structure", format_args!("id {pointer}"));
            };
            let array = members.get(member as usize).map(|&of| types.type_of_id(of));
            types.is_scalar(of, Kind::Int, 32) && matches!(array, Some(Ok(Type::RuntimeArray { .. })))
        }
        _ => false,
    })
}

/// Vectors, arrays and structures as values.
fn check_composite(types: &Types, Instruction { shape, words }: &Instruction) -> Checked<bool> {
    Ok(match (shape.opcode, *words) {
        (op::VECTOR_EXTRACT_DYNAMIC, &[of, _, vector, index]) => {
            matches!(types.type_of_id(types.value(vector)?)?, Type::Vector { of: one, .. } if *one == of)
                && is_int(types, index)
        }
        (op::VECTOR_SHUFFLE, &[of, _, one, other, ref places @ ..]) => {
            let (result, first, second) = (types.lanes(of)?, lanes(types, one)?, lanes(types, other)?);
            let is_vector = [result, first, second]
                .iter()
                .all(|vector| vector.2 > 1 && (vector.0, vector.1) == (result.0, result.1));
            is_vector && places.len() == result.2 as usize && places.iter().all(|&place| place < first.2 + second.2)
        }
        (op::COMPOSITE_CONSTRUCT, &[of, _, ref parts @ ..]) => {
            types.check_parts(of, parts)?;
            true
        }
        (op::COMPOSITE_EXTRACT, &[of, _, composite, ref places @ ..]) => {
            let mut found = types.value(composite)?;
            for &place in places {
                found = match types.type_of_id(found)? {
                    Type::Vector { of, lanes } if place < *lanes => *of,
                    Type::Array { of, len } if place < *len => *of,
                    Type::Struct { members } if (place as usize) < members.len() => members[place as usize],
                    other => return mismatch(format_args!("a part with number {place}"), format_args!("{other:?}")),
                };
            }
            found == of && !places.is_empty()
        }
        _ => false,
    })
}

/// Arithmetic and logic whose operands have other types than the result.
fn check_arithmetic(types: &Types, Instruction { shape, words }: &Instruction) -> Checked<bool> {
    Ok(match (shape.opcode, *words) {
        (op::BITCAST, &[of, _, value]) => {
            let (result, operand) = (types.lanes(of)?, lanes(types, value)?);
            let is_number = result.0 != Kind::Bool && operand.0 != Kind::Bool && result.2 > 0 && operand.2 > 0;
            is_number && result.1 * result.2 == operand.1 * operand.2
        }
        (op::VECTOR_TIMES_SCALAR, &[of, _, vector, scalar]) => {
            let (kind, bits, count) = types.lanes(of)?;
            kind == Kind::Float && count > 1 && types.value(vector)? == of && lanes(types, scalar)? == (kind, bits, 1)
        }
        (op::DOT, &[of, _, one, other]) => {
            let (kind, bits, count) = lanes(types, one)?;
            let is_vector = kind == Kind::Float && count > 1 && types.value(one)? == types.value(other)?;
            is_vector && types.lanes(of)? == (kind, bits, 1)
        }
        (op::ANY | op::ALL, &[of, _, vector]) => {
            let (kind, _, count) = lanes(types, vector)?;
            kind == Kind::Bool && count > 1 && types.lanes(of)? == lanes_of_bool()
        }
        (op::SELECT, &[of, _, condition, one, other]) => {
            same(types, of, &[one, other])?;
            let (kind, _, count) = lanes(types, condition)?;
            let of_result = types.lanes(of)?.2;
            kind == Kind::Bool && of_result > 0 && (count == 1 || count == of_result)
        }
        (op::BIT_FIELD_S_EXTRACT | op::BIT_FIELD_U_EXTRACT, &[of, _, base, offset, count]) => {
            types.value(base)? == of && types.lanes(of)?.0 == Kind::Int && is_int(types, offset) && is_int(types, count)
        }
        // Four pairs of int8, packed.
        (op::S_DOT, &[of, _, one, other, 0]) => {
            types.is_scalar(of, Kind::Int, 32) && is_int(types, one) && is_int(types, other)
        }
        _ => false,
    })
}

/// Barriers and atomics.
fn check_synchronization(types: &Types, Instruction { shape, words }: &Instruction) -> Checked<bool> {
    Ok(match (shape.opcode, *words) {
        (op::CONTROL_BARRIER, &[execution, memory, semantics]) => {
            ensure(
                [WORKGROUP, SUBGROUP].contains(&types.word(execution)?),
                "a barrier of a workgroup or subgroup",
                "another",
            )?;
            scope_and_semantics(types, memory, semantics)?;
            true
        }
        (op::MEMORY_BARRIER, &[memory, semantics]) => {
            scope_and_semantics(types, memory, semantics)?;
            true
        }
        (op::ATOMIC_LOAD, &[of, _, pointer, scope, semantics]) => {
            scope_and_semantics(types, scope, semantics)?;
            atomic(types, pointer)? == of
        }
        (op::ATOMIC_STORE, &[pointer, scope, semantics, value]) => {
            types.writable(pointer)?;
            scope_and_semantics(types, scope, semantics)?;
            atomic(types, pointer)? == types.value(value)?
        }
        (op::ATOMIC_I_ADD..=op::ATOMIC_U_MAX, &[of, _, pointer, scope, semantics, value]) => {
            types.writable(pointer)?;
            scope_and_semantics(types, scope, semantics)?;
            atomic(types, pointer)? == of && types.value(value)? == of
        }
        _ => false,
    })
}

/// What the invocations of a subgroup exchange.
fn check_subgroup(types: &Types, Instruction { shape, words }: &Instruction) -> Checked<bool> {
    Ok(match (shape.opcode, *words) {
        (op::SUBGROUP_BROADCAST_FIRST, &[of, _, scope, value]) => {
            types.word(scope)? == SUBGROUP && types.value(value)? == of && lanes(types, value)?.2 > 0
        }
        (op::SUBGROUP_SHUFFLE | op::SUBGROUP_SHUFFLE_XOR | op::SUBGROUP_BROADCAST, &[of, _, scope, value, lane]) => {
            types.word(scope)? == SUBGROUP
                && types.value(value)? == of
                && lanes(types, value)?.2 > 0
                && is_int(types, lane)
        }
        (op::SUBGROUP_I_ADD..=op::SUBGROUP_F_MAX, &[of, _, scope, operation, value]) => {
            let kind = if shape.opcode == op::SUBGROUP_I_ADD { Kind::Int } else { Kind::Float };
            // Reduce, and the inclusive and the exclusive scan.
            ensure(operation <= 2, "a reduction or a scan", operation)?;
            types.word(scope)? == SUBGROUP
                && types.value(value)? == of
                && lanes(types, value)?.0 == kind
                && lanes(types, value)?.2 > 0
        }
        _ => false,
    })
}

/// Cooperative matrices.
fn check_matrix(types: &Types, Instruction { shape, words }: &Instruction) -> Checked<bool> {
    Ok(match (shape.opcode, *words) {
        (op::MATRIX_LOAD, &[of, _, pointer, layout, stride, access]) => {
            matrix_in_memory(types, of, pointer, [layout, stride, access])?
        }
        (op::MATRIX_STORE, &[pointer, value, layout, stride, access]) => {
            types.writable(pointer)?;
            matrix_in_memory(types, types.value(value)?, pointer, [layout, stride, access])?
        }
        (op::MATRIX_MUL_ADD, &[of, _, left, right, sum]) => {
            product(types, of, [left, right, sum])?;
            true
        }
        _ => false,
    })
}

/// Kind, bits and number of the lanes of a value.
fn lanes(types: &Types, value: u32) -> Checked<(Kind, u32, u32)> {
    types.lanes(types.value(value)?)
}

fn is_int(types: &Types, value: u32) -> bool {
    types.value(value).is_ok_and(|of| types.is_scalar(of, Kind::Int, 32))
}

fn lanes_of_bool() -> (Kind, u32, u32) {
    (Kind::Bool, 32, 1)
}

fn extended(types: &Types, of: u32, number: u32, operands: &[u32]) -> Checked {
    let (word, halves) = ((Kind::Int, 32, 1), (Kind::Float, 32, 2));
    let conversion = match number {
        PACK_HALF => Some((word, halves)),
        UNPACK_HALF => Some((halves, word)),
        _ => None,
    };
    if let Some((result, operand)) = conversion {
        let is_right =
            operands.len() == 1 && types.lanes(of)? == result && types.lanes(types.value(operands[0])?)? == operand;
        return ensure(is_right, "a word and two halves", format_args!("function {number}"));
    }
    let Some(&(_, parameters, kind)) = EXTENDED.iter().find(|(known, ..)| *known == number) else {
        return mismatch("a function of GLSL.std.450 that kernels use", number);
    };
    let result = types.lanes(of)?;
    ensure(
        operands.len() == parameters && result.0 == kind && result.2 > 0,
        "its parameters",
        format_args!("function {number}"),
    )?;
    for &operand in operands {
        ensure(
            types.lanes(types.value(operand)?)? == result,
            "operands like the result",
            format_args!("id {operand}"),
        )?;
    }
    Ok(())
}

/// The type of the element that an index selects.
fn element(types: &Types, of: u32, index: u32) -> Checked<u32> {
    let is_index = |index: u32| {
        let has_type = types.lanes(types.value(index)?)? == (Kind::Int, 32, 1);
        ensure(has_type, "an index of 32 bits", format_args!("id {index}"))
    };
    match types.type_of_id(of)? {
        Type::Struct { members } => {
            let member = types.word(index)?;
            match members.get(member as usize) {
                Some(&member) => Ok(member),
                None => mismatch(format_args!("a member below {}", members.len()), member),
            }
        }
        Type::Array { of, len: count } | Type::Vector { of, lanes: count } => {
            is_index(index)?;
            match types.word(index) {
                Ok(place) if place >= *count => mismatch(format_args!("an index below {count}"), place),
                _ => Ok(*of),
            }
        }
        // An invocation's elements of a matrix, whose number depends on the device.
        Type::RuntimeArray { of } | Type::Matrix { of, .. } => is_index(index).map(|()| *of),
        other => mismatch("a type with elements", format_args!("{other:?}")),
    }
}

fn memory_operand(types: &Types, access: &[u32]) -> Checked {
    let is_known = access.is_empty() || access == [NON_PRIVATE] && types.limits().needs.memory_model;
    ensure(is_known, "no memory operand, or NonPrivatePointer", format_args!("{access:?}"))
}

fn scope_and_semantics(types: &Types, scope: u32, semantics: u32) -> Checked {
    let (scope, semantics) = (types.word(scope)?, types.word(semantics)?);
    ensure(SCOPES.contains(&scope), "a memory scope that kernels use", scope)?;
    ensure(semantics & !SEMANTICS == 0, "memory semantics that kernels use", format_args!("{semantics:#x}"))
}

/// The type of an integer in memory that several invocations change.
fn atomic(types: &Types, pointer: u32) -> Checked<u32> {
    let (class, to) = types.pointer(pointer)?;
    let is_wide =
        types.is_scalar(to, Kind::Int, 64) && types.limits().needs.int64_atomics && class == class::STORAGE_BUFFER;
    let is_shared = matches!(class, class::STORAGE_BUFFER | class::WORKGROUP);
    ensure(
        is_shared && (is_wide || types.is_scalar(to, Kind::Int, 32)),
        "an integer in memory",
        format_args!("id {pointer}"),
    )?;
    Ok(to)
}

fn matrix_in_memory(types: &Types, matrix: u32, pointer: u32, [layout, stride, access]: [u32; 3]) -> Checked<bool> {
    memory_operand(types, &[access])?;
    let (class, to) = types.pointer(pointer)?;
    let is_shared = matches!(class, class::STORAGE_BUFFER | class::WORKGROUP);
    let is_number = types.lanes(to).is_ok_and(|(kind, _, count)| kind != Kind::Bool && count > 0);
    let has_stride = types.lanes(types.value(stride)?)? == (Kind::Int, 32, 1);
    let is_matrix = matches!(types.type_of_id(matrix)?, Type::Matrix { .. });
    Ok(is_matrix && is_shared && is_number && has_stride && types.word(layout)? < LAYOUTS)
}

/// A product whose shape the module's record names.
fn product(types: &Types, of: u32, operands: [u32; 3]) -> Checked {
    let matrix = |of: u32| match *types.type_of_id(of)? {
        Type::Matrix { of, rows, columns, usage } => Ok((element_of(types, of)?, rows, columns, usage)),
        _ => mismatch("a matrix", format_args!("type {of}")),
    };
    let [left, right, sum] = operands.map(|operand| types.value(operand).and_then(matrix));
    let (left, right, sum) = (left?, right?, sum?);
    let shape = MatrixShape { rows: left.1, columns: right.2, depth: left.2, operands: left.0, sums: sum.0 };
    let fits = left.0 == right.0 && right.1 == left.2 && (sum.1, sum.2) == (left.1, right.2) && matrix(of)? == sum;
    let has_uses = (left.3, right.3, sum.3) == (LEFT, RIGHT, SUM);
    let is_recorded = types.limits().needs.matrices.contains(&shape);
    ensure(fits && has_uses && is_recorded, "a product of the module's record", format_args!("{shape:?}"))
}

fn element_of(types: &Types, of: u32) -> Checked<MatrixElement> {
    match *types.type_of_id(of)? {
        Type::Scalar { kind: Kind::Float, bits: 16, .. } => Ok(MatrixElement::F16),
        Type::Scalar { kind: Kind::Float, bits: 32, .. } => Ok(MatrixElement::F32),
        Type::Scalar { kind: Kind::Int, bits: 8, signed: true } => Ok(MatrixElement::I8),
        Type::Scalar { kind: Kind::Int, bits: 32, signed: true } => Ok(MatrixElement::I32),
        _ => mismatch("an element of matrices", format_args!("type {of}")),
    }
}
