//! Options of every command: what is printed.

use clap::ArgAction;

use super::COMMON;

/// How much is printed.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct OutputArgs {
    /// Print results and errors only
    ///
    /// No progress, no statistics, no notes.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print everything that was measured
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// Print help: common options with -h, all with --help
    #[arg(short, long, global = true, action = ArgAction::Help)]
    help: Option<bool>,
    /// Print the version
    #[arg(short = 'V', long, action = ArgAction::Version, hide_short_help = true)]
    version: Option<bool>,
}
