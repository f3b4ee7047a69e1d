//! What a kernel's golden shows: its WGSL as it is compiled, the capabilities of its module, and how many instructions of each
//! class that has. Thousands of lines of SPIR-V would add nothing for a reader.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use rspirv::dr::{Instruction, Module};
use rspirv::spirv::Op;
use unicorn_spirv::check::capabilities;

use super::settings::KernelSettings;

/// The text form of a kernel, after `require` and `forbid` were checked.
pub fn describe(settings: &KernelSettings) -> Result<String, String> {
    let binary = unicorn_spirv::emit(&settings.kernel, &settings.target()?).map_err(|error| error.to_string())?;
    let module = rspirv::dr::load_words(&binary.words).map_err(|error| error.to_string())?;
    let declared: BTreeSet<String> = capabilities(&module).into_iter().map(|one| format!("{one:?}")).collect();
    if let Some(missing) = settings.require.iter().find(|one| !declared.contains(*one)) {
        return Err(format!("capability {missing} is required, the module declares {declared:?}"));
    }
    if let Some(forbidden) = settings.forbid.iter().find(|one| declared.contains(*one)) {
        return Err(format!("capability {forbidden} is forbidden, the module declares {declared:?}"));
    }
    let mut text = String::new();
    writeln!(text, "capabilities {}", declared.into_iter().collect::<Vec<_>>().join(" ")).expect("writing to a String");
    for (class, count) in instruction_counts(&module) {
        writeln!(text, "{class:12} {count}").expect("writing to a String");
    }
    text.push('\n');
    text += &settings.kernel.wgsl();
    Ok(text)
}

/// Instructions in functions, by class, in the order of the names.
fn instruction_counts(module: &Module) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    let blocks = module.functions.iter().flat_map(|function| &function.blocks);
    for instruction in blocks.flat_map(|block| &block.instructions) {
        *counts.entry(class(instruction)).or_default() += 1;
    }
    counts
}

fn class(instruction: &Instruction) -> &'static str {
    let opcode = instruction.class.opcode;
    let name = instruction.class.opname;
    match opcode {
        Op::Load => "load",
        Op::Store => "store",
        Op::AccessChain | Op::InBoundsAccessChain | Op::PtrAccessChain | Op::Variable => "address",
        Op::CompositeConstruct
        | Op::CompositeExtract
        | Op::CompositeInsert
        | Op::VectorShuffle
        | Op::VectorExtractDynamic
        | Op::CopyObject => "composite",
        Op::ControlBarrier | Op::MemoryBarrier => "barrier",
        Op::ExtInst => "extended",
        Op::Bitcast => "bitcast",
        Op::Label
        | Op::Phi
        | Op::Branch
        | Op::BranchConditional
        | Op::Switch
        | Op::LoopMerge
        | Op::SelectionMerge
        | Op::Return
        | Op::ReturnValue
        | Op::FunctionCall
        | Op::Unreachable => "control",
        _ if name.starts_with("CooperativeMatrix") => "cooperative",
        _ if name.starts_with("GroupNonUniform") => "subgroup",
        _ if name.starts_with("Atomic") => "atomic",
        _ if name.contains("Dot") => "dot",
        _ if name.starts_with("Convert") || name.ends_with("Convert") => "convert",
        _ if name.starts_with("Bit") || name.starts_with("Shift") || name == "Not" => "bits",
        _ if ["Equal", "Less", "Greater", "Logical", "Select", "Is", "Any", "All"]
            .iter()
            .any(|part| name.contains(part)) =>
        {
            "compare"
        }
        _ => "arithmetic",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_have_their_class() {
        let class_of = |opcode| class(&Instruction::new(opcode, None, None, vec![]));
        let expected = [
            (Op::FMul, "arithmetic"),
            (Op::SDotAccSat, "dot"),
            (Op::CooperativeMatrixMulAddKHR, "cooperative"),
            (Op::GroupNonUniformFAdd, "subgroup"),
            (Op::AtomicIAdd, "atomic"),
            (Op::ConvertSToF, "convert"),
            (Op::FConvert, "convert"),
            (Op::ShiftRightLogical, "bits"),
            (Op::FOrdLessThan, "compare"),
            (Op::Select, "compare"),
        ];
        for (opcode, class) in expected {
            assert_eq!(class_of(opcode), class, "{opcode:?}");
        }
    }
}
