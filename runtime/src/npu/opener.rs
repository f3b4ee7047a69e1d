//! Which NPU a model is loaded with.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use super::amdxdna::Amdxdna;
use super::driver::Driver;
use super::error::NpuError;
use super::xrt::Xrt;

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

type Open = dyn Fn() -> Result<Box<dyn Driver>, NpuError> + Send + Sync;

/// Opens the driver of an NPU; by default that of the kernel.
#[derive(Clone, Default)]
pub struct NpuOpener(Option<Arc<Open>>);

impl NpuOpener {
    /// Opens the driver that `open` returns, for tests.
    pub fn new(open: impl Fn() -> Box<dyn Driver> + Send + Sync + 'static) -> NpuOpener {
        NpuOpener::of(move || Ok(open()))
    }

    /// Opens AMD's own runtime (XRT), whose library is `library`; `None`: where it usually is.
    pub fn xrt(library: Option<PathBuf>) -> NpuOpener {
        NpuOpener::of(move || Ok(Box::new(Xrt::open(library.as_deref())?)))
    }

    fn of(open: impl Fn() -> Result<Box<dyn Driver>, NpuError> + Send + Sync + 'static) -> NpuOpener {
        NpuOpener(Some(Arc::new(open)))
    }

    /// # Errors
    /// Why there is no NPU, or why it cannot be used.
    pub fn open(&self) -> Result<Box<dyn Driver>, NpuError> {
        match &self.0 {
            Some(open) => open(),
            None => Ok(Box::new(Amdxdna::open(Path::new("/"))?)),
        }
    }
}

/// `amdxdna`, `xrt` or `xrt:FILE`.
impl FromStr for NpuOpener {
    type Err = String;

    fn from_str(name: &str) -> Result<NpuOpener, String> {
        match name.split_once(':').unwrap_or((name, "")) {
            ("amdxdna", "") => Ok(NpuOpener::default()),
            ("xrt", file) => Ok(NpuOpener::xrt((!file.is_empty()).then(|| file.into()))),
            _ => Err("expected amdxdna, xrt, or xrt:FILE with the library of XRT's C API".into()),
        }
    }
}

impl fmt::Debug for NpuOpener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "NpuOpener(another driver)" } else { "NpuOpener(amdxdna)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_named_and_a_missing_library_is_explained() {
        assert_eq!(format!("{:?}", "amdxdna".parse::<NpuOpener>().unwrap()), "NpuOpener(amdxdna)");
        assert!("xrt".parse::<NpuOpener>().is_ok());
        for wrong in ["", "xrt2", "amdxdna:/dev/accel/accel0"] {
            let error = wrong.parse::<NpuOpener>().unwrap_err();
            assert!(error.contains("expected amdxdna, xrt"), "{error}");
        }
        let missing: NpuOpener = "xrt:/nowhere/libxrt.so".parse().unwrap();
        let error = missing.open().err().expect("no library").to_string();
        assert!(error.contains("/nowhere/libxrt.so") && error.contains("libxrt-npu2"), "{error}");
        // A library that is not XRT's: the C library's mathematics.
        let other: NpuOpener = "xrt:libm.so.6".parse().unwrap();
        let error = other.open().err().expect("another library").to_string();
        assert!(error.contains("libm.so.6 without xrtDeviceOpen"), "{error}");
    }
}
