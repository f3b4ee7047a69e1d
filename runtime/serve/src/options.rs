//! What a program may choose about a server.

use std::net::SocketAddr;
use std::time::Duration;

use crate::reading::Pooling;
use unicorn_text::unicorn_runtime::{Sampling, Speculation};
use unicorn_text::{TemplateArguments, default_sampling};

/// Options of [`Server::new`](crate::Server::new).
///
/// ```
/// let mut options = unicorn_serve::ServeOptions::default();
/// options.model_name = Some("my-model".to_owned());
/// options.sampling.temperature = 0.7;
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServeOptions {
    /// Sampling parameters that a request leaves out. Its seed is not used, see [`ServeOptions::seed`]. Default:
    /// [`default_sampling`].
    pub sampling: Sampling,
    /// Seed of requests without one; `None`, the default: each gets a random one.
    pub seed: Option<u64>,
    /// Most tokens of an answer, also of requests that ask for more or name no limit; `None`, the default: as many as the context holds.
    pub max_tokens: Option<u32>,
    /// How requests speculate; `None`, the default: they do not. Those of a model with recurrent state never do.
    pub speculation: Option<Speculation>,
    /// Variables of the chat template that a request leaves out, such as `enable_thinking`. Default: none.
    pub template_arguments: TemplateArguments,
    /// The model's name in responses and in `/v1/models`; `None`, the default: the name in the artifact.
    pub model_name: Option<String>,
    /// Keys, one of which requests need to name; empty, the default: none. Whether the server is there is told without.
    pub api_keys: Vec<String>,
    /// Whether `/metrics` is answered. Default: no.
    pub metrics: bool,
    /// Whether `/slots` is answered. Default: yes.
    pub slots: bool,
    /// How hidden rows become embeddings; `None`, the default: embeddings are refused.
    pub embeddings: Option<Pooling>,
    /// Whether documents are ranked. Default: no.
    pub reranking: bool,
    /// Whether the chat page is at `/`. Default: yes.
    pub page: bool,
    /// Choices of requests that may wait while others run; then requests get status 429 with `Retry-After`. Default: 512.
    pub max_queue: u32,
    /// How long a client may take to send the body of a request. Default: 30 s.
    pub timeout: Duration,
    /// Where the server listens, as [`HttpListener::address`](crate::HttpListener::address) reports it: requests may name it in their
    /// `Host` header, and localhost, and nothing else. `None`, the default: localhost alone.
    pub address: Option<SocketAddr>,
    /// Further names and addresses that requests may have in their `Host` header, without a port; `*`: all. Default: none.
    pub allowed_hosts: Vec<String>,
    /// Origins, such as `https://chat.example`, whose pages may use the server in a browser; `*`: all. Default: none.
    pub cors: Vec<String>,
    /// How the program is started with a part that these options leave out: the end of the error that a client gets which asks for it,
    /// such as `; start it with --metrics`. Default: nothing.
    pub how_to_enable: fn(LeftOut) -> &'static str,
}

/// A part of a server that its options leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeftOut {
    /// [`ServeOptions::embeddings`] is `None`.
    Embeddings,
    /// [`ServeOptions::embeddings`] is [`Pooling::None`], where a form of response has one row a text.
    Pooling,
    /// [`ServeOptions::reranking`].
    Reranking,
    /// [`ServeOptions::metrics`].
    Metrics,
    /// [`ServeOptions::slots`].
    Slots,
}

impl Default for ServeOptions {
    fn default() -> ServeOptions {
        ServeOptions {
            sampling: default_sampling(),
            seed: None,
            max_tokens: None,
            speculation: None,
            template_arguments: TemplateArguments::new(),
            model_name: None,
            api_keys: Vec::new(),
            metrics: false,
            slots: true,
            embeddings: None,
            reranking: false,
            page: true,
            max_queue: 512,
            timeout: Duration::from_secs(30),
            address: None,
            allowed_hosts: Vec::new(),
            cors: Vec::new(),
            how_to_enable: |_| "",
        }
    }
}
