//! A choice of a response so far, independent of the form in which the client receives it.

use unicorn_text::unicorn_runtime::HostSampled;
use unicorn_text::{Delta, EndReason, ReplyParser};

use crate::choice_end::{ChoiceEnd, Times};

/// One choice.
#[derive(Default)]
pub(crate) struct Reply {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    pub(crate) calls: Vec<Call>,
    /// Sampled tokens, without a stop token.
    pub(crate) tokens: Vec<u32>,
    /// Probabilities, one entry a token, if they were requested.
    pub(crate) probabilities: Vec<HostSampled>,
    pub(crate) prompt_tokens: u32,
    /// Tokens of the prompt that were in the cache.
    pub(crate) cached_tokens: u32,
    /// Tokens of the prompt that are in the cache now.
    pub(crate) fed_tokens: u32,
    /// Times until its last event.
    pub(crate) times: Times,
    /// `None`: it has not ended.
    pub(crate) end: Option<ChoiceEnd>,
    /// Separates reasoning and calls from content; `None`: all text is content.
    parser: Option<ReplyParser>,
    /// Calls behind the first are left out.
    one_call: bool,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    /// Arguments as JSON.
    pub(crate) arguments: String,
}

/// Token counts of all choices together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Each prompt counts once, however many choices it has.
    pub(crate) prompt_tokens: u32,
    /// Prompt tokens that were in the cache already.
    pub(crate) cached_tokens: u32,
    pub(crate) completion_tokens: u32,
}

impl Reply {
    /// An empty reply to a prompt of `prompt_tokens`.
    pub(crate) fn new(prompt_tokens: u32, parser: Option<ReplyParser>, one_call: bool) -> Reply {
        Reply { prompt_tokens, parser, one_call, ..Reply::default() }
    }

    /// Adds text, and returns what is new with it.
    pub(crate) fn push(&mut self, text: String) -> Vec<Delta> {
        let deltas = match &mut self.parser {
            Some(parser) => parser.push(&text),
            None if text.is_empty() => Vec::new(),
            None => vec![Delta::Content(text)],
        };
        self.add(deltas)
    }

    /// Ends the reply, and returns what is new with it.
    pub(crate) fn finish(&mut self, mut end: ChoiceEnd) -> Vec<Delta> {
        self.tokens.extend(&end.rest);
        self.probabilities.append(&mut end.probabilities);
        if end.reason == EndReason::StopToken {
            self.tokens.pop();
            self.probabilities.truncate(self.tokens.len());
        }
        self.times = end.times;
        self.end = Some(end);
        let deltas = self.parser.as_mut().map(ReplyParser::finish).unwrap_or_default();
        self.add(deltas)
    }

    fn add(&mut self, deltas: Vec<Delta>) -> Vec<Delta> {
        let is_kept = |delta: &Delta| match delta {
            Delta::CallBegin { index, .. } | Delta::CallArguments { index, .. } => !self.one_call || *index == 0,
            Delta::Reasoning(_) | Delta::Content(_) => true,
        };
        let deltas: Vec<Delta> = deltas.into_iter().filter(is_kept).collect();
        for delta in &deltas {
            match delta {
                Delta::Reasoning(text) => self.reasoning += text,
                Delta::Content(text) => self.content += text,
                Delta::CallBegin { name, .. } => {
                    let (id, name) = (new_id("call_"), name.clone());
                    self.calls.push(Call { id, name, arguments: String::new() });
                }
                Delta::CallArguments { index, json } => self.calls[*index as usize].arguments += json,
            }
        }
        deltas
    }

    /// Probabilities of the last `n_tokens` tokens, if they were requested.
    pub(crate) fn last_probabilities(&self, n_tokens: usize) -> &[HostSampled] {
        &self.probabilities[self.probabilities.len().saturating_sub(n_tokens)..]
    }

    /// Why it ended; while it has not ended, the reason of a limit.
    pub(crate) fn reason(&self) -> EndReason {
        self.end.as_ref().map_or(EndReason::MaxTokens, |end| end.reason)
    }

    /// Tokens that were sampled, a stop token included.
    pub(crate) fn n_tokens(&self) -> u32 {
        self.end.as_ref().map_or(self.tokens.len() as u32, |end| end.tokens)
    }

    /// Number of tokens that speculation proposed, and number of those that were accepted.
    pub(crate) fn drafted(&self) -> (u32, u32) {
        self.end.as_ref().map_or((0, 0), |end| (end.drafted, end.accepted))
    }
}

impl Usage {
    /// Usage of `replies`, which are `n` choices for each prompt.
    pub(crate) fn of(replies: &[Reply], n: u32) -> Usage {
        let firsts = || replies.iter().step_by(n as usize);
        Usage {
            prompt_tokens: firsts().map(|reply| reply.prompt_tokens).sum(),
            cached_tokens: firsts().map(|reply| reply.cached_tokens).sum(),
            completion_tokens: replies.iter().map(Reply::n_tokens).sum(),
        }
    }
}

/// An id that no other object has.
pub(crate) fn new_id(prefix: &str) -> String {
    format!("{prefix}{:08x}{:08x}", unicorn_text::random_seed(), unicorn_text::random_seed())
}
