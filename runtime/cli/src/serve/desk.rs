//! From a request to orders for its choices: the chat template, the tokenizer, and whether it fits.

use std::sync::{Arc, mpsc};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc::unbounded_channel;

use super::answer::Answer;
use super::refusal::Refusal;
use super::reply::{Reply, Usage};
use super::request::{Kind, Prompt, Request};
use super::worker::{Job, Order};
use crate::args::{SamplingArgs, random_seed};
use crate::error::CliError;
use crate::template::ChatTemplate;
use crate::text::Text;
use unicorn_runtime::{Model, Sampling};

/// What is known of the model without having it.
pub struct Desk {
    text: Arc<Text>,
    /// `None`: the model came without one.
    template: Option<ChatTemplate>,
    /// For what requests do not say.
    sampling: SamplingArgs,
    pub model_name: String,
    vocab_size: u32,
    context_tokens: u32,
    orders: mpsc::Sender<Order>,
}

impl Desk {
    pub fn new(
        model: &Model,
        text: Arc<Text>,
        template: Option<ChatTemplate>,
        sampling: SamplingArgs,
        orders: mpsc::Sender<Order>,
    ) -> Desk {
        let meta = &model.meta().model;
        let (model_name, vocab_size) = (meta.name.clone(), meta.vocab_size);
        Desk { text, template, sampling, model_name, vocab_size, context_tokens: model.context_tokens(), orders }
    }

    /// Orders what the body of a request asks for.
    ///
    /// # Errors
    /// Nothing is ordered then.
    pub fn order(&self, kind: Kind, body: &[u8]) -> Result<Answer, Refusal> {
        let request = Request::parse(kind, body, &self.sampling)?;
        let prompts: Vec<Vec<u32>> =
            request.prompts.iter().map(|prompt| self.tokens(prompt)).collect::<Result<_, _>>()?;
        let (events, heard) = unbounded_channel();
        let prompt_tokens = prompts.iter().map(|prompt| prompt.len() as u32).sum();
        let choices = prompts.iter().flat_map(|prompt| (0..request.n).map(move |again| (prompt, again)));
        for (choice, (prompt, again)) in (0..).zip(choices) {
            let seed = request.sampling.seed.wrapping_add(again.into());
            let job = Job {
                choice,
                prompt: prompt.clone(),
                sampling: Sampling { seed, ..request.sampling.clone() },
                max_tokens: request.max_tokens,
                stop_strings: request.stop_strings.clone(),
                events: events.clone(),
            };
            self.orders.send(Order::Answer(job)).map_err(|_| Refusal::stopping())?;
        }
        let usage = Usage { prompt_tokens, ..Usage::default() };
        Ok(Answer::new(self.reply(kind), heard, &request, usage))
    }

    fn reply(&self, kind: Kind) -> Reply {
        let prefix = match kind {
            Kind::Chat => "chatcmpl",
            Kind::Text => "cmpl",
        };
        let id = format!("{prefix}-{:08x}{:08x}", random_seed(), random_seed());
        Reply { kind, id, created: seconds_since_1970(), model: self.model_name.clone() }
    }

    fn tokens(&self, prompt: &Prompt) -> Result<Vec<u32>, Refusal> {
        let tokens = match prompt {
            Prompt::Tokens(tokens) => Ok(tokens.clone()),
            Prompt::Text(text) => self.text.encode_prompt(text),
            Prompt::Chat(messages) => match &self.template {
                Some(template) => template.render(messages).and_then(|text| self.text.encode(&text)),
                None => Err(CliError::new(
                    "messages: the model came without a chat template; /v1/completions takes plain text",
                )),
            },
        };
        let tokens = tokens.map_err(|error| match error {
            CliError::Failed(message) => Refusal::bad_request(message),
            CliError::OutputClosed => Refusal::failed("output is closed"),
        })?;
        let name = match prompt {
            Prompt::Chat(_) => "messages",
            Prompt::Text(_) | Prompt::Tokens(_) => "prompt",
        };
        let context_tokens = self.context_tokens;
        if tokens.is_empty() || tokens.len() > context_tokens as usize {
            let found =
                format!("expected 1 to {context_tokens} tokens, the context of a sequence, found {}", tokens.len());
            let refusal = if tokens.is_empty() { Refusal::parameter } else { Refusal::too_long };
            return Err(refusal(name, found));
        }
        if let Some(unknown) = tokens.iter().find(|&&token| token >= self.vocab_size) {
            let found =
                format!("expected token ids below {}, the size of the vocabulary, found {unknown}", self.vocab_size);
            return Err(Refusal::parameter(name, found));
        }
        Ok(tokens)
    }
}

pub fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
