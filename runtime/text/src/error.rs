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
    /// The chat template renders a text without one of the messages, which would be missing without notice.
    DroppedMessage {
        /// The message's role.
        role: String,
        /// Its number in the conversation, from 1.
        number: usize,
    },
    /// An argument for the chat template has the name of a variable that each rendering sets itself.
    TemplateArgument {
        /// The name.
        name: String,
    },
    /// The chat template was stopped at the limit of its steps, because it may never end.
    TemplateSteps {
        /// Where it was then; empty if that is unknown.
        at: String,
    },
    /// The chat template was stopped because its text is longer than any that fits the context.
    TemplateOutput {
        /// Longest text, in bytes.
        max_bytes: usize,
    },
    /// Bytes are no picture, or one that cannot be decoded.
    Picture {
        /// What the decoder reported.
        detail: String,
    },
    /// A conversation has another number of images than its text has places for them.
    Images {
        /// Images.
        images: usize,
        /// Places; `None`: the model takes no images.
        places: Option<usize>,
    },
    /// The thread that the chat template runs on could not be started.
    TemplateThread {
        /// What the system reported.
        detail: String,
    },
    /// The prompt has no tokens, and the model has no beginning-of-sequence token to start from.
    EmptyPrompt,
    /// No token could be sampled: a [`TokenSampler`](crate::TokenSampler) excludes them all, or gave up.
    Sample {
        /// What the sampler reported.
        detail: String,
    },
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
            TextError::Picture { detail } => {
                write!(f, "not a picture that can be read (PNG, JPEG, WebP, GIF or BMP): {detail}")
            }
            TextError::Images { images, places: None } => {
                write!(
                    f,
                    "the model takes text alone, and the conversation has {images} images: a vision model takes them"
                )
            }
            TextError::Images { images, places: Some(places) } => write!(
                f,
                "the chat template has places for {places} images, and the conversation has {images}: a template without images of its \
                 own writes each message once"
            ),
            TextError::DroppedMessage { role, number } => write!(
                f,
                "chat template has no place for role {role:?}: message {number} would be missing from the prompt; expected \
                 roles that the template has, such as system, user and assistant"
            ),
            TextError::TemplateArgument { name } => {
                write!(f, "chat template argument {name:?} is set by each request: expected another name")
            }
            TextError::TemplateSteps { at } => {
                write!(f, "chat template does not end: it was stopped after its limit of steps{at}")
            }
            TextError::TemplateOutput { max_bytes } => {
                write!(f, "chat template writes more than {max_bytes} bytes, the longest text that fits the context")
            }
            TextError::TemplateThread { detail } => write!(
                f,
                "chat template needs a thread with 768 MiB of address space, which cannot be started: {detail}; expected room for \
                 it within the limits on processes (ulimit -u) and address space (ulimit -v)"
            ),
            TextError::EmptyPrompt => {
                write!(f, "prompt is empty, and the model has no beginning-of-sequence token to start from")
            }
            TextError::Sample { detail } => write!(f, "no token can be sampled: {detail}"),
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
