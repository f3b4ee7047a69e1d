//! Reads a buffer once and computes almost nothing: its rate is the bandwidth with which every other kernel is compared.
//!
//! ```text
//! buffer     block 0 │ block 1 │ … │ block g │ …        workgroup 0 of g takes blocks 0, g, 2 g, …
//! block      load 0 of every lane · load 1 of every lane · … · load 7, a quad of words each
//! ```
//!
//! Each workgroup writes the exclusive or of the words that it read, so that no driver removes a load; the loads of a block do not
//! wait for one another. No program contains this kernel.

mod spec;
mod twin;

pub use spec::BandwidthProbeSpec;
pub use twin::folded;
