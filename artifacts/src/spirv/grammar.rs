//! The instructions of the subset, with the kinds of their operands.

/// Type of a scalar, or of the lanes of a vector or matrix, without its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bool,
    Int,
    Float,
}

/// The sections of a module in their order, each with its own instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    Capabilities,
    Extensions,
    Imports,
    MemoryModel,
    EntryPoint,
    ExecutionMode,
    Annotations,
    Types,
    Functions,
}

/// How the types of an instruction's operands follow from that of its result, where there is a common rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A rule of its own, see `values.rs`.
    Own,
    /// Operands have the result's type, which consists of this kind.
    Same(Kind),
    /// Integers of the result's width and lanes, with or without sign.
    Integers,
    /// The same, except that the second operand may have any width.
    Shift,
    /// The result is boolean, operands are of this kind, and all have the same number of lanes.
    Compare(Kind),
    /// From one kind to another, lane by lane.
    Convert(Kind, Kind),
    /// Not an instruction of a function: see `mod.rs` and `types.rs`.
    Declaration,
    /// Begins, divides or ends a function: see `blocks.rs`.
    Flow,
}

/// An instruction of the subset. Each letter of `operands` is one operand:
///
/// ```text
/// t  type of the result    r  the result    y  type    v  value    l  label of a block    f  function
/// n  number    s  string    *  any number of the letter before, also none    ?  the letter before may be missing
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub opcode: u16,
    pub name: &'static str,
    pub operands: &'static str,
    pub section: Section,
    pub rule: Rule,
}

pub fn shape(opcode: u16) -> Option<&'static Shape> {
    let index = SHAPES.binary_search_by_key(&opcode, |shape| shape.opcode).ok()?;
    Some(&SHAPES[index])
}

pub mod op {
    pub const EXTENSION: u16 = 10;
    pub const EXT_INST_IMPORT: u16 = 11;
    pub const EXT_INST: u16 = 12;
    pub const MEMORY_MODEL: u16 = 14;
    pub const ENTRY_POINT: u16 = 15;
    pub const EXECUTION_MODE: u16 = 16;
    pub const CAPABILITY: u16 = 17;
    pub const TYPE_VOID: u16 = 19;
    pub const TYPE_BOOL: u16 = 20;
    pub const TYPE_INT: u16 = 21;
    pub const TYPE_FLOAT: u16 = 22;
    pub const TYPE_VECTOR: u16 = 23;
    pub const TYPE_ARRAY: u16 = 28;
    pub const TYPE_RUNTIME_ARRAY: u16 = 29;
    pub const TYPE_STRUCT: u16 = 30;
    pub const TYPE_POINTER: u16 = 32;
    pub const TYPE_FUNCTION: u16 = 33;
    pub const CONSTANT_TRUE: u16 = 41;
    pub const CONSTANT_FALSE: u16 = 42;
    pub const CONSTANT: u16 = 43;
    pub const CONSTANT_COMPOSITE: u16 = 44;
    pub const CONSTANT_NULL: u16 = 46;
    pub const FUNCTION: u16 = 54;
    pub const FUNCTION_PARAMETER: u16 = 55;
    pub const FUNCTION_END: u16 = 56;
    pub const FUNCTION_CALL: u16 = 57;
    pub const VARIABLE: u16 = 59;
    pub const LOAD: u16 = 61;
    pub const STORE: u16 = 62;
    pub const ACCESS_CHAIN: u16 = 65;
    pub const ARRAY_LENGTH: u16 = 68;
    pub const DECORATE: u16 = 71;
    pub const MEMBER_DECORATE: u16 = 72;
    pub const VECTOR_EXTRACT_DYNAMIC: u16 = 77;
    pub const VECTOR_SHUFFLE: u16 = 79;
    pub const COMPOSITE_CONSTRUCT: u16 = 80;
    pub const COMPOSITE_EXTRACT: u16 = 81;
    pub const BITCAST: u16 = 124;
    pub const VECTOR_TIMES_SCALAR: u16 = 142;
    pub const DOT: u16 = 148;
    pub const ANY: u16 = 154;
    pub const ALL: u16 = 155;
    pub const SELECT: u16 = 169;
    pub const BIT_FIELD_S_EXTRACT: u16 = 202;
    pub const BIT_FIELD_U_EXTRACT: u16 = 203;
    pub const CONTROL_BARRIER: u16 = 224;
    pub const MEMORY_BARRIER: u16 = 225;
    pub const ATOMIC_LOAD: u16 = 227;
    pub const ATOMIC_STORE: u16 = 228;
    pub const ATOMIC_I_ADD: u16 = 234;
    pub const ATOMIC_U_MIN: u16 = 237;
    pub const ATOMIC_U_MAX: u16 = 239;
    pub const LOOP_MERGE: u16 = 246;
    pub const SELECTION_MERGE: u16 = 247;
    pub const LABEL: u16 = 248;
    pub const BRANCH: u16 = 249;
    pub const BRANCH_CONDITIONAL: u16 = 250;
    pub const SWITCH: u16 = 251;
    pub const RETURN: u16 = 253;
    pub const RETURN_VALUE: u16 = 254;
    pub const UNREACHABLE: u16 = 255;
    pub const SUBGROUP_BROADCAST: u16 = 337;
    pub const SUBGROUP_BROADCAST_FIRST: u16 = 338;
    pub const SUBGROUP_SHUFFLE: u16 = 345;
    pub const SUBGROUP_SHUFFLE_XOR: u16 = 346;
    pub const SUBGROUP_I_ADD: u16 = 349;
    pub const SUBGROUP_F_ADD: u16 = 350;
    pub const SUBGROUP_F_MAX: u16 = 358;
    pub const S_DOT: u16 = 4450;
    pub const TYPE_MATRIX: u16 = 4456;
    pub const MATRIX_LOAD: u16 = 4457;
    pub const MATRIX_STORE: u16 = 4458;
    pub const MATRIX_MUL_ADD: u16 = 4459;
}

