//! A file or folder for each command.

pub mod generate;
pub mod serve;

pub mod bench;
pub mod logits;
pub mod npu_selftest;
pub mod perplexity;
pub mod profile;
pub mod selftest;
pub mod tune;

pub mod completions;
pub mod man;

pub mod devices;
pub mod doctor;
pub mod inspect;
pub mod replan;
pub mod store;
pub mod top;
