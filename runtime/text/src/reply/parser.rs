//! The parser of a reply, whatever its format.

use serde_json::Value;

use super::Delta;
use super::call_end::CallEnd;
use super::call_name::{NamedCall, named_call};
use super::format::{ReasoningMarks, ReplyFormat, ToolFormat};
use super::harmony::{self, Harmony};
use super::json_call::{JsonCall, Part};
use super::pending::Pending;
use super::value_scan::ValueScan;
use super::{gemma, pythonic, tagged};

/// Reads the text of one reply, piece by piece.
///
/// ```
/// use unicorn_text::{Delta, ReplyFormat, ReplyParser};
/// let mut format = ReplyFormat::default();
/// format.thinks = Some(false);
/// let mut reply = ReplyParser::new(&format, ["f"]);
/// assert_eq!(reply.push("<think>Hm"), [Delta::Reasoning("Hm".into())]);
/// assert_eq!(reply.push("</thi"), []);
/// assert_eq!(reply.push("nk>\n\nYes"), [Delta::Content("Yes".into())]);
/// ```
#[derive(Debug)]
pub struct ReplyParser {
    pending: Pending,
    state: State,
    thinks: bool,
    marks: ReasoningMarks,
    /// Reasoning may begin again, and its end stand where it did not begin.
    rethinks: bool,
    /// The marks around the answer.
    answer: Option<(&'static str, &'static str)>,
    /// The answer has begun with its mark.
    in_answer: bool,
    tools: Option<ToolFormat>,
    /// Names of the tools, and the schemas of their arguments, which are null where they are not known.
    schemas: Vec<(String, Value)>,
    n_calls: u32,
    /// The call that has begun has arguments.
    has_arguments: bool,
    /// White space that ends the content, unless more follows.
    space: String,
    has_content: bool,
    /// White space before the content is dropped.
    trims: bool,
    /// A call precedes the next content, and content precedes the call.
    separates: bool,
    /// The prompt ends with what opens reasoning, which the reply may repeat.
    may_repeat_opener: bool,
    /// Text that was read as the beginning of a call; it is content if it turns out not to be one.
    skipped: String,
}

#[derive(Debug)]
enum State {
    /// Before the first letter of the reply.
    Start,
    Reasoning,
    /// Behind the token of Gemma 4 that opens a channel.
    Channel,
    Content,
    /// Behind the opener of a call.
    Call,
    /// Within the object of a call.
    Json(JsonCall),
    /// Within a call that is read when it is whole, from its first byte; `scanned` bytes hold no end of it.
    Whole {
        kind: Whole,
        end: CallEnd,
        scanned: usize,
    },
    Harmony(Harmony),
}

/// A call that is read when it is whole.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Whole {
    /// A list of calls, `[name(…)]`, or one of them.
    Pythonic,
    /// Qwen's tags.
    Function,
    /// GLM's name and its tags.
    Keyed,
    Gemma,
}

impl ReplyParser {
    /// A parser for a reply in `format` that may call tools of these names.
    pub fn new(format: &ReplyFormat, tools: impl IntoIterator<Item = impl Into<String>>) -> ReplyParser {
        let state = match (format.harmony, format.thinks) {
            (true, _) => State::Harmony(Harmony::default()),
            (false, Some(true)) => State::Reasoning,
            (false, _) => State::Start,
        };
        ReplyParser {
            pending: Pending::default(),
            state,
            thinks: format.thinks.is_some(),
            marks: format.marks,
            rethinks: format.thinks.is_some() && format.marks.recur(),
            answer: format.thinks.and(format.marks.of_answer()),
            in_answer: false,
            tools: format.tools,
            schemas: tools.into_iter().map(|name| (name.into(), Value::Null)).collect(),
            n_calls: 0,
            has_arguments: true,
            space: String::new(),
            has_content: false,
            trims: format.thinks == Some(true),
            separates: false,
            may_repeat_opener: format.thinks == Some(true),
            skipped: String::new(),
        }
    }

