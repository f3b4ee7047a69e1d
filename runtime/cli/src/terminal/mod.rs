//! The process's surroundings: stdout, stderr and Ctrl-C.

pub mod editor;
pub mod interrupt;
pub mod output;

pub mod text;
mod wrap;

pub mod late_bar;
