//! Replaces `mlir` in a build without MLIR.

use super::options::{NpuOptions, NpuTexts};
use crate::Planned;
use crate::error::{CompileError, Result};

/// No programs: this build has no MLIR.
///
/// # Errors
/// [`CompileError::NoMlir`], always.
pub fn npu_mlir(_planned: &Planned, _options: &NpuOptions, _dialect: &str) -> Result<NpuTexts> {
    Err(CompileError::NoMlir)
}
