//! Vertex AI's environment variables for the server in its container
//! (<https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements#aip-variables>).

use std::env::var;

use unicorn_serve::VertexPaths;

/// Paths of its requests; `None`: this is not such a container.
pub fn paths() -> Option<VertexPaths> {
    is_container().then(|| VertexPaths {
        predict: path("AIP_PREDICT_ROUTE").unwrap_or_else(|| "/predict".to_owned()),
        health: path("AIP_HEALTH_ROUTE"),
    })
}

/// The port that it sends them to.
pub fn port() -> Option<u16> {
    var("AIP_HTTP_PORT").ok().filter(|_| is_container())?.parse().ok()
}

fn is_container() -> bool {
    var("AIP_MODE").is_ok_and(|mode| mode == "PREDICTION")
}

fn path(name: &str) -> Option<String> {
    let path = var(name).ok().filter(|path| !path.is_empty())?;
    Some(if path.starts_with('/') { path } else { format!("/{path}") })
}
