//! The results of a row's experts, weighed as the router says (`route`), as one row.

mod spec;
mod twin;

pub use spec::ExpertSumSpec;
pub use twin::twin_row;
