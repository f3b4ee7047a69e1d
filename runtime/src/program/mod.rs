//! Dispatch lists made ready: pipelines and their cache, chunks, splitting by time, counters instead of barriers, multi-step.

pub mod cache_file;
pub mod chunks;
pub mod counters;
pub mod dispatch_range;
pub mod fragments;
pub mod multistep;
pub mod pace;
pub mod pipeline_cache;
pub mod pipelines;
pub mod programs;
pub mod runnable;
pub mod waiting;
