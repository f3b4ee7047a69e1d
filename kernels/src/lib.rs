//! What each kernel means: its parameters, its bindings, its WGSL and a plain CPU twin to check it by.
//!
//! In: a [`KernelSpec`], in which every shape is a number. Out: WGSL text and the list of bindings it expects; or, from
//! the twin, the same result by loops that are written to be read. This crate does not depend on model files, placement,
//! SPIR-V or devices; what suits a device is given as numbers in a spec (tile sizes, subgroup size).
//!
//! A step runs over *rows*: the tokens of this step, each with a position and a sequence (see `unicorn_artifact::step`).
//! Activations are row-major, one row a token: f32, or a format of `activation_format`.

#![deny(missing_docs)]

// The vocabulary, lowest first.
pub mod activation;
pub mod activation_format;
pub mod cache;
pub mod fragment_shape;
pub mod intrinsics;
pub mod layout;
pub mod number;
pub mod recurrent_state;
pub mod role;
pub mod split;
mod template;
// What kernels of several families share.
pub mod completion;
pub mod counter_sync;
pub mod fixed_sums;
pub mod fused_tail;
mod kernel;
pub mod lane_tile;
// Families.
pub mod altup;
pub mod attention;
pub mod bandwidth_probe;
pub mod checksum;
pub mod combine;
pub mod decode_attention;
pub mod delta_chunks;
pub mod delta_rule;
pub mod dot_gemm;
pub mod elementwise;
pub mod embed;
pub mod every_matrix;
pub mod expert_rows;
pub mod expert_sum;
pub mod flash;
pub mod float_gemm;
pub mod fragments;
pub mod gated_norm;
pub mod gemm;
pub mod head_columns;
pub mod heads;
pub mod image_attention;
pub mod image_pool;
pub mod image_positions;
pub mod image_rope;
pub mod laurel;
pub mod layer_norm;
pub mod matmul;
pub mod norm;
pub mod npu;
pub mod npu_input;
pub mod npu_output;
pub mod previous_row;
pub mod quantize;
pub mod register_gemm;
pub mod route;
pub mod sample;
pub mod short_conv;
pub mod sparse_act_mul;
pub mod streams;
// All of them.
pub mod spec;

// The packages whose types are part of this one's public signatures, so that one dependency is enough.
pub use unicorn_artifact;

pub use activation::Activation;
pub use activation_format::{ActivationFormat, Precision};
pub use cache::{CacheLayout, KvFormat};
pub use kernel::RowAxis;
pub use layout::{WeightFormat, WeightLayout};
pub use number::Number;
pub use recurrent_state::StateLayout;
pub use role::{BindingSpec, Role};
pub use spec::KernelSpec;
