//! Layouts of arrays in workgroup memory.

use rspirv::dr::{Module, Operand};
use rspirv::spirv::Decoration;

use super::module::workgroup_pointers;

/// Drops the strides that naga declares for arrays in workgroup memory: Vulkan 1.2 forbids explicit layouts there.
pub(crate) fn drop_workgroup_layout(module: &mut Module) {
    let arrays: Vec<Operand> = workgroup_pointers(module).map(|one| one.operands[1].clone()).collect();
    let stride = Operand::Decoration(Decoration::ArrayStride);
    module.annotations.retain(|one| one.operands.get(1) != Some(&stride) || !arrays.contains(&one.operands[0]));
}
