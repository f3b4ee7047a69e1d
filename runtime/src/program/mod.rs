//! The artifact's dispatch lists made ready: compiled, bound to buffers, split into submissions and recorded, at load.
//!
//! In: a target's kernels and programs, buffers, measured times. Out: [`programs::RecordedPrograms`], which a step submits.
//! Not known here: tokens, sequences, how weights are loaded, what a kernel computes or its SPIR-V contains.
//!
//! Read in this order:
//!
//! - `alternatives`: alternative kernels that the device cannot run, removed
//! - `cache_file`, `pipeline_cache`, `pipelines`: pipelines, compiled on all cores or read from the cache on disk
//! - `matrix_layout`: leaves out targets that expect another distribution of cooperative matrices than the driver's
//! - `chunks`: which program runs the next rows
//! - `grid`, `submissions`: programs and single dispatches split by estimated time
//! - `counters`: counter synchronisation instead of barriers
//! - `multistep`: several decode steps in one submission
//! - `npu_steps`, `npu_queues`: steps in which an NPU takes part, in two queues
//! - `programs`: dispatches bound and recorded
//! - `sampler_apart`: steps whose sampler is submitted apart, recorded when one is first needed
//! - `streamed`: the same for steps that run while weights are loading
//! - `profile`: the same with the time of each dispatch

pub mod alternatives;
pub mod cache_file;
pub mod chunks;
pub mod counters;
pub mod grid;
pub mod matrix_layout;
pub mod multistep;
pub mod npu_queues;
pub mod npu_steps;
pub mod pipeline_cache;
pub mod pipelines;
pub mod profile;
pub mod programs;
pub mod sampler_apart;
pub mod streamed;
pub mod submissions;
