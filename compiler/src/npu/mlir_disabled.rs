//! Replaces `mlir` in a build without MLIR.

use super::options::{NpuMlir, NpuOptions};
use crate::Planned;
use crate::error::{CompileError, Result};

/// No programs: this build has no MLIR.
///
/// # Errors
/// [`CompileError::NoMlir`], always.
pub fn npu_mlir(_planned: &Planned, _options: &NpuOptions, _dialect: &str) -> Result<Vec<NpuMlir>> {
    Err(CompileError::NoMlir)
}
