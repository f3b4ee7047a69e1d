//! `devices`, `doctor` and `top`: commands about this machine.

use std::path::PathBuf;

use clap::value_parser;

use super::COMMON;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct DevicesArgs {
    /// Artifact whose targets are checked against each device
    #[arg(help_heading = None::<&str>)]
    pub artifact: Option<PathBuf>,
    /// Measure the transfer rates between this machine's memory and each device
    #[arg(long)]
    pub transfers: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct DoctorArgs {
    /// Artifact whose targets are checked against each device
    #[arg(help_heading = None::<&str>)]
    pub artifact: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Root folder of the kernel's files in tests
    #[arg(long, hide = true, value_name = "FOLDER")]
    pub root: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct TopArgs {
    /// Print a line of JSON for each sample
    #[arg(long)]
    pub json: bool,
    /// Serve metrics for Prometheus at http://ADDR:PORT/metrics, without a key; port 0: any free one
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics: Option<String>,
    /// Name or address that requests for metrics may have in their Host header, beside localhost and ADDR; *: any; repeatable
    #[arg(long, value_name = "NAME", requires = "metrics")]
    pub allowed_host: Vec<String>,
    /// Time between two samples, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = value_parser!(u32).range(100..))]
    pub interval_ms: u32,
    /// Number of samples to take [default: until q]
    #[arg(short = 'n', long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub count: Option<u32>,
    /// Root folder of the kernel's files in tests
    #[arg(long, hide = true, value_name = "FOLDER")]
    pub root: Option<PathBuf>,
}
