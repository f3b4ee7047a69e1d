//! Prompts to token ids that fit the context, for texts of any length.

use std::fmt::Display;

use unicorn_text::encode_with_images;
use unicorn_text::unicorn_artifact::step::is_image_row;
use unicorn_text::unicorn_runtime::{Image, Model};
use unicorn_text::{Begun, ChatTemplate, Message, Picture, ReplyFormat, TemplateArguments, TextError, Tokenizer};

use crate::admission::ClientGone;
use crate::api::error::ApiError;
use crate::api::prompt::Prompt;
use crate::api::request::Request;
use crate::api::tools::ToolChoice;

/// Encodes prompts as tokens.
pub(crate) struct PromptEncoder {
    pub(crate) tokenizer: Tokenizer,
    /// `None`: the model came without one.
    pub(crate) template: Option<ChatTemplate>,
    /// Whether the template leaves the tokens that begin a text to the tokenizer.
    pub(crate) adds_special: bool,
    /// Whether reasoning is separated from the answer, where a request does not set it.
    pub(crate) splits_reasoning: bool,
    pub(crate) vocab_size: u32,
    pub(crate) context_tokens: u32,
    /// Length of the text that a context of the longest token holds.
    pub(crate) max_text_bytes: usize,
    /// The model, if it takes images.
    pub(crate) images: Option<Model>,
}

/// A prompt as the model gets it.
pub(crate) struct EncodedPrompt {
    pub(crate) tokens: Vec<u32>,
    /// Images among the tokens, which are held until the request ends.
    pub(crate) images: Vec<Image>,
    /// How the reply is to be read.
    pub(crate) format: ReplyFormat,
    /// How the reply is written: the same, also where reasoning is left in the text.
    pub(crate) written: ReplyFormat,
    /// The end of the prompt that is read with the reply: the beginning of a call that has to be made, or a mark before it.
    pub(crate) beginning: String,
}

/// A conversation as text, and how the reply is to be read.
pub(crate) struct Rendered {
    pub(crate) text: String,
    format: ReplyFormat,
    written: ReplyFormat,
    beginning: String,
}

/// Most images of a conversation.
const MAX_PICTURES: usize = 64;
/// Prose has about four bytes a token. A text with more than these for each token of the context is counted piece by piece before it
/// is tokenized as a whole, which takes about a hundred bytes of memory for each byte of text.
const LIKELY_BYTES_PER_TOKEN: usize = 8;
const PIECE_BYTES: usize = 64 << 10;
/// Most tokens that a cut between two pieces can add.
const TOKENS_OF_A_CUT: usize = 16;

impl PromptEncoder {
    /// A prompt that fits the context; a chat's template gets `arguments` and the tools of `request`.
    ///
    /// # Errors
    /// When it does not, or is rejected by the chat template or the tokenizer; and when its client has gone.
    pub(crate) fn encode(
        &self,
        prompt: &Prompt,
        request: &Request,
        arguments: &TemplateArguments,
        client: &ClientGone,
    ) -> Result<EncodedPrompt, ApiError> {
        let plain = |tokens| EncodedPrompt {
            tokens,
            images: Vec::new(),
            format: ReplyFormat::default(),
            written: ReplyFormat::default(),
            beginning: String::new(),
        };
        let (name, encoded) = match prompt {
            Prompt::Chat { messages, pictures } => {
                let rendered = self.render(messages, request, arguments)?;
                self.check_length("messages", &rendered.text, client)?;
                let images = self.images(pictures, client)?;
                let section = self.images.as_ref().and_then(Model::image);
                let encode = |piece: &str, is_first: bool| match is_first && self.adds_special {
                    true => self.tokenizer.encode_prompt(piece),
                    false => self.tokenizer.encode(piece),
                };
                let tokens = encode_with_images(&rendered.text, &images, section, encode).map_err(rejected)?;
                let Rendered { format, written, beginning, .. } = rendered;
                ("messages", EncodedPrompt { tokens, images, format, written, beginning })
            }
            prompt => ("prompt", plain(self.plain_tokens(prompt, true, client)?)),
        };
        self.check_tokens(name, &encoded.tokens)?;
        Ok(encoded)
    }

    /// Ids of a prompt that is not a chat, the parameter `name`, and fits the context.
    ///
    /// # Errors
    /// As [`PromptEncoder::encode`].
    pub(crate) fn encode_plain(&self, name: &str, prompt: &Prompt, client: &ClientGone) -> Result<Vec<u32>, ApiError> {
        let tokens = self.plain_tokens(prompt, true, client)?;
        self.check_tokens(name, &tokens)?;
        Ok(tokens)
    }

