//! From Dynamo's request to a job: what it asks for is checked here, and refused where this engine would answer something else.

use std::sync::{Arc, OnceLock};

use dynamo_backend_common::{
    AsyncEngineContext, DynamoError, GuidedDecodingOptions, PreprocessedRequest, SamplingOptions,
};
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use unicorn_runtime::{HostSampler, HostSampling, Model, Sampling};
use unicorn_structure::{Constraint, ReplySampler, Start, Structure, StructureError, Vocabulary};
use unicorn_text::{ChatTemplate, TextError, Tokenizer, TokenizerSection, default_sampling, random_seed};

use crate::error::invalid;
use crate::sequence::{Event, Limits, Sequence};
use crate::worker::Job;

/// What reading requests needs of a model. Used by several threads at once, while the model's steps run.
pub(crate) struct RequestReader {
    vocab_size: u32,
    context_tokens: u32,
    /// The artifact's own stop tokens.
    stop_tokens: Vec<u32>,
    section: TokenizerSection,
    /// `None`: the artifact has no tokenizer.
    tokenizer: Option<Tokenizer>,
    /// Made by the first reply that has to match something, which takes tens of milliseconds.
    vocabulary: OnceLock<Arc<Vocabulary>>,
}

impl RequestReader {
    /// # Errors
    /// For a tokenizer that cannot be read.
    pub(crate) fn new(model: &Model) -> Result<RequestReader, TextError> {
        let section = model.tokenizer_section().clone();
        let has_tokenizer = !section.tokenizer_json.is_empty();
        let tokenizer = has_tokenizer.then(|| Tokenizer::new(&section)).transpose()?;
        Ok(RequestReader {
            vocab_size: model.meta().model.vocab_size,
            context_tokens: model.context_tokens(),
            stop_tokens: section.stop_ids.clone(),
            section,
            tokenizer,
            vocabulary: OnceLock::new(),
        })
    }

    /// A token that prompts begin with, for probes of the worker's health.
    pub(crate) fn first_token(&self) -> u32 {
        self.tokenizer.as_ref().and_then(Tokenizer::prompt_bos).unwrap_or(0)
    }

    /// A job for the scheduler, and the events of its stream. Blocks for as long as a grammar takes to read.
    ///
    /// # Errors
    /// For a parameter out of its range, and for what this engine does not have.
    pub(crate) fn read(
        &self,
        request: &PreprocessedRequest,
        context: Arc<dyn AsyncEngineContext>,
    ) -> Result<(Job, UnboundedReceiver<Event>), DynamoError> {
        refuse_what_is_absent(request)?;
        self.check_prompt(&request.token_ids)?;
        let sampling = sampling(&request.sampling_options)?;
        let further = self.further_sampling(request)?;
        let guided = request.sampling_options.guided_decoding.as_ref();
        let constraint = guided.map(|guided| self.constraint(guided, request)).transpose()?.flatten();
        let limits = self.limits(request, constraint.is_some())?;
        let plain = HostSampler::new(sampling.clone(), further.clone());
        let sampler = ReplySampler::new(&sampling, further, constraint, None).map(Box::new);
        let (events, received) = unbounded_channel();
        let job = Job {
            prompt: request.token_ids.to_vec(),
            sampling,
            // Dynamo's higher numbers come first.
            priority: request.routing.as_ref().and_then(|routing| routing.priority).unwrap_or(0).saturating_neg(),
            receiver: Sequence::new(events, context, limits, sampler, plain),
        };
        Ok((job, received))
    }

    fn check_prompt(&self, prompt: &[u32]) -> Result<(), DynamoError> {
        let (n_tokens, most) = (prompt.len(), self.context_tokens);
        if n_tokens == 0 || n_tokens > most as usize {
            return Err(invalid(format!("prompt: expected 1 to {most} tokens, the context, found {n_tokens}")));
        }
        self.check_tokens("prompt", prompt)
    }

