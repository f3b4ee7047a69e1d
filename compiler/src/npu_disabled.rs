//! What takes the place of `npu` in a build without MLIR.

use crate::Planned;
use crate::error::{CompileError, Result};
use crate::npu_options::{NpuOptions, NpuProgram};

/// No programs: this build has no MLIR.
///
/// # Errors
/// [`CompileError::Option`], always, with what to install and to build.
pub fn npu_programs(_planned: &Planned, _options: &NpuOptions) -> Result<Vec<NpuProgram>> {
    let what = "this unicorn-compile was built without NPU programs, expected the feature npu; with LLVM and MLIR 19 installed \
                (docs/npu.md lists the packages): cargo build --release -p unicorn-compiler --features npu"
        .to_owned();
    Err(CompileError::Option { option: "npu", what })
}
