//! `man`: a man page for the program and one for each command.

use clap::CommandFactory;

use crate::args::{Args, ManArgs};
use crate::error::CliError;

pub fn run(args: &ManArgs) -> Result<(), CliError> {
    clap_mangen::generate_to(Args::command(), &args.folder).map_err(|error| CliError::at(&args.folder, error))
}
