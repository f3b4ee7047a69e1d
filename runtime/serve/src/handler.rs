//! From the body of a request to jobs for the worker: chat template, tokenizer, and whether the prompt fits the context.

use std::sync::mpsc;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc::unbounded_channel;
use unicorn_text::unicorn_runtime::{Model, Sampling};
use unicorn_text::{ChatTemplate, StopConditions, TemplateArguments, TextError, Tokenizer, random_seed};

use crate::api::error::ApiError;
use crate::api::request::{Endpoint, Prompt, Request};
use crate::api::response::{ResponseFormat, Usage};
use crate::options::ServeOptions;
use crate::pending::PendingResponse;
use crate::worker::{Command, Job};

/// What handling requests needs of a model. Used by several threads at once, beside the model's steps.
pub(crate) struct RequestHandler {
    tokenizer: Tokenizer,
    /// `None`: the model came without one.
    template: Option<ChatTemplate>,
    template_arguments: TemplateArguments,
    stop_tokens: Vec<u32>,
    sampling: Sampling,
    seed: Option<u64>,
    pub(crate) model_name: String,
    vocab_size: u32,
    context_tokens: u32,
    commands: mpsc::Sender<Command>,
}

impl RequestHandler {
    pub(crate) fn new(
        model: &Model,
        options: ServeOptions,
        commands: mpsc::Sender<Command>,
    ) -> Result<RequestHandler, TextError> {
        let section = model.tokenizer_section();
        let meta = &model.meta().model;
        let ServeOptions { sampling, seed, template_arguments, model_name } = options;
        Ok(RequestHandler {
            tokenizer: Tokenizer::new(section)?,
            template: section
                .chat_template
                .is_some()
                .then(|| ChatTemplate::new(section, model.context_tokens()))
                .transpose()?,
            template_arguments,
            stop_tokens: section.stop_ids.clone(),
            sampling,
            seed,
            model_name: model_name.unwrap_or_else(|| meta.name.clone()),
            vocab_size: meta.vocab_size,
            context_tokens: model.context_tokens(),
            commands,
        })
    }

    /// Queues the choices of a request. Blocks for as long as parsing and tokenizing take.
    ///
    /// # Errors
    /// When the request is wrong, or the server is stopping. Nothing is generated then.
    pub(crate) fn handle(&self, endpoint: Endpoint, body: &[u8]) -> Result<PendingResponse, ApiError> {
        let request = Request::parse(endpoint, body, &self.sampling)?;
        let mut arguments = self.template_arguments.clone();
        arguments.extend(request.template_arguments.clone());
        let prompts: Vec<Vec<u32>> =
            request.prompts.iter().map(|prompt| self.tokens(prompt, &arguments)).collect::<Result<_, _>>()?;
        let (events, received) = unbounded_channel();
        let prompt_tokens = prompts.iter().map(|prompt| prompt.len() as u32).sum();
        let seed = request.seed.or(self.seed).unwrap_or_else(random_seed);
        let choices = prompts.iter().flat_map(|prompt| (0..request.n).map(move |number| (prompt, number)));
        for (choice, (prompt, number)) in (0..).zip(choices) {
            let job = Job {
                choice,
                prompt: prompt.clone(),
                sampling: request.sampling.clone().with(|sampling| sampling.seed = seed.wrapping_add(number.into())),
                conditions: self.stop_conditions(&request),
                events: events.clone(),
            };
            self.commands.send(Command::Generate(Box::new(job))).map_err(|_| ApiError::stopping())?;
        }
        let usage = Usage { prompt_tokens, ..Usage::default() };
        Ok(PendingResponse::new(self.format(endpoint), received, &request, usage))
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    fn stop_conditions(&self, request: &Request) -> StopConditions {
        let mut conditions = StopConditions::default();
        conditions.max_tokens = request.max_tokens;
        conditions.stop_tokens.clone_from(&self.stop_tokens);
        conditions.stop_strings.clone_from(&request.stop_strings);
        conditions
    }

    fn format(&self, endpoint: Endpoint) -> ResponseFormat {
        let prefix = match endpoint {
            Endpoint::ChatCompletions => "chatcmpl",
            Endpoint::Completions => "cmpl",
        };
        let id = format!("{prefix}-{:08x}{:08x}", random_seed(), random_seed());
        ResponseFormat { endpoint, id, created: seconds_since_1970(), model: self.model_name.clone() }
    }

    /// Ids of a prompt that fits the context.
    fn tokens(&self, prompt: &Prompt, arguments: &TemplateArguments) -> Result<Vec<u32>, ApiError> {
        let tokens = match prompt {
            Prompt::Tokens(tokens) => Ok(tokens.clone()),
            Prompt::Text(text) => self.tokenizer.encode_prompt(text),
            Prompt::Chat(messages) => match &self.template {
                Some(template) => template.render(messages, arguments).and_then(|text| self.tokenizer.encode(&text)),
                None => {
                    let message = "messages: the model came without a chat template; /v1/completions takes plain text";
                    return Err(ApiError::bad_request(message));
                }
            },
        };
        let tokens = tokens.map_err(|error| match error {
            TextError::TemplateOutput { .. } => ApiError::context_length("messages", error),
            error => ApiError::bad_request(error.to_string()),
        })?;
        let name = match prompt {
            Prompt::Chat(_) => "messages",
            Prompt::Text(_) | Prompt::Tokens(_) => "prompt",
        };
        let context_tokens = self.context_tokens;
        if tokens.is_empty() || tokens.len() > context_tokens as usize {
            let found =
                format!("expected 1 to {context_tokens} tokens, the context of a sequence, found {}", tokens.len());
            let error = if tokens.is_empty() { ApiError::parameter } else { ApiError::context_length };
            return Err(error(name, found));
        }
        if let Some(unknown) = tokens.iter().find(|&&token| token >= self.vocab_size) {
            let found =
                format!("expected token ids below {}, the size of the vocabulary, found {unknown}", self.vocab_size);
            return Err(ApiError::parameter(name, found));
        }
        Ok(tokens)
    }
}

pub(crate) fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
