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
    /// Those of the prompt's tokens, if they were requested and the reply has ended.
    pub(crate) prompt_probabilities: Vec<HostSampled>,
    pub(crate) prompt_tokens: u32,
    /// Tokens of the prompt that were in the cache.
    pub(crate) cached_tokens: u32,
    /// Tokens of the prompt that are in the cache now.
    pub(crate) fed_tokens: u32,
    /// Times until its last event.
    pub(crate) times: Times,
    /// `None`: it has not ended.
    pub(crate) end: Option<ChoiceEnd>,
    /// Tokens of other choices that were generated with it, and left out.
    left_out_tokens: u32,
    /// Number of tokens before the first of content or a call; `None`: there is none yet.
    answer_begins_at: Option<usize>,
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
    /// Those of them that are reasoning.
    pub(crate) reasoning_tokens: u32,
}

impl Reply {
    /// An empty reply to a prompt of `prompt_tokens`.
    pub(crate) fn new(prompt_tokens: u32, parser: Option<ReplyParser>, one_call: bool) -> Reply {
        Reply { prompt_tokens, parser, one_call, ..Reply::default() }
    }

    /// Adds text that was decoded from `tokens`, with their probabilities if those were requested, and returns what is new with it.
    pub(crate) fn push(&mut self, text: String, tokens: &[u32], mut probabilities: Vec<HostSampled>) -> Vec<Delta> {
        let n_before = self.tokens.len();
        self.tokens.extend(tokens);
        self.probabilities.append(&mut probabilities);
        let deltas = match &mut self.parser {
            Some(parser) => parser.push(&text),
            None if text.is_empty() => Vec::new(),
            None => vec![Delta::Content(text)],
        };
        self.add(deltas, n_before)
    }

    /// Ends the reply, and returns what is new with it.
    pub(crate) fn finish(&mut self, mut end: ChoiceEnd) -> Vec<Delta> {
        let n_before = self.tokens.len();
        self.tokens.extend(&end.rest);
        self.probabilities.append(&mut end.probabilities);
        self.prompt_probabilities = std::mem::take(&mut end.prompt_probabilities);
        if end.reason == EndReason::StopToken {
            self.tokens.pop();
            self.probabilities.truncate(self.tokens.len());
        }
        self.times = end.times;
        self.end = Some(end);
        let deltas = self.parser.as_mut().map(ReplyParser::finish).unwrap_or_default();
        self.add(deltas, n_before)
    }

    /// Adds what is new with the tokens behind the first `n_before`.
    fn add(&mut self, deltas: Vec<Delta>, n_before: usize) -> Vec<Delta> {
        let is_kept = |delta: &Delta| match delta {
            Delta::CallBegin { index, .. } | Delta::CallArguments { index, .. } => !self.one_call || *index == 0,
            Delta::Reasoning(_) | Delta::Content(_) => true,
        };
        let deltas: Vec<Delta> = deltas.into_iter().filter(is_kept).collect();
        if deltas.iter().any(|delta| !matches!(delta, Delta::Reasoning(_))) {
            self.answer_begins_at.get_or_insert(n_before);
        }
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

    /// The `n` of `replies` whose tokens are the most likely on average, in that order.
    pub(crate) fn best(mut replies: Vec<Reply>, n: usize) -> Vec<Reply> {
        if replies.len() > n {
            let mean = |reply: &Reply| {
                let logprobs = reply.probabilities.iter().filter_map(|token| token.logprob);
                logprobs.sum::<f32>() / reply.probabilities.len().max(1) as f32
            };
            replies.sort_by(|one, other| mean(other).total_cmp(&mean(one)));
            let left_out = replies.drain(n..).map(|reply| reply.n_tokens()).sum();
            replies[0].left_out_tokens = left_out;
        }
        replies
    }

    /// Tokens of reasoning: those before the answer, or before the first call.
    pub(crate) fn reasoning_tokens(&self) -> u32 {
        match self.reasoning.is_empty() {
            true => 0,
            false => self.answer_begins_at.unwrap_or(self.tokens.len()) as u32,
        }
    }

    /// Probabilities of the tokens of the answer, if they were requested.
    pub(crate) fn answer_probabilities(&self) -> &[HostSampled] {
        let begin = self.answer_begins_at.unwrap_or(self.probabilities.len());
        self.probabilities.get(begin..).unwrap_or_default()
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
            completion_tokens: replies.iter().map(|reply| reply.n_tokens() + reply.left_out_tokens).sum(),
            reasoning_tokens: replies.iter().map(Reply::reasoning_tokens).sum(),
        }
    }
}

/// An id that no other object has.
pub(crate) fn new_id(prefix: &str) -> String {
    format!("{prefix}{:08x}{:08x}", unicorn_text::random_seed(), unicorn_text::random_seed())
}

#[cfg(test)]
mod tests {
    use unicorn_text::ReplyFormat;

    use super::*;

    fn sampled(logprob: f32) -> HostSampled {
        HostSampled { token: 1, logprob: Some(logprob), top: Vec::new(), candidates: 1 }
    }

    #[test]
    fn the_best_choices_are_those_of_the_most_likely_tokens() {
        let reply = |content: &str, logprobs: &[f32]| {
            let mut reply = Reply::new(3, None, false);
            let sampled = logprobs.iter().copied().map(sampled).collect();
            reply.push(content.to_owned(), &vec![1; logprobs.len()], sampled);
            reply
        };
        let all = || vec![reply("a", &[-1.0, -3.0]), reply("b", &[-1.5, -1.5, -1.5]), reply("c", &[-4.0])];
        let kept = Reply::best(all(), 2);
        assert_eq!(kept.iter().map(|reply| reply.content.as_str()).collect::<Vec<_>>(), ["b", "a"]);
        let usage = Usage::of(&kept, 2);
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (3, 6));
        let order: String = Reply::best(all(), 3).iter().map(|reply| reply.content.as_str()).collect();
        assert_eq!(order, "abc", "all of them stay as they came");
    }

    #[test]
    fn tokens_of_reasoning_are_those_before_the_answer() {
        let mut format = ReplyFormat::default();
        format.thinks = Some(true);
        let mut reply = Reply::new(1, Some(ReplyParser::new(&format, [""; 0])), false);
        for (text, logprob) in [("Hm", -1.0), (", yes", -2.0), ("</think>", -3.0), ("Yes", -4.0), (".", -5.0)] {
            reply.push(text.to_owned(), &[1], vec![sampled(logprob)]);
        }
        assert_eq!((reply.reasoning_tokens(), reply.content.as_str()), (3, "Yes."));
        let logprobs: Vec<Option<f32>> = reply.answer_probabilities().iter().map(|token| token.logprob).collect();
        assert_eq!(logprobs, [Some(-4.0), Some(-5.0)]);
        let mut plain = Reply::new(1, None, false);
        plain.push("Yes".to_owned(), &[1], Vec::new());
        assert_eq!((plain.reasoning_tokens(), plain.answer_probabilities().len()), (0, 0));
    }
}
