//! MLIR of a design, in mlir-aie's dialects.
//!
//! [`module`] makes the operations, [`readable`] prints each in its own syntax, and with the feature `mlir` `generic` builds them
//! with melior, which verifies every dialect except `aie` and `aiex`, and prints the generic form.
//!
//! The dialects changed between 2024 (LLVM 19) and 2026: [`Dialect`] chooses.

mod attention;
mod body;
#[cfg(feature = "mlir")]
mod generic;
pub mod legalised;
mod module;
mod op;
mod readable;

pub use attention::SOFTMAX;
pub use body::{add_products, clear, epilogue_name, keep_scales};
#[cfg(feature = "mlir")]
pub use generic::{MlirError, context, generic, generic_text};
pub use module::{attention_functions, body_function, module};
pub use op::{Block, Module, Op, Region, Value, ValueInfo};
pub use readable::readable;

/// Version of mlir-aie that a text is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dialect {
    /// Version of summer 2024, with LLVM 19: `npu1_4col`, `aiex.runtime_sequence`.
    Y2024,
    /// Version of spring 2026: `npu1`, `aie.runtime_sequence`, offsets in links.
    Y2026,
}

impl Dialect {
    /// All versions.
    pub const ALL: [Dialect; 2] = [Dialect::Y2024, Dialect::Y2026];

    /// Name of the version: `2024` or `2026`.
    pub fn name(self) -> &'static str {
        match self {
            Dialect::Y2024 => "2024",
            Dialect::Y2026 => "2026",
        }
    }
}
