//! A finished module's requirements of a device, which the artifact records: capabilities, workgroup size, and the shapes of the
//! cooperative matrices that it multiplies.

use std::collections::{BTreeMap, BTreeSet};

use rspirv::dr::{Instruction, Module, Operand};
use rspirv::spirv::{Capability, Op, Word};
use unicorn_artifact::{MatrixElement, MatrixShape, ModuleNeeds};

use crate::check;
use crate::error::EmitError;
use crate::target::Target;

/// The requirements of `module`, which was made for `target`.
///
/// # Errors
/// [`EmitError::Check`] if it multiplies matrices of a shape or number format that the record cannot hold.
pub fn needs(module: &Module, target: &Target) -> Result<ModuleNeeds, EmitError> {
    let capabilities = check::capabilities(module);
    let has = |capability| capabilities.contains(&capability);
    // The others imply the first. A cooperative matrix is distributed over the invocations of a subgroup.
    let in_subgroups = [
        Capability::GroupNonUniform,
        Capability::GroupNonUniformVote,
        Capability::GroupNonUniformArithmetic,
        Capability::GroupNonUniformBallot,
        Capability::GroupNonUniformShuffle,
        Capability::CooperativeMatrixKHR,
    ]
    .into_iter()
    .any(has);
    Ok(ModuleNeeds {
        subgroup_size: if in_subgroups { target.subgroup_size } else { 0 },
        workgroup_invocations: check::workgroup_invocations(module).unwrap_or(0) as u32,
        float16: has(Capability::Float16),
        int8: has(Capability::Int8),
        int16: has(Capability::Int16),
        int64: has(Capability::Int64),
        int64_atomics: has(Capability::Int64Atomics),
        integer_dot_product: has(Capability::DotProduct),
        memory_model: has(Capability::VulkanMemoryModel),
        matrices: matrices(module)?.into_iter().collect(),
    })
}

/// Operands of OpTypeCooperativeMatrixKHR.
const ELEMENT: usize = 0;
const ROWS: usize = 2;
const COLUMNS: usize = 3;

fn matrices(module: &Module) -> Result<BTreeSet<MatrixShape>, EmitError> {
    let declared: BTreeMap<Word, &Instruction> =
        module.types_global_values.iter().filter_map(|one| Some((one.result_id?, one))).collect();
    let values = module.all_inst_iter().filter_map(|one| Some((one.result_id?, one.result_type?)));
    let type_of_value: BTreeMap<Word, Word> = values.collect();
    let shape = |product: &Instruction| {
        let matrix = |operand: usize| {
            let value = product.operands.get(operand)?.id_ref_any()?;
            declared.get(type_of_value.get(&value)?).copied()
        };
        let (left, right, sum) = (matrix(0)?, matrix(1)?, matrix(2)?);
        Some(MatrixShape {
            rows: constant(&declared, &left.operands[ROWS])?,
            columns: constant(&declared, &right.operands[COLUMNS])?,
            depth: constant(&declared, &left.operands[COLUMNS])?,
            operands: element(&declared, &left.operands[ELEMENT])?,
            sums: element(&declared, &sum.operands[ELEMENT])?,
        })
    };
    let products = module.all_inst_iter().filter(|one| one.class.opcode == Op::CooperativeMatrixMulAddKHR);
    let unknown = || EmitError::Check {
        what: "matrix product".into(),
        expected: "constant sizes, elements f16, f32, i8 or i32".into(),
        found: "another".into(),
    };
    products.map(|product| shape(product).ok_or_else(unknown)).collect()
}

fn constant(declared: &BTreeMap<Word, &Instruction>, id: &Operand) -> Option<u32> {
    let constant = declared.get(&id.id_ref_any()?)?;
    match constant.operands[..] {
        [Operand::LiteralBit32(value)] if constant.class.opcode == Op::Constant => Some(value),
        _ => None,
    }
}

