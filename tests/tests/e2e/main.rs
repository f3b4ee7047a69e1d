//! Whole models on a device: against `transformers`' logits, against the reference on exported weights, and against themselves
//! computed in other ways (in chunks, unfused, for other targets). llvmpipe unless `UNICORN_DEVICE` names another device.

mod built;
mod decoding;
mod logits;
mod streams;
