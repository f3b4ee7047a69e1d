//! A limit on reasoning: when a reply has as many tokens of it as are permitted, the tokens that end it are forced.
//!
//! ```text
//! Before ── opener ──► Within ── the model ends it ──────────────► Behind
//!                        └── no token is left ──► Ending (forced) ──┘
//! ```
//!
//! In harmony and with Gemma 4, reasoning may begin again behind its end; all of it together has the tokens.

use std::sync::Arc;

use unicorn_text::{ReplyFormat, Tokenizer, ToolFormat};

use crate::vocabulary::Vocabulary;

/// Counts the tokens of a reply's reasoning, and forces its end.
#[derive(Clone)]
pub struct ReasoningBudget {
    vocabulary: Arc<Vocabulary>,
    opener: &'static str,
    closer: &'static str,
    /// Calls that end the reasoning as well.
    calls: &'static [&'static str],
    /// Reasoning may begin again.
    recurs: bool,
    /// Tokens of reasoning that may still follow.
    left: u32,
    /// Tokens that end it.
    ending: Vec<u32>,
    /// Tokens that end it when it begins once more.
    next_ending: Vec<u32>,
    state: State,
    /// The end of the reply so far, in which opener and closer are searched for.
    seen: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No reasoning has begun yet.
    Before,
    Within,
    /// The token of `ending` at this index has to follow.
    Ending(usize),
    /// None can begin any more.
    Behind,
}

/// Bytes in which opener and closer are searched for: more than the longest of them and a token.
const MAX_SEEN_BYTES: usize = 256;

impl ReasoningBudget {
    /// At most `n_tokens` of reasoning in a reply that is written in `format`, then `message`, as a part of it, and its end.
    /// `None`: the format has no reasoning, or its end cannot be written in tokens.
    pub fn new(
        vocabulary: Arc<Vocabulary>,
        tokenizer: &Tokenizer,
        format: &ReplyFormat,
        n_tokens: u32,
        message: &str,
    ) -> Option<ReasoningBudget> {
        let encode = |text: String| tokenizer.encode(&text).ok().filter(|tokens| !tokens.is_empty());
        let (opener, closer, state, ending, next_ending) = match (format.harmony, format.thinks) {
            (true, _) => {
                let answer = "<|end|><|start|>assistant<|channel|>final<|message|>";
                // A call may follow in the place of an answer, once.
                let first = if format.tools.is_some() { "<|end|><|start|>assistant" } else { answer };
                let opener = "<|channel|>analysis<|message|>";
                (opener, "<|end|>", State::Before, message.to_owned() + first, answer.to_owned())
            }
            (false, Some(is_within)) => {
                let closer = format.marks.closer();
                let state = if is_within { State::Within } else { State::Before };
                (format.marks.opener(), closer, state, message.to_owned() + closer, closer.to_owned())
            }
            (false, None) => return None,
        };
        let mut budget = ReasoningBudget {
            vocabulary,
            opener,
            closer,
            calls: format.tools.filter(|_| !format.harmony).map_or(&[][..], ToolFormat::ends_reasoning),
            recurs: format.harmony || format.marks.recur(),
            left: n_tokens,
            ending: encode(ending)?,
            next_ending: encode(next_ending)?,
            state,
            seen: Vec::new(),
        };
        budget.end_when_spent();
        Some(budget)
    }

    /// The token that has to follow; `None`: any may.
    pub(crate) fn forced(&self) -> Option<u32> {
        match self.state {
            State::Ending(at) => Some(self.ending[at]),
            _ => None,
        }
    }

