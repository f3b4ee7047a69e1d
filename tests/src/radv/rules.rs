//! What a kernel must not contain, and what it must.

use unicorn_kernels::KernelSpec;

use super::Kernel;
use super::family::Family;
use super::instructions::{Class, matrix_operand_registers};

/// Kernels that must be built on the best class of instructions that the target has for them.
pub struct Expectation {
    pub family: &'static str,
    /// All are part of the kernel's name.
    name_parts: &'static [&'static str],
    /// Rows of the programs that the kernel is part of.
    min_rows: u32,
    max_rows: u32,
}

/// Instructions on which the speed of the fast kernels depends.
pub const EXPECTATIONS: [Expectation; 2] = [
    Expectation { family: "decode matmuls of INT4", name_parts: &["matmul", "int4"], min_rows: 1, max_rows: 8 },
    Expectation { family: "prefill matmuls of INT4", name_parts: &["int4"], min_rows: 16, max_rows: 512 },
];

/// Everything that is wrong with a model's kernels, one line each. Spills, and classes that the words declare and the
/// machine code lacks, are wrong, and so is a kernel that does not meet its
/// [`EXPECTATIONS`], or that has matrix products in the form of another generation.
pub fn broken(model: &str, kernels: &[Kernel], family: &Family) -> Vec<String> {
    let target = family.target();
    let dots = target.integer_dot.then_some(Class::PackedDot);
    let matrices = target.matrix.as_ref().map(|_| Class::Matrix).or(dots);
    let mut found = Vec::new();
    for (index, kernel) in kernels.iter().enumerate() {
        let mut say = |what: String| found.push(format!("{model}: pipeline {index}, {}: {what}", kernel.name));
        for counter in ["Spilled VGPRs", "Spilled SGPRs", "Scratch size"] {
            let value = kernel.statistic(counter);
            if value > 0 {
                say(format!("{counter}: expected 0, found {value}"));
            }
        }
        for class in &kernel.words.promised {
            if kernel.count(*class) == 0 {
                say(format!("machine code: expected {}, as the SPIR-V requires; found none", class.name()));
            }
        }
        for expectation in EXPECTATIONS.iter().filter(|expectation| expectation.is_for(kernel)) {
            let needs = if expectation.min_rows > 1 { matrices } else { dots };
            if let Some(needs) = needs.filter(|needs| !kernel.words.promised.contains(needs)) {
                let Expectation { family, .. } = expectation;
                say(format!("{family}: expected SPIR-V with {}, found none", needs.name()));
            }
        }
        let expected = family.matrix_operand_registers;
        for found in matrix_operand_registers(kernel.assembly()).into_iter().filter(|found| *found != expected) {
            say(format!("matrix products: expected operands of {expected} registers, found {found}"));
        }
    }
    found
}

impl Expectation {
    fn is_for(&self, kernel: &Kernel) -> bool {
        let is_in_range = |rows: &u32| (self.min_rows..=self.max_rows).contains(rows);
        let meets_rows = match rows_of_expert(&kernel.spec) {
            Some(rows) => is_in_range(&rows),
            None => kernel.rows.iter().any(is_in_range),
        };
        self.name_parts.iter().all(|part| kernel.name.contains(part)) && meets_rows
    }
}

/// How many rows of a step a workgroup multiplies by the matrix of one expert, where a step gives few to each; `None`: all rows by all of it.
fn rows_of_expert(spec: &KernelSpec) -> Option<u32> {
    let experts = match spec {
        KernelSpec::MatMul(spec) => spec.experts,
        KernelSpec::Gemm(spec) => spec.product.experts,
        KernelSpec::RegisterGemm(spec) => spec.product.experts,
        _ => None,
    };
    experts.map(|experts| experts.tiles.map_or(1, |tiles| tiles.tile_rows as u32))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use unicorn_kernels::sample::SampleSpec;
    use unicorn_runtime::Executable;

    use super::*;
    use crate::radv::instructions::Words;

    fn kernel(rows: u32, promised: &[Class], spilled_vgprs: f64, assembly: &str) -> Kernel {
        let statistics = [("Spilled VGPRs", spilled_vgprs), ("Spilled SGPRs", 0.0), ("Scratch size", 0.0)];
        Kernel {
            name: "matmul 8×32 int4/32 ×1".into(),
            spec: KernelSpec::Sample(SampleSpec {
                vocab: 8,
                logits_stride: 32,
                workgroup: 32,
                subgroup_size: 32,
                keeps_rope_word: false,
                counter_sync: false,
            }),
            rows: BTreeSet::from([rows]),
            words: Words { promised: promised.iter().copied().collect(), lanes: 32 },
            assembly: assembly.into(),
            executable: Executable {
                name: "compute".into(),
                subgroup_size: 32,
                statistics: statistics.map(|(name, value)| (name.to_owned(), value)).to_vec(),
                representations: Vec::new(),
            },
        }
    }

    const DOT: (&[Class], &str) = (&[Class::PackedDot], "\tv_dot4_i32_iu8 v0, v1, v2, v0");

    fn on_phoenix(kernels: &[Kernel]) -> Vec<String> {
        broken("a model", kernels, Family::named("phoenix").unwrap())
    }

    #[test]
    fn matrix_products_have_the_form_of_the_generation() {
        let of_gfx12 = "\tv_wmma_f32_16x16x16_f16 v[0:7], v[8:11], v[12:15], v[0:7]";
        let found = on_phoenix(&[kernel(512, &[Class::Matrix], 0.0, of_gfx12)]);
        assert!(found.len() == 1 && found[0].ends_with("expected operands of 8 registers, found 4"), "{found:?}");
    }

    #[test]
    fn a_target_without_matrices_is_held_to_packed_dots_and_one_without_those_to_nothing() {
        let kernels = [kernel(512, &[], 0.0, "")];
        let found = broken("a model", &kernels, Family::named("navi21").unwrap());
        assert!(found.len() == 1 && found[0].contains("v_dot4"), "{found:?}");
        assert_eq!(broken("a model", &kernels, Family::named("renoir").unwrap()), [""; 0]);
    }

    #[test]
    fn a_spill_is_always_wrong() {
        let found = on_phoenix(&[kernel(1, DOT.0, 0.0, DOT.1), kernel(1, DOT.0, 3.0, DOT.1)]);
        assert_eq!(found, ["a model: pipeline 1, matmul 8×32 int4/32 ×1: Spilled VGPRs: expected 0, found 3"]);
    }

    #[test]
    fn what_the_words_promise_must_be_in_the_machine_code() {
        let kept = kernel(1, DOT.0, 0.0, DOT.1);
        let lost = kernel(512, &[Class::Matrix], 0.0, "\tv_fma_f32 v0, v1, v2, v0");
        let found = on_phoenix(&[kept, lost]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("pipeline 1") && found[0].contains("v_wmma"), "{found:?}");
    }

    #[test]
    fn kernel_families_have_their_instructions() {
        let found = on_phoenix(&[kernel(1, &[], 0.0, ""), kernel(512, &[], 0.0, "")]);
        assert!(
            found[0].contains("decode matmuls of INT4") && found[1].contains("prefill matmuls of INT4"),
            "{found:?}"
        );
    }
}