/// Numbers of scopes.
pub mod scope {
    pub const DEVICE: u32 = 1;
    pub const WORKGROUP: u32 = 2;
    pub const SUBGROUP: u32 = 3;
    pub const QUEUE_FAMILY: u32 = 5;
}

use Kind::{Bool, Float, Int};
use Rule::{Compare, Convert, Declaration, Flow, Integers, Own, Same, Shift};
use Section::{
    Annotations, Capabilities, EntryPoint, ExecutionMode, Extensions, Functions, Imports, MemoryModel, Types,
};

const fn row(opcode: u16, name: &'static str, operands: &'static str, section: Section, rule: Rule) -> Shape {
    Shape { opcode, name, operands, section, rule }
}

/// The instructions of the subset, in the order of their opcodes.
const SHAPES: &[Shape] = &[
    row(op::EXTENSION, "OpExtension", "s", Extensions, Declaration),
    row(op::EXT_INST_IMPORT, "OpExtInstImport", "rs", Imports, Declaration),
    row(op::EXT_INST, "OpExtInst", "trnnv*", Functions, Own),
    row(op::MEMORY_MODEL, "OpMemoryModel", "nn", MemoryModel, Declaration),
    row(op::ENTRY_POINT, "OpEntryPoint", "nnn*", EntryPoint, Declaration),
    row(op::EXECUTION_MODE, "OpExecutionMode", "nnnnn", ExecutionMode, Declaration),
    row(op::CAPABILITY, "OpCapability", "n", Capabilities, Declaration),
    row(op::TYPE_VOID, "OpTypeVoid", "r", Types, Declaration),
    row(op::TYPE_BOOL, "OpTypeBool", "r", Types, Declaration),
    row(op::TYPE_INT, "OpTypeInt", "rnn", Types, Declaration),
    row(op::TYPE_FLOAT, "OpTypeFloat", "rn", Types, Declaration),
    row(op::TYPE_VECTOR, "OpTypeVector", "ryn", Types, Declaration),
    row(op::TYPE_ARRAY, "OpTypeArray", "ryv", Types, Declaration),
    row(op::TYPE_RUNTIME_ARRAY, "OpTypeRuntimeArray", "ry", Types, Declaration),
    row(op::TYPE_STRUCT, "OpTypeStruct", "ry*", Types, Declaration),
    row(op::TYPE_POINTER, "OpTypePointer", "rny", Types, Declaration),
    row(op::TYPE_FUNCTION, "OpTypeFunction", "ryy*", Types, Declaration),
    row(op::CONSTANT_TRUE, "OpConstantTrue", "tr", Types, Declaration),
    row(op::CONSTANT_FALSE, "OpConstantFalse", "tr", Types, Declaration),
    row(op::CONSTANT, "OpConstant", "trnn?", Types, Declaration),
    row(op::CONSTANT_COMPOSITE, "OpConstantComposite", "trv*", Types, Declaration),
    row(op::CONSTANT_NULL, "OpConstantNull", "tr", Types, Declaration),
    row(op::FUNCTION, "OpFunction", "trny", Functions, Flow),
    row(op::FUNCTION_PARAMETER, "OpFunctionParameter", "tr", Functions, Flow),
    row(op::FUNCTION_END, "OpFunctionEnd", "", Functions, Flow),
    row(op::FUNCTION_CALL, "OpFunctionCall", "trfv*", Functions, Own),
    row(op::VARIABLE, "OpVariable", "trnv?", Types, Declaration),
    row(op::LOAD, "OpLoad", "trvn?", Functions, Own),
    row(op::STORE, "OpStore", "vvn?", Functions, Own),
    row(op::ACCESS_CHAIN, "OpAccessChain", "trvv*", Functions, Own),
    row(op::ARRAY_LENGTH, "OpArrayLength", "trvn", Functions, Own),
    row(op::DECORATE, "OpDecorate", "nnn?", Annotations, Declaration),
    row(op::MEMBER_DECORATE, "OpMemberDecorate", "nnnn?", Annotations, Declaration),
    row(op::VECTOR_EXTRACT_DYNAMIC, "OpVectorExtractDynamic", "trvv", Functions, Own),
    row(op::VECTOR_SHUFFLE, "OpVectorShuffle", "trvvn*", Functions, Own),
    row(op::COMPOSITE_CONSTRUCT, "OpCompositeConstruct", "trv*", Functions, Own),
    row(op::COMPOSITE_EXTRACT, "OpCompositeExtract", "trvn*", Functions, Own),
    row(109, "OpConvertFToU", "trv", Functions, Convert(Float, Int)),
    row(110, "OpConvertFToS", "trv", Functions, Convert(Float, Int)),
    row(111, "OpConvertSToF", "trv", Functions, Convert(Int, Float)),
    row(112, "OpConvertUToF", "trv", Functions, Convert(Int, Float)),
    row(113, "OpUConvert", "trv", Functions, Convert(Int, Int)),
    row(114, "OpSConvert", "trv", Functions, Convert(Int, Int)),
    row(115, "OpFConvert", "trv", Functions, Convert(Float, Float)),
    row(op::BITCAST, "OpBitcast", "trv", Functions, Own),
    row(126, "OpSNegate", "trv", Functions, Integers),
    row(127, "OpFNegate", "trv", Functions, Same(Float)),
    row(128, "OpIAdd", "trvv", Functions, Integers),
    row(129, "OpFAdd", "trvv", Functions, Same(Float)),
    row(130, "OpISub", "trvv", Functions, Integers),
    row(131, "OpFSub", "trvv", Functions, Same(Float)),
    row(132, "OpIMul", "trvv", Functions, Integers),
    row(133, "OpFMul", "trvv", Functions, Same(Float)),
    row(134, "OpUDiv", "trvv", Functions, Integers),
    row(135, "OpSDiv", "trvv", Functions, Integers),
    row(136, "OpFDiv", "trvv", Functions, Same(Float)),
    row(137, "OpUMod", "trvv", Functions, Integers),
    row(138, "OpSRem", "trvv", Functions, Integers),
    row(op::VECTOR_TIMES_SCALAR, "OpVectorTimesScalar", "trvv", Functions, Own),
    row(op::DOT, "OpDot", "trvv", Functions, Own),
    row(op::ANY, "OpAny", "trv", Functions, Own),
    row(op::ALL, "OpAll", "trv", Functions, Own),
    row(164, "OpLogicalEqual", "trvv", Functions, Same(Bool)),
    row(165, "OpLogicalNotEqual", "trvv", Functions, Same(Bool)),
    row(166, "OpLogicalOr", "trvv", Functions, Same(Bool)),
    row(167, "OpLogicalAnd", "trvv", Functions, Same(Bool)),
    row(168, "OpLogicalNot", "trv", Functions, Same(Bool)),
    row(op::SELECT, "OpSelect", "trvvv", Functions, Own),
    row(170, "OpIEqual", "trvv", Functions, Compare(Int)),
    row(171, "OpINotEqual", "trvv", Functions, Compare(Int)),
    row(172, "OpUGreaterThan", "trvv", Functions, Compare(Int)),
    row(173, "OpSGreaterThan", "trvv", Functions, Compare(Int)),
    row(174, "OpUGreaterThanEqual", "trvv", Functions, Compare(Int)),
    row(175, "OpSGreaterThanEqual", "trvv", Functions, Compare(Int)),
    row(176, "OpULessThan", "trvv", Functions, Compare(Int)),
    row(177, "OpSLessThan", "trvv", Functions, Compare(Int)),
    row(178, "OpULessThanEqual", "trvv", Functions, Compare(Int)),
    row(179, "OpSLessThanEqual", "trvv", Functions, Compare(Int)),
    row(180, "OpFOrdEqual", "trvv", Functions, Compare(Float)),
    row(182, "OpFOrdNotEqual", "trvv", Functions, Compare(Float)),
    row(183, "OpFUnordNotEqual", "trvv", Functions, Compare(Float)),
    row(184, "OpFOrdLessThan", "trvv", Functions, Compare(Float)),
    row(186, "OpFOrdGreaterThan", "trvv", Functions, Compare(Float)),
    row(188, "OpFOrdLessThanEqual", "trvv", Functions, Compare(Float)),
    row(190, "OpFOrdGreaterThanEqual", "trvv", Functions, Compare(Float)),
    row(194, "OpShiftRightLogical", "trvv", Functions, Shift),
    row(195, "OpShiftRightArithmetic", "trvv", Functions, Shift),
    row(196, "OpShiftLeftLogical", "trvv", Functions, Shift),
    row(197, "OpBitwiseOr", "trvv", Functions, Integers),
    row(198, "OpBitwiseXor", "trvv", Functions, Integers),
    row(199, "OpBitwiseAnd", "trvv", Functions, Integers),
    row(200, "OpNot", "trv", Functions, Integers),
    row(op::BIT_FIELD_S_EXTRACT, "OpBitFieldSExtract", "trvvv", Functions, Own),
    row(op::BIT_FIELD_U_EXTRACT, "OpBitFieldUExtract", "trvvv", Functions, Own),
    row(205, "OpBitCount", "trv", Functions, Integers),
    row(op::CONTROL_BARRIER, "OpControlBarrier", "vvv", Functions, Own),
    row(op::MEMORY_BARRIER, "OpMemoryBarrier", "vv", Functions, Own),
    row(op::ATOMIC_LOAD, "OpAtomicLoad", "trvvv", Functions, Own),
    row(op::ATOMIC_STORE, "OpAtomicStore", "vvvv", Functions, Own),
    row(op::ATOMIC_I_ADD, "OpAtomicIAdd", "trvvvv", Functions, Own),
    row(op::ATOMIC_U_MIN, "OpAtomicUMin", "trvvvv", Functions, Own),
    row(op::ATOMIC_U_MAX, "OpAtomicUMax", "trvvvv", Functions, Own),
    row(op::LOOP_MERGE, "OpLoopMerge", "lln", Functions, Flow),
    row(op::SELECTION_MERGE, "OpSelectionMerge", "ln", Functions, Flow),
    row(op::LABEL, "OpLabel", "r", Functions, Flow),
    row(op::BRANCH, "OpBranch", "l", Functions, Flow),
    row(op::BRANCH_CONDITIONAL, "OpBranchConditional", "vll", Functions, Flow),
    row(op::SWITCH, "OpSwitch", "vln*", Functions, Flow),
    row(op::RETURN, "OpReturn", "", Functions, Flow),
    row(op::RETURN_VALUE, "OpReturnValue", "v", Functions, Flow),
    row(op::UNREACHABLE, "OpUnreachable", "", Functions, Flow),
    row(op::SUBGROUP_BROADCAST, "OpGroupNonUniformBroadcast", "trvvv", Functions, Own),
    row(op::SUBGROUP_BROADCAST_FIRST, "OpGroupNonUniformBroadcastFirst", "trvv", Functions, Own),
    row(op::SUBGROUP_SHUFFLE, "OpGroupNonUniformShuffle", "trvvv", Functions, Own),
    row(op::SUBGROUP_SHUFFLE_XOR, "OpGroupNonUniformShuffleXor", "trvvv", Functions, Own),
    row(op::SUBGROUP_I_ADD, "OpGroupNonUniformIAdd", "trvnv", Functions, Own),
    row(op::SUBGROUP_F_ADD, "OpGroupNonUniformFAdd", "trvnv", Functions, Own),
    row(op::SUBGROUP_F_MAX, "OpGroupNonUniformFMax", "trvnv", Functions, Own),
    row(op::S_DOT, "OpSDot", "trvvn", Functions, Own),
    row(op::TYPE_MATRIX, "OpTypeCooperativeMatrixKHR", "ryvvvv", Types, Declaration),
    row(op::MATRIX_LOAD, "OpCooperativeMatrixLoadKHR", "trvvvn", Functions, Own),
    row(op::MATRIX_STORE, "OpCooperativeMatrixStoreKHR", "vvvvn", Functions, Own),
    row(op::MATRIX_MUL_ADD, "OpCooperativeMatrixMulAddKHR", "trvvv", Functions, Own),
];

