//! Compiles kernels: from a [`KernelSpec`] and a [`Target`] to a SPIR-V module.
//!
//! ```text
//! KernelSpec ── wgsl() ──► WGSL ── naga ──► SPIR-V ── passes ──► checked words
//! ```
//!
//! [`emit`] is a pure function. This crate handles SPIR-V and facts about kinds of devices; models, weight values, files and plans
//! are outside of it.

#![deny(missing_docs)]

pub mod check;
mod error;
mod needs;
mod passes;
pub mod target;
mod wgsl;

// The packages whose types are part of this one's public signatures, so that one dependency is enough.
pub use unicorn_artifact;
pub use unicorn_kernels;

pub use error::EmitError;
pub use target::Target;

use unicorn_artifact::ModuleNeeds;
use unicorn_artifact::spirv::{self, Limits};
use unicorn_kernels::KernelSpec;

/// One compiled kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelBinary {
    /// A SPIR-V module with entry point `main`.
    pub words: Vec<u32>,
    /// Storage buffers of descriptor set 0.
    pub bindings: u32,
    /// The module's requirements of a device.
    pub needs: ModuleNeeds,
}

/// SPIR-V for `spec` on `target`.
///
/// # Errors
/// [`EmitError`] when the WGSL does not validate, or the module needs more than the target has: a bug in a kernel, or a
/// shape that no kernel exists for.
pub fn emit(spec: &KernelSpec, target: &Target) -> Result<KernelBinary, EmitError> {
    let mut module = check::parse(&wgsl::compile(&spec.wgsl(), target)?)?;
    passes::lower_intrinsics(&mut module)?;
    if let Some(shape) = spec.fragment_shape() {
        passes::shape_matrices(&mut module, shape);
    }
    passes::drop_16bit_storage(&mut module);
    passes::drop_workgroup_layout(&mut module);
    passes::initialize_matrices(&mut module);
    passes::apply_vulkan_memory_model(&mut module);
    if target.keeps_loops {
        passes::keep_loops(&mut module);
    }
    let words = check::check_and_strip(&mut module, spec, target)?;
    let needs = needs::needs(&module, target)?;
    let bindings = spec.bindings();
    let writable = bindings.iter().rev().fold(0, |bits, one| bits << 1 | u32::from(one.writes));
    let bindings = bindings.len() as u32;
    let limits = Limits { needs: &needs, bindings, writable, shared_memory_bytes: target.shared_memory_bytes as u32 };
    // What the runtime will check before a driver reads it.
    spirv::check(&words, &limits)?;
    Ok(KernelBinary { words, bindings, needs })
}
