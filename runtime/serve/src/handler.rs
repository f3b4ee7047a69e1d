//! From the body of a request to jobs for the worker.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;
use unicorn_structure::{Constraint, ReasoningBudget, ReplySampler, Start, Vocabulary};
use unicorn_text::unicorn_runtime::{HostSampling, Model, TierBytes};
use unicorn_text::{ChatTemplate, OutputText, ReplyFormat, ReplyParser, StopConditions, TemplateArguments, TextError};
use unicorn_text::{Tokenizer, TokenizerSection, random_seed, today};

use crate::admission::{Admission, ClientGone};
use crate::anthropic;
use crate::api::endpoint::{Api, Translated};
use crate::api::error::{ApiError, json_response};
use crate::api::fields::{BOOLEAN, Fields, object};
use crate::api::prompt::Prompt;
use crate::api::request::{Endpoint, Request};
use crate::api::sampling::BiasedText;
use crate::api::tools::{self, ToolChoice};
use crate::events::Events;
use crate::line_limits::LineLimits;
use crate::llama::completion::Completion;
use crate::llama::settings::generation_settings;
use crate::metrics::Metrics;
use crate::observer::Observation;
use crate::ollama::description::{Description, Served};
use crate::ollama::response::Lines;
use crate::openai::completions::{Completions, FINGERPRINT};
use crate::openai::responses::Responses;
use crate::options::ServeOptions;
use crate::pending::PendingResponse;
use crate::pooling::{PoolingJob, PoolingOutput, PoolingReceiver, PoolingResult, PoolingTask};
use crate::probabilities::Probabilities;
use crate::prompt::{EncodedPrompt, PromptEncoder};
use crate::prompt_probabilities::PromptProbabilities;
use crate::reply::{Reply, Usage};
use crate::worker::{Command, Job};
use crate::writer::ResponseWriter;

/// What handling requests needs of a model. Used by several threads at once, while the model's steps run.
pub(crate) struct RequestHandler {
    admission: Admission,
    pub(crate) encoder: PromptEncoder,
    /// Without speculation, which is the scheduler's: it may hold a second model.
    pub(crate) options: ServeOptions,
    /// Elements of a hidden row.
    pub(crate) hidden_size: usize,
    stop_tokens: Vec<u32>,
    bos_token: Option<String>,
    eos_token: Option<String>,
    slots: u32,
    pub(crate) model_name: String,
    /// All names of the model, including the one in responses.
    pub(crate) aliases: Vec<String>,
    model_path: String,
    pub(crate) metrics: Arc<Metrics>,
    /// Description of the model for Ollama's clients.
    pub(crate) ollama: Arc<Description>,
    /// What the chat page shows of device and memory, as far as it does not change.
    about: Value,
    commands: mpsc::Sender<Command>,
    /// Made by the first request that needs it, which takes tens of milliseconds.
    vocabulary: OnceLock<Arc<Vocabulary>>,
}

/// The longest token is assumed to have at least this many bytes: a character may have as many in an escape of JSON.
const MIN_LONGEST_TOKEN_BYTES: usize = 12;
/// Bytes of a request's body in addition to its prompt.
const PARAMETERS_BYTES: usize = 1 << 20;
/// The same where it may have pictures in base64.
const PICTURES_BYTES: usize = 64 << 20;

