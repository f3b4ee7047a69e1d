//! `inspect` and `replan`: commands about an artifact, without a device.

use std::path::PathBuf;

use clap::ValueEnum;
use unicorn_artifact::Budget;

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
    /// What the NPU does and why, and its programs.
    Npu,
    /// Sections of the file.
    File,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct ReplanArgs {
    /// Artifact whose plan is replaced
    #[arg(help_heading = None::<&str>)]
    pub artifact: PathBuf,
    /// Machine to plan memory for: a preset, or a file that describes one [default: the one that the artifact was planned for]
    #[arg(long, value_name = "NAME|FILE")]
    pub machine: Option<String>,
    /// Sizes that replace the machine's, such as vram=8GiB,gtt=20GiB
    #[arg(long, value_name = "TIER=SIZE,…")]
    pub budget: Option<Budget>,
    /// Sequence length, in tokens, that must fit [default: as before]
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<u32>,
    /// Print the sums of the new plan as JSON
    #[arg(long)]
    pub json: bool,
}