    /// Advances by a token of the reply.
    pub(crate) fn observe(&mut self, token: u32) {
        match self.state {
            State::Behind => {}
            State::Ending(at) if at + 1 < self.ending.len() => self.state = State::Ending(at + 1),
            State::Ending(_) => {
                self.ending.clone_from(&self.next_ending);
                self.leave();
            }
            State::Before => {
                self.see(token);
                self.look_for_opener();
            }
            State::Within => {
                self.see(token);
                self.left = self.left.saturating_sub(1);
                let mut ends = [self.closer].into_iter().chain(self.calls.iter().copied());
                let is_over = ends.any(|end| contains(&self.seen, end));
                match is_over {
                    true => self.leave(),
                    false => self.end_when_spent(),
                }
            }
        }
    }

    fn see(&mut self, token: u32) {
        self.seen.extend_from_slice(self.vocabulary.bytes(token));
        self.seen.drain(..self.seen.len().saturating_sub(MAX_SEEN_BYTES));
    }

    fn look_for_opener(&mut self) {
        let begins = match self.recurs {
            true => contains(&self.seen, self.opener),
            false => {
                // A reply reasons at its beginning or not at all.
                let begun = self.seen.trim_ascii_start();
                if !begun.starts_with(self.opener.as_bytes()) && !self.opener.as_bytes().starts_with(begun) {
                    self.state = State::Behind;
                }
                begun.starts_with(self.opener.as_bytes())
            }
        };
        if begins {
            self.seen.clear();
            self.state = State::Within;
            self.end_when_spent();
        }
    }

    /// The end follows the last token that is permitted, and the whole of its last character.
    fn end_when_spent(&mut self) {
        if self.state == State::Within && self.left == 0 && !ends_within_character(&self.seen) {
            self.state = State::Ending(0);
        }
    }

    fn leave(&mut self) {
        self.seen.clear();
        self.state = if self.recurs { State::Before } else { State::Behind };
    }
}

fn contains(seen: &[u8], text: &str) -> bool {
    seen.windows(text.len()).any(|window| window == text.as_bytes())
}

