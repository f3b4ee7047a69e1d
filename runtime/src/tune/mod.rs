//! Tuning: every alternative of the artifact's kernels is measured on the device, and the fastest are applied at later loads.
//!
//! In: a loaded model's programs, buffers and alternatives; a [`choices::Tuning`] and [`corrections::Corrections`] that a caller
//! kept. Out: times of kernels and steps, what they write; the target that is loaded.
//! Not known here: files (callers store a tuning), how many rounds are enough, which alternative wins.
//!
//! Read in this order:
//!
//! - `choices`: a tuning, and how it is applied to a target
//! - `candidates`: targets that contain a program in several variants
//! - `measure`: times of those variants, on made-up tokens
//! - `corrections`: what runs in place of kernels that a device computes wrongly
//! - `exchange`, `trace`: other programs in place of a model's own, and what each of their dispatches writes

pub mod candidates;
pub mod choices;
pub mod corrections;
pub mod exchange;
pub mod measure;
pub mod trace;
