//! Structured output: replies that have to match a JSON schema, a regular expression or a grammar.
//!
//! ```text
//! Structure (of a request) ──► gbnf, lark ──► llguidance's grammar ──► Matcher: which tokens may follow
//!                                                                        ▲
//! Vocabulary: bytes of each token ───────────────────────────────────────┘
//! Constraint: when the matcher applies: at once, behind reasoning, or to the arguments of calls
//! ```
//!
//! llguidance bounds the size of grammars and the work for each token, and catches its own panics.

mod call_head;
mod constraint;
mod gbnf;
mod grammar;
mod vocabulary;

pub(crate) use constraint::{Constraint, Start};
pub(crate) use grammar::Structure;
pub(crate) use vocabulary::Vocabulary;
