//! When a reply is constrained: from its beginning, behind its reasoning, or while it writes the arguments of a call.

use std::sync::Arc;

use llguidance::Matcher;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::SimpleVob;
use serde_json::Value;
use unicorn_text::{ReplyFormat, ToolFormat};

use crate::call_head::{
    Head, gemma_head, harmony_head, head, keyed_head, named_head, python_call_head, python_head, tagged_head,
};
use crate::error::StructureError;
use crate::grammar::{Structure, any_object, call_grammar, with_calls};
use crate::schema_rules::{Mark, Notation};
use crate::tagged_call::Tags;
use crate::vocabulary::Vocabulary;
use crate::{gemma_call, python_call, tagged_call};

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
    /// Calls that the reply may have instead.
    instead: Option<Box<AlternativeCalls>>,
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
    /// Calls of all tools in the format's own syntax, which is not JSON.
    written: Option<(Syntax, Matcher)>,
    /// A call may have its name before JSON's arguments.
    is_named: bool,
    /// A call is the only one.
    is_only: bool,
    /// What was seen may be the head of a call.
    in_head: bool,
}

impl Calls {
    /// Whether a call may follow another one without what opens calls.
    fn may_be_listed(&self) -> bool {
        !self.is_harmony && self.written.as_ref().is_none_or(|(syntax, _)| syntax.is_listed())
    }
}

/// How calls are written that are neither JSON nor Gemma's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Syntax {
    /// Qwen's tags.
    Tags,
    /// GLM's name and tags.
    Keyed,
    /// A list of Python's calls.
    Python,
    /// The same with JSON's literals beside Python's, as LFM2's chat template writes them within objects.
    PythonOrJson,
    /// Such calls one by one, without a list around them.
    Lines,
}

impl Syntax {
    fn of(kind: ToolFormat) -> Option<Syntax> {
        match kind {
            ToolFormat::Hermes | ToolFormat::Tagged => Some(Syntax::Tags),
            ToolFormat::Glm => Some(Syntax::Keyed),
            ToolFormat::Llama | ToolFormat::Pythonic => Some(Syntax::Python),
            ToolFormat::Lfm2 => Some(Syntax::PythonOrJson),
            ToolFormat::Olmo3 => Some(Syntax::Lines),
            _ => None,
        }
    }

    /// The format whose calls are always written so.
    fn format(self) -> ToolFormat {
        match self {
            Syntax::Tags => ToolFormat::Tagged,
            Syntax::Keyed => ToolFormat::Glm,
            Syntax::Python => ToolFormat::Pythonic,
            Syntax::PythonOrJson => ToolFormat::Lfm2,
            Syntax::Lines => ToolFormat::Olmo3,
        }
    }

    /// Where the grammar of calls begins in the beginning of one.
    fn begins(self, beginning: &str) -> Option<usize> {
        match self {
            Syntax::Tags => beginning.find("<function="),
            Syntax::Keyed => end_of(beginning.as_bytes(), "<tool_call>"),
            Syntax::Python | Syntax::PythonOrJson => beginning.find('['),
            Syntax::Lines => end_of(beginning.as_bytes(), "<function_calls>"),
        }
    }

    /// Whether a call may follow another one at once.
    fn is_listed(self) -> bool {
        self != Syntax::Keyed
    }

