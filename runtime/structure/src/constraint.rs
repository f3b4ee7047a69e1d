//! When a reply is constrained: from its beginning, behind its reasoning, or while it writes the arguments of a call.

use std::sync::Arc;

use llguidance::Matcher;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::SimpleVob;
use serde_json::Value;
use unicorn_text::{ReplyFormat, ToolFormat};

use crate::call_head::{Head, gemma_head, harmony_head, head};
use crate::error::StructureError;
use crate::gemma_call::{self, Mark};
use crate::grammar::{Structure, any_object, call_grammar};
use crate::vocabulary::Vocabulary;

/// What the tokens of one reply have to match, given the reply so far.
#[derive(Clone)]
pub struct Constraint {
    vocabulary: Arc<Vocabulary>,
    /// What applies now; `None`: every token may follow.
    matcher: Option<Box<Matcher>>,
    /// The reply ends where the matcher does.
    is_whole: bool,
    /// What applies behind these texts.
    later: Option<(Start, Box<Matcher>)>,
    calls: Option<Calls>,
    /// The end of the reply so far, in which a text is searched for.
    seen: Vec<u8>,
}

/// Texts that precede the constrained part of a reply, in order.
#[derive(Clone)]
pub struct Start(Vec<&'static str>);

/// The arguments of calls match their tools' schemas.
#[derive(Clone)]
struct Calls {
    /// Matcher of each tool's arguments, with the tool's name. Created with the request, because that can take long.
    tools: Vec<(String, Matcher)>,
    openers: Vec<&'static str>,
    is_harmony: bool,
    /// Gemma's calls: what stands around a text.
    mark: Option<Mark>,
    /// What was seen may be the head of a call.
    in_head: bool,
}

/// Most bytes of a reply that are kept, in which a text is searched for.
const MAX_SEEN_BYTES: usize = 64;
/// Longest head of a call.
const MAX_HEAD_BYTES: usize = 1 << 10;

impl Start {
    /// Nothing precedes the constrained part.
    pub fn at_once() -> Start {
        Start(Vec::new())
    }

    /// Texts that precede the answer in a reply that is parsed by `format`.
    pub fn of_answer(format: &ReplyFormat) -> Start {
        Start(match format {
            ReplyFormat { harmony: true, .. } => vec!["<|channel|>final", "<|message|>"],
            ReplyFormat { thinks: Some(true), marks, .. } => vec![marks.closer()],
            _ => Vec::new(),
        })
    }
}

impl Constraint {
    /// The reply is `structure`, behind `start`.
    ///
    /// # Errors
    /// For a structure that is wrong or too large.
    pub fn whole(
        vocabulary: Arc<Vocabulary>,
        structure: &Structure,
        start: Start,
    ) -> Result<Constraint, StructureError> {
        let matcher = Some(Box::new(vocabulary.matcher(structure.grammar(), &[])?));
        let at_once = Constraint { vocabulary, matcher, is_whole: true, later: None, calls: None, seen: Vec::new() };
        Ok(at_once.behind(start))
    }

    /// The same behind `start`, for a reply that has not begun.
    pub fn behind(mut self, start: Start) -> Constraint {
        if !start.0.is_empty() {
            self.later = self.matcher.take().map(|matcher| (start, matcher));
        }
        self
    }

    /// The arguments of calls match the schemas of `tools`, each in OpenAI's form. `beginning` is the part of a call that the
    /// prompt ends with, if it has to be made; then `is_only`: the reply ends with it.
    pub fn of_calls(
        vocabulary: Arc<Vocabulary>,
        tools: &[&Value],
        format: &ReplyFormat,
        beginning: &str,
        is_only: bool,
    ) -> Option<Constraint> {
        let kind = format.tools?;
        let describe = |tool: &&Value| {
            let function = tool.get("function")?;
            let schema = function.get("parameters").filter(|schema| schema.is_object());
            Some((function.get("name")?.as_str()?.to_owned(), schema.cloned().unwrap_or_else(any_object)))
        };
        let schemas: Vec<(String, Value)> = tools.iter().filter_map(describe).collect();
        let mut openers = kind.openers().to_vec();
        let begins_bare = kind.is_bare() && !format.harmony && format.thinks != Some(true);
        if format.harmony {
            openers = vec!["to=functions."];
        } else if kind.is_bare() {
            openers.push(format.marks.closer());
        }
        let mark = kind.text_mark().map(|text| Mark { text, is_special: vocabulary.is_special(text) });
        let matcher = |name: &str, schema: &Value| {
            let grammar = match mark {
                Some(mark) => gemma_call::call_grammar(&[(name, schema)], mark),
                None => Structure::Schema(schema.clone()).grammar(),
            };
            vocabulary.matcher(grammar, &[]).ok()
        };
        // A schema that llguidance does not support leaves JSON, at least.
        let any = |name: &str, schema: &Value| matcher(name, schema).or_else(|| matcher(name, &any_object()));
        let tools = schemas.iter().filter_map(|(name, schema)| Some((name.clone(), any(name, schema)?))).collect();
        let calls = Calls { tools, openers, is_harmony: format.harmony, mark, in_head: begins_bare };
        let mut constraint = Constraint {
            vocabulary,
            matcher: None,
            is_whole: false,
            later: None,
            calls: Some(calls),
            seen: Vec::new(),
        };
        let key = if kind == ToolFormat::Llama { "parameters" } else { "arguments" };
        constraint.begin_call(&schemas, key, beginning);
        // Text behind a call that has no mark of its own would be read as a part of it.
        constraint.is_whole = constraint.matcher.is_some() && (is_only || kind.is_bare());
        Some(constraint)
    }

    /// Whether some tokens may not follow.
    pub fn applies(&self) -> bool {
        self.matcher.is_some()
    }

    /// Tokens that may follow; `None`: all.
    ///
    /// # Errors
    /// When that takes too long to find out.
    pub fn allowed(&mut self) -> Result<Option<SimpleVob>, String> {
        let mask = self.matcher.as_mut().map(|matcher| matcher.compute_mask_or_eos());
        mask.transpose().map_err(|error| error.to_string())
    }

    /// Advances by a token that was sampled.
    ///
    /// # Errors
    /// When the token may not follow, or that takes too long to find out.
    pub fn observe(&mut self, token: u32) -> Result<(), String> {
        match &mut self.matcher {
            Some(matcher) if !matcher.is_stopped() => {
                matcher.consume_token(token).map_err(|error| error.to_string())?;
                if matcher.is_stopped() && !self.is_whole {
                    self.matcher = None;
                    self.seen.clear();
                    // A list of calls may continue.
                    self.calls.iter_mut().for_each(|calls| calls.in_head = !calls.is_harmony);
                }
                Ok(())
            }
            // Only a stop token follows.
            Some(_) => Ok(()),
            None => {
                let bytes = self.vocabulary.bytes(token);
                self.seen.extend_from_slice(bytes);
                self.look_for_start()?;
                self.look_for_calls();
                Ok(())
            }
        }
    }

    fn look_for_start(&mut self) -> Result<(), String> {
        while let Some((Start(texts), _)) = &mut self.later {
            let Some(end) = end_of(&self.seen, texts[0]) else {
                forget(&mut self.seen);
                return Ok(());
            };
            self.seen.drain(..end);
            texts.remove(0);
            if texts.is_empty() {
                let (_, mut matcher) = self.later.take().expect("it was there");
                let begun = String::from_utf8_lossy(&self.seen).trim_start().to_owned();
                let tokens = matcher.tok_env().map(|environment| environment.tokenize(&begun));
                tokens.and_then(|tokens| matcher.consume_tokens(&tokens)).map_err(|error| error.to_string())?;
                self.matcher = Some(matcher);
            }
        }
        Ok(())
    }

    fn look_for_calls(&mut self) {
        let Some(calls) = &mut self.calls else { return };
        if !calls.in_head {
            let Some(end) = calls.openers.iter().filter_map(|opener| end_of(&self.seen, opener)).min() else {
                return forget(&mut self.seen);
            };
            self.seen.drain(..end);
            calls.in_head = true;
        }
        let text = String::from_utf8_lossy(&self.seen);
        let found = match calls.mark {
            _ if calls.is_harmony => harmony_head(&text),
            Some(_) => gemma_head(&text),
            None => head(&text),
        };
        let tool = match found {
            Head::Partial if text.len() < MAX_HEAD_BYTES => return,
            Head::Whole(name, at) => calls.tools.iter().find(|tool| tool.0 == name).map(|tool| (tool, at)),
            Head::Partial | Head::Not => None,
        };
        calls.in_head = false;
        let matcher = tool.and_then(|((_, matcher), at)| {
            let mut matcher = matcher.clone();
            let tokens = matcher.tok_env().ok()?.tokenize_bytes(&text.as_bytes()[at..]);
            matcher.consume_tokens(&tokens).ok().map(|()| matcher)
        });
        self.matcher = matcher.map(Box::new);
        if self.matcher.is_none() {
            forget(&mut self.seen);
        }
    }

    /// The call that the prompt ends with: its name, if it is open yet, and its arguments.
    fn begin_call(&mut self, schemas: &[(String, Value)], key: &str, beginning: &str) {
        let Some(calls) = &self.calls else { return };
        if calls.is_harmony {
            if beginning.ends_with('{') {
                self.seen = beginning.as_bytes().to_vec();
                self.look_for_calls();
            }
            return;
        }
        let Some(at) = beginning.find(if calls.mark.is_some() { "call:" } else { "{" }) else { return };
        let begun = &beginning[at..];
        let of = |schema: &dyn Fn(&Value) -> Value| -> TopLevelGrammar {
            let tools: Vec<(&str, Value)> =
                schemas.iter().map(|(name, value)| (name.as_str(), schema(value))).collect();
            let tools: Vec<(&str, &Value)> = tools.iter().map(|(name, value)| (*name, value)).collect();
            match calls.mark {
                Some(mark) => gemma_call::call_grammar(&tools, mark),
                None => call_grammar(&tools, key),
            }
        };
        let matcher = |grammar| self.vocabulary.matcher(grammar, begun.as_bytes()).ok();
        let matcher = matcher(of(&Value::clone)).or_else(|| matcher(of(&|_| any_object())));
        self.matcher = matcher.map(Box::new);
    }
}

/// Where the first `text` in `seen` ends.
fn end_of(seen: &[u8], text: &str) -> Option<usize> {
    seen.windows(text.len()).position(|window| window == text.as_bytes()).map(|at| at + text.len())
}

/// Keeps the end of `seen`, in which a text may have begun.
fn forget(seen: &mut Vec<u8>) {
    seen.drain(..seen.len().saturating_sub(MAX_SEEN_BYTES));
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use unicorn_text::{Tokenizer, TokenizerSection};

    use super::*;

    /// A token for each character from the space to the tilde, a line break, a stop token and Gemma 4's mark.
    fn vocabulary() -> Arc<Vocabulary> {
        let mut tokens: Vec<String> = (b' '..=b'~').map(|byte| char::from(byte).to_string()).collect();
        tokens.push("\n".to_owned());
        let vocab: serde_json::Map<String, Value> =
            tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
        let added = [(96, "<end>"), (97, MARK)].map(|(id, content)| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        });
        let json = json!({
            "version": "1.0", "added_tokens": added, "normalizer": null, "post_processor": null, "pre_tokenizer": null,
            "decoder": {"type": "Fuse"}, "model": {"type": "BPE", "vocab": vocab, "merges": []},
        });
        let section = TokenizerSection { tokenizer_json: json.to_string(), ..TokenizerSection::default() };
        Arc::new(Vocabulary::new(&Tokenizer::new(&section).unwrap(), 98, &[96]))
    }

    const MARK: &str = "<|\"|>";

    fn tokens(text: &str) -> Vec<u32> {
        let of_character = |character| if character == '\n' { 95 } else { character as u32 - 32 };
        let parts: Vec<Vec<u32>> = text.split(MARK).map(|part| part.chars().map(of_character).collect()).collect();
        parts.join(&97)
    }

    /// Whether a text can be written; the stop token ends it where `ends`.
    fn accepts(mut constraint: Constraint, text: &str, ends: bool) -> bool {
        let mut takes = |token: u32| {
            let allowed = constraint.allowed().unwrap().is_none_or(|mask| mask.is_allowed(token));
            allowed && constraint.observe(token).is_ok()
        };
        tokens(text).into_iter().all(&mut takes) && (!ends || takes(96))
    }

    fn whole(structure: Structure) -> Constraint {
        Constraint::whole(vocabulary(), &structure, Start::at_once()).map_err(|error| error.message).unwrap()
    }

    #[test]
    fn a_reply_matches_a_schema_an_expression_a_choice_or_a_grammar() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
        let schema = || whole(Structure::Schema(schema.clone()));
        assert!(accepts(schema(), "{\"a\": 12}", true) && !accepts(schema(), "{\"a\": 12", true));
        assert!(!accepts(schema(), "{\"a\": \"", false) && !accepts(schema(), "x", false));
        let regex = || whole(Structure::Regex("[0-9]{3}-x*".into()));
        assert!(accepts(regex(), "123-xx", true) && !accepts(regex(), "12-", false));
        let choice = || whole(Structure::Choice(vec!["yes".into(), "no \"way\"".into()]));
        assert!(
            accepts(choice(), "yes", true) && accepts(choice(), "no \"way\"", true) && !accepts(choice(), "ye", true)
        );
        let lark = || whole(Structure::Lark("start: \"a\" b\nb: \"(\" b? \")\"".into()));
        assert!(accepts(lark(), "a(())", true) && !accepts(lark(), "a(()", true));
        let gbnf = || whole(Structure::from_grammar("root ::= \"a\" b\nb ::= \"(\" b? \")\"".into()).unwrap());
        assert!(accepts(gbnf(), "a(())", true) && !accepts(gbnf(), "a(()", true) && !accepts(gbnf(), "b", false));
    }

    #[test]
    fn what_is_no_grammar_is_an_error_of_one_line() {
        for structure in [
            Structure::Regex("(".into()),
            Structure::Lark("start: undefined_rule".into()),
            Structure::Schema(json!({"type": "no such type"})),
        ] {
            let made = Constraint::whole(vocabulary(), &structure, Start::at_once());
            let error = made.err().unwrap_or_else(|| panic!("{structure:?}"));
            assert!(!error.message.is_empty() && !error.message.contains('\n'), "{}", error.message);
        }
    }

    #[test]
    fn reasoning_is_free_and_the_answer_is_not() {
        let format = || {
            let start = Start(vec!["</think>"]);
            Constraint::whole(vocabulary(), &Structure::Regex("[0-9]+".into()), start).ok().unwrap()
        };
        assert!(accepts(format(), "let me < think</think>12", true));
        assert!(!accepts(format(), "well</think>a", false));
    }

    fn calls(kind: ToolFormat, beginning: &str) -> Constraint {
        let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
            "additionalProperties": false});
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
        let mut format = ReplyFormat::default();
        format.tools = Some(kind);
        Constraint::of_calls(vocabulary(), &[&tool], &format, beginning, false).unwrap()
    }

    #[test]
    fn the_arguments_of_a_call_match_its_schema_and_other_text_is_free() {
        let hermes = || calls(ToolFormat::Hermes, "");
        let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
        assert!(accepts(hermes(), &format!("Sure. {call}{call} {{\"x\": 1}}"), true));
        assert!(!accepts(hermes(), "<tool_call>{\"name\": \"f\", \"arguments\": {\"town\"", false));
        assert!(accepts(hermes(), "<tool_call>{\"name\": \"g\", \"arguments\": {\"town\": 1}}", false));
        assert!(!accepts(hermes(), "<tool_call>{\"name\":\"f\",\"arguments\":{\"city\": 1", false));
        let llama = || calls(ToolFormat::Llama, "");
        assert!(accepts(llama(), "{\"name\": \"f\", \"parameters\": {\"city\": \"Rome\"}}", true));
        assert!(!accepts(llama(), "{\"name\": \"f\", \"parameters\": {\"city\": \"Rome\", ", false));
        let mistral =
            "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"city\": \"a\"}}, {\"name\": \"f\", \"arguments\": {";
        assert!(accepts(calls(ToolFormat::Mistral, ""), &format!("{mistral}\"city\": \"\"}}}}]"), true));
        assert!(!accepts(calls(ToolFormat::Mistral, ""), &format!("{mistral}\"a"), false));
    }

    #[test]
    fn gemma_s_calls_are_written_in_their_own_syntax() {
        let parameters = json!({"type": "object", "properties": {
            "city": {"type": "string"},
            "days": {"type": "array", "items": {"type": "integer"}},
            "inner": {"type": "object", "properties": {"on": {"type": ["boolean", "null"]}}},
            "unit": {"enum": ["C", "F", 1]},
        }, "required": ["city"]});
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
        let gemma = |beginning: &str| {
            let mut format = ReplyFormat::default();
            format.tools = Some(ToolFormat::Gemma4);
            Constraint::of_calls(vocabulary(), &[&tool], &format, beginning, false).unwrap()
        };
        let whole =
            r#"<|tool_call>call:f{city:<|"|>Rome, {x<|"|>,days:[1,-20],inner:{on:null},unit:<|"|>C<|"|>}<tool_call|>"#;
        let least = r#"<|tool_call>call:f{city:<|"|><|"|>}<tool_call|>"#;
        assert!(accepts(gemma(""), &format!("Sure. {whole}{least} done"), true));
        for wrong in [
            "call:f{days",
            "call:f{town",
            "call:f{city:1",
            r#"call:f{city:<|"|>a<|"|>,unit:<|"|>K"#,
            r#"call:f{city:<|"|>a<|"|>,days:[1.5"#,
            r#"call:f{city:<|"|>a<|"|>,inner:{on:1"#,
            r#"call:f{city:<|"|>a<|"|>,unit:1,days"#,
        ] {
            assert!(!accepts(gemma(""), &format!("<|tool_call>{wrong}"), false), "{wrong}");
        }
        // Unknown tools are free; those that have to be called are not.
        assert!(accepts(gemma(""), "<|tool_call>call:g{town:1}", false));
        assert!(accepts(gemma("<|tool_call>call:f{"), r#"city:<|"|>a<|"|>}<tool_call|>"#, false));
        assert!(!accepts(gemma("<|tool_call>call:f{"), "town", false));
        assert!(
            accepts(gemma("<|tool_call>call:"), r#"f{city:<|"|>a<|"|>}"#, false)
                && !accepts(gemma("<|tool_call>call:"), "g", false)
        );
    }

    #[test]
    fn a_schema_that_refers_to_itself_or_has_no_types_leaves_any_value() {
        for parameters in [
            json!({"type": "object", "properties": {"a": {"$ref": "#"}}}),
            json!({"type": "object", "properties": {"a": {"type": "odd"}, "b": {"$ref": "#/nowhere"}, "c": {"enum": [[1]]}}}),
            json!({"type": "object"}),
            json!(true),
        ] {
            let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
            let mut format = ReplyFormat::default();
            format.tools = Some(ToolFormat::Gemma);
            let constraint = Constraint::of_calls(vocabulary(), &[&tool], &format, "", false).unwrap();
            let text = "<start_function_call>call:f{a:{a:{}}}<end_function_call>";
            assert!(accepts(constraint, text, true), "{parameters}");
            let constraint = Constraint::of_calls(vocabulary(), &[&tool], &format, "", false).unwrap();
            let text = "<start_function_call>call:f{a:{a:<escape>x, < }<escape>}}<end_function_call>";
            assert_eq!(accepts(constraint, text, true), !parameters.to_string().contains("\"#\""), "{parameters}");
        }
    }

    #[test]
    fn a_call_that_has_to_be_made_goes_on_from_the_prompt() {
        let named = || calls(ToolFormat::Hermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {");
        assert!(accepts(named(), "\"city\": \"Rome\"}}\n</tool_call>", true) && !accepts(named(), "\"x", false));
        let open = || calls(ToolFormat::Hermes, "<tool_call>\n{\"name\": \"");
        assert!(accepts(open(), "f\", \"arguments\": {\"city\": \"\"}}", false) && !accepts(open(), "g", false));
    }
}
