//! Bytes from outside that are wrong, one change each: every program reports the error in one line and leaves no file.
//!
//! The files in `tests/hostile/` are read by `files`; everything else is made here from something sound.

mod refusal;

mod compile_mistakes;
mod files;
mod models;
mod modules;
mod outputs;

mod artifact_files;
mod devices;
mod limits;
mod plans;
mod requests;

mod damage;
