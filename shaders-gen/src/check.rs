//! Checks of a finished module against its spec and its target.

use std::collections::BTreeSet;

use rspirv::binary::Assemble;
use rspirv::dr::{Module, Operand};
use rspirv::spirv::{BuiltIn, Capability, Decoration, ExecutionMode, Op, StorageClass};
use unicorn_kernels::KernelSpec;

use crate::error::EmitError;
use crate::passes::intrinsic_functions;
use crate::target::Target;

/// Parses a module.
pub(crate) fn parse(words: &[u32]) -> Result<Module, EmitError> {
    rspirv::dr::load_words(words).map_err(|error| mismatch("module", "to parse", error))
}

/// Checks intrinsics, capabilities, workgroup size, grid and bindings, and drops debug names.
pub(crate) fn check_and_strip(module: &mut Module, spec: &KernelSpec, target: &Target) -> Result<Vec<u32>, EmitError> {
    check_intrinsics(module)?;
    module.debug_string_source.clear();
    module.debug_names.clear();
    check_capabilities(module, target)?;
    check_workgroup(module, target)?;
    check_grid(module)?;
    check_bindings(module, spec)?;
    Ok(module.assemble())
}

/// The capabilities that a module declares.
pub fn capabilities(module: &Module) -> BTreeSet<Capability> {
    module
        .capabilities
        .iter()
        .filter_map(|instruction| match instruction.operands.first() {
            Some(Operand::Capability(capability)) => Some(*capability),
            _ => None,
        })
        .collect()
}

/// Refuses a module with an intrinsic that was not lowered: its body is not its definition, so the kernel's result would be wrong.
pub(crate) fn check_intrinsics(module: &Module) -> Result<(), EmitError> {
    match intrinsic_functions(module).first() {
        None => Ok(()),
        Some((_, name)) => Err(mismatch("functions", "no intrinsic that was not lowered", name)),
    }
}

fn check_capabilities(module: &Module, target: &Target) -> Result<(), EmitError> {
    let allowed = target.capabilities();
    match capabilities(module).difference(&allowed).next() {
        None => Ok(()),
        Some(extra) => Err(mismatch("capabilities", format!("a subset of {allowed:?}"), format!("{extra:?}"))),
    }
}

/// Invocations of a workgroup, as the module declares it.
pub fn workgroup_invocations(module: &Module) -> Option<u64> {
    module.execution_modes.iter().find_map(|mode| match mode.operands[..] {
        [
            _,
            Operand::ExecutionMode(ExecutionMode::LocalSize),
            Operand::LiteralBit32(x),
            Operand::LiteralBit32(y),
            Operand::LiteralBit32(z),
        ] => Some(u64::from(x) * u64::from(y) * u64::from(z)),
        _ => None,
    })
}

fn check_workgroup(module: &Module, target: &Target) -> Result<(), EmitError> {
    let size = workgroup_invocations(module).unwrap_or(0);
    if !(1..=target.workgroup_invocations as u64).contains(&size) {
        let expected = format!("at most {} invocations", target.workgroup_invocations);
        return Err(mismatch("workgroup size", expected, size));
    }
    // Vulkan requires it for pipelines with a required subgroup size.
    let subgroup_size = u64::from(target.subgroup_size);
    if capabilities(module).contains(&Capability::GroupNonUniform) && !size.is_multiple_of(subgroup_size) {
        return Err(mismatch("workgroup size", format!("whole subgroups of {subgroup_size}"), size));
    }
    Ok(())
}

/// Refuses NumWorkgroups: the runtime may split a dispatch into ranges of workgroups, and it is then the number in the range.
fn check_grid(module: &Module) -> Result<(), EmitError> {
    let is_number = |operand: &Operand| *operand == Operand::BuiltIn(BuiltIn::NumWorkgroups);
    match module.annotations.iter().any(|annotation| annotation.operands.iter().any(is_number)) {
        false => Ok(()),
        true => Err(mismatch("grid", "a kernel that does not read the number of workgroups", "NumWorkgroups")),
    }
}

fn check_bindings(module: &Module, spec: &KernelSpec) -> Result<(), EmitError> {
    let bound = module.annotations.iter().filter_map(|annotation| match annotation.operands[..] {
        [Operand::IdRef(_), Operand::Decoration(Decoration::Binding), Operand::LiteralBit32(number)] => Some(number),
        _ => None,
    });
    let found: BTreeSet<u32> = bound.collect();
    let storage = module.types_global_values.iter().filter(|instruction| {
        instruction.class.opcode == Op::Variable
            && instruction.operands.first() == Some(&Operand::StorageClass(StorageClass::StorageBuffer))
    });
    // naga leaves out a buffer that the kernel does not access, so there may be fewer.
    let expected: BTreeSet<u32> = (0..spec.bindings().len() as u32).collect();
    if !found.is_subset(&expected) || storage.count() != found.len() {
        return Err(mismatch("bindings", format!("{expected:?}"), format!("{found:?}")));
    }
    Ok(())
}

pub(crate) fn mismatch(what: &str, expected: impl ToString, found: impl ToString) -> EmitError {
    EmitError::Check { what: what.into(), expected: expected.to_string(), found: found.to_string() }
}

#[cfg(test)]
mod tests {
    use rspirv::dr::Instruction;

    use super::*;

    #[test]
    fn the_workgroup_id_is_allowed_and_the_number_of_workgroups_is_not() {
        let with = |builtin| {
            let operands = vec![Operand::IdRef(1), Operand::Decoration(Decoration::BuiltIn), Operand::BuiltIn(builtin)];
            let mut module = Module::new();
            module.annotations.push(Instruction::new(Op::Decorate, None, None, operands));
            check_grid(&module)
        };
        assert!(with(BuiltIn::WorkgroupId).is_ok());
        let error = with(BuiltIn::NumWorkgroups).unwrap_err().to_string();
        assert!(error.contains("NumWorkgroups"), "{error}");
    }
}