impl RequestHandler {
    pub(crate) fn new(
        model: &Model,
        options: &ServeOptions,
        commands: mpsc::Sender<Command>,
    ) -> Result<RequestHandler, TextError> {
        let named = options.chat_template.as_deref().and_then(ChatTemplate::named);
        let section = &match named.or(options.chat_template.as_deref()) {
            Some(source) => {
                TokenizerSection { chat_template: Some(source.to_owned()), ..model.tokenizer_section().clone() }
            }
            None => model.tokenizer_section().clone(),
        };
        let meta = &model.meta().model;
        let tokenizer = Tokenizer::new(section)?;
        let context_tokens = model.context_tokens();
        let longest_token_bytes = tokenizer.longest_token_bytes().max(MIN_LONGEST_TOKEN_BYTES);
        let max_text_bytes = context_tokens as usize * longest_token_bytes;
        let queue_places = model.slots() as usize + options.max_queue as usize;
        let template =
            section.chat_template.is_some().then(|| ChatTemplate::new(section, context_tokens)).transpose()?;
        let model_name = options.model_name.clone().unwrap_or_else(|| meta.name.clone());
        let served = Served {
            name: &model_name,
            since: seconds_since_1970(),
            template: template.as_ref().map(ChatTemplate::source).unwrap_or_default(),
            capabilities: &capabilities(template.as_ref(), model.image().is_some()),
            sampling: &options.sampling,
        };
        let ollama = Arc::new(Description::new(model, &served));
        Ok(RequestHandler {
            admission: Admission::new(
                max_text_bytes + PARAMETERS_BYTES + model.image().map_or(0, |_| PICTURES_BYTES),
                options.timeout,
                queue_places,
                options.tokenizing.clone(),
            ),
            encoder: PromptEncoder {
                tokenizer,
                template,
                adds_special: named.is_some(),
                splits_reasoning: options.splits_reasoning,
                vocab_size: meta.vocab_size,
                context_tokens,
                max_text_bytes,
                images: model.image().map(|_| model.clone()),
            },
            options: ServeOptions { speculation: None, ..options.clone() },
            hidden_size: meta.hidden_size as usize,
            stop_tokens: section.stop_ids.clone(),
            bos_token: section.bos_token.clone(),
            eos_token: section.eos_token.clone(),
            slots: model.slots(),
            metrics: Arc::new(Metrics::new(model.kv_pages().1)),
            ollama,
            about: about(model),
            model_path: options.model_path.clone().unwrap_or_else(|| model_name.clone()),
            aliases: options
                .aliases
                .iter()
                .chain([&model_name])
                .cloned()
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect(),
            model_name,
            commands,
            vocabulary: OnceLock::new(),
        })
    }

    /// Reads a request, queues its choices, and responds. Parsing and tokenizing run on another thread.
    ///
    /// # Errors
    /// When the request is wrong or beyond a limit, or the server is stopping: nothing is generated then. When a choice of a response
    /// that is not a stream fails.
    pub(crate) async fn handle(self: Arc<Self>, api: Api, request: extract::Request) -> Result<Response, ApiError> {
        let observation = Observation::of(&request);
        observation.asks_for(api.operation());
        let loaded = Lines::new(seconds_since_1970(), &self.model_name, api == Api::OllamaChat, None);
        let queue = move |handler: &RequestHandler, fields: Map<String, Value>, client: &ClientGone| {
            (!api.only_loads(&fields)).then(|| handler.queue(api, fields, client)).transpose()
        };
        match self.with_body(request, queue).await? {
            Some(pending) => pending.respond(observation).await,
            None => Ok(json_response(StatusCode::OK, &loaded.of_loaded())),
        }
    }

