//! compiler
pub mod error;
pub mod import;
pub mod quantize;
