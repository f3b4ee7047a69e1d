//! Capabilities for f16 in memory.

use rspirv::dr::{Instruction, Module, Operand};
use rspirv::spirv::Capability;

/// Drops the capabilities for f16 in buffers and in the shader's interface. naga requests them for every module with f16; buffers
/// here hold 32-bit words, and f16 appears only in registers.
pub(crate) fn drop_16bit_storage(module: &mut Module) {
    let unused = [
        Capability::StorageBuffer16BitAccess,
        Capability::UniformAndStorageBuffer16BitAccess,
        Capability::StorageInputOutput16,
    ];
    let is_unused = |one: &Instruction| unused.iter().any(|&it| one.operands[0] == Operand::Capability(it));
    module.capabilities.retain(|one| !is_unused(one));
    let extension = Operand::LiteralString("SPV_KHR_16bit_storage".into());
    module.extensions.retain(|one| one.operands[0] != extension);
}
