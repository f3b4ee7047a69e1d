//! The parts of a model's reply: its reasoning, its content, and its calls of tools, separated while the text arrives.
//!
//! ```text
//! text ──► ReplyParser ── pending: text that may be a part of a marker
//!             │  by ReplyFormat: marks of reasoning, and the ToolFormat that the chat template was made for
//!             ├─ json_call: {"name": …, "arguments": {…}}, streamed from the first byte of the arguments
//!             ├─ call_name: a name before JSON, streamed alike
//!             ├─ pythonic, tagged, gemma: calls that are read once they are whole, which call_end finds
//!             └─ harmony: channels instead of markers
//!             ▼
//!          Delta: what is new
//! ```
//!
//! A text that is not a call, or a call that does not parse, is content: nothing of a reply is dropped, except the markers around
//! its parts. Every parser takes time in proportion to the text, however it is cut.

mod argument;
mod begun;
mod call_end;
mod call_name;
mod format;
mod gemma;
mod harmony;
mod json_call;
mod parser;
mod pending;
mod pythonic;
mod tagged;
mod value_scan;

pub use argument::admits_text;
pub use begun::Begun;
pub use call_name::{NamedCall, named_call};
pub use format::{ReasoningMarks, ReplyFormat, ToolFormat};
pub use parser::ReplyParser;

/// What is new of a reply. Texts are never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Text of the reasoning before the answer.
    Reasoning(String),
    /// Text of the answer.
    Content(String),
    /// A call of a tool begins. Calls are numbered from 0.
    CallBegin {
        /// The call's number.
        index: u32,
        /// Name of the tool.
        name: String,
    },
    /// More of the arguments of a call, which are JSON once it has ended.
    CallArguments {
        /// The call's number.
        index: u32,
        /// A part of the JSON text.
        json: String,
    },
}

#[cfg(test)]
mod tests;
