//! `completions`: what a shell reads to complete commands and options.

use clap::CommandFactory;

use crate::args::{Args, CompletionsArgs};
use crate::error::CliError;
use crate::terminal::output::print;

pub fn run(args: &CompletionsArgs) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "unicorn-run", &mut script);
    print(&String::from_utf8_lossy(&script))
}
