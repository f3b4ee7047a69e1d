//! Text around [`unicorn_runtime`]: a model takes and returns token ids, which this crate converts from and to text.
//!
//! ```text
//! messages ──► ChatTemplate ──► text ──► Tokenizer ──► token ids ──► Session ──► token ids
//!                                                                                   │
//!                          pieces of text ◄── StopStrings ◄── Detokenizer ◄─────────┘
//!                          └──────────── OutputText: where the text ends ───────────┘
//! └──────────────────────────────── Continuation: of any prompt ──────────────────────────────┘
//! └──────────────────────────────── Chat: of a conversation ──────────────────────────────────┘
//! file ──► Picture ──► patches ──► Model::encode_image ──► Image, in the place of a mark in a message
//! pieces of text ──► ReplyParser ──► reasoning, content, calls of tools
//! ```
//!
//! It contains no device, no HTTP and no command line. Everything is read from the artifact's [`TokenizerSection`].

#![deny(missing_docs)]

mod chat;
mod context_window;
mod continuation;

mod added_letters;
mod byte_alphabet;
mod tokenizer;
mod vocabulary;

mod detokenizer;
mod output;
mod stop_strings;

mod chat_template;

mod reply;

mod images;
mod picture;
mod resize;

mod sampling;
mod token_sampler;

mod error;

pub use serde_json;
// The packages whose types are part of this one's public signatures, so that one dependency is enough.
pub use unicorn_artifact;
pub use unicorn_runtime;

pub use unicorn_artifact::{ImageSection, TokenizerSection};

pub use chat::{Answer, Chat, ChatOptions};
pub use chat_template::{ChatTemplate, Message, TemplateArguments, today};
pub use continuation::Continuation;
pub use detokenizer::Detokenizer;
pub use error::TextError;
pub use images::{IMAGE_MARK, encode_with_images, without_marks};
pub use output::{EndReason, OutputText, Piece, StopConditions};
pub use picture::Picture;
pub use reply::{
    Begun, Delta, NamedCall, ReasoningMarks, ReplyFormat, ReplyParser, ToolFormat, admits_text, named_call,
};
pub use resize::Filter;
pub use sampling::{default_sampling, random_seed};
pub use stop_strings::StopStrings;
pub use token_sampler::{AnswerConstraint, TokenSampler};
pub use tokenizer::Tokenizer;
pub use vocabulary::TokenBytes;