/// Whether `bytes` of UTF-8 end before the last byte of a character.
fn ends_within_character(bytes: &[u8]) -> bool {
    let first = bytes.iter().rev().take(4).position(|byte| byte & 0xC0 != 0x80);
    first.is_some_and(|behind| {
        let length = match bytes[bytes.len() - 1 - behind] {
            0xF0.. => 4,
            0xE0.. => 3,
            0xC0.. => 2,
            _ => 1,
        };
        behind + 1 < length
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};
    use unicorn_text::{ReasoningMarks, TokenizerSection};

    use super::*;

    /// A token for each byte that the texts have, and the markers of some formats.
    const MARKERS: [&str; 12] = [
        "<think>",
        "</think>",
        "<|channel|>",
        "<|message|>",
        "<|end|>",
        "<|start|>",
        "<stop>",
        "<none>",
        "<tool_call>",
        "\n<function=",
        "<|channel>thought\n",
        "<channel|>",
    ];

    fn tokenizer() -> Tokenizer {
        let mut vocab: Map<String, Value> =
            (b'a'..=b'z').enumerate().map(|(id, byte)| (char::from(byte).to_string(), json!(id))).collect();
        // The two bytes of a character, as GPT-2 writes them.
        vocab.extend([("Ã".to_owned(), json!(26)), ("©".to_owned(), json!(27)), (".".to_owned(), json!(28))]);
        let added = MARKERS.iter().enumerate().map(|(at, content)| {
            json!({"id": 29 + at, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        });
        let byte_level =
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        let json = json!({
            "version": "1.0", "added_tokens": added.collect::<Vec<_>>(), "normalizer": null, "post_processor": null,
            "pre_tokenizer": byte_level, "decoder": byte_level, "model": {"type": "BPE", "vocab": vocab, "merges": []},
        });
        Tokenizer::new(&TokenizerSection { tokenizer_json: json.to_string(), ..TokenizerSection::default() }).unwrap()
    }

    /// What a model that would write `text` writes with this budget: a forced token takes the place of one of its own only where
    /// these differ.
    fn written(format: &ReplyFormat, n_tokens: u32, message: &str, text: &str) -> String {
        let tokenizer = tokenizer();
        let vocabulary = Arc::new(Vocabulary::new(&tokenizer, 41, &[35]));
        let mut budget = ReasoningBudget::new(vocabulary, &tokenizer, format, n_tokens, message).unwrap();
        let mut tokens = Vec::new();
        let mut wanted = tokenizer.encode(text).unwrap().into_iter();
        loop {
            let forced = budget.forced();
            let Some(token) = forced.or_else(|| wanted.next()) else { break };
            budget.observe(token);
            tokens.push(token);
        }
        tokenizer.decode_with(&tokens, true).unwrap()
    }

    fn thinks(within: bool) -> ReplyFormat {
        let mut format = ReplyFormat::default();
        format.thinks = Some(within);
        format
    }

    #[test]
    fn reasoning_ends_behind_its_last_token() {
        assert_eq!(written(&thinks(true), 3, "", "abcdef"), "abc</think>def");
        assert_eq!(written(&thinks(false), 2, "", "<think>abcdef"), "<think>ab</think>cdef");
        assert_eq!(written(&thinks(true), 2, "enough.", "abcd"), "abenough.</think>cd");
        assert_eq!(written(&thinks(true), 0, "", "ab"), "</think>ab");
        assert_eq!(written(&thinks(false), 0, "", "<think>ab"), "<think></think>ab");
    }

    #[test]
    fn what_is_shorter_or_no_reasoning_is_left_as_it_is() {
        for text in ["ab</think>cdefgh", "a</think>b<think>cdefgh"] {
            assert_eq!(written(&thinks(true), 3, "", text), text);
        }
        for text in ["abcdef", "a<think>bcdef"] {
            assert_eq!(written(&thinks(false), 1, "", text), text);
        }
        let tokenizer = tokenizer();
        let vocabulary = Arc::new(Vocabulary::new(&tokenizer, 41, &[35]));
        assert!(ReasoningBudget::new(vocabulary, &tokenizer, &ReplyFormat::default(), 1, "").is_none());
    }

    #[test]
    fn a_call_in_qwen_s_tags_ends_reasoning() {
        let mut format = thinks(true);
        format.tools = Some(ToolFormat::Tagged);
        let text = "ab<tool_call>\n<function=abcdefghijklmnopqrstuvwxyz";
        assert_eq!(written(&format, 10, "", text), text);
        format.tools = Some(ToolFormat::Hermes);
        assert_ne!(written(&format, 10, "", text), text);
    }

    #[test]
    fn gemma_4_s_reasoning_has_its_tokens_in_all() {
        let mut format = thinks(false);
        format.marks = ReasoningMarks::ThoughtChannel;
        let once = "<|channel>thought\nab<channel|>c";
        let twice = format!("{once}{once}");
        assert_eq!(written(&format, 4, "", &twice), format!("{once}<|channel>thought\na<channel|>b<channel|>c"));
    }

    #[test]
    fn a_character_is_not_cut() {
        // Its two bytes are two tokens.
        assert_eq!(written(&thinks(true), 1, "", "éab"), "é</think>ab");
        assert!(ends_within_character("a€".as_bytes().split_last().unwrap().1));
        assert!(!ends_within_character("a€".as_bytes()) && !ends_within_character(b""));
    }

    #[test]
    fn harmony_goes_on_in_its_final_channel_or_with_one_call() {
        let mut format = ReplyFormat::default();
        format.harmony = true;
        let analysis = "<|channel|>analysis<|message|>";
        let answer = "<|end|><|start|>assistant<|channel|>final<|message|>";
        assert_eq!(written(&format, 2, "", &format!("{analysis}abcd")), format!("{analysis}ab{answer}cd"));
        format.tools = Some(unicorn_text::ToolFormat::Json);
        let twice = format!("{analysis}ab{analysis}cd");
        assert_eq!(
            written(&format, 2, "", &twice),
            format!("{analysis}ab<|end|><|start|>assistant{analysis}{answer}cd")
        );
    }
}
