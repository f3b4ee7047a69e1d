//! Whether the device computes, as health checks read it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;
use unicorn_text::unicorn_runtime::RunError;

use crate::api::error::{ApiError, json_response};

/// What is known of the device. Written by the worker, read by requests.
#[derive(Debug, Default)]
pub(crate) struct Health {
    losses: AtomicU64,
    /// Why it computes nothing.
    failure: Mutex<Option<String>>,
}

/// The health of one model's device, or of that of several models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HealthState {
    /// Times that the device was lost.
    pub(crate) losses: u64,
    /// Why the last step failed, if it did and the next may fail as well.
    pub(crate) failure: Option<String>,
}

impl Health {
    /// The device was lost this many times since the model was loaded.
    pub(crate) fn has_lost(&self, losses: u64) {
        self.losses.store(losses, Ordering::Relaxed);
    }

    /// A step failed.
    pub(crate) fn fails(&self, error: &RunError) {
        // Others are errors of one request.
        let is_of_device =
            matches!(error, RunError::DeviceLost { .. } | RunError::NotRecovered { .. } | RunError::Loading { .. });
        if is_of_device {
            *self.failure() = Some(error.to_string());
        }
    }

    /// A step was computed.
    pub(crate) fn works(&self) {
        *self.failure() = None;
    }

    pub(crate) fn state(&self) -> HealthState {
        HealthState { losses: self.losses.load(Ordering::Relaxed), failure: self.failure().clone() }
    }

    fn failure(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HealthState {
    /// The health of several models.
    pub(crate) fn of_all(states: impl Iterator<Item = HealthState>) -> HealthState {
        states.fold(HealthState::default(), |all, one| HealthState {
            losses: all.losses + one.losses,
            failure: all.failure.or(one.failure),
        })
    }

    /// The answer of `/health`.
    pub(crate) fn response(&self) -> Response {
        match (&self.failure, self.losses) {
            (Some(failure), losses) => {
                let message = format!("{failure}; the next request tries again");
                let error = ApiError::busy(StatusCode::SERVICE_UNAVAILABLE, message);
                let mut body = error.json();
                (body["status"], body["device_losses"]) = ("unavailable".into(), losses.into());
                error.response(&body)
            }
            (None, 0) => json_response(StatusCode::OK, &json!({"status": "ok"})),
            (None, losses) => json_response(StatusCode::OK, &json!({"status": "degraded", "device_losses": losses})),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_device_is_reported_until_it_computes_again() {
        let health = Health::default();
        let read = |health: &Health| (health.state().response().status(), health.state());
        assert_eq!(read(&health), (StatusCode::OK, HealthState::default()));
        // One request's own error.
        health.fails(&RunError::NoTokens);
        assert_eq!(read(&health).0, StatusCode::OK);
        health.has_lost(1);
        health.fails(&RunError::DeviceLost { detail: "vkQueueSubmit".into() });
        let (status, state) = read(&health);
        assert!(status == StatusCode::SERVICE_UNAVAILABLE && state.failure.is_some(), "{state:?}");
        let both = HealthState::of_all([HealthState::default(), state].into_iter());
        assert!(both.losses == 1 && both.failure.is_some());
        health.works();
        assert_eq!(read(&health), (StatusCode::OK, HealthState { losses: 1, failure: None }));
    }
}
