//! `/v1/embeddings` of OpenAI, `/embedding` of llama-server, `/api/embed` and the older `/api/embeddings` of Ollama.

use std::sync::Arc;
use std::time::Instant;

use axum::extract;
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::pool::{Pool, Pooling, normalize};
use super::{PoolingOutput, PoolingTask};
use crate::admission::ClientGone;
use crate::api::error::{ApiError, json_response};
use crate::api::fields::{BOOLEAN, Fields, unexpected};
use crate::api::prompt::prompts;
use crate::handler::{AwaitedOutputs, RequestHandler};
use crate::observer::{Observation, Operation};
use crate::options::LeftOut;

/// The API whose form an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EmbeddingsApi {
    OpenAi,
    Llama,
    Ollama,
    /// Ollama's older endpoint, for one text, whose row is not normalised.
    OllamaSingle,
}

impl EmbeddingsApi {
    fn is_ollama(self) -> bool {
        matches!(self, EmbeddingsApi::Ollama | EmbeddingsApi::OllamaSingle)
    }
}

/// What a request requires of its rows.
struct Form {
    api: EmbeddingsApi,
    base64: bool,
    /// The norm, as [`normalize`] takes it.
    norm: i32,
    /// Length to which each row is cut; `None`: all of it.
    dimensions: Option<usize>,
}

impl RequestHandler {
    /// Answers a request for embeddings.
    ///
    /// # Errors
    /// When the server was started without them, the request is wrong, or a step fails.
    pub(crate) async fn embed(
        self: Arc<Self>,
        api: EmbeddingsApi,
        request: extract::Request,
    ) -> Result<Response, ApiError> {
        let (observation, begun) = (Observation::of(&request), Instant::now());
        observation.asks_for(Operation::Embeddings);
        let model = self.model_name.clone();
        let queue =
            move |handler: &RequestHandler, fields, client: &ClientGone| handler.queue_embeddings(api, fields, client);
        let (form, awaited) = self.with_body(request, queue).await?;
        let n_tokens = awaited.n_tokens;
        let mut rows = Vec::new();
        for found in awaited.all(&observation).await? {
            let PoolingOutput::Rows(found) = found else { unreachable!("the output is hidden rows") };
            rows.push(found);
        }
        let mut answer = form.answer(&model, rows, n_tokens);
        if form.api == EmbeddingsApi::Ollama {
            (answer["total_duration"], answer["load_duration"]) =
                ((begun.elapsed().as_nanos() as u64).into(), 0.into());
        }
        Ok(json_response(StatusCode::OK, &answer))
    }

    fn queue_embeddings(
        &self,
        api: EmbeddingsApi,
        fields: Map<String, Value>,
        client: &ClientGone,
    ) -> Result<(Form, AwaitedOutputs), ApiError> {
        let Some(pooling) = self.options.embeddings else {
            let how = (self.options.how_to_enable)(LeftOut::Embeddings);
            return Err(ApiError::disabled(&format!("embeddings: this server makes none{how}")));
        };
        let mut fields = Fields(fields);
        // The name that llama-server's first clients use, and its first form.
        let content = fields.0.remove("content");
        let api = if content.is_some() { EmbeddingsApi::Llama } else { api };
        if pooling == Pooling::None && api != EmbeddingsApi::Llama {
            let how = (self.options.how_to_enable)(LeftOut::Pooling);
            let message =
                format!("this server pools no rows, and here a text has one; /embedding returns one a token{how}");
            return Err(ApiError::parameter("input", message));
        }
        let name = if api == EmbeddingsApi::OllamaSingle { "prompt" } else { "input" };
        let input = content.or_else(|| fields.0.remove(name)).filter(|input| !input.is_null());
        let is_nothing = |input: &Value| input == "" || input.as_array().is_some_and(Vec::is_empty);
        let inputs = match &input {
            // Ollama has no embedding of nothing.
            input if api.is_ollama() && input.as_ref().is_none_or(is_nothing) => Vec::new(),
            None => {
                let message = "expected text, or a list of texts or of token ids, found nothing";
                return Err(ApiError::parameter(name, message));
            }
            Some(input) => prompts(input).map_err(|error| ApiError::parameter(name, error.message))?,
        };
        let truncates = api.is_ollama() && fields.take("truncate", BOOLEAN)?.unwrap_or(true);
        let norm = if api == EmbeddingsApi::OllamaSingle { -1 } else { 2 };
        let form = Form {
            api,
            base64: is_base64(&mut fields)?,
            norm: if pooling == Pooling::None {
                -1
            } else {
                fields.take("embd_normalize", "an integer")?.unwrap_or(norm)
            },
            dimensions: self.dimensions(&mut fields)?,
        };
        let tokens = inputs.iter().map(|input| self.encoder.encode_embedded(name, input, truncates, client));
        Ok((form, self.pool(tokens, || PoolingTask::Hidden(Pool::new(pooling)))?))
    }

