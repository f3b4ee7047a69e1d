//! What tests across packages share: independent answers, random models, files to break, and the filetests.
//! No crate depends on this one.

pub mod abuse;
pub mod radv;
pub mod reference;

pub mod changed_weights;
pub mod devices;
pub mod iq4_model;
pub mod models;
pub mod packed_int4;
pub mod random_gguf;
pub mod tiny_model;

pub mod compiled;
pub mod control_image;
pub mod generators;
pub mod image_golden;
pub mod mutated_module;
pub mod mutated_plan;
pub mod oracles;

pub mod filetest;

pub mod browser;
pub mod http;
pub mod hub;
pub mod load;
pub mod openmetrics;
pub mod packages;
pub mod programs;
pub mod registry;
pub mod server;
pub mod terminal;
pub mod typed;

pub mod known_texts;
pub mod launch;
pub mod recorder;
pub mod texts;

pub use test_support::skip;

/// The program in the README.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