    /// Calls `work` with the body of a request, a JSON object, on another thread.
    ///
    /// # Errors
    /// Errors of `work`, and when the body is not an object or is beyond a limit.
    pub(crate) async fn with_body<T: Send + 'static>(
        self: Arc<Self>,
        request: extract::Request,
        work: impl FnOnce(&RequestHandler, Map<String, Value>, &ClientGone) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let observation = Observation::of(&request);
        let body = self.admission.read_body(request).await?;
        let handler = self.clone();
        self.admission
            .tokenize(move |client| {
                client.check()?;
                let fields = object(&body.bytes)?;
                observation.reaches(&handler.model_name, &fields);
                work(&handler, fields, client)
            })
            .await
    }

    /// Blocks for as long as parsing and tokenizing take.
    fn queue(&self, api: Api, fields: Map<String, Value>, client: &ClientGone) -> Result<PendingResponse, ApiError> {
        let response_fields = fields.get("response_fields").and_then(|fields| Vec::deserialize(fields).ok());
        let Translated { endpoint, fields, prompt, namespaces } = api.translate(fields, &self.encoder.tokenizer)?;
        let mut request = Request::from_fields(endpoint, fields, &self.options.sampling)?;
        request.namespaces = namespaces;
        request.prompts = prompt.map_or(request.prompts, |prompt| vec![prompt]);
        self.check_stop_tokens(&request)?;
        request.further_sampling = self.further_sampling(&request, client)?;
        if matches!(api, Api::Responses | Api::Messages | Api::OllamaChat | Api::OllamaGenerate) && request.best_of > 1
        {
            let name = if request.n > 1 { "n" } else { "best_of" };
            return Err(ApiError::parameter(
                name,
                format!("expected 1, which this API has, found {}", request.best_of),
            ));
        }
        let mut places = self.admission.queue(request.prompts.len() * request.best_of as usize)?;
        let arguments = self.arguments(&request);
        let prompts: Vec<EncodedPrompt> = request
            .prompts
            .iter()
            .map(|prompt| self.encoder.encode(prompt, &request, &arguments, client))
            .collect::<Result<_, _>>()?;
        let seed = request.seed.or(self.options.seed).unwrap_or_else(random_seed);
        let writer = self.writer(api, endpoint, &request, &prompts, seed, response_fields.unwrap_or_default())?;
        // A chat has one prompt; replies to several are read alike.
        let constraint = match prompts.first() {
            Some(prompt) => self.constraint(&request, prompt)?,
            None => None,
        };
        let budget = match prompts.first() {
            Some(prompt) => self.reasoning_budget(&request, prompt, client)?,
            None => None,
        };
        let (events, received) = Events::channel(request.prompts.len() * request.best_of as usize);
        let choices = prompts.iter().flat_map(|prompt| (0..request.best_of).map(move |number| (prompt, number)));
        let (mut replies, mut beginnings) = (Vec::new(), Vec::new());
        let mut further_sampling = request.further_sampling.clone();
        if request.best_of > request.n {
            // By which the best are found.
            further_sampling.n_top.get_or_insert(0);
        }
        for ((choice, (prompt, number)), place) in (0..).zip(choices).zip(places.drain(..)) {
            let sampling = request.sampling.clone().with(|sampling| sampling.seed = seed.wrapping_add(number.into()));
            let job = Job {
                choice,
                prompt: prompt.tokens.clone(),
                images: prompt.images.clone(),
                sampler: ReplySampler::new(&sampling, further_sampling.clone(), constraint.clone(), budget.clone())
                    .map(Box::new),
                sampling,
                priority: request.priority,
                output: OutputText::new(
                    &self.encoder.tokenizer,
                    &prompt.tokens,
                    self.stop_conditions(&request, &prompt.format),
                ),
                lines: LineLimits::of(&request),
                prompt_probabilities: request
                    .further_sampling
                    .n_top
                    .filter(|_| request.echo)
                    .map(|n_top| PromptProbabilities::new(prompt.tokens.clone(), n_top)),
                events: events.clone(),
                metrics: self.metrics.clone(),
                place,
            };
            let parser = (prompt.format != ReplyFormat::default())
                .then(|| ReplyParser::of_tools(&prompt.format, &request.tools));
            replies.push(Reply::new(prompt.tokens.len() as u32, parser, request.one_call));
            beginnings.push(match request.echo {
                true => self
                    .encoder
                    .tokenizer
                    .decode(&prompt.tokens)
                    .map_err(|error| ApiError::bad_request(error.to_string()))?,
                false => prompt.beginning.clone(),
            });
            self.commands.send(Command::Generate(Box::new(job))).map_err(|_| ApiError::stopping())?;
        }
        Ok(PendingResponse::new(writer, received, replies, beginnings, &request))
    }

    /// Queues prompts that are fed for this task, and after which nothing is generated. They are made after there are places for all of
    /// them, so that the queue also bounds their number.
    ///
    /// # Errors
    /// When the queue is full or the server is stopping; errors of `prompts`.
    pub(crate) fn pool(
        &self,
        prompts: impl ExactSizeIterator<Item = Result<Vec<u32>, ApiError>>,
        task: impl Fn() -> PoolingTask,
    ) -> Result<AwaitedOutputs, ApiError> {
        let places = self.admission.queue(prompts.len())?;
        let prompts = prompts.collect::<Result<Vec<_>, ApiError>>()?;
        let mut awaited = AwaitedOutputs { n_tokens: prompts.iter().map(Vec::len).sum(), found: Vec::new() };
        for (prompt, place) in prompts.into_iter().zip(places) {
            let (receiver, found) = PoolingReceiver::new(task(), prompt.len() as u32, self.metrics.clone(), place);
            awaited.found.push(found);
            let job = Box::new(PoolingJob { prompt, receiver });
            self.commands.send(Command::Pool(job)).map_err(|_| ApiError::stopping())?;
        }
        Ok(awaited)
    }

    /// What the device's sampler does not do, with biases by token id.
    fn further_sampling(&self, request: &Request, client: &ClientGone) -> Result<HostSampling, ApiError> {
        let mut further = request.further_sampling.clone();
        for (biased, bias) in &request.logit_bias {
            let tokens = match biased {
                BiasedText::Token(token) => vec![*token],
                BiasedText::Text(text) => {
                    self.encoder.check_length("logit_bias", text, client)?;
                    let encoded = self.encoder.tokenizer.encode(text);
                    encoded.map_err(|error| ApiError::parameter("logit_bias", error))?
                }
            };
            further.logit_bias.extend(tokens.into_iter().map(|token| (token, *bias)));
        }
        let checked = further.check(self.encoder.vocab_size);
        checked.map_err(|error| ApiError::parameter("logit_bias", error)).map(|()| further)
    }

    /// What the reply to a prompt has to match.
    fn constraint(&self, request: &Request, prompt: &EncodedPrompt) -> Result<Option<Constraint>, ApiError> {
        let named = |tool: &&Value| match &request.tool_choice {
            ToolChoice::Named(name) => tools::name(tool) == name,
            _ => true,
        };
        let tools: Vec<&Value> = request.tools.iter().filter(named).collect();
        let is_only = request.one_call || matches!(request.tool_choice, ToolChoice::Named(_));
        if let Some((parameter, structure)) = &request.structure {
            let constraint = match tools.is_empty() {
                true => Constraint::whole(self.vocabulary(), structure, Start::of_answer(&prompt.format)),
                false => Constraint::whole_or_calls(self.vocabulary(), structure, &tools, &prompt.format, is_only),
            };
            return constraint.map(Some).map_err(|error| ApiError::parameter(parameter, error));
        }
        // Without a stop token no grammar can be made: then arguments are as the model writes them.
        let can_end = !self.stop_tokens.is_empty() && prompt.format.tools.is_some() && !tools.is_empty();
        Ok(match can_end {
            true => Constraint::of_calls(self.vocabulary(), &tools, &prompt.format, &prompt.beginning, is_only),
            false => None,
        })
    }

    /// The limit of the reasoning in the reply to a prompt.
    fn reasoning_budget(
        &self,
        request: &Request,
        prompt: &EncodedPrompt,
        client: &ClientGone,
    ) -> Result<Option<ReasoningBudget>, ApiError> {
        let Some(n_tokens) = request.reasoning_budget.or(self.options.reasoning_budget) else { return Ok(None) };
        let message = request.reasoning_budget_message.as_ref().unwrap_or(&self.options.reasoning_budget_message);
        self.encoder.check_length("reasoning_budget_message", message, client)?;
        let tokenizer = &self.encoder.tokenizer;
        Ok(ReasoningBudget::new(self.vocabulary(), tokenizer, &prompt.written, n_tokens, message))
    }

    fn vocabulary(&self) -> Arc<Vocabulary> {
        let make = || Arc::new(Vocabulary::new(&self.encoder.tokenizer, self.encoder.vocab_size, &self.stop_tokens));
        self.vocabulary.get_or_init(make).clone()
    }

    fn check_stop_tokens(&self, request: &Request) -> Result<(), ApiError> {
        let vocab_size = self.encoder.vocab_size;
        match request.stop_tokens.iter().find(|&&token| token >= vocab_size) {
            Some(unknown) => {
                let found =
                    format!("expected token ids below {vocab_size}, the size of the vocabulary, found {unknown}");
                Err(ApiError::parameter("stop_token_ids", found))
            }
            None => Ok(()),
        }
    }

    /// Variables of the chat template for a request.
    fn arguments(&self, request: &Request) -> TemplateArguments {
        let mut arguments = self.options.template_arguments.clone();
        arguments.extend(request.template_arguments.clone());
        // llama-server's defaults: some templates date from a day that they name, without one.
        let defaults = [
            ("enable_thinking", self.options.reasoning.into()),
            ("date_string", today("%d %b %Y").into()),
            ("datetime", today("%b %d %Y").into()),
        ];
        for (name, value) in defaults {
            arguments.entry(name).or_insert(value);
        }
        // Clients have one name for it.
        if let Some(switch) = self.encoder.template.as_ref().and_then(ChatTemplate::reasoning_switch) {
            let reasons = arguments["enable_thinking"].clone();
            arguments.entry(switch).or_insert(reasons);
        }
        arguments
    }

    /// The limit of a request and that of the server, the smaller one.
    fn max_tokens_of(&self, request: &Request) -> Option<u32> {
        request.max_tokens.into_iter().chain(self.options.max_tokens).min()
    }

    fn stop_conditions(&self, request: &Request, format: &ReplyFormat) -> StopConditions {
        let mut conditions = StopConditions::default();
        conditions.max_tokens = self.max_tokens_of(request);
        conditions.stop_tokens.clone_from(&request.stop_tokens);
        // A reply that has to match a structure ends where that does.
        if !request.ignore_eos || request.structure.is_some() {
            conditions.stop_tokens.extend(&self.stop_tokens);
        }
        conditions.stop_strings.clone_from(&request.stop_strings);
        conditions.keeps_stop_string = request.keeps_stop_string;
        conditions.min_tokens = request.min_tokens;
        conditions.special_tokens = request.special_tokens || format.needs_special_tokens();
        conditions
    }

    fn writer(
        &self,
        api: Api,
        endpoint: Endpoint,
        request: &Request,
        prompts: &[EncodedPrompt],
        seed: u64,
        response_fields: Vec<String>,
    ) -> Result<Box<dyn ResponseWriter>, ApiError> {
        let (created, model) = (seconds_since_1970(), self.model_name.as_str());
        let further = &request.further_sampling;
        let probabilities = further.n_top.map(|_| Probabilities::new(self.vocabulary(), further.reports_filtered));
        Ok(match api {
            Api::Chat | Api::Completions => {
                let prompt = prompts.first().filter(|_| request.verbose.unwrap_or(self.options.verbose));
                let prompt = prompt.map(|prompt| self.text(&prompt.tokens)).transpose()?;
                let tokens = prompts.iter().map(|prompt| prompt.tokens.clone());
                let tokens = tokens.filter(|_| request.return_prompt_tokens).collect();
                Box::new(Completions::new(endpoint, created, model, request, probabilities, prompt, tokens))
            }
            Api::Responses => Box::new(Responses::new(created, model, request, probabilities)),
            Api::Messages => Box::new(anthropic::response::Message::new(model)),
            Api::OllamaChat => Box::new(Lines::new(created, model, true, probabilities)),
            Api::OllamaGenerate => Box::new(Lines::new(created, model, false, probabilities)),
            Api::Llama | Api::Infill => {
                let text = |prompt: &EncodedPrompt| self.text(&prompt.tokens);
                let texts = prompts.iter().map(text).collect::<Result<_, _>>()?;
                let banned: &[u32] = if request.ignore_eos { &self.stop_tokens } else { &[] };
                let settings = generation_settings(
                    &request.sampling,
                    further,
                    seed,
                    self.max_tokens_of(request),
                    &request.stop_strings,
                    banned,
                );
                Box::new(Completion::new(model, texts, settings, response_fields, request, probabilities))
            }
        })
    }

    /// Text of token ids, special tokens included.
    fn text(&self, tokens: &[u32]) -> Result<String, ApiError> {
        let decoded = self.encoder.tokenizer.decode_with(tokens, true);
        decoded.map_err(|error| ApiError::bad_request(error.to_string()))
    }

    /// The prompt that a chat is rendered to.
    ///
    /// # Errors
    /// Errors of a chat completion.
    pub(crate) fn rendered(&self, fields: Map<String, Value>) -> Result<String, ApiError> {
        let request = Request::from_fields(Endpoint::ChatCompletions, fields, &self.options.sampling)?;
        match request.prompts.as_slice() {
            [Prompt::Chat { messages, .. }] => {
                Ok(self.encoder.render(messages, &request, &self.arguments(&request))?.text)
            }
            _ => Err(ApiError::parameter("messages", "expected a conversation")),
        }
    }

    /// Tokens of the prompt that a request of `api`, a chat, has.
    ///
    /// # Errors
    /// Errors of the request.
    pub(crate) fn count_tokens(
        &self,
        api: Api,
        fields: Map<String, Value>,
        client: &ClientGone,
    ) -> Result<u32, ApiError> {
        let Translated { endpoint, fields, .. } = api.translate(fields, &self.encoder.tokenizer)?;
        let request = Request::from_fields(endpoint, fields, &self.options.sampling)?;
        let arguments = self.arguments(&request);
        let encoded = self.encoder.encode(&request.prompts[0], &request, &arguments, client)?;
        Ok(encoded.tokens.len() as u32)
    }

    /// `/tokenize`, of llama-server (`content`) and vLLM (`prompt` or `messages`).
    ///
    /// # Errors
    /// For fields of another type, and text that is longer than a context or that the tokenizer rejects.
    pub(crate) fn tokenize(&self, fields: Map<String, Value>, client: &ClientGone) -> Result<Value, ApiError> {
        let is_chat = fields.contains_key("messages");
        let mut fields = Fields(fields);
        let add_special: Option<bool> = fields.take("add_special", BOOLEAN)?;
        let add_special_tokens: Option<bool> = fields.take("add_special_tokens", BOOLEAN)?;
        let with_pieces = fields.take("with_pieces", BOOLEAN)?.unwrap_or(false);
        let with_written = fields.take("return_token_strs", BOOLEAN)?.unwrap_or(false);
        let reads_special = fields.take("parse_special", BOOLEAN)?.unwrap_or(true);
        let prompt: Option<String> = fields.take("prompt", "a text")?;
        let (name, text) = match (is_chat, prompt) {
            (true, _) => ("messages", self.rendered(std::mem::take(&mut fields.0))?),
            (false, Some(prompt)) => ("prompt", prompt),
            (false, None) => ("content", fields.take("content", "a text")?.unwrap_or_default()),
        };
        self.encoder.check_length(name, &text, client)?;
        let tokenizer = &self.encoder.tokenizer;
        let ids = match reads_special {
            true => tokenizer.encode(&text),
            false => tokenizer.encode_literally(&text),
        };
        let ids = ids.map_err(|error| ApiError::bad_request(error.to_string()))?;
        // vLLM's default for a plain prompt.
        let adds_special = add_special.or(add_special_tokens).unwrap_or(name == "prompt");
        let ids = if adds_special { tokenizer.begun(ids) } else { ids };
        let piece = |id: &u32| Ok(json!({"id": id, "piece": self.text(&[*id])?}));
        let tokens: Value = match with_pieces {
            true => Value::Array(ids.iter().map(piece).collect::<Result<_, ApiError>>()?),
            false => json!(ids),
        };
        let mut answer = json!({"tokens": tokens, "count": ids.len(), "max_model_len": self.encoder.context_tokens});
        if with_written {
            answer["token_strs"] = ids.iter().map(|&id| tokenizer.written(id)).collect();
        }
        Ok(answer)
    }

    /// `/detokenize`, of llama-server and vLLM.
    ///
    /// # Errors
    /// When they are not token ids of the vocabulary.
    pub(crate) fn detokenize(&self, fields: Map<String, Value>) -> Result<Value, ApiError> {
        let tokens: Vec<u32> = Fields(fields).require("tokens", "a list of token ids")?;
        let vocab_size = self.encoder.vocab_size;
        if let Some(unknown) = tokens.iter().find(|&&token| token >= vocab_size) {
            let found = format!("expected token ids below {vocab_size}, the size of the vocabulary, found {unknown}");
            return Err(ApiError::parameter("tokens", found));
        }
        let text = self.text(&tokens)?;
        Ok(json!({"content": text, "prompt": text}))
    }

    /// `/props`.
    pub(crate) fn props(&self) -> Value {
        let mut params = generation_settings(
            &self.options.sampling,
            &HostSampling::default(),
            self.options.seed.unwrap_or(u64::from(u32::MAX)),
            self.options.max_tokens,
            &[],
            &[],
        );
        params["stream"] = true.into();
        let token = |token: &Option<String>| token.clone().unwrap_or_default();
        let mut about = self.about.clone();
        (about["running"], about["waiting"]) = (self.metrics.running().into(), self.metrics.waiting().into());
        about["memory"]["kv_usage"] = self.metrics.kv_usage().into();
        json!({
            "default_generation_settings": {"id": 0, "n_ctx": self.encoder.context_tokens, "params": params},
            "total_slots": self.slots,
            "model_alias": self.model_name,
            "model_path": self.model_path,
            "is_sleeping": false,
            "modalities": {"vision": self.encoder.images.is_some(), "audio": false},
            "chat_template": self.encoder.template.as_ref().map(ChatTemplate::source).unwrap_or_default(),
            "bos_token": token(&self.bos_token),
            "eos_token": token(&self.eos_token),
            "build_info": FINGERPRINT,
            "unicorn": about,
        })
    }

    /// `/slots`: how many of them are busy, not which.
    pub(crate) fn slot_list(&self) -> Value {
        let busy = self.metrics.running();
        let slot = |id: u32| {
            let is_processing = u64::from(id) < busy;
            json!({"id": id, "n_ctx": self.encoder.context_tokens, "speculative": false, "is_processing": is_processing})
        };
        (0..self.slots).map(slot).collect()
    }

    /// Longest sequence, in tokens.
    pub(crate) fn context_tokens(&self) -> u32 {
        self.encoder.context_tokens
    }
}