    fn check_tokens(&self, what: &str, tokens: &[u32]) -> Result<(), DynamoError> {
        let size = self.vocab_size;
        match tokens.iter().find(|&&token| token >= size) {
            Some(unknown) => Err(invalid(format!(
                "{what}: expected token ids below {size}, the size of the vocabulary, found {unknown}"
            ))),
            None => Ok(()),
        }
    }

    fn further_sampling(&self, request: &PreprocessedRequest) -> Result<HostSampling, DynamoError> {
        let options = &request.sampling_options;
        let further = HostSampling::default().with(|further| {
            further.presence_penalty = options.presence_penalty.unwrap_or(0.0);
            further.frequency_penalty = options.frequency_penalty.unwrap_or(0.0);
            further.n_top = request.output_options.logprobs.map(|n_top| n_top.min(self.vocab_size) as usize);
        });
        further.check(self.vocab_size).map_err(|error| invalid(error.to_string()))?;
        Ok(further)
    }

    fn limits(&self, request: &PreprocessedRequest, is_constrained: bool) -> Result<Limits, DynamoError> {
        let conditions = &request.stop_conditions;
        let (min_tokens, max_tokens) = (conditions.min_tokens.unwrap_or(0), conditions.max_tokens);
        if max_tokens == Some(0) || max_tokens.is_some_and(|most| most < min_tokens) {
            let found = max_tokens.unwrap_or(0);
            return Err(invalid(format!(
                "max_tokens: expected at least 1, and min_tokens, {min_tokens}; found {found}"
            )));
        }
        if is_constrained && min_tokens > 0 {
            return Err(invalid("min_tokens: expected 0 beside guided decoding, which decides where a reply ends"));
        }
        let mut stop_tokens = Vec::new();
        let ignores_eos = conditions.ignore_eos.unwrap_or(false);
        if !ignores_eos {
            let named =
                [&conditions.stop_token_ids, &conditions.stop_token_ids_visible, &conditions.stop_token_ids_hidden];
            named.into_iter().flatten().for_each(|tokens| stop_tokens.extend(tokens));
            stop_tokens.extend(&request.eos_token_ids);
            self.check_tokens("stop tokens", &stop_tokens)?;
        }
        // Behind a reply that matches its grammar nothing but these may follow.
        if !ignores_eos || is_constrained {
            stop_tokens.extend(self.stop_tokens.iter().filter(|&&token| token < self.vocab_size));
        }
        Ok(Limits { stop_tokens, min_tokens, max_tokens })
    }

    /// What the reply has to match; `None`: nothing.
    fn constraint(
        &self,
        guided: &GuidedDecodingOptions,
        request: &PreprocessedRequest,
    ) -> Result<Option<Constraint>, DynamoError> {
        guided.validate().map_err(|error| invalid(format!("guided decoding: {error}")))?;
        let wrong = |error: StructureError| invalid(format!("guided decoding: {error}"));
        if guided.structural_tag.is_some() || guided.whitespace_pattern.is_some() {
            return Err(invalid(
                "guided decoding: expected json, regex, choice or grammar, without a pattern of white space",
            ));
        }
        let choice = guided.choice.clone().filter(|texts| !texts.is_empty());
        let structure = match (&guided.json, &guided.regex, choice, &guided.grammar) {
            (Some(Value::String(schema)), ..) => Structure::from_schema_text(schema).map_err(wrong)?,
            (Some(schema), ..) => Structure::from_schema(schema.clone()).map_err(wrong)?,
            (_, Some(regex), ..) => Structure::Regex(regex.clone()),
            (_, _, Some(texts), _) => Structure::Choice(texts),
            (.., Some(grammar)) => Structure::from_grammar(grammar.clone()).map_err(wrong)?,
            _ => return Ok(None),
        };
        let Some(tokenizer) = &self.tokenizer else {
            return Err(invalid("guided decoding: the artifact has no tokenizer, whose texts a grammar is about"));
        };
        let start =
            if request.require_reasoning { self.start_of_answer(tokenizer, request)? } else { Start::at_once() };
        let make = || Arc::new(Vocabulary::new(tokenizer, self.vocab_size, &self.stop_tokens));
        let vocabulary = self.vocabulary.get_or_init(make).clone();
        Constraint::whole(vocabulary, &structure, start).map(Some).map_err(wrong)
    }