    /// A parser for a reply in `format` that may call `tools`, each in OpenAI's form. Arguments that are written without quotes have the
    /// types of the tool's schema.
    pub fn of_tools(format: &ReplyFormat, tools: &[Value]) -> ReplyParser {
        let text = |tool: &Value| tool.pointer("/function/name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let schema = |tool: &Value| tool.pointer("/function/parameters").cloned().unwrap_or_default();
        let mut parser = ReplyParser::new(format, [""; 0]);
        parser.schemas = tools.iter().map(|tool| (text(tool), schema(tool))).collect();
        parser
    }

    /// Calls that have begun.
    pub fn n_calls(&self) -> u32 {
        self.n_calls
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        self.pending.push(text);
        let mut deltas = Vec::new();
        while self.step(false, &mut deltas) {}
        deltas
    }

    /// The remaining deltas, once no more text comes.
    pub fn finish(&mut self) -> Vec<Delta> {
        let mut deltas = Vec::new();
        while self.step(true, &mut deltas) {}
        let rest = self.pending.take_all();
        match &mut self.state {
            State::Harmony(harmony) => {
                self.pending.push(&rest);
                let parts = harmony.finish(&mut self.pending);
                parts.into_iter().for_each(|part| self.add_harmony(part, &mut deltas));
            }
            State::Reasoning => add_text(&mut deltas, rest, Delta::Reasoning),
            State::Channel => self.content(CHANNEL.to_owned() + &rest, &mut deltas),
            State::Json(call) => {
                // The call was cut off.
                if let Some(text) = call.undecided().map(str::to_owned) {
                    self.no_call(text, &mut deltas);
                }
            }
            _ => self.no_call(rest, &mut deltas),
        }
        self.end_call(&mut deltas);
        deltas
    }

    /// Parses the part of the pending text that is unambiguous. `false`: nothing more is. `at_end`: no more text comes.
    fn step(&mut self, at_end: bool, deltas: &mut Vec<Delta>) -> bool {
        match &mut self.state {
            State::Start => self.start(at_end),
            State::Reasoning => self.reasoning(at_end, deltas),
            State::Channel => self.channel(at_end, deltas),
            State::Content => self.read_answer(deltas),
            State::Call => self.call(at_end, deltas),
            State::Json(call) => {
                let schemas = &self.schemas;
                let (taken, parts) = call.push(self.pending.text(), &|name| schemas.iter().any(|tool| tool.0 == name));
                self.pending.take(taken);
                let ended = parts.contains(&Part::End);
                for part in parts {
                    self.add_json(part, deltas);
                }
                ended
            }
            State::Whole { .. } => self.whole(at_end, deltas),
            State::Harmony(harmony) => {
                let schemas = &self.schemas;
                let parts = harmony.read(&mut self.pending, &|name| schemas.iter().any(|tool| tool.0 == name));
                parts.into_iter().for_each(|part| self.add_harmony(part, deltas));
                false
            }
        }
    }

    /// Reads reasoning up to its end.
    fn reasoning(&mut self, at_end: bool, deltas: &mut Vec<Delta>) -> bool {
        if self.may_repeat_opener {
            let (text, opener) = (self.pending.text().trim_start(), self.marks.opener());
            if opener.starts_with(text) && text != opener && !at_end {
                return false;
            }
            self.may_repeat_opener = false;
            if text.starts_with(opener) {
                self.pending.take_space();
                self.pending.take(opener.len());
            }
        }
        let calls = self.tools.map_or(&[][..], ToolFormat::ends_reasoning);
        let markers: Vec<&str> = [self.marks.closer()].into_iter().chain(calls.iter().copied()).collect();
        let (text, found) = self.pending.take_until(&markers);
        add_text(deltas, text, Delta::Reasoning);
        let Some(found) = found else { return false };
        if found == 0 {
            self.state = if self.has_content { State::Content } else { State::Start };
            (self.thinks, self.trims) = (self.rethinks, true);
            return true;
        }
        let is_call = self.begins_call(self.pending.text(), &['>'], at_end);
        match is_call {
            Some(false) => add_text(deltas, markers[found].to_owned(), Delta::Reasoning),
            _ => self.pending.put_back(markers[found]),
        }
        if is_call == Some(true) {
            (self.state, self.thinks, self.trims) = (State::Content, false, true);
        }
        is_call.is_some()
    }

    /// Decides what a channel of Gemma 4 is. A second one may begin at once, and no line break follow.
    fn channel(&mut self, at_end: bool, deltas: &mut Vec<Delta>) -> bool {
        const THOUGHT: &str = "thought";
        let text = self.pending.text();
        if text.starts_with(CHANNEL) {
            self.pending.take(CHANNEL.len());
            return true;
        }
        if let Some(behind) = text.strip_prefix(THOUGHT).filter(|behind| at_end || !behind.is_empty()) {
            let has_line_break = behind.starts_with('\n');
            self.pending.take(THOUGHT.len() + usize::from(has_line_break));
            self.state = State::Reasoning;
            return true;
        }
        if [CHANNEL, THOUGHT].iter().any(|marker| marker.starts_with(text)) && !at_end {
            return false;
        }
        // Without text it is no channel; a channel without a name is one of thoughts.
        self.state = if text.is_empty() { State::Content } else { State::Reasoning };
        if text.is_empty() {
            self.content(CHANNEL.to_owned(), deltas);
        }
        true
    }

    /// Reads the answer up to a call, or to another mark.
    fn read_answer(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let openers = self.tools.map_or(&[][..], ToolFormat::openers);
        let bare_opener = self.tools.and_then(ToolFormat::bare_opener);
        let closer = self.answer.filter(|_| self.in_answer).map(|(_, closer)| closer);
        let channels = if self.rethinks { &[CHANNEL, self.marks.closer()][..] } else { &[] };
        let markers: Vec<&str> =
            openers.iter().copied().chain(bare_opener).chain(closer).chain(channels.iter().copied()).collect();
        let (text, found) = self.pending.take_until(&markers);
        self.content(text, deltas);
        let Some(found) = found else { return false };
        match (openers.get(found), markers[found]) {
            (Some(opener), _) => {
                (*opener).clone_into(&mut self.skipped);
                self.state = State::Call;
            }
            (None, marker) if Some(marker) == bare_opener => {
                self.pending.put_back(marker);
                self.state = State::Call;
            }
            (None, CHANNEL) => self.state = State::Channel,
            // The end of reasoning that did not begin has no meaning.
            (None, _) => self.in_answer = false,
        }
        true
    }

    /// Decides what the reply, or what follows its reasoning, begins with.
    fn start(&mut self, at_end: bool) -> bool {
        let text = self.pending.text().trim_start();
        if text.is_empty() {
            return false;
        }
        let opener = if self.rethinks { CHANNEL } else { self.marks.opener() };
        let may_begin = |marker: &str| marker.starts_with(text) && !at_end;
        if self.thinks && (text.starts_with(opener) || may_begin(opener)) {
            if text.starts_with(opener) {
                self.pending.take_space();
                self.pending.take(opener.len());
                self.state = if self.rethinks { State::Channel } else { State::Reasoning };
                return true;
            }
            return false;
        }
        if let Some((opener, _)) = self.answer.filter(|_| !self.in_answer) {
            if text.starts_with(opener) {
                self.pending.take_space();
                self.pending.take(opener.len());
                (self.in_answer, self.trims) = (true, true);
                return true;
            }
            if may_begin(opener) {
                return false;
            }
        }
        let named = match self.tools {
            Some(ToolFormat::Glm4) => self.begins_named(text, at_end),
            _ => Some(false),
        };
        let Some(named) = named else { return false };
        let bare = self.tools.is_some_and(ToolFormat::is_bare) && (named || text.starts_with(['{', '[']));
        if bare || self.trims {
            self.pending.take_space();
        }
        self.state = if bare { State::Call } else { State::Content };
        true
    }

    /// Parses the text after an opener, or between two calls.
    fn call(&mut self, at_end: bool, deltas: &mut Vec<Delta>) -> bool {
        let Some(format) = self.tools else { return false };
        let space = self.pending.take_space();
        self.skip(space, false);
        let text = self.pending.text();
        let Some(first) = text.chars().next() else { return false };
        let markers = || format.closers().iter().chain(format.openers());
        if let Some(marker) = markers().find(|marker| text.starts_with(**marker)) {
            let (n_bytes, is_opener) = (marker.len(), format.openers().contains(marker));
            let marker = self.pending.take(n_bytes);
            self.skip(marker, is_opener);
            return true;
        }
        if markers().any(|marker| marker.starts_with(text)) && !at_end {
            return false;
        }
        let behind = text[first.len_utf8()..].trim_start();
        let is_name = |text: &str| text.starts_with(|letter: char| letter.is_alphabetic() || letter == '_');
        let closers = format.closers();
        self.state = match (format, first) {
            (_, '{') => State::Json(JsonCall::default()),
            (_, '[') if format.reads_python() && behind.is_empty() && !at_end => return false,
            (_, '[') if format.reads_python() && is_name(behind) => match self.begins_call(behind, &['('], at_end) {
                None => return false,
                Some(true) => whole(Whole::Pythonic, CallEnd::Bracket(ValueScan::python())),
                Some(false) => self.not_a_call(deltas),
            },
            (_, '[' | ',' | ';' | ']') if format.reads_lists() => {
                let bracket = self.pending.take(1);
                self.skip(bracket, first == '[');
                return true;
            }
            (ToolFormat::Hermes | ToolFormat::Tagged, '<') => match self.begins_function(text, at_end) {
                None => return false,
                Some(true) => {
                    let value = tagged::QWEN_VALUE;
                    whole(Whole::Function, CallEnd::BehindTags { closers, value, in_value: false })
                }
                Some(false) => {
                    // The letter is no opener of a call again.
                    let letter = self.pending.take(first.len_utf8());
                    self.no_call(letter, deltas);
                    State::Content
                }
            },
            (ToolFormat::Olmo3, _) if is_name(text) => match self.begins_call(text, &['('], at_end) {
                None => return false,
                Some(true) => whole(Whole::Pythonic, CallEnd::Bracket(ValueScan::python())),
                Some(false) => self.not_a_call(deltas),
            },
            (ToolFormat::Glm, _) if is_name(text) => match self.begins_call(text, &['\n', '<'], at_end) {
                None => return false,
                Some(true) => {
                    let value = tagged::GLM_VALUE;
                    whole(Whole::Keyed, CallEnd::BehindTags { closers, value, in_value: false })
                }
                Some(false) => self.not_a_call(deltas),
            },
            (ToolFormat::Gemma | ToolFormat::Gemma4, 'c' | ':') => whole(Whole::Gemma, CallEnd::First(closers)),
            (ToolFormat::Mistral | ToolFormat::Glm4 | ToolFormat::DeepSeek, _) if is_name(text) => {
                match named_call(format, text) {
                    NamedCall::Partial if !at_end => return false,
                    NamedCall::Whole(name, at) if self.is_tool(name) => {
                        let name = name.to_owned();
                        self.pending.take(at);
                        self.begin_call(name, deltas);
                        State::Json(JsonCall::of_arguments())
                    }
                    _ => self.not_a_call(deltas),
                }
            }
            _ => self.not_a_call(deltas),
        };
        true
    }

    /// Whether `text` begins with the name of a tool and one of `ends`; `None`: more text decides that.
    fn begins_call(&self, text: &str, ends: &[char], at_end: bool) -> Option<bool> {
        let mut names = self.schemas.iter().map(|(name, _)| name.as_str());
        match text.split_once(ends) {
            Some((called, _)) => Some(names.any(|name| name == called.trim_end())),
            None if at_end => Some(false),
            None if names.any(|name| name.starts_with(text.trim_end())) => None,
            None => Some(false),
        }
    }

    /// Whether `text` begins with the first of Qwen's tags and a tool's name; `None`: more text decides that.
    fn begins_function(&self, text: &str, at_end: bool) -> Option<bool> {
        let text = text.trim_start();
        match text.strip_prefix(tagged::FUNCTION) {
            Some(name) => self.begins_call(name, &['>'], at_end),
            None => (at_end || !tagged::FUNCTION.starts_with(text)).then_some(false),
        }
    }

    /// Whether `text` begins with a line of a tool's name, and an object behind it; `None`: more text decides that.
    fn begins_named(&self, text: &str, at_end: bool) -> Option<bool> {
        if !self.begins_call(text, &['\n'], at_end)? {
            return Some(false);
        }
        let arguments = text.split_once('\n').map_or("", |(_, behind)| behind.trim_start());
        (at_end || !arguments.is_empty()).then(|| arguments.starts_with('{'))
    }

    /// Leaves out text before a call, until it is one. Between two calls, only the text that opens the next one is kept.
    fn skip(&mut self, text: String, is_opener: bool) {
        if is_opener || !self.skipped.is_empty() {
            self.skipped += &text;
        }
    }

    /// Text that was read as a call, up to `text`, becomes content.
    fn no_call(&mut self, text: String, deltas: &mut Vec<Delta>) {
        let skipped = std::mem::take(&mut self.skipped);
        self.content(skipped + &text, deltas);
    }

    /// What was read as a call is content, which continues.
    fn not_a_call(&mut self, deltas: &mut Vec<Delta>) -> State {
        self.no_call(String::new(), deltas);
        State::Content
    }

    /// A call that is read when it is whole.
    fn whole(&mut self, at_end: bool, deltas: &mut Vec<Delta>) -> bool {
        let State::Whole { kind, end, scanned } = &mut self.state else { return false };
        let kind = *kind;
        let Some((at, _)) = end.find(self.pending.text(), scanned) else {
            if at_end {
                let text = self.pending.take_all();
                self.read_whole(kind, &text, deltas);
            }
            return false;
        };
        let text = self.pending.take(at);
        self.read_whole(kind, &text, deltas);
        true
    }

    fn read_whole(&mut self, kind: Whole, text: &str, deltas: &mut Vec<Delta>) {
        let calls = match kind {
            Whole::Pythonic => pythonic::calls(text),
            Whole::Function => tagged::function(text, |name| self.schema(name)).map(|call| vec![call]),
            Whole::Keyed => tagged::keyed(text, |name| self.schema(name)).map(|call| vec![call]),
            Whole::Gemma => {
                let mark = self.tools.and_then(ToolFormat::text_mark);
                mark.and_then(|mark| gemma::call(text, mark)).map(|call| vec![call])
            }
        };
        match calls.filter(|calls| calls.iter().all(|(name, _)| self.is_tool(name))) {
            None => {
                self.no_call(text.to_owned(), deltas);
                self.state = State::Content;
            }
            Some(calls) => {
                for (name, arguments) in calls {
                    self.begin_call(name, deltas);
                    self.arguments(Value::Object(arguments).to_string(), deltas);
                }
                self.state = State::Call;
            }
        }
    }

    fn is_tool(&self, name: &str) -> bool {
        self.schemas.iter().any(|tool| tool.0 == name)
    }

    /// Schema of a tool's arguments; null: it is not known.
    fn schema(&self, name: &str) -> &Value {
        self.schemas.iter().find(|tool| tool.0 == name).map_or(&Value::Null, |tool| &tool.1)
    }

    fn add_json(&mut self, part: Part, deltas: &mut Vec<Delta>) {
        match part {
            Part::Begin(name) => self.begin_call(name, deltas),
            Part::Arguments(json) => self.arguments(json, deltas),
            Part::NoCall(text) => {
                self.no_call(text, deltas);
                self.state = State::Content;
            }
            // After a text that is not a call, content continues.
            Part::End if matches!(self.state, State::Content) => {}
            Part::End => self.state = State::Call,
        }
    }

    fn add_harmony(&mut self, part: harmony::Part, deltas: &mut Vec<Delta>) {
        match part {
            harmony::Part::Reasoning(text) => add_text(deltas, text, Delta::Reasoning),
            harmony::Part::Content(text) => self.content(text, deltas),
            harmony::Part::CallBegin(name) => self.begin_call(name, deltas),
            harmony::Part::CallArguments(json) => self.arguments(json, deltas),
        }
    }

    fn begin_call(&mut self, name: String, deltas: &mut Vec<Delta>) {
        self.end_call(deltas);
        // White space and markers between content and a call have no meaning.
        self.space.clear();
        self.skipped.clear();
        self.separates = self.has_content;
        deltas.push(Delta::CallBegin { index: self.n_calls, name });
        self.n_calls += 1;
        self.has_arguments = false;
    }

    fn arguments(&mut self, json: String, deltas: &mut Vec<Delta>) {
        self.has_arguments = true;
        deltas.push(Delta::CallArguments { index: self.n_calls - 1, json });
    }

    /// A call without arguments has an empty object of them.
    fn end_call(&mut self, deltas: &mut Vec<Delta>) {
        if !self.has_arguments {
            self.arguments("{}".to_owned(), deltas);
        }
    }

    /// Text of the answer. White space at its end is held back where a call may follow.
    fn content(&mut self, text: String, deltas: &mut Vec<Delta>) {
        if self.tools.is_none() {
            self.has_content |= !text.is_empty();
            return add_text(deltas, text, Delta::Content);
        }
        let kept = text.trim_end().len();
        if kept == 0 {
            self.space += &text;
            return;
        }
        let space = std::mem::replace(&mut self.space, text[kept..].to_owned());
        let text = space + &text[..kept];
        let is_first = !std::mem::replace(&mut self.has_content, true);
        let separates = std::mem::take(&mut self.separates);
        deltas.push(Delta::Content(match () {
            // Two parts of the answer with a call between them are two lines.
            () if separates => format!("\n{}", text.trim_start()),
            () if is_first && self.trims => text.trim_start().to_owned(),
            () => text,
        }));
    }
}

/// What opens a channel of Gemma 4, before its name.
const CHANNEL: &str = "<|channel>";

fn whole(kind: Whole, end: CallEnd) -> State {
    State::Whole { kind, end, scanned: 0 }
}

fn add_text(deltas: &mut Vec<Delta>, text: String, delta: fn(String) -> Delta) {
    if !text.is_empty() {
        deltas.push(delta(text));
    }
}