    /// Ids of a text whose embedding is wanted, the parameter `name`, with the tokens that end it; ids stay as they are. `truncates`: of what
    /// is longer than the context, the beginning counts.
    ///
    /// # Errors
    /// As [`PromptEncoder::encode`].
    pub(crate) fn encode_embedded(
        &self,
        name: &str,
        prompt: &Prompt,
        truncates: bool,
        client: &ClientGone,
    ) -> Result<Vec<u32>, ApiError> {
        let context_tokens = self.context_tokens as usize;
        let tokens = match prompt {
            Prompt::Text(text) if truncates => {
                client.check()?;
                let text = beginning(text, context_tokens * LIKELY_BYTES_PER_TOKEN);
                self.tokenizer.encode_embedded_within(text, context_tokens).map_err(rejected)?
            }
            Prompt::Text(text) => {
                client.check()?;
                self.check_length(name, text, client)?;
                self.tokenizer.encode_embedded(text).map_err(rejected)?
            }
            other => {
                let mut tokens = self.plain_tokens(other, true, client)?;
                tokens.truncate(if truncates { context_tokens } else { tokens.len() });
                tokens
            }
        };
        self.check_tokens(name, &tokens)?;
        Ok(tokens)
    }

    /// Ids of a prompt that is not a chat; `is_first`: nothing precedes it.
    fn plain_tokens(&self, prompt: &Prompt, is_first: bool, client: &ClientGone) -> Result<Vec<u32>, ApiError> {
        client.check()?;
        match prompt {
            Prompt::Tokens(tokens) => Ok(tokens.clone()),
            Prompt::Text(text) => {
                self.check_length("prompt", text, client)?;
                match is_first {
                    true => self.tokenizer.encode_prompt(text).map_err(rejected),
                    false => self.tokenizer.encode(text).map_err(rejected),
                }
            }
            Prompt::Mixed(parts) => {
                let mut tokens = Vec::new();
                for part in parts {
                    tokens.extend(self.plain_tokens(part, tokens.is_empty(), client)?);
                }
                Ok(tokens)
            }
            Prompt::Chat { .. } => {
                Err(ApiError::parameter("prompt", "expected text or token ids, found a conversation"))
            }
        }
    }

    /// Pictures as the model has them in a text. Blocks for a step of each that is new.
    fn images(&self, pictures: &[Vec<u8>], client: &ClientGone) -> Result<Vec<Image>, ApiError> {
        let of_messages = |error: &dyn Display| ApiError::parameter("messages", error);
        if pictures.len() > MAX_PICTURES {
            return Err(of_messages(&format!("expected at most {MAX_PICTURES} images, found {}", pictures.len())));
        }
        let one = |file: &Vec<u8>| {
            let (model, section) =
                self.images.as_ref().and_then(|model| Some((model, model.image()?))).ok_or_else(|| {
                    of_messages(&"this model takes text alone, found an image: a model with a vision tower takes them")
                })?;
            client.check()?;
            let picture = Picture::decode(file).map_err(|error| of_messages(&error))?;
            let patches = picture.patches(section).map_err(|error| of_messages(&error))?;
            model.encode_image(&patches).map_err(|error| ApiError::failed(error.to_string()))
        };
        pictures.iter().map(one).collect()
    }

    fn check_tokens(&self, name: &str, tokens: &[u32]) -> Result<(), ApiError> {
        if tokens.is_empty() || tokens.len() > self.context_tokens as usize {
            return Err(match tokens.len() {
                0 => ApiError::parameter(name, format!("expected 1 to {} tokens, found 0", self.context_tokens)),
                n_tokens => self.too_long(name, &n_tokens.to_string(), n_tokens),
            });
        }
        // Rows of images are in conversations alone, where no client writes numbers.
        let is_unknown = |token: u32| token >= self.vocab_size && (name != "messages" || !is_image_row(token));
        if let Some(unknown) = tokens.iter().find(|&&token| is_unknown(token)) {
            let found =
                format!("expected token ids below {}, the size of the vocabulary, found {unknown}", self.vocab_size);
            return Err(ApiError::parameter(name, found));
        }
        Ok(())
    }

