//! The process's surroundings: stdout, stderr and Ctrl-C.

pub mod interrupt;
pub mod output;
