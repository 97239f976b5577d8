//! One log line and one metrics update per request. The line contains no key, prompt or reply.

use crate::ApiState;
use crate::error::ApiError;
use crate::route_metrics::Route;
use axum::extract::{MatchedPath, Request};
use axum::http::{Method, StatusCode};
use chancery_domain::RequestId;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// How a stream ended, passed from the stream's writer to the logger. Stays unset if the caller disconnects first.
#[derive(Clone, Default)]
pub(crate) struct StreamOutcome(Arc<OnceLock<Option<ApiError>>>);

impl StreamOutcome {
    pub(crate) fn set(&self, failure: Option<ApiError>) {
        let _ = self.0.set(failure);
    }

    /// The status was sent with the response head, so it is always 200.
    fn take_outcome(self) -> Option<(u16, Option<ApiError>)> {
        self.0.get().map(|failure| (StatusCode::OK.as_u16(), failure.clone()))
    }
}

/// A request whose caller disconnects is logged too: dropping its future or stream drops its `AccessLogEntry`.
pub(crate) struct AccessLogEntry {
    state: ApiState,
    started_at: Instant,
    request_id: RequestId,
    method: Method,
    route: Arc<Route>,
    is_written: bool,
    /// Set only for streams.
    outcome: Option<StreamOutcome>,
}

/// Logged when no reply could be sent. nginx also uses status 499 for this.
const CLIENT_CLOSED_REQUEST: (u16, &str) = (499, "hung_up");

impl AccessLogEntry {
    pub(crate) fn begin(state: &ApiState, request: &Request, request_id: RequestId) -> Self {
        // Log only the paths of known routes: arbitrary ones would grow the metrics without bound.
        let path = request.extensions().get::<MatchedPath>().map_or("(none)", MatchedPath::as_str);
        let route = state.routes.route(path);
        let method = request.method().clone();
        let started_at = state.meter.clock().monotonic();
        Self { state: state.clone(), started_at, request_id, method, route, is_written: false, outcome: None }
    }

    pub(crate) fn end(mut self, status: u16, error: Option<&ApiError>) {
        self.write_reply(status, error);
    }

    fn write_reply(&mut self, status: u16, error: Option<&ApiError>) {
        let code = error.map_or("", |error| error.code);
        let internal = error.and_then(|error| error.internal.as_deref()).unwrap_or_default();
        self.write(status, code, internal);
    }

    /// Defers the log line until `self` is dropped at the end of the stream.
    pub(crate) fn log_when_streamed(mut self, outcome: StreamOutcome) -> Self {
        self.outcome = Some(outcome);
        self
    }

    /// Ties the lifetime of this line to the frames of a stream.
    pub(crate) fn pass_through<T>(&self, frame: T) -> T {
        frame
    }

    fn write(&mut self, status: u16, code: &'static str, internal: &str) {
        self.is_written = true;
        let duration = self.state.meter.clock().monotonic().saturating_duration_since(self.started_at);
        let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let Self { request_id, method, route, .. } = &self;
        let (id, method, path) = (request_id.as_str(), method.as_str(), route.path());
        if internal.is_empty() {
            tracing::info!(request_id = id, method, path, status, code, duration_ms, "request");
        } else {
            tracing::error!(
                request_id = id,
                method,
                path,
                status,
                code,
                duration_ms,
                internal,
                "request failed"
            );
        }
        route.record(status, code, duration);
    }
}

impl Drop for AccessLogEntry {
    fn drop(&mut self) {
        if self.is_written {
            return;
        }
        match self.outcome.take().and_then(StreamOutcome::take_outcome) {
            Some((status, error)) => self.write_reply(status, error.as_ref()),
            None => self.write(CLIENT_CLOSED_REQUEST.0, CLIENT_CLOSED_REQUEST.1, ""),
        }
    }
}
