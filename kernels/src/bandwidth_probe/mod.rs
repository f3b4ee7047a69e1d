//! Reads a buffer once and computes almost nothing: its rate is the bandwidth with which every other kernel is compared.
//!
//! ```text
//! buffer     block 0 │ block 1 │ … │ block g │ …        workgroup 0 of g takes blocks 0, g, 2 g, …
//! block      load 0 of every lane · load 1 of every lane · … · load 7, a quad of words each
//! ```
//!
//! What was read ends in one word a workgroup, so that no driver leaves a load out; the loads of a block do not wait for one
//! another. Not part of any program.

mod spec;
mod twin;

pub use spec::BandwidthProbeSpec;
pub use twin::folded;
