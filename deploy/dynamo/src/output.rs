//! The stream of a request: its events as Dynamo's chunks, the last one with the reason and the usage.

use std::sync::Arc;

use dynamo_backend_common::{
    AsyncEngineContext, CompletionUsage, DynamoError, LLMEngineOutput, LLMEngineOutputExt, PromptTokensDetails,
    StopReason, TopLogprob, usage,
};
use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::mpsc::UnboundedReceiver;
use unicorn_runtime::HostSampled;

use crate::error::{failed, shut_down};
use crate::sequence::{EndReason, Event};

/// What the stream has seen so far.
struct Output {
    events: UnboundedReceiver<Event>,
    context: Arc<dyn AsyncEngineContext>,
    /// Stop tokens that the client named: the response says which of them it was.
    user_stops: Vec<u32>,
    prompt_tokens: u32,
    cached_tokens: u32,
    n_tokens: u32,
    is_over: bool,
}

/// The chunks of `events`. A cancelled context ends them at once, whatever the model computes; dropping them cancels the request.
pub(crate) fn output(
    events: UnboundedReceiver<Event>,
    context: Arc<dyn AsyncEngineContext>,
    prompt_tokens: u32,
    user_stops: Vec<u32>,
) -> BoxStream<'static, Result<LLMEngineOutput, DynamoError>> {
    let output = Output { events, context, user_stops, prompt_tokens, cached_tokens: 0, n_tokens: 0, is_over: false };
    let chunks = stream::unfold(output, |mut output| async move {
        if output.is_over {
            return None;
        }
        let chunk = output.next().await;
        output.is_over = chunk.as_ref().map_or(true, |chunk| chunk.finish_reason.is_some());
        Some((chunk, output))
    });
    chunks.boxed()
}

impl Output {
    async fn next(&mut self) -> Result<LLMEngineOutput, DynamoError> {
        loop {
            let event = tokio::select! {
                biased;
                () = self.context.stopped() => return Ok(LLMEngineOutput::cancelled().with_usage(self.usage())),
                event = self.events.recv() => event,
            };
            match event {
                Some(Event::Begun { cached_tokens }) => self.cached_tokens = cached_tokens,
                Some(Event::Token { token, sampled, end }) => return Ok(self.token(token, sampled, end)),
                Some(Event::ContextFull) => return Ok(LLMEngineOutput::length().with_usage(self.usage())),
                Some(Event::Failed(message)) => return Err(failed(message)),
                None => return Err(shut_down("engine has stopped before the end of the text")),
            }
        }
    }

    /// The chunk of a token. Stop tokens are sent as well: the frontend leaves them out of the text, or does not.
    fn token(&mut self, token: u32, sampled: Option<HostSampled>, end: Option<EndReason>) -> LLMEngineOutput {
        self.n_tokens += 1;
        let chunk = match end {
            None => LLMEngineOutput::default(),
            Some(EndReason::MaxTokens) => LLMEngineOutput::length().with_usage(self.usage()),
            Some(EndReason::Stop) => {
                let is_named = self.user_stops.contains(&token);
                let stop_reason = is_named.then_some(StopReason::Int(token.into()));
                LLMEngineOutput { stop_reason, ..LLMEngineOutput::stop().with_usage(self.usage()) }
            }
        };
        let mut chunk = chunk.with_tokens(vec![token]);
        if let Some(sampled) = sampled {
            chunk.log_probs = sampled.logprob.map(|logprob| vec![logprob.into()]);
            let ranked = (1..).zip(&sampled.top).map(|(rank, one)| TopLogprob {
                rank,
                token_id: one.token,
                token: None,
                logprob: one.logprob.into(),
                bytes: None,
            });
            chunk.top_logprobs = Some(vec![ranked.collect()]);
        }
        chunk
    }

    fn usage(&self) -> CompletionUsage {
        let prompt_tokens_details =
            Some(PromptTokensDetails { cached_tokens: Some(self.cached_tokens), ..PromptTokensDetails::default() });
        CompletionUsage { prompt_tokens_details, ..usage(self.prompt_tokens, self.n_tokens) }
    }
}
