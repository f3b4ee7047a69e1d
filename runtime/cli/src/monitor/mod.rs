//! What `top` and its metrics show: GPUs and running `unicorn-run` processes.

pub mod metrics;
pub mod status;
pub mod system;