/// Functions of GLSL.std.450: number, parameters, and the kind that all of them and the result have. Those that pack halves
/// are in `values.rs`.
pub const EXTENDED: &[(u32, usize, Kind)] = &[
    (1, 1, Float),  // Round
    (2, 1, Float),  // RoundEven
    (3, 1, Float),  // Trunc
    (4, 1, Float),  // FAbs
    (5, 1, Int),    // SAbs
    (6, 1, Float),  // FSign
    (8, 1, Float),  // Floor
    (9, 1, Float),  // Ceil
    (10, 1, Float), // Fract
    (13, 1, Float), // Sin
    (14, 1, Float), // Cos
    (21, 1, Float), // Tanh
    (26, 2, Float), // Pow
    (27, 1, Float), // Exp
    (28, 1, Float), // Log
    (29, 1, Float), // Exp2
    (30, 1, Float), // Log2
    (31, 1, Float), // Sqrt
    (32, 1, Float), // InverseSqrt
    (37, 2, Float), // FMin
    (38, 2, Int),   // UMin
    (39, 2, Int),   // SMin
    (40, 2, Float), // FMax
    (41, 2, Int),   // UMax
    (42, 2, Int),   // SMax
    (43, 3, Float), // FClamp
    (44, 3, Int),   // UClamp
    (45, 3, Int),   // SClamp
    (46, 3, Float), // FMix
    (50, 3, Float), // Fma
];
pub const PACK_HALF: u32 = 58;
pub const UNPACK_HALF: u32 = 62;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_in_order() {
        assert!(SHAPES.windows(2).all(|pair| pair[0].opcode < pair[1].opcode));
    }
}
