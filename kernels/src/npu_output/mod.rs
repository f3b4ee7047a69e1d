//! The outputs of an NPU program, rows of bf16, as f32 rows: the same numbers.

mod spec;

pub use spec::NpuOutputSpec;
