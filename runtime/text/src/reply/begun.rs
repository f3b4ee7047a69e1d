//! A reply that has begun: a client gives its reasoning and its content, and the model continues them.

use super::format::{ReasoningMarks, ReplyFormat};

/// The beginning of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The text behind the prompt.
    pub text: String,
    /// How the rest is to be read.
    pub format: ReplyFormat,
    /// The part of the text that is read before the rest.
    pub opener: &'static str,
}

const ANALYSIS: &str = "<|channel|>analysis<|message|>";
const FINAL: &str = "<|channel|>final<|message|>";

impl ReplyFormat {
    /// A reply behind `prompt` that begins with `reasoning` and `content`. Without content, it goes on with its reasoning.
    pub fn begun(self, prompt: &str, reasoning: &str, content: &str) -> Begun {
        let mut format = self.behind(prompt);
        if format.harmony {
            let thought = if reasoning.is_empty() { String::new() } else { format!("{ANALYSIS}{reasoning}") };
            let between = if thought.is_empty() { "" } else { "<|end|><|start|>assistant" };
            let (text, opener) = match content.is_empty() {
                true => (thought, if reasoning.is_empty() { "" } else { ANALYSIS }),
                false => (format!("{thought}{between}{FINAL}{content}"), FINAL),
            };
            return Begun { text, format, opener };
        }
        let Some(is_within) = format.thinks else { return Begun { text: content.to_owned(), format, opener: "" } };
        let thought = match (is_within, reasoning.is_empty()) {
            (true, _) => reasoning.to_owned(),
            (false, true) => String::new(),
            (false, false) => format.marks.opener().to_owned() + reasoning,
        };
        let is_thinking = is_within || !thought.is_empty();
        if content.is_empty() {
            format.thinks = Some(is_thinking);
            return Begun { text: thought, format, opener: "" };
        }
        format.thinks = Some(false);
        let end = if is_thinking { format.end_of_thought() } else { "" };
        Begun { text: format!("{thought}{end}{content}"), format, opener: "" }
    }

    /// What stands between reasoning and an answer.
    pub(super) fn end_of_thought(&self) -> &'static str {
        match self.marks {
            ReasoningMarks::Think | ReasoningMarks::ThinkAndResponse => "</think>\n\n",
            marks => marks.closer(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(marks: ReasoningMarks, prompt: &str, reasoning: &str, content: &str) -> (String, Option<bool>) {
        let format = ReplyFormat { thinks: Some(false), marks, ..ReplyFormat::default() };
        let begun = format.begun(prompt, reasoning, content);
        (begun.text, begun.format.thinks)
    }

    #[test]
    fn content_follows_reasoning_that_has_ended() {
        let think =
            |prompt: &str, reasoning: &str, content: &str| begun(ReasoningMarks::Think, prompt, reasoning, content);
        assert_eq!(think("", "", ""), (String::new(), Some(false)));
        assert_eq!(think("", "", "Yes"), ("Yes".to_owned(), Some(false)));
        assert_eq!(think("", "Hm.", "Yes"), ("<think>Hm.</think>\n\nYes".to_owned(), Some(false)));
        assert_eq!(think("", "Hm", ""), ("<think>Hm".to_owned(), Some(true)));
        // The prompt has begun the reasoning.
        assert_eq!(think("<think>\n", "", ""), (String::new(), Some(true)));
        assert_eq!(think("<think>\n", "Hm", ""), ("Hm".to_owned(), Some(true)));
        assert_eq!(think("<think>\n", "", "Yes"), ("</think>\n\nYes".to_owned(), Some(false)));
        let brackets = begun(ReasoningMarks::Brackets, "", "Hm.", "Yes");
        assert_eq!(brackets, ("[THINK]Hm.[/THINK]Yes".to_owned(), Some(false)));
        let none = ReplyFormat::default().begun("", "Hm.", "Yes");
        assert_eq!((none.text.as_str(), none.format.thinks), ("Yes", None));
    }

    #[test]
    fn harmony_s_content_is_on_its_last_channel() {
        let begun = |reasoning: &str, content: &str| {
            let format = ReplyFormat { harmony: true, ..ReplyFormat::default() };
            let begun = format.begun("<|start|>assistant", reasoning, content);
            (begun.text, begun.opener)
        };
        assert_eq!(begun("", ""), (String::new(), ""));
        assert_eq!(begun("Hm", ""), (format!("{ANALYSIS}Hm"), ANALYSIS));
        assert_eq!(begun("", "Yes"), (format!("{FINAL}Yes"), FINAL));
        assert_eq!(begun("Hm.", "Yes"), (format!("{ANALYSIS}Hm.<|end|><|start|>assistant{FINAL}Yes"), FINAL));
    }
}