    /// A conversation through the template, up to where the text that is generated begins.
    ///
    /// # Errors
    /// When there is no template, or it rejects the conversation.
    pub(crate) fn render(
        &self,
        messages: &[Message],
        request: &Request,
        arguments: &TemplateArguments,
    ) -> Result<Rendered, ApiError> {
        let Some(template) = &self.template else {
            let message = "messages: the model came without a chat template; /v1/completions takes plain text";
            return Err(ApiError::bad_request(message));
        };
        self.check_bytes("messages", messages.iter().map(|message| message.content.len()).sum())?;
        // A reply that has begun continues from its text.
        let (messages, last) = match messages.split_last() {
            Some((last, before)) if request.continues => (before, Some(last)),
            _ => (messages, None),
        };
        let rendered = match request.begins_reply {
            true => template.render_with_tools(messages, &request.tools, arguments),
            false => template.render_history(messages, &request.tools, arguments),
        };
        let mut text = rendered.map_err(|error| match error {
            TextError::TemplateOutput { .. } => ApiError::context_length("messages", error),
            error => rejected(error),
        })?;
        let format = template.reply_format(!request.tools.is_empty());
        // A template that always begins to reason: without reasoning, that ends at once.
        if arguments.get("enable_thinking") == Some(&false.into()) && format.ends_within_reasoning(&text) {
            text += format.marks.closer();
        }
        let reasoning = last.and_then(|last| last.fields.get("reasoning_content")?.as_str()).unwrap_or_default();
        let content = last.map_or("", |last| last.content.as_str());
        let Begun { text: begun, mut format, opener } = format.begun(&text, reasoning, content);
        let mut written = format.clone();
        if !request.splits_reasoning.unwrap_or(self.splits_reasoning) {
            format.thinks = None;
        }
        let name = match &request.tool_choice {
            ToolChoice::Named(name) => Some(Some(name.as_str())),
            ToolChoice::Required => Some(None),
            ToolChoice::Auto | ToolChoice::None => None,
        };
        let beginning = name.and_then(|name| format.call_beginning(name)).unwrap_or_default();
        if !beginning.is_empty() {
            // The call follows the reasoning, whose budget would cut it.
            written.thinks = None;
        }
        text += &begun;
        text += &beginning;
        Ok(Rendered { text, format, written, beginning: opener.to_owned() + &beginning })
    }

    /// Refuses a text that has too many tokens whatever they are, or, counted in pieces, that has clearly too many.
    pub(crate) fn check_length(&self, name: &str, text: &str, client: &ClientGone) -> Result<(), ApiError> {
        self.check_bytes(name, text.len())?;
        if text.len() <= self.context_tokens as usize * LIKELY_BYTES_PER_TOKEN {
            return Ok(());
        }
        let (mut n_tokens, mut allowed) = (0, self.context_tokens as usize);
        for piece in pieces(text) {
            client.check()?;
            n_tokens += self.tokenizer.encode(piece).map_err(rejected)?.len();
            allowed += TOKENS_OF_A_CUT;
            if n_tokens > allowed {
                return Err(self.too_long(name, &format!("more than {n_tokens}"), n_tokens));
            }
        }
        Ok(())
    }

    fn check_bytes(&self, name: &str, n_bytes: usize) -> Result<(), ApiError> {
        if n_bytes <= self.max_text_bytes {
            return Ok(());
        }
        let found = format!("{n_bytes} bytes of text: more than {} are more tokens", self.max_text_bytes);
        // A text of this many bytes has more tokens than the context.
        Err(self.too_long(name, &found, self.context_tokens as usize + 1))
    }

    /// The error of a prompt that has `n_tokens` at least. Clients of llama-server search it for its beginning, and those of OpenAI and vLLM for
    /// what follows: litellm's error is then one of the context.
    fn too_long(&self, name: &str, found: &str, n_tokens: usize) -> ApiError {
        let context = self.context_tokens;
        let message = format!(
            "exceeds the available context size: this model's maximum context length is {context} tokens, found {found}"
        );
        ApiError { tokens: Some((n_tokens, self.context_tokens)), ..ApiError::context_length(name, message) }
    }
}

fn rejected(error: TextError) -> ApiError {
    ApiError::bad_request(error.to_string())
}

/// Parts of a text, of about [`PIECE_BYTES`] each, that end between two characters.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let piece = beginning(rest, PIECE_BYTES);
        rest = &rest[piece.len()..];
        (!piece.is_empty()).then_some(piece)
    })
}

