//! The threads of loaded models, and the requests that wait for them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::StatusCode;
use hyper::body::{Frame, SizeHint};
use tokio::sync::Notify;

use super::residency::{Next, Residency, State};
use super::unloaded::UnloadedModel;
use super::{ModelSource, Unloadable};
use crate::api::error::ApiError;
use crate::health::HealthState;
use crate::metrics::Metrics;
use crate::ollama::description::Description;
use crate::options::ServeOptions;
use crate::server::{Server, Stopper};

/// How often idle models are looked for.
const IDLE_CHECK: Duration = Duration::from_millis(250);
/// Tokens of a context, as requests of agents need them: where less memory is left, another model is unloaded.
const MIN_TOKENS_BESIDE_OTHERS: u32 = 8192;

pub(super) struct Pool {
    pub(super) names: Vec<String>,
    source: Box<dyn ModelSource>,
    options: ServeOptions,
    idle: Option<Duration>,
    state: Mutex<PoolState>,
    /// A change of state, for tasks and for threads.
    changed: Notify,
    changed_for_threads: Condvar,
}

struct PoolState {
    residency: Residency,
    /// One a model: its server, if it is loaded.
    running: Vec<Option<Running>>,
    /// One a model: its answers, if it was loaded and is not now.
    unloaded: Vec<Option<Arc<UnloadedModel>>>,
    is_stopping: bool,
}

struct Running {
    router: Router,
    stopper: Stopper,
    ollama: Arc<Description>,
    metrics: Arc<Metrics>,
}

/// A loaded model, which is not unloaded while this is held.
pub(super) struct Lease {
    pub(super) pool: Arc<Pool>,
    pub(super) model: usize,
    pub(super) router: Router,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.release(self.model);
    }
}

/// A response's body that holds the lease until it has been sent, or its client is gone.
pub(super) struct LeasedBody {
    pub(super) body: Body,
    pub(super) _lease: Lease,
}

impl HttpBody for LeasedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Pool {
    pub(super) fn new(
        names: Vec<String>,
        residency: Residency,
        idle: Option<Duration>,
        source: Box<dyn ModelSource>,
        options: ServeOptions,
    ) -> Pool {
        let running = names.iter().map(|_| None).collect();
        let unloaded = vec![None; names.len()];
        let state = Mutex::new(PoolState { residency, running, unloaded, is_stopping: false });
        Pool { names, source, options, idle, state, changed: Notify::new(), changed_for_threads: Condvar::new() }
    }

