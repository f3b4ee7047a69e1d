//! Dynamo's engine: loads the model on a thread of its own, and turns requests into jobs of that thread.

use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use async_trait::async_trait;
use dynamo_backend_common::{
    DynamoError, EngineConfig, GenerateContext, HEALTH_CHECK_KEY, LLMEngine, LLMEngineOutput, LlmRegistration,
    MetricsBindings, MetricsCtx, PreprocessedRequest, SnapshotPublisher,
};
use futures::stream::BoxStream;
use serde_json::{Value, json};
use unicorn_runtime::{KvCapacity, LoadOptions, Model};

use crate::args::EngineOptions;
use crate::error::{invalid, shut_down};
use crate::output::output;
use crate::request::RequestReader;
use crate::tokenizer_check;
use crate::worker::Worker;

/// A model behind Dynamo's trait.
pub struct UnicornEngine {
    options: EngineOptions,
    /// Folder or name of the checkpoint that the frontend reads.
    model_path: String,
    /// `None`: not started, or cleaned up.
    running: RwLock<Option<Arc<Running>>>,
    /// Where the worker's thread publishes its load, once Dynamo has made it.
    publisher: Arc<OnceLock<Arc<SnapshotPublisher>>>,
}

/// What a started engine has.
struct Running {
    reader: RequestReader,
    worker: Worker,
    probe_token: u32,
}

impl UnicornEngine {
    /// An engine that is not started.
    pub fn new(options: EngineOptions, model_path: String) -> UnicornEngine {
        UnicornEngine { options, model_path, running: RwLock::default(), publisher: Arc::default() }
    }

    /// What it loads.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    fn running(&self) -> Result<Arc<Running>, DynamoError> {
        let running = self.running.read().unwrap_or_else(PoisonError::into_inner);
        running.clone().ok_or_else(|| shut_down("engine is not running: not started, or shut down"))
    }
}

impl Running {
    /// Blocks for as long as loading takes.
    fn load(
        options: &EngineOptions,
        model_path: &str,
        publisher: Arc<OnceLock<Arc<SnapshotPublisher>>>,
    ) -> Result<(Running, LlmRegistration), DynamoError> {
        let device = options.device.parse().map_err(|error| invalid(format!("--device: {error}")))?;
        let kv_capacity = options.kv_tokens.map_or(KvCapacity::Fitting, KvCapacity::Tokens);
        let load = LoadOptions::default().with(|load| {
            load.device = device;
            (load.context_tokens, load.slots, load.kv_capacity) = (options.ctx, options.parallel, kv_capacity);
        });
        let model = Model::load(&options.artifact, &load).map_err(|error| shut_down(error.to_string()))?;
        tokenizer_check::check(model.tokenizer_section(), model_path).map_err(invalid)?;
        let reader = RequestReader::new(&model).map_err(|error| invalid(error.to_string()))?;
        let registration = LlmRegistration {
            context_length: Some(model.context_tokens()),
            total_kv_blocks: Some(model.kv_pages().1.into()),
            max_num_seqs: Some(model.slots().into()),
            ..LlmRegistration::default()
        };
        let probe_token = reader.first_token();
        let worker = Worker::start(model, publisher).map_err(|error| shut_down(error.to_string()))?;
        Ok((Running { reader, worker, probe_token }, registration))
    }
}

#[async_trait]
impl LLMEngine for UnicornEngine {
    async fn start(&self, _worker_id: u64) -> Result<EngineConfig, DynamoError> {
        tracing::info!(artifact = %self.options.artifact.display(), "loading");
        let (options, model_path, publisher) = (self.options.clone(), self.model_path.clone(), self.publisher.clone());
        let loading = tokio::task::spawn_blocking(move || Running::load(&options, &model_path, publisher));
        let (running, registration) = loading.await.map_err(|error| shut_down(format!("loading: {error}")))??;
        *self.running.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(running));
        tracing::info!(context = registration.context_length, sequences = registration.max_num_seqs, "loaded");
        Ok(EngineConfig { model: self.model_path.clone(), llm: Some(registration), ..EngineConfig::default() })
    }

    async fn generate(
        &self,
        request: PreprocessedRequest,
        ctx: GenerateContext,
    ) -> Result<BoxStream<'static, Result<LLMEngineOutput, DynamoError>>, DynamoError> {
        let (running, context) = (self.running()?, ctx.inner_arc());
        let prompt_tokens = request.token_ids.len() as u32;
        let user_stops = request.stop_conditions.stop_token_ids.clone().unwrap_or_default();
        // A grammar takes tens of milliseconds to read, and the first one the vocabulary with it.
        let reading = {
            let (running, context) = (running.clone(), context.clone());
            tokio::task::spawn_blocking(move || running.reader.read(&request, context))
        };
        let (job, events) = reading.await.map_err(|error| invalid(format!("request: {error}")))??;
        running.worker.submit(job)?;
        Ok(output(events, context, prompt_tokens, user_stops))
    }

    async fn cleanup(&self) -> Result<(), DynamoError> {
        let running = self.running.write().unwrap_or_else(PoisonError::into_inner).take();
        let Some(running) = running else { return Ok(()) };
        // The thread ends its step and frees the device before this returns.
        let stopping = tokio::task::spawn_blocking(move || running.worker.stop());
        stopping.await.map_err(|error| shut_down(format!("shutdown: {error}")))
    }

    async fn setup_metrics(&self, _ctx: MetricsCtx<'_>) -> Result<MetricsBindings, DynamoError> {
        let publisher = self.publisher.clone();
        let on_publisher_ready: dynamo_backend_common::OnSnapshotPublisherReady =
            Box::new(move |made| publisher.set(made).map_err(|_| shut_down("metrics were set up twice")));
        Ok(MetricsBindings { dp_ranks: vec![0], on_publisher_ready: Some(on_publisher_ready) })
    }

    async fn health_check_payload(&self) -> Result<Option<Value>, DynamoError> {
        let token = self.running()?.probe_token;
        Ok(Some(json!({
            "token_ids": [token],
            "stop_conditions": {"max_tokens": 1, "ignore_eos": true},
            "sampling_options": {"temperature": 0.0},
            HEALTH_CHECK_KEY: true,
        })))
    }
}
