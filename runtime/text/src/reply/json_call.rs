//! A call as a JSON object, `{"name": …, "arguments": {…}}`: its name and its arguments are passed on before it is whole.

use serde_json::Value;

use super::value_scan::ValueScan;

/// The object of one call while it arrives.
#[derive(Debug, Default)]
pub(super) struct JsonCall {
    text: String,
    object: ValueScan,
    stage: Stage,
}

#[derive(Debug, Default)]
enum Stage {
    /// Name and beginning of the arguments are not there yet.
    #[default]
    Header,
    /// The arguments arrive.
    Arguments(ValueScan),
    /// What follows the arguments in the object.
    Rest,
}

/// What a piece of text adds to what is known of a call.
#[derive(Debug, PartialEq)]
pub(super) enum Part {
    Begin(String),
    Arguments(String),
    /// The object has ended and is not a call: its text.
    NoCall(String),
    /// The object has ended.
    End,
}

/// Longest header that is read again with each piece. Behind it, a call is read once it is whole.
const MAX_HEADER_BYTES: usize = 512;
const NAMES: [&str; 2] = ["name", "function"];
const ARGUMENTS: [&str; 4] = ["arguments", "parameters", "args", "input"];

impl JsonCall {
    /// The arguments alone, of a call whose name was written before them.
    pub(super) fn of_arguments() -> JsonCall {
        JsonCall { stage: Stage::Arguments(ValueScan::default()), ..JsonCall::default() }
    }

    /// Takes the next piece; the object's first byte, `{`, is the first of all. Returns how many of its bytes belong to the object,
    /// and what is known with them. `is_tool` is true for the name of a tool.
    pub(super) fn push(&mut self, piece: &str, is_tool: &dyn Fn(&str) -> bool) -> (usize, Vec<Part>) {
        let end = self.object.feed(piece);
        let piece = &piece[..end.unwrap_or(piece.len())];
        let mut parts = Vec::new();
        self.text += piece;
        match &mut self.stage {
            Stage::Header if end.is_some() => parts.extend(self.whole(is_tool)),
            Stage::Header => {
                if self.text.len() <= MAX_HEADER_BYTES
                    && let Some((name, at)) = header(&self.text).filter(|(name, _)| is_tool(name))
                {
                    parts.push(Part::Begin(name));
                    self.stage = Stage::Arguments(ValueScan::default());
                    let arrived = self.text[at..].to_owned();
                    self.pass_on(&arrived, &mut parts);
                }
            }
            Stage::Arguments(_) => self.pass_on(piece, &mut parts),
            Stage::Rest => {}
        }
        if end.is_some() {
            parts.push(Part::End);
        }
        (piece.len(), parts)
    }

    /// The text so far, unless parts of it were passed on.
    pub(super) fn undecided(&self) -> Option<&str> {
        matches!(self.stage, Stage::Header).then_some(&self.text)
    }

    fn pass_on(&mut self, piece: &str, parts: &mut Vec<Part>) {
        let Stage::Arguments(scan) = &mut self.stage else { return };
        let end = scan.feed(piece);
        let arguments = &piece[..end.unwrap_or(piece.len())];
        if !arguments.is_empty() {
            parts.push(Part::Arguments(arguments.to_owned()));
        }
        if end.is_some() {
            self.stage = Stage::Rest;
        }
    }

    fn whole(&self, is_tool: &dyn Fn(&str) -> bool) -> Vec<Part> {
        // As they are written, like those of a call that arrives in pieces.
        if let Some((name, at)) = header(&self.text).filter(|(name, _)| is_tool(name)) {
            let end = ValueScan::default().feed(&self.text[at..]).unwrap_or(self.text.len() - at);
            return vec![Part::Begin(name), Part::Arguments(self.text[at..at + end].to_owned())];
        }
        match call(&self.text).filter(|(name, _)| is_tool(name)) {
            Some((name, arguments)) => vec![Part::Begin(name), Part::Arguments(arguments)],
            None => vec![Part::NoCall(self.text.clone())],
        }
    }
}

/// Name and arguments of a whole object; arguments that are a text are JSON themselves.
fn call(text: &str) -> Option<(String, String)> {
    let object: Value = serde_json::from_str(text).ok()?;
    let object = match object.get("function").filter(|function| function.is_object()) {
        Some(function) => function,
        None => &object,
    };
    let name = NAMES.iter().find_map(|key| object.get(key)?.as_str())?;
    let arguments = match ARGUMENTS.iter().find_map(|key| object.get(key)) {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(arguments) => arguments.to_string(),
    };
    Some((name.to_owned(), arguments))
}

/// Name and offset of the arguments of an object that has begun, if the name comes first and the arguments are an object.
fn header(text: &str) -> Option<(String, usize)> {
    let mut at = 1;
    let mut name = None;
    loop {
        at += text[at..].find(|letter: char| !letter.is_whitespace() && letter != ',')?;
        let key: String = whole_text(text, &mut at)?;
        at += text[at..].find(|letter: char| !letter.is_whitespace())?;
        at += usize::from(text[at..].starts_with(':'));
        at += text[at..].find(|letter: char| !letter.is_whitespace())?;
        if ARGUMENTS.contains(&key.as_str()) {
            return name.filter(|_| text[at..].starts_with('{')).map(|name| (name, at));
        }
        let value = whole_text(text, &mut at)?;
        if NAMES.contains(&key.as_str()) {
            name = Some(value);
        }
    }
}

/// The JSON text at `at`, if it is whole; `at` moves behind it.
fn whole_text(text: &str, at: &mut usize) -> Option<String> {
    let rest = text[*at..].starts_with('"').then_some(&text[*at..])?;
    let end = ValueScan::default().feed(rest)?;
    *at += end;
    serde_json::from_str(&rest[..end]).ok()
}
