//! The server: a model, its scheduler, and the routes that queue requests for it.

use std::sync::{Arc, mpsc};

use axum::Router;
use unicorn_text::unicorn_runtime::Model;

use crate::access::Access;
use crate::activity::Activity;
use crate::error::ServeError;
use crate::handler::RequestHandler;
use crate::ollama::description::Description;
use crate::options::{KvCacheOptions, ServeOptions};
use crate::routes::{Shown, routes};
use crate::worker::{Command, Worker};

/// Serves one model. [`Server::router`] answers requests on the threads of an HTTP server, [`Server::run`] generates the tokens on
/// the thread that calls it.
///
/// Requests share each step of the model (continuous batching): as many sequences at a time as the model was loaded for, further
/// requests wait.
pub struct Server {
    handler: Arc<RequestHandler>,
    access: Access,
    shown: Shown,
    stopper: Stopper,
    worker: Worker,
}

/// Stops a [`Server`] from any thread.
#[derive(Clone)]
pub struct Stopper {
    commands: mpsc::Sender<Command>,
}

impl Server {
    /// Creates as many sessions as `model` was loaded for. The server holds the model until it is dropped.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn new(model: &Model, options: ServeOptions) -> Result<Server, ServeError> {
        options.check()?;
        let meta = &model.meta().model;
        if meta.synthetic {
            return Err(ServeError::SyntheticWeights { model: meta.name.clone() });
        }
        if options.embeddings.is_some() && !model.gives_hidden_rows() {
            return Err(ServeError::NoHiddenRows { model: meta.name.clone() });
        }
        let mut scheduler = model.scheduler()?;
        scheduler.set_speculation(options.speculation.clone())?;
        if let Some(checkpoints) = options.checkpoints {
            scheduler.set_max_checkpoints(checkpoints);
        }
        if let Some(tokens) = options.batch_tokens {
            scheduler.set_max_prefill_tokens(tokens);
        }
        if let Some(KvCacheOptions { folder, max_bytes }) = &options.kv_cache {
            let opened = model.kv_store(folder, *max_bytes);
            let opened = opened.map_err(|source| ServeError::KvCache { folder: folder.clone(), source });
            scheduler.set_kv_store(Some(opened?));
        }
        scheduler.set_deterministic(options.deterministic)?;
        let (sender, commands) = mpsc::channel();
        let handler = Arc::new(RequestHandler::new(model, &options, sender.clone())?);
        let (access, shown) = (Access::of(&options), Shown::of(&options));
        let worker = Worker { scheduler, commands, metrics: handler.metrics.clone() };
        Ok(Server { handler, access, shown, stopper: Stopper { commands: sender }, worker })
    }

    /// The routes of OpenAI's, Anthropic's, Ollama's and llama-server's APIs, to be served by themselves (see
    /// [`HttpListener`](crate::HttpListener)) or as a part of another program's. Requests that arrive before [`Server::run`] wait.
    pub fn router(&self) -> Router {
        self.access.clone().guard(self.endpoints())
    }

    /// The same routes, for a caller that checks access before.
    pub(crate) fn endpoints(&self) -> Router {
        routes(self.handler.clone(), self.shown)
    }

    /// The handler that answers requests.
    pub(crate) fn handler(&self) -> &Arc<RequestHandler> {
        &self.handler
    }

    /// What Ollama's clients read of the model.
    pub(crate) fn ollama(&self) -> Arc<Description> {
        self.handler.ollama.clone()
    }

    /// A handle that ends [`Server::run`].
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Computes the answers to requests. Blocks until the server is stopped; requests that are not answered by then get an error.
    ///
    /// `monitor` is called before and after each step, and should return quickly: the next step starts after it.
    pub fn run(self, monitor: &mut dyn FnMut(&Activity)) {
        self.worker.run(monitor);
    }
}

impl Stopper {
    /// Stops the server after the step that is running. Does nothing when it has stopped.
    pub fn stop(&self) {
        let _ = self.commands.send(Command::Stop);
    }
}
