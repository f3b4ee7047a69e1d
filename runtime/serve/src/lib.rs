//! An HTTP server with the APIs of OpenAI, Anthropic, Ollama and llama-server for a model of [`unicorn_runtime`], whose sequences share each step.
//!
//! ```text
//!                threads of the HTTP server                       the thread that calls Server::run
//! client ──► http, access ──► routes ── Request ──► RequestHandler: tokens ─ Job ─► Worker ──► Scheduler ──► Model
//!        ◄── PendingResponse (one object, or a stream) ◄─ Event ── Choice: tokens → text, until it ends
//!                 └─ Reply: reasoning, content, calls ─► ResponseWriter of the API
//! ```
//!
//! `openai`, `anthropic`, `ollama` and `llama` translate: their requests become one [`Request`], by OpenAI's names, and each writes
//! replies in its own form.
//!
//! [`unicorn_structure`] finds which tokens may follow in a reply that has to match something. The device's sampler takes them as a mask; where a
//! request needs logits, the host samples.
//!
//! `pooling` has the endpoints that generate nothing: embeddings, and scores of documents.
//!
//! `models` puts several such servers behind one address, and loads each when a request names its model.
//!
//! `observer` tells the program that has the server of each request that has ended.
//!
//! `http` bounds connections, `access` checks who may send requests, `admission` bounds what these take: memory, time, places in the queue.
//!
//! ```no_run
//! use unicorn_serve::{HttpLimits, HttpListener, ServeOptions, Server};
//!
//! fn serve(model: &unicorn_serve::unicorn_runtime::Model) -> Result<(), Box<dyn std::error::Error>> {
//!     let listener = HttpListener::bind("127.0.0.1:8006")?;
//!     let mut options = ServeOptions::default();
//!     options.address = listener.address().tcp();
//!     let server = Server::new(model, options)?;
//!     listener.serve("http", server.router(), HttpLimits::default())?;
//!     server.run(&mut |_activity| ());
//!     Ok(())
//! }
//! ```
//!
//! The crate reads no command line, prints nothing and handles no signals: [`Stopper::stop`] ends a server. What it logs are events of
//! `tracing`, one for each request, which a program may collect or not.

#![deny(missing_docs)]

mod options;
mod server;

mod access;
mod activity;
mod admission;
mod api;
mod handler;
mod models;
mod predictions;
mod prompt;
mod routes;

mod choice;
mod choice_end;
mod events;
mod line_limits;
mod metrics;
mod pooling;
mod receiver;
mod worker;

mod anthropic;
mod llama;
mod ollama;
mod openai;
mod page;
mod pending;
mod probabilities;
mod prompt_probabilities;
mod reply;
mod writer;

mod error;
mod health;
mod http;
mod log;
mod observer;

pub use axum;
pub use unicorn_structure;
pub use unicorn_text;
pub use unicorn_text::unicorn_runtime;

pub use access::guard;
pub use activity::Activity;
pub use api::error::ApiError;
pub use api::prompt::Prompt;
pub use api::request::{Endpoint, MAX_CHOICES, Request};
pub use api::sampling::BiasedText;
pub use api::tools::ToolChoice;
pub use error::ServeError;
pub use http::{HttpAddress, HttpLimits, HttpListener, HttpServing, TlsIdentity};
pub use models::{ModelServer, ModelSource, PoolOptions, PoolStopper, Unloadable};
pub use observer::{EndedRequest, Operation, RequestFailure, RequestObserver};
pub use options::{KvCacheOptions, LeftOut, ServeOptions, VertexPaths};
pub use pooling::Pooling;
pub use server::{Server, Stopper};
