//! One forward pass: what is written, submitted and read; how a token is sampled; steps in flight ahead of the host.

pub mod calibration;
pub mod cancel;
pub mod engine;
pub mod host_sampling;
pub mod images;
pub mod masks;
pub mod npu_queues;
pub mod sampling;
pub mod steps_in_flight;
pub mod stop;
pub mod watch;
