//! When a reply is constrained: from its beginning, behind its reasoning, or while it writes the arguments of a call.

mod free_reasoning;
mod optional_reasoning;
mod search;
mod syntax;

use std::sync::Arc;

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;
use serde_json::Value;
use unicorn_text::{ReplyFormat, ToolFormat};

use self::free_reasoning::{FreeReasoning, Skipped};
use self::optional_reasoning::OptionalReasoning;
use self::search::end_of;
use self::syntax::Syntax;
use crate::call_head::{Head, gemma_head, harmony_head, head, named_head};
use crate::error::StructureError;
use crate::grammar::{Structure, any_object, call_grammar, with_calls};
use crate::schema;
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
    /// Reasoning that may precede what the matcher covers.
    optional: Option<OptionalReasoning>,
    /// Reasoning, in which no calls are made.
    reasoning: FreeReasoning,
    /// The end of the reply so far, in which a text is searched for.
    seen: Vec<u8>,
}

/// What precedes the constrained part of a reply.
#[derive(Clone)]
pub struct Start {
    /// Texts in order.
    texts: Vec<&'static str>,
    /// Reasoning that may be left out.
    optional: Option<OptionalReasoning>,
}

/// The arguments of calls match their tools' schemas.
#[derive(Clone)]
struct Calls {
    /// Matcher of each tool's arguments, with the tool's name. Created with the request, because that can take long.
    tools: Vec<(String, Matcher)>,
    openers: Vec<&'static str>,
    /// Texts that open a call and are a part of it.
    bare_openers: Vec<String>,
    is_harmony: bool,
    /// A reply, or what follows its reasoning, may begin with a call that nothing opens.
    is_bare: bool,
    /// Gemma's calls: what stands around a text.
    mark: Option<Mark>,
    /// Calls of all tools in the format's own syntax, which is not JSON.
    written: Option<(Syntax, Matcher)>,
    /// A call may have its name before JSON's arguments, as in this format.
    is_named: Option<ToolFormat>,
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

/// Most bytes of a reply that are kept, in which a text is searched for.
const MAX_SEEN_BYTES: usize = 128;
/// Longest head of a call.
const MAX_HEAD_BYTES: usize = 1 << 10;

impl Start {
    /// Nothing precedes the constrained part.
    pub fn at_once() -> Start {
        Start { texts: Vec::new(), optional: None }
    }

    /// What precedes the answer in a reply that is parsed by `format`.
    pub fn of_answer(format: &ReplyFormat) -> Start {
        Start { optional: OptionalReasoning::of(format), ..Start::without_choice(format) }
    }

