//! Structured output: replies that have to match a JSON schema, a regular expression or a grammar.
//!
//! ```text
//! Structure ──► gbnf, lark ──► llguidance's grammar ──► Matcher: which tokens may follow
//!                                                          ▲
//! Vocabulary: bytes of each token ─────────────────────────┘
//! Constraint: where the matcher applies: at once, behind reasoning, or to the arguments of calls
//! ReasoningBudget: forces the end of reasoning that is too long
//! ReplySampler: masks of the tokens that may follow, for the device's sampler; or samples them on the host, where a request needs logits
//! AnswerStructure: makes such a sampler for each answer of a Chat
//! ```
//!
//! llguidance bounds the size of grammars and the work for each token, and catches its own panics.
//!
//! ```no_run
//! use std::sync::Arc;
//! use unicorn_structure::{AnswerStructure, Structure};
//! use unicorn_text::{Chat, ChatOptions};
//!
//! # fn example(model: &unicorn_text::unicorn_runtime::Model) -> Result<(), Box<dyn std::error::Error>> {
//! let mut chat = Chat::new(model, ChatOptions::default())?;
//! let city = Structure::from_schema_text(r#"{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}"#)?;
//! let structure = AnswerStructure::new(&city, model, chat.tokenizer())?;
//! chat.options_mut().constraint = Some(Arc::new(structure));
//! for piece in chat.ask("What is the capital of France?")? {
//!     print!("{}", piece?);
//! }
//! # Ok(())
//! # }
//! ```

#![deny(missing_docs)]

mod answer;
mod sampler;

mod constraint;
mod reasoning_budget;
mod vocabulary;

mod call_head;
mod gemma_call;
mod python_call;
mod tagged_call;

mod rules;
mod schema_rules;

mod grammar;
mod schema;

mod gbnf;

mod error;

pub use serde_json;
pub use unicorn_text;

pub use answer::AnswerStructure;
pub use constraint::{Constraint, Start};
pub use error::StructureError;
pub use grammar::Structure;
pub use reasoning_budget::ReasoningBudget;
pub use sampler::ReplySampler;
pub use vocabulary::Vocabulary;
