//! What takes the place of `mlir` in a build without MLIR.

use super::options::{NpuMlir, NpuOptions};
use crate::Planned;
use crate::error::{CompileError, Result};

/// No programs: this build has no MLIR.
///
/// # Errors
/// [`CompileError::Option`], always, with what to install and to build.
pub fn npu_mlir(_planned: &Planned, _options: &NpuOptions, _dialect: &str) -> Result<Vec<NpuMlir>> {
    let what = "this unicorn-compile was built without MLIR of NPU programs, expected the feature npu; with LLVM and MLIR 19 installed \
                (docs/npu.md lists the packages): cargo build --release -p unicorn-compiler --features npu"
        .to_owned();
    Err(CompileError::Option { option: "npu", what })
}