fn element(declared: &BTreeMap<Word, &Instruction>, id: &Operand) -> Option<MatrixElement> {
    let kind = declared.get(&id.id_ref_any()?)?;
    match (kind.class.opcode, &kind.operands[..]) {
        (Op::TypeFloat, [Operand::LiteralBit32(16), ..]) => Some(MatrixElement::F16),
        (Op::TypeFloat, [Operand::LiteralBit32(32), ..]) => Some(MatrixElement::F32),
        (Op::TypeInt, [Operand::LiteralBit32(8), Operand::LiteralBit32(1)]) => Some(MatrixElement::I8),
        (Op::TypeInt, [Operand::LiteralBit32(32), Operand::LiteralBit32(1)]) => Some(MatrixElement::I32),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use unicorn_artifact::{MatrixElement, MatrixShape};
    use unicorn_kernels::KernelSpec;
    use unicorn_kernels::checksum::ChecksumSpec;
    use unicorn_kernels::flash::FlashSpec;
    use unicorn_kernels::fragments::FragmentsSpec;
    use unicorn_kernels::gemm::{GemmSpec, Product};
    use unicorn_kernels::split::StepRows;
    use unicorn_kernels::{ActivationFormat, CacheLayout, KvFormat, Precision, WeightFormat, WeightLayout};

    use crate::target;

    #[test]
    fn matrices_are_recorded_with_what_comes_with_them() {
        let nvidia = target::by_name("nvidia").unwrap();
        let fragment = nvidia.fragments().unwrap();
        let needs = crate::emit(&KernelSpec::Fragments(FragmentsSpec { fragment }), &nvidia).unwrap().needs;
        assert!(needs.memory_model && needs.float16 && !needs.int64);
        assert_eq!(needs.subgroup_size, 32);
        let (operands, sums) = (MatrixElement::F16, MatrixElement::F32);
        assert_eq!(needs.matrices, [MatrixShape { rows: 16, columns: 16, depth: 16, operands, sums }]);
    }

    #[test]
    fn matrices_that_are_not_square_are_recorded_with_their_sides() {
        let product = Product {
            layout: WeightLayout { format: WeightFormat::Int8, rows: 64, cols: 64 },
            input: Precision::Int8,
            input_stride: 64,
            output_stride: 64,
            output_first: 0,
            bias: false,
            act_mul: None,
            rows_per_token: 1,
            experts: None,
        };
        let (format, n_kv_heads, head_dim, page_tokens) = (KvFormat::F16, 1, 64, 32);
        let (operands, sums) = (MatrixElement::F16, MatrixElement::F32);
        for (name, [rows, columns, depth]) in [("xe2", [8, 16, 16]), ("xe-hpg", [8, 8, 16])] {
            let target = target::by_name(name).unwrap();
            let (matrix, subgroup_size) = (target.matrix.unwrap(), target.subgroup_size);
            let flash = FlashSpec {
                gqa: 1,
                cache: CacheLayout { format, n_kv_heads, head_dim, page_tokens, latent_value: None },
                kv_group: 0,
                window: None,
                heads_per_group: 1,
                input_stride: 64,
                output_stride: 64,
                output: ActivationFormat::F32,
                softcap: None,
                sinks: false,
                image_rows: 0,
                patches: None,
                rows: StepRows::All,
                tile: matrix.flash,
                subgroup_size,
            };
            let gemms =
                matrix.gemm_tiles().into_iter().map(|tile| GemmSpec { product: product.clone(), tile, subgroup_size });
            for spec in gemms.map(KernelSpec::Gemm).chain([KernelSpec::Flash(flash)]) {
                let needs = crate::emit(&spec, &target).unwrap().needs;
                assert_eq!(needs.matrices, [MatrixShape { rows, columns, depth, operands, sums }], "{spec:?}");
            }
        }
    }

    #[test]
    fn a_kernel_without_subgroups_runs_on_any_size() {
        let generic = target::by_name("generic").unwrap();
        let needs = crate::emit(&KernelSpec::Checksum(ChecksumSpec {}), &generic).unwrap().needs;
        assert_eq!((needs.subgroup_size, needs.matrices.len()), (0, 0));
        assert!(needs.workgroup_invocations > 0 && !needs.float16 && !needs.memory_model);
    }
}
