//! What tests of all packages share, those that the package `tests` depends on as well. It depends on none of them.

pub mod machine_files;
pub mod skip;

pub use skip::skip;
