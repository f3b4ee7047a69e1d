//! What a server answers of a model that it has unloaded, without loading it again.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::Value;

use crate::api::error::json_response;
use crate::handler::RequestHandler;
use crate::metrics::Metrics;
use crate::routes::{Shown, metrics_response};

/// Answers for a model that was loaded and is not now.
pub(super) struct UnloadedModel {
    props: Value,
    slots: Value,
    metrics: Arc<Metrics>,
}

impl UnloadedModel {
    /// Keeps the answers of a model whose server has ended.
    pub(super) fn of(handler: &RequestHandler) -> UnloadedModel {
        let mut props = handler.props();
        props["is_sleeping"] = true.into();
        UnloadedModel { props, slots: handler.slot_list(), metrics: handler.metrics.clone() }
    }

    /// The answer to a GET of `path`; `None`: it needs the model.
    pub(super) fn answer(&self, path: &str, shown: Shown) -> Option<Response> {
        match path {
            "/props" => Some(json_response(StatusCode::OK, &self.props)),
            "/slots" if shown.slots => Some(json_response(StatusCode::OK, &self.slots)),
            "/metrics" if shown.metrics => Some(metrics_response(&self.metrics)),
            _ => None,
        }
    }
}
