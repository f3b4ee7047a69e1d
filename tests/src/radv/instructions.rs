//! Instructions that make a kernel fast: what a module's words request, and what its machine code holds.

use std::collections::BTreeSet;

use rspirv::dr::Operand;
use rspirv::spirv::{Capability, ExecutionMode};

/// A class of machine instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Four 8-bit products and their sum in one instruction a lane.
    PackedDot,
    /// A 16×16×16 matrix product in one instruction a subgroup.
    Matrix,
    /// A product and a sum of f32 in one instruction a lane.
    MultiplyAdd,
    /// 16 bytes a lane in one load from memory.
    WideLoad,
}

/// What a SPIR-V module declares.
pub struct Words {
    /// Classes that its capabilities declare.
    pub promised: BTreeSet<Class>,
    /// Lanes of a workgroup.
    pub lanes: u32,
}

impl Class {
    pub fn name(self) -> &'static str {
        match self {
            Class::PackedDot => "packed dot products (v_dot4)",
            Class::Matrix => "matrix products (v_wmma)",
            Class::MultiplyAdd => "multiply-adds",
            Class::WideLoad => "16-byte loads",
        }
    }

    fn mnemonics(self) -> &'static [&'static str] {
        match self {
            Class::PackedDot => &["v_dot4"],
            Class::Matrix => &["v_wmma"],
            Class::MultiplyAdd => &["v_fma", "v_mac", "v_pk_fma", "v_mad_f32", "v_dual_fmac"],
            Class::WideLoad => &["buffer_load_b128", "global_load_b128", "buffer_load_dwordx4", "global_load_dwordx4"],
        }
    }

    /// Lines of `assembly` whose instruction is of this class.
    pub fn count_in(self, assembly: &str) -> usize {
        assembly.lines().filter(|line| self.is_of(line)).count()
    }

    /// Whether the instruction of a line is of this class.
    pub fn is_of(self, line: &str) -> bool {
        self.mnemonics().iter().any(|start| line.trim_start().starts_with(start))
    }
}

/// Registers that the operands of matrix products take in `assembly`, sums aside: they distinguish the forms of generations.
pub fn matrix_operand_registers(assembly: &str) -> BTreeSet<u32> {
    let registers = |line: &str| {
        let operand = line.split(", ").nth(1)?.strip_prefix("v[")?.split(']').next()?;
        let (first, last) = operand.split_once(':')?;
        Some(last.parse::<u32>().ok()? + 1 - first.parse::<u32>().ok()?)
    };
    assembly.lines().filter(|line| Class::Matrix.is_of(line)).filter_map(registers).collect()
}

impl Words {
    /// # Panics
    /// If the words are not a module: our own compiler made them.
    pub fn of(words: &[u32]) -> Words {
        let module = rspirv::dr::load_words(words).expect("the compiler writes SPIR-V");
        let promised =
            unicorn_spirv::check::capabilities(&module).into_iter().filter_map(|capability| match capability {
                Capability::DotProduct
                | Capability::DotProductInput4x8Bit
                | Capability::DotProductInput4x8BitPacked
                | Capability::DotProductInputAll => Some(Class::PackedDot),
                Capability::CooperativeMatrixKHR => Some(Class::Matrix),
                _ => None,
            });
        let lanes = module.execution_modes.iter().find_map(|mode| match mode.operands[..] {
            [
                _,
                Operand::ExecutionMode(ExecutionMode::LocalSize),
                Operand::LiteralBit32(x),
                Operand::LiteralBit32(y),
                Operand::LiteralBit32(z),
            ] => Some(x * y * z),
            _ => None,
        });
        Words { promised: promised.collect(), lanes: lanes.expect("the compiler checked the workgroup size") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_matrix_products_differ_in_their_operands() {
        let gfx11 = "\tv_wmma_f32_16x16x16_f16 v[48:55], v[112:119], v[120:127], v[48:55] ; cc404030 1cc2f170";
        let gfx12 = "\tv_wmma_f32_16x16x16_f16 v[48:55], v[112:115], v[120:123], v[48:55]";
        assert_eq!([gfx11, gfx12].map(matrix_operand_registers), [BTreeSet::from([8]), BTreeSet::from([4])]);
    }

    #[test]
    fn instructions_are_counted_by_their_first_word() {
        let assembly = "BB0:\n\tv_dot4_i32_iu8 v0, v1, v2, v0  ; cc16\n\tbuffer_load_b128 v[0:3], v4, s[0:3], 0 offen\n\
                        \ts_buffer_load_b128 s[0:3], s[0:3], null\n\tv_mov_b32 v0, v_dot4\n\tv_dot4_i32_iu8 v0, v1, v2, v0";
        assert_eq!(Class::PackedDot.count_in(assembly), 2);
        assert_eq!(Class::WideLoad.count_in(assembly), 1);
        assert_eq!(Class::Matrix.count_in(assembly), 0);
    }
}