    /// Where the answer begins behind the reasoning, by the artifact's chat template.
    fn start_of_answer(&self, tokenizer: &Tokenizer, request: &PreprocessedRequest) -> Result<Start, DynamoError> {
        let template = ChatTemplate::new(&self.section, self.context_tokens);
        let template = template.map_err(|error| invalid(format!("guided decoding behind reasoning: {error}")))?;
        // How a prompt ends is in its last tokens.
        let end = &request.token_ids[request.token_ids.len().saturating_sub(16)..];
        let written = tokenizer.decode_with(end, true).unwrap_or_default();
        Ok(Start::of_answer(&template.reply_format(false).behind(&written)))
    }
}

/// As in the server: what is not given is llama.cpp's.
fn sampling(options: &SamplingOptions) -> Result<Sampling, DynamoError> {
    let sampling = default_sampling().with(|sampling| {
        sampling.temperature = options.temperature.unwrap_or(sampling.temperature);
        // 0 means the smallest set, which holds the most likely token.
        sampling.top_p = options.top_p.map_or(sampling.top_p, |p| if p == 0.0 { f32::MIN_POSITIVE } else { p });
        // -1: all.
        sampling.top_k = options.top_k.map_or(sampling.top_k, |k| k.max(0) as u32);
        sampling.min_p = options.min_p.unwrap_or(sampling.min_p);
        sampling.repeat_penalty = options.repetition_penalty.unwrap_or(sampling.repeat_penalty);
        sampling.seed = options.seed.map_or_else(random_seed, |seed| seed as u64);
    });
    sampling.check().map_err(|error| invalid(error.to_string()))?;
    Ok(sampling)
}

/// Refuses what would be left out of the answer, or change nothing although it was asked for.
fn refuse_what_is_absent(request: &PreprocessedRequest) -> Result<(), DynamoError> {
    let (sampling, routing) = (&request.sampling_options, request.routing.as_ref());
    let has_media =
        request.multi_modal_data.as_ref().is_some_and(|media| media.values().any(|items| !items.is_empty()));
    let absent = [
        (sampling.n.is_some_and(|n| n > 1), "n: expected 1 choice a request, since a stream has one end"),
        (sampling.best_of.is_some_and(|n| n > 1), "best_of: expected 1 choice a request, since a stream has one end"),
        (sampling.use_beam_search == Some(true), "use_beam_search: there is no search by beams"),
        (
            request.output_options.prompt_logprobs.is_some(),
            "prompt_logprobs: expected none, only tokens of the answer have them",
        ),
        (
            request.stop_conditions.max_thinking_tokens.is_some(),
            "thinking_token_budget: expected none, reasoning is not limited",
        ),
        (has_media, "images, video and audio are not taken"),
        (request.prompt_embeds.is_some(), "prompt_embeds: expected token ids"),
        (request.encoder_result.is_some(), "encoder_result: images, video and audio are not taken"),
        (
            request.prefill_result.is_some() || request.bootstrap_info.is_some(),
            "KV caches of other workers are not taken",
        ),
        (
            routing.is_some_and(|routing| routing.lora_name.is_some()),
            "adapters are merged when a model is compiled: expected the name of the model itself",
        ),
        (
            routing.is_some_and(|routing| routing.cache_namespace.is_some()),
            "cache_salt: expected none, the cache of prompts is one for all requests",
        ),
    ];
    match absent.into_iter().find(|(is_asked_for, _)| *is_asked_for) {
        Some((_, why)) => Err(invalid(why)),
        None => Ok(()),
    }
}
