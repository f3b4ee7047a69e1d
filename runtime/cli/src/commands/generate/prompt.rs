//! The prompt: its text and its tokens.

use std::io::{self, IsTerminal, Read};

use unicorn_runtime::{Image, Model};
use unicorn_text::{ChatTemplate, Message, ReplyFormat, Tokenizer, encode_with_images, without_marks};

use crate::args::RunArgs;
use crate::error::CliError;
use crate::terminal::output::note;

/// The prompt's text: the words behind the model, -p, the file, or standard input. `None`: a chat, because standard input is a
/// terminal.
pub fn text(args: &RunArgs) -> Result<Option<String>, CliError> {
    if !args.words.is_empty() {
        return Ok(Some(args.words.join(" ")));
    }
    if let Some(prompt) = &args.prompt {
        return Ok(Some(prompt.clone()));
    }
    let text = match &args.file {
        Some(path) => std::fs::read_to_string(path).map_err(|error| CliError::at(path, error))?,
        None if io::stdin().is_terminal() && !args.raw => return Ok(None),
        None => from_stdin()?,
    };
    // A file's last line break is not part of the prompt, as in llama.cpp.
    Ok(Some(text.strip_suffix('\n').map(str::to_owned).unwrap_or(text)))
}

fn from_stdin() -> Result<String, CliError> {
    let mut text = String::new();
    io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| CliError::new(format!("prompt on standard input cannot be read: {error}")))?;
    if text.trim().is_empty() {
        return Err(CliError::new(
            "prompt on standard input is empty; give one after the model, as in: unicorn-run MODEL why is the sky blue",
        ));
    }
    Ok(text)
}

/// A prompt in the form that the model receives.
pub struct Prompt {
    pub tokens: Vec<u32>,
    /// How the answer is read.
    pub format: ReplyFormat,
}

/// The prompt of a text: in the model's chat template, or unchanged with `--raw` and where the model has none.
///
/// # Errors
/// When the template, or the tokenizer, rejects it.
pub fn encoded(
    args: &RunArgs,
    text: String,
    images: Vec<Image>,
    model: &Model,
    tokenizer: &Tokenizer,
) -> Result<Prompt, CliError> {
    let section = model.tokenizer_section();
    let question = Message::new("user", without_marks(&text)).with_images(images.clone());
    // Without a template, a system message is an error: it would be dropped.
    if args.raw || (section.chat_template.is_none() && args.system.is_none()) {
        if !args.raw {
            note("model has no chat template: the text is continued as it is");
        }
        let encode = |piece: &str, is_first| match is_first {
            true => tokenizer.encode_prompt(piece),
            false => tokenizer.encode(piece),
        };
        let tokens = encode_with_images(&question.content, &images, model.image(), encode)?;
        return Ok(Prompt { tokens, format: ReplyFormat::default() });
    }
    let system = args.system.clone().map(|content| Message::new("system", content));
    let messages: Vec<Message> = system.into_iter().chain([question]).collect();
    let arguments = args.chat_template_kwargs.clone().unwrap_or_default();
    let template = ChatTemplate::new(section, model.context_tokens())?;
    let text = template.render(&messages, &arguments)?;
    let tokens = encode_with_images(&text, &images, model.image(), |piece, _| tokenizer.encode(piece))?;
    Ok(Prompt { tokens, format: template.reply_format(false).behind(&text) })
}
