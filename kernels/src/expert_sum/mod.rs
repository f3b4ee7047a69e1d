//! The results of a row's experts, weighted by the router (`route`), as one row.

mod spec;
mod twin;

pub use spec::ExpertSumSpec;
pub use twin::twin_row;
