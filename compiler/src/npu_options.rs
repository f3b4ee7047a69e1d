//! What is requested when NPU programs are made, and what comes out.

/// Which NPU programs to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NpuOptions {
    /// Tokens of a prefill step.
    pub rows: usize,
    /// Columns of the array, 1 to 4.
    pub columns: usize,
    /// Version of mlir-aie's dialects: `2024` or `2026`.
    pub dialect: String,
}

/// The program of one shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NpuProgram {
    /// Columns and depth of the product, such as `6144x4096`, and its activation.
    pub name: String,
    /// Why its tiles have their sizes, for people.
    pub explanation: String,
    /// MLIR in each operation's own syntax.
    pub readable: String,
    /// MLIR in the generic form.
    pub generic: String,
    /// What the NPU's firmware does for one command: the host's transfers, encoded.
    pub instructions: Vec<u8>,
}
