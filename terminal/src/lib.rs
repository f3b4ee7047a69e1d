//! What the two programs share on a terminal.
//!
//! ```text
//! stream ──► columns ──► wrapped ──► lines for people
//! clap's Command ──► with_short_help ──► -h of one screen, --help of everything
//! path ──► compile, pull, to_safetensors, requantized, … ──► a command to type next
//! variable ──► restart_with_variable ──► the program again, with it in the environment
//! ```
//!
//! It uses no models, artifacts or devices: each program adds its own options and commands to what this crate gives it.

#![deny(missing_docs)]

mod screen;
mod wrap;

mod short_help;

mod commands;

mod restart;

// The package whose types are part of this one's public signatures, so that one dependency is enough.
pub use clap;

pub use commands::{
    artifact_of, compile, download_part, folder_of, pull, quoted, quoted_path, requantized, to_safetensors,
};
pub use restart::restart_with_variable;
pub use screen::{columns, shows_bars};
pub use short_help::with_short_help;
pub use wrap::wrapped;