    /// The loaded model. Waits for a place, and for as long as loading takes.
    ///
    /// # Errors
    /// When it cannot be loaded, or the pool is stopping.
    pub(super) async fn lease(self: &Arc<Pool>, model: usize) -> Result<Lease, ApiError> {
        let attempts = self.lock().residency.attempts(model);
        loop {
            let mut changed = pin!(self.changed.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            if let Some(router) = self.try_use(model, attempts)? {
                return Ok(Lease { pool: self.clone(), model, router });
            }
            changed.await;
        }
    }

    fn try_use(self: &Arc<Pool>, model: usize, attempts: u64) -> Result<Option<Router>, ApiError> {
        let mut state = self.lock();
        if state.is_stopping {
            return Err(ApiError::stopping());
        }
        if let Some(why) = state.residency.failure_since(model, attempts) {
            let message = format!("model {:?} cannot be loaded: {why}", self.names[model]);
            return Err(ApiError { status: StatusCode::SERVICE_UNAVAILABLE, ..ApiError::failed(message) });
        }
        match state.residency.next(model, Instant::now()) {
            Next::Use => return Ok(state.running[model].as_ref().map(|running| running.router.clone())),
            Next::Load => self.start(&mut state, model),
            Next::Unload(other) => state.stop(other),
            Next::Wait => {}
        }
        Ok(None)
    }

    /// Loads a model for which no request has come yet, if there is a place.
    pub(super) fn begin_to_load(self: &Arc<Pool>, model: usize) {
        let mut state = self.lock();
        match state.residency.next(model, Instant::now()) {
            Next::Load => self.start(&mut state, model),
            Next::Use => drop(state.residency.release(model, Instant::now())),
            Next::Unload(other) => state.stop(other),
            Next::Wait => {}
        }
    }

    fn start(self: &Arc<Pool>, state: &mut PoolState, model: usize) {
        let pool = self.clone();
        let thread = thread::Builder::new().name("model".into()).spawn(move || pool.run_model(model));
        if let Err(error) = thread {
            state.residency.failed(model, format!("no thread: {error}"));
            self.notify();
        }
    }

    /// A request to the model has ended.
    pub(super) fn release(&self, model: usize) {
        let mut state = self.lock();
        if let Some(unload) = state.residency.release(model, Instant::now()) {
            state.stop(unload);
        }
    }

    /// Unloads a model after the requests that it has. Does nothing where it is not loaded.
    pub(super) fn unload(&self, model: usize) {
        let mut state = self.lock();
        if let Some(unload) = state.residency.close(model) {
            state.stop(unload);
        }
    }

    pub(super) fn state(&self, model: usize) -> State {
        self.lock().residency.state(model)
    }

    /// The routes of a model, if it is loaded or about to be unloaded: for what does not use it.
    pub(super) fn router(&self, model: usize) -> Option<Router> {
        self.lock().running[model].as_ref().map(|running| running.router.clone())
    }

    /// Answers that need no model, of one that was unloaded.
    pub(super) fn unloaded(&self, model: usize) -> Option<Arc<UnloadedModel>> {
        self.lock().unloaded[model].clone()
    }

    /// What Ollama's clients read of a model, if it is loaded.
    pub(super) fn ollama(&self, model: usize) -> Option<Arc<Description>> {
        self.lock().running[model].as_ref().map(|running| running.ollama.clone())
    }

    /// The health of the devices of loaded models.
    pub(super) fn health(&self) -> HealthState {
        HealthState::of_all(self.lock().running.iter().flatten().map(|running| running.metrics.health.state()))
    }

    /// Unloads what is idle, until the pool is stopped and its last model has been unloaded.
    pub(super) fn run(&self) {
        let mut state = self.lock();
        while !(state.is_stopping && state.residency.is_empty()) {
            if let Some(after) = self.idle {
                for idle in state.residency.unload_idle(after, Instant::now()) {
                    state.stop(idle);
                }
            }
            let waited = self.changed_for_threads.wait_timeout(state, IDLE_CHECK);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Stops every model after the step that is running.
    pub(super) fn stop(&self) {
        let mut state = self.lock();
        state.is_stopping = true;
        for model in 0..self.names.len() {
            state.stop(model);
        }
        drop(state);
        self.notify();
    }

    /// Loads the model and computes the answers to its requests, until it is unloaded.
    fn run_model(&self, model: usize) {
        let name = &self.names[model];
        // A panic in one model's thread does not affect the others.
        let ran = catch_unwind(AssertUnwindSafe(|| self.load_and_run(model, name)));
        let mut state = self.lock();
        let was_running = state.running[model].take().is_some();
        match ran {
            Ok(Ok(unloaded)) => {
                state.unloaded[model] = Some(Arc::new(unloaded));
                state.residency.unloaded(model);
            }
            Ok(Err(why)) => state.residency.failed(model, why),
            Err(_) if was_running => state.residency.unloaded(model),
            Err(_) => state.residency.failed(model, "loading panicked".into()),
        }
        drop(state);
        self.notify();
    }

    fn load_and_run(&self, index: usize, name: &str) -> Result<UnloadedModel, String> {
        let load = |min_context_tokens| {
            let model = self.source.load(name, min_context_tokens)?;
            let speculation = self.source.speculation(name, &model)?;
            Ok((model, speculation))
        };
        let (model, speculation) = loop {
            let is_beside_others = self.lock().residency.has_others(index);
            match load(is_beside_others.then_some(MIN_TOKENS_BESIDE_OTHERS)) {
                Ok(loaded) => break loaded,
                Err(Unloadable { needs_memory: true, .. }) if self.wait_for_memory(index) || is_beside_others => {}
                Err(Unloadable { message, .. }) => return Err(message),
            }
        };
        let mut options = self.options.clone();
        options.model_name = Some(name.to_owned());
        options.speculation = speculation.or(options.speculation);
        let server = Server::new(&model, options).map_err(|error| error.to_string())?;
        let handler = server.handler().clone();
        {
            let mut state = self.lock();
            if state.is_stopping {
                return Err("server is stopping".into());
            }
            state.unloaded[index] = None;
            state.running[index] = Some(Running {
                router: server.endpoints(),
                stopper: server.stopper(),
                ollama: server.ollama(),
                metrics: handler.metrics.clone(),
            });
            state.residency.loaded(index, Instant::now());
        }
        self.notify();
        self.source.run(name, &model, server);
        Ok(UnloadedModel::of(&handler))
    }

    /// Waits until another model has been unloaded. `false`: there is none.
    fn wait_for_memory(&self, model: usize) -> bool {
        let mut state = self.lock();
        if !state.residency.has_others(model) {
            return false;
        }
        if let Some(other) = state.residency.make_place(model) {
            state.stop(other);
        }
        let places = |state: &PoolState| state.running.iter().flatten().count();
        let before = places(&state);
        let fewer = |state: &mut PoolState| places(state) >= before && !state.is_stopping;
        drop(self.changed_for_threads.wait_while(state, fewer).unwrap_or_else(PoisonError::into_inner));
        true
    }

    fn notify(&self) {
        self.changed.notify_waiters();
        self.changed_for_threads.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolState {
    /// Ends the thread of a model, which then reports that it is unloaded.
    fn stop(&self, model: usize) {
        if let Some(running) = &self.running[model] {
            running.stopper.stop();
        }
    }
}
