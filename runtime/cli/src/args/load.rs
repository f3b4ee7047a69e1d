//! Options of every command that loads a model.

use std::path::PathBuf;

use clap::value_parser;

use unicorn_artifact::Budget;
use unicorn_runtime::UploadPath;
use unicorn_runtime::npu::NpuOpener;

use super::{COMMON, DEVICE, EXPERT, MEMORY};

/// Which device, and how the model is loaded.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct LoadArgs {
    /// Number or name of the device
    ///
    /// Or part of its name, as `devices` lists them [default: the best GPU].
    #[arg(short, long, env = "UNICORN_DEVICE", hide_env_values = true, help_heading = COMMON)]
    pub device: Option<String>,
    /// Name of the artifact's target to run [default: the first that fits the device]
    #[arg(long, value_name = "NAME", help_heading = DEVICE, hide_short_help = true)]
    pub target: Option<String>,
    /// GGUF file with the vision tower of a MODEL that is compiled, which llama.cpp has beside that of the text model
    #[arg(long, value_name = "FILE", help_heading = COMMON, hide_short_help = true)]
    pub mmproj: Option<PathBuf>,
    /// Fewest tokens of an image, for a MODEL that is compiled and takes images of any size [default: as few as the model has]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..), help_heading = COMMON, hide_short_help = true)]
    pub image_min_tokens: Option<u32>,
    /// Most tokens of an image, for a MODEL that is compiled and takes images of any size [default: as many as the model permits, 1024 at most]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..), help_heading = COMMON, hide_short_help = true)]
    pub image_max_tokens: Option<u32>,
    /// Where the plan uses an NPU that is missing or fails, let the GPU do its work
    #[arg(long, help_heading = DEVICE, hide_short_help = true)]
    pub npu_optional: bool,
    /// Driver of the NPU: amdxdna (the kernel's, which needs nothing else) or xrt (AMD's runtime; xrt:FILE names its library) [default: amdxdna]
    #[arg(long, value_name = "DRIVER", help_heading = DEVICE, hide_short_help = true)]
    pub npu_driver: Option<NpuOpener>,
    /// Fetch a MODEL of the form oci://REGISTRY/NAME:TAG from a registry that has no TLS
    #[arg(long, help_heading = EXPERT, hide_short_help = true)]
    pub plain_http: bool,
    /// Memory budget of each tier, such as vram=8GiB,gtt=20GiB [default: all free memory]
    #[arg(long, value_name = "TIER=SIZE,…", help_heading = MEMORY, hide_short_help = true)]
    pub budget: Option<Budget>,
    /// Upload path of the weights: import (the mapped file itself), map (read into mapped device memory), host (read into host
    /// memory that is imported) or staging (copied on the device) [default: the fastest of the last three that the device supports]
    #[arg(long, value_name = "PATH", help_heading = MEMORY, hide_short_help = true)]
    pub residency: Option<UploadPath>,
    /// Read the weights past the page cache also where memory is plentiful; the next start reads the disk again
    #[arg(long, help_heading = MEMORY, hide_short_help = true)]
    pub direct_io: bool,
    /// Verify the weights in device memory against the artifact's hashes (the default)
    #[arg(long, overrides_with = "no_verify", help_heading = MEMORY, hide_short_help = true)]
    pub verify: bool,
    /// Do not verify the weights
    #[arg(long, overrides_with = "verify", help_heading = MEMORY, hide_short_help = true)]
    pub no_verify: bool,
    /// Compile kernels after the weights are loaded, not at the same time: a slower start, in which nothing disturbs the measured
    /// loading rate
    #[arg(long, help_heading = EXPERT, hide_short_help = true)]
    pub load_alone: bool,
    /// Longest time of one submission to the device, in milliseconds [default: 100]
    #[arg(long, value_name = "MS", value_parser = value_parser!(u32).range(1..), help_heading = EXPERT, hide_short_help = true)]
    pub submission_ms: Option<u32>,
    /// Compile every kernel again, and write no cache for the next start
    #[arg(long, help_heading = EXPERT, hide_short_help = true)]
    pub no_cache: bool,
    /// Run the compiler's choice of kernels, not the result of `tune`
    #[arg(long, help_heading = EXPERT, hide_short_help = true)]
    pub no_tune: bool,
    /// Synchronise dispatches with barriers only, without counters
    #[arg(long, help_heading = EXPERT, hide_short_help = true)]
    pub barriers: bool,
}

impl LoadArgs {
    /// The first of the options of a vision tower that is given. They have an effect on a compile only.
    pub fn option_of_vision(&self) -> Option<&'static str> {
        let options = [
            ("--mmproj", self.mmproj.is_some()),
            ("--image-min-tokens", self.image_min_tokens.is_some()),
            ("--image-max-tokens", self.image_max_tokens.is_some()),
        ];
        options.into_iter().find_map(|(option, is_given)| is_given.then_some(option))
    }
}
