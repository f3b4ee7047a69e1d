//! `inspect` and `replan`: commands about an artifact, without a device.

use std::ffi::OsString;
use std::path::PathBuf;

use super::COMMON;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct InspectArgs {
    /// Artifact made by unicorn-compile
    #[arg(help_heading = None::<&str>)]
    pub artifact: PathBuf,
    /// Another artifact: show only the differences
    #[arg(long, value_name = "ARTIFACT")]
    pub diff: Option<PathBuf>,
    /// Write a self-contained HTML page with a map of the memory
    #[arg(long, value_name = "FILE", conflicts_with_all = ["diff", "json"])]
    pub html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct ReplanArgs {
    /// Artifact, and options as `unicorn-compile replan --help` lists them, such as --budget vram=8GiB,gtt=20GiB
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARTIFACT [OPTIONS]", help_heading = None::<&str>)]
    pub arguments: Vec<OsString>,
}
