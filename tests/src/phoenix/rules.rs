//! What may not be in a kernel for the 780M, and what may not be missing.

use super::instructions::Class;
use super::{CompiledModel, Kernel};

/// A family of kernels that must be built on a class of instructions.
pub struct Expectation {
    pub family: &'static str,
    /// All are part of the kernel's name.
    name_parts: &'static [&'static str],
    /// The kernel is part of a program of so many rows.
    least_rows: u32,
    most_rows: u32,
    needs: Class,
}

/// What the fast kernels are fast by.
pub const EXPECTATIONS: [Expectation; 2] = [
    Expectation {
        family: "decode matmuls of INT4",
        name_parts: &["matmul", "int4"],
        least_rows: 1,
        most_rows: 8,
        needs: Class::PackedDot,
    },
    Expectation {
        family: "prefill matmuls of INT4",
        name_parts: &["matmul", "int4"],
        least_rows: 64,
        most_rows: 512,
        needs: Class::Matrix,
    },
];

/// Everything that is wrong with a model's kernels, one line each. Spills, and classes that the words promise and the
/// machine code lacks, are always wrong; `require_classes` also holds every kernel against [`EXPECTATIONS`].
pub fn broken(model: &CompiledModel, require_classes: bool) -> Vec<String> {
    let mut found = Vec::new();
    for (index, kernel) in model.kernels.iter().enumerate() {
        let mut say = |what: String| found.push(format!("{}: pipeline {index}, {}: {what}", model.name, kernel.name));
        for counter in ["Spilled VGPRs", "Spilled SGPRs", "Scratch size"] {
            let value = kernel.statistic(counter);
            if value > 0 {
                say(format!("{counter}: expected 0, found {value}"));
            }
        }
        for class in &kernel.words.promised {
            if kernel.count(*class) == 0 {
                say(format!("machine code: expected {}, as the SPIR-V asks for; found none", class.name()));
            }
        }
        for expectation in EXPECTATIONS.iter().filter(|expectation| require_classes && expectation.is_for(kernel)) {
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
            && kernel.rows.iter().any(|rows| (self.least_rows..=self.most_rows).contains(rows))
    }
}