/// What is being computed from the prompts of a request. Dropping it cancels them.
pub(crate) struct AwaitedOutputs {
    /// Tokens of all prompts.
    pub(crate) n_tokens: usize,
    found: Vec<oneshot::Receiver<PoolingResult>>,
}

impl AwaitedOutputs {
    /// What was found in each prompt, in order. The tokens, and the time in the queue, are noted.
    ///
    /// # Errors
    /// The error of the first prompt that failed.
    pub(crate) async fn all(self, observation: &Observation) -> Result<Vec<PoolingOutput>, ApiError> {
        observation.uses(&Usage { prompt_tokens: self.n_tokens as u32, ..Usage::default() });
        let mut all = Vec::with_capacity(self.found.len());
        for found in self.found {
            // The worker has dropped the sender: the server is stopping.
            let (finding, waited) = found.await.unwrap_or_else(|_| Err(ApiError::stopping()))?;
            observation.begins_after(waited);
            all.push(finding);
        }
        Ok(all)
    }
}

/// What a model with this template can do, by Ollama's names.
fn capabilities(template: Option<&ChatTemplate>, sees: bool) -> Vec<&'static str> {
    let thinks = template.is_some_and(|template| {
        let format = template.reply_format(false);
        format.thinks.is_some() || format.harmony
    });
    let all = [("completion", true), ("vision", sees), ("tools", template.is_some()), ("thinking", thinks)];
    all.into_iter().filter(|one| one.1).map(|one| one.0).collect()
}

/// Device and memory of a loaded model.
fn about(model: &Model) -> Value {
    let report = model.report();
    let tier = |tier: &TierBytes| json!({"tier": tier.tier.to_string(), "bytes": tier.total()});
    json!({
        "device": {"name": model.device().name, "driver": model.device().driver, "target": report.target},
        "memory": {
            "weight_bytes": report.weight_bytes,
            "tiers": report.memory.iter().map(tier).collect::<Vec<_>>(),
            "kv_tokens": model.kv_tokens(),
        },
    })
}

pub(crate) fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
