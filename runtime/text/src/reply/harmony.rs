//! gpt-oss' channels: `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…`.
//!
//! | channel | is |
//! |---|---|
//! | `analysis` | reasoning |
//! | any, with `to=functions.NAME`, or `to=` and the name of a tool | a call, whose message is its arguments |
//! | `final`, `commentary` | content; two messages of it are two lines |

use super::pending::Pending;

/// The section between two markers.
#[derive(Debug)]
pub(super) enum Section {
    /// From the start of a message to `<|message|>`: role, channel, recipient.
    Header(String),
    Reasoning,
    Content,
    Call,
}

/// What a piece of text is.
#[derive(Debug, PartialEq)]
pub(super) enum Part {
    Reasoning(String),
    Content(String),
    CallBegin(String),
    CallArguments(String),
}

#[derive(Debug)]
pub(super) struct Harmony {
    section: Section,
    /// Content of an earlier message precedes the section.
    has_content: bool,
    /// The section is content, and text of it has arrived.
    has_begun: bool,
}

const MESSAGE: &str = "<|message|>";
const START: &str = "<|start|>";
const HEADER_ENDS: [&str; 1] = [MESSAGE];
const BODY_ENDS: [&str; 4] = ["<|end|>", "<|call|>", "<|return|>", START];
/// Longest header, in bytes; a longer text is content.
const MAX_HEADER_BYTES: usize = 1 << 10;

impl Default for Harmony {
    /// The prompt ends with `<|start|>assistant`.
    fn default() -> Harmony {
        Harmony { section: Section::Header(String::new()), has_content: false, has_begun: false }
    }
}

impl Harmony {
    /// Parses the part of the pending text that is unambiguous. `is_tool` is true for the name of a tool.
    pub(super) fn read(&mut self, pending: &mut Pending, is_tool: &dyn Fn(&str) -> bool) -> Vec<Part> {
        let mut parts = Vec::new();
        loop {
            let ends: &[&str] = if matches!(self.section, Section::Header(_)) { &HEADER_ENDS } else { &BODY_ENDS };
            let (text, marker) = pending.take_until(ends);
            self.add(text, &mut parts);
            match marker {
                None => return parts,
                Some(_) => self.turn(is_tool, &mut parts),
            }
        }
    }

    /// The remaining parts, once no more text comes.
    pub(super) fn finish(&mut self, pending: &mut Pending) -> Vec<Part> {
        let mut parts = Vec::new();
        self.add(pending.take_all(), &mut parts);
        if let Section::Header(header) = &mut self.section {
            let header = std::mem::take(header);
            if let Some(text) = text_of_header(&header) {
                self.section = Section::Content;
                self.add(text.to_owned(), &mut parts);
            }
        }
        parts
    }

    fn add(&mut self, text: String, parts: &mut Vec<Part>) {
        if text.is_empty() {
            return;
        }
        match &mut self.section {
            Section::Header(header) => {
                *header += &text;
                if header.len() > MAX_HEADER_BYTES {
                    let text = std::mem::take(header);
                    self.section = Section::Content;
                    self.add(text, parts);
                }
            }
            Section::Reasoning => parts.push(Part::Reasoning(text)),
            Section::Content => {
                let is_first = !std::mem::replace(&mut self.has_begun, true);
                let separates = is_first && std::mem::replace(&mut self.has_content, true);
                parts.push(Part::Content(if separates { format!("\n{text}") } else { text }));
            }
            Section::Call => parts.push(Part::CallArguments(text)),
        }
    }

    /// A marker ended the section.
    fn turn(&mut self, is_tool: &dyn Fn(&str) -> bool, parts: &mut Vec<Part>) {
        self.has_begun = false;
        self.section = match &self.section {
            Section::Header(header) => match recipient(header, is_tool) {
                Some(name) => {
                    parts.push(Part::CallBegin(name));
                    Section::Call
                }
                None if header.contains("analysis") => Section::Reasoning,
                None => Section::Content,
            },
            _ => Section::Header(String::new()),
        };
    }
}

/// The tool that a message is for.
fn recipient(header: &str, is_tool: &dyn Fn(&str) -> bool) -> Option<String> {
    let (_, to) = header.split_once("to=")?;
    let end = to.find(|letter: char| letter.is_whitespace() || letter == '<').unwrap_or(to.len());
    match to[..end].strip_prefix("functions.") {
        Some(name) => Some(name.to_owned()),
        // Tools on other recipients run on their vendor's servers.
        None => Some(to[..end].to_owned()).filter(|name| is_tool(name)),
    }
}

/// The answer in a header that no message follows: a reply without any marker, or one whose final channel lacks the mark of its message.
fn text_of_header(header: &str) -> Option<&str> {
    const FINAL: &str = "<|channel|>final";
    let text = match header.split_once(FINAL) {
        Some((_, text)) if text.starts_with(char::is_whitespace) => {
            BODY_ENDS.iter().fold(text, |text, end| text.trim().trim_end_matches(end))
        }
        Some(_) => return None,
        None if header.starts_with("assistant") => return None,
        None => header,
    };
    (!text.trim().is_empty() && !text.contains("<|")).then_some(text)
}
