//! Converts f32 rows to the activation objects that an NPU program reads: INT8 codes with an f32 scale for each row and an integer for each row and group of k,
//! rotated as `npu::rotation` does.
//!
//! Layout: `npu::tile`; numbers: `npu::quantize::Activations`, which is the twin. One workgroup for the rows that share the integers of their groups, four of a
//! GEMM: it reads them three times, for each row's largest value, for each group's, and for the codes. Each lane has four values of k, and eight lanes exchange theirs to rotate a block.
//!
//! It may take rows before their RMS norm, whose weights it multiplies by. What the norm divides a row by becomes a part of the row's scale, by which a core multiplies
//! its sums in any case: the division is the program's epilogue.

mod spec;

pub use spec::NpuInputSpec;
