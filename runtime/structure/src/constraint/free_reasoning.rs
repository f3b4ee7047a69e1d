//! Reasoning of a reply that makes calls: it may mention them, so they are looked for behind it.

use unicorn_text::{ReasoningMarks, ReplyFormat, ToolFormat};

use super::search::end_of;

/// Where a reply is.
#[derive(Clone)]
pub(super) struct FreeReasoning {
    state: State,
    marks: ReasoningMarks,
    /// What ends reasoning as well, and the part of it that belongs to a call.
    calls: &'static [&'static str],
    part: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Before,
    Within,
    Behind,
}

/// What was removed of the text so far.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Skipped {
    /// Nothing: it is no reasoning.
    Nothing,
    /// It is reasoning, or may be.
    All,
    /// Reasoning up to its end: an answer follows.
    ToAnswer,
    /// Reasoning up to a call.
    ToCall,
}

impl FreeReasoning {
    /// Of a reply that is written in `format`.
    pub(super) fn of(format: &ReplyFormat) -> FreeReasoning {
        let state = match format.thinks.filter(|_| !format.harmony) {
            None => State::Behind,
            Some(false) => State::Before,
            Some(true) => State::Within,
        };
        let calls = format.tools.map_or(&[][..], ToolFormat::ends_reasoning);
        let part = format.tools.and_then(ToolFormat::bare_opener).unwrap_or_default();
        FreeReasoning { state, marks: format.marks, calls, part }
    }

    /// The reply does not reason.
    pub(super) fn none() -> FreeReasoning {
        FreeReasoning::of(&ReplyFormat::default())
    }

    /// Removes reasoning from the end of the reply so far. Of a text that may be its opener, all stays.
    pub(super) fn skip(&mut self, seen: &mut Vec<u8>) -> Skipped {
        if self.state == State::Before {
            let (begun, opener) = (seen.trim_ascii_start(), self.marks.opener().as_bytes());
            self.state = match () {
                () if begun.starts_with(opener) => State::Within,
                () if opener.starts_with(begun) => return Skipped::All,
                () => State::Behind,
            };
        }
        if self.state == State::Behind {
            return Skipped::Nothing;
        }
        let call = self.calls.iter().filter_map(|end| Some(end_of(seen, end)? - self.part.len())).min();
        let (skipped, end) = match (end_of(seen, self.marks.closer()), call) {
            (Some(answer), call) if call.is_none_or(|call| answer < call) => (Skipped::ToAnswer, answer),
            (_, Some(call)) => (Skipped::ToCall, call),
            _ => return Skipped::All,
        };
        seen.drain(..end);
        self.state = State::Behind;
        skipped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was skipped with the last letter of `text`, and what is left.
    fn skipped(thinks: Option<bool>, tools: ToolFormat, text: &str) -> (Skipped, String) {
        let mut format = ReplyFormat::default();
        (format.thinks, format.tools) = (thinks, Some(tools));
        let (mut reasoning, mut seen, mut last) = (FreeReasoning::of(&format), Vec::new(), Skipped::Nothing);
        for byte in text.bytes() {
            seen.push(byte);
            last = reasoning.skip(&mut seen);
        }
        (last, String::from_utf8(seen).unwrap())
    }

    #[test]
    fn reasoning_ends_at_its_mark_or_at_a_call_in_qwen_s_tags() {
        let hermes = |thinks, text: &str| skipped(thinks, ToolFormat::Hermes, text);
        assert_eq!(hermes(Some(true), "a <tool_call></think>"), (Skipped::ToAnswer, String::new()));
        assert_eq!(hermes(Some(false), "\n<think>a</think>"), (Skipped::ToAnswer, String::new()));
        assert_eq!(hermes(Some(false), " <thin").0, Skipped::All);
        assert_eq!(hermes(Some(false), "<this"), (Skipped::Nothing, "<this".to_owned()));
        assert_eq!(hermes(None, "<think>"), (Skipped::Nothing, "<think>".to_owned()));
        let call = "a\n<tool_call>\n<function=";
        assert_eq!(hermes(Some(true), call).0, Skipped::All);
        for call in [call, "a<tool_call><function="] {
            assert_eq!(skipped(Some(true), ToolFormat::Tagged, call), (Skipped::ToCall, "<function=".to_owned()));
        }
    }
}
