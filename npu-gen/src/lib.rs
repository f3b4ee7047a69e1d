//! NPU designs for AMD XDNA1 (`npu1`: Phoenix, Hawk Point), from the shape of a product or of attention to MLIR-AIE.
//!
//! ```text
//! Problem ─ solve ─► GemmShape ─ gemm ─► Design ─ lower ─► Lowered ─ legal ─► usage, or faults
//!                                           │                 └──── interpret ─► outputs, by the twins' maths
//!                                           ├─ peano (C++ of the cores, a user's compiler) ─► machine code
//!                                           ├─ control (route, addresses, machine code) ─► CDO files, device image (PDI)
//!                                           ├─ stream ─► instruction stream (bytes), and back into commands of the interpreter
//!                                           └─ emit ─► MLIR, in the dialect of 2024 or of 2026
//! ```
//!
//! In: shapes. Out: text and bytes. The maths of the kernels and the layout of their operands are in [`unicorn_kernels::npu`]. This crate does
//! not depend on models, weights, Vulkan or a driver.
//!
//! There is no NPU and no compiler for its cores where this is developed: designs are emitted, checked against the device's limits and
//! simulated on the host. None was compiled to AIE2 machine code or run on hardware: [`peano`] does the former where a user has the compiler.

#![deny(missing_docs)]

// Lowest first.
pub mod design;
pub mod device;
pub mod lower;
pub mod rule;
pub mod shim;
pub mod switch;

pub mod addresses;
pub mod control;
pub mod peano;
pub mod route;

pub mod attention;
pub mod emit;
pub mod excluded;
pub mod gemm;
pub mod interpret;
pub mod legal;
pub mod passthrough;
pub mod solve;
pub mod stream;

// The packages whose types are part of this one's public signatures, so that one dependency is enough.
pub use unicorn_artifact;
pub use unicorn_kernels;

pub use design::Design;
pub use solve::{Problem, Solution, solve};
