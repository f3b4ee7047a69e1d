//! `inspect` and `replan`: commands about an artifact, without a device.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ValueEnum;

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
    /// Show one section instead of the summary; several with commas
    #[arg(long = "section", value_name = "NAME,…", value_delimiter = ',', conflicts_with_all = ["json", "html"])]
    pub sections: Vec<Section>,
    /// Show all sections
    #[arg(long, conflicts_with_all = ["sections", "json", "html"])]
    pub all: bool,
    /// Write a self-contained HTML page: machines that it fits, what limits speed, quantisation errors, memory map
    #[arg(long, value_name = "FILE", conflicts_with_all = ["diff", "json"])]
    pub html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A part of what `inspect` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Section {
    /// How it was made.
    Options,
    /// Bytes of each tier of memory.
    Memory,
    /// Bytes of each layer.
    Layers,
    /// Where each weight lies.
    Weights,
    /// Pages of the KV cache.
    Kv,
    /// Where each activation lies.
    Activations,
    /// Other buffers.
    Buffers,
    /// Kernels and programs of each target.
    Kernels,
    /// What quantising did to each tensor.
    Tensors,
    /// Sections of the file.
    File,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct ReplanArgs {
    /// Artifact, and options as `unicorn-compile replan --help` lists them, such as --budget vram=8GiB,gtt=20GiB
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARTIFACT [OPTIONS]", help_heading = None::<&str>)]
    pub arguments: Vec<OsString>,
}