    fn dimensions(&self, fields: &mut Fields) -> Result<Option<usize>, ApiError> {
        let dimensions: Option<usize> = fields.take("dimensions", "an integer")?;
        match dimensions.filter(|dimensions| !(1..=self.hidden_size).contains(dimensions)) {
            None => Ok(dimensions),
            Some(found) => {
                let message =
                    format!("expected 1 to {}, the size of the model's rows, found {found}", self.hidden_size);
                Err(ApiError::parameter("dimensions", message))
            }
        }
    }
}

fn is_base64(fields: &mut Fields) -> Result<bool, ApiError> {
    let format: Option<Value> = fields.take("encoding_format", "a word")?;
    match format.as_ref().map(Value::as_str) {
        None | Some(Some("float")) => Ok(false),
        Some(Some("base64")) => Ok(true),
        _ => Err(unexpected("encoding_format", "\"float\" or \"base64\"", &format.unwrap_or_default())),
    }
}

impl Form {
    fn answer(&self, model: &str, texts: Vec<Vec<Vec<f32>>>, n_tokens: usize) -> Value {
        let texts: Vec<Vec<Vec<f32>>> =
            texts.into_iter().map(|rows| rows.into_iter().map(|row| self.finished(row)).collect()).collect();
        match self.api {
            EmbeddingsApi::OpenAi => {
                let rows = texts.iter().flatten().enumerate();
                let data: Vec<Value> = rows.map(|(index, row)| self.entry(index, row)).collect();
                let usage = json!({"prompt_tokens": n_tokens, "total_tokens": n_tokens});
                json!({"object": "list", "data": data, "model": model, "usage": usage})
            }
            EmbeddingsApi::Llama => {
                texts.iter().enumerate().map(|(index, rows)| json!({"index": index, "embedding": rows})).collect()
            }
            EmbeddingsApi::Ollama => {
                let rows: Vec<&Vec<f32>> = texts.iter().flatten().collect();
                json!({"model": model, "embeddings": rows, "prompt_eval_count": n_tokens})
            }
            EmbeddingsApi::OllamaSingle => {
                let row: &[f32] = texts.first().and_then(|rows| rows.first()).map_or(&[], Vec::as_slice);
                json!({"embedding": row})
            }
        }
    }

    fn finished(&self, mut row: Vec<f32>) -> Vec<f32> {
        row.truncate(self.dimensions.unwrap_or(row.len()));
        normalize(&mut row, self.norm);
        row
    }

    fn entry(&self, index: usize, row: &[f32]) -> Value {
        if !self.base64 {
            return json!({"object": "embedding", "index": index, "embedding": row});
        }
        let bytes: Vec<u8> = row.iter().flat_map(|value| value.to_le_bytes()).collect();
        let encoded = STANDARD.encode(bytes);
        json!({"object": "embedding", "index": index, "embedding": encoded, "encoding_format": "base64"})
    }
}
