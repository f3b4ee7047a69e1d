//! WGSL to SPIR-V by naga: parse, validate, write.

use naga::back::spv;
use naga::valid::{Capabilities, SubgroupOperationSet, ValidationFlags, Validator};

use crate::error::EmitError;
use crate::target::Target;

/// SPIR-V 1.3 (Vulkan 1.1 and later) with entry point `main`. The module has no bounds checks: the runtime enables
/// robustBufferAccess, and every index in the kernels is below a shape that the plan was checked against.
/// naga replaces instructions that the target lacks by several others where it can.
pub fn compile(source: &str, target: &Target) -> Result<Vec<u32>, EmitError> {
    let module = naga::front::wgsl::parse_str(source)
        .map_err(|error| EmitError::Wgsl { message: error.emit_to_string(source) })?;
    // Kernels return early on values read from the step buffer, which are equal in a whole workgroup; naga treats them as
    // non-uniform.
    let flags = ValidationFlags::all() - ValidationFlags::CONTROL_FLOW_UNIFORMITY;
    // pack2x16float and unpack2x16float need no capability in Vulkan, though naga has one for them.
    let mut capabilities = Capabilities::SUBGROUP
        | Capabilities::SUBGROUP_BARRIER
        | Capabilities::SHADER_FLOAT16_IN_FLOAT32
        | Capabilities::MEMORY_DECORATION_COHERENT
        | Capabilities::IMMEDIATES;
    if target.fused_tail.is_some() {
        capabilities |= Capabilities::SHADER_INT64 | Capabilities::SHADER_INT64_ATOMIC_ALL_OPS;
    }
    if target.matrix.is_some() {
        capabilities |= Capabilities::SHADER_FLOAT16 | Capabilities::COOPERATIVE_MATRIX;
    }
    let mut validator = Validator::new(flags, capabilities);
    validator.subgroup_stages(naga::valid::ShaderStages::COMPUTE);
    validator.subgroup_operations(SubgroupOperationSet::all());
    let info =
        validator.validate(&module).map_err(|error| EmitError::Wgsl { message: error.emit_to_string(source) })?;
    let options = spv::Options {
        lang_version: (1, 3),
        // Names of functions, by which intrinsics are found; `check` drops them all.
        flags: spv::WriterFlags::DEBUG,
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        capabilities: Some(target.capabilities().into_iter().collect()),
        ..spv::Options::default()
    };
    let entry = spv::PipelineOptions { shader_stage: naga::ShaderStage::Compute, entry_point: "main".into() };
    spv::write_vec(&module, &info, &options, Some(&entry))
        .map_err(|error| EmitError::Wgsl { message: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check, target};
    use rspirv::spirv::Op;

    #[test]
    fn packed_dot_products_are_one_instruction_where_the_target_has_it() {
        let source = "@group(0) @binding(0) var<storage, read_write> words: array<i32, 3>;
            @compute @workgroup_size(1) fn main() { words[2] = dot4I8Packed(bitcast<u32>(words[0]), bitcast<u32>(words[1])); }";
        for target in target::presets() {
            let module = check::parse(&compile(source, &target).unwrap()).unwrap();
            let dots = module.all_inst_iter().filter(|one| one.class.opcode == Op::SDot).count();
            assert_eq!(dots, usize::from(target.integer_dot), "{}", target.name);
        }
    }
}
