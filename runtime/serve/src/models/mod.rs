//! Several models behind one address: each is loaded when a request names it, and unloaded when it is idle or its memory is needed.
//!
//! ```text
//! request ─► routes: which model ─► Pool::lease: loaded, or wait ─► the model's own routes ─► response, which holds the lease
//!                                       │ one thread a model
//!                                       └─► ModelSource::load ─► Server ─► ModelSource::run
//! ```

mod pool;
mod residency;
mod routes;
mod unloaded;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use unicorn_text::unicorn_runtime::{Model, Speculation};

use crate::access::Access;
use crate::error::ServeError;
use crate::options::ServeOptions;
use crate::server::Server;
use pool::Pool;
use residency::Residency;

/// Where the models of a [`ModelServer`] come from.
pub trait ModelSource: Send + Sync + 'static {
    /// Loads a model. Is called on a thread of its own, also while other models are loaded. `min_context_tokens`: the shortest context that is
    /// worth a place beside them, where the operator gives none.
    ///
    /// # Errors
    /// Why the model cannot be loaded, and whether it is the memory.
    fn load(&self, name: &str, min_context_tokens: Option<u32>) -> Result<Model, Unloadable>;

    /// How requests to a model that was just loaded speculate; `None`, the default: as [`ServeOptions::speculation`] has it.
    ///
    /// # Errors
    /// Why what it needs cannot be loaded.
    fn speculation(&self, _name: &str, _model: &Model) -> Result<Option<Speculation>, Unloadable> {
        Ok(None)
    }

    /// Calls [`Server::run`] with a monitor of its own, if it has one.
    fn run(&self, _name: &str, _model: &Model, server: Server) {
        server.run(&mut |_activity| ());
    }
}

/// Why a model cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unloadable {
    /// Message for the client: what, expected, found.
    pub message: String,
    /// It may be loaded once another model has been unloaded.
    pub needs_memory: bool,
}

/// Options of [`ModelServer::new`].
///
/// ```
/// let mut options = unicorn_serve::PoolOptions::default();
/// options.idle = Some(std::time::Duration::from_secs(600));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolOptions {
    /// Most models that are in memory at a time. Default: 4, as llama-server's.
    pub max_loaded: usize,
    /// Time without a request after which a model is unloaded; `None`, the default: only when its memory is needed.
    pub idle: Option<Duration>,
    /// Models that are never unloaded, once they are loaded. Default: none.
    pub pinned: Vec<String>,
    /// Whether requests that name no model of the server get the first. Default: no, they are refused.
    pub any_name: bool,
}

impl Default for PoolOptions {
    fn default() -> PoolOptions {
        PoolOptions { max_loaded: 4, idle: None, pinned: Vec::new(), any_name: false }
    }
}

/// Serves several models, each by a [`Server`] of its own. Requests name one in their field `model`; those that name none get the first.
/// A request for a model that is not loaded waits until it is.
pub struct ModelServer {
    pool: Arc<Pool>,
    options: ServeOptions,
    any_name: bool,
}

/// Stops a [`ModelServer`] from any thread.
#[derive(Clone)]
pub struct PoolStopper(Arc<Pool>);

impl ModelServer {
    /// A server without loaded models.
    ///
    /// # Errors
    /// For no models, names that are equal, pinned models that are unknown or leave no place for the others, and options that do not
    /// [`check`](ServeOptions::check).
    pub fn new(
        names: Vec<String>,
        source: impl ModelSource,
        pool: PoolOptions,
        options: ServeOptions,
    ) -> Result<ModelServer, ServeError> {
        options.check()?;
        let refused = |what: String| Err(ServeError::Models { what });
        if names.is_empty() {
            return refused("expected at least one model".into());
        }
        if let Some((at, name)) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
            return refused(format!("name {name:?} of model {at} is that of another one, expected names that differ"));
        }
        if let Some(unknown) = pool.pinned.iter().find(|pinned| !names.contains(pinned)) {
            return refused(format!("pinned model {unknown:?} is none of {}", names.join(", ")));
        }
        let pinned: Vec<bool> = names.iter().map(|name| pool.pinned.contains(name)).collect();
        let n_pinned = pinned.iter().filter(|pinned| **pinned).count();
        if pool.max_loaded < n_pinned + usize::from(n_pinned < names.len()) {
            let max = pool.max_loaded;
            return refused(format!("{n_pinned} models are pinned, which leaves no place of {max} for the others"));
        }
        let any_name = pool.any_name;
        let residency = Residency::new(&pinned, pool.max_loaded, Instant::now());
        let pool = Arc::new(Pool::new(names, residency, pool.idle, Box::new(source), options.clone()));
        Ok(ModelServer { pool, options, any_name })
    }

    /// The routes of all APIs. Requests that arrive before [`ModelServer::run`] are answered as well.
    pub fn router(&self) -> Router {
        Access::of(&self.options).guard(routes::routes(self.pool.clone(), &self.options, self.any_name))
    }

    /// Begins to load a model, so that the first request for it waits less. Does not block.
    ///
    /// # Panics
    /// If it is not one of the server's models.
    pub fn load(&self, name: &str) {
        let model = self.pool.names.iter().position(|known| known == name);
        self.pool.begin_to_load(model.expect("a model of this server"));
    }

    /// What ends [`ModelServer::run`].
    pub fn stopper(&self) -> PoolStopper {
        PoolStopper(self.pool.clone())
    }

    /// Unloads idle models. Blocks until the server is stopped; requests that are not answered by then get an error.
    pub fn run(self) {
        self.pool.run();
    }
}

impl PoolStopper {
    /// Stops all models after the steps that are running.
    pub fn stop(&self) {
        self.0.stop();
    }
}
