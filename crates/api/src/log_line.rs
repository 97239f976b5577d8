//! One line in the log and one count in the metrics for every request. The line names no key, no prompt and no reply.

use crate::ApiState;
use crate::error::ApiError;
use axum::extract::{MatchedPath, Request};
use axum::http::{Method, StatusCode};
use chancery_domain::RequestId;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// How a stream ended, told by whoever writes it to whoever logs it. Unknown where its caller hung up first.
#[derive(Clone, Default)]
pub(crate) struct StreamOutcome(Arc<OnceLock<Option<ApiError>>>);

impl StreamOutcome {
    pub(crate) fn is(&self, failure: Option<ApiError>) {
        let _ = self.0.set(failure);
    }

    /// The status is that of its head.
    fn known(self) -> Option<(u16, Option<ApiError>)> {
        self.0.get().map(|failure| (StatusCode::OK.as_u16(), failure.clone()))
    }
}

/// Also written for a request whose caller hung up: its future or its stream is dropped in the middle, and so is its
/// `LogLine`.
pub(crate) struct LogLine {
    state: ApiState,
    started_at: Instant,
    request_id: RequestId,
    method: Method,
    path: String,
    is_written: bool,
    /// For a reply that is a stream.
    outcome: Option<StreamOutcome>,
}

/// What is logged where no reply could be sent, after nginx's example.
const HUNG_UP: (u16, &str) = (499, "hung_up");

impl LogLine {
    pub(crate) fn begin(state: &ApiState, request: &Request, request_id: RequestId) -> Self {
        // Only paths of ours are named: a stranger's would make the metrics grow without bound.
        let path = request.extensions().get::<MatchedPath>().map_or("(none)", MatchedPath::as_str).to_owned();
        let method = request.method().clone();
        let started_at = state.meter.clock().monotonic();
        Self { state: state.clone(), started_at, request_id, method, path, is_written: false, outcome: None }
    }

    pub(crate) fn end(mut self, status: u16, error: Option<&ApiError>) {
        self.write_reply(status, error);
    }

    fn write_reply(&mut self, status: u16, error: Option<&ApiError>) {
        let code = error.map_or("", |error| error.code);
        let internal = error.and_then(|error| error.internal.as_deref()).unwrap_or_default();
        self.write(status, code, internal);
    }

    /// Written when it is dropped, which whoever sends the stream does at its end.
    pub(crate) fn until_streamed(mut self, outcome: StreamOutcome) -> Self {
        self.outcome = Some(outcome);
        self
    }

    /// Goes with the frames of a stream.
    pub(crate) fn passing<T>(&self, frame: T) -> T {
        frame
    }

    fn write(&mut self, status: u16, code: &'static str, internal: &str) {
        self.is_written = true;
        let duration = self.state.meter.clock().monotonic().saturating_duration_since(self.started_at);
        let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let Self { request_id, method, path, .. } = &self;
        if internal.is_empty() {
            tracing::info!(%request_id, %method, path, status, code, duration_ms, "request");
        } else {
            tracing::error!(%request_id, %method, path, status, code, duration_ms, internal, "request failed");
        }
        let status = status.to_string();
        metrics::counter!("chancery_http_requests_total", "path" => path.clone(), "status" => status, "code" => code)
            .increment(1);
        metrics::histogram!("chancery_http_request_seconds", "path" => path.clone())
            .record(duration.as_secs_f64());
    }
}

impl Drop for LogLine {
    fn drop(&mut self) {
        if self.is_written {
            return;
        }
        match self.outcome.take().and_then(StreamOutcome::known) {
            Some((status, error)) => self.write_reply(status, error.as_ref()),
            None => self.write(HUNG_UP.0, HUNG_UP.1, ""),
        }
    }
}