    fn head(self, text: &str) -> Head<'_> {
        match self {
            Syntax::Tags => tagged_head(text),
            Syntax::Keyed => keyed_head(text),
            Syntax::Python | Syntax::PythonOrJson => python_head(text),
            Syntax::Lines => python_call_head(text),
        }
    }
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
        let at_once = Constraint {
            vocabulary,
            matcher,
            is_whole: true,
            later: None,
            calls: None,
            instead: None,
            seen: Vec::new(),
        };
        Ok(at_once.behind(start))
    }

    /// The reply is `structure`, behind its reasoning, or calls of `tools`, each in OpenAI's form, in its place.
    ///
    /// # Errors
    /// For a structure that is wrong or too large; where calls have no mark of their own, also for one that is no JSON.
    pub fn whole_or_calls(
        vocabulary: Arc<Vocabulary>,
        structure: &Structure,
        tools: &[&Value],
        format: &ReplyFormat,
        is_only: bool,
    ) -> Result<Constraint, StructureError> {
        let start = Start::of_answer(format);
        let Some(kind) = format.tools else { return Constraint::whole(vocabulary, structure, start) };
        if kind.is_bare() && !format.harmony {
            let both = with_calls(structure, &described(tools), key_of_arguments(kind))?;
            return Constraint::whole(vocabulary, &both, start);
        }
        let mut constraint = Constraint::whole(vocabulary.clone(), structure, start)?;
        let openers: &[&str] = if format.harmony { &[] } else { kind.openers() };
        let calls = Constraint::of_calls(vocabulary, tools, format, "", is_only);
        constraint.instead = calls.map(|calls| Box::new(AlternativeCalls::new(calls, openers)));
        Ok(constraint)
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
        let schemas = described(tools);
        let mut openers = kind.openers().to_vec();
        let begins_bare = kind.is_bare() && !format.harmony && format.thinks != Some(true);
        if format.harmony {
            openers = vec!["to=functions."];
        } else if kind.is_bare() {
            openers.push(format.marks.closer());
        }
        let mark_of = |text: &'static str| Mark { text, is_special: vocabulary.is_special(text) };
        let mark = kind.text_mark().map(mark_of);
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
        let grammar = |syntax: Syntax, schemas: &[(String, Value)]| {
            let schemas: Vec<(&str, &Value)> = schemas.iter().map(|(name, schema)| (name.as_str(), schema)).collect();
            match syntax {
                Syntax::Tags => tagged_call::call_grammar(&schemas, &Tags::qwen(mark_of("</tool_call>"))),
                Syntax::Keyed => tagged_call::call_grammar(&schemas, &Tags::glm(mark_of)),
                Syntax::Python => python_call::calls_grammar(&schemas, Notation::Python, is_only),
                Syntax::PythonOrJson => python_call::calls_grammar(&schemas, Notation::PythonOrJson, is_only),
                Syntax::Lines => python_call::call_grammar(&schemas, Notation::PythonOrJson),
            }
        };
        let matcher = |syntax: Syntax| {
            let made = vocabulary.matcher(grammar(syntax, &schemas), &[]).or_else(|_| {
                let any: Vec<(String, Value)> = schemas.iter().map(|(name, _)| (name.clone(), any_object())).collect();
                vocabulary.matcher(grammar(syntax, &any), &[])
            });
            made.ok().map(|matcher| (syntax, matcher))
        };
        let written = Syntax::of(kind).filter(|_| !format.harmony && !schemas.is_empty()).and_then(matcher);
        let is_named = kind.has_names_before_json() && !format.harmony;
        let calls = Calls {
            tools,
            openers,
            is_harmony: format.harmony,
            mark,
            written,
            is_named,
            is_only,
            in_head: begins_bare,
        };
        let mut constraint = Constraint {
            vocabulary,
            matcher: None,
            is_whole: false,
            later: None,
            calls: Some(calls),
            instead: None,
            seen: Vec::new(),
        };
        constraint.begin_call(&schemas, kind, beginning);
        // Text behind a call that has no mark of its own would be read as a part of it.
        constraint.is_whole = constraint.matcher.is_some() && (is_only || kind.is_bare());
        Some(constraint)
    }

    /// Whether some tokens may not follow.
    pub fn applies(&self) -> bool {
        match &self.instead {
            Some(instead) if instead.has_begun() => instead.applies(),
            _ => self.matcher.is_some(),
        }
    }

    /// Tokens that may follow; `None`: all.
    ///
    /// # Errors
    /// When that takes too long to find out.
    pub fn allowed(&mut self) -> Result<Option<SimpleVob>, String> {
        if let Some(instead) = self.instead.as_mut().filter(|instead| instead.has_begun()) {
            return instead.allowed(&self.vocabulary);
        }
        let mask = self.matcher.as_mut().map(|matcher| matcher.compute_mask_or_eos());
        let mut mask = mask.transpose().map_err(|error| error.to_string())?;
        if let (Some(mask), Some(instead)) = (&mut mask, &self.instead) {
            instead.permit(&self.vocabulary, mask);
        }
        Ok(mask)
    }

    /// Advances by a token that was sampled.
    ///
    /// # Errors
    /// When the token may not follow, or that takes too long to find out.
    pub fn observe(&mut self, token: u32) -> Result<(), String> {
        if let Some(instead) = &mut self.instead {
            if instead.has_begun() {
                return instead.observe(token, self.vocabulary.bytes(token));
            }
            match &mut self.matcher {
                // The first token behind the reasoning decides.
                Some(matcher) => {
                    if matcher.validate_tokens(&[token]).map_err(|error| error.to_string())? == 0 {
                        return instead.observe(token, self.vocabulary.bytes(token));
                    }
                    self.instead = None;
                }
                None => instead.look_for_call(token)?,
            }
        }
        match &mut self.matcher {
            Some(matcher) if !matcher.is_stopped() => {
                matcher.consume_token(token).map_err(|error| error.to_string())?;
                if matcher.is_stopped() && !self.is_whole {
                    self.matcher = None;
                    self.seen.clear();
                    // A list of calls may continue.
                    self.calls.iter_mut().for_each(|calls| calls.in_head = calls.may_be_listed());
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
        let named = if calls.is_named { named_head(&text) } else { Head::Not };
        let is_named = named != Head::Not;
        let found = match calls.mark {
            _ if is_named => named,
            _ if calls.is_harmony => harmony_head(&text),
            Some(_) => gemma_head(&text),
            None => head(&text),
        };
        let of_written = calls.written.as_ref().map_or(Head::Not, |(syntax, _)| syntax.head(&text));
        let tool = |name: &str| calls.tools.iter().find(|tool| tool.0 == name).map(|tool| &tool.1);
        let (begun, holds_call) = match (of_written, found) {
            // In tags, the grammar has the names.
            (Head::Whole(name, at), _) => {
                let written = calls.written.as_ref().filter(|_| name.is_empty() || tool(name).is_some());
                (written.map(|(_, matcher)| (matcher, at)), true)
            }
            (Head::Partial, _) | (_, Head::Partial) if text.len() < MAX_HEAD_BYTES => return,
            (_, Head::Whole(name, at)) => (tool(name).map(|matcher| (matcher, at)), calls.mark.is_some() || is_named),
            _ => (None, false),
        };
        let matcher = begun.and_then(|(matcher, at)| {
            let mut matcher = matcher.clone();
            let tokens = matcher.tok_env().ok()?.tokenize_bytes(&text.as_bytes()[at..]);
            matcher.consume_tokens(&tokens).ok().map(|()| matcher)
        });
        self.is_whole = matcher.is_some() && holds_call && calls.is_only;
        self.matcher = matcher.map(Box::new);
        calls.in_head = false;
        if self.matcher.is_none() {
            forget(&mut self.seen);
        }
    }

    /// The call that the prompt ends with: its name, if it is open yet, and its arguments.
    fn begin_call(&mut self, schemas: &[(String, Value)], kind: ToolFormat, beginning: &str) {
        let Some(calls) = &self.calls else { return };
        if calls.is_harmony {
            if beginning.ends_with('{') {
                self.seen = beginning.as_bytes().to_vec();
                self.look_for_calls();
            }
            return;
        }
        if let Some((syntax, matcher)) = &calls.written
            && kind == syntax.format()
            && let Some(at) = syntax.begins(beginning)
        {
            let mut matcher = matcher.clone();
            let tokens = matcher.tok_env().map(|environment| environment.tokenize_bytes(&beginning.as_bytes()[at..]));
            let begun = tokens.and_then(|tokens| matcher.consume_tokens(&tokens));
            self.matcher = begun.is_ok().then(|| Box::new(matcher));
            return;
        }
        if kind == ToolFormat::Glm4
            && let Some(name) = beginning.strip_suffix("\n{").and_then(|head| head.lines().next_back())
        {
            let mut matcher = calls.tools.iter().find(|tool| tool.0 == name).map(|tool| Box::new(tool.1.clone()));
            let begun = |matcher: &mut Box<Matcher>| {
                let tokens = matcher.tok_env().map(|environment| environment.tokenize_bytes(b"{"));
                tokens.and_then(|tokens| matcher.consume_tokens(&tokens)).is_ok()
            };
            self.matcher = matcher.take_if(begun);
            return;
        }
        let Some(at) = beginning.find(if calls.mark.is_some() { "call:" } else { "{" }) else { return };
        let key = key_of_arguments(kind);
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

// Calls in the place of an answer:
//
//   free (reasoning) ──► the answer may begin ──► it begins: the answer's matcher alone
//                            └── a token of what opens a call ──► the rest of that ──► calls
//
// In harmony, the channel decides, which no matcher covers: whichever of both applies first is it.

/// Calls that a reply may have instead of its answer.
#[derive(Clone)]
struct AlternativeCalls {
    calls: Constraint,
    /// Texts that calls begin with; in harmony, none.
    openers: &'static [&'static str],
    /// The beginning of one of them.
    begun: Vec<u8>,
    /// Its tokens.
    tokens: Vec<u32>,
    is_chosen: bool,
}

impl AlternativeCalls {
    fn new(calls: Constraint, openers: &'static [&'static str]) -> AlternativeCalls {
        AlternativeCalls { calls, openers, begun: Vec::new(), tokens: Vec::new(), is_chosen: false }
    }

    /// Whether the reply has begun with a call, or with a part of what opens one.
    fn has_begun(&self) -> bool {
        self.is_chosen || !self.begun.is_empty()
    }

    /// Whether some tokens may not follow, of a reply that has begun so.
    fn applies(&self) -> bool {
        !self.is_chosen || self.calls.applies()
    }

    /// Tokens that may follow, of a reply that has begun so; `None`: all.
    fn allowed(&mut self, vocabulary: &Vocabulary) -> Result<Option<SimpleVob>, String> {
        match self.is_chosen {
            true => self.calls.allowed(),
            false => {
                let mut mask = SimpleVob::alloc(vocabulary.len());
                self.permit(vocabulary, &mut mask);
                Ok(Some(mask))
            }
        }
    }

    /// Adds the tokens with which a call may begin, or its opener go on.
    fn permit(&self, vocabulary: &Vocabulary, mask: &mut SimpleVob) {
        let rests: Vec<&[u8]> =
            self.openers.iter().filter_map(|opener| opener.as_bytes().strip_prefix(self.begun.as_slice())).collect();
        for token in 0..vocabulary.len() as u32 {
            let bytes = vocabulary.bytes(token);
            if !bytes.is_empty() && rests.iter().any(|rest| rest.starts_with(bytes) || bytes.starts_with(rest)) {
                mask.allow_token(token);
            }
        }
    }

    /// Advances by a token of a reply that begins, or has begun, with a call.
    fn observe(&mut self, token: u32, bytes: &[u8]) -> Result<(), String> {
        if self.is_chosen {
            return self.calls.observe(token);
        }
        self.begun.extend_from_slice(bytes);
        self.tokens.push(token);
        self.is_chosen = self.openers.iter().any(|opener| self.begun.starts_with(opener.as_bytes()));
        match self.is_chosen {
            true => self.tokens.iter().try_for_each(|&token| self.calls.observe(token)),
            false => Ok(()),
        }
    }

    /// In harmony: advances by a token before it is decided which of both the reply is.
    fn look_for_call(&mut self, token: u32) -> Result<(), String> {
        if self.openers.is_empty() {
            self.calls.observe(token)?;
            self.is_chosen = self.calls.applies();
        }
        Ok(())
    }
}

/// Names of tools, and the schemas of their arguments.
fn described(tools: &[&Value]) -> Vec<(String, Value)> {
    let describe = |tool: &&Value| {
        let function = tool.get("function")?;
        let schema = function.get("parameters").filter(|schema| schema.is_object());
        Some((function.get("name")?.as_str()?.to_owned(), schema.cloned().unwrap_or_else(any_object)))
    };
    tools.iter().filter_map(describe).collect()
}

/// The key of the arguments in a call that is JSON.
fn key_of_arguments(kind: ToolFormat) -> &'static str {
    if kind == ToolFormat::Llama { "parameters" } else { "arguments" }
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
mod template_calls;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod written_calls;
