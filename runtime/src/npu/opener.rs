//! Which NPU a model is loaded with.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::amdxdna::Amdxdna;
use super::driver::Driver;
use super::error::NpuError;

/// Whether a model whose plan uses an NPU needs one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NpuUse {
    /// The model does not load without an NPU, and a command that fails ends the step.
    #[default]
    Required,
    /// Without an NPU, or after a command that failed, the GPU does all of the work.
    Optional,
    /// The GPU does all of the work.
    Off,
}

/// Opens the driver of an NPU; by default that of the kernel.
#[derive(Clone, Default)]
pub struct NpuOpener(Option<Arc<dyn Fn() -> Box<dyn Driver> + Send + Sync>>);

impl NpuOpener {
    /// Opens the driver that `open` returns, for tests.
    pub fn new(open: impl Fn() -> Box<dyn Driver> + Send + Sync + 'static) -> NpuOpener {
        NpuOpener(Some(Arc::new(open)))
    }

    /// # Errors
    /// Why there is no NPU, or why it cannot be used.
    pub fn open(&self) -> Result<Box<dyn Driver>, NpuError> {
        match &self.0 {
            Some(open) => Ok(open()),
            None => Ok(Box::new(Amdxdna::open(Path::new("/"))?)),
        }
    }
}

impl fmt::Debug for NpuOpener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "NpuOpener(another driver)" } else { "NpuOpener(amdxdna)" })
    }
}
