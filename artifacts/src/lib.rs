//! The artifact: the one file that `unicorn-compile` writes and `unicorn-run` maps.
//!
//! ```text
//!   0 ┌───────────────┐ header       64 bytes: magic, version, section count, file length, hash of the table
//!  64 ├───────────────┤ section table, 64 bytes an entry: kind, index, offset, length, BLAKE3
//!     ├───────────────┤ 64 KiB aligned sections, in the order of the table:
//!     │ weights 0..n  │   at most 1 GiB each, in exactly the bytes, order and alignment that the GPU reads
//!     │ metadata      │   Meta: the model's description, the file's origin, the errors of quantisation
//!     │ plan          │   Plan: where every byte is placed, and why
//!     │ kernels       │   Kernels: SPIR-V of each target, compressed, and its dispatch lists
//!     │ tokenizer     │   TokenizerSection: tokenizer.json, chat template, stop tokens
//!     │ npu           │   NpuSection, if there is one: programs of an NPU; its weights follow those of the GPU
//!     │ image         │   ImageSection, if the model has a vision tower, and its programs
//!     │ license       │   LicenseSection, if the model names one
//!     │ draft         │   the artifact of a smaller model, if one is packed into this
//!     └───────────────┘
//! ```
//!
//! This crate covers bytes, sections, number formats, plan records, the fit to a machine's memory, and the structure of SPIR-V. It
//! does not depend on the meaning of a tensor, on model families, on Vulkan or on what a kernel computes. `FORMAT.md` describes the
//! same byte by byte.
//!
//! Writer and reader are a pair: `write` asserts what `view` and `validate` check.

#![deny(missing_docs)]

pub mod account;
pub mod amount;
pub mod budget;
pub mod codebook;
pub mod codec;
pub mod device_class;
pub mod error;
pub mod fit;
pub mod fp4;
pub mod hash;
pub mod hazards;
pub mod header;
pub mod image;
pub mod int4;
pub mod kernels;
pub mod kv_segment;
pub mod license;
#[cfg(feature = "machines")]
pub mod machine;
pub mod map;
pub mod meta;
pub mod modules;
pub mod npu;
#[cfg(feature = "write")]
mod partial;
pub mod plan;
pub mod printable;
#[cfg(feature = "write")]
pub mod rewrite;
pub mod spirv;
pub mod step;
pub mod tokenizer;
pub mod validate;
pub mod view;
#[cfg(feature = "write")]
pub mod write;

pub use account::{Account, TierAccount};
pub use budget::Budget;
pub use device_class::DeviceClass;
pub use error::ParseError;
pub use image::{ImageGrid, ImageSection};
pub use kernels::{
    Alternative, Binding, BufferRef, Dispatch, Kernels, LogitsRows, MatrixSides, Order, Pipeline, Program,
    TargetKernels, TargetMatch,
};
pub use kv_segment::KvSegment;
pub use license::LicenseSection;
#[cfg(feature = "machines")]
pub use machine::Machine;
pub use map::{Lease, MappedFile};
pub use meta::{Meta, ModelMeta, Provenance, TensorReport};
#[cfg(feature = "write")]
pub use modules::Module;
pub use modules::{MatrixElement, MatrixShape, ModuleNeeds, ModuleRecord, ModuleSet};
pub use npu::{
    NpuArgument, NpuCommand, NpuDecision, NpuEstimate, NpuProduct, NpuProgram, NpuSchedule, NpuSection, NpuShape,
    NpuSteps, NpuTileUse,
};
pub use plan::{
    ActivationPlan, BufferPlan, KvGroupPlan, MachinePlan, Plan, Reader, SlicePlan, Tier, TierPlan, WeightPlan,
};
pub use printable::printable;
pub use tokenizer::TokenizerSection;
pub use view::{ArtifactView, ReadError};
#[cfg(feature = "write")]
pub use write::ArtifactWriter;
