//! `completions` and `man`: commands about this command line.

use std::path::PathBuf;

use clap_complete::Shell;

use super::COMMON;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct CompletionsArgs {
    /// Shell to print completions for
    #[arg(help_heading = None::<&str>)]
    pub shell: Shell,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct ManArgs {
    /// Folder to write a page for each command to
    #[arg(help_heading = None::<&str>)]
    pub folder: PathBuf,
}
