//! A worker of NVIDIA Dynamo: its trait [`LLMEngine`](dynamo_backend_common::LLMEngine) on the runtime, in one process.
//!
//! ```text
//! Dynamo's frontend: HTTP, chat templates, tokens              │ the worker: this process
//!                                                              │
//! client ──► PreprocessedRequest: ids, sampling, stop tokens ──┼─► UnicornEngine ─► RequestReader ── Job ──► Worker: Scheduler,
//!        ◄── text, stop strings, calls ◄── LLMEngineOutput ◄───┼── output ◄── Event ── Sequence ◄──────────── a step for all
//! ```
//!
//! In: token ids. Out: token ids, one chunk each. Text is Dynamo's, with one exception: a reply that has to match a schema, a regular expression or
//! a grammar is constrained here, by the artifact's tokenizer.
//!
//! Not here: prefill and decode on two workers, events of the KV cache, images, adapters. Requests that need them are refused.

#![deny(missing_docs)]

mod args;
mod engine;
mod output;
mod request;
mod sequence;
mod tokenizer_check;
mod worker;

mod error;

pub use args::{EngineOptions, from_args};
pub use engine::UnicornEngine;
