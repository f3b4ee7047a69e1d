//! Options of a server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::admission::Tokenizing;
use crate::error::ServeError;
use crate::observer::RequestObserver;
use crate::pooling::Pooling;
use unicorn_text::unicorn_runtime::{Sampling, Speculation};
use unicorn_text::{TemplateArguments, default_sampling};

/// Options of [`Server::new`](crate::Server::new), which checks them.
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
    /// Most tokens of an answer, also of requests with a higher limit or none; `None`, the default: as many as the context holds.
    pub max_tokens: Option<u32>,
    /// How requests speculate; `None`, the default: they do not.
    pub speculation: Option<Speculation>,
    /// Variables of the chat template that a request leaves out, such as `enable_thinking`. Default: none.
    pub template_arguments: TemplateArguments,
    /// The chat template in the place of the model's own: Jinja, or one of [`ChatTemplate::names`]; `None`, the default: the model's.
    ///
    /// [`ChatTemplate::names`]: unicorn_text::ChatTemplate::names
    pub chat_template: Option<String>,
    /// `enable_thinking` of chat templates, where neither a request nor [`ServeOptions::template_arguments`] set it. Default: true, as
    /// llama-server's.
    pub reasoning: bool,
    /// Most tokens of reasoning in a reply, where a request does not set it; `None`, the default: no limit.
    pub reasoning_budget: Option<u32>,
    /// Text that ends reasoning which has as many tokens, before its closing tag. Default: none.
    pub reasoning_budget_message: String,
    /// Whether reasoning is separated from the answer, where a request does not set it. Default: yes.
    pub splits_reasoning: bool,
    /// Whether responses have the text of the prompt as `__verbose`, where a request does not set it. Default: no.
    pub verbose: bool,
    /// Copies of recurrent state that are kept on the host, from which prompts continue; `None`, the default: 8.
    pub checkpoints: Option<u32>,
    /// Most tokens of a prompt in one step; `None`, the default: 512.
    pub batch_tokens: Option<u32>,
    /// Whether each text is that which its request would get alone, at the cost of throughput. Default: no.
    pub deterministic: bool,
    /// Where conversations are kept when other ones need their memory, and across restarts; `None`, the default: nowhere.
    pub kv_cache: Option<KvCacheOptions>,
    /// The model's name in responses and in `/v1/models`; `None`, the default: the name in the artifact.
    pub model_name: Option<String>,
    /// Further names of the model, in lists of models. Default: none.
    pub aliases: Vec<String>,
    /// Words that lists of models show with its name, such as `code`. Default: none.
    pub tags: Vec<String>,
    /// Where the model came from, for `/props`; `None`, the default: its name.
    pub model_path: Option<String>,
    /// Where Vertex AI's requests are answered; `None`, the default: nowhere.
    pub vertex: Option<VertexPaths>,
    /// Keys, one of which requests need to name; empty, the default: none. Health needs none.
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
    /// Origins, such as `https://chat.example`, whose pages may use the server in a browser; `localhost`: all of this machine; `*`: all.
    /// Default: none.
    pub cors: Vec<String>,
    /// Learns of each request that has ended; `None`, the default: nothing does.
    pub observer: Option<Arc<dyn RequestObserver>>,
    /// How the program is started with a part that these options leave out: the end of the error for a request that needs it,
    /// such as `; start it with --metrics`. Default: nothing.
    pub how_to_enable: fn(LeftOut) -> &'static str,
    /// Shared by the servers that are created from clones of these options.
    pub(crate) tokenizing: Tokenizing,
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

/// A folder for parts of sequences' KV caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvCacheOptions {
    /// The folder, which is made if it is not there.
    pub folder: PathBuf,
    /// Most bytes of its files, with those of other models.
    pub max_bytes: u64,
}

/// Paths that Vertex AI gives a container, in addition to those of this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VertexPaths {
    /// Path of predictions.
    pub predict: String,
    /// Path that is answered as `/health` is.
    pub health: Option<String>,
}

impl Default for ServeOptions {
    fn default() -> ServeOptions {
        ServeOptions {
            sampling: default_sampling(),
            seed: None,
            max_tokens: None,
            speculation: None,
            template_arguments: TemplateArguments::new(),
            chat_template: None,
            reasoning: true,
            reasoning_budget: None,
            reasoning_budget_message: String::new(),
            splits_reasoning: true,
            verbose: false,
            batch_tokens: None,
            checkpoints: None,
            deterministic: false,
            kv_cache: None,
            model_name: None,
            aliases: Vec::new(),
            tags: Vec::new(),
            model_path: None,
            vertex: None,
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
            observer: None,
            how_to_enable: |_| "",
            tokenizing: Tokenizing::default(),
        }
    }
}

impl ServeOptions {
    /// Whether a server can be created with these options.
    ///
    /// # Errors
    /// [`ServeError::Option`], naming the field, and [`ServeError::Run`] for a parameter of sampling or speculation out of its range.
    pub fn check(&self) -> Result<(), ServeError> {
        self.sampling.check()?;
        self.speculation.as_ref().map_or(Ok(()), Speculation::check)?;
        let refused = |option, what: &str| Err(ServeError::Option { option, what: what.into() });
        if self.max_tokens == Some(0) {
            return refused("max_tokens", "most tokens of an answer are 0, expected at least 1, or no limit");
        }
        if self.timeout.is_zero() {
            return refused("timeout", "time for the body of a request is 0, expected more");
        }
        if self.model_name.as_deref() == Some("") {
            return refused("model_name", "name of the model is empty, expected a name, or none for the artifact's");
        }
        if self.api_keys.iter().any(String::is_empty) {
            return refused("api_keys", "an API key is empty, expected a character at least");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_server_can_have_is_refused() {
        let refusal = |change: &dyn Fn(&mut ServeOptions)| {
            let mut options = ServeOptions::default();
            change(&mut options);
            options.check().expect_err("refused").to_string()
        };
        for (expected, change) in [
            (
                "most tokens of an answer are 0, expected at least 1, or no limit",
                &(|options: &mut ServeOptions| options.max_tokens = Some(0)) as &dyn Fn(&mut ServeOptions),
            ),
            ("time for the body of a request is 0, expected more", &|options| options.timeout = Duration::ZERO),
            ("name of the model is empty, expected a name, or none for the artifact's", &|options| {
                options.model_name = Some(String::new())
            }),
            ("an API key is empty, expected a character at least", &|options| {
                options.api_keys = vec!["key".into(), String::new()]
            }),
        ] {
            assert_eq!(refusal(change), expected);
        }
        assert!(refusal(&|options| options.sampling.top_p = 2.0).contains("top-p"));
        ServeOptions::default().check().expect("the defaults are sound");
    }
}
