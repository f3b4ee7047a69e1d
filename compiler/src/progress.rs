//! [`Progress`]: receives the progress of a compile, and can cancel it.

use std::fmt::{self, Display};
use std::ops::ControlFlow;
use std::path::Path;

use crate::error::{CompileError, Result};
use crate::prediction::Prediction;

/// A part of the work, in the order in which a compile does them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// Reading the config and finding every tensor.
    Import,
    /// Building the graph, choosing all kernels, giving everything a place.
    Plan,
    /// Generating SPIR-V, a target at a time.
    Kernels,
    /// Estimating the mean square of each matrix's input, by column; INT4 alone.
    Importance,
    /// Quantising and writing weights, in bytes.
    Weights,
    /// Writing the small sections, and giving the file its name.
    Write,
    /// Writing the folder of dequantised weights.
    Export,
}

impl Stage {
    /// `import`, `plan`, `kernels`, `importance`, `weights`, `write` or `export`.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Import => "import",
            Stage::Plan => "plan",
            Stage::Kernels => "kernels",
            Stage::Importance => "importance",
            Stage::Weights => "weights",
            Stage::Write => "write",
            Stage::Export => "export",
        }
    }
}

impl Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl serde::Serialize for Stage {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Receives the progress of a compile, on the thread that called it. Returning `Break` ends the compile with
/// [`CompileError::Cancelled`]; nothing half-written is left.
pub trait Progress {
    /// `stage` begins; the amounts of its [`Progress::advance`] calls add up to `total`.
    fn stage(&mut self, stage: Stage, total: u64) -> ControlFlow<()> {
        let _ = (stage, total);
        ControlFlow::Continue(())
    }

    /// The plan is made, and the artifact will be as in `prediction`; called once, before any weight is read.
    fn planned(&mut self, prediction: &Prediction) -> ControlFlow<()> {
        let _ = prediction;
        ControlFlow::Continue(())
    }

    /// The current stage has advanced by `amount`: bytes in [`Stage::Weights`], items of the stage elsewhere.
    fn advance(&mut self, amount: u64) -> ControlFlow<()> {
        let _ = amount;
        ControlFlow::Continue(())
    }

    /// Path of a half-written file or folder, for a signal handler that ends the process; `None` once it has its final name or
    /// is removed. A compile that returns removes it itself.
    fn partial(&mut self, path: Option<&Path>) {
        let _ = path;
    }
}

/// Ignores all progress and never cancels.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {}

/// [`CompileError::Cancelled`] for `Break`.
pub(crate) fn check(flow: ControlFlow<()>) -> Result<()> {
    match flow {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(CompileError::Cancelled),
    }
}
