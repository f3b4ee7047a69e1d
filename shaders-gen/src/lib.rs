//! How kernels become code: a [`KernelSpec`] and a [`Target`] in, a SPIR-V module out.
//!
//! `emit` is pure. It knows SPIR-V and target facts; it does not know models, weight values, files or plans.
//!
//! One route today: the spec's WGSL through naga (`wgsl`), then passes with rspirv: what naga's words lack or ask for in
//! vain is mended (`mend` and what it calls), and a last look drops names and checks that the words ask for what the spec and
//! the target say, and nothing else (`check`).

pub mod check;
pub mod error;
mod fences;
mod fragments;
mod loops;
pub mod matrices;
mod memory_model;
pub mod mend;
pub mod target;
pub mod wgsl;

pub use error::EmitError;
pub use target::Target;

use unicorn_kernels::KernelSpec;

/// One compiled kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelBinary {
    /// SPIR-V, entry point `main`.
    pub words: Vec<u32>,
    /// Storage buffers of descriptor set 0.
    pub bindings: u32,
}

/// SPIR-V for `spec` on `target`.
///
/// # Errors
/// [`EmitError`] when the WGSL does not validate or the words ask for more than the target has: a mistake of ours, or a
/// shape that no kernel can be made for.
pub fn emit(spec: &KernelSpec, target: &Target) -> Result<KernelBinary, EmitError> {
    let mut module = check::parse(&wgsl::compile(&spec.wgsl(), target)?)?;
    mend::mend(&mut module, spec);
    if target.keeps_loops {
        loops::keep(&mut module);
    }
    let words = check::strip_and_check(module, spec, target)?;
    Ok(KernelBinary { words, bindings: spec.bindings().len() as u32 })
}
