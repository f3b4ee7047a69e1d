//! What can go wrong between text and tokens.

use std::error::Error;
use std::fmt;

use unicorn_runtime::RunError;

/// Why text could not be made into tokens, or tokens into text.
#[derive(Debug)]
#[non_exhaustive]
pub enum TextError {
    /// The artifact has no tokenizer: the model was compiled from files without a `tokenizer.json`.
    NoTokenizer,
    /// The artifact's tokenizer does not parse.
    Tokenizer {
        /// What the parser reported.
        detail: String,
    },
    /// The tokenizer rejected a text.
    Encode {
        /// What the tokenizer reported.
        detail: String,
    },
    /// The tokenizer rejected token ids.
    Decode {
        /// The ids that were to be decoded.
        tokens: Vec<u32>,
        /// What the tokenizer reported.
        detail: String,
    },
    /// The artifact has no chat template: the model came without one, and can only continue plain text.
    NoChatTemplate,
    /// The artifact's chat template is not valid Jinja.
    ChatTemplate {
        /// What the parser reported.
        detail: String,
    },
    /// The chat template rejected a conversation, for example because the roles do not alternate.
    Conversation {
        /// What the template reported.
        detail: String,
    },
    /// The prompt has no tokens, and the model has no beginning-of-sequence token to start from.
    EmptyPrompt,
    /// A step of the model failed.
    Run(RunError),
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TextError::NoTokenizer => {
                write!(f, "artifact has no tokenizer: expected a model that was compiled with its tokenizer.json")
            }
            TextError::Tokenizer { detail } => write!(f, "tokenizer of the artifact does not parse: {detail}"),
            TextError::Encode { detail } => write!(f, "text cannot be tokenized: {detail}"),
            TextError::Decode { tokens, detail } => write!(f, "token ids {tokens:?} cannot be decoded: {detail}"),
            TextError::NoChatTemplate => {
                write!(f, "artifact has no chat template: the model came without one and only continues plain text")
            }
            TextError::ChatTemplate { detail } => write!(f, "chat template does not parse: {detail}"),
            TextError::Conversation { detail } => {
                write!(f, "chat template does not accept this conversation: {detail}")
            }
            TextError::EmptyPrompt => {
                write!(f, "prompt is empty, and the model has no beginning-of-sequence token to start from")
            }
            TextError::Run(error) => error.fmt(f),
        }
    }
}

impl Error for TextError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            TextError::Run(error) => error.source(),
            _ => None,
        }
    }
}

impl From<RunError> for TextError {
    fn from(error: RunError) -> TextError {
        TextError::Run(error)
    }
}
