//! The last look at a module: names are dropped, and what the words ask for must be what the spec and the target say.

use std::collections::BTreeSet;

use rspirv::binary::Assemble;
use rspirv::dr::{Module, Operand};
use rspirv::spirv::{BuiltIn, Capability, Decoration, ExecutionMode, Op, StorageClass};
use unicorn_kernels::KernelSpec;

use crate::error::EmitError;
use crate::target::Target;

/// The module of these words.
pub fn parse(words: &[u32]) -> Result<Module, EmitError> {
    rspirv::dr::load_words(words).map_err(|error| mismatch("module", "to parse", error))
}

/// Drops debug names and checks entry point, capabilities, workgroup size, grid and bindings.
pub fn strip_and_check(mut module: Module, spec: &KernelSpec, target: &Target) -> Result<Vec<u32>, EmitError> {
    module.debug_string_source.clear();
    module.debug_names.clear();
    check_capabilities(&module, target)?;
    check_workgroup(&module, target)?;
    check_grid(&module)?;
    check_bindings(&module, spec)?;
    Ok(module.assemble())
}

/// Capabilities that a module declares.
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

fn check_capabilities(module: &Module, target: &Target) -> Result<(), EmitError> {
    let allowed = target.capabilities();
    match capabilities(module).difference(&allowed).next() {
        None => Ok(()),
        Some(extra) => Err(mismatch("capabilities", format!("a subset of {allowed:?}"), format!("{extra:?}"))),
    }
}

fn check_workgroup(module: &Module, target: &Target) -> Result<(), EmitError> {
    let size = module.execution_modes.iter().find_map(|mode| match mode.operands[..] {
        [
            _,
            Operand::ExecutionMode(ExecutionMode::LocalSize),
            Operand::LiteralBit32(x),
            Operand::LiteralBit32(y),
            Operand::LiteralBit32(z),
        ] => Some(u64::from(x) * u64::from(y) * u64::from(z)),
        _ => None,
    });
    match size {
        Some(size) if size <= target.workgroup_invocations as u64 => Ok(()),
        found => Err(mismatch(
            "workgroup size",
            format!("at most {} lanes", target.workgroup_invocations),
            format!("{found:?}"),
        )),
    }
}

/// The runtime may submit a grid in bands: then the number of workgroups is that of the band.
fn check_grid(module: &Module) -> Result<(), EmitError> {
    let asks = |operand: &Operand| *operand == Operand::BuiltIn(BuiltIn::NumWorkgroups);
    match module.annotations.iter().any(|annotation| annotation.operands.iter().any(asks)) {
        false => Ok(()),
        true => Err(mismatch("grid", "a kernel that does not ask for the number of workgroups", "NumWorkgroups")),
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
    // A buffer that the code never reads may be missing from the words, never one too many.
    let expected: BTreeSet<u32> = (0..spec.bindings().len() as u32).collect();
    if !found.is_subset(&expected) || storage.count() != found.len() {
        return Err(mismatch("bindings", format!("{expected:?}"), format!("{found:?}")));
    }
    Ok(())
}

fn mismatch(what: &str, expected: impl ToString, found: impl ToString) -> EmitError {
    EmitError::Check { what: what.into(), expected: expected.to_string(), found: found.to_string() }
}

#[cfg(test)]
mod tests {
    use rspirv::dr::Instruction;

    use super::*;

    #[test]
    fn a_kernel_knows_where_it_is_but_not_how_many_there_are() {
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
