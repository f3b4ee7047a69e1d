//! How a choice of a request ended, and how long it took.

use std::time::Duration;

use unicorn_text::EndReason;
use unicorn_text::unicorn_runtime::HostSampled;

/// Time that a choice has taken until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    /// Time until the first token.
    pub(crate) prompt: Duration,
    /// Time from the first token to the last.
    pub(crate) decode: Duration,
}

/// How a choice ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChoiceEnd {
    pub(crate) reason: EndReason,
    /// The stop string that ended it.
    pub(crate) stop_string: Option<String>,
    /// Tokens that were sampled, a stop token included.
    pub(crate) tokens: u32,
    /// Tokens since the last text, a stop token included.
    pub(crate) rest: Vec<u32>,
    /// Probabilities of those tokens, if they were requested.
    pub(crate) probabilities: Vec<HostSampled>,
    /// Probabilities of the prompt's tokens, if they were requested.
    pub(crate) prompt_probabilities: Vec<HostSampled>,
    /// Number of tokens that speculation proposed, and number of those that were accepted.
    pub(crate) drafted: u32,
    pub(crate) accepted: u32,
    pub(crate) times: Times,
}
