//! Bandwidth, transfers, kernel statistics, profile.

pub mod bandwidth;
pub mod kernel_statistics;
pub mod profile;
pub mod transfers;
