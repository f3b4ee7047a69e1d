//! From the body of a request to jobs for the worker.

use std::sync::{Arc, mpsc};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract;
use tokio::sync::mpsc::unbounded_channel;
use unicorn_text::unicorn_runtime::{Model, Sampling};
use unicorn_text::{ChatTemplate, OutputText, StopConditions, TemplateArguments, TextError, Tokenizer, random_seed};

use crate::admission::{Admission, ClientGone};
use crate::api::error::ApiError;
use crate::api::request::{Endpoint, Request};
use crate::api::response::{ResponseFormat, Usage};
use crate::options::ServeOptions;
use crate::pending::PendingResponse;
use crate::prompt::PromptEncoder;
use crate::worker::{Command, Job};

/// What handling requests needs of a model. Used by several threads at once, beside the model's steps.
pub(crate) struct RequestHandler {
    admission: Admission,
    encoder: PromptEncoder,
    template_arguments: TemplateArguments,
    stop_tokens: Vec<u32>,
    sampling: Sampling,
    seed: Option<u64>,
    pub(crate) model_name: String,
    commands: mpsc::Sender<Command>,
}

/// Longest token that is assumed at least: a character may have so many bytes in an escape of JSON.
const MIN_LONGEST_TOKEN_BYTES: usize = 12;
/// Of a body beside its prompt.
const PARAMETERS_BYTES: usize = 1 << 20;

impl RequestHandler {
    pub(crate) fn new(
        model: &Model,
        options: &ServeOptions,
        commands: mpsc::Sender<Command>,
    ) -> Result<RequestHandler, TextError> {
        let section = model.tokenizer_section();
        let meta = &model.meta().model;
        let tokenizer = Tokenizer::new(section)?;
        let context_tokens = model.context_tokens();
        let longest_token_bytes = tokenizer.longest_token_bytes().max(MIN_LONGEST_TOKEN_BYTES);
        let max_text_bytes = context_tokens as usize * longest_token_bytes;
        let queue_places = (model.slots() + options.max_queue) as usize;
        Ok(RequestHandler {
            admission: Admission::new(max_text_bytes + PARAMETERS_BYTES, options.timeout, queue_places),
            encoder: PromptEncoder {
                tokenizer,
                template: section
                    .chat_template
                    .is_some()
                    .then(|| ChatTemplate::new(section, context_tokens))
                    .transpose()?,
                vocab_size: meta.vocab_size,
                context_tokens,
                max_text_bytes,
            },
            template_arguments: options.template_arguments.clone(),
            stop_tokens: section.stop_ids.clone(),
            sampling: options.sampling.clone(),
            seed: options.seed,
            model_name: options.model_name.clone().unwrap_or_else(|| meta.name.clone()),
            commands,
        })
    }

    /// Reads a request and queues its choices. Parsing and tokenizing run on another thread.
    ///
    /// # Errors
    /// When the request is wrong or beyond a limit, or the server is stopping. Nothing is generated then.
    pub(crate) async fn handle(
        self: Arc<Self>,
        endpoint: Endpoint,
        request: extract::Request,
    ) -> Result<PendingResponse, ApiError> {
        let body = self.admission.read_body(request).await?;
        let handler = self.clone();
        self.admission.tokenize(move |client| handler.queue(endpoint, &body.bytes, client)).await
    }

    /// Blocks for as long as parsing and tokenizing take.
    fn queue(&self, endpoint: Endpoint, body: &[u8], client: &ClientGone) -> Result<PendingResponse, ApiError> {
        client.check()?;
        let request = Request::parse(endpoint, body, &self.sampling)?;
        let mut places = self.admission.queue(request.prompts.len() * request.n as usize)?;
        let mut arguments = self.template_arguments.clone();
        arguments.extend(request.template_arguments.clone());
        let prompts: Vec<Vec<u32>> = request
            .prompts
            .iter()
            .map(|prompt| self.encoder.tokens(prompt, &arguments, client))
            .collect::<Result<_, _>>()?;
        let (events, received) = unbounded_channel();
        let prompt_tokens = prompts.iter().map(|prompt| prompt.len() as u32).sum();
        let seed = request.seed.or(self.seed).unwrap_or_else(random_seed);
        let choices = prompts.iter().flat_map(|prompt| (0..request.n).map(move |number| (prompt, number)));
        for ((choice, (prompt, number)), place) in (0..).zip(choices).zip(places.drain(..)) {
            let job = Job {
                choice,
                prompt: prompt.clone(),
                sampling: request.sampling.clone().with(|sampling| sampling.seed = seed.wrapping_add(number.into())),
                output: OutputText::new(&self.encoder.tokenizer, prompt, self.stop_conditions(&request)),
                events: events.clone(),
                place,
            };
            self.commands.send(Command::Generate(Box::new(job))).map_err(|_| ApiError::stopping())?;
        }
        let usage = Usage { prompt_tokens, ..Usage::default() };
        Ok(PendingResponse::new(self.format(endpoint), received, &request, usage))
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
}

pub(crate) fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