    /// The same without reasoning that may be left out, for a reply that is not parsed.
    pub(crate) fn without_choice(format: &ReplyFormat) -> Start {
        let texts = match format {
            ReplyFormat { harmony: true, .. } => vec!["<|channel|>final", "<|message|>"],
            ReplyFormat { thinks: Some(true), marks, .. } => vec![marks.closer()],
            _ => Vec::new(),
        };
        Start { texts, optional: None }
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
        structure.check()?;
        let matcher = Some(Box::new(vocabulary.matcher(structure.grammar(), &[])?));
        let at_once = Constraint {
            vocabulary,
            matcher,
            is_whole: true,
            later: None,
            calls: None,
            instead: None,
            optional: None,
            reasoning: FreeReasoning::none(),
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
        // They begin behind the reasoning.
        let mut behind_reasoning = format.clone();
        behind_reasoning.thinks = None;
        let calls = Constraint::of_calls(vocabulary, tools, &behind_reasoning, "", is_only);
        constraint.instead = calls.map(|calls| Box::new(AlternativeCalls::new(calls, openers)));
        Ok(constraint)
    }

    /// The same behind `start`, for a reply that has not begun.
    pub fn behind(mut self, start: Start) -> Constraint {
        self.optional = start.optional.clone().filter(|_| self.matcher.is_some());
        if !start.texts.is_empty() {
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
        let is_bare = kind.is_bare() && !format.harmony;
        if format.harmony {
            openers = vec!["to=functions."];
        }
        let bare_opener = kind.bare_opener().filter(|_| !format.harmony);
        let bare_openers =
            bare_opener.iter().flat_map(|opener| schemas.iter().map(move |(name, _)| format!("{opener}{name}>")));
        let bare_openers = bare_openers.collect();
        let mark_of = |text: &'static str| Mark { text, is_special: vocabulary.is_special(text) };
        // A call that ends the reply may be closed first.
        let closing = if is_only { optional_closers(kind, mark_of) } else { String::new() };
        let mark = kind.text_mark().map(mark_of);
        let matcher = |name: &str, schema: &Value| {
            let grammar = match mark {
                Some(mark) => gemma_call::call_grammar(&[(name, schema)], mark, &closing),
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
                Syntax::Python => python_call::calls_grammar(&schemas, Notation::Python, is_only, &closing),
                Syntax::PythonOrJson => python_call::calls_grammar(&schemas, Notation::PythonOrJson, is_only, &closing),
                Syntax::Lines => python_call::call_grammar(&schemas, Notation::PythonOrJson, &closing),
            }
        };
        let matcher = |syntax: Syntax| {
            let make = |schemas: &[(String, Value)]| vocabulary.matcher(grammar(syntax, schemas), &[]).ok();
            make(&schemas).or_else(|| make(&supported(&schemas, make))).map(|matcher| (syntax, matcher))
        };
        let written = Syntax::of(kind).filter(|_| !format.harmony && !schemas.is_empty()).and_then(matcher);
        let is_named = (kind.has_names_before_json() && !format.harmony).then_some(kind);
        let calls = Calls {
            tools,
            openers,
            bare_openers,
            is_harmony: format.harmony,
            is_bare,
            mark,
            written,
            is_named,
            is_only,
            in_head: is_bare,
        };
        let mut constraint = Constraint {
            vocabulary,
            matcher: None,
            is_whole: false,
            later: None,
            calls: Some(calls),
            instead: None,
            optional: None,
            // The beginning of a call follows the reasoning.
            reasoning: if beginning.is_empty() { FreeReasoning::of(format) } else { FreeReasoning::none() },
            seen: Vec::new(),
        };
        constraint.begin_call(&schemas, kind, beginning, &closing);
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
        if let Some(reasoning) = self.optional.as_ref().filter(|reasoning| reasoning.has_begun()) {
            let mut mask = SimpleVob::alloc(self.vocabulary.len());
            reasoning.permit(&self.vocabulary, &mut mask);
            return Ok(Some(mask));
        }
        let mask = self.matcher.as_mut().map(|matcher| matcher.compute_mask_or_eos());
        let mut mask = mask.transpose().map_err(|error| error.to_string())?;
        if let (Some(mask), Some(instead)) = (&mut mask, &self.instead) {
            instead.permit(&self.vocabulary, mask);
        }
        if let (Some(mask), Some(reasoning)) = (&mut mask, &self.optional) {
            reasoning.permit(&self.vocabulary, mask);
        }
        Ok(mask)
    }

    /// Advances by a token that was sampled.
    ///
    /// # Errors
    /// When the token may not follow, or that takes too long to find out.
    pub fn observe(&mut self, token: u32) -> Result<(), String> {
        if self.begins_reasoning(token)? {
            return Ok(());
        }
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

    /// Whether the token is one of those that reasoning begins with, where the reply may reason first.
    fn begins_reasoning(&mut self, token: u32) -> Result<bool, String> {
        let (Some(reasoning), Some(matcher)) = (&mut self.optional, &mut self.matcher) else { return Ok(false) };
        if !reasoning.has_begun() {
            let is_answer = matcher.validate_tokens(&[token]).map_err(|error| error.to_string())? > 0;
            if is_answer || !reasoning.takes(self.vocabulary.bytes(token)) {
                self.optional = None;
                return Ok(false);
            }
        } else if !reasoning.takes(self.vocabulary.bytes(token)) {
            return Err("expected the beginning of reasoning to go on".to_owned());
        }
        if let Some(closer) = reasoning.closer_behind_opener() {
            let start = Start { texts: vec![closer], optional: None };
            (self.optional, self.later) = (None, self.matcher.take().map(|matcher| (start, matcher)));
        }
        Ok(true)
    }

    fn look_for_start(&mut self) -> Result<(), String> {
        while let Some((Start { texts, .. }, _)) = &mut self.later {
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
        match self.reasoning.skip(&mut self.seen) {
            Skipped::All => return forget(&mut self.seen),
            Skipped::Nothing => {}
            Skipped::ToAnswer => calls.in_head = calls.is_bare,
            Skipped::ToCall => calls.in_head = true,
        }
        if !calls.in_head {
            let opened = calls.openers.iter().filter_map(|opener| end_of(&self.seen, opener));
            let bare = calls.bare_openers.iter().filter_map(|opener| Some(end_of(&self.seen, opener)? - opener.len()));
            let Some(end) = opened.chain(bare).min() else {
                return forget(&mut self.seen);
            };
            self.seen.drain(..end);
            calls.in_head = true;
        }
        let text = String::from_utf8_lossy(&self.seen);
        let named = calls.is_named.map_or(Head::Not, |format| named_head(format, &text));
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
        // DeepSeek's calls are closed by tokens behind them.
        let is_closed = calls.is_named == Some(ToolFormat::DeepSeek);
        self.is_whole = matcher.is_some() && holds_call && calls.is_only && !is_closed;
        self.matcher = matcher.map(Box::new);
        calls.in_head = false;
        if self.matcher.is_none() {
            forget(&mut self.seen);
        }
    }

    /// The call that the prompt ends with: its name, if it is open yet, and its arguments.
    fn begin_call(&mut self, schemas: &[(String, Value)], kind: ToolFormat, beginning: &str, closing: &str) {
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
        let make = |schemas: &[(String, Value)]| {
            let tools: Vec<(&str, &Value)> = schemas.iter().map(|(name, value)| (name.as_str(), value)).collect();
            let grammar = match calls.mark {
                Some(mark) => gemma_call::call_grammar(&tools, mark, closing),
                None => call_grammar(&tools, key),
            };
            self.vocabulary.matcher(grammar, begun.as_bytes()).ok()
        };
        let matcher = make(schemas).or_else(|| make(&supported(schemas, make)));
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
        let rests = self.openers.iter().filter_map(|opener| opener.as_bytes().strip_prefix(self.begun.as_slice()));
        vocabulary.permit_beginnings(&rests.collect::<Vec<_>>(), mask);
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
        let schema = function.get("parameters").filter(|schema| schema.is_object() && schema::check(schema).is_ok());
        Some((function.get("name")?.as_str()?.to_owned(), schema.cloned().unwrap_or_else(any_object)))
    };
    tools.iter().filter_map(describe).collect()
}

/// What may stand between a call and the end of the reply, as a grammar has it.
fn optional_closers(kind: ToolFormat, mark_of: impl Fn(&'static str) -> Mark) -> String {
    let closers: Vec<String> = kind.closers().iter().map(|closer| mark_of(closer).written()).collect();
    match closers.join(" | ") {
        none if none.is_empty() => none,
        one => format!("\"\\n\"? ({one})? ({one})?"),
    }
}

/// The tools, with any object in the place of a schema of which `make` makes no matcher.
fn supported(tools: &[(String, Value)], make: impl Fn(&[(String, Value)]) -> Option<Matcher>) -> Vec<(String, Value)> {
    let alone = |tool: &(String, Value)| match make(std::slice::from_ref(tool)) {
        Some(_) => tool.clone(),
        None => (tool.0.clone(), any_object()),
    };
    tools.iter().map(alone).collect()
}

/// The key of the arguments in a call that is JSON.
fn key_of_arguments(kind: ToolFormat) -> &'static str {
    if kind == ToolFormat::Llama { "parameters" } else { "arguments" }
}

/// Keeps the end of `seen`, in which a text may have begun.
fn forget(seen: &mut Vec<u8>) {
    seen.drain(..seen.len().saturating_sub(MAX_SEEN_BYTES));
}

#[cfg(test)]
mod structures;
#[cfg(test)]
mod template_calls;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod written_calls;
