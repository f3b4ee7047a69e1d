//! gpt-oss' channels: `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…`.
//!
//! | channel | is |
//! |---|---|
//! | `analysis` | reasoning |
//! | any, with `to=functions.NAME` | a call, whose message is its arguments |
//! | `final`, `commentary` | content |

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
        Harmony { section: Section::Header(String::new()) }
    }
}

impl Harmony {
    /// Parses the part of the pending text that is unambiguous.
    pub(super) fn read(&mut self, pending: &mut Pending) -> Vec<Part> {
        let mut parts = Vec::new();
        loop {
            let ends: &[&str] = if matches!(self.section, Section::Header(_)) { &HEADER_ENDS } else { &BODY_ENDS };
            let (text, marker) = pending.take_until(ends);
            self.add(text, &mut parts);
            match marker {
                None => return parts,
                Some(_) => self.turn(&mut parts),
            }
        }
    }

    /// The remaining parts, once no more text comes.
    pub(super) fn finish(&mut self, pending: &mut Pending) -> Vec<Part> {
        let mut parts = Vec::new();
        self.add(pending.take_all(), &mut parts);
        if let Section::Header(header) = &mut self.section {
            let text = std::mem::take(header);
            // A reply without any marker is an answer all the same.
            if !text.trim().is_empty() && !text.contains("<|") && !text.starts_with("assistant") {
                parts.push(Part::Content(text));
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
                    parts.push(Part::Content(std::mem::take(header)));
                    self.section = Section::Content;
                }
            }
            Section::Reasoning => parts.push(Part::Reasoning(text)),
            Section::Content => parts.push(Part::Content(text)),
            Section::Call => parts.push(Part::CallArguments(text)),
        }
    }

    /// A marker ended the section.
    fn turn(&mut self, parts: &mut Vec<Part>) {
        self.section = match &self.section {
            Section::Header(header) => match recipient(header) {
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
fn recipient(header: &str) -> Option<String> {
    let (_, to) = header.split_once("to=functions.")?;
    let end = to.find(|letter: char| letter.is_whitespace() || letter == '<').unwrap_or(to.len());
    Some(to[..end].to_owned())
}
