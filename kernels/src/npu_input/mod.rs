//! Converts f32 rows to the activation objects that an NPU program reads: INT8 codes with an f32 scale for each row, rotated as
//! `npu::rotation` does.
//!
//! Layout: `npu::tile`; numbers: `npu::quantize::Activations`, which is the twin. One workgroup a row, because a row has one scale.

mod spec;

pub use spec::NpuInputSpec;