/// As many of the first characters of a text as have this many bytes, at most.
fn beginning(text: &str, max_bytes: usize) -> &str {
    let end = (0..=max_bytes.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use unicorn_text::TokenizerSection;

    use super::*;
    use crate::api::request::Endpoint;

    /// Words "a" to "d" by whitespace, and a token of 100 dashes.
    fn encoder(context_tokens: u32) -> PromptEncoder {
        let dashes = "-".repeat(100);
        let json = format!(
            r#"{{"version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null, "decoder": null,
                "pre_tokenizer": {{"type": "WhitespaceSplit"}},
                "model": {{"type": "WordLevel", "unk_token": "?", "vocab": {{"?": 0, "a": 1, "b": 2, "{dashes}": 3}}}}}}"#
        );
        let section = TokenizerSection { tokenizer_json: json, ..TokenizerSection::default() };
        let tokenizer = Tokenizer::new(&section).unwrap();
        let max_text_bytes = context_tokens as usize * tokenizer.longest_token_bytes();
        PromptEncoder {
            tokenizer,
            template: None,
            adds_special: false,
            splits_reasoning: true,
            vocab_size: 4,
            context_tokens,
            max_text_bytes,
            images: None,
        }
    }

    #[test]
    fn a_call_that_has_to_be_made_follows_the_reasoning() {
        let chat_template =
            "{{ messages[0].content }}{% if tools %} b{% endif %}{# <tool_call> <function= </think> #}<think>\n";
        let section = TokenizerSection { chat_template: Some(chat_template.into()), ..TokenizerSection::default() };
        let mut encoder = encoder(100);
        encoder.template = Some(ChatTemplate::new(&section, 100).unwrap());
        let tool = serde_json::json!({"type": "function", "function": {"name": "look"}});
        let thinks = |choice: &str| {
            let body = serde_json::json!({
                "messages": [{"role": "user", "content": "a"}], "tools": [tool], "tool_choice": choice,
            });
            let defaults = unicorn_text::default_sampling();
            let request = Request::parse(Endpoint::ChatCompletions, body.to_string().as_bytes(), &defaults).unwrap();
            let arguments = TemplateArguments::new();
            encoder.encode(&request.prompts[0], &request, &arguments, &ClientGone::default()).unwrap().written.thinks
        };
        assert_eq!((thinks("auto"), thinks("required")), (Some(true), None));
    }

    fn tokens(context_tokens: u32, text: &str) -> Result<usize, String> {
        encoded(context_tokens, text, &ClientGone::default())
            .map(|prompt| prompt.tokens.len())
            .map_err(|error| error.message)
    }

    fn encoded(context_tokens: u32, text: &str, client: &ClientGone) -> Result<EncodedPrompt, ApiError> {
        let body = serde_json::json!({"prompt": text}).to_string();
        let request =
            Request::parse(Endpoint::Completions, body.as_bytes(), &unicorn_text::default_sampling()).unwrap();
        encoder(context_tokens).encode(&request.prompts[0], &request, &TemplateArguments::new(), client)
    }

    #[test]
    fn a_text_longer_than_a_context_of_the_longest_token_is_refused_by_its_bytes() {
        assert_eq!(tokens(4, "a b a b"), Ok(4));
        // One token of many bytes, which the rule permits up to here.
        assert_eq!(tokens(4, &"-".repeat(400)), Ok(1));
        let refused = tokens(4, &"-".repeat(401)).unwrap_err();
        let expected = "prompt: exceeds the available context size: this model's maximum context length is 4 tokens, found 401 bytes of text: more than 400 are more tokens";
        assert_eq!(refused, expected);
    }

    #[test]
    fn a_text_of_many_tokens_is_counted_no_further_than_needed() {
        let context = 40_000;
        let refused = tokens(context, &"a b ".repeat(500_000)).unwrap_err();
        // Two pieces of 32,768 tokens each, of a million.
        assert_eq!(
            refused,
            "prompt: exceeds the available context size: this model's maximum context length is 40000 tokens, found more than 65536"
        );
        // Long words, of which the pieces cut some.
        let dashes = format!("{} ", "-".repeat(100)).repeat(39_000 * 100 / 101);
        assert_eq!(tokens(context, &dashes), Ok(39_000 * 100 / 101));
    }

    #[test]
    fn of_a_text_to_embed_the_beginning_may_count() {
        let embedded = |prompt: Prompt, truncates: bool| {
            let encoded = encoder(4).encode_embedded("input", &prompt, truncates, &ClientGone::default());
            encoded.map(|tokens| tokens.len()).map_err(|error| error.message)
        };
        for prompt in [Prompt::Text("a b ".repeat(100)), Prompt::Tokens(vec![1; 5])] {
            assert_eq!(embedded(prompt.clone(), true), Ok(4));
            assert!(embedded(prompt, false).unwrap_err().contains("maximum context length is 4 tokens"));
        }
        assert_eq!(beginning("aé", 2), "a");
    }

    #[test]
    fn nothing_is_tokenized_for_a_client_that_has_gone() {
        let gone = ClientGone::default();
        gone.leave();
        assert!(encoded(4, "a", &gone).is_err());
    }
}
