//! One forward pass: what is written, submitted and read; batches; generation ahead of the host.

pub mod batch;
pub mod calibration;
pub mod engine;
pub mod generate;
