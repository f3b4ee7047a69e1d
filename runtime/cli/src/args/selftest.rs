//! `selftest` and `npu-selftest`.

use std::path::PathBuf;

use clap::value_parser;
use unicorn_runtime::npu::NpuOpener;

use super::{COMMON, DEVICE, LoadArgs, MAX_SEQUENCES};

/// The target whose kernels use the least of a device.
pub const CONSERVATIVE: &str = "generic";

#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct SelftestArgs {
    /// Artifact, GGUF file or Hugging Face folder; wrong kernels are written to ARTIFACT.selftest.json
    #[arg(value_name = "MODEL", help_heading = None::<&str>)]
    pub artifact: PathBuf,
    /// Target of the artifact whose kernels are taken to be right
    #[arg(long, value_name = "NAME", default_value = CONSERVATIVE)]
    pub against: String,
    /// Seconds after which no further check begins, not counting the load
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Maximum number of sequences of a step that is checked; fewer where the memory holds fewer
    #[arg(short, long, value_name = "N", default_value_t = MAX_SEQUENCES as u32, value_parser = value_parser!(u32).range(1..=MAX_SEQUENCES))]
    pub sequences: u32,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub load: LoadArgs,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct NpuSelftestArgs {
    /// Driver of the NPU: amdxdna (the kernel's) or xrt (AMD's runtime; xrt:FILE names its library) [default: amdxdna]
    #[arg(long, value_name = "DRIVER", help_heading = DEVICE)]
    pub npu_driver: Option<NpuOpener>,
    /// Artifact that was compiled with --npu
    #[arg(value_name = "ARTIFACT", help_heading = None::<&str>)]
    pub artifact: PathBuf,
    /// Device number or part of its name, as `devices` lists them [default: the best GPU]
    #[arg(short, long, env = "UNICORN_DEVICE", help_heading = DEVICE)]
    pub device: Option<String>,
}
