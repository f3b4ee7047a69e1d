//! Converts the outputs of an NPU program, rows of bf16, to f32 rows without rounding.

mod spec;

pub use spec::NpuOutputSpec;
