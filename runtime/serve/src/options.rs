//! What a program may choose about a server.

use unicorn_text::unicorn_runtime::Sampling;
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
    /// Variables of the chat template that a request leaves out, such as `enable_thinking`. Default: none.
    pub template_arguments: TemplateArguments,
    /// The model's name in responses and in `/v1/models`; `None`, the default: the name in the artifact.
    pub model_name: Option<String>,
}

impl Default for ServeOptions {
    fn default() -> ServeOptions {
        ServeOptions {
            sampling: default_sampling(),
            seed: None,
            template_arguments: TemplateArguments::new(),
            model_name: None,
        }
    }
}
