//! What may not be in a kernel for the 780M, and what may not be missing.

use super::Kernel;
use super::instructions::Class;

/// A family of kernels that must be built on a class of instructions.
pub struct Expectation {
    pub family: &'static str,
    /// All are part of the kernel's name.
    name_parts: &'static [&'static str],
    /// The kernel is part of a program of so many rows.
    min_rows: u32,
    max_rows: u32,
    needs: Class,
}

/// What the fast kernels are fast by.
pub const EXPECTATIONS: [Expectation; 2] = [
    Expectation {
        family: "decode matmuls of INT4",
        name_parts: &["matmul", "int4"],
        min_rows: 1,
        max_rows: 8,
        needs: Class::PackedDot,
    },
    Expectation {
        family: "prefill matmuls of INT4",
        name_parts: &["int4"],
        min_rows: 16,
        max_rows: 512,
        needs: Class::Matrix,
    },
];

/// Everything that is wrong with a model's kernels, one line each. Spills, and classes that the words promise and the
/// machine code lacks, are wrong, and so is a kernel that does not meet its [`EXPECTATIONS`].
pub fn broken(model: &str, kernels: &[Kernel]) -> Vec<String> {
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
            if !kernel.words.promised.contains(&expectation.needs) {
                let Expectation { family, needs, .. } = expectation;
                say(format!("{family}: expected SPIR-V with {}, found none", needs.name()));
            }
        }
    }
    found
}

impl Expectation {
    fn is_for(&self, kernel: &Kernel) -> bool {
        self.name_parts.iter().all(|part| kernel.name.contains(part))
            && kernel.rows.iter().any(|rows| (self.min_rows..=self.max_rows).contains(rows))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use unicorn_kernels::KernelSpec;
    use unicorn_kernels::sample::SampleSpec;
    use unicorn_runtime::{Executable, Representation};

    use super::*;
    use crate::phoenix::instructions::Words;

    fn kernel(rows: u32, promised: &[Class], spilled_vgprs: f64, assembly: &str) -> Kernel {
        let statistics = [("Spilled VGPRs", spilled_vgprs), ("Spilled SGPRs", 0.0), ("Scratch size", 0.0)];
        Kernel {
            name: "matmul 8×32 int4/32 ×1".into(),
            spec: KernelSpec::Sample(SampleSpec {
                vocab: 8,
                logits_stride: 32,
                workgroup: 32,
                subgroup_size: 32,
                counter_sync: false,
            }),
            rows: BTreeSet::from([rows]),
            words: Words { promised: promised.iter().copied().collect(), lanes: 32 },
            executable: Executable {
                name: "compute".into(),
                subgroup_size: 32,
                statistics: statistics.map(|(name, value)| (name.to_owned(), value)).to_vec(),
                representations: vec![Representation { name: "Assembly".into(), text: assembly.into() }],
            },
        }
    }

    const DOT: (&[Class], &str) = (&[Class::PackedDot], "\tv_dot4_i32_iu8 v0, v1, v2, v0");

    #[test]
    fn a_spill_is_always_wrong() {
        let found = broken("a model", &[kernel(1, DOT.0, 0.0, DOT.1), kernel(1, DOT.0, 3.0, DOT.1)]);
        assert_eq!(found, ["a model: pipeline 1, matmul 8×32 int4/32 ×1: Spilled VGPRs: expected 0, found 3"]);
    }

    #[test]
    fn what_the_words_promise_must_be_in_the_machine_code() {
        let kept = kernel(1, DOT.0, 0.0, DOT.1);
        let lost = kernel(512, &[Class::Matrix], 0.0, "\tv_fma_f32 v0, v1, v2, v0");
        let found = broken("a model", &[kept, lost]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("pipeline 1") && found[0].contains("v_wmma"), "{found:?}");
    }

    #[test]
    fn kernel_families_have_their_instructions() {
        let found = broken("a model", &[kernel(1, &[], 0.0, ""), kernel(512, &[], 0.0, "")]);
        assert!(
            found[0].contains("decode matmuls of INT4") && found[1].contains("prefill matmuls of INT4"),
            "{found:?}"
        );
    }
}
